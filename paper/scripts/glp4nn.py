"""GLP4NN's evaluation (ICPP 2018, section 4) repeated on derived kernels and the simulator.

``python paper/scripts/glp4nn.py`` prints the tables of docs/papers-glp4nn.md; ``--write FILE`` puts them
into the page, and the picture beside it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import geometric_mean

import msgspec

from pebbler.benchmark.output.machine import made_here
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.pictures.streams import Panel, draw_times
from pebbler.heuristics.papers.stream_algorithms import with_streams
from pebbler.instances.devices.caffe import TABLE_5, ConvLayer, caffe_kernels
from pebbler.instances.devices.device import Device, find_device
from pebbler.instances.devices.kernels import Kernel, LayerKernels
from pebbler.instances.devices.occupancy import execution_limits
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
    count_streams,
    default_solver,
)
from pebbler.solver.streams.glp4nn import MODELS, ModelName, stream_model
from pebbler.validate.streams.concurrent import speedups, streams_ns

BEGIN, END = "<!-- begin glp4nn -->\n", "<!-- end glp4nn -->"
PICTURE = "images/streams.png"

PAPER_DEVICES = ("K40", "P100", "TitanXp")
NEWER_DEVICES = ("A100", "H200")

PRINTED_ANALYSIS_MS = {
    "googlenet": (116.456, 107.829, 124.811),
    "caffenet": (12.375, 12.894, 12.663),
    "cifar10": (9.975, 6.461, 6.551),
    "siamese": (6.783, 7.718, 7.763),
}
"""Table 6, T_a on the K40C, the P100 and the Titan XP."""

WORKED_EXAMPLE = LayerKernels(
    t_launch_ns=5000,
    kernels=(
        Kernel(
            name="im2col",
            grid=(18, 1, 1),
            block=(512, 1, 1),
            shared_bytes=0,
            registers=33,
            duration_ns=30_000,
        ),
        Kernel(
            name="sgemm",
            grid=(48, 1, 1),
            block=(256, 1, 1),
            shared_bytes=8448,
            registers=70,
            duration_ns=110_000,
        ),
        Kernel(
            name="gemmk1",
            grid=(72, 1, 1),
            block=(256, 1, 1),
            shared_bytes=0,
            registers=30,
            duration_ns=14_000,
        ),
    ),
)
"""CaffeNet's conv1 on a K40C, after Fig. 6: grid and registers of im2col are printed, the rest is made up."""

LENET_LOG = LayerKernels(
    t_launch_ns=2963,
    kernels=(
        Kernel(
            name="im2col", grid=(2, 1, 1), block=(512, 1, 1), shared_bytes=0, registers=33, duration_ns=17550
        ),
        Kernel(
            name="sgemm",
            grid=(9, 1, 1),
            block=(256, 1, 1),
            shared_bytes=8448,
            registers=70,
            duration_ns=14820,
        ),
        Kernel(
            name="gemmk1", grid=(5, 1, 1), block=(256, 1, 1), shared_bytes=0, registers=30, duration_ns=3780
        ),
    ),
)
"""Mean durations and idle time in the authors' log of LeNet's conv1 (``LOG`` in their repository).

The grids are derived."""
LENET_MEASURED_MS = {1: "2.84", 2: "1.93", 3: "1.54 to 1.71"}

TIMESTAMP_BYTES, CONFIGURATION_BYTES = 16, 48
"""Of a recorded kernel: begin and end; and six extents, two sizes of shared memory, registers and a name's
address. An assumption: the paper prints no sizes."""

RUNS = 3
"""How often a solve is timed: other work may share the machine."""

BUDGETS = (1.0, 1.05, 1.2, 1.5)

CUDNN = "4"
"""Beside Caffe's own convolutions; the paper has none, and this is the first that the cost model knows."""
WHOLE = (("cifar10_quick", 100), ("siamese", 64), ("caffenet", 256), ("googlenet_bvlc", 32))
"""The networks of Table 5 as they are whole, with its batches."""


@dataclass(frozen=True)
class Case:
    """A layer's forward pass on a device, simulated and modelled when it is asked for."""

    layer: ConvLayer
    device: Device

    @cached_property
    def kernels(self) -> LayerKernels:
        """What Caffe launches for one sample."""
        return caffe_kernels(self.device, self.layer.conv, "forward")

    @cached_property
    def gains(self) -> dict[int, float]:
        """Speed-up by number of streams."""
        return speedups(self.kernels, self.device, self.layer.conv.batch)

    @cached_property
    def counts(self) -> dict[ModelName, StreamCount | None]:
        """What the models say; None where one does not apply."""
        return {model: _asked(self.kernels, self.device, model) for model in MODELS}

    @property
    def best(self) -> int:
        """The fewest streams of the greatest speed-up."""
        return max(self.gains, key=lambda streams: (self.gains[streams], -streams))

    def chosen(self, model: ModelName) -> int | None:
        """What a model says, if it does."""
        count = self.counts[model]
        return None if count is None else count.streams

    @cached_property
    def one_ns(self) -> int:
        """Time on one stream."""
        return streams_ns(self.kernels, self.device, self.layer.conv.batch, 1)


