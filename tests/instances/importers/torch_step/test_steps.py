from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pebbler.instances.errors import PebblerError

from ....extras import needs_torch
from ....samples import mostly_slow

torch = needs_torch()

from pebbler.instances.importers.torch_step.persistent import create_states, read_scalars, trained_parameters  # noqa: E402
from pebbler.instances.importers.torch_step.record import StepOperator, StepRecord  # noqa: E402
from pebbler.instances.importers.torch_step.scalars import ScalarInput, evaluate  # noqa: E402
from pebbler.instances.importers.torch_step.steps import record_step  # noqa: E402

from .models import adamw, channels_last, cnn, encoder, gpt, half_gpt, lstm, perceptron, unet  # noqa: E402
from .replay import Replay, seeded, training  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads for such small tensors only wait for each other; and a generator that is as before."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def made_by(make: Callable[[int], Any], batch: int = 4) -> Any:
    with seeded(3):
        return make(batch)


def batches_like(inputs: tuple[Any, ...], count: int = 3) -> list[tuple[Any, ...]]:
    """Other values in every step: inputs in another order."""
    return [
        tuple(torch.empty_like(tensor).copy_(tensor.roll(number, 0)) for tensor in inputs)
        for number in range(count)
    ]


def state_of(made: Any) -> list[Any]:
    module, _, _, optimizer = made
    states = [state[key] for state in optimizer.state.values() for key in sorted(state)]
    return [*module.state_dict().values(), *(torch.as_tensor(value) for value in states)]


def assert_same_training(
    make: Callable[[int], Any],
    *,
    clip: float | None = None,
    schedule: Callable[[int], float] = lambda n: 1 / (1 + n),
    twice: Callable[[StepOperator], bool] = lambda _: False,
) -> StepRecord:
    """Replay three steps, and compare losses, parameters, buffers and states bit for bit with eager torch."""
    eager, replayed = made_by(make), made_by(make)
    record = record_step(*replayed, clip=clip)
    batches = batches_like(eager[2])
    with seeded(5):
        wanted = list(training(eager, batches, clip, schedule))
        end = torch.get_rng_state()
    create_states(replayed[0], replayed[3])
    replay = Replay(record, replayed[0], replayed[3])
    rate = replayed[3].param_groups[0]["lr"]
    with seeded(5):
        for number, (batch, loss) in enumerate(zip(batches, wanted, strict=True)):
            replayed[3].param_groups[0]["lr"] = rate * schedule(number)
            assert torch.equal(replay.step(*batch, twice=twice), loss)
        assert torch.equal(torch.get_rng_state(), end)
    for one, other in zip(state_of(eager), state_of(replayed), strict=True):
        assert torch.equal(one, other)
    return record


MAKES = (gpt, cnn, channels_last, lstm, half_gpt, unet, encoder)


@pytest.mark.parametrize("make", mostly_slow(MAKES, (half_gpt, channels_last, lstm, unet)))
def test_a_replayed_step_has_the_bits_of_eager_torch(make: Callable[[int], Any]) -> None:
    record = assert_same_training(make, clip=0.5, twice=lambda operator: operator.may_run_again)
    assert {operator.phase for operator in record.operators} == {"forward", "backward", "clip", "optimizer"}
    assert len({operator.name for operator in record.operators}) == len(record.operators)


def sgd(batch: int) -> Any:
    module, step, inputs, _ = perceptron(batch)
    return module, step, inputs, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def plain_sgd(batch: int) -> Any:
    module, step, inputs, _ = perceptron(batch)
    return module, step, inputs, torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.01)


def adam(batch: int) -> Any:
    module, step, inputs, _ = perceptron(batch)
    return module, step, inputs, torch.optim.Adam(module.parameters(), weight_decay=0.1, amsgrad=True)


def foreach(batch: int) -> Any:
    module, step, inputs, _ = perceptron(batch)
    return module, step, inputs, adamw(module, foreach=True)


def fused(batch: int) -> Any:
    module, step, inputs, _ = perceptron(batch)
    return module, step, inputs, adamw(module, fused=True)


def fused_sgd(batch: int) -> Any:
    module, step, inputs, _ = perceptron(batch)
    return module, step, inputs, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, fused=True)


@pytest.mark.parametrize("make", [sgd, plain_sgd, adam, foreach, fused, fused_sgd])
def test_optimizers_are_recorded_in_all_their_forms(make: Callable[[int], Any]) -> None:
    record = assert_same_training(make)
    updates = [operator for operator in record.operators if operator.phase == "optimizer"]
    lists = [leaf for operator in updates for leaf in operator.args if isinstance(leaf, list)]
    assert updates
    assert all(len(leaf) <= 1 for leaf in lists), "a task updates one tensor"


