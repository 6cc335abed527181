"""Tests of whether one method is better than another by more than chance, corrected for many pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence


def signed_rank(first: Sequence[float], second: Sequence[float]) -> float:
    """Return p of Wilcoxon's two-sided signed-rank test on paired times.

    The test is on logarithms of ratios, so that long and short problems count equally. An infinite time is
    longer than any other: its ratio ranks above all finite ones. Equal pairs are left out, as in Wilcoxon's
    paper; without any pair left, p is 1.

    Source: F. Wilcoxon, Individual comparisons by ranking methods, 1945; for methods on many problems:
    J. Demsar, Statistical comparisons of classifiers over multiple data sets, JMLR 2006.
    """
    from scipy.stats import wilcoxon  # slow to import

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
    return float(wilcoxon(differences).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (S. Holm, A simple sequentially rejective test, 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [1.0] * len(p_values)
    least = 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = least
    return adjusted
