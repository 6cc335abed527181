"""An iteration executed layer by layer: copies run beside a layer, and both streams meet at its end.

This is how vDNN (MICRO 2016, section III-B) and Layrub (TACO 2018, algorithm 1) work. They differ in which
blocks are offloaded, how far they look ahead, and when memory is released.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ...instances.instance import Instance
from ..clock import look
from ..program.builder import ProgramBuilder
from ..program.pool import Range
from .layers import LayerStep, layer_steps


@dataclass(frozen=True, slots=True)
class Pass:
    """A layer in one pass: its unit, the blocks that it reads and does not make, and those that it writes."""

    unit: LayerStep
    needs: tuple[int, ...]
    writes: frozenset[int]


def passes(instance: Instance) -> list[Pass]:
    """Return the layers of an instance in both passes, in order."""
    found = []
    for unit in layer_steps(instance):
        look()
        made: set[int] = set()
        changed: set[int] = set()
        needed: dict[int, None] = {}
        for k in unit.tasks:
            task = instance.tasks[k]
            needed.update((d, None) for d in (*task.inputs, *task.updates) if d not in made)
            made.update(task.outputs)
            changed.update(task.updates)
        found.append(Pass(unit, tuple(needed), frozenset(made | changed)))
    return found


@dataclass(slots=True)
class Execution:
    """One iteration, layer by layer.

    Copies are issued when a layer starts, those of what it writes itself when it ends; the next layer's
    computation waits for all of these copies.

    Attributes
    ----------
    instance, builder, passes
        The instance, the program under construction, and the layers in both passes.
    leaves_at
        Per unit, the blocks that leave the device with it (`offload_points`).
    algorithms
        Index of the algorithm of each task.
    look_ahead
        Function from the execution and the index of the unit that starts to the blocks to prefetch beside it.
    at_once
        Whether a block is released after the task that used it last, instead of after that task's layer.
    workspace_at
        Offsets of workspaces in bytes, by task; by default, they lie where the pool has room.
    rooms
        Receives, per task, the ranges that are free beside the blocks on the device while it runs.
    last_run, copies
        The latest run, and the copies that the next layer waits for.
    """

    instance: Instance
    builder: ProgramBuilder
    passes: Sequence[Pass]
    leaves_at: Mapping[int, Sequence[int]]
    algorithms: Sequence[int]
    look_ahead: Callable[[Execution, int], list[int]]
    at_once: bool = False
    workspace_at: Mapping[int, int] = field(default_factory=dict)
    rooms: dict[int, tuple[Range, ...]] | None = None
    last_run: int | None = None
    copies: list[int] = field(default_factory=list)

    def all(self) -> None:
        """Execute every layer."""
        for index in range(len(self.passes)):
            self.unit(index)

    def unit(self, index: int) -> None:
        """Execute a layer in one pass, with the copies that overlap it."""
        here = self.passes[index]
        pending, self.copies = self.copies, []
        issued = [] if self.last_run is None else [self.last_run]
        for d in here.needs:
            if not self.builder.is_resident(d):
                pending.append(self.builder.prefetch(d, issued))
        leaving = self.leaves_at.get(index, ())
        self.copies += self.offload([d for d in leaving if d not in here.writes], issued)
        self.copies += [self.builder.prefetch(d, issued) for d in self.look_ahead(self, index)]
        for k in here.unit.tasks:
            at = self.workspace_at.get(k)
            self.last_run = self.builder.run(k, self.algorithms[k], pending, workspace_at=at)
            if self.rooms is not None:
                self.rooms[k] = self.builder.pool.holes()
            if self.at_once:
                self.builder.release_dead(k)
            pending = []
        self.copies += self.offload([d for d in leaving if d in here.writes], [])
        for d in leaving:
            if self.builder.is_resident(d):
                self.builder.release(d)
        for k in () if self.at_once else here.unit.tasks:
            self.builder.release_dead(k)

    def offload(self, blocks: Sequence[int], issued: Sequence[int]) -> list[int]:
        """Copy resident blocks to the host, unless the host holds a valid copy."""
        return [
            self.builder.offload(d, issued)
            for d in blocks
            if self.builder.is_resident(d) and not self.builder.on_host(d)
        ]

    def absent(self, index: int) -> list[int]:
        """Return the blocks that a unit needs and that are only on the host."""
        return [
            d for d in self.passes[index].needs if self.builder.on_host(d) and not self.builder.is_resident(d)
        ]


def offload_points(
    instance: Instance,
    all_units: Sequence[LayerStep],
    offloads: Callable[[LayerStep], bool],
    *,
    unread: bool = False,
) -> dict[int, list[int]]:
    """Return, per unit, the forward pass's blocks that leave the device with it.

    A block is offloaded by its last consumer in the forward pass (its reference count reaches zero: vDNN,
    section III-A; Layrub, section 4.1) if it is needed again later than in the next unit. Where the instance
    does not name its layers, the unit before the block's longest time without use offloads it.

    Parameters
    ----------
    instance, all_units
        The iteration and its layers.
    offloads
        Function that says whether the blocks that a unit is the last to use are offloaded.
    unread
        Whether these include blocks that the unit writes and that no task reads before the backward pass.
    """
    unit_of = [u for u, unit in enumerate(all_units) for _ in unit.tasks]
    leaves: dict[int, list[int]] = {}
    for d, block in enumerate(instance.blocks):
        look()
        places = sorted({unit_of[k] for k in instance.uses[d]})
        forward = [u for u in places if all_units[u].direction == "forward"]
        gaps = list(pairwise(places))
        if forward:
            gaps = [gap for gap in gaps if gap[0] == forward[-1]]
        gaps = [gap for gap in gaps if gap[1] > gap[0] + 1 and all_units[gap[0]].direction != "backward"]
        if not gaps or block.prefetch_ns is None:
            continue
        last, _ = max(gaps, key=lambda gap: gap[1] - gap[0])
        read = unread or any(
            d in (*task.inputs, *task.updates) for task in (instance.tasks[k] for k in all_units[last].tasks)
        )
        can_leave = block.offload_ns is not None or (block.initially != "absent" and not instance.writers[d])
        if read and can_leave and offloads(all_units[last]):
            leaves.setdefault(last, []).append(d)
    return leaves


def next_layer(execution: Execution, index: int) -> list[int]:
    """Return the blocks that the next layer needs: a look one layer ahead (Layrub, section 4.1)."""
    return execution.absent(index + 1) if index + 1 < len(execution.passes) else []
