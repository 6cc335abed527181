"""The cost model against published timings: the tables and the picture of docs/costs.md.

``python docs/scripts/costs.py`` prints the tables; ``--write docs/costs.md`` puts them into the page and
draws ``docs/images/costs.png``. Timings are those of ``docs/scripts/timings.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from statistics import median, quantiles

from matplotlib import style
from matplotlib.figure import Figure

from pebbler.benchmark.output.drawing import png
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.pictures.schedule import COLOURS
from pebbler.instances.devices.device import Device, find_device, list_devices
from pebbler.instances.devices.roofline import Convolution, convolution_algorithms, matrix_algorithms
from pebbler.instances.files import write_atomically
from pebbler.instances.instance import Algorithm
from pebbler.instances.memory import ideal_ns
from pebbler.instances.networks.accounting import vdnn_network_wide
from pebbler.instances.networks.taskgraph import TaskGraph, task_graph
from pebbler.instances.networks.zoo import find_network
from pebbler.instances.workload import Workload, convolution_of, modelled
from timings import VALUE_BYTES, LayerTiming, NetworkTiming, is_fitted, layers, networks

PICTURE = Path("images/costs.png")
BEGIN, END = "<!-- begin validation -->\n", "<!-- end validation -->\n"
BEGIN_PAPERS, END_PAPERS = "<!-- begin papers -->\n", "<!-- end papers -->\n"

NEAR = 0.3
"""A layer within 30 % of the model's time counts as near."""
NEAR_NETWORK = 0.15
"""The same of a whole network."""
NETWORK_WIDE = {("vgg16", 256): 28.0, ("vgg16", 128): 15.0, ("vgg16", 32): 4.9, ("alexnet", 128): 1.1}
"""Memory that vDNN (MICRO 2016) prints for network-wide allocation, in GB, by network and batch."""
SMALL_BATCHES = {
    "alexnet_caffe": (128, 2100, 0.082),
    "vgg16": (64, 240, 0.042),
    "resnet34": (32, 416, 0.133),
    "resnet50": (32, 272, 0.063),
    "resnet56": (256, 5000, 0.092),
    "wrn28_10": (128, 1376, 0.086),
}
"""Two batches on a K40M, and what the larger one saves of an epoch's time: Layrub (TACO 2018), Table 7."""
GIB = 2**30
_PASSES = {"FP": "forward", "BP1": "backward data", "BP2": "backward filter"}


@dataclass(frozen=True, slots=True)
class Share:
    """How measured times lie about the model's.

    Attributes
    ----------
    ratios
        Measured over model, one a timing; at least one.
    """

    ratios: tuple[float, ...]

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third; of a single ratio, that one."""
        if len(self.ratios) == 1:
            return self.ratios[0], self.ratios[0]
        first, _, third = quantiles(self.ratios, n=4, method="inclusive")
        return first, third

    @property
    def median(self) -> float:
        """The ratio in the middle."""
        return median(self.ratios)

    def near(self, distance: float) -> float:
        """Share of ratios within a distance of 1."""
        return sum(abs(ratio - 1) <= distance for ratio in self.ratios) / len(self.ratios)

    def cells(self, distance: float) -> list[str]:
        """Return number, median, quartiles and share within a distance of 1, as cells of a table."""
        first, third = self.quartiles
        number = str(len(self.ratios))
        return [
            number,
            f"{self.median:.2f}",
            f"{first:.2f} to {third:.2f}",
            _percent(self.near(distance)),
        ]


def layer_ms(timing: LayerTiming) -> float:
    """Return the model's time of a measured layer: with its fastest algorithm, in milliseconds."""
    return modelled_ms(timing, _device(timing))


def modelled_ms(timing: LayerTiming, device: Device) -> float:
    """Return the time of a measured layer on a device that may have other figures, in milliseconds."""
    shape, precision = timing.shape, timing.precision
    if isinstance(shape, Convolution):
        algorithms = convolution_algorithms(device, shape, timing.which, precision=precision)
    else:
        rows, columns, depth = shape.rows, shape.columns, shape.depth
        moved = VALUE_BYTES[precision] * (rows * depth + depth * columns + rows * columns)
        algorithms = matrix_algorithms(device, rows, columns, depth, moved, precision=precision)
    return _fastest(algorithms) / 1e6


