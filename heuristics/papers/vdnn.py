"""vDNN (Rhu et al., MICRO 2016): layer-wise offload and prefetch of feature maps on one memory stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...instances.instance import Instance, Task
from ..choices import by_speed, leanest
from ..clock import limited
from ..methods import Answer, Limits, register
from ..program.builder import ProgramBuilder
from ..program.placement import Issue, build_program
from ..program.pool import Range
from .layers import LayerStep, layer_steps
from .layerwise import Execution, offload_points, passes

_SOURCE = "vDNN (MICRO 2016), section III"
"""Name of the paper and its section."""


@register("vdnn-all-m", "offload every layer's input; memory-optimal algorithms", _SOURCE, carries="read")
@limited
def vdnn_all_m(instance: Instance, limits: Limits) -> Answer:
    """Run vDNN_all with workspace-free algorithms (static policy, section III-C)."""
    return _static(instance, limits, "vdnn-all-m", managed, leanest)


@register(
    "vdnn-all-p", "offload every layer's input; performance-optimal algorithms", _SOURCE, carries="read"
)
@limited
def vdnn_all_p(instance: Instance, limits: Limits) -> Answer:
    """Run vDNN_all with the fastest algorithms (static policy, section III-C)."""
    return _static(instance, limits, "vdnn-all-p", managed, _fastest)


@register("vdnn-conv-m", "offload convolutions' inputs; memory-optimal algorithms", _SOURCE, carries="read")
@limited
def vdnn_conv_m(instance: Instance, limits: Limits) -> Answer:
    """Run vDNN_conv with workspace-free algorithms (static policy, section III-C)."""
    return _static(instance, limits, "vdnn-conv-m", convolution, leanest)


@register(
    "vdnn-conv-p", "offload convolutions' inputs; performance-optimal algorithms", _SOURCE, carries="read"
)
@limited
def vdnn_conv_p(instance: Instance, limits: Limits) -> Answer:
    """Run vDNN_conv with the fastest algorithms (static policy, section III-C)."""
    return _static(instance, limits, "vdnn-conv-p", convolution, _fastest)


def managed(unit: LayerStep) -> bool:
    """Return whether a unit is a feature extraction layer, not one of classification (section IV-A)."""
    return unit.group != "classifier"


def convolution(unit: LayerStep) -> bool:
    """Return whether a unit is a convolution, behind whose long computation copies hide best (vDNN_conv)."""
    return unit.group == "convolution"


def _fastest(task: Task) -> int:
    return by_speed(task)[0]


def _static(
    instance: Instance,
    limits: Limits,
    name: str,
    offloads: Callable[[LayerStep], bool],
    choose: Callable[[Task], int],
) -> Answer:
    issue = program(instance, inputs_of(instance, offloads), [choose(task) for task in instance.tasks])
    return Answer(build_program(instance, limits.memory, issue, one_copy_queue=True).finish(name))


def inputs_of(instance: Instance, offloads: Callable[[LayerStep], bool]) -> dict[int, list[int]]:
    """Return, per unit, the inputs that leave the device with it (section III-A).

    Parameters
    ----------
    instance
        The instance to schedule.
    offloads
        Function that says whether a unit's inputs are offloaded: `managed` (vDNN_all) or `convolution`
        (vDNN_conv).
    """
    return offload_points(instance, layer_steps(instance), offloads)


def program(
    instance: Instance,
    leaves_at: Mapping[int, Sequence[int]],
    algorithms: Sequence[int],
    *,
    workspace_at: Mapping[int, int] | None = None,
    rooms: dict[int, tuple[Range, ...]] | None = None,
) -> Issue:
    """Return the function that issues an iteration in which some blocks are offloaded.

    Parameters
    ----------
    instance
        The instance to schedule.
    leaves_at
        Per unit, the blocks that leave the device with it, such as `inputs_of`.
    algorithms
        Index of the algorithm of each task.
    workspace_at
        Offsets of workspaces in bytes, by task; by default, they lie where the pool has room.
    rooms
        Receives, per task, the ranges that are free beside the blocks on the device while it runs.
    """
    layers = passes(instance)

    def issue(builder: ProgramBuilder) -> None:
        Execution(
            instance,
            builder,
            layers,
            leaves_at,
            algorithms,
            up_to_the_next_convolution,
            workspace_at=workspace_at or {},
            rooms=rooms,
        ).all()

    return issue


def up_to_the_next_convolution(execution: Execution, index: int) -> list[int]:
    """Return the inputs of the next layer that waits for some, up to the next convolution (Fig. 10)."""
    if execution.passes[index].unit.direction == "forward":
        return []
    for ahead in range(index + 1, len(execution.passes)):
        absent = execution.absent(ahead)
        if absent:
            return absent
        if execution.passes[ahead].unit.group == "convolution":
            break
    return []
