"""One memory during an execution: what every byte holds, and which residences are there."""

from __future__ import annotations

from collections.abc import Callable

from .fault import FaultKind
from .layout import Layout

GARBAGE = -1
"""Version of bytes without valid data."""

NO_BLOCK = -1
"""Block of bytes that belong to no block."""

Cells = tuple[tuple[int, int], ...]
"""Pairs of a cell and the address that byte 0 of the block has if the cell is reached with it."""


class Memory:
    """The state of one memory.

    A cell holds a block, its version, the address of byte 0, and a stamp that tells apart equal contents of
    two writes.

    Parameters
    ----------
    layout
        The residences of the memory.
    fault
        Is told what is wrong.
    """

    def __init__(self, layout: Layout, fault: Callable[[FaultKind, str], None]) -> None:
        self._layout, self._fault = layout, fault
        self._content: list[tuple[int, int, int, int]] = [(NO_BLOCK, GARBAGE, 0, 0)] * layout.cell_count
        self._owner = [-1] * layout.cell_count
        self._stamps = 0
        self._acquired = [False] * len(layout.residences)
        self._gone = [False] * len(layout.residences)
        self._pending = list(layout.release_count)

    def is_live(self, r: int) -> bool:
        """Return whether a residence is there: acquired, and not released."""
        return self._acquired[r] and not self._gone[r]

    def is_gone(self, r: int) -> bool:
        """Return whether a residence was released."""
        return self._gone[r]

    def ends_with(self, r: int, i: int) -> bool:
        """Return whether a residence waits for the end of an operation alone."""
        return self._pending[r] == 1 and r in self._layout.releases[i]

    def acquire(self, r: int, source: int | None = None, taken: int | None = None) -> list[int]:
        """Make a residence be there; return the block's other residences that still are, but for `source`.

        It may lie over one that it has `taken` over.
        """
        layout = self._layout
        self._acquired[r] = True
        for other in layout.overlapping[r]:
            if self.is_live(other) and other != taken:
                together = layout.acquirer[r] == layout.acquirer[other]
                self._fault(
                    "rule" if together else "data",
                    f"{layout.name(r)} is acquired over {layout.name(other)}, which is still held",
                )
        for cell in layout.owned[r]:
            self._owner[cell] = r
        block = layout.residences[r].block
        others = [] if block is None else layout.stays[block]
        return [other for other in others if other not in (r, source) and self.is_live(other)]

    def end(self, i: int) -> None:
        """Count the end of an operation; release the residences of which it is the last to be waited for."""
        for r in self._layout.releases[i]:
            self._pending[r] -= 1
            if not self._pending[r]:
                self._release(r)

    def _release(self, r: int) -> None:
        """Poison the cells of a residence, but for those that another one has taken over."""
        self._gone[r] = True
        stamp = self._next_stamp()
        for cell in self._layout.owned[r]:
            if self._owner[cell] == r:
                self._content[cell] = (NO_BLOCK, GARBAGE, 0, stamp)

    def version(self, block: int, cells: Cells) -> int:
        """Return the version of a block that lies in cells; `GARBAGE` if it is not there, or not whole."""
        version: int | None = None
        for cell, base in cells:
            there, found, at, _ = self._content[cell]
            if there != block or at != base or version not in (None, found):
                return GARBAGE
            version = found
        return GARBAGE if version is None else version

    def stamps(self, cells: Cells) -> list[int]:
        """Return the stamps of cells, by which a later write is noticed."""
        return [self._content[cell][3] for cell, _ in cells]

    def write(self, block: int, cells: Cells, version: int) -> None:
        """Write a version of a block into cells."""
        stamp = self._next_stamp()
        for cell, base in cells:
            self._content[cell] = (block, version, base, stamp)

    def _next_stamp(self) -> int:
        self._stamps += 1
        return self._stamps
