"""Stays of blocks between uses: where they can be evicted, and where they take memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ..instances.instance import Instance

Gap = tuple[int, int]
"""A block, and the task after which it is not used for a while (-1: from the start)."""


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
