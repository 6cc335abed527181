"""Exhaustive search on several GPUs, against that on one, the simulation, the bounds and the methods."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pebbler.instances.errors import PebblerError
from pebbler.instances.gpus.cluster import Cluster
from pebbler.instances.suites.tiny import plain, tiny_cluster, tiny_instance, twisted
from pebbler.solver.bounds import best_bound
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.exhaustive.gpus import cluster_brute_force
from pebbler.solver.flow.gpus import cluster_flow_bound
from pebbler.solver.solve import solve
from pebbler.validate.gpus.program import cluster_of
from pebbler.validate.gpus.simulate import simulate_cluster
from pebbler.validate.schedule import Schedule

from ...samples import counts, mostly_slow

ALONE = Cluster(gpus=1, bus_bytes_per_second=2**50, core_bytes_per_second=10**9, host_bytes_per_second=10**9)


@pytest.mark.parametrize("kind", [plain, twisted])
@pytest.mark.parametrize("count", counts(8, 20))
def test_one_gpu_takes_as_long_as_the_search_on_one_gpu(kind: object, count: int) -> None:
    assert callable(kind)
    for seed in range(count):
        instance = kind(seed)
        single = brute_force(instance, "divisible")
        several = cluster_brute_force(replace(instance, cluster=ALONE))
        assert (single and single.makespan_ns) == (several and several.makespan_ns)


DECIDED = (2, 4, 7, 10, 12, 13, 16, 17, 18, 26, 32, 35, 36, 37, 40, 43, 49, 50)
"""Seeds of tiny instances on two GPUs whose search ends soon."""
AT_ONCE = (4, 7, 10, 12, 13, 16, 17)


@pytest.mark.parametrize("seed", mostly_slow(DECIDED, AT_ONCE))
def test_bound_search_schedule_on_two_gpus(seed: int) -> None:
    instance = tiny_cluster(seed)
    optimum = cluster_brute_force(instance, most_states=60_000)
    assert optimum is not None
    program = Schedule(
        format="pebbler/schedule/1",
        instance=instance.name,
        method="brute-force",
        memory_model="divisible",
        operations=optimum.operations,
        residences=(),
        makespan_ns=optimum.makespan_ns,
        peak_bytes=0,
    )
    assert max(simulate_cluster(instance, program)[1]) == optimum.makespan_ns
    every = range(len(instance.tasks))
    flow = [cluster_flow_bound(instance, every, integrality=whole) for whole in ("none", "all")]  # type: ignore[arg-type]
    for bound in (best_bound(instance), *flow):
        assert bound is not None
        assert bound.lower_bound_ns <= optimum.makespan_ns
    for method in ("modnn", "network-wide", "brute-force"):
        makespan = solve(instance, method).makespan_ns
        assert makespan is None or optimum.makespan_ns <= makespan


def test_what_it_refuses() -> None:
    instance = tiny_cluster(1)
    cluster = cluster_of(instance)
    for change in ({"nodes": 2, "network_bytes_per_second": 9}, {"nvlink_bytes_per_second": 9}):
        with pytest.raises(PebblerError, match="of one node"):
            cluster_brute_force(replace(instance, cluster=replace(cluster, **change)))
    again = next(i for i in map(tiny_instance, range(99)) if any(task.recomputable for task in i.tasks))
    with pytest.raises(PebblerError, match="anything again"):
        cluster_brute_force(replace(again, cluster=ALONE))
    with pytest.raises(TimeoutError, match="7 states"):
        cluster_brute_force(instance, most_states=7)
