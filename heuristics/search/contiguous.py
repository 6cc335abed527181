"""Local search in contiguous memory beside a search without addresses, whose programs it finds places for.

Importing this module imports Numba.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from ...instances.instance import Instance
from ...instances.transforms import in_parts
from ...validate.schedule import MemoryModel, Schedule
from ..gaps import Guide
from ..program.placement import Piece
from .columns import Integers
from .descents import CHUNK, Descents
from .kernel import EARLY_HIGH, EARLY_LOW, PLACED, Decisions
from .program import Lifetime
from .search import LocalSearch

Place = Callable[[Sequence[Piece], int, int], Sequence[int] | None]
"""A function that finds an offset for each piece of memory.

Its arguments are the pieces, the capacity and the alignment. It returns None if it finds no offsets.
"""

_RELAXED = 0.75
"""Share of the work for the search without addresses: its programs are simulated far more quickly."""

_GLANCES = 20
"""Steps, ten to a round, of the search without addresses before the search with addresses starts."""

_STEP, _GROWTH, _LEAST = 0.01, 1.5, 0.5
"""How much of the pool the first step of a sweep leaves out, about, how much longer each step is than the one
before, and the least part of the pool."""

_SWEEPS = 4
"""Number of sweeps without a better program after which the search is done."""

_SHORT_SHARES = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Shares of the pieces that count as short, each of which is tried."""


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
    addresses, places for its data are chosen by several rules, and sought for all of its data at once
    (`sides_of`). The shortest program that comes of it is where the search with addresses goes on, if it is
    the best so far.

    In the whole pool, there are often no places: memory is full at many instants, and what is free is in
    pieces. So the search without addresses *sweeps* over parts of the pool. After each program without
    better places, it goes on in a smaller part, whose programs are longer and easier to place. When they are
    no shorter than the best with addresses, it returns to the whole pool.

    Parameters
    ----------
    instance, seed, without
        As for `LocalSearch`.
    place
        Finds the places.

    Attributes
    ----------
    relaxed
        The search without addresses, in a part of the pool.
    """

    def __init__(self, instance: Instance, seed: int, without: Collection[str], place: Place) -> None:
        super().__init__(instance, "contiguous", seed, without)
        self.relaxed = LocalSearch(instance, "contiguous", seed, without, addresses=False)
        self._place = place
        self._descents = 0
        self._part, self._step = 1.0, _STEP
        self._in_whole = self.relaxed.best()
        self._sweeps = 0

    @property
    def done(self) -> bool:
        """Whether neither search has found a better program for long."""
        return super().done and (self._sweeps >= _SWEEPS or self.relaxed.done)

    def offer(self, start: Schedule | Guide) -> None:
        """Start both searches from a schedule or a guide, as `LocalSearch.offer` does."""
        super().offer(start)
        self.relaxed.offer(start)

    def suggest(self, guide: Guide) -> None:
        """Suggest a guide to both searches, as `LocalSearch.suggest` does."""
        super().suggest(guide)
        self.relaxed.suggest(guide)

    def follow(self, other: Descents, *, at_once: bool) -> None:
        """Let both searches follow those of another, as `LocalSearch.follow` does.

        Those without addresses do so only if both are in the same part of the pool.
        """
        super().follow(other, at_once=at_once)
        if isinstance(other, ContiguousSearch) and other._part == self._part:
            self.relaxed.follow(other.relaxed, at_once=at_once)

    def lead(self, seconds: float = math.inf, bound_ns: int = 0) -> None:
        """Search without addresses, then find places for the result: if there are none, in a sweep.

        Parameters
        ----------
        seconds
            Time after which each of the two ends; they also end after some rounds, and after a sweep.
        bound_ns
            A lower bound in nanoseconds; the search ends when its program is as short.
        """
        if seconds <= 0:
            return
        until = time.monotonic() + seconds
        for _ in range(_GLANCES):
            if self.relaxed.cost <= bound_ns or time.monotonic() >= until:
                break
            self.relaxed.run(until - time.monotonic(), self.relaxed.round // 10)
        self._descents = self.relaxed.descents
        if self.place():
            return
        super().offer(self.relaxed.guide())
        if self.relaxed.makespan_ns is None:
            return
        until, placed = time.monotonic() + seconds, False
        self._keep_to(1.0 - self._step)
        while not placed and self._part < 1.0 and time.monotonic() < until:
            self.relaxed.run(until - time.monotonic())
            placed = self._follow()

    def place(self) -> bool:
        """Find places for the best program without addresses; return whether it is the best with them now."""
        return self.relaxed.makespan_ns is not None and self._put_in_places(self.relaxed.best())

    def run(self, seconds: float = math.inf, work: int = CHUNK) -> None:
        """Continue both searches, as `LocalSearch.run` does."""
        until = time.monotonic() + seconds
        while work > 0 and (left := until - time.monotonic()) > 0:
            some = min(work, CHUNK)
            relaxed = int(_RELAXED * some)
            self.relaxed.run(left, relaxed)
            self._follow()
            best = self.cost
            super().run(until - time.monotonic(), some - relaxed)
            self._sweeps = 0 if self.cost < best else self._sweeps
            work -= some

    def _follow(self) -> bool:
        """Use the end of a descent without addresses, if there was one; return whether it led to the best.

        If not, the next descent is in another part of the pool.
        """
        if self.relaxed.descents == self._descents:
            return False
        self._descents = self.relaxed.descents
        if self.relaxed.makespan_ns is None or self.relaxed.cost >= self.cost:
            self._return()
            return False
        cost, decisions = self.relaxed.rest()
        if cost < self.cost and self._put_in_places(decisions):
            self._sweeps = 0
            return True
        if self._part - self._step < _LEAST:
            self._return()
        else:
            self._keep_to(self._part - self._step)
        return False

    def _return(self) -> None:
        """End a sweep: go on in the whole pool, from the best program there."""
        if self._part < 1.0:
            self._keep_to(1.0)
            self._step = _STEP * (0.5 + float(self._random.random()))
            self._sweeps += 1

    def _keep_to(self, part: float) -> None:
        """Let the search without addresses go on in a part of the pool."""
        if self._part == 1.0:
            self._in_whole = self.relaxed.best()
        unit, capacity = self.instance.alignment_bytes, self._problem.capacity
        start = self._in_whole if part == 1.0 else self.relaxed.best()
        self.relaxed.keep_to(int(part * capacity) // unit * unit, start)
        self._part = part
        self._step *= _GROWTH

    def _put_in_places(self, decisions: Decisions) -> bool:
        """Find places for decisions made without addresses; return whether that is the best program now."""
        lifetimes = self.relaxed.lifetimes(decisions)
        capacity, alignment = self._problem.capacity, self.instance.alignment_bytes
        return self.take_best(decisions, sides_of(decisions, lifetimes, capacity, alignment, self._place))


def sides_of(
    decisions: Decisions, lifetimes: Sequence[Lifetime], capacity: int, alignment: int, place: Place
) -> Iterator[Integers]:
    """Yield sides with which the data of a program may find places.

    By rules, each piece takes the lowest or the highest place that is free earliest: the highest if it lives
    for a short time, with several limits to that. So what stays long is at one end of the pool, and what
    comes and goes is at the other. If places are found for all pieces at once, they come last.

    Parameters
    ----------
    decisions
        Decisions that were made without addresses.
    lifetimes
        What they put into the pool.
    capacity, alignment
        Of the pool, in bytes.
    place
        Finds the places.
    """
    where = np.array([one.side for one in lifetimes], dtype=np.int64)
    length = np.array([one.piece.end - one.piece.begin for one in lifetimes], dtype=np.int64)
    in_order = where[np.argsort(length, kind="stable")]
    for share in _SHORT_SHARES:
        sides = np.full_like(decisions.side, EARLY_LOW)
        sides[in_order[: round(share * len(in_order))]] = EARLY_HIGH
        yield sides
    offsets = place([one.piece for one in lifetimes], capacity, alignment)
    if offsets is not None:
        sides = np.full_like(decisions.side, EARLY_LOW)
        sides[where] = PLACED + np.array(offsets, dtype=np.int64)
        yield sides
