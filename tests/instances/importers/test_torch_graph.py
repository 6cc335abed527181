from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.importers.operators import Operator, OperatorGraph
from pebbler.instances.importers.torch_workload import TorchWorkload, find_step
from pebbler.instances.memory import least_budget, unlimited_peak
from pebbler.solver.solve import solve

from ...extras import needs_torch, single_precision
from ...samples import mostly_slow

torch = needs_torch()
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed._tools.mem_tracker import MemTracker  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from pebbler.benchmark.gpu.torch_models import (  # noqa: E402
    Gpt,
    ResNet,
    VisionTransformer,
    gpt2,
    image_step,
    language_step,
    resnet50,
    vit_l,
)
from pebbler.instances.importers.torch_graph import record  # noqa: E402

FLOAT = 4


def small_gpt(batch: int) -> Any:
    return language_step(Gpt(300, 32, 32, 3, 2), batch, 32)


def small_resnet(batch: int) -> Any:
    return image_step(ResNet((2, 2), 8, 10), batch, 32)


def small_vit(batch: int) -> Any:
    return image_step(VisionTransformer(32, 32, 2, 4, 10), batch, 32)


def lstm(batch: int) -> Any:
    module = nn.LSTM(16, 24, 2)
    return module, lambda x: module(x)[0].sum(), (torch.zeros(6, batch, 16),)


