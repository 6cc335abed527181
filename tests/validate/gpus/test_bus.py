"""Fair shares of a bus."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

from pebbler.validate.gpus.bus import fair_shares


@pytest.mark.parametrize(
    ("rate", "links", "shares"),
    [
        (12, [], []),
        (12, [12], [12]),
        (12, [30], [12]),
        (12, [12, 12, 12], [4, 4, 4]),
        (12, [1, 12, 12], [1, Fraction(11, 2), Fraction(11, 2)]),
        (12, [12, 3, 1], [8, 3, 1]),
        (100, [5, 7], [5, 7]),
    ],
)
def test_shares_worked_out_by_hand(rate: int, links: list[int], shares: list[Fraction]) -> None:
    assert fair_shares(Fraction(rate), [Fraction(link) for link in links]) == shares


def test_nobody_gains_but_at_the_cost_of_one_who_has_less() -> None:
    rng = Random(1)
    for _ in range(200):
        rate = Fraction(rng.randint(1, 40))
        links = [Fraction(rng.randint(1, 30), rng.randint(1, 3)) for _ in range(rng.randint(1, 6))]
        shares = fair_shares(rate, links)
        assert sum(shares) == min(rate, sum(links))
        for share, link in zip(shares, links, strict=True):
            assert share == link or (share < link and share == max(shares))
