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
from pebbler.heuristics.methods import SubBatchRule, find_method
from pebbler.instances.instance import Instance
from pebbler.instances.memory import fastest, footprint, ideal_ns, least_budget
from pebbler.instances.networks.accounting import modnn_ideal
from pebbler.instances.networks.taskgraph import Graph
from pebbler.instances.networks.zoo import find_network
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve

BUDGETS_GIB = (2, 3, 4, 6, 8, 10, 12)
"""The budgets for Fig. 12, whose own are in the drawing only."""

SIX = (("vgg16", 256), ("vgg19", 256), ("vgg101b", 128), ("resnet34", 256), ("resnet152", 256), ("fcn", 128))
"""The networks of the means (TPDS 2019, section 7)."""

OTHER_RECIPE = ("vgg101", 128)
DEVICE = "K40"
GRAPHS: tuple[Graph, ...] = ("paper", "executable")
CUDNN = "5.1"
"""The papers state none, but choose among algorithms of which Winograd's is one; 5.1 has all its passes."""

VERSIONS = ("4", "5.1", "7")
"""The default of the K40, vDNN's own, and versions that came out between vDNN and moDNN."""

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
    time, tasks
        Iteration time over the ideal's, that of the whole batch, and the time of all tasks alone over it.
    moved
        Bytes that are copied either way.
    """

    sub_batch: int
    time: float
    tasks: float
    moved: int


def workload(network: str, batch: int, graph: Graph, cudnn: str = CUDNN) -> Workload:
    """The training iteration that the papers measure, on a K40."""
    return Workload(network, batch, DEVICE, graph, cudnn=cudnn)


@cache
def own(method: str, what: Workload, budget_bytes: int, planner: str | None = None) -> Outcome | None:
    """Simulate an iteration at the sub-batch of the method, or of a planner; None where it fails.

    A method without a rule takes the whole batch, as vDNN does.
    """
    rule = find_method(planner or method).sub_batch or _whole_batch
    return _outcome(method, what, _planned(rule, what, budget_bytes))


def _whole_batch(what: Workload, _: int) -> int:
    return what.batch


@cache
def _planned(rule: SubBatchRule, what: Workload, budget_bytes: int) -> tuple[Instance, ...]:
    return own_instances(rule, what, budget_bytes)


@cache
def whole(method: str, what: Workload, budget_bytes: int) -> Outcome | None:
    """Simulate an iteration at the whole batch; None where it fails."""
    return _outcome(method, what, instances_of(what, budget_bytes))


def _outcome(method: str, what: Workload, instances: Sequence[Instance]) -> Outcome | None:
    time = tasks = moved = 0
    if any(instance.budget_bytes < least_budget(instance) for instance in instances):
        return None
    for instance in instances:
        result = solve(instance, method)
        if result.schedule is None:
            return None
        time += instance.rounds * result.schedule.makespan_ns
        runs = (o for o in result.schedule.operations if o.kind == "run")
        tasks += instance.rounds * sum(o.end_ns - o.start_ns for o in runs)
        moved += instance.rounds * ((result.offloaded_bytes or 0) + (result.prefetched_bytes or 0))
    sub_batch = instances[0].made_from.sub_batch
    assert sub_batch is not None, "a workload says how many images a round has"
    ideal = ideal_ns(_at(what))
    return Outcome(sub_batch, time / ideal, tasks / ideal, moved)


@cache
def _at(what: Workload, sub_batch: int | None = None) -> Instance:
    return what.instance(0, sub_batch, check_budget=False)


# --- memory (section 7.1) ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """What a network takes, in bytes (TPDS, section 7.1).

    Attributes
    ----------
    data, workspace
        All data of the ideal case, and the largest workspace of its tasks.
    lower, executable
        Least memory by eq. 7, on either graph.
    mobile
        Least memory where weights are blocks, too: the largest task with what it uses of them.
    """

    data: int
    workspace: int
    lower: int
    executable: int
    mobile: int

    @property
    def ideal(self) -> int:
        """All data and workspaces; a workspace can be used again, so the largest counts."""
        return self.data + self.workspace


@cache
def memory(network: str, batch: int) -> Memory:
    """Count the memory of a network at a batch."""
    what = workload(network, batch, "paper")
    return Memory(
        modnn_ideal(find_network(network), batch),
        _workspace(_at(what)),
        what.floor(),
        workload(network, batch, "executable").floor(),
        _weights_as_blocks(network, batch).floor(),
    )


def _weights_as_blocks(network: str, batch: int) -> Workload:
    return Workload(network, batch, DEVICE, "paper", weights_as_blocks=True, cudnn=CUDNN)


def memory_table() -> str:
    """Fig. 9, TPDS and Fig. 6, DATE: ideal case, lower bound, and lower bound with weights as blocks."""
    rows = []
    for network, batch in (*SIX, OTHER_RECIPE):
        one = memory(network, batch)
        amounts = (one.data, one.workspace, one.ideal, one.lower, one.executable, one.mobile)
        rows.append((f"{network} ({batch})", *map(_gb, amounts), f"{one.ideal / _GIB:.2f}"))
    rows.append(("printed, vgg101 (128)", "", "", "nearly 100", "1.4", "", "", ""))
    header = (
        "network",
        "all data, GB",
        "largest workspace, GB",
        "ideal, GB",
        "lower bound, GB",
        "lower bound, executable graph, GB",
        "weights as blocks, GB",
        "ideal, GiB",
    )
    return markdown(header, rows)


# --- every ratio, by network ------------------------------------------------------------------------------


def ratios_table() -> str:
    """Ratios of memory and of bytes: every mean that is printed, with what it is the mean of."""
    rows = []
    for printed, what, quotient in _RATIOS:
        networks = SIX if "DATE" not in printed else [which for which in SIX if which[0] in _DATE]
        found = {which: quotient(*which) for which in (*networks, OTHER_RECIPE)}
        other = [found[OTHER_RECIPE if which[0] == "vgg101b" else which] for which in networks]
        cell = _share if "%" in printed else _ratio
        cells = (cell(found[which]) if which in found else "" for which in (*SIX, OTHER_RECIPE))
        means = (mean(found[which] for which in networks), mean(other))
        rows.append((printed, what, *cells, *map(cell, means)))
    networks_of = [f"{network} ({batch})" for network, batch in (*SIX, OTHER_RECIPE)]
    return markdown(("printed", "what over what", *networks_of, "mean", "mean with vgg101"), rows)


def _saving(network: str, batch: int) -> float:
    return memory(network, batch).ideal / memory(network, batch).lower


def _executable_saving(network: str, batch: int) -> float:
    return memory(network, batch).ideal / memory(network, batch).executable


def _mobile_saving(network: str, batch: int) -> float:
    return memory(network, batch).ideal / memory(network, batch).mobile


def _layer_saving(network: str, batch: int) -> float:
    """Ideal over the largest task's data, with the weights and the gradients of the largest layer."""
    single = _at(workload(network, batch, "paper"), 1)
    data = max(footprint(single, k) for k in range(len(single.tasks)))
    mobile = _at(_weights_as_blocks(network, batch), 1)
    weights = max(block.bytes for block in mobile.blocks if block.name.startswith("W("))
    return memory(network, batch).ideal / (data + 2 * weights)


