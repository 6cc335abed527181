"""Long measurements: each run of a method in a process of its own, entered in a file at once.

The method is ``flow`` where none is named. Runs that a file has are not repeated, so a benchmark of hours can
be stopped at any time and taken up again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..heuristics.methods import Limits, find_method
from ..heuristics.search import LocalSearch
from ..instances.files import checksum, read_document, write_document
from ..instances.instance import Instance
from ..instances.units import format_time
from ..instances.workload import Workload
from ..solver.bounds import best_bound, compute_bound
from ..solver.child import Child, ChildEnded
from ..solver.solve import Status, solve
from ..validate.check import check
from ..validate.schedule import MemoryModel
from .machine import origin, peak_rss_bytes
from .plan import planned
from .runner import warm_up

METHOD = "flow"
_START = "modnn"
"""Whose schedule the search in divisible memory starts from, as it is in the method."""

_GRACE = 120.0
"""Seconds over its time limit after which a run is killed: building, checking and ending are not limited."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cell:
    """An instance to measure: the workload, and a budget as `parse_budget` takes it."""

    network: str
    batch: int
    device: str
    budget: str

    @property
    def name(self) -> str:
        """What the cell is called in files, tables and patterns, without blanks or commas."""
        return f"{self.network}/{self.batch}/{self.device}/{self.budget}"

    def instance(self) -> Instance:
        """Build the instance."""
        return Workload(self.network, self.batch, self.device).instance(self.budget)


@dataclass(frozen=True, slots=True)
class Job:
    """A run to make.

    Attributes
    ----------
    cell, memory
        What to solve; divisible memory, a relaxation, is searched only.
    seconds
        Time limit of the method.
    seed, workers
        Of the method.
    without
        Rules that the method leaves out.
    method
        Its name; it solves the variant of the instance that it plans on.
    """

    cell: Cell
    memory: MemoryModel
    seconds: float
    seed: int = 0
    workers: int = 2
    without: tuple[str, ...] = ()
    method: str = METHOD

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two runs the same measurement, whatever code and machine they ran on."""
        return (
            *(self.cell.name, self.memory, self.seconds, self.seed, self.workers, self.without),
            self.method,
        )


class Found(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a run has found.

    Attributes
    ----------
    instance_sha256, tasks, budget_bytes, ideal_ns
        Of the instance; the ideal is the bound by the compute time alone.
    makespan_ns, lower_bound_ns, bound_by, certified
        The schedule (None: none) and the bound, with who proved it.
    status, stopped_by
        As `solve` says them.
    solve_seconds
        Wall time of the method.
    peak_rss_bytes
        Upper bound on the resident memory of the run's processes: its own peak plus that of the largest
        process that it started.
    """

    instance_sha256: str
    tasks: int
    budget_bytes: int
    ideal_ns: int
    makespan_ns: int | None
    lower_bound_ns: int
    bound_by: str
    certified: bool
    status: str
    stopped_by: str
    solve_seconds: float
    peak_rss_bytes: int

    @property
    def gap(self) -> float | None:
        """(makespan - bound) / bound; None without a schedule."""
        if self.makespan_ns is None:
            return None
        return (self.makespan_ns - self.lower_bound_ns) / max(self.lower_bound_ns, 1)


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run that was made: the job, what it found (None where its process failed), when and where.

    Attributes
    ----------
    cell, memory, seconds, seed, workers, without, method
        Of the job.
    found, failure
        Exactly one of them is None; the failure is a sentence.
    date
        Day of the measurement.
    machine, python, packages, revision
        Processor, cores and memory; versions; the revision of the code in version control, if any.
    """

    cell: str
    memory: MemoryModel
    seconds: float
    seed: int
    workers: int
    without: tuple[str, ...] = ()
    found: Found | None
    failure: str | None = None
    date: str
    machine: str
    python: str
    packages: dict[str, str]
    revision: str | None
    method: str = METHOD

    @property
    def key(self) -> tuple[object, ...]:
        """As the job has it."""
        return (
            *(self.cell, self.memory, self.seconds, self.seed, self.workers, self.without),
            self.method,
        )

    @property
    def gap(self) -> float | None:
        """Gap that the run measured; None without a schedule."""
        return None if self.found is None else self.found.gap


class Runs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file of runs, in the order of their measurement."""

    format: Literal["pebbler/runs/1"] = "pebbler/runs/1"
    runs: tuple[Run, ...] = ()


def read_runs(path: Path) -> tuple[Run, ...]:
    """Return the runs of a file, of each measurement the last one; none when there is no file.

    Raises
    ------
    PebblerError
        When the file is not one of runs.
    """
    if not path.exists():
        return ()
    return tuple({run.key: run for run in read_document(path, Runs, "a file of runs").runs}.values())


