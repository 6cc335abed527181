"""Comparison of a schedule's reported figures with those of a replay."""

from __future__ import annotations

from itertools import accumulate

from msgspec import UNSET

from ..schedule import HostResidence, Residence
from .binding import Binding, Side
from .fault import Fault
from .layout import Layout, extents_of


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
    top = _top(bound, "device", starts, ends)
    if schedule.memory_model == "divisible":
        most = _largest_sum_in_order(bound, bound.layouts["device"], starts, ends)
        if most > instance.pool_bytes:
            faults.append(Fault("data", f"the live sum reached {most}, the pool is {instance.pool_bytes}"))
    if schedule.peak_bytes != instance.resident_bytes + top:
        faults.append(Fault("figure", f"the peak was {instance.resident_bytes + top}"))
    if instance.host_budget_bytes is not UNSET:
        top, budget = _top(bound, "host", starts, ends), instance.host_budget_bytes
        if schedule.memory_model == "divisible":
            most = _largest_sum_in_order(bound, bound.layouts["host"], starts, ends)
            if most > budget:
                faults.append(Fault("data", f"the copies on the host reached {most}, its budget is {budget}"))
        if schedule.host_peak_bytes not in (top, UNSET):
            faults.append(Fault("figure", f"the peak on the host was {top}"))
    return faults


def _top(bound: Binding, side: Side, starts: list[int], ends: list[int]) -> int:
    """Return the highest byte in use in a memory; in divisible memory, the largest sum of live bytes."""
    layout = bound.layouts[side]
    if bound.schedule.memory_model == "divisible":
        return _largest_live_sum(bound, layout, starts, ends)
    return max(
        (
            begin + size
            for residence in layout.residences
            for begin, size in extents_of(residence) or ((residence.offset or 0, residence.bytes),)
        ),
        default=0,
    )


def _largest_live_sum(bound: Binding, layout: Layout, starts: list[int], ends: list[int]) -> int:
    """Return the largest sum of live bytes.

    Residences that end at an instant leave before others start. Residences that are kept to the end last
    until the makespan.
    """
    changes: list[tuple[int, int]] = []
    for r, residence in enumerate(layout.residences):
        acquirer = layout.acquirer[r]
        begin = 0 if acquirer is None else (ends if _takes_over(residence) else starts)[acquirer]
        releases = [ends[bound.index[other]] for other in residence.released_after]
        end = max(releases, default=max(ends, default=0))
        changes += [(begin, residence.bytes), (max(begin, end), -residence.bytes)]
    return max(accumulate((change for _, change in sorted(changes)), initial=0))


def _takes_over(residence: Residence | HostResidence) -> bool:
    """Return whether the bytes of a residence are those of an input until the run has ended."""
    return isinstance(residence, Residence) and residence.takes_over


def _largest_sum_in_order(bound: Binding, layout: Layout, starts: list[int], ends: list[int]) -> int:
    """Return the largest sum of live bytes where starts and ends of an instant come one by one.

    What takes time ends before anything starts; else the order is that of the list, and an operation without
    time ends when it has started.
    """
    acquired: dict[int | None, int] = {}
    taken: dict[int | None, int] = {}
    freed: dict[int, list[int]] = {}
    waits = [len(set(residence.released_after)) for residence in layout.residences]
    for r, residence in enumerate(layout.residences):
        at = taken if _takes_over(residence) else acquired
        at[layout.acquirer[r]] = at.get(layout.acquirer[r], 0) + residence.bytes
        for other in set(residence.released_after):
            freed.setdefault(bound.index[other], []).append(r)
    moments = [(start, 1, i, 0) for i, start in enumerate(starts)]
    moments += [
        (end, 0 if start < end else 1, i, 1) for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    held = most = acquired.get(None, 0)
    for _, _, i, is_end in sorted(moments):
        if not is_end:
            held += acquired.get(i, 0)
        else:
            for r in freed.get(i, ()):
                waits[r] -= 1
                held -= 0 if waits[r] else layout.residences[r].bytes
            held += taken.get(i, 0)
        most = max(most, held)
    return most
