"""The checker's rules for times: those that are reported must be the ones that the program has.

Usually an operation takes its own time, and times follow one after the other. Where copies share a link or
slow runs down, a speed depends on what else is under way. Nothing is simulated then: every reported start
must be the end of what the operation waits for, and between its reported start and end an operation must get
done all that it has to do, and not a nanosecond earlier. Only one list of times can satisfy that: up to the
first instant at which two lists differ, all speeds agree, and so does what ends or starts there.

This module imports only the instance and the schedule from this project.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from msgspec import UNSET

from ..instances.figures import MILLION
from ..instances.instance import Instance, Link
from .order import Order, in_words, is_on_host
from .schedule import Operation, Schedule


def copy_ns(instance: Instance, operation: Operation) -> int | None:
    """Return the instance's own time of a copy in nanoseconds; None if it is impossible, or no copy."""
    if operation.block is None:
        return None
    block = instance.blocks[operation.block]
    return {"offload": block.offload_ns, "prefetch": block.prefetch_ns, "move": block.move_ns}[operation.kind]


def time_reasons(instance: Instance, schedule: Schedule, order: Order) -> tuple[list[str], list[int]]:
    """Return every reason why reported times are wrong, and the ends that the rules for memory go by.

    Parameters
    ----------
    instance, schedule
        A schedule for an instance of one GPU.
    order
        Its order.

    Returns
    -------
    tuple of list of str, list of int
        The reasons, and the end of each operation in nanoseconds, by position.
    """
    reasons, ends = (_coupled if instance.is_coupled else _simulated)(instance, order)
    makespan = max(ends, default=0)
    if schedule.makespan_ns != makespan:
        reasons.append(f"makespan_ns is {schedule.makespan_ns}, simulated {makespan}")
    return reasons, ends


def _simulated(instance: Instance, order: Order) -> tuple[list[str], list[int]]:
    """Simulate operations that take their own times; return where the reported ones differ, and the ends."""
    reasons = []
    ends: list[int] = []
    free_at: dict[str, int] = {}
    for operation in order.operations:
        start = max([free_at.get(operation.stream, 0), *(ends[order.position[i]] for i in operation.after)])
        end = start + _own_ns(instance, operation)
        if (operation.start_ns, operation.end_ns) != (start, end):
            reasons.append(
                f"{in_words(instance, operation)} is reported from {operation.start_ns} to "
                f"{operation.end_ns} ns, simulated from {start} to {end}"
            )
        ends.append(end)
        free_at[operation.stream] = end
    return reasons, ends


def _coupled(instance: Instance, order: Order) -> tuple[list[str], list[int]]:
    """Return where reported times do not follow each other, or an operation does not do what it has to.

    Speeds follow from the reported times, so that they are only looked at where these follow each other.
    """
    ends = [operation.end_ns for operation in order.operations]
    reasons = []
    free_at: dict[str, int] = {}
    for operation in order.operations:
        start = max([free_at.get(operation.stream, 0), *(ends[order.position[i]] for i in operation.after)])
        if operation.start_ns != start or operation.end_ns < start:
            reasons.append(
                f"{in_words(instance, operation)} is reported from {operation.start_ns} to "
                f"{operation.end_ns} ns, what it waits for ends at {start}"
            )
        free_at[operation.stream] = operation.end_ns
    if reasons:
        return reasons, ends
    copies = {kind: _Copies(instance, order.operations, kind) for kind in ("offload", "prefetch")}
    for operation in order.operations:
        if operation.task is not None and operation.algorithm is not None:
            reason = _run_reason(instance, operation, copies)
        elif operation.kind in copies and instance.link is not UNSET:
            other = copies["prefetch" if operation.kind == "offload" else "offload"]
            reason = _copy_reason(instance, instance.link, operation, other)
        else:
            reason = _fixed_reason(instance, operation)
        if reason:
            reasons.append(f"{in_words(instance, operation)} {reason}")
    return reasons, ends