def _sub_batch_saving(network: str, batch: int) -> float:
    return memory(network, batch).ideal / memory(network, 1).ideal


def _transfer_saving(network: str, batch: int) -> float:
    return memory(network, batch).ideal / _largest_task(_at(workload(network, batch, "paper")))


def _workspace_share(network: str, batch: int) -> float:
    return memory(network, batch).workspace / memory(network, batch).ideal


def _fewer_bytes(method: str) -> Callable[[str, int], float]:
    """Return how many times fewer bytes than vDNN's a method moves, where the input's load counts as well."""

    def quotient(network: str, batch: int) -> float:
        what = workload(network, batch, "paper")
        ours, theirs = own(method, what, _BUDGET), own(_DESCRIBED[0], what, _BUDGET)
        assert ours is not None, "moDNN has a schedule at any budget from its least on"
        assert theirs is not None, "vDNN that offloads every layer fits 12 GiB on all of these networks"
        loaded = sum(block.bytes for block in _at(what).blocks if block.initially != "absent")
        return (theirs.moved + loaded) / (ours.moved + loaded)

    return quotient


# --- time and copies at 12 GiB (section 7.2) --------------------------------------------------------------

_DESCRIBED = ("vdnn-all-tpds", "vdnn-conv-tpds")
"""vDNN as TPDS describes it."""

