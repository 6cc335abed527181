"""FLOW with recomputation: its bounds against exhaustive search, its solutions, and the method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Literal

import msgspec
import numpy as np
import pytest
from numpy.random import default_rng

from chain import page_sized
from pebbler.heuristics.methods import Answer, Limits
from pebbler.heuristics.recomputation.reruns import plan_of, stages_of, staying, unrolled, useful
from pebbler.heuristics.recomputation.search import RerunSearch
from pebbler.instances.files import encode
from pebbler.instances.instance import Algorithm, Block, Instance, Link, Task
from pebbler.instances.suites.generators import Knobs, generate
from pebbler.instances.suites.shapes import Layered
from pebbler.instances.suites.tiny import (
    plain,
    recomputing,
    scaled,
    twisted,
    without_copies,
    without_parts,
)
from pebbler.instances.transforms import split_parts, with_link, with_recomputation
from pebbler.instances.units import PAGE_BYTES
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import best_bound, compute_bound
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow import method as flow_method
from pebbler.solver.flow import recompute, recompute_method
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.decode import decided
from pebbler.solver.flow.model import Integrality, flow_bound
from pebbler.solver.flow.recompute import (
    RecomputeModel,
    proven_with_reruns,
    recompute_bound,
    recompute_model,
)
from pebbler.solver.flow.recompute_method import RecomputeRun, flow_recompute
from pebbler.solver.flow.stages import Stage, refine_bound, tightened
from pebbler.solver.linear.facade import solve_linear
from pebbler.solver.linear.model import LinearResult
from pebbler.solver.solve import solve
from pebbler.validate.bounds.certificate import check_certificate
from pebbler.validate.check import check
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.trial import attempt
from recomputation import in_parts_too

from ...samples import counts, sampled

STATES = 5_000
"""Of exhaustive search; where they are not enough, the instance is left out."""


def test_without_copies_the_relaxation_is_solved_by_the_dual_simplex_method() -> None:
    copying = with_recomputation(Workload("resnet18", 8, "v100").instance("60%"))
    for instance, simplex in ((copying, False), (staying(copying), True)):
        model = recompute_model(instance, range(0, len(instance.tasks), 12), "none").linear
        assert model.simplex == instance.nothing_returns == simplex
        found = [solve_linear(replace(model, simplex=how)) for how in (True, False)]
        assert [one.status for one in found] == ["optimal", "optimal"]
        assert found[0].bound == pytest.approx(found[1].bound, rel=1e-6)


def optimum(instance: Instance) -> int | None:
    """Makespan in divisible memory; None where there is no schedule."""
    found = brute_force(instance, "divisible", most_states=STATES)
    return None if found is None else found.makespan_ns


@pytest.mark.parametrize("seeds", sampled(range(3), range(0, 45, 5)))
def test_every_choice_of_checkpoints_bounds_from_below(seeds: range) -> None:
    """Whatever is whole; with all checkpoints, the whole model mostly meets the optimum."""
    solved = met = 0
    whole: Integrality
    for seed in seeds:
        instance = recomputing(seed, parts=seed % 3 == 0)
        try:
            best = optimum(instance)
        except TimeoutError:
            continue
        tasks = len(instance.tasks)
        for checkpoints in (range(tasks), range(0, tasks, 2), range(1, tasks, 3), [tasks // 2], []):
            for whole in ("none", "algorithms", "all"):
                bound = recompute_bound(instance, checkpoints, integrality=whole)
                if best is None:
                    continue
                assert bound is not None
                assert bound.certified == (whole == "none")
                assert bound.lower_bound_ns <= best
                if len(checkpoints) == tasks and whole == "all":
                    solved += 1
                    met += bound.lower_bound_ns == best
    assert solved >= 2
    assert met >= 0.8 * solved


@pytest.mark.parametrize("seeds", sampled(range(8), range(0, 80, 8)))
def test_so_does_every_choice_where_nothing_returns(seeds: range) -> None:
    """There, memory counts between checkpoints as well."""
    solved = 0
    for seed in seeds:
        instance = without_copies(recomputing(seed))
        try:
            best = optimum(instance)
        except TimeoutError:
            continue
        for checkpoints in (range(0, len(instance.tasks), 2), range(1, len(instance.tasks), 3)):
            model = recompute_model(instance, checkpoints, "all", between=True)
            bound = proven_with_reruns(instance, solve_linear(model.linear), model, "all", "highs")
            if best is not None and bound is not None:
                assert bound.lower_bound_ns <= best
                solved += 1
    assert solved >= 2


def test_where_blocks_return_what_is_between_checkpoints_may_be_away() -> None:
    with pytest.raises(ValueError, match="blocks may return"):
        recompute_model(recomputing(0), [], "all", between=True)


def layered(seed: int) -> Instance:
    """A random graph without copies."""
    knobs = Knobs(
        backward=False, recomputable_percent=100, transfer_percent=0, fast_percent=0, slack_percent=60
    )
    return generate("layered", Layered(size=40, width=5), knobs, default_rng(seed))


@pytest.mark.parametrize("seed", range(4))
def test_whole_models_on_few_checkpoints_prove_what_a_search_finds(seed: int) -> None:
    instance = layered(seed)
    model = recompute_model(instance, range(len(instance.tasks)), "none")
    result = solve_linear(model.linear)
    relaxed = proven_with_reruns(instance, result, model, "none", "highs")
    proven = []
    for whole, solution in tightened(instance, model, result, partial(solve_linear, time_limit=60.0)):
        bound = proven_with_reruns(instance, solution, whole, "all", "highs")
        assert bound is not None
        assert len(whole.checkpoints) < 6
        proven.append(bound.lower_bound_ns)
    search = RerunSearch(scaled(instance, size=PAGE_BYTES), "paged")
    search.run(work=300_000)
    assert relaxed is not None
    assert search.makespan_ns is not None
    assert relaxed.lower_bound_ns < max(proven) <= search.makespan_ns < 1.00001 * max(proven)


def test_after_a_whole_model_that_takes_too_long_only_the_last_one_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search has the time of those between."""
    asked: list[bool] = []

    def given(*_: object, **__: object) -> Iterator[Stage]:
        for last in (False, False, True):
            yield Stage(4, "none", 5.0)  # which leaves a gap
            yield Stage(4, "all", 5.0, priced=True, last=last)
        raise KeyboardInterrupt

    def cut_short(
        _: Instance, model: RecomputeModel, result: LinearResult, solve: object
    ) -> Iterator[tuple[RecomputeModel, LinearResult]]:
        asked.append(callable(solve))
        yield model, replace(result, status="feasible")

    monkeypatch.setattr(flow_method, "stages", given)
    monkeypatch.setattr(recompute_method, "tightened", cut_short)
    instance = scaled(layered(0), size=PAGE_BYTES)
    assert RecomputeRun(instance, Limits(60.0, memory="paged")).answer().stopped_by == "interrupted"
    assert asked == [True, True]


