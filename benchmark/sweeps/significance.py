"""Tests of whether one method is better than another by more than chance, corrected for many pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_FEW = 13
"""Pairs of which every choice of signs is looked at, all at once. SciPy looks at those of as many pairs where
some differences are equal, one by one, which takes seconds, as does importing it."""


def signed_rank(first: Sequence[float], second: Sequence[float]) -> float:
    """Return p of Wilcoxon's two-sided signed-rank test on paired times.

    The test is on logarithms of ratios, so that long and short problems count equally. An infinite time is
    longer than any other: its ratio ranks above all finite ones. Equal pairs are left out, as in Wilcoxon's
    paper; without any pair left, p is 1.

    Source: F. Wilcoxon, Individual comparisons by ranking methods, 1945; for methods on many problems:
    J. Demsar, Statistical comparisons of classifiers over multiple data sets, JMLR 2006.
    """
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a != b]
    if not pairs:
        return 1.0
    finite = [math.log(a / b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    beyond = 1.0 + max(map(abs, finite), default=0.0)
    ratios = iter(finite)
    differences = [
        next(ratios) if math.isfinite(a) and math.isfinite(b) else math.copysign(beyond, a - b)
        for a, b in pairs
    ]
    if len(differences) <= _FEW:
        return _of_every_sign(differences)
    from scipy.stats import wilcoxon  # slow to import

    return float(wilcoxon(differences).pvalue)


def _of_every_sign(differences: Sequence[float]) -> float:
    """Return p by its definition: the share of all choices of signs whose sums of ranks are as far off."""
    sizes = np.abs(differences)
    ordered = np.sort(sizes)
    ranks = (np.searchsorted(ordered, sizes, "left") + np.searchsorted(ordered, sizes, "right") + 1) / 2
    sums = np.zeros(1)
    for rank in ranks:
        sums = np.concatenate((sums, sums + rank))
    plus = ranks[np.asarray(differences) > 0].sum()
    return min(1.0, 2 * float(np.mean(sums <= min(plus, ranks.sum() - plus))))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (S. Holm, A simple sequentially rejective test, 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [1.0] * len(p_values)
    least = 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = least
    return adjusted
