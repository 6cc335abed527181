"""Time against budget: the times of a method and the proven bounds, from the least budget to the peak.

Both are monotone. A schedule for a smaller budget serves a larger one, and a bound for a larger budget holds
for a smaller one. Moreover, the prices of a certificate are prices at any budget, and prove a bound there.
"""

from __future__ import annotations

import csv
import hashlib
import io
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

import msgspec

from ...heuristics.methods import Limits, find_method
from ...instances.arguments import require_instance, require_kind, require_one_of, require_whole
from ...instances.errors import PebblerError
from ...instances.files import encode, read_document, write_atomically, write_document, write_instance
from ...instances.instance import Instance
from ...instances.memory import ideal_ns, least_budget, require_budget, unlimited_peak, with_budget
from ...instances.units import format_size, format_time
from ...solver.answers import Answers
from ...solver.bounds import Bound, best_bound, certified_bound, compute_bound
from ...solver.flow.stages import refine_bound
from ...solver.result import Result, Status
from ...solver.solve import attempt
from ...validate.bounds.certificate import Certificate, proven_ns, read_certificate, write_certificate
from ...validate.schedule import Schedule, read_schedule, write_schedule
from ..output.captions import ModelLimits, limits_of
from ..output.machine import made_here
from ..output.names import file_name, method_file_name
from ..output.table import format_html, format_table, line_width, wrapped

Spacing = Literal["adaptive", "even"]
"""Rule for the choice of budgets."""

_HEADER = ("budget", "of peak", "time", "overhead", "lower bound", "certified", "gap", "solved at")

_FINEST = 1 / 500
"""Share of the range of budgets below which no budget is added between two neighbours."""

