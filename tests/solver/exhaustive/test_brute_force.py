"""Exhaustive search by hand, and against every method on tensors in parts; test_chain has the others."""

from __future__ import annotations

import time

import msgspec
import pytest

from pebbler.heuristics.methods import Limits, Refusal, list_methods
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.solver.bounds import best_bound, compute_bound
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.result import Status
from pebbler.solver.solve import solve
from pebbler.validate.check import check

SEEDS = 200


@pytest.mark.parametrize(
    ("first", "step"),
    [(1, 24), *(pytest.param(first, 4, marks=pytest.mark.slow) for first in range(4))],
)
def test_bounds_then_exhaustive_search_then_every_method_on_parts(first, step):
    solved = found = 0
    instances = [i for i in map(tiny_instance, range(150)) if any(b.tensor for b in i.blocks)][first::step]
    for instance in instances:
        bound = best_bound(instance).lower_bound_ns
        divisible = brute_force(instance, "divisible")
        try:
            contiguous = brute_force(instance, "contiguous", most_states=10_000)
        except TimeoutError:
            continue
        shortest = None
        if divisible is not None:
            assert check(instance, divisible).reasons == ()
            assert bound <= divisible.makespan_ns
        if contiguous is not None:
            assert check(instance, contiguous).reasons == ()
            assert divisible is not None
            assert divisible.makespan_ns <= contiguous.makespan_ns
            shortest = contiguous.makespan_ns
            solved += 1
        for method in list_methods():
            if method.name in ("brute-force", "flow-parts"):  # the latter is flow
                continue
            try:
                schedule = method.call(instance, Limits()).schedule
            except Refusal:
                continue
            if schedule is None and method.name in (
                "cp-sat",
                "milp",
                "flow",
                "flow-recompute",
                "checkmate",
                "poet",
            ):
                continue  # it has a bound, but found no places, or no program of its kind
            assert schedule is not None
            assert shortest is not None, f"{method.name} solves {instance.name}, the search did not"
            assert check(instance, schedule).reasons == ()
            assert shortest <= schedule.makespan_ns
            found += 1
    assert solved >= max(len(instances) / 3, 1)
    assert found >= solved


def test_the_tiny_instances_have_what_they_promise():
    instances = [tiny_instance(seed) for seed in range(SEEDS)]
    features = {
        "one engine": lambda i: i.engines == "single",
        "updates": lambda i: any(task.updates for task in i.tasks),
        "parts": lambda i: any(block.tensor for block in i.blocks),
        "fork": lambda i: any(len([k for k in uses if i.tasks[k].name[0] == "F"]) > 2 for uses in i.uses),
        "moves": lambda i: any(block.move_ns is not None for block in i.blocks),
        "recomputation": lambda i: any(task.recomputable for task in i.tasks),
        "input on the host": lambda i: i.blocks[0].initially == "host",
        "null times": lambda i: any(block.offload_ns is None for block in i.blocks),
    }
    counts = {name: sum(map(has, instances)) for name, has in features.items()}
    assert min(counts.values()) >= 10, counts


def _relay(*, offload_ns: int | None, budget: int, recomputable: bool = False) -> Instance:
    """A is made, not needed by the large task in the middle, and needed at the end."""
    sizes = {"X": 4, "A": 4, "B": 8, "C": 4}
    run = Algorithm(name="run", duration_ns=10, workspace_bytes=0)
    return Instance(
        name="relay",
        engines="duplex",
        budget_bytes=budget,
        resident_bytes=0,
        alignment_bytes=4,
        blocks=tuple(
            Block(
                name=name,
                bytes=size,
                offload_ns=offload_ns,
                prefetch_ns=None if offload_ns is None else 3,
                initially="device" if name == "X" else "absent",
            )
            for name, size in sizes.items()
        ),
        tasks=(
            Task(name="a", inputs=(0,), outputs=(1,), algorithms=(run,), recomputable=recomputable),
            Task(name="b", inputs=(0,), outputs=(2,), algorithms=(run,)),
            Task(name="c", inputs=(0, 2), outputs=(3,), algorithms=(run,)),
            Task(name="d", inputs=(0, 1, 3), outputs=(), algorithms=(run,)),
        ),
    )


def test_keeping_costs_nothing_where_there_is_room():
    schedule = brute_force(_relay(offload_ns=5, budget=20))
    assert schedule is not None
    assert schedule.makespan_ns == 40
    assert all(operation.kind == "run" for operation in schedule.operations)


def test_an_eviction_costs_what_it_must():
    # c needs X, B and C: A must leave (5 ns, hidden behind b) and come back before d (3 ns after c)
    schedule = brute_force(_relay(offload_ns=5, budget=16))
    assert schedule is not None
    assert schedule.makespan_ns == 43


def test_recomputing_takes_the_place_of_copies():
    without = brute_force(_relay(offload_ns=None, budget=16))
    assert without is None
    schedule = brute_force(_relay(offload_ns=None, budget=16, recomputable=True))
    assert schedule is not None
    assert schedule.makespan_ns == 50
    assert check(_relay(offload_ns=None, budget=16, recomputable=True), schedule).valid


def test_infeasible_is_a_proof_and_the_method_says_so():
    result = solve(_relay(offload_ns=None, budget=16), "brute-force")
    assert result.status is Status.INFEASIBLE
    assert result.schedule is None


def test_optimal_by_brute_force_names_who_proved_it():
    # two bytes are spare, but A returns as a whole: a single peak proves 42
    result = solve(_relay(offload_ns=5, budget=18), "brute-force")
    assert result.status is Status.OPTIMAL
    assert (result.makespan_ns, result.bound_by, result.certified) == (43, "brute-force", False)


def test_paged_memory_needs_no_neighbouring_pages():
    page = 2 * 2**20
    instance = _relay(offload_ns=5, budget=4 * page)
    blocks = tuple(msgspec.structs.replace(block, bytes=block.bytes * page // 4) for block in instance.blocks)
    instance = msgspec.structs.replace(instance, blocks=blocks)
    schedule = brute_force(instance, "paged")
    assert schedule is not None
    assert check(instance, schedule).valid
    assert schedule.makespan_ns == 43


def test_a_deadline_that_has_passed_stops_the_search():
    chain = tiny_instance(8)
    free = tuple(msgspec.structs.replace(block, move_ns=1) for block in chain.blocks)
    with pytest.raises(TimeoutError):
        brute_force(msgspec.structs.replace(chain, blocks=free), deadline=time.monotonic() - 1)


def test_so_many_states_and_no_more():
    with pytest.raises(TimeoutError, match="3 states are not enough"):
        brute_force(tiny_instance(8), most_states=3)


def test_too_many_places_are_refused():
    instance = msgspec.structs.replace(_relay(offload_ns=5, budget=4000))
    with pytest.raises(Refusal, match="places"):
        brute_force(instance)


def test_the_compute_bound_is_the_least_of_bounds():
    for seed in range(50):
        instance = tiny_instance(seed)
        assert compute_bound(instance).lower_bound_ns <= best_bound(instance).lower_bound_ns
