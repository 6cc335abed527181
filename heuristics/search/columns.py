"""An instance as columns of numbers: all that local search sees of it.

From these, `problem.py` makes what the kernel works on. Where tasks may run again, each plan is an instance
of its own, and making its columns from those of the original is much faster than making the instance.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from math import ceil
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...instances.arguments import require_fixed_reads
from ...instances.figures import MILLION
from ...instances.instance import Instance
from ...validate.host_memory import ALIGNMENT_BYTES
from ...validate.schedule import MemoryModel, unit_bytes
from ..carried import as_read

Integers = NDArray[np.int64]
"""Array of int64."""

Reals = NDArray[np.float64]
"""Array of float64."""

INPUT, OUTPUT, UPDATE = range(3)
"""How a task touches a block."""

ABSENT, DEVICE, HOST = range(3)
"""Where a block is at first; and where it has to be at the end, anywhere if absent."""

_FIRST = {"absent": ABSENT, "device": DEVICE, "carried": DEVICE, "host": HOST}
_LAST = {"anywhere": ABSENT, "device": DEVICE, "host": HOST}


class Touches(NamedTuple):
    """The blocks that tasks touch, in order: of each task its inputs, then its outputs, then its updates.

    `begin` has the index at which each task begins, and the end of all.
    """

    begin: Integers
    task: Integers
    block: Integers
    kind: Integers

    def sums(self, size: Integers) -> Integers:
        """Return, per task, the sum of a quantity over its blocks."""
        return np.diff(np.append(0, np.cumsum(size[self.block]))[self.begin])


class Columns(NamedTuple):
    """An instance in one memory model, as columns.

    Attributes
    ----------
    contiguous, unit, pool
        Whether memory has addresses; bytes to which sizes are rounded up; bytes of the pool, which may be
        negative.
    single, timed, host
        Whether there is only one copy engine; whether copies share a link or slow tasks down; bytes of host
        memory, -1 where it never ends.
    size, times, shares
        Per block: its bytes; the nanoseconds of its copies out and in and of its moves, -1 where there are
        none; the shares of the link that its copies out and in take by themselves.
    first, last, carried
        Per block: where it is at first; where it has to be at the end; whether it is carried.
    tensor, begin
        Per block: the number of the tensor of which it is a part, -1 where it is a tensor of its own; the
        byte at which it begins there.
    touches
        The blocks that tasks touch.
    algorithms, choices
        Per task and algorithm, duration and workspace; per task, the number of its algorithms.
    kind, slows
        Per task: a number that tasks with the same algorithms share; the shares of its speed that copies out
        and in take (no row if not `timed`).
    """

    contiguous: bool
    unit: int
    pool: int
    single: bool
    timed: bool
    host: int
    size: Integers
    times: Integers
    shares: Reals
    first: Integers
    last: Integers
    carried: NDArray[np.bool_]
    tensor: Integers
    begin: Integers
    touches: Touches
    algorithms: Integers
    choices: Integers
    kind: Integers
    slows: Reals

    @property
    def length(self) -> int:
        """Number of tasks."""
        return len(self.choices)


def columns_of(instance: Instance, memory: MemoryModel) -> Columns:
    """Return an instance as columns; in contiguous memory, carried blocks may leave, but never move in it.

    Parameters
    ----------
    instance, memory
        The instance to schedule, and the memory model.
    """
    require_fixed_reads(instance, "local search")  # its evictions lie between uses that are known
    instance = as_read(instance, memory, homing=True)
    tasks, blocks = instance.tasks, instance.blocks
    copies, shares = _copies(instance)
    moves = integers([-1 if block.move_ns is None else block.move_ns for block in blocks])
    tensors = number_alike(block.tensor for block in blocks)
    return Columns(
        contiguous=memory == "contiguous",
        unit=unit_bytes(instance, memory),
        pool=instance.pool_bytes,
        single=instance.engines == "single",
        timed=instance.is_coupled,
        host=_host_bytes(instance),
        size=integers([block.bytes for block in blocks]),
        times=np.column_stack((copies, moves)),
        shares=shares,
        first=integers([_FIRST[block.initially] for block in blocks]),
        last=integers(
            [DEVICE if block.initially == "carried" else _LAST[block.finally_] for block in blocks]
        ),
        carried=np.array([block.initially == "carried" for block in blocks], dtype=bool),
        tensor=integers(
            [-1 if block.tensor is None else t for block, t in zip(blocks, tensors, strict=True)]
        ),
        begin=integers([block.begin or 0 for block in blocks]),
        touches=_touches(instance),
        algorithms=integers(
            [(a.duration_ns, a.workspace_bytes) for task in tasks for a in task.algorithms], 2
        ),
        choices=integers([len(task.algorithms) for task in tasks]),
        kind=integers(number_alike(task.algorithms for task in tasks)),
        slows=_slows(instance),
    )


def _touches(instance: Instance) -> Touches:
    """Collect the blocks that the tasks of an instance touch."""
    tasks = instance.tasks
    each = integers([(len(task.inputs), len(task.outputs), len(task.updates)) for task in tasks], 3)
    return Touches(
        np.append(0, np.cumsum(each.sum(axis=1))),
        np.repeat(np.arange(len(tasks)), each.sum(axis=1)),
        np.fromiter(chain.from_iterable(task.blocks for task in tasks), np.int64, int(each.sum())),
        np.repeat(np.tile(np.arange(3), len(tasks)), each.ravel()),
    )


def _copies(instance: Instance) -> tuple[Integers, Reals]:
    """Return, per block, the times of its copies out and in if alone (-1: none), and their link shares."""
    times = integers(
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


def number_alike(described: Iterable[Hashable]) -> list[int]:
    """Number elements by what describes them: elements that are alike have the same number."""
    number: dict[Hashable, int] = {}
    return [number.setdefault(one, len(number)) for one in described]


def integers(values: Sequence[object], columns: int = 0) -> Integers:
    """Return an array of whole numbers, of some columns or of one dimension."""
    found: Integers = np.array(values, dtype=np.int64)
    return found.reshape(-1, columns) if columns else found
