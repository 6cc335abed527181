"""Which blocks leave where host memory is tight: a choice that fits device and host at every task, by CP-SAT.

Rules evict when the device is full and find out later that the host is, too. Here both hold at once, at every
task: what stays fits the pool, and the copies of what is away fit host memory. Times of runs, and the places
of copies, are left to the search that starts from the choice. Of all choices, one whose copies take little
time is taken.
"""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from math import gcd
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...heuristics.choices import by_speed
from ...heuristics.clock import left
from ...heuristics.gaps import Guide
from ...heuristics.search.decisions import gap_keys
from ...heuristics.search.kernel import (
    AFTER,
    BLOCK,
    BYTES,
    DUE_ANYHOW,
    FIXED,
    FORCED,
    HOST_BYTES,
    KEPT,
    LIGHT,
    NEXT_PART,
    OFFLOAD_NS,
    PREFETCH_NS,
    UNTIL,
    VERSION,
    WRITER,
    Problem,
    leanest,
)
from ...instances.instance import Instance
from ..cp_sat.interrupts import solve_interruptibly

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Integers = NDArray[np.int64]
"""Array of int64."""

_Copy = tuple[bool, int]
"""A copy on the host: of a version, or, if not, of what is there of a block at first; and which one."""

_EFFORT = 4.0
"""Limit of CP-SAT for one choice, in its deterministic seconds."""

_LONGEST = 3600.0
"""Greatest limit of CP-SAT for one choice, in seconds."""

_CLOSE = 0.01
"""Relative distance from the least time of copies at which a choice is good enough."""

_TASKS = 16
"""Number of tasks at which a choice does not fit that the next choice has to fit."""


def fitting_guide(instance: Instance, problem: Problem, seed: int) -> Guide | None:
    """Return evictions with which live blocks fit the device and copies the host, at every task.

    The tasks run their fastest algorithms where these have room.

    Parameters
    ----------
    instance
        An instance that gives host memory a budget.
    problem
        The same as arrays, such as a search has them; their sizes are in the units of its memory model.
    seed
        Seed of CP-SAT.

    Returns
    -------
    Guide or None
        None when there are no such evictions, or none were found.
    """
    choice = _Choice(problem)
    evicted = np.zeros(len(problem.gaps), dtype=bool)
    known: set[int] = set()
    tasks = _worst(choice.excess(evicted), known)[:1]
    while len(tasks):
        known |= set(tasks.tolist())
        for k in tasks.tolist():
            choice.require(k)
        found = choice.solve(seed)
        if found is None:
            return None
        evicted = found
        tasks = _worst(choice.excess(evicted), known)
    gone = [g for g in np.argsort(problem.gaps[:, UNTIL], kind="stable").tolist() if evicted[g]]
    keys = gap_keys(problem)
    return Guide([keys[g] for g in gone], [], [by_speed(task)[0] for task in instance.tasks])


