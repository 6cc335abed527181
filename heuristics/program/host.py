"""Copies in host memory that has a budget, while a program is built.

A stale copy is dropped at once. A copy that nobody wants any more is dropped when room is wanted. So is one
that has been read, or was there from the start, while the device has the data, too: that costs nothing by
itself. If the block leaves the device again, it is copied again. The copy of a carried block that is there
from the start and has been read stays to the end, where the next round finds it. Unless a plan says where
copies lie, a block that begins and ends on the host keeps its place there all the time, so that a new copy
lies where the first one was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...instances.instance import Instance
from ...instances.units import format_size
from ...validate.host_memory import ALIGNMENT_BYTES
from ...validate.schedule import HostResidence, MemoryModel
from ..methods import Refusal
from .pool import Range
from .room import Room


@dataclass(slots=True)
class HostCopy:
    """A host residence under construction; `readers` are the prefetches that read it."""

    block: int
    ranges: tuple[Range, ...]
    acquired_by: int | None
    readers: list[int] = field(default_factory=list)
    released_after: tuple[int, ...] = ()
    used: bool = True


class HostMemory:
    """The host memory of a program under construction.

    Parameters
    ----------
    instance, memory
        An instance that gives host memory a budget, and the memory model of the schedule.
    ends
        End times of the operations issued so far, in nanoseconds, by id.
    on_host
        Per block, whether it has a copy at this point of the program; it is kept up to date.
    is_wanted
        Returns whether a block's data is wanted at all from here on.
    is_only_copy
        Returns whether the device does not have a block's data.
    keeps_homes
        Whether a block that begins and ends on the host keeps its place there all the time.
    """

    def __init__(
        self,
        instance: Instance,
        memory: MemoryModel,
        ends: Sequence[int],
        on_host: NDArray[np.bool_],
        is_wanted: Callable[[int], bool],
        is_only_copy: Callable[[int], bool],
        *,
        keeps_homes: bool,
    ) -> None:
        assert instance.host_budget_bytes is not msgspec.UNSET
        self._instance, self._on_host = instance, on_host
        self._is_wanted, self._is_only_copy = is_wanted, is_only_copy
        self._contiguous, self._keeps_homes = memory != "divisible", keeps_homes
        host = msgspec.structs.replace(
            instance,
            budget_bytes=instance.host_budget_bytes,
            resident_bytes=0,
            alignment_bytes=ALIGNMENT_BYTES,
            # copies of parts lie anywhere, and a part may begin between two multiples of this alignment
            blocks=tuple(msgspec.structs.replace(b, tensor=None, begin=None) for b in instance.blocks),
        )
        self._room = Room(host, "contiguous" if self._contiguous else "divisible", "best", (), ends)
        self._copies: list[HostCopy] = []
        self._previous: dict[int, tuple[int, ...]] = {}
        self._held: dict[int, HostCopy] = {}
        self._homes: dict[int, tuple[tuple[Range, ...], tuple[int, ...]]] = {}
        on_host[:] = False

    @property
    def free_bytes(self) -> int:
        """Bytes that copies could have, were every copy dropped that can be."""
        blocks = self._instance.blocks
        return self._room.pool.free_bytes + sum(blocks[d].bytes for d in self._spare())

    def copy_of(self, block: int) -> HostCopy | None:
        """Return the copy of a block, if there is one."""
        return self._held.get(block)

    def begin(self, block: int, at: int | None = None, *, must: bool) -> None:
        """Keep a copy of a block from time 0, at an offset or where there is room, if there is any.

        Raises
        ------
        Refusal
            When a copy that must be kept has no room.
        """
        ranges = self._room.take(self._instance.blocks[block].bytes, at)
        if ranges is None:
            if must:
                raise self._refusal(block)
            return
        self._open(block, ranges, None)

    def place(self, block: int, at: int | None = None) -> tuple[tuple[Range, ...], set[int]]:
        """Take room for a new copy of a block, at an offset or anywhere; return it and what must end before.

        Raises
        ------
        Refusal
            When there is no room, even without the copies that can be dropped.
        """
        self.drop(block)
        size = self._instance.blocks[block].bytes
        if block in self._homes:
            home, released_after = self._homes.pop(block)
            if at is None or not self._contiguous or at == home[0][0]:
                return home, set(released_after)
            self._room.give_back(home, released_after)
        ranges = self._room.take(size, at)
        for d in () if ranges is not None else self._spare():
            self.drop(d)
            if (ranges := self._room.take(size, at)) is not None:
                break
        if ranges is None:
            raise self._refusal(block)
        return ranges, self._room.hazards.over(ranges) | set(self._previous.get(block, ()))

    def write(self, block: int, ranges: tuple[Range, ...], offload: int) -> None:
        """Note the offload that writes a copy to its place."""
        self._open(block, ranges, offload)

    def read(self, block: int, prefetch: int) -> None:
        """Note a prefetch that reads the copy of a block."""
        self._held[block].readers.append(prefetch)

    def drop(self, block: int) -> None:
        """Release the copy of a block, if it has one, once what writes and reads it has ended."""
        copy = self._held.pop(block, None)
        if copy is None:
            return
        self._on_host[block] = False
        last = copy.readers[-1:] or ([] if copy.acquired_by is None else [copy.acquired_by])
        copy.released_after = tuple(last)
        copy.used = bool(last)  # or it was there from time 0 for nothing
        if copy.used:
            self._previous[block] = copy.released_after
        if self._is_at_home(copy):
            self._homes[block] = copy.ranges, copy.released_after
        else:
            self._room.give_back(copy.ranges, copy.released_after)

    def tidy(self) -> None:
        """Release all copies but those that must be there at the end of the program."""
        for d, copy in list(self._held.items()):
            if self._instance.blocks[d].finally_ != "host" and not self._is_carried(copy):
                self.drop(d)

    def residences(self) -> tuple[HostResidence, ...]:
        """Return the residences of all copies; those that are held now last to the end."""
        return tuple(
            HostResidence(
                block=copy.block,
                offset=copy.ranges[0][0] if self._contiguous else None,
                bytes=self._instance.blocks[copy.block].bytes,
                acquired_by=copy.acquired_by,
                released_after=copy.released_after,
            )
            for copy in self._copies
            if copy.used
        )

    def _spare(self) -> list[int]:
        """Return the blocks whose copies can go, the largest first, those that must end on the host last."""
        blocks = self._instance.blocks
        spare = [
            d
            for d, copy in self._held.items()
            if not self._is_wanted(d)
            or (
                not self._is_only_copy(d)
                and (copy.acquired_by is None or copy.readers)
                and not self._is_carried(copy)
                and not self._is_at_home(copy)
            )
        ]
        return sorted(spare, key=lambda d: (blocks[d].finally_ == "host", -blocks[d].bytes, d))

    def _is_carried(self, copy: HostCopy) -> bool:
        """Return whether a copy must be there at the end because it is from the start, and was read."""
        is_carried = self._instance.blocks[copy.block].initially == "carried"
        return is_carried and copy.acquired_by is None and bool(copy.readers)

    def _is_at_home(self, copy: HostCopy) -> bool:
        """Return whether a block begins and ends on the host, where its place is then kept."""
        block = self._instance.blocks[copy.block]
        return self._keeps_homes and block.initially == block.finally_ == "host"

    def _open(self, block: int, ranges: tuple[Range, ...], acquired_by: int | None) -> None:
        copy = self._held[block] = HostCopy(block, ranges, acquired_by)
        self._copies.append(copy)
        self._on_host[block] = True

    def _refusal(self, block: int) -> Refusal:
        info, pool = self._instance.blocks[block], self._room.pool
        return Refusal(
            f"host memory has no place for a copy of block '{info.name}' ({format_size(info.bytes)}): "
            f"{format_size(pool.free_bytes)} free, largest hole {format_size(pool.largest_hole)}"
        )
