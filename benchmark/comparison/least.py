"""The least link, budget or host memory with which a round keeps within an overhead: proven on both sides.

More bandwidth, or more memory, never makes a schedule longer. So a schedule within the overhead says yes for
all that is larger, and a bound above it says no for all that is smaller. The two answers are driven towards
each other: by quick rules and bounds first, then by a search for schedules and linear programs for bounds. A
certificate's figures are figures at any link and any budget, so that each is worked out at every value.

The overhead is over the ideal. Over host memory it is over the shortest schedule that is found first, with
room for a copy of every block there: a device that is too small costs time however large the host is.

It is long because the search and what it has found, in figures and in words, are told in one place.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from ...heuristics.clock import OutOfTime, left, until
from ...heuristics.methods import find_method
from ...instances.instance import Instance
from ...instances.memory import (
    ideal_ns,
    least_budget,
    least_host_bytes,
    require_budget,
    unlimited_peak,
    with_budget,
    with_host_memory,
)
from ...instances.transforms import with_link
from ...instances.units import PAGE_BYTES, ceil_to, format_size, format_time
from ...solver.bounds import Bound, best_bound, certified_bound
from ...solver.flow.stages import refine_bound
from ...solver.result import Result
from ...solver.solve import solve
from ...validate.bounds.certificate import Certificate, misses, proven_ns, sealed
from ...validate.host_memory import ALIGNMENT_BYTES
from ...validate.schedule import Schedule
from ..output.captions import ModelLimits, limits_of
from ..output.machine import made_here
from ..output.table import format_table, line_width, wrapped
from .largest_batch import BEST
from .plan import planned

Axis = Literal["link", "budget", "host-memory"]

SECONDS = 45.0
"""Time of a search where none is given: with what comes before and after it, a command takes a minute."""

_CLOSE, _ROUGH = 1.005, 1.1
"""Two values whose ratio is at most this are not parted: by the last method and by bounds, and by the quick
methods, of which the last one need only begin nearby."""

_SLOWEST, _FASTEST = 10**6, 10**15
"""Bytes a second between which the least link is sought: a thousandth of a disk's, and more than memory's."""

_SEARCH_SHARE, _SLICE = 0.6, 0.25
"""Of the time, what the search for schedules may take before bounds alone are refined; and of the time left,
what one value may take."""

_LEAST_SECONDS = 4.0
"""Time under which no bound is refined: a solver has to start, and its first models have to be made."""

_log = logging.getLogger(__name__)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What is known at a link, a budget or a size of host memory.

    Attributes
    ----------
    value
        Bytes a second in each direction, or bytes.
    makespan_ns, method
        Of the shortest schedule, and whose it is; None without one.
    lower_bound_ns, bound_by, certified_lower_bound_ns
        The best bound, what proves it, and what is proven in exact arithmetic.
    answer
        Whether the overhead can be kept: ``yes`` by a checked schedule at this value or a smaller one, ``no``
        by a bound at this or a larger one, else ``unknown``.
    stopped_by
        Why the method that was tried last ended; None where none was tried.
    """

    value: int
    makespan_ns: int | None
    method: str | None
    lower_bound_ns: int
    bound_by: str
    certified_lower_bound_ns: int
    answer: Literal["yes", "no", "unknown"]
    stopped_by: str | None


