"""Figures of a schedule: memory over time, bytes moved, stalls."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import msgspec

from ..instances.instance import Instance
from .schedule import HostResidence, Residence, Schedule


def lifetime_ns(
    schedule: Schedule, residence: Residence | HostResidence, times: dict[int, tuple[int, int]]
) -> tuple[int, int]:
    """Return start and end of a residence in nanoseconds: from its acquisition to its last release.

    One that takes over the place of an input counts from the end of the run, until when it is the input's.

    Parameters
    ----------
    schedule, residence
        The residence, and the schedule that it belongs to.
    times
        Start and end of each operation by id, as `operation_times` returns them.
    """
    taken = isinstance(residence, Residence) and residence.takes_over
    start = 0 if residence.acquired_by is None else times[residence.acquired_by][taken]
    end = max((times[i][1] for i in residence.released_after), default=schedule.makespan_ns)
    return start, end


def operation_times(schedule: Schedule) -> dict[int, tuple[int, int]]:
    """Return the reported start and end of every operation in nanoseconds, by id."""
    return {operation.id: (operation.start_ns, operation.end_ns) for operation in schedule.operations}


def memory_curve(instance: Instance, schedule: Schedule) -> tuple[list[int], list[int]]:
    """Return the bytes in use over time: instants, and the bytes from each instant to the next.

    At one instant, residences that end leave before others start. Resident bytes are included.
    """
    return _levels(schedule, schedule.residences, instance.resident_bytes)


def host_curve(schedule: Schedule) -> tuple[list[int], list[int]]:
    """Return the bytes of copies in host memory over time as `memory_curve` does; 0 without a budget."""
    return _levels(schedule, schedule.host_copies, 0)


def _levels(
    schedule: Schedule, residences: Iterable[Residence | HostResidence], resident: int
) -> tuple[list[int], list[int]]:
    times = operation_times(schedule)
    changes: dict[int, int] = {0: 0, schedule.makespan_ns: 0}
    for residence in residences:
        start, end = lifetime_ns(schedule, residence, times)
        changes[start] = changes.get(start, 0) + residence.bytes
        changes[end] = changes.get(end, 0) - residence.bytes
    instants = sorted(changes)
    return instants, list(accumulate((changes[t] for t in instants), initial=resident))[1:]


def with_host(schedule: Schedule, residences: tuple[HostResidence, ...]) -> Schedule:
    """Return a schedule with the places of its copies in host memory, and the peak that follows from them."""
    placed = msgspec.structs.replace(schedule, host_residences=residences, host_peak_bytes=0)
    if schedule.memory_model == "divisible":
        peak = max(host_curve(placed)[1])
    else:
        peak = max(((copy.offset or 0) + copy.bytes for copy in residences), default=0)
    return msgspec.structs.replace(placed, host_peak_bytes=peak)


def average_bytes(instance: Instance, schedule: Schedule) -> int:
    """Return the time average of the bytes in use on a GPU (vDNN, Fig. 11), rounded down."""
    times = operation_times(schedule)
    area = 0
    for residence in schedule.residences:
        start, end = lifetime_ns(schedule, residence, times)
        area += residence.bytes * max(end - start, 0)
    return instance.resident_bytes + area // (instance.gpus * max(schedule.makespan_ns, 1))


def highest_byte(schedule: Schedule) -> int:
    """Return the greatest end of a residence in the pool in bytes (contiguous and paged)."""
    ends = [
        start + size
        for residence in schedule.residences
        for start, size in residence.extents or ((residence.offset or 0, residence.bytes),)
    ]
    return max(ends, default=0)


def moved_bytes(instance: Instance, schedule: Schedule, kind: str) -> int:
    """Return the bytes of all copies of a kind (``offload``, ``prefetch`` or ``move``) on all GPUs."""
    return sum(
        instance.blocks[operation.block].bytes
        for operation in schedule.operations
        if operation.kind == kind and operation.block is not None
    )


def carried_bytes(schedule: Schedule) -> int:
    """Return the bytes of carried blocks that are on the device at both ends of a round."""
    kept = {state.block for state in schedule.states if state.device}
    return sum(
        residence.bytes
        for residence in schedule.residences
        if residence.acquired_by is None and residence.block in kept
    )


def pinned_bytes(instance: Instance, schedule: Schedule) -> int:
    """Return the host memory that the schedule needs.

    This is every block that is offloaded or prefetched, the quantity of vDNN's Fig. 12, and every block that
    runs on the host touch, with the largest of their workspaces. Where host memory has a budget, it is the
    highest byte in use there.
    """
    if schedule.host_peak_bytes is not msgspec.UNSET:
        return schedule.host_peak_bytes
    blocks: set[tuple[int, int]] = set()
    workspace = 0
    for operation in schedule.operations:
        if operation.kind in ("offload", "prefetch") and operation.block is not None:
            blocks.add((operation.gpu, operation.block))
        elif operation.stream == "host" and operation.task is not None and operation.algorithm is not None:
            task = instance.tasks[operation.task]
            blocks.update((operation.gpu, d) for d in task.blocks)
            workspace = max(workspace, task.algorithms[operation.algorithm].workspace_bytes)
    return workspace + sum(instance.blocks[d].bytes for _, d in blocks)


def stalls_ns(instance: Instance, schedule: Schedule) -> list[int]:
    """Return, per task, how long the compute stream idles before its first run, in nanoseconds."""
    stalls = [0] * len(instance.tasks)
    started: set[int] = set()
    busy_until = 0
    for operation in schedule.operations:
        if operation.stream != "compute":
            continue
        if operation.task is not None and operation.task not in started:
            started.add(operation.task)
            stalls[operation.task] = operation.start_ns - busy_until
        busy_until = operation.end_ns
    return stalls
