"""Paged memory costs time: the host waits for what uses addresses, maps pages there, and only then goes on.

A program says nothing of the host. Here it is simulated with the host as its executor has it: one thread that
issues the operations in the order of the list, and before some of them waits and maps.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...instances.origin import MappingTimes
from .plan import Plan, Step


def mapping_ns(step: Step, cost: MappingTimes | None) -> int:
    """Time of the host to map the pages of a step; 0 where the cost is unknown."""
    if cost is None:
        return 0
    return sum(cost.call_ns + cost.page_ns * len(mapped.pages) for mapped in step.maps)


def simulate_issued(
    plan: Plan, durations_ns: Sequence[int], mappings_ns: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the start and end of every operation of a round, as the host issues them.

    Issuing takes no time of its own; in contiguous memory, where the host never waits, the times are those of
    the program.

    Parameters
    ----------
    plan
        What is executed.
    durations_ns, mappings_ns
        One an operation: its time on its stream, and the host's time to map what it needs.
    """
    starts: list[int] = []
    ends: list[int] = []
    free_at: dict[str, int] = {}
    host = 0
    for step, duration, mapping in zip(plan.steps, durations_ns, mappings_ns, strict=True):
        for mapped in step.maps:
            host = max(host, *(ends[p] for p in mapped.after), 0)
        host += mapping
        stream = step.operation.stream
        start = max(free_at.get(stream, 0), host, *(ends[p] for p in step.waits), 0)
        free_at[stream] = start + duration
        starts.append(start)
        ends.append(start + duration)
    return starts, ends
