"""moDNN's evaluation (TPDS 2019, section 7; DATE 2018, section V) repeated on the cost model.

``python paper/scripts/modnn.py`` prints the tables of docs/papers-modnn.md between their marks;
``--write FILE`` puts them into the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

from pebbler.benchmark.comparison.plan import instances_of, own_instances
from pebbler.benchmark.output.markdown import markdown, replaced
from pebbler.heuristics.methods import find_method
from pebbler.heuristics.papers.vdnn import managed
from pebbler.heuristics.papers.vdnn_dyn import greedy
from pebbler.instances.instance import Instance
from pebbler.instances.memory import fastest, footprint, ideal_ns, least_budget
from pebbler.instances.networks.accounting import modnn_ideal
from pebbler.instances.networks.taskgraph import Graph
from pebbler.instances.networks.zoo import find_network
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
from pebbler.validate.check import check
from pebbler.validate.measures import moved_bytes

BUDGETS_GIB = (2, 3, 4, 6, 8, 10, 12)
"""The budgets for Fig. 12, whose own are in the drawing only."""

SIX = (("vgg16", 256), ("vgg19", 256), ("vgg101b", 128), ("resnet34", 256), ("resnet152", 256), ("fcn", 128))
"""The networks of the means (TPDS 2019, section 7)."""

OTHER_RECIPE = ("vgg101", 128)
DEVICE = "K40"
GRAPHS: tuple[Graph, ...] = ("paper", "executable")
CUDNN = ("4", "5.1", "7")
"""The default of the K40, and the versions that came out between vDNN and moDNN, which names none."""

_GIB = 2**30
_BUDGET = 12 * _GIB
_DATE = ("vgg16", "vgg19", "vgg101b", "resnet34", "fcn")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a method does in an iteration.

    Attributes
    ----------
    sub_batch
        Images of a round.
    time
        Iteration time over the ideal's, that of the whole batch.
    moved
        Bytes that are copied either way.
    """

    sub_batch: int
    time: float
    moved: int


def workload(network: str, batch: int, graph: Graph, cudnn: str = CUDNN[0]) -> Workload:
    """The training iteration that the papers measure, on a K40."""
    return Workload(network, batch, DEVICE, graph, cudnn=cudnn)


@cache
def own(method: str, what: Workload, budget_bytes: int, planner: str | None = None) -> Outcome | None:
    """Simulate an iteration at the sub-batch of the method, or of a planner; None where it fails.

    A method without a rule takes the whole batch, as vDNN does.
    """
    rule = find_method(planner or method).sub_batch or (lambda workload, _: workload.batch)
    return _outcome(method, what, own_instances(rule, what, budget_bytes))


@cache
def whole(method: str, what: Workload, budget_bytes: int) -> Outcome | None:
    """Simulate an iteration at the whole batch; None where it fails."""
    return _outcome(method, what, instances_of(what, budget_bytes))


@cache
def described(what: Workload, budget_bytes: int) -> Outcome:
    """Simulate vDNN as TPDS describes it: it offloads every layer, tasks are as fast as there is room."""
    instance = what.instance(budget_bytes)
    schedule = greedy(instance, "contiguous", managed)
    reasons = check(instance, schedule).reasons
    assert not reasons, reasons[0]
    moved = moved_bytes(instance, schedule, "offload") + moved_bytes(instance, schedule, "prefetch")
    return Outcome(what.batch, schedule.makespan_ns / ideal_ns(_at(what)), moved)


def _outcome(method: str, what: Workload, instances: Sequence[Instance]) -> Outcome | None:
    time = moved = 0
    if any(instance.budget_bytes < least_budget(instance) for instance in instances):
        return None
    for instance in instances:
        result = solve(instance, method)
        if result.schedule is None:
            return None
        time += instance.rounds * (result.makespan_ns or 0)
        moved += instance.rounds * ((result.offloaded_bytes or 0) + (result.prefetched_bytes or 0))
    sub_batch = instances[0].made_from.sub_batch
    assert sub_batch is not None, "a workload says how many images a round has"
    return Outcome(sub_batch, time / ideal_ns(_at(what)), moved)


@cache
def _at(what: Workload, sub_batch: int | None = None) -> Instance:
    return what.instance(0, sub_batch, check_budget=False)


# --- memory (section 7.1) ---------------------------------------------------------------------------------


