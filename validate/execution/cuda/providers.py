"""What the CUDA backend asks of a library that has convolutions: which ways there are, and to go one of them.

There are two: cuDNN's legacy interface (``cudnn``), in which an algorithm has a number, and NVIDIA's
cudnn-frontend (``cudnn-frontend``), in which it is an execution plan that heuristics propose. The name of an
algorithm says whose it is (`provider_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

PROVIDERS = ("cudnn", "cudnn-frontend")
"""What ``--provider`` may be."""
PLAN = "cudnn-frontend:"
"""How the names of cudnn-frontend's plans begin."""


def provider_of(algorithm: str) -> str:
    """Return whose algorithm it is."""
    return "cudnn-frontend" if algorithm.startswith(PLAN) else "cudnn"


Pass = Literal["forward", "backward_data", "backward_filter"]


@dataclass(frozen=True, slots=True)
class Operand:
    """An address: that of a word, some bytes on, and more for every image before the round."""

    word: str
    offset: int = 0
    per_image: int = 0


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution by cuDNN: shapes are (images, channels, height, width).

    `scratch` bytes at the start of the task's workspace are not the algorithm's.
    """

    which: Pass
    algorithm: str
    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    y: tuple[int, int, int, int]
    pad: int
    stride: int
    groups: int
    operands: tuple[Operand, Operand, Operand]
    adds: bool
    scratch: int = 0

    @property
    def written(self) -> tuple[int, int, int, int]:
        """Shape of what it writes."""
        return {"forward": self.y, "backward_data": self.x, "backward_filter": self.w}[self.which]


class Described(Protocol):
    """A convolution, known to a provider; whose algorithm is in question does not matter."""

    def algorithms(self) -> Sequence[tuple[str, int]]:
        """Names that can be tried, each with its workspace in bytes; cuDNN may still refuse one."""

    def workspace_bytes(self, algorithm: str) -> int | None:
        """Bytes that an algorithm needs; None when it cannot compute this convolution."""

    def is_deterministic(self, algorithm: str) -> bool:
        """Whether an algorithm always gives the same bits, as the provider reports."""

    def compute(self, algorithm: str, x: int, w: int, y: int, workspace: int, workspace_bytes: int) -> None:
        """Ask for the convolution on the provider's stream: its pass says which of x, w and y it writes."""


class Provider(Protocol):
    """A library on the stream for compute."""

    @property
    def version(self) -> str:
        """As the library counts."""

    def describe(self, convolution: Convolution) -> Described:
        """Make what the library needs to know of a convolution."""

    def close(self) -> None:
        """Give everything back."""
