"""What the forward pass saves for the backward pass, and the groups of layers that frameworks checkpoint.

A saved tensor is a block that the forward pass makes and a layer's backward pass reads: that layer has saved
it. Frameworks wrap repeated modules, such as the layers of a transformer; here, these are the layers whose
names agree up to their first number, as ``h3_ln1`` and ``h3_attn``, or ``blocks.3.norm1`` and ``blocks.3``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...instances.instance import Instance
from ...instances.origin import LayerTasks
from ..methods import Refusal
from ..recomputation.plan import turn, used_later

_GROUP = re.compile(r".*?\d+(?=[._]|$)")
"""The part of a layer's name that all layers of a group share."""


_LINEAR = ("linear", "fc", "mm", "addmm")
"""Kinds of layers of the zoo, and operators of torch, that are a product with weights."""

_EXPERTS = ("experts", "_grouped_mm")
"""The kind of layers of the zoo, and the operator of torch, that is a product with the weights of experts."""

_ATTENTION = ("attention", "scaled_dot_product")
"""What the names of kinds and operators of attention have in them."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that a framework checkpoints as one.

    Attributes
    ----------
    name
        What their names share.
    layers
        The layers, in the order of the forward pass.
    forward, backward
        Their tasks in both passes, in order.
    inputs
        Saved blocks that come from before the group and that no other group reads, as hidden states do.
    inside
        Blocks that the group makes, that only the group uses in the forward pass.
    """

    name: str
    layers: tuple[LayerTasks, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    inputs: tuple[int, ...]
    inside: tuple[int, ...]


def layers_of(instance: Instance) -> tuple[LayerTasks, ...]:
    """Return the layers; where they have no names, each task is one."""
    end = turn(instance)
    return instance.named_layers or tuple(
        LayerTasks(
            name=str(k),
            kind="other",
            forward=(k,) if k < end else (),
            backward=() if k < end else (k,),
        )
        for k in range(len(instance.tasks))
    )


class Operators:
    """What the tasks of the forward pass compute, by the kinds of their layers or by operators of torch.

    A kind tells what a task computes if it is its layer's only one. A task of a torch model is called
    ``FP(layer operator)``, or ``FP(layer operator #2)``.
    """

    def __init__(self, instance: Instance) -> None:
        kinds = {layer.forward[0]: layer.kind for layer in instance.named_layers if len(layer.forward) == 1}
        self._names: list[list[str]] = []
        for k, task in enumerate(instance.tasks):
            words = [word for word in task.name.rstrip(")").split(" ")[1:] if not word.startswith("#")]
            found = [*([kinds[k]] if k in kinds else []), *words[-1:]]
            self._names.append([name.lower() for name in found])
        self._scores = {d for k, task in enumerate(instance.tasks) if self.is_routing(k) for d in task.inputs}
        self._made = [task.outputs for task in instance.tasks]

    def is_linear(self, k: int) -> bool:
        """Return whether a task is a product with weights, which are not those of experts."""
        return any(name in _LINEAR for name in self._names[k])

    def is_experts(self, k: int) -> bool:
        """Return whether a task is a product with the weights of experts."""
        return any(name in _EXPERTS for name in self._names[k])

    def is_routing(self, k: int) -> bool:
        """Return whether a task chooses the experts of each token."""
        return "route" in self._names[k]

    def is_router(self, k: int) -> bool:
        """Return whether a task is the product by whose results experts are chosen."""
        return self.is_linear(k) and not self._scores.isdisjoint(self._made[k])

    def is_attention(self, k: int) -> bool:
        """Return whether a task is attention."""
        return any(part in name for name in self._names[k] for part in _ATTENTION)

    def is_norm(self, k: int) -> bool:
        """Return whether a task is a norm."""
        return any("norm" in name for name in self._names[k])

    def is_lookup(self, k: int) -> bool:
        """Return whether a task takes rows of a table."""
        return "embedding" in self._names[k]


def saved_by(instance: Instance) -> dict[int, list[tuple[int, LayerTasks]]]:
    """Return, for each saved block, the layers that save it, by the task after which each has done so.

    That is the layer's last task in the forward pass that touches the block, or the last one of all.
    """
    end, uses = turn(instance), instance.uses
    layer_of = {k: layer for layer in layers_of(instance) for k in (*layer.forward, *layer.backward)}
    found: dict[int, list[tuple[int, LayerTasks]]] = {}
    for d in activations(instance):
        readers = dict.fromkeys(layer_of[k].name for k in uses[d] if k >= end and k in layer_of)
        layers = {layer_of[k].name: layer_of[k] for k in uses[d] if k in layer_of}
        forward = [k for k in uses[d] if k < end]
        savers = []
        for name in readers:
            own = [k for k in forward if k in layers[name].forward]
            savers.append((max(own or forward), layers[name]))
        if savers:
            found[d] = sorted(savers, key=lambda saver: saver[0])
    return found


def layer_groups(instance: Instance) -> list[LayerGroup]:
    """Return the groups of layers, in the order of the forward pass.

    Raises
    ------
    Refusal
        When there are not two groups with more than one layer each.
    """
    layers: dict[str, list[LayerTasks]] = {}
    for layer in layers_of(instance):
        if (shared := _GROUP.match(layer.name)) is not None and layer.forward:
            layers.setdefault(shared[0], []).append(layer)
    together = {name: members for name, members in layers.items() if len(members) > 1}
    if len(together) < 2:
        raise Refusal(
            "no layers repeat: there are not two groups whose names agree up to a number, such as 'h0_ln1' "
            "and 'h0_attn'"
        )
    group_of = {k: name for name, members in together.items() for layer in members for k in layer.forward}
    end, uses, writers = turn(instance), instance.uses, instance.writers
    inputs: dict[str, list[int]] = {name: [] for name in together}
    inside: dict[str, list[int]] = {name: [] for name in together}
    for d in activations(instance):
        maker = group_of.get(writers[d][0])
        readers = {group_of.get(k) for k in uses[d] if k < end and k not in writers[d]}
        if readers <= {maker} and maker is not None:
            inside[maker].append(d)
        elif len(readers) == 1 and (reader := next(iter(readers))) is not None:
            inputs[reader].append(d)
    return [
        LayerGroup(
            name,
            tuple(sorted(members, key=lambda layer: layer.forward)),
            tuple(sorted(k for layer in members for k in layer.forward)),
            tuple(sorted(k for layer in members for k in layer.backward)),
            tuple(inputs[name]),
            tuple(inside[name]),
        )
        for name, members in sorted(together.items(), key=lambda item: min(item[1][0].forward))
    ]


def activations(instance: Instance) -> list[int]:
    """Return the blocks that the forward pass makes and the backward pass reads."""
    return sorted(used_later(instance, (d for d, writers in enumerate(instance.writers) if writers)))
