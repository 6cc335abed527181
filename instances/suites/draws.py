"""Random integers that are the same on every machine and with every version of numpy.

Only the raw 64-bit stream of PCG64 is used, whose values numpy promises to keep, and integers are made of it
here by rejection; numpy's own distributions may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ..errors import PebblerError

_WORDS = 2**64
"""Number of values of the raw stream."""

_Item = TypeVar("_Item")
"""Type of the items of a choice."""


class Draws:
    """Random integers, choices and yes-or-no answers from a generator's raw stream.

    Parameters
    ----------
    rng
        A generator on PCG64, such as ``numpy.random.default_rng(seed)``.

    Raises
    ------
    PebblerError
        When the generator does not run on PCG64.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        if not isinstance(rng.bit_generator, np.random.PCG64):
            name = type(rng.bit_generator).__name__
            raise PebblerError(f"random numbers come from {name}; give a numpy.random.Generator on PCG64")
        self._next = rng.bit_generator.random_raw

    def below(self, count: int) -> int:
        """Return one of 0 to `count` - 1, all equally likely."""
        limit = _WORDS - _WORDS % count
        while (word := int(self._next())) >= limit:
            pass
        return word % count

    def between(self, low: int, high: int) -> int:
        """Return one of `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        """Return True in `percent` of 100 cases."""
        return self.below(100) < percent

    def choice(self, items: Sequence[_Item]) -> _Item:
        """Return one of the items."""
        return items[self.below(len(items))]
