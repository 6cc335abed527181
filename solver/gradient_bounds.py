"""The least time to pass gradients on, in exact arithmetic: a bound for several GPUs without a solver.

A gradient cannot be complete before the tasks up to it have run at their fastest. From then on, this gradient
and all later ones of every GPU have to pass the engines, the bus, the cores and the network, one after the
other or at a shared rate. The gradient that passes last still has the rest of its way to go.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from msgspec import UNSET

from ..instances.gpus.cluster import SECOND, Cluster, Gradient
from ..instances.instance import Instance
from ..validate.bounds.arguments import least_times


def gradient_bound_ns(instance: Instance) -> int:
    """Return a lower bound in nanoseconds on schedules of all GPUs; 0 if no gradients are passed on."""
    if instance.cluster is UNSET or instance.gpus == 1:
        return 0
    heads = list(accumulate(least_times(instance)))
    cluster, gradients = instance.cluster, instance.cluster.gradients
    single = instance.engines == "single"
    bounds = [0]
    made = sorted(gradients, key=lambda gradient: -gradient.produced_by)
    for later, following, passing in zip(
        made, [*made[1:], None], _passings(cluster, made, single=single), strict=False
    ):
        if following is None or following.produced_by < later.produced_by:
            bounds.append(heads[later.produced_by] + passing)
    if cluster.joins_on_host:
        freed = sorted((max((g.produced_by, *g.used_by)), i) for i, g in enumerate(gradients))[::-1]
        bus = _Bus(cluster, cluster.node_gpus)
        for (last, i), following_last in zip(freed, [*(last for last, _ in freed[1:]), -1], strict=False):
            bus.add(gradients[i], gradients[i].prefetch_ns)
            if following_last < last:
                bounds.append(heads[last] + bus.ns)
    return max(bounds)


def _passings(cluster: Cluster, gradients: Sequence[Gradient], *, single: bool) -> Iterator[int]:
    """Yield, after each gradient, the least time to pass all gradients so far.

    The time begins when the first of them is complete on any GPU. `single` says that a GPU has one copy
    engine for both directions.
    """
    if not cluster.joins_on_host:
        yield from accumulate(map(cluster.reduce_ns, gradients))
        return
    gpus = cluster.node_gpus
    sent, returned, both = (_Bus(cluster, gpus) for _ in range(3))
    adding = exchanging = longest = 0
    after_sent = before_added = after_added = before_exchanged = after_exchanged = before_back = math.inf
    for gradient in gradients:
        way = _Way.of(cluster, gradient)
        sent.add(gradient, way.send)
        returned.add(gradient, way.back)
        both.add(gradient, way.send)
        both.add(gradient, way.back)
        adding += cluster.accumulate_ns(gradient)
        exchanging += way.exchange
        after_sent = min(after_sent, way.add + way.exchange + way.back)
        before_added, after_added = min(before_added, way.send), min(after_added, way.exchange + way.back)
        before_exchanged, after_exchanged = min(before_exchanged, way.added), min(after_exchanged, way.back)
        before_back = min(before_back, way.added + way.exchange)
        longest = max(longest, way.added + way.exchange + way.returned)
        yield int(
            max(
                sent.ns + after_sent,
                before_added + gpus * adding + after_added,
                before_exchanged + exchanging + after_exchanged,
                before_back + returned.ns,
                longest,
                both.ns if single else 0,
            )
        )


def own_passing_ns(cluster: Cluster, gradients: Sequence[Gradient]) -> int:
    """Return the least time of some gradients from the completion of the first one on the same GPU."""
    if not cluster.joins_on_host:
        return sum(map(cluster.reduce_ns, gradients))
    ways = [_Way.of(cluster, gradient) for gradient in gradients]
    return sum(way.send for way in ways) + min(way.add + way.exchange + way.back for way in ways)


def added_ns(cluster: Cluster, gradient: Gradient) -> int:
    """Return the least time from the first completion of a gradient until its weights return to any GPU.

    Until then, a node's cores have added the gradients of all its GPUs, and the nodes have exchanged them.
    """
    way = _Way.of(cluster, gradient)
    return way.added + way.exchange


@dataclass(frozen=True, slots=True)
class _Way:
    """Least times of one gradient on its way, in nanoseconds.

    Attributes
    ----------
    send, add, exchange, back
        Times to copy it to the host; to add it to the weights; to exchange it between nodes; and to copy it
        back.
    added, returned
        Times until a node's cores have added the gradients of all its GPUs, with their copies to the host;
        and to copy them back to all GPUs.
    """

    send: int
    add: int
    added: int
    exchange: int
    back: int
    returned: int

    @classmethod
    def of(cls, cluster: Cluster, gradient: Gradient) -> _Way:
        """Return the least times of a gradient on a cluster."""
        one, all_gpus = 1, cluster.node_gpus
        send, sent = (_on_bus(cluster, gradient, gradient.offload_ns, n) for n in (one, all_gpus))
        back, returned = (_on_bus(cluster, gradient, gradient.prefetch_ns, n) for n in (one, all_gpus))
        add = cluster.accumulate_ns(gradient)
        added = max(send + cluster.node_gpus * add, sent + add)
        exchange = cluster.exchange_ns(gradient) if cluster.nodes > 1 else 0
        return cls(send, add, added, exchange, back, returned)


def _on_bus(cluster: Cluster, gradient: Gradient, time: int, gpus: int) -> int:
    """Return the time in which each of some GPUs copies a gradient one way."""
    bus = _Bus(cluster, gpus)
    bus.add(gradient, time)
    return bus.ns


class _Bus:
    """Time in which each of some GPUs copies gradients one way: on its own engine, and all on the bus."""

    def __init__(self, cluster: Cluster, gpus: int) -> None:
        self._cluster, self._gpus = cluster, gpus
        self._engine, self._load = 0, Fraction(0)

    def add(self, gradient: Gradient, time: int) -> None:
        """Add a gradient that an engine copies in some time."""
        self._engine += time
        if time:
            self._load += self._cluster.load(gradient.bytes, time)

    @property
    def ns(self) -> int:
        """Return the time that the added gradients take."""
        on_bus = self._gpus * self._load * SECOND / self._cluster.bus_bytes_per_second
        return max(self._engine, math.ceil(on_bus))
