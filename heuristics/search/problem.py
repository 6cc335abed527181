"""Conversion of an instance to the arrays of local search."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from math import ceil
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...instances.figures import MILLION
from ...instances.instance import Instance
from ...instances.memory import least_budget
from ...validate.host_memory import ALIGNMENT_BYTES
from ...validate.schedule import MemoryModel, unit_bytes
from ..carried import as_read
from ..clock import look
from ..host_work import HostRun
from ..parts import chains, require_alike, tensors_of
from .kernel import (
    ALGORITHMS,
    FIXED,
    TASK_KIND,
    Problem,
)

Integers = NDArray[np.int64]
"""Array of int64."""

Reals = NDArray[np.float64]
"""Array of float64."""

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
    instance = as_read(instance, memory)
    contiguous = memory == "contiguous" and addresses
    unit = unit_bytes(instance, memory)
    tasks, blocks = instance.tasks, instance.blocks
    total = len(tasks)
    touches = _Touches.of(instance)
    size = -(-_integers([block.bytes for block in blocks]) // unit) * unit
    algorithms = _integers([(a.duration_ns, a.workspace_bytes) for task in tasks for a in task.algorithms], 2)
    count = _integers([len(task.algorithms) for task in tasks])
    capacity = max(instance.pool_bytes, 0) // unit * unit
    private = np.full(len(blocks), -1, dtype=np.int64)
    look()
    if memory == "contiguous":
        capacity = _make_private(instance, touches, algorithms, count, capacity, size, private)
    algorithms[:, 1] = -(-algorithms[:, 1] // unit) * unit
    look()

    carried = np.array([block.initially == "carried" for block in blocks], dtype=bool)
    at_first = np.array([block.initially for block in blocks], dtype="U7")
    at_last = np.array([block.finally_ for block in blocks], dtype="U8")
    at_first[carried] = at_last[carried] = "device"
    leaves = np.array([block.offload_ns is not None for block in blocks], dtype=bool)
    returns = np.array([block.prefetch_ns is not None for block in blocks], dtype=bool)
    uses = np.bincount(touches.block, minlength=len(blocks))
    last_use = np.full(len(blocks), -1, dtype=np.int64)
    last_use[touches.block] = touches.task
    writes = touches.kind != _INPUT
    writer_block, writer = touches.block[writes], touches.task[writes]
    first_writer = np.full(len(blocks), total + 1, dtype=np.int64)
    first_writer[writer_block[::-1]] = writer[::-1]

    # stays between uses: where a block can be away is a gap; what comes from the host has one at first
    block, after, until = _stays(touches, at_first != "absent", at_last == "device", total)
    from_host = (at_first[block] == "host") & (after == -1)
    alone = carried & (first_writer <= total)  # and so not on the host
    on_host = (at_first[block] != "absent") & (first_writer[block] > after) & ~alone[block]
    stays = carried[block] & (after == -1)
    is_gap = returns[block] & (on_host | leaves[block]) & (until > after + 1) & ~stays
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
    due = np.full(len(blocks), -1, dtype=np.int64)
    due[version_block] = np.arange(len(version_block))
    due[at_last != "host"] = -1

    first, begin, following, spanned = _places_in_tensors(instance, size, contiguous).T
    gap_chains, version_chains = _chains(
        instance, (gap_block, gap_after, gap_until), (version_block, version_writer)
    )
    look()
    reads = touches.kind != _OUTPUT
    initial = np.lexsort((begin, first))
    initial = initial[(at_first == "device")[initial] & ((uses > 0) | (at_last == "device"))[initial]]
    dead = (last_use[touches.block] == touches.task) & (at_last[touches.block] != "device")

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
            listed(touches.kind == _UPDATE),
            listed(touches.kind == _OUTPUT, begin, first, -spanned),
            listed(dead),
            (gap_after[by_start] + 1, by_start),
            (version_writer[by_writer], by_writer),
        ],
        total + 2,
    )
    table[:, FIXED] = np.pad(fixed, (0, 2))
    kinds = _integers(_kinds(task.algorithms for task in tasks))
    table[:-2, TASK_KIND] = kinds
    look()
    ends = np.append(kinds, (-1, -1))  # of no task: the end, and before the start
    exact = _integers([block.bytes for block in blocks])
    copied = -(-exact // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    host, homes = _host_bytes(instance), np.full(len(blocks), -1, dtype=np.int64)
    if host >= 0:
        at_home = (at_first == "host") & (at_last == "host")
        homes[at_home] = np.cumsum(copied[at_home]) - copied[at_home]
        host = max(host - int(copied[at_home].sum()), 0)
        copied[at_home] = 0
    gap_kinds = _kinds(
        zip(exact[gap_block].tolist(), ends[gap_after].tolist(), ends[gap_until].tolist(), strict=True)
    )
    table[:, ALGORITHMS] = np.pad(np.cumsum(np.append(0, count)), (0, 1), "edge")
    none = np.zeros_like(gap_block)
    at_start = {int(gap_block[g]): int(g) for g in np.flatnonzero(gap_after == -1)}
    copies, shares = _copies(instance)
    times = (*copies.T, _integers([-1 if b.move_ns is None else b.move_ns for b in blocks]))
    return Problem(
        length=total,
        capacity=capacity,
        single=instance.engines == "single",
        contiguous=contiguous,
        timed=instance.is_coupled,
        host=host,
        moves=moves and contiguous,
        sides=sides and contiguous,
        parts=any(block.tensor is not None for block in blocks),
        private=private,
        homes=homes,
        initial=initial,
        blocks=_table(
            size,
            *times,
            *(due, first, begin, following, spanned),
            copied,
            (at_last == "host") & (at_first != "absent") & (first_writer > total),
            carried,
        ),
        tasks=table,
        algorithms=algorithms,
        gaps=_table(
            *(gap_block, gap_after, gap_until, version_of),
            (gap_after == -1) & (at_first[gap_block] == "host"),
            *(gap_chains, _integers(gap_kinds), none, none),
        ),
        versions=_table(
            *(version_block, version_writer),
            due[version_block] == np.arange(len(version_block)),
            version_chains,
        ),
        lists=lists,
        shares=shares,
        slows=_slows(instance),
        host_runs=_table(
            [*(run.duration_ns for run in runs_on_host), 0],
            np.cumsum([0, *(len(run.reads) for run in runs_on_host)]),
            np.cumsum([0, *(len(run.returns) for run in runs_on_host)]),
        ),
        host_reads=_integers([d for run in runs_on_host for d in run.reads]),
        host_returns=_integers([(d, at_start.get(d, -1)) for run in runs_on_host for d in run.returns], 2),
    )


def _copies(instance: Instance) -> tuple[Integers, Reals]:
    """Return, per block, the times of its copies out and in if alone (-1: none), and their link shares."""
    times = _integers(
        [[-1 if ns is None else ns for ns in (b.offload_ns, b.prefetch_ns)] for b in instance.blocks], 2
    )
    shares = np.zeros(times.shape)
    if instance.link is not msgspec.UNSET:
        known: dict[tuple[int, int], tuple[int, float]] = {}  # many blocks are alike
        for d, way in np.argwhere(times > 0).tolist():
            copy = instance.blocks[d].loaded_bytes, int(times[d, way])
            if copy not in known:
                through = instance.link.load(*copy) / instance.link.rate
                known[copy] = max(copy[1], ceil(through)), min(float(through / copy[1]), 1.0)
            times[d, way], shares[d, way] = known[copy]
    return times, shares


def _slows(instance: Instance) -> Reals:
    """Return, per task, the shares of its speed that copies out and in take; none where nothing is slowed."""
    tasks = instance.tasks if instance.is_coupled else ()
    slows = np.zeros((len(tasks), 2))
    for k, task in enumerate(tasks):
        if task.slowdown_ppm is not msgspec.UNSET:
            slows[k] = task.slowdown_ppm.offload / MILLION, task.slowdown_ppm.prefetch / MILLION
    return slows


def _host_bytes(instance: Instance) -> int:
    """Return the bytes of host memory that aligned copies can lie in, or -1 where it never ends."""
    if instance.host_budget_bytes is msgspec.UNSET:
        return -1
    return instance.host_budget_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES


def _kinds(described: Iterable[Hashable]) -> list[int]:
    """Number elements by what describes them: elements that are alike have the same number."""
    number: dict[Hashable, int] = {}
    return [number.setdefault(one, len(number)) for one in described]


_INPUT, _OUTPUT, _UPDATE = range(3)


class _Touches(NamedTuple):
    """The blocks that tasks touch, in order: of each task its inputs, then its outputs, then its updates.

    `begin` has the index at which each task begins, and the end of all.
    """

    begin: Integers
    task: Integers
    block: Integers
    kind: Integers

    @classmethod
    def of(cls, instance: Instance) -> _Touches:
        """Collect the blocks that the tasks of an instance touch."""
        tasks = instance.tasks
        counts = [(len(task.inputs), len(task.outputs), len(task.updates)) for task in tasks]
        each = _integers(counts, 3)
        return cls(
            np.append(0, np.cumsum(each.sum(axis=1))),
            np.repeat(np.arange(len(tasks)), each.sum(axis=1)),
            np.fromiter(chain.from_iterable(task.blocks for task in tasks), np.int64, int(each.sum())),
            np.repeat(np.tile(np.arange(3), len(tasks)), each.ravel()),
        )

    def sums(self, size: Integers) -> Integers:
        """Return, per task, the sum of a quantity over its blocks."""
        return np.diff(np.append(0, np.cumsum(size[self.block]))[self.begin])


def _stays(
    touches: _Touches, there: NDArray[np.bool_], stays: NDArray[np.bool_], total: int
) -> tuple[Integers, Integers, Integers]:
    """Return every two consecutive points at which a block has to be there: block, task before, task after.

    Points are the start (of blocks that are `there` at first), uses, and the end (of blocks that must end
    there).
    """
    first, last = np.flatnonzero(there), np.flatnonzero(stays)
    block = np.concatenate((first, touches.block, last))
    at = np.concatenate((np.full(len(first), -1), touches.task, np.full(len(last), total)))
    order = np.argsort(block, kind="stable")
    block, at = block[order], at[order]
    same = block[1:] == block[:-1]
    return block[1:][same], at[:-1][same], at[1:][same]


def _make_private(
    instance: Instance,
    touches: _Touches,
    algorithms: Integers,
    count: Integers,
    capacity: int,
    size: Integers,
    private: Integers,
) -> int:
    """Give the smallest blocks places of their own at the end of the pool; return the bytes left of it.

    These blocks are never evicted. Together they take a small share of the pool and of the memory that tasks
    leave, and no task loses its fastest algorithm.
    """
    spare = min(capacity // _SHARE, (instance.budget_bytes - least_budget(instance)) // 4)
    needs = touches.sums(size)
    scratch = _quickest_within(algorithms, count, capacity - needs)
    needs += -(-scratch // instance.alignment_bytes) * instance.alignment_bytes
    most = int(needs.max(initial=0))  # or less: it falls
    end = capacity
    for d in np.argsort(size, kind="stable").tolist():
        look()
        if instance.blocks[d].tensor is not None:
            continue
        needs[list(instance.uses[d])] -= size[d]
        left = end - int(size[d])
        if left < most:
            most = int(needs.max(initial=0))
        if left < max(capacity - spare, most):
            break
        private[d] = end = left
        size[d] = 0
    return end


def _quickest_within(algorithms: Integers, count: Integers, room: Integers) -> Integers:
    """Return, per task, the workspace of the algorithm that `fastest_within` chooses for its room."""
    task = np.repeat(np.arange(len(count)), count)
    duration, scratch = algorithms.T
    fits = scratch <= room[task]
    order = np.lexsort((np.where(fits, scratch, duration), np.where(fits, duration, scratch), ~fits, task))
    quickest: Integers = scratch[order[np.cumsum(count) - count]]
    return quickest


def _places_in_tensors(instance: Instance, size: Integers, together: bool) -> Integers:
    """Return, per block: its tensor's first part, its offset, the part that follows, the tensor's bytes.

    Every block is a tensor of its own unless parts have to lie together.
    """
    alone = np.arange(len(size))
    places = np.column_stack((alone, np.zeros_like(alone), np.full_like(alone, -1), size))
    for parts in tensors_of(instance) if together else ():
        look()
        require_alike(instance, parts)
        tensor_bytes = (instance.blocks[parts[-1]].begin or 0) + size[parts[-1]]
        for d, following in zip(parts, [*parts[1:], -1], strict=True):
            places[d] = parts[0], instance.blocks[d].begin or 0, following, tensor_bytes
    return places


def _chains(
    instance: Instance, gaps: tuple[Integers, Integers, Integers], versions: tuple[Integers, Integers]
) -> tuple[Integers, Integers]:
    """Return chains of a tensor's parts: per gap the next, previous and first part; per version two of them.

    A version is followed by that of the part before, which leaves after it.
    """
    tensor = [block.tensor for block in instance.blocks]
    begin = [block.begin or 0 for block in instance.blocks]
    part = np.array([name is not None for name in tensor], dtype=bool)

    def chained(columns: tuple[Integers, ...], sign: int) -> Integers:
        """Per element the first of its chain, what follows it and what comes before it."""
        found = np.full((len(columns[0]), 3), -1, dtype=np.int64)
        found[:, 0] = np.arange(len(found))
        among = np.flatnonzero(part[columns[0]])
        keys = [(tensor[d], *marks) for d, *marks in zip(*(c[among].tolist() for c in columns), strict=True)]
        links = _integers(chains(keys, [sign * begin[d] for d in columns[0][among].tolist()]))
        found[among] = np.append(among, -1)[links.T]
        return found

    return chained(gaps, 1)[:, [1, 2, 0]], chained(versions, -1)[:, [1, 0]]


def _table(*columns: NDArray[Any] | Sequence[int]) -> Integers:
    """Put columns side by side, row by row in memory, as the kernels are compiled for that."""
    return np.ascontiguousarray(np.column_stack(columns), dtype=np.int64)


def _integers(values: Sequence[object], columns: int = 0) -> Integers:
    """Return an array of whole numbers, of some columns or of one dimension."""
    found: Integers = np.array(values, dtype=np.int64)
    return found.reshape(-1, columns) if columns else found


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