_METHODS = ("modnn", "modnn-date", "vdnn-dyn", "vdnn-plus", *_DESCRIBED)

_RATIOS: tuple[tuple[str, str, Callable[[str, int], float]], ...] = (
    ("59 x, TPDS", "ideal over lower bound", _saving),
    ("59 x, TPDS", "the same, executable graph", _executable_saving),
    ("50 x, DATE", "ideal over lower bound", _saving),
    ("396 x, TPDS", "ideal over lower bound, weights as blocks", _mobile_saving),
    ("396 x, TPDS", "the same, all weights and gradients of the largest layer", _layer_saving),
    ("42 x, TPDS", "ideal over ideal of one image", _sub_batch_saving),
    ("4.1 x, TPDS", "ideal over the largest task at the whole batch", _transfer_saving),
    ("15 %, TPDS", "largest workspace over ideal", _workspace_share),
    ("378 x, TPDS", "bytes of `vdnn-all-tpds` over `modnn`, the input's load in both", _fewer_bytes("modnn")),
    ("5 x, DATE", "bytes of `vdnn-all-tpds` over `modnn-date`, the same", _fewer_bytes("modnn-date")),
)
"""What is printed, in words what it is made of, and the ratio of a network."""


def _own_at_12(graph: Graph, cudnn: str = CUDNN) -> dict[tuple[str, int], tuple[Outcome | None, ...]]:
    whats = {which: workload(*which, graph, cudnn) for which in (*SIX, OTHER_RECIPE)}
    return {which: tuple(own(method, what, _BUDGET) for method in _METHODS) for which, what in whats.items()}


def time_table() -> str:
    """Fig. 10, TPDS and Fig. 7, DATE: how much longer than ideal, and the sub-batch."""
    rows = []
    for graph in GRAPHS:
        found = _own_at_12(graph)
        rows += [(graph, f"{n} ({b})", *map(_longer_at, row)) for (n, b), row in found.items()]
        rows += _mean_rows(graph, found)
    rows.append(("", "printed, TPDS, six", "+3 %", "", "+31 %", "", "+31 %", "+31 %"))
    rows.append(("", "printed, DATE, five", "", "+8 %", "+40 %", "", "+40 %", "+40 %"))
    return markdown(("graph", "network", *_METHODS), rows)


def losses_table() -> str:
    """What of vDNN's loss at 12 GiB is slower algorithms, and what is waiting for copies (paper graph)."""
    methods = ("vdnn-dyn", _DESCRIBED[0])
    rows = []
    for network, batch in SIX:
        cells: list[str] = []
        for method in methods:
            one = own(method, workload(network, batch, "paper"), _BUDGET)
            assert one is not None, "every network of the six has a schedule by these"
            cells += [_percent(one.tasks), _percent(1 + one.time - one.tasks)]
        rows.append((f"{network} ({batch})", *cells))
    header = (f"{method}, {word}" for method in methods for word in ("algorithms", "waits"))
    return markdown(("network", *header), rows)


