"""Local search whose cost is the time of several GPUs that take turns on their bus.

A program of one GPU is short if its copies fit beside its tasks. On several GPUs, a byte that is copied
delays the other GPUs, and each of them waits at another point of the program. So this search simulates all
GPUs for each program that it tries. Programs are made as for one GPU, in contiguous memory.

GPUs need not have the same program. Those that are first on the bus are done early; they have the time for
slower algorithms that need less memory, so that fewer of their bytes pass the bus, and the last GPU waits for
less.

Importing this module imports Numba.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ...instances.gpus.cluster import Gradient
from ...instances.instance import Instance
from ...validate.gpus.program import cluster_of
from ...validate.schedule import Schedule
from ..turns import RULES, Rule, copies_abreast
from .decisions import decisions_from, gap_keys
from .descents import copied
from .in_turn import (
    Figures,
    Node,
    fleet_for,
    programs_for,
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
    repair,
    set_off,
    simulate,
)
from .program import program_of
from .search import LocalSearch

_Rule = tuple[Rule, bool]
"""Which copy is next, and whether the largest gradient that waits is."""

_HISTORIES = {False: (20, 100, 400), True: (20, 100)}
"""Lengths of the history of late acceptance, used in turn: while GPUs do the same, and when they need not."""

_CALM = 30
"""Number of histories without a better program after which a descent ends."""

PATIENCE = 20_000
"""Number of programs without a better one after which the search is done."""

_MOST_APART = 32
"""Greatest number of GPUs of a node that may differ: with more, simulations are too slow for that."""

_MIXING = 0.1
"""Greatest share of the time in which GPUs are given programs of different plans, before any is changed."""

_ALIKE = 0.5
"""Share of the time in which GPUs with the same program keep the same."""

_APART = 0.7
"""Of moves that change a program, after that time, the share of those that change it for one GPU alone."""

_OTHER_RULE = 0.1
"""Share of the moves that change which copy is next, and no program."""

_OTHER_GPU = 0.1
"""Share of the moves by which a GPU takes the program of another one, or both change places."""

_LEADS = 5.0, 9.0
"""Logarithms of the least and the greatest lead of one GPU over the next that is tried, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class _Way:
    """What all GPUs do: which copy is next, and per GPU of a node the decisions of its program.

    GPUs with the same program share its decisions, which nothing changes.
    """

    rule: _Rule
    programs: tuple[Decisions, ...]

    def put(self, gpus: Iterable[int], program: Decisions) -> _Way:
        """Return the way in which some GPUs have another program."""
        programs = list(self.programs)
        for gpu in gpus:
            programs[gpu] = program
        return replace(self, programs=tuple(programs))

    def alike(self, gpu: int) -> list[int]:
        """Return the GPUs with the program of a given one."""
        return [other for other, one in enumerate(self.programs) if one is self.programs[gpu]]


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
        self._gpus = cluster_of(instance).node_gpus
        self._differ = self._gpus <= _MOST_APART
        count = 2 * (self._gpus if self._differ else 1)  # those of two ways
        self._programs = programs_for(count, self._problem.length, len(instance.blocks), len(self._room.log))
        self._held: list[Decisions | None] = [None] * count
        self._fleet = fleet_for(self._gpus, len(nodes[False].send_ns))
        self._rules: Sequence[_Rule] = tuple(product(RULES, self._nodes))
        self._chance = np.random.default_rng(seed)
        self._best = _Way(self._rules[0], (self.best(),) * self._gpus)
        self._best_ns = NEVER
        self.programs = 0
        self._offer(self.best())

    @property
    def cluster_ns(self) -> int:
        """Time of the best programs on all GPUs, in nanoseconds."""
        return self._best_ns

    @property
    def rule(self) -> tuple[Rule, bool]:
        """Which copy is next with the best programs, and whether the largest gradient is, for `turn`."""
        return self._best.rule

    def start(self, schedules: Iterable[Schedule], deadline: float = math.inf) -> None:
        """Take schedules of the plan, for all GPUs and then each for some, where that is shorter.

        Blocks lie where they lie there. The deadline is a time on the clock of `time.monotonic`.
        """
        offered = []
        for schedule in schedules:
            decisions = decisions_from(self.instance, self._problem, schedule)
            repair(self._problem, decisions, self._room, self._splitmix, -1, 0)
            placed = copied(decisions)
            _put_in_places(self._problem, placed, schedule)
            offered += [one for one in (decisions, placed) if self._offer(one)]
        now, before = time.monotonic(), NEVER
        until = now + _MIXING * (deadline - now)
        while self._differ and self.cluster_ns < before:
            before = self.cluster_ns
            for gpu, one in product(range(self._gpus), offered):
                if time.monotonic() >= until:
                    return
                self._try(self._best.put([gpu], one))

    def descend(self, deadline: float = math.inf, patience: int = PATIENCE) -> None:
        """Search until a time on the clock of `time.monotonic`, or until nothing is better for long.

        GPUs with the same program keep the same at first.

        Parameters
        ----------
        deadline
            The time in seconds.
        patience
            Number of programs without a better one after which the search is done, first while GPUs do the
            same and then when they need not.
        """
        now = time.monotonic()
        self._descents(now + (_ALIKE if self._differ else 1.0) * (deadline - now), patience, apart=False)
        if self._differ:
            self._descents(deadline, patience, apart=True)

    def _descents(self, deadline: float, patience: int, *, apart: bool) -> None:
        """Descend again and again; while GPUs do the same, from the second time on after random moves."""
        descents, best_at = 0, self.programs
        while self.programs - best_at < patience and time.monotonic() < deadline:
            before = self.cluster_ns
            length = _HISTORIES[apart][descents % len(_HISTORIES[apart])]
            strength = 1 << descents % 5 if descents and not apart else 0
            self._descend(length, strength, deadline, min(_CALM * length, patience), apart=apart)
            descents += 1
            if self.cluster_ns < before:
                best_at = self.programs

    def found(self, method: str) -> list[Schedule] | None:
        """Return the best programs as schedules of the plan, one per GPU of a node, for a method.

        GPUs with the same program have the same schedule. The result is None if there are none.
        """
        if self.cluster_ns >= NEVER:
            return None
        made: dict[int, Schedule] = {}
        for one in self._best.programs:
            if id(one) not in made:
                steps = self._steps(one)
                program = program_of(self.instance, self._problem, self.memory, steps)
                made[id(one)] = program.finish(method)
        return [made[id(one)] for one in self._best.programs]

    def _offer(self, decisions: Decisions) -> bool:
        """Take decisions for all GPUs, if they are the best ones with any rule; return whether they fit."""
        ways = [_Way(rule, (decisions,) * self._gpus) for rule in self._rules]
        return min([self._try(way) for way in ways]) < NEVER

    def _try(self, way: _Way) -> int:
        """Return the time of a way; keep it if it is the best one."""
        found = self._time(way, self._best, NEVER - 1)
        if found < self._best_ns:
            self._best_ns, self._best = found, way
        return found

    def _time(self, way: _Way, current: _Way, allowed: int) -> int:
        """Return the time of all GPUs, as `time_in_turn` does; `NEVER` if a program has no room.

        Programs of the current way are at hand afterwards.
        """
        kept = {id(one) for one in (*way.programs, *current.programs)}
        for gpu, one in enumerate(way.programs):
            place = self._place(one, kept)
            if place is None:
                return NEVER
            self._fleet.plays[gpu] = place
        self.programs += 1
        rule, largest_first = way.rule
        node, single = self._nodes[largest_first], self._problem.single
        return int(
            time_in_turn(self._programs, node, self._fleet, (rule.out_ns, rule.back_ns), single, allowed)
        )

    def _place(self, decisions: Decisions, kept: Collection[int]) -> int | None:
        """Return which program is that of some decisions, and read it if need be; None if it has no room."""
        for i, one in enumerate(self._held):
            if one is decisions:
                return i
        makespan, steps = simulate(self._problem, decisions, self._room, self._search.stalls[1], ANY)
        if makespan >= IMPOSSIBLE:
            return None
        free = next(i for i, one in enumerate(self._held) if id(one) not in kept)
        replay(self._room.log, steps, self._figures, self._programs, free)
        self._held[free] = decisions
        return free

    def _descend(self, length: int, strength: int, deadline: float, patience: int, *, apart: bool) -> None:
        """Go down by late acceptance from the best way after some random moves."""
        near, current = self._near(), self._best
        if strength:
            alike = current.alike(int(self._chance.integers(self._gpus)))
            current = current.put(alike, self._changed(near, current.programs[alike[0]], strength))
        lowest = cost = self._time(current, current, NEVER - 1)
        history, calm, move = [cost] * length, 0, 0
        while calm < patience and time.monotonic() < deadline:
            trial = self._moved(near, current, apart=apart)
            turn = move % length
            found = self._time(trial, current, max(cost, history[turn]))
            if found <= cost or found <= history[turn]:
                current, cost = trial, found
                if cost < self._best_ns:
                    self._best_ns, self._best = cost, current
            history[turn] = min(history[turn], cost)
            calm, lowest = (0, cost) if cost < lowest else (calm + 1, lowest)
            move += 1

    def _moved(self, near: Search, way: _Way, *, apart: bool) -> _Way:
        """Return a way after a random move."""
        chance, drawn = self._chance, self._chance.random()
        if drawn < _OTHER_RULE:
            return replace(way, rule=self._other_rule(way.rule))
        gpu = int(chance.integers(self._gpus))
        mine = way.programs[gpu]
        if drawn < _OTHER_RULE + _OTHER_GPU:
            other = int(chance.integers(self._gpus))
            if (theirs := way.programs[other]) is not mine:
                moved = way.put([gpu], theirs)
                return moved.put([other], mine) if chance.integers(2) else moved
        gpus = [gpu] if apart and chance.random() < _APART else way.alike(gpu)
        return way.put(gpus, self._changed(near, mine, 1 + int(chance.integers(4) == 0)))

    def _other_rule(self, rule: _Rule) -> _Rule:
        """Return a rule at random: one that plans are tried with, or a given one with another lead."""
        chance = self._chance
        if chance.integers(2):
            return self._rules[int(chance.integers(len(self._rules)))]
        lead = int(10.0 ** chance.uniform(*_LEADS)) * (1, -1)[int(chance.integers(2))]
        (out_ns, back_ns), largest_first = rule
        return (Rule(out_ns, lead) if chance.integers(2) else Rule(lead, back_ns)), largest_first

    def _changed(self, near: Search, program: Decisions, strength: int) -> Decisions:
        """Return decisions after some random moves."""
        set_off(self._problem, near, self._room, program, strength)
        return copied(near.current)

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
