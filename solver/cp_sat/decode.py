"""Plans, which say what happens in gaps, and their conversion to schedules with addresses and back.

A plan says which algorithm each task runs, in which gaps between uses a block is outside the device, and in
which order everything starts. A plan knows the capacity only. Addresses are found here.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from ...heuristics.choices import by_speed
from ...heuristics.methods import Refusal
from ...heuristics.program.builder import OutOfMemoryError, ProgramBuilder
from ...heuristics.program.placement import Piece, pack
from ...heuristics.program.pool import Fit
from ...instances.instance import Instance
from ...instances.units import format_time
from ...validate.schedule import MemoryModel, Schedule

Interval = tuple[int, int]
"""Start and end, in units of a clock."""


class Gap(NamedTuple):
    """The time between two uses of a block, in which it may be evicted.

    `after` is the task of the use before, or -1 for the start of the round. `until` is the task of the next
    use, or the number of tasks for the end of the round. `version` counts the writes before the gap; version
    0 has a
    host copy.
    """

    block: int
    after: int
    until: int
    version: int


def gaps_of(instance: Instance) -> tuple[Gap, ...]:
    """Return every gap of every block, also those between consecutive tasks.

    A block may leave between two consecutive tasks that both use it. Its place is then free for the prefetch
    of another block while a third one is still being offloaded.
    """
    gaps = []
    for d, block in enumerate(instance.blocks):
        marks = [*([] if block.initially == "absent" else [-1]), *instance.uses[d]]
        marks += [len(instance.tasks)] if block.finally_ == "device" else []
        for after, until in pairwise(marks):
            gaps.append(Gap(d, after, until, bisect_right(instance.writers[d], after)))
    return tuple(gaps)


@dataclass(frozen=True, slots=True)
class Clock:
    """The unit in which the model counts time.

    A tick is `scale` units of time. Durations are rounded down to ticks. A duration that rounds to zero takes
    one unit, so that it has its place in the order of events. As `scale` exceeds the number of such
    operations, all of them together take less than a tick. Hence the shortest plan's length, rounded down to
    ticks, is a lower bound. It is exact if no duration is rounded: all are whole ticks, or zero.
    """

    tick: int
    scale: int
    rounds: bool = False

    def duration(self, nanoseconds: int) -> int:
        """Return the number of units that an operation takes."""
        return self.scale * (nanoseconds // self.tick) or 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions with their times, in units of a clock; every operation takes at least one unit.

    Attributes
    ----------
    algorithms, runs
        Per task, the index of its algorithm and its interval.
    offloads
        Intervals by block and version; at most one for each version, and none of version 0.
    prefetches
        Intervals by gap, for exactly those gaps in which the block is evicted.
    """

    algorithms: tuple[int, ...]
    runs: tuple[Interval, ...]
    offloads: dict[tuple[int, int], Interval]
    prefetches: dict[Gap, Interval]


class _Step(NamedTuple):
    """The next step of a host thread; of two steps at the same time, a release (turn 0) comes first."""

    time: int
    turn: Literal[0, 1]
    operation: Literal["release", "run", "offload", "prefetch"]
    item: int


def decode(
    instance: Instance, plan: Plan, memory: MemoryModel, method: str, *, deadline: float = math.inf
) -> Schedule:
    """Build the program of a plan's decisions in the order of their times, with addresses.

    Places are chosen one by one (best fit, then first fit) or for the whole program at once.
    Where no hole is large enough, a prefetch waits for the next release and a task takes a slower algorithm;
    otherwise the schedule is as long as the plan. The shortest of these schedules is returned.

    Parameters
    ----------
    instance, plan
        The instance, and its plan.
    memory, method
        Memory model and author of the schedule.
    deadline
        Value of `time.monotonic` from which on no second attempt begins.

    Raises
    ------
    Refusal
        When no attempt finds places for all data; the message gives the makespan in divisible memory.
    """
    steps = _steps(instance, plan)
    start = [
        d
        for d, block in enumerate(instance.blocks)
        if block.initially == "device"
        and (instance.uses[d] or block.finally_ == "device")
        and not any(gap.block == d and gap.after < 0 for gap in plan.prefetches)
    ]
    sketch = _issue(instance, plan, steps, start, "divisible")
    if isinstance(sketch, str):
        raise Refusal(f"{method}: the plan found does not fit even without addresses; {sketch}")
    if memory == "divisible":
        return sketch.finish(method)
    best: ProgramBuilder | None = None
    reason = ""
    attempts: list[tuple[Fit, list[int]]] = [("best", []), ("first", [])]
    if memory == "contiguous" and not any(block.tensor is not None for block in instance.blocks):
        pieces = [Piece(*lifetime) for lifetime in sketch.lifetimes()]
        offsets = pack(pieces, instance.pool_bytes, instance.alignment_bytes)
        attempts += [] if offsets is None else [("best", offsets)]
    for number, (fit, offsets) in enumerate(attempts):
        if best is not None and best.makespan_ns <= sketch.makespan_ns:
            break
        if number and time.monotonic() > deadline:
            break
        found = _issue(instance, plan, steps, start, memory, fit, offsets)
        if isinstance(found, str):
            reason = found
        elif best is None or found.makespan_ns < best.makespan_ns:
            best = found
    if best is None:
        raise Refusal(
            f"{method}: no places were found for a plan of {format_time(sketch.makespan_ns)} "
            f"in divisible memory; {reason}"
        )
    return best.finish(method)