def make_runs(jobs: Iterable[Job], path: Path, *, again: bool = False) -> None:
    """Make the runs that a file lacks, and enter each as soon as it is made.

    Parameters
    ----------
    jobs
        What to run, one after the other.
    path
        The file; it is whole at any time, and made with its folder when it is not there.
    again
        Whether to make the runs that it has, too; those take the place of the old ones.
    """
    known = {run.key for run in read_runs(path)}
    wanted = [job for job in jobs if again or job.key not in known]
    if not wanted:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    warm_up()
    for i, job in enumerate(wanted, start=1):
        run = _made(job)
        kept = [other for other in read_runs(path) if other.key != run.key]
        write_document(Runs(runs=(*kept, run)), path)
        _log.info("%d of %d: %s, %s memory: %s", i, len(wanted), run.cell, run.memory, _told(run))


def measure(job: Job) -> Found:
    """Make a run in this process.

    Raises
    ------
    PebblerError
        For a cell or a rule that does not exist.
    """
    (instance,) = planned(find_method(job.method), (job.cell.instance(),))
    solved = _relaxed(instance, job) if job.memory == "divisible" else _solved(instance, job)
    return Found(
        instance_sha256=checksum(instance),
        tasks=len(instance.tasks),
        budget_bytes=instance.budget_bytes,
        ideal_ns=compute_bound(instance).lower_bound_ns,
        peak_rss_bytes=peak_rss_bytes(),
        **solved,
    )


def _solved(instance: Instance, job: Job) -> dict[str, Any]:
    # The method works out better bounds itself, within its time, unless it is to leave them out.
    assert job.memory != "divisible"
    result = solve(
        instance,
        job.method,
        time_limit=job.seconds,
        seed=job.seed,
        workers=job.workers,
        memory=job.memory,
        bound=compute_bound(instance),
        without=job.without,
    )
    names = ("makespan_ns", "lower_bound_ns", "bound_by", "certified", "stopped_by", "solve_seconds")
    return {"status": result.status.value, **{name: getattr(result, name) for name in names}}


def _relaxed(instance: Instance, job: Job) -> dict[str, Any]:
    """Search in divisible memory: what it finds is valid at the simulated times only."""
    began = time.perf_counter()
    bound = best_bound(instance)
    search = LocalSearch(instance, "divisible", job.seed, job.without)
    start = find_method(_START).call(instance, Limits()).schedule
    if start is not None:
        search.offer(start)
    while not search.done and (left := job.seconds - (time.perf_counter() - began)) > 0:
        search.run(left)
    seconds = time.perf_counter() - began
    schedule = search.schedule("local-search")
    if schedule is not None and (reasons := check(instance, schedule).reasons):
        raise AssertionError(f"local search in divisible memory on {instance.name}: {reasons[0]}")
    return {
        "makespan_ns": None if schedule is None else schedule.makespan_ns,
        "lower_bound_ns": bound.lower_bound_ns,
        "bound_by": bound.bound_by,
        "certified": bound.certified,
        "status": Status.UNKNOWN.value if schedule is None else Status.FEASIBLE.value,
        "stopped_by": "done" if search.done else "time limit",
        "solve_seconds": seconds,
    }


def _made(job: Job) -> Run:
    """Make a run in another process; whatever ends that costs this run only."""
    found, failure = None, None
    with Child() as child:
        child.start(measure, job, wall_limit=job.seconds + _GRACE)
        try:
            answer = child.result()
            assert isinstance(answer, Found)
            found = answer
        except ChildEnded as ended:
            failure = f"the run's process failed: {ended}"
        except Exception as error:
            _log.exception("%s, %s memory: the run failed", job.cell.name, job.memory)
            failure = f"{type(error).__name__}: {error}"
    return Run(
        cell=job.cell.name,
        memory=job.memory,
        seconds=job.seconds,
        seed=job.seed,
        workers=job.workers,
        without=job.without,
        method=job.method,
        found=found,
        failure=failure,
        date=datetime.now(UTC).date().isoformat(),
        **asdict(origin()),
    )


def _told(run: Run) -> str:
    if run.found is None or run.found.makespan_ns is None or run.gap is None:
        return run.failure or "no schedule"
    return f"{format_time(run.found.makespan_ns)}, gap {run.gap:.2%} ({run.found.bound_by})"


def origins(runs: Iterable[Run]) -> str:
    """Tell where and when runs were made, a line each way."""
    found: dict[str, list[str]] = {}
    for run in runs:
        packages = ", ".join(f"{name} {number}" for name, number in run.packages.items())
        revision = "" if run.revision is None else f", revision {run.revision}"
        found.setdefault(f"{run.machine}; Python {run.python}, {packages}{revision}", []).append(run.date)
    return "".join(
        f"- {len(dates)} runs, {' to '.join(sorted({min(dates), max(dates)}))}: {text}.\n"
        for text, dates in found.items()
    )
