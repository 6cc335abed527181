"""Which tasks are checkpoints of the next model: where memory is tight, and where the last solution fails.

FLOW sees neither memory between checkpoints nor when in an interval a block is written or needed. So its
solution can be impossible there in two ways: a task finds more in memory than fits, or bytes go out before
they are written or come back after they are used. Checkpoints at such tasks raise the bound; those at which
nothing has a price do not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, islice, pairwise, zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...heuristics.gaps import Gap, stays_of
from ...instances.instance import Instance
from ...instances.memory import fastest, footprint, live_bytes
from ..linear.model import LinearResult
from .model import FlowModel

_PRICE = 1e-7
"""Dual values under it are none: those of FLOW are of the order of one."""


class Checkpoints:
    """Chooses the checkpoints of a sequence of models of an instance.

    Parameters
    ----------
    instance
        Without recomputable tasks, if models are to be learned from.
    hot
        Share of the first checkpoints that are where memory is tight.
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

        Those of the first are where memory is tight. Then first come those of the last model that have a
        price, the dearest first; then tasks at which its solution fails, and checkpoints without a price.
        Tasks before which a schedule stalls are none of these unless they have a price: other tasks made way
        for them, and models of hundreds of tasks proved less.

        Parameters
        ----------
        count
            How many.
        """
        total = len(self._instance.tasks)
        if count >= total:
            return list(range(total))
        ranked = dict.fromkeys((*self._priced, *self._failing, *self._idle))
        if len(ranked) < count:
            ranked |= dict.fromkeys(_by_heat(self._instance, count, self._hot))
        return sorted(islice(ranked, count))

    def learn(self, model: FlowModel, result: LinearResult) -> None:
        """Take note of the prices of checkpoints, and of where else the solution fails."""
        if result.values is None:
            return
        if not self._courses:
            self._look()
        spots = np.array(model.checkpoints)
        prices = np.ones(len(spots))
        engines = [np.ones(2 * len(spots) + 1)] * 2
        if result.duals is not None:
            duals = -result.duals
            engines = [duals[model.engine_rows[0]], duals[model.engine_rows[-1]]]
            prices = duals[model.memory_rows].reshape(-1, 2).max(axis=1)
            for price in engines:
                prices = prices + np.abs(np.diff(price)).reshape(-1, 2).sum(axis=1)
        order = np.argsort(-prices, kind="stable")
        self._priced = spots[order[prices[order] > _PRICE]].tolist()
        since = {k: self._idle.get(k, 0) + 1 for k in spots[prices <= _PRICE].tolist()}
        self._idle = dict(sorted(since.items(), key=lambda item: (item[1], item[0])))
        full = self._overfull(model, result.values, spots)
        hasty = self._hasty(model, result.values, engines)
        ranked = chain.from_iterable(zip_longest(full, hasty))
        self._failing = list(dict.fromkeys(k for k in ranked if k is not None))

    def _look(self) -> None:
        """Look at the instance once: what is in memory where nothing leaves, and the ends of stays."""
        instance = self._instance
        change = np.zeros(len(instance.tasks) + 1)
        for d, after, until in stays_of(instance):
            block = instance.blocks[d]
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
        """The fullest task of each stretch between checkpoints that holds more than fits, the worst first.

        What is absent at both ends of a stretch is absent during it.
        """
        relief = np.zeros(len(spots) + 1)
        for names, columns in model.gaps.items():
            size = sum(self._courses[name].bytes for name in names)
            absent = values[columns.absent][1::2]
            stretch = columns.first // 2 + 1
            inside = np.minimum(absent[:-1], values[columns.absent][2::2])
            relief[stretch : stretch + len(inside)] += size * inside
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
        """Tasks that write what goes out before them, or use what comes back after, the dearest first."""
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
    """Of a gap: the bytes of its block, the task that writes it before, the next use, and times of copies."""

    bytes: int
    writer: int | None
    until: int
    offload_ns: float
    prefetch_ns: float


def hot_checkpoints(instance: Instance, count: int, share: float = 0.5) -> list[int]:
    """Choose positions at which memory is accounted for.

    A share of them, the hot ones, are where footprint and live bytes press hardest on the pool, adjacent ones
    included; the others are spread evenly over time and position, each the tightest of its stretch.
    """
    return sorted(_by_heat(instance, count, share))


def _by_heat(instance: Instance, count: int, share: float) -> list[int]:
    """The same, those first that matter most."""
    total = len(instance.tasks)
    if count >= total:
        return list(range(total))
    room = max(instance.pool_bytes, 1)
    fixed = np.array([footprint(instance, k) for k in range(total)], dtype=float)
    live = np.array(live_bytes(instance), dtype=float)
    press = fixed + np.minimum(live - fixed, 0.35 * room)
    hottest = np.argsort(-press, kind="stable").tolist()
    chosen = hottest[: int(count * share)]
    spread = max(count - len(chosen), 1)
    times = np.cumsum([max(min(a.duration_ns for a in task.algorithms), 1) for task in instance.tasks])
    stretch = ((times / times[-1] + np.arange(1, total + 1) / total) / 2 * spread).astype(int)
    for part in range(spread + 1):
        inside = np.flatnonzero(stretch == part)
        if len(inside):
            chosen.append(int(inside[np.lexsort((-live[inside], -fixed[inside]))[0]]))
    return list(islice(dict.fromkeys((*chosen, *hottest)), count))
