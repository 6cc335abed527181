"""Several GPUs: what moDNN (TPDS 2019, section 7.5; DATE 2018, V-C) and Layrub (5.6) print, and ours.

``python paper/scripts/gpus.py`` prints the tables of docs/several-gpus.md; ``--write FILE`` puts
them into the page, and ``--picture FILE`` draws the curve of 1 to 16 GPUs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Literal

from matplotlib import style
from matplotlib.figure import Figure
from msgspec.structs import replace

from modnn import CUDNN, DEVICE, SIX, VERSIONS, own
from pebbler.benchmark.comparison.gpus import gradients_of_all, naive_ideal_ns
from pebbler.benchmark.output import series
from pebbler.benchmark.output.captions import caption
from pebbler.benchmark.output.drawing import footnote, png
from pebbler.benchmark.output.machine import made_here
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.heuristics.methods import Limits, find_method
from pebbler.heuristics.papers.layrub import caffe_algorithms
from pebbler.heuristics.spread import in_step, weave, weave_at_once
from pebbler.instances.files import write_atomically
from pebbler.instances.gpus.cluster import Cluster
from pebbler.instances.gpus.workload import cluster_instances, portion, several_gpus
from pebbler.instances.instance import Instance
from pebbler.instances.memory import ideal_ns
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import best_bound, compute_bound
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.gpus import cluster_flow_bound
from pebbler.solver.flow.model import flow_bound
from pebbler.solver.gradient_bounds import gradient_bound_ns
from pebbler.solver.solve import solve
from pebbler.validate.gpus.check import check
from pebbler.validate.gpus.program import one_gpu

GIB = 2**30
GB = 10**9
CURVE = (("vgg16", 256), ("resnet152", 256))
MOST_GPUS = 16

_Way = Literal["ours", "at once", "naive", "naive, staged"]
"""Gradients in the fastest way found; in the paper's; at the end over one GPU, or over host and GPU."""


def workload(network: str, batch: int, cudnn: str = CUDNN) -> Workload:
    """The training iteration that the papers measure, on a K40."""
    return Workload(network, batch, DEVICE, "paper", cudnn=cudnn)


@cache
def one_ideal_ns(network: str, batch: int, cudnn: str = CUDNN) -> int:
    """Time of an iteration on one GPU with unlimited memory."""
    return ideal_ns(workload(network, batch, cudnn).instance(0, check_budget=False))


def hardware(
    network: str, batch: int, gpus: int, cores: int = 1, bus: int | None = None, nvlink: int | None = None
) -> Cluster:
    """GPUs on one host."""
    return several_gpus(workload(network, batch), gpus, cores=cores, bus=bus, nvlink=nvlink)


def modnn_instances(
    network: str, batch: int, cluster: Cluster, budget: int, method: str = "modnn", cudnn: str = CUDNN
) -> tuple[Instance, ...]:
    """Return the instances of an iteration, at the sub-batch of moDNN's rule for a portion."""
    what = workload(network, batch, cudnn)
    rule = find_method(method).sub_batch
    assert rule is not None, "both moDNNs choose their sub-batch"
    return cluster_instances(what, cluster, budget, rule(portion(what, cluster.gpus), budget))


@cache
def modnn_ns(
    network: str,
    batch: int,
    gpus: int,
    budget: int,
    *,
    way: _Way = "ours",
    cores: int = 1,
    bus: int | None = None,
    nvlink: int | None = None,
    method: str = "modnn",
    cudnn: str = CUDNN,
) -> int:
    """Time of an iteration by moDNN on several GPUs."""
    cluster = hardware(network, batch, gpus, cores, bus, nvlink)
    instances = modnn_instances(network, batch, cluster, budget, method, cudnn)
    gradients = gradients_of_all(instances)
    if way.startswith("naive"):
        instances = tuple(replace(instance, cluster=cluster) for instance in instances)
    time = sum(instance.rounds * _makespan_ns(instance, method, way) for instance in instances)
    return time + (cluster.naive_ns(gradients, staged="staged" in way) if way.startswith("naive") else 0)


