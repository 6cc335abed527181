"""A run of a sweep: what to run, its fingerprint, and what running it gives, in the process that runs it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from ...heuristics.loading import load_for
from ...heuristics.methods import Limits, find_method
from ...instances.errors import PebblerError
from ...instances.files import encode
from ...instances.memory import ideal_ns
from ...instances.units import format_size
from ...solver.answers import ContradictionError
from ...solver.bounds import best_bound
from ...validate.bounds.certificate import PAGED_ONLY, sealed
from ...validate.schedule import MemoryModel
from ..comparison.compare import compare, compare_auto
from ..comparison.relaxation import search_relaxed
from ..comparison.result import Comparison, Row
from ..output.machine import limit_memory, package_versions, peak_rss_bytes
from .problems import About, Problem, WorkloadProblem, problem_sha256

GRACE = 120.0
"""Seconds over its time limit after which a run is killed: building, checking and ending are not limited."""

Point = tuple[float, int | None, int | None]
"""Seconds since the run began, and the best iteration time and bound from then on, in nanoseconds.

The seconds include the cheap bounds before the method, and the last ones the check after it.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """A method and its limits.

    Attributes
    ----------
    method, memory_model, workers, without
        As `solve` takes them; in divisible memory, a relaxation, ``local-search`` alone.
    time_limit
        Seconds for the method; None: until it is done.
    wall_limit
        Seconds after which the run's process is killed; None: never.
    memory_limit_bytes
        Address space of each of the run's processes; None: no limit.
    """

    method: str
    memory_model: MemoryModel = "contiguous"
    time_limit: float | None = None
    wall_limit: float | None = None
    memory_limit_bytes: int | None = None
    workers: int = 1
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """A run to make: a problem, what is told of it, a setting and a seed."""

    problem: Problem
    about: About
    setting: Setting
    seed: int = 0

    @property
    def fingerprint(self) -> str:
        """What makes two runs the same: the problem's bytes, setting, seed, and versions of what answers."""
        parts = (self.about.problem_sha256, self.setting, self.seed, sorted(package_versions().items()))
        return sha256(msgspec.json.encode(parts)).hexdigest()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has found; times and bytes are of an iteration, all rounds of it.

    Attributes
    ----------
    status, stopped_by
        As `compare` says them; ``unknown`` where a limit ended the process.
    iteration_ns, stall_ns, peak_bytes, average_bytes, offloaded_bytes, prefetched_bytes, pinned_bytes
        Figures of the schedule; None without one.
    ideal_ns, lower_bound_ns, bound_by, certified
        Time without a memory limit, and the best bound that is cheap or that the method proved, of what it
        solved: a planner may have made other instances; None where the process ended before it could tell.
    sub_batch, rounds
        Of the schedule; the images of a round are None where the instance does not say.
    instances, schedules
        Checksums of the files of the instances that were solved and of their schedules.
    trace
        The answer over time, for methods that tell; its last point is what was found.
    solve_seconds
        Wall time of the method.
    peak_rss_bytes
        Upper bound on the resident memory of the run's processes.
    """

    status: str
    stopped_by: str
    iteration_ns: int | None = None
    stall_ns: int | None = None
    peak_bytes: int | None = None
    average_bytes: int | None = None
    offloaded_bytes: int | None = None
    prefetched_bytes: int | None = None
    pinned_bytes: int | None = None
    ideal_ns: int | None = None
    lower_bound_ns: int | None = None
    bound_by: str | None = None
    certified: bool | None = None
    sub_batch: int | None = None
    rounds: int | None = None
    instances: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    trace: tuple[Point, ...] = ()
    solve_seconds: float | None = None
    peak_rss_bytes: int | None = None

    @property
    def gap(self) -> float:
        """(iteration - bound) / bound, by what the run itself knew; infinite without a schedule."""
        if self.iteration_ns is None or self.lower_bound_ns is None:
            return math.inf
        return (self.iteration_ns - self.lower_bound_ns) / max(self.lower_bound_ns, 1)

    @property
    def bounds_paged_only(self) -> bool:
        """Whether the bound does not hold in other memory models."""
        return self.bound_by is not None and PAGED_ONLY in self.bound_by


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run has found, and the files of the instances that it solved and of its schedules.

    Certificates are kept where a schedule contradicts them.
    Files, for a copy of an instance in another process may be written with other defaults left out.
    """

    found: Found
    instances: tuple[bytes, ...] = ()
    schedules: tuple[bytes, ...] = ()
    certificates: tuple[bytes, ...] = ()


def load(job: Job) -> None:
    """Load what a run uses in this process, before any clock starts.

    Raises
    ------
    PebblerError
        When there is no such method here.
    """
    load_for(find_method(job.setting.method).call, Limits())


def measure(job: Job) -> Measured:
    """Make a run in this process, under the job's limit of memory from here on.

    Raises
    ------
    PebblerError
        When the problem or the packages here are not those of the job.
    """
    setting = job.setting
    if setting.memory_limit_bytes is not None:
        limit_memory(setting.memory_limit_bytes)
    here = problem_sha256(job.problem, job.problem.instances())
    if here != job.about.problem_sha256:
        raise PebblerError(
            f"{job.problem.name} is another instance here; install the same versions on all machines"
        )
    if setting.memory_model == "divisible":
        return _relaxed(job)
    trace = _Trace()
    try:
        comparison = _compared(job, trace)
    except ContradictionError as error:
        return _contradicted(error)
    return _measured(job, comparison, trace)


