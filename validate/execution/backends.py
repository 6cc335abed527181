"""The backends by name; what one needs is imported when it is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...instances.errors import PebblerError

if TYPE_CHECKING:
    from .device import Backend

BACKENDS = ("cpu", "cuda")
"""What ``--backend`` may be."""


def find_backend(name: str) -> Callable[[], Backend]:
    """Return what opens a backend.

    Raises
    ------
    PebblerError
        When there is none of this name.
    """
    if name == "cpu":
        from .cpu import CpuBackend

        return CpuBackend
    if name == "cuda":
        from .cuda import CudaBackend

        return CudaBackend
    raise PebblerError(f"there is no backend '{name}'; there are {', '.join(BACKENDS)}")
