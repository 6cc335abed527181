"""Symbolic replay: a program run on a machine that remembers what every byte of the pool holds.

It judges the checker from outside: where the checker reasons about all speeds at once, the replay runs the
program at one drawn speed and looks for damage. It finds a fault only in the draws that it is given, so
it can refute a schedule, never prove it.
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
    """Execute a program once and return the faults found; an empty list: it survived.

    Parameters
    ----------
    instance, schedule
        The program and what it is for.
    durations_ns
        One duration an operation, zeros allowed; None: the instance's own, and the reported times, makespan
        and peak (and the capacity of a divisible schedule) are then compared with what happened.
    rng
        Breaks ties between events that the program leaves unordered.
    """
    return Machine(instance, schedule).replay(durations_ns, rng)


class Machine:
    """A program bound to its memory, ready to be replayed at any speed.

    Attributes
    ----------
    faults
        What is wrong at every speed.
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
