"""The use of the compute stream and the memory over time by a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from ...validate.measures import lifetime_ns, operation_times
from ...validate.schedule import Schedule


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes in use from each instant to the next, besides the resident bytes.

    Attributes
    ----------
    instants
        Times in nanoseconds, increasing; the last is the end of the schedule.
    blocks, workspaces
        Bytes from each instant on.
    carried
        Those of blocks that are carried, which are in `blocks`, too.
    """

    instants: tuple[int, ...]
    blocks: tuple[int, ...]
    workspaces: tuple[int, ...]
    carried: tuple[int, ...]


def memory_use(schedule: Schedule) -> MemoryUse:
    """Return the bytes of blocks, of workspaces and of carried blocks over time.

    At one instant, residences that end leave before others start.
    """
    times = operation_times(schedule)
    carried = {state.block for state in schedule.states}
    changes: dict[int, list[int]] = {0: [0, 0, 0], schedule.makespan_ns: [0, 0, 0]}
    for residence in schedule.residences:
        columns = [0] if residence.workspace_of is None else [1]
        if residence.block in carried:
            columns.append(2)
        start, end = lifetime_ns(schedule, residence, times)
        for column in columns:
            changes.setdefault(start, [0, 0, 0])[column] += residence.bytes
            changes.setdefault(end, [0, 0, 0])[column] -= residence.bytes
    instants = sorted(changes)
    levels = (tuple(accumulate(changes[t][column] for t in instants)) for column in (0, 1, 2))
    return MemoryUse(tuple(instants), *levels)


def stall_ns(schedule: Schedule) -> int:
    """Return the idle time of the compute stream in nanoseconds, as a mean over GPUs.

    It includes the wait for the last copies.
    """
    gpus = 1 + max((operation.gpu for operation in schedule.operations), default=0)
    busy = sum(
        operation.end_ns - operation.start_ns
        for operation in schedule.operations
        if operation.stream == "compute"
    )
    return schedule.makespan_ns - busy // gpus
