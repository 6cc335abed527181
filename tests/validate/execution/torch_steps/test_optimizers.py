"""Optimizers beside SGD and Adam: they have eager torch's bits, or are refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ....extras import needs_torch

torch = needs_torch()

import pebbler.torch  # noqa: E402
from pebbler.instances.errors import PebblerError  # noqa: E402

from .models import Made  # noqa: E402
from .training import assert_trains_as_eager  # noqa: E402

Optimizer = Callable[[Any], Any]


class Lion(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer that somebody else wrote: signs of a momentum, and decay of the weights."""

    def __init__(self, parameters: Any, lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum, gradient = state["momentum"], parameter.grad
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                direction = momentum.mul(first).add(gradient, alpha=1 - first).sign_()
                parameter.add_(direction, alpha=-group["lr"])
                momentum.mul_(second).add_(gradient, alpha=1 - second)


def made_with(optimizer: Optimizer, warm: int) -> Callable[[int], Made]:
    """A small model, whose optimizer has taken some steps."""

    def make(batch: int) -> Made:
        module = torch.nn.Sequential(
            *(layer for _ in range(3) for layer in (torch.nn.Linear(16, 16, bias=False), torch.nn.Tanh()))
        )
        inputs = (torch.randn(batch, 16),)
        chosen = optimizer(module.parameters())

        def step(x: Any) -> Any:
            return module(x).square().mean()

        for _ in range(warm):
            step(*inputs).backward()
            chosen.step()
            chosen.zero_grad()
        return module, step, inputs, chosen

    return make


@pytest.mark.parametrize(
    ("optimizer", "warm"),
    [
        (lambda parameters: torch.optim.RMSprop(parameters, centered=True, momentum=0.9), 0),
        (torch.optim.Adamax, 0),
        (torch.optim.Adadelta, 0),
        (lambda parameters: torch.optim.Adagrad(parameters, lr_decay=0.1), 0),
        (lambda parameters: torch.optim.Adagrad(parameters, fused=True), 0),
        (lambda parameters: torch.optim.RAdam(parameters, foreach=True), 6),
        (lambda parameters: torch.optim.Muon(parameters), 1),
        (Lion, 1),
    ],
    ids=["rmsprop", "adamax", "adadelta", "adagrad", "fused adagrad", "radam", "muon", "lion"],
)
def test_other_optimizers_have_eagers_bits(optimizer: Optimizer, warm: int) -> None:
    make = made_with(optimizer, warm)
    torch.manual_seed(3)
    plan = pebbler.torch.plan(make, batch=16, budget="1.2xMmin", clip=0.5, method="modnn")
    assert_trains_as_eager(make, plan, steps=3)


@pytest.mark.parametrize(
    ("optimizer", "warm", "told"),
    [
        (Lion, 0, "the step makes state '0.weight momentum' anew; take one step before"),
        (torch.optim.NAdam, 1, "'mu_product' of 0.weight, 'step' of 0.weight in another way in a later step"),
        (torch.optim.ASGD, 1, "reads values that are made without torch's operators"),
        (torch.optim.Rprop, 1, "reads values that are made without torch's operators"),
        (torch.optim.Adafactor, 1, "the optimizer's step failed: it asks for the value of a tensor"),
    ],
    ids=["lion", "nadam", "asgd", "rprop", "adafactor"],
)
def test_optimizers_whose_steps_differ_are_refused(optimizer: Optimizer, warm: int, told: str) -> None:
    with pytest.raises(PebblerError, match=re.escape(told)) as caught:
        pebbler.torch.plan(made_with(optimizer, warm), batch=16, budget="1.2xMmin", method="modnn")
    assert len(str(caught.value).splitlines()) == 1


def test_an_optimizer_that_takes_another_way_later_is_refused_then() -> None:
    """RAdam's sixth step is the first one that divides by the second moments."""
    make = made_with(torch.optim.RAdam, 0)
    plan = pebbler.torch.plan(make, batch=16, budget="1.2xMmin", method="modnn")
    module, _, inputs, optimizer = make(16)
    with plan.bind(module, optimizer) as step:
        for _ in range(5):
            step(*inputs)
        with pytest.raises(PebblerError, match="the optimizer takes another way than when planned"):
            step(*inputs)
