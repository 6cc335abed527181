"""Layrub's evaluation (TACO 2018, section 5) repeated on the cost model.

``python paper/scripts/layrub.py`` prints the tables of docs/papers-layrub.md; ``--write FILE``
puts them into the page.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean

import msgspec

from pebbler.benchmark.comparison.plan import planned
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.heuristics.choices import leanest
from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.heuristics.papers.layrub import BARRIER, caffe_algorithms
from pebbler.instances.errors import BudgetError
from pebbler.instances.instance import Instance
from pebbler.instances.memory import with_budget
from pebbler.instances.networks.accounting import layrub_data_and_gradient, layrub_resident
from pebbler.instances.networks.taskgraph import Graph
from pebbler.instances.networks.zoo import find_network
from pebbler.instances.workload import Workload
from pebbler.solver.result import Result
from pebbler.solver.solve import solve

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs" / "scripts"))

from rules import METHODS

MIB = 2**20
K40M, CUDNN = 11580 * MIB, "4"
"""Bytes of a K40M's memory, and the version of cuDNN (Table 4)."""

ENOUGH = 2**40

STRATEGIES = ("layrub-intra", "layrub-inter", "layrub-hybrid")
KNOWN = (
    ("lenet", 64),
    ("cifar10_quick", 100),
    ("alexnet", 128),
    ("vgg16", 64),
    ("googlenet_bvlc", 32),
    ("resnet34", 32),
    ("resnet50", 32),
    ("wrn28_10", 128),
)
"""The models of Table 5; Figs. 11 to 13 show others as well, with no figures in the text."""

DEEP = ("resnet50", "resnet101", "resnet152", "resnet1001")
WIDE = ("wrn8_128", "wrn8_256")

TABLE_5 = {
    "lenet": (2.148, 9.05, 17.28),
    "cifar10_quick": (7.223, 13.23, 31.61),
    "alexnet": (20.808, 21.85, 25.78),
    "vgg16": (91.815, 20.63, 29.44),
    "googlenet_bvlc": (9.726, 27.41, 25.85),
    "resnet34": (37.387, 25.52, 28.44),
    "resnet50": (55.131, 56.76, 25.32),
    "wrn28_10": (79.397, 18.42, None),
}
"""Seconds of 20 iterations in Caffe; percent that Layrub adds, and Memonger to MXNet."""

TABLE_6 = {
    "resnet34": (1251, 1257, 4430, 1431),
    "resnet50": (1802, 1805, 11425, 2195),
    "resnet302": (3444, 3448, None, 4911),
    "resnet695": (5964, 5968, None, 7885),
    "resnet1001": (None, 7901, None, 10104),
    "resnet1172": (None, 9022, None, 11455),
    "resnet1304": (None, 9872, None, None),
    "resnet1517": (None, 11239, None, None),
}
"""MiB of processes: Layrub's on a Titan Z and on a K40M, Caffe's and MXNet's there; None: out of memory."""

TABLE_7 = {
    "alexnet": (128, 2100, -8.19),
    "vgg16": (64, 240, -4.16),
    "resnet34": (32, 416, -13.25),
    "resnet50": (32, 272, -6.26),
    "resnet56": (256, 5000, -9.16),
    "wrn28_10": (128, 1376, -8.64),
}
"""Normal batch, extreme batch, and by how many percent an epoch changes with it."""


@cache
def result(network: str, batch: int, method: str, budget: int = ENOUGH) -> Result:
    """Solve a network on the K40 as a comparison lets a method do it; the checker has passed the schedule."""
    return solve(_instance(network, batch, method, budget), method)


def data_bytes(network: str, batch: int, method: str, graph: Graph = "executable") -> int:
    """Memory of data and gradients: the peak without weights, their gradients and workspaces."""
    instance = _instance(network, batch, method, ENOUGH, graph)
    tasks = tuple(
        msgspec.structs.replace(task, algorithms=(task.algorithms[leanest(task)],)) for task in instance.tasks
    )
    peak = solve(msgspec.structs.replace(instance, tasks=tasks), method).peak_bytes
    assert peak is not None
    return peak - instance.resident_bytes


def _instance(network: str, batch: int, method: str, budget: int, graph: Graph = "executable") -> Instance:
    plain = _workload(network, batch, graph)
    return planned(find_method(method), [with_budget(plain, budget)])[0]


@cache
def _workload(network: str, batch: int, graph: Graph) -> Instance:
    return Workload(network, batch, "K40", graph, cudnn=CUDNN).instance(0, check_budget=False)


