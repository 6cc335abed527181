"""A layer on several streams of a GPU: predicted beside measured, as keys of a report and as text."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..instances.caffe import ConvLayer, Direction, caffe_kernels
from ..instances.devices import Device
from ..instances.units import format_time
from ..validate.concurrent import streams_ns
from ..validate.execution.cuda import CudaBackend
from ..validate.execution.layer_streams import measure
from .table import format_table


def measured_layer(
    layer: ConvLayer, direction: Direction, device: Device, counts: Collection[int], *, repeat: int
) -> dict[str, Any]:
    """Run a layer on several numbers of streams of this machine's GPU.

    Parameters
    ----------
    layer, direction
        A layer with its batch, and which pass.
    device
        What times are predicted for.
    counts
        Numbers of streams, beside one.
    repeat
        Timed passes for each.

    Returns
    -------
    dict
        ``device``, the GPU's name; ``stand_in``, whether that was no GPU; ``times_ns`` and ``predicted_ns``
        by number of streams; ``launch_ns``, the host's time for a launch; ``identical_to_one_stream``.

    Raises
    ------
    PebblerError
        As `pebbler.validate.execution.layer_streams.measure`.
    """
    found = measure(CudaBackend, layer.conv, direction, counts, repeat=repeat)
    kernels = caffe_kernels(device, layer.conv, direction)
    return {
        "device": found.device,
        "stand_in": found.is_stand_in,
        "times_ns": found.times_ns,
        "predicted_ns": {s: streams_ns(kernels, device, layer.conv.batch, s) for s in found.times_ns},
        "launch_ns": found.launch_ns,
        "identical_to_one_stream": found.identical,
    }


def told(report: dict[str, Any], predicted_for: str) -> str:
    """Return a report of `measured_layer` as text; times were predicted for a device of this name."""
    times, predicted = report["times_ns"], report["predicted_ns"]
    rows = [
        (
            str(streams),
            format_time(predicted[streams]),
            f"{predicted[1] / predicted[streams]:.2f}",
            format_time(times[streams]),
            f"{times[1] / times[streams]:.2f}",
        )
        for streams in sorted(times)
    ]
    nothing = "; no GPU: its times say nothing, its numbers are right or wrong" if report["stand_in"] else ""
    same = report["identical_to_one_stream"]
    return "\n".join(
        (
            format_table(("streams", "predicted", "speed-up", "measured", "speed-up"), rows, "rrrrr"),
            "",
            f"predicted: for {predicted_for}, by simulation",
            f"measured:  on {report['device']}{nothing}",
            f"host:      {format_time(report['launch_ns'])} a launch",
            f"results:   {'the same bits as on one stream' if same else 'WRONG: not the bits of one stream'}",
        )
    )
