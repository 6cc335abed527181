"""Looks at choices: as many at once as there are workers, each choice once, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import pytest

from pebbler.heuristics.clock import OutOfTime
from pebbler.heuristics.methods import Answer, Limits, MethodInfo, find_method
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.solver.choosing import Choice, Choosing
from pebbler.validate.schedule import Schedule

BEST = frozenset({1, 4, 5, 11})


class Looking(Choosing):
    """Choices of twelve things, which look the longer the more of them are not those of `BEST`."""

    def __init__(self, workers: int, late: Choice | None = None) -> None:
        info: MethodInfo = find_method("modnn")
        super().__init__(tiny_instance(0), info, info.call, Limits(workers=workers), (), bounded=False)
        self.late = late
        self.seen: list[Choice] = []
        self.threads: set[int] = set()
        self.together = threading.Barrier(workers)

    def choice_of(self, start: Schedule) -> Choice:
        raise NotImplementedError

    def ladder(self) -> Iterable[Choice]:
        return [frozenset(), frozenset(range(12))]

    def looks(self, choice: Choice) -> float:
        self.seen.append(choice)
        self.threads.add(threading.get_ident())
        if choice == self.late:
            raise OutOfTime("time limit")
        return float(len(choice ^ BEST))

    def groups(self) -> Sequence[Sequence[int]]:
        return [[k] for k in range(12)]

    def admits(self, choice: Choice) -> bool:
        return 7 not in choice

    def planned(self, choice: Choice, limits: Limits) -> Answer:
        raise NotImplementedError


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_each_choice_is_looked_at_once_and_the_best_comes_first(workers: int) -> None:
    looking = Looking(workers)
    ranked = looking.ranked()
    assert ranked[0] == BEST
    assert len(looking.seen) == len(set(looking.seen)) == len(ranked)
    assert all(7 not in choice for choice in ranked if choice != frozenset(range(12)))
    if workers == 1:
        assert looking.threads == {threading.get_ident()}


def test_looks_run_at_once() -> None:
    looking = Looking(2)

    def wait(choice: Choice) -> float:
        looking.together.wait(timeout=30)  # for the other one
        return float(len(choice))

    looking.looks = wait  # type: ignore[method-assign]
    found: dict[Choice, float] = {}
    looking.look_at([frozenset({k}) for k in range(4)], found)
    assert found == {frozenset({k}): 1.0 for k in range(4)}


@pytest.mark.parametrize("workers", [1, 3])
def test_what_was_found_before_the_time_was_up_is_kept(workers: int) -> None:
    choices = [frozenset({k}) for k in range(4)]
    looking = Looking(workers, late=choices[2])
    found: dict[Choice, float] = {}
    with pytest.raises(OutOfTime):
        looking.look_at(choices, found)
    assert list(found)[:2] == choices[:2]
    assert choices[2] not in found
    assert looking.ranked()  # of those found in time


def test_an_error_in_a_look_is_raised() -> None:
    looking = Looking(2)

    def fail(_choice: Choice) -> float:
        raise ArithmeticError("wrong")

    looking.looks = fail  # type: ignore[method-assign]
    with pytest.raises(ArithmeticError, match="wrong"):
        looking.look_at([frozenset(), frozenset({1})], {})
