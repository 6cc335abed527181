"""Schedules as policies that frameworks read: tags of nodes for torch, lists of modules for Megatron-LM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ...instances.instance import Instance
from ...instances.units import as_lines, format_size
from ...validate.schedule import Schedule
from ..recomputation.plan import turn
from .modules import modules
from .saved import Operators, activations, layer_groups

Treatment = Literal["keep", "offload", "recompute"]
"""What becomes of a saved tensor until the backward pass reads it."""

TAGS: Mapping[Treatment, str] = {
    "keep": "MUST_SAVE",
    "offload": "MUST_CPU_OFFLOAD",
    "recompute": "MUST_RECOMPUTE",
}
"""Names of `torch.utils.checkpoint.CheckpointPolicy`."""

_OFFLOADED = {
    "norm 0": "attn_norm",
    "qkv_linear": "qkv_linear",
    "core_attn": "core_attn",
    "attn_proj": "attn_proj",
    "norm 1": "mlp_norm",
    "expert_fc1": "expert_fc1",
    "moe_act": "moe_act",
}
"""Megatron's names for ``--offload-modules``, by kinds of modules."""

_ORDER: tuple[Treatment, ...] = ("keep", "recompute", "offload")


@dataclass(frozen=True, slots=True)
class Exported:
    """A policy, and what it loses of the schedule that it was made of.

    Attributes
    ----------
    lines
        The policy, a line for each tag or option.
    bytes_by
        Bytes of saved tensors by treatment in the schedule.
    other_bytes
        Bytes of saved tensors that the policy treats otherwise than the schedule.
    moved_bytes
        Bytes of other data that the schedule copies, about which policies say nothing.
    """

    lines: tuple[str, ...]
    bytes_by: Mapping[Treatment, int]
    other_bytes: int
    moved_bytes: int

    def __str__(self) -> str:
        told = [(treatment, format_size(self.bytes_by[treatment])) for treatment in TAGS]
        lost = (
            f"{format_size(self.other_bytes)} treated otherwise, {format_size(self.moved_bytes)} of other "
            "data that move, and when and where everything is"
        )
        return as_lines([*told, ("lost", lost)])


def treatments(instance: Instance, schedule: Schedule) -> dict[int, Treatment]:
    """Return what a schedule does with each saved tensor, by block.

    It is what the first reader behind the forward pass finds: what the forward pass has left, a copy from the
    host, or what a second run has made.
    """
    end, saved = turn(instance), set(activations(instance))
    found: dict[int, Treatment] = {}
    settled: dict[int, Treatment] = {}
    ran: set[int] = set()
    for operation in schedule.operations:
        if operation.kind == "prefetch" and operation.block in saved:
            found[operation.block] = "offload"
        if operation.task is None:
            continue
        task, again = instance.tasks[operation.task], operation.task in ran
        ran.add(operation.task)
        if again or operation.task >= end:
            for d in (*task.inputs, *task.updates):
                if d in saved:
                    settled.setdefault(d, found.get(d, "keep"))
        for d in task.outputs:
            found[d] = "recompute" if again else "keep"
    return {d: settled[d] for d in sorted(settled)}


def torch_tags(instance: Instance, schedule: Schedule) -> Exported:
    """Return a tag for each saved tensor: its name and one of `TAGS`.

    For an instance of a joint graph of torch, names are those of nodes, whose ``meta["recompute"]`` takes the
    tag. A tensor in parts has one tag: it is copied or computed again as a whole if a part is.
    """
    chosen = treatments(instance, schedule)
    by_name: dict[str, Treatment] = {}
    for d, treatment in chosen.items():
        name = instance.blocks[d].tensor or instance.blocks[d].name
        by_name[name] = max(treatment, by_name.get(name, "keep"), key=_ORDER.index)
    names = {d: instance.blocks[d].tensor or instance.blocks[d].name for d in chosen}
    lines = tuple(f"{name} {TAGS[treatment]}" for name, treatment in by_name.items())
    return _exported(instance, schedule, chosen, lines, {d: by_name[name] for d, name in names.items()})


