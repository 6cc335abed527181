"""Placing a whole program's data at once, when placing it piece by piece has left no hole large enough.

A policy that does not look at addresses makes the same requests whatever the addresses are. So all requests
can be placed together: the large ones first, each at the lowest address that is free beside those that are
there at the same time (first fit by decreasing size, as offline dynamic storage allocation does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...instances.buffers import without
from ...instances.instance import Instance
from ...instances.units import ceil_to
from ...validate.schedule import MemoryModel, Schedule
from ..clock import look
from ..methods import Refusal
from .builder import OutOfMemoryError, ProgramBuilder
from .sketch import Sketch

Issue = Callable[[ProgramBuilder], None]
"""A function that issues every operation of a program on the builder that it is given."""


class Piece(NamedTuple):
    """A piece of memory with one address.

    Attributes
    ----------
    bytes
        Its size in bytes.
    begin, end
        It is in use from `begin` up to `end`: times, or counts of a program's placements and releases.
    gaps
        Times [begin, end) between these at which it is not in use, in rising order.
    """

    bytes: int
    begin: int
    end: int
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def stays(self) -> tuple[tuple[int, int], ...]:
        """The times [begin, end) at which it is in use."""
        return without(self.begin, self.end, self.gaps)


def build_program(
    instance: Instance, memory: MemoryModel, issue: Issue, *, one_copy_queue: bool = False
) -> ProgramBuilder:
    """Build a program; where fragmentation stops it, build it again at places that are chosen together.

    Parameters
    ----------
    instance, memory, one_copy_queue
        As for `ProgramBuilder`.
    issue
        Issues every operation on the builder that it is given. Its decisions must not depend on addresses.

    Returns
    -------
    ProgramBuilder
        The whole program; `ProgramBuilder.finish` makes it a schedule.

    Raises
    ------
    Refusal
        When the program needs more memory than there is, or no places were found.
    """
    builder = ProgramBuilder(instance, memory=memory, one_copy_queue=one_copy_queue)
    try:
        issue(builder)
        builder.settle()
        return builder
    except OutOfMemoryError as error:
        reason = str(error)
    if memory != "contiguous" or any(block.tensor is not None for block in instance.blocks):
        raise Refusal(reason)

    def together(sketch: ProgramBuilder) -> list[int]:
        pieces = [Piece(*lifetime) for lifetime in sketch.lifetimes()]
        plan = pack(pieces, instance.pool_bytes, instance.alignment_bytes)
        if plan is None:
            raise Refusal(f"{reason}; the bytes are free, but no places were found for them")
        return plan

    return build_planned(instance, issue, together, one_copy_queue=one_copy_queue)


def build_planned(
    instance: Instance,
    issue: Issue,
    assign: Callable[[ProgramBuilder], Sequence[int]],
    *,
    one_copy_queue: bool = False,
) -> ProgramBuilder:
    """Build a program in contiguous memory, with an offset for every placement that was chosen before.

    Parameters
    ----------
    instance, issue, one_copy_queue
        As for `build_program`.
    assign
        Function from the program without addresses to an offset in bytes for each of its placements, in
        order.

    Raises
    ------
    Refusal
        When the program needs more bytes than there are, or `assign` refuses.
    """
    sketch = Sketch(instance)
    start = dict.fromkeys(sketch.resident_blocks())
    try:
        issue(sketch)
        sketch.settle()
    except OutOfMemoryError as error:
        raise Refusal(str(error)) from None
    builder = ProgramBuilder(instance, one_copy_queue=one_copy_queue, plan=assign(sketch), start=start)
    issue(builder)
    builder.settle()
    return builder


def build_again(
    instance: Instance, placed: Schedule, issue: Issue, *, one_copy_queue: bool = False
) -> ProgramBuilder:
    """Build the program of a contiguous schedule without workspaces again, with every block at its place.

    `issue` may choose other algorithms now: all blocks keep their places, and workspaces lie where `issue`
    puts them.

    Raises
    ------
    OutOfMemoryError
        When a workspace has no room where it is put.
    """
    places = [(r.block, r.offset, r.acquired_by) for r in placed.residences]
    builder = ProgramBuilder(
        instance,
        one_copy_queue=one_copy_queue,
        plan=[at for d, at, by in places if d is not None and at is not None and by is not None],
        start={d: at for d, at, by in places if d is not None and by is None},
    )
    issue(builder)
    return builder


def pack(pieces: Sequence[Piece], capacity: int, alignment: int) -> list[int] | None:
    """Choose an offset for each piece of memory, so that pieces that are in use together do not overlap.

    Parameters
    ----------
    pieces
        The pieces.
    capacity, alignment
        Bytes of the pool, and the number of bytes of which offsets are multiples.

    Returns
    -------
    list of int or None
        The offsets; None when first fit, in each of a few orders of decreasing size, finds no place for a
        piece.
    """
    sizes = np.array([ceil_to(piece.bytes, alignment) for piece in pieces], dtype=np.int64)
    exact = np.array([piece.bytes for piece in pieces], dtype=np.int64)
    begins = np.array([piece.begin for piece in pieces], dtype=np.int64)
    ends = np.array([piece.end for piece in pieces], dtype=np.int64)
    has_gaps = any(piece.gaps for piece in pieces)
    orders = (
        np.lexsort((begins, begins - ends, -sizes)),
        np.lexsort((begins, -sizes, begins - ends)),
        np.lexsort((begins, -sizes * (ends - begins).astype(float))),
    )
    for order in orders:
        offsets = np.zeros(len(sizes), dtype=np.int64)
        for rank, i in enumerate(order):
            look()
            there = order[:rank]
            there = there[(begins[there] < ends[i]) & (ends[there] > begins[i])]
            if has_gaps:
                there = there[[_meet(pieces[i], pieces[j]) for j in there]]
            offsets[i] = _lowest(offsets[there], sizes[there], int(sizes[i]))
            if offsets[i] + exact[i] > capacity:
                break
        else:
            return [int(offset) for offset in offsets]
    return None


def _meet(one: Piece, other: Piece) -> bool:
    """Return whether two pieces are in use at once."""
    return any(a < d and c < b for a, b in one.stays for c, d in other.stays)


def _lowest(starts: np.ndarray, sizes: np.ndarray, size: int) -> int:
    """Return the lowest offset at which `size` bytes overlap none of the given ranges."""
    order = np.argsort(starts, kind="stable")
    tops = np.maximum.accumulate(np.concatenate(([0], (starts + sizes)[order])))
    fits = np.flatnonzero(starts[order] - tops[:-1] >= size)
    return int(tops[fits[0]] if len(fits) else tops[-1])
