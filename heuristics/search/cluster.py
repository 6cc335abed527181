"""Local search whose cost is the time of several GPUs that take turns on their bus.

A program of one GPU is short if its copies fit beside its tasks. On several GPUs, a byte that is copied
delays the other GPUs, and each of them waits at another point of the program. So this search simulates all
GPUs for each program that it tries. Programs are made as for one GPU, in contiguous memory, and all GPUs have
the same.

Importing this module imports Numba.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import product

import numpy as np

from ...instances.gpus.cluster import Gradient
from ...instances.instance import Instance
from ...validate.gpus.program import cluster_of
from ...validate.schedule import Schedule
from ..turns import RULES, Rule, copies_abreast
from .decisions import gap_keys
from .descents import copied
from .in_turn import (
    Figures,
    Node,
    fleet_for,
    program_for,
    replay,
    time_in_turn,
)
from .kernel import (
    AFTER,
    ALGORITHMS,
    ANY,
    BYTES,
    DURATION,
    IMPOSSIBLE,
    INPUTS,
    MOVE,
    NEVER,
    OFFLOAD,
    OUTPUTS,
    PLACE,
    PLACED,
    PREFETCH,
    RELEASE,
    RUN,
    UPDATES,
    WORKSPACE,
    Decisions,
    Integers,
    Problem,
    Search,
    set_off,
    simulate,
)
from .program import program_of
from .search import LocalSearch

_Rule = tuple[int, bool]
"""Which copy is next, by its position in `RULES`, and whether the largest gradient that waits is."""

_HISTORIES = (20, 100, 400)
"""Lengths of the history of late acceptance, used in turn."""

_CALM = 30
"""Number of histories without a better program after which a descent ends."""

PATIENCE = 20_000
"""Number of programs without a better one after which the search is done."""

_OTHER_RULE = 0.03
"""Share of the moves that change which copy is next, and not the program."""


class ClusterSearch(LocalSearch):
    """A local search for programs of one GPU that are short on all GPUs of a cluster.

    Parameters
    ----------
    instance
        The instance with its cluster, whose GPUs take turns.
    plan
        The same for one GPU, with copies of other times; programs are issued as if these were the true ones.
    seed, without
        As for `LocalSearch`.

    Raises
    ------
    Refusal
        As for `LocalSearch`.
    """

    def __init__(self, instance: Instance, plan: Instance, seed: int, without: Collection[str]) -> None:
        super().__init__(plan, "contiguous", seed, without)
        self._figures = _figures(instance, self._problem)
        nodes = {largest: _node(instance, largest_first=largest) for largest in (False, True)}
        self._nodes = nodes if cluster_of(instance).gradients else {False: nodes[False]}
        self._program = program_for(self._problem.length, len(instance.blocks), len(self._room.log))
        self._fleet = fleet_for(cluster_of(instance).node_gpus, len(nodes[False].send_ns))
        self._rules: Sequence[_Rule] = tuple(product(range(len(RULES)), self._nodes))
        self._chance = np.random.default_rng(seed)
        self._shortest = NEVER, self._rules[0], self.best()
        self.programs = 0
        self._offer(self.best())

    @property
    def cluster_ns(self) -> int:
        """Time of the best program on all GPUs, in nanoseconds."""
        return self._shortest[0]

    @property
    def rule(self) -> tuple[Rule, bool]:
        """Which copy is next in the best program, and whether the largest gradient is, for `turn`."""
        which, largest_first = self._shortest[1]
        return RULES[which], largest_first

    def start(self, schedule: Schedule) -> None:
        """Take a schedule of the plan for the best program, if it is; blocks lie where they lie there."""
        self.offer(schedule)
        decisions = self.best()
        self._offer(decisions)
        _put_in_places(self._problem, decisions, schedule)
        self._offer(decisions)

    def descend(self, deadline: float = math.inf, patience: int = PATIENCE) -> None:
        """Search until a time on the clock of `time.monotonic`, or until nothing is better for long.

        Parameters
        ----------
        deadline
            The time in seconds.
        patience
            Number of programs without a better one after which no further descent begins.
        """
        descents, best_at = 0, self.programs
        while self.programs - best_at < patience and time.monotonic() < deadline:
            before = self.cluster_ns
            self._descend(
                _HISTORIES[descents % len(_HISTORIES)], 1 << descents % 5 if descents else 0, deadline
            )
            descents += 1
            if self.cluster_ns < before:
                best_at = self.programs

    def found(self, method: str) -> Schedule | None:
        """Return the best program as a schedule of the plan, for a method; None if there is none."""
        shortest, _, decisions = self._shortest
        if shortest >= NEVER:
            return None
        return program_of(self.instance, self._problem, self.memory, self._steps(decisions)).finish(method)

    def _offer(self, decisions: Decisions) -> None:
        """Take decisions for the best ones, if they are with any rule."""
        for rule in self._rules:
            found = self._time(decisions, rule, NEVER - 1)
            if found < self.cluster_ns:
                self._shortest = found, rule, copied(decisions)

    def _time(self, decisions: Decisions, rule: _Rule, allowed: int) -> int:
        """Return the time of a program on all GPUs, as `time_in_turn` does; `NEVER` if it has no room."""
        makespan, steps = simulate(self._problem, decisions, self._room, self._search.stalls[1], ANY)
        if makespan >= IMPOSSIBLE:
            return NEVER
        self.programs += 1
        replay(self._room.log, steps, self._figures, self._program)
        which, largest_first = rule
        node, single = self._nodes[largest_first], self._problem.single
        return int(time_in_turn(self._program, node, self._fleet, which, single, allowed))

    def _descend(self, length: int, strength: int, deadline: float) -> None:
        """Go down by late acceptance from the best program after some random moves."""
        _, rule, best = self._shortest
        near, current = self._near(), copied(best)
        if strength:
            set_off(self._problem, near, self._room, current, strength)
            current = copied(near.current)
        lowest = cost = self._time(current, rule, NEVER - 1)
        history, calm, move = [cost] * length, 0, 0
        while calm < _CALM * length and time.monotonic() < deadline:
            other, trial = rule, current
            if self._chance.random() < _OTHER_RULE:
                other = self._rules[int(self._chance.integers(len(self._rules)))]
            else:
                set_off(self._problem, near, self._room, current, 1 + int(self._chance.integers(4) == 0))
                trial = near.current
            turn = move % length
            found = self._time(trial, other, max(cost, history[turn]))
            if found <= cost or found <= history[turn]:
                rule, cost = other, found
                if trial is not current:
                    current = copied(trial)
                if cost < self.cluster_ns:
                    self._shortest = cost, rule, copied(current)
            history[turn] = min(history[turn], cost)
            calm, lowest = (0, cost) if cost < lowest else (calm + 1, lowest)
            move += 1

    def _near(self) -> Search:
        """Return a search for single moves, which learns of no program that this one knows."""
        first = self.best()
        return self._search._replace(
            current=first,
            best=copied(first),
            trial=copied(first),
            history=np.zeros(1, dtype=np.int64),
            counts=np.array([0, NEVER, NEVER, NEVER, 0], dtype=np.int64),
        )


def _put_in_places(problem: Problem, decisions: Decisions, schedule: Schedule) -> None:
    """Let what a program places lie where it lies in a schedule of the same evictions."""
    kinds = {operation.id: operation for operation in schedule.operations}
    blocks, gaps = len(problem.blocks), {key: g for g, key in enumerate(gap_keys(problem))}
    ran = -1
    came: dict[int, int] = {}  # of a prefetch, the gap
    for operation in schedule.operations:
        if operation.task is not None:
            ran = operation.task
        elif operation.kind == "prefetch" and operation.block is not None:
            used = (g for (d, after), g in gaps.items() if d == operation.block and after <= ran)
            came[operation.id] = max(used, key=lambda g: int(problem.gaps[g, AFTER]), default=-1)
    for stay in schedule.residences:
        acquired = None if stay.acquired_by is None else kinds[stay.acquired_by]
        if stay.workspace_of is not None:
            task = kinds[stay.workspace_of].task
            assert task is not None, "only runs have workspaces"
            side = blocks + len(gaps) + task
        elif acquired is None or acquired.kind == "run":
            assert stay.block is not None, "what is no workspace is a block"
            side = stay.block
        elif (gap := came.get(acquired.id, -1)) >= 0:
            side = blocks + gap
        else:
            continue  # it was moved there
        if stay.offset is not None:
            decisions.side[side] = PLACED + stay.offset


def _figures(instance: Instance, problem: Problem) -> Figures:
    """Return what operations take, and what tasks touch."""
    abreast = copies_abreast(instance)

    def column(k: int) -> Integers:
        return np.ascontiguousarray(problem.tasks[:, k])

    def times(found: Iterable[int]) -> Integers:
        return np.array(list(found), dtype=np.int64)

    blocks = instance.blocks
    return Figures(
        kinds=np.array([RUN, OFFLOAD, PREFETCH, MOVE, PLACE, RELEASE], dtype=np.int64),
        single=problem.single,
        bytes=np.ascontiguousarray(problem.blocks[:, BYTES]),
        offload_ns=times(_passing_ns(instance, abreast, one.bytes, one.offload_ns) for one in blocks),
        prefetch_ns=times(_passing_ns(instance, abreast, one.bytes, one.prefetch_ns) for one in blocks),
        move_ns=times(one.move_ns or 0 for one in blocks),
        durations=np.ascontiguousarray(problem.algorithms[:, DURATION]),
        workspaces=np.ascontiguousarray(problem.algorithms[:, WORKSPACE]),
        algorithms=column(ALGORITHMS),
        inputs=column(INPUTS),
        updates=column(UPDATES),
        outputs=column(OUTPUTS),
        lists=problem.lists,
    )


def _node(instance: Instance, *, largest_first: bool) -> Node:
    """Return the GPUs of a node; of gradients that wait, the largest passes first or the first one."""
    cluster, abreast = cluster_of(instance), copies_abreast(instance)
    passed_on = cluster.gradients if cluster.gpus > 1 else ()
    gradients = sorted(passed_on, key=lambda one: one.produced_by)
    if largest_first:
        gradients.sort(key=lambda one: -one.bytes)

    def column(figure: Callable[[Gradient], int]) -> Integers:
        return np.array([figure(one) for one in gradients], dtype=np.int64)

    made_by = column(lambda one: one.produced_by)
    last_use = column(lambda one: max((one.produced_by, *one.used_by)))
    joint = cluster.joins_on_host
    return Node(
        gpus=cluster.node_gpus,
        abreast=abreast,
        on_host=joint,
        ranks=column(lambda one: -one.bytes if largest_first else 0),
        made_by=made_by,
        last_use=last_use,
        by_made=np.argsort(made_by, kind="stable"),
        by_use=np.argsort(np.maximum(made_by, last_use), kind="stable"),
        send_ns=column(lambda one: _passing_ns(instance, abreast, one.bytes, one.offload_ns)),
        add_ns=column(cluster.accumulate_ns),
        exchange_ns=column(cluster.exchange_ns if joint else cluster.reduce_ns),
        return_ns=column(lambda one: _passing_ns(instance, abreast, one.bytes, one.prefetch_ns)),
    )


def _passing_ns(instance: Instance, abreast: int, size: int, alone_ns: int | None) -> int:
    """Return the time of a copy whose turn it is; 0 if it takes none or is not possible."""
    return max(alone_ns, cluster_of(instance).passing_ns(size, alone_ns, abreast)) if alone_ns else 0
