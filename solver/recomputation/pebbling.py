"""Recomputation alone by best-first search over the blocks in memory: exact, if few blocks fit at once.

A state is how many tasks have run for the first time, and the set of blocks on the device. From a state, the
next task runs, or a task runs again. Before that, blocks are released that take its room, and no more of them
than necessary, because other blocks can be released later. The search is A*: the time so far is added to the
least time of the runs that must still come. These are every remaining task, once more the producer of each
absent block that one of them reads, and the producers of the absent blocks that those read.

The fewer blocks fit at once, the fewer states there are, so that the search is strong where integer programs
are weak. It has no stages: a task may run any number of times between two first runs.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ...heuristics.recomputation.reruns import stages_of
from ...instances.arguments import require_fixed_reads
from ...instances.instance import Instance, Task

Step = tuple[int, int]
"""A run: a task and its algorithm."""


@dataclass(frozen=True, slots=True)
class Pebbling:
    """The result of the search.

    Attributes
    ----------
    runs
        Tasks and algorithms of a shortest program, in order. None if there is no program, or if the search
        ended before it was found.
    lower_bound_ns
        A lower bound on programs in nanoseconds; infinite if it is proven that there is none.
    """

    runs: tuple[Step, ...] | None
    lower_bound_ns: float


def pebble(instance: Instance, *, deadline: float = math.inf, most_states: float = math.inf) -> Pebbling:
    """Find a shortest program without copies.

    Parameters
    ----------
    instance
        The instance to schedule. Blocks that start on the host only are always absent. Memory is counted in
        bytes, so that the result bounds programs in every memory model.
    deadline
        Value of `time.monotonic` at which to give up.
    most_states
        Number of states, expanded or waiting, after which to give up; it does not depend on the computer's
        speed.
    """
    require_fixed_reads(instance, "the search over states")
    search = _Search(instance, deadline)
    start = search.start()
    if start is None:
        return Pebbling(None, math.inf)
    order = 0
    queue: list[tuple[float, int, int, _State]] = [(search.left(start), 0, order, start)]
    reached = {start: 0}
    parents: dict[_State, tuple[_State, Step]] = {}
    closed: set[_State] = set()
    while queue:
        estimate, _, _, state = heapq.heappop(queue)
        if state in closed:
            continue
        closed.add(state)
        if search.done(state):
            return Pebbling(_path(parents, state), estimate)
        now = reached[state]
        for step, following, elapsed in search.steps(state, _again(parents, state)):
            then = now + elapsed
            if then >= reached.get(following, math.inf):
                continue
            left = search.left(following)
            if left < math.inf:
                reached[following] = then
                parents[following] = state, step
                order += 1
                heapq.heappush(queue, (then + left, -then, order, following))
                if order > most_states:
                    break
        if order > most_states or search.late:  # what was queued before is no less than this estimate
            return Pebbling(None, estimate)
    return Pebbling(None, math.inf)


_State = tuple[int, int]
"""Number of tasks that have run for the first time, and the blocks on the device as a bit mask."""


class _Search:
    """The steps that are possible at a state.

    Attributes
    ----------
    late
        Whether the deadline has passed; then there are no more steps.
    """

    def __init__(self, instance: Instance, deadline: float) -> None:
        self.instance = instance
        self.deadline = deadline
        self.late = False
        self.sizes = [block.bytes for block in instance.blocks]
        self.room = max(instance.pool_bytes, 0)
        self.total = len(instance.tasks)
        stages = [[k for k in stage if k != t] for t, stage in enumerate(stages_of(instance))]
        stages += [[]] * (self.total + 1 - len(stages))
        self.again = [_mask(k + 1 for k in stage) for stage in stages]  # bit 0: no task
        self.inputs = [_mask((*task.inputs, *task.updates)) for task in instance.tasks]
        self.outputs = [_mask(task.outputs) for task in instance.tasks]
        self.algorithms = [_efficient(task) for task in instance.tasks]
        self.least = [algorithms[0][0] for algorithms in self.algorithms]
        self.tail = [*accumulate(reversed(self.least), initial=0)][::-1]
        self.final = _mask(d for d, block in enumerate(instance.blocks) if block.finally_ == "device")
        self.maker = {d: k for k, task in enumerate(instance.tasks) for d in task.outputs}
        self.needed = self._needed()
        self.wanted = [
            needed | _mask(d for k in stage for d in instance.tasks[k].inputs)
            for needed, stage in zip(self.needed, stages, strict=True)
        ]

    def _needed(self) -> list[int]:
        """Return, per number of first runs, the existing blocks that are read later or must remain."""
        read = [self.final]
        for inputs in reversed(self.inputs):
            read.append(read[-1] | inputs)
        exists = _mask(d for d, block in enumerate(self.instance.blocks) if block.initially != "absent")
        needed = []
        for t, to_come in enumerate(reversed(read)):
            needed.append(exists & to_come)
            exists |= self.outputs[t] if t < self.total else 0
        return needed

    def start(self) -> _State | None:
        """Return the useful blocks that start on the device; None if the required ones do not fit."""
        there = _mask(d for d, block in enumerate(self.instance.blocks) if block.initially == "device")
        there &= self.wanted[0]
        return (0, there) if self.bytes(there) <= self.room and self.left((0, there)) < math.inf else None

    def done(self, state: _State) -> bool:
        """Return whether all tasks have run, and the blocks that must end on the device are there."""
        return state[0] == self.total and not self.final & ~state[1]

    def bytes(self, blocks: int) -> int:
        """Return the bytes of a set of blocks."""
        return sum(self.sizes[d] for d in _bits(blocks))

    def lost(self, state: _State) -> list[int] | None:
        """Return the tasks that must run again: producers of absent blocks that are needed, and so on.

        None means that a block is absent that no task can make again.
        """
        t, there = state
        tasks: list[int] = []
        absent = self.needed[t] & ~there
        seen = absent
        while absent:
            low = absent & -absent
            absent ^= low
            k = self.maker.get(low.bit_length() - 1, -1)
            if not self.again[t] >> (k + 1) & 1:
                return None
            if k not in tasks:
                tasks.append(k)
                more = self.inputs[k] & ~there & ~seen
                seen |= more
                absent |= more
        return tasks

    def left(self, state: _State) -> float:
        """Return the least time of the remaining runs; infinite if a block cannot be made again."""
        tasks = self.lost(state)
        return math.inf if tasks is None else self.tail[state[0]] + sum(self.least[k] for k in tasks)

    def steps(self, state: _State, last: Step | None) -> Iterator[tuple[Step, _State, int]]:
        """Yield the runs that may come next, with the states that they lead to and their times.

        If the last step was a second run and a first run could have come before it, this first run is left
        out. A state can have a hundred thousand steps, so each of them checks the clock.
        """
        t, there = state
        again = self.lost(state) or ()
        for k in (*([t] if t < self.total else []), *again):
            if self.inputs[k] & ~there:
                continue
            touched = self.inputs[k] | self.outputs[k]
            following = max(t, k + 1)
            rest, must = there & ~touched, self.bytes(touched)
            for duration, scratch, a in self.algorithms[k]:
                if must + scratch > self.room:
                    continue
                excess = must + scratch + self.bytes(rest) - self.room
                blocks = sorted(((self.sizes[d], d) for d in _bits(rest)), reverse=True) if excess > 0 else ()
                for kept in sets_that_stay(rest, blocks, excess):
                    if time.monotonic() > self.deadline:
                        self.late = True
                        return
                    after = following, (kept | touched) & self.wanted[following]
                    if k != t or last is None or not self._as_well(last, t, after):
                        yield (k, a), after, duration

    def _as_well(self, last: Step, t: int, after: _State) -> bool:
        """Return whether a second run could come after the first run t, and lead to the same state."""
        k, a = last
        if k >= t or self.inputs[t] & self.outputs[k] or not self.again[t + 1] >> (k + 1) & 1:
            return False
        if self.inputs[k] & ~after[1]:
            return False
        scratch = self.instance.tasks[k].algorithms[a].workspace_bytes
        return self.bytes(after[1] | self.outputs[k]) + scratch <= self.room


def _efficient(task: Task) -> list[tuple[int, int, int]]:
    """Return duration, workspace and index of the algorithms such that none is both faster and leaner."""
    chosen: list[tuple[int, int, int]] = []
    keys = [(a.duration_ns, a.workspace_bytes, i) for i, a in enumerate(task.algorithms)]
    for key in sorted(keys):
        if not chosen or key[1] < chosen[-1][1]:
            chosen.append(key)
    return chosen


def sets_that_stay(rest: int, blocks: Sequence[tuple[int, int]], excess: int) -> Iterator[int]:
    """Yield the sets of blocks that may remain when blocks leave, until the excess is gone.

    No set leaves out a block that need not leave. The largest blocks leave first.
    """
    totals = [*accumulate(size for size, _ in reversed(blocks))][::-1]
    choices = [(rest, 0, excess)]
    while choices:
        rest, i, excess = choices.pop()
        if excess <= 0:
            yield rest
        elif i < len(blocks) and totals[i] >= excess:  # else all from here on are too little
            size, d = blocks[i]
            choices.append((rest, i + 1, excess))
            choices.append((rest & ~(1 << d), i + 1, excess - size))


def _again(parents: Mapping[_State, tuple[_State, Step]], state: _State) -> Step | None:
    """Return the second run that led to a state; None if a first run did."""
    before, step = parents.get(state, (None, None))
    return step if before is not None and before[0] == state[0] else None


def _path(parents: Mapping[_State, tuple[_State, Step]], state: _State) -> tuple[Step, ...]:
    """Return the runs that lead to a state."""
    steps = []
    while state in parents:
        state, step = parents[state]
        steps.append(step)
    return tuple(reversed(steps))


def _mask(blocks: Iterable[int]) -> int:
    mask = 0
    for d in blocks:
        mask |= 1 << d
    return mask


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
