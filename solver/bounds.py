"""Lower bounds on the makespan of a round, in exact integer arithmetic.

Both arguments hold in every memory model, for schedules with or without moves inside the device.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from ..instances.instance import Instance
from ..instances.memory import footprint, live_bytes

_EXACT = 8
"""At how many of the most promising positions the single-peak bound is worked out exactly."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound.

    Attributes
    ----------
    lower_bound_ns
        No schedule of the instance is shorter.
    bound_by
        The argument: ``compute``, ``single-peak``, or a solver's name.
    certified
        Whether it was derived or checked in exact arithmetic.
    """

    lower_bound_ns: int
    bound_by: str
    certified: bool

    def gap(self, makespan_ns: int) -> float:
        """Optimality gap of a makespan: (makespan - bound) / bound."""
        return (makespan_ns - self.lower_bound_ns) / max(self.lower_bound_ns, 1)


def best_bound(instance: Instance) -> Bound:
    """Return the better of the compute bound and, without recomputable tasks, the single-peak bound."""
    bounds = [compute_bound(instance)]
    if not any(task.recomputable for task in instance.tasks):
        bounds.append(single_peak_bound(instance))
    return max(bounds, key=lambda bound: bound.lower_bound_ns)


def compute_bound(instance: Instance) -> Bound:
    """Sum of the least times of all tasks, over the algorithms that fit the pool beside the task's blocks."""
    return Bound(sum(_least_times(instance)), "compute", certified=True)


def single_peak_bound(instance: Instance) -> Bound:
    """Bound by what one task forces out of memory before it and back in after it.

    While task k runs, the blocks that are live across it can hold only what F_k and k's workspace leave of
    the pool. The bytes in excess are offloaded before k starts and prefetched after k ends, by engines that
    copy no faster than the fastest rate of any block; an offload cannot start before the block's version is
    written, and after a prefetch the tasks from the block's next use on are still to come. At one rate, what
    an engine that never idles without need has copied by some time does not depend on the order, so that
    earliest-written-first (offloads) and, seen from the end, latest-needed-first (prefetches) are exact for
    this relaxation. Blocks with a valid host copy need no offload. The position k with the largest bound is
    sought in floating point and the bound at it is worked out in fractions.

    Raises
    ------
    ValueError
        For an instance with recomputable tasks, for which the argument does not hold.
    """
    if any(task.recomputable for task in instance.tasks):
        raise ValueError("the single-peak bound does not hold for recomputable tasks")
    peaks = _Peaks(instance)
    best = peaks.before[-1]
    for k in peaks.promising():
        best = max(best, peaks.bound_at(k))
    return Bound(best, "single-peak", certified=True)


@dataclass(frozen=True, slots=True)
class _Gap:
    """A block between two clusters of uses: it may be evicted after task `after` until task `until`.

    `ready` is the earliest end of the write of its version; None: the host has a valid copy from the start.
    """

    bytes: int
    after: int
    until: int
    ready: int | None