@lru_cache(maxsize=256)
def network_ms(timing: NetworkTiming) -> tuple[float, float]:
    """Return the model's forward and backward time of a measured network, in milliseconds.

    Every task has its fastest algorithm. The loss is left out, and the gradient of the image is computed
    where it was measured.
    """
    return modelled_network_ms(timing, _device(timing))


def modelled_network_ms(timing: NetworkTiming, device: Device) -> tuple[float, float]:
    """Return the same on a device that may have other figures."""
    graph = _graph(timing.network, timing.batch)
    forward = backward = 0
    for task in graph.tasks:
        if task.layer.kind.is_loss:
            continue
        if task.role == "FP":
            forward += _fastest(modelled(graph, task, device))
        else:
            backward += _fastest(modelled(graph, task, device))
    if timing.image_gradient:
        source, first = graph.network.layers[:2]
        conv = convolution_of(timing.batch, first, source, first)
        backward += _fastest(convolution_algorithms(device, conv, "BP1"))
    return forward / 1e6, backward / 1e6


@cache
def _graph(network: str, batch: int) -> TaskGraph:
    return task_graph(find_network(network), batch)


def _device(timing: LayerTiming | NetworkTiming) -> Device:
    return find_device(timing.device, timing.cudnn)


def _fastest(algorithms: Iterable[Algorithm]) -> int:
    return min(algorithm.duration_ns for algorithm in algorithms)


def layer_shares(timings: Sequence[LayerTiming]) -> dict[tuple[str, str, str], Share]:
    """Return the ratios by series, pass and kind of layer, without those that the model was fitted to.

    Kind ``all`` has every convolution of a pass.
    """
    found: dict[tuple[str, str, str], list[float]] = {}
    for timing in sorted(timings, key=_order):
        if is_fitted(timing):
            continue
        ratio = timing.ms / layer_ms(timing)
        if isinstance(timing.shape, Convolution):
            which = _PASSES[timing.which]
            found.setdefault((timing.series, which, "all"), []).append(ratio)
        else:
            which = "matrix product"
        found.setdefault((timing.series, which, timing.kind), []).append(ratio)
    return {key: Share(tuple(ratios)) for key, ratios in found.items()}


def network_ratios(timing: NetworkTiming) -> tuple[float, float, float]:
    """Return measured over model of a network, forward, backward and both."""
    forward, backward = network_ms(timing)
    measured = timing.forward_ms + timing.backward_ms
    return timing.forward_ms / forward, timing.backward_ms / backward, measured / (forward + backward)


def _order(timing: LayerTiming | NetworkTiming) -> tuple[object, ...]:
    if isinstance(timing, NetworkTiming):
        return _rank(timing.device), timing.cudnn, timing.source, timing.network
    which = list(_PASSES).index(timing.which) if isinstance(timing.shape, Convolution) else len(_PASSES)
    return _rank(timing.series), which, timing.kind


def _rank(series: str) -> tuple[bool, int]:
    """Order series as devices are listed, those in other precisions than single behind all others."""
    device, _, precision = series.partition(" ")
    return bool(precision), [device.name for device in list_devices()].index(device)