class _Choice:
    """The integer program: a variable for each gap, and rows for some of the tasks."""

    def __init__(self, problem: Problem) -> None:
        from ortools.sat.python import cp_model

        self._problem, self._cp = problem, cp_model.CpModel()
        self._least = np.array([leanest(problem, k) for k in range(problem.length)])
        gaps, blocks = problem.gaps, problem.blocks
        self._evicted = [self._cp.new_bool_var("") for _ in gaps]
        self._gaps_of: dict[_Copy, list[int]] = defaultdict(list)
        for g in np.argsort(gaps[:, AFTER], kind="stable").tolist():
            self._gaps_of[_copy_of(problem, g)].append(g)
            if gaps[g, FORCED] or gaps[g, LIGHT]:
                self._cp.add(self._evicted[g] == 1)
            if gaps[g, NEXT_PART] >= 0:
                self._cp.add_implication(self._evicted[g], self._evicted[gaps[g, NEXT_PART]])
        for v in np.flatnonzero(problem.versions[:, DUE_ANYHOW]).tolist():
            self._gaps_of.setdefault((True, v), [])
        for d in np.flatnonzero(blocks[:, KEPT]).tolist():
            self._gaps_of.setdefault((False, d), [])
        # per copy, whether one of its first gaps is evicted, and whether one of its last gaps is
        self._begun = {copy: self._any(of) for copy, of in self._gaps_of.items()}
        self._needed = {copy: self._any(of[::-1])[::-1] for copy, of in self._gaps_of.items()}
        self._cp.minimize(
            sum(int(blocks[gaps[g, BLOCK], PREFETCH_NS]) * one for g, one in enumerate(self._evicted))
            + sum(
                int(blocks[gaps[of[0], BLOCK], OFFLOAD_NS]) * self._begun[version, v][-1]
                for (version, v), of in self._gaps_of.items()
                if version and of
            )
        )

    def require(self, k: int) -> None:
        """Add rows of a task: what stays fits the pool, and copies fit host memory."""
        problem = self._problem
        gaps, size = problem.gaps, problem.blocks[problem.gaps[:, BLOCK], BYTES]
        over = (gaps[:, AFTER] < k) & (k < gaps[:, UNTIL]) & (gaps[:, FORCED] == 0)
        missing = int(problem.tasks[k, FIXED] + size[over].sum() + self._least[k] - problem.capacity)
        leave = [(int(size[g]), self._evicted[g]) for g in np.flatnonzero(over).tolist() if size[g]]
        unit = reduce(gcd, (bytes_ for bytes_, _ in leave), 0) or 1
        self._cp.add(sum(bytes_ // unit * one for bytes_, one in leave) >= -(-missing // unit))
        held = [
            (int(problem.blocks[self._block(copy), HOST_BYTES]), one)
            for copy in self._gaps_of
            for one in self._held(copy, k)
        ]
        unit = reduce(gcd, (bytes_ for bytes_, _ in held), 0) or 1
        self._cp.add(sum(bytes_ // unit * one for bytes_, one in held) <= problem.host // unit)

    def solve(self, seed: int) -> NDArray[np.bool_] | None:
        """Return which gaps are evicted; None when there is no choice, or none was found."""
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = seed
        solver.parameters.max_deterministic_time = _EFFORT
        solver.parameters.relative_gap_limit = _CLOSE
        solver.parameters.max_time_in_seconds = min(max(left(), 0.01), _LONGEST)
        status, interrupted = solve_interruptibly(solver, self._cp)
        if interrupted:
            raise KeyboardInterrupt
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        self._cp.clear_hints()  # type: ignore[no-untyped-call]
        for one in self._evicted:
            self._cp.add_hint(one, solver.value(one))
        return np.array([solver.value(one) for one in self._evicted], dtype=bool)

    def excess(self, evicted: NDArray[np.bool_]) -> Integers:
        """Return, per task, the bytes by which live blocks exceed the pool, and copies host memory."""
        problem, total = self._problem, self._problem.length
        gaps, size = problem.gaps, problem.blocks[problem.gaps[:, BLOCK], BYTES]
        stays = ~evicted & (gaps[:, FORCED] == 0)
        live, copies = np.zeros(total + 2, dtype=np.int64), np.zeros(total + 2, dtype=np.int64)
        np.add.at(live, gaps[stays, AFTER] + 1, size[stays])
        np.subtract.at(live, gaps[stays, UNTIL], size[stays])
        for copy, of in self._gaps_of.items():
            gone = [g for g in of if evicted[g]]
            first, until = self._always(copy)
            if gone:
                first = min(first, int(gaps[gone[0], AFTER]) + 1 if copy[0] else 0)
                until = max(until, int(gaps[gone[-1], UNTIL]))
            if first < until:
                copies[first] += problem.blocks[self._block(copy), HOST_BYTES]
                copies[until] -= problem.blocks[self._block(copy), HOST_BYTES]
        live[:total] = np.cumsum(live[:total]) + problem.tasks[:total, FIXED] + self._least - problem.capacity
        copies[:total] = np.cumsum(copies[:total]) - problem.host
        return np.maximum(live[:total], 0) + np.maximum(copies[:total], 0)

    def _block(self, copy: _Copy) -> int:
        version, what = copy
        return int(self._problem.versions[what, BLOCK]) if version else what

    def _always(self, copy: _Copy) -> tuple[int, int]:
        """Return the tasks during which a copy has to be there in any case: the first, and the end."""
        version, what = copy
        if version and self._problem.versions[what, DUE_ANYHOW]:
            return int(self._problem.versions[what, WRITER]) + 1, self._problem.length + 1
        if not version and self._problem.blocks[what, KEPT]:
            return 0, self._problem.length + 1
        return self._problem.length + 1, 0

    def _held(self, copy: _Copy, k: int) -> list[cp_model.IntVar | int]:
        """Return what says whether a copy is on the host during a task: nothing where it never is.

        The copy of a version is there from its first evicted gap to its last one, that of what the host has
        at first from the start.
        """
        gaps, of = self._problem.gaps, self._gaps_of[copy]
        first, until = self._always(copy)
        if first <= k < until:
            return [1]
        begun = sum(bool(gaps[g, AFTER] < k) for g in of)
        ended = sum(bool(gaps[g, UNTIL] <= k) for g in of)
        if ended == len(of):
            return []
        if not copy[0]:
            return [self._needed[copy][ended]]
        if begun == 0:
            return []
        if len(of) == 1:
            return [self._evicted[of[0]]]
        held = self._cp.new_bool_var("")
        self._cp.add(held >= self._begun[copy][begun - 1] + self._needed[copy][ended] - 1)
        return [held]

    def _any(self, gaps: list[int]) -> list[cp_model.IntVar]:
        """Return, per gap in a list, a variable that is true if this gap or one before it is evicted."""
        found: list[cp_model.IntVar] = []
        for g in gaps:
            one = self._evicted[g]
            if found:
                either = self._cp.new_bool_var("")
                self._cp.add_implication(found[-1], either)
                self._cp.add_implication(one, either)
                one = either
            found.append(one)
        return found


def _worst(excess: Integers, known: set[int]) -> Integers:
    """Return some tasks with the greatest excess, apart from those that a choice had to fit."""
    order = [k for k in np.argsort(-excess, kind="stable").tolist() if excess[k] > 0 and k not in known]
    return np.array(order[:_TASKS], dtype=np.int64)


def _copy_of(problem: Problem, g: int) -> _Copy:
    """Return the copy that a gap's prefetch reads."""
    v = int(problem.gaps[g, VERSION])
    return (True, v) if v >= 0 else (False, int(problem.gaps[g, BLOCK]))
