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

_ATTENTION = ("attention", "scaled_dot_product")
"""What the names of kinds and operators of attention have in them."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that a framework checkpoints as one.

    Attributes
    ----------
    name
        What their names share.
    forward, backward
        Their tasks in both passes, in order.
    inputs
        Saved blocks that come from before the group and that no other group reads, as hidden states do.
    inside
        Blocks that the group makes, that only the group uses in the forward pass.
    """

    name: str
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


def is_linear(instance: Instance, k: int) -> bool:
    """Return whether a task of the forward pass is a product with weights."""
    return any(what.lower() in _LINEAR for what in _names(instance, k))


def is_attention(instance: Instance, k: int) -> bool:
    """Return whether a task of the forward pass is attention."""
    return any(part in what.lower() for what in _names(instance, k) for part in _ATTENTION)


def is_lookup(instance: Instance, k: int) -> bool:
    """Return whether a task of the forward pass takes rows of a table."""
    return any(what.lower() == "embedding" for what in _names(instance, k))


def _names(instance: Instance, k: int) -> list[str]:
    """Return the kind of a task's layer if that is its only task, and the operator in a task's name.

    A task of a torch model is called ``FP(layer operator)``, or ``FP(layer operator #2)``.
    """
    kinds = [layer.kind for layer in instance.named_layers if layer.forward == (k,)]
    words = [word for word in instance.tasks[k].name.rstrip(")").split(" ")[1:] if not word.startswith("#")]
    return [*kinds, *words[-1:]]


def saved_by(instance: Instance) -> dict[int, list[tuple[int, LayerTasks]]]:
    """Return, for each saved block, the layers that save it, by the task after which each has done so.

    That is the layer's last task in the forward pass that touches the block, or the last one of all.
    """
    end, uses = turn(instance), instance.uses
    layer_of = {k: layer for layer in layers_of(instance) for k in (*layer.forward, *layer.backward)}
    found: dict[int, list[tuple[int, LayerTasks]]] = {}
    for d in _activations(instance):
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
    for d in _activations(instance):
        maker = group_of.get(writers[d][0])
        readers = {group_of.get(k) for k in uses[d] if k < end and k not in writers[d]}
        if readers <= {maker} and maker is not None:
            inside[maker].append(d)
        elif len(readers) == 1 and (reader := next(iter(readers))) is not None:
            inputs[reader].append(d)
    return [
        LayerGroup(
            name,
            tuple(sorted(k for layer in members for k in layer.forward)),
            tuple(sorted(k for layer in members for k in layer.backward)),
            tuple(inputs[name]),
            tuple(inside[name]),
        )
        for name, members in sorted(together.items(), key=lambda item: min(item[1][0].forward))
    ]


def _activations(instance: Instance) -> list[int]:
    """Return the blocks that the forward pass makes and the backward pass reads."""
    return sorted(used_later(instance, (d for d, writers in enumerate(instance.writers) if writers)))
