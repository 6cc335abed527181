"""Gaps between uses of blocks: when a block can be evicted, and when it takes memory without being used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..instances.instance import Instance
from .carried import begins_on_host, ends_on_device
from .methods import Refusal

Gap = tuple[int, int]
"""A block and the task after which it is not used for a while; -1 stands for the start of the iteration."""


class Guide(NamedTuple):
    """Decisions that a search can start from, whether or not they fit: gaps to evict, and algorithms.

    Attributes
    ----------
    returning
        The gaps, in the order of their prefetches.
    leaving
        The gaps in the order of their offloads, or only those gaps for which the order matters.
    algorithms
        Index of the algorithm of each task.
    tentative
        Whether the guide is only a rounded relaxation. Such a guide is used only if it is good without any
        change.
    holds
        Per prefetch, the task before which it is not issued. If empty, each prefetch is issued as soon as
        there is room.
    """

    returning: Sequence[Gap]
    leaving: Sequence[Gap]
    algorithms: Sequence[int]
    tentative: bool = False
    holds: Sequence[int] = ()


def gaps_of(instance: Instance) -> dict[Gap, int]:
    """Return every gap in which a block can be evicted, with the task that ends it (the end is one)."""
    gaps: dict[Gap, int] = {}
    for d, after, until in stays_of(instance):
        block = instance.blocks[d]
        on_host = begins_on_host(instance, d) and not any(w <= after for w in instance.writers[d])
        if block.prefetch_ns is not None and (on_host or block.offload_ns is not None):
            gaps[d, after] = until
    return gaps


def stays_of(instance: Instance) -> Iterator[tuple[int, int, int]]:
    """Yield every stay of a block between two uses: the block, the task before and the task after.

    A block takes memory during a stay unless it is evicted. Uses in consecutive tasks have no stay between
    them.
    """
    for d, block in enumerate(instance.blocks):
        marks = [*([-1] if block.initially != "absent" else []), *instance.uses[d]]
        marks += [len(instance.tasks)] if ends_on_device(block) else []
        for after, until in pairwise(marks):
            if until > after + 1:
                yield d, after, until


def require_copies(instance: Instance) -> None:
    """Refuse an instance that requires a copy and makes the same copy impossible.

    Raises
    ------
    Refusal
        Names the block that must end on the host, or that is needed from there, and cannot be copied.
    """
    for d, block in enumerate(instance.blocks):
        if block.finally_ == "host" and block.offload_ns is None and instance.writers[d]:
            raise Refusal(f"block '{block.name}' must end on the host, and its offload_ns is null")
        needed = bool(instance.uses[d]) or block.finally_ == "device"
        if block.initially == "host" and block.prefetch_ns is None and needed:
            raise Refusal(f"block '{block.name}' is on the host only, and its prefetch_ns is null")
