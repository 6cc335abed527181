"""FLOW where host memory has a budget: its bounds hold, are certified, and say what too little costs."""

from __future__ import annotations

from random import Random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.heuristics.search.search import LocalSearch
from pebbler.instances.instance import Instance
from pebbler.instances.memory import least_host_bytes
from pebbler.instances.workload import Workload
from pebbler.solver.flow.host import fitting_guide
from pebbler.solver.flow.model import flow_bound, flow_model
from pebbler.solver.solve import solve
from pebbler.validate.bounds.certificate import check_certificate, sealed
from pebbler.validate.check import check

from ...samples import counts
from ...validate.hostile import hostile_instance
from ...validate.random_programs import random_schedule

WHOLE = Workload("vgg16", 64, "k40").instance("1.1xMmin")
LEAST = least_host_bytes(WHOLE)
EVERY = range(len(WHOLE.tasks))


@pytest.mark.parametrize("shares", [(3.0, 1.0), pytest.param((3.0, 1.5, 1.25, 1.0), marks=pytest.mark.slow)])
def test_the_bound_rises_as_host_memory_falls_and_never_passes_a_schedule(shares: tuple[float, ...]) -> None:
    free = flow_bound(WHOLE, EVERY)
    assert free is not None
    bounds = [free.lower_bound_ns]
    for share in shares:
        instance = replace(WHOLE, host_budget_bytes=int(LEAST * share))
        bound = flow_bound(instance, EVERY)
        assert bound is not None
        assert bound.certified
        assert bound.lower_bound_ns >= bounds[-1]
        bounds.append(bound.lower_bound_ns)
        found = solve(instance, "modnn").makespan_ns
        assert found is None or bound.lower_bound_ns <= found
    assert bounds[1] == bounds[0]
    assert bounds[-1] > 1.2 * bounds[0]


def test_prices_of_host_memory_are_part_of_the_proof() -> None:
    instance = replace(WHOLE, host_budget_bytes=LEAST)
    bound = flow_bound(instance, EVERY)
    assert bound is not None
    proof = bound.certificate
    assert proof is not None
    assert proof.host_prices is not UNSET
    assert check_certificate(instance, proof).valid
    with_more = replace(instance, host_budget_bytes=LEAST * 5 // 4)
    assert "prove a bound of" in check_certificate(with_more, proof).reasons[0]
    assert "where it has a budget" in check_certificate(WHOLE, proof).reasons[0]
    dearer = sealed(replace(proof, host_prices=tuple(10 * price for price in proof.host_prices)))
    assert not check_certificate(instance, dearer).valid
    short = sealed(replace(proof, host_prices=proof.host_prices[:-1]))
    assert "one for each instant" in check_certificate(instance, short).reasons[0]
    without = sealed(replace(proof, host_prices=UNSET))
    assert "prove a bound of" in check_certificate(instance, without).reasons[0]


def test_plenty_of_host_memory_has_no_rows() -> None:
    plenty = replace(WHOLE, host_budget_bytes=sum(block.bytes for block in WHOLE.blocks))
    assert "host" not in list(flow_model(plenty, EVERY, "none").rows)
    assert "host" in list(flow_model(replace(WHOLE, host_budget_bytes=LEAST), EVERY, "none").rows)


@pytest.mark.slow
def test_flow_closes_the_gap() -> None:
    """Between the least that host memory can be and what a schedule takes without limit."""
    small = Workload("alexnet", 64, "k40").instance("1.05xMmin")
    result = solve(replace(small, host_budget_bytes=least_host_bytes(small) * 3 // 2), "flow")
    assert result.schedule is not None
    assert result.optimality_gap is not None
    assert result.optimality_gap < 1e-4


@pytest.mark.parametrize("count", counts(40, 150))
def test_no_bound_of_a_hostile_instance_passes_any_random_schedule(count: int) -> None:
    rng = Random(0)
    compared = met = 0
    for _ in range(count):
        instance = hostile_instance(rng, host=True)
        found = [random_schedule(instance, "divisible", rng) for _ in range(6)]
        schedules = [schedule for schedule in found if schedule is not None]
        if not schedules:
            continue
        assert all(check(instance, schedule).valid for schedule in schedules)
        bound = flow_bound(instance, range(len(instance.tasks)))
        assert bound is not None
        least = min(schedule.makespan_ns for schedule in schedules)
        assert bound.lower_bound_ns <= least
        compared += 1
        met += bound.lower_bound_ns == least
    assert compared >= count / 3
    assert met >= count / 5


@pytest.mark.parametrize(
    ("whole", "share"),
    [
        (Workload("vgg16", 64, "v100").instance("1.1xMmin"), 1.0),
        pytest.param(Workload("resnet18", 64, "v100").instance("50%"), 0.9, marks=pytest.mark.slow),
    ],
    ids=["vgg16", "resnet18"],
)
def test_a_choice_that_fits_both_memories_is_a_program_at_once(whole: Instance, share: float) -> None:
    """moDNN refuses, and on ResNet-18 the search's own first evictions take a sixth longer."""
    instance = replace(whole, host_budget_bytes=int(least_host_bytes(whole) * 1.05))
    assert solve(instance, "modnn", memory="paged").schedule is None
    search = LocalSearch(instance, "paged")
    guide = fitting_guide(instance, search.problem, seed=0)
    assert guide is not None
    first = search.makespan_ns
    assert first is not None
    search.suggest(guide)
    schedule = search.schedule("flow")
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    assert schedule.makespan_ns <= share * first


def test_there_is_no_choice_where_whole_pages_leave_too_little_room() -> None:
    whole = Workload("resnet18", 64, "v100").instance("50%")
    instance = replace(whole, host_budget_bytes=int(least_host_bytes(whole) * 1.002))
    assert fitting_guide(instance, LocalSearch(instance, "paged").problem, seed=0) is None
