"""Host memory that ends, in the exhaustive search: where a copy can lie.

A copy takes its bytes from the start of the offload that writes it until it is dropped. Where offsets count,
it lies at a multiple of the greatest common divisor of all sizes, which are rounded up to 512 bytes. No
program is lost by that: take its copies in the order of their offsets, and move each down until it touches
the start of the pool, or a copy that is there at the same time. All of them then lie at sums of rounded
sizes, none lies higher than before, and no time has changed.
"""

from __future__ import annotations

import math

import msgspec

from ...heuristics.methods import Refusal
from ...instances.instance import Instance
from ...instances.units import ceil_to
from ...validate.host_memory import ALIGNMENT_BYTES
from ...validate.schedule import MemoryModel

MOST_PLACES = 64
"""Greatest number of places of a pool for which the search is tried."""

ABSENT = -1
"""Offset of what is not in a pool."""


class HostPool:
    """The pool of the host, and where copies can lie in it.

    Parameters
    ----------
    instance
        An instance whose host memory has a budget.
    memory
        Memory model of the search; in divisible memory only the sum of bytes counts.

    Raises
    ------
    Refusal
        When there are too many possible places.

    Attributes
    ----------
    is_ample
        Whether there is room for a copy of every block at once. Each then has one place, and none need be
        dropped.
    """

    def __init__(self, instance: Instance, memory: MemoryModel) -> None:
        assert instance.host_budget_bytes is not msgspec.UNSET
        self._budget = instance.host_budget_bytes
        self._explicit = memory != "divisible"
        self._exact = [block.bytes for block in instance.blocks]
        self._sizes = [ceil_to(size, ALIGNMENT_BYTES) if self._explicit else size for size in self._exact]
        self.is_ample = sum(self._sizes) <= self._budget
        self._places = self._possible_places()

    def _possible_places(self) -> list[range]:
        """Return, per block, the offsets to try."""
        if not self._explicit:
            return [range(1)] * len(self._sizes)
        if self.is_ample:
            starts = [sum(self._sizes[:d]) for d in range(len(self._sizes))]
            return [range(start, start + 1) for start in starts]
        places = range(0, self._budget, math.gcd(*self._sizes))
        if len(places) > MOST_PLACES:
            raise Refusal(
                f"brute force: {len(places)} possible places in host memory; at most {MOST_PLACES} are tried"
            )
        return [places] * len(self._sizes)

    def rooms(self, copies: tuple[int, ...], block: int) -> list[int]:
        """Return the offsets of a new copy of a block beside the present ones: 0 where only the sum counts.

        Parameters
        ----------
        copies
            The offset of each block's copy, or `ABSENT`.
        block
            A block without a copy.
        """
        taken = [(place, self._sizes[d]) for d, place in enumerate(copies) if place != ABSENT]
        size, exact = self._sizes[block], self._exact[block]
        if not self._explicit:
            return [0] if sum(amount for _, amount in taken) + size <= self._budget else []
        return [
            place
            for place in self._places[block]
            if place + exact <= self._budget
            and all(place + size <= start or start + amount <= place for start, amount in taken)
        ]
