"""Solve an instance with a method by name: the schedule is checked before anybody sees it."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, fields
from enum import StrEnum
from html import escape
from typing import Literal

from msgspec import UNSET

from ..heuristics.cluster import spread
from ..heuristics.loading import load_for
from ..heuristics.methods import Answer, Limits, OnBetter, Refusal, find_method
from ..instances.errors import PebblerError
from ..instances.instance import Instance
from ..instances.memory import PAGE_BYTES, require_budget, why_infeasible
from ..instances.transforms import in_pages
from ..instances.units import format_size, format_time
from ..validate.certificate import Certificate, check_certificate
from ..validate.check import check
from ..validate.cluster_check import check_schedule
from ..validate.measures import average_bytes, moved_bytes, pinned_bytes
from ..validate.schedule import Schedule
from .bounds import Bound, best_bound, certified_bound
from .linear import require_linear_solver


class Status(StrEnum):
    """What is known about the answer."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Result:
    """A checked answer with its figures; all but `schedule` are those of ``solve --json``.

    Attributes
    ----------
    status, stopped_by
        What is known, and why the method ended (the reason of a refusal).
    makespan_ns, peak_bytes, average_bytes, offloaded_bytes, prefetched_bytes, pinned_bytes
        Figures of the schedule, for one round; None without one.
    lower_bound_ns, bound_by, certified
        The best bound known, who proved it, and whether in exact arithmetic; else it is a solver's word.
    certified_lower_bound_ns
        What is proven in exact arithmetic.
    optimality_gap
        (makespan - lower bound) / lower bound.
    solve_seconds
        Wall time of the method alone.
    """

    status: Status
    stopped_by: str
    makespan_ns: int | None
    lower_bound_ns: int
    optimality_gap: float | None
    bound_by: str
    certified: bool
    certified_lower_bound_ns: int
    peak_bytes: int | None
    average_bytes: int | None
    offloaded_bytes: int | None
    prefetched_bytes: int | None
    pinned_bytes: int | None
    memory_model: str
    method: str
    solve_seconds: float
    seed: int
    schedule: Schedule | None
    certificate: Certificate | None

    @property
    def bound(self) -> Bound:
        """The best bound known, with its certificate."""
        return Bound(self.lower_bound_ns, self.bound_by, self.certified, self.certificate)

    def as_dict(self) -> dict[str, object]:
        """The figures by name, without the schedule and the certificate."""
        left_out = ("schedule", "certificate")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}

    def __str__(self) -> str:
        return "\n".join(f"{name:<16} {value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in self._rows())
        return f"<table>{rows}</table>"

    def _rows(self) -> list[tuple[str, str]]:
        word = "certified" if self.certified else "the solver's word"
        bound = f"{format_time(self.lower_bound_ns)} ({self.bound_by}, {word})"
        ended = self.stopped_by
        if self.status is Status.OPTIMAL:
            proof = "proven in exact arithmetic" if self.certified else f"by the word of {self.bound_by}"
            ended += f"; {proof}"
        rows = [("method", self.method), ("status", f"{self.status} ({ended})")]
        if self.makespan_ns is not None and self.optimality_gap is not None:
            rows.append(("makespan", format_time(self.makespan_ns)))
            rows.append(("lower bound", bound))
            if not self.certified and self.certified_lower_bound_ns:
                rows.append(("certified bound", format_time(self.certified_lower_bound_ns)))
            rows.append(("gap", f"{self.optimality_gap:.2%}"))
            rows.append(("peak memory", format_size(self.peak_bytes or 0)))
            rows.append(("offloaded", format_size(self.offloaded_bytes or 0)))
            rows.append(("prefetched", format_size(self.prefetched_bytes or 0)))
        else:
            rows.append(("lower bound", bound))
        rows += [("memory model", self.memory_model), ("solve time", f"{self.solve_seconds:.3f} s")]
        return rows


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
    """Solve an instance.

    Parameters
    ----------
    instance
        What to schedule. On the GPUs of a cluster, every one executes what the method plans for one.
    method
        A name that `list_methods` knows.
    time_limit
        Seconds; None: until the method is done.
    seed, workers
        Of random decisions, and threads of a solver.
    memory
        Memory model of the schedule.
    warm_start
        A schedule to start from, for methods that can.
    bound
        A bound that is known already, so that it need not be computed again.
    solver
        What solves linear models, in methods that have some: one that `list_linear_solvers` knows.
    log
        Whether that solver writes its log to standard error.
    without
        Rules that the method leaves out, of those that `list_methods` tells: to see what each buys.
    on_better
        Called by methods that improve step by step, with the makespan and the bound (nanoseconds, or None),
        whenever one is better than before.

    Returns
    -------
    Result
        Its schedule has passed the checker.

    Raises
    ------
    PebblerError
        For an unknown method, a solver that is not available, or a budget under the minimum.
    AssertionError
        When a method returns a schedule or a certificate that its checker refuses: a defect of the method.
    """
    info = find_method(method)
    info.require_rules(without)
    require_budget(instance)
    if warm_start is not None and instance.cluster is not UNSET:
        raise PebblerError(f"{instance.name} has several GPUs, for which no method takes a warm start")
    if warm_start is not None and (reasons := check(instance, warm_start).reasons):
        raise PebblerError(
            f"the warm start is not a schedule of {instance.name}: {reasons[0]}; give one that is valid"
        )
    require_linear_solver(solver)
    known = best_bound(instance, memory=memory) if bound is None else bound
    limits = Limits(time_limit, seed, workers, memory, warm_start, solver, log, frozenset(without), on_better)
    load_for(info.call, limits)
    began = time.perf_counter()
    try:
        reason = why_infeasible(instance)
        if reason is None and memory == "paged":
            in_whole_pages = why_infeasible(in_pages(instance, PAGE_BYTES))
            if in_whole_pages is not None:
                reason = f"in pages of {format_size(PAGE_BYTES)}, {in_whole_pages}"
        if reason is not None:
            answer = Answer(None, reason, infeasible=True)
        elif instance.cluster is UNSET:
            answer = info.call(instance, limits)
        else:
            answer = spread(instance, info.call, limits)
    except Refusal as refusal:
        answer = Answer(None, stopped_by=str(refusal))
    seconds = time.perf_counter() - began
    known = _best_known(instance, method, answer, known, memory)
    schedule = answer.schedule
    if schedule is not None:
        _require_valid(instance, schedule, known, memory)
    return Result(
        status=_status(answer, known),
        stopped_by=answer.stopped_by,
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
    )


def _best_known(instance: Instance, method: str, answer: Answer, known: Bound, memory: str) -> Bound:
    """The best of what is known and what a method claims; its certificate is checked first."""
    if answer.certificate is not None:
        reasons = list(check_certificate(instance, answer.certificate).reasons)
        if answer.certificate.page_bytes is not UNSET and memory != "paged":
            reasons.append(f"it is for paged memory, not for {memory}")
        if reasons:
            raise AssertionError(
                f"method {method} on {instance.name}: its certificate is wrong: {reasons[0]}"
            )
        known = known.raised(certified_bound(answer.certificate))
    if answer.lower_bound_ns is not None:
        known = known.raised(Bound(answer.lower_bound_ns, answer.bound_by or method, certified=False))
    return known


def _status(answer: Answer, bound: Bound) -> Status:
    if answer.schedule is None:
        return Status.INFEASIBLE if answer.infeasible else Status.UNKNOWN
    return Status.OPTIMAL if answer.schedule.makespan_ns == bound.lower_bound_ns else Status.FEASIBLE


def _require_valid(instance: Instance, schedule: Schedule, bound: Bound, memory: str) -> None:
    """The last gate: nothing that is invalid, or shorter than what is proven, is ever shown."""
    reasons = list(check_schedule(instance, schedule).reasons)
    if schedule.memory_model != memory:
        reasons.append(f"its memory model is {schedule.memory_model}, not {memory}")
    if schedule.makespan_ns < bound.lower_bound_ns:
        reasons.append(
            f"its makespan {schedule.makespan_ns} is under the {bound.bound_by} bound {bound.lower_bound_ns}"
        )
    if reasons:
        raise AssertionError(f"method {schedule.method} on {instance.name}: {'; '.join(reasons[:5])}")
