"""From decisions by position to a schedule: which gaps are evicted, and which algorithm each task runs.

A gap is a stay of a block between uses, named by the block and the task after which it begins. Whatever the
decisions lack is repaired: gaps are evicted where live blocks exceed the pool, and every prefetch starts at
the first position from which on there is room for its block at every task until its use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..heuristics.choices import by_speed, leanest
from ..heuristics.methods import Refusal
from ..heuristics.placement import Issue, build, build_again
from ..heuristics.pool import Range
from ..heuristics.program import ProgramBuilder
from ..instances.instance import Instance
from ..instances.units import ceil_to
from ..validate.schedule import MemoryModel, Schedule

Gap = tuple[int, int]
"""A block, and the task after which it is not used for a while (-1: from the start)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions by position: complete, and within the pool at every task.

    Attributes
    ----------
    algorithms
        Per task, the index of its algorithm.
    prefetch_before
        Per evicted gap, the task before which its prefetch is issued.
    """

    algorithms: tuple[int, ...]
    prefetch_before: Mapping[Gap, int]


def gaps_of(instance: Instance) -> dict[Gap, int]:
    """Every gap in which a block can be evicted, with the task that ends it; the end counts as a task."""
    gaps: dict[Gap, int] = {}
    for d, after, until in _stays(instance):
        block = instance.blocks[d]
        on_host = block.initially != "absent" and not any(w <= after for w in instance.writers[d])
        if block.prefetch_ns is not None and (on_host or block.offload_ns is not None):
            gaps[d, after] = until
    return gaps


def make_plan(
    instance: Instance,
    evicted: Collection[Gap],
    algorithms: Mapping[int, int],
    *,
    unit: int = 1,
    capacity: int | None = None,
) -> Plan | None:
    """Complete decisions, or return None when live blocks exceed the pool whatever is evicted.

    Parameters
    ----------
    instance
        What to schedule.
    evicted
        Gaps to evict.
    algorithms
        Chosen algorithms of some tasks; the others run the fastest that has room.
    unit
        Sizes are rounded up to it: the alignment, or a page.
    capacity
        Bytes to plan with, by default the pool: less leaves slack for fragmentation.
    """
    capacity = instance.pool_bytes if capacity is None else capacity
    sizes = [ceil_to(block.bytes, unit) for block in instance.blocks]
    scratch = [[ceil_to(a.workspace_bytes, unit) for a in task.algorithms] for task in instance.tasks]
    fixed = [sum(sizes[d] for d in task.blocks) for task in instance.tasks]
    until = gaps_of(instance)
    absent = {gap for gap in until if gap[1] == -1 and instance.blocks[gap[0]].initially == "host"}
    gone = {gap for gap in evicted if gap in until} | absent
    load = np.array(fixed, dtype=np.int64)
    for d, first, last in _stays(instance):
        if (d, first) not in gone:
            load[first + 1 : last] += sizes[d]

    # evict more where live blocks exceed the pool, those first that are needed the latest
    chosen: list[int] = []
    starting: dict[int, list[Gap]] = defaultdict(list)
    for gap in until:
        starting[gap[1] + 1].append(gap)
    present: set[Gap] = set()
    for k, task in enumerate(instance.tasks):
        present.update(gap for gap in starting[k] if gap not in gone)
        a = algorithms.get(k, leanest(task))
        if fixed[k] + scratch[k][a] > capacity:
            a = leanest(task)
        chosen.append(a)
        if load[k] + scratch[k][a] <= capacity:
            continue
        present = {gap for gap in present if until[gap] > k}
        for gap in sorted(present, key=lambda g: (-until[g], -sizes[g[0]], g)):
            if load[k] + scratch[k][a] <= capacity:
                break
            gone.add(gap)
            present.remove(gap)
            load[gap[1] + 1 : until[gap]] -= sizes[gap[0]]
        if load[k] + scratch[k][a] > capacity:
            return None

    # prefetch each from the first task on from which there is room for it at every task until its use
    busy = load + np.array([scratch[k][a] for k, a in enumerate(chosen)], dtype=np.int64)
    before: dict[Gap, int] = {}
    for gap in sorted(gone, key=lambda g: (until[g], g)):
        first, size = gap[1] + 1, sizes[gap[0]]
        full = np.flatnonzero(busy[first : until[gap]] > capacity - size)
        before[gap] = first + int(full[-1]) + 1 if len(full) else first
        busy[before[gap] : until[gap]] += size
        load[before[gap] : until[gap]] += size
    for k, task in enumerate(instance.tasks):
        if k not in algorithms:
            chosen[k] = next(a for a in by_speed(task) if load[k] + scratch[k][a] <= capacity)
    return Plan(tuple(chosen), before)


def _stays(instance: Instance) -> Iterator[tuple[int, int, int]]:
    """Every stay between uses, which takes memory unless it is evicted: block, task before, task after."""
    for d, block in enumerate(instance.blocks):
        marks = [*([-1] if block.initially != "absent" else []), *instance.uses[d]]
        marks += [len(instance.tasks)] if block.finally_ == "device" else []
        for after, until in pairwise(marks):
            if until > after + 1:
                yield d, after, until


def execute(instance: Instance, plan: Plan, memory: MemoryModel, method: str) -> Schedule:
    """Issue a plan with the algorithms that it chose.

    Raises
    ------
    Refusal
        When no places are found.
    """
    return build(instance, memory, _issue(instance, plan, plan.algorithms)).finish(method)


def execute_leanly(instance: Instance, plan: Plan, method: str) -> Schedule:
    """Issue a plan contiguously without workspaces, then give each the fastest that its task has room for.

    Blocks are easier to place without workspaces; what is free beside them while a task runs does not depend
    on its algorithm.

    Raises
    ------
    Refusal
        When no places are found, or for an instance with parts of tensors.
    """
    if any(block.tensor is not None for block in instance.blocks):
        raise Refusal("parts of tensors are placed together with their workspaces only")
    rooms: dict[int, tuple[Range, ...]] = {}
    leanly = [leanest(task) for task in instance.tasks]
    placed = build(instance, "contiguous", _issue(instance, plan, leanly, rooms=rooms)).finish(method)
    algorithms, workspace_at = [], {}
    for k, task in enumerate(instance.tasks):
        a, offset = next(
            (a, min((size, start) for start, size in rooms[k] if size >= needed)[1] if needed else 0)
            for a in by_speed(task)
            for needed in [task.algorithms[a].workspace_bytes]
            if needed <= max((size for _, size in rooms[k]), default=0)
        )
        algorithms.append(a)
        if task.algorithms[a].workspace_bytes:
            workspace_at[k] = offset
    again = _issue(instance, plan, algorithms, workspace_at=workspace_at)
    return build_again(instance, placed, again).finish(method)


def _issue(
    instance: Instance,
    plan: Plan,
    algorithms: Sequence[int],
    *,
    workspace_at: Mapping[int, int] | None = None,
    rooms: dict[int, tuple[Range, ...]] | None = None,
) -> Issue:
    """Issue offloads as soon as their version is written, prefetches before their task.

    `rooms`, if given, takes the free ranges while each task runs.
    """
    leaving: dict[int, list[int]] = defaultdict(list)
    offloading: dict[int, list[int]] = defaultdict(list)
    coming: dict[int, list[int]] = defaultdict(list)
    for (d, after), p in plan.prefetch_before.items():
        coming[p].append(d)
        written = [w for w in instance.writers[d] if w <= after]
        if after >= 0:
            leaving[after].append(d)
        if written:
            offloading[written[-1]].append(d)
    count = len(instance.tasks)
    at = workspace_at or {}

    def issue(builder: ProgramBuilder) -> None:
        for d in builder.resident_blocks():
            if (d, -1) in plan.prefetch_before:
                builder.release(d)
        for k in range(count):
            for d in sorted(coming[k], key=lambda d: (_next_use(instance, d, k), d)):
                builder.prefetch(d)
            for d in (*instance.tasks[k].inputs, *instance.tasks[k].updates):
                if not builder.is_resident(d):
                    builder.prefetch(d)
            builder.run(k, algorithms[k], workspace_at=at.get(k))
            if rooms is not None:
                rooms[k] = builder.pool.holes()
            for d in offloading[k]:
                if not builder.on_host(d):
                    builder.offload(d)
            for d in leaving[k]:
                builder.release(d)
            builder.release_dead(k)
        for d in coming[count]:
            builder.prefetch(d)

    return issue


def _next_use(instance: Instance, d: int, k: int) -> int:
    return next((use for use in instance.uses[d] if use >= k), len(instance.tasks))