def test_without_time_no_whole_model_is_solved() -> None:
    instance = staying(with_recomputation(Workload("lenet", 64, "k40").instance("1.2xMmin")))
    model = recompute_model(instance, range(len(instance.tasks)), "none")
    result = solve_linear(model.linear)
    assert list(tightened(instance, model, result, lambda _: None)) == []
    assert list(tightened(instance, model, replace(result, duals=None), solve_linear)) == []


@pytest.mark.parametrize("count", counts(5, 20))
def test_where_nothing_runs_again_it_proves_what_flow_does_or_more(count: int) -> None:
    """More: FLOW leaves out what is loaded before the first task."""
    compared = 0
    for seed in range(count):
        instance = without_parts((plain, twisted)[seed % 2](seed))
        try:
            best = optimum(instance)
        except TimeoutError:
            continue
        everything = range(len(instance.tasks))
        known = flow_bound(instance, everything, integrality="all")
        bound = recompute_bound(instance, everything, integrality="all")
        if best is None or known is None:
            continue
        assert bound is not None
        assert known.lower_bound_ns <= bound.lower_bound_ns <= best
        compared += 1
    assert compared >= count / 2


def each_alone(instance: Instance) -> tuple[Instance, tuple[tuple[int, ...], ...]]:
    """What `joined` returns where no parts are equal."""
    return instance, tuple((d,) for d in range(len(instance.blocks)))


