"""GLP4NN's evaluation (ICPP 2018, section 4) repeated on derived kernels and the simulator.

``python paper/scripts/glp4nn.py`` prints the tables of docs/papers-glp4nn.md; ``--write FILE`` puts them
into the page, and the picture beside it. ``--clock`` also makes the tables that depend on the clock: times of
solvers, and searches with a time limit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean, median

import msgspec

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs" / "scripts"))

import timings
from glp4nn_cases import (
    LENET_LOG,
    LENET_MEASURED_MS,
    NETWORKS,
    NEWER_DEVICES,
    PAPER_DEVICES,
    Case,
    case,
    cases,
    iteration,
    iterations,
)
from glp4nn_exhibits import PRINTED_TABLE_6, exhibits
from pebbler.benchmark.output.machine import made_here
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.pictures.streams import Panel, draw_times
from pebbler.heuristics.papers.stream_algorithms import with_streams
from pebbler.instances.devices.caffe import TABLE_5, ConvLayer, caffe_kernels
from pebbler.instances.devices.device import find_device
from pebbler.instances.devices.occupancy import execution_limits
from pebbler.instances.devices.products import Tile, product_kernel, tiled_kernel
from pebbler.instances.devices.roofline import Convolution
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import write_atomically
from pebbler.instances.instance import Algorithm, Instance
from pebbler.instances.memory import ideal_ns, least_budget, with_budget
from pebbler.instances.units import format_size, format_time
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
from pebbler.solver.streams.count import (
    StreamCount,
    all_optima,
    best_by_cp_sat,
    best_by_linear,
    default_solver,
)
from pebbler.solver.streams.glp4nn import MODELS, ModelName, stream_model
from pebbler.validate.streams.concurrent import streams_ns

BEGIN, END = "<!-- begin glp4nn -->\n", "<!-- end glp4nn -->"
CLOCK_BEGIN, CLOCK_END = "<!-- begin glp4nn-clock -->\n", "<!-- end glp4nn-clock -->"
PICTURE = "images/streams.png"

TIMESTAMP_BYTES, CONFIGURATION_BYTES = 16, 48
"""Of a recorded kernel: begin and end; and six extents, two sizes of shared memory, registers and a name's
address. An assumption: the paper prints no sizes."""

RUNS = 3
"""How often a solve is timed: other work may share the machine."""

FEW, DEEP = 128, 4096
"""Rows or columns up to which a product is a small one, and the depth up to which it is not split."""
ONE_TILE = Tile(128, 64, 8, 128, 2)

BUDGETS = (1.0, 1.05, 1.2, 1.5)

CUDNN = "4"
"""Beside Caffe's own convolutions; the paper has none, and this is the first that the cost model knows."""
WHOLE = (("cifar10_quick", 100), ("siamese", 64), ("caffenet", 256), ("googlenet_bvlc", 32))
"""The networks of Table 5 as they are whole, with its batches."""


def tables() -> str:
    """The tables of the page that depend on no clock, as Markdown."""
    parts = (
        ("Every figure and table of the paper", exhibits()),
        ("Table 3: the GPUs, printed and ours", hardware_table()),
        ("Fig. 2: speed-up of CaffeNet's layers by number of streams, forward, P100", figure_2_table()),
        ("Fig. 4: the fewest streams of the greatest speed-up, forward", figure_4_table()),
        ("Fig. 7: speed-up of an iteration, both passes, streams as implemented", iteration_table()),
        ("Fig. 8: streams of the forward pass", streams_table(PAPER_DEVICES)),
        ("Fig. 9: milliseconds, on one stream and with the streams as implemented", figure_9_table()),
        ("Fig. 10: memory by eqs. 10 and 11, and the buffers that the paper leaves out", memory_table()),
        ("Table 6: overhead, printed, and when it is under 0.1 %", overhead_table()),
        ("LeNet's conv1, 64 samples: the authors' measurements and the simulator", lenet_table()),
        ("Kernels of LeNet's conv1, K40: the authors' profile, and derived", profile_table()),
        ("Products by the tile chosen: time over the measured one (DeepBench)", product_table()),
        ("Predicted speed-up, forward, and what limits it", speed_table(PAPER_DEVICES)),
        ("Speed at a model's choice, best = 100 %: geometric mean and least over Table 5", closeness_table()),
        ("Streams of the forward pass, newer GPUs", streams_table(NEWER_DEVICES)),
        ("Predicted speed-up, forward, newer GPUs", speed_table(NEWER_DEVICES)),
        ("Streams beside the algorithms of cuDNN 4, K40", beside_table(WHOLE)),
    )
    picture = f"![Time against the number of streams]({PICTURE})\n"
    return "\n".join([*(f"**{title}**\n\n{table}" for title, table in parts), picture])


