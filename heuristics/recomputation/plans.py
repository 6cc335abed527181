"""A search over plans that judges thousands in the time that a search for transfers takes for one.

Where nothing can be copied, a plan says all. What a run makes stays from that run to its last use before it
is made again, and each run takes the fastest algorithm that has room beside what stays. So the time of a
plan, and the bytes at each of its runs, are sums. Only bytes are counted, as in memory without addresses.

Where blocks can be copied, a plan has second runs and the blocks that are away. Such a block leaves after
each use before a longer gap, and comes back for the next one. One rule says when, in two passes over the
runs. Back in time, each block comes back as late as its copy and those of other blocks let it, and compute
waits where memory is too small for what comes. Forward in time, blocks leave one after the other, at once
where the host has the bytes, and a run waits until it has room. A gap that is too short for both copies has
none. A search for transfers goes on from the best plan.

Plans change by simulated annealing, in cycles of growing length. They begin with the best plan so far, and
with nothing that runs again or is away, in turn: few changes lead from a plan to one that is quite different.
Where a relaxation suggests a plan, every second cycle begins with that, at a lower temperature, whether or
not it has enough memory: it is often a few changes away from a plan that is better than all known. A change
leaves out second runs, moves one to another stage, replaces a stay by a second run, with the runs of
producers of its inputs to a random depth, or lets blocks be away or stay. Bytes without room count with a
weight that grows while plans have too little memory, and falls while they have enough. Tasks may have several
ways to run, which read, make or overwrite different blocks: a change may let a task, or some neighbours, run
in another way.

Importing this module imports Numba.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..search.columns import DEVICE, HOST, Columns, Integers, integers
from .annealing import (
    AT,
    BEST,
    GONE,
    RUNS,
    TIME,
    Copies,
    Graph,
    Program,
    State,
    anneal,
    judge,
    keep,
    set_off,
)
from .reruns import Plan
from .unrolling import Absence, Overwrites

_ROOM = 8
"""Number of second runs that there is room for, per task; a change that needs more is not made."""

_CHUNK = 500_000
"""Number of runs that are judged in one call of compiled code: a tenth of a second, which nothing stops."""

_FIRST_CYCLE = 400
"""Number of plans in the first cycle, per task that may run again."""

_GROWTH = 1.5
"""How much longer a cycle is than the one before."""

_WEIGHT = 10
"""Weight of as many bytes without room as the pool has, in mean durations of tasks, at the start."""

_WARM = 0.3, 0.6
"""Parts of a cycle that are left out, in turn, where it begins with a suggested plan."""

_CYCLES = 8
"""Number of cycles without a better plan after which the search is done."""


class Way(NamedTuple):
    """A way in which a task may run.

    Attributes
    ----------
    touches
        The blocks that it touches, each with how (`INPUT`, `OUTPUT`).
    algorithms
        Duration and workspace of each of its algorithms.
    over
        The inputs whose places outputs take over where nothing needs them behind the run.
    """

    touches: tuple[tuple[int, int], ...]
    algorithms: tuple[tuple[int, int], ...]
    over: frozenset[int] = frozenset()


_AS_IT_IS: Mapping[int, Sequence[tuple[Way, Way]]] = MappingProxyType({})
_FIRST: Mapping[int, int] = MappingProxyType({})


class _Suggestion(NamedTuple):
    """A plan to begin cycles with: its second runs, the ways of tasks, and the blocks that are away."""

    plan: Plan
    ways: Mapping[int, int]
    away: Collection[int]


class PlanSearch:
    """A search over plans that can be stopped and continued.

    Parameters
    ----------
    columns
        The instance.
    maker
        Per block, the task that may make it again, or -1.
    last
        Per task, the last stage in which it may run again.
    seed
        Seed of the random decisions.
    overwrites
        The outputs that take over places of inputs where nothing needs these behind the run.
    ways
        Of each task that does not run as the columns say: the ways in which it may. Each is a pair: the first
        makes the least, and the second comes in its place where something reads what the first leaves out.

    Attributes
    ----------
    time_ns
        Time of the best plan so far; None while none has enough memory.
    """

    def __init__(
        self,
        columns: Columns,
        maker: Integers,
        last: Integers,
        seed: int,
        overwrites: Overwrites,
        ways: Mapping[int, Sequence[tuple[Way, Way]]] = _AS_IT_IS,
    ) -> None:
        unit, tasks = columns.unit, columns.length

        def rounded(size: Integers) -> Integers:
            return -(-size // unit) * unit

        self._unit, self._pool = unit, max(columns.pool, 0)
        again = np.flatnonzero(last > np.arange(tasks))
        over = np.zeros(len(columns.touches.block), dtype=bool)
        over[[int(columns.touches.begin[k]) + e for k, own in overwrites.items() for _, e in own]] = True
        table = _with_ways(columns, ways) if ways else _as_it_is(columns, over)
        self._graph = Graph(
            pool=self._pool // unit * unit,
            length=tasks,
            size=rounded(columns.size),
            at_start=(columns.first == DEVICE) | (columns.first == HOST),
            at_end=columns.last == DEVICE,
            maker=np.where(maker >= 0, maker, -1),
            last=last,
            leave=columns.times[:, 0].copy(),
            back=columns.times[:, 1].copy(),
            on_host=columns.first == HOST,
            movable=_movable(columns),
            tensor=columns.tensor,
            **table._replace(scratch=rounded(table.scratch))._asdict(),
        )
        duration, first = columns.algorithms[:, 0], np.cumsum(columns.choices) - columns.choices
        quickest = np.minimum.reduceat(duration, first) if tasks else duration
        self._mean = max(float(quickest[again].mean()) if len(again) else 1.0, 1.0)
        self._length = _FIRST_CYCLE * max(len(again), 1)
        self._calm, self._cycles = 0, 0
        self._suggested: _Suggestion | None = None
        room = _ROOM * max(len(again), 1)
        most = tasks + room + 1
        degree = int(np.diff(table.begin).max(initial=0))
        touches = len(table.block) + room * degree + len(columns.size)

        def zeros(length: int) -> Integers:
            return np.zeros(length, np.int64)

        def none() -> NDArray[np.bool_]:
            return np.zeros(len(columns.size), np.bool_)

        def program() -> Program:
            return Program(zeros(most), zeros(most), zeros(most), np.zeros(most, np.bool_))

        self._state = State(
            plan=zeros(room),
            trial=zeros(room),
            best=zeros(room),
            chosen=table.ways[:-1].copy(),
            tried=table.ways[:-1].copy(),
            kept=table.ways[:-1].copy(),
            way=zeros(tasks),
            read=none(),
            current=program(),
            judged=program(),
            until=zeros(len(columns.size)),
            stays=np.zeros((touches, 4), np.int64),
            stack=zeros(room),
            counts=zeros(9),
            costs=np.array([0.0, _WEIGHT * self._mean / max(self._graph.pool, 1)]),
            random=np.array([seed], np.uint64),
            away=none(),
            sent=none(),
            gone=none(),
            copies=Copies(
                gaps=np.zeros((touches, 8), np.int64),
                ahead=zeros(len(columns.size)),
                on_host=none(),
                at_use=zeros(most + 1),
                at_last=zeros(most + 1),
                queue=zeros(touches),
                wait=zeros(most + 1),
            ),
        )
        self._state.counts[TIME] = -1
        set_off(self._graph, self._state, 0)

    @property
    def time_ns(self) -> int | None:
        """Time of the best plan so far, or None."""
        found = int(self._state.counts[TIME])
        return None if found < 0 else found

    @property
    def done(self) -> bool:
        """Whether no cycle has found a better plan for long."""
        return self._calm >= _CYCLES

    def best(self) -> Plan:
        """Return the best plan; nothing runs again in it while there is none."""
        found = self._state.best[: self._state.counts[BEST]].tolist()
        return frozenset((run % self._graph.length, run // self._graph.length) for run in found)

    def ways(self) -> dict[int, int]:
        """Return the ways of the best plan, by number, of the tasks that have several."""
        graph = self._graph
        return {k: int(self._state.kept[k] - graph.ways[k]) for k in graph.choosing.tolist()}

    def absences(self) -> list[Absence]:
        """Return the gaps of the best plan in which blocks are away, in the order in which they leave."""
        state = self._state
        known = judge(self._graph, state, self._try_best())
        self._restore()
        gaps = state.copies.gaps[:known][::-1]
        return [Absence(*gap) for gap in gaps[gaps[:, GONE] > 0, : len(Absence._fields)].tolist()]

    def offer(self, plan: Plan, ways: Mapping[int, int] = _FIRST, away: Collection[int] = ()) -> None:
        """Begin cycles with a plan, whose second runs each may be there, if it is better than all so far.

        `ways` has numbers of ways by task; others have their first one. `away` has the blocks that are away.
        """
        if len(plan) <= len(self._state.trial):
            self._try(_Suggestion(plan, ways, away))
            if keep(self._graph, self._state, len(plan)):
                self._calm = 0
            self._restore()

    def suggest(self, plan: Plan, ways: Mapping[int, int] = _FIRST, away: Collection[int] = ()) -> None:
        """Offer a plan, and begin every second cycle with it from now on, even where memory is too small."""
        self.offer(plan, ways, away)
        if len(plan) <= len(self._state.trial):
            self._suggested = _Suggestion(plan, ways, away)
            self._calm = 0

    def _try(self, suggestion: _Suggestion) -> None:
        """Put a plan where the next one to judge is."""
        state, graph = self._state, self._graph
        state.trial[: len(suggestion.plan)] = sorted(s * graph.length + k for k, s in suggestion.plan)
        state.tried[:] = graph.ways[:-1]
        for k, way in suggestion.ways.items():
            state.tried[k] += way
        state.sent[:] = False
        state.sent[graph.movable] = np.isin(graph.movable, [*suggestion.away])

    def _try_best(self) -> int:
        """Put the best plan where the next one to judge is; return the number of its second runs."""
        state = self._state
        count = int(state.counts[BEST])
        state.trial[:count] = state.best[:count]
        state.tried[:] = state.kept
        state.sent[:] = state.gone
        return count

    def _restore(self) -> None:
        """Let what is tried next be as the current plan has it."""
        self._state.tried[:] = self._state.chosen
        self._state.sent[:] = self._state.away

    def keep_to(self, part: float) -> None:
        """Go on in a part of the pool, from 0 to 1; plans that were found in another count no longer."""
        self._graph = self._graph._replace(pool=int(part * self._pool) // self._unit * self._unit)
        count = self._try_best()
        self._state.counts[[TIME, AT]] = -1, 0
        self._calm = 0
        set_off(self._graph, self._state, count)

    def run(self, seconds: float = math.inf, work: int = 100_000, *, cycle: bool = False) -> None:
        """Continue until so many runs have been judged, or some seconds have passed.

        With `cycle`, also until a cycle has ended: before its end, plans are seldom good.
        """
        until, cycles = time.monotonic() + seconds, self._cycles
        while (work > 0 or (cycle and self._cycles == cycles)) and time.monotonic() < until:
            state = self._state
            known = state.counts[TIME]
            share = (min(work, _CHUNK) if work > 0 else _CHUNK) // int(state.counts[RUNS]) + 1
            plans = min(share, self._length - int(state.counts[AT]))
            work -= anneal(self._graph, state, plans, self._length, self._mean)
            if state.counts[TIME] != known:
                self._calm = -1
            if state.counts[AT] >= self._length:
                self._calm += 1
                self._length = int(_GROWTH * self._length)
                self._begin()

    def _begin(self) -> None:
        """Begin a cycle: with the best plan and with nothing that runs again in turn, or as was suggested."""
        state = self._state
        self._cycles += 1
        number, odd = divmod(self._cycles, 2)
        state.counts[AT] = 0
        if odd and self._suggested is not None:
            self._try(self._suggested)
            count = len(self._suggested.plan)
            state.counts[AT] = int(_WARM[number % 2] * self._length)
        else:
            count = self._try_best()
            if not (odd if self._suggested is None else number % 2) or state.counts[TIME] < 0:
                count, state.sent[:] = 0, False
        set_off(self._graph, state, count)


class _Table(NamedTuple):
    """What a `Graph` has of the ways of tasks."""

    begin: Integers
    block: Integers
    kind: Integers
    over: NDArray[np.bool_]
    first: Integers
    time: Integers
    scratch: Integers
    choosing: Integers
    ways: Integers
    fuller: Integers


def _as_it_is(columns: Columns, over: NDArray[np.bool_]) -> _Table:
    """Return one way for each task."""
    duration, scratch = np.ascontiguousarray(columns.algorithms.T)
    first, ways = np.append(0, np.cumsum(columns.choices)), np.arange(columns.length + 1)
    touches = columns.touches
    return _Table(
        *(touches.begin, touches.block, touches.kind, over),
        *(first, duration, scratch, ways[:0], ways, ways[:-1]),
    )


def _with_ways(columns: Columns, ways: Mapping[int, Sequence[tuple[Way, Way]]]) -> _Table:
    """Return the ways of all tasks in order, and then those that come in the place of others."""
    touches, first = columns.touches, np.append(0, np.cumsum(columns.choices))
    least: list[Way] = []
    others: list[Way] = []
    fuller: list[int | None] = []
    begins = [0]
    for k in range(columns.length):
        at, own = slice(*touches.begin[k : k + 2].tolist()), slice(*first[k : k + 2].tolist())
        marks = zip(touches.block[at].tolist(), touches.kind[at].tolist(), strict=True)
        plain = Way(tuple(marks), tuple((a, b) for a, b in columns.algorithms[own].tolist()))
        for one, other in ways.get(k, [(plain, plain)]):
            fuller.append(None if other == one else len(others))
            least.append(one)
            others += [] if other == one else [other]
        begins.append(len(least))
    every = [*least, *others]
    marked = integers([mark for way in every for mark in way.touches], 2)
    algorithms = integers([one for way in every for one in way.algorithms], 2)
    return _Table(
        begin=np.append(0, np.cumsum([len(way.touches) for way in every])),
        block=marked[:, 0].copy(),
        kind=marked[:, 1].copy(),
        over=np.array([d in way.over for way in every for d, _ in way.touches], dtype=bool),
        first=np.append(0, np.cumsum([len(way.algorithms) for way in every])),
        time=algorithms[:, 0].copy(),
        scratch=algorithms[:, 1].copy(),
        choosing=np.flatnonzero(np.diff(begins) > 1),
        ways=integers(begins),
        fuller=integers(
            [
                *(w if other is None else len(least) + other for w, other in enumerate(fuller)),
                *range(len(least), len(every)),
            ]
        ),
    )


def _movable(columns: Columns) -> Integers:
    """Return the blocks that may leave and come back."""
    leaves, returns = (columns.times[:, :2] >= 0).T
    return np.flatnonzero(leaves & returns)


def is_alone(columns: Columns) -> bool:
    """Return whether nothing of an instance can be copied, so that a plan says all."""
    on_host = (columns.first == HOST) | (columns.last == HOST)
    return not ((columns.times[:, :2] >= 0).any() or on_host.any() or columns.carried.any())