@pytest.mark.parametrize("count", counts(12, 100))
def test_equal_parts_are_one_block_of_a_linear_model_and_prove_the_same(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    half = with_recomputation(Workload("resnet18", 64, "v100").instance("50%"))
    split = split_parts(half, 8 * 2**20)
    cases = [
        (split, hot_checkpoints(split, 3)),
        *((one, range(len(one.tasks))) for one in in_parts_too(count)),
    ]
    fewer = 0
    for instance, checkpoints in cases:
        models = [recompute_model(instance, checkpoints, "none")]
        with monkeypatch.context() as patch:
            patch.setattr(recompute, "joined", each_alone)
            models.append(recompute_model(instance, checkpoints, "none"))
        joint, alone = models
        assert joint.versions.keys() == alone.versions.keys()
        fewer += len(joint.linear.cost) < len(alone.linear.cost)
        results = [solve_linear(model.linear) for model in models]
        assert len({result.status for result in results}) == 1
        if results[0].status == "infeasible":
            continue
        assert results[0].objective == pytest.approx(results[1].objective, rel=1e-4)
        bounds = [
            proven_with_reruns(instance, result, model, "none", "highs")
            for result, model in zip(results, models, strict=True)
        ]
        assert bounds[0] is not None
        assert bounds[1] is not None
        assert bounds[0].certified
        assert bounds[0].certificate is not None
        assert not check_certificate(instance, bounds[0].certificate).reasons
        assert bounds[0].lower_bound_ns == pytest.approx(bounds[1].lower_bound_ns, rel=1e-4, abs=1)
    assert fewer >= count / 3


def test_on_a_shared_link_parts_stay_apart() -> None:
    """The link takes 6 ns for a byte, and the copy of a part says 5: rounded down, so that it takes 5. Two
    take 10, while the load of one copy of both is two bytes, which take 12."""
    part = Block(name="b0", bytes=1, offload_ns=None, prefetch_ns=5, initially="host", tensor="b", begin=0)
    reader = Task(
        name="k0",
        inputs=(0, 1),
        outputs=(),
        algorithms=(Algorithm(name="a0", duration_ns=9, workspace_bytes=0),),
    )
    instance = Instance(
        name="parts on a link",
        engines="duplex",
        budget_bytes=2,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=(part, msgspec.structs.replace(part, name="b1", begin=1)),
        tasks=(reader,),
        link=Link(both_bytes_per_second=166_666_667),
    )
    best = brute_force(instance, "divisible")
    bound = recompute_bound(instance, [0], integrality="none")
    assert best is not None
    assert best.makespan_ns == 19
    assert bound is not None
    assert bound.lower_bound_ns == best.makespan_ns
    assert all(len(parts) == 1 for parts in recompute_model(instance, [0], "none").parts)


def test_so_many_parts_are_away_as_a_solution_has_absent() -> None:
    instance = split_parts(
        with_recomputation(Workload("alexnet", 512, "v100").instance("1.1xMmin")), 64 * 2**20
    )
    model = recompute_model(instance, hot_checkpoints(instance, 6), "algorithms")
    away = {}
    for share in (0.0, 0.5, 1.0):
        values = np.zeros(len(model.linear.cost))
        for columns in model.versions.values():
            values[[*columns.present]] = 1 - share
        plan, guide = decided(instance, model, values)
        assert not plan
        away[share] = {d for d, _ in guide.returning}
    joint = [parts for parts in model.parts if len(parts) > 1 and set(parts) <= away[1.0]]
    assert joint
    assert away[0.0] == set()
    for parts in joint:
        gone = [d for d in parts if d in away[0.5]]
        assert gone == list(parts)[-len(gone) :]
        assert abs(len(gone) - len(parts) / 2) <= 0.5


def test_a_second_run_beats_copies_that_take_long() -> None:
    """The bound knows that it may, and is under the one for the instance in which nothing runs again."""
    instance = Workload("vgg16", 64, "v100").instance("1.05xMmin")
    again = with_recomputation(instance)
    few = range(0, len(instance.tasks), 12)
    with_it, without = recompute_bound(again, few), recompute_bound(instance, few)
    assert with_it is not None
    assert without is not None
    assert with_it.lower_bound_ns < 0.9 * without.lower_bound_ns


@pytest.mark.parametrize("count", counts(8, 30))
def test_a_solution_decides_what_runs_again_and_what_is_copied(count: int) -> None:
    """What it reads can be unrolled, and its gaps and algorithms are those of that instance."""
    plans = 0
    for seed in range(count):
        instance = recomputing(seed)
        every = range(len(instance.tasks))
        for checkpoints in (every, every[::2]):
            model = recompute_model(instance, checkpoints, "all")
            values = solve_linear(model.linear).values
            if values is None:
                continue
            plan, guide = decided(instance, model, values)
            allowed = stages_of(instance)
            assert all(k in allowed[t] for k, t in plan)
            assert useful(instance, plan) == plan
            again = unrolled(instance, plan)
            assert len(guide.algorithms) == len(again.runs)
            assert set(guide.leaving) == set(guide.returning)
            plans += bool(plan)
    assert plans >= count / 8


def pages_of_parts(count: int) -> Iterable[Instance]:
    return map(page_sized, in_parts_too(count))


@pytest.mark.parametrize(
    ("instances", "memory"),
    [
        (partial(map, recomputing, range(3)), "contiguous"),
        pytest.param(partial(map, recomputing, range(15)), "contiguous", marks=pytest.mark.slow),
        pytest.param(partial(map, recomputing, range(15, 30)), "contiguous", marks=pytest.mark.slow),
        (partial(pages_of_parts, 6), "paged"),
        pytest.param(partial(pages_of_parts, 15), "paged", marks=pytest.mark.slow),
    ],
    ids=["few", "first", "more", "in parts", "more in parts"],
)
def test_the_method_is_between_its_bound_and_exhaustive_search(
    instances: Callable[[], Iterable[Instance]], memory: Literal["contiguous", "paged"]
) -> None:
    solved = met = count = 0
    for instance in instances():
        count += 1
        try:
            best = optimum(instance)
        except TimeoutError:
            continue
        answer = flow_recompute(instance, Limits(time_limit=0.2, memory=memory))
        if best is None:
            assert answer.schedule is None
            continue
        assert answer.lower_bound_ns is not None
        assert answer.lower_bound_ns <= best
        if answer.schedule is not None:
            assert check(instance, answer.schedule).reasons == ()
            assert answer.schedule.makespan_ns >= best
            solved += 1
            met += answer.schedule.makespan_ns == best
    assert solved >= 0.5 * count
    assert met >= 0.9 * solved


def test_vgg16_is_faster_with_second_runs_than_any_schedule_without() -> None:
    """Its schedule is under the certified bound of the instance in which every task runs once."""
    instance = Workload("vgg16", 64, "v100").instance("1.1xMmin")
    again = with_recomputation(instance)
    search = RerunSearch(again, "paged")
    search.run(work=150_000)
    schedule = search.schedule("search")
    assert schedule is not None
    assert check(again, schedule).reasons == ()
    alone, bound = best_bound(instance), recompute_bound(again, range(0, len(instance.tasks), 12))
    assert bound is not None
    assert alone.certified
    assert bound.lower_bound_ns <= schedule.makespan_ns < alone.lower_bound_ns


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(16), marks=pytest.mark.slow)])
def test_without_transfers_only_what_must_be_is_copied_and_nothing_is_claimed(seeds: range) -> None:
    """The bound of recomputation alone does not hold for the instance; copies that it asks for are made."""
    found = 0
    for instance in map(recomputing, seeds):
        result = solve(instance, "flow-recompute", time_limit=0.2, without=("transfers",))
        if result.schedule is None:
            continue
        found += 1
        assert result.lower_bound_ns == best_bound(instance).lower_bound_ns
        for operation in result.schedule.operations:
            if operation.block is not None and operation.kind != "move":
                block = instance.blocks[operation.block]
                assert block.finally_ == "host" if operation.kind == "offload" else block.initially == "host"
    assert found >= len(seeds) / 4


