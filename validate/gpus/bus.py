"""A bus that several copies share fairly, in exact arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def fair_shares(rate: Fraction, links: Sequence[Fraction]) -> list[Fraction]:
    """Return the max-min fair shares of a bus in bytes a nanosecond.

    Nobody gets more than its link takes, and what it leaves is shared by the others equally.

    Parameters
    ----------
    rate
        Of the bus.
    links
        Of each copy in flight, what its link takes.
    """
    shares = list(links)
    order = sorted(range(len(links)), key=lambda i: links[i])
    for taken, i in enumerate(order):
        level = rate / (len(order) - taken)
        if level < links[i]:
            for j in order[taken:]:
                shares[j] = level
            break
        rate -= links[i]
    return shares
