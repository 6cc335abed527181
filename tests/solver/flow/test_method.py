"""Decoding FLOW's solutions, and the method that does so on more and more checkpoints."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pebbler.heuristics.gaps import Gap, gaps_of
from pebbler.heuristics.methods import Limits, MethodInfo, Refusal
from pebbler.heuristics.search.decisions import decisions_of, gap_keys
from pebbler.heuristics.search.problem import problem_of
from pebbler.instances.files import encode
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.instances.workload import Workload
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow import method as flow_method
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.decode import guide_of
from pebbler.solver.flow.method import flow
from pebbler.solver.flow.model import FlowModel, flow_model
from pebbler.solver.linear.facade import solve_linear
from pebbler.solver.solve import solve
from pebbler.validate.check import check

from ...samples import sampled


def test_gaps_are_stays_that_can_be_evicted() -> None:
    instance = Workload("lenet", 4, "k40").instance("1GiB")
    names = {d: block.name for d, block in enumerate(instance.blocks)}
    gaps: dict[Gap, int] = gaps_of(instance)
    found = {(names[d], after): until for (d, after), until in gaps.items()}
    tasks = [task.name for task in instance.tasks]
    assert found["Y(conv1)", tasks.index("FP(pool1)")] == tasks.index("BP1(pool1)")
    assert all(until > after + 1 for (_, after), until in gaps.items())


def test_relaxations_of_large_graphs_are_rounded_in_the_order_of_tasks() -> None:
    instance = Workload("vgg:groups=30-30-2-2-2", 32, "v100").instance("50%")
    model = flow_model(instance, hot_checkpoints(instance, 16), "none")
    result = solve_linear(model.linear)
    assert result.values is not None
    guide = guide_of(instance, model, result.values)
    assert guide.tentative
    assert max(len(gaps) for gaps in model.gaps) > 10  # of blocks that the checkpoints cannot tell apart
    copied = sum(instance.blocks[d].bytes for d, _ in guide.returning)
    absent = sum(
        float(result.values[columns.absent].max(initial=0)) * sum(instance.blocks[d].bytes for d, _ in gaps)
        for gaps, columns in model.gaps.items()
    )
    assert 0.95 * absent < copied < 1.3 * absent
    # out in the order of tasks, back in the reverse order, wherever the relaxation does not say otherwise
    ahead = sum(early[1] <= late[1] for early, late in pairwise(guide.leaving))
    behind = sum(early[1] >= late[1] for early, late in pairwise(guide.returning))
    assert ahead > 0.8 * len(guide.leaving)
    assert behind > 0.8 * len(guide.returning)


def test_a_guide_holds_prefetches_until_flow_begins_them() -> None:
    instance = Workload("vgg16", 64, "v100").instance("1.05xMmin")
    gaps = gaps_of(instance)
    model = flow_model(instance, hot_checkpoints(instance, 20), "algorithms")
    result = solve_linear(model.linear)
    assert result.values is not None
    guide = guide_of(instance, model, result.values)
    assert len(guide.holds) == len(guide.returning) > 3
    for gap, hold in zip(guide.returning, guide.holds, strict=True):
        assert gap[1] < hold <= gaps[gap]
        assert hold - 1 in model.checkpoints
    # some have room long before FLOW begins them
    assert sum(hold > gap[1] + 1 for gap, hold in zip(guide.returning, guide.holds, strict=True)) > 3
    problem = problem_of(instance, "divisible")
    hold_of = dict(zip(gap_keys(problem), decisions_of(problem, guide).hold.tolist(), strict=True))
    assert [hold_of[gap] for gap in guide.returning] == guide.holds


@pytest.mark.parametrize("seeds", sampled(range(10, 13), range(0, 36, 12)))
def test_flow_is_between_its_bound_and_brute_force(seeds: range) -> None:
    solved = optimal = 0
    for seed in seeds:
        instance = tiny_instance(seed)
        if any(task.recomputable for task in instance.tasks):
            continue
        try:
            answer = flow(instance, Limits(time_limit=0.3))
        except Refusal:
            continue
        if answer.schedule is None:
            continue
        assert answer.lower_bound_ns is not None
        assert check(instance, answer.schedule).reasons == ()
        best = brute_force(instance)
        assert best is not None
        assert answer.lower_bound_ns <= best.makespan_ns <= answer.schedule.makespan_ns
        solved += 1
        optimal += best.makespan_ns == answer.schedule.makespan_ns
    assert solved >= 5 * len(seeds) / 12
    assert optimal >= 0.9 * solved


@pytest.mark.parametrize(
    ("network", "device", "budget"),
    [
        ("cifar10_quick", "p100", "1.1xMmin"),
        pytest.param("vgg16", "k40", "10GiB", marks=pytest.mark.slow),
    ],
)
def test_paged_networks_are_solved_to_a_hundred_thousandth(network: str, device: str, budget: str) -> None:
    instance = Workload(network, 256, device).instance(budget)
    result = solve(instance, "flow", memory="paged", time_limit=60)
    assert result.stopped_by == "done"
    assert result.optimality_gap is not None
    assert result.optimality_gap < 1e-5


@pytest.mark.parametrize(
    ("network", "batch", "budget"),
    [
        ("lenet", 64, "1.2xMmin"),
        pytest.param("cifar10_quick", 100, "1.2xMmin", marks=pytest.mark.slow),
        *(pytest.param("alexnet", 128, budget, marks=pytest.mark.slow) for budget in ("90%", "75%")),
    ],
)
def test_the_same_bytes_twice(network: str, batch: int, budget: str) -> None:
    instance = Workload(network, batch, "k40").instance(budget)
    first, second = (flow(instance, Limits()).schedule for _ in range(2))
    assert first is not None
    assert second is not None
    assert encode(first) == encode(second)


def test_ctrl_c_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def interrupted(*arguments: object, **options: object) -> FlowModel:
        calls.append(arguments)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return flow_model(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(flow_method, "flow_model", interrupted)
    answer = flow(
        Workload("alexnet", 256, "k40").instance("1.05xMmin"), Limits(time_limit=60, memory="paged")
    )
    assert answer.stopped_by == "interrupted"
    assert answer.schedule is not None


def test_ctrl_c_before_there_is_a_schedule_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> MethodInfo:
        raise KeyboardInterrupt

    monkeypatch.setattr(flow_method, "find_method", interrupted)
    answer = flow(Workload("vgg16", 256, "k40").instance("1.05xMmin"), Limits(time_limit=60))
    assert (answer.schedule, answer.stopped_by) == (None, "interrupted")
    assert answer.lower_bound_ns is not None


def test_no_time_leaves_what_the_rule_decides_and_the_cheap_bound() -> None:
    instance = Workload("vgg16", 256, "k40").instance("12GiB")
    result = solve(instance, "flow", time_limit=0)
    assert result.stopped_by == "time limit"
    ruled = solve(instance, "modnn").makespan_ns
    assert ruled is not None
    assert result.schedule is not None
    assert result.schedule.makespan_ns <= ruled
    assert result.schedule.method == "flow"


def test_two_workers_search_beside_the_model() -> None:
    instance = Workload("alexnet", 256, "k40").instance("1.05xMmin")  # is solved in a second
    told: list[tuple[int | None, int | None]] = []
    result = solve(
        instance, "flow", memory="paged", time_limit=60, workers=2, on_better=lambda *best: told.append(best)
    )
    makespans = [makespan for makespan, _ in told if makespan is not None]
    assert makespans == sorted(makespans, reverse=True)
    bounds = [bound for _, bound in told if bound is not None]
    assert bounds == sorted(bounds)
    assert len(set(told)) == len(told) >= 2
    assert result.makespan_ns is not None
    assert makespans[-1] >= result.makespan_ns
    assert bounds[-1] == result.lower_bound_ns
    assert result.optimality_gap is not None
    assert result.optimality_gap < 0.01


def test_the_bound_is_kept_where_there_is_no_schedule() -> None:
    instance = tiny_instance(62)
    assert brute_force(instance) is None
    answer = flow(instance, Limits(time_limit=0.5))
    assert answer.schedule is None
    assert answer.lower_bound_ns is not None
    assert answer.stopped_by != "done"


def test_what_it_cannot_do_is_refused() -> None:
    again = next(i for i in map(tiny_instance, range(99)) if any(t.recomputable for t in i.tasks))
    with pytest.raises(Refusal, match="recomputation"):
        flow(again, Limits())
