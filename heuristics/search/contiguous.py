"""Local search in contiguous memory beside a search without addresses; each of the two guides the other.

Importing this module imports Numba.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence

from ...instances.instance import Instance
from ...instances.transforms import in_parts
from ...validate.schedule import MemoryModel, Schedule
from ..gaps import Guide
from .descents import CHUNK, Descents
from .kernel import ANY, EARLY_LOW, PLACED, Decisions, simulate
from .program import Lifetime
from .search import LocalSearch

Place = Callable[[Sequence[tuple[int, int, int]], int, int], Sequence[int] | None]
"""A function that finds an offset for each piece of memory.

Its arguments are the bytes, begin and end of each piece, the capacity and the alignment. It returns None if
it finds no offsets.
"""

_LITTLE, _MUCH = 0.25, 0.75
"""Shares of the work for the search without addresses: while it is ahead, and while it is not."""

_GLANCES = 20
"""Steps, ten to a round, of the search without addresses before the search with addresses starts."""

LESS = 1e-3
"""Relative amount by which a program must be shorter than the last before places for it are sought."""

_FEW = 100
"""Greatest number of tasks with which places are also sought for the last program of a descent.

This is done if that program is shorter than the best program with addresses.
"""

_PAUSE = 2_000_000
"""Number of tasks to simulate without addresses before places for such a program are sought again."""


def new_search(
    instance: Instance, memory: MemoryModel, seed: int, without: Collection[str], place: Place
) -> LocalSearch:
    """Return a search that fits the instance, the memory model and the rules that are left out.

    Tensors in parts have no search without addresses. Their parts have to lie together. A search whose
    decisions ignore this made the search with addresses worse.
    """
    if memory != "contiguous" or "relaxed-start" in without or in_parts(instance):
        return LocalSearch(instance, memory, seed, without)
    return ContiguousSearch(instance, seed, without, place)


class ContiguousSearch(LocalSearch):
    """A local search with addresses, beside a search for the same decisions without addresses.

    When the search without addresses ends a descent with a program that is shorter than the best with
    addresses, places for all of its data are sought at once: the lifetime of each piece is known then. If
    places are found, the program is a schedule. If not, the search with addresses starts from these decisions
    and finds places one by one, with moves inside the device.

    Parameters
    ----------
    instance, seed, without
        As for `LocalSearch`.
    place
        Finds the places.
    """

    def __init__(self, instance: Instance, seed: int, without: Collection[str], place: Place) -> None:
        super().__init__(instance, "contiguous", seed, without)
        self._relaxed = LocalSearch(instance, "contiguous", seed, without, addresses=False)
        self._place = place
        self._descents = 0
        self._tried = math.inf
        self._pause = 0

    @property
    def done(self) -> bool:
        """Whether neither search has found a better program for long."""
        return super().done and self._relaxed.done

    def offer(self, start: Schedule | Guide) -> None:
        """Start both searches from a schedule or a guide, as `LocalSearch.offer` does."""
        super().offer(start)
        self._relaxed.offer(start)

    def suggest(self, guide: Guide) -> None:
        """Suggest a guide to both searches, as `LocalSearch.suggest` does."""
        super().suggest(guide)
        self._relaxed.suggest(guide)

    def follow(self, other: Descents, *, at_once: bool) -> None:
        """Let both searches follow those of another, as `LocalSearch.follow` does."""
        super().follow(other, at_once=at_once)
        if isinstance(other, ContiguousSearch):
            self._relaxed.follow(other._relaxed, at_once=at_once)

    def lead(self, seconds: float = math.inf, bound_ns: int = 0) -> None:
        """Search without addresses, then start from the result.

        Parameters
        ----------
        seconds
            Time after which the search ends; it also ends after some rounds.
        bound_ns
            A lower bound in nanoseconds; the search ends when its program is as short.
        """
        if seconds <= 0:
            return
        until = time.monotonic() + seconds
        for _ in range(_GLANCES):
            if self._relaxed.cost <= bound_ns or time.monotonic() >= until:
                break
            self._relaxed.run(until - time.monotonic(), self._relaxed.round // 10)
        if not self._place_best():
            super().offer(self._relaxed.guide())

    def run(self, seconds: float = math.inf, work: int = CHUNK) -> None:
        """Continue both searches, as `LocalSearch.run` does."""
        until = time.monotonic() + seconds
        relaxed = int((_LITTLE if self._relaxed.cost < self.cost else _MUCH) * work)
        self._relaxed.run(seconds, relaxed)
        self._pause -= relaxed
        if self._relaxed.descents != self._descents:
            self._descents = self._relaxed.descents
            self._follow()
        super().run(until - time.monotonic(), work - relaxed)

    def _follow(self) -> None:
        """Use the end of a descent without addresses: find places for it, or suggest it to this search."""
        if self._relaxed.cost < min(self.cost, self._tried):
            if not self._place_best():
                super().suggest(self._relaxed.guide())
        elif len(self.instance.tasks) <= _FEW and self._pause <= 0:
            cost, decisions = self._relaxed.rest()
            if cost < self.cost:
                self._pause = _PAUSE
                self._put_in_places(decisions)

    def _place_best(self) -> bool:
        """Find places for the best program without addresses; return whether it is now the best with them."""
        if self._relaxed.makespan_ns is None:
            return False
        self._tried = self._relaxed.cost * (1 - LESS)
        return self._put_in_places(self._relaxed.best())

    def _put_in_places(self, decisions: Decisions) -> bool:
        """Find places for decisions made without addresses; return whether that is the best program now."""
        pieces = self._relaxed.lifetimes(decisions)
        capacity, alignment = self._problem.capacity, self.instance.alignment_bytes
        if not put_in_places(decisions, pieces, capacity, alignment, self._place):
            return False
        cost, _ = simulate(self._problem, decisions, self._room, self._search.stalls[1], ANY)
        if cost >= self.cost:
            return False
        self._set_off(decisions, 0)
        return True


def put_in_places(
    decisions: Decisions, pieces: Sequence[Lifetime], capacity: int, alignment: int, place: Place
) -> bool:
    """Give all data of a program its place in the decisions; return whether places were found.

    Parameters
    ----------
    decisions
        Decisions that were made without addresses, which are changed if places are found.
    pieces
        What they put into the pool.
    capacity, alignment
        Of the pool, in bytes.
    place
        Finds the places.
    """
    sizes = [(piece.bytes, piece.begin_ns, piece.end_ns) for piece in pieces]
    offsets = place(sizes, capacity, alignment)
    if offsets is None:
        return False
    decisions.side[:] = EARLY_LOW
    for piece, offset in zip(pieces, offsets, strict=True):
        decisions.side[piece.side] = PLACED + offset
    return True