class Least(msgspec.Struct, frozen=True, kw_only=True):
    """What a search for the least link, budget or host memory has found.

    Attributes
    ----------
    instance, over, method, memory_model, overhead, time_limit
        What was asked.
    budget_bytes, least_budget_bytes
        Of the instance, None over budgets; and M_min, under which there is no schedule.
    least_host_bytes, unlimited_ns
        Over host memory, else None: the size under which there is no schedule, and the time of the shortest
        schedule that was found first, with room for a copy of every block, None without one.
    ideal_ns, longest_ns
        Time without a memory limit, and what the overhead allows; None without anything to compare with.
    least
        The least value with a checked schedule within the overhead; None without one.
    impossible
        The greatest value at which a bound says that there is none; None where nothing does.
    certified_impossible
        The greatest at which that is proven in exact arithmetic.
    points
        Values that were tried, the least first.
    stopped_by
        ``done`` (both sides are within half a per cent, or no method and no bound brings them nearer),
        ``time limit`` or ``interrupted``.
    made
        When, where and with what, as `made_here` tells it.
    limits
        Limits of the model, by what was asked; host memory that is sought is no limit.
    """

    instance: str
    over: Axis
    method: str
    memory_model: Literal["contiguous", "paged"]
    overhead: float
    time_limit: float
    budget_bytes: int | None
    least_budget_bytes: int
    least_host_bytes: int | None
    unlimited_ns: int | None
    ideal_ns: int
    longest_ns: int | None
    least: int | None
    impossible: int | None
    certified_impossible: int | None
    points: tuple[Point, ...]
    stopped_by: str
    made: tuple[str, ...]
    limits: ModelLimits = ModelLimits()

    @property
    def reference_ns(self) -> int | None:
        """The time that the overhead is over."""
        return self.unlimited_ns if self.over == "host-memory" else self.ideal_ns

    @property
    def sought(self) -> str:
        """What is sought, in words."""
        return self.over.replace("-", " ")

    def __str__(self) -> str:
        header = (self.sought, "time", "overhead", "method", "lower bound", "at least", "bound by", "answer")
        shown = [point for point in self.points if self._near(point.value)] or self.points
        table = format_table(header, [self._cells(point) for point in shown], "rrrlrrll")
        within = "" if self.budget_bytes is None else f", {format_size(self.budget_bytes)}"
        times = f"ideal {format_time(self.ideal_ns)}"
        if self.unlimited_ns is not None:
            at_best = format_time(self.points[-1].lower_bound_ns)
            times += f", with unlimited host memory {format_time(self.unlimited_ns)} (proven: {at_best})"
        asked = (
            f"{self.instance}, {self.method}, {self.memory_model} memory{within}; "
            f"{times}; stopped by: {self.stopped_by}"
        )
        return "\n".join((table, "", wrapped(asked, line_width()), *self.answer()))

    def answer(self) -> tuple[str, ...]:
        """The answer in words, a line a side."""
        limit, width = f"at most {self.overhead:.1%} over the ideal", line_width()
        if self.unlimited_ns is not None:
            time_there = format_time(self.unlimited_ns)
            limit = f"at most {self.overhead:.1%} over the {time_there} of one with unlimited host memory"
        if self.least is None:
            yes = f"no {self.sought} was found with a schedule {limit}"
            if self.reference_ns is None:
                yes = "no schedule was found with unlimited host memory"
            tried = [point for point in self.points if point.stopped_by is not None]
            if tried and tried[-1].makespan_ns is None:
                yes += f"; at {format_value(self.over, tried[-1].value)}: {tried[-1].stopped_by}"
        else:
            yes = f"{format_value(self.over, self.least)} is enough: a checked schedule is {limit}"
        if self.impossible is None:
            no = f"no {self.sought} is proven too small"
        elif self.over == "budget" and self.impossible < self.least_budget_bytes:
            no = f"under {format_size(self.least_budget_bytes)} a single task has no room"
        elif self.least_host_bytes is not None and self.impossible < self.least_host_bytes:
            no = f"under {format_size(self.least_host_bytes)} device and host have no room for what is wanted"
        else:
            proof = "in exact arithmetic"
            if self.certified_impossible != self.impossible:
                proof = "by a solver's word"
                if self.certified_impossible is not None:
                    proof += f", and {format_value(self.over, self.certified_impossible)} in exact arithmetic"
            no = f"{format_value(self.over, self.impossible)} is not: a bound is above that, {proof}"
        return (
            wrapped(yes, width, first="yes:  ", indent=6),
            wrapped(no, width, first="no:   ", indent=6),
        )

    def _near(self, value: int) -> bool:
        """Whether a value is within a factor of 2 of the answer."""
        low, high = self.impossible or self.least, self.least or self.impossible
        return low is not None and high is not None and low <= 2 * value and value <= 2 * high

    def _cells(self, point: Point) -> tuple[str, ...]:
        made, reference = point.makespan_ns, max(self.reference_ns or self.ideal_ns, 1)
        return (
            format_value(self.over, point.value),
            "" if made is None else format_time(made),
            "" if made is None else f"{made / reference - 1:.2%}",
            point.method or "",
            format_time(point.lower_bound_ns),
            "" if self.reference_ns is None else f"{max(point.lower_bound_ns / reference - 1, 0):.2%}",
            point.bound_by + "*" * (point.certified_lower_bound_ns == point.lower_bound_ns),
            point.answer,
        )


