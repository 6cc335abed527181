"""The order of a program that holds in every execution, and who held each byte last.

A stream runs its operations in list order, and an operation waits for those in `after`. Nothing else orders
two operations. This module imports only the instance and the schedule from this project.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Generic, TypeVar

from ..instances.instance import Instance
from .schedule import HostResidence, Operation, Residence, Schedule

NEVER = -1
"""Position before every operation: time 0."""

Held = TypeVar("Held", Residence, HostResidence)
"""What holds bytes: a residence in the pool, or one in host memory."""


def in_words(instance: Instance, operation: Operation) -> str:
    """Return an operation in words: its id, and the task that it runs or the block that it copies."""
    if operation.task is not None:
        return f"operation {operation.id} (run {instance.tasks[operation.task].name})"
    assert operation.block is not None
    return f"operation {operation.id} ({operation.kind} {instance.blocks[operation.block].name})"


def is_on_host(instance: Instance, operation: Operation) -> bool:
    """Return whether an operation is a run with an algorithm of the host."""
    if operation.task is None or operation.algorithm is None:
        return False
    return instance.tasks[operation.task].algorithms[operation.algorithm].on == "host"


class Clocks:
    """Which steps of a list have ended when another starts, whatever their durations.

    A step starts when the one before it on its track, and all that it waits for, have ended. Steps of a track
    form a chain. So one number a track answers every question of order: the last position there that has
    ended when a step ends.

    Parameters
    ----------
    tracks
        The track of each step, such as its stream.
    before
        For each step, the positions of steps earlier in the list that it waits for; the one before it on its
        track need not be among them.
    """

    def __init__(self, tracks: Sequence[Hashable], before: Iterable[Iterable[int]]) -> None:
        self._tracks = tracks
        self._clocks: list[dict[Hashable, int]] = []
        last: dict[Hashable, int] = {}
        for p, (track, earlier) in enumerate(zip(tracks, before, strict=True)):
            clock: dict[Hashable, int] = {}
            for q in (*earlier, last[track]) if track in last else earlier:
                for other, latest in self._clocks[q].items():
                    clock[other] = max(clock.get(other, NEVER), latest)
            clock[track] = p
            self._clocks.append(clock)
            last[track] = p

    def ends_before(self, p: int, q: int) -> bool:
        """Return whether step `p` has ended when `q` starts, in every execution."""
        return p != q and self._clocks[q].get(self._tracks[p], NEVER) >= p


class Order:
    """Which operations of a schedule have ended when another starts, whatever their durations.

    Attributes
    ----------
    operations
        Those of the schedule, in list order; operations are referred to by their position there.
    position
        Position by id.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.operations = schedule.operations
        self.position = {operation.id: p for p, operation in enumerate(self.operations)}
        streams = [operation.stream for operation in self.operations]
        self._waits = Clocks(streams, [[self.position[i] for i in o.after] for o in self.operations])

    def ends_before(self, p: int, q: int) -> bool:
        """Return whether operation `p` has ended when `q` starts, in every execution."""
        return p == NEVER or self._waits.ends_before(p, q)

    def acquisition(self, residence: Residence | HostResidence) -> int:
        """Return the position of the operation that acquires a residence; `NEVER` for time 0."""
        return NEVER if residence.acquired_by is None else self.position[residence.acquired_by]

    def releases(self, residence: Residence | HostResidence) -> list[int]:
        """Return the positions of the operations after which a residence is released; none: it is kept."""
        return [self.position[i] for i in residence.released_after]

    def released_before(self, residence: Residence | HostResidence, q: int) -> bool:
        """Return whether a residence has ended when operation `q` starts, in every execution."""
        releases = self.releases(residence)
        return bool(releases) and all(self.ends_before(p, q) for p in releases)

    def lasts_through(self, residence: Residence | HostResidence, p: int) -> bool:
        """Return whether a residence ends after operation `p` has ended, in every execution."""
        releases = self.releases(residence)
        return not releases or any(q == p or self.ends_before(p, q) for q in releases)

    def clashes(
        self, acquired: Mapping[int, Sequence[Held]], ranges: Callable[[Held], Sequence[tuple[int, int]]]
    ) -> Iterator[tuple[int, Held, Held]]:
        """Yield residences that may be there together with another one on common bytes.

        Residences are taken in the order of their acquisition. Each must come after the last holders of its
        bytes. Order is transitive, because a residence is released after it is acquired.

        Parameters
        ----------
        acquired
            Residences by the position of the operation that acquires them.
        ranges
            Returns the bytes of a residence: offsets and sizes.

        Yields
        ------
        tuple of int, Held, Held
            The position, the residence that is acquired there, and the one that need not have been released.
        """
        held = _Holders[Held]()
        for p in sorted(acquired):
            for residence in acquired[p]:
                place = ranges(residence)
                for holder in held.over(place):
                    if p == NEVER or not self.released_before(holder, p):
                        yield p, residence, holder
                held.put(place, residence)

    def largest_sum(
        self, residences: Iterable[Residence | HostResidence], starts: Sequence[int], ends: Sequence[int]
    ) -> int:
        """Return the most bytes that residences hold at one time, where operations run at these times."""
        changes: dict[int, int] = defaultdict(int)
        for residence in residences:
            p = self.acquisition(residence)
            begins = ends if _takes_over(residence) else starts
            changes[0 if p == NEVER else begins[p]] += residence.bytes
            released = max((ends[q] for q in self.releases(residence)), default=max(ends, default=0))
            changes[released] -= residence.bytes
        return max(accumulate((changes[t] for t in sorted(changes)), initial=0))

    def largest_sum_in_order(
        self, residences: Iterable[Residence | HostResidence], starts: Sequence[int], ends: Sequence[int]
    ) -> int:
        """Return the most bytes that residences hold where operations of an instant come one by one.

        What takes time ends first. Then operations start in the order of the list, and those that take no
        time end at once.
        """
        changes: list[tuple[tuple[float, int, int], int]] = []
        for residence in residences:
            p = self.acquisition(residence)
            begin = (0, NEVER, 0) if p == NEVER else (starts[p], p, 0)
            if p != NEVER and _takes_over(residence):  # until then, the bytes are the input's
                begin = (ends[p], p if starts[p] == ends[p] else NEVER, 1)
            released = ((ends[q], q if starts[q] == ends[q] else NEVER, 1) for q in self.releases(residence))
            changes += [(begin, residence.bytes), (max(released, default=(inf, 0, 1)), -residence.bytes)]
        return max(accumulate((size for _, size in sorted(changes)), initial=0))


