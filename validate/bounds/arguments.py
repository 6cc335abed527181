"""Lower bounds on the makespan of a round, in integers and fractions only: what certificates rest on.

Every argument here holds in every memory model, for schedules with or without moves inside the device. That
of a single peak does not hold for recomputable tasks. This module imports the instance and nothing that
solves, and it works out by itself what is in memory when: an error in a helper that solvers share would
otherwise prove itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from itertools import accumulate, pairwise

import msgspec

from ...instances.instance import Algorithm, Block, Instance
from .reruns import RerunKey, cheapest, course_of, rerun_intervals


def compute_ns(instance: Instance) -> int:
    """Sum of the least times of all tasks, over the algorithms that fit the pool beside the task's blocks."""
    return sum(least_times(instance))


def least_times(instance: Instance) -> list[int]:
    """Per task, the least time of the algorithms that fit; of all of them where none fits."""
    return [min(a.duration_ns for a in fitting(instance, k)) for k in range(len(instance.tasks))]


def fitting(instance: Instance, k: int) -> tuple[Algorithm, ...]:
    """Algorithms of task k whose workspace fits the pool beside its blocks; all where none does."""
    algorithms = instance.tasks[k].algorithms
    if len(algorithms) == 1:
        return algorithms
    room = instance.pool_bytes - _touched_bytes(instance, k)
    return tuple(a for a in algorithms if a.workspace_bytes <= room) or algorithms


def _touched_bytes(instance: Instance, k: int) -> int:
    """Bytes of the blocks that task k touches: all of them are in memory while it runs."""
    blocks = instance.blocks
    return sum([blocks[d].bytes for d in instance.tasks[k].blocks])


def _needed(instance: Instance, d: int) -> list[int]:
    """Where a block has to be on the device: its uses, and the end (the number of tasks) if it ends there."""
    at_the_end = instance.blocks[d].finally_ == "device"
    return [*instance.uses[d], *([len(instance.tasks)] if at_the_end else [])]


