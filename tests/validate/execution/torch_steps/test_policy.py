"""What a plan keeps, copies and computes again, in steps that eager torch takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ....extras import needs_torch

torch = needs_torch()

from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from pebbler.instances.errors import PebblerError  # noqa: E402
from pebbler.validate.execution.torch.policy import TrainingPolicy  # noqa: E402

from .models import cnn, gpt, half, noisy  # noqa: E402
from .training import Make, are_equal, eager_step, made_by, planned, train  # noqa: E402


class LiveBytes(TorchDispatchMode):
    """Most bytes of storages that were alive at once, by weak references."""

    def __init__(self, tensors: Any) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._add(tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        self._add(returned)
        return returned

    def _add(self, tensors: Any) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))


def with_policy(made: Any, policy: TrainingPolicy) -> Callable[..., Any]:
    """A step as eager torch takes it, with a forward pass under the policy."""
    module, step, inputs, optimizer = made

    def forward(*given: Any) -> Any:
        with policy:
            return step(*given)

    return eager_step((module, forward, inputs, optimizer))


def peak_of(made: Any, take: Callable[..., Any]) -> int:
    """What is alive at most in a step that is not the first."""
    module, _, inputs, optimizer = made
    take(*inputs)
    states = [value for state in optimizer.state.values() for value in state.values()]
    with LiveBytes([*module.parameters(), *module.buffers(), *inputs, *states]) as live:
        take(*inputs)
    return live.peak


@pytest.mark.parametrize(
    ("make", "budget", "method", "choice"),
    [
        (gpt, "1.2xMmin", "modnn", "offload"),
        (cnn, "1.2xMmin", "modnn", "offload"),
        (half, "70%", "memonger-rule", "recompute"),
        (noisy, "80%", "memonger-rule", "recompute"),
    ],
)
def test_eager_torch_has_its_bits_with_the_policy_in_less_memory(
    make: Make, budget: str, method: str, choice: str
) -> None:
    again = choice == "recompute"
    plan = planned(make, budget, method=method, recompute=again, weights_as_blocks=not again)
    policy = plan.policy()
    assert choice in policy.choices.values()
    assert f"{choice} " in str(policy)
    eager, ours = made_by(make), made_by(make)
    assert are_equal(train(ours, with_policy(ours, policy), 3), train(eager, eager_step(eager), 3))
    peaks = peak_of(eager, eager_step(eager)), peak_of(ours, with_policy(ours, policy))
    assert peaks[0] == plan.record.eager_peak_bytes
    assert peaks[1] < 0.8 * peaks[0]


def test_what_is_dropped_is_made_again_only_for_the_backward_pass() -> None:
    plan = planned(noisy, "80%", method="memonger-rule", recompute=True, weights_as_blocks=False)
    made = made_by(noisy)
    with plan.policy(), LiveBytes(list(made[0].parameters())) as live:
        made[1](*made[2])
    kept = [plan.policy().choices[name] for name in plan.policy().choices]
    assert kept.count("recompute") > kept.count("keep")
    assert live.peak < plan.record.eager_peak_bytes / 3


def layers(batch: int) -> Any:
    """Modules that are called one by one."""
    module = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(4)
    )

    def step(x: Any, call: Callable[[str, Any], Any] | None = None) -> Any:
        for name, layer in module.named_children():
            x = layer(x) if call is None else call(name, x)
        return x.square().mean()

    return module, step, (torch.randn(16 * batch, 32),), torch.optim.SGD(module.parameters(), lr=0.1)


def test_checkpoints_of_torch_take_the_plan_as_their_policy() -> None:
    plan = planned(layers, "80%", method="memonger-rule", recompute=True, weights_as_blocks=False)
    policy = plan.policy()
    eager, ours = made_by(layers), made_by(layers)
    module, step, inputs, optimizer = ours

    def forward(x: Any) -> Any:
        return step(
            x,
            lambda name, value: checkpoint(
                module[int(name)], value, use_reentrant=False, context_fn=policy.context_fn(name)
            ),
        )

    take = eager_step((module, forward, inputs, optimizer))
    assert are_equal(train(ours, take, 3), train(eager, eager_step(eager), 3))
    assert peak_of(ours, take) < peak_of(eager, eager_step(eager))
    with pytest.raises(PebblerError, match="the planned step has no module 'head' that computes"):
        policy.context_fn("head")


@pytest.mark.parametrize("method", ["memonger-rule", "modnn"])
def test_torchtitan_saves_what_the_plan_keeps_or_copies(method: str) -> None:
    """Each selector names a module and an operator; these have made what the backward pass finds."""
    again = method == "memonger-rule"
    plan = planned(layers, "80%", method=method, recompute=again, weights_as_blocks=False)
    policy = plan.policy()
    selectors = policy.save_ops().split(" | ")
    modules = dict(made_by(layers)[0].named_modules())
    saved = set()
    for module, operator in (selector.split("::") for selector in selectors):
        assert module in modules
        target = torch.ops
        for part in operator.split("."):
            target = getattr(target, part)
        saved.add((module, target))
    makers = {
        (operator.module, operator.overload): {plan.record.storages[s].name for s in operator.outputs}
        for operator in plan.record.operators
        if operator.phase == "forward"
        and operator.kind == "task"
        and operator.module
        and operator.draw is None
    }
    for maker, made in makers.items():
        choices = {policy.choices[name] for name in made if name in policy.choices}
        assert (maker in saved) == bool(choices & {"keep", "offload"}), maker
    assert ("recompute" in policy.choices.values()) == again
    assert saved


def test_another_forward_pass_is_refused_by_name() -> None:
    plan = planned(noisy, "80%", method="memonger-rule", recompute=True, weights_as_blocks=False)
    module, step, inputs, _ = made_by(noisy)
    policy = plan.policy()
    with (
        pytest.raises(PebblerError, match=r"runs aten\.mul\.Tensor where 'FP\(layers\.0 t\)' was planned"),
        policy,
    ):
        step(inputs[0] * 2)
    other = inputs[0][:8]
    with pytest.raises(PebblerError, match=r"'FP\(layers\.0 addmm\)' makes a tensor of shape"), policy:
        step(other)
    with policy, pytest.raises(PebblerError, match="the policy is in use"), policy:
        pass
    with policy:
        step(*inputs).backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
