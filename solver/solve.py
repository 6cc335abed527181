"""Solving an instance with a method by name; every schedule is checked before it is returned."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Sequence
from typing import Literal

from msgspec import UNSET
from msgspec.structs import replace

from ..heuristics.clock import LEAST, until
from ..heuristics.loading import cluster_kernels, load_for
from ..heuristics.methods import Answer, Limits, MethodError, OnBetter, Refusal, find_method
from ..heuristics.spread import spread
from ..instances.arguments import names_of, require_instance, require_kind, why_reads_vary
from ..instances.errors import FormatError, PebblerError
from ..instances.files import reread
from ..instances.instance import Instance
from ..instances.memory import require_budget
from ..validate.bounds.certificate import PAGED_ONLY, check_certificate, misses
from ..validate.gpus.check import check
from ..validate.measures import average_bytes, moved_bytes, pinned_bytes
from ..validate.schedule import Schedule
from .answers import Answers
from .bounds import Bound, best_bound, certified_bound, why_impossible
from .guests import Host, described
from .linear.available import require_linear_solver
from .result import Result, Status
from .sides import take_sides
from .steady import settle

_SEARCH = "local-search"
"""Method that searches, and the rule of methods that do so beside models."""

_log = logging.getLogger(__name__)


def solve(
    instance: Instance,
    method: str,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    workers: int = 1,
    memory: Literal["contiguous", "paged"] = "contiguous",
    warm_start: Schedule | None = None,
    bound: Bound | None = None,
    solver: str = "highs",
    log: bool = False,
    without: Collection[str] = (),
    on_better: OnBetter | None = None,
) -> Result:
    """Solve an instance with a method, and check the schedule.

    Parameters
    ----------
    instance
        The instance to schedule. On a cluster of several GPUs, each GPU executes the schedule that the method
        plans for one.
    method
        Name of a registered method; `list_methods` returns all of them.
    time_limit
        Time limit of the method in seconds; None means until it is done. The bound that needs no solver may
        take as long before the method starts.
    seed, workers
        Seed of random decisions, and number of a solver's threads.
    memory
        Memory model of the schedule: ``contiguous`` or ``paged``.
    warm_start
        A schedule to start from, for methods that can use one.
    bound
        A known bound, which then need not be computed again. If it rests on a solver's word and a schedule is
        shorter, it is rejected.
    solver
        Name of the solver for the linear models of a method; `list_linear_solvers` returns all names.
    log
        Whether this solver writes its log to standard error.
    without
        Names of the method's rules to leave out (`MethodInfo.rules`), which shows what each rule is worth.
    on_better
        Function to call whenever the makespan or the bound has improved. It is given both, in nanoseconds or
        None. Only methods of this process that improve step by step call it.

    Returns
    -------
    Result
        The schedule with its figures and bound. The schedule has passed the checker.

    Raises
    ------
    PebblerError
        For an unknown method, an unavailable solver, a wrong argument, or a budget below the minimum.
    MethodError
        When a method breaks its contract: the checker rejects its schedule or its certificate, or its bound
        is above a checked schedule. Other exceptions of a method in this process are not caught.
    ContradictionError
        When a certified bound is above a checked schedule.
    """
    require_instance(instance)
    result = attempt(
        Answers(instance, memory),
        method,
        time_limit=time_limit,
        seed=seed,
        workers=workers,
        warm_start=warm_start,
        bound=bound,
        solver=solver,
        log=log,
        without=without,
        on_better=on_better,
    )
    if result.failure is not None:
        raise result.failure
    return result


def attempt(
    answers: Answers,
    method: str,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    workers: int = 1,
    warm_start: Schedule | None = None,
    bound: Bound | None = None,
    solver: str = "highs",
    log: bool = False,
    without: Collection[str] = (),
    on_better: OnBetter | None = None,
) -> Result:
    """Solve an instance as `solve` does, and add the result to other answers to the same question.

    A method that fails, or that other answers refute, gives a result with status ``error`` and its failure.

    Raises
    ------
    PebblerError
        For an unknown method, an unavailable solver, a wrong argument, or a budget below the minimum.
    ContradictionError
        When a certified bound is above a checked schedule.
    """
    instance, memory = answers.instance, answers.memory
    info = find_method(method)
    left_out = frozenset(names_of("without", without))
    limits = Limits(time_limit, seed, workers, memory, warm_start, solver, log, left_out, on_better)
    info.require_rules(left_out)
    require_budget(instance)
    require_linear_solver(solver)
    if bound is not None:
        require_kind("bound", bound, Bound, "give what best_bound or refine_bound returns")
        answers.claim(bound)
    elif not answers.bounded:
        with until(math.inf if time_limit is None else time.monotonic() + time_limit, LEAST):
            answers.claim(best_bound(instance, memory=memory))
    if warm_start is not None:
        _start_with(answers, warm_start)
    schedule = failure = None
    load_for(info.call, limits)
    searches = instance.cluster is not UNSET and _SEARCH in {info.name, *info.rules} - left_out
    if searches:
        cluster_kernels()
    excluded = why_impossible(instance, memory)
    began = time.perf_counter()
    with Host(info) as host:
        answer, seconds = Answer(None), 0.0
        try:
            if excluded is not None:
                answers.deny()
                answer = Answer(None, excluded, infeasible=True)
            elif info.reads != "chosen" and (reason := why_reads_vary(instance, method)) is not None:
                answer = Answer(None, reason)
            elif instance.has_host_work and info.sides != "chosen":
                answer = take_sides(instance, info, host.solve, limits)
            elif instance.carried and info.carries != "chosen":
                answer = settle(instance, info, host.solve, limits)
            elif instance.cluster is UNSET:
                answer = host.solve(instance, limits)
            else:
                answer = spread(instance, host.solve, limits, searches=searches)
            seconds = time.perf_counter() - began - host.waited
            schedule = _entered(answers, method, answer)
        except Refusal as refusal:
            answer = Answer(None, stopped_by=str(refusal))
        except PebblerError:
            raise
        except Exception as error:
            failure = error
        seconds = seconds or time.perf_counter() - began - host.waited
    known = answers.bound()
    return Result(
        status=Status.ERROR if failure is not None else _status(answer, known),
        stopped_by=answer.stopped_by if failure is None else _told(failure),
        makespan_ns=None if schedule is None else schedule.makespan_ns,
        lower_bound_ns=known.lower_bound_ns,
        optimality_gap=None if schedule is None else known.gap(schedule.makespan_ns),
        bound_by=known.bound_by,
        certified=known.certified,
        certified_lower_bound_ns=known.certified_ns,
        peak_bytes=None if schedule is None else schedule.peak_bytes,
        average_bytes=None if schedule is None else average_bytes(instance, schedule),
        offloaded_bytes=None if schedule is None else moved_bytes(instance, schedule, "offload"),
        prefetched_bytes=None if schedule is None else moved_bytes(instance, schedule, "prefetch"),
        pinned_bytes=None if schedule is None else pinned_bytes(instance, schedule),
        memory_model=memory,
        method=method,
        solve_seconds=seconds,
        seed=seed,
        schedule=schedule,
        certificate=known.certificate,
        failure=failure,
    )


def _start_with(answers: Answers, start: Schedule) -> None:
    """Check a warm start; if it is in the requested memory model, it is an answer as well."""
    instance = answers.instance
    if instance.cluster is not UNSET:
        raise PebblerError(f"{instance.name} has several GPUs, for which no method takes a warm start")
    start = reread(start)
    if reasons := check(instance, start).reasons:
        raise PebblerError(
            f"the warm start is not a schedule of {instance.name}: {reasons[0]}; give one that is valid"
        )
    if start.memory_model == answers.memory:
        answers.admit(start)


def _entered(answers: Answers, method: str, answer: Answer) -> Schedule | None:
    """Check a method's answer, add it to the answers, and return its schedule with the method's name.

    Raises
    ------
    MethodError
        When the schedule or the certificate is rejected, or a checked schedule refutes the method's claim.
    """
    instance, schedule = answers.instance, answer.schedule
    if answer.certificate is not None:
        wrong = list(check_certificate(instance, answer.certificate).reasons)
        if (missed := misses(instance, answer.certificate, answers.memory)) is not None:
            wrong.append(missed)
        if wrong:
            raise MethodError(f"method {method} on {instance.name}: its certificate is wrong: {wrong[0]}")
    bound_by = answer.bound_by or method
    if bound_by.endswith(PAGED_ONLY) and answers.memory != "paged":
        raise MethodError(
            f"method {method} on {instance.name}: its bound '{bound_by}' is for paged memory, not for "
            f"{answers.memory}"
        )
    if schedule is not None:
        if instance.has_host_budget and isinstance(schedule, Schedule) and schedule.host_peak_bytes is UNSET:
            raise Refusal("its schedule gives copies no places in host memory, which has a budget here")
        if reasons := _reasons(instance, schedule, answers.memory):
            who = f"method {method}"
            if schedule.method != method:
                who += f", whose schedule says that it is by method {schedule.method}"
            raise MethodError(f"{who} on {instance.name}: {'; '.join(reasons[:5])}")
        schedule = replace(schedule, method=method)
        answers.admit(schedule)
    if answer.certificate is not None:
        answers.claim(certified_bound(answer.certificate), method)
    if answer.lower_bound_ns is not None:
        answers.claim(Bound(answer.lower_bound_ns, bound_by, certified=False), method)
    if answer.infeasible:
        answers.deny(method)
    if method in answers.refuted:
        raise MethodError(f"method {method} on {instance.name}: {answers.refuted[method]}")
    return schedule


def _reasons(instance: Instance, schedule: Schedule, memory: str) -> Sequence[str]:
    """Return why a schedule is not valid in a memory model; no schedule is shown without this check."""
    try:
        reasons = list(check(instance, schedule).reasons)
    except FormatError as error:
        return (str(error),)
    if schedule.memory_model != memory:
        reasons.append(f"its memory model is {schedule.memory_model}, not {memory}")
    return reasons


def _status(answer: Answer, bound: Bound) -> Status:
    if answer.schedule is None:
        return Status.INFEASIBLE if answer.infeasible else Status.UNKNOWN
    return Status.OPTIMAL if answer.schedule.makespan_ns == bound.lower_bound_ns else Status.FEASIBLE


def _told(failure: Exception) -> str:
    """Return what failed: the error in a method's answer, or the exception that it raised."""
    return str(failure) if isinstance(failure, MethodError) else described(failure)


def log_defect(method: str, where: str, failure: Exception) -> str:
    """Log a method's failure, with the traceback of an exception, and return it in a sentence."""
    told = _told(failure)
    seen = None if isinstance(failure, MethodError) else failure
    _log.error(
        "method %s failed on %s: this is a defect of the method: %s", method, where, told, exc_info=seen
    )
    return told