def in_whole_pages(instance: Instance, page_bytes: int) -> Instance:
    """Return an instance that every paged schedule of this one satisfies, but for addresses.

    Blocks and workspaces take whole pages, and the pool has those that lie in it. Parts of a tensor become
    blocks of their own: where they lie is of no account here.
    """

    def pages(size: int) -> int:
        return -(-size // page_bytes) * page_bytes

    blocks = tuple(
        msgspec.structs.replace(block, bytes=pages(block.bytes), tensor=None, begin=None)
        for block in instance.blocks
    )
    tasks = []
    for task in instance.tasks:
        algorithms = tuple(
            msgspec.structs.replace(a, workspace_bytes=pages(a.workspace_bytes)) for a in task.algorithms
        )
        tasks.append(msgspec.structs.replace(task, algorithms=algorithms))
    pool = max(instance.pool_bytes, 0) // page_bytes * page_bytes
    return msgspec.structs.replace(
        instance, blocks=blocks, tasks=tuple(tasks), budget_bytes=instance.resident_bytes + pool
    )


# --- a single peak ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EvictableStay:
    """A block between two uses that could be evicted after task `after` and be back for task `until`.

    `ready` is the earliest end of the write of its version; None: the host has a valid copy from the start.
    `out_ns` and `back_ns` are the times of its copies.
    """

    bytes: int
    after: int
    until: int
    ready: int | None
    out_ns: int
    back_ns: int


class SinglePeak:
    """Bound by what one task forces out of memory before it and back in after it.

    A block *stays* between two successive places where it has to be on the device: the start, if it is there
    at first, its uses, and the end, if it must be there at last. At any instant of such a stay it is on the
    device, or it has left after the place before and comes back for the next. (A block that is on the host at
    first has no stay before its first use: until then it need not have been on the device at all.)

    While task k runs, the blocks that stay across it can hold only what F_k and k's workspace leave of
    the pool. Of the bytes in excess, those absent when k starts have been offloaded before, and those absent
    when it ends are prefetched after it. An offload cannot
    start before the block's version is written, and after a prefetch the tasks from the block's next use on
    are still to come. So whatever is written by some instant may have left by then, and what else has to
    leave takes its time after that instant, in the best case those blocks with the most bytes a nanosecond;
    the instant that proves most is taken. Prefetches are seen from the end. Blocks with a valid host copy
    need no offload. A block that cannot be copied both ways, as its version needs it, is in memory throughout
    its stay.

    Attributes
    ----------
    before
        Earliest start of each task, and the compute time: prefix sums of the least times.
    stays
        What could be evicted.

    Raises
    ------
    ValueError
        For an instance with recomputable tasks, for which the argument does not hold.
    """

    def __init__(self, instance: Instance) -> None:
        if any(task.recomputable for task in instance.tasks):
            raise ValueError("the single-peak bound does not hold for recomputable tasks")
        self.instance = instance
        self.before = [0, *accumulate(least_times(instance))]
        self.stays = _evictable_stays(instance, self.before)
        self._staying = _staying_bytes(instance)

    def choices(self, k: int) -> list[tuple[int, int]]:
        """Duration of each algorithm of task k that fits, and the bytes that have no room beside it."""
        room = self.instance.pool_bytes - _touched_bytes(self.instance, k)
        return [
            (algorithm.duration_ns, self._staying[k] + algorithm.workspace_bytes - room)
            for algorithm in self.instance.tasks[k].algorithms
            if algorithm.workspace_bytes <= room
        ]

    def at(self, k: int) -> int:
        """The bound at task k, in nanoseconds; 0 when no algorithm of the task can be chosen."""
        total = self.before[-1]
        across = [stay for stay in self.stays if stay.after < k < stay.until]
        free = sum(stay.bytes for stay in across if stay.ready is None)
        out = [(stay.ready, stay.bytes, stay.out_ns) for stay in across if stay.ready is not None]
        back = [(total - self.before[stay.until], stay.bytes, stay.back_ns) for stay in across]
        out.sort(reverse=True)
        back.sort(reverse=True)
        head, tail = Fraction(self.before[k]), Fraction(total - self.before[k + 1])
        lengths = []
        for time, excess in self.choices(k):
            end = _copied_by(out, excess - free)
            start = _copied_by(back, excess)
            if end is not None and start is not None:
                lengths.append(max(end, head) + time + max(start, tail))
        return math.ceil(min(lengths, default=Fraction(0)))


_FRACTION = 40
"""Bits behind the point of a rate, rounded down: of a terabyte, they make a nanosecond."""


def _copied_by(pieces: Sequence[tuple[int, int, int]], excess: int) -> Fraction | None:
    """Earliest time by which an engine can have copied `excess` bytes; None if there are not that many.

    `pieces` are, the last first: the time from which on a piece is available, its bytes, and the time of its
    copy. Of those available from some instant on, all are copied after it but the bytes that there are beyond
    the excess: in the best case, those that take longest are left out.
    """
    most = sum(size for _, size, _ in pieces) - excess
    if most < 0:
        return None
    left_out: list[tuple[int, int]] = []  # a heap of rates and bytes, the quickest first
    left = best = least = 0
    for available, size, time in pieces:
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
    return Fraction(best, 1 << _FRACTION)


def _stays(instance: Instance) -> Iterator[tuple[int, int, int]]:
    """Every stay: its block, the task after which and the task until which it lasts; -1 is the start."""
    for d, block in enumerate(instance.blocks):
        there = [-1] if block.initially == "device" else []
        for after, until in pairwise([*there, *_needed(instance, d)]):
            yield d, after, until


def _staying_bytes(instance: Instance) -> list[int]:
    """Per task, the bytes that stay across it without being touched by it."""
    change = [0] * (len(instance.tasks) + 1)
    for d, after, until in _stays(instance):
        change[after + 1] += instance.blocks[d].bytes
        change[until] -= instance.blocks[d].bytes
    return list(accumulate(change[:-1]))


def _evictable_stays(instance: Instance, before: list[int]) -> list[EvictableStay]:
    """Every stay across a task that a block could spend elsewhere: it can be offloaded, and prefetched."""
    stays = []
    for d, after, until in _stays(instance):
        block, writers = instance.blocks[d], instance.writers[d]
        written = bisect_right(writers, after)
        ready = before[writers[written - 1] + 1] if written else None
        leaves = ready is None or block.offload_ns is not None
        if until > after + 1 and leaves and block.prefetch_ns is not None:
            times = block.offload_ns or 0, block.prefetch_ns
            stays.append(EvictableStay(block.bytes, after, until, ready, *times))
    return stays


# --- prices of memory and of the engines' time ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices, all whole and over one denominator, at the instants and intervals of some checkpoints.

    The i-th checkpoint has the instants 2i (its start) and 2i + 1 (its end); interval j ends at instant j,
    and a last one lies after the last instant.

    Attributes
    ----------
    denominator
        What the figures are to be divided by.
    memory
        Per instant, nanoseconds for a byte that is in memory then.
    engines
        Per copy engine (offload, prefetch; or the only one), per interval, nanoseconds for a nanosecond of
        its time. What all engines together cost in an interval is at most one.
    reruns
        Per task, interval in which it may run again, and block, nanoseconds for a byte: of what the run
        writes, what a version pays that is made so; of what it reads, what the run pays. What is not named
        is for nothing.
    """

    denominator: int
    memory: Sequence[int]
    engines: Sequence[Sequence[int]]
    reruns: Mapping[RerunKey, int] = field(default_factory=dict)


def priced_ns(instance: Instance, checkpoints: Sequence[int], prices: Prices) -> int:
    """Bound the makespan by prices of memory and of the engines' time: the Lagrangian bound of FLOW.

    Take any schedule. In no interval is an engine busy for longer than the interval lasts, and at no
    instant is more in memory than the pool. So the makespan is at least the makespan, plus the price of
    the time for which engines are busy less the price of the intervals' lengths, plus the price of what is in
    memory less the price of the pool. Versions of blocks pay second runs that make them, and second runs
    that read them pay the versions. Tasks, checkpoints, second runs and versions share nothing in that sum:
    each is bounded by its cheapest choice, and the sum of these is the bound.

    - What lies between checkpoints takes at least the least times of the tasks there.
    - A checkpoint takes an algorithm that fits, and pays for its blocks and its workspace.
    - A second run takes its least time, pays for what it reads and is paid for what it writes; or it is not.
    - A version of a block pays for its bytes between uses, or for being offloaded once, wholly, after it is
      written, and prefetched after each stay that it spends on the host, or is made again. Copying it in
      pieces is a mix of such choices, and no cheaper than the cheapest of them.

    Prices that a linear program finds give its bound; any others give a weaker one, but a bound.

    Parameters
    ----------
    instance
        What to bound.
    checkpoints
        Tasks, in increasing order.
    prices
        As many as these have instants and intervals.

    Raises
    ------
    ValueError
        When the prices are not such prices, with the reason.
    """
    again = rerun_intervals(instance, checkpoints)
    _require_prices(instance, checkpoints, prices, again)
    one = prices.denominator
    left = [one - sum(paid) for paid in zip(*prices.engines, strict=True)]
    upto = [0, *accumulate(prices.memory)]  # price of a byte that stays from the start until before instant i
    least = [0, *accumulate(least_times(instance))]
    total: int = 0
    following = 0
    for i, k in enumerate(checkpoints):
        instants = prices.memory[2 * i] + prices.memory[2 * i + 1]
        total += left[2 * i] * (least[k] - least[following])
        total += instants * (_touched_bytes(instance, k) - instance.pool_bytes)
        total += min(
            left[2 * i + 1] * a.duration_ns + instants * a.workspace_bytes for a in fitting(instance, k)
        )
        following = k + 1
    total += left[-1] * (least[-1] - least[following])
    total += _run_price(instance, prices, left)
    makes, reads = _dealings(instance, prices, again)
    for d in range(len(instance.blocks)):
        for version in _versions(instance, d, checkpoints):
            name = d, version.writer
            if name in makes or name in reads:
                course = course_of(instance, *name, checkpoints, reads[name])
                total += cheapest(course, makes[name], reads[name], prices.memory, prices.engines)
            else:
                total += _version_price(version, upto, prices)
    return -(-total // one)


def _run_price(instance: Instance, prices: Prices, left: Sequence[int]) -> int:
    """Least that second runs can pay, times the denominator; those without prices are left out."""
    least = least_times(instance)
    balances: dict[tuple[int, int], int] = {}
    for (k, j, d), price in prices.reruns.items():
        amount = price * instance.blocks[d].bytes
        sign = 1 if d in instance.tasks[k].inputs else -1
        balances[k, j] = balances.get((k, j), left[j] * least[k]) + sign * amount
    return sum(min(balance, 0) for balance in balances.values())


_Dealings = defaultdict[tuple[int, int], dict[int, int]]
"""Per block and writer of its version, by interval: what is paid for second runs, times the denominator."""


def _dealings(instance: Instance, prices: Prices, again: Mapping[int, range]) -> tuple[_Dealings, _Dealings]:
    """What versions pay to be made again, wherever they may be, and what they are paid for being read."""
    makes: _Dealings = defaultdict(dict)
    reads: _Dealings = defaultdict(dict)
    for k, intervals in again.items():
        for d in instance.tasks[k].outputs:
            bytes_ = instance.blocks[d].bytes
            makes[d, k] = {j: prices.reruns.get((k, j, d), 0) * bytes_ for j in intervals}
    for (k, j, d), price in prices.reruns.items():
        if d in instance.tasks[k].inputs:
            before = bisect_left(instance.writers[d], k)
            paid = reads[d, instance.writers[d][before - 1] if before else -1]
            paid[j] = paid.get(j, 0) + price * instance.blocks[d].bytes
    return makes, reads


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of a block, as the checkpoints see it.

    Attributes
    ----------
    block, writer
        The block, and the task that writes the version; -1: it is there from the start.
    ready
        First instant at which it can be on the host; None: it is there from the start.
    stays
        First and last instant of each stay between uses; a stay without instants has its last before its
        first.
    must_load
        Whether it is not on the device at the beginning of the first stay.
    must_leave
        Whether it must be on the host when the round ends.
    """

    block: Block
    writer: int
    ready: int | None
    stays: tuple[tuple[int, int], ...]
    must_load: bool
    must_leave: bool


def _versions(instance: Instance, d: int, checkpoints: Sequence[int]) -> list[_Version]:
    """Versions of a block: what is there from the start, then what each writer leaves."""
    block, writers = instance.blocks[d], instance.writers[d]
    there = block.initially != "absent"
    marks = [*([-1] if there else []), *_needed(instance, d)]
    stays: list[list[tuple[int, int]]] = [[] for _ in range(len(writers) + 1)]
    for after, until in pairwise(marks):
        first = 2 * bisect_right(checkpoints, after)
        last = 2 * bisect_left(checkpoints, until) - 1
        stays[bisect_right(writers, after)].append((first, last))
    # what a checkpoint writes can leave in the interval after it; what another task writes, in its own
    ready = [2 * bisect_right(checkpoints, writer) for writer in writers]
    return [
        _Version(
            block,
            writers[number - 1] if number else -1,
            ready[number - 1] if number else None,
            tuple(stays[number]),
            must_load=number == 0 and block.initially == "host" and len(marks) > 1,
            must_leave=0 < number == len(writers) and block.finally_ == "host",
        )
        for number in range(0 if there else 1, len(writers) + 1)
    ]


def _version_price(version: _Version, upto: Sequence[int], prices: Prices) -> int:
    """Least that a version can pay for memory and copies, times the denominator."""
    block, out, back = version.block, prices.engines[0], prices.engines[-1]
    rent = sum(block.bytes * (upto[last + 1] - upto[first]) for first, last in version.stays if first <= last)
    if version.ready is None:
        first_stay = version.stays[:1] if version.must_load else ()
        saved = sum(_loaded(block, stay, upto, back) for stay in first_stay)
        return rent - saved - sum(_savings(block, s, upto, back)[0] for s in version.stays[len(first_stay) :])
    if block.offload_ns is None:
        return rent
    final = len(prices.memory) if version.must_leave else max((last for _, last in version.stays), default=-1)
    cheapest = block.offload_ns * min(out[version.ready : final + 1], default=0)
    if not version.must_leave and rent <= cheapest:
        return rent
    # offloaded in interval j, it is away in whole stays that begin later, and from instant j on in its own
    stays = {first: _savings(block, (first, last), upto, back) for first, last in version.stays}
    partly = {first + i: saving for first, savings in stays.items() for i, saving in enumerate(savings)}
    plans = [] if version.must_leave else [0]
    later = 0
    for j in range(final, version.ready - 1, -1):
        plans.append(later + partly.get(j, 0) - block.offload_ns * out[j])
        later += partly[j] if j in stays else 0
    return rent - max(plans, default=0)


def _savings(block: Block, stay: tuple[int, int], upto: Sequence[int], back: Sequence[int]) -> list[int]:
    """Per instant of a stay, what a block saves that is on the host from then on and prefetched some time.

    Nothing where staying is cheaper. A stay without instants saves nothing.
    """
    first, last = stay
    if block.prefetch_ns is None or first > last:
        return [0] * max(last - first + 1, 1)
    savings, best = [], 0
    for instant in range(last, first - 1, -1):
        gain = block.bytes * upto[instant + 1] - block.prefetch_ns * back[instant + 1]
        best = gain if instant == last else max(best, gain)
        savings.append(max(0, best - block.bytes * upto[instant]))
    return savings[::-1]


def _loaded(block: Block, stay: tuple[int, int], upto: Sequence[int], back: Sequence[int]) -> int:
    """What a block that is on the host only saves in its first stay; negative where loading it costs more."""
    first, last = stay
    if block.prefetch_ns is None:
        return 0
    return max(
        block.bytes * (upto[interval] - upto[first]) - block.prefetch_ns * back[interval]
        for interval in range(first, last + 2)
    )


def _require_prices(
    instance: Instance, checkpoints: Sequence[int], prices: Prices, again: Mapping[int, range]
) -> None:
    if any(k >= following for k, following in pairwise([-1, *checkpoints, len(instance.tasks)])):
        raise ValueError("the checkpoints are not tasks in increasing order")
    instants, engines = 2 * len(checkpoints), 1 if instance.engines == "single" else 2
    if len(prices.memory) != instants or [len(p) for p in prices.engines] != [instants + 1] * engines:
        raise ValueError("there is not a price for every instant and every interval of every engine")
    if prices.denominator < 1 or min(prices.memory, default=0) < 0:
        raise ValueError("a price of memory is negative, or the denominator is not positive")
    for j, paid in enumerate(zip(*prices.engines, strict=True)):
        if min(paid) < 0 or sum(paid) > prices.denominator:
            raise ValueError(f"interval {j}: prices of the engines are negative or above one together")
    for (k, j, d), price in prices.reruns.items():
        if j not in again.get(k, ()) or d not in instance.tasks[k].blocks:
            raise ValueError(f"task {k} has no second run in interval {j} that touches block {d}")
        if price < 0:
            raise ValueError(f"task {k}, interval {j}: a price of block {d} is negative")
