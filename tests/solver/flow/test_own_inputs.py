"""FLOW where what a task reads depends on its algorithm, and the methods that choose it, or refuse."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from pebbler.heuristics.methods import Limits, Refusal, list_methods
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.solver.cp_sat.model import solve_divisible
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.model import flow_model
from pebbler.solver.flow.recompute import recompute_bound, recompute_model
from pebbler.solver.flow.stages import refine_bound
from pebbler.solver.solve import solve
from pebbler.validate.bounds.certificate import check_certificate
from pebbler.validate.bounds.reads import with_least_reads
from pebbler.validate.check import check

from ...adversary.instances import Shape, adversarial, with_own_inputs
from ...adversary.theorems import with_least_budget
from ...reading import algorithm, either, in_place_again, with_last
from ...samples import counts
from ...validate.random_programs import reads_otherwise


@pytest.mark.parametrize("integrality", ["none", "algorithms", "all"])
def test_the_model_knows_that_one_of_two_blocks_is_read(integrality) -> None:
    """With the least that is read, no copy is needed; 23 ns are the optimum."""
    bound = recompute_bound(either(), range(4), integrality=integrality)
    assert bound is not None
    assert bound.lower_bound_ns == 23
    least = recompute_bound(with_least_reads(either()), range(4), integrality=integrality)
    assert least is not None
    assert least.lower_bound_ns == 4


def test_the_linear_program_has_a_certificate() -> None:
    bound = recompute_bound(either(), range(4))
    assert bound is not None
    assert bound.certified
    assert bound.certificate is not None
    assert check_certificate(either(), bound.certificate).valid


def test_only_checkpoints_choose() -> None:
    bound = recompute_bound(either(), [0, 1, 2])
    assert bound is not None
    assert bound.lower_bound_ns == 4


def test_a_rule_of_the_model_is_a_row_for_each_instant() -> None:
    """x and y are wanted at both instants of the last task; y is not made again, nor is x."""
    model = recompute_model(either(), range(4), "all")
    assert set(model.read_rows) == {(3, t, d) for t in (6, 7) for d in (0, 1)}
    plain = recompute_model(with_last(either(), algorithm()), range(4), "all")
    assert plain.read_rows == {}


def test_an_algorithm_that_does_not_fit_beside_what_it_reads_is_no_choice() -> None:
    wide = with_last(either(), algorithm("y"), algorithm("xz", inputs=(0, 2)))
    model = recompute_model(wide, range(4), "all")
    assert set(model.choices[3]) == {0}
    assert {d for _, _, d in model.read_rows} == {1}


def test_a_second_run_serves_what_only_some_algorithms_read() -> None:
    """x is made again for the last task in 1 ns, in place of two copies."""
    tasks = tuple(replace(task, recomputable=k == 0) for k, task in enumerate(either().tasks))
    again = either(tasks=tasks)
    bound, found = recompute_bound(again, range(4), integrality="all"), brute_force(again)
    assert bound is not None
    assert found is not None
    assert bound.lower_bound_ns == found.makespan_ns == 5


@pytest.mark.parametrize("integrality", ["none", "all"])
def test_what_runs_again_in_place_of_its_input_reads_it(integrality) -> None:
    """x is made again for y, which overwrites it."""
    instance = in_place_again()
    bound, found = recompute_bound(instance, range(4), integrality=integrality), brute_force(instance)
    assert bound is not None
    assert found is not None
    assert bound.lower_bound_ns == found.makespan_ns == 24
    if bound.certificate is not None:
        assert check_certificate(instance, bound.certificate).valid


def test_refined_bounds_take_that_model() -> None:
    bound = refine_bound(either(), 5.0)
    assert (bound.lower_bound_ns, bound.bound_by[:14]) == (23, "flow-recompute")


def test_models_with_known_gaps_refuse() -> None:
    with pytest.raises(PebblerError, match="which is not modelled by FLOW over gaps"):
        flow_model(either(), range(4), "none")
    with pytest.raises(PebblerError, match="which is not modelled by the interval model"):
        solve_divisible(either(), Limits())


def test_methods_choose_or_refuse_in_a_sentence() -> None:
    for method in list_methods():
        if method.guest:
            continue
        result = solve(either(), method.name, time_limit=1.0)
        if method.reads == "chosen":
            assert (method.name, result.makespan_ns) == (method.name, 23)
            assert result.schedule is not None
            assert check(either(), result.schedule).valid
        else:
            assert result.makespan_ns is None
            assert f"which is not modelled by {method.name}" in result.stopped_by
    assert {m.name for m in list_methods() if m.reads == "chosen"} == {"flow-recompute", "brute-force"}


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_the_method_reads_the_other_block_where_that_is_better(memory) -> None:
    scaled = in_size(either(), 2**21)
    result = solve(scaled, "flow-recompute", time_limit=2.0, memory=memory)
    assert result.makespan_ns == 23
    assert result.schedule is not None
    assert result.schedule.operations[-1].algorithm == 1


def in_size(instance: Instance, factor: int) -> Instance:
    """The instance with all sizes multiplied."""
    blocks = tuple(replace(block, bytes=block.bytes * factor) for block in instance.blocks)
    return replace(instance, blocks=blocks, budget_bytes=instance.budget_bytes * factor)


def test_without_transfers_what_needs_none_is_read() -> None:
    neither = with_last(either(), *either().tasks[3].algorithms, algorithm("neither", 9, inputs=()))
    result = solve(neither, "flow-recompute", time_limit=1.0, without=["transfers"])
    assert result.makespan_ns == 12
    assert result.offloaded_bytes == 0


def test_a_warm_start_says_what_is_read() -> None:
    first = solve(either(), "brute-force")
    result = solve(either(), "flow-recompute", time_limit=1.0, warm_start=first.schedule)
    assert result.makespan_ns == 23


def test_carried_blocks_are_refused() -> None:
    blocks = list(either().blocks)
    carried = either(blocks=(*blocks, replace(blocks[0], name="w", initially="carried")))
    result = solve(carried, "flow-recompute", time_limit=1.0)
    assert result.makespan_ns is None
    assert "no method plans both" in result.stopped_by


@pytest.mark.parametrize("count", counts(12, 120))
def test_on_tiny_instances_the_method_lies_between_its_bound_and_the_optimum(count: int) -> None:
    met = judged = otherwise = 0
    for seed in range(count):
        rng = Random(seed)
        shape = Shape(tasks=5, blocks=4, digits=1, reruns=seed % 2 == 0, parts=False)
        instance = with_least_budget(with_own_inputs(rng, adversarial(rng, shape)))
        try:
            best = brute_force(instance, most_states=2000)
        except (TimeoutError, Refusal):  # too many states, or places
            continue
        if not instance.reads_vary or best is None:
            continue
        result = solve(instance, "flow-recompute", time_limit=0.5)
        assert result.lower_bound_ns <= best.makespan_ns
        assert result.makespan_ns is not None
        assert best.makespan_ns <= result.makespan_ns
        judged += 1
        met += result.makespan_ns == best.makespan_ns
        assert result.schedule is not None
        otherwise += any(reads_otherwise(instance, o) for o in result.schedule.operations)
    assert judged >= count / 4
    assert met >= 0.75 * judged
    assert otherwise >= judged / 4
