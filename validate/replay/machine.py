"""Symbolic replay: a program run on a machine that remembers what every byte of the pool holds.

The replay tests the checker independently. The checker reasons about all speeds at once. The replay runs the
program at one random speed and looks for damage. It finds a fault only at the speeds that it is given, so it
can refute a schedule, but never prove it valid.

A schedule that carries blocks is run twice in a row. The second round begins with what the first has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ...instances.instance import Instance
from ..schedule import Schedule
from .binding import Binding
from .durations import draw_durations
from .execution import Execution
from .fault import Fault
from .figures import figure_faults
from .pace import paced_durations
from .rounds import next_round
from .rules import broken_rules


def replay(
    instance: Instance, schedule: Schedule, durations_ns: Sequence[int] | None, rng: Random
) -> list[Fault]:
    """Execute a program once, and return the faults found; the list is empty if there is none.

    Parameters
    ----------
    instance, schedule
        The program, and the instance that it is for.
    durations_ns
        Duration of each operation in nanoseconds; zeros are allowed. Nothing shares a link or slows anything
        down then, so that any order of events can be asked for. None stands for the instance's own durations,
        link and slowdown; the reported times, makespan and peaks are then compared with the replay, and the
        live sums of a divisible schedule with the capacities.
    rng
        Generator that chooses the order of simultaneous events that the program does not order. Where blocks
        are carried, it also draws the durations of the second round.
    """
    return Machine(instance, schedule).replay(durations_ns, rng)


class Machine:
    """A program bound to its memories, ready to be replayed at any speed.

    Attributes
    ----------
    faults
        The faults at every speed.
    """

    def __init__(self, instance: Instance, schedule: Schedule) -> None:
        self._bound = Binding(instance, schedule)
        self._next = next_round(self._bound)
        self.faults = [*self._bound.faults, *broken_rules(self._bound)]

    def replay(self, durations_ns: Sequence[int] | None, rng: Random) -> list[Fault]:
        """Execute the program once, or twice in a row where it carries blocks; see `replay`."""
        bound = self._bound
        is_nominal = durations_ns is None
        if durations_ns is None:
            durations_ns = paced_durations(bound)
        happened = Execution(bound, durations_ns, rng)
        faults = [*self.faults, *happened.faults]
        if is_nominal:
            faults += figure_faults(bound, happened.starts, happened.ends)
        if self._next is not None:
            durations = draw_durations(bound.instance, bound.schedule, rng)
            again = Execution(self._next, durations, rng, before=happened)
            faults += [Fault(fault.kind, f"in the second round, {fault.text}") for fault in again.faults]
        return faults
