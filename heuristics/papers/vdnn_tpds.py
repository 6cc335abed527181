"""vDNN as moDNN's authors describe it (Chen et al., TPDS 2019, sections 4.4 and 7.2).

They say of vDNN that once the budget cannot hold all data, it offloads the outputs of all layers or of all
convolutions, and that each task has the fastest possible algorithm. vDNN itself (MICRO 2016) speaks of
inputs, which is another set where only convolutions count, and leaves the classifier out.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ...instances.instance import Instance
from ..clock import OutOfTime, limited
from ..methods import Answer, Limits, Refusal, register
from .layers import LayerStep, layer_steps
from .layerwise import offload_points
from .network_wide import network_wide
from .vdnn import convolution
from .vdnn_dyn import greedy

_SOURCE = "moDNN (TPDS 2019), sections 4.4 and 7.2"


@register(
    "vdnn-all-tpds",
    "what does not fit: offload every layer's output; the fastest algorithms that have room",
    _SOURCE,
    shown="named",
    carries="read",
)
@limited
def vdnn_all_tpds(instance: Instance, limits: Limits) -> Answer:
    """Offload the outputs of all layers, where the budget cannot hold all data.

    Raises
    ------
    Refusal
        When this does not fit with the leanest algorithms.
    """
    return _described(instance, limits, "vdnn-all-tpds", lambda _: True)


@register(
    "vdnn-conv-tpds",
    "what does not fit: offload convolutions' outputs; the fastest algorithms that have room",
    _SOURCE,
    shown="named",
    carries="read",
)
@limited
def vdnn_conv_tpds(instance: Instance, limits: Limits) -> Answer:
    """Offload the outputs of all convolutions, where the budget cannot hold all data.

    Raises
    ------
    Refusal
        When this does not fit with the leanest algorithms.
    """
    return _described(instance, limits, "vdnn-conv-tpds", convolution)


def _described(
    instance: Instance, limits: Limits, name: str, offloads: Callable[[LayerStep], bool]
) -> Answer:
    try:
        schedule = network_wide(instance, limits).schedule
    except OutOfTime:
        raise
    except Refusal:
        schedule = greedy(instance, limits.memory, outputs_of(instance, offloads))
    assert schedule is not None
    return Answer(msgspec.structs.replace(schedule, method=name))


def outputs_of(instance: Instance, offloads: Callable[[LayerStep], bool]) -> dict[int, list[int]]:
    """Return, per unit, the blocks that leave the device with it: outputs of some layers' forward passes.

    Each leaves with the last unit that reads it in the forward pass.

    Parameters
    ----------
    instance
        The instance to schedule.
    offloads
        Function that says whether what a unit makes is offloaded.
    """
    steps = layer_steps(instance)
    made = {d for unit in steps if offloads(unit) for k in unit.tasks for d in instance.tasks[k].outputs}
    points = offload_points(instance, steps, lambda _: True)
    return {u: kept for u, blocks in points.items() if (kept := [d for d in blocks if d in made])}
