"""Of searches for several choices, the better half goes on until one is left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import pytest

from pebbler.heuristics.search.search import LocalSearch
from pebbler.solver.choosing import Choice
from pebbler.solver.trying import Tried, halved


class Stub:
    """A search with given costs, first and after each call of `run`."""

    round = 1

    def __init__(self, costs: Sequence[int]) -> None:
        self.costs, self.runs = costs, 0

    @property
    def cost(self) -> int:
        return self.costs[self.runs]

    def run(self, _seconds: float, _work: int) -> None:
        self.runs += 1


def tries(*costs: Sequence[int]) -> tuple[list[Stub], list[Tried]]:
    stubs = [Stub(each) for each in costs]
    return stubs, [Tried(choice(i), False, cast("LocalSearch", stub)) for i, stub in enumerate(stubs)]


def choice(i: int) -> Choice:
    return frozenset([i])


@pytest.mark.parametrize("workers", [1, 2])
def test_the_better_half_goes_on(workers: int) -> None:
    stubs, given = tries([9, 8], [9, 6, 5], [9, 7, 4])
    best = [found for found, *_ in halved(given, math.inf, workers)]
    assert best == [choice(1), choice(2)]
    assert [stub.runs for stub in stubs] == [1, 2, 2]


def test_a_search_that_is_as_short_as_can_be_ends() -> None:
    stubs, given = tries([9, 5], [5], [9, 7])
    assert [found for found, *_ in halved(given, math.inf, 1, enough_ns=5)] == [choice(0), choice(0)]
    assert [stub.runs for stub in stubs] == [1, 0, 1]


@pytest.mark.parametrize("count", [0, 1])
def test_there_is_nothing_to_compare(count: int) -> None:
    stubs, given = tries(*[[9]] * count)
    assert list(halved(given, math.inf, 1)) == []
    assert [stub.runs for stub in stubs] == [0] * count