def encode(instance: Instance, schedule: Schedule, clock: Clock) -> Plan | None:
    """Return a schedule as a plan in a clock's units; None if it moves blocks or runs a task again.

    Copies whose data is not used later are left out.
    """
    gaps = {(gap.block, gap.after): gap for gap in gaps_of(instance)}
    runs: list[Interval] = []
    algorithms: list[int] = []
    offloads: dict[tuple[int, int], Interval] = {}
    prefetches: dict[Gap, Interval] = {}
    small_ends: list[int] = []
    for operation in schedule.operations:
        length = operation.end_ns - operation.start_ns
        start = clock.scale * (operation.start_ns // clock.tick)
        start += bisect_right(small_ends, operation.start_ns)
        interval = start, start + clock.duration(length)
        if length < clock.tick:
            insort(small_ends, operation.end_ns)
        if operation.task is not None and operation.algorithm is not None:
            if operation.task != len(runs):
                return None
            runs.append(interval)
            algorithms.append(operation.algorithm)
            continue
        d = operation.block
        assert d is not None
        if operation.kind == "move":
            return None
        if operation.kind == "offload":
            version = bisect_left(instance.writers[d], len(runs))
            if version:
                offloads.setdefault((d, version), interval)
        else:
            used = bisect_left(instance.uses[d], len(runs))
            after = instance.uses[d][used - 1] if used else -1
            if (d, after) in gaps:
                prefetches[gaps[d, after]] = interval
    wanted = {(gap.block, gap.version) for gap in prefetches}
    wanted |= {(d, len(instance.writers[d])) for d, b in enumerate(instance.blocks) if b.finally_ == "host"}
    kept = {key: interval for key, interval in offloads.items() if key in wanted}
    return Plan(tuple(algorithms), tuple(runs), kept, prefetches)


def _steps(instance: Instance, plan: Plan) -> list[_Step]:
    """Return everything that is issued and released, in the order of time."""
    steps = [_Step(start, 1, "run", k) for k, (start, _) in enumerate(plan.runs)]
    steps += [_Step(start, 1, "offload", d) for (d, _), (start, _) in plan.offloads.items()]
    steps += [_Step(start, 1, "prefetch", gap.block) for gap, (start, _) in plan.prefetches.items()]
    ends = [(gap.block, gap.after, gap.version) for gap in plan.prefetches if gap.after >= 0]
    for d, (block, uses, writers) in enumerate(
        zip(instance.blocks, instance.uses, instance.writers, strict=True)
    ):
        if uses and block.finally_ != "device":
            ends.append((d, uses[-1], len(writers)))
    for d, after, version in ends:
        leaves = max(plan.runs[after][1], plan.offloads.get((d, version), (0, 0))[1])
        steps.append(_Step(leaves, 0, "release", d))
    return sorted(steps)


def _issue(
    instance: Instance,
    plan: Plan,
    steps: list[_Step],
    start: list[int],
    memory: MemoryModel,
    fit: Fit = "best",
    offsets: list[int] | None = None,
) -> ProgramBuilder | str:
    """Issue the steps; return the program, or the reason why a step that could not wait had no place."""
    builder = ProgramBuilder(
        instance,
        memory=memory,
        fit=fit,
        plan=offsets or (),
        start=dict.fromkeys(start, None),
    )
    waiting = [d for d in start if not builder.is_resident(d)]
    try:
        for step in steps:
            if step.operation == "release":
                builder.release(step.item)
            elif step.operation == "offload":
                builder.offload(step.item)
            elif step.operation == "prefetch":
                waiting.append(step.item)
            else:
                for d in [d for d in waiting if d in instance.tasks[step.item].blocks]:
                    builder.prefetch(d)
                    waiting.remove(d)
                _run(builder, step.item, plan.algorithms[step.item])
            waiting = _prefetch_where_it_fits(builder, waiting)
        builder.settle()
    except (OutOfMemoryError, Refusal) as error:
        return str(error)
    return builder


def _run(builder: ProgramBuilder, task: int, algorithm: int) -> None:
    """Run a task with the planned algorithm, else with the next slower one whose workspace has a place."""
    order = by_speed(builder.instance.tasks[task])
    *others, last = order[order.index(algorithm) :]
    for choice in others:
        try:
            builder.run(task, choice)
        except OutOfMemoryError:
            continue
        return
    builder.run(task, last)


def _prefetch_where_it_fits(builder: ProgramBuilder, waiting: list[int]) -> list[int]:
    """Prefetch the blocks that have a place now; return those that still wait."""
    still = []
    for d in waiting:
        try:
            builder.prefetch(d)
        except OutOfMemoryError:
            still.append(d)
    return still
