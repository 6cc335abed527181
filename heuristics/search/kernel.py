# mypy: disable-error-code="no-any-return"
"""The compiled part of local search: it makes decisions a program with places and times.

A program is issued task by task. The next prefetch goes before the next run where it can start no later and
its block has room at every task until its use; offloads follow each other in the order that was decided. In
contiguous memory an allocator gives addresses as the program is issued, and clears a range by moves inside
the device where the bytes are free but no hole is large enough; in the other memory models, only bytes count,
and the bytes that are free earliest are used first.

Where tensors are in parts, a suffix of the parts is evicted: the last part is offloaded first and prefetched
last.
So in contiguous memory, the resident parts of a tensor are one range, which moves as a whole. A part that
comes back is placed behind them; data in its way is moved.

Local search is late acceptance (Burke and Bykov, EJOR 2017): a move changes what is evicted, the order of
copies, an algorithm, when a prefetch may come, or where something lies; evictions are repaired at once where
live blocks exceed the pool. The move is accepted if the program is then no longer than the current one, or
than the one some moves ago.

Importing this module imports Numba. The compiled code is cached beside this file until the file changes. It
is long because Numba looks at changes of this file only: if functions that call each other, or constants,
were in another file, a change there would leave the old code in use.

Compiled code allocates nothing. So Numba need not count references to arrays, which would take most of the
time. The arrays that a simulation works in are in `State`. The steps of `simulate`, marked `_step`, are
compiled as if they were written where they are called: as calls, each would pass on every array of `State`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Integers = NDArray[Any]
"""Array of int64; to Numba, one element is a plain integer."""

Reals = NDArray[Any]
"""Array of float64."""

_F = TypeVar("_F", bound=Callable[..., Any])
"""Type of a function that is compiled."""


def _compiled(function: _F) -> _F:
    """Compile a function without Numba's runtime, which counts references, to run beside Python's threads.

    Only compiled code calls a function whose name begins with an underscore. So it needs no entry from
    Python, which would add a fifth to the time of compilation.
    """
    private = function.__name__.startswith("_")
    options: Any = {"_nrt": False, "no_cpython_wrapper": private, "no_cfunc_wrapper": True}
    options |= {"cache": True, "nogil": True}
    return cast(_F, njit(**options)(function))


def _step(function: _F) -> _F:
    """Make a function part of each function that calls it, when that is compiled: so a step costs no call."""
    return cast(_F, njit(inline="always")(function))


_kinds: Any = np.arange(8)
"""Numbers of the kinds of logged steps."""
RUN, OFFLOAD, PREFETCH, MOVE, PLACE, RELEASE, KEEP, DROP = _kinds
"""Kinds of logged steps.

A run is followed by a placement of each of its outputs. Placements before the first run are of blocks that
start on the device. Before these, copies are kept that the host has from the start. A copy is dropped once
nothing reads it any more; both are logged only where host memory has a budget.
"""

LOW, HIGH, EARLY_LOW, EARLY_HIGH, TIGHT = np.arange(5)
"""Rules for the hole of a placement.

These are the lowest hole, the highest, the one that is free earliest (the lowest or the highest of several),
and the tightest.
"""

PLACED: Any = np.int64(5)
"""Number of the rule for a placement at address 0; each greater number is the rule for the next address.

If that address is not free, the lowest hole that is free earliest is taken.
"""

IMPOSSIBLE = 1 << 60
"""Least number that stands for no makespan: the sooner a program runs out of memory, the greater."""

NEVER = 1 << 62
"""Time that is later than any event."""

ANY: Any = np.int64(NEVER)
"""Limit for a program that may have any makespan."""

_NOTHING: Any = np.int64(0)
"""Zero as an argument; Numba would compile a function anew for every plain number that it is called with."""

_NONE: Any = np.int64(-1)
"""The number -1 as an argument: no element."""

_ANYHOW: Any = np.int64(1)
"""Argument of a placement that may move other blocks."""

_CONTIGUOUS = True
"""Argument of a pool with addresses, as that of the host is in every memory model."""

_EARLY: Any = EARLY_LOW
"""Argument of a placement in the range that is free earliest."""

_SIDES = 2000
"""Weight of changes of sides times the number of tasks, where all other changes have a weight of 80.

The weight is between 1 and 20, so that it is 20 up to 100 tasks.
"""

_TRIES = 64
"""Number of ranges to try before clearing a range is given up."""

_DRAWS = 20
"""Number of draws of an element for which a change makes sense."""

_ROUNDS = 8
"""Number of times that a repair makes live blocks fit the pool, and their copies host memory, in turn."""

_CHUNK = 64
"""Number of tasks in a chunk, of which the greatest load is stored."""

_MANY = 32
"""Number of free ranges above which ranges that are free when compute is free are joined.

A prefetch may then seem to wait for memory that is in fact free earlier. So the program can only be faster
than simulated.
"""


# columns of a problem's arrays
BYTES, OFFLOAD_NS, PREFETCH_NS, MOVE_NS, DUE, LEAD, BEGIN, FOLLOWING, SPAN, HOST_BYTES, KEPT, LASTS = range(
    12
)
FIXED, ALGORITHMS, TASK_KIND, INPUTS, UPDATES, OUTPUTS, DEAD, STARTING, WRITTEN = range(9)
DURATION, WORKSPACE = range(2)
BLOCK, AFTER, UNTIL, VERSION, FORCED, NEXT_PART, PART_BEFORE, FIRST_PART, GAP_KIND, COST, LIGHT = range(11)
WRITER, DUE_ANYHOW, LEAVES_NEXT, LEAVES_FIRST = range(1, 5)

_directions: Any = np.arange(2)
"""Numbers of the directions of copies."""
OUT, IN = _directions
"""Directions of copies."""

_AT_ONCE = 1e-6
"""Nanoseconds, and parts of a nanosecond's work, that rounding may take."""

# places in `State.ahead`
OFFLOAD_TURN, PREFETCH_TURN, ROOM_FROM, OFFLOADS_NS, PREFETCHES_NS, LAST_USE = range(6)


class Problem(NamedTuple):
    """An instance as arrays; sizes are rounded up to the unit of the memory model.

    Attributes
    ----------
    length, capacity, single, contiguous
        Number of tasks; bytes of the pool; whether there is only one copy engine; whether addresses count.
    timed
        Whether copies share a link or slow tasks down, so that times are estimates (see `_copied_by`).
    host
        Bytes of host memory, less those of `homes`, or -1 where it never ends.
    moves, sides
        Whether blocks may be moved inside the device; whether the search changes which holes they take.
    parts
        Whether some blocks are parts of tensors.
    private
        Per block, the offset of its own small place beyond the pool, or -1. The bytes of a block with such a
        place are 0.
    homes
        Per block, the offset of its own place on the host, which it has where it begins and ends there, or
        -1. The bytes of a copy with such a place are 0; those of other copies lie behind all of them.
    initial
        Blocks that start on the device unless a gap at the start evicts them.
    blocks
        Per block: bytes; times of its copies in nanoseconds, -1 where there are none; the version that the
        host must hold at the end, or -1. For parts whose places depend on each other: the first part of the
        tensor, where in the
        tensor the block begins, the part that follows or -1, and the bytes of the tensor; for every other
        block, itself, 0, -1, and its bytes. Then the bytes of a copy on the host; whether the host must hold
        until the end what it has of the block from the start; whether it must do so only if that is read.
    tasks
        Per task: bytes of its blocks and of others that cannot leave; where its algorithms begin; its kind,
        shared by all tasks with the same algorithms; where its lists begin in `lists`, which end where those
        of the next task begin: the blocks that it reads or updates, those that it updates, those that it
        writes first (the largest first), those that nobody uses later; gaps that begin before it; versions
        that it writes. Two more rows end the lists.
    algorithms
        Per task and algorithm: duration and workspace.
    gaps
        Per gap: its block; the tasks before and after; the version that must be offloaded first, or -1;
        whether the block is never on the device during the gap; the gaps of the next part of the tensor and
        of the one
        before, or -1, and that of the first; its kind, shared by all gaps of blocks of its size between tasks
        of the same two kinds; the class of its cost per byte that leaves; whether it is light, so that
        keeping the block is never tried.
    versions
        Per version of a block: the block, the task that writes it (-1 for what the device alone has from the
        start), whether it must be offloaded in any case;
        the version of
        the part that leaves next, or -1, and that of the part that leaves first.
    lists
        The lists of the tasks.
    shares, slows
        If `timed`: per block, the shares of the link that its copies out and in take by themselves; per task,
        the shares of its speed that copies out and in take.
    host_runs, host_reads, host_returns
        Per run on the host, in order: its duration; where its blocks begin in `host_reads`, which are those
        whose last copies out it waits for, and in `host_returns`. One more row ends the lists. What returns
        is a block that comes to the device after the run if it was there at first, and its gap at the start,
        -1 if it has none.
    """

    length: int
    capacity: int
    single: bool
    contiguous: bool
    timed: bool
    host: int
    moves: bool
    sides: bool
    parts: bool
    private: Integers
    homes: Integers
    initial: Integers
    blocks: Integers
    tasks: Integers
    algorithms: Integers
    gaps: Integers
    versions: Integers
    lists: Integers
    shares: Reals
    slows: Reals
    host_runs: Integers
    host_reads: Integers
    host_returns: Integers


class Decisions(NamedTuple):
    """The decisions of local search.

    Attributes
    ----------
    evicted
        Per gap, 1 if its block leaves the device.
    offloads, prefetches
        Versions, and gaps, in the order of their copies.
    hold
        Per gap, the task before which its prefetch is not issued.
    algorithm
        Per task, the index of its algorithm.
    side
        Rule for the hole: first per block's first place, then per gap's prefetch, then per workspace.
    """

    evicted: Integers
    offloads: Integers
    prefetches: Integers
    hold: Integers
    algorithm: Integers
    side: Integers


class _Pool(NamedTuple):
    """Free ranges by address; without addresses, by the time from which they are free.

    The ranges from index `ends[0]` up to, but not including, `ends[1]` count.
    """

    start: Integers
    size: Integers
    time: Integers
    ends: Integers


@_compiled
def _free(pool: _Pool, contiguous: bool, start: int, size: int, time: int) -> None:
    """Return to the pool a range that is free from `time`."""
    head, i = pool.ends
    pool.ends[1] = i + 1
    while i > head and (pool.start[i - 1] > start if contiguous else pool.time[i - 1] > time):
        pool.start[i], pool.size[i], pool.time[i] = pool.start[i - 1], pool.size[i - 1], pool.time[i - 1]
        i -= 1
    pool.start[i], pool.size[i], pool.time[i] = start, size, time


