"""Simulation of a program: every operation starts as soon as its stream and its waits allow.

Where copies share a link, or slow runs down, `coupled` goes from event to event instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from ..instances.arguments import require_instance
from ..instances.instance import Instance
from .coupled import simulate_coupled
from .gpus.simulate import simulate_cluster
from .schedule import Operation, Schedule, require_schedule


def nominal_ns(instance: Instance, operation: Operation) -> int:
    """Return the instance's duration of an operation in nanoseconds; 0 for a copy that is not possible."""
    if operation.task is not None and operation.algorithm is not None:
        return instance.tasks[operation.task].algorithms[operation.algorithm].duration_ns
    assert operation.block is not None
    block = instance.blocks[operation.block]
    times = {"offload": block.offload_ns, "prefetch": block.prefetch_ns, "move": block.move_ns}
    return times[operation.kind] or 0


def simulate(
    instance: Instance, schedule: Schedule, durations_ns: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Return the start and end of every operation, in the order of the schedule's list.

    Parameters
    ----------
    instance, schedule
        The program, and the instance that it is for; with several GPUs, the operations of all of them are
        simulated.
    durations_ns
        Duration of each operation in nanoseconds, in place of the instance's: with the link to itself, and
        where nothing slows it down.

    Returns
    -------
    tuple of list of int
        Starts and ends in nanoseconds.

    Raises
    ------
    PebblerError
        If this is no instance or no schedule.
    """
    require_instance(instance)
    require_schedule(schedule)
    if instance.cluster is not UNSET:
        return simulate_cluster(instance, schedule, durations_ns)
    if durations_ns is None:
        durations_ns = [nominal_ns(instance, operation) for operation in schedule.operations]
    if instance.is_coupled:
        return simulate_coupled(instance, schedule, durations_ns)
    starts: list[int] = []
    ends: list[int] = []
    end_of: dict[int, int] = {}
    free_at: dict[str, int] = {}
    for operation, duration in zip(schedule.operations, durations_ns, strict=True):
        start = free_at.get(operation.stream, 0)
        for other in operation.after:
            start = max(start, end_of[other])
        end = start + duration
        starts.append(start)
        ends.append(end)
        end_of[operation.id] = free_at[operation.stream] = end
    return starts, ends
