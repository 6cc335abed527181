"""Layrub's evaluation (TACO 2018, section 5) repeated on the cost model.

``python paper/scripts/layrub.py`` prints the tables of docs/papers-layrub.md; ``--write FILE``
puts them into the page. What concerns the authors' program is in layrub_caffe.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import msgspec

from pebbler.benchmark.comparison.plan import planned
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.heuristics.choices import leanest
from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.heuristics.papers.comparators import geeps_pool_bytes
from pebbler.heuristics.papers.layrub import BARRIER, caffe_algorithms
from pebbler.instances.errors import BudgetError
from pebbler.instances.instance import Instance
from pebbler.instances.memory import with_budget
from pebbler.instances.networks.accounting import layrub_data_and_gradient
from pebbler.instances.networks.taskgraph import Graph
from pebbler.instances.networks.zoo import find_network
from pebbler.instances.workload import Workload
from pebbler.solver.result import Result
from pebbler.solver.solve import solve

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs" / "scripts"))

from caffe_graph import caffe_resident_bytes
from layrub_caffe import (
    CUDNN,
    ENOUGH,
    K40M,
    MIB,
    TABLE_6,
    TITAN_Z,
    added_at,
    buffers,
    caffe_iteration_ns,
    caffe_process_bytes,
    more_bytes,
    process_bytes,
    program_ns,
    slowed,
)
from rules import METHODS

STRATEGIES = ("layrub-intra", "layrub-inter", "layrub-hybrid")
KNOWN = (
    ("lenet", 64),
    ("cifar10_quick", 100),
    ("alexnet_caffe", 128),
    ("vgg16", 64),
    ("googlenet_bvlc", 32),
    ("resnet34", 32),
    ("resnet50", 32),
    ("wrn28_10", 128),
)
"""The models of Table 5; Figs. 11 to 13 show others as well, with no figures in the text."""

DEEP = ("resnet50", "resnet101", "resnet152", "resnet1001")
WIDE = ("wrn8_128", "wrn8_256")


class Table5(NamedTuple):
    """A row of Table 5: seconds of 20 iterations and ratios as printed; None where there is a dash."""

    mxnet: float | None
    memonger: float | None
    memonger_adds: str | None
    caffe: float | None
    layrub: float
    layrub_adds: str | None
    tensorflow: float | None


TABLE_5 = {
    "lenet": Table5(2.373, 2.783, "+17.28 %", 2.148, 2.342, "+9.05 %", 5.143),
    "cifar10_quick": Table5(5.478, 7.565, "+31.61 %", 7.223, 8.178, "+13.23 %", None),
    "alexnet_caffe": Table5(27.343, 34.393, "+25.78 %", 20.808, 25.355, "+21.85 %", 19.161),
    "vgg16": Table5(44.209, 57.224, "+29.44 %", 91.815, 110.759, "+20.63 %", 64.060),
    "googlenet_bvlc": Table5(8.926, 11.233, "+25.85 %", 9.726, 12.392, "+27.41 %", None),
    "resnet34": Table5(13.897, 17.849, "+28.44 %", 37.387, 46.928, "+25.52 %", 10.101),
    "resnet50": Table5(17.947, 22.492, "+25.32 %", 55.131, 86.425, "+56.76 %", 15.951),
    "wrn28_10": Table5(None, None, None, 79.397, 94.021, "+18.42 %", 42.394),
    "resnet1001": Table5(None, 324, None, None, 712.200, None, None),
    "resnet1517": Table5(None, None, None, None, 1148.860, None, None),
}


class Table7(NamedTuple):
    """A row of Table 7: batches, and the time of an epoch with each; ratios as printed."""

    normal: int
    extreme: int
    more: str
    at_normal: str
    at_extreme: str
    change: str
    images: int


SLOW_LINK = "6GB"
"""Bytes of a second over a link of PCIe 2.0, half of the K40's in the cost model: an assumption."""

IMAGENET, CIFAR = 1_281_167, 50_000
"""Images of an epoch."""

