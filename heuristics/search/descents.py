"""Descents by late acceptance, over evictions, orders of copies, algorithms and places.

They need the arrays of a problem alone. `LocalSearch` is of an instance, and gives its schedules.

Importing this module imports Numba.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any

import numpy as np

from ...validate.schedule import MemoryModel
from ..clock import left, look
from ..gaps import Guide
from .costs import costings, with_light
from .decisions import choose_sides, decisions_of, gap_keys
from .kernel import (
    ALGORITHMS,
    ANY,
    IMPOSSIBLE,
    LIGHT,
    NEVER,
    VERSION,
    Decisions,
    Integers,
    Problem,
    Search,
    improve,
    repair,
    set_off,
    simulate,
    state_for,
)

_Descents = tuple[tuple[int, ...], int]
"""Lengths of the history of late acceptance, and a number of histories."""

_SHORT: _Descents = (5, 20, 60), 30
"""Short lengths of the history of late acceptance, used in turn, and the number of histories without a better
program after which a descent ends.
"""
_LONG: _Descents = (20, 60, 200, 600), 20
"""Long lengths of the history, as in `_SHORT`, where blocks have addresses.

A descent with a longer history ends lower. But in the same time, many short descents find more different
programs, the best of which is lower still. With addresses, a program also has to find places, and long
descents are better.
"""

_PATIENCE = 200
"""Number of programs per decision that are simulated without a better one before the search is done.

The search is also done after simulating `_WORK` tasks without a better program.
"""

_WORK = 10_000_000
"""Number of tasks that are simulated without a better program before the search is done.