def versions_table() -> str:
    """Fig. 10 and 14, TPDS, and Fig. 7, DATE: the means, by version of cuDNN, on the paper graph."""
    rows = []
    for cudnn in VERSIONS:
        alone = map(mean, zip(*_alone(cudnn), strict=True))
        six, five = (row[1:] for row in _mean_rows("paper", _own_at_12("paper", cudnn)))
        rows += [(cudnn, *six, *_breakdown(tuple(alone))), (cudnn, *five, "", "", "", "")]
    rows.append(
        (
            "",
            "printed, TPDS, six",
            *("+3 %", "", "+31 %", "", "+31 %", "+31 %"),
            *("3.74 x", "", "+28 %", "2.7 x"),
        )
    )
    rows.append(("", "printed, DATE, five", "", "+8 %", "+40 %", "", "+40 %", "+40 %", "", "", "", ""))
    return markdown(("cuDNN", "network", *_METHODS, *_ALONE), rows)


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
            columns = [*zip(*(row for (n, _), row in found.items() if n in some), strict=True)]
            totals = [None if None in column else _total(column) for column in columns]
            rows.append((graph, word, *("fails" if total is None else _gb(total) for total in totals)))
            for method in ("vdnn-dyn", _DESCRIBED[0]):
                theirs = totals[_METHODS.index(method)]
                rows.append((graph, f"{method} over, {word}", *(_over(theirs, total) for total in totals)))
    return markdown(("graph", "network", *(f"{m}, GB" for m in _METHODS)), rows)


def _total(column: Iterable[Outcome | None]) -> int:
    return sum(one.moved for one in column if one is not None)


def fixed_table() -> str:
    """Both methods at the whole batch, where only transfers and algorithms differ."""
    methods = ("modnn", "vdnn-dyn", _DESCRIBED[0])
    rows = []
    for graph in GRAPHS:
        for network, batch in (*SIX, OTHER_RECIPE):
            found = [whole(m, workload(network, batch, graph), _BUDGET) for m in methods]
            rows.append((graph, f"{network} ({batch})", *map(_longer, found), *map(_moved, found)))
    header = ("graph", "network", *methods, *(f"{method}, GB moved" for method in methods))
    return markdown(header, rows)


# --- other budgets (Fig. 12) ------------------------------------------------------------------------------

_PLANNER = "modnn"
"""Whose sub-batch vDNN+ has."""

READINGS: tuple[tuple[str, str | None, str], ...] = (
    ("vdnn-plus", None, "dynamic vDNN at moDNN's sub-batch"),
    ("vdnn-all-tpds", _PLANNER, "as described, all outputs, at moDNN's sub-batch"),
    ("vdnn-conv-tpds", _PLANNER, "as described, outputs of convolutions, at moDNN's sub-batch"),
    ("vdnn-all-p", _PLANNER, "static vDNN_all, fastest algorithms, at moDNN's sub-batch"),
    ("vdnn-conv-p", _PLANNER, "static vDNN_conv, fastest algorithms, at moDNN's sub-batch"),
    ("vdnn-all-m", _PLANNER, "static vDNN_all, memory-optimal algorithms, at moDNN's sub-batch"),
    ("vdnn-dyn", None, "dynamic vDNN at the whole batch"),
    ("vdnn-all-tpds", None, "as described, all outputs, at the whole batch"),
    ("vdnn-conv-tpds", None, "as described, outputs of convolutions, at the whole batch"),
)
"""What vDNN and vDNN+ may be: a method, whose sub-batch it has if not its own, and that in words."""


