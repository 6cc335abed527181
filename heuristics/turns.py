"""GPUs that take turns on the bus of their node.

Copies that are under way at once share the bus, so that GPUs with the same program all wait until all of them
have moved their bytes. Here, a copy has the bus as if to itself, and the copies of other GPUs wait for it:
while one GPU copies, the others compute. The order of copies is that of a simulation in which a copy gets the
bus as soon as it is free, and gradients what the other copies leave. Waits between the GPUs keep it for any
durations. Gradients pass in the order in which they are complete, or the largest of those that wait first, as
its weights take longest to return. The times of the result are those of the simulation with a fair bus
(`simulate_cluster`).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from msgspec.structs import replace

from ..instances.gpus.cluster import SECOND, Gradient
from ..instances.instance import Block, Instance
from ..validate.gpus.program import (
    BACK,
    Bus,
    Track,
    alone_ns,
    bus_load,
    bus_of,
    cluster_of,
    gradient_of,
    track_of,
)
from ..validate.gpus.simulate import simulate_cluster
from ..validate.schedule import Schedule
from ..validate.waits import Waits


class Rule(NamedTuple):
    """Which of the copies that wait for a bus is next: whoever waits for longest, with leads for some GPUs.

    Attributes
    ----------
    out_ns, back_ns
        Nanoseconds for which a copy to the host, or back, may have waited longer than one of the GPU before,
        and is still not next. If it is negative, it is the GPU before that has to have waited longer.
    """

    out_ns: int
    back_ns: int

    def place(self, gpu: int, since: int, *, back: bool) -> int:
        """Return the place of a copy that waits since a time: the least is next."""
        return since + gpu * (self.back_ns if back else self.out_ns)


ALWAYS = 1 << 50
"""A lead in nanoseconds that no copy waits for."""

RULES = (Rule(0, 0), Rule(ALWAYS, ALWAYS), Rule(ALWAYS, -ALWAYS))
"""Whoever waits for longest; the first GPU; of copies to the host the first GPU, of those back the last."""


def turns(instance: Instance, schedule: Schedule) -> Iterator[Schedule]:
    """Yield schedules with the operations of a given one, in which copies take turns.

    They are none where all GPUs of a node can copy at once as fast as alone. In the first, whoever waits for
    longest is next. In the second it is the first GPU that waits, so that GPUs run one ahead of the other. In
    the third, the first GPU also comes first on the way out, but on the way back the last one, which has most
    to do still. Each of them comes twice if there are gradients: with the first gradient first, and with the
    largest. Where the schedule has gradients among its copies does not matter.
    """
    if not take_turns(instance):
        return
    orders = (False, True) if any(one.gradient is not None for one in schedule.operations) else (False,)
    for rule, largest_first in itertools.product(RULES, orders):
        yield turn(instance, schedule, rule, largest_first=largest_first)


def turn(instance: Instance, schedule: Schedule, rule: Rule, *, largest_first: bool) -> Schedule:
    """Return the schedule of `turns` with a rule; where gradients wait, the largest or the first is next."""
    abreast = copies_abreast(instance)
    return _Turns(instance, schedule, abreast, rule, largest_first=largest_first).schedule()


def take_turns(instance: Instance) -> bool:
    """Return whether the GPUs of a node are too many to copy at once as fast as alone."""
    return copies_abreast(instance) < cluster_of(instance).node_gpus


def copies_abreast(instance: Instance) -> int:
    """Return how many copies fill the bus in one direction."""
    cluster = cluster_of(instance)
    rate = Fraction(cluster.bus_bytes_per_second, SECOND)
    copied: list[Block | Gradient] = [*instance.blocks, *cluster.gradients]
    links = [
        cluster.load(one.bytes, time) / time
        for one in copied
        for time in (one.offload_ns, one.prefetch_ns)
        if time
    ]
    return math.ceil(rate / max(links, default=rate))


class _Turns:
    """A simulation in which at most some copies are on a bus at once.

    What passes gradients on has no place of its own on its stream: it goes when the stream has nothing else
    to do, and the bus nobody else to take.

    Parameters
    ----------
    instance, schedule
        The cluster's instance, and the program of all GPUs.
    abreast
        How many copies fill the bus.
    rule
        Which copy is next.
    largest_first
        Whether of gradients that wait, the largest is next, and not the first of the program.
    """

    def __init__(
        self, instance: Instance, schedule: Schedule, abreast: int, rule: Rule, *, largest_first: bool
    ) -> None:
        self.instance, self.given = instance, schedule
        self.abreast, self.rule, self.largest_first = abreast, rule, largest_first
        cluster = cluster_of(instance)
        self.operations = schedule.operations
        self.tracks = [track_of(cluster, operation) for operation in self.operations]
        # a track of its own: such an operation waits for nothing but what it needs
        lines = [
            track if operation.gradient is None else ("gradient", i)
            for i, (operation, track) in enumerate(zip(self.operations, self.tracks, strict=True))
        ]
        self.waits = Waits(self.operations, lines)
        self.durations_ns = [alone_ns(instance, operation) for operation in self.operations]
        self.buses: list[Bus | None] = [bus_of(instance, operation) for operation in self.operations]
        rate = Fraction(cluster.bus_bytes_per_second, SECOND)
        for i, (operation, bus) in enumerate(zip(self.operations, self.buses, strict=True)):
            if bus is not None and self.durations_ns[i]:
                passing = math.ceil(abreast * bus_load(instance, operation) / rate)
                self.durations_ns[i] = max(self.durations_ns[i], passing)
        self.order: list[int] = []
        self.flying: list[tuple[int, int]] = []  # end and position
        self.ready: dict[Track, list[tuple[tuple[bool, int], int]]] = defaultdict(list)  # class, position
        self.since: dict[int, int] = {}  # when an operation was ready
        self.taken: set[Track] = set()
        self.queues: dict[Bus, list[tuple[tuple[bool, int], int, int, int]]] = defaultdict(list)
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
        now = 0
        self._come(self.waits.ready(), now)
        while True:
            for bus, queue in self.queues.items():
                while queue and self.busy[bus] < self.abreast:
                    self._board(bus, heapq.heappop(queue)[-1], now)
            if not self.flying:
                return
            now = self.flying[0][0]
            ended = []
            while self.flying and self.flying[0][0] == now:
                ended.append(heapq.heappop(self.flying)[1])
            for i in ended:
                bus_left = self.buses[i]
                if bus_left is not None:
                    self.busy[bus_left] -= 1
                self.taken.discard(self.tracks[i])
            for i in ended:
                self._come(self.waits.end(i), now)
                self._offer(self.tracks[i], now)

    def _come(self, ready: Sequence[int], now: int) -> None:
        """Let operations that are ready wait for their tracks, or start."""
        for i in ready:
            self.since[i] = now
            heapq.heappush(self.ready[self.tracks[i]], (self._class(i), i))
        for i in ready:
            self._offer(self.tracks[i], now)

    def _offer(self, track: Track, now: int) -> None:
        """Start what waits for a track, if it is free; a copy waits for the bus as well."""
        while self.ready[track] and track not in self.taken:
            least, i = self.ready[track][0]
            bus = self.buses[i]
            if bus is not None and self.durations_ns[i]:
                heapq.heappush(self.queues[bus], (least, self._rank(i), self.operations[i].gpu, i))
                return
            heapq.heappop(self.ready[track])
            self._start(i, now)

    def _class(self, i: int) -> tuple[bool, int]:
        """Return what comes before all else where operations wait: the least is next, gradients are last."""
        operation = self.operations[i]
        if operation.gradient is None:
            return False, 0
        return True, -gradient_of(self.instance, operation).bytes if self.largest_first else 0

    def _rank(self, i: int) -> int:
        """Return a copy's place among those that wait for its bus."""
        operation = self.operations[i]
        on_node = operation.gpu % cluster_of(self.instance).node_gpus
        return self.rule.place(on_node, self.since[i], back=operation.kind in BACK)

    def _board(self, bus: Bus, i: int, now: int) -> None:
        """Let a copy onto the bus, after the one that makes room for it, if its stream does no other."""
        track = self.tracks[i]
        waiting = self.ready[track]
        if track in self.taken or not waiting or waiting[0][1] != i:
            return
        heapq.heappop(waiting)
        line = self.lines[bus]
        if len(line) >= self.abreast:
            self.behind[i] = line[-self.abreast]
        line.append(i)
        self.busy[bus] += 1
        self._start(i, now)

    def _start(self, i: int, now: int) -> None:
        self.order.append(i)
        if self.durations_ns[i]:
            self.taken.add(self.tracks[i])
            heapq.heappush(self.flying, (now + self.durations_ns[i], i))
        else:
            self._come(self.waits.end(i), now)
