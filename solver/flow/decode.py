"""Conversion of a solution of FLOW to a guide for a search: evictions, orders of copies, and algorithms.

A solution with recomputation has second runs, too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...heuristics.choices import by_speed
from ...heuristics.gaps import Gap, Guide, gaps_of
from ...heuristics.recomputation.reruns import Plan, Run, last_stages, unrolled, useful
from ...instances.instance import Instance
from ...validate.bounds.arguments import needed
from .checkpoints import interval_before, interval_of
from .families import GapColumns
from .model import FlowModel
from .recompute import RecomputeModel

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


# --- with second runs -----------------------------------------------------------------------------------


def decided(instance: Instance, model: RecomputeModel, values: NDArray[np.float64]) -> tuple[Plan, Guide]:
    """Return the second runs of a solution, and a guide to the transfers beside them."""
    plan = plan_in(instance, model, values)
    again = unrolled(instance, plan)
    algorithms = [by_speed(task)[0] for task in again.instance.tasks]
    for i, (k, t) in enumerate(again.runs):
        if k == t and k in model.choices:
            columns = model.choices[k]
            algorithms[i] = max(columns, key=lambda a: float(values[columns[a]]))
    leaves: dict[Gap, int] = {}
    returns: dict[Gap, int] = {}
    # of equal parts, so many leave as make up what is absent, the last ones: per block, from which share on
    least = {d: (len(own) - i - 0.5) / len(own) for own in model.parts for i, d in enumerate(own)}
    for (copy, after), until in gaps_of(again.instance).items():
        since = again.runs[after] if after >= 0 else None
        upto = again.runs[until] if until < len(again.runs) else None
        block, _ = again.copies[again.standing(copy, after)]
        columns_of = model.versions.get((block, _number(instance, block, since)))
        if columns_of is None:
            continue
        first, last = _instants(model.checkpoints, since, upto)
        absent = [
            i
            for i, column in enumerate(columns_of.present, columns_of.first)
            if first <= i <= last and 1 - values[column] > least[block]
        ]
        if absent:
            out = [j for j, column in columns_of.out.items() if values[column] > 0.999]
            leaves[copy, after] = min(out, default=absent[0])
            returns[copy, after] = absent[-1]
    return plan, Guide(
        sorted(returns, key=lambda gap: returns[gap]), sorted(leaves, key=lambda gap: leaves[gap]), algorithms
    )


def plan_in(instance: Instance, model: RecomputeModel, values: NDArray[np.float64]) -> Plan:
    """Return the second runs of a solution, each right before a task that reads what it makes.

    A task runs again as often as all intervals together say, rounded: a solution without whole columns makes
    a version little by little. Each of these runs comes before the first reader from the interval on in which
    its middle is made.
    """
    shares: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (k, j), column in sorted(model.again.items()):
        shares[k].append((j, float(values[column])))
    plan: set[Run] = set()
    read: dict[int, set[int]] = defaultdict(set)  # per block, the stages of second runs that read it
    starts = [0, *(k + 1 for k in model.checkpoints)]
    last = last_stages(instance)
    for k in sorted(shares, reverse=True):
        made = list(accumulate(share for _, share in shares[k]))
        count = round(made[-1])
        readers = (stage for d in instance.tasks[k].outputs for stage in (*needed(instance, d), *read[d]))
        reading = sorted({t for t in readers if k < t <= last[k]})
        for number in range(count):
            middle = shares[k][bisect_left(made, (number + 0.5) * made[-1] / count)][0]
            at = bisect_left(reading, starts[middle // 2])
            if at < len(reading):
                plan.add((k, reading[at]))
                for d in instance.tasks[k].inputs:
                    read[d].add(reading[at])
    return useful(instance, plan)


def _number(instance: Instance, d: int, since: Run | None) -> int:
    """Return the number of a block's version that is there after a run."""
    if since is None:
        return 0
    k, t = since
    return (bisect_right if k == t else bisect_left)(instance.writers[d], t)


def _instants(checkpoints: Sequence[int], since: Run | None, until: Run | None) -> tuple[int, int]:
    """Return the first and last instant after one run and before another; None for the start or the end."""
    first, last = 0, 2 * len(checkpoints) - 1
    if since is not None:
        j = _interval(checkpoints, since)
        first = j + j % 2
    if until is not None:
        j = _interval(checkpoints, until)
        last = j - 1 - j % 2
    return first, last


def _interval(checkpoints: Sequence[int], run: Run) -> int:
    """Return the interval of a first or second run."""
    return (interval_of if run[0] == run[1] else interval_before)(checkpoints, run[1])
