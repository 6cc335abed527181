"""Operators in place that are one with what they rewrite, and what may run again for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ....extras import needs_torch

torch = needs_torch()

from torch import nn  # noqa: E402

from pebbler.instances.importers.torch_step.calls import merged  # noqa: E402
from pebbler.instances.importers.torch_step.instance import Lasting, step_instance  # noqa: E402
from pebbler.instances.importers.torch_step.record import Draw, StepOperator, StepRecord  # noqa: E402
from pebbler.instances.importers.torch_step.scalars import ScalarInput  # noqa: E402
from pebbler.instances.importers.torch_step.steps import record_step  # noqa: E402
from pebbler.instances.instance import Instance  # noqa: E402

library = torch.library.Library("pebbler_tests", "FRAGMENT")
library.define("unseen(Tensor x, Tensor state, bool reads) -> Tensor")


def _unseen(x: Any, state: Any, reads: bool) -> Any:
    made = x * state if reads else x * 2
    state.add_(1)
    return made


library.impl("unseen", _unseen, "CPU")


class Unseen(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Any, state: Any, reads: bool) -> Any:
        return torch.ops.pebbler_tests.unseen(x, state, reads)

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:  # type: ignore[override]
        return gradient * 2, None, None


class Writing(nn.Module):
    """Passes on what it is given, and writes into a buffer unseen, which it has read or not."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.register_buffer("state", torch.ones(3))
        self.reads = reads

    def forward(self, x: Any) -> Any:
        return Unseen.apply(x, self.state, self.reads)


class Plus(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.add_(1)


def recorded(*layers: Any) -> StepRecord:
    module = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return record_step(module, lambda x: module(x).square().mean(), (torch.randn(4, 3),), optimizer)


def forward(record: StepRecord) -> list[StepOperator]:
    return [one for one in record.operators if one.phase == "forward" and one.kind == "task"]


def test_batch_norm_and_what_follows_in_place_are_one() -> None:
    record = recorded(nn.Linear(3, 5), nn.BatchNorm1d(5), Plus(), nn.ReLU(inplace=True))
    norm = next(one for one in forward(record) if "batch_norm" in one.name)
    assert norm.name == "FP(1 native_batch_norm, add_, relu_)"
    assert [call.overload._schema.name for call in norm.then] == ["aten::add_", "aten::relu_"]
    assert norm.may_run_again
    names = {record.storages[d].name for d in norm.idle}
    assert names == {"B(1.running_mean)", "B(1.running_var)"}
    assert norm.calls == (norm, *norm.then)


LASTING: tuple[Lasting, ...] = ("device", "carried", "resident")


def statistics_of(instance: Instance) -> set[str]:
    return {block.name for block in instance.blocks if "running" in block.name}


@pytest.mark.parametrize("lasting", LASTING)
def test_running_statistics_are_no_blocks_and_batch_norm_may_run_again(lasting: Lasting) -> None:
    record = recorded(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True))
    instance = step_instance(record, name="norm", link="1GB/s", lasting=lasting, recompute=True).instance
    (norm,) = [task for task in instance.tasks if task.name == "FP(1 native_batch_norm, relu_)"]
    assert norm.recomputable
    assert not norm.updates
    assert not statistics_of(instance)


def test_running_statistics_that_are_read_between_two_passes_are_blocks() -> None:
    """The first backward pass would read what the second forward pass has left, if it ran again."""
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))

    def step(x: Any) -> Any:
        for part in x.chunk(2):
            loss = module(part).square().mean()
            loss.backward()
        return loss.detach()

    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    record = record_step(module, step, (torch.randn(8, 3),), optimizer)
    instance = step_instance(record, name="two", link="1GB/s", lasting="carried", recompute=True).instance
    assert statistics_of(instance) == {"B(1.running_mean)", "B(1.running_var)"}
    norms = [task for task in instance.tasks if "native_batch_norm)" in task.name.replace(" #2", "")]
    assert len(norms) == 2
    assert not any(task.recomputable for task in norms)


@pytest.mark.parametrize("reads", [False, True])
def test_what_is_written_unseen_is_idle_if_nothing_depends_on_it(reads: bool) -> None:
    record = recorded(nn.Linear(3, 3), Writing(reads))
    (operator,) = [one for one in forward(record) if "unseen" in one.name]
    assert [record.storages[d].name for d in operator.hidden] == ["B(1.state)"]
    assert operator.idle == (() if reads else operator.hidden)
    assert operator.may_run_again is not reads


@pytest.fixture(scope="module")
def pair() -> tuple[StepOperator, StepOperator]:
    """A product, and a ReLU in place of it."""
    (both,) = [one for one in forward(recorded(nn.Linear(3, 5), nn.ReLU(inplace=True))) if one.then]
    (second,) = both.then
    first = replace(both, name="FP(0 addmm)", then=(), duration_ns=both.duration_ns - second.duration_ns)
    return first, second


def test_two_are_one(pair: tuple[StepOperator, StepOperator]) -> None:
    first, second = pair
    (both,) = merged(pair)
    assert both.duration_ns == first.duration_ns + second.duration_ns
    assert both.scratch_bytes == max(first.scratch_bytes, second.scratch_bytes)
    assert (both.outputs, both.updates) == (first.outputs, ())
    assert [*both.reads] == [*first.reads]
    assert len(merged((first, second, replace(second, name="FP(1 relu_ #2)")))) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"draw": Draw(0, 1)},
        {"phase": "backward"},
        {"manner": "out"},
        {"updates": (0,)},
        {"outputs": (0,)},
        {"hidden": (0,)},
        {"segments_bytes": 512},
        {"kind": "view"},
        {"grad_mode": None},
        {"kwargs": {"alpha": ScalarInput("group", 0, "lr")}},
    ],
)
def test_others_stay_apart(pair: tuple[StepOperator, StepOperator], change: dict[str, Any]) -> None:
    first, second = pair
    assert len(merged((first, replace(second, **change)))) == 2


def test_what_stands_between_keeps_them_apart(pair: tuple[StepOperator, StepOperator]) -> None:
    first, second = pair
    between = replace(first, name="FP(other)", outputs=(10**6,))
    assert len(merged((first, between, second))) == 3
