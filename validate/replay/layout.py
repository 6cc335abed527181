"""The residences of one memory, laid out: who acquires and releases each, and the cells that it has."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from ..schedule import HostResidence, Residence

Piece = tuple[int, int, int]
"""First byte, end, and the address that byte 0 of the content has if the bytes are reached with it."""


class Layout:
    """The residences of one memory, and its cells: the pieces between all their beginnings and ends.

    Parameters
    ----------
    key
        The schedule's key for the residences, by which faults name them.
    residences
        The residences. Each that has no address gets addresses of its own.
    needed
        Bytes that the content of each residence really uses.
    index
        Position of every operation in the list, by id.

    Attributes
    ----------
    acquires, releases
        Per operation, the residences that it acquires, and those that it releases.
    at_start
        Residences at time 0.
    acquirer, release_count, owned, used, overlapping
        Per residence, the operation that acquires it; the number of operations that release it; its cells;
        the cells that its content uses, each with the address of byte 0; and the residences that share cells
        with it.
    stays
        The residences of each block.
    workspaces
        The residence of each run's workspace, by the run's id.
    pieces
        Per residence, the pieces that its content uses.
    cell_count
        Number of cells. The last one stands for all bytes that no residence has, and is never written.
    """

    def __init__(
        self,
        key: str,
        residences: Sequence[Residence | HostResidence],
        needed: Sequence[int],
        index: Mapping[int, int],
    ) -> None:
        self.key, self.residences, self.needed = key, residences, needed
        self._bind(index)
        self._cut()

    def name(self, r: int) -> str:
        """Return how faults name a residence."""
        return f"{self.key}[{r}]"

    def room(self, r: int) -> int:
        """Return the bytes that a residence has for its content."""
        residence = self.residences[r]
        extents = extents_of(residence)
        if extents is None:
            return residence.bytes
        return min(residence.bytes, sum(size for _, size in extents))

    def acquired_for(self, i: int, block: int) -> int | None:
        """Return the residence that an operation acquires for a block; None if it acquires none."""
        mine = [r for r in self.acquires[i] if self.residences[r].block == block]
        return mine[-1] if mine else None

    def places(self) -> dict[int, int]:
        """Return the residence of each block that has one at time 0."""
        return self._by_block(self.at_start)

    def enter(self, i: int, places: dict[int, int]) -> None:
        """Let the residences that an operation acquires be the latest of their blocks."""
        places.update(self._by_block(self.acquires[i]))

    def cells_at(self, pieces: Iterable[Piece]) -> tuple[tuple[int, int], ...]:
        """Return the cells that have any byte of some pieces, each with the address of byte 0.

        The pieces may be those of another layout of the same memory.
        """
        return tuple(
            (cell, base)
            for begin, end, base in pieces
            for cell in range(bisect_right(self._cuts, begin) - 1, bisect_left(self._cuts, end))
        )

    def _by_block(self, several: list[int]) -> dict[int, int]:
        blocks = ((self.residences[r].block, r) for r in several)
        return {block: r for block, r in blocks if block is not None}

    def _bind(self, index: Mapping[int, int]) -> None:
        """Find which operations acquire and release each residence, and the residences at time 0."""
        self.acquires: list[list[int]] = [[] for _ in index]
        self.releases: list[list[int]] = [[] for _ in index]
        self.at_start: list[int] = []
        self.acquirer: list[int | None] = []
        self.release_count: list[int] = []
        self.stays: dict[int, list[int]] = defaultdict(list)
        self.workspaces: dict[int, int] = {}
        for r, residence in enumerate(self.residences):
            acquirer = None if residence.acquired_by is None else index[residence.acquired_by]
            self.acquirer.append(acquirer)
            (self.at_start if acquirer is None else self.acquires[acquirer]).append(r)
            releases = {index[other] for other in residence.released_after}
            self.release_count.append(len(releases))
            for i in releases:
                self.releases[i].append(r)
            if residence.block is not None:
                self.stays[residence.block].append(r)
            if residence.workspace_of is not None:
                self.workspaces[residence.workspace_of] = r

    def _cut(self) -> None:
        """Cut the address space where any residence begins or ends; list the cells of every residence."""
        pieces: list[tuple[list[Piece], list[Piece]]] = []
        cursor = 0
        for residence, needed in zip(self.residences, self.needed, strict=True):
            extents = extents_of(residence)
            if extents is not None:
                begins = accumulate((size for _, size in extents), initial=0)
                owned = [
                    (address, address + size, address - begin)
                    for (address, size), begin in zip(extents, begins, strict=False)
                ]
                used = [
                    (begin, min(end, base + needed), base)
                    for begin, end, base in owned
                    if begin < base + needed
                ]
            else:
                base = cursor if residence.offset is None else residence.offset
                owned = [(base, base + residence.bytes, base)]
                used = [(base, base + needed, base)] if needed else []
            cursor += max(residence.bytes, needed)
            pieces.append((owned, used))
        self._cuts = sorted(
            {edge for pair in pieces for piece in pair for a, b, _ in piece for edge in (a, b)}
        )
        self.cell_count = len(self._cuts)
        self.owned = [tuple(cell for cell, _ in self.cells_at(owned)) for owned, _ in pieces]
        self.pieces = [used for _, used in pieces]
        self.used = [self.cells_at(used) for used in self.pieces]
        sets = [frozenset(owned) for owned in self.owned]
        self.overlapping = [
            [other for other in range(len(sets)) if other != r and sets[r] & sets[other]]
            for r in range(len(sets))
        ]


def extents_of(residence: Residence | HostResidence) -> tuple[tuple[int, int], ...] | None:
    """Return the pages of a residence; None where it has none, as on the host."""
    return residence.extents if isinstance(residence, Residence) else None
