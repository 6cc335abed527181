"""A bus that several copies share fairly, in exact arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def fair_shares(rate: Fraction, links: Sequence[Fraction]) -> list[Fraction]:
    """Return the max-min fair shares of a bus in bytes per nanosecond.

    No copy gets more than its link takes. The others share the rest equally.

    Parameters
    ----------
    rate
        Rate of the bus in bytes per nanosecond.
    links
        Rate of the link of each copy in flight, in bytes per nanosecond.
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
