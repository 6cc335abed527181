"""Static memory: fixed regions side by side, each reused by blocks that never live at the same time.

Frameworks that allocate before they compute choose regions from lifetimes: Caffe gives every block its own
region. MXNet colours the graph of blocks that live at the same time. Layrub takes regions of a few of the
largest sizes and reuses them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import accumulate

from ...instances.instance import Instance
from ...instances.units import ceil_to, format_size
from ...validate.schedule import MemoryModel
from ..clock import look
from ..methods import Refusal
from .builder import ProgramBuilder
from .placement import Issue, Piece, build_planned, build_program

Groups = Callable[[ProgramBuilder], Sequence[int]]
"""A function from a program to a number for each placement; placements with one number share one place."""

Colouring = Callable[[Sequence[Piece]], Sequence[int]]
"""A function from pieces to the index of a region for each; pieces of one region never live together."""


def build_in_regions(
    instance: Instance, memory: MemoryModel, issue: Issue, groups: Groups, colour: Colouring
) -> ProgramBuilder:
    """Build a program whose memory is a set of fixed regions, each as large as the largest piece in it.

    Paged memory and tensors in parts have no regions: there, data lies where the pool has room.

    Parameters
    ----------
    instance, memory, issue
        As for `build_program`.
    groups
        Gives placements that always share one place the same number.
    colour
        Chooses the region of each group.

    Raises
    ------
    Refusal
        When the regions together are larger than the pool.
    """
    if memory != "contiguous" or any(block.tensor is not None for block in instance.blocks):
        return build_program(instance, memory, issue)

    def assign(sketch: ProgramBuilder) -> list[int]:
        members = groups(sketch)
        pieces = _pieces(sketch.lifetimes(), members)
        regions = dict(zip(pieces, colour(list(pieces.values())), strict=True))
        sizes = [0] * (1 + max(regions.values(), default=-1))
        for group, region in regions.items():
            sizes[region] = max(sizes[region], ceil_to(pieces[group].bytes, instance.alignment_bytes))
        if sum(sizes) > instance.pool_bytes:
            raise Refusal(
                f"the {len(sizes)} regions take {format_size(sum(sizes))}, "
                f"of a pool of {format_size(max(instance.pool_bytes, 0))}"
            )
        offsets = [0, *accumulate(sizes)]
        return [offsets[regions[group]] for group in members]

    return build_planned(instance, issue, assign)


def alone(builder: ProgramBuilder) -> list[int]:
    """Give every placement a group of its own."""
    return list(range(len(builder.placements())))


def largest_first(pieces: Sequence[Piece]) -> list[int]:
    """Give each piece, the largest first, the first region that is free for all of its lifetime.

    So a region is as large as the piece that it was opened for, and smaller pieces reuse it (Layrub, TACO
    2018, section 3.3: the largest memory spaces are the constant resource regions).
    """
    found = [0] * len(pieces)
    held: list[tuple[list[int], list[int]]] = []
    for i in sorted(range(len(pieces)), key=lambda i: (-pieces[i].bytes, pieces[i].begin)):
        look()
        found[i] = next((r for r, taken in enumerate(held) if _is_free(taken, pieces[i])), len(held))
        if found[i] == len(held):
            held.append(([], []))
        begins, ends = held[found[i]]
        at = bisect_right(begins, pieces[i].begin)
        begins.insert(at, pieces[i].begin)
        ends.insert(at, pieces[i].end)
    return found


def in_order(pieces: Sequence[Piece], ratio: int = 16) -> list[int]:
    """Give each piece, in the order of time, the free region nearest in size, or open a region.

    A region is near if it is larger, or smaller, by a factor of at most `ratio` (the memory plan of MXNet).
    """
    found = [0] * len(pieces)
    sizes: list[int] = []
    free: list[tuple[int, int]] = []
    busy: list[tuple[int, int]] = []
    for i in sorted(range(len(pieces)), key=lambda i: (pieces[i].begin, i)):
        while busy and busy[0][0] <= pieces[i].begin:
            r = heappop(busy)[1]
            insort(free, (sizes[r], r))
        wanted = pieces[i].bytes
        at = bisect_left(free, (wanted, -1))
        near = [
            (max(wanted, size) / min(wanted, size), size < wanted, n)
            for n, (size, _) in enumerate(free[max(at - 1, 0) : at + 1], start=max(at - 1, 0))
            if wanted <= size * ratio and size <= wanted * ratio
        ]
        if near:
            found[i] = free.pop(min(near)[2])[1]
            sizes[found[i]] = max(sizes[found[i]], wanted)
        else:
            found[i] = len(sizes)
            sizes.append(wanted)
        heappush(busy, (pieces[i].end, found[i]))
    return found


def _pieces(lifetimes: Sequence[tuple[int, int, int]], members: Sequence[int]) -> dict[int, Piece]:
    """Return, per group, its largest size and the time from its first placement to its last release."""
    pieces: dict[int, Piece] = {}
    for group, (size, begin, end) in zip(members, lifetimes, strict=True):
        one = pieces.get(group)
        if one is not None:
            size, begin, end = max(size, one.bytes), min(begin, one.begin), max(end, one.end)
        pieces[group] = Piece(size, begin, end)
    return pieces


def _is_free(taken: tuple[list[int], list[int]], piece: Piece) -> bool:
    """Return whether a piece overlaps none of the disjoint stays in a region, given by begin and end."""
    begins, ends = taken
    before = bisect_left(begins, piece.begin)
    return (before == 0 or ends[before - 1] <= piece.begin) and (
        before == len(begins) or begins[before] >= piece.end
    )
