"""The caption of every table and picture: the model's limits, and where and when it was made."""

from __future__ import annotations

from collections.abc import Iterable

_LIMITS = (
    "predicted by simulation, not measured; copies do not slow compute down; the order of tasks is fixed"
)


def model_limits(*, host_ends: bool = False) -> str:
    """Return the limits of the model behind every figure, which are shown with all results.

    Parameters
    ----------
    host_ends
        Whether host memory has a budget; else it is unlimited, which is said.
    """
    return _LIMITS if host_ends else f"{_LIMITS}; host memory is unlimited"


def caption(subject: str, made: Iterable[str], *, host_ends: bool = False) -> str:
    """Return a caption: what is simulated, within which limits, and on which machine, day and versions.

    Parameters
    ----------
    subject
        The subject of the limits, without a full stop.
    made
        Where and when it was made, as `made_here` returns it, or `origins` for stored runs; nothing if empty.
    host_ends
        Whether host memory has a budget.
    """
    told = "; ".join(made)
    return f"{subject}: {model_limits(host_ends=host_ends)}." + (f" {told}." if told else "")