def _makespan_ns(instance: Instance, method: str, way: _Way) -> int:
    answer = find_method(method).call(in_step(instance), Limits())
    assert answer.schedule is not None, "moDNN has a schedule under every budget from the least on"
    woven = (weave_at_once if way == "at once" else weave)(instance, answer.schedule)
    reasons = check(instance, woven).reasons
    assert not reasons, reasons[0]
    return woven.makespan_ns


@cache
def naive_ns(network: str, batch: int, gpus: int, *, staged: bool = False, cudnn: str = CUDNN) -> int:
    """Time of the ideal on several GPUs, one of which adds up all gradients at the end."""
    cluster = hardware(network, batch, gpus)
    instances = cluster_instances(workload(network, batch, cudnn), cluster, 2**50)
    return naive_ideal_ns(instances, staged=staged)


def single_ns(network: str, batch: int, budget: int, method: str = "modnn") -> float:
    """Time of an iteration by moDNN on one GPU."""
    found = own(method, workload(network, batch), budget)
    assert found is not None, "moDNN has a schedule under every budget from the least on"
    return found.time * one_ideal_ns(network, batch)


# --- four GPUs (TPDS 2019, section 7.5) -------------------------------------------------------------------

_Speedup = Callable[[str, int], float]


def _over_ideal(
    budget_gib: int, way: _Way, cores: int = 1, bus: int | None = None, cudnn: str = CUDNN
) -> _Speedup:
    def speedup(network: str, batch: int) -> float:
        time = modnn_ns(network, batch, 4, budget_gib * GIB, way=way, cores=cores, bus=bus, cudnn=cudnn)
        return one_ideal_ns(network, batch, cudnn) / time

    return speedup


def _over_single(way: _Way, cores: int, bus: int | None = None) -> _Speedup:
    def speedup(network: str, batch: int) -> float:
        time = modnn_ns(network, batch, 4, 3 * GIB, way=way, cores=cores, bus=bus)
        return single_ns(network, batch, 12 * GIB) / time

    return speedup


def _ideal(*, staged: bool, cudnn: str = CUDNN) -> _Speedup:
    def speedup(network: str, batch: int) -> float:
        time = naive_ns(network, batch, 4, staged=staged, cudnn=cudnn)
        return one_ideal_ns(network, batch, cudnn) / time

    return speedup


def _mean(speedup: _Speedup) -> str:
    return f"{mean(speedup(*which) for which in SIX):.2f} x"


def four_table() -> str:
    """Means of the six networks on four K40s: printed, and in three ways."""
    wide = 24 * GB
    naive = f"{_mean(_ideal(staged=False))} ({_mean(_ideal(staged=True))} staged)"
    rows = [("ideal, naive adding, over the 1-GPU ideal", "3.1 x", "", naive, "")]
    for gib, cores, printed in ((12, 1, "3.7 x"), (6, 1, "3.4 x"), (3, 1, "3.1 x"), (3, 20, "3.2 x")):
        rows.append(
            (
                f"moDNN, {gib} GB a GPU, {cores} core{'s' * (cores > 1)}, over the 1-GPU ideal",
                printed,
                _mean(_over_ideal(gib, "at once", cores)),
                _mean(_over_ideal(gib, "ours", cores)),
                _mean(_over_ideal(gib, "ours", cores, wide)),
            )
        )
    for gib, printed in ((6, "2.9 x"), (3, "2.6 x")):
        name = f"moDNN, {gib} GB a GPU, naive adding, over the 1-GPU ideal"
        naive, staged = (_mean(_over_ideal(gib, way)) for way in ("naive", "naive, staged"))
        rows.append((name, printed, "", f"{naive} ({staged} staged)", ""))
    for cores, printed in ((1, "3.1 x"), (20, "3.3 x")):
        rows.append(
            (
                f"moDNN, 3 GB a GPU, {cores} core{'s' * (cores > 1)}, over moDNN on one GPU with 12 GB",
                printed,
                _mean(_over_single("at once", cores)),
                _mean(_over_single("ours", cores)),
                _mean(_over_single("ours", cores, wide)),
            )
        )
    return markdown(
        ("speed-up, mean of six", "printed", "the paper's way", "ours", "bus twice as fast"), rows
    )