def test_where_rounds_carry_blocks_the_bound_leaves_places_free() -> None:
    """A round ends as it began: what is away has to come and go, which the models and the checker know."""
    step = Workload("lenet", 64, "k40", steady=True, optimizer="adamw").instance("Mmin+20%")
    instance = with_recomputation(step)
    known = best_bound(instance).lower_bound_ns
    bound = recompute_bound(instance, range(len(instance.tasks)))
    assert bound is not None
    assert bound.certificate is not None
    assert not check_certificate(instance, bound.certificate).reasons
    assert bound.certificate.lower_bound_ns == bound.lower_bound_ns > known
    found = solve(instance, "flow-recompute", time_limit=4.0)
    assert found.schedule is not None
    assert known < found.lower_bound_ns <= found.schedule.makespan_ns
    assert found.bound_by.startswith("flow-recompute")


def test_a_schedule_of_flow_is_kept_where_nothing_shorter_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Workload("lenet", 64, "k40", steady=True, optimizer="adamw").instance("Mmin+20%")
    once = solve(step, "flow", time_limit=2.0).schedule
    assert once is not None
    told = []

    def by_flow(instance: Instance, limits: Limits) -> Answer:
        assert not any(task.recomputable for task in instance.tasks)
        assert limits.on_better is not None
        limits.on_better(once.makespan_ns, once.makespan_ns)  # its bound is of another question
        return Answer(once, "done", once.makespan_ns, "flow")

    monkeypatch.setattr(recompute_method, "flow", by_flow)
    limits = Limits(
        time_limit=2.0, on_better=lambda makespan_ns, bound_ns: told.append((makespan_ns, bound_ns))
    )
    found = flow_recompute(with_recomputation(step), limits)
    assert found.schedule is not None
    assert found.schedule.makespan_ns <= once.makespan_ns
    assert found.schedule.method == "flow-recompute"
    assert (found.lower_bound_ns or 0) < once.makespan_ns
    assert told[0] == (once.makespan_ns, None)
    assert all(makespan_ns <= once.makespan_ns for makespan_ns, _ in told)