TABLE_7 = {
    "alexnet_caffe": Table7(128, 2100, "+1641 %", "1h 51m", "1h 43m", "-8.19 %", IMAGENET),
    "vgg16": Table7(64, 240, "+333 %", "30h 34m", "29h 18m", "-4.16 %", IMAGENET),
    "resnet34": Table7(32, 416, "+1300 %", "28h 54m", "25h 21m", "-13.25 %", IMAGENET),
    "resnet50": Table7(32, 272, "+850 %", "53h 54m", "50h 31m", "-6.26 %", IMAGENET),
    "resnet56": Table7(256, 5000, "+1900 %", "4m 3s", "3m 43s", "-9.16 %", CIFAR),
    "wrn28_10": Table7(128, 1376, "+882 %", "35m", "32m", "-8.64 %", CIFAR),
}


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
    plain = instance_of(network, batch, graph)
    return planned(find_method(method), [with_budget(plain, budget)])[0]


@cache
def instance_of(network: str, batch: int, graph: Graph) -> Instance:
    """A network on the paper's device, with no budget yet."""
    return Workload(network, batch, "K40", graph, cudnn=CUDNN).instance(0, check_budget=False)


def caffe_ns(network: str, batch: int) -> int:
    """Time of an iteration in Caffe: its algorithms, one task after the other, no memory limit."""
    instance = instance_of(network, batch, "executable")
    return sum(
        task.algorithms[a].duration_ns
        for task, a in zip(instance.tasks, caffe_algorithms(instance), strict=True)
    )


def at_printed_speed(network: str, batch: int) -> float:
    """What `layrub-hybrid` adds to an iteration where computing takes as long as the paper's Caffe takes."""
    printed = printed_ns(network)
    instance = slowed(_instance(network, batch, "layrub-hybrid", ENOUGH), printed, caffe_ns(network, batch))
    return _ns(solve(instance, "layrub-hybrid")) / printed - 1


def printed_ns(network: str) -> int:
    """Time of an iteration in the paper's Caffe."""
    seconds = TABLE_5[network].caffe
    assert seconds is not None
    return round(seconds * 1e9 / 20)


def barrier_ns(network: str, batch: int) -> float:
    """Time that the barriers would add: their share of the convolutions' backward tasks."""
    instance = instance_of(network, batch, "executable")
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


def program_table() -> str:
    """Data and gradients by the program's rules, on Caffe's graphs."""
    rows = []
    deep = [(name, 32) for name in DEEP[1:]]
    savings = []
    for network, batch in (*KNOWN, *deep, *((name, 128) for name in WIDE)):
        baseline = layrub_data_and_gradient(find_network(network), batch)
        taken = buffers(network, batch)
        parts = (taken.data, taken.forks, taken.splits, taken.signs, taken.allocated)
        shares = [1 - size / baseline for size in (taken.intra, taken.inter, taken.hybrid)]
        if (network, batch) in KNOWN:
            savings.append(shares)
        cells = [f"{size / MIB:.1f}" for size in (baseline, *parts, taken.hybrid)]
        rows.append((f"{network} ({batch})", *cells, *(f"{share:.1%}" for share in shares)))
    means = [f"{mean(column):.1%}" for column in zip(*savings, strict=True)]
    rows.append(("mean of the first eight", *[""] * 7, *means))
    header = (
        "network",
        "Caffe d+g, MiB",
        "blocks of data",
        "forks",
        "splits' gradients",
        "signs",
        "allocated",
        "all, MiB",
        "intra saves",
        "inter saves",
        "hybrid saves",
    )
    return markdown(header, rows)


