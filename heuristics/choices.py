"""Rules that choose one algorithm of a task."""

from __future__ import annotations

from ..instances.instance import Task
from .program.builder import OutOfMemoryError, ProgramBuilder


def by_speed(task: Task) -> list[int]:
    """Return the indices of a task's algorithms, the fastest first; of equally fast ones, leanest first."""
    keys = [(a.duration_ns, a.workspace_bytes) for a in task.algorithms]
    return sorted(range(len(keys)), key=lambda a: keys[a])


def leanest(task: Task) -> int:
    """Return the index of the algorithm with the least workspace; of several such, the fastest one."""
    return min(
        range(len(task.algorithms)),
        key=lambda a: (task.algorithms[a].workspace_bytes, task.algorithms[a].duration_ns),
    )


def fastest_within(task: Task, room: int) -> int:
    """Return the index of the fastest algorithm with a workspace of at most `room` bytes.

    If there is none, this is the index of the leanest algorithm.
    """
    return next((a for a in by_speed(task) if task.algorithms[a].workspace_bytes <= room), leanest(task))


def run_fastest(builder: ProgramBuilder, k: int) -> None:
    """Run a task with the fastest algorithm for which there is room.

    Raises
    ------
    OutOfMemoryError
        When no algorithm has room.
    """
    *faster, last = by_speed(builder.instance.tasks[k])
    for algorithm in faster:
        try:
            builder.run(k, algorithm)
        except OutOfMemoryError:
            continue
        return
    builder.run(k, last)
