"""The papers' unit of work, the layer: consecutive tasks of one layer in one pass."""

from __future__ import annotations

from itertools import groupby
from typing import Literal

import msgspec

from ...instances.arguments import require_instance
from ...instances.instance import Instance
from ...instances.networks.kinds import Group, described_kind


class LayerStep(msgspec.Struct, frozen=True):
    """The consecutive tasks of one layer in one pass.

    Attributes
    ----------
    layer, kind
        Name and kind of the layer.
    direction
        The pass; None where the instance does not name its layers.
    tasks
        Indices of the tasks, in order.
    """

    layer: str
    kind: str
    direction: Literal["forward", "backward"] | None
    tasks: tuple[int, ...]

    @property
    def group(self) -> Group:
        """What the papers' policies treat its kind as."""
        return described_kind(self.kind).group


def layer_steps(instance: Instance) -> tuple[LayerStep, ...]:
    """Group an instance's tasks into steps: the tasks of one layer in one pass.

    Where the instance does not name its layers, every task is a step, of kind ``conv`` if it has several
    algorithms and else of kind ``other``.

    Parameters
    ----------
    instance
        Any instance.

    Returns
    -------
    tuple of LayerStep
        The steps in the order of their tasks. Every task is in one of them.
    """
    require_instance(instance)
    role: list[tuple[str, str, Literal["forward", "backward"] | None]] = [
        (task.name, "conv" if len(task.algorithms) > 1 else "other", None) for task in instance.tasks
    ]
    for layer in instance.named_layers:
        for k in layer.forward:
            role[k] = layer.name, layer.kind, "forward"
        for k in layer.backward:
            role[k] = layer.name, layer.kind, "backward"
    return tuple(
        LayerStep(layer, kind, direction, tuple(tasks))
        for (layer, kind, direction), tasks in groupby(range(len(role)), key=lambda k: role[k])
    )
