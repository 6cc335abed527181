"""Where carried blocks are at both ends of a round, and what runs on the host, as a solution of FLOW has it.

Rules that choose these places look at uses and sizes. FLOW weighs what each place costs: the copies of a
block that lives on the host, and the memory of one that is on the device at both ends.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...validate.schedule import MemoryModel
from .model import FlowModel

_MOST = 0.5
"""Share of a block whose absence puts it on the host, and of a task that runs there."""


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


def run_on_host(model: FlowModel, values: NDArray[np.float64]) -> frozenset[int]:
    """Return the tasks of which at least half runs on the host in a solution of FLOW."""
    return frozenset(k for k, column in model.on_host.items() if values[column] >= _MOST)
