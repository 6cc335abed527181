"""The cost of an eviction per byte that it frees, by which local search distinguishes gaps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from .kernel import (
    AFTER,
    ALGORITHMS,
    BLOCK,
    BYTES,
    COST,
    DURATION,
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
"""Greatest cost per byte of a light gap, as a share of the average cost per byte."""

_COSTS = ((math.inf, 0.0), (0.1, 0.0), (0.01, 0.0), (0.01, 0.02), (0.01, 0.05))
"""Pairs of a class width and a share of the tasks.

The width says how finely costs per byte are distinguished. Data that is written in this first share of the
tasks costs nothing.
"""


def with_light(problem: Problem) -> Problem:
    """Return a problem in which light gaps are marked: their blocks are evicted wherever that is possible.

    The bytes of a light gap cost next to nothing, as those of a block of some KiB that takes a whole page.
    The gap lasts at least as long as the copies that its own copies find on the engines, on average. Evicting
    one such block makes no program shorter. So a search that may keep them does not find out what all of them
    are worth together. Parts of a tensor are never light.
    """
    gaps = problem.gaps.copy()
    rate = _rates(problem, by_tensor=False)
    begin = problem.tasks[: problem.length, ALGORITHMS]
    before = np.append(0, np.cumsum(np.minimum.reduceat(problem.algorithms[:, DURATION], begin)))
    stay = before[gaps[:, UNTIL]] - before[gaps[:, AFTER] + 1]
    copies = np.maximum(problem.blocks[:, [OFFLOAD_NS, PREFETCH_NS]], 0).astype(np.float64)
    met = ((copies**2).sum(axis=0) / np.maximum(copies.sum(axis=0), 1)).sum()
    alone = (gaps[:, NEXT_PART] < 0) & (gaps[:, PART_BEFORE] < 0)
    gaps[:, LIGHT] = alone & (rate <= _LIGHT) & (stay >= met)
    return problem._replace(gaps=gaps)


def costings(problem: Problem) -> Iterator[Problem]:
    """Yield a problem for each way to distinguish costs, each of them once; the first distinguishes none."""
    seen = set()
    for (width, free), by_tensor in product(_COSTS, (False, True) if problem.parts else (False,)):
        costed = _with_costs(problem, width, free, by_tensor=by_tensor)
        told = costed.gaps[:, COST].tobytes()
        if told not in seen:
            seen.add(told)
            yield costed


def _with_costs(problem: Problem, width: float, free: float, *, by_tensor: bool) -> Problem:
    """Return a problem whose gaps have classes of cost: the time of the copies per byte that leaves.

    Bytes are counted as in memory. In whole pages, a small block takes many bytes for the time of its copies.
    A block that the host holds a copy of need not be offloaded.

    Parameters
    ----------
    problem
        The problem, with or without classes.
    width
        Width of a class, in natural logarithms.
    free
        Data that is written in this first share of the tasks has the least cost: its copies may overlap
        compute.
    by_tensor
        Whether all parts of a tensor have the cost of the whole tensor. If not, the last part is cheap, as it
        may take a page for a few bytes.
    """
    gaps = problem.gaps.copy()
    rates = np.maximum(_rates(problem, by_tensor=by_tensor), 1e-6)
    gaps[:, COST] = np.rint(np.log(rates) / width).astype(np.int64)
    gaps[gaps[:, AFTER] + 1 < free * problem.length, COST] = -NEVER
    return problem._replace(gaps=gaps)


def _rates(problem: Problem, *, by_tensor: bool) -> NDArray[np.float64]:
    """Return, per gap, the time of its copies per byte in memory, divided by the mean of all gaps."""
    blocks = problem.blocks[problem.gaps[:, BLOCK]]
    out = np.where(problem.gaps[:, VERSION] >= 0, blocks[:, OFFLOAD_NS], 0)
    times, sizes = out + blocks[:, PREFETCH_NS], np.maximum(blocks[:, BYTES], 1)
    if by_tensor:
        first = problem.gaps[:, FIRST_PART]
        times, sizes = np.bincount(first, times)[first], np.bincount(first, sizes)[first]
    mean = max(times.sum() / max(sizes.sum(), 1), 1e-9)
    rates: NDArray[np.float64] = times / sizes / mean
    return rates