A share of this number limits a round.
"""

_ROUND = 200
"""Number of programs per decision in a round."""

_MANY = 4000
"""Number of tasks above which addresses take most of the time."""

CHUNK = 100_000
"""Number of tasks that are simulated between looks at the clock."""


class Descents:
    """A search for programs of one problem; it can be stopped and continued.

    Descents by late acceptance follow each other. Each starts from an offered program, from the best program
    after some random moves, or from evictions that are chosen anew.

    Parameters
    ----------
    problem
        The problem as arrays, whose gaps have no classes of cost.
    memory
        Its memory model.
    seed
        Seed of the random decisions.
    without
        Rules to leave out: ``costs``.

    Attributes
    ----------
    descents
        Number of descents that have ended.

    Raises
    ------
    OutOfTime
        When the time limit passes before the search is set up.
    """

    def __init__(
        self, problem: Problem, memory: MemoryModel, seed: int = 0, without: Collection[str] = ()
    ) -> None:
        self.memory, self.seed, self.without = memory, seed, without
        look()
        if "costs" not in without:
            problem = with_light(problem)
        self._histories, self._calm = _LONG if problem.contiguous else _SHORT
        look()
        self._room = state_for(problem)
        self._random = np.random.default_rng(seed)
        self._splitmix = self._random.integers(0, 1 << 63, size=1, dtype=np.uint64)
        stalls = np.zeros((2, problem.length), dtype=np.int64)
        self._quickest = _quickest(problem)
        plain = decisions_of(problem, self._fastest())
        starts: list[tuple[int, Problem, Decisions]] = []
        for self._problem in islice(costings(problem), 1 if "costs" in without else None):
            if starts and not left():
                break  # with what there is
            first = self._repaired(copied(plain))
            cost, _ = simulate(self._problem, first, self._room, stalls[1], ANY)
            starts.append((cost, self._problem, first))
        _, self._problem, first = min(starts, key=lambda start: start[0])
        self._search = Search(
            current=copied(first),
            best=copied(first),
            trial=copied(first),
            history=np.zeros(self._histories[0], dtype=np.int64),
            counts=np.array([0, NEVER, NEVER, NEVER, 0], dtype=np.int64),
            random=self._splitmix,
            stalls=stalls,
            placed=np.zeros(len(problem.blocks) + 1, dtype=np.int64),
        )
        self.descents = 0
        self._best_at = 0
        self._waiting: Decisions | None = None
        self._rest = IMPOSSIBLE, first
        self._set_off(first, 0)
        improve(self._problem, self._search, self._room, 0)  # compiled now, if it must be

    @property
    def problem(self) -> Problem:
        """The problem as arrays, with the costs of the search."""
        return self._problem

    @property
    def makespan_ns(self) -> int | None:
        """Makespan of the best program so far in nanoseconds; None while there is no program."""
        best = int(self._search.counts[2])
        return None if best >= IMPOSSIBLE else best

    @property
    def cost(self) -> int:
        """Makespan of the best program; without one, `IMPOSSIBLE` or more, the sooner memory runs out."""
        return int(self._search.counts[2])

    @property
    def done(self) -> bool:
        """Whether the search has gone on for long without a better program."""
        calm = int(self._search.counts[0]) - self._best_at
        decisions = sum(len(part) for part in self._search.best)
        return calm > min(_PATIENCE * decisions, _WORK // self._problem.length)

    @property
    def round(self) -> int:
        """Number of tasks to simulate in one call of `run`: some programs for each decision.

        There are fewer where a simulation takes longer: with tensors in parts, or with addresses of thousands
        of tasks.
        """
        tasks = self._problem.length
        decisions = sum(len(part) for part in self._search.best)
        slow = self._problem.parts or (self._problem.contiguous and tasks > _MANY)
        return min(_ROUND * decisions * tasks, _WORK // (32 if slow else 2))

    def offer(self, start: Guide) -> None:
        """Start from a guide, which need not fit the pool."""
        self._set_off(self._complete(start), 0)

    def set_off(self, decisions: Decisions) -> None:
        """Start from decisions as they are."""
        self._set_off(decisions, 0)

    def suggest(self, guide: Guide) -> None:
        """Start from a guide: at once if it gives the best program so far, else after this descent.

        A tentative guide that does not give the best program is ignored. Of several guides, the last one
        counts.

        Parameters
        ----------
        guide
            Evictions, orders of copies and algorithms.
        """
        decisions = self._complete(guide)
        cost, _ = simulate(self._problem, decisions, self._room, self._search.stalls[1], ANY)
        if cost < self.cost:
            self._set_off(decisions, 0)
        elif not guide.tentative:
            self._waiting = decisions

    def follow(self, other: Descents, *, at_once: bool) -> None:
        """Start from the best program of another search, if it is better than this one's.

        Parameters
        ----------
        other
            A search of the same problem, of the same kind.
        at_once
            Whether to start now; if not, after this descent.
        """
        if other.cost >= self.cost:
            return
        if at_once:
            self._set_off(other.best(), 0)
        else:
            self._waiting = other.best()

    def run(self, seconds: float = math.inf, work: int = CHUNK) -> None:
        """Continue the search until so many tasks have been simulated, or some seconds have passed.

        Parameters
        ----------
        seconds
            Time after which the search stops.
        work
            Number of tasks to simulate; a program of n tasks counts n.
        """
        counts = self._search.counts
        until = time.monotonic() + seconds
        step = max(min(CHUNK, work) // self._problem.length, 1)
        steps = max(work // self._problem.length, 1)
        while steps > 0 and time.monotonic() < until:
            before = int(counts[2])
            improve(self._problem, self._search, self._room, step)
            steps -= step
            if counts[2] < before:
                self._best_at = int(counts[0])
            if counts[0] - counts[4] > self._calm * len(self._search.history):
                self._next()

    def take_best(self, decisions: Decisions, sides: Iterable[Integers]) -> bool:
        """Start from decisions with one of several choices of sides, if that is the best program so far.

        Parameters
        ----------
        decisions
            Decisions, whose sides are changed.
        sides
            Each a value for `Decisions.side`.

        Returns
        -------
        bool
            Whether one of them is the best program so far: the shortest of them.
        """
        least, chosen = self.cost, None
        for side in sides:
            decisions.side[:] = side
            most: Any = least if least < IMPOSSIBLE else ANY
            cost, _ = simulate(self._problem, decisions, self._room, self._search.stalls[1], most)
            if cost < least:
                least, chosen = cost, side
        if chosen is None:
            return False
        decisions.side[:] = chosen
        self._set_off(decisions, 0)
        return True

    def keep_to(self, capacity: int, start: Decisions) -> None:
        """Go on from decisions in a pool of other bytes; programs in the pool before count no longer."""
        self._problem = self._problem._replace(capacity=capacity)
        self._search.counts[2] = NEVER
        self._set_off(self._repaired(copied(start)), 0)

    def log(self) -> Integers:
        """Return the steps of the best program, as the kernel logs them."""
        return self._steps(self._search.best)

    def guide(self) -> Guide:
        """Return the best program's evictions, the order of its copies, and its algorithms."""
        best, problem = self._search.best, self._problem
        keys = gap_keys(problem)
        returning = [g for g in best.prefetches if best.evicted[g]]
        turn = np.argsort(best.offloads)
        leaving = sorted(
            (g for g in returning if problem.gaps[g, VERSION] >= 0),
            key=lambda g: turn[problem.gaps[g, VERSION]],
        )
        return Guide([keys[g] for g in returning], [keys[g] for g in leaving], best.algorithm.tolist())

    def best(self) -> Decisions:
        """Return a copy of the decisions of the best program."""
        return copied(self._search.best)

    def rest(self) -> tuple[int, Decisions]:
        """Return the cost and the decisions of the last program of the last descent."""
        cost, decisions = self._rest
        return cost, copied(decisions)

    def stalls(self) -> list[int]:
        """Return the tasks before which compute waits in the best program, the longest wait first."""
        if self.makespan_ns is None:
            return []
        waits = np.zeros(self._problem.length, dtype=np.int64)
        simulate(self._problem, self._search.best, self._room, waits, ANY)
        return [int(k) for k in np.argsort(-waits, kind="stable") if waits[k] > 0]

    def _steps(self, decisions: Decisions) -> Integers:
        """Return the steps of the program of given decisions."""
        _, steps = simulate(self._problem, decisions, self._room, self._search.stalls[1], ANY)
        return self._room.log[:steps]

    def _next(self) -> None:
        """Start another descent."""
        self._rest = int(self._search.counts[1]), copied(self._search.current)
        self.descents += 1
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._set_off(waiting, 0)
            return
        draw = int(self._random.integers(4))
        if draw == 0:
            self._set_off(self._complete(self._fastest(), int(self._random.integers(1, 4))), 0)
        else:
            self._set_off(self._search.best, 1 << int(self._random.integers(1, 6)))

    def _set_off(self, start: Decisions, strength: int) -> None:
        length = self._histories[self.descents % len(self._histories)]
        self._search = self._search._replace(history=np.zeros(length, dtype=np.int64))
        before = int(self._search.counts[2])
        set_off(self._problem, self._search, self._room, copied(start), strength)
        if self._search.counts[2] < before:
            self._best_at = int(self._search.counts[0])

    def _fastest(self) -> Guide:
        """Return a guide without evictions and with the fastest algorithms."""
        return Guide([], [], self._quickest)

    def _complete(self, guide: Guide, noise: int = 0) -> Decisions:
        return self._repaired(decisions_of(self._problem, guide), noise)

    def _repaired(self, decisions: Decisions, noise: int = 0) -> Decisions:
        """Return the same decisions, changed so that light blocks leave and live blocks fit the pool."""
        decisions.evicted[self._problem.gaps[:, LIGHT] > 0] = 1
        repair(self._problem, decisions, self._room, self._splitmix, -1, noise)
        choose_sides(self._problem, decisions)
        return decisions


def copied(decisions: Decisions) -> Decisions:
    """Return a copy of decisions."""
    return Decisions(*(part.copy() for part in decisions))


def _quickest(problem: Problem) -> list[int]:
    """Return the index of each task's fastest algorithm; of equally fast ones, that of the leanest."""
    begin = problem.tasks[: problem.length, ALGORITHMS]
    task = np.repeat(np.arange(problem.length), np.diff(np.append(begin, len(problem.algorithms))))
    duration, scratch = problem.algorithms.T
    found: list[int] = (np.lexsort((scratch, duration, task))[begin] - begin).tolist()
    return found