def seconds_table() -> str:
    """Table 5: seconds of 20 iterations of every system, printed and ours."""
    rows = []
    for network, printed in TABLE_5.items():
        batch = dict(KNOWN).get(network, 32)
        ours: list[int | None] = [
            result(network, batch, name).makespan_ns for name in ("mxnet-rule", "memonger-rule")
        ]
        ours += [caffe_iteration_ns(network, batch), program_ns(network, batch)]
        ours.append(result(network, batch, "tensorflow-rule").makespan_ns)
        cells = []
        for seconds, ns in zip(
            (printed.mxnet, printed.memonger, printed.caffe, printed.layrub, printed.tensorflow),
            ours,
            strict=True,
        ):
            cells += [_told(seconds), "-" if ns is None else f"{20 * ns / 1e9:.3f}"]
        rows.append((f"{network} ({batch})", *cells))
    systems = ("MXNet", "Memonger", "Caffe", "Layrub", "TensorFlow")
    return markdown(("network", *(f"{x}, {y}" for x in systems for y in ("printed", "ours"))), rows)


def time_table() -> str:
    """Table 5: what Layrub and recomputation add to an iteration."""
    rows: list[tuple[str, ...]] = []
    added: list[tuple[float, ...]] = []
    for network, batch in KNOWN:
        base, printed = caffe_ns(network, batch), TABLE_5[network]
        taken = _ns(result(network, batch, "layrub-hybrid"))
        recomputed, plain = (
            _ns(result(network, batch, name)) for name in ("memonger-rule", "tensorflow-rule")
        )
        added.append(
            (
                program_ns(network, batch) / caffe_iteration_ns(network, batch) - 1,
                added_at(network, batch, printed_ns(network)),
                added_at(network, batch, printed_ns(network), SLOW_LINK),
                taken / base - 1,
                (taken + barrier_ns(network, batch)) / base - 1,
                at_printed_speed(network, batch),
                recomputed / plain - 1,
            )
        )
        ours = [f"{share:+.1%}" for share in added[-1]]
        again = printed.memonger_adds or "-"
        rows.append((f"{network} ({batch})", printed.layrub_adds or "-", *ours[:6], again, ours[6]))
    means = [f"{mean(column):+.1%}" for column in zip(*added, strict=True)]
    rows.append(("mean", "+24.1 %", *means[:6], "+26.3 %", means[6]))
    header = (
        "network",
        "Layrub printed",
        "`layrub-program` on Caffe's graph",
        "the same at the printed speed",
        f"and over {SLOW_LINK}/s",
        "`layrub-hybrid`",
        "with barriers",
        "at the printed speed",
        "Memonger printed",
        "`memonger-rule`",
    )
    return markdown(header, rows)


def depth_table() -> str:
    """Table 6: all that is printed, and what the two processes would occupy."""
    rows = []
    for network, printed in TABLE_6.items():
        layrub, caffe = process_bytes(network, 32), caffe_process_bytes(network, 32)
        ours = f"{layrub / MIB:.0f}"
        rows.append(
            (
                network,
                *(_out_of_memory(size) for size in printed[:3]),
                *("fits" if size <= TITAN_Z else "out of memory" for size in (caffe, layrub)),
                *(_out_of_memory(size) for size in printed[3:]),
                f"{caffe / MIB:.0f}" if caffe <= K40M else "out of memory",
                ours,
                f"{layrub / MIB / printed.layrub - 1:+.2%}",
            )
        )
    header = (
        "network",
        "Titan Z: Caffe printed, MiB",
        "Titan Z: MXNet printed",
        "Titan Z: Layrub printed",
        "Titan Z: Caffe's model",
        "Titan Z: Layrub's model",
        "K40M: Caffe printed, MiB",
        "K40M: MXNet printed",
        "K40M: Layrub printed",
        "K40M: Caffe's model",
        "resident model",
        "off by",
    )
    return markdown(header, rows)


def rules_table() -> str:
    """What the schedules of the depths of Table 6 take, and which systems have none on the K40M."""
    rows = []
    for network in TABLE_6:
        peaks = [peak_bytes(network, 32, x) for x in ("layrub-hybrid", "layrub-program", "memonger-rule")]
        refuse = [f"`{name}`" for name in METHODS if result(network, 32, name, K40M).schedule is None]
        rows.append((network, *(f"{peak / MIB:.0f}" for peak in peaks), ", ".join(refuse) or "none"))
    header = (
        "network",
        "`layrub-hybrid`",
        "`layrub-program`",
        "`memonger-rule`",
        "no schedule on the K40M",
    )
    return markdown(header, rows)


