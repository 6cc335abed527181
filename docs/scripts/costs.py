"""The cost model against published timings: the tables and the picture of docs/costs.md.

``python docs/scripts/costs.py`` prints the tables; ``--write docs/costs.md`` puts them into the page and
draws ``docs/images/costs.png``. Timings are those of ``docs/scripts/timings.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median, quantiles

from matplotlib import style
from matplotlib.figure import Figure

from pebbler.benchmark.output.drawing import png
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.pictures.schedule import COLOURS
from pebbler.instances.devices.device import Device, find_device, list_devices
from pebbler.instances.devices.roofline import Convolution, convolution_algorithms, dense_algorithms
from pebbler.instances.files import write_atomically
from pebbler.instances.instance import Algorithm
from pebbler.instances.networks.taskgraph import task_graph
from pebbler.instances.networks.zoo import find_network
from pebbler.instances.workload import Workload, convolution_of
from timings import LayerTiming, NetworkTiming, layers, networks

PICTURE = Path("images/costs.png")
BEGIN, END = "<!-- begin validation -->\n", "<!-- end validation -->\n"

NEAR = 0.3
"""A time within 30 % of the model's counts as near."""
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
    def near(self) -> float:
        """Share of ratios within 30 % of 1."""
        return sum(abs(ratio - 1) <= NEAR for ratio in self.ratios) / len(self.ratios)

    def cells(self) -> list[str]:
        """Return number, median, quartiles and share within 30 %, as cells of a table."""
        first, third = self.quartiles
        return [
            str(len(self.ratios)),
            f"{median(self.ratios):.2f}",
            f"{first:.2f} to {third:.2f}",
            f"{self.near:.0%}".replace("%", " %"),
        ]


def layer_ms(timing: LayerTiming) -> float:
    """Return the model's time of a measured layer: with its fastest algorithm, in milliseconds."""
    device, shape = find_device(timing.device), timing.shape
    if isinstance(shape, Convolution):
        algorithms = convolution_algorithms(device, shape, timing.which)
    else:
        algorithms = dense_algorithms(device, shape.columns, shape.depth, shape.rows, "FP")
    return _fastest(algorithms) / 1e6


@lru_cache(maxsize=256)
def network_ms(timing: NetworkTiming) -> tuple[float, float]:
    """Return the model's forward and backward time of a measured network, in milliseconds.

    Every task has its fastest algorithm. The loss is left out, and the gradient of the image is computed
    where it was measured.
    """
    network = find_network(timing.network)
    instance = Workload(timing.network, timing.batch, timing.device).round(timing.batch, 1)
    forward = backward = 0
    for task, made in zip(task_graph(network, timing.batch).tasks, instance.tasks, strict=True):
        if task.layer.kind.is_loss:
            continue
        if task.role == "FP":
            forward += _fastest(made.algorithms)
        else:
            backward += _fastest(made.algorithms)
    if timing.image_gradient:
        source, first = network.layers[:2]
        conv = convolution_of(timing.batch, first, source, first)
        backward += _fastest(convolution_algorithms(_device(timing), conv, "BP1"))
    return forward / 1e6, backward / 1e6


def _device(timing: LayerTiming | NetworkTiming) -> Device:
    return find_device(timing.device)


def _fastest(algorithms: Iterable[Algorithm]) -> int:
    return min(algorithm.duration_ns for algorithm in algorithms)


