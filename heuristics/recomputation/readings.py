"""Search over what runs read, where that depends on their algorithms.

A **reading** says, for each task whose algorithms read different blocks, which of these sets it reads. With
the algorithms alone that read so, the instance is an ordinary one, on which `RerunSearch` plans what runs
again and what is copied; its schedules are schedules of the given instance. The search here goes from reading
to reading. A change of what some tasks read takes over the best plan and its transfers, is searched for a
moment, and stays if it is better. All runs of a task read the same blocks. A reading also says which outputs
take over the places of inputs, in each run behind which nothing needs these (`takeovers`). Of the outputs
that may be left out, all runs of their tasks make those that some task reads in it, and leave out the others.

Where nothing can be copied, plans alone (`alone`) are searched together with readings, thousands in the time
that one takes here.

Importing this module imports Numba.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np

from ...instances.instance import Instance, Task
from ...validate.schedule import MemoryModel, Schedule
from ..choices import by_speed
from ..gaps import Guide
from ..methods import Refusal
from ..search.columns import INPUT, OUTPUT, UPDATE, columns_of
from .plans import PlanSearch, Way, is_alone
from .reruns import Plan, algorithms_of, last_stages, names_of, plan_of, useful
from .search import ALONE, LEAST, NARROWER, WIDER, RerunSearch, makers_of
from .takeovers import Pairs, are_alike

Reading = tuple[int, ...]
"""Per task with a choice, which of its ways it takes: 0 is to read its inputs and overwrite nothing."""

_EFFORT = 100
"""Number of programs that are simulated to judge a reading."""

_DRAWS = 20
"""Number of draws for a reading that has not been tried from the best program so far."""

_FEW = 0.7
"""Share of the changes that are of one task."""


class Readings:
    """The readings of an instance, and the ordinary instance of each.

    Parameters
    ----------
    instance
        An instance in which what some task reads depends on its algorithm.

    Attributes
    ----------
    tasks
        The tasks with such algorithms.
    counts
        How many ways to read each of them has.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        sizes = [block.bytes for block in instance.blocks]
        self._ways = {k: _ways(task, sizes) for k, task in enumerate(instance.tasks) if task.reads_vary}
        self.tasks = tuple(self._ways)
        self.counts = tuple(len(ways) for ways in self._ways.values())
        self._taken = lru_cache(maxsize=4)(self._chosen)  # of the best reading and of another, mostly

    def instance(self, reading: Reading, of: Instance | None = None) -> Instance:
        """Return the instance, or the same one in pages, with the algorithms alone that read so."""
        given = self._instance if of is None else of
        tasks = list(given.tasks)
        for k, way in self._taken(reading).items():
            task = tasks[k]
            tasks[k] = msgspec.structs.replace(
                task,
                inputs=task.reads(way.algorithms[0]),
                outputs=task.makes(way.algorithms[0]),
                algorithms=tuple(
                    msgspec.structs.replace(
                        task.algorithms[a], inputs=msgspec.UNSET, outputs=msgspec.UNSET, takes_over=way.over
                    )
                    for a in way.algorithms
                ),
            )
        return msgspec.structs.replace(given, tasks=tuple(tasks))

    def starts(self) -> list[Reading]:
        """Return the readings to begin with: the tasks' inputs, the fewest bytes, the fastest algorithms.

        The last two read nothing that cannot be on the device, if other algorithms do not. A fourth one is
        that with the tasks' inputs, and with all outputs that take over places of these.
        """
        blocks = self._instance.blocks
        never = {d for d, b in enumerate(blocks) if b.initially == "host" and b.prefetch_ns is None}

        def needed(task: Task, a: int) -> tuple[bool, int, int]:
            algorithm, read = task.algorithms[a], task.reads(a)
            held = sum(blocks[d].bytes for d in (*task.holds(a), *task.makes(a))) + algorithm.workspace_bytes
            return not never.isdisjoint(read), held, algorithm.duration_ns

        def taken(task: Task, a: int) -> tuple[bool, int, int]:
            stuck, held, time_ns = needed(task, a)
            return stuck, time_ns, held

        def best(key: Callable[[Task, int], tuple[bool, int, int]]) -> Reading:
            tasks = self._instance.tasks
            return self.of(lambda k: min(range(len(tasks[k].algorithms)), key=lambda a: key(tasks[k], a)))

        over = tuple(next((w for w, way in enumerate(ways) if way.over), 0) for ways in self._ways.values())
        return list(dict.fromkeys(((0,) * len(self.tasks), best(needed), best(taken), over)))

    def of(self, chosen: Callable[[int], int]) -> Reading:
        """Return the reading of the algorithms that are chosen for the tasks, and of what they overwrite."""

        def way_of(k: int, ways: Sequence[_Way]) -> int:
            over = self._instance.tasks[k].algorithms[chosen(k)].takes_over
            own = [w for w, way in enumerate(ways) if chosen(k) in way.algorithms and way.over == over]
            return min(own, key=lambda w: len(ways[w].algorithms))

        return tuple(way_of(k, ways) for k, ways in self._ways.items())

    def restored(self, reading: Reading, schedule: Schedule) -> Schedule:
        """Return a schedule of the instance of a reading as one of the given instance."""
        taken = self._taken(reading)
        operations = tuple(
            msgspec.structs.replace(
                operation, algorithm=taken[operation.task].algorithms[operation.algorithm]
            )
            if operation.task in taken and operation.algorithm is not None
            else operation
            for operation in schedule.operations
        )
        return msgspec.structs.replace(schedule, operations=operations)

    def numbers(self, reading: Reading, k: int) -> Sequence[int]:
        """Return the algorithms of a task that the instance of a reading has, by their given numbers."""
        taken = self._taken(reading)
        return taken[k].algorithms if k in taken else range(len(self._instance.tasks[k].algorithms))

    def plans(self, memory: MemoryModel, seed: int) -> PlanSearch | None:
        """Return a search for readings and plans together; None where something can be copied.

        Its ways of a task are those of readings, in the same order.
        """
        given = self._instance
        bare = {"inputs": msgspec.UNSET, "outputs": msgspec.UNSET, "takes_over": ()}
        tasks = [
            msgspec.structs.replace(
                task,
                inputs=task.may_read,
                algorithms=tuple(msgspec.structs.replace(a, **bare) for a in task.algorithms),
            )
            if task.reads_vary
            else task
            for task in given.tasks
        ]
        whole = msgspec.structs.replace(given, tasks=tuple(tasks))
        columns, makers = columns_of(whole, memory), makers_of(whole)
        if not is_alone(columns):
            return None
        ways = {k: [self._pair(k, way) for way in ways] for k, ways in self._ways.items()}
        return PlanSearch(columns, makers.of, makers.last, seed, {}, ways)

    def _pair(self, k: int, way: _Way) -> tuple[Way, Way]:
        """Return a way for plans alone: where nothing reads what may be left out, and where all is read."""
        task, blocks = self._instance.tasks[k], self._instance.blocks

        def told(one: _Way) -> Way:
            first = one.algorithms[0]
            touches = [(d, INPUT) for d in task.reads(first)]
            touches += [(d, OUTPUT) for d in task.makes(first)] + [(d, UPDATE) for d in task.updates]
            own = (task.algorithms[a] for a in one.algorithms)
            return Way(
                tuple(touches),
                tuple((a.duration_ns, a.workspace_bytes) for a in own),
                frozenset(x for d, x in one.over if are_alike(blocks[d], blocks[x])),
            )

        left_out = self._instance.optional.intersection(task.outputs)
        return told(_making(task, way, set())), told(_making(task, way, left_out))

    def _chosen(self, reading: Reading) -> dict[int, _Way]:
        """Return the way of each task, with those of its algorithms that make what later tasks read."""
        taken = {k: ways[w] for (k, ways), w in zip(self._ways.items(), reading, strict=True)}
        read: set[int] = set()
        for k in reversed(self.tasks if self._instance.optional else ()):
            task = self._instance.tasks[k]
            taken[k] = _making(task, taken[k], read.intersection(task.outputs))
            read.update(task.reads(taken[k].algorithms[0]))
        return taken


