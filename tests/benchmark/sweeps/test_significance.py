"""The paired test against values worked out by hand and by its definition."""

from __future__ import annotations

import math
from itertools import product
from random import Random

import pytest

from pebbler.benchmark.sweeps.significance import holm, signed_rank


def exact(differences: list[float]) -> float:
    """P by enumeration of all signs, for differences whose sizes differ."""
    order = sorted(range(len(differences)), key=lambda i: abs(differences[i]))
    ranks = {i: rank for rank, i in enumerate(order, start=1)}
    total = sum(ranks.values())
    plus = sum(rank for i, rank in ranks.items() if differences[i] > 0)
    extreme = min(plus, total - plus)
    signs = list(product((0, 1), repeat=len(differences)))
    low = sum(sum(r * s for r, s in zip(ranks.values(), sign, strict=True)) <= extreme for sign in signs)
    return min(1.0, 2 * low / len(signs))


@pytest.mark.parametrize(
    "ratios", [[2.0, 3.0, 4.0, 5.0, 6.0], [2.0, 0.9, 4.0, 0.2, 6.0, 1.5, 1.1], [0.5, 0.4, 0.3]]
)
def test_p_is_that_of_the_enumeration_of_signs(ratios: list[float]) -> None:
    times = [10.0 * (i + 1) for i in range(len(ratios))]
    longer = [time * ratio for time, ratio in zip(times, ratios, strict=True)]
    expected = exact([math.log(ratio) for ratio in ratios])
    assert signed_rank(longer, times) == pytest.approx(expected)
    assert signed_rank(times, longer) == pytest.approx(expected)


@pytest.mark.parametrize("pairs", [1, 2, 7, 13, 14, 30])
def test_p_is_that_of_scipy_with_equal_differences_and_without(pairs: int) -> None:
    from scipy.stats import wilcoxon  # slow to import

    rng = Random(pairs)
    for values in ([1.0, 2.0, 4.0], [rng.random() for _ in range(200)]):
        first, second = ([rng.choice(values) for _ in range(pairs)] for _ in range(2))
        first[0], second[0] = 3.0, 5.0
        differences = [math.log(a / b) for a, b in zip(first, second, strict=True) if a != b]
        assert signed_rank(first, second) == pytest.approx(wilcoxon(differences).pvalue)


def test_no_schedule_counts_as_longer_than_any() -> None:
    assert signed_rank([math.inf, 9.0, 8.0, 7.0], [1.0, 1.0, 1.0, 1.0]) == pytest.approx(2 / 16)
    assert signed_rank([math.inf, 1.1, 1.2, 1.3], [1.0, 2.0, 3.0, 4.0]) == pytest.approx(
        exact([9.0, math.log(1.1 / 2), math.log(1.2 / 3), math.log(1.3 / 4)])
    )


def test_equal_pairs_are_left_out() -> None:
    assert signed_rank([5.0, math.inf, 3.0], [5.0, math.inf, 3.0]) == 1.0
    some, others = [2.0, 6.0, 12.0, 20.0], [1.0, 2.0, 3.0, 4.0]
    assert signed_rank([5.0, *some, math.inf], [5.0, *others, math.inf]) == signed_rank(some, others)


def test_correction_is_holms() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.5]) == [1.0, 1.0]
    assert holm([]) == []
