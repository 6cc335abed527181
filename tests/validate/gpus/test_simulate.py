"""Times of programs on several GPUs: by hand, against one GPU, and under a faster bus and more cores."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from pebbler.heuristics.spread import weave_at_once
from pebbler.instances.gpus.cluster import Cluster
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.units import LARGEST
from pebbler.validate.gpus.program import cluster_of
from pebbler.validate.gpus.simulate import simulate_cluster
from pebbler.validate.schedule import Kind, Operation, Schedule, Stream
from pebbler.validate.simulate import simulate

from ...samples import counts
from ..cluster_programs import random_cluster, random_cluster_case
from ..random_programs import random_case

GB = 10**9


def on_bus(gpus: int, bytes_per_ns: int) -> Instance:
    """Blocks of 12 and 8 bytes whose links take 4 bytes a nanosecond, and tasks of 10 and 100 ns."""
    blocks = tuple(
        Block(name=f"x{size}", bytes=size, offload_ns=size // 4, prefetch_ns=size // 4) for size in (12, 8)
    )
    tasks = tuple(
        Task(
            name=f"t{time}",
            inputs=(),
            outputs=(),
            algorithms=(Algorithm(name="only", duration_ns=time, workspace_bytes=0),),
        )
        for time in (10, 100)
    )
    cluster = Cluster(
        gpus=gpus,
        bus_bytes_per_second=bytes_per_ns * GB,
        core_bytes_per_second=GB,
        host_bytes_per_second=GB,
    )
    return Instance(
        name="hand",
        engines="duplex",
        budget_bytes=0,
        resident_bytes=0,
        blocks=blocks,
        tasks=tasks,
        cluster=cluster,
    )


def program(*steps: tuple[Kind, int, int, tuple[int, ...]]) -> Schedule:
    """Operations of (kind, GPU, task or block, after), with ids in their order."""
    streams: dict[Kind, Stream] = {"run": "compute", "offload": "d2h", "prefetch": "h2d"}
    operations = tuple(
        Operation(
            id=i,
            stream=streams[kind],
            kind=kind,
            gpu=gpu,
            task=item if kind == "run" else None,
            algorithm=0 if kind == "run" else None,
            block=None if kind == "run" else item,
            after=after,
            start_ns=0,
            end_ns=0,
        )
        for i, (kind, gpu, item, after) in enumerate(steps)
    )
    return Schedule(
        format="pebbler/schedule/1",
        instance="hand",
        method="hand",
        memory_model="contiguous",
        operations=operations,
        residences=(),
        makespan_ns=0,
        peak_bytes=0,
    )


@pytest.mark.parametrize(
    ("bytes_per_ns", "ends"),
    [(100, [3, 2]), (8, [3, 2]), (4, [5, 4]), (2, [10, 8]), (1, [20, 16])],
)
def test_two_copies_share_the_bus_until_one_has_ended(bytes_per_ns: int, ends: list[int]) -> None:
    both = program(("offload", 0, 0, ()), ("offload", 1, 1, ()))
    assert simulate_cluster(on_bus(2, bytes_per_ns), both) == ([0, 0], ends)
    assert simulate(on_bus(2, bytes_per_ns), both) == ([0, 0], ends)


def test_directions_have_bandwidth_of_their_own_unless_engines_are_single() -> None:
    instance = on_bus(2, 4)
    both = program(("offload", 0, 0, ()), ("prefetch", 1, 1, ()))
    assert simulate_cluster(instance, both)[1] == [3, 2]
    assert simulate_cluster(replace(instance, engines="single"), both)[1] == [5, 4]


def test_nodes_have_buses_of_their_own() -> None:
    instance = on_bus(2, 4)
    apart = replace(cluster_of(instance), nodes=2, network_bytes_per_second=GB)
    both = program(("offload", 0, 0, ()), ("offload", 1, 1, ()))
    assert simulate_cluster(replace(instance, cluster=apart), both)[1] == [3, 2]


def test_one_gpu_has_the_times_of_one_gpu() -> None:
    rng = Random(7)
    for _ in range(60):
        instance, schedule = random_case(rng)
        cluster = replace(random_cluster(rng, 1), bus_bytes_per_second=LARGEST)
        assert simulate_cluster(replace(instance, cluster=cluster), schedule) == simulate(instance, schedule)


@pytest.mark.parametrize("count", counts(25, 60))
def test_in_step_a_faster_bus_or_more_cores_never_slow_a_program_down(count: int) -> None:
    rng = Random(3)
    faster = 0
    for _ in range(count):
        instance, schedule, _ = random_cluster_case(rng)
        fixed = weave_at_once(instance, schedule)
        cluster = cluster_of(instance)
        for key in ("bus_bytes_per_second", "cores", "host_bytes_per_second"):
            twice = replace(cluster, **{key: 2 * getattr(cluster, key)})
            ends = simulate_cluster(replace(instance, cluster=twice), fixed)[1]
            before = simulate_cluster(instance, fixed)[1]
            assert all(then <= now for then, now in zip(ends, before, strict=True))
            faster += max(ends) < max(before)
    assert faster > count / 6


def test_anomaly_where_gpus_do_different_things() -> None:
    """Three GPUs prefetch, then offload; with twice the bus they are early enough to hold up the fourth.

    Its copy, after which it computes for 100 ns, has the slow bus to itself, and a quarter of the fast one.
    """
    steps: list[tuple[Kind, int, int, tuple[int, ...]]] = [
        ("run", 0, 0, ()),
        ("offload", 0, 0, (0,)),
        ("run", 0, 1, (1,)),
    ]
    for gpu in (1, 2, 3):
        steps.append(("prefetch", gpu, 1, ()))
        steps.append(("offload", gpu, 0, (len(steps) - 1,)))
    fixed = program(*steps)
    slow, fast = (max(simulate_cluster(on_bus(4, rate), fixed)[1]) for rate in (1, 2))
    assert (slow, fast) == (122, 128)
