"""The backends by name; the modules that a backend needs are imported when it is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...instances.errors import PebblerError
from .cuda.providers import PROVIDERS

if TYPE_CHECKING:
    from .device import Backend

BACKENDS = ("cpu", "cuda")
"""Values of ``--backend``."""


def find_backend(name: str, providers: Sequence[str] = ()) -> Callable[[], Backend]:
    """Return the function that opens a backend.

    Parameters
    ----------
    name
        Name of the backend, one of `BACKENDS`.
    providers
        Sources of convolution algorithms for CUDA, of `PROVIDERS`; by default the first of these.

    Returns
    -------
    Callable
        A function without arguments that opens the backend.

    Raises
    ------
    PebblerError
        When there is no backend of this name, or no such provider.
    """
    for provider in providers:
        if provider not in PROVIDERS:
            raise PebblerError(f"there is no provider '{provider}'; there are {', '.join(PROVIDERS)}")
    if name == "cpu":
        if providers:
            raise PebblerError("providers of convolutions are for --backend cuda; the CPU has its own")
        from .cpu.backend import CpuBackend

        return CpuBackend
    if name == "cuda":
        from .cuda.backend import CudaBackend

        return partial(CudaBackend, providers=tuple(providers) or PROVIDERS[:1])
    raise PebblerError(f"there is no backend '{name}'; there are {', '.join(BACKENDS)}")