def versions_table() -> str:
    """The main of them by version of cuDNN, with gradients in the paper's way."""
    rows = [
        (
            cudnn,
            *(_mean(_ideal(staged=staged, cudnn=cudnn)) for staged in (False, True)),
            *(_mean(_over_ideal(gib, "at once", cudnn=cudnn)) for gib in (12, 6, 3)),
        )
        for cudnn in VERSIONS
    ]
    rows.append(("printed", "3.1 x", "3.1 x", "3.7 x", "3.4 x", "3.1 x"))
    return markdown(("cuDNN", "ideal, naive", "staged", "moDNN, 12 GB", "6 GB", "3 GB"), rows)


def networks_table() -> str:
    """The same network by network: weights against compute decide."""
    rows = []
    for network, batch in SIX:
        instances = cluster_instances(workload(network, batch), hardware(network, batch, 4), 2**50)
        size = sum(gradient.bytes for gradient in gradients_of_all(instances))
        cells = (
            _ideal(staged=False),
            _over_ideal(12, "at once"),
            _over_ideal(12, "ours"),
            _over_ideal(3, "naive, staged"),
            _over_ideal(3, "at once"),
            _over_ideal(3, "ours"),
            _over_ideal(3, "ours", 20),
        )
        figures = (f"{speedup(network, batch):.2f} x" for speedup in cells)
        share = size / 12 / one_ideal_ns(network, batch)
        rows.append((f"{network} ({batch})", f"{size / 1e6:.0f} MB", f"{share:.1%}", *figures))
    header = (
        "network",
        "gradients",
        "one copy, of the 1-GPU ideal",
        "ideal, naive",
        "12 GB, the paper's way",
        "12 GB, ours",
        "3 GB, naive, staged",
        "3 GB, the paper's way",
        "3 GB, ours",
        "3 GB, ours, 20 cores",
    )
    return markdown(header, rows)


# --- two GPUs (DATE 2018, section V-C) --------------------------------------------------------------------


def date_table() -> str:
    """VGG-16 and VGG-19 on two GPUs, by DATE's moDNN with gradients added up at the end."""
    rows = []
    for gib in (12, 6):
        gains = []
        for network, batch in SIX[:2]:
            time = modnn_ns(network, batch, 2, gib * GIB, way="naive", method="modnn-date")
            single = single_ns(network, batch, 12 * GIB, "modnn-date")
            gains.append((one_ideal_ns(network, batch) / time, single / time))
            rows.append((f"{gib} GB", f"{network} ({batch})", *(f"{gain:.2f} x" for gain in gains[-1])))
        rows.append((f"{gib} GB", "mean", *(f"{mean(column):.2f} x" for column in zip(*gains, strict=True))))
    rows.append(("", "printed", "1.5 x", "1.84 x"))
    header = ("each GPU", "network", "over the 1-GPU ideal", "over modnn-date on one GPU with 12 GB")
    return markdown(header, rows)


# --- two nodes (Layrub, TACO 2018, section 5.6) -----------------------------------------------------------

TABLE_8 = {
    "alexnet": (256, 107 * 60, 1.98),
    "resnet50": (32, 53 * 3600 + 16 * 60, 1.98),
    "resnet1001": (32, 395 * 3600 + 25 * 60, 1.97),
}
"""Batch, seconds of an epoch on one node, speed-up on two."""

IMAGES = 1_281_167
"""Of ImageNet's training set (ILSVRC 2012), which Table 8 names."""

K40M = 11580 * 2**20