class Checkpointed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 32)
        self.last = torch.nn.Linear(32, 3)

    def hidden(self, x: Any) -> Any:
        return torch.nn.functional.dropout(self.first(x).relu(), 0.5)

    def forward(self, x: Any) -> Any:
        return self.last(torch.utils.checkpoint.checkpoint(self.hidden, x, use_reentrant=False))


def checkpointed(batch: int) -> Any:
    module = Checkpointed()
    _, _, inputs, _ = perceptron(batch)
    return module, lambda x, y: (module(x) - y).square().mean(), inputs, adamw(module)


class Flattened(torch.nn.Module):
    """Two weights in one memory, which the step has as a whole, too, as cuDNN does with recurrent layers."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.randn(30)
        self.first = torch.nn.Parameter(whole[:12].view(3, 4))
        self.second = torch.nn.Parameter(whole[12:].view(6, 3))

    def forward(self, x: Any) -> Any:
        whole = torch.empty(0).set_(self.first.untyped_storage(), 0, (30,), (1,))
        return (x @ self.first.t() @ self.second.t() * whole[-6:]).square().mean()


def flattened(batch: int) -> Any:
    module = Flattened()
    return module, module, (torch.randn(batch, 4),), adamw(module, fused=True)


def test_a_tensor_may_be_made_a_view_of_memory_that_is_there() -> None:
    record = assert_same_training(flattened)
    whole, *others = {at.storage for name, at in record.tensors.items() if name.role == "parameter"}
    assert not others
    assert any(whole in operator.reads for operator in record.operators if operator.phase == "forward")


def test_a_checkpoint_draws_the_same_numbers_again() -> None:
    record = assert_same_training(checkpointed)
    draws = [operator.draw for operator in record.operators if operator.draw is not None]
    assert [(draw.before, draw.after) for draw in draws] == [(0, 1), (0, 1)]
    assert record.draws == 2
    assert record.last_draw == 1


def in_micro_batches(batch: int) -> Any:
    module, step, inputs, optimizer = perceptron(batch)

    def whole(x: Any, y: Any) -> Any:
        """Everything that a training loop has."""
        losses = []
        for piece, wanted in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = step(piece, wanted) / 2
            loss.backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        return sum(losses)

    return module, whole, inputs, optimizer


def test_a_step_may_accumulate_gradients_and_update_by_itself() -> None:
    eager, replayed = made_by(in_micro_batches), made_by(in_micro_batches)
    record = record_step(*replayed)
    names = [operator.name for operator in record.operators if operator.phase == "forward"]
    assert [name for name in names if "addmm" in name and "(0 " in name] == ["FP(0 addmm)", "FP(0 addmm #2)"]
    assert {operator.phase for operator in record.operators} == {"forward", "backward", "clip", "optimizer"}
    create_states(replayed[0], replayed[3])
    replay = Replay(record, replayed[0], replayed[3])
    for batch in batches_like(eager[2]):
        assert torch.equal(replay.step(*batch), eager[1](*batch))
    for one, other in zip(state_of(eager), state_of(replayed), strict=True):
        assert torch.equal(one, other)


def test_a_backward_pass_by_another_function_is_the_steps_own() -> None:
    module, step, inputs, optimizer = made_by(perceptron)

    def whole(*given: Any) -> Any:
        loss = step(*given)
        torch.autograd.backward(loss)
        return loss.detach()

    record = record_step(module, whole, inputs, optimizer)
    plain = record_step(module, step, inputs, optimizer)
    computed = [operator.name for operator in record.operators if operator.phase == "optimizer"]
    assert computed == [operator.name for operator in plain.operators if operator.phase == "optimizer"]
    assert record.gradients.keys() == plain.gradients.keys()
    with pytest.raises(PebblerError, match="runs a backward pass and returns no loss"):
        record_step(module, lambda *given: torch.autograd.backward(step(*given)), inputs, optimizer)


def test_recording_changes_nothing() -> None:
    made = made_by(gpt)
    module, _, _, optimizer = made
    before = [tensor.clone() for tensor in state_of(made)]
    groups = [dict(group) for group in optimizer.param_groups]
    generator = torch.get_rng_state()
    record_step(*made, clip=1.0)
    assert all(map(torch.equal, before, state_of(made)))
    assert not optimizer.state, "it had no states before"
    assert [dict(group) for group in optimizer.param_groups] == groups
    assert all(type(value) is type(groups[0][key]) for key, value in optimizer.param_groups[0].items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert torch.equal(torch.get_rng_state(), generator)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_states_are_made_for_parameters_that_have_gradients_only() -> None:
    module, step, inputs, _ = made_by(perceptron)
    module[0].unused = torch.nn.Linear(2, 2)
    record = record_step(module, step, inputs, adamw(module))
    states = {str(name) for name in record.tensors if name.role == "state"}
    keys = ("step", "exp_avg", "exp_avg_sq")
    parameters = ("0.weight", "0.bias", "2.weight", "2.bias")
    assert states == {f"S({name} {key})" for name in parameters for key in keys}
    assert {str(name) for name in record.created_states} == states
    assert {str(name) for name in record.tensors} >= {"W(0.unused.weight)", "X(0)", "X(1)"}


def test_states_that_are_there_are_kept() -> None:
    made = made_by(perceptron)
    module, step, inputs, optimizer = made
    step(*inputs).backward()
    optimizer.step()
    before = [tensor.clone() for tensor in state_of(made)]
    gradients = [parameter.grad for parameter in module.parameters()]
    record = record_step(*made)
    assert record.created_states == ()
    assert all(map(torch.equal, before, state_of(made)))
    assert all(p.grad is gradient for p, gradient in zip(module.parameters(), gradients, strict=True))


def test_numbers_of_the_optimizer_are_formulas_over_named_inputs() -> None:
    record = record_step(*made_by(perceptron))
    names = {str(scalar) for scalar in record.scalars}
    assert {"'lr' of group 0", "'betas'[1] of group 0", "'step' of 0.weight", "'step' of 2.bias"} <= names
    update = next(operator for operator in record.operators if operator.name == "UP(0.weight addcdiv_)")
    values = dict.fromkeys(record.scalars, 0.0) | {
        ScalarInput(0, "lr"): 0.5,
        ScalarInput(0, "betas", 0): 0.9,
        ScalarInput("0.weight", "step"): 6.0,
    }
    assert evaluate(update.kwargs["value"], values) == -(0.5 / (1 - 0.9**7.0))
    (guard,) = record.guards
    assert guard.holds(values | {ScalarInput(0, "weight_decay"): 0.1})
    assert not guard.holds(values | {ScalarInput(0, "weight_decay"): 0.0})


def test_gradients_are_data_between_backward_pass_and_update() -> None:
    record = record_step(*made_by(perceptron))
    gradient = record.gradients["0.weight"].storage
    assert record.storages[gradient].role == "gradient"
    assert record.storages[gradient].name == "dW(0.weight)"
    makers = [operator for operator in record.operators if gradient in operator.outputs]
    users = [o for o in record.operators if gradient in o.reads and o.kind == "task"]
    assert [operator.phase for operator in makers] == ["backward"]
    assert {operator.phase for operator in users} == {"optimizer"}


def test_running_statistics_are_found_to_be_rewritten() -> None:
    record = record_step(*made_by(cnn))
    norm = next(operator for operator in record.operators if operator.name.startswith("FP(1 native_batch_"))
    names = {record.storages[d].name for d in norm.hidden}
    assert names == {"B(1.running_mean)", "B(1.running_var)"}
    assert set(norm.hidden) <= set(norm.updates)
    assert norm.idle == norm.hidden, "while it trains, it does not read them"
    assert norm.may_run_again


def test_the_peak_in_eager_torch_is_what_weak_references_see() -> None:
    record = record_step(*made_by(lambda _: spread_out()))
    weights, inputs = 4 * (1000 * 1000), 4 * 1000
    assert weights + inputs < record.eager_peak_bytes
    # The gradient of the weights and a product of their size are the most that is alive beside them.
    assert record.eager_peak_bytes < 2 * weights + 10 * inputs


def spread_out() -> Any:
    module = torch.nn.Linear(1000, 1000, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return module, lambda x: module(x).sum(), (torch.ones(1, 1000),), optimizer


def test_a_choice_of_the_optimizer_is_a_condition() -> None:
    """RAdam corrects by the variance from its sixth step on."""
    module, step, inputs, _ = made_by(perceptron)
    optimizer = torch.optim.RAdam(module.parameters())
    step(*inputs).backward()
    optimizer.step()
    record = record_step(module, step, inputs, optimizer)
    values = read_scalars(optimizer, trained_parameters(module, optimizer), record.scalars)
    later = {scalar: 10.0 if scalar.key == "step" else value for scalar, value in values.items()}
    assert all(guard.holds(values) for guard in record.guards)
    assert not all(guard.holds(later) for guard in record.guards)


def test_an_optimizer_of_ones_own_is_recorded() -> None:
    class SignDescent(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad.sign(), alpha=-group["lr"] * group["scale"])

    def make(batch: int) -> Any:
        module, step, inputs, _ = perceptron(batch)
        return module, step, inputs, SignDescent(module.parameters(), {"lr": 0.1, "scale": 0.5})

    record = assert_same_training(make)
    assert {str(scalar) for scalar in record.scalars} == {"'lr' of group 0", "'scale' of group 0"}
