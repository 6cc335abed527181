"""Copies that are not interrupted, as rows of FLOW: an engine has one copy under way at a time.

FLOW alone lets a short copy cut in on a long one, which then goes on. Here a long copy has begun or not, and
is done or not, at every instant. At most one of an engine has begun and is not done at an instant. One that
has begun at the first instant of an interval and is not done at its last takes the engine throughout, so that
nothing else moves meanwhile. Both hold in every schedule, so that a bound stays one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..linear.model import ModelBuilder

LONG = 1 / 3
"""Share of the time of the longest copy over which a copy is long. Shorter ones do not cut in on long ones
either, but may on each other, which hardly matters and saves most of the whole columns."""


class Progress(NamedTuple):
    """Whole columns of a copy, one an instant: whether it has begun, and whether it is done."""

    begun: NDArray[np.int64]
    done: NDArray[np.int64]


class UnbrokenCopies:
    """The copies of one engine, or of two directions that share it.

    Parameters
    ----------
    builder
        Of the model.
    intervals
        Of the model; each ends at the instant of its number.
    long_ns
        Copies that take longer are long.
    """

    def __init__(self, builder: ModelBuilder, intervals: int, long_ns: float) -> None:
        self._builder, self._long_ns = builder, long_ns
        self._under_way = builder.rows(intervals, upper=1.0)
        self._throughout = builder.columns(intervals, upper=1.0)  # whether some long copy takes an interval
        self._by_one = builder.rows(intervals, lower=0.0, upper=0.0)
        builder.entries(self._by_one, self._throughout, -1.0)

    def add(
        self,
        instants: NDArray[np.int64],
        columns: NDArray[np.int64],
        time_ns: float,
        *,
        comes_back: bool,
    ) -> Progress | None:
        """Add a copy.

        Parameters
        ----------
        instants, columns
            Successive instants, and which share of it is out, or has still to come back, at each of them.
        time_ns
            How long it takes.
        comes_back
            Whether it is a prefetch, which ends in the interval after the last instant at the latest. An
            offload begins in the interval of the first instant at the earliest.

        Returns
        -------
        Progress or None
            None for a copy that is not long.
        """
        builder, count = self._builder, len(instants)
        # an offload goes on in the interval before an instant, a prefetch in the one after it
        moved = builder.rows(count, upper=1.0)
        builder.entries(moved, columns, 1.0)
        if comes_back:
            builder.entries(moved[:-1], columns[1:], -1.0)
        else:
            builder.entries(moved[1:], columns[:-1], -1.0)
        builder.entries(moved, self._throughout[instants + comes_back], 1.0)
        if time_ns <= self._long_ns:
            return None
        begun = builder.columns(count, upper=1.0, integer=True)
        done = builder.columns(count, upper=1.0, integer=True)
        share, rest = (-1.0, 1.0) if comes_back else (1.0, 0.0)  # copied: share x column + rest
        some = builder.rows(count, lower=rest)
        builder.entries(some, begun, 1.0)
        builder.entries(some, columns, -share)
        every = builder.rows(count, upper=rest)
        builder.entries(every, done, 1.0)
        builder.entries(every, columns, -share)
        for once in (begun, done):
            stays = builder.rows(count - 1, lower=0.0)
            builder.entries(stays, once[1:], 1.0)
            builder.entries(stays, once[:-1], -1.0)
        builder.entries(self._under_way[instants], begun, 1.0)
        builder.entries(self._under_way[instants], done, -1.0)
        alone = builder.columns(count - 1, upper=1.0)
        whole = builder.rows(count - 1, lower=0.0)
        builder.entries(whole, alone, 1.0)
        builder.entries(whole, begun[:-1], -1.0)
        builder.entries(whole, done[1:], 1.0)
        builder.entries(self._by_one[instants[1:]], alone, 1.0)
        builder.entries(moved[:-1] if comes_back else moved[1:], alone, -1.0)
        return Progress(begun, done)
