"""From an instance to the arrays of local search, and from its decisions back to a schedule."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..instances.instance import Instance
from ..instances.memory import fastest, least_budget
from ..instances.units import ceil_to
from ..validate.schedule import MemoryModel, Schedule, unit_bytes
from .choices import fastest_within
from .gaps import Gap, Guide, gaps_of, stays_of
from .parts import chains, require_alike, tensors_of
from .program import ProgramBuilder
from .search_kernel import (
    AFTER,
    ALGORITHMS,
    BLOCK,
    BYTES,
    COST,
    EARLY_HIGH,
    FIRST_PART,
    FIXED,
    FORCED,
    LEAVES_FIRST,
    LEAVES_NEXT,
    LIGHT,
    LOW,
    MOVE,
    NEVER,
    NEXT_PART,
    OFFLOAD,
    OFFLOAD_NS,
    PART_BEFORE,
    PLACE,
    PREFETCH,
    PREFETCH_NS,
    RELEASE,
    RUN,
    TASK_KIND,
    UNTIL,
    VERSION,
    WORKSPACE,
    WRITER,
    Decisions,
    Problem,
    arrange,
)

Integers = NDArray[np.int64]


_SHARE = 500
"""The smallest blocks may take this part of the pool for themselves."""

_LIGHT = 1 / 16
"""Of what bytes cost on average, what they cost at most where a block leaves anyhow."""

_COSTS = ((math.inf, 0.0), (0.1, 0.0), (0.01, 0.0), (0.01, 0.02), (0.01, 0.05))
"""How closely what bytes cost may be told apart, and in which first share of the tasks they cost nothing."""


def problem_of(
    instance: Instance,
    memory: MemoryModel,
    *,
    moves: bool = True,
    sides: bool = True,
    addresses: bool = True,
) -> Problem:
    """Return an instance as arrays, its sizes rounded up to the unit of the memory model.

    Parameters
    ----------
    instance, memory
        What to schedule, and in which memory model.
    moves, sides
        Whether blocks may be moved inside the device, and whether the search changes which holes they take;
        in contiguous memory.
    addresses
        Whether they count there; without, blocks need just their bytes, and decisions mean the same.

    Raises
    ------
    Refusal
        For parts in contiguous memory that tasks or copies tell apart.
    """
    contiguous = memory == "contiguous" and addresses
    unit = unit_bytes(instance, memory)
    tasks, blocks = instance.tasks, instance.blocks
    size = [ceil_to(block.bytes, unit) for block in blocks]
    capacity = max(instance.pool_bytes, 0) // unit * unit
    private = np.full(len(blocks), -1, dtype=np.int64)
    if memory == "contiguous":
        capacity = _make_private(instance, capacity, size, private)
    gaps = {
        (d, -1): instance.uses[d][0] if instance.uses[d] else len(tasks)
        for d, block in enumerate(blocks)
        if block.initially == "host" and (instance.uses[d] or block.finally_ == "device")
    }
    gaps |= {(d, after): until for (d, after), until in gaps_of(instance).items() if size[d]}
    keys, until = list(gaps), list(gaps.values())

    versions: dict[tuple[int, int], int] = {}
    for d, block in enumerate(blocks):
        if block.offload_ns is not None:
            for writer in instance.writers[d]:
                versions[d, writer] = len(versions)
    version_of = [
        versions[d, instance.writers[d][earlier - 1]]
        if (earlier := bisect_right(instance.writers[d], after))
        else -1
        for d, after in keys
    ]
    due = [-1] * len(blocks)
    for d, block in enumerate(blocks):
        if block.finally_ == "host" and instance.writers[d]:
            due[d] = versions[d, instance.writers[d][-1]]

    change = np.zeros(len(tasks) + 1, dtype=np.int64)
    for d, first, last in stays_of(instance):
        if (d, first) not in gaps:
            change[first + 1] += size[d]
            change[last] -= size[d]
    fixed = np.cumsum(change[:-1]) + [sum(size[d] for d in task.blocks) for task in tasks]

    starting: list[list[int]] = [[] for _ in range(len(tasks) + 1)]
    for g, (_, after) in enumerate(keys):
        starting[after + 1].append(g)
    written: list[list[int]] = [[] for _ in tasks]
    for (_, writer), v in versions.items():
        written[writer].append(v)
    places = _places_in_tensors(instance, size, contiguous)
    gap_chains, version_chains = _chains(instance, gaps, list(versions))
    dead = [
        [d for d in task.blocks if instance.uses[d][-1] == k and blocks[d].finally_ != "device"]
        for k, task in enumerate(tasks)
    ]
    initial = [
        d
        for d in sorted(range(len(blocks)), key=lambda d: (places[d][0], places[d][1]))
        if blocks[d].initially == "device" and (instance.uses[d] or blocks[d].finally_ == "device")
    ]
    table, lists = _lists(
        [
            [sorted((*task.inputs, *task.updates), key=lambda d: places[d][1]) for task in tasks],
            [task.updates for task in tasks],
            [
                sorted(task.outputs, key=lambda d: (-places[d][3], places[d][0], places[d][1]))
                for task in tasks
            ],
            dead,
            starting,
            written,
        ],
        len(tasks) + 2,
    )
    algorithms = [(a.duration_ns, ceil_to(a.workspace_bytes, unit)) for t in tasks for a in t.algorithms]
    table[:, FIXED] = np.pad(fixed, (0, 2))
    kinds = _kinds(task.algorithms for task in tasks)
    table[:-2, TASK_KIND] = kinds
    gap_kinds = _kinds(
        (blocks[d].bytes, *(kinds[k] if 0 <= k < len(tasks) else -1 for k in (after, last)))
        for (d, after), last in zip(keys, until, strict=True)
    )
    table[:, ALGORITHMS] = np.pad(np.cumsum([0, *(len(task.algorithms) for task in tasks)]), (0, 1), "edge")
    return Problem(
        length=len(tasks),
        capacity=capacity,
        single=instance.engines == "single",
        contiguous=contiguous,
        moves=moves and contiguous,
        sides=sides and contiguous,
        parts=any(block.tensor is not None for block in blocks),
        private=private,
        initial=np.array(initial, dtype=np.int64),
        blocks=_table(
            [
                (
                    size[d],
                    *(-1 if ns is None else ns for ns in (b.offload_ns, b.prefetch_ns, b.move_ns)),
                    due[d],
                    *places[d],
                )
                for d, b in enumerate(blocks)
            ],
            9,
        ),
        tasks=table,
        algorithms=_table(algorithms, 2),
        gaps=_table(
            [
                (d, after, last, version, after == -1 and blocks[d].initially == "host", *chain, kind, 0, 0)
                for (d, after), last, version, chain, kind in zip(
                    keys, until, version_of, gap_chains, gap_kinds, strict=True
                )
            ],
            11,
        ),
        versions=_table(
            [
                (d, w, due[d] == v, *chain)
                for v, ((d, w), chain) in enumerate(zip(versions, version_chains, strict=True))
            ],
            5,
        ),
        lists=lists,
    )


def with_light(instance: Instance, problem: Problem) -> Problem:
    """Return a problem that tells which gaps are light: their blocks leave wherever that is possible.

    Their bytes cost next to nothing, as those of a block of some KiB that takes a whole page, and they last
    as long as the copies that theirs come upon on the engines, on average. One by one such blocks make no
    program shorter, so that a search that may keep them does not find out what all of them together buy.
    Parts of a tensor are none.
    """
    gaps = problem.gaps.copy()
    rate = _rates(problem, by_tensor=False)
    before = np.cumsum([0, *(algorithm.duration_ns for algorithm in fastest(instance))])
    stay = before[gaps[:, UNTIL]] - before[gaps[:, AFTER] + 1]
    copies = np.maximum(problem.blocks[:, [OFFLOAD_NS, PREFETCH_NS]], 0).astype(np.float64)
    met = ((copies**2).sum(axis=0) / np.maximum(copies.sum(axis=0), 1)).sum()
    alone = (gaps[:, NEXT_PART] < 0) & (gaps[:, PART_BEFORE] < 0)
    gaps[:, LIGHT] = alone & (rate <= _LIGHT) & (stay >= met)
    return problem._replace(gaps=gaps)


def costings(problem: Problem) -> Iterator[Problem]:
    """Yield a problem with each way to tell costs apart, none of them twice: first with none at all."""
    seen = set()
    for (width, free), by_tensor in product(_COSTS, (False, True) if problem.parts else (False,)):
        costed = _with_costs(problem, width, free, by_tensor=by_tensor)
        told = costed.gaps[:, COST].tobytes()
        if told not in seen:
            seen.add(told)
            yield costed


def _with_costs(problem: Problem, width: float, free: float, *, by_tensor: bool) -> Problem:
    """Return a problem whose gaps have classes of what a byte costs that leaves: the time of its copies.

    Bytes are those that a block takes in memory: in whole pages, a small one takes many for the time of its
    copies. What the host has a copy of need not be offloaded.

    Parameters
    ----------
    problem
        Any.
    width
        Of a class, in logarithms.
    free
        What is written in this first share of the tasks costs least: its copies may hide behind compute.
    by_tensor
        Whether all parts of a tensor cost what they cost together; else the last one, which may take a page
        for a few bytes, is cheap.
    """
    gaps = problem.gaps.copy()
    rates = np.maximum(_rates(problem, by_tensor=by_tensor), 1e-6)
    gaps[:, COST] = np.rint(np.log(rates) / width).astype(np.int64)
    gaps[gaps[:, AFTER] + 1 < free * problem.length, COST] = -NEVER
    return problem._replace(gaps=gaps)


def _rates(problem: Problem, *, by_tensor: bool) -> NDArray[np.float64]:
    """Per gap, the time of its copies for a byte in memory, beside the mean of all."""
    blocks = problem.blocks[problem.gaps[:, BLOCK]]
    out = np.where(problem.gaps[:, VERSION] >= 0, blocks[:, OFFLOAD_NS], 0)
    times, sizes = out + blocks[:, PREFETCH_NS], np.maximum(blocks[:, BYTES], 1)
    if by_tensor:
        first = problem.gaps[:, FIRST_PART]
        times, sizes = np.bincount(first, times)[first], np.bincount(first, sizes)[first]
    mean = max(times.sum() / max(sizes.sum(), 1), 1e-9)
    rates: NDArray[np.float64] = times / sizes / mean
    return rates


def _kinds(described: Iterable[Hashable]) -> list[int]:
    """Number things by what describes them: the same number for those that are alike."""
    number: dict[Hashable, int] = {}
    return [number.setdefault(one, len(number)) for one in described]


def _make_private(instance: Instance, capacity: int, size: list[int], private: Integers) -> int:
    """Give the smallest blocks places of their own at the end of the pool; return what is left of it.

    They stay on the device: what they take together is a small share of the pool, and of what tasks leave,
    and no task loses its fastest algorithm to it.
    """
    spare = min(capacity // _SHARE, (instance.budget_bytes - least_budget(instance)) // 4)
    needs = np.zeros(len(instance.tasks), dtype=np.int64)
    for k, task in enumerate(instance.tasks):
        needs[k] = sum(size[d] for d in task.blocks)
        quickest = task.algorithms[fastest_within(task, capacity - int(needs[k]))]
        needs[k] += ceil_to(quickest.workspace_bytes, instance.alignment_bytes)
    end = capacity
    for d in sorted(range(len(size)), key=lambda d: (size[d], d)):
        if instance.blocks[d].tensor is not None:
            continue
        needs[list(instance.uses[d])] -= size[d]
        if end - size[d] < max(capacity - spare, needs.max(initial=0)):
            break
        end -= size[d]
        private[d] = end
        size[d] = 0
    return end


def _places_in_tensors(
    instance: Instance, size: list[int], together: bool
) -> list[tuple[int, int, int, int]]:
    """Per block: the first part of its tensor, where it begins, the part that follows, the tensor's bytes.

    Every block is a tensor of its own unless parts have to lie together.
    """
    places = [(d, 0, -1, size[d]) for d in range(len(size))]
    for parts in tensors_of(instance) if together else ():
        require_alike(instance, parts)
        span = (instance.blocks[parts[-1]].begin or 0) + size[parts[-1]]
        for d, following in zip(parts, [*parts[1:], -1], strict=True):
            places[d] = parts[0], instance.blocks[d].begin or 0, following, span
    return places


def _chains(
    instance: Instance, gaps: Mapping[Gap, int], versions: Sequence[tuple[int, int]]
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """Chains of parts of a tensor: per gap the next, the one before and the first; per version two of them.

    A version is followed by that of the part before, which leaves after it.
    """
    tensor = [block.tensor for block in instance.blocks]
    begin = [block.begin or 0 for block in instance.blocks]
    first, following, before = chains(
        [tensor[d] and (tensor[d], after, until) for (d, after), until in gaps.items()],
        [begin[d] for d, _ in gaps],
    )
    leader, leaves_next, _ = chains(
        [tensor[d] and (tensor[d], writer) for d, writer in versions], [-begin[d] for d, _ in versions]
    )
    return list(zip(following, before, first, strict=True)), list(zip(leaves_next, leader, strict=True))


def decisions_of(instance: Instance, problem: Problem, guide: Guide) -> Decisions:
    """Complete decisions: copies in the order of a guide, others in that of their writers and uses.

    Blocks that leave, and workspaces, go high in contiguous memory, those that stay go low.
    """
    keys = gap_keys(problem)
    index = {gap: g for g, gap in enumerate(keys)}
    back = [index[gap] for gap in guide.returning if gap in index]
    out = [v for gap in guide.leaving if gap in index and (v := int(problem.gaps[index[gap], VERSION])) >= 0]
    evicted, hold = np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=np.int64)
    evicted[back] = 1
    for gap, task in zip(guide.returning, guide.holds, strict=False):
        if gap in index:
            hold[index[gap]] = task
    _evict_suffixes(problem, evicted)
    decisions = Decisions(
        evicted=evicted,
        offloads=_ordered(problem.versions[:, WRITER], problem.versions[:, BLOCK], out),
        prefetches=_ordered(problem.gaps[:, UNTIL], problem.gaps[:, BLOCK], back),
        hold=hold,
        algorithm=np.array(guide.algorithms, dtype=np.int64),
        side=np.zeros(len(instance.blocks) + len(keys) + len(instance.tasks), dtype=np.int64),
    )
    _arrange(problem, decisions)
    choose_sides(problem, decisions)
    return decisions


def _evict_suffixes(problem: Problem, evicted: Integers) -> None:
    """Of each tensor in each gap, let as many of the last parts leave as parts are evicted."""
    following, first = problem.gaps[:, NEXT_PART], problem.gaps[:, FIRST_PART]
    count = np.bincount(first, evicted, minlength=len(evicted)).astype(np.int64)
    length = np.bincount(first, minlength=len(evicted))
    for g in np.unique(first):
        stays = int(length[g] - count[g])
        while g >= 0:
            evicted[g] = stays <= 0
            stays, g = stays - 1, following[g]


def _arrange(problem: Problem, decisions: Decisions) -> None:
    """Let the parts of a tensor leave the last one first, and come back in their order."""
    for order, first, following in (
        (decisions.offloads, problem.versions[:, LEAVES_FIRST], problem.versions[:, LEAVES_NEXT]),
        (decisions.prefetches, problem.gaps[:, FIRST_PART], problem.gaps[:, NEXT_PART]),
    ):
        arrange(order, first, following, np.empty_like(order))


def _ordered(rank: Integers, block: Integers, first: Sequence[int]) -> Integers:
    """Copies by rank and block, but some of them in a given order: none of them after one of greater rank."""
    rank, turn = rank.copy(), np.full(len(rank), len(rank))
    least = NEVER
    for position, i in reversed(list(enumerate(dict.fromkeys(first)))):
        least = min(least, int(rank[i]))
        rank[i], turn[i] = least, position
    return np.lexsort((block, turn, rank))


def gap_keys(problem: Problem) -> list[Gap]:
    """Every gap of the arrays by its block and the task before it."""
    return list(zip(problem.gaps[:, BLOCK].tolist(), problem.gaps[:, AFTER].tolist(), strict=True))


def choose_sides(problem: Problem, decisions: Decisions) -> None:
    """Let blocks that stay between uses go low, all others high."""
    blocks, gaps = len(problem.blocks), len(problem.gaps)
    decisions.side[:] = EARLY_HIGH
    place = np.arange(blocks)
    order = np.lexsort((problem.gaps[:, AFTER], problem.gaps[:, BLOCK]))
    for g in order:
        d = problem.gaps[g, BLOCK]
        if decisions.evicted[g] or problem.gaps[g, FORCED]:
            place[d] = blocks + g
        else:
            decisions.side[place[d]] = LOW
    assert len(decisions.side) == blocks + gaps + problem.length


def decisions_from(instance: Instance, problem: Problem, schedule: Schedule) -> Decisions:
    """What a schedule decided: its evictions, algorithms and the order of its copies.

    Its addresses and its recomputations are not taken over.
    """
    keys = set(gap_keys(problem))
    uses = instance.uses
    algorithms = [0] * len(instance.tasks)
    ran = -1
    evicted: list[Gap] = []
    offloads: list[int] = []
    versions = {
        (int(d), int(w)): v
        for v, (d, w) in enumerate(zip(problem.versions[:, BLOCK], problem.versions[:, WRITER], strict=True))
    }
    for operation in schedule.operations:
        if operation.kind == "run" and operation.task is not None and operation.algorithm is not None:
            algorithms[operation.task] = operation.algorithm
            ran = max(ran, operation.task)
        elif operation.kind == "offload" and operation.block is not None:
            d = operation.block
            written = [w for w in instance.writers[d] if w <= ran]
            if written and versions[d, written[-1]] not in offloads:
                offloads.append(versions[d, written[-1]])
        elif operation.kind == "prefetch" and operation.block is not None:
            d = operation.block
            after = max((use for use in uses[d] if use <= ran), default=-1)
            if (d, after) in keys and (d, after) not in evicted:
                evicted.append((d, after))
    decisions = decisions_of(instance, problem, Guide(evicted, [], algorithms))
    decisions.offloads[:] = _ordered(problem.versions[:, WRITER], problem.versions[:, BLOCK], offloads)
    _arrange(problem, decisions)
    return decisions


def program_of(instance: Instance, problem: Problem, memory: MemoryModel, log: Integers) -> ProgramBuilder:
    """Issue the steps that the kernel has logged."""
    contiguous = memory == "contiguous"
    steps = [
        (
            kind,
            what,
            how,
            int(problem.private[what]) if kind in (PLACE, PREFETCH) and problem.private[what] >= 0 else at,
        )
        for kind, what, how, at in log.tolist()
    ]
    count = 0
    start: dict[int, int | None] = {}
    while count < len(steps) and steps[count][0] == PLACE:
        start[steps[count][1]] = steps[count][3] if contiguous else None
        count += 1
    builder = ProgramBuilder(instance, memory=memory, start=start)
    while count < len(steps):
        kind, what, how, at = steps[count]
        count += 1
        if kind == RUN:
            places: dict[int, int] = {}
            while count < len(steps) and steps[count][0] == PLACE:
                places[steps[count][1]] = steps[count][3]
                count += 1
            if contiguous:
                builder.run(what, how, at=places, workspace_at=None if at < 0 else at)
            else:
                builder.run(what, how)
        elif kind == OFFLOAD:
            builder.offload(what)
        elif kind == PREFETCH:
            builder.prefetch(what, at=at if contiguous else None)
        elif kind == MOVE:
            builder.move(what, at=at)
        elif kind == RELEASE:
            builder.release(what)
    return builder


class Lifetime(NamedTuple):
    """A piece of the pool that a program holds for a while: a stay of a block, or a workspace.

    Attributes
    ----------
    side
        The number in `Decisions.side` of what decides its place.
    bytes
        As the search counts them.
    begin_ns, end_ns
        From when on, and until when.
    """

    side: int
    bytes: int
    begin_ns: int
    end_ns: int


def lifetimes_of(instance: Instance, problem: Problem, log: Integers) -> list[Lifetime]:
    """What the steps that the kernel has logged put into the pool, and when; without addresses."""
    schedule = program_of(instance, problem, "divisible", log).finish("lifetimes")
    operations = {operation.id: operation for operation in schedule.operations}
    blocks, gaps = len(problem.blocks), len(problem.gaps)
    prefetches = [operation.id for operation in schedule.operations if operation.kind == "prefetch"]
    gap_of = dict(zip(prefetches, log[log[:, 0] == PREFETCH, 2].tolist(), strict=True))
    found = []
    for residence in schedule.residences:
        if residence.workspace_of is not None:
            run = operations[residence.workspace_of]
            assert run.task is not None
            row = problem.tasks[run.task, ALGORITHMS] + run.algorithm
            side, size = blocks + gaps + run.task, int(problem.algorithms[row, WORKSPACE])
        else:
            assert residence.block is not None
            came = residence.acquired_by
            side = residence.block if came not in gap_of else blocks + gap_of[came]
            size = int(problem.blocks[residence.block, BYTES])
        begin = 0 if residence.acquired_by is None else operations[residence.acquired_by].start_ns
        ends = [operations[i].end_ns for i in residence.released_after]
        end = max(ends, default=schedule.makespan_ns)
        if size and end > begin:
            found.append(Lifetime(side, size, begin, end))
    return found


def _table(rows: Iterable[Sequence[int]], columns: int) -> Integers:
    return np.array(list(rows), dtype=np.int64).reshape(-1, columns)


def _lists(kinds: Sequence[Sequence[Sequence[int]]], rows: int) -> tuple[Integers, Integers]:
    """Concatenate lists of several kinds per task; return where each begins, from the fourth column on."""
    table = np.zeros((rows, 3 + len(kinds)), dtype=np.int64)
    values: list[int] = []
    for column, lists in enumerate(kinds, 3):
        for row in range(rows):
            table[row, column] = len(values)
            if row < len(lists):
                values.extend(lists[row])
    return table, np.array(values, dtype=np.int64)
