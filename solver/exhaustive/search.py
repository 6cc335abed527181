"""A search over the states of a machine in the order of time (A*)."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Hashable, Iterable
from typing import Protocol, TypeVar

State = TypeVar("State", bound=Hashable)
Step = TypeVar("Step")
Step_co = TypeVar("Step_co", covariant=True)

Path = list[tuple[State, Step | None]]
"""The states from the start to the end, each with the step that led to it."""


class Machine(Protocol[State, Step_co]):
    """What can happen, and how much time it takes."""

    def initial_states(self) -> Iterable[State]:
        """Return every state in which it can begin."""

    def is_done(self, state: State) -> bool:
        """Return whether nothing is left to do."""

    def time_left(self, state: State) -> int:
        """Return a lower bound on the time until the state is done; a step of some time takes no more off."""

    def steps(self, state: State) -> Iterable[tuple[Step_co, State, int]]:
        """Return the decisions at a state, with the states they lead to and the time that passes."""


def shortest_path(
    machine: Machine[State, Step], *, deadline: float = math.inf, most_states: float = math.inf
) -> Path[State, Step] | None:
    """Return a shortest path to a state that is done; None where there is none.

    Parameters
    ----------
    machine
        The machine.
    deadline
        Value of `time.monotonic` at which to give up.
    most_states
        Number of states after which to give up.

    Raises
    ------
    TimeoutError
        When the deadline has passed, or the search needs more states.
    """
    queue: list[tuple[int, int, int, State]] = []  # estimate, minus the time so far, tie-break, state
    reached: dict[State, tuple[int, State | None, Step | None]] = {}
    order = itertools.count()
    for state in machine.initial_states():
        if time.monotonic() > deadline:
            raise TimeoutError("brute force: the time limit has passed")
        reached[state] = 0, None, None
        heapq.heappush(queue, (machine.time_left(state), 0, next(order), state))
    closed: set[State] = set()
    while queue:
        _, negative, _, state = heapq.heappop(queue)
        now = -negative
        if state in closed:
            continue
        closed.add(state)
        if machine.is_done(state):
            return _path(reached, state)
        if len(closed) > most_states:
            raise TimeoutError(f"brute force: {most_states} states are not enough")
        for step, following, elapsed in machine.steps(state):
            if time.monotonic() > deadline:
                raise TimeoutError("brute force: the time limit has passed")
            then, before = now + elapsed, reached.get(following)
            if before is None or (then < before[0] and following not in closed):
                reached[following] = then, state, step
                heapq.heappush(queue, (then + machine.time_left(following), -then, next(order), following))
    return None


def _path(reached: dict[State, tuple[int, State | None, Step | None]], state: State) -> Path[State, Step]:
    path: Path[State, Step] = []
    here: State | None = state
    while here is not None:
        _, before, step = reached[here]
        path.append((here, step))
        here = before
    return path[::-1]