def memory_table() -> str:
    """Fig. 9, TPDS and Fig. 6, DATE: ideal case, lower bound, and lower bound with weights as blocks."""
    rows = []
    ratios: dict[str, tuple[float, ...]] = {}
    for network, batch in (*SIX, OTHER_RECIPE):
        what = workload(network, batch, "paper")
        ideal, floor = modnn_ideal(find_network(network), batch), what.floor()
        executable = workload(network, batch, "executable").floor()
        mobile = Workload(network, batch, DEVICE, "paper", weights_as_blocks=True).floor()
        full = ideal + _workspace(_at(what))
        ratios[network] = ideal / floor, full / floor, ideal / executable, ideal / mobile
        amounts = (_gb(size) for size in (ideal, floor, executable, mobile))
        rows.append((f"{network} ({batch})", *amounts, *map(_times, ratios[network])))
    for name, some in (("mean of six", [n for n, _ in SIX]), ("mean of DATE's five", _DATE)):
        means = (_times(mean(column)) for column in zip(*(ratios[n] for n in some), strict=True))
        rows.append((name, "", "", "", "", *means))
    rows.append(("printed, TPDS, six", "", "", "", "", "", "59 x", "", "396 x"))
    rows.append(("printed, DATE, five", "", "", "", "", "50 x", "", "", ""))
    header = (
        "network",
        "ideal, GB",
        "lower bound, GB",
        "executable graph",
        "weights as blocks",
        "saving",
        "with workspaces",
        "executable graph",
        "weights as blocks",
    )
    return markdown(header, rows)


# --- time and copies at 12 GiB (section 7.2) --------------------------------------------------------------

_METHODS = ("modnn", "modnn-date", "vdnn-dyn", "vdnn-plus")
_DESCRIBED = "vDNN as described"


def _own_at_12(graph: Graph, cudnn: str = CUDNN[0]) -> dict[tuple[str, int], tuple[Outcome | None, ...]]:
    whats = {which: workload(*which, graph, cudnn) for which in (*SIX, OTHER_RECIPE)}
    return {
        which: (*(own(method, what, _BUDGET) for method in _METHODS), described(what, _BUDGET))
        for which, what in whats.items()
    }


def time_table() -> str:
    """Fig. 10, TPDS and Fig. 7, DATE: how much longer than ideal, and the sub-batch."""
    rows = []
    for graph in GRAPHS:
        found = _own_at_12(graph)
        rows += [(graph, f"{n} ({b})", *map(_longer_at, row)) for (n, b), row in found.items()]
        rows += _mean_rows(graph, found)
    rows.append(("", "printed, TPDS, six", "+3 %", "", "+31 %", "", "+31 %"))
    rows.append(("", "printed, DATE, five", "", "+8 %", "+40 %", "", "+40 %"))
    return markdown(("graph", "network", *_METHODS, _DESCRIBED), rows)


def versions_table() -> str:
    """Fig. 10 and 14, TPDS, and Fig. 7, DATE: the means, by version of cuDNN, on the paper graph."""
    rows = []
    for cudnn in CUDNN:
        single, lean = (f"{mean(column):.2f} x" for column in zip(*_slower(cudnn), strict=True))
        six, five = (row[1:] for row in _mean_rows("paper", _own_at_12("paper", cudnn)))
        rows += [(cudnn, *six, single, lean), (cudnn, *five, "", "")]
    rows.append(("", "printed, TPDS, six", "+3 %", "", "+31 %", "", "+31 %", "3.74 x", "2.7 x"))
    rows.append(("", "printed, DATE, five", "", "+8 %", "+40 %", "", "+40 %", "", ""))
    return markdown(("cuDNN", "network", *_METHODS, _DESCRIBED, "one image at a time", "no workspace"), rows)


def _slower(cudnn: str) -> Iterable[tuple[float, float]]:
    """One image at a time as fast as can be, and the whole batch with no workspace, over the ideal."""
    for network, batch in SIX:
        what = workload(network, batch, "paper", cudnn)
        quickest = ideal_ns(_at(what))
        lean = sum(task.algorithms[0].duration_ns for task in _at(what).tasks)
        yield batch * ideal_ns(_at(what, 1)) / quickest, lean / quickest


