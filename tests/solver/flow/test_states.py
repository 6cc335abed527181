"""The method `flow` on rounds that carry blocks: it chooses their places, and bounds all choices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from pebbler.heuristics.methods import Limits, Refusal
from pebbler.heuristics.search.search import LocalSearch
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.workload import Workload
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.model import flow_model
from pebbler.solver.flow.states import hosted_of, places_offered, run_on_host
from pebbler.solver.linear.facade import solve_linear
from pebbler.solver.solve import solve
from pebbler.solver.steady import has_room, ladder, settled
from pebbler.validate.check import check

from ...samples import sampled
from .test_carried import carried


def one_too_many(dear: int) -> Instance:
    """Return three tasks with a weight each, of which two fit beside what the second leaves to the third.

    Copies of one of the weights take long.
    """
    run = Algorithm(name="a", duration_ns=10, workspace_bytes=0)
    touched = [((0,), ()), ((1,), (3,)), ((2, 3), ())]
    return Instance(
        name="one-too-many",
        engines="duplex",
        budget_bytes=3 * 512,
        resident_bytes=0,
        blocks=(
            *(
                Block(
                    name=f"W{d}",
                    bytes=512,
                    offload_ns=4,
                    prefetch_ns=100 if d == dear else 4,
                    initially="carried",
                )
                for d in range(3)
            ),
            Block(name="y", bytes=512, offload_ns=100, prefetch_ns=100),
        ),
        tasks=tuple(
            Task(name=f"T{k}", inputs=inputs, outputs=outputs, algorithms=(run,))
            for k, (inputs, outputs) in enumerate(touched)
        ),
    )


@pytest.mark.parametrize("stays", [False, True])
def test_what_is_cheap_to_fetch_lives_on_the_host(stays: bool) -> None:
    instance = one_too_many(dear=2)
    model = flow_model(instance, range(3), "none")
    result = solve_linear(model.linear)
    assert result.values is not None
    hosted = hosted_of(model, result.values, stays=stays)
    assert 2 not in hosted
    assert hosted or not stays  # one that begins on the device may leave


@pytest.mark.parametrize("seeds", sampled(range(8), range(0, 60, 20)))
def test_what_is_offered_is_carried_and_what_is_proven_holds(seeds: Sequence[int]) -> None:
    """Among others, LPs are solved in which less is allowed: these prove nothing."""
    met = 0
    for seed in seeds:
        instance = carried(seed)
        offers = places_offered(instance, Limits(), 60)
        assert len(set(offers.choices)) == len(offers.choices)
        assert all(choice.issubset(instance.carried) for choice in offers.choices)
        try:
            best = brute_force(instance, "divisible", most_states=1500)
        except TimeoutError:
            continue
        if best is not None:
            proven = max(bound.lower_bound_ns for bound in offers.bounds)
            assert proven <= best.makespan_ns
            met += proven == best.makespan_ns
    assert met


def test_what_stays_throughout_is_offered() -> None:
    """Without LPs in which it stays, none of the choices looks better than those of the rule."""
    step = {"steady": True, "optimizer": "adamw"}
    instance = Workload("gpt2:layers=2", 4, "rtx4090", **step).instance("Mmin+25%")
    offers = places_offered(instance, Limits(), 60)
    kept = [sum(instance.blocks[d].bytes for d in instance.carried if d not in c) for c in offers.choices]
    assert max(kept) > 0
    by_rule = ladder(instance, "contiguous", "homing")
    assert min(looks(instance, c) for c in offers.choices) < min(looks(instance, c) for c in by_rule)
    result = solve(instance, "flow", time_limit=5)
    assert result.lower_bound_ns >= max(bound.lower_bound_ns for bound in offers.bounds)


def looks(instance: Instance, hosted: frozenset[int]) -> float:
    """Return what a little search without addresses says of a choice."""
    if not has_room(instance, hosted, "contiguous"):
        return math.inf
    chosen = settled(instance, hosted, "contiguous", "homing")
    try:
        search = LocalSearch(chosen, "contiguous", 0, addresses=False)
    except Refusal:
        return math.inf
    search.run(work=100_000)
    return search.cost


def test_as_much_runs_on_the_host_as_in_the_solution() -> None:
    """Each of four equal steps is a column of its own where evictions are whole."""
    step = {"steady": True, "optimizer": "adamw", "optimizer_on": "choose"}
    instance = Workload("gpt2:layers=4", 1, "a100", **step).instance("8GiB")
    same = [k for k, task in enumerate(instance.tasks) if task.name.endswith("_fc)") and task.may_run_on_host]
    assert len(same) == 4
    model = flow_model(instance, [0, len(instance.tasks) // 2], "all")
    values = np.zeros(len(model.linear.cost))
    for share, count in ((0.0, 0), (0.3, 1), (0.5, 2), (0.75, 3), (1.0, 4)):
        values[[model.on_host[k] for k in same]] = share
        hosted = run_on_host(instance, model, values)
        assert len(hosted) == count
        assert hosted <= set(same)


def test_what_can_run_nowhere_else_runs_on_the_host() -> None:
    """It takes no time, so that a solution need not say so: an attack found that `flow` failed."""
    either = (
        Algorithm(name="gpu", duration_ns=1, workspace_bytes=0),
        Algorithm(name="cpu", duration_ns=1, workspace_bytes=0, on="host"),
    )
    instance = Instance(
        name="nowhere-else",
        engines="duplex",
        budget_bytes=1024,
        resident_bytes=0,
        blocks=tuple(Block(name=name, bytes=512, offload_ns=1, prefetch_ns=1) for name in "xy"),
        tasks=(
            Task(name="either", inputs=(), outputs=(0,), algorithms=either),
            Task(name="host", inputs=(0,), outputs=(1,), algorithms=(replace(either[1], duration_ns=0),)),
        ),
    )
    model = flow_model(instance, [0, 1], "none")
    assert run_on_host(instance, model, np.zeros(len(model.linear.cost))) == {1}
    result = solve(instance, "flow", time_limit=1)
    assert result.schedule is not None
    assert check(instance, result.schedule).valid


@pytest.mark.parametrize("dear", [0, 1])
def test_flow_finds_the_optimum_over_all_places_and_proves_it(dear: int) -> None:
    instance = one_too_many(dear)
    best = brute_force(instance, "contiguous")
    assert best is not None
    result = solve(instance, "flow", time_limit=60)  # it ends when the bound meets the schedule
    assert result.schedule is not None
    assert check(instance, result.schedule).valid
    assert result.makespan_ns == result.lower_bound_ns == best.makespan_ns == 34
    assert result.certified


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("seeds", [range(4, 6), pytest.param(range(6), marks=pytest.mark.slow)])
def test_schedules_and_bounds_of_tiny_rounds_are_sound(seeds: range, host: bool) -> None:
    judged = 0
    for seed in seeds:
        instance = replace(carried(3 * seed, host=host), alignment_bytes=1)
        try:
            best = brute_force(instance, "divisible", most_states=2000)
        except TimeoutError:
            continue
        result = solve(instance, "flow", time_limit=0.2)
        if best is None:
            assert result.schedule is None
            continue
        assert (result.lower_bound_ns or 0) <= best.makespan_ns
        if result.schedule is not None:
            assert result.makespan_ns is not None
            assert result.makespan_ns >= best.makespan_ns
            assert check(instance, result.schedule).valid
            judged += 1
    assert judged >= 1
