"""Schedules of one GPU, carried to several."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from pebbler import Workload
from pebbler.heuristics.methods import Answer, Limits, find_method, list_methods
from pebbler.heuristics.spread import in_step, spread, weave, weave_at_once
from pebbler.instances.gpus.cluster import Cluster
from pebbler.instances.gpus.workload import cluster_instances, several_gpus
from pebbler.instances.instance import Instance
from pebbler.solver.solve import solve
from pebbler.validate.gpus.check import check_cluster
from pebbler.validate.gpus.program import cluster_of, one_gpu

from ..validate.cluster_programs import random_cluster, random_cluster_case
from ..validate.random_programs import random_case

WORKLOAD = Workload("alexnet", 64, "k40")
BUDGET = "1.1xMmin"


def on(gpus: int, **shared: int) -> Instance:
    (instance,) = cluster_instances(WORKLOAD, several_gpus(WORKLOAD, gpus, **shared), BUDGET)
    return instance


def test_one_gpu_gets_the_schedule_of_one_gpu() -> None:
    rng = Random(2)
    for _ in range(40):
        instance, schedule = random_case(rng)
        cluster = replace(random_cluster(rng, 1), bus_bytes_per_second=2**53)
        assert weave(replace(instance, cluster=cluster), schedule) == schedule


@pytest.mark.parametrize("method", ["modnn", "vdnn-dyn", "network-wide", "layrub-hybrid"])
def test_one_gpu_of_a_cluster_is_one_gpu_whatever_the_method(method: str) -> None:
    instance = on(1)
    several, single = solve(instance, method), solve(one_gpu(instance), method)
    assert several.schedule == single.schedule
    assert several.lower_bound_ns == single.lower_bound_ns
    assert several.status == single.status


@pytest.mark.parametrize("name", [info.name for info in list_methods() if info.shown == "always"])
def test_every_method_is_carried_over(name: str) -> None:
    workload = Workload("lenet", 64, "k40")
    (instance,) = cluster_instances(workload, several_gpus(workload, 2), BUDGET)
    result = solve(instance, name, time_limit=0.5)
    if result.schedule is None:
        assert solve(in_step(instance), name, time_limit=0.5).schedule is None
    else:
        kinds = [operation.kind for operation in result.schedule.operations]
        assert kinds.count("send") == kinds.count("return") == 2 * len(cluster_of(instance).gradients)
        assert result.makespan_ns is not None
        assert result.makespan_ns >= result.lower_bound_ns


def test_gradients_pass_in_the_last_round_only() -> None:
    rounds = cluster_instances(WORKLOAD, several_gpus(WORKLOAD, 2), BUDGET, 8)
    sent = []
    for instance in rounds:
        schedule = solve(instance, "modnn").schedule
        assert schedule is not None
        sent.append(sum(operation.kind == "send" for operation in schedule.operations))
    assert [instance.rounds for instance in rounds] == [3, 1]
    assert sent == [0, 2 * 8]


def test_at_once_is_one_of_the_ways() -> None:
    rng = Random(4)
    better = 0
    for _ in range(20):
        instance, schedule, woven = random_cluster_case(rng)
        printed = weave_at_once(instance, schedule)
        assert check_cluster(instance, printed).valid
        if cluster_of(instance).joins_on_host:
            assert woven.makespan_ns <= printed.makespan_ns
            better += woven.makespan_ns < printed.makespan_ns
    assert better


def test_a_ring_passes_gradients_beside_the_bus() -> None:
    schedule = solve(on(4, nvlink=20 * 10**9), "modnn").schedule
    assert schedule is not None
    kinds = {operation.kind for operation in schedule.operations}
    assert "reduce" in kinds
    assert not kinds & {"send", "accumulate", "return"}


def test_nodes_exchange_what_they_have_added_up() -> None:
    instance = on(4, nodes=2, network=10**9)
    schedule = solve(instance, "modnn").schedule
    assert schedule is not None
    kinds = [operation.kind for operation in schedule.operations]
    assert kinds.count("exchange") == len(cluster_of(instance).gradients)


def test_planning_expects_copies_as_slow_as_the_shared_bus_makes_them() -> None:
    instance = on(4)
    for alone, shared in zip(instance.blocks, in_step(instance).blocks, strict=True):
        assert shared.offload_ns is not None
        assert alone.offload_ns is not None
        assert abs(shared.offload_ns - 4 * alone.offload_ns) <= 4


def test_the_same_input_gives_the_same_schedule() -> None:
    rng = Random(9)
    instance, schedule, woven = random_cluster_case(rng)
    assert weave(instance, schedule) == woven
    assert isinstance(cluster_of(instance), Cluster)


@pytest.mark.parametrize("plan", [1, 2, 3])
def test_what_is_planned_remains_when_a_later_plan_is_interrupted(plan: int) -> None:
    instance = on(4)
    rule = find_method("modnn").call
    calls = 0

    def interrupted(one: Instance, limits: Limits) -> Answer:
        nonlocal calls
        calls += 1
        if calls == plan:
            raise KeyboardInterrupt
        return rule(one, limits)

    if plan == 1:
        with pytest.raises(KeyboardInterrupt):
            spread(instance, interrupted, Limits())
        return
    answer = spread(instance, interrupted, Limits())
    assert answer.stopped_by == "interrupted"
    assert answer.schedule is not None
    assert check_cluster(instance, answer.schedule).valid
    assert calls == plan
