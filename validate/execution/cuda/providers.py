"""The interface of a library with convolutions for the CUDA backend: its algorithms, and running one.

There are two: cuDNN's legacy interface (``cudnn``), in which an algorithm has a number, and NVIDIA's
cudnn-frontend (``cudnn-frontend``), in which it is an execution plan that heuristics propose. The name of an
algorithm says which provider it belongs to (`provider_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

PROVIDERS = ("cudnn", "cudnn-frontend")
"""Values of ``--provider``."""

PLAN = "cudnn-frontend:"
"""Beginning of the names of cudnn-frontend's plans."""


def provider_of(algorithm: str) -> str:
    """Return the provider of an algorithm."""
    return "cudnn-frontend" if algorithm.startswith(PLAN) else "cudnn"


Pass = Literal["forward", "backward_data", "backward_filter"]
"""Name of a pass."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An address: that of a word plus some bytes, and more bytes for every image before the round."""

    word: str
    offset: int = 0
    per_image: int = 0


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution by cuDNN: shapes are (images, channels, height, width).

    The first `scratch` bytes of the task's workspace do not belong to the algorithm.
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
        """Shape of the operand that it writes."""
        return {"forward": self.y, "backward_data": self.x, "backward_filter": self.w}[self.which]


class Described(Protocol):
    """A convolution that a provider knows, whatever the algorithm."""

    def algorithms(self) -> Sequence[tuple[str, int]]:
        """Return the names of algorithms to try, each with its workspace in bytes; cuDNN may refuse some."""

    def workspace_bytes(self, algorithm: str) -> int | None:
        """Return the bytes that an algorithm needs; None if it cannot compute this convolution."""

    def is_deterministic(self, algorithm: str) -> bool:
        """Return whether an algorithm always gives the same bits, as the provider reports."""

    def compute(self, algorithm: str, x: int, w: int, y: int, workspace: int, workspace_bytes: int) -> None:
        """Issue the convolution on the provider's stream; its pass says which of x, w and y it writes."""


class Provider(Protocol):
    """A library on the compute stream."""

    @property
    def version(self) -> str:
        """Version of the library."""

    def describe(self, convolution: Convolution) -> Described:
        """Prepare the library's description of a convolution."""

    def close(self) -> None:
        """Release everything."""