def format_value(over: Axis, value: int) -> str:
    """Write a bandwidth with a unit that keeps it readable, or a size."""
    if over != "link":
        return format_size(value)
    unit, scale = next(
        (
            (unit, scale)
            for unit, scale in (("TB/s", 10**12), ("GB/s", 10**9), ("MB/s", 10**6))
            if value >= scale
        ),
        ("kB/s", 10**3),
    )
    return f"{value / scale:.2f} {unit}"


def least_value(
    instance: Instance,
    over: Axis,
    overhead: float,
    method: str = BEST,
    *,
    time_limit: float = SECONDS,
    seed: int = 0,
    workers: int = 1,
    memory: Literal["contiguous", "paged"] = "contiguous",
    refine: bool = True,
    on_found: Callable[[Instance, Schedule | Certificate], None] | None = None,
) -> Least:
    """Find the least link, budget or host memory with which a round takes at most so much longer.

    Parameters
    ----------
    instance
        The round. Over links its budget counts, and both directions get the same link; over budgets its
        copies count; over host memory both, and its own budget of host memory does not.
    over
        What is sought.
    overhead
        How much longer than the ideal a round may be; over host memory, how much longer than with room for a
        copy of every block there.
    method
        One, or several with commas between them: the last gets the time, those before it are tried first.
        Where the last plans on an instance of its own, such as one with recomputation, that is what all get.
    time_limit
        Seconds for the whole search.
    seed, workers, memory
        As for `solve`.
    refine
        Whether to refine bounds when the methods have ended.
    on_found
        Called with the schedule, or the certificate, of an answer that is better than those before.

    Raises
    ------
    PebblerError
        For an unknown method; but over budgets, for a budget under the minimum.
    """
    names = method.split(",")
    if over == "budget":
        instance = with_budget(instance, least_budget(instance))  # parts are cut for the tightest
    else:
        require_budget(instance)
    for name in names:
        find_method(name)
    (instance,) = planned(find_method(names[-1]), (instance,))
    search = _Search(instance, over, overhead, names, seed, workers, memory, on_found)
    stopped_by = "done"
    try:
        with until(time.monotonic() + time_limit):
            search.run(time_limit, refine=refine)
            if not search.closed and left() <= _LEAST_SECONDS:
                stopped_by = "time limit"
    except OutOfTime:  # of what is loaded for a method, or of a rule
        stopped_by = "time limit"
    except KeyboardInterrupt:
        stopped_by = "interrupted"
    return search.found(",".join(names), time_limit, stopped_by)


