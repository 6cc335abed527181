"""Where carried blocks are at both ends of a round, and what runs on the host, as a solution of FLOW has it.

Rules that choose these places look at uses and sizes. FLOW weighs what each place costs: the copies of a
block that lives on the host, and the memory of one that is on the device at both ends.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...instances.instance import Instance
from ...validate.schedule import MemoryModel
from .model import FlowModel

_LEAST = 0.05
"""Least share of a task on the host with which the task may run there."""

_MOST = 0.5
"""Share of a block whose absence puts it on the host, and of a task's time that makes it run there."""


def hosted_of(model: FlowModel, values: NDArray[np.float64], memory: MemoryModel) -> frozenset[int]:
    """Return the carried blocks that live on the host: they are absent at both ends of a solution.

    In contiguous memory, what is on the device at both ends never leaves (it would have to come back to its
    place), so that blocks that are absent at any instant live on the host as well. A column may stand for
    several blocks; then the last ones are absent.

    Parameters
    ----------
    model, values
        FLOW on the instance with its carried blocks, and a solution of it.
    memory
        Memory model of the schedules.
    """
    hosted: set[int] = set()
    ends = {d for gaps, columns in model.gaps.items() if columns.first < 0 for d, _ in gaps}
    for gaps, columns in model.gaps.items():
        blocks = [d for d, _ in gaps]
        if not ends.issuperset(blocks) or (memory == "paged" and columns.first >= 0):
            continue
        absent = values[columns.absent[: 1 if memory == "paged" else None]]
        count = int(float(absent.max(initial=0.0)) * len(blocks) + _MOST)
        hosted.update(blocks[len(blocks) - count :])
    return frozenset(hosted)


def run_on_host(instance: Instance, model: FlowModel, values: NDArray[np.float64]) -> frozenset[int]:
    """Return tasks that run on the host, for about as much of its time as in a solution of FLOW.

    In the solution a part of a task may run there, and a column may stand for several tasks. In their order,
    of those of which a part does, a task runs there once the parts of it and of those before it that are left
    over take at least half of its time. What can run nowhere else does so in any case: if it takes no time,
    the solution need not say so.
    """
    hosted = {k for k, task in enumerate(instance.tasks) if not task.device_algorithms}
    owed = 0.0
    for k, column in sorted(model.on_host.items()):
        if k in hosted:
            continue
        time = min(a.duration_ns for a in instance.tasks[k].algorithms if a.on == "host")
        share = float(values[column])
        owed += share * time
        if share >= _LEAST and owed >= _MOST * time:
            hosted.add(k)
            owed -= time
    return frozenset(hosted)
