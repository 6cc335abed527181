"""Execution of a sweep's runs on any executor: each in its own process, and added when it is made."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Lock

from ...instances.errors import PebblerError
from ...instances.processes.child import Child, ChildEnded
from ...instances.units import format_size, format_time
from ..output.machine import Origin, origin, package_versions, usable_cores
from .jobs import Found, Job, Measured, load, measure
from .kernel import kernel_seconds
from .results import Results, Run

_POLL = 0.5
"""Seconds between two looks at whether the sweep was ended."""

_LOAD_SECONDS = 300.0
"""Greatest time in seconds for loading and compiling before a measurement."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Made:
    """A run as a worker returns it: the measurement, the lifetime of its process, and the machine.

    If the machine was timed, it has the time of the kernel in seconds as well.
    """

    measured: Measured
    wall_seconds: float | None
    origin: Origin
    kernel_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of a sweep's runs: those that were there already, those made, and the failed ones of these."""

    kept: int
    made: int
    failed: int


def make(
    jobs: Sequence[Job],
    results: Results,
    executor: Executor,
    *,
    lost: tuple[type[Exception], ...] = (),
    retry: bool = False,
    again: bool = False,
    timed: bool = False,
    here: bool = False,
) -> Tally:
    """Make the runs that the results do not have, and add each as soon as it is made.

    Progress is logged, one line for each run. Ctrl-C ends the runs in flight and keeps the others.

    Parameters
    ----------
    jobs
        The runs to make.
    results
        The results file; only this process writes to it.
    executor
        Executor of the runs, which is shut down at the end. Its threads wait for the processes of their runs.
    lost
        Exceptions of the executor for a run that no worker survived; such a run has failed.
    retry
        Whether to repeat the runs that failed.
    again
        Whether to repeat all runs; new runs replace the old ones.
    timed
        Whether each process that makes runs first times the fixed kernel on its machine.
    here
        Whether runs need no processes of their own, as rules do not: they take less time than a process
        takes to begin. Such runs have no wall limit, and one that crashes ends the sweep.

    Raises
    ------
    PebblerError
        When a worker has other versions of the packages than this process.
    """
    known = set() if again else results.fingerprints(failed=not retry)
    wanted = [job for job in jobs if job.fingerprint not in known]
    _log.info("%d of %d runs are made already", len(jobs) - len(wanted), len(jobs))
    ended = Event() if isinstance(executor, ThreadPoolExecutor) else None
    versions = package_versions()
    failed = 0
    began = time.monotonic()
    flying: dict[Future[Made], Job] = {}
    try:
        for job in wanted:
            flying[executor.submit(perform_here if here else perform, job, versions, ended, timed)] = job
        for count, future in enumerate(as_completed(list(flying)), start=1):
            job = flying.pop(future)
            made = _answer(future, lost)
            run = _run(job, made)
            measured = made.measured
            results.add(run, measured.instances, measured.schedules, measured.certificates)
            failed += run.found.status == "error"
            left = (time.monotonic() - began) * (len(wanted) - count) / count
            _log.info("%d of %d, %s left: %s", count, len(wanted), _duration(left), _told(run))
    except CancelledError:
        raise PebblerError(
            "the workers were lost; what is entered stays: run the same command again to go on"
        ) from None
    finally:
        if ended is not None:
            ended.set()
        for future in flying:
            future.cancel()
        executor.shutdown()
    return Tally(len(jobs) - len(wanted), len(wanted), failed)


