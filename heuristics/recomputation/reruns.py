"""Second runs as tasks of their own: a plan of what runs again, and the instance in which it does.

A **plan** names tasks and, for each, the first run before which it runs again. **Unrolled**, its second runs
stand in the order of tasks as tasks, and what they write is blocks of their own: copies of the blocks that
the first run wrote, which nobody uses any more. Nothing runs twice in that instance, so that code for
transfers alone serves for recomputation and transfers together. Whether a block is kept or offloaded between
two uses is decided there. What runs again is decided by the plan. **Rolled up**, a schedule of the unrolled
instance is a schedule of the original instance.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from ...instances.figures import distinct
from ...instances.instance import Block, Instance, Task
from ...validate.schedule import MemoryModel, Operation, Residence, Schedule
from ..clock import look
from ..gaps import Guide
from ..program.builder import ProgramBuilder
from .takeovers import Merges, Pairs, merged, pairs_of, split, without_takeovers

Run = tuple[int, int]
"""A task, and the first run before which it runs; for the first run of a task, the task itself.

The end of the iteration counts as a first run.
"""

Plan = frozenset[Run]
"""The second runs of a schedule."""


def stages_of(instance: Instance) -> list[list[int]]:
    """Return, per stage, the tasks that may run in it, the first run last.

    Stage t begins after the first run of task t - 1 and ends with the first run of task t. If a block must
    end on the device, a further stage with second runs only ends the iteration. A task may run again only
    while all of its inputs have the version that its first run read, and while none of its outputs has been
    updated.
    """
    return list(each_stage(instance))


def each_stage(instance: Instance) -> Iterator[list[int]]:
    """Yield the stages of `stages_of` one by one, because all of them together may need too much memory."""
    total, last = len(instance.tasks), last_stages(instance)
    lost_by: list[list[int]] = [[] for _ in range(total + 1)]  # per stage, the tasks of which it is the last
    for k, stage in enumerate(last):
        lost_by[stage].append(k)
    again: dict[int, None] = {}
    for t in range(_count_stages(instance)):
        look()
        if t:
            for k in lost_by[t - 1]:
                again.pop(k, None)
            if last[t - 1] >= t:
                again[t - 1] = None
        yield [*again, *([t] if t < total else [])]


def last_stages(instance: Instance) -> list[int]:
    """Return, per task, the last stage in which it may run again: from the one behind its first run to that.

    For a task that may not, this is the task itself.
    """
    end, last = _count_stages(instance) - 1, []
    for k, task in enumerate(instance.tasks):
        look()
        # a write of what it reads, from its own first run on; a write of an output that is not its first
        changes = [w for d in task.inputs for w in _first_from(instance.writers[d], k)]
        changes += [w for d in task.outputs for w in instance.writers[d][1:2]]
        may = task.recomputable and not task.updates
        last.append(max(min(changes, default=end), k) if may else k)
    return [min(stage, end) for stage in last]


def last_uses(instance: Instance) -> list[int]:
    """Return, per task, the last stage in which a second run can be of use; -1 if there is none."""
    needed = [
        len(instance.tasks) if block.finally_ == "device" else max(uses, default=-1)
        for block, uses in zip(instance.blocks, instance.uses, strict=True)
    ]
    last = [-1] * len(instance.tasks)
    for k in reversed(range(len(instance.tasks))):
        task = instance.tasks[k]
        if task.recomputable:
            last[k] = max((needed[d] for d in task.outputs), default=-1)
            for d in task.may_read:
                needed[d] = max(needed[d], last[k])
    return last


def _count_stages(instance: Instance) -> int:
    return len(instance.tasks) + any(block.finally_ == "device" for block in instance.blocks)


def _first_from(positions: Sequence[int], k: int) -> Sequence[int]:
    """Return the first of some ordered positions that is k or later, if there is one."""
    at = bisect_left(positions, k)
    return positions[at : at + 1]


def staying(instance: Instance) -> Instance:
    """Return the instance without any copy that it does not require."""
    blocks = tuple(
        msgspec.structs.replace(
            block,
            offload_ns=block.offload_ns if block.finally_ == "host" else None,
            prefetch_ns=block.prefetch_ns if block.initially == "host" else None,
        )
        for block in instance.blocks
    )
    return msgspec.structs.replace(instance, blocks=blocks)


def algorithms_of(schedule: Schedule) -> dict[Run, int]:
    """Return the runs of a schedule, each with its algorithm."""
    following, chosen = 0, {}
    for operation in schedule.operations:
        if operation.task is not None and operation.algorithm is not None:
            chosen[operation.task, max(operation.task, following)] = operation.algorithm
            following = max(following, operation.task + 1)
    return chosen


def plan_of(schedule: Schedule) -> Plan:
    """Return the second runs of a schedule."""
    return frozenset((k, t) for k, t in algorithms_of(schedule) if k != t)


def order_of(instance: Instance, plan: Iterable[Run]) -> list[Run]:
    """Return all runs in order: within a stage, second runs in the order of tasks, then the first run."""
    total, reached = len(instance.tasks), 0
    first, runs = list(zip(range(total), range(total), strict=True)), []
    for k, t in _in_order(plan):
        runs += first[reached:t]
        runs.append((k, t))
        reached = t
    return runs + first[reached:]


def _in_order(plan: Iterable[Run]) -> list[Run]:
    return sorted(plan, key=lambda run: (run[1], run[0]))


def useful(instance: Instance, plan: Iterable[Run]) -> Plan:
    """Return the plan without second runs whose outputs are neither read nor needed at the end."""
    kept: set[Run] = set()
    following: dict[int, int] = {}  # per task, the stage of its next second run
    read: dict[int, int] = {}  # per block, the stage of the next second run that reads it
    end = len(instance.tasks) + 1
    for k, t in reversed(_in_order(plan)):
        task, until = instance.tasks[k], following.get(k, end)
        if any(
            read.get(d, end) < until
            or any(use < until for use in _first_from(instance.uses[d], t))
            or (until == end and instance.blocks[d].finally_ == "device")
            for d in task.outputs
        ):
            kept.add((k, t))
            following[k] = t
            read.update(dict.fromkeys((*task.inputs, *task.updates), t))
    return frozenset(kept)


@dataclass(frozen=True, slots=True)
class Names:
    """What tasks and blocks stand for in an instance in which second runs are tasks.

    Attributes
    ----------
    runs
        Per task, the run of the original instance that it stands for.
    copies
        Per block, the original block and the second run that writes this copy; None for the first copy.
    merges
        The blocks that stand for others.
    """

    runs: tuple[Run, ...]
    copies: tuple[tuple[int, Run | None], ...]
    merges: Merges = field(default_factory=dict, kw_only=True)

    def standing(self, place: int, after: int) -> int:
        """Return the block for which another one stands behind a task, or the block itself."""
        return next((d for i, d in reversed(self.merges.get(place, [])) if i <= after), place)

    def translated(self, guide: Guide, other: Names) -> Guide:
        """Return a guide for the same instance under another plan, with the gaps and runs that exist in both.

        A second run that is new takes the algorithm of the first run.
        """
        task = {run: i for i, run in enumerate(other.runs)}
        places = {d: place for place, changes in other.merges.items() for _, d in changes}
        block = {copy: places.get(d, d) for d, copy in enumerate(other.copies)}

        def gaps(these: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
            found = []
            for d, after in these:
                where = block.get(self.copies[self.standing(d, after)])
                since = -1 if after < 0 else task.get(self.runs[after])
                if where is not None and since is not None:
                    found.append((where, since))
            return found

        chosen = dict(zip(self.runs, guide.algorithms, strict=True))
        return Guide(
            gaps(guide.returning),
            gaps(guide.leaving),
            [chosen.get((k, t), chosen[k, k]) for k, t in other.runs],
        )


def names_of(instance: Instance, plan: Iterable[Run]) -> Names:
    """Return the runs of a plan, in order, and the blocks that they need beside the first copies."""
    runs = order_of(instance, plan)
    copies: list[tuple[int, Run | None]] = [(d, None) for d in range(len(instance.blocks))]
    copies += [(d, (k, t)) for k, t in runs if k != t for d in instance.tasks[k].outputs]
    return Names(tuple(runs), tuple(copies))


@dataclass(frozen=True, slots=True)
class Unrolled(Names):
    """An instance in which second runs are tasks.

    The blocks that one run writes of a tensor in parts form a tensor of their own. Where an output takes over
    the place of an input (`takeovers`), one block stands for both.
    """

    instance: Instance


def unrolled(instance: Instance, plan: Iterable[Run]) -> Unrolled:
    """Return the instance in which the second runs of a plan are tasks.

    Parameters
    ----------
    instance
        Any instance.
    plan
        Second runs, each of which `stages_of` allows. Outputs that may take over the places of inputs with
        each algorithm of a task do so if nothing needs the input behind the run.
    """
    named = names_of(instance, plan)
    pairs, wanted = pairs_of(instance), dict[int, Pairs]()
    instance = without_takeovers(instance)
    runs, copies = named.runs, named.copies
    numbers = {copy: d for d, copy in enumerate(copies)}
    latest = list(range(len(instance.blocks)))
    tasks: list[Task] = []
    titles = distinct(instance.tasks[k].name for k, _ in runs)
    for k, t in runs:
        look()
        task = instance.tasks[k]
        inputs = tuple(latest[d] for d in task.inputs)
        updates = tuple(latest[d] for d in task.updates)
        if k != t:
            for d in task.outputs:
                latest[d] = numbers[d, (k, t)]
        outputs = tuple(latest[d] for d in task.outputs)
        if k in pairs:
            place = dict(zip(task.inputs, inputs, strict=True))
            wanted[len(tasks)] = tuple((latest[d], place[x]) for d, x in pairs[k])
        tasks.append(
            msgspec.structs.replace(
                task,
                name=titles[len(tasks)],
                inputs=inputs,
                outputs=outputs,
                updates=updates,
                recomputable=False,
            )
        )
    names = distinct(instance.blocks[d].name for d, _ in copies)
    number = {tensor: i for i, tensor in enumerate(dict.fromkeys(block.tensor for block in instance.blocks))}
    blocks = [
        _copy(instance.blocks[d], names[new], run, number[instance.blocks[d].tensor], last=latest[d] == new)
        for new, (d, run) in enumerate(copies)
    ]
    again = msgspec.structs.replace(
        instance,
        blocks=tuple(blocks),
        tasks=tuple(tasks),
        meta={},
        origin=msgspec.UNSET,
        layers=msgspec.UNSET,
    )
    again, merges = merged(again, wanted)
    return Unrolled(runs, copies, again, merges=merges)


def _copy(block: Block, name: str, run: Run | None, tensor: int, *, last: bool) -> Block:
    return msgspec.structs.replace(
        block,
        name=name,
        initially=block.initially if run is None else "absent",
        finally_=block.finally_ if last else "anywhere",
        tensor=None if block.tensor is None else f"{run} {tensor}",
    )


def rolled_up(instance: Instance, again: Unrolled, schedule: Schedule, method: str) -> Schedule:
    """Return a schedule of an unrolled instance as a schedule of the original instance.

    Operations keep their order and their addresses. A block is not offloaded again while the host holds it.
    """
    schedule = split(schedule, again.merges)
    memory: MemoryModel = schedule.memory_model
    position = {operation.id: p for p, operation in enumerate(schedule.operations)}
    acquired: dict[int | None, list[Residence]] = defaultdict(list)
    released: dict[int, list[int]] = defaultdict(list)
    for residence in schedule.residences:
        acquired[residence.acquired_by].append(residence)
        if residence.block is not None and residence.released_after:
            last = max(position[i] for i in residence.released_after)
            released[last].append(residence.block)
    start = {again.copies[r.block][0]: r.offset for r in acquired[None] if r.block is not None}
    builder = ProgramBuilder(instance, memory=memory, start=start, homing=True)
    for p, operation in enumerate(schedule.operations):
        overwritten = _issue(builder, again, operation, acquired[operation.id])
        for d in released[p]:
            block = again.copies[d][0]
            if not (operation.kind == "move" and operation.block == d) and block not in overwritten:
                builder.release(block)
    return builder.finish(method)


def _issue(
    builder: ProgramBuilder, again: Unrolled, operation: Operation, acquired: Sequence[Residence]
) -> Collection[int]:
    """Issue an operation; return the blocks whose places its outputs take over."""
    at = {again.copies[r.block][0]: r.offset for r in acquired if r.block is not None}
    if operation.task is not None and operation.algorithm is not None:
        scratch = next((r.offset for r in acquired if r.workspace_of is not None), None)
        task = again.runs[operation.task][0]
        pairs = dict(builder.instance.tasks[task].algorithms[operation.algorithm].takes_over)
        taking = [again.copies[r.block][0] for r in acquired if r.block is not None and r.takes_over]
        over = {d: pairs[d] for d in taking}
        places = {d: offset for d, offset in at.items() if offset is not None and d not in over}
        builder.run(task, operation.algorithm, at=places, workspace_at=scratch, over=over)
        return over.values()
    assert operation.block is not None
    d = again.copies[operation.block][0]
    if operation.kind == "prefetch":
        builder.prefetch(d, at=at[d])
    elif operation.kind == "move":
        builder.move(d, at=at[d])
    elif not builder.on_host(d):
        builder.offload(d)
    return ()
