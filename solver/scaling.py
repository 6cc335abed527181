"""Units of the models that solvers get, and the error of the results that solvers return.

Tolerances of solvers are absolute: 1e-7 for the dual values of linear programs, 1e-6 for whole columns. So
times and sizes are scaled until the objective and the pool are of the order of ten thousand. Variables for
bytes that are out, or have still to come back, are shares of their block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..instances.instance import Algorithm, Block
from .linear.in_process import SHARES
from .linear.model import GAP

RANGE = 1e4
"""Number of units to which the compute time and the pool are scaled."""

_OTHERS = 1e-3
"""Share of the time of all copies and slow algorithms that is scaled to `RANGE`, if the tasks take less.

No time is then above ten million units. Solvers refuse far larger times, or their tolerances are lost in the
digits.
"""

TOLERANCE = 1e-6
"""Largest effect of tolerances on a bound, as a share of the bound, or of `RANGE` if the bound is smaller.

It is ten times the tolerance of dual values: the lengths of intervals add up to the objective, and so do
their errors.
"""

_COLUMN = 1e-7 * SHARES
"""Largest effect of dual values' tolerance for each column between zero and one, which is in `SHARES`."""


def time_unit(compute_ns: int, others_ns: int) -> float:
    """Return the nanoseconds of a unit, by the tasks' least time, or by all other times if far longer."""
    return max(compute_ns, others_ns * _OTHERS, 1) / RANGE


def slowest_ns(choices: Iterable[Sequence[Algorithm]]) -> int:
    """Return the time of some tasks with the slowest of their algorithms."""
    return sum(max(algorithm.duration_ns for algorithm in algorithms) for algorithms in choices)


def copies_ns(blocks: Iterable[Block]) -> int:
    """Return the time of one copy out and one copy back of some blocks."""
    return sum((block.offload_ns or 0) + (block.prefetch_ns or 0) for block in blocks)


def size_unit(pool_bytes: int, sizes: Iterable[int]) -> float:
    """Return the bytes of a model's unit, by the pool, or by the largest of some sizes if that is larger."""
    return max(pool_bytes, 1, *sizes) / RANGE


def proven_ns(bound: float, columns: int, unit_ns: float) -> int:
    """Return the whole nanoseconds that a solver's finite bound proves, if the solver keeps its tolerances.

    Parameters
    ----------
    bound
        Bound in units. It may be above the true bound by the gap at which a solver stops, and by the
        tolerances.
    columns
        Number of the model's columns.
    unit_ns
        Nanoseconds of a unit.
    """
    margin = GAP * abs(bound) + TOLERANCE * max(abs(bound), RANGE) + _COLUMN * columns
    return max(math.ceil((bound - margin) * unit_ns), 0)
