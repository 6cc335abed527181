"""The modules of a transformer's layers whose saved tensors Megatron offloads, and what each saves."""

from __future__ import annotations

from dataclasses import dataclass

from ...instances.instance import Instance
from ...instances.origin import VALUE_BYTES, LayerTasks
from .saved import LayerGroup, Operators, layer_groups, saved_by

_LEAST_VALUES = 2**20
"""Number of values of a tensor below which Megatron leaves it on the device."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module that offloads what it saves.

    Attributes
    ----------
    kind
        What Megatron calls it: ``norm``, ``qkv_linear``, ``core_attn``, ``attn_proj``, ``expert_fc1`` or
        ``moe_act``. Each norm of a layer has a kind of its own.
    last_forward, last_backward
        Its last task in each pass.
    saved
        Blocks that this module is the last one to save, and that only modules save.
    """

    kind: str
    last_forward: int
    last_backward: int
    saved: tuple[int, ...]


def modules(instance: Instance) -> list[Module]:
    """Return the modules of repeated layers with a backward pass, in the order of the forward pass.

    Raises
    ------
    Refusal
        When no layers repeat.
    """
    operators = Operators(instance)
    parts = [part for group in layer_groups(instance) for part in _parts(group, operators)]
    place = {layer.name: at for at, (_, layers) in enumerate(parts) for layer in layers}
    least = _LEAST_VALUES * VALUE_BYTES[instance.made_from.precision]
    saved: dict[int, list[int]] = {}
    for d, savers in saved_by(instance).items():
        places = [place.get(layer.name) for _, layer in savers]
        if instance.blocks[d].bytes >= least and None not in places:
            saved.setdefault(max(at for at in places if at is not None), []).append(d)
    return [
        Module(
            kind,
            max(layer.forward[-1] for layer in layers),
            max(k for layer in layers for k in layer.backward),
            tuple(saved.get(at, ())),
        )
        for at, (kind, layers) in enumerate(parts)
    ]


def _parts(group: LayerGroup, operators: Operators) -> list[tuple[str, list[LayerTasks]]]:
    """Return the kinds of a group's modules, each with its layers.

    Linear layers before attention are one module, and the first after it is the projection of its output;
    those of the multilayer perceptron are none. Of experts, all products but the last are one, and what is
    between them and that is another.
    """
    layers = [layer for layer in group.layers if layer.backward]
    attention = [at for at, layer in enumerate(layers) if any(map(operators.is_attention, layer.forward))]
    experts = [at for at, layer in enumerate(layers) if any(map(operators.is_experts, layer.forward))]
    found: dict[str, list[LayerTasks]] = {}
    for at, layer in enumerate(layers):
        if any(map(operators.is_norm, layer.forward)):
            found[f"norm {sum(kind.startswith('norm') for kind in found)}"] = [layer]
        elif at in attention:
            found.setdefault("core_attn", []).append(layer)
        elif experts and experts[0] <= at < experts[-1]:
            found.setdefault("expert_fc1" if at in experts else "moe_act", []).append(layer)
        elif attention and any(map(operators.is_linear, layer.forward)):
            if at < attention[0]:
                found.setdefault("qkv_linear", []).append(layer)
            elif at > attention[-1]:
                found.setdefault("attn_proj", [layer])
    return sorted(found.items(), key=lambda part: part[1][0].forward)
