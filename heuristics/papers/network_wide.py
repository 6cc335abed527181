"""Network-wide allocation, without offload (vDNN, MICRO 2016, sections II-C and IV-A)."""

from __future__ import annotations

from ...instances.instance import Instance
from ..choices import run_fastest
from ..clock import limited
from ..methods import Answer, Limits, Refusal, register
from ..program.builder import OutOfMemoryError, ProgramBuilder
from .layers import layer_steps


@register(
    "network-wide",
    "no offload: feature maps stay, gradients are reused, the fastest algorithms whose workspace fits",
    "vDNN (MICRO 2016), sections II-C and IV-A",
    carries="read",
)
@limited
def network_wide(instance: Instance, limits: Limits) -> Answer:
    """Keep all blocks of the forward pass on the device, and release gradients after their last use.

    Each task takes the fastest algorithm whose workspace has room beside these blocks.

    Raises
    ------
    Refusal
        When the blocks do not fit.
    """
    kept = {
        d
        for unit in layer_steps(instance)
        if unit.direction == "forward"
        for k in unit.tasks
        for d in instance.tasks[k].blocks
    }
    builder = ProgramBuilder(instance, memory=limits.memory)
    try:
        for k, task in enumerate(instance.tasks):
            builder.fetch((*task.inputs, *task.updates))
            run_fastest(builder, k)
            builder.release_dead(k, keep=kept)
        return Answer(builder.finish("network-wide"))
    except OutOfMemoryError as error:
        raise Refusal(f"{error} at task {task.name}") from None