def test_the_bound_of_the_command_covers_recomputation() -> None:
    instance = with_recomputation(Workload("lenet", 64, "k40").instance("1.05xMmin"))
    bound = refine_bound(instance, 60.0)  # it has proven all that it can long before
    assert bound.bound_by.startswith("flow-recompute-")
    assert bound.certificate is not None
    assert bound.certificate.argument == "prices"
    assert compute_bound(instance).lower_bound_ns < bound.certified_ns <= bound.lower_bound_ns
    assert check_certificate(instance, bound.certificate).valid


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes() -> None:
    instance = recomputing(6)
    assert encode(solve(instance, "flow-recompute").schedule) == encode(
        solve(instance, "flow-recompute").schedule
    )


@pytest.mark.slow
def test_second_runs_and_copies_compute_the_same_bits() -> None:
    """On the CPU, a schedule that has both gives the gradients of a run without a budget."""
    instance = with_link(Workload("resnet56:depth=8", 2, "V100").instance("1.3xMmin"), "3GB")
    instance = with_recomputation(instance)
    search = RerunSearch(instance, "contiguous")
    search.run(work=200_000)
    schedule = search.schedule("search")
    assert schedule is not None
    assert plan_of(schedule)
    assert any(operation.kind == "offload" for operation in schedule.operations)
    assert check(instance, schedule).reasons == ()
    trial = attempt(instance, schedule, CpuBackend, repeat=1)
    assert trial.identical
    assert trial.max_abs_error == 0
