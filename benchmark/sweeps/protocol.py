"""A protocol: what a configuration says beside its runs, so that others' runs are counted as these are."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ...instances.units import parse_time
from .jobs import Found, Setting


class Protocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The rules by which runs count; limits, seeds and instances are those of the configuration's sweeps.

    Attributes
    ----------
    solved_gap
        Greatest gap from the best known bound with which an instance counts as solved.
    overtime
        Time over its time limit, such as ``5s``, within which a run still counts.
    """

    solved_gap: Annotated[float, msgspec.Meta(ge=0, le=1)]
    overtime: str

    def __post_init__(self) -> None:
        parse_time(self.overtime)

    def in_time(self, setting: Setting, found: Found) -> bool:
        """Return whether a run has ended within its time limit and the overtime."""
        limit, seconds = setting.time_limit, found.solve_seconds
        return limit is None or (seconds is not None and seconds <= limit + parse_time(self.overtime))

    def solves(self, setting: Setting, found: Found, gap: float) -> bool:
        """Return whether a run solved its instance, given the gap of its schedule from a bound."""
        return found.status != "error" and gap <= self.solved_gap and self.in_time(setting, found)
