"""The choice of checkpoints for the next model: tasks where memory is tight or the last solution fails.

FLOW sees neither memory between checkpoints nor when a block is written or needed inside an interval. So its
solution can be impossible there in two ways. A task may have more data in memory than fits. Bytes may leave
before they are written, or come back after they are used. Checkpoints at such tasks raise the bound.
Checkpoints without a price do not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice, pairwise, zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...heuristics.gaps import Gap
from ...heuristics.recomputation.reruns import Plan, unrolled
from ...instances.instance import Instance
from ...instances.memory import fastest, footprint, live_bytes
from ..linear.model import LinearResult
from .model import FlowModel, PricedModel
from .versions import VersionColumns, stays

_PRICE = 1e-7
"""Dual value below which a checkpoint has no price; dual values of FLOW are of the order of one."""


class Checkpoints:
    """The choice of checkpoints for a sequence of models of an instance.

    Parameters
    ----------
    instance
        The instance; it has no recomputable tasks if `learn` is called, and some if `learn_with_reruns` is.
    hot
        Share of the first checkpoints that are at tasks where memory is tight.
    """

    def __init__(self, instance: Instance, hot: float = 0.5) -> None:
        self._instance, self._hot = instance, hot
        self._priced: list[int] = []
        self._failing: list[int] = []
        self._idle: dict[int, int] = {}
        self._courses: dict[Gap, _Course] = {}
        self._resting = np.zeros(0)

    def choose(self, count: int) -> list[int]:
        """Choose the checkpoints of the next model.

        The first checkpoints are at tasks where memory is tight. Later, checkpoints of the last model with a
        price come first, those with the highest price before the others. Tasks at which its solution fails
        follow, and then checkpoints without a price. Tasks before which a schedule stalls are not added for
        that reason: they replaced other tasks, and models of hundreds of tasks proved less.

        Parameters
        ----------
        count
            Number of checkpoints.
        """
        tasks = self._instance.tasks
        possible = [k for k, task in enumerate(tasks) if not task.may_run_on_host]
        if count >= len(possible):
            return possible
        ranked = dict.fromkeys((*self._priced, *self._failing, *self._idle))
        if len(ranked) < count:
            ranked |= dict.fromkeys(_by_heat(self._instance, count, self._hot))
        return sorted(islice((k for k in ranked if not tasks[k].may_run_on_host), count))

    def learn(self, model: FlowModel, result: LinearResult) -> None:
        """Store the prices of checkpoints, and the other tasks at which the solution fails."""
        if result.values is None:
            return
        if not self._courses:
            self._look()
        spots = np.array(model.checkpoints, dtype=np.int64)  # there may be none
        prices = np.ones(len(spots))
        engines = [np.ones(2 * len(spots) + 1)] * 2
        if result.duals is not None:
            duals = -result.duals
            engines = [duals[model.engine_rows[0]], duals[model.engine_rows[-1]]]
            prices = duals[model.memory_rows].reshape(-1, 2).max(axis=1)
            if len(model.host_rows):
                prices = np.maximum(prices, duals[model.host_rows].reshape(-1, 2).max(axis=1))
            for price in engines:
                prices = prices + np.abs(np.diff(price)).reshape(-1, 2).sum(axis=1)
        order = np.argsort(-prices, kind="stable")
        self._priced = spots[order[prices[order] > _PRICE]].tolist()
        self._note_idle(spots[prices <= _PRICE].tolist())
        full = self._overfull(model, result.values, spots)
        hasty = self._hasty(model, result.values, engines)
        ranked = chain.from_iterable(zip_longest(full, hasty))
        self._failing = list(dict.fromkeys(k for k in ranked if k is not None))

    def learn_with_reruns(
        self, model: PricedModel, versions: Mapping[tuple[int, int], VersionColumns], result: LinearResult
    ) -> None:
        """Store which checkpoints have a price of memory, and the other tasks where an LP has too much."""
        if result.values is None or result.duals is None:
            return
        if not self._courses:
            self._look()
        self._priced = dearest(model, result.duals)
        priced, spots = set(self._priced), np.array(model.checkpoints, dtype=np.int64)
        self._note_idle([k for k in model.checkpoints if k not in priced])
        relief = np.zeros(len(spots) + 1)
        for (d, _), columns in versions.items():
            absent = 1 - result.values[np.array(columns.present, dtype=np.int64)]
            inside = np.minimum(absent[:-1], absent[1:])
            instants = columns.first + np.arange(len(inside))
            between = instants % 2 == 1  # from the last instant of a checkpoint to the first of the next one
            stretch = (instants[between] + 1) // 2
            np.add.at(relief, stretch, self._instance.blocks[d].bytes * inside[between])
        self._failing = self._fullest(relief, spots)

    def _note_idle(self, unpriced: Iterable[int]) -> None:
        """Note the checkpoints without a price; those of several models in a row are the last."""
        since = {k: self._idle.get(k, 0) + 1 for k in unpriced}
        self._idle = dict(sorted(since.items(), key=lambda item: (item[1], item[0])))

    def _look(self) -> None:
        """Compute once which data is in memory when nothing leaves, and the ends of stays."""
        instance = self._instance
        change = np.zeros(len(instance.tasks) + 1)
        for d, block in enumerate(instance.blocks):
            for after, until in stays(instance, d):
                change[after + 1] += block.bytes
                change[until] -= block.bytes
                written = bisect_right(instance.writers[d], after)
                writer = instance.writers[d][written - 1] if written else None
                self._courses[d, after] = _Course(
                    block.bytes, writer, until, float(block.offload_ns or 0), float(block.prefetch_ns or 0)
                )
        scratch = [algorithm.workspace_bytes for algorithm in fastest(instance)]
        touched = [footprint(instance, k) for k in range(len(instance.tasks))]
        self._resting = np.cumsum(change[:-1]) + scratch + touched - instance.pool_bytes

    def _overfull(self, model: FlowModel, values: NDArray[np.float64], spots: NDArray[np.int64]) -> list[int]:
        """Return the fullest task of each stretch between checkpoints that holds too much, worst first.

        Data that is absent at both ends of a stretch is taken to be absent during it.
        """
        relief = np.zeros(len(spots) + 1)
        for names, columns in model.gaps.items():
            size = sum(self._courses[name].bytes for name in names)
            absent, odd = values[columns.absent], 0 if columns.first < 0 else 1
            stretch = (columns.first + 2) // 2
            inside = np.minimum(absent[odd::2][:-1], absent[odd + 1 :: 2])
            relief[stretch : stretch + len(inside)] += size * inside
        return self._fullest(relief, spots)

    def _fullest(self, relief: NDArray[np.float64], spots: NDArray[np.int64]) -> list[int]:
        """Return the fullest task of each stretch from which so many bytes are absent, worst first."""
        excess = self._resting - relief[np.searchsorted(spots, np.arange(len(self._resting)), "right")]
        excess[spots] = 0
        worst = []
        edges = [0, *(spots + 1).tolist(), len(excess)]
        for first, until in pairwise(edges):
            if first < until:
                k = first + int(excess[first:until].argmax())
                if excess[k] > 0:
                    worst.append((-float(excess[k]), k))
        return [k for _, k in sorted(worst)]

    def _hasty(
        self, model: FlowModel, values: NDArray[np.float64], prices: Sequence[NDArray[np.float64]]
    ) -> list[int]:
        """Return the tasks that write data that left before, or use data that comes back later.

        The tasks whose violations cost most come first.
        """
        spots = model.checkpoints
        known = set(spots)
        cost: dict[int, float] = defaultdict(float)
        for names, columns in model.gaps.items():
            out = 0.0 if columns.soonest is None else values[columns.soonest]
            back = values[columns.back[-1]]
            for name in names:
                course = self._courses[name]
                if course.writer is not None and course.writer not in known:
                    price = prices[0][2 * bisect_left(spots, course.writer)]
                    cost[course.writer] += min(out, 1.0) * course.offload_ns * price
                if course.until < len(self._instance.tasks) and course.until not in known:
                    price = prices[1][2 * bisect_left(spots, course.until)]
                    cost[course.until] += min(back, 1.0) * course.prefetch_ns * price
        return sorted((k for k in cost if cost[k] > 0), key=lambda k: (-cost[k], k))


class _Course(NamedTuple):
    """A gap's block in bytes, the task that writes it before, the next use, and the times of its copies."""

    bytes: int
    writer: int | None
    until: int
    offload_ns: float
    prefetch_ns: float