def _mean_rows(
    graph: Graph, found: dict[tuple[str, int], tuple[Outcome | None, ...]]
) -> list[tuple[str, ...]]:
    rows = []
    for name, some in (("mean of six", [n for n, _ in SIX]), ("mean of DATE's five", list(_DATE))):
        columns = zip(*(row for (n, _), row in found.items() if n in some), strict=True)
        rows.append((graph, name, *(_mean_longer(column) for column in columns)))
    return rows


def moved_table() -> str:
    """Fig. 11, TPDS and Fig. 7, DATE: bytes copied in an iteration."""
    rows = []
    for graph in GRAPHS:
        found = _own_at_12(graph)
        rows += [(graph, f"{n} ({b})", *map(_moved, row)) for (n, b), row in found.items()]
        for word, some in (("all six", [n for n, _ in SIX]), ("DATE's five", list(_DATE))):
            columns = zip(*(row for (n, _), row in found.items() if n in some), strict=True)
            totals = [sum(one.moved for one in column if one) for column in columns]
            rows.append((graph, word, *map(_gb, totals)))
            for name, vdnn in (("vdnn-dyn", totals[2]), (_DESCRIBED, totals[-1])):
                rows.append((graph, f"{name} over, {word}", *(_over(vdnn, total) for total in totals)))
    rows.append(("", "printed, vDNN over, mean", "378 x", "5 x", "", "", ""))
    return markdown(("graph", "network", *(f"{m}, GB" for m in (*_METHODS, _DESCRIBED))), rows)


def fixed_table() -> str:
    """Both methods at the whole batch, where only transfers and algorithms differ."""
    rows = []
    for graph in GRAPHS:
        for network, batch in (*SIX, OTHER_RECIPE):
            pair = [whole(m, workload(network, batch, graph), _BUDGET) for m in ("modnn", "vdnn-dyn")]
            rows.append((graph, f"{network} ({batch})", *map(_longer, pair), *map(_moved, pair)))
    header = ("graph", "network", "modnn", "vdnn-dyn", "modnn, GB moved", "vdnn-dyn, GB moved")
    return markdown(header, rows)


# --- other budgets (Fig. 12) ------------------------------------------------------------------------------

_STATIC = ("vdnn-all-p", "vdnn-conv-p", "vdnn-all-m")


def budget_table() -> str:
    """Fig. 12: time over ideal under budgets down to the lower bound."""
    rows = []
    for network, batch in SIX:
        for gib in BUDGETS_GIB:
            what = workload(network, batch, "paper")
            if gib * _GIB < what.floor():
                continue
            ours = own("modnn", what, gib * _GIB)
            others = (own("vdnn-plus", what, gib * _GIB), own("vdnn-dyn", what, gib * _GIB))
            static = (own(m, what, gib * _GIB, planner="modnn") for m in _STATIC)
            rows.append((f"{network} ({batch})", str(gib), *map(_longer, (ours, *others, *static)), _b(ours)))
    columns = ("modnn", "vdnn-plus", "vdnn-dyn", *_STATIC)
    return markdown(("network", "GiB", *columns, "sub-batch"), rows)


def speedup_table() -> str:
    """Fig. 12: mean of the other methods' times over moDNN's, where both have a schedule."""
    rows: list[tuple[str, ...]] = []
    for graph in GRAPHS:
        for method, reading in (
            ("vdnn-plus", "dynamic vDNN at moDNN's sub-batch"),
            ("vdnn-all-p", "static vDNN_all, fastest algorithms, at moDNN's sub-batch"),
            ("vdnn-conv-p", "static vDNN_conv, fastest algorithms, at moDNN's sub-batch"),
            ("vdnn-all-m", "static vDNN_all, memory-optimal algorithms, at moDNN's sub-batch"),
            ("vdnn-dyn", "dynamic vDNN at the whole batch"),
        ):
            ratios = list(_ratios(method, graph))
            span = f"{min(ratios):.3f} to {max(ratios):.3f}"
            rows.append((graph, method, reading, f"{mean(ratios):.3f} x", span, str(len(ratios))))
    rows.append(("", "vDNN+", "printed", "1.26 x", "", ""))
    return markdown(("graph", "method", "reading", "moDNN faster by, mean", "range", "points"), rows)


def _ratios(method: str, graph: Graph) -> Iterable[float]:
    planner = "modnn" if method in _STATIC else None
    for network, batch in SIX:
        what = workload(network, batch, graph)
        for gib in BUDGETS_GIB:
            if gib * _GIB >= what.floor():
                ours, theirs = own("modnn", what, gib * _GIB), own(method, what, gib * _GIB, planner=planner)
                if ours and theirs:
                    yield theirs.time / ours.time