def layer_shares(timings: Sequence[LayerTiming]) -> dict[tuple[str, str, str], Share]:
    """Return the ratios by device, pass and kind of layer; kind ``all`` has every convolution of a pass."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for timing in sorted(timings, key=_order):
        ratio = timing.ms / layer_ms(timing)
        if isinstance(timing.shape, Convolution):
            which = _PASSES[timing.which]
            found.setdefault((timing.device, which, "all"), []).append(ratio)
        else:
            which = "matrix product"
        found.setdefault((timing.device, which, timing.kind), []).append(ratio)
    return {key: Share(tuple(ratios)) for key, ratios in found.items()}


def network_ratios(timing: NetworkTiming) -> tuple[float, float, float]:
    """Return measured over model of a network, forward, backward and both."""
    forward, backward = network_ms(timing)
    measured = timing.forward_ms + timing.backward_ms
    return timing.forward_ms / forward, timing.backward_ms / backward, measured / (forward + backward)


def _order(timing: LayerTiming | NetworkTiming) -> tuple[object, ...]:
    names = [device.name for device in list_devices()]
    if isinstance(timing, NetworkTiming):
        return names.index(timing.device), timing.cudnn, timing.source, timing.network
    which = list(_PASSES).index(timing.which) if isinstance(timing.shape, Convolution) else len(_PASSES)
    return names.index(timing.device), which, timing.kind


def report(singles: Sequence[LayerTiming], whole: Sequence[NetworkTiming]) -> str:
    """Return the tables as Markdown: single layers, networks by device and library, each network."""
    shares = layer_shares(singles)
    by_library: dict[tuple[str, str], list[float]] = {}
    rows = []
    for timing in sorted(whole, key=_order):
        forward, backward, both = network_ratios(timing)
        by_library.setdefault((timing.device, timing.cudnn), []).append(both)
        measured = f"{timing.forward_ms + timing.backward_ms:.1f}"
        cells = (timing.device, timing.cudnn, f"`{timing.network}`", str(timing.batch), measured)
        rows.append([*cells, *(f"{ratio:.2f}" for ratio in (forward, backward, both))])
    header = ("n", "median", "quartiles", f"within {NEAR:.0%}".replace("%", " %"))
    return (
        "Measured over model; above 1 the model is too fast.\n\n"
        f"![Measured over model, by device]({PICTURE})\n\n"
        "Single convolutions and matrix products of DeepBench:\n\n"
        + markdown(
            ("device", "pass", "kind", *header), [[*key, *share.cells()] for key, share in shares.items()]
        )
        + "\nWhole networks, forward and backward together:\n\n"
        + markdown(
            ("device", "cuDNN", *header),
            [[*key, *Share(tuple(ratios)).cells()] for key, ratios in by_library.items()],
        )
        + "\nEach of them, with 'ms' as measured:\n\n"
        + markdown(("device", "cuDNN", "network", "batch", "ms", "forward", "backward", "both"), rows)
    )


def picture(singles: Sequence[LayerTiming], whole: Sequence[NetworkTiming]) -> bytes:
    """Draw measured over model as PNG: a box for each device and pass, and one for its networks."""
    boxes: dict[str, dict[str, tuple[float, ...]]] = {}
    for (device, which, kind), share in layer_shares(singles).items():
        if kind in ("all", "product", "few columns"):
            name = which if kind == "all" else {"product": "products"}.get(kind, kind)
            boxes.setdefault(device, {})[name] = share.ratios
    for timing in sorted(whole, key=_order):
        mine = boxes.setdefault(timing.device, {})
        mine["networks"] = (*mine.get("networks", ()), network_ratios(timing)[2])
    order = [device.name for device in list_devices() if device.name in boxes]
    return _drawn({device: boxes[device] for device in order})


def _drawn(boxes: Mapping[str, Mapping[str, tuple[float, ...]]]) -> bytes:
    names = list(dict.fromkeys(name for mine in boxes.values() for name in mine))
    with style.context("default"):
        figure = Figure(figsize=(12, 3.6), dpi=110, layout="constrained")
        grid = figure.subplots(1, len(boxes), sharey=True, squeeze=False)[0]
        for axes, (device, mine) in zip(grid, boxes.items(), strict=True):
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
            axes.set_yticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"], fontsize=7)
            axes.set_title(device, fontsize=9)
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
    singles, whole = layers(), networks()
    if page is not None:
        write_atomically(page.parent / PICTURE, picture(singles, whole))
    publish(report(singles, whole), page, BEGIN, END)


if __name__ == "__main__":
    main()
