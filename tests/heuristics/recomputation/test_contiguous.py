"""The search over plans in contiguous memory, beside one without addresses."""

from __future__ import annotations

import pytest
from numpy.random import default_rng

from pebbler.heuristics.methods import Limits
from pebbler.heuristics.parts import with_parts
from pebbler.heuristics.recomputation.contiguous import ContiguousRerunSearch, new_rerun_search
from pebbler.heuristics.recomputation.search import RerunSearch
from pebbler.instances.instance import Instance
from pebbler.instances.suites.generators import Knobs, generate
from pebbler.instances.suites.shapes import Layered
from pebbler.instances.transforms import with_recomputation
from pebbler.instances.workload import Workload
from pebbler.solver.flow.recompute_method import flow_recompute
from pebbler.solver.packing.pack import places
from pebbler.validate.check import check


def layered(seed: int) -> Instance:
    """A random graph without copies, in three tenths of what the pool could give and take."""
    alone = Knobs(
        backward=False, recomputable_percent=100, transfer_percent=0, fast_percent=0, slack_percent=30
    )
    return generate("layered", Layered(size=36, width=5), alone, default_rng(seed))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_places_are_found_for_a_whole_program_where_none_are_found_one_by_one(seed: int) -> None:
    instance = layered(seed)
    alone = RerunSearch(instance, "contiguous")
    alone.run(work=150_000)
    assert alone.schedule("alone") is None
    search = new_rerun_search(instance, "contiguous", 0, (), places)
    for _ in range(2):
        search.run(work=150_000)
    schedule = search.schedule("both")
    assert schedule is not None
    assert schedule.memory_model == "contiguous"
    assert check(instance, schedule).reasons == ()
    assert search.makespan_ns == schedule.makespan_ns


def test_the_method_searches_so() -> None:
    answer = flow_recompute(layered(0), Limits(4.0))
    assert answer.schedule is not None
    other = flow_recompute(layered(0), Limits(1.0, without=frozenset({"relaxed-start"}))).schedule
    assert other is None or other.makespan_ns > answer.schedule.makespan_ns


def test_other_memory_models_and_tensors_in_parts_have_one_search() -> None:
    instance = with_recomputation(Workload("lenet", 64, "k40").instance("1.2xMmin"))
    assert isinstance(new_rerun_search(instance, "contiguous", 0, (), places), ContiguousRerunSearch)
    for other in (
        new_rerun_search(instance, "paged", 0, (), places),
        new_rerun_search(instance, "contiguous", 0, ("relaxed-start",), places),
        new_rerun_search(with_parts(instance), "contiguous", 0, (), places),
    ):
        assert not isinstance(other, ContiguousRerunSearch)
