"""Dynamic storage allocation: addresses for buffers whose lifetimes are fixed, as low as possible.

First fit in a few orders comes first. Then each group of buffers that time connects is searched by
`PackingSearch` for a packing of the wanted height, or for the lowest one. OR-Tools' CP-SAT follows
(two-dimensional packing, with the live bytes as a cumulative resource). The height that is proven to be
needed and the height that was found are kept apart throughout.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd
from types import MappingProxyType
from typing import Literal

from ...heuristics.clock import LEAST, left
from ...heuristics.methods import Limits
from ...heuristics.program.placement import Piece
from ...instances.arguments import quoted, require_kind, require_one_of
from ...instances.buffers import Buffer
from ...instances.errors import PebblerError
from ...instances.units import as_html, as_lines, ceil_to, format_size
from ...validate.packing import check_packing
from ..cp_sat.interrupts import load_cp_sat
from ..result import Status
from .cp_sat import pack_by_cp_sat
from .descent import Trial, search_lowest
from .groups import Group, connected, first_fit
from .search import Answer, load_search

_log = logging.getLogger(__name__)

LARGEST_SEARCH = 2_000
"""Number of buffers of a group above which the search is left out, as its memory grows with their square."""

Effort = Literal["full", "little", "least"]
"""How much is done for places: with ``least``, a few turns of the search, and no CP-SAT."""

_TURNS: Mapping[Effort, int] = MappingProxyType({"full": 1_500, "little": 20, "least": 5})
"""Number of turns after which the search gives way to CP-SAT, by effort."""

_FEW_BUFFERS = 150
"""Number of buffers of a group above which CP-SAT is left out if little effort is wanted.