def dearest(model: PricedModel, duals: NDArray[np.float64]) -> list[int]:
    """Return the checkpoints whose memory has a price in an LP, in order."""
    prices = -duals[model.memory_rows].reshape(-1, 2).min(axis=1)
    return [k for k, price in zip(model.checkpoints, prices, strict=True) if price > _PRICE]


def crowded(instance: Instance, plan: Plan, count: int) -> list[int]:
    """Return the stages in which a plan of second runs has most bytes too much in memory, at most so many."""
    again = unrolled(instance, plan)
    excess: dict[int, int] = {}
    for (_, stage), live in zip(again.runs, live_bytes(again.instance), strict=True):
        if live > instance.pool_bytes:
            excess[stage] = max(excess.get(stage, 0), live - instance.pool_bytes)
    return sorted(excess, key=lambda stage: (-excess[stage], stage))[:count]


def hot_checkpoints(instance: Instance, count: int, share: float = 0.5) -> list[int]:
    """Choose positions at which memory is accounted for.

    A share of them, the hot ones, are where footprint and live bytes exceed the pool most, and may be
    adjacent. They are taken in turn from two orders, of which one also counts the workspace of each task's
    fastest algorithm: where workspaces are large, neither order proves more on all networks. The others are
    spread evenly over time and position; each is the tightest of its stretch.
    """
    return sorted(_by_heat(instance, count, share))


