"""A record replayed in fresh memory, operator by operator, in no one's schedule: what judges records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pebbler.instances.importers.torch_step.calls import perform
from pebbler.instances.importers.torch_step.memory import bytes_of, fresh, reference_to, tensor_at
from pebbler.instances.importers.torch_step.persistent import find_tensors, read_scalars, trained_parameters
from pebbler.instances.importers.torch_step.record import Reference, StepOperator, StepRecord, TensorName


class Replay:
    """Steps of a module and an optimizer, of which only the tensors and the numbers in groups are used."""

    def __init__(self, record: StepRecord, module: Any, optimizer: Any) -> None:
        self.record = record
        self.module = module
        self.optimizer = optimizer

    def step(self, *inputs: Any, twice: Callable[[StepOperator], bool] = lambda _: False) -> Any:
        """Run a step, and return a copy of its loss; operators for which `twice` says so run again at "
        "once."""
        record = self.record
        assert all(
            guard.holds(
                read_scalars(self.optimizer, trained_parameters(self.module, self.optimizer), record.scalars)
            )
            for guard in record.guards
        )
        named = find_tensors(self.module, self.optimizer)
        named |= {TensorName("input", str(number)): tensor.clone() for number, tensor in enumerate(inputs)}
        for name, tensor in named.items():
            assert reference_to(tensor, record.tensors[name].storage) == record.tensors[name]
        kept = {record.tensors[name].storage: tensor.untyped_storage() for name, tensor in named.items()}
        storages = [
            kept.get(d)
            or (fresh(entry.bytes) if entry.values is None else entry.values.clone().untyped_storage())
            for d, entry in enumerate(record.storages)
        ]
        constants = {d: e.values for d, e in enumerate(record.storages) if e.values is not None}
        values = read_scalars(self.optimizer, trained_parameters(self.module, self.optimizer), record.scalars)
        generator = {0: torch.get_rng_state()}

        def tensor_of(reference: Reference) -> Any:
            return tensor_at(reference, storages[reference.storage])

        order = [o for o in record.operators if o.kind == "host"]
        order += [o for o in record.operators if o.kind != "host"]
        for operator in order:
            for again in (False, True)[: 1 + twice(operator)]:
                if operator.draw is not None:
                    torch.set_rng_state(generator[operator.draw.before])
                perform(operator, sparing(operator, record, tensor_of) if again else tensor_of, values)
                if operator.draw is not None:
                    generator[operator.draw.after] = torch.get_rng_state()
        torch.set_rng_state(generator[record.last_draw])
        assert all(torch.equal(bytes_of(storages[d]), data) for d, data in constants.items())
        return tensor_of(record.loss).clone()


def sparing(
    operator: StepOperator, record: StepRecord, tensor_of: Callable[[Reference], Any]
) -> Callable[[Reference], Any]:
    """Other memory for what an operator must not rewrite when it runs again."""
    others = {d: fresh(record.storages[d].bytes) for d in operator.idle}

    def found(reference: Reference) -> Any:
        if reference.storage in others:
            return tensor_at(reference, others[reference.storage])
        return tensor_of(reference)

    return found


def training(
    made: tuple[Any, ...],
    batches: list[tuple[Any, ...]],
    clip: float | None,
    schedule: Callable[[int], float],
) -> Iterator[Any]:
    """Steps of eager torch; each gives its loss."""
    module, step, _, optimizer = made
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    for batch in batches:
        loss = step(*batch)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        yield loss.detach().clone()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from a seed within, and go on as before behind."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)
