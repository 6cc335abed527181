"""Figures of a comparison on several GPUs: what they share, and their gain over one GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...instances.gpus.cluster import Cluster, Gradient
from ...instances.instance import Instance
from ...instances.memory import ideal_ns
from ...instances.units import format_time
from ...validate.gpus.program import cluster_of


def gradients_of_all(instances: Sequence[Instance]) -> tuple[Gradient, ...]:
    """Return the gradients of an iteration, which are those of its last round."""
    return tuple(g for instance in instances for g in cluster_of(instance).gradients)


def naive_ideal_ns(instances: Sequence[Instance], *, staged: bool = False) -> int:
    """Return the time with unlimited memory if one GPU adds up the gradients at the end (`naive_ns`)."""
    rounds = sum(instance.rounds * ideal_ns(instance) for instance in instances)
    return rounds + cluster_of(instances[0]).naive_ns(gradients_of_all(instances), staged=staged)


def cluster_figures(instances: Sequence[Instance]) -> dict[str, Any]:
    """Return the figures of several GPUs for JSON, by name; nothing for one GPU."""
    if instances[0].gpus == 1:
        return {}
    return {
        "one_gpu_ideal_ns": instances[0].made_from.one_gpu_ideal_ns,
        "naive_ideal_ns": naive_ideal_ns(instances) if cluster_of(instances[0]).nodes == 1 else None,
        "gradient_bytes": sum(gradient.bytes for gradient in gradients_of_all(instances)),
    }


def cluster_notes(instances: Sequence[Instance], times_ns: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the notes on several GPUs below a table, by each method's iteration time; none for one GPU."""
    if instances[0].gpus == 1:
        return []
    size = sum(gradient.bytes for gradient in gradients_of_all(instances))
    notes = [("GPUs", f"{_described(cluster_of(instances[0]))}; {size / 1e6:.0f} MB of gradients each")]
    one = instances[0].made_from.one_gpu_ideal_ns
    if one is not None:
        times = list(times_ns.items())
        if cluster_of(instances[0]).nodes == 1:
            times.append(("the ideal with gradients added up at the end", naive_ideal_ns(instances)))
        gains = ", ".join(f"{name} {one / time:.2f} x" for name, time in times)
        notes.append(("speed-up", f"over the ideal on one GPU, {format_time(one)}: {gains}"))
    return notes


def _described(cluster: Cluster) -> str:
    """Return a cluster in words."""
    where = "" if cluster.nodes == 1 else f" on {cluster.nodes} nodes"
    bus = f"{cluster.gpus}{where}, a bus of {_rate(cluster.bus_bytes_per_second)}"
    if cluster.nvlink_bytes_per_second is not None:
        return f"{bus}, gradients added up in a ring of {_rate(cluster.nvlink_bytes_per_second)}"
    cores = f"{cluster.cores} core" + ("s" if cluster.cores > 1 else "")
    link = cluster.network_bytes_per_second
    network = "" if link is None else f", exchanged over {_rate(link)}"
    return f"{bus}, gradients added up by {cores}{' of each node' if link else ''}{network}"


def _rate(bytes_per_second: int) -> str:
    return f"{bytes_per_second / 1e9:.3g} GB/s"
