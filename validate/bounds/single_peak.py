"""The lower bound from the copies that one task forces before and after it, in integers and fractions only.

This module imports only the instance and other arguments, and nothing that solves.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from typing import NamedTuple

from ...instances.figures import MILLION
from ...instances.instance import Instance
from .arguments import least_times, needed, touched_bytes
from .machine import Slowed, alone_ns, least_slowed_of_first
from .reads import with_least_reads


@dataclass(frozen=True, slots=True)
class EvictableStay:
    """A stay of a block that it can spend on the host, from after task `after` to before task `until`.

    `writer` is the task that writes its version, and `ready` the earliest end of that; -1 and None mean that
    the host has a valid copy from the start. `out_ns` and `back_ns` are the least times of its copies in
    nanoseconds, with a shared link to themselves.
    """

    bytes: int
    after: int
    until: int
    writer: int
    ready: int | None
    out_ns: int
    back_ns: int


class SinglePeak:
    """The bound from the copies that one task forces before and after it.

    A block *stays* between two successive points where it must be on the device: the start (if it is there at
    first), its uses, and the end (if it must be there at the end). At any instant of such a stay, it is on
    the device, or it has left after the point before and comes back for the next. (A block that is on the
    host at first has no stay before its first use: it need not have been on the device at all until then.)

    While task k runs, the blocks that stay across it have only the memory that F_k and k's workspace leave of
    the pool. Some of their bytes are then in excess. The bytes that are absent when k starts have been
    offloaded before. The bytes that are absent when k ends are prefetched after it. An offload cannot start
    before the block's version is written. After a prefetch, the tasks from the block's next use on are still
    to come.

    So the data that is written by some instant may have left by then. All other data that has to leave takes
    its time after that instant; at best, this is the data with the most bytes per nanosecond. The instant
    that proves most is taken. Prefetches are treated in the same way, seen from the end. Blocks with a valid
    host copy need no offload. A block that cannot be copied both ways, as its version requires, is in memory
    throughout its stay.

    A whole copy takes no less than it does with a shared link to itself. Where copies slow tasks down, the
    tasks between such an instant and task k lose time by the copies that come between, those that lose least
    at the best: they take as long as these tasks and that loss, too.

    Where what a task reads depends on its algorithm, it is taken to read the least (`reads`).

    A task that may run on the host is no peak, takes no time, and needs no block on the device. What it may
    have written has its copy on the host without an offload.

    Attributes
    ----------
    before
        Earliest start of each task, and the compute time: prefix sums of the least times.
    stays
        The stays that a block can spend on the host.

    Raises
    ------
    ValueError
        For an instance with recomputable tasks, for which the argument does not hold.
    """

    def __init__(self, instance: Instance) -> None:
        if any(task.recomputable for task in instance.tasks):
            raise ValueError("the single-peak bound does not hold for recomputable tasks")
        self.instance = instance = with_least_reads(instance)
        self.before = [0, *accumulate(least_times(instance))]
        self.stays = _evictable_stays(instance, self.before)
        self._staying = _staying_bytes(instance)

    def choices(self, k: int) -> list[tuple[int, int]]:
        """Return the duration of each fitting algorithm of task k, and the bytes without room beside it.

        There is none if the task may run on the host.
        """
        if self.instance.tasks[k].may_run_on_host:
            return []
        room = self.instance.pool_bytes - touched_bytes(self.instance, k)
        return [
            (algorithm.duration_ns, self._staying[k] + algorithm.workspace_bytes - room)
            for algorithm in self.instance.tasks[k].device_algorithms
            if algorithm.workspace_bytes <= room
        ]

    def at(self, k: int) -> int:
        """Return the bound at task k in nanoseconds; 0 if no algorithm of the task fits."""
        total = self.before[-1]
        across = [stay for stay in self.stays if stay.after < k < stay.until]
        free = sum(stay.bytes for stay in across if stay.ready is None)
        before, after = self._slowed(range(k - 1, -1, -1)), self._slowed(range(k + 1, len(self.before) - 1))
        out = [
            Piece(-stay.writer, stay.ready, stay.bytes, stay.out_ns, before[k - 1 - stay.writer].offload)
            for stay in across
            if stay.ready is not None
        ]
        back = [
            Piece(
                stay.until,
                total - self.before[stay.until],
                stay.bytes,
                stay.back_ns,
                after[stay.until - k - 1].prefetch,
            )
            for stay in across
        ]
        out.sort()
        back.sort()
        head, tail = self.before[k], total - self.before[k + 1]
        lengths = []
        for time, excess in self.choices(k):
            end = copied_by(out, excess - free, head)
            start = copied_by(back, excess, tail)
            if end is not None and start is not None:
                lengths.append(max(end, Fraction(head)) + time + max(start, Fraction(tail)))
        return math.ceil(min(lengths, default=Fraction(0)))

    def _slowed(self, tasks: Iterable[int]) -> list[Slowed]:
        """Return, for 0, 1, 2, ... of some tasks, what copies take at least of the speed of any of them."""
        if not self.instance.is_slowed:
            return [Slowed()] * (len(self.instance.tasks) + 1)
        return list(least_slowed_of_first(self.instance.tasks[k] for k in tasks))


_FRACTION = 40
"""Number of fractional bits of a rate, which is rounded down: for a terabyte, the error is about a
nanosecond.
"""


class Piece(NamedTuple):
    """Bytes to copy, in the order of the places in the program from which on they are available.

    They are available from `available` on, and take `time`. `lost` millionths of their time is what the tasks
    between that instant and the peak lose at least while they are copied.
    """

    place: int
    available: int
    size: int
    time: int
    lost: int


def copied_by(pieces: Sequence[Piece], excess: int, work: int) -> Fraction | None:
    """Return the earliest time by which an engine can have copied `excess` bytes; None if there are too few.

    `pieces` are ordered from the last to the first. Of the pieces available from some instant on, all are
    copied after it except for the bytes that exceed `excess`. At best, the pieces that take longest are left
    out. `work` is the time of all tasks until the peak, which copies may slow down.
    """
    most = sum(piece.size for piece in pieces) - excess
    if most < 0:
        return None
    left_out: list[tuple[int, int]] = []  # a heap of rates and bytes, the quickest first
    left = best = least = 0
    for _, available, size, time, lost in pieces:
        heappush(left_out, ((time << _FRACTION) // size, size))
        left += size
        if left <= most:
            continue
        while left > most:
            rate, quickest = heappop(left_out)
            copied = min(quickest, left - most)
            if copied < quickest:
                heappush(left_out, (rate, quickest - copied))
            least += copied * rate
            left -= copied
        best = max(best, (available << _FRACTION) + least)
        if lost:
            best = max(best, (work << _FRACTION) + lost * least // MILLION)
    return Fraction(best, 1 << _FRACTION)


def _stays(instance: Instance) -> Iterator[tuple[int, int, int]]:
    """Yield every stay: its block, the task before and the task at its end; -1 is the start.

    Carried blocks count as such that are initially on the device: every schedule is one of that instance. A
    use by a task that may run on the host needs no block on the device: no stay begins or ends with it.
    """
    on_host = {k for k, task in enumerate(instance.tasks) if task.may_run_on_host}
    for d, block in enumerate(instance.blocks):
        there = [-1] if block.initially in ("device", "carried") else []
        for after, until in pairwise([*there, *needed(instance, d)]):
            if not (after in on_host or until in on_host):
                yield d, after, until


def _staying_bytes(instance: Instance) -> list[int]:
    """Return, per task, the bytes that stay across it and that it does not touch."""
    change = [0] * (len(instance.tasks) + 1)
    for d, after, until in _stays(instance):
        change[after + 1] += instance.blocks[d].bytes
        change[until] -= instance.blocks[d].bytes
    return list(accumulate(change[:-1]))


def _evictable_stays(instance: Instance, before: list[int]) -> list[EvictableStay]:
    """Return every stay across a task that a block can spend on the host: both copies are possible."""
    stays = []
    for d, after, until in _stays(instance):
        block, writers = instance.blocks[d], instance.writers[d]
        written = bisect_right(writers, after)
        writer = writers[written - 1] if written else -1
        if written and instance.tasks[writer].may_run_on_host:
            writer = -1  # the host may have made the version
        ready = before[writer + 1] if writer >= 0 else None
        leaves = ready is None or block.offload_ns is not None
        if until > after + 1 and leaves and block.prefetch_ns is not None:
            out, back = (
                alone_ns(instance, block.loaded_bytes, time or 0)
                for time in (block.offload_ns, block.prefetch_ns)
            )
            stays.append(EvictableStay(block.bytes, after, until, writer, ready, out, back))
    return stays
