"""What stands under every table and picture: the model's limits, and where and when it was made."""

from __future__ import annotations

from collections.abc import Iterable

MODEL_LIMITS = (
    "predicted by simulation, not measured; copies do not slow compute down; the order of tasks is fixed; "
    "host memory is unlimited"
)
"""What every figure leaves out, to stand wherever results are shown."""


def caption(subject: str, made: Iterable[str]) -> str:
    """Say what is simulated and within which limits, and of which machine, date and versions it is.

    Parameters
    ----------
    subject
        What the limits are said of, without a full stop.
    made
        As `made_here`, or `origins` for stored runs, tell it; where it is empty, nothing is said of it.
    """
    told = "; ".join(made)
    return f"{subject}: {MODEL_LIMITS}." + (f" {told}." if told else "")
