"""The result of a method on an instance."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from ..instances.units import as_html, as_lines, format_size, format_time
from ..validate.bounds.certificate import Certificate
from ..validate.measures import carried_bytes
from ..validate.schedule import Schedule
from .bounds import Bound


class Status(StrEnum):
    """The status of an answer: what is known about the schedule."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"
    ERROR = "error"

    @property
    def words(self) -> str:
        """The status in words, for people."""
        return {
            Status.INFEASIBLE: "impossible",
            Status.UNKNOWN: "no schedule",
            Status.ERROR: "failed",
        }.get(self, self.value)


@dataclass(frozen=True, slots=True)
class Result:
    """A checked answer with its figures; all of them but `schedule` are figures of ``solve --json``.

    Attributes
    ----------
    status, stopped_by
        The status, and why the method ended: ``done``, a limit, or the reason of a refusal.
    makespan_ns, peak_bytes, average_bytes, offloaded_bytes, prefetched_bytes, pinned_bytes
        Figures of the schedule for one round, in nanoseconds and bytes; None without a schedule.
    lower_bound_ns, bound_by, certified
        The best known bound in nanoseconds, its argument or solver, and whether it is proven in exact
        arithmetic. If not, it rests on a solver's word.
    certified_lower_bound_ns
        The bound that is proven in exact arithmetic, in nanoseconds.
    optimality_gap
        (makespan - lower bound) / lower bound.
    solve_seconds
        Wall time of the method alone, in seconds.
    failure
        With status ``error``: the exception of the method, or the part of its contract that it broke.
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
    failure: Exception | None = None

    @property
    def bound(self) -> Bound:
        """The best known bound, with its certificate."""
        return Bound(self.lower_bound_ns, self.bound_by, self.certified, self.certificate)

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name, without the schedule, the certificate and the failure.

        Where blocks are carried, ``carried_bytes`` has those on the device at both ends.
        """
        left_out = ("schedule", "certificate", "failure")
        figures = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}
        if self.schedule is not None and self.schedule.states:
            figures["carried_bytes"] = carried_bytes(self.schedule)
        return figures

    def is_feasible(self) -> bool:
        """Whether there is a schedule; it has passed the checker."""
        return self.schedule is not None

    def summary(self) -> str:
        """The answer with its figures in a few lines, as ``pebbler solve`` prints it."""
        return as_lines(self._facts())

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return as_html(self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        word = "certified" if self.certified else "the solver's word"
        bound = f"{format_time(self.lower_bound_ns)} ({self.bound_by}, {word})"
        ended = self.stopped_by
        if self.status is Status.OPTIMAL:
            proof = "proven in exact arithmetic" if self.certified else f"by the word of {self.bound_by}"
            ended += f"; {proof}"
        rows = [("method", self.method), ("status", f"{self.status.words} ({ended})")]
        if self.makespan_ns is not None and self.optimality_gap is not None:
            rows.append(("makespan", format_time(self.makespan_ns)))
            rows.append(("lower bound", bound))
            if not self.certified and self.certified_lower_bound_ns:
                rows.append(("certified bound", format_time(self.certified_lower_bound_ns)))
            rows.append(("gap", f"{self.optimality_gap:.2%}"))
            rows.append(("peak memory", format_size(self.peak_bytes or 0)))
            if self.schedule is not None and self.schedule.states:
                rows.append(("carried", f"{format_size(carried_bytes(self.schedule))} on the device"))
            rows.append(("offloaded", format_size(self.offloaded_bytes or 0)))
            rows.append(("prefetched", format_size(self.prefetched_bytes or 0)))
        else:
            rows.append(("lower bound", bound))
        rows += [("memory model", self.memory_model), ("solve time", f"{self.solve_seconds:.3f} s")]
        return rows
