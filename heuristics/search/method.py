"""The methods ``local-search`` and ``furthest-parts``."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from ...instances.instance import Instance
from ..clock import LEAST, OutOfTime, limited, until
from ..host_work import planned
from ..loading import kernels, loads
from ..methods import Answer, Limits, Refusal, find_method, register
from ..parts import with_parts
from ..program import placement
from ..program.placement import Piece
from .incumbent import Incumbent, estimates

if TYPE_CHECKING:
    from .search import LocalSearch

_FIRST_METHOD = "modnn"
"""Method whose schedule the search starts from when none is given."""

RULES = ("moves", "places", "relaxed-start", "costs")
"""Rules that a search can leave out.

In contiguous memory: ``moves`` inside the device, changes of the ``places`` of blocks, and ``relaxed-start``,
a search without addresses beside the one with addresses. In every memory model: ``costs``, by which bytes
with a low cost leave first.
"""

RELAXED_SHARE = 0.15
"""Share of the time limit that the search without addresses has to itself at the start."""


@register(
    "local-search",
    "late acceptance on evictions, orders, algorithms and places",
    "this project",
    shown="named",
    rules=RULES,
    carries="homing",
    sides="read",
)
@loads(kernels)
def local_search(instance: Instance, limits: Limits) -> Answer:
    """Search from the warm start, or from moDNN's schedule; without a time limit, until nothing improves.

    With more workers, as many searches run at once. Ctrl-C ends the search with the best schedule so far.

    Raises
    ------
    Refusal
        When there is no program, or the instance has something that the search does not model.
    """
    from .contiguous import ContiguousSearch, new_search  # with it comes Numba
    from .team import Team

    kernels(limits)
    deadline = math.inf if limits.time_limit is None else time.monotonic() + limits.time_limit

    def place(pieces: Sequence[Piece], capacity: int, alignment: int) -> Sequence[int] | None:
        """Find places until the deadline."""
        try:
            with until(deadline, LEAST):
                return placement.pack(pieces, capacity, alignment)
        except OutOfTime:
            return None

    def made(i: int) -> LocalSearch:
        with until(deadline, LEAST):
            return new_search(instance, limits.memory, limits.seed + i, limits.without, place)

    search = made(0)
    team = Team(search, made, limits.workers - 1)
    best, start, estimated = Incumbent("local-search"), limits.warm_start, estimates(instance)
    best.offer(limits.incumbent)
    stopped_by, reason = "done", ""

    def known() -> int | None:
        """Return the makespan of the best program; of schedules only, where the search estimates it."""
        if not estimated:
            return search.makespan_ns
        return None if best.schedule is None else best.schedule.makespan_ns

    try:
        if start is None:
            with until(deadline, LEAST):
                start = planned(find_method(_FIRST_METHOD).call, instance, limits).schedule
                best.offer(start)
    except Refusal as refusal:
        reason = f"; {_FIRST_METHOD}: {refusal}"
    try:
        if start is not None:
            search.offer(start)
        if isinstance(search, ContiguousSearch):
            search.lead(RELAXED_SHARE * (deadline - time.monotonic()))
        while not search.done:
            if time.monotonic() >= deadline:
                stopped_by = "time limit"
                break
            before = known()
            team.run(deadline - time.monotonic())
            if estimated:
                best.look(search)
            if known() != before and limits.on_better is not None:
                limits.on_better(known(), None)
    except KeyboardInterrupt:
        stopped_by = "interrupted"
    best.offer(search.schedule("local-search"))
    if best.schedule is None:
        if stopped_by == "interrupted":
            return Answer(None, stopped_by)
        raise Refusal(f"local-search: found no places for all blocks{reason}")
    return Answer(msgspec.structs.replace(best.schedule, method="local-search"), stopped_by)


@register(
    "furthest-parts",
    "what is needed last leaves first, in parts, where live blocks exceed the pool",
    "Belady (IBM Systems Journal, 1966), on parts: this project",
    shown="named",
    transform=with_parts,
    carries="homing",
)
@loads(kernels)
@limited
def furthest_parts(instance: Instance, limits: Limits) -> Answer:
    """Evict the data that is needed last, and do not search.

    Evictions are just enough for the bytes of the live blocks. Copies have the order of writers and uses.

    Raises
    ------
    Refusal
        When there are no places, or the instance has something that the search does not model.
    """
    from .search import LocalSearch  # with it comes Numba

    schedule = LocalSearch(instance, limits.memory, limits.seed, ["costs"]).schedule("furthest-parts")
    if schedule is None:
        raise Refusal("furthest-parts: found no places for all blocks")
    return Answer(schedule)
