"""The papers' unit of work, the layer: consecutive tasks of one layer in one pass."""

from __future__ import annotations

from itertools import groupby
from typing import Literal

import msgspec

from ...instances.instance import Instance
from ...instances.networks.kinds import Group, described_kind


class Unit(msgspec.Struct, frozen=True):
    """Consecutive tasks of a layer in one pass.

    `direction` is None where the instance does not say what its layers are.
    """

    layer: str
    kind: str
    direction: Literal["forward", "backward"] | None
    tasks: tuple[int, ...]

    @property
    def group(self) -> Group:
        """What the papers' policies treat its kind as."""
        return described_kind(self.kind).group


def units(instance: Instance) -> tuple[Unit, ...]:
    """Cut an instance's tasks into units, in order.

    Without layers every task is a unit of its own, of kind ``conv`` where it has several algorithms.
    """
    role: list[tuple[str, str, Literal["forward", "backward"] | None]] = [
        (task.name, "conv" if len(task.algorithms) > 1 else "other", None) for task in instance.tasks
    ]
    for layer in instance.named_layers:
        for k in layer.forward:
            role[k] = layer.name, layer.kind, "forward"
        for k in layer.backward:
            role[k] = layer.name, layer.kind, "backward"
    return tuple(
        Unit(layer, kind, direction, tuple(tasks))
        for (layer, kind, direction), tasks in groupby(range(len(role)), key=lambda k: role[k])
    )