@dataclass(slots=True)
class _Search:
    """Answers at values, between the greatest that is known to be too small and the least that is enough.

    Attributes
    ----------
    reference_ns
        The time that the overhead is over; None as long as it is not known.
    low, certain
        The greatest value at which a bound says no, and at which a certificate does; under the least that is
        tried, where none does.
    high
        The least with a schedule; None: there is none yet.
    stops
        Why the last method that was tried at a value ended.
    quick
        Bounds that need no solver.
    """

    instance: Instance
    over: Axis
    overhead: float
    methods: Sequence[str]
    seed: int
    workers: int
    memory: Literal["contiguous", "paged"]
    on_found: Callable[[Instance, Schedule | Certificate], None] | None
    reference_ns: int | None = field(init=False)
    least: int = field(init=False)
    greatest: int = field(init=False)
    low: int = field(init=False)
    certain: int = field(init=False)
    high: int | None = field(default=None, init=False)
    instances: dict[int, Instance] = field(default_factory=dict, init=False)
    schedules: dict[int, Schedule] = field(default_factory=dict, init=False)
    stops: dict[int, str] = field(default_factory=dict, init=False)
    bounds: dict[int, Bound] = field(default_factory=dict, init=False)
    quick: dict[int, Bound] = field(default_factory=dict, init=False)
    certificates: list[Certificate] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        instance = self.instance
        self.reference_ns = None if self.over == "host-memory" else ideal_ns(instance)
        if self.over == "link":
            self.least, self.greatest = _SLOWEST, _FASTEST
        elif self.over == "budget":
            self.least, self.greatest = least_budget(instance), _all_apart(instance)
        else:
            page = PAGE_BYTES if self.memory == "paged" else 1
            self.least, self.greatest = least_host_bytes(instance, page), _all_copied(instance)
        self.low = self.certain = self.least - 1

    @property
    def longest_ns(self) -> float:
        """How long a round may be."""
        return math.inf if self.reference_ns is None else (1 + self.overhead) * self.reference_ns

    @property
    def closed(self) -> bool:
        """Whether nothing is left between the two sides."""
        if self.low >= self.greatest:
            return True
        return self.high is not None and not _apart(self.low, self.high)

    def run(self, seconds: float, *, refine: bool) -> None:
        """Search until both sides meet or the deadline has passed.

        Raises
        ------
        KeyboardInterrupt
            When the user ends it; what is known stays.
        """
        if self.reference_ns is None:
            self._refer()
            if self.reference_ns is None:
                return
        self._exclude()
        if self.low >= self.greatest:
            return
        *rules, last = self.methods
        for rule in rules:
            self._narrow(rule, _ROUGH)
        self._narrow(last, _CLOSE, (1 - _SEARCH_SHARE) * seconds, _SLICE)
        above = self.greatest if self.high is None else self.high
        while refine and _apart(self.low, above) and left() > _LEAST_SECONDS:
            value = _between(self.low, above)
            if not self._refine(value, left() / 2):
                above = value

    def at(self, value: int) -> Instance:
        """Return the instance with a link, under a budget or with host memory, which is made once."""
        if value not in self.instances:
            if self.over == "link":
                self.instances[value] = with_link(self.instance, f"{value}")
            elif self.over == "budget":
                self.instances[value] = with_budget(self.instance, value)
            else:
                self.instances[value] = with_host_memory(self.instance, value)
        return self.instances[value]

    def found(self, method: str, time_limit: float, stopped_by: str) -> Least:
        """What is known."""
        values = sorted({*self.schedules, *self.bounds})
        proven_from = self.least if self.over == "link" else max(self.least - 1, 0)  # nothing fits under it
        over_host = self.over == "host-memory"
        return Least(
            instance=self.instance.name,
            over=self.over,
            method=method,
            memory_model=self.memory,
            overhead=self.overhead,
            time_limit=time_limit,
            budget_bytes=None if self.over == "budget" else self.instance.budget_bytes,
            least_budget_bytes=least_budget(self.instance),
            least_host_bytes=self.least if over_host else None,
            unlimited_ns=self.reference_ns if over_host else None,
            ideal_ns=ideal_ns(self.instance),
            longest_ns=None if self.reference_ns is None else int(self.longest_ns),
            least=self.high,
            impossible=self.low if self.low >= proven_from else None,
            certified_impossible=self.certain if self.certain >= proven_from else None,
            points=tuple(self._point(value) for value in values),
            stopped_by=stopped_by,
            made=(made_here(),),
            limits=limits_of(self.instance),
        )

    def _refer(self) -> None:
        """Take the shortest schedule with room for every copy as what others are compared with.

        Raises
        ------
        KeyboardInterrupt
            When the user ends it; what is known stays.
        """
        results: list[Result] = []
        try:
            for method in self.methods:
                results.append(self._ask(self.greatest, method, _SLICE * left()))
                _stop_if_interrupted(results[-1])
        finally:
            self.reference_ns = min(
                (result.makespan_ns for result in results if result.makespan_ns is not None), default=None
            )
            for result in results:
                self._take(self.greatest, result)

    def _narrow(self, method: str, close: float, reserved: float = 0.0, share: float = 1.0) -> None:
        """Look for the least value at which a method has a schedule, as if it got no worse.

        Steps that grow lead upwards from what is known to be too small; where a schedule is known above,
        bisection leads on.
        """
        failed, step = self.low, 2
        while not self.closed and (time_left := left() - reserved) > 0:
            if self.high is None:
                value = min(max(failed, 1) * step, self.greatest)
                step *= step
            else:
                value = _between(failed, self.high)
            if not self._solve(value, method, share * time_left):
                failed = max(failed, value)
            failed = max(failed, self.low)
            if not _apart(failed, self.greatest if self.high is None else self.high, close):
                return

    def _solve(self, value: int, method: str, seconds: float) -> bool:
        """Solve with a method; whether its schedule, or one that is known, is within the overhead."""
        result = self._ask(value, method, seconds)
        self._take(value, result)
        _log.info("%s, %s: %s", format_value(self.over, value), method, self._point(value).answer)
        _stop_if_interrupted(result)
        return self.high is not None and self.high <= value

    def _ask(self, value: int, method: str, seconds: float) -> Result:
        """Return what a method finds at a value."""
        instance, bound = self.at(value), self._bound(value)
        return solve(
            instance,
            method,
            time_limit=None if seconds == math.inf else seconds,
            seed=self.seed,
            workers=self.workers,
            memory=self.memory,
            warm_start=None if self.over == "link" else self._known(value),
            bound=bound,
        )

    def _take(self, value: int, result: Result) -> None:
        """Enter the schedule and the bound of a method; a schedule needs no more host memory than it uses."""
        self.stops[value] = result.stopped_by
        schedule = result.schedule
        if schedule is not None:
            used = schedule.host_peak_bytes if self.over == "host-memory" else value
            assert used is not msgspec.UNSET
            known = self.schedules.get(used)
            if known is None or schedule.makespan_ns < known.makespan_ns:
                self.schedules[used] = schedule
                if schedule.makespan_ns <= self.longest_ns and (self.high is None or used < self.high):
                    self.high = used
                    self._tell(used, schedule)
        self._claim(value, result.bound)

    def _refine(self, value: int, seconds: float) -> bool:
        """Refine the bound at a value that has no answer; whether that took one of the sides nearer."""
        before = self.low, self.certain
        found: list[Bound] = []
        try:
            found.append(
                refine_bound(
                    self.at(value),
                    seconds,
                    seed=self.seed,
                    workers=self.workers,
                    memory=self.memory,
                    on_better=found.append,
                )
            )
        finally:
            for bound in found[-1:]:
                self._claim(value, bound)
        _log.info("%s: bound %s", format_value(self.over, value), self._point(value).answer)
        return before != (self.low, self.certain)

    def _claim(self, value: int, bound: Bound) -> None:
        """Enter a bound at a value, and work its certificate out at others."""
        known = self._bound(value).raised(bound)
        self.bounds[value] = known
        if bound.certificate is not None and bound.certificate not in self.certificates:
            self.certificates.append(bound.certificate)
            self._exclude()
        if known.lower_bound_ns > self.longest_ns:
            self.low = max(self.low, value)

    def _exclude(self) -> None:
        """By bisection, look for the greatest value at which a certificate, or a quick bound, says no."""
        low, high = self.certain, self.greatest if self.high is None else self.high
        if self.high is None and self._excluded(high):
            low = high
        near = max(low + 1, int(_CLOSE * low))
        if near < high and not self._excluded(near):
            high = near  # nothing is new, as mostly where a certificate comes
        while low < high and _apart(low, high):
            value = _between(low, high)
            low, high = (value, high) if self._excluded(value) else (low, value)
        self.certain, self.low = max(self.certain, low), max(self.low, low)

    def _excluded(self, value: int) -> bool:
        """Whether what is proven in exact arithmetic at a value is above the limit."""
        bound = self._bound(value)
        if bound.certified_ns <= self.longest_ns:
            return False
        self.bounds[value] = bound
        if value > self.certain and bound.certificate is not None:
            self._tell(value, bound.certificate)
        return True

    def _bound(self, value: int) -> Bound:
        """Return the best bound at a value: what was said of it, a quick one, and all certificates."""
        instance = self.at(value)
        if value not in self.quick:
            self.quick[value] = best_bound(instance, memory=self.memory)
        best = self.bounds.get(value, self.quick[value])
        for certificate in self.certificates:
            if misses(instance, certificate, self.memory) is None:
                proven = proven_ns(instance, certificate)
                if proven > best.certified_ns:
                    best = best.raised(certified_bound(_anew(instance, certificate, proven)))
        return best

    def _point(self, value: int) -> Point:
        schedule, bound = self.schedules.get(value), self._bound(value)
        answer: Literal["yes", "no", "unknown"] = "unknown"
        if self.high is not None and value >= self.high:
            answer = "yes"
        elif value <= self.low:
            answer = "no"
        return Point(
            value=value,
            makespan_ns=None if schedule is None else schedule.makespan_ns,
            method=None if schedule is None else schedule.method,
            lower_bound_ns=bound.lower_bound_ns,
            bound_by=bound.bound_by,
            certified_lower_bound_ns=bound.certified_ns,
            answer=answer,
            stopped_by=self.stops.get(value),
        )

    def _known(self, most: int) -> Schedule | None:
        """The shortest schedule for at most a value."""
        fitting = [schedule for value, schedule in self.schedules.items() if value <= most]
        return min(fitting, key=lambda schedule: schedule.makespan_ns, default=None)

    def _tell(self, value: int, found: Schedule | Certificate) -> None:
        if self.on_found is not None:
            self.on_found(self.at(value), found)


def _stop_if_interrupted(result: Result) -> None:
    if result.stopped_by == "interrupted":
        raise KeyboardInterrupt


def _anew(instance: Instance, certificate: Certificate, proven: int) -> Certificate:
    """Return a certificate for an instance with other copies or another budget."""
    return sealed(msgspec.structs.replace(certificate, lower_bound_ns=proven, instance=instance.name))


def _all_apart(instance: Instance) -> int:
    """A budget under which everything has a place of its own."""
    unit = instance.alignment_bytes
    blocks = sum(ceil_to(block.bytes, unit) for block in instance.blocks)
    scratch = max(a.workspace_bytes for task in instance.tasks for a in task.algorithms)
    return max(instance.resident_bytes + blocks + ceil_to(scratch, unit), unlimited_peak(instance))


def _all_copied(instance: Instance) -> int:
    """Host memory with room for a copy of every block."""
    return sum(ceil_to(block.bytes, ALIGNMENT_BYTES) for block in instance.blocks)


def _between(low: int, high: int) -> int:
    """The geometric mean."""
    return min(max(math.isqrt(max(low, 1) * high), low + 1), high - 1)


def _apart(low: int, high: int, close: float = _CLOSE) -> bool:
    return high - low > 1 and high > close * low
