"""The formulas of docs/flow.md written out once more, number by number, from the page and not from the code.

Slow and plain: columns and rows are dictionaries by the page's symbols. Nothing is taken from
`pebbler.solver.flow` but the units, and what names a GPU and an instant; the least time that gradients take
to pass is the library's.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.instances.gpus.cluster import Gradient
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.solver.flow.machine.bus import Reach
from pebbler.solver.gradient_bounds import added_ns, own_passing_ns
from pebbler.solver.linear.model import LinearModel, ModelBuilder, RowFamilies
from pebbler.validate.gpus.program import cluster_of, one_gpu

Name = tuple[Any, ...]
Terms = dict[int, list[tuple[Name, float]]]
"""Terms of the rows of a family, by instant or interval."""


Passing = Sequence[float]
"""What a copy takes in (41), (52) and (53)."""


def _f(m: float, alone: float, lead: float) -> float:
    """What a copy takes of the row of its own direction."""
    if m >= lead * alone:
        return alone
    return m / lead if m > alone / 2 else alone - (2 - 1 / lead) * (alone - m)


def _g(m: float, alone: float, lead: float) -> float:
    """What a copy takes of the row of the other direction."""
    return (2 - 1 / lead) * m if m > alone / 2 else max(alone - (alone - m) / lead, 0.0)


def _over(times: Passing, time: float | None) -> Passing:
    return [other / time if time else 0.0 for other in times]


class Gap(NamedTuple):
    first: int
    last: int
    loads: bool
    is_last: bool = False


@dataclass(frozen=True)
class Version:
    size: float
    offload: float | None
    prefetch: float | None
    ready: int | None
    gaps: tuple[Gap, ...]
    leaves: bool
    carried: int | None = None
    saved: bool = False
    linked: tuple[Passing, Passing] = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


def _reads(task: Task, algorithm: Algorithm) -> tuple[int, ...]:
    return task.inputs if algorithm.inputs is UNSET else algorithm.inputs


def _makes(task: Task, algorithm: Algorithm) -> tuple[int, ...]:
    return task.outputs if algorithm.outputs is UNSET else algorithm.outputs


def _holds(task: Task, algorithm: Algorithm) -> tuple[int, ...]:
    taken = {x for _, x in algorithm.takes_over}
    return tuple(b for b in _reads(task, algorithm) if b not in taken)


def _least(instance: Instance) -> Instance:
    """The instance in which tasks read what all of their algorithms read and hold, and make what all make."""
    tasks = []
    for task in instance.tasks:
        sets = [_holds(task, algorithm) for algorithm in task.algorithms]
        algorithms = tuple(replace(a, inputs=UNSET, outputs=UNSET, takes_over=()) for a in task.algorithms)
        always = tuple(b for b in task.inputs if all(b in reads for reads in sets))
        made = tuple(b for b in task.outputs if all(b in _makes(task, a) for a in task.algorithms))
        tasks.append(replace(task, inputs=always, outputs=made, algorithms=algorithms))
    return replace(instance, tasks=tuple(tasks))


@dataclass
class Rows:
    """Columns and rows by name, in units of `ns` and `size`.

    Where what tasks read depends on algorithms, `instance` has the least of it, and `given` all.
    """

    instance: Instance
    checkpoints: Sequence[int]
    ns: float
    size: float
    given: Instance | None = None
    columns: dict[Name, tuple[float, float, float, bool]] = field(default_factory=dict)
    rows: list[tuple[str, dict[Name, float], float, float]] = field(default_factory=list)

    def always_read(self, k: int) -> set[int]:
        """What task k reads with each of its algorithms."""
        task = (self.given or self.instance).tasks[k]
        return set.intersection(*(set(_reads(task, algorithm)) for algorithm in task.algorithms))

    def column(
        self, name: Name, low: float = 0.0, high: float = 1.0, cost: float = 0.0, *, whole: bool = False
    ) -> None:
        assert name not in self.columns
        self.columns[name] = (low, high, cost, whole)

    def row(
        self, family: str, terms: Iterable[tuple[Name, float]], low: float = -math.inf, high: float = math.inf
    ) -> None:
        """Terms of columns that do not exist are zero."""
        added: dict[Name, float] = defaultdict(float)
        for name, value in terms:
            if name in self.columns:
                added[name] += value
        self.rows.append((family, added, low, high))

    def linear(self) -> LinearModel:
        builder = ModelBuilder()
        index = {
            name: int(builder.columns(1, lower=low, upper=high, cost=cost, integer=whole)[0])
            for name, (low, high, cost, whole) in self.columns.items()
        }
        for _, terms, low, high in self.rows:
            row = builder.rows(1, lower=low, upper=high)
            for name, value in terms.items():
                builder.entries(row, index[name], value)
        return builder.build()

    def patterns(self) -> dict[str, Counter[tuple[float, ...]]]:
        """Per family, the rows by their bounds and sorted coefficients."""
        found: dict[str, Counter[tuple[float, ...]]] = defaultdict(Counter)
        for family, terms, low, high in self.rows:
            values = sorted(value for value in terms.values() if abs(value) > 1e-12)
            found[family][tuple(round(float(value), 4) + 0.0 for value in (low, high, *values))] += 1
        return found

    # --- sets and parameters ------------------------------------------------------------------------

    @property
    def m(self) -> int:
        return len(self.checkpoints)

    def algorithms(self, k: int) -> list[tuple[int, Algorithm]]:
        task = (self.given or self.instance).tasks[k]
        here = [(a, algorithm) for a, algorithm in enumerate(task.algorithms) if algorithm.on == "device"]
        room = {
            a: self.instance.pool_bytes
            - sum(
                self.instance.blocks[b].bytes
                for b in (*_holds(task, algorithm), *_makes(task, algorithm), *task.updates)
            )
            for a, algorithm in here
        }
        return [(a, algorithm) for a, algorithm in here if algorithm.workspace_bytes <= room[a]] or here

    def choices_that_read(self, b: int, number: int) -> list[tuple[int, list[Name]]]:
        """Checkpoints that read a version with some algorithms only, and the columns y of these that fit."""
        found: list[tuple[int, list[Name]]] = []
        for i, k in enumerate(self.checkpoints):
            task = (self.given or self.instance).tasks[k]
            reads = {a: b in _holds(task, algorithm) for a, algorithm in enumerate(task.algorithms)}
            mine = [("y", i, a) for a, _ in self.algorithms(k) if reads[a]]
            if mine and not all(reads.values()) and sum(w < k for w in self.writers(b)) == number:
                found.append((i, mine))
        return found

    def is_optional(self, b: int) -> bool:
        """Whether some algorithms of its task leave a block out."""
        writers = [task for task in (self.given or self.instance).tasks if b in task.outputs]
        return any(b not in _makes(task, algorithm) for task in writers for algorithm in task.algorithms)

    def choices_that_make(self, b: int) -> list[Name] | None:
        """The columns y of algorithms of a checkpoint that make a block which others leave out."""
        for i, k in enumerate(self.checkpoints):
            task = (self.given or self.instance).tasks[k]
            if b in task.outputs and self.is_optional(b):
                return [("y", i, a) for a, one in self.algorithms(k) if b in _makes(task, one)]
        return None

    def is_hosted(self, k: int) -> bool:
        """Whether a task is in K^h."""
        return any(algorithm.on == "host" for algorithm in self.instance.tasks[k].algorithms)

    def hosted(self, b: int) -> list[int]:
        """Tasks of K^h that touch a block."""
        return [k for k, task in enumerate(self.instance.tasks) if b in task.blocks and self.is_hosted(k)]

    def least_here(self, k: int) -> float:
        """t_k."""
        return min((a.duration_ns for _, a in self.algorithms(k)), default=0) / self.ns

    def footprint(self, k: int) -> int:
        return sum(self.instance.blocks[b].bytes for b in self.instance.tasks[k].blocks)

    def least(self, k: int) -> float:
        """D_k."""
        return sum(self.least_here(other) for other in range(k) if not self.is_hosted(other))

    def before(self, k: int, *, with_it: bool = False) -> int:
        """Checkpoints before a position, or up to it."""
        return sum(c < k or (with_it and c == k) for c in self.checkpoints)

    def ready(self, writer: int) -> int:
        return 2 * self.before(writer) + 2 * (writer in self.checkpoints)

    def soonest(self, k: int) -> int:
        """r_k of a task of K^h."""
        task, found = self.instance.tasks[k], [0]
        for b in (*task.inputs, *task.updates):
            before = [writer for writer in self.writers(b) if writer < k]
            if before and not self.is_hosted(before[-1]):
                found.append(self.ready(before[-1]))
        return max(found)

    def stays(self, b: int) -> list[tuple[int, Gap]]:
        """Stays with an instant inside, with the mark before each; the start is one of carried blocks."""
        block, n = self.instance.blocks[b], len(self.instance.tasks)
        carried = block.initially == "carried"
        marks = [k for k, task in enumerate(self.instance.tasks) if b in task.blocks]
        if carried and not marks:
            return []
        marks = [
            *([-1] if block.initially != "absent" else []),
            *marks,
            *([n] if carried or block.finally_ == "device" else []),
        ]
        gaps = []
        for u, until in pairwise(marks):
            first, last = 2 * self.before(u, with_it=True), 2 * self.before(until) - 1
            if carried and u == -1:
                first = -1
            if first <= last:
                loads = u == -1 and block.initially == "host"
                gaps.append((u, Gap(first, last, loads, carried and until == n)))
        return gaps

    def is_away(self, b: int) -> bool:
        """Whether a carried block can be absent at all."""
        block = self.instance.blocks[b]
        return block.prefetch_ns is not None and (block.offload_ns is not None or not self.writers(b))

    def writers(self, b: int) -> list[int]:
        tasks = (self.given or self.instance).tasks
        return [k for k, task in enumerate(tasks) if b in (*task.outputs, *task.updates)]

    def linked(self, b: int) -> tuple[Passing, Passing]:
        """The m, f and g of an offload and of a prefetch, in the order of (41), (52) and (53)."""
        (m, alone), (m_in, alone_in) = self._alone(b)
        out, back = self.leads
        return (m, _f(m, alone, out), _g(m, alone, back)), (
            m_in,
            _g(m_in, alone_in, out),
            _f(m_in, alone_in, back),
        )

    def _alone(self, b: int) -> list[tuple[float, float]]:
        """For both directions, m and the time of a copy alone."""
        block, found = self.instance.blocks[b], []
        for time in (block.offload_ns, block.prefetch_ns):
            passing = 0.0
            if self.instance.link is not UNSET and time:
                passing = 10**9 * block.loaded_bytes / self.instance.link.both_bytes_per_second
                passing = float(time) if time < passing <= time + 1 else passing
            found.append((passing, max(passing, float(time or 0))))
        return found

    @cached_property
    def leads(self) -> list[float]:
        """The leads of both directions."""
        found = []
        for copies in zip(*(self._alone(b) for b in range(len(self.instance.blocks))), strict=True):
            fast = sorted((m / alone, m) for m, alone in copies if m > alone / 2)
            upto = list(accumulate(m for _, m in fast))
            found.append(
                next((p for (p, _), sum_ in zip(fast, upto, strict=True) if 2 * sum_ >= upto[-1]), 0.5)
            )
        return found

    def machine(
        self,
        lengths: Sequence[float],
        terms: tuple[Terms, Terms],
        linked: Sequence[dict[Any, Passing]],
        again: Iterable[tuple[int, int]] = (),
        choices: Sequence[tuple[int, int, float]] = (),
    ) -> None:
        """(41), (42), (52), (53); a term of a version takes that many times its time on the link."""
        instance = self.instance
        families = ["link"] if instance.engines == "single" else ["link", "fair out", "fair back"]
        for i, family in enumerate(families if instance.link is not UNSET else ()):
            for j in range(2 * self.m + 1):
                moves = [
                    (name, value * ratios[name[1] if len(name) > 1 else None][i])
                    for of_engine, ratios in zip(terms, linked, strict=True)
                    for name, value in of_engine[j]
                    if name[0] != "iota"
                ]
                self.row(family, [*moves, (("delta", j), -1.0)], high=0.0)
        edges = [-1, *self.checkpoints, len(instance.tasks)]
        for j, length in enumerate(lengths):
            may = [edges[j // 2 + 1]] if j % 2 else list(range(edges[j // 2] + 1, edges[j // 2 + 1]))
            may += [k for k, other in again if other == j]
            parts = [
                instance.tasks[k].slowdown_ppm
                for k in may
                if any(a.duration_ns for a in instance.tasks[k].algorithms if a.on == "device")
            ]
            out = min((0 if part is UNSET else part.offload for part in parts), default=0) / 1e6
            back = min((0 if part is UNSET else part.prefetch for part in parts), default=0) / 1e6
            if not out + back:
                continue
            moves = [(name, -out * value) for name, value in terms[0][j] if name[0] != "iota"]
            moves += [(name, -back * value) for name, value in terms[1][j] if name[0] != "iota"]
            run = self.time_of(j // 2) if j % 2 else []
            runs = [(("zeta", k, j), self.least(k) - self.least(k + 1)) for k in range(len(instance.tasks))]
            for k, interval, time in choices:
                if interval == j:
                    self.column(("one", k), 1.0, 1.0)
                    runs += [(("one", k), -time), (("lambda", k), time)]
            self.row("slowed", [(("delta", j), 1.0), *run, *runs, *moves], length)

    # --- rows that all models have ------------------------------------------------------------------

    def lengths(self, counted: Sequence[float], costs: Sequence[float]) -> list[float]:
        """(1)."""
        edges = [-1, *self.checkpoints, len(self.instance.tasks)]
        lengths = [0.0] * (2 * self.m + 1)
        for i in range(self.m + 1):
            lengths[2 * i] = counted[2 * i] * (self.least(edges[i + 1]) - self.least(edges[i] + 1))
        for j, length in enumerate(lengths):
            self.column(("delta", j), length, math.inf, costs[j])
        return lengths

    def choices(self, whole: bool) -> None:
        """(2)."""
        for i, k in enumerate(self.checkpoints):
            for a, _ in self.algorithms(k):
                self.column(("y", i, a), whole=whole)
            self.row("algorithm", [(("y", i, a), 1.0) for a, _ in self.algorithms(k)], 1.0, 1.0)

    def time_of(self, i: int) -> list[tuple[Name, float]]:
        return [(("y", i, a), -run.duration_ns / self.ns) for a, run in self.algorithms(self.checkpoints[i])]

    def workspace_of(self, i: int) -> list[tuple[Name, float]]:
        k = self.checkpoints[i]
        task = (self.given or self.instance).tasks[k]
        return [
            (
                ("y", i, a),
                (
                    run.workspace_bytes
                    + sum(self.instance.blocks[b].bytes for b in _makes(task, run) if self.is_optional(b))
                )
                / self.size,
            )
            for a, run in self.algorithms(k)
        ]


def flow(
    instance: Instance,
    checkpoints: Sequence[int],
    integrality: str,
    ns: float,
    size: float,
    *,
    long: float | None = None,
    windows: Sequence[tuple[int, int, int, bool]] = (),
    stretch: tuple[int, int] | None = None,
    idle: bool = False,
) -> Rows:
    """FLOW, of (1) to (26) and (37) to (51)."""
    model = Rows(instance, checkpoints, ns, size)
    n, m, whole = len(instance.tasks), len(checkpoints), integrality == "all"
    first, until = stretch or (0, n)
    counted = [1.0] * (2 * m + 1)
    if first > 0:
        counted[0] = counted[1] = 0.0
    if until < n:
        counted[2 * m] = 0.0
    lengths = model.lengths(counted, [0.0] * len(counted) if idle else counted)
    model.choices(integrality != "none")
    for i in range(m):
        model.row("run", [(("delta", 2 * i + 1), 1.0), *model.time_of(i)], 0.0)  # (3)

    blocks = set(range(len(instance.blocks)))
    if stretch and not idle:
        touched = {b for k in checkpoints for b in instance.tasks[k].blocks}
        blocks = touched | {
            b
            for b, block in enumerate(instance.blocks)
            if block.offload_ns is None or block.prefetch_ns is None
        }
    shared = [b for b in sorted(blocks) if len(model.hosted(b)) == 1]
    blocks = {b for b in blocks if not model.hosted(b)}
    versions = _versions(model, blocks)
    if not whole and not idle:
        versions = _added_up(versions)
    in_memory: Terms = defaultdict(list)
    out: Terms = defaultdict(list)
    back: Terms = defaultdict(list)
    copies: list[tuple[str, Name, list[int], float]] = []
    ends: dict[Any, tuple[Any, float]] = {}
    for v, version in enumerate(versions):
        if version.carried is not None:
            ends.setdefault(version.carried, (v, version.size))
        copied = None not in (version.ready, version.offload, version.prefetch)
        inner = version.carried is None
        if not whole and copied and len(version.gaps) == 1 and not version.leaves and inner:
            _single(model, v, version, in_memory, out, back)
            continue
        end = (
            2 * m if version.leaves or version.saved else max((gap.last for gap in version.gaps), default=-1)
        )
        outs = range(0)
        if version.ready is not None and (version.offload is not None or version.ready < 0):
            outs = range(version.ready, end + 1)
        stuck = version.offload is None and bool(outs)
        for j in outs[:1] if stuck else outs:
            model.column(("q", v, j), float(version.leaves and j == end), whole=whole and j < 0)
            rate = (version.offload or 0) / ns
            out[j] += [(("q", v, j), rate), (("q", v, j - 1), -rate)]
        for j in outs[1:] if not stuck else ():
            model.row("rising", [(("q", v, j), 1.0), (("q", v, j - 1), -1.0)], 0.0)  # (7)
        if outs and not stuck:
            copies.append(("out", v, list(outs), version.offload or 0.0))
        at_first = ends[version.carried][0] if version.carried is not None else None
        if version.saved:
            model.row("saved", [(("q", v, end), 1.0), (("q", at_first, -1), -1.0)], 0.0)  # (38)
        for g, gap in enumerate(version.gaps if version.prefetch is not None else ()):
            instants = range(gap.first, gap.last + 1)
            rate = (version.prefetch or 0) / ns
            for t in instants:
                model.column(("rho", v, g, t))
                model.column(("x", v, g, t), high=float(version.ready is None or t in outs), whole=whole)
                in_memory[t].append((("x", v, g, t), -version.size / size))
                away = [(("x", at_first, 0, -1), 1.0)] if gap.is_last else []
                model.row("still", [(("rho", v, g, t), 1.0), (("x", v, g, t), -1.0), *away], 0.0)  # (9)
                if version.ready is not None and t in outs:
                    is_out = (("q", v, outs[0] if stuck else t), 1.0)
                    model.row("gone", [is_out, (("x", v, g, t), -1.0)], 0.0)  # (10)
            for t in instants[1:]:
                model.row("falling", [(("rho", v, g, t - 1), 1.0), (("rho", v, g, t), -1.0)], 0.0)  # (8)
            for j in range(gap.first + 1, gap.last + 2):
                back[j] += [(("rho", v, g, j - 1), rate), (("rho", v, g, j), -rate)]
            if gap.loads:
                back[gap.first].append((("rho", v, g, gap.first), -rate))
                model.column(("load", v), 1.0, 1.0)
                back[gap.first].append((("load", v), rate))
            copies.append(("back", (v, g), list(instants), version.prefetch or 0.0))

    ratios: tuple[dict[Any, Passing], dict[Any, Passing]] = ({}, {})
    of_host: Terms = defaultdict(list)
    choices = _host_runs(model, integrality, lengths)
    for b in shared:
        _shared(model, b, whole, (in_memory, of_host, out, back), ratios, ends)
    staying = [0] * (2 * m)
    for b in (*blocks, *shared):
        for _, gap in model.stays(b):
            for t in range(max(gap.first, 0), gap.last + 1):
                staying[t] += instance.blocks[b].bytes
    for t in range(2 * m):  # (4)
        room = (instance.pool_bytes - model.footprint(checkpoints[t // 2]) - staying[t]) / size
        model.row("memory", [*model.workspace_of(t // 2), *in_memory[t]], high=room)
    host = instance.host_budget_bytes
    if host is not UNSET and host < max(staying, default=0):
        for t in range(2 * m):  # (37)
            terms = [(name, -entry) for name, entry in in_memory[t]]
            model.row("host", [*terms, *of_host[t]], high=host / size)

    _both_ends(model, [*blocks, *shared], ends)
    if first == 0:
        soonest = checkpoints[0] if m else n
        load = sum(
            (block.prefetch_ns or 0) / ns
            for b, block in enumerate(instance.blocks)
            if b in blocks
            if block.initially == "host" and any(b in task.blocks for task in instance.tasks[: soonest + 1])
        )
        if load:
            model.column(("L",), 1.0, 1.0)
            back[0].append((("L",), load))
    for v, version in enumerate(versions):
        for way, time in enumerate((version.offload, version.prefetch)):
            ratios[way][v] = _over(version.linked[way], time)
    if first == 0 and load:
        early = [
            model.linked(b)[1]
            for b, block in enumerate(instance.blocks)
            if b in blocks and block.initially == "host"
            if any(b in task.blocks for task in instance.tasks[: soonest + 1])
        ]
        ratios[1][None] = _over([sum(column) for column in zip(*early, strict=True)], ns * load)
    model.machine(lengths, (out, back), ratios, (), choices)
    is_idle = idle or any(window[3] for window in windows)
    for j in range(2 * m + 1):  # (5), (6), (25)
        least = 0.0 if idle else -math.inf
        if is_idle:
            model.column(("iota", j), 0.0, math.inf, counted[j] if idle else 0.0)
            back[j].append((("iota", j), 1.0))
        length = (("delta", j), -1.0)
        if instance.engines == "single":
            model.row("out", [*out[j], *back[j], length], least, 0.0)
        else:
            model.row("out", [*out[j], length], high=0.0)
            model.row("back", [*back[j], length], least, 0.0)
    if long is not None:
        _unbroken(model, versions, copies, long)
    _windows(model, [window[:3] for window in windows if not window[3]])
    for begin, _, proven, _ in (window for window in windows if window[3]):  # (26)
        intervals = range(2 * model.before(begin), 2 * m + 1)
        model.row("idle", [(("iota", j), 1.0) for j in intervals], proven / ns)
    return model


def _host_runs(model: Rows, integrality: str, lengths: Sequence[float]) -> list[tuple[int, int, float]]:
    """(43) to (45); the tasks that may run on either side, with their intervals and times on the device."""
    instance, last = model.instance, 2 * model.m
    either = []
    stream: Terms = defaultdict(list)
    hosted = [k for k in range(len(instance.tasks)) if model.is_hosted(k)]
    for k in hosted:
        here = model.algorithms(k)
        model.column(("lambda", k), float(not here), whole=integrality != "none")
        begin = model.soonest(k)
        for j in range(begin, last + 1):
            model.column(("H", k, j))
            if j > begin:
                model.row("host rising", [(("H", k, j), 1.0), (("H", k, j - 1), -1.0)], 0.0)
        model.row("host done", [(("H", k, last), 1.0), (("lambda", k), -1.0)], 0.0, 0.0)
        time = min(a.duration_ns for a in instance.tasks[k].algorithms if a.on == "host") / model.ns
        for j in range(last + 1):
            stream[j] += [(("H", k, j), time), (("H", k, j - 1), -time)]
        if here:
            either.append((k, 2 * model.before(k), model.least_here(k)))
    for j in sorted({j for _, j, _ in either}):
        terms = [(("lambda", k), time) for k, other, time in either if other == j]
        spared = sum(time for _, other, time in either if other == j)
        model.row("choice", [(("delta", j), 1.0), *terms], lengths[j] + spared)
    for j in range(last + 1) if hosted else ():
        model.row("host stream", [*stream[j], (("delta", j), -1.0)], high=0.0)
    return either


def _shared(
    model: Rows,
    b: int,
    whole: bool,
    terms: tuple[Terms, Terms, Terms, Terms],
    ratios: tuple[dict[Any, Passing], dict[Any, Passing]],
    ends: dict[Any, tuple[Any, float]],
) -> None:
    """A block that one task of K^h touches, of (4) to (10), (37), (38) and (46) to (51)."""
    in_memory, of_host, out, back = terms
    instance, last, n = model.instance, 2 * model.m, len(model.instance.tasks)
    block, writers = instance.blocks[b], model.writers(b)
    (k,) = model.hosted(b)
    reads, writes = b not in instance.tasks[k].outputs, k in writers
    carried, size, first_name = block.initially == "carried", block.bytes / model.size, ("s", b)
    marks = [other for other, task in enumerate(instance.tasks) if b in task.blocks]
    marks = [-1] * (block.initially != "absent") + marks + [n] * (carried or block.finally_ == "device")
    gaps = list(pairwise(marks))
    rate, load = ((block.prefetch_ns or 0) / model.ns, (block.offload_ns or 0) / model.ns)
    linked = model.linked(b)
    ratios[1][first_name] = _over(linked[1], block.prefetch_ns)

    def name_of(number: int) -> Any:
        return ("s", b, number) if number else first_name

    def number_at(u: int) -> int:
        return sum(writer <= u for writer in writers)

    def q(number: int, t: int) -> Name:
        stuck = block.offload_ns is None and number == 0
        return ("q", name_of(number), -1 if stuck else t)

    held = block.initially != "absent" and not (
        carried and (writers or instance.host_budget_bytes is not UNSET)
    )
    for number in range(0 if block.initially != "absent" else 1, len(writers) + 1):
        ratios[0][name_of(number)] = _over(linked[0], block.offload_ns)
        if number == 0 and held:
            continue
        ready = model.ready(writers[number - 1]) if number else -1
        if block.offload_ns is None:
            if number == 0:
                model.column(q(0, -1), whole=whole)
            continue
        for j in range(ready, last + 1):
            model.column(q(number, j), whole=whole and j < 0)
            if j > ready:
                model.row("rising", [(q(number, j), 1.0), (q(number, j - 1), -1.0)], 0.0)  # (7)
            if j >= 0:
                out[j] += [(q(number, j), load), (q(number, j - 1), -load)]
    read = number_at(k - 1)
    if reads and not (read == 0 and held):
        for j in range(model.soonest(k), last + 1):
            model.row("host reads", [(q(read, j), 1.0), (("H", k, j), -1.0)], 0.0)  # (46)
    after = next((until for u, until in gaps if u == k), None)
    z: Name = ("lambda", k)
    if after is not None and not writes:
        z = ("z", b)
        model.column(z)
        model.row("away", [(("lambda", k), 1.0), (z, -1.0)], 0.0)  # (47)
    at_first = [(("x", first_name, 0, -1), 1.0)]
    if after is not None:
        begin, end = 2 * model.before(k), 2 * model.before(after)
        if writes:
            before = next((u for u, until in gaps if until == k), None)
            first = 0 if before is None else 2 * model.before(before, with_it=True)
            begin = max(model.soonest(k), first)
        for j in range(begin, end + 1) if block.prefetch_ns is not None else ():
            model.column(("alpha", first_name, j))
            back[j] += [(("alpha", first_name, j), rate), (("alpha", first_name, j - 1), -rate)]
            if j > begin:
                steps = [(("alpha", first_name, j), 1.0), (("alpha", first_name, j - 1), -1.0)]
                model.row("arriving", steps, 0.0)  # (48)
            if writes:
                model.row("made", [(("H", k, j), 1.0), (("alpha", first_name, j), -1.0)], 0.0)  # (49)
    for g, (u, until) in enumerate(gaps):
        first = -1 if carried and u == -1 else 2 * model.before(u, with_it=True)
        instants = range(first, 2 * model.before(until))
        if block.prefetch_ns is not None:
            for t in instants:
                model.column(("rho", first_name, g, t))
                if t > first:
                    steps = [(("rho", first_name, g, t - 1), 1.0), (("rho", first_name, g, t), -1.0)]
                    model.row("falling", steps, 0.0)  # (8)
                back[t + 1] += [(("rho", first_name, g, t), rate), (("rho", first_name, g, t + 1), -rate)]
            if u == -1 and block.initially == "host":
                model.column(("rho", first_name, "b"))
                back[0] += [(("rho", first_name, "b"), rate), (("rho", first_name, g, 0), -rate)]
                away = [(z, 1.0)] if until == k else []
                model.row("loads", [(("rho", first_name, "b"), 1.0), *away], 1.0)  # (50)
                if instants:
                    steps = [(("rho", first_name, "b"), 1.0), (("rho", first_name, g, 0), -1.0)]
                    model.row("later", steps, 0.0)
        number = number_at(u)
        for t in instants:
            x: Name = ("x", first_name, g, t)
            model.column(x, whole=whole)
            in_memory[t].append((x, -size))
            still = [(x, -1.0), (("rho", first_name, g, t), 1.0)]
            still += at_first if carried and until == n else []
            still += [(z, 1.0)] if k in (u, until) else []
            if u == k or (until == k and writes):
                still.append((("alpha", first_name, t), -1.0))
            model.row("still", still, 0.0)  # (9)
            made = writes and number == number_at(k)
            if not (number == 0 and held):
                gone = [(x, -1.0), (q(number, t), 1.0), *([(("lambda", k), 1.0)] if made else [])]
                model.row("gone", gone, 0.0)  # (10)
            if made and u == k and reads and not (read == 0 and held):
                model.row("gone", [(x, -1.0), (q(number, t), 1.0), (q(read, t), 1.0)], 0.0)
            if marks[-1] == k and block.finally_ != "host":
                of_host[t].append((("H", k, t), -size))
            if u == k and not reads:
                of_host[t] += [(("lambda", k), -size), (("H", k, t), size)]
    if after is not None:
        arrived = [(("alpha", first_name, 2 * model.before(after)), 1.0), (z, -1.0)]
        model.row("arrived", [*arrived, *(at_first if carried and after == n else [])], 0.0)  # (48)
    final = len(writers)
    there = [(("H", k, last), 1.0)] if final and writers[-1] == k else []
    if final and block.finally_ == "host":
        model.row("ends there", [(q(final, last), 1.0), *there], 1.0)  # (51)
    if carried:
        ends[first_name] = (first_name, block.bytes)
        if final:
            model.row("saved", [(q(final, last), 1.0), *there, (q(0, -1), -1.0)], 0.0)  # (38)


def _both_ends(model: Rows, blocks: Iterable[int], ends: dict[Any, tuple[Any, float]]) -> None:
    """(39) and (40)."""
    instance = model.instance
    if not ends:
        return
    used = {b for task in instance.tasks for b in task.blocks}
    kept = begun = ended = 0
    for b in blocks:
        block = instance.blocks[b]
        if (block.initially == "carried" and b in used) or block.finally_ == "device":
            kept += block.bytes
        if block.initially == "host" and (b in used or block.finally_ != "anywhere"):
            begun += block.bytes
        if block.finally_ == "host":
            ended += block.bytes
    away = [(("x", v, 0, -1), -size / model.size) for v, size in ends.values()]
    model.row("both ends", away, high=(instance.pool_bytes - kept) / model.size)
    if instance.host_budget_bytes is not UNSET:
        held = [(("q", v, -1), size / model.size) for v, size in ends.values()]
        room = instance.host_budget_bytes - max(begun, ended)
        model.row("host at both ends", held, high=room / model.size)


def _versions(model: Rows, blocks: Iterable[int]) -> list[Version]:
    versions = []
    for b in sorted(blocks):
        block, writers = model.instance.blocks[b], model.writers(b)
        carried = block.initially == "carried"
        if carried and not model.is_away(b):
            continue
        gaps: dict[int, list[Gap]] = defaultdict(list)
        for u, gap in model.stays(b):
            gaps[sum(writer <= u for writer in writers)].append(gap)
        final = len(writers) if carried or block.finally_ == "host" else 0
        for number in sorted({*gaps, *([final] if final else [])}):
            ready = model.ready(writers[number - 1]) if number else None
            if carried and number == 0 and (writers or model.instance.host_budget_bytes is not UNSET):
                ready = -1
            last = final > 0 and number == final
            times = block.offload_ns, block.prefetch_ns
            at_an_end = b if carried and number in (0, len(writers)) else None
            same = last and not carried, at_an_end, last and carried
            versions.append(
                Version(block.bytes, *times, ready, tuple(gaps[number]), *same, linked=model.linked(b))
            )
    return versions


def _added_up(versions: list[Version]) -> list[Version]:
    if not versions:
        return []
    largest = max(versions, key=lambda version: version.size)

    def pace(time: float | None, size: float, other: float | None) -> int | None:
        if time is None:
            return None
        if not time or not other:
            return -40
        return max(round(math.log(time * largest.size / (other * size)) / math.log(1.1)), -40)

    def kind(v: Version) -> Hashable:
        paces = pace(v.offload, v.size, largest.offload), pace(v.prefetch, v.size, largest.prefetch)
        return v.ready, v.gaps, v.leaves, v.saved, paces

    groups: dict[Hashable, list[Version]] = defaultdict(list)
    for v in versions:
        both = [kind(w) for w in versions if w.carried == v.carried] if v.carried is not None else []
        groups[kind(v), tuple(both)].append(v)
    added = []
    for group in groups.values():
        one, size = group[0], sum(v.size for v in group)
        out = None if one.offload is None else size * min((v.offload or 0) / v.size for v in group)
        back = None if one.prefetch is None else size * min((v.prefetch or 0) / v.size for v in group)
        first, second = (
            [min(v.linked[way][i] / v.size for v in group) * size for i in range(3)] for way in (0, 1)
        )
        same = one.ready, one.gaps, one.leaves, one.carried, one.saved
        added.append(Version(size, out, back, *same, (tuple(first), tuple(second))))
    return added


def _single(model: Rows, v: int, version: Version, in_memory: Terms, out: Terms, back: Terms) -> None:
    """(11)."""
    (gap,) = version.gaps
    ready = version.ready or 0
    for t in range(gap.first, gap.last + 1):
        model.column(("x", v, t))
        in_memory[t].append((("x", v, t), -version.size / model.size))
        model.column(("h", v, t + 1))
        back[t + 1].append((("h", v, t + 1), (version.prefetch or 0) / model.ns))
    for j in range(ready, gap.last + 1):
        model.column(("u", v, j))
        out[j].append((("u", v, j), (version.offload or 0) / model.ns))
    for j in range(gap.first, gap.last + 2):
        leaving = range(j + 1) if j == gap.first else range(j, j + 1)
        terms = [(("x", v, j), 1.0), (("x", v, j - 1), -1.0), (("h", v, j), 1.0)]
        model.row("balance", [*terms, *((("u", v, other), -1.0) for other in leaving)], 0.0, 0.0)


def _unbroken(
    model: Rows, versions: list[Version], copies: list[tuple[str, Name, list[int], float]], share: float
) -> None:
    """(12) to (20)."""
    last = 2 * model.m
    longest = max((float(time or 0) for v in versions for time in (v.offload, v.prefetch)), default=0.0)
    engines = [["out", "back"]] if model.instance.engines == "single" else [["out"], ["back"]]
    for kinds in engines:
        mine = [copy for copy in copies if copy[0] in kinds]
        under_way: dict[int, list[tuple[Name, float]]] = defaultdict(list)
        throughout: dict[int, list[tuple[Name, float]]] = defaultdict(list)
        for j in range(last + 1):
            model.column(("Z", kinds[0], j))
        for kind, name, instants, time in mine:
            index = name if isinstance(name, tuple) else (name,)
            symbol = ("q" if kind == "out" else "rho", *index)
            sign, rest = (1.0, 0.0) if kind == "out" else (-1.0, 1.0)
            is_long = time > share * longest
            for t in instants if is_long else ():
                model.column(("b", kind, name, t), whole=True)
                model.column(("f", kind, name, t), whole=True)
                under_way[t] += [(("b", kind, name, t), 1.0), (("f", kind, name, t), -1.0)]
                model.row("begun", [(("b", kind, name, t), 1.0), ((*symbol, t), -sign)], rest)  # (15)
                model.row("done", [(("f", kind, name, t), 1.0), ((*symbol, t), -sign)], high=rest)  # (16)
            for t in instants[1:] if is_long else ():
                for once in ("b", "f"):  # (17)
                    model.row("once", [((once, kind, name, t), 1.0), ((once, kind, name, t - 1), -1.0)], 0.0)
                model.column(("z", kind, name, t))
                throughout[t].append((("z", kind, name, t), 1.0))
                begun, done = ("b", kind, name, t - 1), ("f", kind, name, t)
                model.row("alone", [(("z", kind, name, t), 1.0), (begun, -1.0), (done, 1.0)], 0.0)  # (18)
            for j in [t for t in instants if t >= 0] if kind == "out" else [t + 1 for t in instants]:  # (14)
                moves = [((*symbol, j), sign), ((*symbol, j - 1), -sign)]
                model.row(
                    "moved", [*moves, (("Z", kinds[0], j), 1.0), (("z", kind, name, j), -1.0)], high=1.0
                )
        for j in range(last + 1):
            model.row("under way", under_way[j], high=1.0)  # (12)
            model.row("throughout", [*throughout[j], (("Z", kinds[0], j), -1.0)], 0.0, 0.0)  # (13)
    at_first: dict[int | None, int] = {}
    for v, version in enumerate(versions):
        at_first.setdefault(version.carried, v)
        for g, gap in enumerate(version.gaps if version.prefetch is not None else ()):
            away = [(("x", at_first[version.carried], 0, -1), -1.0)] if gap.is_last else []
            for t in range(gap.first, gap.last + 1):
                absent = (("x", v, g, t), 1.0)
                if ("b", "back", (v, g), t) in model.columns:
                    model.row("returns", [absent, (("b", "back", (v, g), t), 1.0), *away], high=1.0)  # (19)
                if ("f", "out", v, t) in model.columns:
                    model.row("left", [absent, (("f", "out", v, t), -1.0)], high=0.0)  # (20)


def _windows(model: Rows, windows: Sequence[tuple[int, int, int]]) -> None:
    """(21) to (24)."""
    if not windows:
        return
    n, m, checkpoints = len(model.instance.tasks), model.m, model.checkpoints
    marks = sorted({0, n, *(c + 1 for c in checkpoints), *(end for window in windows for end in window[:2])})
    for p in marks:
        model.column(("E", p), high=math.inf)
    for p, other in pairwise(marks):
        model.row("apart", [(("E", other), 1.0), (("E", p), -1.0)], model.least(other) - model.least(p))
    ends_last = m > 0 and checkpoints[-1] == n - 1
    for i, c in enumerate(checkpoints):
        after = [(("delta", 2 * m), -1.0)] if ends_last and i == m - 1 else []
        since = checkpoints[i - 1] + 1 if i else 0
        run = [(("delta", 2 * i + 1), -1.0), *after]
        both = [(("E", c + 1), 1.0), (("E", since), -1.0), (("delta", 2 * i), -1.0), *run]
        model.row("ends", both, 0.0, 0.0)
        p = max(mark for mark in marks if mark <= c)
        model.row("begins", [(("E", c + 1), 1.0), (("E", p), -1.0), *run], model.least(c) - model.least(p))
    if not ends_last:
        since = checkpoints[-1] + 1 if m else 0
        model.row("ends", [(("E", n), 1.0), (("E", since), -1.0), (("delta", 2 * m), -1.0)], 0.0, 0.0)
    for first, until, proven in windows:
        model.row("windows", [(("E", until), 1.0), (("E", first), -1.0)], proven / model.ns)


def with_second_runs(
    instance: Instance,
    checkpoints: Sequence[int],
    integrality: str,
    ns: float,
    size: float,
    *,
    between: bool = False,
) -> Rows:
    """FLOW with second runs, of (1), (2), (4) to (7), (30) to (36), (41), (42), (52) to (59), (61), (62)."""
    given, instance = instance, _least(instance)
    model = Rows(instance, checkpoints, ns, size, given)
    n, m = len(instance.tasks), len(checkpoints)
    lengths = model.lengths([1.0] * (2 * m + 1), [1.0] * (2 * m + 1))
    model.choices(integrality != "none")
    again = _second_runs(model)
    for k, j in sorted(again):
        model.column(("zeta", k, j), whole=integrality != "none")
    for j, length in enumerate(lengths):  # (30)
        runs = [(("zeta", k, j), model.least(k) - model.least(k + 1)) for k in range(n)]
        run = model.time_of(j // 2) if j % 2 else []
        model.row("work", [(("delta", j), 1.0), *runs, *run], length)
    in_memory: Terms = defaultdict(list)
    out: Terms = defaultdict(list)
    back: Terms = defaultdict(list)
    for b, block in enumerate(instance.blocks):
        writers = model.writers(b)
        for number in range(0 if block.initially != "absent" else 1, len(writers) + 1):
            _version_with_second_runs(model, b, number, again, integrality == "all", in_memory, out, back)
    for t in range(0, 2 * m, 2):
        _survival(model, t, again)
    if between:
        for j in range(2, 2 * m, 2):
            _room_between(model, j, again)
    for t in range(2 * m):
        room = (instance.pool_bytes - model.footprint(checkpoints[t // 2])) / size
        model.row("memory", [*model.workspace_of(t // 2), *in_memory[t]], high=room)
    for j in range(2 * m + 1):
        length = (("delta", j), -1.0)
        if instance.engines == "single":
            model.row("out", [*out[j], *back[j], length], high=0.0)
        else:
            model.row("out", [*out[j], length], high=0.0)
            model.row("back", [*back[j], length], high=0.0)
    ratios: tuple[dict[Any, Passing], dict[Any, Passing]] = ({}, {})
    for b, block in enumerate(instance.blocks):
        for number in range(len(model.writers(b)) + 1):
            for way, time in enumerate((block.offload_ns, block.prefetch_ns)):
                ratios[way][b, number] = _over(model.linked(b)[way], time)
    model.machine(lengths, (out, back), ratios, _may_run_again(model))
    return model


def _survival(model: Rows, t: int, again: set[tuple[int, int]]) -> None:
    """What is nowhere at the first instant of a checkpoint is made again."""
    instance, m, n = model.instance, model.m, len(model.instance.tasks)
    there = [
        b
        for b, block in enumerate(instance.blocks)
        if block.initially != "carried" and (("alpha", (b, 1), t) in model.columns)
    ]
    makers = {b: model.writers(b)[0] for b in there}
    lost = [
        b
        for b, k in makers.items()
        if b in instance.tasks[k].outputs and any(other == k and j > t for other, j in again)
    ]
    for b in lost:
        model.column(("omega", b, t), high=math.inf)
    for b in there:
        here = [(("alpha", (b, 1), t), 1.0), (("q", (b, 1), t), 1.0)]
        following = [*model.writers(b)[1:2], n][0]
        uses = [k for k in range(n) if makers[b] < k <= following and b in instance.tasks[k].blocks]
        ends = following == n and instance.blocks[b].finally_ in ("device", "host")
        if any(2 * model.before(k) + (k in model.checkpoints) > t for k in uses) or (ends and 2 * m > t):
            model.row("somewhere", [*here, (("omega", b, t), 1.0)], 1.0)  # (54)
        for made in lost:
            k = makers[made]
            if b in model.always_read(k) and sum(w < k for w in model.writers(b)) == 1:
                owed = [(("omega", b, t), 1.0), (("omega", made, t), -1.0)]
                model.row("lost", [*here, *owed], 0.0)  # (55)
        if b in lost:
            runs = [(("zeta", makers[b], j), 1.0) for j in range(t + 1, 2 * m + 1)]
            model.row("made again", [*runs, (("omega", b, t), -1.0)], 0.0)  # (56)


def _room_between(model: Rows, j: int, again: set[tuple[int, int]]) -> None:
    """What stays for the whole of an interval leaves room for each run in it."""
    instance, size = model.instance, model.size
    kept = {}
    for b in range(len(instance.blocks)):
        writers = model.writers(b)
        for v in ((b, number) for number in range(len(writers) + 1)):
            if ("pi", v, j - 1) in model.columns and ("pi", v, j) in model.columns:
                kept[v] = ("kappa", v, j)
                model.column(kept[v])
                at_ends = [(("pi", v, j - 1), -1.0), (("pi", v, j), -1.0)]
                again_there = v[1] == 1 and b in (model.given or instance).tasks[writers[0]].outputs
                made = [(("zeta", writers[0], j), 1.0)] if again_there else []
                model.row("kept", [(kept[v], 1.0), *made, *at_ends], -1.0)  # (61)
    before, after = model.checkpoints[j // 2 - 1 : j // 2 + 1]
    runs = [(k, False) for k in range(before + 1, after)] + [(k, True) for k, i in again if i == j]
    for k, second in runs:
        beside = [
            (name, instance.blocks[v[0]].bytes / size)
            for v, name in kept.items()
            if v[0] not in instance.tasks[k].blocks
        ]
        needs = model.footprint(k) + min(one.workspace_bytes for one in instance.tasks[k].algorithms)
        if beside:
            own = [(("zeta", k, j), needs / size)] if second else []
            room = instance.pool_bytes - (0 if second else needs)
            model.row("beside", [*beside, *own], high=room / size)  # (62)


def _may_run_again(model: Rows) -> set[tuple[int, int]]:
    """Tasks and intervals in which they may run again, of use or not."""
    instance, n = model.instance, len(model.instance.tasks)
    end = n if any(block.finally_ == "device" for block in instance.blocks) else n - 1
    pairs = set()
    for k, task in enumerate(instance.tasks):
        last = min([end, *(w for b in task.blocks for w in model.writers(b) if w > k)])
        if task.recomputable and not task.updates and last > k:
            pairs |= {(k, 2 * i) for i in range(model.before(k + 1), model.before(last) + 1)}
    return pairs


def _second_runs(model: Rows) -> set[tuple[int, int]]:
    """Y."""
    instance, n = model.instance, len(model.instance.tasks)
    given = model.given or instance
    every = [{b for a in task.algorithms for b in _reads(task, a)} for task in given.tasks]
    ends = [n if block.finally_ == "device" else -1 for block in instance.blocks]
    needed = [
        max([end, *(k for k in range(n) if b in every[k] or b in instance.tasks[k].blocks)])
        for b, end in enumerate(ends)
    ]
    last_use = [-1] * n
    for k in reversed(range(n)):
        task = instance.tasks[k]
        if task.recomputable:
            last_use[k] = max((needed[b] for b in given.tasks[k].outputs), default=-1)
            for b in every[k]:
                needed[b] = max(needed[b], last_use[k])
    pairs = set()
    for k, task in enumerate(instance.tasks):
        if not task.recomputable or task.updates:
            continue
        writes = [w for b in task.blocks for w in model.writers(b) if w > k]
        last = min([n if n in ends else n - 1, last_use[k], *writes])
        if last > k:
            pairs |= {(k, 2 * i) for i in range(model.before(k + 1), model.before(last) + 1)}
    return pairs


def _version_with_second_runs(
    model: Rows,
    b: int,
    number: int,
    again: set[tuple[int, int]],
    whole: bool,
    in_memory: Terms,
    out: Terms,
    back: Terms,
) -> None:
    instance, m, n = model.instance, model.m, len(model.instance.tasks)
    block, writers, v = instance.blocks[b], model.writers(b), (b, number)
    writer = writers[number - 1] if number else -1
    following = writers[number] if number < len(writers) else n
    is_last = number == len(writers)
    held = number == 0
    fresh = not held or block.initially in ("device", "carried")
    first = 0 if held else model.ready(writer)
    uses = [k for k in range(n) if writer < k <= following and b in instance.tasks[k].blocks]
    needs = {2 * model.before(k) + (k in model.checkpoints) for k in uses}
    touched = {
        t for k in uses if k in model.checkpoints for t in (2 * model.before(k), 2 * model.before(k) + 1)
    }
    if is_last and block.finally_ == "device":
        needs.add(2 * m)
    leaves = is_last and block.finally_ == "host" and not held
    readers = {
        (k, j) for k, j in again if b in model.always_read(k) and sum(w < k for w in writers) == number
    }
    chosen = model.choices_that_read(b, number)
    horizon = max([*needs, *(j for _, j in readers), *(2 * i + 2 for i, _ in chosen)], default=-1)
    made_by = writer if number == 1 and b in (model.given or instance).tasks[writer].outputs else None
    instants = range(first, horizon)
    for t in instants:
        low = float(t in touched)
        model.column(("pi", v, t), low, whole=whole)
        model.column(("alpha", v, t), low)
        model.row("present", [(("pi", v, t), 1.0), (("alpha", v, t), -1.0)], 0.0)  # (31)
        if t not in touched:
            in_memory[t].append((("pi", v, t), block.bytes / model.size))
    end = 2 * m if leaves else horizon
    outs = range(first, end + 1) if not held and block.offload_ns is not None else range(0)
    for j in outs:
        model.column(("q", v, j), float(leaves and j == end))
        rate = (block.offload_ns or 0) / model.ns
        out[j] += [(("q", v, j), rate), (("q", v, j - 1), -rate)]
    for j in outs[1:]:
        model.row("rising", [(("q", v, j), 1.0), (("q", v, j - 1), -1.0)], 0.0)  # (7)
    if block.prefetch_ns is not None and (held or outs):
        for j in range(first if held else first + 1, horizon + 1):
            model.column(("beta", v, j))
            back[j].append((("beta", v, j), block.prefetch_ns / model.ns))
            if not held:
                model.row("source", [(("q", v, j), 1.0), (("beta", v, j), -1.0)], 0.0)  # (32)

    makers = model.choices_that_make(b)
    for j, share in [*((t, "alpha") for t in instants[:1]), *((j, "q") for j in outs)]:
        if makers is not None:
            runs = [(("zeta", made_by, i), 1.0) for i in range(first, j + 1)]
            made = [*((name, 1.0) for name in makers), *runs]
            model.row("makers", [*made, ((share, v, j), -1.0)], 0.0)  # (59)

    def arrives(j: int) -> list[tuple[Name, float]]:
        return [(("alpha", v, j - 1), 1.0), (("beta", v, j), 1.0), (("zeta", made_by, j), 1.0)]

    for t in instants:
        if t > first or not fresh:
            model.row("valid", [*arrives(t), (("alpha", v, t), -1.0)], 0.0)  # (33)
    for j in needs:
        if j > first or not fresh:
            model.row("wanted", arrives(j), 1.0)  # (34)
    for k, j in readers:
        if j > first or not fresh:
            model.row("read", [*arrives(j), (("zeta", k, j), -1.0)], 0.0)  # (35)
    for t in instants if not held else ():
        later = [j for j in (*needs, *([2 * m] if leaves else [])) if j > t]
        if t not in touched and later:
            made = [(("zeta", made_by, j), 1.0) for j in range(t + 1, min(later) + 1)]
            model.row("absent", [(("pi", v, t), 1.0), (("q", v, t), 1.0), *made], 1.0)  # (36)
    for i, columns in chosen:
        run = [(name, -1.0) for name in columns]
        for t in (2 * i, 2 * i + 1):
            model.row("chosen", [(("alpha", v, t), 1.0), *run], 0.0)  # (57)
        since = max([first, *(j for j in needs if j < 2 * i)])
        for t in range(since, 2 * i) if not held else ():
            made = [(("zeta", made_by, j), 1.0) for j in range(t + 1, 2 * i + 1)]
            model.row("until chosen", [(("pi", v, t), 1.0), (("q", v, t), 1.0), *made, *run], 0.0)  # (58)


def several_gpus(
    instance: Instance, checkpoints: Sequence[int], integrality: str, ns: float, size: float
) -> Rows:
    """FLOW for several GPUs, of (1) to (11) and (27) to (29)."""
    alone = _on_bus_alone(instance)
    cluster = cluster_of(alone)
    model = flow(one_gpu(alone), checkpoints, integrality, ns, size)
    last, total = 2 * len(checkpoints), model.least(len(instance.tasks))
    families = ["out"] if instance.engines == "single" else ["out", "back"]
    rows = {family: [terms for name, terms, _, _ in model.rows if name == family] for family in families}
    gradients = cluster.gradients if cluster.gpus > 1 else ()
    makers = sorted({gradient.produced_by for gradient in gradients})
    ways = {k: own_passing_ns(cluster, [g for g in gradients if g.produced_by >= k]) / ns for k in makers}
    for k in makers:  # (27)
        model.row("way", [(("delta", j), 1.0) for j in range(model.ready(k), last + 1)], ways[k])
    moved: dict[tuple[str, int], int] = defaultdict(int)
    returns: dict[tuple[str, int], float] = {}
    for gradient in gradients if cluster.joins_on_host else ():
        moved["out", gradient.produced_by] += gradient.offload_ns
        last_use = max(gradient.produced_by, *gradient.used_by, -1)
        moved["back", last_use] += gradient.prefetch_ns
        begins = model.least(gradient.produced_by + 1) + added_ns(cluster, gradient) / ns
        returns["back", last_use] = max(
            min(returns.get(("back", last_use), math.inf), begins), model.least(last_use + 1)
        )
    for (way, k), time in moved.items():  # (28)
        intervals = range(model.ready(k), last + 1)
        for j in intervals:
            model.column(("zeta", way, k, j), high=math.inf)
            rows[way if way in rows else "out"][j]["zeta", way, k, j] = 1.0
        model.row("gradients", [(("zeta", way, k, j), 1.0) for j in intervals], time / ns)
    if integrality != "none":
        return model

    def least_before(t: int) -> float:
        return total if t == last else model.least(checkpoints[t // 2] + t % 2)

    def least_after(t: int) -> float:
        if t == last:
            return 0.0
        later = [model.least(k + 1) + ways[k] for k in makers if k >= checkpoints[t // 2]]
        return max([total, *later]) - least_before(t)

    for load, engine in _loads(model, alone):  # (29)
        whole = [(("delta", j), -1.0) for j in range(last + 1)]
        for t in np.unique(np.linspace(0, last, 24).astype(int)).tolist() if load > 1 else ():
            head = least_before(t)
            late = [
                {name: value for name, value in row.items() if returns.get(name[1:3], -1.0) >= head}
                for row in engine[: t + 1]
            ]
            for side, spare in ((engine[: t + 1], least_after(t)), ([*late, *engine[t + 1 :]], head)):
                terms = [(name, load * value) for row in side for name, value in row.items()]
                model.row("bus", [*((n, v) for n, v in terms if n[0] != "delta"), *whole], high=-spare)
    return model


def one_and_others(instance: Instance, checkpoints: Sequence[int], at: Reach, ns: float, size: float) -> Rows:
    """A GPU of a node and the mean of the others, of (1) to (11) and (27) to (29), with (60)."""
    mean = several_gpus(instance, checkpoints, "none", ns, size)
    count, last = cluster_of(instance).node_gpus, 2 * len(checkpoints)
    pair = Rows(mean.instance, checkpoints, ns, size, mean.given)
    parts = {"one": 1 / count, "others": 1 - 1 / count}
    for part in parts:
        for name, (low, high, _, whole) in mean.columns.items():
            pair.column((part, *name), low, high, whole=whole)
    pair.column(("iteration",), high=math.inf, cost=1.0)
    alone = [row for row in mean.rows if row[0] != "bus"]
    for part in parts:
        for family, row, low, high in alone:
            pair.row(family, [((part, *name), value) for name, value in row.items()], low, high)
    whole = (("iteration",), -1.0)

    def shares(terms: Iterable[tuple[Name, float]]) -> list[tuple[Name, float]]:
        listed = list(terms)
        return [((part, *n), share * v) for part, share in parts.items() for n, v in listed]

    for part in parts:
        pair.row("together", [*(((part, "delta", j), 1.0) for j in range(last + 1)), whole], high=0.0)
    for family, row, _, high in mean.rows:
        if family == "bus":
            terms = shares((name, value) for name, value in row.items() if name[0] != "delta")
            pair.row("bus", [*terms, whole], high=high)
    load, engine = _loads(mean, _on_bus_alone(instance))[at.engine]
    mine = [j for j in range(last + 1) if (j <= at.instant) == at.last]
    terms = shares((n, load * v) for j in mine for n, v in engine[j].items() if n[0] != "delta")
    ahead = [(("one", "delta", j), 1.0) for j in range(last + 1) if j not in mine]
    pair.row("reach", [*terms, *ahead, whole], high=0.0)
    return pair


def _loads(model: Rows, alone: Instance) -> list[tuple[float, list[dict[Name, float]]]]:
    """Per engine, nu and the left sides M of its rows."""
    cluster = cluster_of(alone)
    rate = cluster.bus_bytes_per_second / 1e9
    every = (*alone.blocks, *(cluster.gradients if cluster.gpus > 1 else ()))
    out = [(one.bytes, one.offload_ns) for one in every]
    back = [(one.bytes, one.prefetch_ns) for one in every]
    found = []
    for family, copies in (
        (("out", out + back),) if alone.engines == "single" else (("out", out), ("back", back))
    ):
        slowest = min((min(moves / time, rate) for moves, time in copies if time), default=0.0)
        rows = [terms for name, terms, _, _ in model.rows if name == family]
        found.append((cluster.node_gpus * slowest / rate, rows))
    return found


def _on_bus_alone(instance: Instance) -> Instance:
    """The same with copies that take no less than they do with the bus to themselves."""
    cluster = cluster_of(instance)

    def slower(one: Block | Gradient) -> dict[str, int | None]:
        passing = -(-one.bytes * 10**9 // cluster.bus_bytes_per_second)
        times = {"offload_ns": one.offload_ns, "prefetch_ns": one.prefetch_ns}
        return {way: max(time, passing - 1) if time else time for way, time in times.items()}

    blocks = tuple(replace(block, **slower(block)) for block in instance.blocks)
    gradients = tuple(replace(gradient, **slower(gradient)) for gradient in cluster.gradients)
    return replace(instance, blocks=blocks, cluster=replace(cluster, gradients=gradients))


def patterns_of(linear: LinearModel, rows: RowFamilies) -> dict[str, Counter[tuple[float, ...]]]:
    """What `Rows.patterns` gives, of a model of the library."""
    found: dict[str, Counter[tuple[float, ...]]] = {}
    entries: dict[int, list[float]] = defaultdict(list)
    for row, value in zip(linear.rows.tolist(), linear.values.tolist(), strict=True):
        if abs(value) > 1e-12:
            entries[row].append(value)
    for family in rows:
        found[family] = Counter(
            tuple(
                round(float(value), 4) + 0.0
                for value in (linear.row_lower[row], linear.row_upper[row], *sorted(entries[row]))
            )
            for row in rows[family].tolist()
        )
    return {family: count for family, count in found.items() if count}
