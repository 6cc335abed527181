"""The same computation without a budget, with whose numbers a schedule's numbers are compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count

import msgspec

from ...instances.instance import Instance
from ...instances.units import ceil_to
from ..schedule import Carried, Kind, Operation, Residence, Schedule, Stream


def unlimited(instance: Instance, schedule: Schedule) -> tuple[Instance, Schedule]:
    """Return the schedule's runs with its algorithms, one after the other, with every block at its own place.

    Only blocks that must be on the host at the end, or that a run on the host touches, are copied; carried
    ones stay on the device. Only workspaces share memory. The instance is returned with the budget that this
    needs.
    """
    unit = instance.alignment_bytes
    offsets: list[int] = []
    bases: dict[str, int] = {}
    extents: dict[str, int] = {}
    for block in instance.blocks:
        if block.tensor is not None and block.begin is not None:
            reached = ceil_to(block.begin + block.bytes, unit)
            extents[block.tensor] = max(extents.get(block.tensor, 0), reached)
    end = 0
    for block in instance.blocks:
        if block.tensor is None or block.begin is None:
            offsets.append(end)
            end += ceil_to(block.bytes, unit)
            continue
        if block.tensor not in bases:
            bases[block.tensor] = end
            end += extents[block.tensor]
        offsets.append(bases[block.tensor] + block.begin)
    operations = list(_in_turn(instance, schedule))
    acquired: dict[int, int | None] = {
        d: None for d, block in enumerate(instance.blocks) if block.initially != "absent"
    }
    residences = []
    scratch = 0
    for operation in operations:
        if operation.kind == "prefetch":
            assert operation.block is not None
            acquired.setdefault(operation.block, operation.id)
        if operation.stream != "compute":
            continue
        assert operation.task is not None
        assert operation.algorithm is not None
        task = instance.tasks[operation.task]
        for d in task.outputs:
            acquired.setdefault(d, operation.id)
        size = task.algorithms[operation.algorithm].workspace_bytes
        if size:
            residences.append(
                Residence(
                    workspace_of=operation.id,
                    offset=end,
                    bytes=size,
                    acquired_by=operation.id,
                    released_after=(operation.id,),
                )
            )
        scratch = max(scratch, size)
    residences += [
        Residence(block=d, offset=offsets[d], bytes=instance.blocks[d].bytes, acquired_by=writer)
        for d, writer in acquired.items()
    ]
    operations += _homecoming(instance, operations, schedule.makespan_ns)
    pool = end + ceil_to(scratch, unit)
    roomy = msgspec.structs.replace(
        instance, budget_bytes=instance.resident_bytes + pool, host_budget_bytes=msgspec.UNSET
    )
    states = tuple(Carried(block=d, device=True, host=False) for d in instance.carried)
    return roomy, Schedule(
        format="pebbler/schedule/1",
        instance=instance.name,
        method=f"{schedule.method} without a budget",
        memory_model="contiguous",
        operations=tuple(operations),
        residences=tuple(residences),
        makespan_ns=schedule.makespan_ns,
        peak_bytes=roomy.budget_bytes,
        carried=states or msgspec.UNSET,
    )


def in_order(instance: Instance) -> Schedule:
    """Return the runs of all tasks, once each with the first algorithm, without times and places."""
    return Schedule(
        format="pebbler/schedule/1",
        instance=instance.name,
        method="profile",
        memory_model="contiguous",
        operations=tuple(
            Operation(id=k, stream="compute", kind="run", task=k, algorithm=0, start_ns=0, end_ns=0)
            for k in range(len(instance.tasks))
        ),
        residences=(),
        makespan_ns=0,
        peak_bytes=0,
    )


def _in_turn(instance: Instance, schedule: Schedule) -> Iterator[Operation]:
    """Yield all runs, those on the host between copies of what they read and write; each waits for the last.

    Device runs keep their order, and a run on the host comes before later tasks.
    """
    duplex = instance.engines == "duplex"
    runs = [operation for operation in schedule.operations if operation.kind == "run"]
    hosted = deque(sorted((run for run in runs if run.stream == "host"), key=lambda run: run.task or 0))
    fresh = count(max((operation.id for operation in schedule.operations), default=0) + 1)
    if not hosted:
        yield from (msgspec.structs.replace(run, after=()) for run in runs)
        return
    before: tuple[int, ...] = ()
    for run in [*(run for run in runs if run.stream != "host"), None]:
        program = []
        while hosted and (run is None or (hosted[0].task or 0) < (run.task or 0)):
            task = instance.tasks[hosted[0].task or 0]
            program += [
                _copy("offload", "d2h" if duplex else "copy", d) for d in (*task.inputs, *task.updates)
            ]
            program.append(hosted.popleft())
            program += [
                _copy("prefetch", "h2d" if duplex else "copy", d) for d in (*task.outputs, *task.updates)
            ]
        for operation in [*program, *([] if run is None else [run])]:
            i = operation.id if operation.kind == "run" else next(fresh)
            yield msgspec.structs.replace(operation, id=i, after=before)
            before = (i,)


def _copy(kind: Kind, stream: Stream, block: int) -> Operation:
    return Operation(id=0, kind=kind, stream=stream, block=block, start_ns=0, end_ns=0)


def _homecoming(instance: Instance, runs: Sequence[Operation], end_ns: int) -> list[Operation]:
    """Offload, after all other operations, the blocks that must be on the host at the end."""
    first = max((operation.id for operation in runs), default=0) + 1
    last_run = runs[-1].id if runs else 0
    wanted = [d for d, block in enumerate(instance.blocks) if block.finally_ == "host"]
    return [
        Operation(
            id=first + i,
            stream="d2h" if instance.engines == "duplex" else "copy",
            kind="offload",
            block=d,
            after=(last_run,),
            start_ns=end_ns,
            end_ns=end_ns,
        )
        for i, d in enumerate(wanted)
    ]