def _by_heat(instance: Instance, count: int, share: float) -> list[int]:
    """Return the same positions, the most important first."""
    total = len(instance.tasks)
    possible = np.array([not task.may_run_on_host for task in instance.tasks])
    if count >= possible.sum():
        return np.flatnonzero(possible).tolist()
    room = max(instance.pool_bytes, 1)
    fixed = np.array([footprint(instance, k) for k in range(total)], dtype=float)
    live = np.array(live_bytes(instance), dtype=float)
    press = fixed + np.minimum(live - fixed, 0.35 * room)
    scratch = np.array([algorithm.workspace_bytes for algorithm in fastest(instance)])
    orders = [np.argsort(-heat, kind="stable").tolist() for heat in (press, press + scratch)]
    hottest = [k for k in dict.fromkeys(chain.from_iterable(zip(*orders, strict=True))) if possible[k]]
    chosen = hottest[: int(count * share)]
    spread = max(count - len(chosen), 1)
    times = np.cumsum([max(min(a.duration_ns for a in task.algorithms), 1) for task in instance.tasks])
    stretch = ((times / times[-1] + np.arange(1, total + 1) / total) / 2 * spread).astype(int)
    for part in range(spread + 1):
        inside = np.flatnonzero((stretch == part) & possible)
        if len(inside):
            chosen.append(int(inside[np.lexsort((-live[inside], -fixed[inside]))[0]]))
    return list(islice(dict.fromkeys((*chosen, *hottest)), count))


def interval_before(checkpoints: Sequence[int], t: int) -> int:
    """Return the interval of the second runs of stage t, which come before the first run of task t."""
    return 2 * bisect_left(checkpoints, t)


def interval_of(checkpoints: Sequence[int], k: int) -> int:
    """Return the interval in which task k runs for the first time."""
    i = bisect_left(checkpoints, k)
    return 2 * i + (i < len(checkpoints) and checkpoints[i] == k)