def make_in_turn(jobs: Sequence[Job], path: Path, *, again: bool = False, here: bool = False) -> Tally:
    """Make the runs that a results file does not have, one after the other, as `make` does.

    The file and its folder are created if need be.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with Results(path, write=True) as results:
        return make(jobs, results, ThreadPoolExecutor(1), again=again, here=here)


def warn_of_crowding(jobs: Sequence[Job], at_once: int) -> None:
    """Warn if simultaneous runs have more threads than there are cores, as their times then say little."""
    threads = at_once * max((job.setting.workers for job in jobs), default=1)
    if threads > usable_cores():
        _log.warning(
            "%d runs at once have up to %d threads on %d cores: times will be those of a crowded machine",
            at_once,
            threads,
            usable_cores(),
        )


def perform(job: Job, versions: dict[str, str], ended: Event | None = None, timed: bool = False) -> Made:
    """Make a run in its own process under its limits; if the process ends, only this run is lost.

    The method's code is loaded and compiled there before any clock starts.

    Parameters
    ----------
    job
        The run to make.
    versions
        Versions of the packages with which it must run.
    ended
        Event that is set when the run must be given up.
    timed
        Whether to time the fixed kernel, unless this process has timed it.

    Raises
    ------
    PebblerError
        When the packages or the instance here differ.
    """
    ended = ended or Event()
    _require_same(versions)
    kernel = kernel_seconds() if timed else None
    method = job.setting.method
    with Child() as child:
        with nullcontext() if method in _loaded else _loading:
            lost = _called(child, load, job, _LOAD_SECONDS, ended)
            _loaded.add(method)
        began = time.monotonic()
        measured = lost or _called(child, measure, job, job.setting.wall_limit, ended)
        assert measured is not None
        return Made(measured, time.monotonic() - began, origin(), kernel)


def perform_here(job: Job, versions: dict[str, str], ended: Event | None = None, timed: bool = False) -> Made:
    """Make a run in this process, as `perform` does in one of its own.

    Raises
    ------
    PebblerError
        When the packages or the instance here differ.
    """
    if ended is not None and ended.is_set():
        raise InterruptedError("the sweep was ended")
    _require_same(versions)
    kernel = kernel_seconds() if timed else None
    load(job)
    began = time.monotonic()
    measured = measure(job)
    return Made(measured, time.monotonic() - began, origin(), kernel)


def _require_same(versions: dict[str, str]) -> None:
    """Refuse packages of other versions than the sweep has."""
    if versions != package_versions():
        raise PebblerError(
            f"a worker has {package_versions()} where the sweep has {versions}; install the same everywhere"
        )


def _called(
    child: Child,
    function: Callable[[Job], Measured | None],
    job: Job,
    wall_limit: float | None,
    ended: Event,
) -> Measured | None:
    """Call a function in a run's process; if the process ends, return how."""
    size = job.setting.memory_limit_bytes
    under = "" if size is None else f", under a memory limit of {format_size(size)}"
    child.start(function, job, wall_limit=wall_limit)
    try:
        answer = _result(child, ended)
    except (PebblerError, InterruptedError):
        raise
    except MemoryError:
        return _nothing("unknown", f"the process ran out of memory{under}")
    except ChildEnded as error:
        if error.wanted:
            return _nothing("unknown", f"{error}: its wall limit")
        return _nothing("error", f"the process failed: {error}{under}")
    except Exception as error:
        _log.exception("%s, %s: the run failed", job.about.problem, job.setting.method)
        return _nothing("error", f"{type(error).__name__}: {error}{under}")
    assert answer is None or isinstance(answer, Measured)
    return answer


def _result(child: Child, ended: Event) -> object:
    """Wait for the result of a process, unless the sweep is ended."""
    while not ended.is_set():
        try:
            return child.result(_POLL)
        except TimeoutError:
            if child.done():
                raise
    raise InterruptedError("the sweep was ended")


def _nothing(status: str, why: str) -> Measured:
    return Measured(Found(status=status, stopped_by=why))


def _answer(future: Future[Made], lost: tuple[type[Exception], ...]) -> Made:
    try:
        return future.result()
    except lost as error:
        return Made(_nothing("error", f"no worker survived it: {error}"), None, origin())


_loaded: set[str] = set()
"""Methods that a run of this process has loaded, so that their code is compiled."""

_loading = Lock()
"""Lock that is held while a method is loaded for the first time, so that only one process compiles."""


def _run(job: Job, made: Made) -> Run:
    return Run(
        fingerprint=job.fingerprint,
        about=job.about,
        seed=job.seed,
        setting=job.setting,
        found=made.measured.found,
        wall_seconds=made.wall_seconds,
        date=datetime.now(UTC).date().isoformat(),
        origin=replace(made.origin, revision=origin().revision),
        kernel_seconds=made.kernel_seconds,
    )


def _told(run: Run) -> str:
    found = run.found
    words = f"{run.about.problem}, {run.setting.method}: {found.status}"
    if found.iteration_ns is None:
        return f"{words}: {found.stopped_by}"
    return f"{words}, {format_time(found.iteration_ns)}, gap {found.gap:.2%} ({found.bound_by})"


def _duration(seconds: float) -> str:
    """Return a duration, rounded, in words."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
