"""Copies that are not interrupted, as rows of FLOW: an engine has only one copy under way at a time.

FLOW alone lets a short copy interrupt a long one, which then goes on. Here, a long copy has begun or not, and
is done or not, at every instant. At each instant, at most one long copy of an engine has begun and is not
done. A long copy that has begun at the first instant of an interval, and is not done at its last, takes the
engine for the whole interval, so that nothing else moves in it. Both hold in every schedule, so that the
bound holds as well. Numbers are those of docs/flow.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..linear.model import ModelBuilder

LONG = 1 / 3
"""Share of the time of the longest copy above which a copy is long.

Shorter copies do not interrupt long ones either, but may interrupt each other. This hardly matters, and saves
most of the whole columns.
"""


class Progress(NamedTuple):
    """Whole columns of a copy, one for each instant: whether it has begun, and whether it is done."""

    begun: NDArray[np.int64]
    done: NDArray[np.int64]


class UnbrokenCopies:
    """The copies of one engine, or of two directions that share it.

    Parameters
    ----------
    builder
        Builder of the model.
    intervals
        Columns of the intervals; each interval ends at the instant of its number.
    long_ns
        Time in nanoseconds above which a copy is long.
    """

    def __init__(self, builder: ModelBuilder, intervals: int, long_ns: float) -> None:
        self._builder, self._long_ns = builder, long_ns
        self._under_way = self._one_is_under_way(intervals)
        self._throughout = builder.columns(intervals, upper=1.0)
        self._by_one = self._one_takes_an_interval()

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
            Successive instants, and the share of the block that is out, or has still to come back, at each of
            them. The first may be -1, the start, when no copy is under way.
        time_ns
            Time of the copy in nanoseconds.
        comes_back
            Whether it is a prefetch. A prefetch ends at the latest in the interval after the last instant. An
            offload begins at the earliest in the interval of the first instant.

        Returns
        -------
        Progress or None
            None for a copy that is not long.
        """
        builder, count = self._builder, len(instants)
        moved = self._nothing_else_moves(instants, columns, comes_back=comes_back)
        if time_ns <= self._long_ns:
            return None
        begun = builder.columns(count, upper=1.0, integer=True)
        done = builder.columns(count, upper=1.0, integer=True)
        share, rest = (-1.0, 1.0) if comes_back else (1.0, 0.0)  # copied: share x column + rest
        self._copied_once_begun(begun, columns, share, rest)
        self._done_once_copied(done, columns, share, rest)
        for once in (begun, done):
            self._stays(once)
        inside = instants >= 0
        builder.entries(self._under_way[instants[inside]], begun[inside], 1.0)
        builder.entries(self._under_way[instants[inside]], done[inside], -1.0)
        alone = builder.columns(count - 1, upper=1.0)
        self._takes_the_interval(alone, begun, done)
        builder.entries(self._by_one[instants[1:]], alone, 1.0)
        builder.entries(moved[:-1] if comes_back else moved[len(moved) - count + 1 :], alone, -1.0)
        return Progress(begun, done)

    def _one_is_under_way(self, intervals: int) -> NDArray[np.int64]:
        """(12): At an instant, at most one long copy has begun and is not done; copies add their terms."""
        return self._builder.rows(intervals, upper=1.0, family="under way")

    def _one_takes_an_interval(self) -> NDArray[np.int64]:
        """(13): The part of an interval that long copies take throughout; these copies add their terms."""
        rows = self._builder.rows(len(self._throughout), lower=0.0, upper=0.0, family="throughout")
        self._builder.entries(rows, self._throughout, -1.0)
        return rows

    def _nothing_else_moves(
        self, instants: NDArray[np.int64], columns: NDArray[np.int64], *, comes_back: bool
    ) -> NDArray[np.int64]:
        """(14): In an interval, a copy's moving share and the part that another takes add up to at most 1.

        An offload moves in the interval before an instant, a prefetch in the one after it. A long copy adds
        the term for the part that it takes itself.
        """
        builder = self._builder
        intervals = instants + comes_back
        intervals = intervals[intervals >= 0]
        moved = builder.rows(len(intervals), upper=1.0, family="moved")
        if comes_back:
            builder.entries(moved, columns, 1.0)
            builder.entries(moved[:-1], columns[1:], -1.0)
        else:
            earlier = columns[:-1]
            builder.entries(moved, columns[len(columns) - len(moved) :], 1.0)
            builder.entries(moved[len(moved) - len(earlier) :], earlier, -1.0)
        builder.entries(moved, self._throughout[intervals], 1.0)
        return moved

    def _copied_once_begun(
        self, begun: NDArray[np.int64], columns: NDArray[np.int64], share: float, rest: float
    ) -> None:
        """(15): A copy of which some bytes are copied has begun."""
        some = self._builder.rows(len(begun), lower=rest, family="begun")
        self._builder.entries(some, begun, 1.0)
        self._builder.entries(some, columns, -share)

    def _done_once_copied(
        self, done: NDArray[np.int64], columns: NDArray[np.int64], share: float, rest: float
    ) -> None:
        """(16): A copy that is done has been copied wholly."""
        every = self._builder.rows(len(done), upper=rest, family="done")
        self._builder.entries(every, done, 1.0)
        self._builder.entries(every, columns, -share)

    def _stays(self, once: NDArray[np.int64]) -> None:
        """(17): A copy that has begun remains begun, and one that is done remains done."""
        stays = self._builder.rows(len(once) - 1, lower=0.0, family="once")
        self._builder.entries(stays, once[1:], 1.0)
        self._builder.entries(stays, once[:-1], -1.0)

    def _takes_the_interval(
        self, alone: NDArray[np.int64], begun: NDArray[np.int64], done: NDArray[np.int64]
    ) -> None:
        """(18): It takes an interval if it has begun at the first instant and is not done at the last."""
        whole = self._builder.rows(len(alone), lower=0.0, family="alone")
        self._builder.entries(whole, alone, 1.0)
        self._builder.entries(whole, begun[:-1], -1.0)
        self._builder.entries(whole, done[1:], 1.0)
