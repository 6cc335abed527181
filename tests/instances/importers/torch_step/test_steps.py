from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ....extras import needs_torch

torch = needs_torch()

from pebbler.instances.importers.torch_step.persistent import create_states  # noqa: E402
from pebbler.instances.importers.torch_step.record import StepOperator, StepRecord  # noqa: E402
from pebbler.instances.importers.torch_step.steps import record_step  # noqa: E402

from .models import cnn, gpt, half_gpt, lstm  # noqa: E402
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
    return [tuple(tensor.roll(number, 0) for tensor in inputs) for number in range(count)]


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


@pytest.mark.parametrize("make", [gpt, cnn, lstm, half_gpt])
def test_a_replayed_step_has_the_bits_of_eager_torch(make: Callable[[int], Any]) -> None:
    record = assert_same_training(make, clip=0.5, twice=lambda operator: operator.may_run_again)
    assert {operator.phase for operator in record.operators} == {"forward", "backward", "clip", "optimizer"}
    assert len({operator.name for operator in record.operators}) == len(record.operators)
