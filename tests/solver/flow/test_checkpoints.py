"""Checkpoints: where memory is tight at first, then where the last solution fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pebbler.heuristics.parts import with_parts
from pebbler.instances.instance import Instance
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.instances.transforms import with_recomputation
from pebbler.instances.workload import Workload
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.checkpoints import Checkpoints, dearest, hot_checkpoints
from pebbler.solver.flow.model import Integrality, flow_model
from pebbler.solver.flow.recompute import recompute_model
from pebbler.solver.linear.facade import solve_linear

from ...samples import counts

RESNET = Workload("resnet34", 256, "v100").instance("50%")


def refined(instance: Instance, counts: list[int], integrality: Integrality = "none") -> list[float]:
    """Optima of models of which each leads to the next, in nanoseconds."""
    chosen = Checkpoints(instance)
    optima = []
    for count in counts:
        checkpoints = chosen.choose(count)
        assert checkpoints == sorted(set(checkpoints))
        assert len(checkpoints) == min(count, len(instance.tasks))
        model = flow_model(instance, checkpoints, integrality)
        result = solve_linear(model.linear, time_limit=60.0)
        chosen.learn(model, result)
        optima.append(result.bound * model.nanoseconds)
    return optima


def test_the_first_ones_are_where_memory_is_tight() -> None:
    assert Checkpoints(RESNET).choose(20) == hot_checkpoints(RESNET, 20)
    assert Checkpoints(RESNET, hot=0.0).choose(20) == hot_checkpoints(RESNET, 20, 0.0)
    assert Checkpoints(RESNET).choose(10_000) == list(range(len(RESNET.tasks)))


def test_a_few_that_the_solutions_suggest_beat_many_hot_ones() -> None:
    instance = Workload("vgg19", 64, "v100").instance("70%")
    few = refined(instance, [12] * 4 + [18] * 2)
    (many,) = refined(instance, [30])
    assert max(few) > 1.01 * many
    assert max(few) > 1.02 * few[0]


def test_so_do_they_where_tasks_run_again() -> None:
    instance = with_recomputation(Workload("resnet50", 64, "v100").instance("25%"))
    chosen = Checkpoints(instance)

    def optimum(checkpoints: list[int]) -> float:
        model = recompute_model(instance, checkpoints, "none")
        result = solve_linear(model.linear)
        chosen.learn_with_reruns(model, model.versions, result)
        return result.bound * model.nanoseconds

    few = [optimum(chosen.choose(count)) for count in (6, 9)]
    assert few[1] > 1.02 * few[0]
    assert few[1] > 1.004 * optimum(hot_checkpoints(instance, 12))


def test_where_tasks_run_again_an_unsolved_model_teaches_nothing() -> None:
    instance = with_recomputation(Workload("lenet", 64, "k40").instance("1.05xMmin"))
    chosen = Checkpoints(instance)
    model = recompute_model(instance, chosen.choose(6), "none")
    result = solve_linear(model.linear)
    for lost in (replace(result, values=None), replace(result, duals=None)):
        chosen.learn_with_reruns(model, model.versions, lost)
        assert chosen.choose(6) == list(model.checkpoints)
    chosen.learn_with_reruns(model, model.versions, result)
    assert set(chosen.choose(len(instance.tasks) - 1)) > set(dearest(model, result.duals))


@pytest.mark.slow
def test_whole_models_of_few_tasks_lead_to_better_ones() -> None:
    instance = Workload("vgg16", 64, "v100").instance("1.05xMmin")
    optima = refined(instance, [12, 16, 21, 28], "all")
    (hot,) = refined(instance, [28], "all")
    assert optima[-1] > 1.1 * optima[0]
    assert optima[-1] > 0.98 * hot


def test_parts_are_looked_at_together() -> None:
    instance = with_parts(Workload("vgg16", 64, "v100").instance("1.05xMmin"))
    optima = refined(instance, [16] * 4)
    assert max(optima) > optima[0]


@pytest.mark.parametrize("count", counts(8, 60))
def test_whatever_is_chosen_bounds_every_schedule(count: int) -> None:
    bounded = 0
    for seed in range(count):
        instance = tiny_instance(seed)
        schedule = brute_force(instance, "divisible")
        if schedule is None or any(task.recomputable for task in instance.tasks):
            continue
        few = max(len(instance.tasks) // 2, 1)
        for optimum in refined(instance, [few] * 3, "all"):
            assert optimum <= schedule.makespan_ns * (1 + 1e-6), seed
        bounded += 1
    assert bounded >= count / 2


def test_checkpoints_with_a_price_stay_the_dearest_first() -> None:
    instance = Workload("resnet18", 128, "v100").instance("50%")
    chosen = Checkpoints(instance)
    for _ in range(3):
        model = flow_model(instance, chosen.choose(24), "none")
        chosen.learn(model, solve_linear(model.linear))
    few, more = set(chosen.choose(4)), set(chosen.choose(8))
    assert few < more < set(model.checkpoints)
    many = set(chosen.choose(24))
    assert more < many
    assert many - set(model.checkpoints)


def test_with_all_tasks_as_checkpoints_no_solution_fails_and_with_few_one_does() -> None:
    instance = Workload("alexnet", 128, "k40").instance("1.05xMmin")
    total = len(instance.tasks)
    for count, fails in ((total // 3, True), (total, False)):
        chosen = Checkpoints(instance)
        model = flow_model(instance, chosen.choose(count), "none")
        chosen.learn(model, solve_linear(model.linear))
        assert bool(set(chosen.choose(total - 1)) - set(model.checkpoints)) == fails