class _Peaks:
    """What the bound at each position needs: gaps in the orders of both engines, earliest times of tasks."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.times = _least_times(instance)
        self.before = [0, *accumulate(self.times)]
        self.live = live_bytes(instance)
        self.gaps = _evictable_gaps(instance, self.before)
        self.out_rate = _fastest_rate((b.offload_ns, b.bytes) for b in instance.blocks)
        self.back_rate = _fastest_rate((b.prefetch_ns, b.bytes) for b in instance.blocks)

    def choices(self, k: int) -> list[tuple[int, int]]:
        """Duration of each algorithm of task k that fits, and the bytes that have no room beside it."""
        room = self.instance.pool_bytes
        return [
            (algorithm.duration_ns, self.live[k] + algorithm.workspace_bytes - room)
            for algorithm in self.instance.tasks[k].algorithms
            if footprint(self.instance, k) + algorithm.workspace_bytes <= room
        ]

    def promising(self) -> list[int]:
        """Positions at which the bound, in floating point, is greatest and above the compute bound."""
        out = _Queue(self.gaps, [gap.ready for gap in self.gaps])
        back = _Queue(self.gaps, [self.before[-1] - self.before[gap.until] for gap in self.gaps])
        estimates = {}
        for k in range(len(self.times)):
            choices = self.choices(k)
            if any(time == self.times[k] and excess <= 0 for time, excess in choices):
                continue
            head, tail = self.before[k], self.before[-1] - self.before[k + 1]
            excesses = np.array([excess for _, excess in choices], dtype=float)
            ends = np.maximum(head, out.copied_by(k, excesses, float(self.out_rate)))
            starts = np.maximum(tail, back.copied_by(k, excesses, float(self.back_rate)))
            lengths = ends + starts + np.array([time for time, _ in choices], dtype=float)
            estimates[k] = float(lengths.min(initial=np.inf))
        ranked = sorted((k for k in estimates if estimates[k] > self.before[-1]), key=lambda k: -estimates[k])
        return ranked[:_EXACT]

    def bound_at(self, k: int) -> int:
        """The bound at position k, in exact arithmetic; 0 when no algorithm of the task can be chosen."""
        across = [gap for gap in self.gaps if gap.after < k < gap.until]
        free = sum(gap.bytes for gap in across if gap.ready is None)
        out = sorted((gap.ready, gap.bytes) for gap in across if gap.ready is not None)
        back = sorted((self.before[-1] - self.before[gap.until], gap.bytes) for gap in across)
        head, tail = Fraction(self.before[k]), Fraction(self.before[-1] - self.before[k + 1])
        lengths = []
        for time, excess in self.choices(k):
            end = _copied_by(out, excess - free, self.out_rate)
            start = _copied_by(back, excess, self.back_rate)
            if end is not None and start is not None:
                lengths.append(max(end, head) + time + max(start, tail))
        return math.ceil(min(lengths, default=Fraction(0)))


class _Queue:
    """Gaps in the order in which an engine copies them, as arrays."""

    def __init__(self, gaps: list[_Gap], available: list[int | None]) -> None:
        order = sorted(range(len(gaps)), key=lambda i: -1 if available[i] is None else available[i] or 0)
        self._after = np.array([gaps[i].after for i in order])
        self._until = np.array([gaps[i].until for i in order])
        self._bytes = np.array([gaps[i].bytes for i in order], dtype=float)
        self._free = np.array([available[i] is None for i in order], dtype=bool)
        self._available = np.array([float(available[i] or 0) for i in order])

    def copied_by(self, k: int, excesses: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
        """Earliest times at which each excess has been copied; infinite where there is too little."""
        across = (self._after < k) & (self._until > k)
        free = float(self._bytes[across & self._free].sum())
        across &= ~self._free
        sizes, available = self._bytes[across], self._available[across]
        earlier = np.cumsum(sizes) - sizes
        wanted = excesses - free
        ends = np.where(
            earlier[None, :] < wanted[:, None],
            available[None, :] + rate * (wanted[:, None] - earlier[None, :]),
            0.0,
        ).max(axis=1, initial=0.0)
        return np.asarray(np.where(wanted > sizes.sum(), np.inf, ends))


def _copied_by(queue: list[tuple[int, int]], excess: int, rate: Fraction) -> Fraction | None:
    """Earliest time at which an engine has copied `excess` bytes; None when there are not that many.

    `queue` holds the time from which on each piece is available, and its bytes, in that order.
    """
    time = Fraction(0)
    for available, size in queue:
        if excess <= 0:
            break
        amount = min(size, excess)
        time = max(time, Fraction(available)) + amount * rate
        excess -= amount
    return time if excess <= 0 else None


def _least_times(instance: Instance) -> list[int]:
    """Per task, the least time of the algorithms that fit; of all of them where none fits."""
    room = instance.pool_bytes
    least = []
    for k, task in enumerate(instance.tasks):
        fixed = footprint(instance, k)
        fitting = [a.duration_ns for a in task.algorithms if fixed + a.workspace_bytes <= room]
        least.append(min(fitting or [a.duration_ns for a in task.algorithms]))
    return least


def _fastest_rate(copies: Iterable[tuple[int | None, int]]) -> Fraction:
    """Least time per byte of the copies that are possible."""
    return min((Fraction(time, size) for time, size in copies if time is not None), default=Fraction(0))


def _evictable_gaps(instance: Instance, before: list[int]) -> list[_Gap]:
    """Every stay of a block between uses that could be evicted: it can be offloaded, and prefetched again."""
    gaps = []
    for block, uses, writers in zip(instance.blocks, instance.uses, instance.writers, strict=True):
        marks = [*([-1] if block.initially == "device" else []), *uses]
        marks += [len(instance.tasks)] if block.finally_ == "device" else []
        if block.prefetch_ns is None:
            continue
        for after, until in pairwise(marks):
            written = bisect_right(writers, after)
            ready = before[writers[written - 1] + 1] if written else None
            if until > after + 1 and (ready is None or block.offload_ns is not None):
                gaps.append(_Gap(block.bytes, after, until, ready))
    return gaps
