"""FLOW where an algorithm may leave out outputs, and the methods that choose, or refuse."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from pebbler.heuristics.methods import list_methods
from pebbler.instances.instance import Instance, Task
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.recompute import recompute_bound, recompute_model
from pebbler.solver.flow.stages import refine_bound
from pebbler.solver.solve import solve
from pebbler.validate.bounds.certificate import check_certificate
from pebbler.validate.bounds.reads import with_least_reads
from pebbler.validate.check import check

from ...adversary.instances import Shape, adversarial, with_own_outputs
from ...adversary.theorems import with_least_budget
from ...reading import algorithm, block, masked, with_last, with_relu
from ...samples import counts


@pytest.mark.parametrize("integrality", ["none", "algorithms", "all"])
@pytest.mark.parametrize(("budget", "least"), [(9, 5), (12, 4), (8, 23)])
def test_the_model_knows_what_the_mask_takes(integrality, budget: int, least: int) -> None:
    """With 8 bytes, the mask has no place beside x and y; with 9 it takes 1 ns to make it."""
    bound = recompute_bound(masked(budget_bytes=budget), range(4), integrality=integrality)
    assert bound is not None
    assert bound.lower_bound_ns == least


def test_the_linear_program_has_a_certificate_with_a_price_of_making() -> None:
    bound = recompute_bound(masked(), range(4))
    assert bound is not None
    assert bound.certificate is not None
    assert check_certificate(masked(), bound.certificate).valid
    assert any((k, d) == (1, 2) for k, _, d, _ in bound.certificate.rerun_prices)


def test_a_mask_that_no_checkpoint_makes_comes_from_nowhere() -> None:
    bound = recompute_bound(masked(), [0, 2, 3])
    assert bound is not None
    assert bound.lower_bound_ns == 4
    assert "makers" not in recompute_model(masked(), [0, 2, 3], "all").rows
    rows = recompute_model(masked(), range(4), "all").rows["makers"]
    assert len(rows) == 6  # valid behind the ReLU, and out in five intervals


def test_in_between_the_mask_takes_memory() -> None:
    """z leaves no byte: the mask or x goes out, and comes back. x could do so as soon as it is made."""
    wide = masked(blocks=(*masked().blocks[:3], replace(masked().blocks[3], bytes=9)))
    bound, found = recompute_bound(wide, range(4), integrality="all"), brute_force(wide)
    assert bound is not None
    assert found is not None
    assert bound.lower_bound_ns == found.makespan_ns == 23


def test_a_second_run_makes_what_the_first_has_left_out() -> None:
    """u leaves no byte for the mask. It is made later, in 2 ns, of which the model counts the least, 1 ns."""
    make, relu, fill, back = masked().tasks
    use = Task(name="use u", inputs=(4,), outputs=(), algorithms=(algorithm(),))
    u = block("u", 1, initially="device", prefetch_ns=None)
    made = masked(
        tasks=(make, replace(relu, recomputable=True), use, fill, back), blocks=(*masked().blocks, u)
    )
    bound, found = recompute_bound(made, range(5), integrality="all"), brute_force(made)
    assert bound is not None
    assert found is not None
    assert [(o.task, o.algorithm) for o in found.operations] == [
        (0, 0),
        (1, 1),
        (2, 0),
        (1, 0),
        (3, 0),
        (4, 1),
    ]
    assert (bound.lower_bound_ns, found.makespan_ns) == (6, 7)
    model = recompute_model(made, range(5), "all")
    assert {k for k, _ in model.again} == {1}  # of use only for the mask: nothing reads y
    once = replace(made, tasks=tuple(replace(task, recomputable=False) for task in made.tasks))
    never = recompute_bound(once, range(5), integrality="all")
    assert never is not None
    assert never.lower_bound_ns > 20


def test_the_least_has_no_such_block() -> None:
    """Its bytes are workspace of the runs that read or make it."""
    least = with_least_reads(masked())
    assert least.uses[2] == ()
    assert [[a.workspace_bytes for a in task.algorithms] for task in least.tasks] == [
        [0],
        [1, 0],
        [0],
        [0, 1],
    ]
    assert recompute_bound(least, range(4), integrality="all").lower_bound_ns == 4


def test_refined_bounds_take_that_model() -> None:
    bound = refine_bound(masked(), 5.0)
    assert (bound.lower_bound_ns, bound.bound_by[:14]) == (5, "flow-recompute")


def test_methods_choose_or_refuse_in_a_sentence() -> None:
    fixed = with_last(masked(), algorithm())  # all that depends on algorithms is what the ReLU makes
    for method in list_methods():
        if method.guest:
            continue
        result = solve(fixed, method.name, time_limit=1.0)
        if method.reads == "chosen":
            assert (method.name, result.makespan_ns) == (method.name, 23)
            assert result.schedule is not None
            assert check(fixed, result.schedule).valid
        else:
            assert result.makespan_ns is None
            assert f"which is not modelled by {method.name}" in result.stopped_by


def in_size(instance: Instance, factor: int) -> Instance:
    """The instance with all sizes multiplied."""
    blocks = tuple(replace(block, bytes=block.bytes * factor) for block in instance.blocks)
    return replace(instance, blocks=blocks, budget_bytes=instance.budget_bytes * factor)


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
@pytest.mark.parametrize(("budget", "algorithms"), [(9, [0, 0, 0, 1]), (12, [0, 1, 0, 0])])
def test_the_method_makes_the_mask_where_that_is_better(memory, budget: int, algorithms: list[int]) -> None:
    result = solve(
        in_size(masked(budget_bytes=budget), 2**21), "flow-recompute", time_limit=2.0, memory=memory
    )
    assert result.status == "optimal"
    assert result.schedule is not None
    assert [o.algorithm for o in result.schedule.operations] == algorithms


def test_what_nothing_reads_is_made_where_that_is_quicker() -> None:
    quick = with_relu(
        masked(budget_bytes=12), algorithm("with mask", 1), algorithm("without", 3, outputs=(1,))
    )
    result = solve(with_last(quick, algorithm()), "flow-recompute", time_limit=1.0)
    assert result.makespan_ns == 4
    assert result.schedule is not None
    assert result.schedule.operations[1].algorithm == 0


@pytest.mark.parametrize("count", counts(8, 120))
def test_on_tiny_instances_the_method_lies_between_its_bound_and_the_optimum(count: int) -> None:
    met = judged = 0
    for seed in range(count):
        rng = Random(seed)
        shape = Shape(tasks=5, blocks=4, digits=1, reruns=seed % 2 == 0, parts=False)
        instance = with_least_budget(with_own_outputs(rng, adversarial(rng, shape)))
        try:
            best = brute_force(instance, "divisible", most_states=2000)
        except TimeoutError:
            continue
        if not instance.optional or best is None:
            continue
        result = solve(instance, "flow-recompute", time_limit=0.2)
        assert result.lower_bound_ns <= best.makespan_ns
        judged += 1
        assert result.makespan_ns is None or best.makespan_ns <= result.makespan_ns
        met += result.makespan_ns == best.makespan_ns
    assert judged >= count / 3
    assert met >= 0.6 * judged
