"""The method ``local-search``: late acceptance over evictions, orders of copies, algorithms and places."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Sequence

import msgspec
import numpy as np

from ..instances.instance import Instance
from ..validate.schedule import MemoryModel, Schedule
from .choices import by_speed
from .gaps import Gap
from .methods import Answer, Limits, Refusal, find_method, register
from .search_kernel import IMPOSSIBLE, NEVER, Decisions, Search, improve, repair, set_off, simulate
from .search_problem import choose_sides, decisions_from, decisions_of, log_for, problem_of, program_of

_FIRST_METHOD = "modnn"
"""Whose schedule the search starts from where none is given."""

RULES = ("moves", "places")
"""What contiguous search can leave out: moves inside the device; changing which holes blocks take."""

_HISTORIES = (20, 60, 200, 600)
"""Lengths of the history of late acceptance, in turn: longer ones take longer and settle lower."""

_CALM = 20
"""A descent ends after this number of histories without a better program."""

_WORK = 5_000_000
"""Tasks that are simulated, after the best was found, before the search ends if no time limit ends it."""

_CHUNK = 100_000
"""Tasks that are simulated between looks at the clock."""


class LocalSearch:
    """A local search on one instance, that can be stopped and continued.

    Descents by late acceptance follow each other: from what is offered, from the best with some random moves,
    or from evictions that are chosen afresh.

    Parameters
    ----------
    instance, memory
        What to schedule, and in which memory model.
    seed
        Of its random decisions.
    without
        Rules to leave out, of `RULES`.

    Raises
    ------
    Refusal
        For recomputable tasks; for parts of tensors in contiguous memory.
    """

    def __init__(
        self, instance: Instance, memory: MemoryModel, seed: int = 0, without: Collection[str] = ()
    ) -> None:
        if any(task.recomputable for task in instance.tasks):
            raise Refusal("local search: recomputation is not modelled yet")
        if memory == "contiguous" and any(block.tensor is not None for block in instance.blocks):
            raise Refusal("local search: parts of tensors are placed in paged memory only")
        self.instance, self.memory = instance, memory
        self._problem = problem_of(
            instance, memory, moves="moves" not in without, sides="places" not in without
        )
        self._log = log_for(self._problem)
        self._random = np.random.default_rng(seed)
        first = self._complete([], [by_speed(task)[0] for task in instance.tasks])
        self._search = Search(
            current=_copied(first),
            best=_copied(first),
            trial=_copied(first),
            history=np.zeros(_HISTORIES[0], dtype=np.int64),
            counts=np.array([0, NEVER, NEVER, NEVER, 0], dtype=np.int64),
            random=self._random.integers(0, 1 << 63, size=1, dtype=np.uint64),
            stalls=np.zeros((2, len(instance.tasks)), dtype=np.int64),
        )
        self._turn = 0
        self._best_at = 0
        self._set_off(first, 0)

    @property
    def makespan_ns(self) -> int | None:
        """Makespan of the best program so far; None while there is none."""
        best = int(self._search.counts[2])
        return None if best >= IMPOSSIBLE else best

    @property
    def done(self) -> bool:
        """Whether it has searched for long without a better program."""
        calm = int(self._search.counts[0]) - self._best_at
        return calm * len(self.instance.tasks) > _WORK

    def offer(self, start: Schedule | tuple[Iterable[Gap], Sequence[int]]) -> None:
        """Set off from the decisions of a schedule, or from gaps to evict and the algorithm of each task."""
        if isinstance(start, Schedule):
            decisions = decisions_from(self.instance, self._problem, start)
            repair(self._problem, decisions, self._search.random, -1, 0)
        else:
            decisions = self._complete(*start)
        self._set_off(decisions, 0)

    def run(self, seconds: float = math.inf, work: int = _CHUNK) -> None:
        """Search on until so many tasks have been simulated, or some seconds have passed."""
        counts = self._search.counts
        until = time.monotonic() + seconds
        step = max(min(_CHUNK, work) // len(self.instance.tasks), 1)
        steps = max(work // len(self.instance.tasks), 1)
        while steps > 0 and time.monotonic() < until:
            before = int(counts[2])
            improve(self._problem, self._search, self._log, step)
            steps -= step
            if counts[2] < before:
                self._best_at = int(counts[0])
            if counts[0] - counts[4] > _CALM * len(self._search.history):
                self._next()

    def schedule(self, method: str) -> Schedule | None:
        """Return the best program as a schedule; None while there is none."""
        if self.makespan_ns is None:
            return None
        _, steps = simulate(self._problem, self._search.best, self._log, self._search.stalls[1])
        return program_of(self.instance, self._problem, self.memory, self._log[:steps]).finish(method)

    def stalls(self) -> list[int]:
        """Tasks before which compute waits in the best program, the longest wait first."""
        if self.makespan_ns is None:
            return []
        waits = np.zeros(len(self.instance.tasks), dtype=np.int64)
        simulate(self._problem, self._search.best, self._log, waits)
        return [int(k) for k in np.argsort(-waits, kind="stable") if waits[k] > 0]

    def _next(self) -> None:
        """Set off on another descent."""
        self._turn += 1
        draw = int(self._random.integers(4))
        if draw == 0:
            tasks = self.instance.tasks
            noise = int(self._random.integers(1, 4))
            self._set_off(self._complete([], [by_speed(task)[0] for task in tasks], noise), 0)
        else:
            self._set_off(self._search.best, 1 << int(self._random.integers(1, 6)))

    def _set_off(self, start: Decisions, strength: int) -> None:
        length = _HISTORIES[self._turn % len(_HISTORIES)]
        self._search = self._search._replace(history=np.zeros(length, dtype=np.int64))
        before = int(self._search.counts[2])
        set_off(self._problem, self._search, self._log, _copied(start), strength)
        if self._search.counts[2] < before:
            self._best_at = int(self._search.counts[0])

    def _complete(self, evicted: Iterable[Gap], algorithms: Sequence[int], noise: int = 0) -> Decisions:
        decisions = decisions_of(self.instance, self._problem, evicted, algorithms)
        repair(self._problem, decisions, np.ones(1, dtype=np.uint64), -1, noise)
        choose_sides(self._problem, decisions)
        return decisions


@register(
    "local-search",
    "late acceptance on evictions, orders, algorithms and places",
    "this project",
    shown="named",
    rules=RULES,
)
def local_search(instance: Instance, limits: Limits) -> Answer:
    """Search from the warm start, by default moDNN's schedule; without a time limit, until it is calm.

    Ctrl-C keeps the best.

    Raises
    ------
    Refusal
        When there is no program, or for what the search does not model.
    """
    deadline = math.inf if limits.time_limit is None else time.monotonic() + limits.time_limit
    search = LocalSearch(instance, limits.memory, limits.seed, limits.without)
    best = limits.warm_start
    stopped_by = "done"
    try:
        best = best or find_method(_FIRST_METHOD).call(instance, limits).schedule
    except Refusal as refusal:
        stopped_by = str(refusal)
    try:
        if best is not None:
            search.offer(best)
        while not search.done:
            if time.monotonic() >= deadline:
                stopped_by = "time limit"
                break
            search.run(deadline - time.monotonic())
    except KeyboardInterrupt:
        stopped_by = "interrupted"
    found = search.schedule("local-search")
    if best is None or (found is not None and found.makespan_ns < best.makespan_ns):
        best = found
    if best is None:
        raise Refusal(f"local-search: found no places for all blocks; {_FIRST_METHOD}: {stopped_by}")
    return Answer(msgspec.structs.replace(best, method="local-search"), stopped_by)


def _copied(decisions: Decisions) -> Decisions:
    return Decisions(*(part.copy() for part in decisions))