def megatron_modules(instance: Instance, schedule: Schedule) -> Exported:
    """Return options of Megatron-LM: the modules of every layer that it offloads and computes again.

    A module is offloaded if most bytes of what it saves are on the host in the schedule, over all layers, and
    computed again if most bytes of what it makes are made again: norms (``layernorm``), attention
    (``core_attn``), and what comes behind the projection of its output (``mlp``, or ``moe`` with experts, of
    which ``moe_act``, between their products, may be computed again alone).

    Raises
    ------
    Refusal
        When no layers repeat.
    """
    chosen = treatments(instance, schedule)
    saved: dict[str, list[int]] = {}
    for part in modules(instance):
        if part.kind in _OFFLOADED:
            saved.setdefault(part.kind, []).extend(part.saved)
    made = _made(instance)
    offloaded = [kind for kind in _OFFLOADED if _mostly(instance, chosen, saved.get(kind, ()), "offload")]
    again = [name for name, blocks in made.items() if _mostly(instance, chosen, blocks, "recompute")]
    if "moe" in again and "moe_act" in again:
        again.remove("moe_act")  # a part of it
    told: dict[int, Treatment] = dict.fromkeys(chosen, "keep")
    told |= {d: "recompute" for name in again for d in made[name] if d in told}
    told |= {d: "offload" for kind in offloaded for d in saved[kind] if d in told and told[d] == "keep"}
    lines = []
    if again:
        lines.append(f"--recompute-granularity selective --recompute-modules {' '.join(again)}")
    if offloaded:
        modules_of = " ".join(_OFFLOADED[kind] for kind in offloaded)
        lines.append(f"--fine-grained-activation-offloading --offload-modules {modules_of}")
    return _exported(instance, schedule, chosen, tuple(lines), told)


def _made(instance: Instance) -> dict[str, list[int]]:
    """Return what modules of repeated layers make, by Megatron's names for ``--recompute-modules``."""
    operators = Operators(instance)
    made: dict[str, list[int]] = {"layernorm": [], "core_attn": [], "mlp": [], "moe": [], "moe_act": []}
    for group in layer_groups(instance):
        attention = [k for k in group.forward if operators.is_attention(k)]
        linear = [k for k in group.forward if operators.is_linear(k)]
        projection = next((k for k in linear if attention and k > attention[-1]), None)
        experts = [k for k in group.forward if operators.is_experts(k)]
        for k in group.forward:
            if operators.is_norm(k):
                made["layernorm"] += instance.tasks[k].outputs
            elif k in attention:
                made["core_attn"] += instance.tasks[k].outputs
            elif projection is not None and k > projection:
                made["moe" if experts else "mlp"] += instance.tasks[k].outputs
                if experts and experts[0] < k < experts[-1] and k not in experts:
                    made["moe_act"] += instance.tasks[k].outputs
    return made


def _mostly(
    instance: Instance, chosen: Mapping[int, Treatment], blocks: Iterable[int], treatment: Treatment
) -> bool:
    """Whether more than half of the bytes of some saved blocks are treated so."""
    own = [d for d in blocks if d in chosen]
    size = sum(instance.blocks[d].bytes for d in own)
    return 2 * sum(instance.blocks[d].bytes for d in own if chosen[d] == treatment) > size


def _exported(
    instance: Instance,
    schedule: Schedule,
    chosen: Mapping[int, Treatment],
    lines: tuple[str, ...],
    told: Mapping[int, Treatment],
) -> Exported:
    """Return a policy with what it loses, where `told` is what it says of each saved tensor."""
    by: dict[Treatment, int] = dict.fromkeys(TAGS, 0)
    for d, treatment in chosen.items():
        by[treatment] += instance.blocks[d].bytes
    moved = {o.block for o in schedule.operations if o.kind == "prefetch" and o.block is not None}
    return Exported(
        lines,
        by,
        sum(instance.blocks[d].bytes for d in chosen if told[d] != chosen[d]),
        sum(instance.blocks[d].bytes for d in moved if d not in chosen),
    )
