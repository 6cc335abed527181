"""The largest batch that methods train in a round within a budget and an overhead, and what limits it.

Layrub's Table 7 (TACO 2018) calls this the extreme-scale batch size. Here, an upper bound is proven as well.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Literal

import msgspec

from ...heuristics.clock import OutOfTime, left, look, until
from ...heuristics.methods import Limits, find_method
from ...instances.arguments import require_kind, require_whole
from ...instances.instance import Instance
from ...instances.memory import (
    greatest_need,
    ideal_ns,
    least_budget,
    least_bytes,
    require_budget,
    why_infeasible,
)
from ...instances.units import format_size, format_time
from ...instances.workload import Workload, require_workload
from ...solver.bounds import Bound, best_bound, compute_bound
from ...solver.solve import solve
from ...validate.gpus.check import check
from ...validate.schedule import Schedule
from ..output.captions import ModelLimits, limits_of
from ..output.machine import made_here
from ..output.table import format_html, format_table, line_width, wrapped

LARGEST = 2**20
"""Batches from this one on are not tried."""

SECONDS = 45.0
"""Time of a search where none is given: with what comes before and after it, a command takes a minute."""

_TRY_SHARE = 1 / 8
"""Of the time of a search, what a method may take at one batch."""

BEST = "modnn,flow"
"""The methods that are taken where none are named: a quick rule, and where that is not enough a search."""

_SHARES = (1.0, 0.875, 0.75, 0.5)
"""Of the largest batch: what they cost is found out."""

_HEADER = ("batch", "least budget", "ideal", "time", "overhead", "lower bound", "within", "excluded by")

_log = logging.getLogger(__name__)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that was tried.

    Attributes
    ----------
    batch
        Number of images.
    least_budget_bytes
        M_min; where blocks can neither leave nor be computed again, with those beside a task.
    ideal_ns, makespan_ns, lower_bound_ns, bound_by, certified
        Time without a memory limit, of the shortest schedule (None without one), and the bound.
    within
        Whether there is a schedule within the overhead.
    excluded_by
        The proof that there is no such schedule: ``budget`` or the bound's argument; None without a proof.
    stopped_by
        Why the last method ended; None where none was tried, for the batch is excluded.
    method
        Whose schedule it is; None without one.
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
    method: str | None

    @property
    def overhead(self) -> float | None:
        """Of the schedule over the ideal."""
        return None if self.makespan_ns is None else self.makespan_ns / max(self.ideal_ns, 1) - 1

    @property
    def bound(self) -> Bound:
        """The bound, without its certificate."""
        return Bound(self.lower_bound_ns, self.bound_by, self.certified)

    @property
    def least_overhead(self) -> float:
        """What is proven of any schedule's overhead."""
        return max(self.lower_bound_ns / max(self.ideal_ns, 1) - 1, 0.0)


class LargestBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search for the largest batch.

    Attributes
    ----------
    network, device, method, memory_model, budget_bytes, overhead
        The question; an overhead of None is no limit.
    largest_batch
        The largest batch with a schedule within the overhead; None without one.
    excluded_from
        The least batch that was tried and is proven to have none. M_min rises with the batch, so that a batch
        that is excluded by the budget excludes all larger ones; an overhead need not rise.
    limited_by
        What excludes that batch, in words; None without one.
    points
        The tried batches in increasing order.
    stopped_by
        ``done``, ``time limit`` or ``interrupted``.
    made
        When, where and with what, as `made_here` tells it.
    limits
        Limits of the model.
    """

    network: str
    device: str
    method: str
    memory_model: Literal["contiguous", "paged"]
    budget_bytes: int
    overhead: float | None
    largest_batch: int | None
    excluded_from: int | None
    limited_by: str | None
    points: tuple[Point, ...]
    stopped_by: str
    made: tuple[str, ...] = ()
    limits: ModelLimits = ModelLimits()

    def __str__(self) -> str:
        above = self.excluded_from or math.inf  # the search above it is of no interest
        shown = [p for p in self.points if p.excluded_by != "budget" or p.batch <= above]
        table = format_table(_HEADER, [_cells(point) for point in shown], "rrrrrrll")
        notes = "\n".join(wrapped(note, line_width()) for note in self._notes())
        return f"{table}\n\n{notes}"

    def _repr_html_(self) -> str:
        return format_html(_HEADER, [_cells(point) for point in self.points], "; ".join(self._notes()))

    def _notes(self) -> list[str]:
        limit = "any overhead" if self.overhead is None else f"at most {self.overhead:.1%} overhead"
        found = "no batch at all" if self.largest_batch is None else f"a batch of {self.largest_batch}"
        known = "" if self.excluded_from is None else f"; {self.excluded_from} is proven impossible"
        notes = [
            f"{self.network} on {self.device}, {self.method}, {self.memory_model} memory, "
            f"{format_size(self.budget_bytes)}, {limit}: {found}{known}; stopped by: {self.stopped_by}"
        ]
        if self.limited_by is not None:
            notes.append(f"limited by: {self.limited_by}")
        if self.excluded_from is None and self.points and self.points[-1].batch == LARGEST - 1:
            notes.append(f"batches from {LARGEST} on are not tried")
        tried = [point for point in self.points if point.stopped_by is not None]
        if self.largest_batch is None and tried:
            notes.append(f"no schedule: at a batch of {tried[0].batch}, {tried[0].stopped_by}")
        return notes


def largest_batch(
    workload: Workload,
    budget_bytes: int,
    method: str = BEST,
    *,
    overhead: float | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    workers: int = 1,
    memory: Literal["contiguous", "paged"] = "contiguous",
    on_trained: Callable[[Instance, Schedule], None] | None = None,
) -> LargestBatch:
    """Find the largest batch that methods train in one round.

    First the largest batch that neither M_min nor a bound excludes is sought, by doubling and bisection; then
    the methods are tried there and, by bisection, on smaller ones, as if they were the better the smaller the
    batch is. The last method then tries to better what the largest batch costs, and some shares of it, and
    wherever a smaller batch costs more than a larger one. What is found is a schedule in any case, and what
    is excluded is proven. Ctrl-C and the time limit keep the best.

    Parameters
    ----------
    workload
        The network and its device; its batch does not matter.
    budget_bytes
        Of a round.
    method
        One, or several with commas between them: at each batch they are tried in turn until a schedule is
        within the overhead.
    time_limit
        Seconds for the whole search, of which a method takes an eighth at most at one batch; None: no limit.
    seed, workers, memory
        As for `solve`.
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
    require_kind("method", method, str, "give one name, or several with commas between them: 'modnn,flow'")
    Limits(time_limit, seed, workers, memory)
    search = BatchSearch(
        workload,
        budget_bytes,
        method.split(","),
        rounds(workload, budget_bytes),
        overhead=overhead,
        time_limit=None if time_limit is None else _TRY_SHARE * time_limit,
        seed=seed,
        workers=workers,
        memory=memory,
        on_trained=on_trained,
    )
    require_budget(search.instance(1))
    stopped_by = "done"
    try:
        with until(math.inf if time_limit is None else time.monotonic() + time_limit):
            search.run()
            search.price()
    except OutOfTime:
        stopped_by = "time limit"
    except KeyboardInterrupt:
        stopped_by = "interrupted"
    return search.found(stopped_by)


