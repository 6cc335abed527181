"""Copies of torchtitan's graph trainer: out while the next layer runs, back a layer before they are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from ...instances.instance import Instance
from ..program.builder import ProgramBuilder
from ..recomputation.plan import Policy, turn
from .hooks import Reloading, last_read
from .saved import LayerGroup

LEAST_OFFLOADED = 4096
"""Bytes below which torchtitan leaves a tensor on the device."""


@dataclass(frozen=True, slots=True)
class LayerCopies:
    """When blocks of layers are copied.

    Attributes
    ----------
    packed
        For each block, the task after which it is copied out: the one that makes it.
    awaited
        For each block, the task after which compute waits for its copy out, and lets it go: the end of the
        next layer, or of the last one that reads it.
    ahead
        Per task, the blocks that come back when it starts: it begins the backward pass of the layer after
        their own.
    """

    packed: Mapping[int, int]
    awaited: Mapping[int, int]
    ahead: Mapping[int, tuple[int, ...]]


def layer_copies(instance: Instance, groups: Sequence[LayerGroup], hosted: Sequence[int]) -> LayerCopies:
    """Return the copies of blocks that layers before the last one make."""
    end, ends = turn(instance), _region_ends(instance, groups)
    layer_of = {k: i for i, group in enumerate(groups[:-1]) for k in group.forward}
    made = {d: instance.writers[d][0] for d in hosted}
    packed = {d: max(k for k in instance.writers[d] if k < end) for d in hosted}
    read = last_read(instance, hosted)
    awaited = {d: max(ends[min(ends[made[d]] + 1, end - 1)], ends[read[d]]) for d in hosted}
    ahead: dict[int, tuple[int, ...]] = {}
    for d in sorted(hosted, key=lambda d: next(k for k in instance.uses[d] if k >= end)):
        if after := groups[layer_of[made[d]] + 1].backward:
            ahead[after[0]] = (*ahead.get(after[0], ()), d)
    return LayerCopies(packed, awaited, ahead)


def within(instance: Instance, blocks: Sequence[int]) -> list[int]:
    """Return the largest of some blocks for which the host has room beside data that is there before."""
    if instance.host_budget_bytes is UNSET:
        return list(blocks)
    there = (block.bytes for block in instance.blocks if block.initially != "absent")
    room = instance.host_budget_bytes - sum(there)
    taken: set[int] = set()
    for d in sorted(blocks, key=lambda d: -instance.blocks[d].bytes):
        if instance.blocks[d].bytes <= room:
            room -= instance.blocks[d].bytes
            taken.add(d)
    return [d for d in blocks if d in taken]


class Deferred(Reloading):
    """Compute waits for a copy out later than it would have to, and a block is on the device until then.

    Parameters
    ----------
    builder, policy, most_workspace
        As for `Hooks`.
    copies
        When blocks are copied.
    """

    def __init__(
        self, builder: ProgramBuilder, policy: Policy, most_workspace: int, copies: LayerCopies
    ) -> None:
        super().__init__(builder, policy, most_workspace, copies.packed)
        self.awaited: dict[int, list[int]] = defaultdict(list)
        for d, k in copies.awaited.items():
            self.awaited[k].append(d)
        self.copies: dict[int, int] = {}

    def _pack(self, d: int) -> None:
        self.copies[d] = self.builder.offload(d, after=self.last_run)

    def _forget(self, d: int) -> None:
        if d not in self.copies:
            super()._forget(d)

    def _leave(self, k: int) -> None:
        super()._leave(k)
        for d in self.awaited.get(k, ()):
            self.waits.add(self.copies[d])
            self.builder.release(d)

    def _fetch(self, d: int) -> None:
        self._early(d)


def _region_ends(instance: Instance, groups: Sequence[LayerGroup]) -> list[int]:
    """Return, per task of the forward pass, the last of the tasks in a row that belong to the same group."""
    group_of = {k: i for i, group in enumerate(groups) for k in group.forward}
    ends = list(range(turn(instance)))
    for k in reversed(ends[:-1]):
        if group_of.get(k) == group_of.get(k + 1):
            ends[k] = ends[k + 1]
    return ends