@dataclass(frozen=True, slots=True)
class _Way:
    """Algorithms of a task that read the same, and outputs that take over places, each with its input."""

    algorithms: tuple[int, ...]
    over: Pairs = ()


def _ways(task: Task, sizes: Sequence[int]) -> list[_Way]:
    """Return the algorithms of a task by what they read, first those that read its inputs; then takeovers.

    The last ones make some outputs even if nothing reads them, as their algorithms have no substitute.
    `sizes` has the bytes of each block.
    """
    found: dict[frozenset[int], list[int]] = {frozenset(task.inputs): []}
    over: dict[tuple[frozenset[int], Pairs], list[int]] = {}
    for a, algorithm in enumerate(task.algorithms):
        read = frozenset(task.reads(a))
        found.setdefault(read, []).append(a)
        if algorithm.takes_over:
            over.setdefault((read, algorithm.takes_over), []).append(a)
    plain = [_Way(tuple(algorithms)) for algorithms in found.values()]
    taking = [_Way(tuple(algorithms), pairs) for (_, pairs), algorithms in over.items()]
    return [*plain, *taking, *(way for one in found.values() for way in _unread(task, one, sizes))]


def _unread(task: Task, algorithms: Sequence[int], sizes: Sequence[int]) -> list[_Way]:
    """Return ways of algorithms that make more than others, and are not as slow, or do with less memory."""
    sets: dict[frozenset[int], list[int]] = {}
    costs = {}
    for a in algorithms:
        sets.setdefault(frozenset(task.makes(a)), []).append(a)
        one = task.algorithms[a]
        costs[a] = one.duration_ns, one.workspace_bytes + sum(sizes[d] for d in task.makes(a))
    ways = []
    for made, own in sets.items():
        less = [costs[b] for other, those in sets.items() if other < made for b in those]
        if less and any(not any(t <= costs[a][0] and m <= costs[a][1] for t, m in less) for a in own):
            ways.append(_Way(tuple(own)))
    return ways


