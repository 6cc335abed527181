"""Faults that a replay can find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["data", "rule", "figure"]
"""Kind of a fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in a replay.

    Attributes
    ----------
    kind
        ``data``: an operation reads wrong bytes, loses its own, or touches memory that it does not own or
        that another residence still holds; or work is missing at the end. ``rule``: a rule of the format is
        broken without damage in this replay. ``figure``: a reported time, makespan or peak differs from the
        replay.
    text
        What is wrong, and where.
    """

    kind: FaultKind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"
