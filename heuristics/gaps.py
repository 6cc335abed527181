"""Stays of blocks between uses: where they can be evicted, and where they take memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..instances.instance import Instance
from .methods import Refusal

Gap = tuple[int, int]
"""A block, and the task after which it is not used for a while (-1: from the start)."""


class Guide(NamedTuple):
    """What to set off from, whether or not it fits: gaps to evict, and algorithms.

    Attributes
    ----------
    returning
        The gaps, in the order of their prefetches.
    leaving
        The gaps in the order of their offloads, or those for which it matters.
    algorithms
        One a task.
    tentative
        Whether it is no more than a rounded relaxation: of use where it is good as it is.
    holds
        Per prefetch, the task before which it is not issued; none: each as soon as there is room.
    """

    returning: Sequence[Gap]
    leaving: Sequence[Gap]
    algorithms: Sequence[int]
    tentative: bool = False
    holds: Sequence[int] = ()


def gaps_of(instance: Instance) -> dict[Gap, int]:
    """Every gap in which a block can be evicted, with the task that ends it; the end counts as a task."""
    gaps: dict[Gap, int] = {}
    for d, after, until in stays_of(instance):
        block = instance.blocks[d]
        on_host = block.initially != "absent" and not any(w <= after for w in instance.writers[d])
        if block.prefetch_ns is not None and (on_host or block.offload_ns is not None):
            gaps[d, after] = until
    return gaps


def stays_of(instance: Instance) -> Iterator[tuple[int, int, int]]:
    """Every stay between uses, which takes memory unless it is evicted: block, task before, task after."""
    for d, block in enumerate(instance.blocks):
        marks = [*([-1] if block.initially != "absent" else []), *instance.uses[d]]
        marks += [len(instance.tasks)] if block.finally_ == "device" else []
        for after, until in pairwise(marks):
            if until > after + 1:
                yield d, after, until


def require_copies(instance: Instance) -> None:
    """Refuse an instance that asks for a copy which it makes impossible.

    Raises
    ------
    Refusal
        With the block that must end on the host, or is needed from there.
    """
    for d, block in enumerate(instance.blocks):
        if block.finally_ == "host" and block.offload_ns is None and instance.writers[d]:
            raise Refusal(f"block '{block.name}' must end on the host, and its offload_ns is null")
        needed = bool(instance.uses[d]) or block.finally_ == "device"
        if block.initially == "host" and block.prefetch_ns is None and needed:
            raise Refusal(f"block '{block.name}' is on the host only, and its prefetch_ns is null")
