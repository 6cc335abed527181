"""A layer on several streams of a GPU, predicted and measured, as keys of a report and as text."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from typing import Any

from ...instances.devices.caffe import ConvLayer, Direction, caffe_kernels
from ...instances.devices.device import Device
from ...instances.units import format_time
from ...validate.execution.cuda.backend import CudaBackend
from ...validate.execution.cuda.layer_streams import measure
from ..output.table import format_table


def measured_layer(
    layer: ConvLayer, direction: Direction, counts: Collection[int], *, repeat: int
) -> dict[str, Any]:
    """Run a layer on several numbers of streams of this machine's GPU; nothing is predicted.

    Parameters
    ----------
    layer, direction
        A layer with its batch, and the pass.
    counts
        Numbers of streams beside one stream.
    repeat
        Number of timed passes for each number of streams.

    Returns
    -------
    dict
        ``device``, the GPU's name; ``stand_in``, whether the device was no GPU; ``times_ns``, by number of
        streams; ``launch_ns``, the host's time for a launch; ``identical_to_one_stream``.

    Raises
    ------
    PebblerError
        As `pebbler.validate.execution.cuda.layer_streams.measure`.
    """
    found = measure(CudaBackend, layer.conv, direction, counts, repeat=repeat)
    return {
        "device": found.device,
        "stand_in": found.is_stand_in,
        "times_ns": found.times_ns,
        "launch_ns": found.launch_ns,
        "identical_to_one_stream": found.identical,
    }


def can_predict() -> bool:
    """Return whether Numba, which the simulation of streams needs, is installed."""
    return find_spec("numba") is not None


def predicted_layer(
    layer: ConvLayer, direction: Direction, device: Device, counts: Collection[int]
) -> dict[int, int]:
    """Predict a layer on several numbers of streams, by simulation; this needs Numba and no GPU.

    Parameters
    ----------
    layer, direction
        A layer with its batch, and the pass.
    device
        A packaged device.
    counts
        Numbers of streams.

    Returns
    -------
    dict
        Nanoseconds by number of streams.

    Raises
    ------
    PebblerError
        As `pebbler.validate.streams.concurrent.streams_ns`.
    """
    from ...validate.streams.concurrent import streams_ns

    kernels = caffe_kernels(device, layer.conv, direction)
    return {streams: streams_ns(kernels, device, layer.conv.batch, streams) for streams in counts}


def told(report: dict[str, Any], predicted_for: str) -> str:
    """Return a report of `measured_layer` as text.

    Its ``predicted_ns`` are what `predicted_layer` returns for a device of this name, or None.
    """
    kinds = {"predicted": report["predicted_ns"], "measured": report["times_ns"]}
    kinds = {kind: times for kind, times in kinds.items() if times is not None}
    rows = [
        (
            str(streams),
            *(
                cell
                for times in kinds.values()
                for cell in (format_time(times[streams]), f"{times[1] / times[streams]:.2f}")
            ),
        )
        for streams in sorted(report["times_ns"])
    ]
    header = ("streams", *(word for kind in kinds for word in (kind, "speed-up")))
    basis = f"for {predicted_for}, by simulation" if "predicted" in kinds else "not without Numba"
    nothing = "; no GPU: its times say nothing, its numbers are right or wrong" if report["stand_in"] else ""
    same = report["identical_to_one_stream"]
    return "\n".join(
        (
            format_table(header, rows, "r" * len(header)),
            "",
            f"predicted: {basis}",
            f"measured:  on {report['device']}{nothing}",
            f"host:      {format_time(report['launch_ns'])} a launch",
            f"results:   {'the same bits as on one stream' if same else 'WRONG: not the bits of one stream'}",
        )
    )