def batch_table() -> str:
    """Table 7: the largest batch, and the time of an epoch there."""
    rows = []
    for network, printed in TABLE_7.items():
        largest = [
            _largest(partial(fits, network), printed.extreme)
            for fits in (_text_fits, _text_process_fits, _doubled_process_fits, _process_fits)
        ]
        epochs = [
            printed.images / batch * program_ns(network, batch) / 1e9
            for batch in (printed.normal, printed.extreme)
        ]
        rows.append(
            (
                network,
                str(printed.normal),
                str(printed.extreme),
                printed.more,
                *(f"{ours} ({ours / printed.extreme:.2f} x)" for ours in largest),
                *(
                    f"{told} / {_clock(ours)}"
                    for told, ours in zip((printed.at_normal, printed.at_extreme), epochs, strict=True)
                ),
                f"{printed.change} / {epochs[1] / epochs[0] - 1:+.2%}",
            )
        )
    header = (
        "network",
        "normal",
        "extreme printed",
        "ratio printed",
        "largest, ours",
        "with resident bytes",
        "and regions doubled",
        "by the program's process",
        "epoch at the normal batch, printed / ours",
        "at the extreme one",
        "change, printed / ours",
    )
    return markdown(header, rows)


def _text_fits(network: str, batch: int) -> bool:
    """Whether `layrub-hybrid` has a schedule on the K40M, where weights and gradients alone are resident."""
    try:
        return result(network, batch, "layrub-hybrid", K40M).schedule is not None
    except BudgetError:
        return False


def _text_process_fits(network: str, batch: int, times: int = 1) -> bool:
    """Whether the regions of `layrub-hybrid` fit, once or several times, with all else that is resident."""
    instance, peak = instance_of(network, batch, "executable"), peak_bytes(network, batch, "layrub-hybrid")
    regions = times * (peak - instance.resident_bytes)
    return caffe_resident_bytes(find_network(network), batch) + regions + more_bytes(network) <= K40M


def _doubled_process_fits(network: str, batch: int) -> bool:
    """Whether they fit twice."""
    return _text_process_fits(network, batch, 2)


def _process_fits(network: str, batch: int) -> bool:
    """Whether the program's process fits."""
    return process_bytes(network, batch) <= K40M


def _clock(seconds: float) -> str:
    """Tell a time as the paper does."""
    if seconds < 3600:
        return f"{int(seconds // 60)}m {int(seconds % 60)}s"
    return f"{int(seconds // 3600)}h {int(seconds % 3600 // 60)}m"


def _out_of_memory(size: int | None) -> str:
    return "out of memory" if size is None else str(size)


def _told(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f}"


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
        rows.append((f"`{name}`", average, *_saved(partial(peak_bytes, method=name), most)))
    rows.append(("`geeps-rule`, by its pool", "40.6 %", *_saved(geeps_bytes, "69.2 %")))
    return markdown(("against", "mean printed", "ours", "greatest printed", "ours"), rows)


def _saved(bytes_of: Callable[[str, int], int], most: str) -> tuple[str, str, str]:
    """Mean saving over another system, what is printed for the greatest, and that."""
    savings = [1 - peak_bytes(n, b, "layrub-hybrid") / bytes_of(n, b) for n, b in KNOWN]
    return f"{mean(savings):.1%}", most, f"{max(savings):.1%}"


def peak_bytes(network: str, batch: int, method: str) -> int:
    """Bytes of a method's schedule, with weights and gradients."""
    peak = result(network, batch, method).peak_bytes
    assert peak is not None
    return peak


def geeps_bytes(network: str, batch: int) -> int:
    """Bytes of GeePS: weights and gradients, and its whole pool, used or not."""
    instance = instance_of(network, batch, "executable")
    return instance.resident_bytes + geeps_pool_bytes(instance)


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
    "program": program_table,
    "seconds": seconds_table,
    "time": time_table,
    "depth": depth_table,
    "rules": rules_table,
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