def budget_table() -> str:
    """Fig. 12: time over ideal under budgets down to the lower bound."""
    rows = []
    for what, budget in _points("paper", CUDNN):
        ours = own("modnn", what, budget)
        others = (own(method, what, budget, planner=planner) for method, planner, _ in READINGS)
        name = f"{what.network} ({what.batch})"
        rows.append((name, str(budget // _GIB), *map(_longer, (ours, *others)), _b(ours)))
    names = (f"{method}{', sub-batch' if planner else ''}" for method, planner, _ in READINGS)
    return markdown(("network", "GiB", "modnn", *names, "sub-batch"), rows)


def speedup_table() -> str:
    """Fig. 12: mean of the other methods' times over moDNN's, where both have a schedule."""
    rows: list[tuple[str, ...]] = []
    settings: tuple[tuple[str, Graph], ...] = ((CUDNN, "paper"), (CUDNN, "executable"), ("4", "paper"))
    for cudnn, graph in settings:
        for method, planner, reading in READINGS:
            ratios = list(_ratios(method, planner, graph, cudnn))
            span = f"{min(ratios):.3f} to {max(ratios):.3f}"
            rows.append((cudnn, graph, method, reading, f"{mean(ratios):.3f} x", span, str(len(ratios))))
    rows.append(("", "", "vDNN+", "printed", "1.26 x", "", ""))
    header = ("cuDNN", "graph", "method", "reading", "moDNN faster by, mean", "range", "points")
    return markdown(header, rows)


def _ratios(method: str, planner: str | None, graph: Graph, cudnn: str) -> Iterable[float]:
    for what, budget in _points(graph, cudnn):
        ours, theirs = own("modnn", what, budget), own(method, what, budget, planner=planner)
        if ours and theirs:
            yield theirs.time / ours.time


def _points(graph: Graph, cudnn: str) -> Iterable[tuple[Workload, int]]:
    """Every network with every budget from its lower bound on."""
    for network, batch in SIX:
        what = workload(network, batch, graph, cudnn)
        yield from ((what, gib * _GIB) for gib in BUDGETS_GIB if gib * _GIB >= what.floor())


# --- one technique alone (section 7.3) --------------------------------------------------------------------

_ALONE = ("time: sub-batch 1", "transfers, 12 GiB", "transfers, least memory", "algorithms")


def breakdown_table() -> str:
    """Fig. 14: time of each technique on its own, on the paper graph."""
    figures = [*_alone(CUDNN)]
    rows = [(f"{n} ({b})", *_breakdown(row)) for (n, b), row in zip(SIX, figures, strict=True)]
    rows.append(("mean", *_breakdown(tuple(mean(column) for column in zip(*figures, strict=True)))))
    rows.append(("printed", "3.74 x", "", "+28 %", "2.7 x"))
    return markdown(("network", *_ALONE), rows)


def _alone(cudnn: str) -> Iterable[tuple[float, float, float, float]]:
    """Each technique on its own at its least memory, and transfers in 12 GiB as well: time over ideal."""
    for network, batch in SIX:
        what = workload(network, batch, "paper", cudnn)
        instance = _at(what)
        quickest = ideal_ns(instance)
        lean = sum(task.algorithms[0].duration_ns for task in instance.tasks)
        transfers, least = (
            whole("modnn-transfers", what, budget) for budget in (_BUDGET, _largest_task(instance))
        )
        assert transfers is not None, "every network of the six fits 12 GiB at its batch"
        assert least is not None, "a task has the pool to itself after a defragmentation"
        yield batch * ideal_ns(_at(what, 1)) / quickest, transfers.time, least.time, lean / quickest


def _breakdown(figures: Sequence[float]) -> tuple[str, ...]:
    slow, late, latest, lean = figures
    return f"{slow:.2f} x", _percent(late), _percent(latest), f"{lean:.2f} x"


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
    """Mean of those that have a schedule, and how many these are where some have none."""
    found = [one.time for one in column if one is not None]
    some = "" if len(found) == len(column) else f" ({len(found)} of {len(column)})"
    return _percent(mean(found)) + some


def _moved(one: Outcome | None) -> str:
    return "fails" if one is None else _gb(one.moved)


def _b(one: Outcome | None) -> str:
    return "" if one is None else str(one.sub_batch)


def _over(theirs: int | None, ours: int | None) -> str:
    if theirs is None or ours is None:
        return "fails"
    return f"{theirs / ours:.1f} x" if ours else "infinite"


def _percent(time: float) -> str:
    return f"{100 * (time - 1):+.1f} %"


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f}" if size < 1e11 else f"{size / 1e9:.1f}"


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ratio(ratio: float) -> str:
    return f"{ratio:.0f} x" if ratio >= 10 else f"{ratio:.2f} x"


TABLES: dict[str, Callable[[], str]] = {
    "memory": memory_table,
    "ratios": ratios_table,
    "time": time_table,
    "losses": losses_table,
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