def caffe_ns(network: str, batch: int) -> int:
    """Time of an iteration in Caffe: its algorithms, one task after the other, no memory limit."""
    instance = _workload(network, batch, "executable")
    return sum(
        task.algorithms[a].duration_ns
        for task, a in zip(instance.tasks, caffe_algorithms(instance), strict=True)
    )


def at_printed_speed(network: str, batch: int) -> float:
    """What `layrub-hybrid` adds to an iteration where computing takes as long as the paper's Caffe takes."""
    base = caffe_ns(network, batch)
    printed = round(TABLE_5[network][0] * 1e9 / 20)
    instance = _instance(network, batch, "layrub-hybrid", ENOUGH)
    tasks = tuple(
        msgspec.structs.replace(
            task,
            algorithms=tuple(
                msgspec.structs.replace(a, duration_ns=a.duration_ns * printed // base)
                for a in task.algorithms
            ),
        )
        for task in instance.tasks
    )
    return _ns(solve(msgspec.structs.replace(instance, tasks=tasks), "layrub-hybrid")) / printed - 1


def barrier_ns(network: str, batch: int) -> float:
    """Time that the barriers would add: their share of the convolutions' backward tasks."""
    instance = _workload(network, batch, "executable")
    backward = {k for layer in instance.named_layers if layer.kind == "conv" for k in layer.backward}
    chosen = caffe_algorithms(instance)
    return float(BARRIER * sum(instance.tasks[k].algorithms[chosen[k]].duration_ns for k in backward))


# --- tables -----------------------------------------------------------------------------------------------


def memory_table() -> str:
    """Share of Caffe's data and gradients that each strategy saves."""
    rows = []
    savings: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    for network, batch in (*KNOWN, *((name, 32) for name in DEEP[1:]), *((name, 128) for name in WIDE)):
        baseline = layrub_data_and_gradient(find_network(network), batch)
        cells = [f"{network} ({batch})", f"{baseline / MIB:.1f}"]
        for graph in ("paper", "executable"):
            taken = {name: data_bytes(network, batch, name, graph) for name in STRATEGIES}
            cells += [f"{taken['layrub-inter'] / MIB:.1f}"] if graph == "paper" else []
            cells += [f"{1 - size / baseline:.1%}" for size in taken.values()]
            if graph == "executable" and (network, batch) in KNOWN:
                for name, size in taken.items():
                    savings[name].append(1 - size / baseline)
        rows.append(cells)
    means = [f"{mean(savings[name]):.1%}" for name in STRATEGIES]
    rows.append(["mean of the first eight", "", "", "", "", "", *means])
    short = [name.removeprefix("layrub-") for name in STRATEGIES]
    header = (
        "network",
        "Caffe d+g, MiB",
        "inter, paper graph, MiB",
        *short,
        *(f"{x}, executable" for x in short),
    )
    return markdown(header, rows)


def time_table() -> str:
    """Table 5: what Layrub and recomputation add to an iteration."""
    rows: list[tuple[str, ...]] = []
    added: list[tuple[float, ...]] = []
    for network, batch in KNOWN:
        seconds, layrub, memonger = TABLE_5[network]
        base = caffe_ns(network, batch)
        taken = _ns(result(network, batch, "layrub-hybrid"))
        recomputed, plain = (
            _ns(result(network, batch, name)) for name in ("memonger-rule", "tensorflow-rule")
        )
        added.append(
            (
                taken / base - 1,
                (taken + barrier_ns(network, batch)) / base - 1,
                at_printed_speed(network, batch),
                recomputed / plain - 1,
            )
        )
        ours = [f"{share:+.1%}" for share in added[-1]]
        times = f"{seconds:.3f}", f"{20 * base / 1e9:.3f}"
        again = "" if memonger is None else f"+{memonger} %"
        rows.append((f"{network} ({batch})", *times, f"+{layrub} %", *ours[:3], again, ours[3]))
    means = [f"{mean(column):+.1%}" for column in zip(*added, strict=True)]
    rows.append(("mean", "", "", "+24.1 %", *means[:3], "+26.3 %", means[3]))
    header = (
        "network",
        "20 iterations of Caffe printed, s",
        "ours",
        "Layrub printed",
        "`layrub-hybrid`",
        "with barriers",
        "at the printed speed",
        "Memonger printed",
        "`memonger-rule`",
    )
    return markdown(header, rows)


def depth_table() -> str:
    """Table 6: the resident model, and what the schedules take."""
    rows = []
    for network, (titan, k40, caffe, mxnet) in TABLE_6.items():
        model = layrub_resident(find_network(network)) / MIB
        peaks = [result(network, 32, name).peak_bytes or 0 for name in ("layrub-hybrid", "memonger-rule")]
        refuse = [f"`{name}`" for name in METHODS if result(network, 32, name, K40M).schedule is None]
        rows.append(
            (
                network,
                *("out of memory" if size is None else str(size) for size in (titan, k40, caffe, mxnet)),
                f"{model:.0f}",
                f"{model / k40 - 1:+.2%}",
                *(f"{peak / MIB:.0f}" for peak in peaks),
                ", ".join(refuse) or "none",
            )
        )
    header = (
        "network",
        "Titan Z printed, MiB",
        "K40M printed, MiB",
        "Caffe printed",
        "MXNet printed",
        "resident model",
        "off by",
        "`layrub-hybrid`",
        "`memonger-rule`",
        "no schedule on the K40M",
    )
    return markdown(header, rows)


def batch_table() -> str:
    """Table 7: the largest batch, and the time of an image there."""
    rows = []
    for network, (normal, extreme, change) in TABLE_7.items():

        def fits(batch: int, network: str = network) -> bool:
            try:
                return result(network, batch, "layrub-hybrid", K40M).schedule is not None
            except BudgetError:
                return False

        largest = _largest(fits, extreme)
        at = min(extreme, largest)
        per_image = [_ns(result(network, b, "layrub-hybrid", K40M)) / b for b in (normal, at)]
        ours = f"{per_image[1] / per_image[0] - 1:+.1%}"
        rows.append((network, str(normal), str(extreme), str(largest), f"{change:+.1f} %", ours))
    header = (
        "network",
        "normal",
        "extreme printed",
        "largest, ours",
        "epoch printed",
        "time of an image, ours",
    )
    return markdown(header, rows)


def _largest(fits: Callable[[int], bool], start: int) -> int:
    """Largest batch that fits, by doubling and bisection to 1 %."""
    low, high = 1, start
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(low // 100, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def systems_table() -> str:
    """Total memory and time of the systems, where memory is unlimited."""
    rows = []
    names = (*METHODS[2:-2], "vdnn-all-m", "vdnn-all-p")
    for network, batch in KNOWN:
        base = caffe_ns(network, batch)
        cells = []
        for name in names:
            found = result(network, batch, name)
            cells.append(f"{(found.peak_bytes or 0) / MIB:.0f} / {_ns(found) / base:.2f}")
        rows.append((f"{network} ({batch})", *cells))
    return markdown(("network", *(f"`{name}`" for name in names)), rows)


def saving_table() -> str:
    """Section 5.3.1: what Layrub's process saves against others, weights included."""
    printed = {
        "geeps-rule": ("40.6 %", "69.2 %"),
        "tensorflow-rule": ("50.1 %", "71.5 %"),
        "memonger-rule": ("35.2 % on GoogLeNet", ""),
        "mxnet-rule": ("", ""),
    }
    rows = []
    for name, (average, most) in printed.items():
        savings = [
            1 - (result(n, b, "layrub-hybrid").peak_bytes or 0) / (result(n, b, name).peak_bytes or 1)
            for n, b in KNOWN
        ]
        rows.append((f"`{name}`", average, f"{mean(savings):.1%}", most, f"{max(savings):.1%}"))
    return markdown(("against", "mean printed", "ours", "greatest printed", "ours"), rows)


def speed_table() -> str:
    """Processor seconds of each rule on the deepest network, the least of three runs."""
    rows = []
    for graph in ("paper", "executable"):
        for name in METHODS:
            changed = _instance("resnet1517", 32, name, K40M, graph)
            seconds, told = min(_timed(changed, name) for _ in range(3))
            rows.append((f"`{name}`", graph, str(len(changed.tasks)), f"{seconds:.2f}", told))
    return markdown(("rule", "graph", "tasks", "processor seconds", "outcome"), rows)


def _timed(instance: Instance, method: str) -> tuple[float, str]:
    """Processor seconds of a method, and whether it has a schedule."""
    began = time.process_time()
    try:
        find_method(method).call(instance, Limits())
        told = "schedule"
    except Refusal:
        told = "refusal"
    return time.process_time() - began, told


def _ns(found: Result) -> int:
    assert found.makespan_ns is not None, found.stopped_by
    return found.makespan_ns


TABLES: dict[str, Callable[[], str]] = {
    "memory": memory_table,
    "time": time_table,
    "depth": depth_table,
    "batch": batch_table,
    "systems": systems_table,
    "saving": saving_table,
    "speed": speed_table,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print tables, or put them into a page."""
    parser = argparse.ArgumentParser(prog="python paper/scripts/layrub.py", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    parser.add_argument("--only", action="append", choices=TABLES, help="one of the tables; default: all")
    options = parser.parse_args(arguments)
    for name in options.only or TABLES:
        publish(TABLES[name](), options.write, f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n")


if __name__ == "__main__":
    main()
