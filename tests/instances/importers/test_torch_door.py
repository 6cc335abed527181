"""Training code as people write it: what a step may do, and the sentence on what it must not."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.importers.torch_workload import find_step

from ...extras import needs_torch

torch = needs_torch()
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from pebbler.instances.importers.torch_gpu import OnGpu, gpu_kernels  # noqa: E402
from pebbler.instances.importers.torch_graph import record  # noqa: E402

ITERATION = [
    "FP(Linear addmm)",
    "FP(step sum)",
    "BP(step ones_like)",
    "BP(Linear mm)",
    "BP(Linear sum)",
]
"""Operators of a linear layer whose outputs are added up."""


@dataclass
class Output:
    """As Hugging Face's models return."""

    loss: Any
    logits: Any


def linear(step: Callable[[Any, Any], Any]) -> Callable[[int], Any]:
    """Make a step of a function of a linear layer and its input."""

    def make_step(batch: int) -> Any:
        module = nn.Linear(8, 4)
        return module, lambda x: step(module, x), (torch.zeros(batch, 8),)

    return make_step


def operators(step: Callable[[Any, Any], Any]) -> list[str]:
    return [operator.name for operator in record(linear(step), 4).operators]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda loss, y: Output(loss, y),
        lambda loss, y: {"loss": loss, "logits": y},
        lambda loss, y: (loss, y),
        lambda loss, y: [loss, y],
    ],
)
def test_the_loss_may_come_with_other_outputs(wrap: Callable[[Any, Any], Any]) -> None:
    def step(module: Any, x: Any) -> Any:
        y = module(x)
        return wrap(y.sum(), y)

    assert operators(step) == ITERATION


@pytest.mark.parametrize(
    "returned", [lambda loss: loss, lambda loss: loss.detach(), lambda loss: print(f"trained {loss}")]
)
def test_a_step_may_run_the_backward_pass_and_an_optimizer(returned: Callable[[Any], Any]) -> None:
    """The iteration is the same as with a loss that is returned; the optimizer finds nothing to do."""

    def step(module: Any, x: Any) -> Any:
        optimizer = torch.optim.AdamW(module.parameters())
        optimizer.zero_grad()
        loss = module(x).sum()
        loss.backward()
        optimizer.step()
        return returned(loss)

    graph = record(linear(step), 4)
    assert [operator.name for operator in graph.operators] == ITERATION
    assert [storage.name for storage in graph.storages if storage.place == "gradient"] == [
        "dW(weight)",
        "dW(bias)",
    ]


def test_what_follows_the_backward_pass_runs_after_it() -> None:
    def step(module: Any, x: Any) -> None:
        module(x).sum().backward()
        with torch.no_grad():
            x.exp()

    assert operators(step) == [*ITERATION, "BP(step exp)"]


def test_what_goes_to_a_gpu_is_there_already() -> None:
    def make_step(batch: int) -> Any:
        module = nn.Linear(8, 4).cuda().to("cuda:0")

        def step(x: Any) -> Any:
            x = x.pin_memory().to(torch.device("cuda"), non_blocking=True).cuda()
            return (module(x) + torch.empty(4, device="cuda")).sum()

        return module, step, (torch.zeros(batch, 8, device="cuda"),)

    names = [operator.name for operator in record(make_step, 4).operators]
    assert names == [ITERATION[0], "FP(step add)", *ITERATION[1:]]


LINES = {
    "log(float(loss))": "it asks for the value of a tensor",
    "log(loss.item())": "it asks for the value of a tensor",
    "log(loss.tolist())": "it asks for the value of a tensor",
    "log(f'{loss:.3f}')": "it asks for the value of a tensor",
    "log(1 if loss > 0 else 2)": "decide by torch.where",
    "assert torch.isfinite(loss)": "decide by torch.where",
    "loss = loss + x[x > 0].sum()": "the shape of a result depends on values",
    "loss = loss + torch.unique(x).sum()": "mask with torch.where",
    "torch.nn.utils.rnn.pack_padded_sequence(y[:, None], x[0].long())": "leave them padded",
    "log(loss.detach().cpu().numpy())": "it makes a NumPy array of a tensor",
    "torch.cuda.synchronize()": "it asks for CUDA, which recording does without",
    "torch.cuda.set_device(0)": "it asks for CUDA, which recording does without",
    "model.cuda()": "move it in make_step",
    "loss.backward(), loss.backward()": "a step has one backward pass, and this is another",
    "y.backward()": "backward() starts from one number",
    "torch.autograd.backward(loss)": "it runs a backward pass of its own",
    "loss = loss + x @ y": "RuntimeError: ",
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_cannot_be_recorded_is_named_with_the_remedy(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if "cuda" in line and torch.cuda.is_available():
        pytest.skip("torch has a GPU here")
    name = f"door_{list(LINES).index(line)}"
    code = f"""
    import torch


    def make_step(batch):
        model = torch.nn.Linear(8, 4)
        log = [].append

        def step(x):
            y = model(x)
            loss = y.sum()
            {line}
            return loss

        return model, step, (torch.zeros(batch, 8),)
    """
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PebblerError) as caught:
        record(find_step(f"{name}:make_step"), 4)
    sentence = str(caught.value)
    where = f"the step failed at {name}.py:12, '{line}': "
    if "autograd" in line:
        where = "the backward pass failed: "
    assert sentence.startswith(where)
    assert LINES[line] in sentence
    assert "\n" not in sentence
    assert capfd.readouterr().err == ""  # torch's own log of the traceback among it


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (lambda module, x: print(module, x), "None"),
        (lambda module, x: module(x), "16 values"),
        (lambda module, x: module(x).sum().detach(), "a number that depends on no parameter"),
        (lambda module, x: Output(None, module(x)), "Output without one"),
        (lambda module, x: {"scores": module(x)}, "dict without one"),
        (lambda module, x: len(module(x)), "int without one"),
    ],
)
def test_a_step_without_a_loss_is_named(returned: Callable[[Any, Any], Any], found: str) -> None:
    with pytest.raises(PebblerError, match=re.escape(f"no loss to train with but {found}: ")) as caught:
        record(linear(returned), 4)
    assert re.match(r"the step at \S*test_torch_door\.py:\d+ returned", str(caught.value))