def _making(task: Task, way: _Way, read: Collection[int]) -> _Way:
    """Return a way with those algorithms alone that make what is read, and the least beside it.

    If none does, they are those that read the task's inputs and make all of its outputs.
    """
    made = {a: frozenset(task.makes(a)) for a in way.algorithms}
    fine = [outputs for outputs in made.values() if outputs.issuperset(read)]
    if not fine:
        own = [(a, one.inputs, one.outputs) for a, one in enumerate(task.algorithms)]
        return _Way(tuple(a for a, *keys in own if keys == [msgspec.UNSET, msgspec.UNSET]))
    least = min(fine, key=len)
    return _Way(tuple(a for a in way.algorithms if made[a] == least), way.over)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A reading, its instance, and the search of that."""

    reading: Reading
    instance: Instance
    search: RerunSearch

    @property
    def cost(self) -> tuple[int, int]:
        """The less, the better."""
        return self.search.best.cost


class ReadingSearch:
    """A local search over readings, plans and transfers that can be stopped and continued.

    Parameters
    ----------
    instance
        An instance in which what some task reads depends on its algorithm.
    make
        Makes the search for the instance of a reading.
    seed
        Seed of the random decisions.

    Raises
    ------
    Refusal
        Where the search is refused for all readings that it begins with: the reason for the first of them.
    """

    def __init__(self, instance: Instance, make: Callable[[Instance], RerunSearch], seed: int = 0) -> None:
        self.instance, self.readings = instance, Readings(instance)
        self._make, self._random = make, np.random.default_rng(seed)
        self._polished = self._explored = 0
        self._tried: dict[Reading, tuple[int, int]] = {}  # with the best cost by then
        self._calm = False
        best, reason = None, None
        for reading in self.readings.starts():
            try:
                attempt = self._attempt(reading)
            except Refusal as refusal:
                reason = reason or refusal
                continue
            best = attempt if best is None or attempt.cost < best.cost else best
        if best is None:
            assert reason is not None
            raise reason
        self._best = best
        self._plans, self._part = self.readings.plans(best.search.memory, seed), 1.0

    @property
    def makespan_ns(self) -> int | None:
        """Makespan of the best program so far; None while there is none."""
        return self._best.search.makespan_ns

    @property
    def done(self) -> bool:
        """Whether the search of the best reading has gone on for long, and others have been tried since."""
        planned = self._plans is None or self._plans.done
        return planned and self._calm and self._best.search.done

    @property
    def round(self) -> int:
        """Number of tasks to simulate in one call of `run`."""
        return self._best.search.round

    def schedule(self, method: str) -> Schedule | None:
        """Return the best program as a schedule of the given instance; None while there is none."""
        found = self._best.search.schedule(method)
        return None if found is None else self.readings.restored(self._best.reading, found)

    def offer(self, start: Schedule | Guide) -> None:
        """Start from what a schedule reads and runs again, or from a guide for the best reading."""
        if isinstance(start, Guide):
            self._best.search.offer(start)
            return
        chosen = algorithms_of(start)
        self._consider(self.readings.of(lambda k: chosen[k, k]), plan_of(start), lambda *_: None)

    def offer_plan(self, reading: Reading, plan: Plan, guide: Guide) -> None:
        """Start from a reading, from second runs, and from a guide to transfers in the reading's instance."""
        self._consider(reading, plan, lambda *_: guide)

    def run(self, seconds: float = math.inf, work: int = 100_000) -> None:
        """Continue the search until so many tasks have been simulated, or some seconds have passed."""
        until = time.monotonic() + seconds
        if self._plans is not None:
            planned = int(ALONE.part * work)
            self._plan(self._plans, ALONE.part * seconds, planned)
            work -= planned
        goal = self._polished + self._explored + work
        share = _EFFORT * len(self.instance.tasks)
        while self._polished + self._explored < goal and time.monotonic() < until:
            if self._explored < self._polished and (reading := self._another()) is not None:
                self._try(reading)
                continue
            some = min(share, goal - self._polished - self._explored)
            before = self._best.cost
            self._best.search.run(until - time.monotonic(), some)
            self._calm = self._calm and self._best.cost == before
            self._polished += some

    def _plan(self, plans: PlanSearch, seconds: float, work: int) -> None:
        """Look for a reading and a plan at once, in contiguous memory in a part of the pool."""
        known, before = plans.time_ns, self._best
        plans.run(seconds, ALONE.quicker * work)
        if plans.time_ns == known or plans.time_ns is None:
            return
        ways = plans.ways()
        self._consider(tuple(ways.get(k, 0) for k in self.readings.tasks), plans.best(), lambda *_: None)
        if before.search.memory == "contiguous":
            part = self._part + (WIDER if self._best is not before else -NARROWER)
            self._part = min(max(part, LEAST), 1.0)
            plans.keep_to(self._part)

    def _attempt(self, reading: Reading) -> _Attempt:
        """Return a reading after a short search of its instance."""
        instance = self.readings.instance(reading)
        attempt = _Attempt(reading, instance, self._make(instance))
        self._search(attempt)
        return attempt

    def _search(self, attempt: _Attempt) -> None:
        work = _EFFORT * len(self.instance.tasks)
        attempt.search.run(work=work)
        self._explored += work

    def _try(self, reading: Reading) -> None:
        """Try a reading from the best plan, as far as it is one there, and from its transfers."""
        best = self._best
        point = best.search.best

        def guide(instance: Instance, plan: Plan) -> Guide:
            named = names_of(instance, plan)
            given = point.again.translated(point.guide, named)
            numbers = [self.readings.numbers(best.reading, k) for k, _ in named.runs]
            chosen = [numbers[i][a] for i, a in enumerate(given.algorithms)]
            return given._replace(
                algorithms=[
                    self._number(reading, instance, k, a)
                    for (k, _), a in zip(named.runs, chosen, strict=True)
                ]
            )

        self._consider(reading, point.plan, guide)

    def _number(self, reading: Reading, instance: Instance, k: int, algorithm: int) -> int:
        """Return an algorithm's number in the instance of a reading; the fastest one's if it is not there."""
        kept = self.readings.numbers(reading, k)
        return kept.index(algorithm) if algorithm in kept else by_speed(instance.tasks[k])[0]

    def _consider(
        self, reading: Reading, plan: Plan, guide: Callable[[Instance, Plan], Guide | None]
    ) -> None:
        """Search a reading for a moment, from a plan and a guide, and keep it if it is the best."""
        try:
            attempt = self._best if reading == self._best.reading else self._attempt(reading)
        except Refusal:
            return
        last = last_stages(attempt.instance)
        plan = useful(attempt.instance, ((k, t) for k, t in plan if k < t <= last[k]))
        if self._plans is not None:
            self._plans.offer(plan, dict(zip(self.readings.tasks, reading, strict=True)))
        attempt.search.offer_plan(plan, guide(attempt.instance, plan))
        self._search(attempt)
        if attempt.cost < self._best.cost:
            self._best, self._calm = attempt, False

    def _another(self) -> Reading | None:
        """Return the best reading with some changes, one that has not been tried since that was found."""
        for _ in range(_DRAWS if max(self.readings.counts) > 1 else 0):
            reading = self._changed()
            if self._tried.get(reading) != self._best.cost:
                self._tried[reading] = self._best.cost
                return reading
        self._calm = True
        return None

    def _changed(self) -> Reading:
        several = [i for i, count in enumerate(self.readings.counts) if count > 1]
        some = 1 if self._random.random() < _FEW else int(self._random.integers(1, len(several) + 1))
        reading = list(self._best.reading)
        for i in self._random.choice(several, some, replace=False).tolist():
            others = [s for s in range(self.readings.counts[i]) if s != reading[i]]
            reading[i] = others[int(self._random.integers(len(others)))]
        return tuple(reading)


AnyRerunSearch = RerunSearch | ReadingSearch
"""A search over what runs again, with or without one over what runs read."""
