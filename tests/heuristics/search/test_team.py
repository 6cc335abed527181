"""Searches in threads: they tell each other of the best program, and end when the first one does."""

from __future__ import annotations

import threading

import pytest

from pebbler.heuristics.loading import kernels
from pebbler.heuristics.methods import Limits, Refusal
from pebbler.heuristics.search import team as team_module
from pebbler.heuristics.search.contiguous import new_search
from pebbler.heuristics.search.search import LocalSearch
from pebbler.heuristics.search.team import Team
from pebbler.instances.instance import Instance
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
from pebbler.validate.check import check
from pebbler.validate.schedule import MemoryModel

from ...samples import crossed

MEMORIES: tuple[MemoryModel, ...] = ("contiguous", "paged")


@pytest.fixture(scope="module")
def googlenet() -> Instance:
    kernels(Limits())
    return Workload("googlenet", 32, "v100").instance("1.2xMmin")


class Made:
    """Makes searches of an instance, and knows them."""

    def __init__(self, instance: Instance, memory: MemoryModel) -> None:
        self.instance, self.memory = instance, memory
        self.searches: list[LocalSearch] = []

    def __call__(self, i: int) -> LocalSearch:
        found = new_search(self.instance, self.memory, i, (), lambda *_: None)
        self.searches.append(found)
        return found


@pytest.mark.parametrize("memory", MEMORIES)
def test_the_first_search_has_the_best_program_of_all(googlenet: Instance, memory: MemoryModel) -> None:
    make = Made(googlenet, memory)
    team = Team(make(0), make, 2)
    for _ in range(5):
        team.run(work=20_000)
    first, *others = make.searches
    assert len(others) == 2
    assert first.cost <= min(search.cost for search in others)
    assert len({search.cost for search in make.searches}) > 1  # each goes its own way
    schedule = first.schedule("local-search")
    assert (schedule is None) == (first.makespan_ns is None)
    if schedule is not None:
        assert check(googlenet, schedule).valid
        assert schedule.makespan_ns == first.makespan_ns


def test_searches_are_made_once_they_run(googlenet: Instance) -> None:
    make = Made(googlenet, "paged")
    team = Team(make(0), make, 2)
    team.run(work=1000, idle=2)
    assert len(make.searches) == 1
    team.run(work=1000, idle=1)
    assert len(make.searches) == 2
    team.run(work=1000)
    team.run(work=1000)
    assert len(make.searches) == 3


def test_the_first_goes_on_where_no_other_can_be_made(
    googlenet: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_module, "APART", 200_000)
    first, asked = Made(googlenet, "paged")(0), []

    def refuse(i: int) -> LocalSearch:
        asked.append(i)
        raise Refusal("time limit")

    team, costs = Team(first, refuse, 2), [first.cost]
    for _ in range(2):
        team.run(work=500_000)  # in which searches would meet twice
        costs.append(first.cost)
    assert costs[2] < costs[0]
    assert sorted(asked) == [1, 2]


def test_errors_of_other_searches_are_not_lost(googlenet: Instance) -> None:
    def fail(_i: int) -> LocalSearch:
        raise ArithmeticError("wrong")

    with pytest.raises(ArithmeticError, match="wrong"):
        Team(Made(googlenet, "paged")(0), fail, 1).run(work=1000)


def test_ctrl_c_in_the_first_ends_all_threads_and_keeps_what_others_found(
    googlenet: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Made(googlenet, "paged")
    team = Team(make(0), make, 1)
    team.run(work=1000)
    first, other = make.searches
    other.run(work=300_000)
    before = threading.active_count()

    def interrupt(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(first, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        team.run(work=10**9)
    assert threading.active_count() == before
    assert first.cost <= other.cost


def test_a_search_follows_at_once_or_after_its_descent(googlenet: Instance) -> None:
    make = Made(googlenet, "paged")
    best, now, later = make(0), make(1), make(2)
    best.run(work=1_000_000)
    for search in (now, later):
        assert search.cost > best.cost
    cost = later.cost
    now.follow(best, at_once=True)
    later.follow(best, at_once=False)
    assert now.cost == best.cost
    assert later.cost == cost
    later.run(work=1_000_000)
    assert later.cost <= best.cost
    best.follow(now, at_once=True)  # which is no better
    assert best.cost == now.cost


@pytest.mark.parametrize(("memory", "method"), crossed(MEMORIES, ("local-search", "flow"), of=2))
def test_methods_search_with_as_many_threads_as_there_are_workers(
    googlenet: Instance, memory: MemoryModel, method: str
) -> None:
    found = solve(googlenet, method, memory=memory, workers=3, time_limit=0.3)
    assert found.schedule is not None
    assert check(googlenet, found.schedule).valid
    assert found.lower_bound_ns <= found.schedule.makespan_ns
