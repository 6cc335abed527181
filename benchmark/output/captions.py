"""The caption of every table and picture: the model's limits, and where and when it was made."""

from __future__ import annotations

from collections.abc import Iterable


def model_limits(*, host_ends: bool = False, is_slowed: bool = False) -> str:
    """Return the limits of the model behind every figure, which are shown with all results.

    Parameters
    ----------
    host_ends
        Whether host memory has a budget; else it is unlimited, which is said.
    is_slowed
        Whether copies slow tasks down; else they do not, which is said.
    """
    limits = [
        "predicted by simulation, not measured",
        *([] if is_slowed else ["copies do not slow compute down"]),
        "the order of tasks is fixed",
        *([] if host_ends else ["host memory is unlimited"]),
    ]
    return "; ".join(limits)


def caption(subject: str, made: Iterable[str], *, host_ends: bool = False, is_slowed: bool = False) -> str:
    """Return a caption: what is simulated, within which limits, and on which machine, day and versions.

    Parameters
    ----------
    subject
        The subject of the limits, without a full stop.
    made
        Where and when it was made, as `made_here` returns it, or `origins` for stored runs; nothing if empty.
    host_ends, is_slowed
        As of `model_limits`.
    """
    told = "; ".join(made)
    return f"{subject}: {model_limits(host_ends=host_ends, is_slowed=is_slowed)}." + (
        f" {told}." if told else ""
    )
