"""The caption of every table and picture: the model's limits, and where and when it was made."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import UNSET

from ...instances.instance import Instance

SEVERAL = (
    "predicted by simulation, not measured; the order of tasks is fixed; where a problem's instance does not "
    "say otherwise, copies slow neither each other nor compute down, and host memory is unlimited"
)
"""The limits of several problems, some of which may have a link, slowed tasks or a budget of the host."""


class ModelLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of the model behind the figures of an instance, as they are told with all results.

    Attributes
    ----------
    host_ends
        Whether host memory has a budget; else it is unlimited, which is said.
    is_slowed
        Whether copies slow tasks down; else they do not, which is said.
    link_bytes_per_second
        What copies in both directions get together; None: they know nothing of each other.
    """

    host_ends: bool = False
    is_slowed: bool = False
    link_bytes_per_second: int | None = None

    def __str__(self) -> str:
        limits = [
            "predicted by simulation, not measured",
            *([] if self.is_slowed else ["copies do not slow compute down"]),
            "the order of tasks is fixed",
            *([] if self.host_ends else ["host memory is unlimited"]),
        ]
        return "; ".join(limits)

    @property
    def link(self) -> str:
        """The link that both directions share, in words; empty without one."""
        if self.link_bytes_per_second is None:
            return ""
        return f"a link of {self.link_bytes_per_second / 1e9:g} GB/s for both directions"


def limits_of(instance: Instance) -> ModelLimits:
    """Return the limits of the model behind the figures of an instance."""
    return ModelLimits(
        host_ends=instance.has_host_budget,
        is_slowed=instance.is_slowed,
        link_bytes_per_second=None if instance.link is UNSET else instance.link.both_bytes_per_second,
    )


def caption(subject: str, made: Iterable[str], limits: ModelLimits | str | None = None) -> str:
    """Return a caption: what is simulated, within which limits, and on which machine, day and versions.

    Parameters
    ----------
    subject
        The subject of the limits, without a full stop.
    made
        Where and when it was made, as `made_here` returns it, or `origins` for stored runs; nothing if empty.
    limits
        Of the model, or `SEVERAL`; by default those of an instance without any of the optional keys.
    """
    limits = ModelLimits() if limits is None else limits
    if isinstance(limits, ModelLimits) and limits.link:
        subject = f"{subject}; {limits.link}"
    told = "; ".join(made)
    return f"{subject}: {limits}." + (f" {told}." if told else "")
