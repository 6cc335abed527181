"""FLOW against exhaustive search on tiny instances, and against itself: solvers, checkpoints, scales."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.files import read_instance
from pebbler.instances.instance import Instance
from pebbler.instances.memory import with_budget
from pebbler.instances.suites.tiny import scaled, tiny_instance, twisted
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import best_bound, compute_bound
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.model import flow_bound, flow_model
from pebbler.solver.flow.recompute import recompute_bound
from pebbler.solver.linear.facade import solve_linear
from pebbler.solver.linear.model import ModelBuilder

from ...samples import chunks, counts
from ...validate.hostile import hostile_instance

DATA = Path(__file__).parent / "data"


def without_recomputation(seeds: range) -> list[Instance]:
    instances = map(tiny_instance, seeds)
    return [i for i in instances if not any(task.recomputable for task in i.tasks)]


def lower(
    instance: Instance, checkpoints: range | list[int], integrality: str = "none", **options: str
) -> int:
    bound = flow_bound(instance, checkpoints, integrality=integrality, **options)  # type: ignore[arg-type]
    assert bound is not None
    return bound.lower_bound_ns


@pytest.mark.parametrize("count", counts(30, 80))
def test_flow_without_checkpoints_is_a_bound_too(count: int) -> None:
    """One interval has all tasks and all copies that are made in any case."""
    solved = beyond = 0
    for seed in range(count):
        instance = hostile_instance(Random(seed), most_tasks=3)
        schedule = brute_force(instance, "divisible", most_states=3000)
        if schedule is None:
            continue
        solved += 1
        for how in ("none", "all"):
            bound = lower(instance, [], how)
            assert bound <= schedule.makespan_ns
            beyond += bound > compute_bound(instance).lower_bound_ns
    assert solved >= 3 * count / 8
    assert beyond >= count / 8


@pytest.mark.parametrize("first", chunks(range(0, 160, 16)))
def test_flow_is_never_above_the_optimum(first: int) -> None:
    tight = beyond = solved = 0
    for instance in without_recomputation(range(first, first + 16)):
        schedule = brute_force(instance, "divisible")
        if schedule is None:
            continue
        solved += 1
        every = range(len(instance.tasks))
        bounds = {how: lower(instance, every, how) for how in ("none", "algorithms", "all")}
        some = lower(instance, every[::2], "all")
        assert bounds["none"] <= bounds["algorithms"] <= bounds["all"] <= schedule.makespan_ns
        assert some <= bounds["all"]
        tight += bounds["all"] == schedule.makespan_ns
        beyond += bounds["all"] > best_bound(instance).lower_bound_ns
    assert solved >= 8
    assert tight >= solved / 2
    assert beyond >= solved / 5


@pytest.mark.parametrize("ending", ["host", "device"])
@pytest.mark.parametrize("count", counts(10, 40))
def test_what_must_end_somewhere_is_counted(count: int, ending: str) -> None:
    """Only a few bounds rise, so they are counted over all draws together."""
    rng = Random(0)
    risen = solved = 0
    for instance in without_recomputation(range(count)):
        d = rng.choice([d for d, b in enumerate(instance.blocks) if b.offload_ns is not None])
        block = msgspec.structs.replace(instance.blocks[d], finally_=ending)
        changed = msgspec.structs.replace(
            instance, blocks=(*instance.blocks[:d], block, *instance.blocks[d + 1 :])
        )
        schedule = brute_force(changed, "divisible")
        if schedule is None:
            continue
        solved += 1
        with_end = lower(changed, range(len(changed.tasks)), "all")
        assert with_end <= schedule.makespan_ns
        risen += with_end > lower(instance, range(len(instance.tasks)), "all")
    assert solved >= count / 2
    assert risen >= 1


def test_more_checkpoints_never_lower_the_bound() -> None:
    instance = Workload("vgg16", 64, "v100").instance("75%")
    few = hot_checkpoints(instance, 12)
    more = sorted({*few, *hot_checkpoints(instance, 30)})
    assert compute_bound(instance).lower_bound_ns * 0.999999 <= lower(instance, few)
    assert lower(instance, few) <= lower(instance, more) * 1.000001


def test_flow_beats_the_single_peak_where_transfers_dominate() -> None:
    instance = Workload("vgg16", 64, "v100").instance("1.05xMmin")
    assert lower(instance, hot_checkpoints(instance, 12), "all") > best_bound(instance).lower_bound_ns


@pytest.mark.parametrize("integrality", ["none", "all"])
def test_solvers_agree(integrality: str) -> None:
    for instance in without_recomputation(range(20)):
        every = range(len(instance.tasks))
        other = lower(instance, every, integrality, solver="scip")
        assert lower(instance, every, integrality) == pytest.approx(other, abs=1, rel=1e-5)


def test_the_unit_of_time_does_not_matter() -> None:
    """Objectives far from one have led solvers astray: a nanosecond and an hour must give the same ratio."""
    for instance in without_recomputation(range(12)):
        every = range(len(instance.tasks))
        scale = 10**11
        slow = scaled(instance, time=scale)
        assert lower(slow, every, "all") / scale == pytest.approx(
            lower(instance, every, "all"), rel=1e-4, abs=1
        )


def test_without_a_limit_only_compute_is_left() -> None:
    instance = with_budget(Workload("vgg16", 8, "k40").instance("12GiB"), 2**45)
    compute = compute_bound(instance).lower_bound_ns
    assert lower(instance, hot_checkpoints(instance, 10)) == pytest.approx(compute, rel=1e-5)


def test_recomputable_tasks_are_not_covered() -> None:
    instance = next(i for i in map(tiny_instance, range(99)) if any(t.recomputable for t in i.tasks))
    with pytest.raises(ValueError, match="recomputable"):
        flow_model(instance, [0], "none")


@pytest.mark.parametrize("checkpoint", [-1, 999])
def test_a_checkpoint_that_is_no_task_is_refused(checkpoint: int) -> None:
    instance = Workload("alexnet", 64, "k40").instance("1.05xMmin")
    last = len(instance.tasks) - 1
    wrong = f"checkpoint {checkpoint} is no task of {instance.name}; tasks are 0 to {last}"
    for bound in (flow_bound, recompute_bound):
        with pytest.raises(ValueError, match=wrong):
            bound(instance, [0, checkpoint, 1])


def test_checkpoints_are_positions_in_order_and_not_too_many() -> None:
    instance = Workload("resnet50", 32, "k40").instance("30%")
    for count in (5, 40, 10_000):
        chosen = hot_checkpoints(instance, count)
        assert chosen == sorted(set(chosen))
        assert 0 <= chosen[0] <= chosen[-1] < len(instance.tasks)
        assert count / 2 <= len(chosen) <= count + 1 or len(chosen) == len(instance.tasks)


def test_entries_at_one_place_add_up_and_infeasible_is_said() -> None:
    builder = ModelBuilder()
    x = builder.columns(2, upper=4.0, cost=[1.0, 1.0])
    row = builder.rows(1, lower=6.0)
    builder.entries(row, x, 1.0)
    builder.entries(row, x[:1], 1.0)
    result = solve_linear(builder.build())
    assert result.status == "optimal"
    assert result.objective == pytest.approx(3.0)
    assert result.values == pytest.approx(np.array([3.0, 0.0]))
    builder.entries(builder.rows(1, upper=-1.0), x, 1.0)
    assert solve_linear(builder.build()).status == "infeasible"


def test_solvers_that_cannot_are_refused() -> None:
    builder = ModelBuilder()
    builder.entries(builder.rows(1, lower=1.0), builder.columns(1, integer=True), 1.0)
    with pytest.raises(PebblerError, match="whole variables"):
        solve_linear(builder.build(), solver="glop")
    with pytest.raises(PebblerError, match="'gurobi' is not available here"):
        solve_linear(builder.build(), solver="gurobi")


def test_two_bytes_of_ten_billion_leave_as_wholly_as_others() -> None:
    """What is out is a share of its block: in bytes of the pool it was smaller than tolerances are."""
    instance = read_instance(DATA / "big-200007.instance.json")
    schedule = brute_force(instance, "divisible")
    assert schedule is not None
    every = range(len(instance.tasks))
    for checkpoints in (every, every[::2], every[1::2]):
        for how in ("none", "algorithms", "all"):
            assert lower(instance, checkpoints, how) <= schedule.makespan_ns == 14000
        bound = flow_bound(instance, checkpoints, integrality="all", unbroken=True)
        assert bound is not None
        assert bound.lower_bound_ns <= 14000


@pytest.mark.parametrize("first", chunks(range(0, 60, 15)))
def test_no_scale_of_sizes_and_times_makes_a_bound_too_high(first: int) -> None:
    """Blocks of a byte beside terabytes, tasks of no time beside copies of minutes, or the reverse."""
    rng = Random(first)
    judged = met = 0
    for seed in range(first, first + 15):
        instance = twisted(seed)
        sizes = rng.choice((1, 10**6, 10**12))
        times, copies = rng.choice(((1, 1), (0, 10**9), (1, 10**11), (10**12, 1)))
        changed = msgspec.structs.replace(
            instance,
            budget_bytes=(instance.budget_bytes - instance.resident_bytes) * sizes + instance.resident_bytes,
            blocks=tuple(
                msgspec.structs.replace(
                    b,
                    bytes=1 if rng.random() < 0.2 and b.tensor is None else b.bytes * sizes,
                    begin=b.begin if b.begin is None else b.begin * sizes,
                    offload_ns=None if b.offload_ns is None else b.offload_ns * copies,
                    prefetch_ns=None if b.prefetch_ns is None else b.prefetch_ns * copies,
                )
                for b in instance.blocks
            ),
            tasks=tuple(
                msgspec.structs.replace(
                    t,
                    algorithms=tuple(
                        msgspec.structs.replace(
                            a, duration_ns=a.duration_ns * times, workspace_bytes=a.workspace_bytes * sizes
                        )
                        for a in t.algorithms
                    ),
                )
                for t in instance.tasks
            ),
        )
        try:
            schedule = brute_force(changed, "divisible", most_states=3000)
        except TimeoutError:
            continue
        if schedule is None:
            continue
        judged += 1
        for how in ("none", "all"):
            bound = lower(changed, range(len(changed.tasks)), how)
            assert bound <= schedule.makespan_ns, (seed, how)
        met += bound >= 0.999 * schedule.makespan_ns
    assert judged >= 7
    assert met >= judged / 3
