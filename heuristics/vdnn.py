"""vDNN (Rhu et al., MICRO 2016): layer-wise offload and prefetch of feature maps on one memory stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..instances.instance import Instance, Task
from .choices import by_speed, leanest
from .layers import Unit, units
from .methods import Answer, Limits, register
from .placement import Issue, build
from .pool import Range
from .program import ProgramBuilder

_SOURCE = "vDNN (MICRO 2016), section III"


@register("vdnn-all-m", "offload every layer's input; memory-optimal algorithms", _SOURCE)
def vdnn_all_m(instance: Instance, limits: Limits) -> Answer:
    """vDNN_all with workspace-free algorithms (static policy, section III-C)."""
    return _static(instance, limits, "vdnn-all-m", managed, leanest)


@register("vdnn-all-p", "offload every layer's input; performance-optimal algorithms", _SOURCE)
def vdnn_all_p(instance: Instance, limits: Limits) -> Answer:
    """vDNN_all with the fastest algorithms (static policy, section III-C)."""
    return _static(instance, limits, "vdnn-all-p", managed, _fastest)


@register("vdnn-conv-m", "offload convolutions' inputs; memory-optimal algorithms", _SOURCE)
def vdnn_conv_m(instance: Instance, limits: Limits) -> Answer:
    """vDNN_conv with workspace-free algorithms (static policy, section III-C)."""
    return _static(instance, limits, "vdnn-conv-m", convolution, leanest)


@register("vdnn-conv-p", "offload convolutions' inputs; performance-optimal algorithms", _SOURCE)
def vdnn_conv_p(instance: Instance, limits: Limits) -> Answer:
    """vDNN_conv with the fastest algorithms (static policy, section III-C)."""
    return _static(instance, limits, "vdnn-conv-p", convolution, _fastest)


def managed(unit: Unit) -> bool:
    """Feature extraction layers; classification layers remain as they are (section IV-A)."""
    return unit.kind not in ("fc", "softmax")


def convolution(unit: Unit) -> bool:
    """Convolutions, behind whose long computation copies hide best (vDNN_conv)."""
    return unit.kind == "conv"


def _fastest(task: Task) -> int:
    return by_speed(task)[0]


def _static(
    instance: Instance,
    limits: Limits,
    name: str,
    offloads: Callable[[Unit], bool],
    choose: Callable[[Task], int],
) -> Answer:
    issue = program(instance, offloads, [choose(task) for task in instance.tasks])
    return Answer(build(instance, limits.memory, issue, one_copy_queue=True).finish(name))


def program(
    instance: Instance,
    offloads: Callable[[Unit], bool],
    algorithms: Sequence[int],
    *,
    workspace_at: Mapping[int, int] | None = None,
    rooms: dict[int, tuple[Range, ...]] | None = None,
) -> Issue:
    """Return what issues an iteration in which the inputs of some layers are offloaded.

    Parameters
    ----------
    instance
        What the program is for.
    offloads
        Whether a unit's inputs leave: `managed` (vDNN_all) or `convolution` (vDNN_conv).
    algorithms
        One a task.
    workspace_at
        Offsets of workspaces, by task; default: where the pool has room.
    rooms
        Filled, per task, with the free ranges beside the blocks that are there while it runs.
    """
    all_units = units(instance)
    leaves_at = _offload_points(instance, all_units, offloads)

    def issue(builder: ProgramBuilder) -> None:
        run = _Execution(instance, builder, all_units, leaves_at, algorithms, workspace_at or {}, rooms)
        for index in range(len(all_units)):
            run.unit(index)

    return issue


@dataclass(slots=True)
class _Execution:
    """One iteration under vDNN's rules, layer by layer.

    Both streams meet at the end of a layer in which a copy was issued (section III-B): the next layer's
    computation waits for the layer's copies, and copies are issued when a layer starts.
    """

    instance: Instance
    builder: ProgramBuilder
    units: tuple[Unit, ...]
    leaves_at: dict[int, list[int]]
    algorithms: Sequence[int]
    workspace_at: Mapping[int, int]
    rooms: dict[int, tuple[Range, ...]] | None
    last_run: int | None = None
    copies: list[int] = field(default_factory=list)

    def unit(self, index: int) -> None:
        """Execute a layer in one pass, with the copies that overlap it."""
        unit = self.units[index]
        pending, self.copies = self.copies, []
        issued = [] if self.last_run is None else [self.last_run]
        for d in self.needed(unit):
            if not self.builder.is_resident(d):
                pending.append(self.builder.prefetch(d, issued))
        leaving = [d for d in self.leaves_at.get(index, ()) if self.builder.is_resident(d)]
        updated = {d for k in unit.tasks for d in self.instance.tasks[k].updates}
        self.offload([d for d in leaving if d not in updated], issued)
        if unit.direction != "forward":
            for d in self.to_prefetch(index):
                self.copies.append(self.builder.prefetch(d, issued))
        for k in unit.tasks:
            at = self.workspace_at.get(k)
            self.last_run = self.builder.run(k, self.algorithms[k], pending, workspace_at=at)
            if self.rooms is not None:
                self.rooms[k] = self.builder.pool.holes()
            pending = []
        self.offload([d for d in leaving if d in updated], [])
        for d in leaving:
            self.builder.release(d)
        for k in unit.tasks:
            self.builder.release_dead(k)

    def offload(self, blocks: list[int], issued: list[int]) -> None:
        """Copy blocks to the host, unless the host has them."""
        for d in blocks:
            if not self.builder.on_host(d):
                self.copies.append(self.builder.offload(d, issued))

    def needed(self, unit: Unit) -> list[int]:
        """Blocks that a unit reads and does not make itself."""
        made: set[int] = set()
        needed: dict[int, None] = {}
        for k in unit.tasks:
            task = self.instance.tasks[k]
            needed.update((d, None) for d in (*task.inputs, *task.updates) if d not in made)
            made.update(task.outputs)
        return list(needed)

    def to_prefetch(self, index: int) -> list[int]:
        """Inputs of the next layer that waits for some, up to and with the next convolution (Fig. 10)."""
        for unit in self.units[index + 1 :]:
            absent = [d for d in self.needed(unit) if self.waits_on_host(d)]
            if absent:
                return absent
            if unit.kind == "conv":
                break
        return []

    def waits_on_host(self, d: int) -> bool:
        """Whether a block has been offloaded and not been prefetched since."""
        return self.builder.on_host(d) and not self.builder.is_resident(d)


def _offload_points(
    instance: Instance, all_units: tuple[Unit, ...], offloads: Callable[[Unit], bool]
) -> dict[int, list[int]]:
    """Per unit, the inputs that leave the device with it.

    A feature map is offloaded by its last consumer in the forward pass (its reference count reaches zero,
    section III-A) if it is needed again later than in the next unit. Where the instance does not name its
    layers, by the unit before its longest time without use.
    """
    unit_of = [u for u, unit in enumerate(all_units) for _ in unit.tasks]
    leaves: dict[int, list[int]] = {}
    for d, block in enumerate(instance.blocks):
        places = sorted({unit_of[k] for k in instance.uses[d]})
        forward = [u for u in places if all_units[u].direction == "forward"]
        gaps = list(pairwise(places))
        if forward:
            gaps = [gap for gap in gaps if gap[0] == forward[-1]]
        gaps = [gap for gap in gaps if gap[1] > gap[0] + 1 and all_units[gap[0]].direction != "backward"]
        if not gaps or block.prefetch_ns is None:
            continue
        last, _ = max(gaps, key=lambda gap: gap[1] - gap[0])
        read = any(
            d in (*task.inputs, *task.updates) for task in (instance.tasks[k] for k in all_units[last].tasks)
        )
        can_leave = block.offload_ns is not None or (block.initially != "absent" and not instance.writers[d])
        if read and can_leave and offloads(all_units[last]):
            leaves.setdefault(last, []).append(d)
    return leaves
