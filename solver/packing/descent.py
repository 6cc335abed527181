"""Searches of a group for packings of a wanted height, and of heights between the best one and the bound."""

from __future__ import annotations

import itertools
import logging
import math
import time

import numpy as np

from .groups import Group
from .search import Answer, PackingSearch

_log = logging.getLogger(__name__)

_STEPS_OF_A_TURN = 20_000_000
"""Steps of a search in one turn, about 15 ms on one core."""

_HEIGHTS = 16
"""Number of heights between the bound and the best packing that a round tries."""

_GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, less their whole part, lie evenly between 0 and 1, however many there are."""


class Trial:
    """Searches for a packing of one height, which take turns: each prefers buffers in an order of its own.

    Parameters
    ----------
    group
        The buffers; a packing that is found is put there.
    target
        Greatest height, in the unit of the group.
    """

    def __init__(self, group: Group, target: int) -> None:
        self._group = group
        self.target = target
        self.turns = 0
        self._searches = [
            PackingSearch([group.stays[i] for i in order], group.size[order], group.alignment[order], target)
            for order in group.orders
        ]
        self._nodes = max(_STEPS_OF_A_TURN // int(len(group.size) + (group.last - group.first).sum()), 1)

    def run(self, turns: int, until: float) -> Answer:
        """Go on for some turns, the first of which is always made, or until a time of `time.monotonic`."""
        for _ in range(turns):
            which = self.turns % len(self._searches)
            self.turns += 1
            search = self._searches[which]
            answer = search.run(self._nodes)
            if answer == Answer.FOUND:
                offsets = np.empty_like(search.offsets)
                offsets[self._group.orders[which]] = search.offsets
                self._group.offsets = offsets
            if answer != Answer.OPEN:
                _log.info("search at %d: %s", self.target, answer.name.lower())
                return answer
            if time.monotonic() > until:
                break
        return Answer.OPEN


def search_lowest(group: Group, lower: int, most_turns: int, until: float) -> int:
    """Look for the lowest packing of a group: at the bound, and between it and the best packing.

    Where the bound cannot be reached, a search there finds nothing; and which of the heights above it is
    found soon is a matter of luck. So there are rounds, each with twice the effort of the last one: one half
    goes to the bound, the other one to heights at equal distances, which are others in each round.

    Parameters
    ----------
    group
        Buffers with a packing, which is replaced by lower ones.
    lower
        Proven lower bound on the height of all buffers.
    most_turns
        Number of turns at a bound after which nothing more is tried.
    until
        Time of `time.monotonic` at which the search gives way.

    Returns
    -------
    int
        The lower bound that is proven now.
    """
    lowest = Trial(group, lower)
    for turn in itertools.count():
        turns = min(_HEIGHTS * 2**turn, most_turns - lowest.turns)
        if lowest.run(turns, until) == Answer.IMPOSSIBLE:
            lower += 1
        lower = _descend(group, lower, 2**turn, (turn * _GOLDEN) % 1, until)
        if lower > lowest.target:
            lowest = Trial(group, lower)
        if group.height() <= lower or lowest.turns >= most_turns or time.monotonic() > until:
            break
    return lower


def _descend(group: Group, lower: int, turns: int, shift: float, until: float) -> int:
    """Try heights from the best packing down, from a share of their distance on; return the proven bound."""
    step = max((group.height() - lower) // _HEIGHTS, 1)
    target = group.height() - 1 - int(shift * step)
    while target > lower and time.monotonic() < until:
        answer = Trial(group, target).run(turns, until)
        if answer == Answer.IMPOSSIBLE:
            return target + 1
        target = min(target, group.height()) - step
    return lower
