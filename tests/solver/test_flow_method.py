"""Decoding FLOW's solutions, and the method that does so on more and more checkpoints."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from pebbler.benchmark.tiny import tiny_instance
from pebbler.heuristics.methods import Limits, Refusal
from pebbler.instances.files import encode
from pebbler.instances.instance import Instance
from pebbler.instances.workload import Workload
from pebbler.solver import flow_method
from pebbler.solver.brute_force import brute_force
from pebbler.solver.decode import Gap, Plan, execute, execute_leanly, gaps_of, make_plan
from pebbler.solver.flow_method import flow
from pebbler.solver.linear import solve_linear
from pebbler.solver.solve import Status, solve
from pebbler.validate.check import check


def load(instance: Instance, plan: Plan, k: int) -> int:
    """Bytes that a plan holds while task k runs, counted anew."""
    task = instance.tasks[k]
    held = sum(instance.blocks[d].bytes for d in task.blocks)
    held += task.algorithms[plan.algorithms[k]].workspace_bytes
    for d, block in enumerate(instance.blocks):
        marks = [*([-1] if block.initially != "absent" else []), *instance.uses[d]]
        marks += [len(instance.tasks)] if block.finally_ == "device" else []
        for after, until in pairwise(marks):
            if after < k < until and k >= plan.prefetch_before.get((d, after), 0):
                held += block.bytes
    return held


@pytest.mark.parametrize("seed", range(60))
def test_a_plan_fits_at_every_task_and_its_program_is_valid(seed: int) -> None:
    instance = tiny_instance(seed)
    rng = Random(seed)
    evicted = [gap for gap in gaps_of(instance) if rng.random() < 0.4]
    plan = make_plan(instance, evicted, {}, unit=instance.alignment_bytes)
    if plan is None:
        return
    assert {gap for gap in evicted if gap in gaps_of(instance)} <= set(plan.prefetch_before)
    for k in range(len(instance.tasks)):
        assert load(instance, plan, k) <= instance.pool_bytes
    schedules = [execute(instance, plan, "divisible", "plan")]
    for way in (execute, execute_leanly):
        try:
            schedules.append(
                execute(instance, plan, "contiguous", "plan")
                if way is execute
                else execute_leanly(instance, plan, "plan")
            )
        except Refusal:
            continue
    for schedule in schedules:
        assert check(instance, schedule).reasons == ()


def test_a_plan_says_when_live_blocks_cannot_fit() -> None:
    instance = next(i for i in map(tiny_instance, range(99)) if brute_force(i, "divisible") is None)
    assert make_plan(instance, (), {}) is None


def test_less_capacity_leaves_slack() -> None:
    instance = Workload("vgg16", 256, "k40").instance("12GiB")
    for share in (1.0, 0.9):
        capacity = int(instance.pool_bytes * share)
        plan = make_plan(instance, (), {}, capacity=capacity)
        assert plan is not None
        assert max(load(instance, plan, k) for k in range(len(instance.tasks))) <= capacity


def test_gaps_are_stays_that_can_be_evicted() -> None:
    instance = Workload("lenet", 4, "k40").instance("1GiB")
    names = {d: block.name for d, block in enumerate(instance.blocks)}
    gaps: dict[Gap, int] = gaps_of(instance)
    found = {(names[d], after): until for (d, after), until in gaps.items()}
    tasks = [task.name for task in instance.tasks]
    assert found["Y(conv1)", tasks.index("FP(pool1)")] == tasks.index("BP1(pool1)")
    assert all(until > after + 1 for (_, after), until in gaps.items())


@pytest.mark.parametrize("first", range(0, 80, 40))
def test_flow_is_between_its_bound_and_the_heuristics(first: int) -> None:
    solved = optimal = 0
    for seed in range(first, first + 40):
        instance = tiny_instance(seed)
        if any(task.recomputable for task in instance.tasks):
            continue
        try:
            answer = flow(instance, Limits(time_limit=10))
        except Refusal:
            continue
        assert answer.schedule is not None
        assert answer.lower_bound_ns is not None
        assert check(instance, answer.schedule).reasons == ()
        best = brute_force(instance)
        assert best is not None
        assert answer.lower_bound_ns <= best.makespan_ns <= answer.schedule.makespan_ns
        solved += 1
        optimal += best.makespan_ns == answer.schedule.makespan_ns
    assert solved >= 15
    assert optimal >= solved / 3


def test_paged_vgg16_is_solved_to_optimality() -> None:
    instance = Workload("vgg16", 256, "k40").instance("12GiB")
    result = solve(instance, "flow", memory="paged", time_limit=60)
    assert result.status is Status.OPTIMAL
    assert result.optimality_gap == 0
    assert result.bound_by == "single-peak"
    assert result.certified


def test_the_same_bytes_twice() -> None:
    instance = Workload("alexnet", 128, "k40").instance("75%")
    first, second = (flow(instance, Limits(time_limit=60)).schedule for _ in range(2))
    assert first is not None
    assert second is not None
    assert encode(first) == encode(second)


def test_ctrl_c_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def interrupted(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return solve_linear(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(flow_method, "solve_linear", interrupted)
    answer = flow(Workload("vgg16", 256, "k40").instance("1.05xMmin"), Limits(time_limit=60, memory="paged"))
    assert answer.stopped_by == "interrupted"
    assert answer.schedule is not None


def test_what_it_cannot_do_is_refused() -> None:
    again = next(i for i in map(tiny_instance, range(99)) if any(t.recomputable for t in i.tasks))
    with pytest.raises(Refusal, match="recomputation"):
        flow(again, Limits())
    with pytest.raises(Refusal, match="no time"):
        flow(tiny_instance(0), Limits(time_limit=0))
