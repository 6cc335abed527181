"""Which linear solvers there are on this machine."""

from __future__ import annotations

from functools import cache

from ...instances.errors import PebblerError
from ...instances.processes.child import Child
from .model import (
    MATH_OPT_SOLVERS,
)


def list_linear_solvers() -> tuple[str, ...]:
    """Names of the solvers that are available here: OR-Tools', and those that PuLP finds."""
    return *MATH_OPT_SOLVERS, *(name for name in list_by_pulp() if name not in MATH_OPT_SOLVERS)


def require_linear_solver(solver: str) -> None:
    """Refuse a solver that is not available here.

    Raises
    ------
    PebblerError
        It lists those that are.
    """
    if solver in MATH_OPT_SOLVERS:
        return
    known = list_linear_solvers()
    if solver not in known:
        raise PebblerError(f"linear solver '{solver}' is not available here; there are {', '.join(known)}")


@cache
def list_by_pulp() -> tuple[str, ...]:
    """Names of the solvers that PuLP finds on this machine."""
    with Child(_hidden("cbc")) as child:
        child.start(_available)
        found = child.result()
    assert isinstance(found, tuple)
    return found


def _hidden(solver: str) -> tuple[str, ...]:
    """Modules that must not be imported beside a solver."""
    return () if solver in MATH_OPT_SOLVERS else ("ortools",)


def _available() -> tuple[str, ...]:
    from .pulp import available

    return tuple(available())
