"""Simulation of a program on several GPUs: operations start as soon as they can, and copies share the bus.

The simulation goes from event to event, in exact arithmetic. Events are at whole nanoseconds: a copy ends at
the first one by which all its bytes have passed the bus. So the same program has the same times everywhere.
Every GPU is simulated separately, whether they do the same or not. With one GPU, and a bus no slower than its
link, the times are those of `simulate`.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ...instances.gpus.cluster import SECOND
from ...instances.instance import Instance
from ..schedule import Schedule
from ..waits import Waits
from .bus import fair_shares
from .program import Bus, alone_ns, bus_load, bus_of, cluster_of, track_of


def simulate_cluster(
    instance: Instance, schedule: Schedule, durations_ns: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Return the start and end of every operation, in the order of the list.

    Parameters
    ----------
    instance, schedule
        The program, and the instance with its cluster.
    durations_ns
        Duration of each operation with the bus to itself, in nanoseconds, in place of the instance's.
    """
    if durations_ns is None:
        durations_ns = [alone_ns(instance, operation) for operation in schedule.operations]
    return _Simulation(instance, schedule, durations_ns).run()


@dataclass(slots=True)
class _Traffic:
    """The copies in flight on one bus, by position: bytes left since an instant, links and shares.

    With these shares, the first of them ends at `ends`.
    """

    rate: Fraction
    since: int = 0
    ends: int = 0
    left: dict[int, Fraction] = field(default_factory=dict)
    links: dict[int, Fraction] = field(default_factory=dict)
    shares: dict[int, Fraction] = field(default_factory=dict)

    def advance(self, now: int) -> None:
        """Let time pass."""
        if now > self.since:
            for i, share in self.shares.items():
                self.left[i] -= share * (now - self.since)
        self.since = now

    def share(self) -> None:
        """Divide the bus among the copies that are in flight now.

        A copy ends at the first whole nanosecond at which it has moved all its bytes.
        """
        links = list(self.links.values())
        self.shares = dict(zip(self.links, fair_shares(self.rate, links), strict=True))
        ends = (math.ceil(self.left[i] / share) for i, share in self.shares.items())
        self.ends = self.since + min(ends, default=0)


class _Simulation:
    """The state of all GPUs, from the first event to the last."""

    def __init__(self, instance: Instance, schedule: Schedule, durations_ns: Sequence[int]) -> None:
        self.instance = instance
        self.operations = schedule.operations
        self.durations_ns = durations_ns
        count = len(durations_ns)
        self.starts, self.ends = [0] * count, [0] * count
        cluster = cluster_of(instance)
        self.waits = Waits(self.operations, [track_of(cluster, operation) for operation in self.operations])
        rate = Fraction(cluster.bus_bytes_per_second, SECOND)
        self.traffic: dict[Bus, _Traffic] = defaultdict(lambda: _Traffic(rate))
        self.changed: set[Bus] = set()
        self.fixed: list[tuple[int, int]] = []  # end and position of what takes no bus

    def run(self) -> tuple[list[int], list[int]]:
        """Go from event to event until no operation is under way."""
        now = 0
        ready = self.waits.ready()
        while True:
            while ready:
                ready = [j for i in ready if self.start(i, now) for j in self.end(i, now)]
            for bus in self.changed:
                self.traffic[bus].share()
            self.changed.clear()
            flying = {bus: traffic.ends for bus, traffic in self.traffic.items() if traffic.left}
            instants = [*([self.fixed[0][0]] if self.fixed else []), *flying.values()]
            if not instants:
                return self.starts, self.ends
            now = min(instants)
            while self.fixed and self.fixed[0][0] == now:
                ready += self.end(heapq.heappop(self.fixed)[1], now)
            for bus, instant in flying.items():
                if instant == now:
                    ready += self.land(bus, now)

    def start(self, i: int, now: int) -> bool:
        """Start an operation; return whether it takes no time and has ended."""
        self.starts[i] = now
        duration = self.durations_ns[i]
        if not duration:
            return True
        operation = self.operations[i]
        bus = bus_of(self.instance, operation)
        if bus is None:
            heapq.heappush(self.fixed, (now + duration, i))
        else:
            traffic = self.traffic[bus]
            traffic.advance(now)
            load = bus_load(self.instance, operation)
            traffic.left[i], traffic.links[i] = load, load / duration
            self.changed.add(bus)
        return False

    def land(self, bus: Bus, now: int) -> list[int]:
        """End the copies of a bus that have arrived; return what can start."""
        traffic = self.traffic[bus]
        traffic.advance(now)
        arrived = [i for i, left in traffic.left.items() if left <= 0]
        for i in arrived:
            del traffic.left[i], traffic.links[i], traffic.shares[i]
        self.changed.add(bus)
        return [j for i in arrived for j in self.end(i, now)]

    def end(self, i: int, now: int) -> list[int]:
        """End an operation; return what can start."""
        self.ends[i] = now
        return self.waits.end(i)
