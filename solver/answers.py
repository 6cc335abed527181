"""Answers to one question compared with each other: no bound is above a schedule that the checker accepted.

The question is an instance in a memory model. A bound may rest on the word of a solver or a method. If a
checked schedule is shorter, such a bound is rejected, except for the part of it that is certified. A
certified bound above a checked schedule is a defect of pebbler itself, and neither is shown.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from ..instances.errors import DefectError, PebblerError
from ..instances.files import checksum
from ..instances.instance import Instance
from ..validate.bounds.certificate import PAGED_ONLY, misses
from ..validate.schedule import Schedule
from .bounds import Bound, best_bound, certified_bound

Memory = Literal["contiguous", "paged"]
"""Memory models of solutions."""

OWN = ""
"""Author of the bounds that pebbler itself derives."""

_log = logging.getLogger(__name__)


class ContradictionError(DefectError, PebblerError):
    """A proof in exact arithmetic and a checked schedule contradict each other.

    Attributes
    ----------
    instance, schedule
        The instance, and its schedule.
    bound
        The bound, with its certificate if it has one; None if the proof says that there is no schedule.
    """

    def __init__(self, instance: Instance, schedule: Schedule, bound: Bound | None, kept: str = "") -> None:
        self.instance, self.schedule, self.bound = instance, schedule, bound
        if bound is None:
            proof = "the proof that it has no schedule"
        else:
            certificate = bound.certificate
            name = bound.bound_by if bound.certified or certificate is None else certificate.bound_by
            proof = f"the {name} bound of {bound.certified_ns} ns, which is in exact arithmetic"
        super().__init__(
            f"{instance.name}: a schedule of {schedule.makespan_ns} ns by {schedule.method} contradicts "
            f"{proof}; one of them is wrong, so that nothing is shown{kept}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return ContradictionError, (self.instance, self.schedule, self.bound)


@dataclass(frozen=True, slots=True)
class _Claim:
    """A bound and its author; the bound is None for the claim that there is no schedule."""

    author: str
    bound: Bound | None

    def above(self, makespan_ns: int) -> bool:
        """Return whether the claim excludes a schedule with this makespan."""
        return self.bound is None or self.bound.lower_bound_ns > makespan_ns


class Answers:
    """The claims about an instance in a memory model, and the shortest schedule that was checked.

    The order in which claims and schedules are added makes no difference.

    Attributes
    ----------
    instance, memory
        The question.
    shortest
        The shortest schedule that the checker accepted; None while there is none.
    refuted
        Authors whose claims were rejected, each with the reason.
    """

    def __init__(self, instance: Instance, memory: Memory) -> None:
        self.instance, self.memory = instance, memory
        self.shortest: Schedule | None = None
        self.refuted: dict[str, str] = {}
        self._claims: list[_Claim] = []

    @property
    def bounded(self) -> bool:
        """Whether a bound was claimed."""
        return any(claim.bound is not None for claim in self._claims)

    def claim(self, bound: Bound, author: str = OWN) -> None:
        """Add a bound.

        Raises
        ------
        PebblerError
            When the bound is for paged memory and the question is not, or for larger pages than schedules may
            have.
        ContradictionError
            When the certified part of the bound is above a checked schedule.
        """
        if bound.bound_by.endswith(PAGED_ONLY) and self.memory != "paged":
            raise PebblerError(
                f"the bound '{bound.bound_by}' is for paged memory, not for {self.memory}; give another"
            )
        if bound.certificate is not None:
            missed = misses(self.instance, bound.certificate, self.memory)
            if missed is not None:
                raise PebblerError(f"the certificate of the bound '{bound.bound_by}': {missed}; give another")
        self._claims.append(_Claim(author, bound))
        self._settle()

    def deny(self, author: str = OWN) -> None:
        """Add the claim that there is no schedule.

        Raises
        ------
        ContradictionError
            When the claim is pebbler's own proof, and there is a checked schedule.
        """
        self._claims.append(_Claim(author, None))
        self._settle()

    def admit(self, schedule: Schedule) -> None:
        """Add a schedule that the checker accepted.

        Raises
        ------
        ContradictionError
            When the schedule is shorter than a certified bound.
        """
        if self.shortest is None or schedule.makespan_ns < self.shortest.makespan_ns:
            self.shortest = schedule
            self._settle()

    def bound(self, author: str | None = None) -> Bound:
        """Return the best bound that is not rejected.

        If an author is given, bounds that rest only on the word of other authors are left out.
        """
        bounds = []
        for claim in self._claims:
            whose = author is None or claim.author in (OWN, author)
            bound = claim.bound if whose else _certified(claim.bound)
            if bound is not None:
                bounds.append(bound)
        if not bounds or self.refuted:
            bounds.append(best_bound(self.instance, memory=self.memory))
        best, *others = bounds
        for other in others:
            best = best.raised(other)
        return best

    def _settle(self) -> None:
        """Reject the claims that are above the shortest schedule."""
        schedule = self.shortest
        if schedule is None:
            return
        for i, claim in enumerate(self._claims):
            if not claim.above(schedule.makespan_ns):
                continue
            bound = claim.bound
            if bound is None and claim.author == OWN:
                raise ContradictionError(self.instance, schedule, None)
            if bound is not None and bound.certified_ns > schedule.makespan_ns:
                raise ContradictionError(self.instance, schedule, bound)
            reason = f"a schedule by {schedule.method} passed the checker, and "
            if bound is None:
                reason += "there was said to be none"
            else:
                reason += (
                    f"its makespan {schedule.makespan_ns} is under the {bound.bound_by} bound "
                    f"{bound.lower_bound_ns}"
                )
            self.refuted[claim.author] = reason
            _log.warning(
                "%s: %s was wrong, and what is certified counts alone: %s",
                self.instance.name,
                f"method {claim.author}" if claim.author else "a solver",
                reason,
            )
            self._claims[i] = _Claim(claim.author, _certified(bound))
        self._claims = [claim for claim in self._claims if not claim.above(schedule.makespan_ns)]


class Ledger:
    """The answers to each question; a round is one question, however often it is executed."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._answers: dict[str, Answers] = {}

    def of(self, instance: Instance) -> Answers:
        """Return the answers of an instance."""
        key = checksum(replace(instance, rounds=1))
        if key not in self._answers:
            self._answers[key] = Answers(instance, self.memory)
        return self._answers[key]

    @property
    def refuted(self) -> dict[str, str]:
        """Authors whose claims were rejected, each with the instance and the reason."""
        return {
            author: f"{answers.instance.name}: {reason}"
            for answers in self._answers.values()
            for author, reason in answers.refuted.items()
        }


def _certified(bound: Bound | None) -> Bound | None:
    """Return the certified part of a bound; None if there is none."""
    if bound is None or bound.certified:
        return bound
    return None if bound.certificate is None else certified_bound(bound.certificate)
