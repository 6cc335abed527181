from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pebbler.instances.errors import PebblerError

from ....extras import needs_torch

torch = needs_torch()
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from pebbler.instances.importers.torch_step.steps import record_made, record_step  # noqa: E402

from .models import adamw, perceptron  # noqa: E402

WIDTH = 6


@pytest.fixture(autouse=True)
def same_generator() -> Iterator[None]:
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def linear(function: Callable[[nn.Module, Any], Any]) -> Any:
    """A step that computes its loss from a linear layer's output by a function."""
    module = nn.Linear(WIDTH, WIDTH)
    return module, lambda x: function(module, x), (torch.randn(4, WIDTH),), adamw(module)


def hooked() -> Any:
    made = linear(lambda module, x: module(x).sum())
    made[0].register_forward_hook(lambda *_: None)
    return made


def hooked_gradient() -> Any:
    made = linear(lambda module, x: module(x).sum())
    made[0].weight.register_hook(lambda gradient: gradient * 2)
    return made


def hooked_optimizer() -> Any:
    made = linear(lambda module, x: module(x).sum())
    made[3].register_step_post_hook(lambda *_: None)
    return made


def item() -> Any:
    return linear(lambda module, x: module(x).sum() * (1.0 if module(x).sum().item() > 0 else 2.0))


def condition() -> Any:
    return linear(lambda module, x: module(x).sum() if module(x).sum() > 0 else module(x).mean())


def as_list() -> Any:
    return linear(lambda module, x: module(x).sum() * len(x.tolist()))


def masked() -> Any:
    def loss(module: Any, x: Any) -> Any:
        y = module(x)
        return y[y > 0].sum()

    return linear(loss)


def sparse() -> Any:
    module = nn.Embedding(10, 4, sparse=True)
    return module, lambda x: module(x).sum(), (torch.zeros(2, dtype=torch.long),), None


class Named(torch.Tensor):
    """A subclass."""


def subclass() -> Any:
    module, step, (x,), optimizer = linear(lambda module, x: module(x).sum())
    return module, step, (x.as_subclass(Named),), optimizer


def compiled() -> Any:
    module, step, inputs, optimizer = linear(lambda module, x: module(x).sum())
    return torch.compile(module, backend="eager"), step, inputs, optimizer


def parallel() -> Any:
    module, step, inputs, optimizer = linear(lambda module, x: module(x).sum())
    return nn.DataParallel(module), step, inputs, optimizer


def scaled() -> Any:
    module, _, inputs, optimizer = linear(lambda module, x: module(x).sum())
    scaler = torch.amp.GradScaler("cpu")

    def step(x: Any) -> Any:
        loss = scaler.scale(module(x).sum())
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return module, step, inputs, optimizer


def autocast_on_cuda() -> Any:
    def loss(module: Any, x: Any) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return module(x).sum()

    return linear(loss)


def seeding() -> Any:
    def loss(module: Any, x: Any) -> Any:
        torch.manual_seed(1)
        return F.dropout(module(x), 0.5).sum()

    return linear(loss)


def own_generator() -> Any:
    generator = torch.Generator()
    return linear(lambda module, x: (module(x) * torch.rand(WIDTH, generator=generator)).sum())


def tensor_rate() -> Any:
    module, step, inputs, _ = linear(lambda module, x: module(x).sum())
    return module, step, inputs, torch.optim.SGD(module.parameters(), lr=torch.tensor(0.1))