class _Copies:
    """The copies of one direction, one after the other, by their reported times; those that take time."""

    def __init__(self, instance: Instance, operations: Sequence[Operation], kind: str) -> None:
        found = [o for o in operations if o.kind == kind and o.end_ns > o.start_ns]
        self.starts = [operation.start_ns for operation in found]
        self.ends = [operation.end_ns for operation in found]
        self.before = [0, *accumulate(o.end_ns - o.start_ns for o in found)]
        self.rates = [
            Fraction(0) if instance.link is UNSET else _rate(instance, instance.link, operation)
            for operation in found
        ]

    def under_way_ns(self, begin: int, end: int) -> int:
        """Return for how long copies are under way between two instants."""
        return self._until(end) - self._until(begin)

    def _until(self, instant: int) -> int:
        i = bisect_right(self.starts, instant)
        return self.before[i] - (max(self.ends[i - 1] - instant, 0) if i else 0)

    def meetings(self, begin: int, end: int) -> list[tuple[int, Fraction]]:
        """Return how long each copy is under way between two instants, with its rate."""
        first = bisect_right(self.ends, begin)
        found = []
        for i in range(first, len(self.starts)):
            if self.starts[i] >= end:
                break
            found.append((min(self.ends[i], end) - max(self.starts[i], begin), self.rates[i]))
        return found


def _run_reason(instance: Instance, operation: Operation, copies: dict[str, _Copies]) -> str | None:
    """Return why a run does not end at the first nanosecond by which it is done."""
    assert operation.task is not None
    assert operation.algorithm is not None
    task = instance.tasks[operation.task]
    slowdown = task.slowdown_ppm
    algorithm = task.algorithms[operation.algorithm]
    if slowdown is UNSET or is_on_host(instance, operation):
        return _fixed_reason(instance, operation)
    start, end = operation.start_ns, operation.end_ns

    def done(instant: int) -> int:
        return (
            MILLION * (instant - start)
            - slowdown.offload * copies["offload"].under_way_ns(start, instant)
            - slowdown.prefetch * copies["prefetch"].under_way_ns(start, instant)
        )

    wanted = MILLION * algorithm.duration_ns
    if done(end - 1) < wanted <= done(end) if end > start else not wanted:
        return None
    return (
        f"is reported to end at {end} ns, when it has done {done(end) / MILLION:.6f} of its "
        f"{algorithm.duration_ns} ns"
    )


def _copy_reason(instance: Instance, link: Link, operation: Operation, others: _Copies) -> str | None:
    """Return why a copy does not end at the first nanosecond by which its load has passed the link.

    Copies of its own direction come before or after it, so that it shares the link with at most one copy at a
    time. If the two want more than there is, each gets a half, or the slower one all that it wants.
    """
    own_ns, start, end = _own_ns(instance, operation), operation.start_ns, operation.end_ns
    if not own_ns or end == start:
        return _fixed_reason(instance, operation)
    assert operation.block is not None
    load = link.load(instance.blocks[operation.block].loaded_bytes, own_ns)
    own = load / own_ns

    def passed(instant: int) -> Fraction:
        alone, total = instant - start, Fraction(0)
        for together, rate in others.meetings(start, instant):
            alone -= together
            total += together * min(own, max(link.rate - rate, link.rate / 2))
        return total + alone * min(own, link.rate)

    if passed(end - 1) < load <= passed(end):
        return None
    return (
        f"is reported to end at {end} ns, after {float(passed(end)):.3f} of its {float(load):.3f} bytes have "
        "passed the link"
    )


def _fixed_reason(instance: Instance, operation: Operation) -> str | None:
    """Return why an operation does not take its own time."""
    taken, own = operation.end_ns - operation.start_ns, _own_ns(instance, operation)
    return None if taken == own else f"is reported to take {taken} ns, not {own}"


def _own_ns(instance: Instance, operation: Operation) -> int:
    """Return the instance's own time of an operation in nanoseconds; 0 for a copy that is impossible."""
    if operation.task is not None and operation.algorithm is not None:
        return instance.tasks[operation.task].algorithms[operation.algorithm].duration_ns
    return copy_ns(instance, operation) or 0


def _rate(instance: Instance, link: Link, operation: Operation) -> Fraction:
    """Return the rate of a copy in bytes a nanosecond; that of one without a time of its own is 0."""
    assert operation.block is not None
    own_ns = _own_ns(instance, operation)
    return (
        link.load(instance.blocks[operation.block].loaded_bytes, own_ns) / own_ns if own_ns else Fraction(0)
    )
