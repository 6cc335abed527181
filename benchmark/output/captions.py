"""The caption of every table and picture: the model's limits, and where and when it was made."""

from __future__ import annotations

from collections.abc import Iterable

MODEL_LIMITS = (
    "predicted by simulation, not measured; copies do not slow compute down; the order of tasks is fixed; "
    "host memory is unlimited"
)
"""Limits of the model behind every figure, which are shown with all results."""


def caption(subject: str, made: Iterable[str]) -> str:
    """Return a caption: what is simulated, within which limits, and on which machine, day and versions.

    Parameters
    ----------
    subject
        The subject of the limits, without a full stop.
    made
        Where and when it was made, as `made_here` returns it, or `origins` for stored runs; nothing if empty.
    """
    told = "; ".join(made)
    return f"{subject}: {MODEL_LIMITS}." + (f" {told}." if told else "")