def _takes_over(residence: Residence | HostResidence) -> bool:
    return isinstance(residence, Residence) and residence.takes_over


class _Holders(Generic[Held]):
    """The last residence that held each byte of a pool."""

    def __init__(self) -> None:
        self._starts: list[int] = [0]
        self._holder: list[Held | None] = [None]

    def over(self, ranges: Iterable[tuple[int, int]]) -> list[Held]:
        """Return the last holders of any of these bytes."""
        found: dict[int, Held] = {}
        for start, size in ranges:
            i = bisect_right(self._starts, start) - 1
            while i < len(self._starts) and self._starts[i] < start + size:
                holder = self._holder[i]
                if holder is not None:
                    found[id(holder)] = holder
                i += 1
        return list(found.values())

    def put(self, ranges: Iterable[tuple[int, int]], residence: Held) -> None:
        """Note the holder of these bytes."""
        for start, size in ranges:
            for cut in (start, start + size):
                i = bisect_right(self._starts, cut) - 1
                if self._starts[i] != cut:
                    self._starts.insert(i + 1, cut)
                    self._holder.insert(i + 1, self._holder[i])
            first = bisect_right(self._starts, start) - 1
            last = bisect_right(self._starts, start + size) - 1
            self._starts[first:last] = [start]
            self._holder[first:last] = [residence]