def clocked_tables() -> str:
    """The tables of the page that depend on the clock, as Markdown."""
    parts = (
        ("Table 6: time of analysis, forward, all of Table 5's layers of a network", analysis_table()),
        ("Time of solving, every layer x device x model, least of three runs", solving_table()),
        ("Streams under a budget: VGG-16, 64 images, K40, Caffe's convolutions only", joint_table()),
    )
    return "\n".join(f"**{title}**\n\n{table}" for title, table in parts)


# --- what the paper has -----------------------------------------------------------------------------------


def hardware_table() -> str:
    """The rows of Table 3 that kernels depend on."""
    printed = {
        "core count": ("15 x 192", "56 x 64", "30 x 128"),
        "clock, GHz": ("0.745", "1.189", "1.455"),
        "memory, GB": ("12", "12", "12"),
        "bandwidth, GB/s": ("288", "549", "547.7"),
        "shared memory of a multiprocessor, KB": ("48", "64", "48"),
    }
    rows = []
    for what, theirs in printed.items():
        cells = []
        for name, one in zip(PAPER_DEVICES, theirs, strict=True):
            device, limits = find_device(name), execution_limits(find_device(name))
            ours = {
                "core count": f"{device.multiprocessors} x {limits.lanes}",
                "clock, GHz": f"{limits.clock_hz / 1e9:.3f}",
                "memory, GB": f"{device.memory_bytes / 2**30:.0f}",
                "bandwidth, GB/s": f"{device.bandwidth / 1e9:g}",
            }.get(what, f"{limits.shared_bytes / 2**10:.0f}")
            cells += [one, ours]
        rows.append((what, *cells))
    header = [f"{device}: {word}" for device in PAPER_DEVICES for word in ("printed", "ours")]
    return markdown(("", *header), rows)


def figure_2_table() -> str:
    """Speed-ups of CaffeNet's layers on the P100 by number of streams."""
    counts = (2, 4, 8, 16, 32)
    rows = [
        (one.layer.name, *(f"{one.gains[count]:.2f}" for count in counts), _at(one, one.best))
        for one in cases("P100", network="caffenet")
    ]
    return markdown(("layer", *map(str, counts), "best"), rows)


def figure_4_table() -> str:
    """Best numbers of streams for CaffeNet's layers."""
    rows = [
        (layer.name, *(str(case(layer, device).best) for device in PAPER_DEVICES))
        for layer in TABLE_5
        if layer.name.startswith("caffenet")
    ]
    return markdown(("layer", *PAPER_DEVICES), rows)


def iteration_table(layers: Sequence[ConvLayer] = TABLE_5) -> str:
    """Speed-ups of both passes together, with the streams of each in brackets."""
    rows = []
    for layer in layers:
        cells = []
        for device in PAPER_DEVICES:
            one = iteration(layer, device)
            streams = [_streams(each.count("as-implemented")) for each in (one.forward, one.backward)]
            cells.append(f"{one.speed:.2f} ({', '.join(streams)})")
        rows.append((layer.name, *cells))
    return markdown(("layer", *PAPER_DEVICES), rows)


def figure_9_table() -> str:
    """Times of CIFAR10's layers on the Titan XP and of Siamese's on the P100."""
    rows = [
        (
            f"{one.name}, {device}",
            f"{one.forward.one_ns / 1e6:.2f}",
            f"{one.one_ns / 1e6:.2f}",
            f"{one.implemented_ns / 1e6:.2f}",
        )
        for network, device in (("cifar10", "TitanXp"), ("siamese", "P100"))
        for one in iterations(device, network)
    ]
    return markdown(("layer", "forward, one stream", "iteration, one stream", "iteration, implemented"), rows)


