"""A search with addresses beside one without: what has places takes as long, what has none leads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from pebbler.heuristics.gaps import Guide
from pebbler.heuristics.methods import Limits, find_method
from pebbler.heuristics.parts import with_parts
from pebbler.heuristics.program.placement import Piece
from pebbler.heuristics.search.contiguous import ContiguousSearch, new_search, sides_of
from pebbler.heuristics.search.kernel import EARLY_HIGH, EARLY_LOW
from pebbler.heuristics.search.search import LocalSearch
from pebbler.instances.instance import Instance
from pebbler.instances.workload import Workload
from pebbler.solver.packing.pack import places
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule

_PROBLEMS = (("vgg16", "1.05xMmin"), ("vgg16", "75%"), ("resnet34", "75%"), ("resnet34", "50%"))


def nowhere(_pieces: Sequence[Piece], _capacity: int, _alignment: int) -> None:
    """Find no places."""


def ruled(instance: Instance) -> Schedule:
    schedule = find_method("modnn").call(instance, Limits()).schedule
    assert schedule is not None
    return schedule


def without_addresses(instance: Instance, seed: int, tenths: int) -> LocalSearch:
    """Tenths of a round without addresses from the rule on: the same with which a search leads."""
    search = LocalSearch(instance, "contiguous", seed, addresses=False)
    search.offer(ruled(instance))
    for _ in range(tenths):
        search.run(work=search.round // 10)
    return search


@pytest.mark.parametrize(
    ("problems", "seeds"),
    [(_PROBLEMS[1:2], range(2)), pytest.param(_PROBLEMS, range(4), marks=pytest.mark.slow)],
)
def test_a_program_whose_pieces_have_places_takes_as_long_as_without_addresses(
    problems: Sequence[tuple[str, str]], seeds: range
) -> None:
    """Or nearly: a place may be free later than the bytes are, so that a prefetch comes a task later."""
    found = equal = 0
    for network, budget in problems:
        instance = Workload(network, 64, "v100").instance(budget)
        for seed in seeds:
            has_places: list[bool] = []

            def noted(
                pieces: Sequence[Piece],
                capacity: int,
                alignment: int,
                has_places: list[bool] = has_places,
            ) -> Sequence[int] | None:
                offsets = places(pieces, capacity, alignment)
                has_places.append(offsets is not None)
                return offsets

            search = ContiguousSearch(instance, seed, (), noted)
            relaxed = without_addresses(instance, seed, 1)
            search.offer(ruled(instance))
            search.lead(bound_ns=relaxed.cost)  # it ends when it has found as much
            if not has_places[0]:  # in the whole pool; later ones are in parts of it
                continue
            found += 1
            assert relaxed.cost <= search.cost <= 1.01 * relaxed.cost
            equal += search.cost == relaxed.cost
            schedule = search.schedule("x")
            assert schedule is not None
            assert check(instance, schedule).reasons == ()
            assert schedule.makespan_ns <= search.cost
    assert found >= len(seeds)
    assert equal >= found // 2


def test_rules_put_what_stays_long_at_one_end_and_the_rest_at_the_other() -> None:
    instance = Workload("vgg16", 64, "v100").instance("75%")
    relaxed = without_addresses(instance, 0, 1)
    decisions = relaxed.best()
    pieces = relaxed.lifetimes(decisions)
    found = list(sides_of(decisions, pieces, instance.pool_bytes, instance.alignment_bytes, nowhere))
    where = [piece.side for piece in pieces]
    assert (found[0] == EARLY_LOW).all()
    assert (found[-1][where] == EARLY_HIGH).all()
    for sides in found[1:-1]:
        lengths = {
            rule: [one.piece.end - one.piece.begin for one in pieces if sides[one.side] == rule]
            for rule in (EARLY_LOW, EARLY_HIGH)
        }
        assert len(lengths[EARLY_LOW]) + len(lengths[EARLY_HIGH]) == len(pieces)
        assert max(lengths[EARLY_HIGH]) <= min(lengths[EARLY_LOW])


def test_places_by_rules_are_those_of_the_shortest_program() -> None:
    instance = Workload("resnet34", 64, "v100").instance("75%")
    relaxed = without_addresses(instance, 0, 4)
    decisions = relaxed.best()
    pieces = relaxed.lifetimes(decisions)
    costs = []
    for sides in sides_of(decisions, pieces, instance.pool_bytes, instance.alignment_bytes, nowhere):
        alone = LocalSearch(instance, "contiguous")
        if alone.take_best(relaxed.best(), [sides]):
            costs.append(alone.cost)
    search = ContiguousSearch(instance, 0, (), nowhere)
    known = search.cost
    all_sides = sides_of(decisions, pieces, instance.pool_bytes, instance.alignment_bytes, nowhere)
    assert search.take_best(decisions, all_sides)
    assert search.cost == min(costs) < known
    assert not search.take_best(decisions, [decisions.side.copy()])
    schedule = search.schedule("x")
    assert schedule is not None
    assert check(instance, schedule).reasons == ()


def test_while_nothing_has_places_it_sweeps_over_parts_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = Workload("resnet18", 64, "v100").instance("1.2xMmin")
    search = ContiguousSearch(instance, 0, (), nowhere)
    search.offer(ruled(instance))
    monkeypatch.setattr(ContiguousSearch, "take_best", lambda *_: False)
    whole = search.problem.capacity
    known = [whole]
    while known.count(whole) < 3:
        search.run()
        capacity = search.relaxed.problem.capacity
        if capacity != known[-1]:
            known.append(capacity)
    assert len(known) > 5
    assert all(later < before or later == whole for before, later in pairwise(known))
    assert all(capacity % instance.alignment_bytes == 0 for capacity in known)
    assert min(known) >= 0.5 * whole


def test_it_is_done_at_some_time() -> None:
    instance = Workload("alexnet", 256, "k40").instance("1.1xMmin")
    search = ContiguousSearch(instance, 0, (), nowhere)
    search.offer(ruled(instance))
    search.lead()
    for _ in range(3000):
        if search.done:
            break
        search.run()
    assert search.done


@pytest.mark.slow
def test_what_has_no_places_leads_the_search_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = []
    offer = LocalSearch.offer

    def noting(self: LocalSearch, start: Schedule | Guide) -> None:
        offered.append((self, start))
        offer(self, start)

    instance = Workload("resnet34", 64, "k40").instance("1.05xMmin")
    search = ContiguousSearch(instance, 0, (), nowhere)
    search.offer(ruled(instance))
    begun, found = search.guide(), without_addresses(instance, 0, 8)
    with monkeypatch.context() as patch:
        patch.setattr(LocalSearch, "offer", noting)
        patch.setattr(ContiguousSearch, "take_best", lambda *_: False)
        search.lead(bound_ns=found.cost)
    assert offered == [(search, found.guide())]
    assert found.guide() != begun


@pytest.mark.parametrize(
    ("network", "budget"),
    [
        ("resnet18", "75%"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("resnet34", "75%"), ("vgg16", "1.05xMmin"))
        ),
    ],
)
def test_whoever_runs_it_again_gets_the_same(network: str, budget: str) -> None:
    instance = Workload(network, 64, "v100").instance(budget)
    made = []
    for _ in range(2):
        search = ContiguousSearch(instance, 3, (), places)
        search.offer(ruled(instance))
        search.lead(bound_ns=10**9)  # met at once, so just the first places
        for _ in range(4):
            search.run()
        made.append(search.schedule("x"))
    assert made[0] is not None
    assert made[0] == made[1]
    assert check(instance, made[0]).reasons == ()


def test_it_is_for_contiguous_memory_and_can_be_left_out() -> None:
    instance = Workload("vgg16", 64, "k40").instance("75%")
    assert isinstance(new_search(instance, "contiguous", 0, (), nowhere), ContiguousSearch)
    for memory, without in (("paged", ()), ("divisible", ()), ("contiguous", ("relaxed-start",))):
        search = new_search(instance, memory, 0, without, nowhere)  # type: ignore[arg-type]
        assert type(search) is LocalSearch
    parts = with_parts(Workload("vgg16", 64, "k40").instance("1.05xMmin"))
    assert type(new_search(parts, "contiguous", 0, (), nowhere)) is LocalSearch