def scheduling() -> Any:
    module, _, inputs, optimizer = linear(lambda module, x: module(x).sum())

    def step(x: Any) -> Any:
        loss = module(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5
        return loss

    return module, step, inputs, optimizer


def counting() -> Any:
    calls: list[int] = []

    def loss(module: Any, x: Any) -> Any:
        calls.append(1)
        return module(x).sum() / len(calls)

    return linear(loss)


def changing() -> Any:
    calls: list[int] = []

    def loss(module: Any, x: Any) -> Any:
        calls.append(1)
        return module(x).sum() if len(calls) < 2 else module(x).square().sum()

    return linear(loss)


def longer() -> Any:
    calls: list[int] = []

    def loss(module: Any, x: Any) -> Any:
        calls.append(1)
        y = module(x).sum()
        return y if len(calls) < 2 else y * 1.0

    return linear(loss)


def other_memory() -> Any:
    return linear(
        lambda module, x: (module(x) * torch.zeros(2).set_(x.untyped_storage(), 0, (1,), (1,))).sum()
    )


def values_from_elsewhere() -> Any:
    calls: list[int] = []

    def loss(module: Any, x: Any) -> Any:
        calls.append(1)
        return (module(x) * torch.tensor([float(len(calls))])).sum()

    return linear(loss)


def plain_attribute() -> Any:
    average = torch.zeros(WIDTH)

    def loss(module: Any, x: Any) -> Any:
        y = module(x)
        average.mul_(0.9).add_(y.detach().mean(0))
        return y.sum()

    return linear(loss)


class Replacing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.mean = nn.Buffer(torch.zeros(WIDTH))

    def forward(self, x: Any) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.linear(x).sum()


def replacing() -> Any:
    module = Replacing()
    return module, module, (torch.randn(4, WIDTH),), adamw(module)


def multiplying() -> Any:
    """NAdam keeps a product over all steps, by which a step's number does not follow from a count."""
    module, step, inputs, _ = linear(lambda module, x: module(x).sum())
    optimizer = torch.optim.NAdam(module.parameters())
    step(*inputs).backward()
    optimizer.step()
    return module, step, inputs, optimizer


class Momentum(torch.optim.Optimizer):
    """Makes its state in its first step, as an operator does."""

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(parameter)
            state["momentum"].add_(parameter.grad)
            parameter.sub_(state["momentum"])


def first_momentum() -> Any:
    module, step, inputs, _ = linear(lambda module, x: module(x).sum())
    return module, step, inputs, Momentum(module.parameters(), {})


class Choosing(torch.optim.Optimizer):
    """An optimizer without states that does something by its learning rate, which shows in no operator."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.large = 0

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad.sign(), alpha=-group["lr"])
            self.large += group["lr"] > 0.95


def choosing() -> Any:
    module, step, inputs, _ = linear(lambda module, x: module(x).sum())
    return module, step, inputs, Choosing(module.parameters(), lr=1.0)


def dampened() -> Any:
    module, step, inputs, _ = linear(lambda module, x: module(x).sum())
    return module, step, inputs, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, dampening=0.1)


def stranger() -> Any:
    module, step, inputs, _ = linear(lambda module, x: module(x).sum())
    return module, step, inputs, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


def no_loss() -> Any:
    return linear(lambda module, x: module(x))


def unwritten() -> Any:
    return linear(lambda module, x: (module(x) + torch.empty(WIDTH)).sum())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (hooked, "module 'Linear' has hooks"),
        (hooked_gradient, "parameter 'weight' has hooks"),
        (hooked_optimizer, "the optimizer has hooks"),
        (item, "it asks for the value of a tensor"),
        (condition, "it asks for the value of a tensor"),
        (as_list, "it asks for the value of a tensor"),
        (masked, "the shape of a result depends on values"),
        (sparse, "layout sparse"),
        (subclass, "input 0 is a Named, a subclass of tensors"),
        (compiled, "is compiled"),
        (parallel, "is distributed (DataParallel)"),
        (scaled, "GradScaler"),
        pytest.param(
            autocast_on_cuda,
            "it asks for CUDA, and its module is on the CPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there"),
        ),
        (seeding, "gives the generator of random numbers a seed"),
        (own_generator, "it draws from a generator of its own"),
        (tensor_rate, "'lr' of group 0 of the optimizer is a tensor"),
        (scheduling, "the step changes 'lr' of group 0 of the optimizer"),
        (counting, "'FP(step div)' has 1 in one step and 2 in a later one"),
        (changing, "the step takes other ways from time to time: 'FP(step sum)' is 'FP(step pow)'"),
        (longer, "the step takes other ways from time to time: 'BP(step ones_like)' is 'FP(step mul)'"),
        (values_from_elsewhere, "reads values that are made without torch's operators"),
        (plain_attribute, "writes into a tensor that is neither the module's"),
        (replacing, "the step makes buffer 'mean' anew"),
        (multiplying, "'mu_product' of weight, 'step' of weight in another way in a later step"),
        (first_momentum, "the step makes state 'bias momentum' anew; take one step before"),
        (choosing, "the optimizer takes other ways from step to step, by 'lr' of group 0"),
        (dampened, "SGD with dampening"),
        (stranger, "parameter 0 in group 0 of the optimizer is none of the module's"),
        (no_loss, "returned no loss to train with but 24 values"),
        (other_memory, "it gives a tensor other memory by set_"),
        (unwritten, "it reads memory that nothing has written"),
    ],
)
def test_what_cannot_be_recorded_is_refused_in_one_sentence(make: Callable[[], Any], told: str) -> None:
    made = make()
    states = made[3].state_dict() if made[3] is not None else None
    with pytest.raises(PebblerError) as refused:
        record_step(*made)
    message = str(refused.value)
    assert told in message
    assert "\n" not in message
    assert not any(part._forward_pre_hooks for part in made[0].modules()), "labels are taken away again"
    assert str(made[3].state_dict() if made[3] is not None else None) == str(states)


def test_tensors_elsewhere_are_refused() -> None:
    module = nn.Linear(2, 2, device="meta")
    with pytest.raises(PebblerError, match="parameter 'weight' is on meta, and a step is recorded"):
        record_step(module, module, (torch.zeros(1, 2),))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_is_refused_where_there_is_none() -> None:
    def make(batch: int) -> Any:
        module, step, inputs, optimizer = perceptron(batch)
        return module.cuda(), step, inputs, optimizer

    with pytest.raises(PebblerError, match=r"make_step\(4\) failed at .*: it asks for CUDA"):
        record_made(make, 4)


def test_something_else_than_a_step_is_refused() -> None:
    with pytest.raises(PebblerError, match="make_step returned something else"):
        record_made(lambda _: (nn.Linear(2, 2), None, ()), 4)
