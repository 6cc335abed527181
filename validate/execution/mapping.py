"""The time cost of paged memory: the host waits for the users of addresses, maps pages, and goes on.

A program does not mention the host. Here, it is simulated with the host of its executor: one thread that
issues the operations in the order of the list, and that waits and maps before some of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...instances.origin import MappingTimes
from .plan import Plan, Step


def mapping_ns(step: Step, cost: MappingTimes | None) -> int:
    """Return the host's time to map the pages of a step in nanoseconds; 0 if the cost is unknown."""
    if cost is None:
        return 0
    return sum(cost.call_ns + cost.page_ns * len(mapped.pages) for mapped in step.maps)


def simulate_issued(
    plan: Plan, durations_ns: Sequence[int], mappings_ns: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the start and end of every operation of a round, as the host issues them.

    Issuing takes no time. In contiguous memory, the host never waits, and the times are those of the program.

    Parameters
    ----------
    plan
        The plan that is executed.
    durations_ns, mappings_ns
        Per operation, its time on its stream, and the host's time to map the pages that it needs, in
        nanoseconds.
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
