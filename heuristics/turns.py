"""GPUs that take turns on the bus of their node.

Copies that are under way at once share the bus, so that GPUs with the same program all wait until all of them
have moved their bytes. Here, a copy has the bus as if to itself, and the copies of other GPUs wait for it:
while one GPU copies, the others compute. The order of copies is that of a simulation in which a copy gets the
bus as soon as it is free. Waits between the GPUs keep it for any durations. The times of the result are those
of the simulation with a fair bus (`simulate_cluster`).
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from msgspec.structs import replace

from ..instances.gpus.cluster import SECOND
from ..instances.instance import Instance
from ..validate.gpus.program import Bus, alone_ns, bus_load, bus_of, cluster_of, track_of
from ..validate.gpus.simulate import simulate_cluster
from ..validate.schedule import Schedule
from ..validate.waits import Waits


def turns(instance: Instance, schedule: Schedule) -> Iterator[Schedule]:
    """Yield schedules with the operations of a given one, in which copies take turns.

    They are none where all GPUs of a node can copy at once as fast as alone. In the first, whoever waits for
    longest is next. In the second it is the first GPU that waits, so that GPUs run one ahead of the other.
    """
    cluster = cluster_of(instance)
    rate = Fraction(cluster.bus_bytes_per_second, SECOND)
    copies = [operation for operation in schedule.operations if bus_of(instance, operation) is not None]
    links = [bus_load(instance, copy) / time for copy in copies if (time := alone_ns(instance, copy))]
    abreast = math.ceil(rate / max(links, default=rate))
    if abreast >= cluster.node_gpus:
        return
    for first_gpu_first in (False, True):
        yield _Turns(instance, schedule, abreast, first_gpu_first=first_gpu_first).schedule()


class _Turns:
    """A simulation in which at most some copies are on a bus at once.

    Parameters
    ----------
    instance, schedule
        The cluster's instance, and the program of all GPUs.
    abreast
        How many copies fill the bus.
    first_gpu_first
        Whether the first GPU of those that wait is next, and not the one that waits for longest.
    """

    def __init__(
        self, instance: Instance, schedule: Schedule, abreast: int, *, first_gpu_first: bool
    ) -> None:
        self.instance, self.given = instance, schedule
        self.abreast, self.first_gpu_first = abreast, first_gpu_first
        cluster = cluster_of(instance)
        self.operations = schedule.operations
        self.waits = Waits(self.operations, [track_of(cluster, operation) for operation in self.operations])
        self.durations_ns = [alone_ns(instance, operation) for operation in self.operations]
        self.buses: list[Bus | None] = [bus_of(instance, operation) for operation in self.operations]
        rate = Fraction(cluster.bus_bytes_per_second, SECOND)
        for i, (operation, bus) in enumerate(zip(self.operations, self.buses, strict=True)):
            if bus is not None and self.durations_ns[i]:
                passing = math.ceil(abreast * bus_load(instance, operation) / rate)
                self.durations_ns[i] = max(self.durations_ns[i], passing)
        self.order: list[int] = []
        self.flying: list[tuple[int, int]] = []  # end and position
        self.queues: dict[Bus, list[tuple[int, int, int]]] = defaultdict(list)
        self.lines: dict[Bus, list[int]] = defaultdict(list)  # the copies of a bus, in their order
        self.busy: dict[Bus, int] = defaultdict(int)
        self.behind: dict[int, int] = {}  # of a copy, the one that it lets go first

    def schedule(self) -> Schedule:
        """Return the program with the waits of copies for each other, and its times."""
        self._run()
        operations = []
        for i in self.order:
            operation = self.operations[i]
            if i in self.behind:
                after = {*operation.after, self.operations[self.behind[i]].id}
                operation = replace(operation, after=tuple(sorted(after)))
            operations.append(operation)
        program = replace(self.given, operations=tuple(operations))
        starts, ends = simulate_cluster(self.instance, program)
        timed = (
            replace(operation, start_ns=start, end_ns=end)
            for operation, start, end in zip(operations, starts, ends, strict=True)
        )
        return replace(program, operations=tuple(timed), makespan_ns=max(ends, default=0))

    def _run(self) -> None:
        now, ready = 0, self.waits.ready()
        while True:
            while ready:
                ready = [j for i in ready for j in self._come(i, now)]
            for bus, queue in self.queues.items():
                while queue and self.busy[bus] < self.abreast:
                    self._board(bus, heapq.heappop(queue)[-1], now)
            if not self.flying:
                return
            now = self.flying[0][0]
            while self.flying and self.flying[0][0] == now:
                i = heapq.heappop(self.flying)[1]
                bus_left = self.buses[i]
                if bus_left is not None:
                    self.busy[bus_left] -= 1
                ready += self.waits.end(i)

    def _come(self, i: int, now: int) -> list[int]:
        """Start an operation, or let a copy queue; return what can start if it takes no time."""
        bus = self.buses[i]
        if bus is not None and self.durations_ns[i]:
            gpu = self.operations[i].gpu
            heapq.heappush(self.queues[bus], (0 if self.first_gpu_first else now, gpu, i))
            return []
        self.order.append(i)
        if not self.durations_ns[i]:
            return self.waits.end(i)
        heapq.heappush(self.flying, (now + self.durations_ns[i], i))
        return []

    def _board(self, bus: Bus, i: int, now: int) -> None:
        """Let a copy onto the bus, after the one that makes room for it."""
        line = self.lines[bus]
        if len(line) >= self.abreast:
            self.behind[i] = line[-self.abreast]
        line.append(i)
        self.busy[bus] += 1
        self.order.append(i)
        heapq.heappush(self.flying, (now + self.durations_ns[i], i))
