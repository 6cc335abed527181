"""What is noticed of a module and an optimizer between two steps, without looking at all of it by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from ....extras import needs_torch

torch = needs_torch()

from torch import nn  # noqa: E402
from torch.nn.utils import parametrize  # noqa: E402

from pebbler.instances.importers.torch_step.memory import reference_to  # noqa: E402
from pebbler.instances.importers.torch_step.persistent import find_tensors  # noqa: E402
from pebbler.validate.execution.torch.accepted import Accepted  # noqa: E402

Change = Callable[[nn.Sequential, Any], object]


def trained() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """A module in two groups, behind a step."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4))
    groups = [{"params": [*module[0].parameters()]}, {"params": [*module[1:].parameters()]}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    module(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return module, optimizer


def accepted(module: nn.Module, optimizer: Any) -> Accepted:
    tensors = find_tensors(module, optimizer)
    kept = {name: reference_to(tensor, s) for s, (name, tensor) in enumerate(tensors.items())}
    return Accepted(module, optimizer, tensors, kept)


def set_data(change: Callable[[Any], Any]) -> Change:
    def changed(module: nn.Sequential, _: Any) -> None:
        module[0].weight.data = change(module[0].weight.data)

    return changed


def retyped(module: nn.Sequential, _: Any) -> None:
    buffer = module[1].running_mean
    buffer.data = buffer.data.view(torch.int32)


def rename(module: nn.Sequential, _: Any) -> None:
    module[0].scale = module[0].weight
    del module[0].weight


def move(module: nn.Sequential, _: Any) -> None:
    """The parameters follow each other as before."""
    bias = module[0]._parameters.pop("bias")
    module[1]._parameters = {"bias": bias, **module[1]._parameters}


def parametrized(module: nn.Sequential, _: Any) -> None:
    parametrize.register_parametrization(module[0], "weight", nn.Identity())


def other_state(module: nn.Sequential, optimizer: Any) -> None:
    state = optimizer.state[module[0].weight]
    state["exp_avg"] = state["exp_avg"].clone()


def more_state(module: nn.Sequential, optimizer: Any) -> None:
    optimizer.state[module[0].weight]["more"] = torch.zeros(1)


def other_group(_: nn.Sequential, optimizer: Any) -> None:
    optimizer.param_groups[0]["params"].append(optimizer.param_groups[1]["params"].pop(0))


def gradient(module: nn.Sequential, _: Any) -> None:
    module[3].bias.grad = torch.zeros(4)


CHANGES: dict[str, Change] = {
    "mode": lambda module, _: module[2].eval(),
    "part": lambda module, _: module.__setitem__(3, nn.Linear(4, 4)),
    "kind": lambda module, _: setattr(module[2], "__class__", nn.AlphaDropout),
    "compiled": lambda module, _: setattr(module[0], "_compiled_call_impl", module.forward),
    "parametrized": parametrized,
    "forward hook": lambda module, _: module[0].register_forward_hook(lambda *_: None),
    "hook before": lambda module, _: module[0].register_forward_pre_hook(lambda *_: None),
    "backward hook": lambda module, _: module[0].register_full_backward_hook(lambda *_: None),
    "gradient's hook": lambda module, _: module[0].weight.register_hook(lambda _: None),
    "hook behind": lambda module, _: module[0].weight.register_post_accumulate_grad_hook(lambda _: None),
    "parameter": lambda module, _: setattr(module[0], "weight", nn.Parameter(torch.zeros(4, 4))),
    "no parameter": lambda module, _: setattr(module[0], "bias", None),
    "renamed": rename,
    "moved": move,
    "tied": lambda module, _: setattr(module[3], "weight", module[0].weight),
    "buffer": lambda module, _: module[1].running_mean.set_(torch.zeros(4)),
    "another buffer": lambda module, _: module[1].register_buffer("running_mean", torch.zeros(4)),
    "more buffers": lambda module, _: module[2].register_buffer("more", torch.zeros(4)),
    "place": set_data(torch.clone),
    "order": set_data(torch.t),
    "shape": set_data(torch.flatten),
    "view": set_data(lambda data: data[:2]),
    "type": set_data(torch.Tensor.half),
    "type alone": retyped,
    "shared": lambda module, _: module.share_memory(),
    "frozen": lambda module, _: module[0].weight.requires_grad_(False),
    "gradient": gradient,
    "state": other_state,
    "more states": more_state,
    "fewer states": lambda module, optimizer: optimizer.state.pop(module[0].weight),
    "loaded states": lambda _, optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
    "group": other_group,
    "one group more": lambda _, optimizer: optimizer.add_param_group({"params": [torch.zeros(1)]}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_was_accepted_does_not_hold_after_a_change(change: Change) -> None:
    module, optimizer = trained()
    found = accepted(module, optimizer)
    assert found.holds()
    change(module, optimizer)
    assert not found.holds()


def test_what_was_accepted_holds_while_numbers_change() -> None:
    module, optimizer = trained()
    found = accepted(module, optimizer)
    with torch.no_grad():
        for tensor in find_tensors(module, optimizer).values():
            tensor.add_(1)
    module.load_state_dict(trained()[0].state_dict())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.param_groups[0]["lr"] = 0.5
    module.eval()
    module.train()
    module(torch.randn(8, 4)).sum().backward()
    assert not found.holds(), "there are gradients"
    optimizer.zero_grad()
    assert found.holds()


def test_what_was_accepted_is_found_by_storage_and_by_name() -> None:
    module, _ = trained()
    found = accepted(module, None)
    assert found.trained == {}
    for s, tensor in enumerate(find_tensors(module, None).values()):
        assert found.addresses[s] == tensor.data_ptr()
        assert torch.equal(found.bytes[s], tensor.detach().reshape(-1).view(torch.uint8))
    module, optimizer = trained()
    assert accepted(module, optimizer).trained == dict(module.named_parameters())
