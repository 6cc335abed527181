"""The papers' unit of work, the layer: consecutive tasks of one layer in one pass."""

from __future__ import annotations

from itertools import groupby
from typing import Literal

import msgspec

from ..instances.errors import PebblerError
from ..instances.instance import Instance, Natural


class Layer(msgspec.Struct, frozen=True):
    """An entry of ``meta.layers``: a layer with its tasks in either pass."""

    name: str
    kind: str
    forward: tuple[Natural, ...]
    backward: tuple[Natural, ...]


class Unit(msgspec.Struct, frozen=True):
    """Consecutive tasks of a layer in one pass.

    `direction` is None where the instance does not say what its layers are.
    """

    layer: str
    kind: str
    direction: Literal["forward", "backward"] | None
    tasks: tuple[int, ...]


def units(instance: Instance) -> tuple[Unit, ...]:
    """Cut an instance's tasks into units, in order.

    Without ``meta.layers`` every task is a unit of its own, of kind ``conv`` where it has several algorithms.

    Raises
    ------
    PebblerError
        When ``meta.layers`` is not a list of layers whose tasks exist.
    """
    role: list[tuple[str, str, Literal["forward", "backward"] | None]] = [
        (task.name, "conv" if len(task.algorithms) > 1 else "other", None) for task in instance.tasks
    ]
    for layer in layers(instance):
        for k in layer.forward:
            role[k] = layer.name, layer.kind, "forward"
        for k in layer.backward:
            role[k] = layer.name, layer.kind, "backward"
    return tuple(
        Unit(layer, kind, direction, tuple(tasks))
        for (layer, kind, direction), tasks in groupby(range(len(role)), key=lambda k: role[k])
    )


def layers(instance: Instance) -> tuple[Layer, ...]:
    """Return the layers that an instance names in ``meta.layers``, in forward order; none without it.

    Raises
    ------
    PebblerError
        When that is not a list of layers whose tasks exist.
    """
    try:
        found = msgspec.convert(instance.meta.get("layers", ()), tuple[Layer, ...])
    except msgspec.ValidationError as error:
        raise PebblerError(f"{instance.name}: meta.layers is not a list of layers: {error}") from None
    for layer in found:
        for k in (*layer.forward, *layer.backward):
            if k >= len(instance.tasks):
                raise PebblerError(f"{instance.name}: meta.layers: layer '{layer.name}' names no task {k}")
    return found
