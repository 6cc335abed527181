"""Simulation of a program whose copies share a link, or slow its runs down.

The simulation goes from event to event, in exact arithmetic. Every operation that is under way has something
left to do, and proceeds at a speed that is constant until the next event: a copy through the link in bytes a
nanosecond, a run that can be slowed down in millionths of its full speed, everything else at 1. Events are at
whole nanoseconds: an operation ends at the first one by which nothing is left. So the same program has the
same times everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from msgspec import UNSET

from ..instances.figures import MILLION
from ..instances.instance import Instance, Slowdown
from .gpus.bus import fair_shares
from .schedule import Schedule
from .waits import Waits


def simulate_coupled(
    instance: Instance, schedule: Schedule, durations_ns: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the start and end of every operation, in the order of the list.

    Parameters
    ----------
    instance, schedule
        The program, and the instance that it is for, with one GPU.
    durations_ns
        Duration of each operation with the link to itself and where nothing slows it down, in nanoseconds.
    """
    return _Simulation(instance, schedule, durations_ns).run()


class _Simulation:
    """The state of all streams, from the first event to the last; operations are positions in the list."""

    def __init__(self, instance: Instance, schedule: Schedule, durations_ns: Sequence[int]) -> None:
        self.instance = instance
        self.operations = schedule.operations
        self.durations_ns = durations_ns
        count = len(durations_ns)
        self.starts, self.ends = [0] * count, [0] * count
        self.waits = Waits(self.operations, [operation.stream for operation in self.operations])
        self.left: dict[int, Fraction | int] = {}
        self.rates: dict[int, Fraction] = {}  # of copies on the link, in bytes a nanosecond
        self.slowed: dict[int, Slowdown] = {}  # runs that copies slow down

    def run(self) -> tuple[list[int], list[int]]:
        """Go from event to event until no operation is under way."""
        now = 0
        ready = self.waits.ready()
        while True:
            while ready:
                ready = [j for i in ready if self.start(i, now) for j in self.end(i, now)]
            if not self.left:
                return self.starts, self.ends
            speeds = self.speeds()
            step = min(-(-self.left[i] // speed) for i, speed in speeds.items() if speed)
            now += step
            for i, speed in speeds.items():
                self.left[i] -= step * speed
                if self.left[i] <= 0:
                    del self.left[i]
                    self.rates.pop(i, None)
                    self.slowed.pop(i, None)
                    ready += self.end(i, now)

    def start(self, i: int, now: int) -> bool:
        """Start an operation; return whether it takes no time and has ended."""
        self.starts[i] = now
        duration = self.durations_ns[i]
        if not duration:
            return True
        operation, link = self.operations[i], self.instance.link
        self.left[i] = duration
        if operation.task is not None and operation.algorithm is not None:
            task = self.instance.tasks[operation.task]
            if task.slowdown_ppm is not UNSET and task.algorithms[operation.algorithm].on == "device":
                self.left[i] = MILLION * duration
                self.slowed[i] = task.slowdown_ppm
        elif operation.kind != "move" and operation.block is not None and link is not UNSET:
            self.left[i] = load = link.load(self.instance.blocks[operation.block].loaded_bytes, duration)
            self.rates[i] = load / duration
        return False

    def end(self, i: int, now: int) -> list[int]:
        """End an operation; return what can start."""
        self.ends[i] = now
        return self.waits.end(i)

    def speeds(self) -> dict[int, Fraction | int]:
        """Return how fast each operation that is under way proceeds."""
        speeds: dict[int, Fraction | int] = dict.fromkeys(self.left, 1)
        if self.rates and self.instance.link is not UNSET:
            shares = fair_shares(self.instance.link.rate, list(self.rates.values()))
            speeds |= zip(self.rates, shares, strict=True)
        kinds = {self.operations[i].kind for i in self.left}
        for i, slowdown in self.slowed.items():
            taken = slowdown.offload * ("offload" in kinds) + slowdown.prefetch * ("prefetch" in kinds)
            speeds[i] = MILLION - taken
        return speeds
