"""Local search in contiguous memory beside one without addresses, each led by the other.

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
from .kernel import ANY, EARLY_LOW, PLACED, Decisions, simulate
from .search import CHUNK, LocalSearch

Place = Callable[[Sequence[tuple[int, int, int]], int, int], Sequence[int] | None]
"""From bytes, begin and end of each piece, the capacity and the alignment to offsets, or None without."""

_LITTLE, _MUCH = 0.25, 0.75
"""Shares of the work that the search without addresses gets: where it is ahead, and where it is not."""

_GLANCES = 20
"""Looks at it before the other one begins, ten a round."""

_LESS = 1e-3
"""By how much shorter a program must be than the last without places, for places to be looked for again."""

_FEW = 100
"""Tasks up to which places are looked for whenever a descent ends below the best program, too."""

_PAUSE = 2_000_000
"""Tasks to simulate without addresses before that is done again."""


def new_search(
    instance: Instance, memory: MemoryModel, seed: int, without: Collection[str], place: Place
) -> LocalSearch:
    """Return a search as the instance, the memory model and the rules that are left out want it.

    Where tensors are in parts there is no second search: parts have to lie together, and with decisions that
    leave this out, the search with addresses came less far.
    """
    if memory != "contiguous" or "relaxed-start" in without or in_parts(instance):
        return LocalSearch(instance, memory, seed, without)
    return ContiguousSearch(instance, seed, without, place)


class ContiguousSearch(LocalSearch):
    """A local search with addresses, beside one of the same decisions without.

    When that one comes to rest at a program shorter than the best with addresses, places for all that it
    holds are looked for at once, with what is known then: when each piece comes and leaves. Where they are
    found, the program is a schedule. Where not, the search with addresses sets off from its decisions, and
    finds places one by one, with moves inside the device.

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
        """Whether neither has found a better program for long."""
        return super().done and self._relaxed.done

    def offer(self, start: Schedule | Guide) -> None:
        """As `LocalSearch`; the search without addresses sets off, too."""
        super().offer(start)
        self._relaxed.offer(start)

    def suggest(self, guide: Guide) -> None:
        """As `LocalSearch`; to both."""
        super().suggest(guide)
        self._relaxed.suggest(guide)

    def lead(self, seconds: float = math.inf, bound_ns: int = 0) -> None:
        """Search without addresses, and set off from what that finds.

        Parameters
        ----------
        seconds
            It ends after these, or after some rounds.
        bound_ns
            A lower bound; there is no need to search on from there.
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
        """As `LocalSearch`, part of it without addresses."""
        until = time.monotonic() + seconds
        relaxed = int((_LITTLE if self._relaxed.cost < self.cost else _MUCH) * work)
        self._relaxed.run(seconds, relaxed)
        self._pause -= relaxed
        if self._relaxed.descents != self._descents:
            self._descents = self._relaxed.descents
            self._follow()
        super().run(until - time.monotonic(), work - relaxed)

    def _follow(self) -> None:
        """Make of what the search without addresses came to rest at what can be made of it."""
        if self._relaxed.cost < min(self.cost, self._tried):
            if not self._place_best():
                super().suggest(self._relaxed.guide())
        elif len(self.instance.tasks) <= _FEW and self._pause <= 0:
            cost, decisions = self._relaxed.rest()
            if cost < self.cost:
                self._pause = _PAUSE
                self._put_in_places(decisions)

    def _place_best(self) -> bool:
        """Find places for the best program without addresses; whether it is the best with them now."""
        if self._relaxed.makespan_ns is None:
            return False
        self._tried = self._relaxed.cost * (1 - _LESS)
        return self._put_in_places(self._relaxed.best())

    def _put_in_places(self, decisions: Decisions) -> bool:
        """Find places for decisions made without addresses; whether that is the best program now."""
        pieces = self._relaxed.lifetimes(decisions)
        offsets = self._place(
            [(piece.bytes, piece.begin_ns, piece.end_ns) for piece in pieces],
            self._problem.capacity,
            self.instance.alignment_bytes,
        )
        if offsets is None:
            return False
        decisions.side[:] = EARLY_LOW
        for piece, offset in zip(pieces, offsets, strict=True):
            decisions.side[piece.side] = PLACED + offset
        cost, _ = simulate(self._problem, decisions, self._room, self._search.stalls[1], ANY)
        if cost >= self.cost:
            return False
        self._set_off(decisions, 0)
        return True