CP-SAT's presolve alone takes long then.
"""

_LITTLE = 0.05
"""Limit of CP-SAT if little effort is wanted, in its deterministic seconds."""

_LARGEST_COEFFICIENT = 2**31
"""Least size that is not given to CP-SAT, after division by the common unit (google/or-tools #5293)."""


@dataclass(frozen=True, slots=True)
class PackResult:
    """A packing, and the proven bound on its height.

    Attributes
    ----------
    status
        ``optimal``: no packing is lower; ``feasible``: a packing was found; ``infeasible``: it is proven that
        none fits; ``unknown``: no packing that fits was found.
    height, offsets
        End of the highest buffer, and an offset for each buffer, in bytes; None without a packing that fits.
    capacity
        The requested limit in bytes, or None.
    lower_bound
        Proven lower bound on the height in bytes.
    interrupted
        Whether Ctrl-C ended the work early.
    """

    status: Status
    height: int | None
    capacity: int | None
    lower_bound: int
    offsets: tuple[int, ...] | None
    interrupted: bool = False

    def as_dict(self) -> dict[str, object]:
        """Return the figures of ``pack --json``."""
        return {name: getattr(self, name) for name in ("status", "height", "capacity", "lower_bound")}

    def __str__(self) -> str:
        return as_lines(self._facts())

    def _repr_html_(self) -> str:
        return as_html(self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        rows: list[tuple[str, str]] = [("status", self.status)]
        figures = (("height", self.height), ("capacity", self.capacity), ("lower bound", self.lower_bound))
        rows += [(name, f"{size} ({format_size(size)})") for name, size in figures if size is not None]
        return rows


def pack(
    buffers: Sequence[Buffer],
    *,
    capacity: int | None = None,
    time_limit: float | None = None,
    workers: int = 1,
    seed: int = 0,
    effort: Effort = "full",
) -> PackResult:
    """Find offsets such that buffers that live at the same time do not overlap.

    Parameters
    ----------
    buffers
        The buffers to place.
    capacity
        Greatest height in bytes: the first packing that fits is the answer. None asks for the lowest packing.
    time_limit
        Time limit in seconds after the search is loaded; None means until done. First fit gets at least one
        second. If the limit is not reached, and with one worker, the answer is always the same.
    workers, seed
        Number of threads of CP-SAT, and seed of its random decisions.
    effort
        With ``little`` and ``least``, the work ends after a small, fixed effort. With one worker, the same
        buffers then have the same answer.

    Raises
    ------
    PebblerError
        When there are no buffers, their sizes are too large for exact arithmetic, or an argument is wrong.
    AssertionError
        When the packing found is wrong, which is a defect of pebbler.
    """
    if isinstance(buffers, str) or not isinstance(buffers, Sequence):
        raise PebblerError(f"buffers is {quoted(buffers)}; give a list of Buffer, such as read_buffers gives")
    for buffer in buffers:
        require_kind("a buffer", buffer, Buffer, "give a list of Buffer, such as read_buffers gives")
    if capacity is not None:
        require_kind("capacity", capacity, int, "give whole bytes")
    require_one_of("effort", effort, tuple(_TURNS))
    Limits(time_limit, seed, workers)
    unit = common_unit(buffers)
    load_search()
    work = _Work(
        None if capacity is None else capacity // unit,
        None if time_limit is None else time.monotonic() + time_limit,
        workers,
        seed,
        effort,
    )
    groups = [(members, Group(buffers, members, unit)) for members in connected(buffers)]
    work.lower = max(group.lower for _, group in groups)
    first_until = math.inf if time_limit is None else time.monotonic() + max(time_limit, LEAST)
    interrupted = False
    try:
        for _, group in groups:
            group.offsets = first_fit(group, first_until)
            if group.offsets is None:
                break
        else:
            height = max(group.height() for _, group in groups)
            _log.info("first fit: height %d, live %d", height * unit, work.lower * unit)
            for _, group in sorted(groups, key=lambda pair: -pair[1].lower):
                if work.open(group):
                    work.solve(group)
    except KeyboardInterrupt:
        interrupted = True
    if any(group.offsets is None for _, group in groups):
        return PackResult(Status.UNKNOWN, None, capacity, work.lower * unit, None, interrupted)
    offsets = [0] * len(buffers)
    for members, group in groups:
        for i, offset in zip(members, group.placed(), strict=True):
            offsets[i] = int(offset) * unit
    height = max(offset + buffer.size for offset, buffer in zip(offsets, buffers, strict=True))
    lower = work.lower * unit
    if capacity is not None and height > capacity:
        status = Status.INFEASIBLE if lower > capacity else Status.UNKNOWN
        return PackResult(status, None, capacity, lower, None, interrupted)
    reasons = check_packing(buffers, offsets, capacity)
    if reasons or height < lower:
        raise AssertionError("; ".join(reasons[:5]) or f"height {height} is under the bound {lower}")
    status = Status.OPTIMAL if height == lower else Status.FEASIBLE
    return PackResult(status, height, capacity, lower, tuple(offsets), interrupted)


def common_unit(buffers: Sequence[Buffer]) -> int:
    """Return the largest number of bytes that divides all sizes and alignments.

    Raises
    ------
    PebblerError
        When there are no buffers, their sizes are too large for exact arithmetic, or an argument is wrong.
    """
    if not buffers:
        raise PebblerError("there are no buffers to pack; write one a line after the line of column names")
    unit = reduce(gcd, [b.size for b in buffers] + [b.alignment for b in buffers if b.alignment > 1])
    if len(buffers) * sum(b.size + b.alignment for b in buffers) // unit >= 2**62:
        raise PebblerError("the buffers are too large to add up in 64 bits; write sizes in a larger unit")
    return unit


def load_packing(limits: Limits) -> None:
    """Load the search and CP-SAT for a method that packs."""
    load_search()
    load_cp_sat(limits)


def places(
    pieces: Sequence[Piece], capacity: int, alignment: int, effort: Effort = "little"
) -> Sequence[int] | None:
    """Find an offset for each of the given pieces with a small, fixed effort.

    Parameters
    ----------
    pieces
        The pieces; bytes are multiples of the alignment.
    capacity, alignment
        Bytes of the pool, and the number of bytes of which offsets are multiples.
    effort
        As for `pack`.

    Returns
    -------
    sequence of int or None
        The offsets, which are the same for the same pieces; None if no places were found with this effort, or
        in the time left.
    """
    if not pieces:
        return []
    buffers = [
        Buffer(str(i), one.begin, one.end, ceil_to(one.bytes, alignment), gaps=one.gaps)
        for i, one in enumerate(pieces)
    ]
    seconds = left()
    result = pack(
        buffers,
        capacity=capacity // alignment * alignment,
        time_limit=None if math.isinf(seconds) else seconds,
        effort=effort,
    )
    if result.interrupted:
        raise KeyboardInterrupt
    return result.offsets


class _Work:
    """The wanted height, the proven bound and the time left; heights are in the common unit."""

    def __init__(
        self, capacity: int | None, deadline: float | None, workers: int, seed: int, effort: Effort
    ) -> None:
        self.capacity = capacity
        self.deadline = deadline
        self.workers = workers
        self.seed = seed
        self.effort = effort
        self.lower = 0

    def target(self) -> int:
        """Return the height that the next packing may have."""
        return self.lower if self.capacity is None else self.capacity

    def left(self) -> float | None:
        """Return the seconds left; None without a time limit."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def open(self, group: Group) -> bool:
        """Return whether a lower packing is wanted and possible, and there is time to look for it."""
        out_of_reach = self.capacity is not None and self.lower > self.capacity
        left = self.left()
        return group.height() > self.target() and not out_of_reach and (left is None or left > 0)

    def solve(self, group: Group) -> None:
        """Pack the group: search, then CP-SAT."""
        if len(group.size) <= LARGEST_SEARCH:
            self._search(group)
        largest = max(group.height(), int(group.alignment.max()))
        if self.effort == "least" or (self.effort == "little" and len(group.size) > _FEW_BUFFERS):
            return
        if self.open(group) and largest < _LARGEST_COEFFICIENT:
            self._cp_sat(group)

    def _search(self, group: Group) -> None:
        """Look for a packing of the capacity, or for the lowest one; or prove that there is none."""
        left = self.left()
        until = math.inf if left is None else time.monotonic() + left / 2
        turns = _TURNS[self.effort]
        if self.capacity is None:
            self.lower = search_lowest(group, self.lower, turns, until)
        elif Trial(group, self.capacity).run(turns, until) == Answer.IMPOSSIBLE:
            self.lower = max(self.lower, self.capacity + 1)

    def _cp_sat(self, group: Group) -> None:
        """Let CP-SAT look for lower packings and raise the bound."""
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.num_workers = self.workers
        solver.parameters.random_seed = self.seed
        if self.effort == "little":
            solver.parameters.max_deterministic_time = _LITTLE
        left = self.left()
        if left is not None:
            solver.parameters.max_time_in_seconds = max(left, 0.01)
        most = group.height() - 1 if self.capacity is None else self.capacity
        lowest = self.capacity is None
        self.lower, interrupted = pack_by_cp_sat(solver, group, self.lower, most, lowest=lowest)
        if interrupted:
            raise KeyboardInterrupt
