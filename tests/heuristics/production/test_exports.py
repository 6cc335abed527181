"""Schedules as policies: what happens to saved tensors, tags for torch, and modules for Megatron-LM."""

from __future__ import annotations

import pytest

from pebbler.heuristics.methods import Refusal
from pebbler.heuristics.production.exports import TAGS, megatron_modules, torch_tags, treatments
from pebbler.instances.memory import with_budget
from pebbler.instances.workload import Workload

from .steps import MIB, solved, traced, transformer


def named(name: str, budget: int = 400) -> dict[str, str]:
    instance = with_budget(transformer(4, copy=15), budget * MIB)
    found = treatments(instance, solved(name, instance, "paged"))
    return {instance.blocks[d].name: treatment for d, treatment in found.items()}


def test_what_rules_do_is_read_from_their_schedules() -> None:
    every = {f"{one}{i}" for i in range(4) for one in "xnac"} | {"x4", "y"}
    full = named("checkpoint-layers")
    assert full.keys() == every
    assert {block for block, one in full.items() if one == "recompute"} == {
        f"{one}{i}" for i in range(4) for one in "nac"
    }
    hosted = named("transformers-offload")
    assert {block for block, one in hosted.items() if one == "offload"} == {f"x{i}" for i in range(4)}
    assert {block: one for block, one in hosted.items() if block[0] in "nac"} == {
        block: one for block, one in full.items() if block[0] in "nac"
    }
    assert set(named("megatron-offload").values()) == {"keep", "offload"}


def test_tags_are_those_of_torch_and_say_all_of_the_treatment() -> None:
    instance = with_budget(transformer(6, copy=15), 110 * MIB)
    schedule = solved("torchtitan-budget", instance, "paged")
    exported = torch_tags(instance, schedule)
    tags = dict(line.split() for line in exported.lines)
    found = treatments(instance, schedule)
    assert tags == {instance.blocks[d].name: TAGS[one] for d, one in found.items()}
    assert {"MUST_SAVE", "MUST_RECOMPUTE", "MUST_CPU_OFFLOAD"} == set(tags.values())
    assert exported.other_bytes == exported.moved_bytes == 0
    assert exported.bytes_by["keep"] == sum(instance.blocks[d].bytes for d in found if found[d] == "keep")
    assert str(exported).splitlines()[-1].startswith("lost")


def test_torchs_names_of_policies_are_these() -> None:
    checkpoint = pytest.importorskip("torch.utils.checkpoint")
    assert set(TAGS.values()) <= {policy.name for policy in checkpoint.CheckpointPolicy}


def test_what_megatron_does_is_the_list_of_all_its_modules() -> None:
    """A module is in the list if most of what it saves leaves; the last layer's, which stay, are lost."""
    instance = transformer(4, copy=15)
    exported = megatron_modules(instance, solved("megatron-offload", instance, "paged"))
    assert exported.lines == (
        "--fine-grained-activation-offloading --offload-modules attn_norm qkv_linear core_attn attn_proj",
    )
    assert exported.other_bytes == 4 * 10 * MIB


def test_selective_recomputation_is_of_norms() -> None:
    instance = transformer(4)
    exported = megatron_modules(instance, solved("torchtitan-selective", instance, "paged"))
    assert exported.lines == ("--recompute-granularity selective --recompute-modules layernorm",)
    assert exported.other_bytes == 0
    kept = megatron_modules(instance, solved("trl-offload", with_budget(instance, 1 << 40), "paged"))
    assert not any("recompute" in line for line in kept.lines)


def test_a_plan_that_keeps_all_has_no_options() -> None:
    instance = with_budget(Workload("gpt2", 1, "a100").instance("100%"), 1 << 40)
    exported = megatron_modules(instance, solved("deepcompile-offload", instance, "paged"))
    assert exported.lines == ()
    assert exported.other_bytes == 0


def test_without_layers_there_are_no_modules() -> None:
    forward = [("mm", "linear", "x", "a"), ("head", "linear", "a", "b")]
    instance = traced(forward, [("head", "a"), ("mm", "x")])
    schedule = solved("torch-compile", instance)
    assert torch_tags(instance, schedule).lines == ("a MUST_SAVE",)
    with pytest.raises(Refusal, match="no layers repeat"):
        megatron_modules(instance, schedule)
