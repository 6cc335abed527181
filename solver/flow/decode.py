"""Conversion of a solution of FLOW to a guide for a search: evictions, orders of copies, and algorithms."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...heuristics.choices import by_speed
from ...heuristics.gaps import Gap, Guide
from ...instances.instance import Instance
from .families import GapColumns
from .model import FlowModel

_LEAST = 0.05
"""Smallest share of a block whose absence counts as an eviction, where evictions need not be whole."""


class _Eviction(NamedTuple):
    """An evicted gap, with the instants at which its block begins to return, is back, and is out."""

    gap: Gap
    begins_at: int
    returns_at: int
    leaves_at: int


def guide_of(instance: Instance, model: FlowModel, values: NDArray[np.float64]) -> Guide:
    """Return the guide of a solution; it is tentative if not even the choice of algorithms is whole.

    A column may stand for the gaps of several blocks, such as the parts of a tensor. Then so many of the
    blocks leave as make up the absent bytes, the last ones first. The block that leaves last comes back
    first.
    """
    evictions = [
        eviction
        for gaps, columns in model.gaps.items()
        for eviction in _evictions(instance, gaps, columns, values)
    ]
    algorithms = [by_speed(task)[0] for task in instance.tasks]
    for k, columns in model.choices.items():
        algorithms[k] = max(columns, key=lambda a: float(values[columns[a]]))
    returning = sorted(evictions, key=lambda eviction: (eviction.returns_at, -eviction.gap[1]))
    leaving = sorted(evictions, key=lambda eviction: (eviction.leaves_at, eviction.gap[1]))
    # instants 2i and 2i + 1 are the start and the end of checkpoint i, which takes its memory first
    following = [0, *(k + 1 for k in model.checkpoints)]  # -1 is the start
    holds = [following[(one.begins_at + 2) // 2] for one in returning]
    return Guide(
        [one.gap for one in returning],
        [one.gap for one in leaving],
        algorithms,
        tentative=not model.linear.integer.any(),
        holds=holds,
    )


def _evictions(
    instance: Instance,
    gaps: tuple[Gap, ...],
    columns: GapColumns,
    values: NDArray[np.float64],
) -> list[_Eviction]:
    sizes = [instance.blocks[d].bytes for d, _ in gaps]
    still, gone = values[columns.back] * sum(sizes), values[columns.out] * sum(sizes)
    absent = float(values[columns.absent].max(initial=0.0)) * sum(sizes)
    evictions = []
    so_far = 0.0
    for gap, size in zip(reversed(gaps), reversed(sizes), strict=True):
        if absent - so_far < _LEAST * size:
            break
        back = columns.first + _last(still > so_far + 0.001 * size) + 1
        so_far += size
        begins = columns.first + max(_last(still >= min(so_far, absent) - 0.001 * size), 0)
        out = columns.ready + _first(gone >= min(so_far, absent) - 0.001 * size)
        evictions.append(_Eviction(gap, begins, back, out))
    return evictions


def _first(true: NDArray[np.bool_]) -> int:
    """Return the first index at which a condition is true; the end of the range if it never is."""
    return int(true.argmax()) if true.any() else len(true)


def _last(true: NDArray[np.bool_]) -> int:
    """Return the last index at which a condition is true; the index before the range if it never is."""
    return int(true.nonzero()[0].max(initial=-1))
