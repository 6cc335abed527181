"""Units in which models reach solvers, and how far what these say can be from what is true.

Tolerances of solvers are absolute: 1e-7 for the dual values of linear programs, 1e-6 for whole columns. So
times and sizes are scaled until the objective and the pool are of the order of ten thousand; what is out, or
has still to come back, is a share of its block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..instances.instance import Algorithm, Block
from .linear.in_process import SHARES
from .linear.model import GAP

RANGE = 1e4
"""What the compute time and the pool are scaled to."""

_OTHERS = 1e-3
"""Share of the time of all copies and slow algorithms that is scaled to that where the tasks take less. No
time is then above ten million units; solvers refuse far larger ones, or lose tolerances in their digits."""

TOLERANCE = 1e-6
"""What tolerances can add to a bound, in shares of it, or of the range where it is smaller. Ten times the
tolerance of dual values: the lengths of intervals add up to the objective, and so do their errors."""

_COLUMN = 1e-7 * SHARES
"""What the tolerance of dual values can add for each column that lies between zero and one, in `SHARES`."""


def time_unit(compute_ns: int, others_ns: int) -> float:
    """Nanoseconds of a unit: by the least time of tasks, or by all other times if these are far longer."""
    return max(compute_ns, others_ns * _OTHERS, 1) / RANGE


def slowest_ns(choices: Iterable[Sequence[Algorithm]]) -> int:
    """Time of some tasks with the slowest of their algorithms."""
    return sum(max(algorithm.duration_ns for algorithm in algorithms) for algorithms in choices)


def copies_ns(blocks: Iterable[Block]) -> int:
    """Time of one copy out and one back of some blocks."""
    return sum((block.offload_ns or 0) + (block.prefetch_ns or 0) for block in blocks)


def size_unit(pool_bytes: int, sizes: Iterable[int]) -> float:
    """Bytes of a unit of a model: by the pool, or by the largest of some sizes if that has no room in it."""
    return max(pool_bytes, 1, *sizes) / RANGE


def proven_ns(bound: float, columns: int, unit_ns: float) -> int:
    """Return the whole nanoseconds that a solver's finite bound proves, if its tolerances are what it says.

    Parameters
    ----------
    bound
        In units. It may be above the truth by the gap at which a solver stops, and by its tolerances.
    columns
        Of the model.
    unit_ns
        Nanoseconds of a unit.
    """
    margin = GAP * abs(bound) + TOLERANCE * max(abs(bound), RANGE) + _COLUMN * columns
    return max(math.ceil((bound - margin) * unit_ns), 0)
