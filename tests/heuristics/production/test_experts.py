"""Rules of frameworks on mixtures of experts: what each of them does with routers and experts."""

from __future__ import annotations

import pytest

from pebbler.heuristics.methods import Limits, find_method
from pebbler.heuristics.production.exports import megatron_modules
from pebbler.heuristics.production.modules import modules
from pebbler.heuristics.production.partition import Partition
from pebbler.heuristics.production.saved import Operators, layer_groups
from pebbler.heuristics.recomputation.rules import planned
from pebbler.instances.instance import Instance
from pebbler.instances.memory import with_budget
from pebbler.instances.workload import Workload
from pebbler.validate.check import check

from .steps import Memory, names_of, solved

SMALL = "mixtral_8x7b:layers=4,width=512,heads=8,groups=4,hidden=2048,tokens=1024,vocabulary=1024"
NAMES = (
    *("torch-compile", "torch-memory-budget", "checkpoint-layers", "torchtitan-selective", "knapsack-rule"),
    *("transformers-offload", "hidden-states-offload", "torchtitan-offload", "torchtitan-budget"),
    *("torchtitan-budget-ilp", "save-on-cpu-rule", "trl-offload", "megatron-offload"),
    "deepcompile-offload",
)
"""The rules of the grid."""


@pytest.fixture
def mixture() -> Instance:
    return planned(Workload(SMALL, 4, "a100", precision="bf16").instance("90%"))


def names(instance: Instance, blocks: set[int], layer: str) -> set[str]:
    """Names of some blocks of a layer without what surrounds them."""
    found = {instance.blocks[d].name for d in blocks}
    return {name[len(f"Y({layer}_") : -1] for name in found if name.startswith(f"Y({layer}_")}


def test_a_layer_of_mixtral_has_four_linear_operators_a_router_and_three_products_of_experts(
    mixture: Instance,
) -> None:
    group = layer_groups(mixture)[1]
    operators = Operators(mixture)
    assert [mixture.blocks[d].name for d in group.inputs] == ["Y(layer0_add2)"]
    told = {
        what: [mixture.tasks[k].name for k in group.forward if is_one(k)]
        for what, is_one in (
            ("router", operators.is_router),
            ("routing", operators.is_routing),
            ("experts", operators.is_experts),
        )
    }
    assert told == {
        "router": ["FP(layer1_router)"],
        "routing": ["FP(layer1_route)"],
        "experts": ["FP(layer1_gate)", "FP(layer1_up)", "FP(layer1_down)"],
    }
    assert sum(map(operators.is_linear, group.forward)) == 5


def test_torchtitan_computes_routers_and_experts_again_and_counts_neither(mixture: Instance) -> None:
    """Its list of operators to save has no grouped product, and its routers are forced to run again.

    Of queries, keys, values and projection the first and third are kept; a router would be the fifth.
    """
    again = names_of(mixture, solved("torchtitan-selective", mixture, "paged"), "run")
    layer = {name[len("FP(layer1_") : -1] for name in again if name.startswith("FP(layer1_")}
    assert {"router", "route", "dispatch", "gate", "up", "down", "k", "o"} <= layer
    assert not {"q", "v", "attn"} & layer
    offloaded = names_of(mixture, solved("torchtitan-offload", mixture, "paged"), "offload")
    left = {name for name in offloaded if name.startswith("Y(layer1")}
    assert left == {"Y(layer1_v)", "Y(layer1_attn)", "Y(layer1_add2)"}


def test_torch_compile_never_computes_experts_again_of_its_own_accord(mixture: Instance) -> None:
    """What goes to the experts is gathered again, and what is between their products made again."""
    partition = Partition(mixture)
    kept = names(mixture, partition.most, "layer1")
    assert {"gate", "up", "down", "route"} <= kept
    assert not {"dispatch", "silu", "gated"} & kept
    banned = {mixture.tasks[k].name for k in partition.expensive}
    assert {f"FP(layer1_{name})" for name in ("router", "route", "gate", "up", "down")} <= banned


def test_megatron_offloads_what_the_first_products_of_experts_and_the_activation_read(
    mixture: Instance,
) -> None:
    """Its ``expert_fc1`` offloads the tokens that were sent, ``moe_act`` what these products made."""
    saved = {
        part.kind: [mixture.blocks[d].name for d in part.saved]
        for part in modules(mixture)
        if mixture.tasks[part.last_forward].name.startswith("FP(layer1_")
    }
    assert list(saved)[-3:] == ["norm 1", "expert_fc1", "moe_act"]
    assert saved["expert_fc1"] == ["Y(layer1_dispatch)"]
    assert saved["moe_act"] == ["Y(layer1_gate)", "Y(layer1_silu)", "Y(layer1_up)"]
    assert saved["attn_proj"] == ["Y(layer1_attn)"]
    dense = planned(Workload("llama32_1b:layers=4", 1, "a100").instance("90%"))
    assert not {"expert_fc1", "moe_act"} & {part.kind for part in modules(dense)}


def test_modules_of_experts_are_exported_by_megatrons_names(mixture: Instance) -> None:
    ample = with_budget(mixture, 1 << 40)
    (line,) = megatron_modules(ample, solved("megatron-offload", ample, "paged")).lines
    assert line.endswith("core_attn attn_proj mlp_norm expert_fc1 moe_act")
    (line,) = megatron_modules(ample, solved("checkpoint-layers", ample, "paged")).lines
    assert line.endswith("--recompute-modules layernorm core_attn moe")
    (line,) = megatron_modules(ample, solved("torch-compile", ample, "paged")).lines
    assert line.endswith("--recompute-modules layernorm moe_act")


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
@pytest.mark.parametrize("name", NAMES)
def test_schedules_of_mixtures_are_valid(name: str, memory: Memory) -> None:
    info = find_method(name)
    instance = Workload(SMALL, 4, "a100", precision="bf16").instance("90%")
    instance = info.transform(instance) if info.transform else instance
    schedule = info.call(instance, Limits(memory=memory)).schedule
    assert schedule is not None
    assert check(instance, schedule).valid
