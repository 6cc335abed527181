"""Buffers that time connects, and first fit, which places them one by one."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ...instances.buffers import Buffer
from .search import Integers


def connected(buffers: Sequence[Buffer]) -> list[list[int]]:
    """Return the buffers in groups, such that buffers of different groups never live together."""
    order = sorted(range(len(buffers)), key=lambda i: (buffers[i].lower, i))
    ends = accumulate((buffers[i].upper for i in order), max)
    groups = [[order[0]]]
    for i, end in zip(order[1:], ends, strict=False):
        if buffers[i].lower >= end:
            groups.append([])
        groups[-1].append(i)
    return groups


class Group:
    """Buffers that time connects, in arrays and a common unit; a section is a maximal set living at once.

    Attributes
    ----------
    first, last
        Sections [first, last) from the begin of each buffer to its end, gaps included.
    stays
        Of each buffer, the sections [begin, end) in which its bytes are needed: several if it has gaps.
    size, alignment, live
        Of each buffer, and the bytes that are needed in each section.
    """

    def __init__(self, buffers: Sequence[Buffer], members: Sequence[int], unit: int) -> None:
        mine = [buffers[i] for i in members]
        lives = [stay for b in mine for stay in b.stays]
        events = sorted([(end, False) for _, end in lives] + [(begin, True) for begin, _ in lives])
        instants = [
            now
            for (now, begins), (_, begins_next) in zip(events, [*events[1:], (0, False)], strict=True)
            if begins and not begins_next
        ]
        self.first = np.array([bisect_left(instants, b.lower) for b in mine], np.int64)
        self.last = np.array([bisect_left(instants, b.upper) for b in mine], np.int64)
        self.size = np.array([b.size // unit for b in mine], np.int64)
        self.alignment = np.array([max(b.alignment // unit, 1) for b in mine], np.int64)
        self.stays = [
            [(bisect_left(instants, begin), bisect_left(instants, end)) for begin, end in b.stays]
            for b in mine
        ]
        self.live = np.zeros(len(instants), np.int64)
        for size, stays in zip(self.size, self.stays, strict=True):
            for begin, end in stays:
                self.live[begin:end] += size
        self.lower = int(self.live.max())
        self.offsets: Integers | None = None
        total = [int(self.live[a:b].max()) for a, b in zip(self.first, self.last, strict=True)]
        width = [b.upper - b.lower for b in mine]
        area = [b.size * (b.upper - b.lower) for b in mine]
        keys = ((width, area, total), (total, area, width), (total, width, area))
        self.orders = [
            np.array(sorted(range(len(mine)), key=lambda i: [-figures[i] for figures in key])) for key in keys
        ]

    @property
    def has_gaps(self) -> bool:
        """Whether some buffer has gaps."""
        return any(len(stays) > 1 for stays in self.stays)

    def there(self) -> NDArray[np.bool_]:
        """Return, per buffer and section, whether its bytes are needed."""
        there = np.zeros((len(self.size), len(self.live)), bool)
        for i, stays in enumerate(self.stays):
            for begin, end in stays:
                there[i, begin:end] = True
        return there

    def placed(self) -> Integers:
        """Return the offsets of the group's packing."""
        assert self.offsets is not None
        return self.offsets

    def height(self) -> int:
        """Return the height of the group's packing."""
        return int((self.placed() + self.size).max())


def first_fit(group: Group, until: float = math.inf) -> Integers | None:
    """Place buffers one by one, as low as they go, in each of a few orders, and keep the lowest packing.

    Returns None if there was no time for any order. Further orders are left out if there is no time for them.
    """
    best: Integers | None = None
    there = group.there() if group.has_gaps else None
    orders = [*group.orders, np.argsort(-group.size, kind="stable"), np.argsort(group.first, kind="stable")]
    for order in orders:
        offsets = _first_fit_in(group, order, there, until)
        if offsets is None:
            break
        if best is None or (offsets + group.size).max() < (best + group.size).max():
            best = offsets
    return best


def _first_fit_in(
    group: Group, order: Integers, there: NDArray[np.bool_] | None, until: float
) -> Integers | None:
    offsets = np.full(len(order), -1, np.int64)
    for i in order:
        if time.monotonic() > until:
            return None
        beside = (offsets >= 0) & (group.first < group.last[i]) & (group.first[i] < group.last)
        if there is not None:
            beside[beside] = there[np.ix_(beside, there[i])].any(axis=1)
        bottoms, tops = offsets[beside], (offsets + group.size)[beside]
        rising = np.argsort(bottoms, kind="stable")
        starts = np.concatenate(([0], np.maximum.accumulate(tops[rising])))
        starts = -(-starts // group.alignment[i]) * group.alignment[i]
        fits = starts[:-1] + group.size[i] <= bottoms[rising]
        offsets[i] = starts[np.argmax(fits)] if fits.any() else starts[-1]
    return offsets
