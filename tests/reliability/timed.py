"""A run of a method under a time limit, as the study calls it in another process."""

from __future__ import annotations

from pebbler.instances.errors import FormatError, PebblerError
from pebbler.instances.instance import Instance
from pebbler.solver.solve import solve

LIMIT = 2.0
"""Seconds."""


def timed(
    instance: Instance, method: str, memory: str = "contiguous", limit: float = LIMIT
) -> tuple[float, str]:
    """Seconds that a method takes under a limit, by the clock that is reported, and how it ended.

    Raises
    ------
    FormatError
        When a document that pebbler made breaks a rule: a defect, not a method that does not apply.
    """
    try:
        result = solve(instance, method, time_limit=limit, memory=memory)  # type: ignore[arg-type]
    except FormatError:
        raise
    except PebblerError as error:
        return 0.0, str(error)
    return result.solve_seconds, f"{result.status}: {result.stopped_by}"