@dataclass(slots=True)
class BatchSearch:
    """The search for the largest batch, and what it knows at any time.

    Parameters
    ----------
    workload, budget_bytes, overhead, seed, workers, memory, on_trained
        As `largest_batch` has them.
    time_limit
        Seconds for each method at each batch. Where what calls it has a deadline (`heuristics.clock`), no
        method goes on past that.
    methods
        Tried in turn.
    instance
        Makes of a batch the instance of its round. It is called again and again, so it has to be quick at
        what it has made before, as `rounds` is.
    """

    workload: Workload
    budget_bytes: int
    methods: Sequence[str]
    instance: Callable[[int], Instance]
    overhead: float | None = None
    time_limit: float | None = None
    seed: int = 0
    workers: int = 1
    memory: Literal["contiguous", "paged"] = "contiguous"
    on_trained: Callable[[Instance, Schedule], None] | None = None
    points: dict[int, Point] = field(default_factory=dict, init=False)
    schedules: dict[int, Schedule] = field(default_factory=dict, init=False)
    _limit: int | None = field(default=None, init=False)
    _tried: dict[int, set[str]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for name in self.methods:
            find_method(name)

    def run(self) -> None:
        """Search for the largest batch: first with all methods but the last, which are quick, then with all.

        Raises
        ------
        KeyboardInterrupt
            When the user ends it; what is known stays.
        OutOfTime
            When a deadline of what calls it has passed; what is known stays.
        """
        limit = self.limit()
        for methods in dict.fromkeys((tuple(self.methods[:-1]), tuple(self.methods))):
            least = self.largest or 0
            if methods and least < limit and not self.trained(limit, methods):
                last_where(partial(self.trained, methods=methods), least, limit)

    def price(self) -> None:
        """Find out what the largest batch costs, and some shares of it, with the last method as well.

        The last method also tries where another's schedule costs more than that of a larger batch. Raises
        what `run` raises.
        """
        last = self.methods[-1]
        for batch in filter(None, [int(share * (self.largest or 0)) for share in _SHARES]):
            self.trained(batch)
            point = self.points[batch]
            if point.within and point.method != last and (point.overhead or 0.0) > point.least_overhead:
                self.improved(batch, last)
        least = math.inf
        for batch in sorted(self.points, reverse=True):
            point = self.points[batch]
            if point.overhead is not None and point.overhead > least and point.method != last:
                self.improved(batch, last)
            least = min(least, self.points[batch].overhead or least)

    @property
    def largest(self) -> int | None:
        """The largest batch with a schedule within the overhead, so far."""
        return max((batch for batch, point in self.points.items() if point.within), default=None)

    def limit(self) -> int:
        """Return the largest batch that nothing excludes; 0: one image is excluded.

        Raises
        ------
        OutOfTime
            When a deadline of what calls it has passed.
        """

        def possible(batch: int) -> bool:
            look()  # a torch model is recorded for every batch
            return self.possible(batch)

        if self._limit is None:
            high = 1
            while high < LARGEST and possible(high):
                high *= 2
            self._limit = last_where(possible, high // 2, high)
        return self._limit

    def possible(self, batch: int) -> bool:
        """Whether neither the budget excludes a batch nor, where the overhead is limited, a bound."""
        if batch in self.points:
            return self.points[batch].excluded_by is None
        instance = self.instance(batch)
        bound = None
        if self.overhead is not None and least_bytes(instance) <= self.budget_bytes:
            bound = best_bound(instance, memory=self.memory)
        point = self._point(instance, batch, compute_bound(instance) if bound is None else bound)
        if point.excluded_by is not None:
            self.points[batch] = point
        return point.excluded_by is None

    def trained(self, batch: int, methods: Sequence[str] | None = None) -> bool:
        """Whether methods, by default all, tried in turn, find a schedule within the overhead."""
        for method in self.methods if methods is None else methods:
            point = self.points.get(batch)
            if point is not None and (point.within or point.excluded_by is not None):
                break
            if method not in self._tried.get(batch, ()):
                self.improved(batch, method)
                _log.info("batch %d: %s", batch, "within" if self.points[batch].within else "not within")
        return self.points[batch].within

    def improved(self, batch: int, method: str, seconds: float | None = None) -> bool:
        """Solve a batch with a method, from the schedule that is known; whether one is within the overhead.

        Its time is at most `seconds`, by default `time_limit`.

        Raises
        ------
        KeyboardInterrupt
            When the user ends the method; what it found stays.
        OutOfTime
            When there is no time left.
        """
        instance, known = self.instance(batch), self.schedules.get(batch)
        seconds = self.time_limit if seconds is None else seconds
        seconds = left() if seconds is None else min(seconds, left())
        if seconds <= 0:
            raise OutOfTime("time limit")
        if least_bytes(instance) > self.budget_bytes:
            return self.possible(batch)
        self._tried.setdefault(batch, set()).add(method)
        result = solve(
            instance,
            method,
            time_limit=None if seconds == math.inf else seconds,
            seed=self.seed,
            workers=self.workers,
            memory=self.memory,
            warm_start=known,
        )
        if result.schedule is not None and (known is None or result.schedule.makespan_ns < known.makespan_ns):
            self.schedules[batch] = result.schedule
        bound, before = result.bound, self.points.get(batch)
        made = math.inf if result.makespan_ns is None else result.makespan_ns
        if before is not None and bound.lower_bound_ns < before.lower_bound_ns <= made:
            bound = before.bound
        point = self.points[batch] = self._point(instance, batch, bound, result.stopped_by)
        if point.within and self.schedules[batch] is not known and self.on_trained is not None:
            self.on_trained(instance, self.schedules[batch])
        if result.stopped_by == "interrupted":
            raise KeyboardInterrupt
        return point.within

    def adopt(self, batch: int, schedule: Schedule) -> None:
        """Take a schedule over that is of another variant of the round, if it holds here and is shorter."""
        known, instance = self.schedules.get(batch), self.instance(batch)
        if known is not None and known.makespan_ns <= schedule.makespan_ns:
            return
        schedule = msgspec.structs.replace(schedule, instance=instance.name)
        if check(instance, schedule).valid:
            self.schedules[batch] = schedule
            before = self.points.get(batch)
            bound = compute_bound(instance)
            if before is not None and before.lower_bound_ns <= schedule.makespan_ns:
                bound = before.bound
            self.points[batch] = self._point(
                instance, batch, bound, None if before is None else before.stopped_by
            )

    def found(self, stopped_by: str) -> LargestBatch:
        """What is known."""
        excluded = min((b for b, p in self.points.items() if p.excluded_by is not None), default=None)
        return LargestBatch(
            network=self.workload.name,
            device=self.workload.device,
            method=",".join(self.methods),
            memory_model=self.memory,
            budget_bytes=self.budget_bytes,
            overhead=self.overhead,
            largest_batch=self.largest,
            excluded_from=excluded,
            limited_by=None if excluded is None else self.why_not(excluded),
            points=tuple(self.points[batch] for batch in sorted(self.points)),
            stopped_by=stopped_by,
            made=(made_here(),),
            limits=limits_of(self.instance(min(self.points))) if self.points else ModelLimits(),
        )

    def why_not(self, batch: int) -> str | None:
        """Say what excludes a batch; None where nothing is known to."""
        point = self.points.get(batch)
        if point is None or point.excluded_by is None:
            return None
        if point.excluded_by != "budget":
            over = f"{point.least_overhead:.1%} over the ideal"
            return f"at a batch of {batch}, the {point.bound_by} bound is {over}"
        instance = self.instance(batch)
        need = greatest_need(instance)
        if max(least_budget(instance), need.bytes) <= instance.budget_bytes:
            return f"at a batch of {batch}, {why_infeasible(instance)}"
        parts = (
            (need.blocks, "of its blocks"),
            (need.workspace, "of workspace"),
            (need.stuck - need.carried, "of other blocks that have to stay"),
            (need.carried, "of others that are carried and have to stay"),
            (need.resident, "that are resident"),
        )
        told = ", ".join(f"{format_size(amount)} {what}" for amount, what in parts if amount)
        return (
            f"at a batch of {batch}, task '{need.task}' needs {format_size(point.least_budget_bytes)}: {told}"
        )

    def _point(self, instance: Instance, batch: int, bound: Bound, stopped_by: str | None = None) -> Point:
        ideal, least = ideal_ns(instance), least_bytes(instance)
        longest = None if self.overhead is None else (1 + self.overhead) * ideal
        excluded = None
        if least > instance.budget_bytes:
            excluded = "budget"
        elif longest is not None and bound.lower_bound_ns > longest:
            excluded = bound.bound_by
        schedule = self.schedules.get(batch)
        made = None if schedule is None else schedule.makespan_ns
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
            stopped_by=stopped_by,
            method=None if schedule is None else schedule.method,
        )


def rounds(workload: Workload, budget_bytes: int) -> Callable[[int], Instance]:
    """Return what makes of a batch the instance of its round, each once: a torch model is recorded for it."""

    @cache
    def instance(batch: int) -> Instance:
        one = workload if batch == workload.batch else replace(workload, batch=batch)
        return one.instance(budget_bytes, check_budget=False)

    return instance


def last_where(holds: Callable[[int], bool], low: int, high: int) -> int:
    """By bisection, the last number from `low` on, where it holds, before `high`, where it does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _cells(point: Point) -> tuple[str, ...]:
    made, overhead = point.makespan_ns, point.overhead
    return (
        str(point.batch),
        format_size(point.least_budget_bytes),
        format_time(point.ideal_ns),
        "" if made is None else format_time(made),
        "" if overhead is None else f"{overhead:.1%}",
        format_time(point.lower_bound_ns),
        "yes" if point.within else "no",
        point.excluded_by or "",
    )
