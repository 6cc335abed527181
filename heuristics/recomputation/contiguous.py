"""The search over plans in contiguous memory, beside one without addresses that finds the plans.

Importing this module imports Numba.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from ...instances.instance import Instance
from ...instances.transforms import in_parts
from ...validate.schedule import MemoryModel
from ..gaps import Guide
from ..search.contiguous import Place, sides_of
from ..search.descents import Descents
from ..search.program import lifetimes_of
from .plans import PlanSearch
from .reruns import Plan, unrolled
from .search import LEAST, NARROWER, WIDER, Point, RerunSearch, offered

_LITTLE, _MUCH = 0.25, 0.75
"""Shares of the work for the search without addresses: once there is a program with addresses, and before."""


def new_rerun_search(
    instance: Instance, memory: MemoryModel, seed: int, without: Collection[str], place: Place
) -> RerunSearch:
    """Return a search that fits the memory model and the rules that are left out, as `new_search` does."""
    if memory != "contiguous" or "relaxed-start" in without or in_parts(instance):
        return RerunSearch(instance, memory, seed, without)
    return ContiguousRerunSearch(instance, seed, without, place)


_LESS = 1e-3
"""Relative amount by which a program must be shorter than the last before places for it are sought."""

_SLICES = 8
"""Number of times that plans alone are looked at in a call of `run`."""


class ContiguousRerunSearch(RerunSearch):
    """A search over plans with addresses, beside one without.

    One block after the other finds no place long before the pool is full, and then each plan looks as bad as
    the others. Where blocks need only free bytes, plans are told apart. When the search without addresses
    has a better program than any with addresses, places for all of its data are sought at once: the lifetime
    of each piece is known then. If places are found, the program is a schedule. If not, the search with
    addresses starts from its plan.

    Plans also come from a quicker search (`plans`) in a part of the pool, which shrinks when no places are
    found for all data of a plan, and grows when they are.

    Parameters
    ----------
    instance, seed, without
        As for `RerunSearch`.
    place
        Finds the places.
    """

    def __init__(self, instance: Instance, seed: int, without: Collection[str], place: Place) -> None:
        super().__init__(instance, "contiguous", seed, without)
        self._relaxed = RerunSearch(instance, "contiguous", seed, without, addresses=False)
        self._place = place
        self._sought = math.inf
        self._plans, self._part = self.plans(), 1.0

    @property
    def done(self) -> bool:
        """Whether neither search has found a better program for long."""
        done = self._plans is None or self._plans.done
        return done and super().done and self._relaxed.done

    def offer_plan(self, plan: Plan, guide: Guide | None) -> Point:
        """Start both searches from second runs and a guide, as `RerunSearch.offer_plan` does."""
        relaxed = self._relaxed.offer_plan(plan, guide)
        if self._plans is not None:
            offered(self._plans, relaxed, guide)
        return super().offer_plan(plan, guide)

    def run(self, seconds: float = math.inf, work: int = 100_000) -> None:
        """Continue both searches, as `RerunSearch.run` does."""
        until = time.monotonic() + seconds
        if self._plans is not None:
            planned = int(self.share.part * work)
            self._plan_in_part(self._plans, self.share.part * seconds, planned)
            seconds, work = until - time.monotonic(), work - planned
        share = _MUCH if self.makespan_ns is None else _LITTLE
        relaxed = int(share * work)
        self._relaxed.run(share * seconds, relaxed)
        best = self._relaxed.best
        if best.search.makespan_ns is not None and best.search.cost < min(
            self._sought, self.best.search.cost
        ):
            self._sought = best.search.cost * (1 - _LESS)
            if not self._put_in_places(best):
                super().offer_plan(best.plan, best.search.guide())
        super().run(until - time.monotonic(), work - relaxed)

    def _plan_in_part(self, plans: PlanSearch, seconds: float, work: int) -> None:
        """Look for plans alone in a part of the pool, and put the data of each that is the best in places."""
        until = time.monotonic() + seconds
        for _ in range(_SLICES):
            known = plans.time_ns
            plans.run((until - time.monotonic()) / _SLICES, self.share.quicker * work // _SLICES)
            shortest = self.makespan_ns
            found = plans.time_ns
            if found is None or found == known or (shortest is not None and found >= shortest):
                continue
            point = self._relaxed.planned(plans)
            fits = point.search.makespan_ns is not None and self._put_in_places(point)
            part = min(self._part + WIDER, 1.0) if fits else max(self._part - NARROWER, LEAST)
            if part != self._part:
                plans.keep_to(part)
                self._part = part

    def _put_in_places(self, point: Point) -> bool:
        """Find places for a program without addresses; return whether it is the best with addresses now."""
        again = unrolled(self.instance, point.plan).instance
        pieces = lifetimes_of(again, point.search.problem, point.search.log())
        decisions = point.search.best()
        problem = self.arranged(point.again, addresses=True)
        search = Descents(problem, "contiguous", self.seed, self.without)
        capacity, alignment = problem.capacity, self.instance.alignment_bytes
        sides = sides_of(decisions, pieces, capacity, alignment, self._place)
        return search.take_best(decisions, sides) and self.take(point.plan, point.again, search)
