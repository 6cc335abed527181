"""Joint graphs as torch makes them: the text says what the nodes do, and tags have their names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ...extras import needs_torch

torch = needs_torch()

from torch import nn  # noqa: E402
from torch._decomp import core_aten_decompositions  # noqa: E402
from torch._functorch import config as functorch_config  # noqa: E402
from torch._functorch.aot_autograd import aot_module, make_boxed_func  # noqa: E402
from torch._functorch.partitioners import min_cut_rematerialization_partition  # noqa: E402

from pebbler.heuristics.methods import Limits, find_method  # noqa: E402
from pebbler.heuristics.production.exports import torch_tags  # noqa: E402
from pebbler.heuristics.recomputation.rules import planned  # noqa: E402
from pebbler.instances.foreign.read import read_foreign  # noqa: E402
from pebbler.instances.instance import Instance  # noqa: E402
from pebbler.instances.memory import with_budget  # noqa: E402
from pebbler.validate.check import check  # noqa: E402

NO_KERNEL = (
    "t.",
    "view.",
    "transpose.",
    "permute.",
    "expand.",
    "detach.",
    "alias.",
    "split.",
    "unsqueeze.",
    "squeeze.",
)


class Net(nn.Module):
    """A convolution, a norm, attention and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 32, 4, stride=4)
        self.norm = nn.LayerNorm(32)
        self.qkv = nn.Linear(32, 96)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 1)

    def forward(self, x: Any) -> Any:
        x = self.convolution(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x)).unsqueeze(1).chunk(3, -1)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v).squeeze(1)
        return self.down(torch.relu(self.up(x))).square().mean()


def joint(tmp_path: Path) -> tuple[dict[str, tuple[str, int]], Instance]:
    """Nodes of the joint graph of the net, with operators and bytes, and the instance of its text."""
    nodes: dict[str, tuple[str, int]] = {}

    def partition(graph: Any, *args: Any, **kwargs: Any) -> Any:
        for node in graph.graph.nodes:
            value = node.meta.get("val")
            size = value.untyped_storage().nbytes() if isinstance(value, torch.Tensor) else 0
            nodes[node.name] = (str(node.target) if node.op == "call_function" else "", size)
        text = graph.print_readable(print_output=False, include_stride=True, include_device=True)
        (tmp_path / "net.txt").write_text(text)
        return min_cut_rematerialization_partition(graph, *args, **kwargs)

    def as_is(graph: Any, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    compiled = aot_module(Net(), fw_compiler=as_is, bw_compiler=as_is, partition_fn=partition)
    compiled(torch.randn(2, 3, 32, 32)).backward()
    return nodes, read_foreign(tmp_path / "net.txt", "A100")


def test_every_node_with_a_kernel_is_a_task_and_sizes_are_those_of_its_values(tmp_path: Path) -> None:
    nodes, instance = joint(tmp_path)
    called = [
        name
        for name, (operator, _) in nodes.items()
        if operator.startswith("aten.")
        and not operator.removeprefix("aten.").removeprefix("_unsafe_").startswith(NO_KERNEL)
    ]
    tasks = [task.name.split("(")[1].split(" ")[0] for task in instance.tasks]
    assert [name for name in tasks if name != "tangents"] == called
    for block in instance.blocks:
        assert block.bytes == nodes[block.name][1], block.name
    convolutions = [task for task in instance.tasks if "convolution" in task.name]
    assert len(convolutions) == 2
    assert all(len(task.algorithms) > 1 for task in convolutions)


def test_tags_are_for_nodes_of_the_graph(tmp_path: Path) -> None:
    nodes, instance = joint(tmp_path)
    instance = with_budget(planned(instance), 1 << 30)
    schedule = find_method("torch-compile").call(instance, Limits()).schedule
    assert schedule is not None
    tags = [line.split() for line in torch_tags(instance, schedule).lines]
    assert {name for name, _ in tags} <= set(nodes)
    assert {"MUST_SAVE", "MUST_RECOMPUTE"} == {tag for _, tag in tags}


@pytest.mark.parametrize("budget", [1.0, 0.7, 0.4, 0.0])
def test_what_a_compiled_backward_pass_computes_again_runs_again(tmp_path: Path, budget: float) -> None:
    """Followed, the forward graph of torch gives the second runs of its backward graph, to the operator.

    The joint graph is that of before nodes that compute the same became one, and before the cut.
    """
    nodes: list[set[str]] = []
    texts: list[str] = []

    def text(graph: Any) -> str:
        return str(graph.print_readable(print_output=False, include_stride=True, include_device=True))

    def partition(graph: Any, *args: Any, **kwargs: Any) -> Any:
        texts.append(text(graph))
        parts = min_cut_rematerialization_partition(graph, *args, **kwargs)
        texts.append(text(parts[0]))
        nodes.extend({node.name for node in one.graph.nodes if node.op == "call_function"} for one in parts)
        return parts

    def as_is(graph: Any, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    with functorch_config.patch(activation_memory_budget=budget):
        compiled = aot_module(
            nn.Sequential(Tokens(), Tokens(), Mean()),
            fw_compiler=as_is,
            bw_compiler=as_is,
            partition_fn=partition,
            decompositions=core_aten_decompositions(),
        )
        compiled(torch.randn(2, 16, 32)).backward()
    (tmp_path / "joint.txt").write_text(texts[0])
    (tmp_path / "forward.txt").write_text(texts[1])
    instance = with_budget(planned(read_foreign(tmp_path / "joint.txt", "A100")), 1 << 30)
    schedule = find_method(f"policy:{tmp_path / 'forward.txt'}").call(instance, Limits()).schedule
    assert schedule is not None
    assert check(instance, schedule).valid
    tasks = [task.name.split("(")[1].split(" ")[0] for task in instance.tasks]
    runs = Counter(tasks[o.task] for o in schedule.operations if o.task is not None)
    again = {name for name, count in runs.items() if count > 1}
    assert max(runs.values()) == (1 if budget == 1 else 2)
    assert again == nodes[0] & nodes[1] & set(tasks)


class Tokens(nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm1(x)).unsqueeze(1).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).squeeze(1))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Mean(nn.Module):
    """A loss."""

    def forward(self, x: Any) -> Any:
        return x.square().mean()
