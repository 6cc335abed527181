"""What is known of how a record came to be: who improved it, when, with what, and how long that took."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from importlib import metadata
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from ...instances.figures import Natural, Text
from ..output.machine import origin


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An improvement of a record; records only improve, so that the last step has the values of today.

    Attributes
    ----------
    date, who
        The day (ISO 8601), and who entered it.
    pebbler, machine
        Version of pebbler, and the machine that checked it.
    method
        The method that made it, or that of the schedule.
    seconds
        Wall time of the method; unset for what was made elsewhere.
    makespan_ns, lower_bound_ns
        The values that improved.
    gap
        (makespan - lower bound) / lower bound afterwards; unset where no schedule was known.
    """

    date: Text
    who: Text
    pebbler: Text
    machine: Text
    method: Text
    seconds: Annotated[float, msgspec.Meta(ge=0)] | UnsetType = UNSET
    makespan_ns: Natural | UnsetType = UNSET
    lower_bound_ns: Natural | UnsetType = UNSET
    gap: Annotated[float, msgspec.Meta(ge=0)] | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Entrant:
    """Who enters something, by which method it was made, and within how many seconds; None: elsewhere."""

    who: str
    method: str
    seconds: float | None = None

    def step(self, *, makespan_ns: int | None, lower_bound_ns: int | None, gap: float | None) -> Step:
        """Return the step that this improvement is; None stands for what did not improve."""
        return Step(
            date=date.today().isoformat(),
            who=self.who,
            pebbler=metadata.version("pebbler"),
            machine=origin().machine,
            method=self.method,
            seconds=UNSET if self.seconds is None else round(self.seconds, 3),
            makespan_ns=UNSET if makespan_ns is None else makespan_ns,
            lower_bound_ns=UNSET if lower_bound_ns is None else lower_bound_ns,
            gap=UNSET if gap is None else gap,
        )