def overhead_table() -> str:
    """Table 6, its sums, and the iterations until its ratio holds, by the layers of Table 5 alone."""
    rows = []
    for network, printed in PRINTED_TABLE_6.items():
        for device, (profiling, analysis, total) in zip(PAPER_DEVICES, printed, strict=True):
            ms = sum(one.one_ns for one in iterations(device, network)) / 1e6
            rows.append(
                (
                    f"{network}, {device}",
                    f"{profiling:.3f}",
                    f"{analysis:.3f}",
                    f"{total:.3f}",
                    f"{profiling + analysis:.3f}",
                    f"{ms:.1f}",
                    f"{total / ms * 1000:.0f}",
                )
            )
    header = ("network, GPU", "T_p, ms", "T_a, ms", "T_total, ms", "T_p + T_a", "an iteration, ours, ms")
    return markdown((*header, "iterations until T_total is 0.1 %"), rows)


# --- streams and speeds -----------------------------------------------------------------------------------


def streams_table(devices: Sequence[str], layers: Sequence[ConvLayer] = TABLE_5) -> str:
    """Streams per layer: all optima of both readings of the paper, and the other models' choices."""
    rows = []
    for layer in layers:
        cells = []
        for device in devices:
            one = case(layer, device)
            cells += [_optima(one.count("as-printed")), _optima(one.count("as-printed-repaired"))]
            cells += [_streams(one.count("as-implemented")), _streams(one.count("corrected"))]
        rows.append((layer.name, *cells))
    words = ("printed", "repaired", "implemented", "corrected")
    return markdown(("layer", *(f"{device}: {word}" for device in devices for word in words)), rows)


def speed_table(devices: Sequence[str], layers: Sequence[ConvLayer] = TABLE_5) -> str:
    """Speed-ups at the models' choices and at the best number of streams, and the least limit of each."""
    rows = []
    for layer in layers:
        cells = []
        for device in devices:
            one = case(layer, device)
            cells += [_at(one, one.chosen("as-implemented")), _at(one, one.chosen("corrected"))]
            word, limit = min(one.limits.items(), key=lambda item: item[1])
            cells += [_at(one, one.best), f"{limit:.2f}, {word}"]
        rows.append((layer.name, *cells))
    words = ("implemented", "corrected", "best", "limit")
    return markdown(("layer", *(f"{device}: {word}" for device in devices for word in words)), rows)


def closeness_table() -> str:
    """How much of the best speed the models' choices reach."""
    models: tuple[ModelName, ...] = ("as-implemented", "corrected")
    rows = []
    for device in (*PAPER_DEVICES, *NEWER_DEVICES):
        cells = []
        for model in models:
            shares = [one.speed(model) / one.gains[one.best] for one in cases(device)]
            cells += [f"{100 * geometric_mean(shares):.0f} %", f"{100 * min(shares):.0f} %"]
        cells.append(f"{100 * geometric_mean([1 / one.gains[one.best] for one in cases(device)]):.0f} %")
        rows.append((device, *cells))
    header = [f"{model}: {word}" for model in models for word in ("mean", "least")]
    return markdown(("device", *header, "one stream: mean"), rows)


# --- kernels against measurements -------------------------------------------------------------------------


def lenet_table() -> str:
    """Measured by the authors, and simulated with their durations on a K40."""
    device = find_device("K40")
    rows = [
        (str(streams), *(f"{ms} ms" if ms else "" for ms in measured), simulated)
        for streams, measured in LENET_MEASURED_MS.items()
        for simulated in [format_time(streams_ns(LENET_LOG, device, 64, streams))]
    ]
    return markdown(("streams", "log", "profile", "simulated"), rows)


def profile_table() -> str:
    """Configurations and times of the three kernels of LeNet's conv1."""
    conv = Convolution(64, 1, 20, 28, 28, 24, 24, 5, 5, 1, 0)
    derived = caffe_kernels(find_device("K40"), conv, "forward").kernels
    rows = []
    for theirs, ours in zip(LENET_LOG.kernels, derived, strict=True):
        assert theirs.name == ours.name
        cells = []
        for what in ("blocks", "threads", "registers", "shared_bytes"):
            cells.append(f"{getattr(theirs, what)}, {getattr(ours, what)}")
        rows.append((ours.name, *cells, f"{theirs.duration_ns / 1e3:.1f}, {ours.duration_ns / 1e3:.1f}"))
    return markdown(("kernel", "blocks", "threads", "registers", "shared memory, B", "us"), rows)


