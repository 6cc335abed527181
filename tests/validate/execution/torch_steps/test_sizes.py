"""One plan for batches of several sizes: the memory changes hands between their programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ....extras import needs_torch

torch = needs_torch()

from torch import nn  # noqa: E402

import pebbler.torch  # noqa: E402
from pebbler.instances.errors import PebblerError  # noqa: E402
from pebbler.torch import TrainingPlan  # noqa: E402
from pebbler.validate.check import check  # noqa: E402
from pebbler.validate.execution.device import DeviceError  # noqa: E402

from .models import Made, adamw, cnn, gpt, noisy  # noqa: E402
from .training import (  # noqa: E402
    BATCH,
    Make,
    are_equal,
    eager_step,
    executor_of,
    made_by,
    planned,
    state_of,
)

LAST = 5
SIZES = (BATCH, BATCH, LAST, BATCH, LAST)


def masked(batch: int) -> Made:
    """With a constant for each row, so that other sizes have other resident memory."""
    module, step, inputs, optimizer = noisy(batch)
    weights = torch.arange(1.0, 64 * batch + 1).sqrt()

    def weighted(x: Any) -> Any:
        return step(x * weights[: len(x), None])

    return module, weighted, inputs, optimizer


def batches(make: Make, sizes: tuple[int, ...]) -> list[tuple[Any, ...]]:
    found = []
    for number, size in enumerate(sizes):
        torch.manual_seed(number)
        found.append(make(size)[2])
    return found


def trained(made: Any, take: Callable[..., Any], given: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Take a step with each batch, with a schedule of learning rates; return what there is after each."""
    scheduler = torch.optim.lr_scheduler.StepLR(made[3], 2, 0.5)
    torch.manual_seed(7)
    found = []
    for batch in given:
        loss = take(*batch)
        found.append([loss, *state_of(made)])
        scheduler.step()
    return found


def assert_trains_as_eager(make: Make, plan: TrainingPlan, *, poison: bool) -> None:
    eager, ours = made_by(make), made_by(make)
    given = batches(make, SIZES)
    wanted = trained(eager, eager_step(eager), given)
    budget = plan.instance.budget_bytes
    for size in (plan, *plan.others):
        assert check(size.instance, size.schedule).valid
        assert size.schedule.peak_bytes <= size.instance.budget_bytes == budget
    with executor_of(plan, ours, poison=poison) as step:
        if step.plan.pages:
            assert step.plan.pages * step.plan.page_bytes + plan.instance.resident_bytes <= budget
        else:
            assert step.plan.areas["pool"] + plan.instance.resident_bytes == budget
        assert step.plan.areas["resident"] <= plan.instance.resident_bytes
        for number, (one, other) in enumerate(zip(trained(ours, step, given), wanted, strict=True)):
            assert are_equal(one, other), f"step {number}, of {SIZES[number]}"
    assert are_equal(state_of(ours)[:-1], wanted[-1][1:-1]), "in memory of their own, too"


@pytest.mark.parametrize(("make", "poison"), [(gpt, False), (cnn, True)])
def test_batches_of_two_sizes_train_as_in_eager_torch(make: Make, poison: bool) -> None:
    plan = planned(make, "1.3xMmin", batch=(BATCH, LAST), method="modnn")
    first, last = (
        {state.block: state.device for state in one.schedule.states} for one in (plan, *plan.others)
    )
    assert first != last, "something is on the device at the end of one size, and on the host of the other"
    assert_trains_as_eager(make, plan, poison=poison)


def test_batches_of_two_sizes_in_paged_memory() -> None:
    plan = planned(noisy, "40MiB", batch=(BATCH, LAST), method="modnn", memory="paged")
    assert any(operation.kind == "prefetch" for operation in plan.schedule.operations)
    assert_trains_as_eager(noisy, plan, poison=False)


def test_batches_of_two_sizes_with_operators_that_run_again() -> None:
    plan = planned(
        noisy,
        "80%",
        batch=(BATCH, LAST),
        recompute=True,
        method="memonger-rule",
        weights_as_blocks=False,
    )
    runs = [operation.task for operation in plan.schedule.operations if operation.task is not None]
    assert len(runs) > len({*runs})
    assert_trains_as_eager(noisy, plan, poison=True)


