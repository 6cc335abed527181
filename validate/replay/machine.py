"""Symbolic replay: a program run on a machine that remembers what every byte of the pool holds.

The replay tests the checker independently. The checker reasons about all speeds at once. The replay runs the
program at one random speed and looks for damage. It finds a fault only at the speeds that it is given, so it
can refute a schedule, but never prove it valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ...instances.instance import Instance
from ..schedule import Schedule
from .binding import Binding
from .durations import own_durations
from .execution import Execution
from .fault import Fault
from .figures import figure_faults
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
        Duration of each operation in nanoseconds; zeros are allowed. None stands for the instance's own
        durations; the reported times, makespan and peaks are then compared with the replay, and the live sums
        of a divisible schedule with the capacities.
    rng
        Generator that chooses the order of simultaneous events that the program does not order.
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
        self.faults = [*self._bound.faults, *broken_rules(self._bound)]

    def replay(self, durations_ns: Sequence[int] | None, rng: Random) -> list[Fault]:
        """Execute the program once; see `replay`."""
        bound = self._bound
        if durations_ns is not None:
            return [*self.faults, *Execution(bound, durations_ns, rng).faults]
        happened = Execution(bound, own_durations(bound.instance, bound.schedule), rng)
        return [*self.faults, *happened.faults, *figure_faults(bound, happened.starts, happened.ends)]