@cache
def case(layer: ConvLayer, device_name: str) -> Case:
    """Return the one case of a layer on a device, so that its figures are computed once."""
    return Case(layer, find_device(device_name))


def _asked(kernels: LayerKernels, device: Device, model: ModelName) -> StreamCount | None:
    try:
        return count_streams(kernels, device, model)
    except PebblerError:
        return None


def tables() -> str:
    """All tables of the page, as Markdown."""
    parts = (
        ("Findings", findings_table()),
        ("Streams, the GPUs of Table 3 (Fig. 8)", streams_table(PAPER_DEVICES)),
        ("Streams, newer GPUs", streams_table(NEWER_DEVICES)),
        ("Predicted speed-up over one stream, the GPUs of Table 3", speed_table(PAPER_DEVICES)),
        ("Predicted speed-up over one stream, newer GPUs", speed_table(NEWER_DEVICES)),
        ("Speed at a model's choice, best = 100 %: geometric mean and least over Table 5", closeness_table()),
        ("LeNet's conv1, 64 samples: the authors' log and the simulator", lenet_table()),
        ("Time of analysis, forward, all of Table 5's layers of a network", analysis_table()),
        ("Time of solving, every layer x device x model, least of three runs", solving_table()),
        ("Memory: eqs. 10 and 11, and the buffers that the paper leaves out", memory_table()),
        ("Streams under a budget: VGG-16, 64 images, K40, Caffe's convolutions only", joint_table()),
        ("Streams beside the algorithms of cuDNN 4, K40", beside_table(WHOLE)),
    )
    picture = f"![Time against the number of streams]({PICTURE})\n"
    return "\n".join([*(f"**{title}**\n\n{table}" for title, table in parts), picture])


def streams_table(devices: Sequence[str]) -> str:
    """Streams per layer: all optima as printed, and the choices of the two other models."""
    rows = []
    for layer in TABLE_5:
        cells = []
        for device in devices:
            one = case(layer, device)
            printed = one.counts["as-printed"]
            assert printed is not None
            cells.append(f"{_range(printed.streams_range)} ({printed.optima})")
            cells += [_streams(one.counts["as-implemented"]), _streams(one.counts["corrected"])]
        rows.append((layer.name, *cells))
    header = [f"{device}: {word}" for device in devices for word in ("printed", "implemented", "corrected")]
    return markdown(("layer", *header), rows)


def speed_table(devices: Sequence[str]) -> str:
    """Speed-ups at the models' choices and at the best number of streams."""
    rows = []
    for layer in TABLE_5:
        cells = []
        for device in devices:
            one = case(layer, device)
            cells += [_at(one, one.chosen("as-implemented")), _at(one, one.chosen("corrected"))]
            cells.append(_at(one, one.best))
        rows.append((layer.name, *cells))
    header = [f"{device}: {word}" for device in devices for word in ("implemented", "corrected", "best")]
    return markdown(("layer", *header), rows)


def findings_table() -> str:
    """The paper's findings, what comes out here, and whether that is the same."""
    cases = {device: _all(device) for device in PAPER_DEVICES}
    example = count_streams(WORKED_EXAMPLE, find_device("K40"), "as-implemented")
    everything = [one for some in cases.values() for one in some]
    speeds = {(one.layer.name, one.device.name): _speed(one, "as-implemented") for one in everything}
    gaining = sum(speed > 1.05 for speed in speeds.values())
    greatest = max(speeds, key=lambda key: speeds[key])
    short = [("cifar10/conv1", "TitanXp"), ("siamese/conv1", "P100"), ("siamese/conv1_p", "P100")]
    told = ", ".join(f"{speeds[key]:.2f}" for key in short)
    differing = sum(
        len({case(layer, device).best for device in PAPER_DEVICES}) > 1
        for layer in TABLE_5
        if "caffenet" in layer.name
    )
    network = {
        d: _network_speed([one for one in cases[d] if "siamese" in one.layer.name]) for d in PAPER_DEVICES
    }
    overall = {
        d: _network_speed([one for one in cases[d] if "cifar10" in one.layer.name]) for d in PAPER_DEVICES
    }
    rows = [
        (
            "Fig. 6: streams of CaffeNet's conv1 on the K40C",
            "3",
            f"{example.streams}, of the model as implemented on the worked example",
            f"used: the choice among its {example.optima} optima was fixed by it",
        ),
        (
            "gains for most convolution layers (section 4.2.1)",
            "most",
            f"{gaining} of {len(speeds)} layers and GPUs gain 5 % or more with the streams as implemented",
            _verdict(2 * gaining > len(speeds)),
        ),
        (
            "speed-up of up to 4x",
            "4",
            f"{speeds[greatest]:.2f} ({greatest[0]}, {greatest[1]})",
            _verdict(3 <= speeds[greatest] <= 5, f"missed: {'more' if speeds[greatest] > 5 else 'less'}"),
        ),
        (
            "no gain where kernels are shorter than launches: CIFAR10's conv1 on the Titan XP, Siamese's "
            "conv1 and conv1_p on the P100",
            "slower",
            told,
            _verdict(all(speeds[key] < 0.995 for key in short), _loss([speeds[key] for key in short])),
        ),
        (
            "those networks gain as a whole, CIFAR10 on the Titan XP and Siamese on the P100",
            "faster",
            f"{overall['TitanXp']:.2f}, {network['P100']:.2f}",
            _verdict(overall["TitanXp"] > 1 and network["P100"] > 1),
        ),
        (
            "Siamese gains more on the K40C than on the Titan XP",
            "more",
            f"{network['K40']:.2f} and {network['TitanXp']:.2f}",
            _verdict(network["K40"] > network["TitanXp"]),
        ),
        (
            "Siamese gains more on the K40C than on the P100",
            "more",
            f"{network['K40']:.2f} and {network['P100']:.2f}",
            _verdict(network["K40"] > network["P100"]),
        ),
        (
            "the best number of streams varies from GPU to GPU (Fig. 4, CaffeNet)",
            "varies",
            f"it differs for {differing} of 5 layers",
            _verdict(differing > 0),
        ),
    ]
    return markdown(("finding", "printed", "ours", "verdict"), rows)