class Slices(nn.Module):
    """Writes parts of tensors in place, adds gradients that meet, and has no module for its operators."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(20, 30)
        self.shift = nn.Parameter(torch.zeros(30))
        self.last = nn.Linear(30, 5)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.first(x))
        y = torch.empty_like(x)
        y[:, :15] = x[:, 15:]
        y[:, 15:] = 2
        y = F.gelu(y + self.shift) + x
        return self.last(y).square().mean()


def slices(batch: int) -> Any:
    module = Slices()
    return module, module, (torch.zeros(batch, 20),)


def of(graph: OperatorGraph, name: str) -> Operator:
    (found,) = (operator for operator in graph.operators if operator.name == name)
    return found


def names(graph: OperatorGraph, storages: tuple[int, ...]) -> list[str]:
    return [graph.storages[d].name for d in storages]


def peak_bytes(graph: OperatorGraph) -> int:
    """Most that is alive while an operator runs, inputs aside: data and constants until their last use.

    The caller holds on to the loss, and torch to the gradient that it starts from.
    """
    count = len(graph.operators)
    uses: dict[int, list[int]] = {}
    for k, operator in enumerate(graph.operators):
        for d in (*operator.inputs, *operator.outputs, *operator.updates):
            uses.setdefault(d, []).append(k)
    start = of(graph, "BP(step ones_like)")
    held = {*start.inputs, *start.outputs}
    change = [0] * (count + 1)
    for d, storage in enumerate(graph.storages):
        if storage.place == "input":
            continue
        first = 0 if storage.place in ("parameter", "buffer") else uses[d][0]
        last = uses[d][-1] if storage.place in ("data", "constant") and d not in held else count - 1
        change[first] += storage.bytes
        change[last + 1] -= storage.bytes
    return max(accumulate(change))


def tracked_peak(make_step: Callable[[int], Any], batch: int) -> int:
    """Peak that torch measures while the model really runs, without the inputs."""
    tracker = MemTracker()
    module, step, inputs = make_step(batch)
    tracker.track_external(module, *inputs)
    onednn = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with tracker:
            loss = step(*inputs)
            torch.autograd.grad(loss, list(module.parameters()))
    finally:
        torch._C._set_mkldnn_enabled(onednn)
    (total,) = {
        device["Total"] for device in tracker.get_tracker_snapshot("peak").values() if device["Total"]
    }
    return int(total) - sum(tensor.untyped_storage().nbytes() for tensor in inputs)


@pytest.mark.parametrize("make_step", [small_gpt, small_resnet, small_vit, lstm, slices])
@pytest.mark.parametrize("batch", mostly_slow((2, 5), (2,)))
def test_the_peak_is_what_torch_measures(make_step: Callable[[int], Any], batch: int) -> None:
    assert peak_bytes(record(make_step, batch)) == tracked_peak(make_step, batch)


@pytest.mark.parametrize("make_step", [small_gpt, small_resnet, small_vit, lstm, slices])
def test_parameters_and_gradients_are_resident_and_shared_ones_counted_once(
    make_step: Callable[[int], Any],
) -> None:
    module, _, _ = make_step(2)
    weights = sum(FLOAT * tensor.numel() for tensor in module.parameters())
    buffers = sum(tensor.numel() * tensor.element_size() for tensor in module.buffers())
    graph = record(make_step, 2)
    constants = sum(storage.bytes for storage in graph.storages if storage.place == "constant")
    assert graph.resident_bytes == 2 * weights + buffers + constants
    assert {storage.place for storage in graph.storages} >= {"parameter", "gradient", "input", "data"}


def test_views_launch_nothing_and_share_a_block() -> None:
    module = nn.Linear(6, 6, bias=False)

    def step(x: Any) -> Any:
        return module(x.view(3, 2, 6).transpose(0, 1)[1:]).unsqueeze(0).sum()

    graph = record(lambda _: (module, step, (torch.zeros(6, 6),)), 1)
    names = [operator.name for operator in graph.operators]
    assert names == [
        "FP(Linear mm)",
        "FP(step sum)",
        "BP(step ones_like)",
        "BP(Linear mm)",
    ]


def test_operators_in_place_update_their_block() -> None:
    graph = record(small_resnet, 2)
    relu = of(graph, "FP(4.relu relu_)")
    assert relu.inputs == relu.outputs == ()
    assert names(graph, relu.updates) == ["FP(4.norm1 native_batch_norm)[0]"]
    norm = of(graph, "BP(4.norm1 native_batch_norm_backward)")
    assert names(graph, norm.outputs) == [
        "BP(4.norm1 native_batch_norm_backward)[0]",
        "dW(4.norm1.weight)",
        "dW(4.norm1.bias)",
    ]


def test_memory_that_is_only_allocated_appears_with_its_first_write() -> None:
    graph = record(slices, 2)
    first, second = of(graph, "FP(Slices copy_)"), of(graph, "FP(Slices fill_)")
    assert len(first.outputs) == 1
    assert second.updates == first.outputs


def test_tasks_are_named_after_modules_in_both_passes() -> None:
    graph = record(small_gpt, 2)
    for k in range(3):
        assert of(graph, f"FP(blocks.{k}.up addmm)").module_kind == "Linear"
        assert of(graph, f"BP(blocks.{k}.up mm #2)").module == f"blocks.{k}.up"
        assert of(graph, f"BP(blocks.{k} gelu_backward)").direction == "backward"
    assert of(graph, "FP(step nll_loss_forward)").module_kind == "function"


def test_a_module_that_is_called_twice_is_numbered() -> None:
    module = nn.Linear(4, 4)
    graph = record(lambda b: (module, lambda x: module(module(x)).sum(), (torch.zeros(b, 4),)), 3)
    assert names(graph, of(graph, "FP(Linear addmm #2)").inputs)[1] == "FP(Linear addmm)"


def test_products_of_experts_have_the_operations_of_their_rows() -> None:
    """Eight tokens with one expert each: forward, and backward for them and for the weights."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.zeros(2, 32, 64, dtype=torch.bfloat16))

        def forward(self, x: Any) -> Any:
            ends = torch.tensor([16, 32], dtype=torch.int32)
            return torch._grouped_mm(x, self.weights, ends)

    def make(batch: int) -> tuple[Any, ...]:
        module = Experts()
        x = torch.zeros(batch, 32, dtype=torch.bfloat16, requires_grad=True)
        return module, lambda x: module(x * 2).float().sum(), (x,)

    found = [one for one in record(make, 32).operators if "grouped_mm" in one.name]
    assert [one.flops for one in found] == [2 * 32 * 32 * 64] * len(found)
    assert len(found) >= 2


def test_flops_and_bytes_of_a_layer() -> None:
    module = nn.Linear(30, 50)
    graph = record(lambda b: (module, lambda x: module(x).sum(), (torch.zeros(b, 30),)), 7)
    product = of(graph, "FP(Linear addmm)")
    assert product.flops == 2 * 7 * 30 * 50
    assert product.elements == 7 * 50
    assert product.moved_bytes == FLOAT * (7 * 30 + 30 * 50 + 50 + 7 * 50)
    assert of(graph, "FP(step sum)").flops == 0
    assert of(graph, "FP(step sum)").moved_bytes == FLOAT * (7 * 50 + 1)


