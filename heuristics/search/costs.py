"""What it costs to let a block leave, for the bytes that this frees: how local search tells gaps apart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ...instances.instance import Instance
from ...instances.memory import fastest
from .kernel import (
    AFTER,
    BLOCK,
    BYTES,
    COST,
    FIRST_PART,
    LIGHT,
    NEVER,
    NEXT_PART,
    OFFLOAD_NS,
    PART_BEFORE,
    PREFETCH_NS,
    UNTIL,
    VERSION,
    Problem,
)

_LIGHT = 1 / 16
"""Of what bytes cost on average, what they cost at most where a block leaves anyhow."""

_COSTS = ((math.inf, 0.0), (0.1, 0.0), (0.01, 0.0), (0.01, 0.02), (0.01, 0.05))
"""How closely what bytes cost may be told apart, and in which first share of the tasks they cost nothing."""


def with_light(instance: Instance, problem: Problem) -> Problem:
    """Return a problem that tells which gaps are light: their blocks leave wherever that is possible.

    Their bytes cost next to nothing, as those of a block of some KiB that takes a whole page, and they last
    as long as the copies that theirs come upon on the engines, on average. One by one such blocks make no
    program shorter, so that a search that may keep them does not find out what all of them together buy.
    Parts of a tensor are none.
    """
    gaps = problem.gaps.copy()
    rate = _rates(problem, by_tensor=False)
    before = np.cumsum([0, *(algorithm.duration_ns for algorithm in fastest(instance))])
    stay = before[gaps[:, UNTIL]] - before[gaps[:, AFTER] + 1]
    copies = np.maximum(problem.blocks[:, [OFFLOAD_NS, PREFETCH_NS]], 0).astype(np.float64)
    met = ((copies**2).sum(axis=0) / np.maximum(copies.sum(axis=0), 1)).sum()
    alone = (gaps[:, NEXT_PART] < 0) & (gaps[:, PART_BEFORE] < 0)
    gaps[:, LIGHT] = alone & (rate <= _LIGHT) & (stay >= met)
    return problem._replace(gaps=gaps)


def costings(problem: Problem) -> Iterator[Problem]:
    """Yield a problem with each way to tell costs apart, none of them twice: first with none at all."""
    seen = set()
    for (width, free), by_tensor in product(_COSTS, (False, True) if problem.parts else (False,)):
        costed = _with_costs(problem, width, free, by_tensor=by_tensor)
        told = costed.gaps[:, COST].tobytes()
        if told not in seen:
            seen.add(told)
            yield costed


def _with_costs(problem: Problem, width: float, free: float, *, by_tensor: bool) -> Problem:
    """Return a problem whose gaps have classes of what a byte costs that leaves: the time of its copies.

    Bytes are those that a block takes in memory: in whole pages, a small one takes many for the time of its
    copies. What the host has a copy of need not be offloaded.

    Parameters
    ----------
    problem
        Any.
    width
        Of a class, in logarithms.
    free
        What is written in this first share of the tasks costs least: its copies may hide behind compute.
    by_tensor
        Whether all parts of a tensor cost what they cost together; else the last one, which may take a page
        for a few bytes, is cheap.
    """
    gaps = problem.gaps.copy()
    rates = np.maximum(_rates(problem, by_tensor=by_tensor), 1e-6)
    gaps[:, COST] = np.rint(np.log(rates) / width).astype(np.int64)
    gaps[gaps[:, AFTER] + 1 < free * problem.length, COST] = -NEVER
    return problem._replace(gaps=gaps)


def _rates(problem: Problem, *, by_tensor: bool) -> NDArray[np.float64]:
    """Per gap, the time of its copies for a byte in memory, beside the mean of all."""
    blocks = problem.blocks[problem.gaps[:, BLOCK]]
    out = np.where(problem.gaps[:, VERSION] >= 0, blocks[:, OFFLOAD_NS], 0)
    times, sizes = out + blocks[:, PREFETCH_NS], np.maximum(blocks[:, BYTES], 1)
    if by_tensor:
        first = problem.gaps[:, FIRST_PART]
        times, sizes = np.bincount(first, times)[first], np.bincount(first, sizes)[first]
    mean = max(times.sum() / max(sizes.sum(), 1), 1e-9)
    rates: NDArray[np.float64] = times / sizes / mean
    return rates
