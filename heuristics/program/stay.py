"""A residence of a program under construction."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...validate.schedule import MemoryModel, Residence, Stream
from .pool import Range


@dataclass(slots=True, eq=False)
class Stay:
    """A residence under construction: of a block, or of the workspace of a run.

    Attributes
    ----------
    block, workspace_of, bytes, acquired_by, released_after
        As in `Residence`.
    ranges, span
        Where it lies, and the tensor in whose room.
    placed, gone
        Placements and releases of the program up to its own; None: it is still there.
    users
        The last operation of each stream that touched it.
    used
        Whether it came to anything: a block that is on the device at first may leave before any use.
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

    def residence(self, memory: MemoryModel) -> Residence:
        """Return what the schedule says of it."""
        return Residence(
            block=self.block,
            workspace_of=self.workspace_of,
            offset=self.ranges[0][0] if memory == "contiguous" else None,
            extents=self.ranges if memory == "paged" else None,
            bytes=self.bytes,
            acquired_by=self.acquired_by,
            released_after=self.released_after,
        )
