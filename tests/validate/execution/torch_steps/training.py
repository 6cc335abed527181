"""Planned training steps and eager torch's, from the same start."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

import pebbler
import pebbler.torch
from pebbler.instances.memory import with_budget
from pebbler.torch import TrainingPlan
from pebbler.validate.check import check
from pebbler.validate.execution.torch.planned import PlannedStep
from pebbler.validate.execution.torch.step import StepExecutor

BATCH = 16
CLIP = 0.5

Make = Callable[[int], Any]


def made_by(make: Make) -> Any:
    """A module, a step, inputs and an optimizer, always the same."""
    torch.manual_seed(3)
    return make(BATCH)


def planned(make: Make, budget: int | str, **options: Any) -> TrainingPlan:
    torch.manual_seed(3)
    return pebbler.torch.plan(make, budget=budget, clip=CLIP, **{"batch": BATCH, "time_limit": 0.5} | options)


@cache
def recorded(make: Make) -> TrainingPlan:
    """A step in as much memory as it likes."""
    return planned(make, "1GiB", method="network-wide")


def within(plan: TrainingPlan, budget: int | str, method: str = "flow") -> TrainingPlan:
    """The same step within a budget."""
    instance = with_budget(plan.instance, budget)
    result = pebbler.solve(instance, method, time_limit=0.5)
    assert result.schedule is not None, result.stopped_by
    return dataclasses.replace(plan, instance=instance, result=result)


def batches_of(made: Any, count: int) -> list[tuple[Any, ...]]:
    """Other values in every step: inputs in another order."""
    return [tuple(tensor.roll(number, 0) for tensor in made[2]) for number in range(count)]


def state_of(made: Any) -> list[Any]:
    """Everything that outlives a step, and the generator."""
    module, _, _, optimizer = made
    states = [state[key] for state in optimizer.state.values() for key in sorted(state)]
    return [
        *(tensor.clone() for tensor in module.state_dict().values()),
        *(state.clone() for state in states),
        torch.get_rng_state(),
    ]


def are_equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def train(made: Any, take: Callable[..., Any], steps: int) -> list[Any]:
    """Take steps with a schedule of learning rates; return losses, and everything that is left."""
    scheduler = torch.optim.lr_scheduler.StepLR(made[3], 2, 0.5)
    torch.manual_seed(7)
    losses = []
    for batch in batches_of(made, steps):
        losses.append(take(*batch))
        scheduler.step()
    return losses + state_of(made)


def eager_step(made: Any) -> Callable[..., Any]:
    module, step, _, optimizer = made

    def take(*inputs: Any) -> Any:
        loss = step(*inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return take


def executor_of(plan: TrainingPlan, made: Any, **options: Any) -> StepExecutor:
    sizes = [PlannedStep(one.record, one.instance, one.schedule) for one in (plan, *plan.others)]
    return StepExecutor(sizes, made[0], made[3], **options)


def assert_trains_as_eager(make: Make, plan: TrainingPlan, steps: int = 5) -> None:
    assert check(plan.instance, plan.schedule).valid
    assert plan.schedule.peak_bytes <= plan.instance.budget_bytes
    eager, ours = made_by(make), made_by(make)
    wanted = train(eager, eager_step(eager), steps)
    with executor_of(plan, ours, poison=True) as step:
        if not step.plan.pages:
            assert step.plan.areas["pool"] + plan.instance.resident_bytes == plan.instance.budget_bytes
        found = train(ours, step, steps)
        assert all(parameter.grad is None for parameter in ours[0].parameters())
    assert are_equal(found, wanted)
    assert are_equal(state_of(ours)[:-1], wanted[steps:-1]), "in memory of their own, too"
