"""What passing gradients on takes at least, in exact arithmetic: a bound for several GPUs without a solver.

A gradient cannot be complete before the tasks up to it have run at their fastest. From then on it and those
that are complete later have to pass, whoever's they are, over the engines, the bus, the cores and the
network, one after the other or at a shared rate; and what passes last has the rest of its way before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from msgspec import UNSET

from ..instances.cluster import SECOND, Cluster, Gradient
from ..instances.instance import Instance
from ..validate.exact_bounds import least_times


def gradient_bound_ns(instance: Instance) -> int:
    """Return a time that no schedule of all GPUs undercuts; 0 where no gradients are passed on."""
    if instance.cluster is UNSET or instance.gpus == 1:
        return 0
    heads = list(accumulate(least_times(instance)))
    gradients = instance.cluster.gradients
    single = instance.engines == "single"
    bounds = [0]
    for p in {gradient.produced_by for gradient in gradients}:
        later = [gradient for gradient in gradients if gradient.produced_by >= p]
        bounds.append(heads[p] + passing_ns(instance.cluster, later, single=single))
    for gradient in gradients if instance.cluster.joins_on_host else ():
        last = max((gradient.produced_by, *gradient.used_by))
        freed = [g for g in gradients if max((g.produced_by, *g.used_by)) >= last]
        bounds.append(
            heads[last]
            + _on_bus(instance.cluster, freed, [g.prefetch_ns for g in freed], instance.cluster.node_gpus)
        )
    return max(bounds)


def passing_ns(cluster: Cluster, gradients: Sequence[Gradient], *, single: bool) -> int:
    """Return how long some gradients take at least from when the first is complete on any GPU.

    `single` says that a GPU has one copy engine for both directions.
    """
    if not cluster.joins_on_host:
        return sum(map(cluster.reduce_ns, gradients))
    ways = [_Way.of(cluster, gradient) for gradient in gradients]
    gpus = cluster.node_gpus
    sent = _on_bus(cluster, gradients, [way.send for way in ways], gpus)
    returned = _on_bus(cluster, gradients, [way.back for way in ways], gpus)
    by_resource = [
        sent + min(way.add + way.exchange + way.back for way in ways),
        min(way.send for way in ways)
        + gpus * sum(map(cluster.accumulate_ns, gradients))
        + min(way.exchange + way.back for way in ways),
        min(way.added for way in ways) + sum(way.exchange for way in ways) + min(way.back for way in ways),
        min(way.added + way.exchange for way in ways) + returned,
        *(way.added + way.exchange + way.returned for way in ways),
    ]
    if single:
        both = [*(way.send for way in ways), *(way.back for way in ways)]
        by_resource.append(_on_bus(cluster, [*gradients, *gradients], both, gpus))
    return max(by_resource)


def own_passing_ns(cluster: Cluster, gradients: Sequence[Gradient]) -> int:
    """Return how long some gradients take at least from when the first is complete on the same GPU."""
    if not cluster.joins_on_host:
        return sum(map(cluster.reduce_ns, gradients))
    ways = [_Way.of(cluster, gradient) for gradient in gradients]
    return sum(way.send for way in ways) + min(way.add + way.exchange + way.back for way in ways)


@dataclass(frozen=True, slots=True)
class _Way:
    """Least times of one gradient on its way.

    Attributes
    ----------
    send, add, exchange, back
        To the host; to be added to the weights; between nodes; and back.
    added, returned
        To the host, and until a node's cores have added those of all its GPUs; back to all of them.
    """

    send: int
    add: int
    added: int
    exchange: int
    back: int
    returned: int

    @classmethod
    def of(cls, cluster: Cluster, gradient: Gradient) -> _Way:
        send, sent = (_on_bus(cluster, [gradient], [gradient.offload_ns], n) for n in (1, cluster.node_gpus))
        back, returned = (
            _on_bus(cluster, [gradient], [gradient.prefetch_ns], n) for n in (1, cluster.node_gpus)
        )
        add = cluster.accumulate_ns(gradient)
        added = max(send + cluster.node_gpus * add, sent + add)
        exchange = cluster.exchange_ns(gradient) if cluster.nodes > 1 else 0
        return cls(send, add, added, exchange, back, returned)


def _on_bus(cluster: Cluster, gradients: Sequence[Gradient], times: Sequence[int], gpus: int) -> int:
    """Time in which each of some GPUs copies gradients one way: on its own engine, and all on the bus."""
    loads = [cluster.load(g.bytes, time) for g, time in zip(gradients, times, strict=True) if time]
    on_bus = gpus * sum(loads, Fraction(0)) * SECOND / cluster.bus_bytes_per_second
    return max(sum(times), math.ceil(on_bus))
