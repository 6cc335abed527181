"""Finding what to evict for an allocation: moDNN's offloading scheme (TPDS 2019, section 5.2.1)."""

from __future__ import annotations

from collections.abc import Callable

from ..instances.units import ceil_to
from .program import ProgramBuilder

Scheme = tuple[int, ...]
"""Blocks to evict, in the order of their addresses."""


def find_scheme(
    builder: ProgramBuilder, size: int, may_go: Callable[[int], bool], now: int
) -> tuple[int, Scheme] | None:
    """Return the scheme that makes room for `size` bytes with the least delay, and that delay.

    Contiguous memory: every node of the list of segments is tried as the first of a run of neighbours that
    are free or may go, until they are large enough. Paged memory: the blocks that may go, those that leave
    earliest first, until enough pages are free.

    Parameters
    ----------
    builder
        The program so far.
    size
        Bytes of the allocation.
    may_go
        Whether a resident block may be evicted.
    now
        Time at which the next task would start; what leaves earlier costs nothing.

    Returns
    -------
    tuple of int and Scheme, or None
        None when there is no such scheme: memory is fragmented.
    """
    if builder.memory != "contiguous":
        return _pages(builder, size, may_go, now)
    wanted = ceil_to(size, builder.instance.alignment_bytes)
    segments = [(start, length, d, d < 0 or may_go(d)) for start, length, d in builder.segments()]
    best: tuple[int, int, Scheme] | None = None
    first = total = 0
    end_of_last = 0
    for last, (start, length, _, movable) in enumerate(segments):
        if not movable or start != end_of_last:
            first, total = (last, 0) if movable else (last + 1, 0)
        end_of_last = start + length
        if not movable:
            continue
        total += length
        while total - segments[first][1] >= wanted:
            total -= segments[first][1]
            first += 1
        if total >= wanted or (total >= size and end_of_last == builder.instance.pool_bytes):
            blocks = tuple(d for _, _, d, _ in segments[first : last + 1] if d >= 0)
            leaves = builder.leaves_at(blocks)
            candidate = max(leaves - now, 0), _copied(builder, blocks), blocks
            if best is None or candidate < best:
                best = candidate
    return None if best is None else (best[0], best[2])


def evict(builder: ProgramBuilder, scheme: Scheme) -> None:
    """Offload what the host does not have yet, and free all of a scheme's blocks."""
    for d in scheme:
        if not builder.on_host(d):
            builder.offload(d)
        builder.release(d)


def _copied(builder: ProgramBuilder, blocks: Scheme) -> int:
    """Bytes that a scheme copies: a block that has been offloaded before is just freed."""
    return sum(builder.instance.blocks[d].bytes for d in blocks if not builder.on_host(d))


def _pages(
    builder: ProgramBuilder, size: int, may_go: Callable[[int], bool], now: int
) -> tuple[int, Scheme] | None:
    missing = builder.missing_bytes(size)
    movable = [d for d in builder.resident_blocks() if may_go(d)]
    movable.sort(key=lambda d: (builder.leaves_at((d,)), -builder.instance.blocks[d].bytes, d))
    chosen: list[int] = []
    for d in movable:
        if missing <= 0:
            break
        chosen.append(d)
        missing -= sum(length for _, length in builder.ranges_of(d))
    return None if missing > 0 else (max(builder.leaves_at(chosen) - now, 0), tuple(chosen))
