"""The best schedule of a search, where the makespans of the search itself are estimates.

The times of copies that share a link, and of tasks that copies slow down, depend on what is issued after
them; runs on the host are added to a program in the end. A search estimates all this, so that it can say of
any program soon how long it takes. Only a simulation of the finished schedule says it exactly.
"""

from __future__ import annotations

import time
from typing import Protocol

from ...instances.instance import Instance
from ...validate.schedule import Schedule

_LEAST_SHARE = 4.0
"""Least time between two simulations, as a multiple of the time that the first has taken."""


def estimates(instance: Instance) -> bool:
    """Return whether a search estimates the times of an instance's programs."""
    return instance.is_coupled or instance.has_host_work


class Searching(Protocol):
    """A search that goes from program to program."""

    @property
    def makespan_ns(self) -> int | None:
        """Makespan of the best program so far in nanoseconds, maybe an estimate; None without a program."""
        ...

    def schedule(self, method: str) -> Schedule | None:
        """Return the best program as a schedule; None while there is none."""
        ...


class Incumbent:
    """The best of the schedules that a search has had when somebody looked, and of others.

    Attributes
    ----------
    schedule
        The schedule; None while there is none.
    """

    def __init__(self, method: str) -> None:
        self.schedule: Schedule | None = None
        self._method = method
        self._seen: int | None = None
        self._next = 0.0

    def offer(self, schedule: Schedule | None) -> None:
        """Take another schedule, if it is shorter."""
        best = self.schedule
        if schedule is not None and (best is None or schedule.makespan_ns < best.makespan_ns):
            self.schedule = schedule

    def look(self, search: Searching) -> None:
        """Take the search's best program if it is another one than before, unless that was just now."""
        if search.makespan_ns == self._seen or time.monotonic() < self._next:
            return
        began = time.monotonic()
        self.offer(search.schedule(self._method))
        self._seen, now = search.makespan_ns, time.monotonic()
        self._next = now + _LEAST_SHARE * (now - began)
