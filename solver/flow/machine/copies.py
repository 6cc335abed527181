"""Copies in FLOW: the rows of a direction's engine, of a link that both directions share, of slowed tasks.

Numbers are those of docs/flow.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from ....instances.figures import MILLION
from ....instances.instance import Instance
from ....validate.bounds.machine import LinkTimes, Slowed
from ...linear.model import ModelBuilder

Indices = NDArray[np.int64]
"""Indices of columns or rows."""

Times = NDArray[np.float64]
"""Times of a copy on a link that both directions share, in the order of `LinkTimes`; empty without one."""


def link_times(times: LinkTimes | None, ns: float) -> Times:
    """Return the times of a copy on a link in units of some nanoseconds."""
    return np.array(times or (), dtype=np.float64) / ns


class Direction(NamedTuple):
    """The rows in which copies of one direction have terms.

    Attributes
    ----------
    engine
        A row for each interval.
    link
        Where both directions share a link, a row for each interval: for each of `LinkTimes`, or, with a
        single engine, for the first alone.
    slowed
        The row of each interval in which copies slow tasks down, or -1; none where they never do.
    lost
        For each interval of `slowed`, the share of a copy's time that tasks lose.
    """

    engine: Indices
    link: tuple[Indices, ...]
    slowed: Indices
    lost: NDArray[np.float64]

    def move(
        self, builder: ModelBuilder, intervals: Indices, columns: Indices, time: float, link: Times
    ) -> None:
        """Add copies that columns stand for; a whole one takes so much time of the engine and the link."""
        builder.entries(self.engine[intervals], columns, time)
        for rows, passing in zip(self.link, link, strict=False):
            builder.entries(rows[intervals], columns, passing)
        if len(self.slowed):
            where = np.broadcast_to(intervals, np.shape(columns))
            inside = self.slowed[where] >= 0
            rows = self.slowed[where][inside]
            builder.entries(rows, columns[inside], -time * self.lost[where][inside])


def share_the_link(builder: ModelBuilder, delta: Indices) -> Indices:
    """(41): The link passes the loads of all copies in an interval in no more than the interval."""
    rows = builder.rows(len(delta), upper=0.0, family="link")
    builder.entries(rows, delta, -1.0)
    return rows


def leave_copies_in_their_share(builder: ModelBuilder, delta: Indices) -> Indices:
    """(52): Copies out, and what copies in take beside them of a fair link, fit in an interval."""
    rows = builder.rows(len(delta), upper=0.0, family="fair out")
    builder.entries(rows, delta, -1.0)
    return rows


def leave_copies_out_their_share(builder: ModelBuilder, delta: Indices) -> Indices:
    """(53): Copies in, and what copies out take beside them of a fair link, fit in an interval."""
    rows = builder.rows(len(delta), upper=0.0, family="fair back")
    builder.entries(rows, delta, -1.0)
    return rows


def tasks_lose_time(builder: ModelBuilder, delta: Indices, least: NDArray[np.float64]) -> Indices:
    """(42): An interval is as long as its tasks, and what they lose at least by the copies in it.

    `least` is the time of its tasks that are no checkpoints; checkpoints and copies add their terms.
    """
    rows = builder.rows(len(delta), lower=least, family="slowed")
    builder.entries(rows, delta, 1.0)
    return rows


def directions(
    builder: ModelBuilder,
    instance: Instance,
    delta: Indices,
    engines: tuple[Indices, Indices],
    least: NDArray[np.float64],
    slowed: Sequence[Slowed],
) -> tuple[Direction, Direction]:
    """Return the rows of copies out and of copies back, and make those of the link and of slowed tasks.

    Parameters
    ----------
    delta, engines
        Columns of the intervals, and the rows of both engines, which may be the same.
    least
        For each interval, the time of its tasks that are no checkpoints, in units.
    slowed
        For each interval, what copies take at least of the speed of its tasks; none if they never do.
    """
    link: tuple[Indices, ...] = ()
    if instance.link is not UNSET:
        link = (share_the_link(builder, delta),)
        if instance.engines != "single":
            out_leads = leave_copies_in_their_share(builder, delta)
            link += out_leads, leave_copies_out_their_share(builder, delta)
    rows = np.zeros(0, dtype=np.int64)
    if slowed:
        inside = np.array([any(parts) for parts in slowed])
        rows = np.full(len(delta), -1)
        rows[inside] = tasks_lose_time(builder, delta[inside], least[inside])
    out = np.array([parts.offload for parts in slowed]) / MILLION
    back = np.array([parts.prefetch for parts in slowed]) / MILLION
    return Direction(engines[0], link, rows, out), Direction(engines[1], link, rows, back)
