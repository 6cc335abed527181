"""What can go wrong in a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["data", "rule", "figure"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that went wrong in a replay.

    Attributes
    ----------
    kind
        ``data``: an operation reads wrong bytes, loses its own, or touches memory that it does not own or
        that another residence still holds; or work is missing at the end. ``rule``: a rule of the format is
        broken without damage in this replay. ``figure``: a reported time, makespan or peak is not what
        happened.
    text
        What and where.
    """

    kind: FaultKind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"