def report(
    singles: Sequence[LayerTiming], halves: Sequence[LayerTiming], whole: Sequence[NetworkTiming]
) -> str:
    """Return the tables as Markdown: each device against the aims, single layers, each network.

    Parameters
    ----------
    singles, halves
        Layers in single and in half precision.
    whole
        Networks.
    """
    rows = []
    for timing in sorted(whole, key=_order):
        ratios = network_ratios(timing)
        measured = f"{timing.forward_ms + timing.backward_ms:.1f}"
        cells = (timing.device, timing.cudnn, f"`{timing.network}`", str(timing.batch), measured)
        fitted = "fitted" if is_fitted(timing) else ""
        rows.append([*cells, *(f"{ratio:.2f}" for ratio in ratios), fitted])
    return (
        "Measured over model, of what the model was not fitted to; above 1 the model is too fast.\n\n"
        f"![Measured over model, by device]({PICTURE})\n\n"
        "Against the aims: medians from 0.9 to 1.1, 80 % of forward and 60 % of backward passes of single "
        f"convolutions within {_percent(NEAR)}, whole networks within {_percent(NEAR_NETWORK)}.\n\n"
        + markdown(
            (
                "device",
                "forward",
                f"within {_percent(NEAR)}",
                "backward",
                f"within {_percent(NEAR)}",
                "networks",
                f"within {_percent(NEAR_NETWORK)}",
            ),
            _aims([*singles, *halves], whole),
        )
        + "\nSingle convolutions and matrix products of DeepBench in single precision:\n\n"
        + _by_kind(singles)
        + "\nThe same in half precision:\n\n"
        + _by_kind(halves)
        + "\nWhole networks, 'ms' as measured, forward and backward together:\n\n"
        + markdown(("device", "cuDNN", "network", "batch", "ms", "forward", "backward", "both", ""), rows)
    )


def _by_kind(timings: Sequence[LayerTiming]) -> str:
    return markdown(
        ("device", "pass", "kind", "n", "median", "quartiles", f"within {_percent(NEAR)}"),
        [[*key, *share.cells(NEAR)] for key, share in layer_shares(timings).items()],
    )


def papers() -> str:
    """Return the tables of what vDNN and Layrub print, as Markdown."""
    return (
        "Memory of network-wide allocation on the Titan X with cuDNN 4:\n\n"
        + markdown(
            ("network", "printed, GB", "without workspace, GiB", "with the largest, GiB", "deviation"),
            [_network_wide(*key, printed) for key, printed in NETWORK_WIDE.items()],
        )
        + "\nConvolutions, their ReLU and biases, one iteration:\n\n"
        + markdown(
            ("", "without workspace, s", "fastest, s", "ratio"),
            [
                _speeds(network, batch, device)
                for network, batch, device in (
                    ("vgg16", 256, "K40"),
                    ("vgg16", 256, "TitanX"),
                    ("vgg16", 256, "V100"),
                    ("alexnet", 128, "TitanX"),
                    ("overfeat", 128, "TitanX"),
                )
            ],
        )
        + "\nTime of an image in the larger batch against the smaller one, on the K40 with cuDNN 4:\n\n"
        + markdown(
            ("network", "batches", "printed", "model"),
            [_small_batch(network, *row) for network, row in SMALL_BATCHES.items()],
        )
    )


def _network_wide(network: str, batch: int, printed: float) -> list[str]:
    instance = Workload(network, batch, "TitanX").round(batch, 1)
    without = vdnn_network_wide(find_network(network), batch) / GIB
    with_largest = without + max(task.algorithms[-1].workspace_bytes for task in instance.tasks) / GIB
    cells = f"{printed:g}", f"{without:.2f}", f"{with_largest:.2f}", _signed(with_largest / printed - 1)
    return [f"{network} ({batch})", *cells]


def _speeds(network: str, batch: int, device: str) -> list[str]:
    graph = _graph(network, batch)
    tasks = [modelled(graph, t, find_device(device)) for t in graph.tasks if t.layer.kind.name == "conv"]
    slow, fast = (sum(ways[k].duration_ns for ways in tasks) / 1e9 for k in (0, -1))
    return [f"{network} ({batch}), {device}", f"{slow:.3g}", f"{fast:.3g}", f"{slow / fast:.2f}"]


def _small_batch(network: str, small: int, large: int, printed: float) -> list[str]:
    times = (ideal_ns(Workload(network, b, "K40").round(b, 1)) / b for b in (small, large))
    before, after = times
    return [network, f"{small} to {large}", _signed(-printed), _signed(after / before - 1)]


