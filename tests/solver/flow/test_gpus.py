"""Bounds on what several GPUs can do: what gradients take, and FLOW with a bus."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from pebbler import Workload
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import read_instance
from pebbler.instances.gpus.cluster import Cluster, Gradient
from pebbler.instances.gpus.workload import cluster_instances, several_gpus
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import least_budget
from pebbler.solver.bounds import best_bound
from pebbler.solver.exhaustive.gpus import cluster_brute_force
from pebbler.solver.flow.gpus import cluster_flow_bound
from pebbler.solver.flow.model import flow_bound
from pebbler.solver.flow.stages import refine_bound
from pebbler.solver.gradient_bounds import gradient_bound_ns
from pebbler.solver.solve import solve
from pebbler.validate.gpus.program import cluster_of, one_gpu

from ...samples import counts
from ...validate.hostile import hostile_cluster

GB = 10**9
ALEXNET = Workload("alexnet", 64, "k40")


def on(gpus: int, budget: str, **shared: int) -> Instance:
    (instance,) = cluster_instances(ALEXNET, several_gpus(ALEXNET, gpus, **shared), budget)
    return instance


def one_task(**shared: int) -> Instance:
    """A task of 100 ns that completes a gradient of 1200 bytes on four GPUs, whose links take 12 a ns."""
    gradient = Gradient(name="dW", bytes=1200, offload_ns=100, prefetch_ns=100, produced_by=0, used_by=())
    numbers = {
        "gpus": 4,
        "bus_bytes_per_second": 24 * GB,
        "core_bytes_per_second": 30 * GB,
        "host_bytes_per_second": 30 * GB,
        **shared,
    }
    return Instance(
        name="one",
        engines="duplex",
        budget_bytes=100,
        resident_bytes=0,
        blocks=(Block(name="x", bytes=4, offload_ns=1, prefetch_ns=1),),
        tasks=(
            Task(
                name="t",
                inputs=(),
                outputs=(0,),
                algorithms=(Algorithm(name="only", duration_ns=100, workspace_bytes=0),),
            ),
        ),
        cluster=Cluster(**numbers, gradients=(gradient,)),
    )


@pytest.mark.parametrize(
    ("shared", "bound"),
    [
        ({}, 100 + 100 + 4 * 40 + 200),
        ({"core_bytes_per_second": 2 * GB}, 100 + 100 + 4 * 600 + 200),
        ({"bus_bytes_per_second": 6 * GB}, 100 + 800 + 40 + 800),
        ({"bus_bytes_per_second": 99 * GB}, 100 + 100 + 4 * 40 + 100),
        ({"nodes": 2, "network_bytes_per_second": GB}, 100 + 100 + 2 * 40 + 1200 + 100),
        ({"nvlink_bytes_per_second": GB}, 100 + 1800),
        ({"gpus": 1}, 0),
    ],
)
def test_way_of_one_gradient_worked_out_by_hand(shared: dict[str, int], bound: int) -> None:
    assert gradient_bound_ns(one_task(**shared)) == bound


def test_one_engine_passes_both_directions() -> None:
    instance = replace(one_task(bus_bytes_per_second=6 * GB), engines="single")
    assert gradient_bound_ns(instance) == 100 + 800 + 40 + 800


@pytest.mark.parametrize("gpus", [2, 4])
def test_flow_with_a_bus_is_no_less_than_flow_of_one_gpu(gpus: int) -> None:
    instance = on(gpus, "1.05xMmin")
    every = range(len(instance.tasks))
    shared, single = cluster_flow_bound(instance, every), flow_bound(one_gpu(instance), every)
    assert shared is not None
    assert single is not None
    assert shared.lower_bound_ns >= single.lower_bound_ns * (1 - 1e-6)


def test_bus_row_raises_the_bound_where_blocks_have_to_move() -> None:
    instance = on(4, "1.02xMmin")
    every = range(len(instance.tasks))
    wide = replace(instance, cluster=replace(cluster_of(instance), bus_bytes_per_second=48 * GB))
    found = [cluster_flow_bound(what, every) for what in (instance, wide)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].lower_bound_ns > found[1].lower_bound_ns


def test_weights_that_return_late_pass_beside_what_comes_after_a_task() -> None:
    """Four GPUs compute for 4100 ns, and then need 1200 bytes each that had no room before.

    The gradients of the first task are added by 4200 ns. So 400 ns of weights pass the bus after the second
    task, and 400 ns of the bytes that the third one reads.
    """
    plain = one_task(bus_bytes_per_second=12 * GB, core_bytes_per_second=12 * GB // 10)
    task = plain.tasks[0]
    instance = replace(
        plain,
        budget_bytes=1212,
        blocks=(
            replace(plain.blocks[0], bytes=12),
            Block(name="w", bytes=1200, offload_ns=100, prefetch_ns=100, initially="host"),
        ),
        tasks=(
            task,
            replace(
                task,
                name="long",
                inputs=(0,),
                outputs=(),
                algorithms=(Algorithm(name="a", duration_ns=4000, workspace_bytes=1200),),
            ),
            replace(task, name="last", inputs=(0, 1), outputs=(), algorithms=task.algorithms),
        ),
    )
    assert gradient_bound_ns(instance) == 100 + 100 + 4 * 1000 + 400
    bound = cluster_flow_bound(instance, range(3))
    assert bound is not None
    assert bound.lower_bound_ns >= 4100 + 400 + 400 - 1


@pytest.mark.slow
def test_whole_columns_without_prices_are_no_less_than_the_linear_program() -> None:
    """CBC has no duals here, so that there is nothing to price the bus with."""
    solver = "cbc"
    instance = on(2, "1.05xMmin")
    checkpoints = range(0, len(instance.tasks), 3)
    linear = cluster_flow_bound(instance, checkpoints, solver=solver)
    whole = cluster_flow_bound(instance, checkpoints, integrality="all", solver=solver, time_limit=20.0)
    makespan = solve(instance, "modnn").makespan_ns
    assert linear is not None
    assert whole is not None
    assert makespan is not None
    assert linear.lower_bound_ns <= whole.lower_bound_ns <= makespan


@pytest.mark.parametrize("shared", [{}, {"nvlink": 20 * GB}, {"nodes": 2, "network": GB}])
def test_refined_bound_stays_under_every_schedule(shared: dict[str, int]) -> None:
    instance = on(2, "1.05xMmin", **shared)
    bound = refine_bound(instance, 0.2)
    assert bound.lower_bound_ns >= best_bound(instance).lower_bound_ns
    for method in ("modnn", "vdnn-all-p"):
        makespan = solve(instance, method).makespan_ns
        assert makespan is None or bound.lower_bound_ns <= makespan


def test_one_gpu_has_the_bounds_of_one_gpu() -> None:
    instance = on(1, "1.05xMmin")
    assert best_bound(instance) == best_bound(one_gpu(instance))


def test_a_gradient_whose_task_ended_before_an_instant_has_not_still_to_pass(
    pytestconfig: pytest.Config,
) -> None:
    """A task that takes no time at its fastest lies between: its least times do not say who came first.

    The bus row let the whole ring of a gradient follow the start of a task that need not wait for it: 41 ns.
    """
    data = Path(pytestconfig.rootpath) / "tests" / "data"
    instance = read_instance(data / "cluster_nvlink.instance.json")
    assert solve(instance, "modnn").makespan_ns == 31
    tasks = range(len(instance.tasks))
    for some in (some for count in (1, 2, 3) for some in combinations(tasks, count)):
        bound = cluster_flow_bound(instance, some)
        assert bound is not None
        assert bound.lower_bound_ns <= 31


@pytest.mark.parametrize("count", counts(14, 70))
def test_nothing_proves_more_than_anything_that_hostile_gpus_do(count: int) -> None:
    """Every bound on any checkpoints, under the search on one node, and under every schedule elsewhere."""
    searched = schedules = better = 0
    for seed in range(count):
        rng = Random(seed)
        instance = hostile_cluster(rng, gpus=2 if seed % 2 else None)
        if instance.budget_bytes < least_budget(instance):
            continue
        found: list[int | None] = []
        try:
            optimum = cluster_brute_force(instance, most_states=500)
            found.append(optimum and optimum.makespan_ns)
            searched += optimum is not None
        except (PebblerError, TimeoutError):  # it is for one node that adds up gradients, and few states
            pass
        for method in ("modnn", "network-wide", "vdnn-all-p"):
            found.append(solve(instance, method).makespan_ns)
        known = [makespan for makespan in found if makespan is not None]
        if not known:
            continue
        schedules += len(known)
        least = best_bound(instance).lower_bound_ns
        assert least <= min(known), seed
        tasks = range(len(instance.tasks))
        for some in (tasks, sorted(rng.sample(tasks, rng.randint(1, len(tasks))))):
            for integrality in ("none", "all"):
                bound = cluster_flow_bound(instance, some, integrality=integrality)  # type: ignore[arg-type]
                assert bound is None or bound.lower_bound_ns <= min(known), (seed, some)
                better += bound is not None and bound.lower_bound_ns > least
    assert searched >= count / 20
    assert schedules >= 6 * count / 7
    assert better >= count / 7


def test_the_last_gpu_on_the_bus_has_its_own_rest_to_do() -> None:
    """Two GPUs; a copy of 100 bytes takes each 100 ns alone, and the bus passes 1 byte a ns for both.

    The first task makes a block that has to leave before the second, whose workspace leaves no room for it.
    The third one reads it, and needs the room of the second's output before that comes back: on each GPU, 100
    ns of copies out, 10 ns of the second task and 100 ns of copies back follow the first task, one after the
    other. So the last GPU begins the second task 210 ns after the start at least, and ends it 120 ns later.
    The mean of both GPUs does not know that the last one has all of this still before it.
    """

    def task(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: int) -> Task:
        return Task(
            name=name,
            inputs=inputs,
            outputs=outputs,
            algorithms=(Algorithm(name="a", duration_ns=10, workspace_bytes=workspace),),
        )

    copied = Block(name="x", bytes=100, offload_ns=100, prefetch_ns=100)
    instance = Instance(
        name="rest",
        engines="duplex",
        budget_bytes=110,
        resident_bytes=0,
        blocks=(copied, Block(name="y", bytes=5, offload_ns=5, prefetch_ns=5)),
        tasks=(task("first", (), (0,), 0), task("second", (), (1,), 100), task("third", (0, 1), (), 0)),
        cluster=Cluster(
            gpus=2,
            bus_bytes_per_second=GB,
            core_bytes_per_second=GB,
            host_bytes_per_second=GB,
            gradients=(),
        ),
    )
    optimum = cluster_brute_force(instance)
    assert optimum is not None
    assert optimum.makespan_ns == 10 + 200 + 10 + 100 + 10
    for whole in ("none", "all"):
        bound = cluster_flow_bound(instance, range(3), integrality=whole)  # type: ignore[arg-type]
        assert bound is not None
        assert 300 < bound.lower_bound_ns <= optimum.makespan_ns


def test_a_sum_of_bounds_is_rounded_up_once() -> None:
    """Two GPUs get 40 bytes each over a bus of 10 a ns, and then compute for 1 ns: 9 ns.

    The bound was 10 ns once: the sum of what was proven of each GPU, rounded up.
    """

    def task(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], *durations: int) -> Task:
        algorithms = tuple(
            Algorithm(name=f"a{time}", duration_ns=time, workspace_bytes=0) for time in durations
        )
        return Task(name=name, inputs=inputs, outputs=outputs, algorithms=algorithms)

    instance = Instance(
        name="once",
        engines="duplex",
        budget_bytes=42,
        resident_bytes=0,
        blocks=(
            Block(name="b0", bytes=40, offload_ns=0, prefetch_ns=4, initially="host"),
            Block(name="b1", bytes=1, offload_ns=0, prefetch_ns=0),
            Block(name="b2", bytes=1, offload_ns=0, prefetch_ns=0),
        ),
        tasks=(task("k0", (0,), (1, 2), 0), task("k1", (), (), 1, 2, 6)),
        cluster=Cluster(
            gpus=2,
            bus_bytes_per_second=10 * GB,
            core_bytes_per_second=GB,
            host_bytes_per_second=6 * GB,
            gradients=(),
        ),
    )
    optimum = cluster_brute_force(instance)
    assert optimum is not None
    assert optimum.makespan_ns == 9
    for checkpoints in ([], [0], [1], [0, 1]):
        bound = cluster_flow_bound(instance, checkpoints, integrality="all")
        assert bound is not None
        assert bound.lower_bound_ns <= 9
