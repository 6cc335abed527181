"""Random programs of one GPU, and the same on several GPUs with gradients."""

from __future__ import annotations

from collections import Counter
from random import Random

from msgspec.structs import replace

from pebbler.heuristics.spread import weave
from pebbler.instances.gpus.cluster import Cluster, Gradient
from pebbler.instances.instance import Instance
from pebbler.validate.schedule import Schedule

from .random_programs import random_case


def random_cluster(rng: Random, gpus: int, nodes: int = 1, *, nvlink: bool = False) -> Cluster:
    """Draw what GPUs share, around what links of random instances take; no gradients."""
    return Cluster(
        gpus=gpus,
        nodes=nodes,
        bus_bytes_per_second=rng.choice((1, 20, 100, 1000)) * 10**9,
        cores=rng.choice((1, 4)),
        core_bytes_per_second=rng.choice((1, 50)) * 10**9,
        host_bytes_per_second=100 * 10**9,
        network_bytes_per_second=rng.choice((1, 50)) * 10**9 if nodes > 1 else None,
        nvlink_bytes_per_second=rng.choice((1, 50)) * 10**9 if nvlink else None,
    )


def random_gradients(rng: Random, instance: Instance, schedule: Schedule) -> tuple[Gradient, ...]:
    """Draw gradients that tasks complete which run once."""
    runs = Counter(operation.task for operation in schedule.operations if operation.task is not None)
    once = [k for k, count in runs.items() if count == 1]
    tasks = range(len(instance.tasks))
    return tuple(
        Gradient(
            name=f"dW{i}",
            bytes=rng.randint(1, 2000),
            offload_ns=rng.choice((0, 1, rng.randint(1, 40))),
            prefetch_ns=rng.choice((0, 1, rng.randint(1, 40))),
            produced_by=rng.choice(once),
            used_by=tuple(sorted(rng.sample(tasks, rng.randint(0, len(tasks))))),
        )
        for i in range(rng.randint(1, 4) if once else 0)
    )


def random_cluster_case(rng: Random, gpus: int | None = None) -> tuple[Instance, Schedule, Schedule]:
    """Draw an instance on several GPUs, and valid schedules of one of them and of all; not divisible."""
    while True:
        instance, schedule = random_case(rng)
        if schedule.memory_model != "divisible":
            break
    count = rng.choice((2, 3, 4)) if gpus is None else gpus
    nodes = 2 if count == 4 and rng.random() < 0.5 else 1
    cluster = random_cluster(rng, count, nodes, nvlink=nodes == 1 and rng.random() < 0.2)
    cluster = replace(cluster, gradients=random_gradients(rng, instance, schedule))
    instance = replace(instance, cluster=cluster)
    return instance, schedule, weave(instance, schedule)