def test_pools_are_of_one_size_where_constants_are_not() -> None:
    plan = planned(masked, "1.2xMmin", batch=(LAST, BATCH), method="modnn")
    constants = [
        sum(storage.bytes for storage in one.record.storages if storage.role == "constant")
        for one in (plan, *plan.others)
    ]
    assert constants[0] < constants[1]
    assert_trains_as_eager(masked, plan, poison=True)


@pytest.fixture(scope="module")
def both() -> TrainingPlan:
    return planned(cnn, "1.3xMmin", batch=(BATCH, LAST), method="modnn")


def test_a_size_that_was_not_planned_is_refused_with_those_that_were(both: TrainingPlan) -> None:
    made = made_by(cnn)
    with both.bind(made[0], made[3]) as step:
        before = state_of(made)
        told = (
            "input 0 is float32 of shape (8, 3, 16, 16), and was float32 of shape (16, 3, 16, 16) or "
            "float32 of shape (5, 3, 16, 16) when planned; plan the step anew for it"
        )
        with pytest.raises(PebblerError, match=re.escape(told)):
            step(*(tensor[:8] for tensor in made[2]))
        mixed = made[2][0][:LAST], made[2][1]
        with pytest.raises(
            PebblerError, match=re.escape("input 1 is int64 of shape (16,), and was int64 of")
        ):
            step(*mixed)
        assert are_equal(state_of(made), before)


def test_a_step_that_fails_behind_one_of_another_size_leaves_everything_as_before_it(
    both: TrainingPlan,
) -> None:
    eager, ours = made_by(cnn), made_by(cnn)
    given = batches(cnn, SIZES)[1:4]
    wanted = trained(eager, eager_step(eager), given)
    step = both.bind(ours[0], ours[3])
    trained(ours, step, given[:-1])
    images, classes = given[-1]
    with pytest.raises(DeviceError, match="are as before the step"):
        step(images, torch.full_like(classes, 99))
    assert are_equal(state_of(ours), wanted[-2][1:])


def test_the_plan_tells_of_each_size(both: TrainingPlan) -> None:
    assert [plan.batch for plan in (both, *both.others)] == [BATCH, LAST]
    assert str(both).count("peak memory") == 2


def growing(batch: int) -> Made:
    """A module that depends on the batch size."""
    module = nn.Linear(batch, 1)
    return module, lambda x: module(x).sum(), (torch.ones(1, batch),), adamw(module)


def fixed(batch: int) -> Made:  # noqa: ARG001
    """Inputs that do not depend on the batch size."""
    module = nn.Linear(4, 1)
    return module, lambda x: module(x).sum(), (torch.ones(2, 4),), adamw(module)


def choosy(batch: int) -> Made:
    """A part of the module that small batches do not use."""
    module = nn.ModuleList((nn.Linear(4, 4), nn.Linear(4, 4)))

    def step(x: Any) -> Any:
        return (module[0](x) if len(x) <= LAST else module[1](module[0](x))).sum()

    return module, step, (torch.ones(batch, 4),), torch.optim.SGD(module.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("make", "sizes", "told"),
    [
        (growing, (BATCH, LAST), "another module for another batch size: parameter 'weight' differs"),
        (choosy, (BATCH, LAST), "another module for another batch size: parameter '1.weight' differs"),
        (fixed, (BATCH, LAST), "make_step returns inputs of the same shapes for several batch sizes"),
        (fixed, (BATCH, BATCH), "batch is (16, 16); give one batch size, or several that differ"),
        (fixed, (), "batch is (); give one batch size, or several that differ"),
    ],
)
def test_sizes_that_are_no_batches_of_one_step_are_refused(
    make: Make, sizes: tuple[int, ...], told: str
) -> None:
    with pytest.raises(PebblerError, match=re.escape(told)) as caught:
        pebbler.torch.plan(make, batch=sizes, budget="1GiB", method="network-wide")
    assert len(str(caught.value).splitlines()) == 1
