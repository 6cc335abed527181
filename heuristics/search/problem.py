"""Conversion of an instance to the arrays that the kernel of local search works on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...instances.instance import Instance
from ...validate.host_memory import ALIGNMENT_BYTES
from ...validate.schedule import MemoryModel
from ..clock import look
from ..host_work import HostRun
from ..parts import require_parts_alike
from .columns import (
    ABSENT,
    DEVICE,
    HOST,
    INPUT,
    OUTPUT,
    UPDATE,
    Columns,
    Integers,
    columns_of,
    integers,
)
from .kernel import (
    ALGORITHMS,
    FIXED,
    TASK_KIND,
    Problem,
)

_SHARE = 500
"""Divisor of the pool: the smallest blocks may get places of their own in one part of this many."""


def problem_of(
    instance: Instance,
    memory: MemoryModel,
    *,
    moves: bool = True,
    sides: bool = True,
    addresses: bool = True,
    runs_on_host: Sequence[HostRun] = (),
) -> Problem:
    """Return an instance as arrays, its sizes rounded up to the unit of the memory model.

    Carried blocks are on the device at both ends, and stay at least until their first use. One that a task
    writes has a version before the first task, which is on the device alone.

    Parameters
    ----------
    instance, memory
        The instance to schedule, and the memory model.
    moves, sides
        Whether blocks may be moved inside the device, and whether the search changes the holes that they
        take; only for contiguous memory.
    addresses
        Whether addresses count in contiguous memory. If not, blocks need only free bytes, and decisions have
        the same meaning.
    runs_on_host
        The runs on the host after the device's tasks, in order.

    Raises
    ------
    Refusal
        For parts in contiguous memory that tasks or copies treat differently.
    """
    if memory == "contiguous" and addresses:
        require_parts_alike(instance)
    return arranged(
        columns_of(instance, memory),
        moves=moves,
        sides=sides,
        addresses=addresses,
        runs_on_host=runs_on_host,
    )


def arranged(
    columns: Columns,
    *,
    moves: bool = True,
    sides: bool = True,
    addresses: bool = True,
    runs_on_host: Sequence[HostRun] = (),
) -> Problem:
    """Return the arrays of `problem_of` for an instance that is given as columns.

    Parts in contiguous memory have to be treated alike by tasks and copies.
    """
    contiguous = columns.contiguous and addresses
    unit, total, touches = columns.unit, columns.length, columns.touches
    at_first, at_last, carried = columns.first, columns.last, columns.carried
    number = len(columns.size)
    size = _ceil(columns.size, unit)
    algorithms, count = columns.algorithms.copy(), columns.choices
    capacity = max(columns.pool, 0) // unit * unit
    private = np.full(number, -1, dtype=np.int64)
    look()
    if columns.contiguous:
        capacity = _make_private(columns, capacity, size, private)
    algorithms[:, 1] = _ceil(algorithms[:, 1], unit)
    look()

    leaves, returns = (columns.times[:, :2] >= 0).T
    uses = np.bincount(touches.block, minlength=number)
    last_use = np.full(number, -1, dtype=np.int64)
    last_use[touches.block] = touches.task
    writes = touches.kind != INPUT
    writer_block, writer = touches.block[writes], touches.task[writes]
    first_writer = first_writers(columns)

    # stays between uses: where a block can be away is a gap; what comes from the host has one at first
    block, after, until = stays(columns)
    from_host = (at_first[block] == HOST) & (after == -1)
    alone = carried & (first_writer < total)  # and so not on the host
    on_host = (at_first[block] != ABSENT) & (first_writer[block] > after) & ~alone[block]
    stay = carried[block] & (after == -1)
    is_gap = returns[block] & (on_host | leaves[block]) & (until > after + 1) & ~stay
    rest = is_gap & ~from_host & (size[block] > 0)
    gap_block, gap_after, gap_until = (
        np.concatenate((values[from_host], values[rest])) for values in (block, after, until)
    )
    stuck = ~is_gap & ~from_host & (until > after + 1)
    change = np.zeros(total + 1, dtype=np.int64)
    np.add.at(change, after[stuck] + 1, size[block[stuck]])
    np.subtract.at(change, until[stuck], size[block[stuck]])
    fixed = np.cumsum(change[:-1]) + touches.sums(size)
    look()

    # versions of the blocks that can leave, by block and writer
    first_block = np.flatnonzero(alone)
    version_block = np.concatenate((first_block, writer_block))
    version_writer = np.concatenate((np.full_like(first_block, -1), writer))
    written = leaves[version_block]
    order = np.lexsort((version_writer[written], version_block[written]))
    version_block, version_writer = version_block[written][order], version_writer[written][order]
    span = total + 2
    earlier = np.searchsorted(
        version_block * span + version_writer + 1, gap_block * span + gap_after + 1, "right"
    )
    version_of = np.where(np.append(version_block, -1)[earlier - 1] == gap_block, earlier - 1, -1)
    due = np.full(number, -1, dtype=np.int64)
    due[version_block] = np.arange(len(version_block))
    due[at_last != HOST] = -1

    first, begin, following, spanned = _places_in_tensors(columns, size, contiguous).T
    gap_chains = _chains(columns, (gap_block, gap_after, gap_until), 1)[:, [1, 2, 0]]
    version_chains = _chains(columns, (version_block, version_writer), -1)[:, [1, 0]]
    look()
    reads = touches.kind != OUTPUT
    initial = np.lexsort((begin, first))
    initial = initial[(at_first == DEVICE)[initial] & ((uses > 0) | (at_last == DEVICE))[initial]]
    dead = (last_use[touches.block] == touches.task) & (at_last[touches.block] != DEVICE)

    def listed(chosen: NDArray[np.bool_], *keys: Integers) -> tuple[Integers, Integers]:
        """Blocks that tasks touch, by task and then by keys, the last of which counts most."""
        task, touched = touches.task[chosen], touches.block[chosen]
        order = np.lexsort((*(key[touched] for key in keys), task))
        return task[order], touched[order]

    by_start = np.argsort(gap_after, kind="stable")
    by_writer = np.argsort(version_writer, kind="stable")
    table, lists = _lists(
        [
            listed(reads, begin),
            listed(touches.kind == UPDATE),
            listed(touches.kind == OUTPUT, begin, first, -spanned),
            listed(dead),
            (gap_after[by_start] + 1, by_start),
            (version_writer[by_writer], by_writer),
        ],
        total + 2,
    )
    table[:, FIXED] = np.pad(fixed, (0, 2))
    table[:-2, TASK_KIND] = columns.kind
    look()
    ends = np.append(columns.kind, (-1, -1))  # of no task: the end, and before the start
    copied = _ceil(columns.size, ALIGNMENT_BYTES)
    host, homes = columns.host, np.full(number, -1, dtype=np.int64)
    if host >= 0:
        at_home = (at_first == HOST) & (at_last == HOST)
        homes[at_home] = np.cumsum(copied[at_home]) - copied[at_home]
        host = max(host - int(copied[at_home].sum()), 0)
        copied[at_home] = 0
    gap_kinds = _alike(columns.size[gap_block], ends[gap_after], ends[gap_until])
    table[:, ALGORITHMS] = np.pad(np.cumsum(np.append(0, count)), (0, 1), "edge")
    none = np.zeros_like(gap_block)
    at_start = {int(gap_block[g]): int(g) for g in np.flatnonzero(gap_after == -1)}
    return Problem(
        length=total,
        capacity=capacity,
        single=columns.single,
        contiguous=contiguous,
        timed=columns.timed,
        host=host,
        moves=moves and contiguous,
        sides=sides and contiguous,
        parts=bool((columns.tensor >= 0).any()),
        private=private,
        homes=homes,
        initial=initial,
        blocks=_table(
            size,
            *columns.times.T,
            *(due, first, begin, following, spanned),
            copied,
            (at_last == HOST) & (at_first != ABSENT) & (first_writer == total),
            carried,
        ),
        tasks=table,
        algorithms=algorithms,
        gaps=_table(
            *(gap_block, gap_after, gap_until, version_of),
            (gap_after == -1) & (at_first[gap_block] == HOST),
            *(gap_chains, gap_kinds, none, none),
        ),
        versions=_table(
            *(version_block, version_writer),
            due[version_block] == np.arange(len(version_block)),
            version_chains,
        ),
        lists=lists,
        shares=columns.shares,
        slows=columns.slows,
        host_runs=_table(
            [*(run.duration_ns for run in runs_on_host), 0],
            np.cumsum([0, *(len(run.reads) for run in runs_on_host)]),
            np.cumsum([0, *(len(run.returns) for run in runs_on_host)]),
        ),
        host_reads=integers([d for run in runs_on_host for d in run.reads]),
        host_returns=integers([(d, at_start.get(d, -1)) for run in runs_on_host for d in run.returns], 2),
    )


def first_writers(columns: Columns) -> Integers:
    """Return, per block, the first task that writes it; the number of tasks where none does."""
    touches = columns.touches
    writes = np.flatnonzero(touches.kind != INPUT)[::-1]
    first = np.full(len(columns.size), columns.length, dtype=np.int64)
    first[touches.block[writes]] = touches.task[writes]
    return first


def stays(columns: Columns) -> tuple[Integers, Integers, Integers]:
    """Return every two consecutive points at which a block has to be there: block, task before, task after.

    Points are the start (of blocks that are there at first), uses, and the end (of blocks that must end on
    the device). They are in the order of blocks and then of points.
    """
    touches = columns.touches
    first, last = np.flatnonzero(columns.first != ABSENT), np.flatnonzero(columns.last == DEVICE)
    block = np.concatenate((first, touches.block, last))
    at = np.concatenate((np.full(len(first), -1), touches.task, np.full(len(last), columns.length)))
    order = np.argsort(block, kind="stable")
    block, at = block[order], at[order]
    same = block[1:] == block[:-1]
    return block[1:][same], at[:-1][same], at[1:][same]


def _make_private(columns: Columns, capacity: int, size: Integers, private: Integers) -> int:
    """Give the smallest blocks places of their own at the end of the pool; return the bytes left of it.

    These blocks are never evicted. Together they take a small share of the pool and of the memory that tasks
    leave, and no task loses its fastest algorithm.
    """
    unit, touches = columns.unit, columns.touches
    needs = touches.sums(size)
    begin = np.cumsum(columns.choices) - columns.choices
    leanest = np.minimum.reduceat(columns.algorithms[:, 1], begin)
    least = int((needs + _ceil(leanest, unit)).max())
    spare = min(capacity // _SHARE, (columns.pool - least) // 4)
    needs += _ceil(_quickest_within(columns.algorithms, columns.choices, capacity - needs), unit)
    smallest = np.argsort(size, kind="stable")
    smallest = smallest[columns.tensor[smallest] < 0]
    left = capacity - np.cumsum(size[smallest])

    def lack(count: int) -> bool:
        """Whether some task lacks room if so many blocks leave the pool; then it does if more leave, too."""
        gone = np.zeros_like(size)
        gone[smallest[:count]] = size[smallest[:count]]
        return bool((needs - touches.sums(gone)).max() > left[count - 1])

    most = int(np.count_nonzero(left >= capacity - spare))
    smallest = smallest[: bisect_left(range(1, most + 1), True, key=lack)]
    if not len(smallest):
        return capacity
    private[smallest] = left[: len(smallest)]
    size[smallest] = 0
    return int(left[len(smallest) - 1])


def _ceil(size: Integers, unit: int) -> Integers:
    return -(-size // unit) * unit


def _quickest_within(algorithms: Integers, count: Integers, room: Integers) -> Integers:
    """Return, per task, the workspace of the algorithm that `fastest_within` chooses for its room."""
    task = np.repeat(np.arange(len(count)), count)
    duration, scratch = algorithms.T
    fits = scratch <= room[task]
    order = np.lexsort((np.where(fits, scratch, duration), np.where(fits, duration, scratch), ~fits, task))
    quickest: Integers = scratch[order[np.cumsum(count) - count]]
    return quickest


def _places_in_tensors(columns: Columns, size: Integers, together: bool) -> Integers:
    """Return, per block: its tensor's first part, its offset, the part that follows, the tensor's bytes.

    Every block is a tensor of its own unless parts have to lie together.
    """
    alone = np.arange(len(size))
    places = np.column_stack((alone, np.zeros_like(alone), np.full_like(alone, -1), size))
    parts = np.flatnonzero(columns.tensor >= 0) if together else alone[:0]
    if len(parts):
        first, following, _ = linked((columns.tensor[parts],), columns.begin[parts])
        last = following < 0
        spanned = np.zeros(len(parts), dtype=np.int64)
        spanned[first[last]] = columns.begin[parts[last]] + size[parts[last]]
        places[parts] = np.column_stack(
            (parts[first], columns.begin[parts], np.append(parts, -1)[following], spanned[first])
        )
    return places


def _chains(columns: Columns, what: tuple[Integers, ...], sign: int) -> Integers:
    """Chain gaps or versions of a tensor's parts: per element the first of its chain, the next, the previous.

    The first column has blocks. A gap is followed by that of the part behind; a version, with the sign -1, by
    that of the part before, which leaves after it.
    """
    block, *marks = what
    found = np.full((len(block), 3), -1, dtype=np.int64)
    found[:, 0] = np.arange(len(block))
    among = np.flatnonzero(columns.tensor[block] >= 0)
    if len(among):
        keys = (columns.tensor[block[among]], *(mark[among] for mark in marks))
        links = linked(keys, sign * columns.begin[block[among]])
        found[among] = np.append(among, -1)[np.column_stack(links)]
    return found


def linked(keys: Sequence[Integers], rank: Integers) -> tuple[Integers, Integers, Integers]:
    """Chain elements that are alike in all keys, in the order of their ranks.

    Returns
    -------
    tuple of arrays
        Per element: the first of its chain, the next one and the one before; -1 where there is no such
        element.
    """
    order = np.lexsort((rank, *keys))
    goes_on = np.zeros(len(order), dtype=bool)
    goes_on[1:] = np.logical_and.reduce([key[order[1:]] == key[order[:-1]] for key in keys])
    first, following, before = (np.full(len(order), -1, dtype=np.int64) for _ in range(3))
    begins = np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(order))))
    first[order] = order[begins]
    behind = np.flatnonzero(goes_on)
    before[order[behind]] = order[behind - 1]
    following[order[behind - 1]] = order[behind]
    return first, following, before


def _alike(*keys: Integers) -> Integers:
    """Number elements so that those that are alike in all keys have the same number."""
    order = np.lexsort(keys)
    differs = np.zeros(len(order), dtype=np.int64)
    differs[1:] = np.logical_or.reduce([key[order[1:]] != key[order[:-1]] for key in keys])
    number = np.empty_like(differs)
    number[order] = np.cumsum(differs)
    return number


def _table(*columns: NDArray[Any] | Sequence[int]) -> Integers:
    """Put columns side by side, row by row in memory, as the kernels are compiled for that."""
    return np.ascontiguousarray(np.column_stack(columns), dtype=np.int64)


def _lists(kinds: Sequence[tuple[Integers, Integers]], rows: int) -> tuple[Integers, Integers]:
    """Concatenate lists of several kinds per task; return where each begins, from the fourth column on.

    Each kind is given as the rows of its values, in increasing order, and the values.
    """
    table = np.zeros((rows, 3 + len(kinds)), dtype=np.int64)
    begun = 0
    for column, (row, values) in enumerate(kinds, 3):
        table[:, column] = begun + np.searchsorted(row, np.arange(rows), "left")
        begun += len(values)
    return table, np.concatenate([values for _, values in kinds])
