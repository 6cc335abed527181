"""How long operations take that share a link, or that slow each other down, in exact arithmetic.

What an operation has left to do is counted in nanoseconds of its time alone. Its speed is 1 where nothing
holds it up, and does not change between the instants at which operations start or end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from msgspec import UNSET

from .binding import Binding
from .durations import number, own_durations

_SECOND, _MILLION = 10**9, 10**6


def paced_durations(bound: Binding) -> list[int]:
    """Return how long every operation takes in the program, when each starts as soon as it may."""
    alone = own_durations(bound.instance, bound.schedule)
    slowed = any(task.slowdown_ppm is not UNSET for task in bound.instance.tasks)
    if bound.instance.link is UNSET and not slowed:
        return alone
    return _Course(bound, alone).durations


class _Course:
    """The course of a program in time.

    Attributes
    ----------
    durations
        The time between start and end of every operation.
    """

    def __init__(self, bound: Binding, alone: list[int]) -> None:
        self._bound, self._alone = bound, alone
        self._rates = [self._rate(i) for i in range(len(alone))]
        self._left: dict[int, Fraction] = {}
        self.durations = [0] * len(alone)
        waits = list(bound.waits)
        ready = [i for i, count in enumerate(waits) if not count]
        while ready or self._left:
            ended = [i for i in ready if not alone[i]]
            self._left.update((i, Fraction(alone[i])) for i in ready if alone[i])
            if not ended:
                ended = self._pass()
            ready = []
            for i in ended:
                for j in bound.successors[i]:
                    waits[j] -= 1
                    if not waits[j]:
                        ready.append(j)

    def _pass(self) -> list[int]:
        """Let time pass until something ends, at a whole nanosecond; return all that ends then."""
        speeds = self._speeds()
        elapsed = min(math.ceil(self._left[i] / speed) for i, speed in speeds.items() if speed)
        for i, speed in speeds.items():
            self._left[i] -= speed * elapsed
            self.durations[i] += elapsed
        ended = [i for i, left in self._left.items() if left <= 0]
        for i in ended:
            del self._left[i]
        return ended

    def _speeds(self) -> dict[int, Fraction]:
        """Return the speed of all that is under way."""
        operations, tasks = self._bound.schedule.operations, self._bound.instance.tasks
        speeds = dict.fromkeys(self._left, Fraction(1))
        copies = [i for i in self._left if operations[i].kind in ("offload", "prefetch")]
        if self._bound.instance.link is not UNSET:
            shares = _fair(self._link, (self._rates[i] for i in copies))
            speeds.update((i, share / self._rates[i]) for i, share in zip(copies, shares, strict=True))
        kinds = {operations[i].kind for i in copies}
        for i in self._left:
            if operations[i].kind == "run" and not self._bound.is_on_host(i):
                slowdown = tasks[number(operations[i].task)].slowdown_ppm
                if slowdown is not UNSET:
                    lost = {"offload": slowdown.offload, "prefetch": slowdown.prefetch}
                    speeds[i] = Fraction(max(_MILLION - sum(lost[kind] for kind in kinds), 0), _MILLION)
        return speeds

    @property
    def _link(self) -> Fraction:
        """What the link passes in a nanosecond, in bytes."""
        link = self._bound.instance.link
        assert link is not UNSET
        return Fraction(link.both_bytes_per_second, _SECOND)

    def _rate(self, i: int) -> Fraction:
        """Return what a copy loads in a nanosecond when it has the link to itself, if that is fast enough."""
        operation = self._bound.schedule.operations[i]
        if self._bound.instance.link is UNSET or operation.block is None or not self._alone[i]:
            return Fraction(0)
        size = self._bound.instance.blocks[operation.block].loaded_bytes
        passed = self._link * self._alone[i]
        load = passed if 0 < size - passed <= self._link else Fraction(size)
        return load / self._alone[i]


def _fair(link: Fraction, rates: Iterable[Fraction]) -> list[Fraction]:
    """Return the max-min fair shares of a link: equal ones, but for who cannot use as much."""
    wanted = list(rates)
    shares = [Fraction(0)] * len(wanted)
    waiting = len(wanted)
    for i in sorted(range(len(wanted)), key=wanted.__getitem__):
        shares[i] = min(wanted[i], link / waiting)
        link -= shares[i]
        waiting -= 1
    return shares
