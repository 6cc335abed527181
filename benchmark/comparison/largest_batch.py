"""The largest batch that a method trains in a round within a budget and an overhead, and its proven limit.

Layrub's Table 7 (TACO 2018) calls this the extreme-scale batch size. Here, an upper bound is proven as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import msgspec

from ...heuristics.methods import Limits, find_method
from ...instances.arguments import require_whole
from ...instances.instance import Instance
from ...instances.memory import ideal_ns, least_budget, require_budget
from ...instances.units import format_size, format_time
from ...instances.workload import Workload, require_workload
from ...solver.bounds import best_bound
from ...solver.result import Result
from ...solver.solve import solve
from ...validate.schedule import Schedule
from ..output.table import format_html, format_table, line_width, wrapped

LARGEST = 2**20
"""Largest batch that is tried."""


_HEADER = ("batch", "least budget", "ideal", "time", "overhead", "lower bound", "within", "excluded by")

_log = logging.getLogger(__name__)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that was tried.

    Attributes
    ----------
    batch
        Number of images.
    least_budget_bytes
        M_min in bytes.
    ideal_ns, makespan_ns, lower_bound_ns, bound_by, certified
        Time without a memory limit, time of the method's schedule (None without one), and the bound.
    within
        Whether there is a schedule within the overhead.
    excluded_by
        The proof that there is no such schedule: ``budget`` or the bound's argument; None without a proof.
    stopped_by
        Why the method ended; None if it was not tried, as the batch is excluded.
    """

    batch: int
    least_budget_bytes: int
    ideal_ns: int
    makespan_ns: int | None
    lower_bound_ns: int
    bound_by: str
    certified: bool
    within: bool
    excluded_by: str | None
    stopped_by: str | None


class LargestBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search for the largest batch.

    Attributes
    ----------
    network, device, method, memory_model, budget_bytes, overhead
        The question; an overhead of None is no limit.
    largest_batch
        The largest batch with a schedule within the overhead; None without one.
    excluded_from
        The least tried batch that is proven to have no such schedule. M_min rises with the batch, so that a
        batch that the budget excludes excludes all larger ones. The overhead need not rise.
    points
        The tried batches in increasing order.
    interrupted
        Whether the user ended the search before it was done.
    """

    network: str
    device: str
    method: str
    memory_model: Literal["contiguous", "paged"]
    budget_bytes: int
    overhead: float | None
    largest_batch: int | None
    excluded_from: int | None
    points: tuple[Point, ...]
    interrupted: bool

    def __str__(self) -> str:
        table = format_table(_HEADER, [_cells(point) for point in self.points], "rrrrrrll")
        return f"{table}\n\n{wrapped(self._notes(), line_width())}"

    def _repr_html_(self) -> str:
        return format_html(_HEADER, [_cells(point) for point in self.points], self._notes())

    def _notes(self) -> str:
        limit = "any overhead" if self.overhead is None else f"at most {self.overhead:.1%} overhead"
        found = "no batch at all" if self.largest_batch is None else f"a batch of {self.largest_batch}"
        known = "" if self.excluded_from is None else f"; {self.excluded_from} is proven impossible"
        return (
            f"{self.network} on {self.device}, {self.method}, {self.memory_model} memory, "
            f"{format_size(self.budget_bytes)}, {limit}: {found}{known}"
        )


def largest_batch(
    workload: Workload,
    budget_bytes: int,
    method: str,
    *,
    overhead: float | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    workers: int = 1,
    memory: Literal["contiguous", "paged"] = "contiguous",
    on_trained: Callable[[Instance, Schedule], None] | None = None,
) -> LargestBatch:
    """Find the largest batch that a method trains in one round.

    First, doubling and bisection find the largest batch that neither M_min nor a bound excludes. Then the
    method is tried at this batch and, by bisection, at smaller ones. The bisection assumes that smaller
    batches are easier. The result always has a schedule, and the limit is proven. Ctrl-C ends the search with
    the best so far.

    Parameters
    ----------
    workload
        The network and its device; its batch does not matter.
    budget_bytes
        Budget of a round in bytes.
    method, time_limit, seed, workers, memory
        As for `solve`, for each batch.
    overhead
        Greatest overhead of a round over the ideal, as a share of the ideal; None means no limit.
    on_trained
        Function to call with every schedule within the overhead.

    Raises
    ------
    PebblerError
        For an unknown method, a wrong argument, or a budget below the minimum of one image.
    """
    require_workload(workload)
    require_whole("budget_bytes", budget_bytes, 0)
    find_method(method)
    Limits(time_limit, seed, workers, memory)
    require_budget(_instance(workload, budget_bytes, 1))
    points: dict[int, Point] = {}

    def possible(batch: int) -> bool:
        instance = _instance(workload, budget_bytes, batch)
        points[batch] = _point(instance, batch, overhead, None)
        return points[batch].excluded_by is None

    def trained(batch: int) -> bool:
        instance = _instance(workload, budget_bytes, batch)
        result = solve(instance, method, time_limit=time_limit, seed=seed, workers=workers, memory=memory)
        points[batch] = _point(instance, batch, overhead, result)
        _log.info("batch %d: %s", batch, "within" if points[batch].within else "not within")
        if points[batch].within and result.schedule is not None and on_trained is not None:
            on_trained(instance, result.schedule)
        if result.stopped_by == "interrupted":
            raise KeyboardInterrupt
        return points[batch].within

    interrupted = False
    try:
        high = 1
        while high < LARGEST and possible(high):
            high *= 2
        limit = _last(possible, high // 2, high)
        if limit and not trained(limit):
            _last(trained, 0, limit)
    except KeyboardInterrupt:
        interrupted = True
    tried = {b: p for b, p in points.items() if p.stopped_by is not None or p.excluded_by is not None}
    return LargestBatch(
        network=workload.name,
        device=workload.device,
        method=method,
        memory_model=memory,
        budget_bytes=budget_bytes,
        overhead=overhead,
        largest_batch=max((batch for batch, point in tried.items() if point.within), default=None),
        excluded_from=min((b for b, p in tried.items() if p.excluded_by is not None), default=None),
        points=tuple(tried[batch] for batch in sorted(tried)),
        interrupted=interrupted,
    )


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return, by bisection, the last number from `low` on for which a condition holds; it fails at `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _instance(workload: Workload, budget_bytes: int, batch: int) -> Instance:
    return replace(workload, batch=batch).instance(budget_bytes, check_budget=False)


def _point(instance: Instance, batch: int, overhead: float | None, result: Result | None) -> Point:
    ideal, least = ideal_ns(instance), least_budget(instance)
    longest = None if overhead is None else (1 + overhead) * ideal
    bound = best_bound(instance) if result is None else result.bound
    excluded = None
    if least > instance.budget_bytes:
        excluded = "budget"
    elif longest is not None and bound.lower_bound_ns > longest:
        excluded = bound.bound_by
    made = None if result is None else result.makespan_ns
    return Point(
        batch=batch,
        least_budget_bytes=least,
        ideal_ns=ideal,
        makespan_ns=made,
        lower_bound_ns=bound.lower_bound_ns,
        bound_by=bound.bound_by,
        certified=bound.certified,
        within=made is not None and (longest is None or made <= longest),
        excluded_by=excluded,
        stopped_by=None if result is None else result.stopped_by,
    )


def _cells(point: Point) -> tuple[str, ...]:
    made = point.makespan_ns
    return (
        str(point.batch),
        format_size(point.least_budget_bytes),
        format_time(point.ideal_ns),
        "" if made is None else format_time(made),
        "" if made is None else f"{made / max(point.ideal_ns, 1) - 1:.1%}",
        format_time(point.lower_bound_ns),
        "yes" if point.within else "no",
        point.excluded_by or "",
    )