def test_attention_counts_its_two_products_forward_and_five_backward() -> None:
    module = nn.Linear(8, 8)

    def step(x: Any) -> Any:
        y = module(x).view(1, 2, 5, 8)
        return F.scaled_dot_product_attention(y, y, y).sum()

    graph = record(lambda _: (module, step, (torch.zeros(10, 8),)), 1)
    forward, backward = (operator.flops for operator in graph.operators if "attention" in operator.name)
    once = 2 * 2 * 5 * 5 * 8
    assert (forward, backward) == (2 * once, 5 * once)


def test_convolutions_have_algorithms_and_odd_ones_a_single_kernel() -> None:
    def make(**options: Any) -> Callable[[int], Any]:
        module = nn.Conv2d(16, 32, 3, **options)
        return lambda b: (
            module,
            lambda x: module(x).sum(),
            (torch.zeros(b, 16, 20, 20, requires_grad=True),),
        )

    graph = record(make(padding=1), 4)
    forward, backward = (of(graph, "FP(Conv2d convolution)"), of(graph, "BP(Conv2d convolution_backward)"))
    assert forward.passes == ("FP",)
    assert backward.passes == ("BP2",)
    assert forward.convolution == backward.convolution
    assert forward.convolution is not None
    assert forward.convolution.input_bytes == FLOAT * 4 * 16 * 20 * 20
    assert forward.convolution.output_bytes == FLOAT * 4 * 32 * 20 * 20
    assert forward.flops == 2 * 4 * 20 * 20 * 16 * 32 * 9
    odd = record(make(dilation=2), 4)
    assert all(operator.convolution is None for operator in odd.operators)
    assert of(odd, "FP(Conv2d convolution)").flops == 2 * 4 * 16 * 16 * 16 * 32 * 9


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_convolutions_in_half_precision_have_algorithms_and_numbers_of_two_bytes(kind: str) -> None:
    dtype = getattr(torch, kind)

    def make_step(batch: int) -> Any:
        module = nn.Conv2d(16, 32, 3, padding=1, dtype=dtype)
        return module, lambda x: module(x).sum(), (torch.zeros(batch, 16, 20, 20, dtype=dtype),)

    forward = of(record(make_step, 4), "FP(Conv2d convolution)")
    assert forward.convolution is not None
    assert forward.convolution.input_bytes == 2 * 4 * 16 * 20 * 20
    instance = TorchWorkload("x", 4, "A100", make_step=make_step).instance("1GiB")
    (task,) = (task for task in instance.tasks if task.name == "FP(Conv2d convolution)")
    assert [item.name for item in task.algorithms] == ["implicit-gemm", "implicit-precomp-gemm"]


def test_a_transposed_convolution_is_the_one_that_it_is_the_backward_pass_of() -> None:
    module = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ConvTranspose2d(8, 4, 2, stride=2))
    graph = record(lambda b: (module, lambda x: module(x).sum(), (torch.zeros(b, 8, 5, 5),)), 3)
    forward, backward = of(graph, "FP(1 convolution)"), of(graph, "BP(1 convolution_backward)")
    assert (forward.passes, backward.passes) == (("BP1",), ("BP2", "FP"))
    assert forward.convolution is not None
    assert (forward.convolution.in_channels, forward.convolution.in_height) == (4, 10)
    assert (forward.convolution.out_channels, forward.convolution.out_height) == (8, 5)


def test_dropout_keeps_a_mask_of_bytes_and_none_in_attention() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
            self.dropout = nn.Dropout(0.1)

        def forward(self, x: Any) -> Any:
            return self.dropout(self.attention(x, x, x, need_weights=False)[0]).sum()

    module = Dropping()
    graph = record(lambda b: (module, module, (torch.zeros(b, 10, 16),)), 3)
    _, mask = of(graph, "FP(dropout native_dropout)").outputs
    assert graph.storages[mask].bytes == 3 * 10 * 16
    scores = 3 * 2 * 10 * 10
    assert not [storage for storage in graph.storages if storage.bytes in (scores, FLOAT * scores)]
    assert F.dropout.__module__ == "torch.nn.functional"