def product_table() -> str:
    """DeepBench's products with few rows or columns, by the rule and by one tile for all."""
    few = [
        (timing, timing.shape)
        for timing in timings.layers()
        if isinstance(timing.shape, timings.Product)
        and min(timing.shape.rows, timing.shape.columns) <= FEW
        and timing.shape.depth <= DEEP
    ]
    rows = []
    for name in dict.fromkeys(timing.device for timing, _ in few):
        device = find_device(name)
        chosen, fixed = [], []
        for timing, shape in few:
            if timing.device == name:
                sides, ns = (shape.rows, shape.columns, shape.depth), timing.ms * 1e6
                chosen.append(product_kernel(device, "product", "nn", *sides).duration_ns / ns)
                fixed.append(tiled_kernel(device, "product", ONE_TILE, *sides).duration_ns / ns)
        cells = []
        for ratios in (chosen, fixed):
            near = sum(2 / 3 <= ratio <= 3 / 2 for ratio in ratios)
            cells += [f"{median(ratios):.2f}", f"{100 * near / len(ratios):.0f} %"]
        rows.append((name, str(len(chosen)), *cells))
    ways = [f"{way}: {word}" for way in ("tile chosen", "128 x 64") for word in ("median", "within 1.5 x")]
    return markdown(("GPU", "products", *ways), rows)


# --- solvers ----------------------------------------------------------------------------------------------


def analysis_table() -> str:
    """Milliseconds of the implemented model for the layers of a network, beside Table 6's T_a."""
    solver = default_solver()
    rows = []
    for network, printed in PRINTED_TABLE_6.items():
        layers = [layer for layer in TABLE_5 if layer.name.startswith(network)]
        cells = []
        for device, (_, theirs, _) in zip(PAPER_DEVICES, printed, strict=True):
            ours = sum(
                seconds
                for layer in layers
                for seconds in _solving(layer, device, "as-implemented", lambda m: best_by_linear(m, solver))
            )
            cells += [f"{theirs:.1f}", f"{1000 * ours:.1f}"]
        rows.append((f"{network}, {len(layers)} layers", *cells))
    header = [f"{device}: {word}, ms" for device in PAPER_DEVICES for word in ("printed", "ours")]
    return markdown(("network", *header), rows)


