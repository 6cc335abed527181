"""The memory pool of a program under construction: where the next block goes.

Contiguous memory is a list of free ranges in the order of their addresses, as moDNN's linked list of segments
(TPDS 2019, section 3.3); paged memory is a heap of pages, ordered by the time from which they are free.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import Literal

from ...instances.units import ceil_to

Fit = Literal["best", "first", "exact-first"]
"""Rule by which a hole is chosen."""
Range = tuple[int, int]
"""Offset and bytes of a range of memory."""


class Pool:
    """The free ranges of device memory.

    Parameters
    ----------
    capacity
        Bytes of the pool.
    unit
        Alignment in bytes: sizes are rounded up to a multiple of it.
    fit
        Which hole an allocation takes: the smallest that is large enough (``best``), the first (``first``),
        or the first of exactly its size, else the first large enough (``exact-first``; moDNN, TPDS 2019,
        section 3.3).
    """

    def __init__(self, capacity: int, unit: int, fit: Fit = "best") -> None:
        self._free: list[Range] = [(0, capacity)] if capacity > 0 else []
        self._unit = unit
        self._fit: Fit = fit

    @property
    def free_bytes(self) -> int:
        """Total bytes of the free ranges."""
        return sum(size for _, size in self._free)

    @property
    def largest_hole(self) -> int:
        """Bytes of the largest free range."""
        return max((size for _, size in self._free), default=0)

    def holes(self) -> tuple[Range, ...]:
        """Return the free ranges in the order of their addresses."""
        return tuple(self._free)

    def allocate(self, size: int) -> Range | None:
        """Allocate one range of `size` bytes, rounded up; return None when no hole is large enough."""
        candidates = [hole for hole in self._free if hole[1] >= size]
        if not candidates:
            return None
        chosen = candidates[0]
        if self._fit == "best":
            chosen = min(candidates, key=lambda hole: (hole[1], hole[0]))
        elif self._fit == "exact-first":
            rounded = ceil_to(size, self._unit)
            chosen = next((hole for hole in candidates if hole[1] == rounded), chosen)
        taken = min(ceil_to(size, self._unit), chosen[1])
        self.allocate_at(chosen[0], taken)
        return chosen[0], taken

    def allocate_at(self, offset: int, size: int) -> bool:
        """Allocate `size` bytes at `offset`; return False, and change nothing, unless all are free."""
        i = bisect_left(self._free, (offset + 1,)) - 1
        if i < 0:
            return False
        start, length = self._free[i]
        if offset + size > start + length:
            return False
        remains = [(start, offset - start), (offset + size, start + length - offset - size)]
        self._free[i : i + 1] = [hole for hole in remains if hole[1]]
        return True

    def release(self, ranges: tuple[Range, ...]) -> None:
        """Release ranges; a range joins the free ranges beside it."""
        for start, size in ranges:
            i = bisect_left(self._free, (start,))
            end = start + size
            if i < len(self._free) and self._free[i][0] == end:
                end += self._free.pop(i)[1]
            if i and sum(self._free[i - 1]) == start:
                start = self._free.pop(i - 1)[0]
            insort(self._free, (start, end - start))


class PagePool:
    """The free pages of device memory, with the times from which they are free.

    Parameters
    ----------
    capacity
        Bytes of the pool; an incomplete last page is not used.
    page
        Bytes of a page.
    """

    def __init__(self, capacity: int, page: int) -> None:
        usable = max(capacity, 0) // page * page
        self._page = page
        self._free: list[tuple[int, int, int]] = [(0, 0, usable)] if usable else []
        self.free_bytes = usable

    @property
    def largest_hole(self) -> int:
        """Bytes that one allocation can have, which are all free bytes."""
        return self.free_bytes

    def holes(self) -> tuple[Range, ...]:
        """Return the free ranges in the order of their addresses."""
        return _joined([(start, size) for _, start, size in self._free])

    def allocate(self, size: int) -> tuple[Range, ...] | None:
        """Allocate pages for `size` bytes, the earliest free ones; return None when there are too few."""
        wanted = ceil_to(size, self._page)
        if wanted > self.free_bytes:
            return None
        self.free_bytes -= wanted
        taken: list[Range] = []
        while wanted:
            free_at, start, length = heapq.heappop(self._free)
            if length > wanted:
                heapq.heappush(self._free, (free_at, start + wanted, length - wanted))
                length = wanted
            taken.append((start, length))
            wanted -= length
        return _joined(taken)

    def release(self, ranges: tuple[Range, ...], free_at: int) -> None:
        """Release ranges that are free from a given time."""
        for start, size in ranges:
            heapq.heappush(self._free, (free_at, start, size))
            self.free_bytes += size


def _joined(ranges: list[Range]) -> tuple[Range, ...]:
    """Return ranges by address, with neighbours joined."""
    joined: list[Range] = []
    for start, size in sorted(ranges):
        if joined and sum(joined[-1]) == start:
            joined[-1] = joined[-1][0], joined[-1][1] + size
        else:
            joined.append((start, size))
    return tuple(joined)