def _signed(share: float) -> str:
    return f"{share:+.1%}".replace("%", " %")


def _aims(singles: Sequence[LayerTiming], whole: Sequence[NetworkTiming]) -> list[list[str]]:
    """Return a row a series: medians and shares of forward and backward passes, and of networks."""
    table: dict[str, dict[str, list[float]]] = {}
    for timing in singles:
        if isinstance(timing.shape, Convolution) and not is_fitted(timing):
            mine = table.setdefault(timing.series, {})
            mine.setdefault("forward" if timing.which == "FP" else "backward", []).append(
                timing.ms / layer_ms(timing)
            )
    for network in whole:
        if not is_fitted(network):
            mine = table.setdefault(network.device, {})
            mine.setdefault("networks", []).append(network_ratios(network)[2])
    rows = []
    for series in sorted(table, key=_rank):
        cells = [series]
        for name in ("forward", "backward", "networks"):
            ratios = table[series].get(name)
            share = None if ratios is None else Share(tuple(ratios))
            near = NEAR_NETWORK if name == "networks" else NEAR
            cells += ["", ""] if share is None else [f"{share.median:.2f}", _percent(share.near(near))]
        rows.append(cells)
    return rows


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def picture(singles: Sequence[LayerTiming], whole: Sequence[NetworkTiming]) -> bytes:
    """Draw measured over model as PNG: a box for each series and pass, and one for the device's networks."""
    boxes: dict[str, dict[str, tuple[float, ...]]] = {}
    for (series, which, kind), share in layer_shares(singles).items():
        if kind in ("all", "product", "few columns"):
            name = which if kind == "all" else {"product": "products"}.get(kind, kind)
            boxes.setdefault(series, {})[name] = share.ratios
    for timing in sorted(whole, key=_order):
        if is_fitted(timing):
            continue
        mine = boxes.setdefault(timing.device, {})
        mine["networks"] = (*mine.get("networks", ()), network_ratios(timing)[2])
    return _drawn({series: boxes[series] for series in sorted(boxes, key=_rank)})


def _drawn(boxes: Mapping[str, Mapping[str, tuple[float, ...]]]) -> bytes:
    names = list(dict.fromkeys(name for mine in boxes.values() for name in mine))
    with style.context("default"):
        figure = Figure(figsize=(12, 3.6), dpi=110, layout="constrained")
        grid = figure.subplots(1, len(boxes), sharey=True, squeeze=False)[0]
        for axes, (series, mine) in zip(grid, boxes.items(), strict=True):
            here = [name for name in names if name in mine]
            axes.boxplot(
                [mine[name] for name in here],
                positions=[names.index(name) for name in here],
                widths=0.6,
                showfliers=False,
                whis=(5, 95),
                medianprops={"color": COLOURS["compute"], "linewidth": 2},
            )
            axes.axhspan(1 - NEAR, 1 + NEAR, color=COLOURS["stall"], alpha=0.15, linewidth=0)
            axes.axhline(1, color="black", linewidth=0.6)
            axes.set_yscale("log", base=2)
            axes.set_xlim(-0.6, len(names) - 0.4)
            axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
            axes.set_yticks([0.25, 0.5, 1, 2, 4, 8, 16], ["1/4", "1/2", "1", "2", "4", "8", "16"], fontsize=7)
            axes.set_title(series, fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
        grid[0].set_ylabel("measured / model", fontsize=8)
        figure.supxlabel(
            "boxes: quartiles; whiskers: 5 to 95 % of the timings; band: within 30 %", fontsize=7
        )
        return png(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or write them into the page beside the picture."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    page: Path | None = parser.parse_args(arguments).write
    singles, halves, whole = layers(), layers(precision="fp16"), networks()
    if page is not None:
        write_atomically(page.parent / PICTURE, picture([*singles, *halves], whole))
    publish(report(singles, halves, whole), page, BEGIN, END)
    publish(papers(), page, BEGIN_PAPERS, END_PAPERS)


if __name__ == "__main__":
    main()