# --- autocast -----------------------------------------------------------------------------------------


class Precisions(TorchDispatchMode):
    """Notes what runs, with the precision of every operand and result."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[str, list[str], list[str]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not func._schema.name.startswith("prim::"):
            self.noted.append((func._schema.name, *map(self._precisions, ((args, kwargs), out))))
        return out

    @staticmethod
    def _precisions(tree: Any) -> list[str]:
        return [str(leaf.dtype) for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def many_operators(dtype: Any) -> None:
    """Operators of every rule of autocast, on half and single precision."""

    def empty(*sizes: int, **options: Any) -> Any:
        return torch.empty(*sizes, device="cuda", **options)

    x, weight, bias = empty(4, 6, 16), empty(16, 16), empty(16)
    image, kernel, labels = empty(4, 3, 8, 8), empty(5, 3, 3, 3), empty(24, dtype=torch.long)
    with torch.autocast("cuda", dtype=dtype):
        h = F.linear(x, weight, bias)
        y = F.linear(F.layer_norm(h, (16,)), weight) + x
        torch.matmul(F.softmax(F.linear(y, weight), -1), h.transpose(-1, -2))
        c = F.conv2d(image, kernel)
        F.group_norm(c, 5)
        c = F.relu(F.max_pool2d(F.silu(F.gelu(c)), 2))
        F.interpolate(c, scale_factor=2, mode="bilinear")
        F.pad(c, (1, 1, 1, 1), mode="reflect")
        F.adaptive_avg_pool2d(c, 1), F.avg_pool2d(c, 2), F.max_pool3d(c.unsqueeze(0), 2)
        torch.cat((h, x)), torch.stack((h, h)), torch.addcmul(h, x, y), torch.mv(weight, bias)
        h.index_put((empty(2, dtype=torch.long),), empty(2, 6, 16))
        h.pow(2).mean(-1, keepdim=True).rsqrt(), h.exp(), h.sum(), h.mean(), h.cumsum(-1), h.norm()
        F.rms_norm(h, (16,)), F.mse_loss(h, x), F.smooth_l1_loss(h, x), F.log_softmax(h, -1)
        F.softmax(h, -1, dtype=torch.float64), F.binary_cross_entropy_with_logits(h, x)
        F.cross_entropy(F.linear(y, weight).flatten(0, 1), labels)


@pytest.fixture
def _cuda_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch run its own autocast for CUDA on tensors that have no memory, forward only."""
    if torch.version.cuda and not torch.cuda.is_available():
        pytest.skip("torch is built with CUDA and has no GPU: it makes no tensors of CUDA")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    torch._C._ensureCUDADeviceGuardSet()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.usefixtures("_cuda_without_a_gpu")
def test_autocast_chooses_the_precisions_that_it_chooses_for_cuda(dtype: Any) -> None:
    with FakeTensorMode(), torch.no_grad(), Precisions() as cuda:
        many_operators(dtype)
    with gpu_kernels(), FakeTensorMode(), torch.no_grad(), Precisions() as ours, OnGpu("cpu"):
        many_operators(dtype)
    assert len(cuda.noted) > 70
    assert ours.noted == cuda.noted


@pytest.mark.parametrize(
    ("options", "size"), [({}, 2), ({"dtype": torch.bfloat16}, 2), ({"enabled": False}, 4)]
)
@pytest.mark.parametrize("early", [False, True])
def test_a_step_with_autocast_for_cuda_is_recorded_in_half_precision(
    options: dict[str, Any], size: int, early: bool
) -> None:
    def make_step(batch: int) -> Any:
        module = nn.Linear(8, 4)
        made = torch.autocast("cuda", **options) if early else None

        def step(x: Any) -> Any:
            with made or torch.amp.autocast("cuda", **options):
                y = module(x)
                return F.cross_entropy(y, x[:, 0].long()) + y.sum()

        return module, step, (torch.zeros(batch, 8),)

    graph = record(make_step, 6)
    outputs = {o.name: [graph.storages[d].bytes for d in o.outputs] for o in graph.operators}
    assert outputs["FP(Linear addmm)"] == [6 * 4 * size]
    assert outputs["FP(step sum)"] == [4]
    gradients = {s.name: s.bytes for s in graph.storages if s.place == "gradient"}
    assert gradients == {"dW(weight)": 4 * 8 * 4, "dW(bias)": 4 * 4}


def test_autocast_is_torchs_own_again() -> None:
    before = torch.autocast.__init__
    record(linear(lambda module, x: module(x).sum()), 2)
    assert torch.autocast.__init__ is before
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.softmax(torch.ones(2, 2, dtype=torch.bfloat16), -1).dtype is torch.bfloat16