# --- one technique alone (section 7.3) --------------------------------------------------------------------


def breakdown_table() -> str:
    """Fig. 13 and 14: memory and time of each technique on its own, on the paper graph."""
    rows = []
    figures = []
    for (network, batch), (slow, lean) in zip(SIX, _slower(CUDNN[0]), strict=True):
        what = workload(network, batch, "paper")
        instance, single = _at(what), _at(what, 1)
        ideal = modnn_ideal(find_network(network), batch) + _workspace(instance)
        transfers, least = (
            whole("modnn-transfers", what, budget) for budget in (_BUDGET, _largest_task(instance))
        )
        assert transfers is not None, "every network of the six fits 12 GiB at its batch"
        assert least is not None, "a task has the pool to itself after a defragmentation"
        figures.append(
            (
                ideal / (modnn_ideal(find_network(network), 1) + _workspace(single)),
                ideal / _largest_task(instance),
                _workspace(instance) / ideal,
                slow,
                transfers.time,
                least.time,
                lean,
            )
        )
        rows.append((f"{network} ({batch})", *_breakdown(figures[-1])))
    means = tuple(mean(column) for column in zip(*figures, strict=True))
    rows.append(("mean", *_breakdown(means)))
    rows.append(("printed", "42 x", "4.1 x", "15 %", "3.74 x", "", "+28 %", "2.7 x"))
    header = (
        "network",
        "memory: sub-batch 1",
        "transfers",
        "algorithms",
        "time: sub-batch 1",
        "transfers, 12 GiB",
        "transfers, least memory",
        "algorithms",
    )
    return markdown(header, rows)


def _breakdown(figures: Sequence[float]) -> tuple[str, ...]:
    one, transfers, algorithms, slow, late, latest, lean = figures
    return (
        _times(one),
        f"{transfers:.1f} x",
        f"{100 * algorithms:.0f} %",
        f"{slow:.2f} x",
        _percent(late),
        _percent(latest),
        f"{lean:.2f} x",
    )


def _workspace(instance: Instance) -> int:
    """The largest workspace of the fastest algorithms."""
    return max(algorithm.workspace_bytes for algorithm in fastest(instance))


def _largest_task(instance: Instance) -> int:
    """The least memory with transfers alone: the task that takes most with its fastest algorithm."""
    return instance.resident_bytes + max(
        footprint(instance, k) + algorithm.workspace_bytes for k, algorithm in enumerate(fastest(instance))
    )


# --- cells and pages --------------------------------------------------------------------------------------


def _longer_at(one: Outcome | None) -> str:
    return "fails" if one is None else f"{_percent(one.time)} ({one.sub_batch})"


def _longer(one: Outcome | None) -> str:
    return "fails" if one is None else _percent(one.time)


def _mean_longer(column: Sequence[Outcome | None]) -> str:
    return _percent(mean(one.time for one in column if one is not None))


def _moved(one: Outcome | None) -> str:
    return "fails" if one is None else _gb(one.moved)


def _b(one: Outcome | None) -> str:
    return "" if one is None else str(one.sub_batch)


def _over(theirs: int, ours: int) -> str:
    return f"{theirs / ours:.1f} x" if ours else "infinite"


def _percent(time: float) -> str:
    return f"{100 * (time - 1):+.1f} %"


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f}" if size < 1e11 else f"{size / 1e9:.1f}"


def _times(ratio: float) -> str:
    return f"{ratio:.0f} x"


TABLES: dict[str, Callable[[], str]] = {
    "memory": memory_table,
    "time": time_table,
    "versions": versions_table,
    "moved": moved_table,
    "fixed": fixed_table,
    "speedups": speedup_table,
    "budgets": budget_table,
    "breakdown": breakdown_table,
}
"""What stands between the marks of each name."""


def marks(name: str) -> tuple[str, str]:
    """The lines before and after a table."""
    return f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or put them into a page."""
    parser = argparse.ArgumentParser(prog="python paper/scripts/modnn.py", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    page: Path | None = parser.parse_args(arguments).write
    text = "\n".join("".join(marks(name)) for name in TABLES) if page is None else page.read_text("utf-8")
    for name, table in TABLES.items():
        begin, end = marks(name)
        text = replaced(text, begin, end, table())
    if page is None:
        print(text, end="")
    else:
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