@_compiled
def _settle(pool: _Pool, contiguous: bool, now: int) -> None:
    """Join ranges that are free by `now`, before which nothing more starts, and those free at one time.

    A joined range counts as free when all of it is free.
    """
    head, tail = pool.ends
    if not contiguous:
        while head + 1 < tail and pool.time[head + 1] <= now:
            pool.size[head + 1] += pool.size[head]
            head += 1
        pool.ends[0] = head
        return
    kept = 0
    for i in range(tail):
        joins = (
            kept > 0
            and pool.start[kept - 1] + pool.size[kept - 1] == pool.start[i]
            and (pool.time[kept - 1] == pool.time[i] or (pool.time[kept - 1] <= now and pool.time[i] <= now))
        )
        if joins:
            pool.size[kept - 1] += pool.size[i]
            pool.time[kept - 1] = max(pool.time[kept - 1], pool.time[i])
        else:
            pool.start[kept], pool.size[kept], pool.time[kept] = pool.start[i], pool.size[i], pool.time[i]
            kept += 1
    pool.ends[1] = kept


@_compiled
def _find(pool: _Pool, contiguous: bool, size: int, side: int, ready: int) -> tuple[int, int]:
    """Return address and time of the best place for `size` bytes; the time is `NEVER` if there is none.

    Times up to `ready` are equally good.
    """
    head, n = pool.ends
    if size == 0:
        return 0, 0
    if contiguous and side >= PLACED:
        time = _free_in_full(pool, side - PLACED, size)
        if time != NEVER:
            return side - PLACED, time
    if not contiguous:
        total = 0
        for i in range(head, n):
            total += pool.size[i]
            if total >= size:
                return 0, pool.time[i]
        return -1, NEVER
    best_time, best_at, best_score = NEVER, -1, NEVER
    i = 0
    while i < n:
        # a hole: free ranges next to each other, i to last
        last = i
        length = pool.size[i]
        while last + 1 < n and pool.start[last] + pool.size[last] == pool.start[last + 1]:
            last += 1
            length += pool.size[last]
        if length >= size:
            low, high = pool.start[i], pool.start[i] + length
            for j in range(i, last + 1):
                for end in range(2):
                    at = pool.start[j] if end == 0 else pool.start[j] + pool.size[j] - size
                    if at < low or at + size > high:
                        continue
                    if side == LOW:
                        score = at
                    elif side == HIGH:
                        score = -at
                    elif side == TIGHT:
                        score = length - size
                    else:
                        time = _free_at(pool, at, size, j if end == 0 else i)
                        score = max(time - ready, 0) * 2 + (0 if at == low or at + size == high else 1)
                    better = score < best_score
                    if score == best_score:
                        better = at > best_at if side == EARLY_HIGH else at < best_at
                    if better:
                        best_score, best_at = score, at
                        best_time = _free_at(pool, at, size, j if end == 0 else i)
        i = last + 1
    return best_at, best_time


@_compiled
def _free_at(pool: _Pool, at: int, size: int, first: int) -> int:
    """Return the time from which a range is free that begins in free range `first` or later."""
    time = 0
    for i in range(first, pool.ends[1]):
        if pool.start[i] >= at + size:
            break
        if pool.start[i] + pool.size[i] > at:
            time = max(time, pool.time[i])
    return time


@_compiled
def _take(pool: _Pool, contiguous: bool, at: int, size: int) -> None:
    """Take the place that `_find` has found."""
    n = pool.ends[1]
    if not contiguous:
        i = pool.ends[0]
        while size > 0 and size >= pool.size[i]:
            size -= pool.size[i]
            i += 1
        if size > 0:
            pool.size[i] -= size
        pool.ends[0] = i
        return
    end = at + size
    first = 0
    while pool.start[first] + pool.size[first] <= at:
        first += 1
    last = first
    while last + 1 < n and pool.start[last + 1] < end:
        last += 1
    left = at - pool.start[first]
    right = pool.start[last] + pool.size[last] - end
    kept = (1 if left else 0) + (1 if right else 0)
    removed = last - first + 1
    right_time = pool.time[last]
    shift = kept - removed
    if shift > 0:
        for j in range(n - 1, last, -1):
            pool.start[j + shift], pool.size[j + shift] = pool.start[j], pool.size[j]
            pool.time[j + shift] = pool.time[j]
    elif shift < 0:
        for j in range(last + 1, n):
            pool.start[j + shift], pool.size[j + shift] = pool.start[j], pool.size[j]
            pool.time[j + shift] = pool.time[j]
    i = first
    if left:
        pool.size[i] = left
        i += 1
    if right:
        pool.start[i], pool.size[i], pool.time[i] = end, right, right_time
    pool.ends[1] = n + shift


class _Clearing(NamedTuple):
    """Working memory for the search for a range that can be cleared."""

    there: Integers
    at: Integers
    extent: Integers
    costs: Integers
    waits: Integers
    edges: Integers
    price: Integers
    left: Integers
    moved: Integers
    to: Integers
    hole_start: Integers
    hole_size: Integers


class State(NamedTuple):
    """The program so far, and working memory; each simulation begins anew.

    Attributes
    ----------
    host
        Free ranges of host memory, where it has a budget.
    log
        The steps: kind; task or block; algorithm, or the gap of a prefetch; address.
    traffic, foreseen
        If times are estimates: per direction and copy so far, its begin, its end and its share of the link;
        the same of all copies of the simulation before.
    clock
        Times from which compute, offloads and prefetches are free; the number of logged steps.
    ahead
        The remaining copies: the positions of the next offload and prefetch in their orders; the task from
        which the block of that prefetch has room until its use, or -1 if this is not known; the total time of
        the remaining offloads and of the remaining prefetches; the last task that a block comes back for.
    address, resident, extent, arrival, used, released
        Per block: its address; whether it is resident; the resident bytes of it, or of the tensor whose first
        part it is; the times from which it is there, is no longer used, and is released.
    copying, absent, leaving
        Per block: the end of its last offload; the gap in which it is absent; the gap that begins when it has
        been copied; -1 if there is no such gap.
    gone, loaded, over
        Per gap: whether its block leaves; whether it has come back, or, in a repair, must stay; working
        memory.
    needed, issued, copied, written
        Per version: whether it is offloaded; the task after which it is at the earliest; whether it has been;
        the time when it was written.
    busy, algorithm, rest, change
        Per task: bytes in use; its algorithm; the least time of it and all later tasks; working memory.
    peak, extra
        Per chunk of tasks, the greatest number of bytes in use, and the bytes that were added to all of its
        tasks.
    order, turn
        Working memory to order copies.
    copy_at, first_reads, reads
        Where host memory has a budget: per block, the address of its copy there; per block and per version,
        how often the copy of what is there at first, or of the version, has still to be read; the end counts.
    held, spans
        Where host memory has a budget: per task, the bytes of the copies that have to be there; per copy (of
        each version, then of what is there of each block at first), the first task during which it has to be
        there, and the first one from which not.
    passed
        If times are estimates: the numbers of copies out and in so far; of copies in at which a copy out need
        not look any more, and of copies out at which a copy in need not; of copies out and in at which a run
        need not; the last run, and its begin.
    known
        If times are estimates: the numbers of copies out and in that are foreseen, and whether any are.
    """

    pool: _Pool
    clearing: _Clearing
    host: _Pool
    log: Integers
    traffic: Reals
    foreseen: Reals
    clock: Integers
    ahead: Integers
    address: Integers
    resident: Integers
    extent: Integers
    arrival: Integers
    used: Integers
    released: Integers
    copying: Integers
    absent: Integers
    leaving: Integers
    gone: Integers
    loaded: Integers
    over: Integers
    needed: Integers
    issued: Integers
    copied: Integers
    written: Integers
    busy: Integers
    algorithm: Integers
    rest: Integers
    change: Integers
    peak: Integers
    extra: Integers
    order: Integers
    turn: Integers
    copy_at: Integers
    first_reads: Integers
    reads: Integers
    held: Integers
    spans: Integers
    passed: Integers
    known: Integers