_log = logging.getLogger(__name__)


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The results at a budget.

    Attributes
    ----------
    budget_bytes
        The budget in bytes.
    makespan_ns, solved_at_bytes
        The shortest schedule that fits, and the budget (this or a smaller one) for which it was found; None
        without a schedule.
    lower_bound_ns, bound_by, certified_lower_bound_ns
        The best bound that holds, its argument or solver, and the bound that is proven in exact arithmetic.
    own_makespan_ns, own_lower_bound_ns, own_bound_by, stopped_by
        The method's result and its claimed bound at this budget alone, and why the method ended. A claim that
        a checked schedule refutes bounds nothing.
    method
        Name of the method.
    """

    budget_bytes: int
    makespan_ns: int | None
    solved_at_bytes: int | None
    lower_bound_ns: int
    bound_by: str
    certified_lower_bound_ns: int
    own_makespan_ns: int | None
    own_lower_bound_ns: int
    own_bound_by: str
    stopped_by: str
    method: str


class Frontier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time against budget, by increasing budget; the first attributes are the question.

    Attributes
    ----------
    instance, instance_sha256
        Name of the instance, and the checksum of its file with a budget of 0.
    method, memory_model, seed, time_limit
        Settings with which each point was solved.
    ideal_ns, least_budget_bytes, peak_bytes
        Time without a memory limit, M_min, and the peak without a limit.
    limits
        Limits of the model: what the instance has of a shared link, slowed tasks and a budget of the host.
    points
        The points by increasing budget.
    made
        When, where and with which versions the points were solved, as `made_here` returns it.
    """

    format: Literal["pebbler/frontier/1"] = "pebbler/frontier/1"
    instance: str
    instance_sha256: str
    method: str
    memory_model: Literal["contiguous", "paged"]
    seed: int
    time_limit: float | None
    ideal_ns: int
    least_budget_bytes: int
    peak_bytes: int
    limits: ModelLimits = ModelLimits()
    points: tuple[Point, ...] = ()
    made: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [_cells(self, point) for point in self.points]
        table = format_table(_HEADER, rows, "r" * len(_HEADER))
        return table + "\n\n" + "\n".join(wrapped(note, line_width()) for note in self._notes())

    def _repr_html_(self) -> str:
        return format_html(_HEADER, [_cells(self, point) for point in self.points], "; ".join(self._notes()))

    def _notes(self) -> list[str]:
        notes = [
            f"{self.instance}, {self.method}, {self.memory_model} memory; "
            f"ideal {format_time(self.ideal_ns)}; "
            f"least budget {format_size(self.least_budget_bytes)}, peak {format_size(self.peak_bytes)}"
        ]
        for point in [point for point in self.points if point.makespan_ns is None][-1:]:
            notes.append(f"no schedule up to {format_size(point.budget_bytes)}: {point.stopped_by}")
        return notes

    def as_csv(self) -> str:
        """Return the points as a table with commas, one column for each attribute."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(Point.__struct_fields__)
        writer.writerows(msgspec.structs.astuple(point) for point in self.points)
        return text.getvalue()


def frontier(
    instance: Instance,
    method: str,
    *,
    points: int = 9,
    spacing: Spacing = "adaptive",
    time_limit: float | None = None,
    seed: int = 0,
    workers: int = 1,
    memory: Literal["contiguous", "paged"] = "contiguous",
    folder: str | Path | None = None,
) -> Frontier:
    """Solve an instance at budgets from the least to the peak: what a method reaches, and what is proven.

    Parameters
    ----------
    instance
        What to solve; its budget does not matter.
    method, time_limit, seed, workers, memory
        As for `solve`, for each point; with a time limit the bound of each point is refined as long.
    points
        How many at most.
    spacing
        ``even``: spread over the budgets; ``adaptive``: between the points that leave the most open.
    folder
        Where to write the files of every point, as `Sweep` does; points that are there are not solved again.
        None: nothing is kept but the result.

    Raises
    ------
    PebblerError
        For an unknown method, a wrong argument, or a folder that has a frontier of something else.
    """
    require_whole("points", points, 1)
    require_one_of("spacing", spacing, get_args(Spacing))
    if folder is not None:
        require_kind("folder", folder, (str, Path), "give a path")
    with TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        return Sweep(instance, method, Path(place), time_limit, seed, workers, memory).run(points, spacing)


@dataclass(slots=True)
class Sweep:
    """The computation of a frontier; its folder has every file of every finished point at any time.

    For a point at B bytes of the instance NAME, the files are ``NAME-B.instance.json``,
    ``NAME-B.METHOD.schedule.json`` and ``NAME-B.METHOD.certificate.json``; for the frontier, they are
    ``NAME.METHOD.frontier.json``, ``NAME.METHOD.csv`` and ``NAME.METHOD.png``.

    Parameters
    ----------
    instance
        The instance to solve; its budget does not matter.
    method, time_limit, seed, workers, memory
        As for `solve`, for each point; with a time limit, the bound of each point is refined for as long.
    folder
        The folder of the files. Points that it has already are not solved again.

    Raises
    ------
    PebblerError
        For an unknown method, or a folder with another frontier.
    """

    instance: Instance
    method: str
    folder: Path
    time_limit: float | None = None
    seed: int = 0
    workers: int = 1
    memory: Literal["contiguous", "paged"] = "contiguous"
    _own: dict[int, Point] = field(default_factory=dict, init=False)
    _certificates: dict[int, Certificate] = field(default_factory=dict, init=False)
    _made: tuple[str, ...] = field(default=(), init=False)
    _fallen: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        require_instance(self.instance)
        find_method(self.method)
        Limits(self.time_limit, self.seed, self.workers, self.memory)
        path = self.path("frontier.json")
        if not path.exists():
            return
        known = read_document(path, Frontier, "a frontier")
        if msgspec.structs.replace(known, points=(), made=()) != self._asked():
            raise PebblerError(f"{path} is of something else or was asked otherwise; give another folder")
        self._made = known.made
        for point in known.points:
            if point.stopped_by != "interrupted":
                self._own[point.budget_bytes] = point
                self._certificates[point.budget_bytes] = read_certificate(
                    self.path("certificate.json", point.budget_bytes)
                )

    def path(self, ending: str, budget: int | None = None) -> Path:
        """Return the path of a file of the frontier or of a point."""
        name = file_name(self.instance)
        at = "" if budget is None else f"-{budget}"
        middle = "" if ending == "instance.json" else f".{method_file_name(self.method)}"
        return self.folder / f"{name}{at}{middle}.{ending}"

    def run(self, count: int, spacing: Spacing = "adaptive") -> Frontier:
        """Solve points until there are `count` of them, or further points would add nothing.

        Files are written after each point. ``even`` spacing spreads the budgets evenly from M_min to the
        peak. ``adaptive`` spacing begins with both ends. It then adds a budget between the two neighbours
        with the greatest product of the differences in budget and in time.

        Raises
        ------
        KeyboardInterrupt
            When the user ends it; the folder has all finished points.
        ContradictionError
            When a certified bound is above a schedule for this budget or a smaller one.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PebblerError(f"{self.folder} cannot be made: {error.strerror or error}") from None
        for budget in self._budgets(count, spacing):
            result = self._solve(budget)
            self._write()
            _log.info("%d of %d: %s: %s", len(self._own), count, format_size(budget), _told(result))
            if result.stopped_by == "interrupted":
                raise KeyboardInterrupt
        return self.frontier()

    def frontier(self) -> Frontier:
        """Return the points so far, made monotone."""
        points: list[Point] = []
        for budget in sorted(self._own, reverse=True):
            points.append(self._point(budget, points[-1] if points else None))
        best: Point | None = None
        risen: list[Point] = []
        for point in reversed(points):
            own = point.own_makespan_ns
            if own is not None and (
                best is None or best.own_makespan_ns is None or own < best.own_makespan_ns
            ):
                best = point
            if best is not None:
                made = best.own_makespan_ns
                point = msgspec.structs.replace(point, makespan_ns=made, solved_at_bytes=best.budget_bytes)
            risen.append(point)
        return msgspec.structs.replace(self._asked(), points=tuple(risen), made=self._made)

    def _budgets(self, count: int, spacing: Spacing) -> Iterator[int]:
        """Yield the budgets to solve, one after the other."""
        least, peak = least_budget(self.instance), unlimited_peak(self.instance)
        peak = max(least, peak)
        if spacing == "even":
            steps = max(count - 1, 1)
            wanted = {peak - (peak - least) * i // steps for i in range(count)}
            yield from (budget for budget in sorted(wanted) if budget not in self._own)
            return
        yield from (budget for budget in dict.fromkeys((peak, least)) if budget not in self._own)
        while len(self._own) < count and (budget := self._between(peak - least)) is not None:
            yield budget

    def _between(self, span: int) -> int | None:
        """Return a budget between the two neighbours that differ most; None if no two differ."""
        points = self.frontier().points
        areas = []
        for low, high in pairwise(points):
            width = high.budget_bytes - low.budget_bytes
            if high.makespan_ns is None or width <= _FINEST * span or width < 2:
                continue
            rise = high.makespan_ns if low.makespan_ns is None else low.makespan_ns - high.makespan_ns
            areas.append((width * rise, low.budget_bytes + width // 2))
        area, budget = max(areas, default=(0, 0))
        return budget if area > 0 else None

    def _solve(self, budget: int) -> Result:
        """Solve a point, starting from the best schedule for a smaller budget, and write its files."""
        instance = with_budget(self.instance, budget)
        require_budget(instance)
        known = best_bound(instance, memory=self.memory)
        if self.time_limit is not None:
            known = refine_bound(
                instance, self.time_limit, seed=self.seed, workers=self.workers, memory=self.memory
            )
        result = attempt(
            Answers(instance, self.memory),
            self.method,
            time_limit=self.time_limit,
            seed=self.seed,
            workers=self.workers,
            warm_start=self._start(instance),
            bound=known,
        )
        if result.status is Status.ERROR:
            _log.error("%s at %d bytes: %s", self.method, budget, result.stopped_by)
        checksum = write_instance(instance, self.path("instance.json", budget))
        if result.schedule is not None:
            write_schedule(result.schedule, self.path("schedule.json", budget), checksum)
        certificate = result.certificate or compute_bound(instance).certificate
        assert certificate is not None
        write_certificate(certificate, self.path("certificate.json", budget), checksum)
        self._certificates[budget] = certificate
        self._made = tuple(dict.fromkeys((*self._made, made_here())))
        self._own[budget] = Point(
            budget_bytes=budget,
            makespan_ns=result.makespan_ns,
            solved_at_bytes=None if result.makespan_ns is None else budget,
            lower_bound_ns=result.lower_bound_ns,
            bound_by=result.bound_by,
            certified_lower_bound_ns=result.certified_lower_bound_ns,
            own_makespan_ns=result.makespan_ns,
            own_lower_bound_ns=result.lower_bound_ns,
            own_bound_by=result.bound_by,
            stopped_by=f"error: {result.stopped_by}" if result.status is Status.ERROR else result.stopped_by,
            method=self.method,
        )
        return result

    def _start(self, instance: Instance) -> Schedule | None:
        """Return the shortest schedule for a smaller budget; None for several GPUs, as no method uses it."""
        shortest = self._shortest(instance.budget_bytes - 1) if instance.gpus == 1 else None
        return None if shortest is None else self._schedule(shortest[1], instance)

    def _shortest(self, budget: int) -> tuple[int, int] | None:
        """Return the time of the shortest schedule for at most a budget, and the budget of that schedule."""
        found = [
            (point.own_makespan_ns, point.budget_bytes)
            for point in self._own.values()
            if point.own_makespan_ns is not None and point.budget_bytes <= budget
        ]
        return min(found, default=None)

    def _schedule(self, budget: int, instance: Instance) -> Schedule:
        """Return the schedule that was found for a budget, for an instance that allows it."""
        found = read_schedule(self.path("schedule.json", budget), instance)
        return msgspec.structs.replace(found, instance_sha256=None)

    def _point(self, budget: int, above: Point | None) -> Point:
        """Return a point with the best of its own bound, the next larger budget's, and all certificates."""
        own = self._own[budget]
        instance = with_budget(self.instance, budget)
        certificate = max(self._certificates.values(), key=lambda c: (proven_ns(instance, c), c.bound_by))
        proven = proven_ns(instance, certificate), certificate.bound_by
        bounds = [proven]
        if self._stands(own, instance, certificate, proven[0]):
            bounds.append((own.own_lower_bound_ns, own.own_bound_by))
        else:
            wrong = f"the {own.own_bound_by} bound of {own.own_lower_bound_ns} ns is above a checked schedule"
            own = msgspec.structs.replace(own, stopped_by=f"error: {wrong}")
        if above is not None:
            bounds.append((above.lower_bound_ns, above.bound_by))
        lower, bound_by = max(bounds, key=lambda bound: bound[0])
        return msgspec.structs.replace(
            own,
            makespan_ns=None,
            solved_at_bytes=None,
            lower_bound_ns=lower,
            bound_by=bound_by,
            certified_lower_bound_ns=proven[0],
        )

    def _stands(self, own: Point, instance: Instance, certificate: Certificate, proven: int) -> bool:
        """Return whether a point's own bound agrees with the schedules for its budget and smaller ones.

        Raises
        ------
        ContradictionError
            When the best certificate's bound is above one of these schedules.
        """
        budget = own.budget_bytes
        shortest = self._shortest(budget)
        if shortest is None or max(own.own_lower_bound_ns, proven) <= shortest[0]:
            return True
        if budget not in self._fallen:
            answers = Answers(instance, self.memory)
            answers.admit(self._schedule(shortest[1], instance))
            answers.claim(certified_bound(msgspec.structs.replace(certificate, lower_bound_ns=proven)))
            answers.claim(Bound(own.own_lower_bound_ns, own.own_bound_by, certified=False))
            self._fallen.add(budget)
        return False

    def _write(self) -> None:
        found = self.frontier()
        write_document(found, self.path("frontier.json"))
        write_atomically(self.path("csv"), found.as_csv().encode())

    def _asked(self) -> Frontier:
        unlimited = with_budget(self.instance, 0)
        return Frontier(
            instance=self.instance.name,
            instance_sha256=hashlib.sha256(encode(unlimited)).hexdigest(),
            method=self.method,
            memory_model=self.memory,
            seed=self.seed,
            time_limit=self.time_limit,
            ideal_ns=ideal_ns(self.instance),
            least_budget_bytes=least_budget(self.instance),
            peak_bytes=unlimited_peak(self.instance),
            limits=limits_of(self.instance),
        )


def _told(result: Result) -> str:
    return result.stopped_by if result.makespan_ns is None else format_time(result.makespan_ns)


def _cells(frontier: Frontier, point: Point) -> tuple[str, ...]:
    bound = point.lower_bound_ns
    first = format_size(point.budget_bytes), f"{point.budget_bytes / max(frontier.peak_bytes, 1):.1%}"
    proven = format_time(bound), format_time(point.certified_lower_bound_ns)
    if point.makespan_ns is None or point.solved_at_bytes is None:
        return (*first, "none", "", *proven, "", "")
    return (
        *first,
        format_time(point.makespan_ns),
        f"{point.makespan_ns / max(frontier.ideal_ns, 1) - 1:.2%}",
        *proven,
        f"{(point.makespan_ns - bound) / max(bound, 1):.2%}",
        format_size(point.solved_at_bytes),
    )