def layrub_table() -> str:
    """Two nodes with a K40M each, at the printed speed of one, whose gradients pass 1 Gb/s or 10 Gb/s."""
    rows = []
    for network, (batch, epoch, printed) in TABLE_8.items():
        iteration = round(epoch * 1e9 * batch / IMAGES)
        times = [
            layrub_ns(network, batch, iteration, network_rate)
            for network_rate in (GB // 8, 10 * GB // 8, 100 * GB // 8)
        ]
        size = sum(g.bytes for g in gradients_of_all(_two_nodes(network, batch, GB // 8)))
        rows.append(
            (
                f"{network} ({batch})",
                f"{iteration / 1e9:.2f} s",
                f"{size / 1e6:.0f} MB",
                f"{size / (GB // 8):.2f} s",
                f"{printed} x",
                *(f"{2 * iteration / time:.2f} x" for time in times),
            )
        )
    header = (
        "network",
        "iteration, one node, printed",
        "gradients",
        "their exchange at 1 Gb/s",
        "printed",
        "1 Gb/s",
        "10 Gb/s",
        "100 Gb/s",
    )
    return markdown(header, rows)


def _two_nodes(network: str, batch: int, rate: int) -> tuple[Instance, ...]:
    """Each of two nodes trains on a batch of its own, as Caffe's workers do."""
    what = Workload(network, 2 * batch, DEVICE)
    return cluster_instances(what, several_gpus(what, 2, nodes=2, network=rate), 2**40)


def layrub_ns(network: str, batch: int, printed_ns: int, rate: int) -> int:
    """Time of an iteration of two nodes, where tasks take as long as one printed iteration allows them."""
    (instance,) = _two_nodes(network, batch, rate)
    plain = one_gpu(instance)
    base = sum(
        task.algorithms[a].duration_ns for task, a in zip(plain.tasks, caffe_algorithms(plain), strict=True)
    )
    tasks = tuple(
        replace(
            task,
            algorithms=tuple(
                replace(a, duration_ns=a.duration_ns * printed_ns // base) for a in task.algorithms
            ),
        )
        for task in instance.tasks
    )
    instance = replace(instance, tasks=tasks)
    answer = find_method("layrub-inter").call(in_step(instance), Limits())
    assert answer.schedule is not None, "Layrub's policy always has a schedule where memory is plenty"
    alone, both = answer.schedule.makespan_ns, weave(instance, answer.schedule)
    reasons = check(instance, both).reasons
    assert not reasons, reasons[0]
    return round(both.makespan_ns * printed_ns / alone)


# --- bounds -----------------------------------------------------------------------------------------------

_CHECKPOINTS = 80
_LIMIT = 60.0
"""Seconds of `flow`, which plans twice, and of the bound with whole columns."""


def bounds_table() -> str:
    """Lower bounds of a round on the executable graph, beside the times of two methods."""
    rows = []
    for network, batch in (("vgg16", 256), ("resnet34", 256)):
        what = Workload(network, batch, DEVICE)
        for gpus in (2, 4, 8):
            for budget in ("1.05xMmin", "12GiB"):
                (instance,) = cluster_instances(what, several_gpus(what, gpus), budget)
                rows.append((network, str(gpus), budget, *_bounds(instance)))
    header = (
        "network",
        "GPUs",
        "budget",
        "tasks alone",
        "gradients",
        "FLOW, one GPU",
        "FLOW, gradients and bus",
        "whole",
        "modnn",
        "flow",
        "gap",
    )
    return markdown(header, rows)


def _bounds(instance: Instance) -> tuple[str, ...]:
    checkpoints = hot_checkpoints(instance, _CHECKPOINTS)
    single = flow_bound(one_gpu(instance), checkpoints)
    several = cluster_flow_bound(instance, checkpoints, time_limit=_LIMIT)
    assert single is not None, "an LP without a time limit is solved"
    assert several is not None, "the first LP is solved in a minute"
    whole = cluster_flow_bound(instance, checkpoints, integrality="all", time_limit=_LIMIT)
    assert whole is not None, "it is no less than the LP's"
    gradients = gradient_bound_ns(instance)
    best = max(best_bound(instance).lower_bound_ns, several.lower_bound_ns, whole.lower_bound_ns)
    ruled, found = (
        solve(instance, "modnn").makespan_ns,
        solve(instance, "flow", time_limit=_LIMIT).makespan_ns,
    )
    assert ruled is not None, "moDNN has a schedule under every budget from the least on"
    assert found is not None, "FLOW's search starts from moDNN's schedule"
    bounds = (compute_bound(instance), single, several, whole)
    alone, *flows = (bound.lower_bound_ns for bound in bounds)
    told = (f"{time / 1e6:.0f} ms" for time in (alone, gradients, *flows, ruled, found))
    return (*told, f"{(found - best) / best:.1%}")


# --- one to sixteen GPUs ----------------------------------------------------------------------------------


@cache
def bound_ns(network: str, batch: int, gpus: int) -> int:
    """Lower bound on an iteration at moDNN's sub-batch on several GPUs whose host adds with one core."""
    instances = modnn_instances(network, batch, hardware(network, batch, gpus), 12 * GIB)
    return sum(instance.rounds * best_bound(instance).lower_bound_ns for instance in instances)


LINES: dict[str, Callable[[str, int, int], float]] = {
    "ideal, gradients added at the end": lambda n, b, gpus: naive_ns(n, b, gpus),
    "moDNN, the paper's way, 1 core": lambda n, b, gpus: modnn_ns(n, b, gpus, 12 * GIB, way="at once"),
    "moDNN, ours, 1 core": lambda n, b, gpus: modnn_ns(n, b, gpus, 12 * GIB),
    "lower bound, 1 core": lambda n, b, gpus: bound_ns(n, b, gpus),
    "moDNN, ours, 20 cores": lambda n, b, gpus: modnn_ns(n, b, gpus, 12 * GIB, cores=20),
    "moDNN, ring of NVLinks, 20 GB/s": lambda n, b, gpus: modnn_ns(n, b, gpus, 12 * GIB, nvlink=20 * GB),
}
"""Time of an iteration on so many GPUs, by what it is."""


@cache
def speedup(line: str, network: str, batch: int, gpus: int) -> float:
    """Speed-up of a line over the ideal on one GPU, which has no gradients to pass on."""
    return one_ideal_ns(network, batch) / LINES[line](network, batch, gpus)


def curve_table() -> str:
    """Speed-ups of 1 to 16 GPUs over the ideal on one."""
    rows = []
    for network, batch in CURVE:
        for line in LINES:
            figures = (f"{speedup(line, network, batch, gpus):.2f}" for gpus in range(1, MOST_GPUS + 1))
            rows.append((network, line, *figures))
    return markdown(("network", "", *map(str, range(1, MOST_GPUS + 1))), rows)


_BOUND = {"color": "black", "linestyle": "--", "label": "no schedule at that sub-batch is faster, 1 core"}


def picture() -> bytes:
    """Draw the speed-ups of 1 to 16 GPUs, as PNG."""
    gpus = range(1, MOST_GPUS + 1)
    with style.context("default"):
        figure = Figure(figsize=(14.0, 5.6), dpi=150, layout="constrained")
        for axes, (network, batch) in zip(figure.subplots(1, len(CURVE), sharey=True), CURVE, strict=True):
            axes.plot(gpus, gpus, color="#DDDDDD", linewidth=5.0, label="as many times as GPUs")
            methods = [line for line in LINES if "bound" not in line]
            for line in LINES:
                look = {**series.style(methods.index(line)), "label": line} if line in methods else _BOUND
                axes.plot(gpus, [speedup(line, network, batch, count) for count in gpus], **look)
            axes.set_title(f"{network}, {batch} images in all", fontsize=12)
            axes.set_xlabel("GPUs")
            axes.set_xticks(gpus)
            axes.set_xlim(0.5, MOST_GPUS + 0.5)
            axes.set_ylim(0, MOST_GPUS + 0.5)
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].set_ylabel("speed-up over the ideal on one GPU")
        series.label_ends(figure.axes[-1])
        footnote(
            figure,
            caption(
                f"K40s with 12 GiB and cuDNN {CUDNN} on one bus of 12 GB/s in each direction, graph paper",
                [made_here()],
            ),
        )
        return png(figure)


TABLES: dict[str, Callable[[], str]] = {
    "four": four_table,
    "versions": versions_table,
    "networks": networks_table,
    "date": date_table,
    "layrub": layrub_table,
    "bounds": bounds_table,
    "curve": curve_table,
}
"""What stands between the marks of each name."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or put them into a page; draw the picture on demand."""
    parser = argparse.ArgumentParser(prog="python paper/scripts/gpus.py", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"by default all: {', '.join(TABLES)}")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="where to draw the curve")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.tables) - set(TABLES)):
        parser.error(f"there is no table {unknown[0]}; take some of {', '.join(TABLES)}")
    for name, table in TABLES.items() if not options.tables else ((n, TABLES[n]) for n in options.tables):
        publish(table(), options.write, f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n")
    if options.picture is not None:
        write_atomically(options.picture, picture())


if __name__ == "__main__":
    main()
