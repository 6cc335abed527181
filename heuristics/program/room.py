"""The places of a program's blocks and workspaces in the pool, while the program is built.

The last users of every range are known, because the next operation that writes there waits for them. In
contiguous memory, the parts of a tensor lie in one span. The span is in use while any part is there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...instances.instance import Instance
from ...instances.memory import require_parts_at_pages
from ...instances.units import PAGE_BYTES, ceil_to
from ...validate.schedule import MemoryModel, unit_bytes
from .pool import Fit, PagePool, Pool, Range


@dataclass(slots=True)
class Place:
    """The ranges in which a block lies, and its tensor if it lies in the span of the tensor's parts."""

    ranges: tuple[Range, ...]
    span: str | None = None


@dataclass(slots=True)
class _Span:
    """Memory that the parts of one tensor share; it is reserved while any of them is resident."""

    ranges: tuple[Range, ...]
    resident: int = 0


class Room:
    """The pool of a program, and the operations that used each of its ranges last.

    Parameters
    ----------
    instance, memory, fit, plan
        As for `ProgramBuilder`.
    ends
        End times of the operations issued so far, in nanoseconds, by id.

    Raises
    ------
    PebblerError
        When the memory is paged and a part begins inside a page.

    Attributes
    ----------
    pool
        Free memory at this point of the program.
    unit
        Bytes to a multiple of which sizes are rounded up.
    hazards
        The last users of ranges.
    """

    def __init__(
        self, instance: Instance, memory: MemoryModel, fit: Fit, plan: Sequence[int], ends: Sequence[int]
    ) -> None:
        self._instance, self._memory, self._ends = instance, memory, ends
        self.unit = unit_bytes(instance, memory)
        if memory == "paged":
            require_parts_at_pages(instance, PAGE_BYTES)
        self.pool: Pool | PagePool
        if memory == "contiguous":
            self.pool = Pool(instance.pool_bytes, self.unit, fit)
        else:
            self.pool = PagePool(instance.pool_bytes, self.unit)
        self.hazards = Hazards()
        self._plan = iter(plan)
        self._virtual = max(instance.pool_bytes, 0)
        self._spans: dict[str, _Span] = {}
        self._span_bytes = _span_bytes(instance)

    def take(self, size: int, at: int | None) -> tuple[Range, ...] | None:
        """Allocate memory at an offset, at the planned offset, or where there is room; None without room."""
        if isinstance(self.pool, PagePool):
            return self.pool.allocate(size)
        at = next(self._plan, None) if at is None else at
        if at is not None:
            size = min(ceil_to(size, self.unit), max(self._instance.pool_bytes - at, size))
            return ((at, size),) if self.pool.allocate_at(at, size) else None
        found = self.pool.allocate(size)
        return None if found is None else (found,)

    def give_back(self, ranges: tuple[Range, ...], ops: Iterable[int] | None = None) -> None:
        """Release ranges that `ops` were the last to use; None means that nothing has used them."""
        if isinstance(self.pool, Pool):
            if ops is not None:
                self.hazards.mark(ranges, tuple(ops))
            self.pool.release(ranges)
            return
        if ops is not None:
            if self._memory == "divisible" and ranges:
                # bytes without addresses: bytes taken from many pieces are one piece from now on
                ranges = ((self._virtual, sum(size for _, size in ranges)),)
                self._virtual += ranges[0][1]
            self.hazards.mark(ranges, tuple(ops))
        for one in ranges:
            last = self.hazards.over((one,))
            self.pool.release((one,), max((self._ends[i] for i in last), default=0))

    def place_block(self, block: int, at: int | None = None) -> Place | None:
        """Allocate memory for a block; a part of a tensor lies at its place in the tensor's span."""
        info = self._instance.blocks[block]
        span = None if info.tensor is None else self._spans.get(info.tensor)
        inside = span is not None and info.begin is not None and at == span.ranges[0][0] + info.begin
        alone = info.tensor is None or info.begin is None or self._memory != "contiguous"
        if alone or (at is not None and not inside):
            ranges = self.take(info.bytes, at)
            return None if ranges is None else Place(ranges)
        assert info.tensor is not None
        assert info.begin is not None
        if span is None:
            ranges = self.take(self._span_bytes[info.tensor], None)
            if ranges is None:
                return None
            span = self._spans[info.tensor] = _Span(ranges)
        span.resident += 1
        offset = span.ranges[0][0] + info.begin
        return Place(((offset, info.bytes),), info.tensor)

    def unplace(self, place: Place) -> None:
        """Return the memory of a block to the pool; a tensor's span returns with its last part."""
        if place.span is None:
            self.give_back(place.ranges)
            return
        span = self._spans[place.span]
        span.resident -= 1
        if not span.resident:
            self.give_back(span.ranges)
            del self._spans[place.span]

    def leave(self, place: Place, ops: tuple[int, ...]) -> None:
        """Release the place of a block that `ops` were the last to use."""
        if place.span is None:
            self.give_back(place.ranges, ops)
        else:
            self.hazards.mark(place.ranges, ops)
            self.unplace(place)


class Hazards:
    """The operations that must have ended before a range of the pool may be written again."""

    def __init__(self) -> None:
        self._starts: list[int] = [0]
        self._ops: list[tuple[int, ...]] = [()]

    def over(self, ranges: tuple[Range, ...]) -> set[int]:
        """Return the operations that were the last to use any part of these ranges."""
        found: set[int] = set()
        for start, size in ranges:
            i = bisect_right(self._starts, start) - 1
            while i < len(self._starts) and self._starts[i] < start + size:
                found.update(self._ops[i])
                i += 1
        return found

    def mark(self, ranges: tuple[Range, ...], ops: tuple[int, ...]) -> None:
        """Note that these operations were the last to use the ranges."""
        for start, size in ranges:
            first = bisect_right(self._starts, start) - 1
            last = bisect_right(self._starts, start + size) - 1
            starts, kept = [start], [ops]
            if self._starts[first] < start:
                starts.insert(0, self._starts[first])
                kept.insert(0, self._ops[first])
            starts.append(start + size)
            kept.append(self._ops[last])
            self._starts[first : last + 1] = starts
            self._ops[first : last + 1] = kept


def _span_bytes(instance: Instance) -> dict[str, int]:
    """Return the bytes of each tensor that is cut into parts, up to the end of its last part."""
    spans: dict[str, int] = {}
    for block in instance.blocks:
        if block.tensor is not None and block.begin is not None:
            end = block.begin + ceil_to(block.bytes, instance.alignment_bytes)
            spans[block.tensor] = max(spans.get(block.tensor, 0), end)
    return spans
