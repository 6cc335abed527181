"""Outputs that take over the place of an input: one block in the place of two, and back.

An output that takes over a place is what an update in place makes of the input. So where nothing needs the
input later, an instance in which the task **updates** the input, and later tasks touch that block in place of
the output, stands for the takeover: it has the same sizes, times and places. Nothing runs twice in that
instance. In a schedule, the block is **split** again: until the run it is the input, from then on the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ...instances.instance import Block, Instance
from ...validate.schedule import Residence, Schedule

Pairs = tuple[tuple[int, int], ...]
"""Outputs, each with the input whose place it takes over."""

Merges = dict[int, list[tuple[int, int]]]
"""Per block that stands for others: the tasks that update it in place of writing a block, and that block."""


def pairs_of(instance: Instance) -> dict[int, Pairs]:
    """Return, per task, the outputs that may take over places of inputs with each of its algorithms.

    Those are left out whose blocks are copied differently. So are all of them where host memory has a budget
    and something can be copied.
    """
    blocks = instance.blocks
    copied = any(block.offload_ns is not None or block.prefetch_ns is not None for block in blocks)
    if not instance.reads_vary or (instance.has_host_budget and copied):
        return {}
    found = {}
    for k, task in enumerate(instance.tasks):
        common = set.intersection(*(set(algorithm.takes_over) for algorithm in task.algorithms))
        if pairs := tuple((d, x) for d, x in sorted(common) if are_alike(blocks[d], blocks[x])):
            found[k] = pairs
    return found


def without_takeovers(instance: Instance) -> Instance:
    """Return the instance in which no output takes over a place."""
    if not instance.reads_vary:
        return instance
    tasks = tuple(
        msgspec.structs.replace(
            task, algorithms=tuple(msgspec.structs.replace(a, takes_over=()) for a in task.algorithms)
        )
        if any(a.takes_over for a in task.algorithms)
        else task
        for task in instance.tasks
    )
    return msgspec.structs.replace(instance, tasks=tasks)


def merged(instance: Instance, wanted: Mapping[int, Pairs]) -> tuple[Instance, Merges]:
    """Return an instance in which tasks update inputs in place of writing outputs, and which they are.

    Parameters
    ----------
    instance
        An instance in which nothing runs twice, and what tasks read does not depend on algorithms.
    wanted
        Pairs by task. Those are left out whose input is needed later, or at the end.
    """
    blocks, tasks, merges = list(instance.blocks), list(instance.tasks), Merges()
    stands: dict[int, int] = {}
    for k, pairs in sorted(wanted.items()):
        for d, x in pairs:
            if instance.uses[x][-1] != k or instance.blocks[x].finally_ != "anywhere":
                continue
            stands[d] = place = stands.get(x, x)
            merges.setdefault(place, []).append((k, d))
            blocks[place] = msgspec.structs.replace(blocks[place], finally_=blocks[d].finally_)
            blocks[d] = msgspec.structs.replace(blocks[d], finally_="anywhere")
            task = tasks[k]
            tasks[k] = msgspec.structs.replace(
                task,
                inputs=tuple(i for i in task.inputs if i != x),
                outputs=tuple(o for o in task.outputs if o != d),
                updates=(x, *task.updates),
            )
    if not merges:
        return instance, merges

    def named(touched: Sequence[int]) -> tuple[int, ...]:
        return tuple([stands.get(d, d) for d in touched])

    tasks = [
        msgspec.structs.replace(
            task, inputs=named(task.inputs), outputs=task.outputs, updates=named(task.updates)
        )
        for task in tasks
    ]
    return msgspec.structs.replace(instance, blocks=tuple(blocks), tasks=tuple(tasks)), merges


def are_alike(output: Block, place: Block) -> bool:
    """Whether one block can stand for both: they are copied alike, and the input is not carried."""
    times = [(b.bytes, b.offload_ns, b.prefetch_ns, b.move_ns, b.loaded_bytes) for b in (output, place)]
    return times[0] == times[1] and place.initially != "carried"


def split(schedule: Schedule, merges: Merges) -> Schedule:
    """Return a schedule in which blocks stand for others as one of the instance that has them all."""
    if not merges:
        return schedule
    position = {operation.id: p for p, operation in enumerate(schedule.operations)}
    runs = {operation.task: operation.id for operation in schedule.operations if operation.kind == "run"}
    changes = {d: [(position[runs[k]], new) for k, new in of] for d, of in merges.items()}

    def block_at(d: int, p: int) -> int:
        """The block that `d` stands for behind position p."""
        return next((new for q, new in reversed(changes.get(d, [])) if q <= p), d)

    operations = tuple(
        operation
        if operation.block is None
        else msgspec.structs.replace(operation, block=block_at(operation.block, p))
        for p, operation in enumerate(schedule.operations)
    )
    acquired = [-1 if r.acquired_by is None else position[r.acquired_by] for r in schedule.residences]
    residences: list[Residence] = []
    for residence, begins in zip(schedule.residences, acquired, strict=True):
        if residence.block is None:
            residences.append(residence)
            continue
        d = residence.block
        following = [
            p
            for other, p in zip(schedule.residences, acquired, strict=True)
            if other.block == d and p > begins
        ]
        until = min(following, default=len(schedule.operations))
        residence = msgspec.structs.replace(residence, block=block_at(d, begins))
        for p, new in changes.get(d, []):
            if not begins < p < until:
                continue
            run, after = schedule.operations[p].id, residence.released_after
            residences.append(msgspec.structs.replace(residence, released_after=(run,)))
            residence = msgspec.structs.replace(
                residence,
                block=new,
                acquired_by=run,
                released_after=after and (tuple(i for i in after if position[i] > p) or (run,)),
                takes_over=True,
            )
        residences.append(residence)
    return msgspec.structs.replace(schedule, operations=operations, residences=tuple(residences))