def solving_table() -> str:
    """Greatest and median times of each way to solve a model, after imports."""
    solver = default_solver()
    ways: dict[str, Callable[..., object]] = {
        f"one solve, {solver} through PuLP": lambda model: best_by_linear(model, solver),
        "one solve, CP-SAT": best_by_cp_sat,
        "all optima, counted": all_optima,
    }
    rows = []
    for name, way in ways.items():
        list(_solving(TABLE_5[0], PAPER_DEVICES[0], "corrected", way))  # imports what it needs
        seconds = sorted(
            each
            for layer in TABLE_5
            for device in (*PAPER_DEVICES, *NEWER_DEVICES)
            for model in MODELS
            for each in _solving(layer, device, model, way)
        )
        median = seconds[len(seconds) // 2]
        rows.append((name, str(len(seconds)), f"{1000 * median:.1f} ms", f"{1000 * seconds[-1]:.1f} ms"))
    return markdown(("way", "models", "median", "greatest"), rows)


def _solving(
    layer: ConvLayer, device_name: str, name: ModelName, way: Callable[..., object]
) -> Iterator[float]:
    """Yield the seconds of solving a model, the least of `RUNS`; none where the model does not apply."""
    device = find_device(device_name)
    kernels = caffe_kernels(device, layer.conv, "forward")
    try:
        model = stream_model(name, kernels, execution_limits(device))
    except PebblerError:
        return
    taken = []
    for _ in range(RUNS):
        began = time.perf_counter()
        way(model)
        taken.append(time.perf_counter() - began)
    yield min(taken)


def memory_table() -> str:
    """Bytes of records of one profiled batch on the host, and of lowered samples on the device."""
    rows = []
    for network in NETWORKS:
        some = cases("K40", network=network)
        kernels = sum(one.layer.conv.batch * len(one.kernels.launches) for one in some)
        one_stream = max(one.layer.buffer_bytes for one in some)
        many = max((one.chosen("as-implemented") or 1) * one.layer.buffer_bytes for one in some)
        rows.append(
            (
                network,
                str(kernels),
                format_size(TIMESTAMP_BYTES * kernels),
                format_size(CONFIGURATION_BYTES * kernels),
                format_size(one_stream),
                format_size(many),
            )
        )
    header = ("network", "kernels", "mem_tt", "mem_K", "buffer, one stream", "buffers, implemented, K40")
    return markdown(header, rows)


def joint_table() -> str:
    """`flow` where every convolution has one stream, its fastest number, or the number that it chooses."""
    instance = with_streams(Workload("vgg16", 64, "K40", cudnn=CUDNN).instance(0, check_budget=False), "only")
    variants = {
        "one stream": _fixed(instance, lambda algorithms: algorithms[0]),
        "fastest": _fixed(instance, lambda algorithms: algorithms[-1]),
        "chosen with the rest": instance,
    }
    least = least_budget(instance)
    rows = []
    for factor in BUDGETS:
        cells = []
        for variant in variants.values():
            if least_budget(variant) > least * factor:
                cells.append("does not fit")
                continue
            result = solve(with_budget(variant, int(least * factor)), "flow")
            assert result.makespan_ns is not None
            cells.append(f"{format_time(result.makespan_ns)} ({result.optimality_gap:.2%})")
        rows.append((f"{factor} x M_min ({format_size(int(least * factor))})", *cells))
    rows.append(("no limit", *(format_time(ideal_ns(variant)) for variant in variants.values())))
    return markdown(("budget", *variants), rows)


def beside_table(networks: Sequence[tuple[str, int]]) -> str:
    """How many tasks of convolutions keep a stream algorithm, and how many are fastest with one."""
    rows = []
    for network, batch in networks:
        workload = Workload(network, batch, "K40", cudnn=CUDNN)
        plain = workload.instance(0, check_budget=False)
        only, also = with_streams(plain, "only"), with_streams(plain, "also")
        names = [
            [algorithm.name.startswith("im2col-") for algorithm in both.algorithms]
            for both, one in zip(also.tasks, only.tasks, strict=True)
            if one.algorithms[0].name.startswith("im2col-")
        ]
        counts = len(names), sum(map(any, names)), sum(some[-1] for some in names)
        rows.append((f"{network} ({batch})", *map(str, counts)))
    header = ("network", "tasks of convolutions", "with a stream algorithm", "fastest on streams")
    return markdown(header, rows)


def _fixed(instance: Instance, pick: Callable[[tuple[Algorithm, ...]], Algorithm]) -> Instance:
    """Leave every task one algorithm; they are sorted by rising workspace and falling time."""
    tasks = (msgspec.structs.replace(task, algorithms=(pick(task.algorithms),)) for task in instance.tasks)
    return msgspec.structs.replace(instance, tasks=tuple(tasks))


def picture() -> bytes:
    """Time against streams, a row a network and a column a device of Table 3, as PNG."""
    rows = []
    for network in NETWORKS:
        row = []
        for device in PAPER_DEVICES:
            some = cases(device, network=network)
            row.append(
                Panel(
                    f"{network}, {device}",
                    {one.layer.name: one.gains for one in some},
                    {one.layer.name: one.chosen("corrected") for one in some},
                )
            )
        rows.append(row)
    return draw_times(rows, "corrected", made_here())


def _at(one: Case, streams: int | None) -> str:
    return "-" if streams is None else f"{one.gains[streams]:.2f} ({streams})"


def _streams(count: StreamCount | None) -> str:
    return "-" if count is None else str(count.streams)


def _optima(count: StreamCount | None) -> str:
    if count is None:
        return "-"
    least, greatest = count.streams_range
    span = str(least) if least == greatest else f"{least} to {greatest}"
    return f"{span} ({count.optima})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or put them into a page and the picture beside it."""
    parser = argparse.ArgumentParser(prog="python paper/scripts/glp4nn.py", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    parser.add_argument("--clock", action="store_true", help="also the tables that depend on the clock")
    options = parser.parse_args(arguments)
    page: Path | None = options.write
    publish(tables(), page, BEGIN, END)
    if options.clock:
        publish(clocked_tables(), page, CLOCK_BEGIN, CLOCK_END)
    if page is not None:
        write_atomically(page.parent / PICTURE, picture())


if __name__ == "__main__":
    main()