def closeness_table() -> str:
    """How much of the best speed the models' choices reach."""
    models: tuple[ModelName, ...] = ("as-implemented", "corrected")
    rows = []
    for device in (*PAPER_DEVICES, *NEWER_DEVICES):
        cells = []
        for model in models:
            shares = [_speed(one, model) / one.gains[one.best] for one in _all(device)]
            cells += [f"{100 * geometric_mean(shares):.0f} %", f"{100 * min(shares):.0f} %"]
        cells.append(f"{100 * geometric_mean([1 / one.gains[one.best] for one in _all(device)]):.0f} %")
        rows.append((device, *cells))
    header = [f"{model}: {word}" for model in models for word in ("mean", "least")]
    return markdown(("device", *header, "one stream: mean"), rows)


def lenet_table() -> str:
    """Measured by the authors, and simulated with their durations on a K40."""
    device = find_device("K40")
    rows = [
        (str(streams), f"{measured} ms", format_time(streams_ns(LENET_LOG, device, 64, streams)))
        for streams, measured in LENET_MEASURED_MS.items()
    ]
    return markdown(("streams", "measured", "simulated"), rows)


def analysis_table() -> str:
    """Milliseconds of the implemented model for the layers of a network, beside Table 6's T_a."""
    solver = default_solver()
    rows = []
    for network, printed in PRINTED_ANALYSIS_MS.items():
        layers = [layer for layer in TABLE_5 if layer.name.startswith(network)]
        cells = []
        for device, theirs in zip(PAPER_DEVICES, printed, strict=True):
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
    for network in PRINTED_ANALYSIS_MS:
        some = [case(layer, "K40") for layer in TABLE_5 if layer.name.startswith(network)]
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
    for network in dict.fromkeys(layer.name.partition("/")[0] for layer in TABLE_5):
        row = []
        for device in PAPER_DEVICES:
            some = [case(layer, device) for layer in TABLE_5 if layer.name.startswith(network)]
            row.append(
                Panel(
                    f"{network}, {device}",
                    {one.layer.name: one.gains for one in some},
                    {one.layer.name: one.chosen("corrected") for one in some},
                )
            )
        rows.append(row)
    return draw_times(rows, "corrected", made_here())


def _all(device: str) -> list[Case]:
    return [case(layer, device) for layer in TABLE_5]


def _network_speed(cases: Sequence[Case]) -> float:
    """Speed-up of the layers together with the implemented model's streams."""
    return sum(one.one_ns for one in cases) / sum(one.one_ns / _speed(one, "as-implemented") for one in cases)


def _speed(one: Case, model: ModelName) -> float:
    """Speed-up at a model's choice; without one the layer stays on one stream."""
    return one.gains[one.chosen(model) or 1]


def _at(one: Case, streams: int | None) -> str:
    return "-" if streams is None else f"{one.gains[streams]:.2f} ({streams})"


def _streams(count: StreamCount | None) -> str:
    return "-" if count is None else str(count.streams)


def _range(span: tuple[int, int]) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]} to {span[1]}"


def _verdict(same: bool, otherwise: str = "missed") -> str:
    return "reproduced" if same else otherwise


def _loss(speeds: Sequence[float]) -> str:
    if all(speed < 1.005 for speed in speeds):
        return "half: no gain, but no loss either, for streams cost nothing here"
    return "missed"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or put them into a page and the picture beside it."""
    parser = argparse.ArgumentParser(prog="python paper/scripts/glp4nn.py", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    page: Path | None = parser.parse_args(arguments).write
    publish(tables(), page, BEGIN, END)
    if page is not None:
        write_atomically(page.parent / PICTURE, picture())


if __name__ == "__main__":
    main()