def test_parameters_that_are_frozen_or_not_used_have_no_gradient() -> None:
    module = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)])
    module[0].requires_grad_(False)
    graph = record(lambda b: (module, lambda x: module[1](module[0](x)).sum(), (torch.zeros(b, 4),)), 2)
    gradients = [storage.name for storage in graph.storages if storage.place == "gradient"]
    assert sorted(gradients) == ["dW(1.bias)", "dW(1.weight)"]


def test_an_optimizer_behind_the_inputs_is_left_out() -> None:
    def make(batch: int) -> Any:
        made = small_gpt(batch)
        return *made, torch.optim.AdamW(made[0].parameters())

    plain, trained = record(small_gpt, 2), record(make, 2)
    assert [operator.name for operator in plain.operators] == [
        operator.name for operator in trained.operators
    ]


def test_recording_twice_gives_the_same_graph() -> None:
    first, second = record(small_resnet, 3), record(small_resnet, 3)
    assert (first.storages, first.operators) == (second.storages, second.operators)


@pytest.mark.parametrize(
    ("make_step", "sentence"),
    [
        (lambda b: nn.Linear(b, b), "make_step returned something else"),
        (lambda b: (nn.Linear(b, b), print, [torch.zeros(b)]), "make_step returned something else"),
        (lambda b: (nn.Linear(b, b), lambda x: x, (torch.zeros(b),)), "returned no loss to train with"),
        (lambda b: nn.Linear(b, 1 // 0), r"make_step\(2\) failed at .*: ZeroDivisionError"),
        (
            lambda b: (m := nn.Linear(b, b), lambda x: m(x).sum() * float(x.sum()), (torch.zeros(b),)),
            "the step failed at .*: it asks for the value of a tensor",
        ),
        (
            lambda b: (m := nn.Linear(b, b), lambda x: m(x[1:]).sum(), (torch.zeros(b),)),
            "the step failed at .*test_torch_graph.py:",
        ),
        (
            lambda b: (m := nn.Sequential(nn.Flatten(), nn.LazyLinear(1)), m, (torch.zeros(b, 3),)),
            "'weight' of a LazyLinear has no shape yet: give the layer its sizes",
        ),
    ],
)
def test_what_cannot_be_recorded_is_said_in_a_sentence(
    make_step: Callable[[int], Any], sentence: str
) -> None:
    with pytest.raises(PebblerError, match=sentence) as caught:
        record(make_step, 2)
    assert "\n" not in str(caught.value)


class Mixed(nn.Module):
    """A convolution in single precision, and products in half precision, bfloat16 and single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(3, 8, 3)
        self.fp16 = nn.Linear(8, 8, dtype=torch.float16)
        self.bf16 = nn.Linear(8, 8)
        self.single = nn.Linear(8, 2)

    def forward(self, images: Any) -> Any:
        x = self.fp16(self.convolve(images).mean((2, 3)).half()).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.bf16(x)
        return self.single(x.float())


def mixed(batch: int) -> Any:
    module = Mixed()
    return module, lambda images: module(images).sum(), (torch.zeros(batch, 3, 16, 16),)


def precisions() -> dict[str, set[str]]:
    """Per module, those of its products and convolutions, forward and backward."""
    found: dict[str, set[str]] = {}
    for operator in record(mixed, 2).operators:
        if operator.flops:
            found.setdefault(operator.module, set()).add(operator.precision)
    return found


@pytest.fixture
def settings() -> Iterator[tuple[Any, Any]]:
    """Torch's settings of single precision in products and convolutions, which are as before in the end."""
    with single_precision() as both:
        yield both


def test_products_have_the_precision_of_their_operands_and_tf32_where_torch_uses_it(
    settings: tuple[Any, Any],
) -> None:
    given = {"convolve": {"tf32"}, "fp16": {"fp16"}, "bf16": {"bf16"}, "single": {"fp32"}}
    assert precisions() == given
    settings[0].fp32_precision, settings[1].fp32_precision = "tf32", "ieee"
    assert precisions() == {**given, "convolve": {"fp32"}, "single": {"tf32"}}


def test_bfloat16_is_faster_where_the_device_has_tensor_cores() -> None:
    def brain(device: str) -> int:
        instance = TorchWorkload("x", 4096, device, make_step=wide).instance(0, check_budget=False)
        return sum(task.algorithms[-1].duration_ns for task in instance.tasks if "mm" in task.name)

    def wide(batch: int) -> Any:
        module = nn.Linear(4096, 4096, dtype=kind)
        return module, lambda x: module(x).sum(), (torch.zeros(batch, 4096, dtype=kind),)

    times = {}
    for kind in (torch.float32, torch.bfloat16):
        times[kind] = {device: brain(device) for device in ("k40", "a100", "rtx4090")}
    single, half = times[torch.float32], times[torch.bfloat16]
    assert single["k40"] == half["k40"]
    assert 10 < single["a100"] / half["a100"] < 16
    assert 1.9 < single["rtx4090"] / half["rtx4090"] < 2.1


def test_a_workload_gives_the_instance_of_any_sub_batch() -> None:
    workload = TorchWorkload("tests:small_resnet", 6, "k40", make_step=small_resnet)
    assert workload.rounds(4) == [(4, 1), (2, 1)]
    whole, part = workload.instance("50%"), workload.instance("12GiB", 3, rounds=2)
    assert whole.name == "tests-small_resnet-b6"
    assert whole.budget_bytes == -(-unlimited_peak(whole) // 2)
    assert (part.rounds, part.made_from.sub_batch) == (2, 3)
    assert "batch norm" in str(part.made_from.notes)
    assert whole.made_from.notes is None
    assert sum(block.bytes for block in whole.blocks) > 1.9 * sum(block.bytes for block in part.blocks)
    assert workload.floor() == least_budget(workload.instance(0, 1, check_budget=False))


def test_only_the_executable_graph_with_resident_weights() -> None:
    with pytest.raises(PebblerError, match="executable graph"):
        TorchWorkload("x", 1, "k40", "paper", make_step=small_gpt)
    with pytest.raises(PebblerError, match="resident weights"):
        TorchWorkload("x", 1, "k40", weights_as_blocks=True, make_step=small_gpt)
    with pytest.raises(PebblerError, match="no steady state"):
        TorchWorkload("x", 1, "k40", steady=True, make_step=small_gpt)


@pytest.mark.parametrize("method", ["vdnn-all-p", "modnn"])
def test_a_recorded_model_can_be_scheduled(method: str) -> None:
    instance = TorchWorkload("x", 4, "k40", make_step=small_resnet).instance("80%")
    assert solve(instance, method).schedule is not None


def test_the_step_is_found_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_steps.py").write_text("number = 3\n\n\ndef make_step(batch):\n    return batch\n")
    (tmp_path / "my_broken_steps.py").write_text("import nothing_of_that_name\n")
    assert find_step("my_steps:make_step")(5) == 5  # type: ignore[comparison-overlap]
    for spec, sentence in {
        "my_steps": "names no function",
        "my_steps:other": "has no function 'other'",
        "my_steps:number": "has no function 'number'",
        "no_such_steps:make_step": "'no_such_steps' cannot be imported: ModuleNotFoundError",
        "my_broken_steps:make_step": "nothing_of_that_name",
    }.items():
        with pytest.raises(PebblerError, match=sentence):
            find_step(spec)


@pytest.mark.parametrize(
    ("make_step", "parameters"), [(gpt2, 124_439_808), (resnet50, 25_557_032), (vit_l, 304_326_632)]
)
def test_the_measured_models_have_the_public_number_of_parameters(
    make_step: Callable[[int], Any], parameters: int
) -> None:
    with torch.device("meta"):
        module, _, _ = make_step(1)
    assert sum(tensor.numel() for tensor in module.parameters()) == parameters


@pytest.mark.slow
@pytest.mark.parametrize(("make_step", "batch"), [(resnet50, 256), (gpt2, 8), (vit_l, 32)])
def test_the_peak_of_whole_models_is_what_torch_measures(make_step: Callable[[int], Any], batch: int) -> None:
    with FakeTensorMode():
        measured = tracked_peak(make_step, batch)
    assert peak_bytes(record(make_step, batch)) == measured
