"""The linear solvers that are available on this machine."""

from __future__ import annotations

from functools import cache

from ...instances.arguments import quoted
from ...instances.errors import PebblerError
from ...instances.processes.child import Child
from .model import (
    MATH_OPT_SOLVERS,
)


def list_linear_solvers() -> tuple[str, ...]:
    """Return the names of the solvers available here: OR-Tools' own, and those that PuLP finds."""
    return *MATH_OPT_SOLVERS, *(name for name in list_by_pulp() if name not in MATH_OPT_SOLVERS)


def require_linear_solver(solver: str) -> None:
    """Refuse a solver that is not available here.

    Raises
    ------
    PebblerError
        Lists the solvers that are available.
    """
    if type(solver) is str and solver in MATH_OPT_SOLVERS:
        return
    known = list_linear_solvers()
    if type(solver) is not str or solver not in known:
        raise PebblerError(
            f"linear solver {quoted(solver)} is not available here; there are {', '.join(known)}"
        )


@cache
def list_by_pulp() -> tuple[str, ...]:
    """Return the names of the solvers that PuLP finds on this machine."""
    with Child(_hidden("cbc")) as child:
        child.start(_available)
        found = child.result()
    assert isinstance(found, tuple)
    return found


def _hidden(solver: str) -> tuple[str, ...]:
    """Return the modules that must not be imported in the same process as a solver."""
    return () if solver in MATH_OPT_SOLVERS else ("ortools",)


def _available() -> tuple[str, ...]:
    from .pulp import available

    return tuple(available())