def _relaxed(job: Job) -> Measured:
    """Search a relaxation of a problem of one instance; there is a time, but no schedule to show."""
    (instance,), setting = job.problem.instances(), job.setting
    assert setting.method == "local-search"
    bound = best_bound(instance)
    relaxed = search_relaxed(instance, setting.time_limit, seed=job.seed, without=setting.without)
    found = Found(
        status="unknown" if relaxed.makespan_ns is None else "feasible",
        stopped_by=relaxed.stopped_by,
        iteration_ns=None if relaxed.makespan_ns is None else instance.rounds * relaxed.makespan_ns,
        ideal_ns=instance.rounds * ideal_ns(instance),
        lower_bound_ns=instance.rounds * bound.lower_bound_ns,
        bound_by=bound.bound_by,
        certified=bound.certified,
        sub_batch=instance.made_from.sub_batch,
        rounds=instance.rounds,
        instances=(job.about.problem_sha256,),
        solve_seconds=relaxed.seconds,
        peak_rss_bytes=peak_rss_bytes(),
    )
    return Measured(found, (encode(instance),))


def _contradicted(error: ContradictionError) -> Measured:
    """Keep both sides of a contradiction among the run's files; its row has no figures."""
    instance = encode(error.instance)
    of = sha256(instance).hexdigest()
    schedule = encode(msgspec.structs.replace(error.schedule, instance_sha256=of))
    certificate = None if error.bound is None else error.bound.certificate
    sealed_for = None
    if certificate is not None:
        sealed_for = encode(sealed(msgspec.structs.replace(certificate, instance_sha256=of)))
    found = Found(
        status="error",
        stopped_by=str(error),
        instances=(of,),
        schedules=(sha256(schedule).hexdigest(),),
        peak_rss_bytes=peak_rss_bytes(),
    )
    return Measured(found, (instance,), (schedule,), () if sealed_for is None else (sealed_for,))


class _Trace:
    """Takes down answers as they come."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.points: list[Point] = []

    def __call__(self, makespan_ns: int | None, bound_ns: int | None) -> None:
        self.points.append((self.seconds(), makespan_ns, bound_ns))

    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.began


def _compared(job: Job, trace: _Trace) -> Comparison:
    setting, problem = job.setting, job.problem
    assert setting.memory_model != "divisible"
    if isinstance(problem, WorkloadProblem) and problem.sub_batch == "auto":
        return compare_auto(
            problem.workload,
            problem.budget,
            [setting.method],
            time_limit=setting.time_limit,
            seed=job.seed,
            workers=setting.workers,
            memory=setting.memory_model,
        )
    return compare(
        problem.instances(),
        [setting.method],
        time_limit=setting.time_limit,
        seed=job.seed,
        workers=setting.workers,
        memory=setting.memory_model,
        without=setting.without,
        refine=False,
        on_better=trace,
    )


def _measured(job: Job, comparison: Comparison, trace: _Trace) -> Measured:
    row = comparison.rows[0]
    bound = row.bound
    instances = tuple(map(encode, row.instances))
    sums = [sha256(data).hexdigest() for data in instances]
    schedules = tuple(
        encode(msgspec.structs.replace(schedule, instance_sha256=of))
        for of, schedule in zip(sums, row.schedules, strict=False)
    )
    figures = row.figures
    names = (
        "iteration_ns",
        "stall_ns",
        "peak_bytes",
        "average_bytes",
        "offloaded_bytes",
        "prefetched_bytes",
        "pinned_bytes",
    )
    status, stopped_by = _ended(job, row)
    found = Found(
        status=status,
        stopped_by=stopped_by,
        **({} if figures is None else {name: getattr(figures, name) for name in names}),
        ideal_ns=comparison.ideal_ns,
        lower_bound_ns=bound.lower_bound_ns,
        bound_by=bound.bound_by,
        certified=bound.certified,
        sub_batch=row.sub_batch,
        rounds=row.rounds,
        instances=tuple(sums),
        schedules=tuple(sha256(data).hexdigest() for data in schedules),
        trace=_points(row, trace, bound.lower_bound_ns),
        solve_seconds=row.solve_seconds,
        peak_rss_bytes=peak_rss_bytes(),
    )
    return Measured(found, instances, schedules)


def _ended(job: Job, row: Row) -> tuple[str, str]:
    """Return status and reason; what failed under a memory limit may have failed for want of memory."""
    limit = job.setting.memory_limit_bytes
    if limit is None or row.status != "error":
        return row.status.value, row.stopped_by
    status = "unknown" if row.stopped_by.startswith("MemoryError") else "error"
    return status, f"{row.stopped_by}, under a memory limit of {format_size(limit)}"


def _points(row: Row, trace: _Trace, bound_ns: int) -> tuple[Point, ...]:
    """Return the trace of an iteration: that of its one instance, all rounds of it, and the final answer."""

    def all_rounds(ns: int | None) -> int | None:
        return None if ns is None else row.rounds * ns

    told = trace.points if len(row.instances) == 1 else []
    points = [(seconds, all_rounds(makespan), all_rounds(bound)) for seconds, makespan, bound in told]
    last = None if row.figures is None else row.figures.iteration_ns
    return (*points, (trace.seconds(), last, bound_ns))
