"""The residence of a block or workspace in a program under construction."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...validate.schedule import MemoryModel, Residence, Stream
from .pool import Range


@dataclass(slots=True, eq=False)
class Stay:
    """A residence under construction, of a block or of the workspace of a run.

    Attributes
    ----------
    block, workspace_of, bytes, acquired_by, released_after, takes_over
        As in `Residence`.
    ranges, span
        The ranges in which it lies, and the tensor in whose span it lies.
    placed, gone
        Number of placements and releases of the program up to its own; `gone` is None while it is on the
        device.
    users
        The last operation of each stream that touched it.
    used
        Whether it is part of the schedule. A block that starts on the device may leave before any use; then
        it is not.
    """

    block: int | None
    workspace_of: int | None
    ranges: tuple[Range, ...]
    bytes: int
    acquired_by: int | None
    span: str | None
    placed: int
    gone: int | None = None
    users: dict[Stream, int] = field(default_factory=dict)
    released_after: tuple[int, ...] = ()
    used: bool = True
    takes_over: bool = False

    def residence(self, memory: MemoryModel) -> Residence:
        """Return the residence for the schedule."""
        return Residence(
            block=self.block,
            workspace_of=self.workspace_of,
            offset=self.ranges[0][0] if memory == "contiguous" else None,
            extents=self.ranges if memory == "paged" else None,
            bytes=self.bytes,
            acquired_by=self.acquired_by,
            released_after=self.released_after,
            takes_over=self.takes_over,
        )
