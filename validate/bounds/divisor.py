"""Bounds in whole steps: where every time is a multiple of one number, so is the least makespan.

Take any schedule, and let every run, copy and move begin at the last multiple of the number that is not
after its beginning. Its end moves back to the last multiple that is not after its end, for the time between
them is a multiple. What ended before another began, or when it began, still does. All rules of a
schedule ask for such orders only, those of memory as well: data is there from one beginning to one end. So
the schedule stays valid, and its makespan is a multiple that is not larger.

This does not hold where the time of something depends on what else is under way: with a shared link or a
shared bus, or with tasks that copies slow down.
"""

from __future__ import annotations

from functools import reduce
from math import gcd

import msgspec

from ...instances.instance import Instance


def divisor_ns(instance: Instance) -> int:
    """Return the number of nanoseconds of which the least makespan is a multiple; 1 if none is known."""
    if instance.is_coupled or instance.cluster is not msgspec.UNSET:
        return 1
    runs = (algorithm.duration_ns for task in instance.tasks for algorithm in task.algorithms)
    copies = (ns or 0 for one in instance.blocks for ns in (one.offload_ns, one.prefetch_ns, one.move_ns))
    return reduce(gcd, (*runs, *copies), 0) or 1


def in_steps_ns(instance: Instance, bound_ns: int) -> int:
    """Return the least multiple of the divisor that is not below a lower bound of the instance."""
    return bound_ns + -bound_ns % divisor_ns(instance)
