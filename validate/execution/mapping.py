"""The time cost of paged memory: the host waits for the users of addresses, maps pages, and goes on.

A program does not mention the host. Here, it is simulated with the host of its executor: one thread that
issues the operations in the order of the list, and that waits and maps before some of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...instances.origin import MappingTimes
from .plan import Mapped, Place, Plan


def mappings_ns(plan: Plan, cost: MappingTimes | None) -> list[int]:
    """Return the host's time to map pages before each operation of a round that comes after another.

    Addresses keep their pages from round to round, and a page that is there already costs nothing. So most
    mappings are made in the first round alone, such as those of workspaces and of tensors that are in memory
    once. In a later round, those are made again at whose addresses other pages were in the meantime.

    Parameters
    ----------
    plan
        The plan that is executed.
    cost
        Time of a mapping in nanoseconds: of the call, and of each page that is mapped. If it is unknown, it
        counts as 0.
    """
    if cost is None:
        return [0] * len(plan.steps)
    there: dict[Place, int] = {}

    def of_a_round() -> list[int]:
        _charged(plan.maps, plan.page_bytes, there, cost)
        found = [_charged(step.maps, plan.page_bytes, there, cost) for step in plan.steps]
        _charged(plan.last_maps, plan.page_bytes, there, cost)
        return found

    of_a_round()
    return of_a_round()


def _charged(maps: Sequence[Mapped], page_bytes: int, there: dict[Place, int], cost: MappingTimes) -> int:
    """Map pages where they are not there yet; return the time in nanoseconds."""
    total = 0
    for mapped in maps:
        area, begin = mapped.place
        wanted = {Place(area, begin + k * page_bytes): page for k, page in enumerate(mapped.pages)}
        changed = sum(there.get(place) != page for place, page in wanted.items())
        there |= wanted
        total += cost.call_ns + cost.page_ns * changed if changed else 0
    return total


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
