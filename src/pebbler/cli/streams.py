"""``pebbler streams``: how many streams a layer wants, by GLP4NN's models and by simulation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..instances.errors import PebblerError
from .options import (
    Parser,
    add_command,
    is_file,
    name_list,
    positive,
    print_json,
    refuse_options,
    require_place,
)

if TYPE_CHECKING:
    from ..instances.devices.caffe import ConvLayer, Direction
    from ..instances.devices.device import Device
    from ..instances.devices.kernels import LayerKernels
    from ..solver.streams.count import StreamCount

_MODELS = ("as-printed", "as-printed-repaired", "as-implemented", "corrected")
_SAMPLES = 64
"""Samples of the batch where a file of kernels does not say how many there are."""
_PASSES = 5
"""Timed passes for every number of streams."""


def add_streams(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "streams",
        _streams,
        "how many streams a layer's samples should run on, by GLP4NN's models, with predicted speed-ups",
        "pebbler streams caffenet/conv1 --device k40 --model corrected",
    )
    command.add_argument(
        "layer_or_file",
        metavar="LAYER|FILE",
        help="NETWORK/LAYER, of GLP4NN's Table 5 or of a network, or kernels of one sample (.json)",
    )
    command.add_argument("--device", default="k40", metavar="NAME", help="see pebbler devices; default: k40")
    command.add_argument("--model", choices=_MODELS, default="corrected", help="default: corrected")
    command.add_argument(
        "--batch", type=positive, metavar="N", help=f"samples; default: the layer's, or {_SAMPLES}"
    )
    command.add_argument("--pass", choices=("forward", "backward"), help="of a layer; default: forward")
    command.add_argument(
        "--solver", metavar="NAME", help="highs, scip, cbc, cp-sat, ...; default: cbc where there is one"
    )
    command.add_argument(
        "--picture", type=Path, metavar="PNG", help="draw time against the number of streams"
    )
    command.add_argument(
        "--measure",
        type=_counts,
        metavar="S,S,...",
        help="run a layer on so many streams of this machine's GPU, measured beside predicted: 1,2,4,8",
    )
    command.add_argument(
        "--repeat", type=positive, metavar="N", help=f"timed passes for --measure; default: {_PASSES}"
    )


def _counts(text: str) -> tuple[int, ...]:
    """Read numbers of streams."""
    counts = tuple(positive(number) for number in name_list(text))
    if not counts:
        raise argparse.ArgumentTypeError("it names no number of streams, such as 1,2,4,8")
    return counts


def _streams(arguments: argparse.Namespace) -> int:
    from ..benchmark.report.streams import can_predict, measured_layer, predicted_layer, told
    from ..instances.devices.caffe import caffe_kernels, find_layer
    from ..instances.devices.device import find_device
    from ..instances.devices.kernels import read_kernels

    if arguments.picture is not None:
        require_place(arguments.picture)
    device = find_device(arguments.device)
    if arguments.measure is None and arguments.repeat is not None:
        raise PebblerError("--repeat is for timed passes; give numbers of streams as --measure, too")
    name, buffer = arguments.layer_or_file, None
    layer: ConvLayer | None = None
    measured: dict[str, Any] | None = None
    direction: Direction = getattr(arguments, "pass") or "forward"
    if is_file(name):
        refuse_options(arguments, name, ("pass",))
        if arguments.measure is not None:
            raise PebblerError(f"{name} has kernels but no shapes to run; give --measure a layer instead")
        kernels, samples = read_kernels(name), arguments.batch or _SAMPLES
    else:
        layer = find_layer(name, arguments.batch)
        kernels = caffe_kernels(device, layer.conv, direction)
        samples, buffer = layer.conv.batch, layer.buffer_bytes
    answer: dict[str, Any] = {"layer": name, "device": device.name}
    texts = []
    if arguments.measure is None or can_predict():
        predicted, text = _predicted(arguments, kernels, device, samples, buffer)
        answer |= predicted
        texts.append(text)
    elif arguments.picture is not None:
        raise PebblerError(
            "--picture draws what is predicted, which takes Numba; install it, or leave that out"
        )
    if layer is not None and arguments.measure is not None:
        repeat = arguments.repeat or _PASSES
        measured = measured_layer(layer, direction, arguments.measure, repeat=repeat)
        counts = measured["times_ns"]
        measured["predicted_ns"] = (
            predicted_layer(layer, direction, device, counts) if can_predict() else None
        )
        answer["measured"] = measured
        texts.append(told(measured, device.name))
    if arguments.json:
        print_json(answer)
    else:
        print("\n\n".join(texts))
    return 0 if measured is None or measured["identical_to_one_stream"] else 1


def _predicted(
    arguments: argparse.Namespace, kernels: LayerKernels, device: Device, samples: int, buffer: int | None
) -> tuple[dict[str, Any], str]:
    """Return what the model and the simulation say, as keys of the answer and as text."""
    from ..instances.units import format_time
    from ..solver.streams.count import count_streams
    from ..validate.streams.concurrent import speedups, streams_ns

    name = arguments.layer_or_file
    count = count_streams(kernels, device, arguments.model, solver=arguments.solver)
    gains = speedups(kernels, device, samples)
    one = streams_ns(kernels, device, samples, 1)
    best = max(gains, key=lambda streams: (gains[streams], -streams))
    if arguments.picture is not None:
        from ..benchmark.output.machine import made_here
        from ..benchmark.pictures.streams import Panel, draw_times
        from ..instances.files import write_atomically

        panel = Panel(f"{name} on {device.name}", {name: gains}, {name: count.streams})
        write_atomically(arguments.picture, draw_times([[panel]], count.model, made_here()))
    answer: dict[str, Any] = {
        "model": count.model,
        "streams": count.streams,
        "per_kernel": count.per_kernel,
        "optima": count.optima,
        "streams_range": count.streams_range,
        "predicted_speedup": gains,
        "best_streams": best,
        "one_stream_ns": one,
        "buffer_bytes": buffer,
        "solver": count.solver,
    }
    what = f"{name} on {device.name}, {samples} samples, T_launch {format_time(kernels.t_launch_ns)}"
    return answer, f"{what}\n\n{_text(kernels, count, answer)}"


def _text(kernels: LayerKernels, count: StreamCount, answer: dict[str, Any]) -> str:
    """Tables of the kernels and of the numbers of streams that tell something."""
    from ..benchmark.output.table import format_table
    from ..instances.units import format_size, format_time

    header = ("kernel", "grid", "block", "shared", "registers", "alone", "launches", "at a time")
    chosen = count.per_kernel or {}
    rows = [
        (
            kernel.name,
            "x".join(map(str, kernel.grid)),
            "x".join(map(str, kernel.block)),
            f"{kernel.shared_bytes} B",
            str(kernel.registers),
            format_time(kernel.duration_ns),
            str(kernel.invocations),
            str(chosen.get(kernel.name, "-")),
        )
        for kernel in kernels.kernels
    ]
    least, most = count.streams_range
    optima = f"{count.optima} optimum" if count.optima == 1 else f"{count.optima} optima"
    span = f"{least} streams" if least == most else f"{least} to {most} streams"
    wanted = "left open" if count.streams is None else str(count.streams)
    gains, one, buffer = answer["predicted_speedup"], answer["one_stream_ns"], answer["buffer_bytes"]
    told = sorted({1, 2, 4, 8, 16, 32, answer["best_streams"], count.streams or 1} & set(gains))
    notes = {answer["best_streams"]: "the best"}
    if count.streams is not None:
        notes[count.streams] = "the model's, the best" if count.streams in notes else "the model's"
    speeds = [
        (
            str(streams),
            format_time(round(one / gains[streams])),
            f"{gains[streams]:.2f}",
            "" if buffer is None else format_size(streams * buffer),
            notes.get(streams, ""),
        )
        for streams in told
    ]
    return "\n".join(
        (
            format_table(header, rows, "lllrrrrr"),
            "",
            f"model:    {count.model}, solved by {count.solver} and by counting",
            f"streams:  {wanted}; {optima}, {span}",
            "",
            format_table(("streams", "predicted", "speed-up", "buffers", ""), speeds, "rrrrl"),
            "",
            "limits:   predicted by simulation, not measured; see docs/papers-glp4nn.md",
        )
    )
