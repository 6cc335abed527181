"""Planned training steps against eager torch, bit for bit."""

from __future__ import annotations

import copy
import dataclasses
import gc
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from ....extras import needs_torch
from ....samples import mostly_slow

torch = needs_torch()

import pebbler  # noqa: E402
import pebbler.torch  # noqa: E402
from pebbler.instances.errors import PebblerError  # noqa: E402
from pebbler.instances.transforms import split_parts  # noqa: E402
from pebbler.solver.answers import Answers  # noqa: E402
from pebbler.solver.result import Result, Status  # noqa: E402
from pebbler.solver.solve import attempt  # noqa: E402
from pebbler.torch import TrainingPlan  # noqa: E402
from pebbler.validate.execution.device import DeviceError  # noqa: E402

from .models import Made, checkpointed, cnn, gpt, half, lstm, momentum, noisy, wide  # noqa: E402
from .training import (  # noqa: E402
    BATCH,
    Make,
    are_equal,
    assert_trains_as_eager,
    batches_of,
    eager_step,
    executor_of,
    made_by,
    planned,
    recorded,
    state_of,
    train,
    within,
)


@pytest.mark.parametrize("make", mostly_slow((gpt, cnn, lstm), (gpt, cnn)))
def test_steps_in_half_of_eagers_memory_have_its_bits(make: Make) -> None:
    plan = recorded(make)
    assert_trains_as_eager(make, within(plan, plan.record.eager_peak_bytes // 2))


@pytest.mark.parametrize("make", mostly_slow((gpt, cnn, lstm), (lstm,)))
def test_steps_in_hardly_more_than_the_least_memory_have_eagers_bits(make: Make) -> None:
    plan = within(recorded(make), "1.05xMmin")
    assert plan.schedule.peak_bytes < plan.record.eager_peak_bytes / 2
    assert_trains_as_eager(make, plan)


@pytest.mark.parametrize("make", [half, checkpointed, momentum])
def test_other_steps_have_eagers_bits(make: Make) -> None:
    plan = planned(make, "1.2xMmin", method="modnn")
    assert any(operation.kind == "prefetch" for operation in plan.schedule.operations)
    assert_trains_as_eager(make, plan, steps=3)


def test_batch_norm_that_runs_again_rewrites_its_statistics_once() -> None:
    plan = planned(cnn, "75%", recompute=True, method="memonger-rule", weights_as_blocks=False)
    runs = [operation.task for operation in plan.schedule.operations if operation.kind == "run"]
    again = {plan.instance.tasks[task].name for task, count in Counter(runs).items() if count > 1}
    assert {"FP(blocks.0.norm native_batch_norm)", "FP(blocks.0 add, relu_)"} <= again
    assert_trains_as_eager(cnn, plan)


def test_operators_that_run_again_draw_the_same_numbers() -> None:
    plan = planned(noisy, "80%", recompute=True, method="memonger-rule", weights_as_blocks=False)
    runs = [operation.task for operation in plan.schedule.operations if operation.task is not None]
    again = {plan.instance.tasks[k].name for k in runs if runs.count(k) > 1}
    assert again & {operator.name for operator in plan.record.operators if operator.draw is not None}
    assert_trains_as_eager(noisy, plan)


def test_steps_in_paged_memory_have_eagers_bits() -> None:
    plan = planned(wide, "30MiB", memory="paged", method="modnn")
    assert any(operation.kind == "prefetch" for operation in plan.schedule.operations)
    assert_trains_as_eager(wide, plan, steps=2)


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_steps_with_tensors_in_parts_have_eagers_bits(memory: str) -> None:
    plan = planned(wide, "45%", batch=2 * BATCH, memory=memory, method="modnn", parts="2MiB")
    blocks = plan.instance.blocks
    moved = {operation.block for operation in plan.schedule.operations if operation.kind == "offload"}
    assert any(blocks[d].tensor is not None for d in moved if d is not None)
    assert not any(blocks[d].tensor is not None for d in plan.instance.carried)
    assert_trains_as_eager(lambda _: wide(2 * BATCH), plan, steps=2)


def large(batch: int) -> Made:
    """Weights of several pages."""
    module = torch.nn.Linear(1024, 1024, bias=False)
    optimizer = torch.optim.SGD(module.parameters())
    return module, lambda x: module(x).mean(), (torch.randn(batch, 1024),), optimizer


def test_parameters_in_parts_are_refused() -> None:
    plan = recorded(large)
    instance = split_parts(plan.instance, 2 << 20)
    result = pebbler.solve(instance, "modnn")
    made = made_by(large)
    with pytest.raises(PebblerError, match=r"'W\(weight\)' is in parts, and is one tensor of the module"):
        dataclasses.replace(plan, instance=instance, result=result).bind(made[0], made[3])


def test_parts_of_no_size_are_refused() -> None:
    with pytest.raises(PebblerError, match="'small' is not a size of parts; write it as 8MiB, or auto"):
        planned(noisy, "80%", parts="small")


def test_where_the_usual_method_finds_no_schedule_the_best_one_by_a_rule_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Result] = []

    def without_schedule(answers: Answers, method: str, **options: Any) -> Result:
        found.append(attempt(answers, method, **options))
        if method.startswith("flow"):
            found[-1] = dataclasses.replace(
                found[-1], status=Status.UNKNOWN, schedule=None, makespan_ns=None, stopped_by="time limit"
            )
        return found[-1]

    monkeypatch.setattr(pebbler.torch, "attempt", without_schedule)
    plan = planned(noisy, "80%", recompute=True, weights_as_blocks=False, time_limit=0.5)
    assert found[0].method == "flow-recompute"
    makespans = [result.makespan_ns for result in found[1:] if result.makespan_ns is not None]
    assert plan.schedule.makespan_ns == min(makespans)
    assert plan.result.method == plan.schedule.method != "flow-recompute"
    assert plan.result.lower_bound_ns >= found[0].lower_bound_ns, "the bound is that of both"
    with pytest.raises(pebbler.torch.NoScheduleError, match=r"flow found no schedule .*: time limit"):
        planned(noisy, "80%", method="flow", time_limit=0.5)


# --- the user's module --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def easy() -> TrainingPlan:
    return within(recorded(cnn), "1.5xMmin", "modnn")


def test_states_are_saved_and_loaded_between_steps(easy: TrainingPlan) -> None:
    eager, ours = made_by(cnn), made_by(cnn)
    batches = batches_of(eager, 4)
    torch.manual_seed(7)
    wanted = [*(eager_step(eager)(*batch) for batch in batches), *state_of(eager)]
    torch.manual_seed(7)
    with easy.bind(ours[0], ours[3]) as step:
        found = [step(*batch) for batch in batches[:2]]
        kept = copy.deepcopy([ours[0].state_dict(), ours[3].state_dict()])
        generator = torch.get_rng_state()
        step(*batches[2])
        ours[0].load_state_dict(kept[0])
        ours[3].load_state_dict(kept[1])  # puts other tensors there
        torch.set_rng_state(generator)
        found += [step(*batch) for batch in batches[2:]]
        assert are_equal(found + state_of(ours), wanted)
        alias = ours[0].head.weight.detach()
    del step
    gc.collect()
    assert torch.equal(alias, eager[0].head.weight), "memory lives as long as a tensor that lies there"


def test_steps_go_on_where_eager_torch_has_begun_and_end_where_it_goes_on(easy: TrainingPlan) -> None:
    eager, ours = made_by(cnn), made_by(cnn)
    batches = batches_of(eager, 3)
    torch.manual_seed(7)
    wanted = [*(eager_step(eager)(*batch) for batch in batches), *state_of(eager)]
    torch.manual_seed(7)
    found = [eager_step(ours)(*batches[0])]
    with easy.bind(ours[0], ours[3]) as step:
        found.append(step(*batches[1]))
    found.append(eager_step(ours)(*batches[2]))
    assert are_equal(found + state_of(ours), wanted)


def smaller(made: Any) -> None:
    made[0].stem = torch.nn.Conv2d(3, 8, 1)


def frozen(made: Any) -> None:
    made[0].head.weight.requires_grad_(False)


def evaluating(made: Any) -> None:
    made[0].dropout.eval()


def with_gradient(made: Any) -> None:
    made[0].head.bias.grad = torch.zeros(10)


def maximizing(made: Any) -> None:
    made[3].param_groups[0]["maximize"] = True


def extended(made: Any) -> None:
    made[0].register_buffer("more", torch.zeros(1))


def hooked(made: Any) -> None:
    made[0].head.register_forward_hook(lambda *_: None)


CHANGES = [
    (
        smaller,
        "parameter 0 in group 0 of the optimizer is none of the module's",
    ),
    (frozen, "parameter 'head.weight' is not trained, and was when planned"),
    (evaluating, "module 'dropout' was in training mode when planned"),
    (with_gradient, "parameter 'head.bias' has a gradient; call optimizer.zero_grad()"),
    (maximizing, "'maximize' of group 0 of the optimizer is True, and was False when planned"),
    (extended, "buffer 'more' is none of those that were planned for"),
    (hooked, "module 'head' has hooks"),
]


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize(("change", "told"), CHANGES)
def test_another_module_is_refused_by_name(
    easy: TrainingPlan, change: Callable[[Any], None], told: str, steps: int
) -> None:
    made = made_by(cnn)
    with easy.bind(made[0], made[3]) as step:
        for _ in range(steps):
            step(*made[2])
        change(made)
        before = state_of(made)
        with pytest.raises(PebblerError, match=re.escape(told)) as caught:
            step(*made[2])
        assert len(str(caught.value).splitlines()) == 1
        assert are_equal(state_of(made), before)


def test_another_module_is_not_bound_and_gets_no_states(easy: TrainingPlan) -> None:
    made = made_by(cnn)
    smaller(made)
    optimizer = torch.optim.AdamW(made[0].parameters())
    with pytest.raises(PebblerError, match=r"'stem\.weight' is float32 of shape"):
        easy.bind(made[0], optimizer)
    assert not optimizer.state
    with pytest.raises(PebblerError, match=r"there is no state '.* exp_avg', which was planned for"):
        easy.bind(made_by(cnn)[0], None)


def test_other_inputs_are_refused_by_name(easy: TrainingPlan) -> None:
    made = made_by(cnn)
    images, classes = made[2]
    with easy.bind(made[0], made[3]) as step:
        for inputs, told in [
            ((images,), "the step takes 2 inputs, and got 1"),
            (
                (images[:8], classes[:8]),
                "input 0 is float32 of shape (8, 3, 16, 16), and was float32 of shape (16",
            ),
            ((images, classes.int()), "input 1 is int32 of shape (16,), and was int64"),
            ((images.numpy(), classes), "input 0 is no tensor on the CPU"),
        ]:
            with pytest.raises(PebblerError, match=re.escape(told)):
                step(*inputs)
        step(images, classes)
    with pytest.raises(PebblerError, match="the step is closed; bind the plan again"):
        step(images, classes)


def in_two_groups(batch: int) -> Made:
    module, step, inputs, _ = noisy(batch)
    first, *others = module.parameters()
    groups = [{"params": [first], "lr": 0.1}, {"params": others}]
    return module, step, inputs, torch.optim.AdamW(groups, lr=1e-2)


def test_an_optimizer_with_other_groups_is_refused() -> None:
    plan = recorded(in_two_groups)
    module, _, inputs, optimizer = made_by(in_two_groups)
    with plan.bind(module, optimizer) as step:
        step(*inputs)
        first, second = optimizer.param_groups
        first["params"].append(second["params"].pop())
        told = re.escape("the optimizer has parameter 'layers.5.bias' in another group than when planned")
        with pytest.raises(PebblerError, match=told):
            step(*inputs)
    with pytest.raises(PebblerError, match="in another group than when planned"):
        plan.bind(module, torch.optim.AdamW(module.parameters()))


def test_other_threads_are_refused_for_they_give_other_bits(easy: TrainingPlan) -> None:
    made = made_by(cnn)
    with easy.bind(made[0], made[3]) as step:
        torch.set_num_threads(2)
        try:
            with pytest.raises(PebblerError, match="torch has 'threads' 2, and had 1 when planned"):
                step(*made[2])
        finally:
            torch.set_num_threads(1)


def test_a_step_that_fails_leaves_everything_as_before_it(easy: TrainingPlan) -> None:
    eager, ours = made_by(cnn), made_by(cnn)
    images, classes = ours[2]
    wanted = train(eager, eager_step(eager), 2)
    step = easy.bind(ours[0], ours[3])
    found = train(ours, step, 2)
    with pytest.raises(
        DeviceError, match=r"nll_loss_forward.*out of bounds.*are as before the step"
    ):  # batch norm has written by then
        step(images, torch.full_like(classes, 99))
    assert are_equal(state_of(ours), wanted[2:])
    assert are_equal(found, wanted)
    with pytest.raises(PebblerError, match="closed"):
        step(images, classes)
    with easy.bind(ours[0], ours[3]) as again:
        assert are_equal(train(ours, again, 2), train(eager, eager_step(eager), 2))


def test_an_operator_that_returns_something_else_than_recorded_is_refused(easy: TrainingPlan) -> None:
    made = made_by(cnn)
    operators = list(easy.record.operators)
    k = next(k for k, operator in enumerate(operators) if operator.then)
    (relu,) = operators[k].then
    assert relu.overload is torch.ops.aten.relu_.default
    relu = dataclasses.replace(relu, results=dataclasses.replace(relu.results, dtype=torch.int32))
    operators[k] = dataclasses.replace(operators[k], then=(relu,))
    other = dataclasses.replace(easy, record=dataclasses.replace(easy.record, operators=tuple(operators)))
    step = other.bind(made[0], made[3])
    before = state_of(made)
    with pytest.raises(DeviceError, match=r"the operator returned float32 .* and was recorded with int32"):
        step(*made[2])
    assert are_equal(state_of(made), before)


def test_ctrl_c_waits_for_the_end_of_the_step(easy: TrainingPlan) -> None:
    eager, ours = made_by(cnn), made_by(cnn)
    torch.manual_seed(7)
    eager_step(eager)(*eager[2])
    torch.manual_seed(7)
    middle = easy.schedule.operations[len(easy.schedule.operations) // 2].id
    with executor_of(easy, ours, late_ns={middle: 600_000_000}) as step:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            step(*ours[2])
        assert are_equal(state_of(ours), state_of(eager))
        assert are_equal(train(ours, step, 2), train(eager, eager_step(eager), 2))