def state_for(problem: Problem) -> State:
    """Return the arrays for simulations: for all steps, and for as many moves as there are tasks."""
    tasks, blocks = problem.length, len(problem.blocks)
    gaps, versions = len(problem.gaps), len(problem.versions)
    ranges = 2 * (blocks + gaps) + tasks + 8

    def room(*counts: int | tuple[int, int]) -> Iterator[Integers]:
        return (np.zeros(count, np.int64) for count in counts)

    edges = 2 * (ranges + blocks)
    copies, returns = 0 if problem.host < 0 else blocks + versions, len(problem.host_returns)
    return State(
        _Pool(*room(ranges, ranges, ranges, 2)),
        _Clearing(
            *room(blocks, blocks, blocks, blocks + 1, ranges + 1, edges, edges, edges),
            *room(blocks, blocks, ranges + 2, ranges + 2),
        ),
        _Pool(*room(*[2 * copies + 8] * 3, 2)),
        np.zeros((3 * (tasks + blocks + gaps) + copies + returns, 4), np.int64),
        *(np.zeros((2, 2 * (gaps + versions + returns) + 1 if problem.timed else 1, 3)) for _ in range(2)),
        *room(4, 6, *[blocks] * 9, *[gaps] * 3, *[versions] * 4, tasks, tasks, tasks + 1, tasks + 2),
        *room(*[tasks // _CHUNK + 1] * 2, *[max(gaps, versions)] * 2, *[blocks] * 2, versions),
        *room(0 if problem.host < 0 else tasks + 1, (copies, 2), 8, 3),
    )


@_compiled
def _fill(array: Integers, value: int) -> None:
    for i in range(len(array)):
        array[i] = value


@_compiled
def _record(state: State, kind: int, what: int, how: int, at: int) -> None:
    step = state.clock[3]
    if step < len(state.log):
        state.log[step, 0], state.log[step, 1], state.log[step, 2], state.log[step, 3] = kind, what, how, at
    state.clock[3] = step + 1


@_compiled
def _before(rising: Integers, value: int) -> int:
    """Return how many of some rising numbers are less than a value."""
    low, high = 0, len(rising)
    while low < high:
        middle = (low + high) // 2
        if rising[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@_compiled
def _move(problem: Problem, state: State, d: int, target: int) -> None:
    """Move a block to a free range of the device."""
    pool, need = state.pool, problem.blocks[d, BYTES]
    time = _free_at(pool, target, need, _NOTHING)
    _take(pool, problem.contiguous, target, need)
    start = max(max(state.clock[0], state.used[d]), max(time, state.arrival[d]))
    end = start + problem.blocks[d, MOVE_NS]
    state.clock[0] = end
    _free(pool, problem.contiguous, state.address[d], need, end)
    state.address[d] = target
    state.arrival[d] = end
    state.used[d] = end
    _record(state, MOVE, d, _NOTHING, target)


@_compiled
def _touching(start: Integers, size: Integers, at: int) -> int:
    """Return the first of some ranges by address that ends after an address, or their number."""
    first = _before(start, at + 1)
    if first > 0 and start[first - 1] + size[first - 1] > at:
        first -= 1
    return first


@_compiled
def _free_now(pool: _Pool, now: int) -> int:
    """Return the bytes that are free by now."""
    total = 0
    for i in range(pool.ends[0], pool.ends[1]):
        if pool.time[i] <= now:
            total += pool.size[i]
    return total


@_compiled
def _largest(pool: _Pool, contiguous: bool) -> int:
    """Return the bytes of the largest hole; without addresses, all free bytes are one."""
    if not contiguous:
        return _free_now(pool, NEVER)
    largest, length = 0, 0
    for i in range(pool.ends[1]):
        joins = i > 0 and pool.start[i - 1] + pool.size[i - 1] == pool.start[i]
        length = pool.size[i] + (length if joins else 0)
        largest = max(largest, length)
    return largest


@_compiled
def _holes_around(pool: _Pool, at: int, size: int, latest: int, start: Integers, length: Integers) -> int:
    """List the holes that are free by `before` in front of and behind a range; return their number."""
    holes = 0
    for i in range(pool.ends[1]):
        if pool.time[i] > latest:
            continue
        for behind in range(2):
            low, high = pool.start[i], pool.start[i] + pool.size[i]
            if behind:
                low = max(low, at + size)
            else:
                high = min(high, at)
            if high <= low:
                continue
            if holes and start[holes - 1] + length[holes - 1] == low:
                length[holes - 1] += high - low
            else:
                start[holes], length[holes] = low, high - low
                holes += 1
    return holes


@_compiled
def _sort(key: Integers, what: Integers, count: int) -> None:
    """Sort the first elements of two arrays by the first one, whose values differ (Shell's way)."""
    step = 1
    while step < count:
        step = 3 * step + 1
    while step > 1:
        step //= 3
        for i in range(step, count):
            value, other, j = key[i], what[i], i
            while j >= step and key[j - step] > value:
                key[j], what[j] = key[j - step], what[j - step]
                j -= step
            key[j], what[j] = value, other


@_compiled
def _clear(problem: Problem, state: State, size: int, only: int, most: int) -> int:
    """Move blocks to free `size` bytes in one range at a cost below `most`; return its address or -1.

    Ranges are tried that begin or end where a block or a hole does, the cheapest first; if `only` is not
    negative, only the range at this address. The blocks in a range move elsewhere, the largest first, each
    into the smallest hole that is large enough. A range costs the moves and the waits for blocks that are
    being copied and holes that
    are not free yet. Blocks move to holes that are free by now, or to any hole if `most` is `NEVER` and there
    is no other way.
    """
    pool, room, now = state.pool, state.clearing, state.clock[0]
    blocks = len(problem.blocks)
    never = NEVER // (blocks + 1)
    total = _free_now(pool, NEVER if most == NEVER else now + most)
    if total < size:
        return -1
    residents = 0
    for d in range(blocks):
        if state.extent[d]:
            room.at[residents], room.there[residents] = state.address[d], d
            residents += 1
    _sort(room.at, room.there, residents)
    there, at_of, extent_of = room.there, room.at[:residents], room.extent[:residents]
    n = pool.ends[1]
    costs, waits, edges, price, left = room.costs, room.waits, room.edges, room.price, room.left
    costs[0], waits[0] = 0, 0
    for i in range(residents):
        extent_of[i] = state.extent[there[i]]
    for i in range(residents):
        costs[i + 1] = costs[i]
        d = there[i]
        while d >= 0 and state.resident[d]:
            move = problem.blocks[d, MOVE_NS]
            if move < 0 or state.arrival[d] == NEVER:
                costs[i + 1] += never
            else:
                costs[i + 1] += move + max(max(state.used[d], state.arrival[d]) - now, 0)
            d = problem.blocks[d, FOLLOWING]
    start = pool.start[:n]
    for i in range(n):
        waits[i + 1] = waits[i] + max(pool.time[i] - now, 0)
    m = 0
    for i in range(n):
        edges[m], edges[m + 1] = pool.start[i], pool.start[i] + pool.size[i] - size
        m += 2
    for i in range(residents):
        d = there[i]
        edges[m], edges[m + 1] = state.address[d], state.address[d] + state.extent[d] - size
        m += 2
    if only >= 0:
        edges[0], m = only, 1
    for e in range(m):
        at = edges[e]
        if at < 0 or at + size > problem.capacity:
            price[e] = NEVER
            continue
        first, hole = _touching(at_of, extent_of, at), _touching(start, pool.size[:n], at)
        price[e] = costs[_before(at_of, at + size)] - costs[first]
        price[e] += waits[_before(start, at + size)] - waits[hole]
    best_at, count = -1, 0
    moved, to, hole_start, hole_size = room.moved, room.to, room.hole_start, room.hole_size
    for late in range(2 if most == NEVER else 1):
        for e in range(m):
            left[e] = price[e]
        for _ in range(_TRIES):
            e = 0
            for i in range(1, m):
                if left[i] < left[e]:
                    e = i
            if left[e] >= min(most, never):
                break
            left[e] = NEVER
            at = edges[e]
            first = _touching(at_of, extent_of, at)
            count = _before(at_of, at + size) - first
            for i in range(count):
                moved[i] = there[first + i]
            holes = _holes_around(pool, at, size, NEVER if late else now, hole_start, hole_size)
            for i in range(1, count):  # the largest first
                d, j = moved[i], i
                while j > 0 and state.extent[moved[j - 1]] < state.extent[d]:
                    moved[j] = moved[j - 1]
                    j -= 1
                moved[j] = d
            fits = True
            for i in range(count):
                need = state.extent[moved[i]]
                last = problem.capacity - problem.blocks[moved[i], SPAN]
                tightest = -1
                for h in range(holes):
                    fitting_hole = hole_size[h] >= need and hole_start[h] <= last
                    if fitting_hole and (tightest < 0 or hole_size[h] < hole_size[tightest]):
                        tightest = h
                if tightest < 0:
                    fits = False
                    break
                to[i] = hole_start[tightest]
                hole_start[tightest] += need
                hole_size[tightest] -= need
            if fits:
                best_at = at
                break
        if best_at >= 0:
            break
    if best_at < 0:
        return -1
    for i in range(count):
        d = moved[i]
        while d >= 0 and state.resident[d]:
            _move(problem, state, d, to[i] + problem.blocks[d, BEGIN])
            d = problem.blocks[d, FOLLOWING]
    return best_at


@_compiled
def _spot(problem: Problem, state: State, d: int, side: int, ready: int) -> tuple[int, int]:
    """Return address and time of the best place for a block that comes; the time is `NEVER` if there is none.

    A part is placed behind the resident parts of its tensor. The first part to come takes a hole with room
    for the whole tensor. A block that is carried comes back to where it was.
    """
    lead, size = problem.blocks[d, LEAD], problem.blocks[d, BYTES]
    if _has_home(problem, state, d):
        return state.address[d], _free_in_full(state.pool, state.address[d], size)
    if problem.blocks[lead, FOLLOWING] < 0:
        return _find(state.pool, problem.contiguous, size, side, ready)
    if state.extent[lead]:
        at = state.address[lead] + problem.blocks[d, BEGIN]
        return at, _free_in_full(state.pool, at, size)
    at, time = _find(state.pool, problem.contiguous, problem.blocks[d, SPAN], side, ready)
    if time == NEVER:
        return at, time
    at += problem.blocks[d, BEGIN]
    return at, _free_at(state.pool, at, size, _NOTHING)


@_compiled
def _has_home(problem: Problem, state: State, d: int) -> bool:
    """Return whether an absent block must come back to its address: a carried one, if addresses count."""
    return problem.contiguous and problem.blocks[d, LASTS] != 0 and state.absent[d] >= 0


@_compiled
def _free_in_full(pool: _Pool, at: int, size: int) -> int:
    """Return the time from which a range is free; `NEVER` if a block lies in it."""
    time, end = 0, at
    for i in range(pool.ends[1]):
        if pool.start[i] >= at + size:
            break
        if pool.start[i] + pool.size[i] > end:
            if pool.start[i] > end:
                return NEVER
            time = max(time, pool.time[i])
            end = pool.start[i] + pool.size[i]
    return time if end >= at + size else NEVER


@_compiled
def _planned(side: int, at: int) -> bool:
    """Return whether a place is the decided one: then other data waits for it, and no block is moved."""
    return side >= PLACED and at == side - PLACED


@_compiled
def _put(problem: Problem, state: State, d: int, side: int, ready: int, clear: int) -> int:
    """Place a block that comes, after moves if that is sooner; return when its place is free, or `NEVER`."""
    at, time = _spot(problem, state, d, side, ready)
    size, lead = problem.blocks[d, BYTES], problem.blocks[d, LEAD]
    if time > ready and clear and problem.moves and not _planned(side, at):
        only = state.address[lead] + problem.blocks[d, BEGIN] if state.extent[lead] else -1
        if _has_home(problem, state, d):
            only = state.address[d]
        rest = (
            problem.blocks[d, SPAN] - problem.blocks[d, BEGIN]
            if state.extent[lead]
            else problem.blocks[d, SPAN]
        )
        cleared = _clear(problem, state, rest, only, NEVER if time == NEVER else time - ready)
        if cleared >= 0:
            at, time = cleared, _free_at(state.pool, cleared, size, _NOTHING)
    if time == NEVER:
        return time
    if size:
        _take(state.pool, problem.contiguous, at, size)
    state.address[d], state.resident[d] = at, 1
    state.extent[lead] = problem.blocks[d, BEGIN] + size
    return time


@_compiled
def _release(problem: Problem, state: State, d: int) -> None:
    state.resident[d] = 0
    lead = problem.blocks[d, LEAD]
    state.extent[lead] = min(state.extent[lead], problem.blocks[d, BEGIN])
    state.released[d] = state.used[d]
    if problem.blocks[d, BYTES]:
        _free(state.pool, problem.contiguous, state.address[d], problem.blocks[d, BYTES], state.used[d])
    _record(state, RELEASE, d, _NOTHING, _NOTHING)


@_compiled
def _tell_copies(problem: Problem, decisions: Decisions, state: State) -> None:
    """Set `gone` and `needed`: which gaps begin with an eviction, and which versions are offloaded."""
    gone, needed = state.gone, state.needed
    for v in range(len(needed)):
        needed[v] = problem.versions[v, DUE_ANYHOW]
    for g in range(len(gone)):
        gone[g] = 1 if decisions.evicted[g] or problem.gaps[g, FORCED] else 0
        if gone[g] and problem.gaps[g, VERSION] >= 0:
            needed[problem.gaps[g, VERSION]] = 1


@_compiled
def _load(problem: Problem, decisions: Decisions, state: State) -> None:
    """Set `busy`, without workspaces and prefetches, and in `gone` mark the gaps that take effect.

    An eviction takes effect once its offload has been issued, which may have to wait for its turn.
    """
    _fill(state.passed, _NOTHING)
    gone, needed, issued, change = state.gone, state.needed, state.issued, state.change
    _tell_copies(problem, decisions, state)
    _fill(issued, _NOTHING)
    latest = -1
    for v in decisions.offloads:
        if needed[v]:
            latest = max(latest, problem.versions[v, WRITER])
            issued[v] = latest
    _fill(change, _NOTHING)
    for g in range(len(gone)):
        first, until = problem.gaps[g, AFTER] + 1, problem.gaps[g, UNTIL]
        size = problem.blocks[problem.gaps[g, BLOCK], BYTES]
        if gone[g]:
            v = problem.gaps[g, VERSION]
            leaves = first if v < 0 else max(first, issued[v] + 1)
            if leaves >= until and not problem.gaps[g, FORCED]:
                gone[g] = 0
                leaves = until
            change[first] += size
            change[leaves] -= size
        else:
            change[first] += size
            change[until] -= size
    running = 0
    for k in range(problem.length):
        running += change[k]
        state.busy[k] = problem.tasks[k, FIXED] + running


@_compiled
def _copy_of(problem: Problem, g: int) -> int:
    """Return the number of the copy that a gap's prefetch reads, of a version or of the first data."""
    v = problem.gaps[g, VERSION]
    return v if v >= 0 else len(problem.versions) + problem.gaps[g, BLOCK]


@_compiled
def _leaves_from(problem: Problem, g: int) -> int:
    """Return the first task during which the copy for a gap has to be on the host."""
    return problem.gaps[g, AFTER] + 1 if problem.gaps[g, VERSION] >= 0 else 0


@_compiled
def _read_until(problem: Problem, g: int) -> int:
    """Return the first task during which the copy for a gap need no longer be on the host; the end counts."""
    if problem.gaps[g, VERSION] < 0 and problem.blocks[problem.gaps[g, BLOCK], LASTS]:
        return problem.length + 1
    return problem.gaps[g, UNTIL]


@_compiled
def _hold(state: State, first: int, until: int, size: int) -> None:
    for k in range(first, min(until, len(state.held))):
        state.held[k] += size


@_compiled
def _has_room(problem: Problem, state: State, g: int, fullest: int) -> bool:
    """Return whether the copy for a gap has room on the host beside those that have to be there.

    A task at which they take much is looked at first, so that most of what has none is known at once.
    """
    c, first, until = _copy_of(problem, g), _leaves_from(problem, g), _read_until(problem, g)
    most = problem.host - problem.blocks[problem.gaps[g, BLOCK], HOST_BYTES]
    for k in range(first - 1, until):
        j = k if k >= first else fullest
        if first <= j < until and state.held[j] > most and not state.spans[c, 0] <= j < state.spans[c, 1]:
            return False
    return True


@_compiled
def _plan_copy(problem: Problem, state: State, g: int) -> None:
    """Count the copy for a gap: it has to be there from the first gap that reads it to the last one."""
    c, first, until = _copy_of(problem, g), _leaves_from(problem, g), _read_until(problem, g)
    size = problem.blocks[problem.gaps[g, BLOCK], HOST_BYTES]
    if state.spans[c, 0] >= state.spans[c, 1]:
        state.spans[c, 0], state.spans[c, 1] = first, until
        _hold(state, first, until, size)
        return
    if first < state.spans[c, 0]:
        _hold(state, first, state.spans[c, 0], size)
        state.spans[c, 0] = first
    if until > state.spans[c, 1]:
        _hold(state, state.spans[c, 1], until, size)
        state.spans[c, 1] = until


@_compiled
def _first_span(problem: Problem, state: State, c: int) -> None:
    """Set from when to when a copy has to be there although no gap reads it."""
    versions = len(problem.versions)
    state.spans[c, 0] = state.spans[c, 1] = 0
    if c >= versions:
        if problem.blocks[c - versions, KEPT]:
            state.spans[c, 1] = len(state.held)
    elif problem.versions[c, DUE_ANYHOW]:
        state.spans[c, 0], state.spans[c, 1] = problem.versions[c, WRITER] + 1, len(state.held)


@_compiled
def _forget_copy(problem: Problem, state: State, g: int) -> None:
    """Count the copy of a gap's block anew, as the gap no longer reads it."""
    c, d = _copy_of(problem, g), problem.gaps[g, BLOCK]
    _hold(state, state.spans[c, 0], state.spans[c, 1], -problem.blocks[d, HOST_BYTES])
    _first_span(problem, state, c)
    _hold(state, state.spans[c, 0], state.spans[c, 1], problem.blocks[d, HOST_BYTES])
    for h in range(len(problem.gaps)):
        if state.gone[h] and _copy_of(problem, h) == c:
            _plan_copy(problem, state, h)


@_compiled
def _plan_copies(problem: Problem, state: State) -> None:
    """Set `spans` and `held`: when the copies have to be on the host that the gaps in `gone` read."""
    held, change, versions = state.held, state.change, len(problem.versions)
    for c in range(len(state.spans)):
        _first_span(problem, state, c)
    for g in range(len(state.gone)):
        if state.gone[g]:
            c, first, until = _copy_of(problem, g), _leaves_from(problem, g), _read_until(problem, g)
            empty = state.spans[c, 0] >= state.spans[c, 1]
            state.spans[c, 0] = first if empty else min(state.spans[c, 0], first)
            state.spans[c, 1] = until if empty else max(state.spans[c, 1], until)
    _fill(change, _NOTHING)
    for c in range(len(state.spans)):
        if state.spans[c, 0] < state.spans[c, 1]:
            d = problem.versions[c, BLOCK] if c < versions else c - versions
            change[state.spans[c, 0]] += problem.blocks[d, HOST_BYTES]
            change[state.spans[c, 1]] -= problem.blocks[d, HOST_BYTES]
    running = 0
    for k in range(len(held)):
        running += change[k]
        held[k] = running


@_compiled
def _raise(load: Integers, peak: Integers, extra: Integers, first: int, until: int, size: int) -> None:
    """Add bytes to the load of some tasks, and keep `peak` and `extra` of their chunks up to date.

    `peak` is the greatest load of a chunk, and `extra` the bytes that were added to all of its tasks.
    """
    k = first
    while k < until:
        c = k // _CHUNK
        end = (c + 1) * _CHUNK
        if k % _CHUNK == 0 and end <= until:
            extra[c] += size
            peak[c] += size
        else:
            for j in range(k, min(end, until)):
                load[j] += size
                peak[c] = max(peak[c], load[j] + extra[c])
        k = end


@_compiled
def _last_over(load: Integers, peak: Integers, extra: Integers, first: int, until: int, limit: int) -> int:
    """Return the last of some tasks whose load exceeds a limit, or the task before the first one."""
    k = until - 1
    while k >= first:
        c = k // _CHUNK
        begin = max(c * _CHUNK, first)
        if peak[c] > limit:
            for j in range(k, begin - 1, -1):
                if load[j] + extra[c] > limit:
                    return j
        k = begin - 1
    return first - 1


@_compiled
def fitting(problem: Problem, k: int, wanted: int, room: int) -> int:
    """Return the wanted algorithm if its workspace fits, else the fastest that fits, or -1 if none does."""
    first, last = problem.tasks[k, ALGORITHMS], problem.tasks[k + 1, ALGORITHMS]
    if problem.algorithms[first + wanted, WORKSPACE] <= room:
        return wanted
    best = -1
    for a in range(last - first):
        if problem.algorithms[first + a, WORKSPACE] <= room and (
            best < 0 or problem.algorithms[first + a, DURATION] < problem.algorithms[first + best, DURATION]
        ):
            best = a
    return best


@_compiled
def _least_rest(problem: Problem, algorithm: Integers, rest: Integers) -> None:
    """Set, per task, the least time of the task and all later ones; 0 stands behind the last task.

    A task whose workspace has no place runs an algorithm that needs less memory.
    """
    rest[problem.length] = 0
    for k in range(problem.length - 1, -1, -1):
        first = problem.tasks[k, ALGORITHMS]
        least = problem.algorithms[first + algorithm[k], DURATION]
        for a in range(first, problem.tasks[k + 1, ALGORITHMS]):
            if problem.algorithms[a, WORKSPACE] < problem.algorithms[first + algorithm[k], WORKSPACE]:
                least = min(least, problem.algorithms[a, DURATION])
        rest[k] = rest[k + 1] + least


@_step
def _choose_algorithms(problem: Problem, decisions: Decisions, state: State) -> bool:
    """Choose the algorithm of each task, and add its workspace to `busy`; return whether all tasks fit."""
    for k in range(problem.length):
        a = fitting(problem, k, decisions.algorithm[k], problem.capacity - state.busy[k])
        if a < 0:
            return False
        state.algorithm[k] = a
        state.busy[k] += problem.algorithms[problem.tasks[k, ALGORITHMS] + a, WORKSPACE]
    return True


@_step
def _list_copies(problem: Problem, state: State) -> None:
    """Set which copies must be made and how long all of them take; no copy has been made yet."""
    ahead, gone, needed = state.ahead, state.gone, state.needed
    _fill(ahead, _NOTHING)
    ahead[ROOM_FROM] = -1
    for v in range(len(needed)):
        needed[v], state.copied[v], state.written[v] = problem.versions[v, DUE_ANYHOW], 0, 0
    for g in range(len(gone)):
        state.loaded[g] = 0
        if gone[g]:
            ahead[PREFETCHES_NS] += problem.blocks[problem.gaps[g, BLOCK], PREFETCH_NS]
            ahead[LAST_USE] = max(ahead[LAST_USE], problem.gaps[g, UNTIL])
            if problem.gaps[g, VERSION] >= 0:
                needed[problem.gaps[g, VERSION]] = 1
    for v in range(len(needed)):
        if needed[v]:
            ahead[OFFLOADS_NS] += problem.blocks[problem.versions[v, BLOCK], OFFLOAD_NS]


@_step
def _count_reads(problem: Problem, state: State) -> None:
    """Set how often each copy on the host is read, if it must be there at the end once more than that."""
    for d in range(len(problem.blocks)):
        state.first_reads[d] = problem.blocks[d, KEPT]
    for v in range(len(state.reads)):
        state.reads[v] = problem.versions[v, DUE_ANYHOW]
    for g in range(len(state.gone)):
        if state.gone[g]:
            v = problem.gaps[g, VERSION]
            if v >= 0:
                state.reads[v] += 1
            else:
                state.first_reads[problem.gaps[g, BLOCK]] += 1


@_step
def _keep_copies(problem: Problem, state: State) -> bool:
    """Give the copies that the host has from the start their places there; return whether all have one."""
    host = state.host
    host.ends[0] = host.ends[1] = 0
    _free(host, _CONTIGUOUS, _NOTHING, problem.host, _NOTHING)
    for d in range(len(problem.blocks)):
        if state.first_reads[d]:
            at, time = _find(host, _CONTIGUOUS, problem.blocks[d, HOST_BYTES], _EARLY, _NOTHING)
            if time == NEVER:
                return False
            if problem.blocks[d, HOST_BYTES]:
                _take(host, _CONTIGUOUS, at, problem.blocks[d, HOST_BYTES])
            state.copy_at[d] = at
            _record(state, KEEP, d, _NOTHING, at)
    return True


@_step
def _read_copy(problem: Problem, state: State, g: int, end: int) -> None:
    """Count down the reads of the copy that a gap's prefetch reads until `end`; the last one drops it."""
    d, v = problem.gaps[g, BLOCK], problem.gaps[g, VERSION]
    if v >= 0:
        state.reads[v] -= 1
        left = state.reads[v]
    else:
        state.first_reads[d] -= 1
        left = state.first_reads[d] + problem.blocks[d, LASTS]
    if left == 0:
        if problem.blocks[d, HOST_BYTES]:
            _free(state.host, _CONTIGUOUS, state.copy_at[d], problem.blocks[d, HOST_BYTES], end)
        _record(state, DROP, d, _NOTHING, _NOTHING)


@_step
def _tell_peaks(problem: Problem, state: State) -> None:
    """Set the greatest number of bytes in use in each chunk of tasks."""
    _fill(state.peak, _NOTHING)
    _fill(state.extra, _NOTHING)
    for k in range(problem.length):
        state.peak[k // _CHUNK] = max(state.peak[k // _CHUNK], state.busy[k])


@_step
def _begin(problem: Problem, state: State) -> None:
    """Begin at time 0 with an empty log and an empty pool; some blocks are absent from the start."""
    pool = state.pool
    pool.ends[0] = pool.ends[1] = 0
    _free(pool, problem.contiguous, _NOTHING, problem.capacity, _NOTHING)
    _fill(state.clock, _NOTHING)
    for d in range(len(problem.blocks)):
        state.address[d] = state.resident[d] = state.extent[d] = 0
        state.arrival[d] = state.used[d] = state.released[d] = state.copying[d] = 0
        state.absent[d] = state.leaving[d] = -1
    for i in range(problem.tasks[0, STARTING], problem.tasks[1, STARTING]):
        g = problem.lists[i]
        if state.gone[g]:
            state.absent[problem.gaps[g, BLOCK]] = g


@_step
def _place_initial(problem: Problem, decisions: Decisions, state: State) -> bool:
    """Place the blocks that start on the device; return whether all have a place."""
    for d in problem.initial:
        if state.absent[d] < 0:
            if _put(problem, state, d, decisions.side[d], _NOTHING, _NOTHING) == NEVER:
                return False
            _record(state, PLACE, d, _NOTHING, state.address[d])
    return True


@_compiled
def _note(state: State, way: int, begin: float, end: float, share: float) -> None:
    """Note a copy that is under way."""
    n = state.passed[way]
    if n and state.traffic[way, n - 1, 1] == begin and state.traffic[way, n - 1, 2] == share:
        state.traffic[way, n - 1, 1] = end
    else:
        state.traffic[way, n, 0], state.traffic[way, n, 1], state.traffic[way, n, 2] = begin, end, share
        state.passed[way] = n + 1


@_compiled
def _copied_by(problem: Problem, state: State, d: int, way: int, begin: int, time: int) -> int:
    """Return about when a copy ends that begins now and takes some time by itself.

    If copies are foreseen, it meets those. Else it meets those so far: while a copy of the other direction is
    under way, each gets its share of the link. What this takes from the other delays all known copies of that
    direction. So that their ends stay, the copies after them wait for it. In the same way, the last run
    passes what the copy takes of its speed on to the next.
    """
    if not time:
        return begin
    own, left, now, other = problem.shares[d, way], float(time), float(begin), 1 - way
    foreseen = state.known[2] > 0
    if own > 0 and not problem.single:
        copies, count = (state.foreseen, state.known) if foreseen else (state.traffic, state.passed)
        i, n = state.passed[2 + way], count[other]
        while i < n and copies[other, i, 1] <= now:
            i += 1
        state.passed[2 + way] = i
        lost = 0.0
        while left > _AT_ONCE:
            until, rate = now + left, 1.0
            if i < n and copies[other, i, 0] + lost < until:
                if copies[other, i, 0] + lost > now:
                    until = copies[other, i, 0] + lost
                else:
                    theirs, their_rate = copies[other, i, 2], 1.0
                    rate = min(1.0, max(0.5, 1.0 - theirs) / own)
                    if theirs > 0 and not foreseen:
                        their_rate = min(1.0, max(0.5, 1.0 - own) / theirs)
                    rest = copies[other, i, 1] + lost - now
                    until = min(now + left / rate, now + rest / their_rate)
                    lost += (until - now) * (1.0 - their_rate)
                    i += 1
            left -= rate * (until - now)
            now = until
        if lost > 0 and n:
            last = float(state.clock[1 + other])
            _note(state, other, last, last + lost, state.traffic[other, n - 1, 2])
            state.clock[1 + other] += int(np.ceil(lost - _AT_ONCE))
    else:
        now += left
    end = int(np.ceil(now - _AT_ONCE))
    if begin < state.clock[0] and not foreseen:
        overlap = min(end, state.clock[0]) - max(begin, state.passed[7])
        taken = problem.slows[state.passed[6], way] * max(overlap, 0)
        state.clock[0] += int(np.ceil(taken - _AT_ONCE))
    _note(state, way, float(begin), float(end), own)
    return end


@_compiled
def _run_by(problem: Problem, state: State, k: int, begin: int, time: int) -> int:
    """Return about when a run ends that begins now and takes some time by itself.

    The copies that are foreseen slow it, or else those so far.
    """
    state.passed[6], state.passed[7] = k, begin
    left, now = float(time), float(begin)
    copies, count = (state.foreseen, state.known) if state.known[2] else (state.traffic, state.passed)
    while left > _AT_ONCE:
        speed, until = 1.0, float(NEVER)
        for way in range(2):
            i = state.passed[4 + way]
            while i < count[way] and copies[way, i, 1] <= now:
                i += 1
            state.passed[4 + way] = i
            if i < count[way] and copies[way, i, 0] > now:
                until = min(until, copies[way, i, 0])
            elif i < count[way]:
                until = min(until, copies[way, i, 1])
                speed -= problem.slows[k, way]
        if speed * (until - now) >= left:
            return int(np.ceil(now + left / speed - _AT_ONCE))
        left -= speed * (until - now)
        now = until
    return int(np.ceil(now - _AT_ONCE))


@_step
def _absent_input(problem: Problem, state: State, k: int) -> int:
    """Return the gap of a task's input that is absent and must come now, or -1."""
    for i in range(problem.tasks[k, INPUTS], problem.tasks[k + 1, INPUTS]):
        if not state.resident[problem.lists[i]]:
            return state.absent[problem.lists[i]]
    return -1


@_step
def _next_prefetch(decisions: Decisions, state: State) -> int:
    """Return the gap whose prefetch is next in order, or -1 when all have come."""
    turn = state.ahead[PREFETCH_TURN]
    while turn < len(decisions.prefetches):
        g = decisions.prefetches[turn]
        if state.gone[g] and not state.loaded[g]:
            break
        turn += 1
        state.ahead[ROOM_FROM] = -1
    state.ahead[PREFETCH_TURN] = turn
    return decisions.prefetches[turn] if turn < len(decisions.prefetches) else -1


@_step
def _ready_at(problem: Problem, state: State, k: int) -> int:
    """Return when compute is free, task k's inputs are there and no block that it updates is copied."""
    ready = state.clock[0]
    for i in range(problem.tasks[k, INPUTS], problem.tasks[k + 1, INPUTS]):
        ready = max(ready, state.arrival[problem.lists[i]])
    for i in range(problem.tasks[k, UPDATES], problem.tasks[k + 1, UPDATES]):
        ready = max(ready, state.copying[problem.lists[i]])
    return ready


@_compiled
def _start_of(problem: Problem, decisions: Decisions, state: State, k: int) -> int:
    """Return when task k would start if it came next."""
    start = _ready_at(problem, state, k)
    scratch = problem.algorithms[problem.tasks[k, ALGORITHMS] + state.algorithm[k], WORKSPACE]
    if not problem.contiguous:
        size = scratch
        for i in range(problem.tasks[k, OUTPUTS], problem.tasks[k + 1, OUTPUTS]):
            size += problem.blocks[problem.lists[i], BYTES]
        if size:
            _, time = _find(state.pool, problem.contiguous, size, _NOTHING, _NOTHING)
            start = max(start, time)
        return start
    for i in range(problem.tasks[k, OUTPUTS], problem.tasks[k + 1, OUTPUTS]):
        d = problem.lists[i]
        if problem.blocks[d, LEAD] != d:
            continue
        _, time = _find(state.pool, problem.contiguous, problem.blocks[d, SPAN], decisions.side[d], start)
        if time != NEVER:
            start = max(start, time)
    if scratch:
        side = decisions.side[len(problem.blocks) + len(problem.gaps) + k]
        _, time = _find(state.pool, problem.contiguous, scratch, side, start)
        if time != NEVER:
            start = max(start, time)
    return start


@_step
def _may_come(problem: Problem, decisions: Decisions, state: State, k: int, g: int) -> bool:
    """Return whether the prefetch that is next in order goes before task k.

    Its block must have room at every task until its use, the prefetch is not held, and it can start no later
    than the task.
    """
    d = problem.gaps[g, BLOCK]
    if state.ahead[ROOM_FROM] < 0:
        limit = problem.capacity - problem.blocks[d, BYTES]
        over = _last_over(state.busy, state.peak, state.extra, k, problem.gaps[g, UNTIL], limit)
        state.ahead[ROOM_FROM] = over + 1
    if state.ahead[ROOM_FROM] > k or decisions.hold[g] > k:
        return False
    start = _start_of(problem, decisions, state, k)
    free_at = max(state.clock[2], state.released[d])
    _, time = _spot(problem, state, d, decisions.side[len(problem.blocks) + g], free_at)
    return time != NEVER and max(free_at, time) <= start


@_compiled
def _prefetch(problem: Problem, decisions: Decisions, state: State, k: int, g: int) -> bool:
    """Issue the prefetch of a gap before task k; return whether its block has a place."""
    d = problem.gaps[g, BLOCK]
    side, ready = decisions.side[len(problem.blocks) + g], max(state.clock[2], state.released[d])
    time = _put(problem, state, d, side, ready, _ANYHOW)
    if time == NEVER:
        return False
    start = max(max(state.clock[2], time), state.released[d])
    end = start + problem.blocks[d, PREFETCH_NS]
    if problem.timed:
        end = _copied_by(problem, state, d, IN, start, problem.blocks[d, PREFETCH_NS])
    state.clock[2] = end
    if problem.single:
        state.clock[1] = end
    state.arrival[d], state.used[d] = end, end
    _record(state, PREFETCH, d, g, state.address[d])
    if problem.host >= 0:
        _read_copy(problem, state, g, end)
    _raise(state.busy, state.peak, state.extra, k, problem.gaps[g, UNTIL], problem.blocks[d, BYTES])
    state.absent[d], state.loaded[g] = -1, 1
    state.ahead[PREFETCHES_NS] -= problem.blocks[d, PREFETCH_NS]
    state.ahead[ROOM_FROM] = -1
    return True


@_compiled
def _let_stay(problem: Problem, state: State, k: int) -> None:
    """Keep the blocks that still wait for an offload, and that task k reads or that must be there at the end.

    Host memory had no room for them in time.
    """
    first, last = problem.tasks[k, INPUTS], problem.tasks[k + 1, INPUTS]
    for i in range(last - first if k < problem.length else len(problem.blocks)):
        d = problem.lists[first + i] if k < problem.length else i
        g = state.leaving[d]
        if g < 0 or g == len(problem.gaps):
            continue
        v = problem.gaps[g, VERSION]
        state.leaving[d], state.gone[g], state.ahead[ROOM_FROM] = -1, 0, -1
        state.ahead[PREFETCHES_NS] -= problem.blocks[d, PREFETCH_NS]
        state.reads[v] -= 1
        if not state.reads[v]:
            state.needed[v] = 0
            state.ahead[OFFLOADS_NS] -= problem.blocks[d, OFFLOAD_NS]


@_step
def _prefetch_before(problem: Problem, decisions: Decisions, state: State, k: int) -> bool:
    """Issue the prefetches that come before task k, or after the last task; return whether they have room.

    The inputs of the task come whatever their order. Other prefetches come in order, as long as they may.
    """
    if problem.host >= 0:
        _let_stay(problem, state, k)
    while True:
        g = _absent_input(problem, state, k) if k < problem.length else -1
        if g < 0:
            g = _next_prefetch(decisions, state)
            if g < 0 or state.absent[problem.gaps[g, BLOCK]] != g:
                return True
            if k < problem.length and not _may_come(problem, decisions, state, k, g):
                return True
        if not _prefetch(problem, decisions, state, k, g):
            return False
        if problem.host >= 0:
            _offload_now(problem, decisions, state, k - 1)


@_step
def _place_outputs(
    problem: Problem, decisions: Decisions, state: State, k: int, ready: int
) -> tuple[int, int]:
    """Place the outputs of task k; return when it was ready for the last one, and when all places are free.

    The second time is `NEVER` if an output has no place. Moves may take compute time in between.
    """
    start = ready
    for i in range(problem.tasks[k, OUTPUTS], problem.tasks[k + 1, OUTPUTS]):
        d = problem.lists[i]
        ready = max(ready, state.clock[0])
        time = _put(problem, state, d, decisions.side[d], ready, _ANYHOW)
        if time == NEVER:
            return ready, NEVER
        start = max(start, time)
        state.used[d], state.arrival[d] = 0, NEVER
    return ready, start


@_step
def _place_workspace(
    problem: Problem, decisions: Decisions, state: State, k: int, ready: int, start: int
) -> tuple[int, int, int]:
    """Place the workspace of task k; return the algorithm, the address, and when the task can start.

    If the workspace would have to wait, a place is cleared by moves, provided that these take less time than
    the wait, and less than the fastest algorithm whose workspace has a place. If it has no place, that
    algorithm runs; if there is none, -1 is returned. Without a workspace, the address is -1.
    """
    pool, a, first = state.pool, state.algorithm[k], problem.tasks[k, ALGORITHMS]
    scratch = problem.algorithms[first + a, WORKSPACE]
    if not scratch:
        return a, -1, start
    side = decisions.side[len(problem.blocks) + len(problem.gaps) + k]
    at, time = _find(pool, problem.contiguous, scratch, side, ready)
    start = max(start, state.clock[0])
    if time > start and problem.moves and not _planned(side, at):
        most = time if time == NEVER else time - start
        b = fitting(problem, k, a, _largest(pool, problem.contiguous))
        if b >= 0:  # which may take less time than moves
            durations = problem.algorithms[first:, DURATION]
            most = min(most, durations[b] - durations[a])
        cleared = _clear(problem, state, scratch, -1, most)
        if cleared >= 0:
            at, time = cleared, _free_at(pool, cleared, scratch, _NOTHING)
    if time == NEVER:
        a = fitting(problem, k, a, _largest(pool, problem.contiguous))
        if a < 0:
            return -1, -1, NEVER
        scratch = problem.algorithms[first + a, WORKSPACE]
        if not scratch:
            return a, -1, start
        at, time = _find(pool, problem.contiguous, scratch, side, ready)
    _take(pool, problem.contiguous, at, scratch)
    return a, at, max(start, time)


@_step
def _occupy(problem: Problem, state: State, k: int, a: int, at: int, start: int) -> None:
    """Log a run and what it occupies until its end: compute, blocks and its workspace."""
    row = problem.tasks[k, ALGORITHMS] + a
    end = start + problem.algorithms[row, DURATION]
    if problem.timed:
        end = _run_by(problem, state, k, start, problem.algorithms[row, DURATION])
    state.clock[0] = end
    _record(state, RUN, k, a, at)
    for i in range(problem.tasks[k, INPUTS], problem.tasks[k + 1, INPUTS]):
        d = problem.lists[i]
        state.used[d] = max(state.used[d], end)
    for i in range(problem.tasks[k, OUTPUTS], problem.tasks[k + 1, OUTPUTS]):
        d = problem.lists[i]
        state.used[d] = end
        state.arrival[d] = end
        _record(state, PLACE, d, _NOTHING, state.address[d])
    if at >= 0:
        _free(state.pool, problem.contiguous, at, problem.algorithms[row, WORKSPACE], end)
    for i in range(problem.tasks[k, WRITTEN], problem.tasks[k + 1, WRITTEN]):
        state.written[problem.lists[i]] = end


@_step
def _run(problem: Problem, decisions: Decisions, state: State, stalls: Integers, k: int) -> bool:
    """Issue the run of a task; return whether its outputs and its workspace have places."""
    ready, start = _place_outputs(problem, decisions, state, k, _ready_at(problem, state, k))
    if start == NEVER:
        return False
    a, at, start = _place_workspace(problem, decisions, state, k, ready, start)
    if a < 0:
        return False
    start = max(start, _ready_at(problem, state, k))  # something was moved, perhaps
    stalls[k] = start - state.clock[0]
    _occupy(problem, state, k, a, at, start)
    return True


@_compiled
def _may_leave(problem: Problem, state: State, v: int, k: int) -> bool:
    """Return whether a version may go out after task k, or must wait, for others need its room until then."""
    most = problem.host - problem.blocks[problem.versions[v, BLOCK], HOST_BYTES]
    j = k + 1
    while j < min(state.spans[v, 0], len(state.held)) and state.held[j] <= most:
        j += 1
    return j >= min(state.spans[v, 0], len(state.held))


@_step
def _offload(problem: Problem, decisions: Decisions, state: State, k: int) -> None:
    """Issue the offloads that are next in order after task k, up to the first version that is not written.

    Where host memory has a budget, also up to the first one that has no room there before more copies have
    been read. Blocks that only waited for their offload leave.
    """
    turn, versions, gaps = state.ahead[OFFLOAD_TURN], len(problem.versions), len(problem.gaps)
    while turn < versions:
        v = decisions.offloads[turn]
        if state.needed[v]:
            if problem.versions[v, WRITER] > k:
                break
            d = problem.versions[v, BLOCK]
            begin, at = max(max(state.clock[1], state.written[v]), state.arrival[d]), -1
            if problem.host >= 0:
                if not _may_leave(problem, state, v, k):
                    break
                at, time = _find(state.host, _CONTIGUOUS, problem.blocks[d, HOST_BYTES], _EARLY, begin)
                if time == NEVER:
                    break
                if problem.blocks[d, HOST_BYTES]:
                    _take(state.host, _CONTIGUOUS, at, problem.blocks[d, HOST_BYTES])
                state.copy_at[d] = at
                begin = max(begin, time)
            done = begin + problem.blocks[d, OFFLOAD_NS]
            if problem.timed:
                done = _copied_by(problem, state, d, OUT, begin, problem.blocks[d, OFFLOAD_NS])
            state.ahead[OFFLOADS_NS] -= problem.blocks[d, OFFLOAD_NS]
            state.clock[1] = done
            if problem.single:
                state.clock[2] = done
            state.used[d] = max(state.used[d], done)
            state.copying[d] = done
            state.copied[v] = 1
            _record(state, OFFLOAD, d, _NOTHING, at)
            if state.leaving[d] >= 0:
                if state.leaving[d] < gaps:
                    state.absent[d] = state.leaving[d]
                state.leaving[d] = -1
                _release(problem, state, d)
        turn += 1
    state.ahead[OFFLOAD_TURN] = turn


@_compiled
def _offload_now(problem: Problem, decisions: Decisions, state: State, k: int) -> None:
    """Issue the offloads that had no room on the host after task k, as far as they have room now."""
    _offload(problem, decisions, state, k)


@_step
def _let_leave(problem: Problem, state: State, k: int) -> None:
    """Release blocks that are evicted after task k or not used later; a block that is copied leaves then."""
    for i in range(problem.tasks[k + 1, STARTING], problem.tasks[k + 2, STARTING]):
        g = problem.lists[i]
        if state.gone[g]:
            d, v = problem.gaps[g, BLOCK], problem.gaps[g, VERSION]
            if v < 0 or state.copied[v]:
                state.absent[d] = g
                _release(problem, state, d)
            else:
                state.leaving[d] = g
    for i in range(problem.tasks[k, DEAD], problem.tasks[k + 1, DEAD]):
        d = problem.lists[i]
        v = problem.blocks[d, DUE]
        if v >= 0 and not state.copied[v]:
            state.leaving[d] = len(problem.gaps)
        else:
            _release(problem, state, d)


@_step
def _least_end(problem: Problem, state: State, k: int) -> int:
    """Return the least makespan of a program that continues in this way after task k.

    All remaining runs and copies take their time, and the block that comes back last is used after that.
    """
    ahead, clock, rest = state.ahead, state.clock, state.rest
    least = max(clock[0] + rest[k + 1], clock[1] + ahead[OFFLOADS_NS])
    if ahead[PREFETCHES_NS]:
        then = ahead[OFFLOADS_NS] if problem.single else rest[ahead[LAST_USE]]
        least = max(least, clock[2] + ahead[PREFETCHES_NS] + then)
    return least


@_step
def _is_complete(decisions: Decisions, state: State) -> bool:
    """Return whether all copies are made, and the log has room for all steps."""
    if state.ahead[PREFETCH_TURN] < len(decisions.prefetches):
        return False
    for turn in range(state.ahead[OFFLOAD_TURN], len(decisions.offloads)):
        if state.needed[decisions.offloads[turn]]:
            return False
    return state.clock[3] <= len(state.log)


@_step
def _return(problem: Problem, state: State, d: int, ready: int) -> bool:
    """Issue the prefetch of what the host has updated by a time; return whether it has room until the end."""
    ready = max(max(state.clock[2], state.released[d]), ready)
    time = _put(problem, state, d, _NOTHING, ready, _NOTHING)
    if time == NEVER:
        return False
    start = max(ready, time)
    end = start + problem.blocks[d, PREFETCH_NS]
    if problem.timed:
        end = _copied_by(problem, state, d, IN, start, problem.blocks[d, PREFETCH_NS])
    state.clock[2] = end
    _record(state, PREFETCH, d, _NONE, state.address[d])
    return True


@_compiled
def _host_end(problem: Problem, state: State) -> int:
    """Return when the last run on the host ends, each after the one before and what it reads; 0 if none.

    What runs have updated returns meanwhile to the device, if it was there at first. `NEVER` is returned if
    it has no room.
    """
    end = 0
    for r in range(len(problem.host_runs) - 1):
        for i in range(problem.host_runs[r, 1], problem.host_runs[r + 1, 1]):
            end = max(end, state.copying[problem.host_reads[i]])
        end += problem.host_runs[r, 0]
        for i in range(problem.host_runs[r, 2], problem.host_runs[r + 1, 2]):
            d, g = problem.host_returns[i]
            if (g < 0 or not state.gone[g]) and not _return(problem, state, d, end):
                return NEVER
    return end


@_compiled
def _issue(
    problem: Problem, decisions: Decisions, state: State, stalls: Integers, allowed: int
) -> tuple[int, int]:
    """Simulate once, with the copies that are foreseen, if any; for the rest see `simulate`."""
    tasks, pool, clock = problem.length, state.pool, state.clock
    _load(problem, decisions, state)
    if not _choose_algorithms(problem, decisions, state):
        return IMPOSSIBLE + tasks, 0
    _list_copies(problem, state)
    if problem.host >= 0:
        _count_reads(problem, state)
        _plan_copies(problem, state)
    _least_rest(problem, state.algorithm, state.rest)
    _tell_peaks(problem, state)
    _begin(problem, state)
    if problem.host >= 0 and not _keep_copies(problem, state):
        return IMPOSSIBLE + tasks, 0
    if not _place_initial(problem, decisions, state):
        return IMPOSSIBLE + tasks, 0
    for k in range(tasks + 1):
        if not _prefetch_before(problem, decisions, state, k):
            return IMPOSSIBLE + tasks - k, clock[3]
        if k == tasks:
            break
        if not _run(problem, decisions, state, stalls, k):
            return IMPOSSIBLE + tasks - k, clock[3]
        _offload(problem, decisions, state, k)
        _let_leave(problem, state, k)
        least = _least_end(problem, state, k)
        if least > allowed:
            return least, clock[3]
        now = clock[0] if pool.ends[1] - pool.ends[0] > _MANY else min(clock[0], clock[2])
        _settle(pool, problem.contiguous, now)
        if problem.host >= 0:
            _settle(state.host, _CONTIGUOUS, clock[1])
    if not _is_complete(decisions, state):
        return IMPOSSIBLE, 0
    ends = _host_end(problem, state)
    if ends == NEVER or clock[3] > len(state.log):
        return IMPOSSIBLE, 0
    return max(max(clock[0], clock[1]), max(clock[2], ends)), clock[3]


@_compiled
def _foresee(state: State) -> None:
    """Take the copies of this simulation for those that the next one meets."""
    for way in range(2):
        state.known[way] = state.passed[way]
        for i in range(state.passed[way]):
            for j in range(3):
                state.foreseen[way, i, j] = state.traffic[way, i, j]
    state.known[2] = 1


@_compiled
def simulate(
    problem: Problem, decisions: Decisions, state: State, stalls: Integers, allowed: int
) -> tuple[int, int]:
    """Simulate decisions; return the makespan in nanoseconds and the number of steps in the state's log.

    Where times depend on what is issued later, the decisions are simulated twice. The second time, the copies
    of the first are foreseen.

    Parameters
    ----------
    problem, decisions
        What to simulate.
    state
        Working memory; receives the steps.
    stalls
        Receives, per task, the time for which compute waits before it.
    allowed
        Greatest makespan of use. A program that is certain to take longer is given up. The makespan returned
        is then greater than this and at most the true one, and neither steps nor stalls are complete.

    Returns
    -------
    tuple of int
        A makespan of `IMPOSSIBLE` or more says that memory, or the log, was too small; the steps end there.
    """
    state.known[2] = 0
    makespan, steps = _issue(problem, decisions, state, stalls, allowed)
    if problem.timed and makespan <= allowed:
        _foresee(state)
        makespan, steps = _issue(problem, decisions, state, stalls, allowed)
    return makespan, steps


class Search(NamedTuple):
    """The state of a search that can be stopped and continued.

    Attributes
    ----------
    current, best, trial
        Decisions: the current ones, the best so far, and working memory for the next.
    history
        Makespans of earlier moves, which are overwritten in turn.
    counts
        Number of evaluations; makespan of `current`; makespan of `best`; makespan of the best program since
        the search last started from given decisions; the number of evaluations when that was found.
    random
        State of the random numbers.
    stalls
        Per task, the time for which compute waits before it in `current`; and working memory for the next.
    placed
        If `current` runs out of memory: the number of blocks that have a place then, followed by the position
        in `side` of the rule that chose each place.
    """

    current: Decisions
    best: Decisions
    trial: Decisions
    history: Integers
    counts: Integers
    random: NDArray[np.uint64]
    stalls: Integers
    placed: Integers


@_compiled
def _draw(random: NDArray[np.uint64], below: int) -> int:
    """Return a random integer that is at least 0 and below a limit (splitmix64)."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    drawn: Any = np.int64((z >> np.uint64(1)) % np.uint64(below))
    return drawn


@_compiled
def _assign(target: Integers, source: Integers) -> None:
    for i in range(len(source)):
        target[i] = source[i]


@_compiled
def _copy(target: Decisions, source: Decisions) -> None:
    _assign(target.evicted, source.evicted)
    _assign(target.offloads, source.offloads)
    _assign(target.prefetches, source.prefetches)
    _assign(target.hold, source.hold)
    _assign(target.algorithm, source.algorithm)
    _assign(target.side, source.side)


@_compiled
def leanest(problem: Problem, k: int) -> int:
    """Return the least workspace of a task."""
    least = problem.algorithms[problem.tasks[k, ALGORITHMS], WORKSPACE]
    for a in range(problem.tasks[k, ALGORITHMS], problem.tasks[k + 1, ALGORITHMS]):
        least = min(least, problem.algorithms[a, WORKSPACE])
    return least


@_compiled
def _leaves_before(problem: Problem, g: int, h: int) -> bool:
    """Return whether the first of two gaps is the better one to evict."""
    if problem.gaps[g, COST] != problem.gaps[h, COST]:
        return problem.gaps[g, COST] < problem.gaps[h, COST]
    return problem.gaps[g, UNTIL] > problem.gaps[h, UNTIL]


@_compiled
def repair(
    problem: Problem, decisions: Decisions, state: State, random: NDArray[np.uint64], kept: int, noise: int
) -> bool:
    """Evict where live blocks exceed the pool, but not in gap `kept`; return whether this was possible.

    Of the gaps over the task, one with a low cost per byte is taken, and of these one that ends late. `noise`
    is the number of random gaps to choose from; 0 stands for all. Of the parts of a tensor, the last resident
    one comes first.

    Where host memory has a budget, gaps whose copies have room there come first. Where copies exceed it
    nevertheless, blocks that free little on the device for their bytes on the host stay, and others leave.
    """
    if problem.host < 0:
        return _fit_device(problem, decisions, state, random, kept, noise)
    _fill(state.loaded, _NOTHING)
    for _ in range(_ROUNDS):
        if not _fit_device(problem, decisions, state, random, kept, noise):
            return False
        if _fit_host(problem, decisions, state, random, kept, noise):
            return True
    return False


@_compiled
def _cheapest(
    problem: Problem, state: State, random: NDArray[np.uint64], count: int, noise: int, fullest: int
) -> int:
    """Return where in `over` the gap is that is best to evict, among the first `count` or some random ones.

    Gaps whose copies have room on the host come first. In `order` a gap that has none is marked, for copies
    only get more before the next task.
    """
    over, fitting_pick, pick = state.over, -1, -1
    for i in range(count if noise == 0 else min(noise, count)):
        j = i if noise == 0 else _draw(random, count)
        g = over[j]
        if fitting_pick >= 0 and not _leaves_before(problem, g, over[fitting_pick]):
            continue
        if problem.host < 0 or (not state.order[g] and _has_room(problem, state, g, fullest)):
            fitting_pick = j
            continue
        state.order[g] = 1
        if pick < 0 or _leaves_before(problem, g, over[pick]):
            pick = j
    return fitting_pick if fitting_pick >= 0 else pick


@_compiled
def _fit_device(
    problem: Problem, decisions: Decisions, state: State, random: NDArray[np.uint64], kept: int, noise: int
) -> bool:
    """Evict where live blocks exceed the pool; return whether this was possible."""
    tasks, gaps, limited = problem.length, len(problem.gaps), problem.host >= 0
    gone, load, over = state.gone, state.busy, state.over
    _load(problem, decisions, state)
    if limited:
        _plan_copies(problem, state)
    for k in range(tasks):
        excess = load[k] + leanest(problem, k) - problem.capacity
        if excess <= 0:
            continue
        count, fullest = 0, 0
        if limited:
            for j in range(len(state.held)):
                if state.held[j] > state.held[fullest]:
                    fullest = j
        for g in range(gaps):
            following = problem.gaps[g, NEXT_PART]
            last = following < 0 or gone[following]
            if last and g != kept and not gone[g] and problem.gaps[g, AFTER] < k < problem.gaps[g, UNTIL]:
                if limited and state.loaded[g]:
                    continue
                over[count] = g
                state.order[g] = 0
                count += 1
        while excess > 0:
            if count == 0:
                return False
            pick = _cheapest(problem, state, random, count, noise, fullest)
            g = over[pick]
            before = problem.gaps[g, PART_BEFORE]
            if before >= 0 and before != kept and not gone[before]:
                over[pick] = before
                state.order[before] = 0
            else:
                over[pick] = over[count - 1]
                count -= 1
            decisions.evicted[g] = 1
            gone[g] = 1
            if limited:
                _plan_copy(problem, state, g)
            size = problem.blocks[problem.gaps[g, BLOCK], BYTES]
            for j in range(problem.gaps[g, AFTER] + 1, problem.gaps[g, UNTIL]):
                load[j] -= size
            excess -= size
    return True


@_compiled
def _fit_host(
    problem: Problem, decisions: Decisions, state: State, random: NDArray[np.uint64], kept: int, noise: int
) -> bool:
    """Keep blocks on the device where copies exceed host memory; return whether none did.

    Of the gaps whose copies are there, one that frees few bytes on the device per byte on the host is kept;
    it stays so for the rest of this repair.
    """
    gone, over, held = state.gone, state.over, state.held
    fits = True
    for k in range(problem.length):
        if held[k] <= problem.host:
            continue
        fits = False
        count = 0
        for g in range(len(problem.gaps)):
            c = _copy_of(problem, g)
            if (
                gone[g]
                and not problem.gaps[g, FORCED]
                and g != kept
                and state.spans[c, 0] <= k < state.spans[c, 1]
            ):
                over[count] = g
                count += 1
        while held[k] > problem.host and count:
            pick, least = -1, 0.0
            for i in range(count if noise == 0 else min(noise, count)):
                j = i if noise == 0 else _draw(random, count)
                d = problem.gaps[over[j], BLOCK]
                frees = problem.gaps[over[j], AFTER] < k < problem.gaps[over[j], UNTIL]
                worth = problem.blocks[d, BYTES] / max(problem.blocks[d, HOST_BYTES], 1) if frees else 0.0
                if pick < 0 or worth < least:
                    pick, least = j, worth
            g = over[pick]
            over[pick] = over[count - 1]
            count -= 1
            while g >= 0:  # and the parts before
                if gone[g] and not problem.gaps[g, FORCED]:
                    decisions.evicted[g] = gone[g] = 0
                    state.loaded[g] = 1
                    _forget_copy(problem, state, g)
                g = problem.gaps[g, PART_BEFORE]
    return fits


@_compiled
def _shift(order: Integers, random: NDArray[np.uint64]) -> None:
    """Move one element of an order a few places forward or back."""
    count = len(order)
    if count < 2:
        return
    i = _draw(random, count)
    distance = 1
    while distance < count and _draw(random, 2):
        distance *= 2
    j = i + 1 + _draw(random, distance) if _draw(random, 2) else i - 1 - _draw(random, distance)
    j = min(max(j, 0), count - 1)
    element = order[i]
    while i < j:
        order[i] = order[i + 1]
        i += 1
    while i > j:
        order[i] = order[i - 1]
        i -= 1
    order[i] = element


@_compiled
def _shift_parts(
    state: State, order: Integers, first: Integers, following: Integers, random: NDArray[np.uint64]
) -> None:
    """Move one element of an order, or all parts of its tensor, which are then side by side."""
    if len(order) == 0:
        return
    if _draw(random, 2):
        _shift(order, random)
        arrange(order, first, following, state.turn)
        return
    count = len(order)
    old = state.order[:count]
    _assign(old, order)
    i = _draw(random, count)
    group = first[old[i]]
    size = 0
    for element in old:
        size += first[element] == group
    distance = size
    while distance < count and _draw(random, 2):
        distance *= 2
    j = i + _draw(random, distance + 1) if _draw(random, 2) else i - _draw(random, distance + 1)
    j = min(max(j, 0), count - size)
    others = 0
    for element in old:
        if first[element] != group:
            order[others if others < j else others + size] = element
            others += 1
    element = group
    while element >= 0:
        order[j] = element
        element = following[element]
        j += 1


@_compiled
def arrange(order: Integers, first: Integers, following: Integers, turn: Integers) -> None:
    """Put each tensor's parts in order, at the positions in the order that its parts have now.

    `turn` is working memory for as many elements.
    """
    _fill(turn, _NONE)
    for i in range(len(order)):
        group = first[order[i]]
        element = group if turn[group] < 0 else turn[group]
        order[i] = element
        turn[group] = following[element]


@_compiled
def _reach(problem: Problem, random: NDArray[np.uint64]) -> int:
    """Return the distance in tasks within which a change is made to all elements of one kind.

    Three times in four, the distance is 0, which stands for one element only. Otherwise it is the greatest
    power of two below the number of tasks, halved up to five times.
    """
    if _draw(random, 4):
        return 0
    reach = 1
    while 2 * reach < problem.length:
        reach *= 2
    return reach >> _draw(random, 6)


@_compiled
def _flip(problem: Problem, decisions: Decisions, g: int, reach: int) -> None:
    """Evict a gap and the parts that follow, or keep it and the parts before; also its kind within reach.

    Light gaps are not kept.
    """
    evicted = 1 - decisions.evicted[g]
    neighbour = NEXT_PART if evicted else PART_BEFORE
    for i in range(len(problem.gaps) if reach else 1):
        h = i if reach else g
        distance = abs(problem.gaps[h, AFTER] - problem.gaps[g, AFTER])
        alike = problem.gaps[h, GAP_KIND] == problem.gaps[g, GAP_KIND] and distance <= reach
        if alike and (evicted or not problem.gaps[h, LIGHT]):
            while h >= 0:
                decisions.evicted[h] = evicted
                h = problem.gaps[h, neighbour]


@_compiled
def _near_stall(search: Search, problem: Problem) -> int:
    """Return a task, more often than not one with a long stall before it."""
    tasks = problem.length
    k = _draw(search.random, tasks)
    for _ in range(3):
        other = _draw(search.random, tasks)
        if search.stalls[0, other] > search.stalls[0, k]:
            k = other
    return k


@_compiled
def _any_side(random: NDArray[np.uint64]) -> int:
    side: Any = (LOW, HIGH, EARLY_LOW, EARLY_HIGH, TIGHT)[_draw(random, 5)]
    return side


@_compiled
def _change(problem: Problem, search: Search, state: State) -> bool:
    """Change the trial at random; return whether it may be possible."""
    trial, random = search.trial, search.random
    tasks, blocks, gaps = problem.length, len(problem.blocks), len(problem.gaps)
    if problem.sides and search.counts[1] >= IMPOSSIBLE and search.placed[0] and _draw(random, 2):
        # something is in the way: one of these lies in the wrong place
        trial.side[search.placed[1 + _draw(random, search.placed[0])]] = _any_side(random)
        return True
    dice = _draw(random, 80 + min(20, max(_SIDES // tasks, 1)) if problem.sides else 80)
    if dice < 35 and gaps:
        g = _draw(random, gaps)
        if dice < 15:  # one that lies over a stall
            k = _near_stall(search, problem)
            for _ in range(_DRAWS):
                if problem.gaps[g, AFTER] < k < problem.gaps[g, UNTIL]:
                    break
                g = _draw(random, gaps)
        reach = _reach(problem, random)
        if trial.evicted[g]:
            _flip(problem, trial, g, reach)
            return repair(problem, trial, state, random, g, 1 + _draw(random, 4))
        _flip(problem, trial, g, reach)
        if _draw(random, 2):  # and keep another in its place
            for _ in range(_DRAWS):
                h = _draw(random, gaps)
                if (
                    h != g
                    and trial.evicted[h]
                    and problem.gaps[h, AFTER] < problem.gaps[g, UNTIL]
                    and problem.gaps[h, UNTIL] > problem.gaps[g, AFTER]
                ):
                    _flip(problem, trial, h, reach)
                    return repair(problem, trial, state, random, h, 1 + _draw(random, 4))
        return True
    if dice < 50:
        if not problem.parts:
            _shift(trial.offloads, random)
        else:
            first, following = problem.versions[:, LEAVES_FIRST], problem.versions[:, LEAVES_NEXT]
            _shift_parts(state, trial.offloads, first, following, random)
        return True
    if dice < 60 and gaps:
        if not problem.parts:
            _shift(trial.prefetches, random)
        else:
            first, following = problem.gaps[:, FIRST_PART], problem.gaps[:, NEXT_PART]
            _shift_parts(state, trial.prefetches, first, following, random)
        return True
    if dice < 65 and gaps:
        g = _draw(random, gaps)
        first, until = problem.gaps[g, AFTER] + 1, problem.gaps[g, UNTIL]
        trial.hold[g] = 0 if _draw(random, 3) == 0 else first + _draw(random, until - first + 1)
        return True
    if dice < 80:
        k = _near_stall(search, problem) if _draw(random, 2) else _draw(random, tasks)
        for _ in range(_DRAWS):
            if problem.tasks[k + 1, ALGORITHMS] - problem.tasks[k, ALGORITHMS] > 1:
                break
            k = _draw(random, tasks)
        a = _draw(random, problem.tasks[k + 1, ALGORITHMS] - problem.tasks[k, ALGORITHMS])
        reach = _reach(problem, random)
        for j in range(max(k - reach, 0), min(k + reach + 1, tasks)):
            if problem.tasks[j, TASK_KIND] == problem.tasks[k, TASK_KIND]:
                trial.algorithm[j] = a
        return True
    trial.side[_draw(random, blocks + gaps + tasks)] = _any_side(random)
    return True


@_compiled
def _tell_placed(problem: Problem, state: State, steps: int, placed: Integers) -> None:
    """List the rules that chose the places of the blocks that are on the device after some steps."""
    decided, log = state.leaving, state.log
    _fill(decided, _NONE)
    for step in range(min(steps, len(log))):
        kind, d = log[step, 0], log[step, 1]
        if kind == PLACE:
            decided[d] = d
        elif kind == PREFETCH:
            decided[d] = len(problem.blocks) + log[step, 2]
        elif kind == RELEASE:
            decided[d] = -1
    placed[0] = 0
    for d in range(len(decided)):
        if decided[d] >= 0 and problem.blocks[d, BYTES]:
            placed[0] += 1
            placed[placed[0]] = decided[d]


@_compiled
def _same_turns(one: Integers, other: Integers, copied: Integers) -> bool:
    """Return whether the copies that are made have the same order in two orders of all copies."""
    j = 0
    for element in one:
        if copied[element]:
            while not copied[other[j]]:
                j += 1
            if other[j] != element:
                return False
            j += 1
    return True


@_compiled
def same_program(problem: Problem, one: Decisions, other: Decisions, state: State) -> bool:
    """Return whether decisions differ at most in positions and holds of copies that are not made."""
    for g in range(len(one.evicted)):
        if one.evicted[g] != other.evicted[g]:
            return False
    for k in range(len(one.algorithm)):
        if one.algorithm[k] != other.algorithm[k]:
            return False
    for i in range(len(one.side)):
        if one.side[i] != other.side[i]:
            return False
    _tell_copies(problem, one, state)
    for g in range(len(one.hold)):
        if state.gone[g] and one.hold[g] != other.hold[g]:
            return False
    return _same_turns(one.offloads, other.offloads, state.needed) and _same_turns(
        one.prefetches, other.prefetches, state.gone
    )


@_compiled
def improve(problem: Problem, search: Search, state: State, evaluations: int) -> None:
    """Make some moves."""
    counts = search.counts
    for _ in range(evaluations):
        _copy(search.trial, search.current)
        possible = _change(problem, search, state)
        if possible and _draw(search.random, 4) == 0:
            possible = _change(problem, search, state)
        turn = counts[0] % len(search.history)
        counts[0] += 1
        if not possible:
            continue
        if same_program(problem, search.current, search.trial, state):
            # taken, for what does not matter now decides where a copy begins that is made later
            _copy(search.current, search.trial)
        else:
            allowed = max(counts[1], search.history[turn])
            makespan, steps = simulate(
                problem, search.trial, state, search.stalls[1], allowed if allowed < IMPOSSIBLE else ANY
            )
            if makespan <= counts[1] or makespan <= search.history[turn]:
                _copy(search.current, search.trial)
                if makespan >= IMPOSSIBLE:
                    _tell_placed(problem, state, steps, search.placed)
                _assign(search.stalls[0], search.stalls[1])
                counts[1] = makespan
                if makespan < counts[3]:
                    counts[3], counts[4] = makespan, counts[0]
                if makespan < counts[2]:
                    _copy(search.best, search.trial)
                    counts[2] = makespan
        search.history[turn] = min(search.history[turn], counts[1])


@_compiled
def set_off(problem: Problem, search: Search, state: State, start: Decisions, strength: int) -> None:
    """Continue from given decisions after some random moves, whatever their cost."""
    counts = search.counts
    _copy(search.current, start)
    makespan, steps = simulate(problem, search.current, state, search.stalls[0], ANY)
    if makespan >= IMPOSSIBLE:
        _tell_placed(problem, state, steps, search.placed)
    for _ in range(strength):
        _copy(search.trial, search.current)
        if not _change(problem, search, state):
            continue
        counts[0] += 1
        found, steps = simulate(problem, search.trial, state, search.stalls[1], ANY)
        if found < IMPOSSIBLE or found <= makespan:
            makespan = found
            if makespan >= IMPOSSIBLE:
                _tell_placed(problem, state, steps, search.placed)
            _copy(search.current, search.trial)
            _assign(search.stalls[0], search.stalls[1])
    counts[0] += 1
    counts[1], counts[3], counts[4] = makespan, makespan, counts[0]
    for i in range(len(search.history)):
        search.history[i] = makespan
    if makespan < counts[2]:
        _copy(search.best, search.current)
        counts[2] = makespan
