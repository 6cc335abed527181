"""Comparison of a schedule's reported figures with those of a replay."""

from __future__ import annotations

from itertools import accumulate

from .binding import Binding
from .fault import Fault


def figure_faults(bound: Binding, starts: list[int], ends: list[int]) -> list[Fault]:
    """Compare the reported figures with those of the replay at the instance's own durations."""
    schedule, instance = bound.schedule, bound.instance
    faults = []
    for i, operation in enumerate(schedule.operations):
        if (operation.start_ns, operation.end_ns) != (starts[i], ends[i]):
            faults.append(Fault("figure", f"{bound.name(i)} ran from {starts[i]} to {ends[i]}"))
    makespan = max(ends, default=0)
    if schedule.makespan_ns != makespan:
        faults.append(Fault("figure", f"the makespan was {makespan}"))
    if schedule.memory_model == "divisible":
        top = _largest_live_sum(bound, starts, ends)
        if top > instance.pool_bytes:
            faults.append(Fault("data", f"the live sum reached {top}, the pool is {instance.pool_bytes}"))
    else:
        top = max(
            (
                end
                for residence in schedule.residences
                for begin, size in residence.extents or ((residence.offset or 0, residence.bytes),)
                for end in (begin + size,)
            ),
            default=0,
        )
    if schedule.peak_bytes != instance.resident_bytes + top:
        faults.append(Fault("figure", f"the peak was {instance.resident_bytes + top}"))
    return faults


def _largest_live_sum(bound: Binding, starts: list[int], ends: list[int]) -> int:
    """Return the largest sum of live bytes.

    Residences that end at an instant leave before others start. Residences that are kept to the end last
    until the makespan.
    """
    changes: list[tuple[int, int]] = []
    for r, residence in enumerate(bound.schedule.residences):
        acquirer = bound.acquirer[r]
        begin = 0 if acquirer is None else starts[acquirer]
        releases = [ends[bound.index[other]] for other in residence.released_after]
        end = max(releases, default=max(ends, default=0))
        changes += [(begin, residence.bytes), (max(begin, end), -residence.bytes)]
    return max(accumulate((change for _, change in sorted(changes)), initial=0))
