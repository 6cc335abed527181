"""A run of a sweep: its question, its fingerprint, and its result, in the process that runs it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from ...heuristics.loading import load_for
from ...heuristics.methods import Limits, find_method
from ...heuristics.production.given import policy_sha256
from ...heuristics.programs import program_sha256
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
"""Seconds after its time limit at which a run is killed; building, checking and ending are not limited."""

Point = tuple[float, int | None, int | None]
"""Seconds since the start of a run, and the best iteration time and bound from then on, in nanoseconds.

The seconds include the time for cheap bounds before the method; those of the last point include the check.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """A method and its limits.

    Attributes
    ----------
    method, memory_model, workers, without
        As for `solve`; in divisible memory, which is a relaxation, only ``local-search``.
    time_limit
        Time limit of the method in seconds; None means until it is done.
    wall_limit
        Seconds after which the run's process is killed; None means never.
    memory_limit_bytes
        Greatest address space of each of the run's processes in bytes; None means no limit.
    solver
        Name of the solver for linear models, if the configuration names one.
    """

    method: str
    memory_model: MemoryModel = "contiguous"
    time_limit: float | None = None
    wall_limit: float | None = None
    memory_limit_bytes: int | None = None
    workers: int = 1
    without: tuple[str, ...] = ()
    solver: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Job:
    """A run to make: a problem with its description, a setting and a seed."""

    problem: Problem
    about: About
    setting: Setting
    seed: int = 0

    @property
    def fingerprint(self) -> str:
        """Checksum by which two runs are the same: problem, setting, seed, and versions of the packages.

        If the method is a program, or a policy in a file, that file counts, too.
        """
        versions = sorted(package_versions().items())
        method = self.setting.method
        if (file := program_sha256(method) or policy_sha256(method)) is not None:
            versions.append((method, file))
        parts = (self.about.problem_sha256, self.setting, self.seed, versions)
        return sha256(msgspec.json.encode(parts)).hexdigest()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run; times and bytes are those of all rounds of an iteration.

    Attributes
    ----------
    status, stopped_by
        As in `compare`; ``unknown`` if a limit ended the process.
    iteration_ns, stall_ns, peak_bytes, average_bytes, offloaded_bytes, prefetched_bytes, pinned_bytes
        Figures of the schedule; None without one.
    ideal_ns, lower_bound_ns, bound_by, certified
        Time without a memory limit, and the best bound by cheap arguments or by the method, for the instances
        that it solved (a planner may have made other instances). None if the process ended too early.
    sub_batch, rounds
        Images of a round of the schedule, and number of rounds; the former is None if the instance does not
        have it.
    instances, schedules
        Checksums of the files of the solved instances and of their schedules.
    trace
        The answer over time, for methods that report it; its last point is the result.
    solve_seconds
        Wall time of the method in seconds.
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
    solve_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    peak_rss_bytes: int | None = None

    @property
    def gap(self) -> float:
        """The gap (iteration - bound) / bound, by the run's own bound; infinite without a schedule."""
        if self.iteration_ns is None or self.lower_bound_ns is None:
            return math.inf
        return (self.iteration_ns - self.lower_bound_ns) / max(self.lower_bound_ns, 1)

    @property
    def bounds_paged_only(self) -> bool:
        """Whether the bound does not hold in other memory models."""
        return self.bound_by is not None and PAGED_ONLY in self.bound_by


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a run, and the files of its instances and schedules.

    Certificates are kept if a schedule contradicts them.
    These are the contents of files, because a copy of an instance in another process may be written with
    other defaults left out.
    """

    found: Found
    instances: tuple[bytes, ...] = ()
    schedules: tuple[bytes, ...] = ()
    certificates: tuple[bytes, ...] = ()


def load(job: Job) -> None:
    """Load the code that a run uses in this process, before any clock starts.

    Raises
    ------
    PebblerError
        When there is no such method here.
    """
    load_for(find_method(job.setting.method).call, Limits())


def measure(job: Job) -> Measured:
    """Make a run in this process, with the job's memory limit from now on.

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
    """Search a relaxation of a problem of one instance; the result has a time, but no schedule."""
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
    """Store both sides of a contradiction among the run's files; its row has no figures."""
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
    """A record of answers and their times."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.points: list[Point] = []

    def __call__(self, makespan_ns: int | None, bound_ns: int | None) -> None:
        self.points.append((self.seconds(), makespan_ns, bound_ns))

    def seconds(self) -> float:
        """Return the seconds since the start of the run."""
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
        solver="highs" if setting.solver is UNSET else setting.solver,
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
    """Return status and reason; a failure under a memory limit may be due to the limit."""
    limit = job.setting.memory_limit_bytes
    if limit is None or row.status != "error":
        return row.status.value, row.stopped_by
    status = "unknown" if row.stopped_by.startswith("MemoryError") else "error"
    return status, f"{row.stopped_by}, under a memory limit of {format_size(limit)}"


def _points(row: Row, trace: _Trace, bound_ns: int) -> tuple[Point, ...]:
    """Return the trace of an iteration: that of its one instance, for all rounds, and the final answer."""

    def all_rounds(ns: int | None) -> int | None:
        return None if ns is None else row.rounds * ns

    told = trace.points if len(row.instances) == 1 else []
    points = [(seconds, all_rounds(makespan), all_rounds(bound)) for seconds, makespan, bound in told]
    last = None if row.figures is None else row.figures.iteration_ns
    return (*points, (trace.seconds(), last, bound_ns))
