"""The backends by name; the modules that a backend needs are imported when it is opened.

Installed packages name their backends as entry points of the group ``pebbler.backends``: each is a
callable without arguments that returns a `Backend`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from ...instances.errors import PebblerError
from .cuda.providers import PROVIDERS

if TYPE_CHECKING:
    from .device import Backend

BACKENDS = ("cpu", "cuda")
"""Values of ``--backend`` without other packages."""

ENTRY_POINTS = "pebbler.backends"
"""Group of entry points of other packages, each a callable that opens a backend."""


def list_backends() -> tuple[str, ...]:
    """Return the names of all backends; those of other packages come last."""
    return (*BACKENDS, *sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - {*BACKENDS}))


def find_backend(name: str, providers: Sequence[str] = ()) -> Callable[[], Backend]:
    """Return the function that opens a backend.

    Parameters
    ----------
    name
        Name of the backend, one of `list_backends`.
    providers
        Sources of convolution algorithms for CUDA, of `PROVIDERS`; by default the first of these.

    Returns
    -------
    Callable
        A function without arguments that opens the backend.

    Raises
    ------
    PebblerError
        When there is no backend of this name, no such provider, or a package's backend cannot be loaded.
    """
    for provider in providers:
        if provider not in PROVIDERS:
            raise PebblerError(f"there is no provider '{provider}'; there are {', '.join(PROVIDERS)}")
    if providers and name != "cuda":
        raise PebblerError(f"providers of convolutions are for --backend cuda; '{name}' has its own")
    if name == "cpu":
        from .cpu.backend import CpuBackend

        return CpuBackend
    if name == "cuda":
        from .cuda.backend import CudaBackend

        return partial(CudaBackend, providers=tuple(providers) or PROVIDERS[:1])
    points = list(entry_points(group=ENTRY_POINTS, name=name))
    if not points:
        raise PebblerError(f"there is no backend '{name}'; there are {', '.join(list_backends())}")
    if len(points) > 1:
        packages = " and ".join(sorted(map(_package, points)))
        raise PebblerError(f"there are backends '{name}' of {packages}; uninstall all but one")
    return _loaded(points[0])


def _package(point: EntryPoint) -> str:
    return "a package" if point.dist is None else point.dist.name


def _loaded(point: EntryPoint) -> Callable[[], Backend]:
    """Return what opens another package's backend; what that prints goes to standard error."""
    whose = f"the backend '{point.name}' of {_package(point)}"
    try:
        with redirect_stdout(sys.stderr):
            found = point.load()
    except (Exception, SystemExit) as error:
        raise PebblerError(f"{whose} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise PebblerError(f"{whose} is no callable but {type(found).__name__}; its entry point must open it")

    def opened() -> Backend:
        from .device import Backend

        try:
            with redirect_stdout(sys.stderr):
                backend: Backend = found()
        except PebblerError:
            raise
        except (Exception, SystemExit) as error:
            raise PebblerError(f"{whose} cannot be opened: {type(error).__name__}: {error}") from error
        wanted = [member for member in vars(Backend) if not member.startswith("_")]
        if missing := [member for member in wanted if not hasattr(backend, member)]:
            raise PebblerError(f"{whose} has no '{missing[0]}', which every backend has")
        return backend

    return opened
