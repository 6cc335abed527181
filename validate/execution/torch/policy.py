"""What a plan keeps, copies to the host and computes again, for steps that eager torch takes.

Autograd keeps what the backward pass reads. `torch.autograd.graph.saved_tensors_hooks` lets something else
take its place: here a copy on the host, or the operator that makes it again. Which tensor is which is known
from the order of the operators, which is that of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Protocol, Self, get_args

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from ....instances.errors import PebblerError
from ....instances.figures import text_of
from ....instances.importers.torch_step.calls import filled
from ....instances.importers.torch_step.devices import Device, device_of
from ....instances.importers.torch_step.memory import bytes_of, key_of, reference_to, tensor_at
from ....instances.importers.torch_step.record import Reference, StepOperator, StepRecord, leaves_of
from ....instances.instance import Instance
from ....instances.units import as_lines, format_size
from ...schedule import Schedule

Choice = Literal["keep", "offload", "recompute"]
"""What becomes of a feature map until the backward pass reads it."""

_DETACH = torch.ops.aten.detach.default
"""Hooks detach what they are given, so an operator of this kind says nothing about where a step is."""


class TrainingPolicy:
    """A plan in terms of eager torch; a context manager for forward passes.

    Within a ``with`` block, what autograd keeps of a forward pass is kept, copied to the host or dropped, as
    the plan does. What was dropped is made again by the recorded operators when the backward pass asks for
    it, with the same random numbers. So gradients have the bits of eager torch. The backward pass may run in
    the block or behind it.

    What is lost is when and where: copies are made when autograd keeps or asks for a tensor, and the
    computation waits for them; what is computed again stays until the last use; torch's allocator chooses
    addresses. Gradients, parameters and states stay on the device.

    Parameters
    ----------
    record, instance, schedule
        A recorded step, the instance made of it, and a schedule.

    Attributes
    ----------
    choices
        By the name of each feature map that is read behind the forward pass.
    """

    def __init__(self, record: StepRecord, instance: Instance, schedule: Schedule) -> None:
        self._record = record
        self._chosen = _choices(record, instance, schedule)
        self.choices: Mapping[str, Choice] = MappingProxyType(
            {text_of(record.storages[s].name): choice for s, choice in self._chosen.items()}
        )
        maps = {text_of(record.storages[s].name) for s in _made_forward(record)}
        moved = {operation.block for operation in schedule.operations if operation.kind == "prefetch"}
        others = [instance.blocks[d] for d in moved if d is not None]
        self._lost_bytes = sum(block.bytes for block in others if (block.tensor or block.name) not in maps)
        self._active: ExitStack | None = None

    def __str__(self) -> str:
        facts = []
        for choice in get_args(Choice):
            chosen = [s for s, one in self._chosen.items() if one == choice]
            size = format_size(sum(self._record.storages[s].bytes for s in chosen))
            facts.append((choice, f"{len(chosen)} feature maps, {size}"))
        lost = f"{format_size(self._lost_bytes)} of other data, which the plan moves and the policy does not"
        return as_lines([*facts, ("lost", lost)])

    def __enter__(self) -> Self:
        if self._active is not None:
            raise PebblerError("the policy is in use; leave its block before the next forward pass")
        forward = _Forward(self._record, self._chosen)
        with ExitStack() as stack:
            stack.callback(forward.forget)
            stack.enter_context(forward)
            stack.enter_context(saved_tensors_hooks(forward.pack, _unpack))
            self._active = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._active is not None
        active, self._active = self._active, None
        active.__exit__(kind, value, where)

    def context_fn(self, module: str) -> Callable[[], tuple[Any, Any]]:
        """Return the `context_fn` with which `torch.utils.checkpoint.checkpoint` calls a module.

        What the plan keeps or copies is saved, on the device, and the rest is computed again when the
        backward pass comes to the module, all at once. So are random numbers and what is rewritten in place,
        which such checkpoints cannot save. A ``with`` block is closer to the plan.

        Parameters
        ----------
        module
            By its name in the planned module. A step calls it once.

        Raises
        ------
        PebblerError
            When the planned step has no operators of such a module.
        """
        operators = [
            operator
            for operator in _forward(self._record)
            if operator.module == module or operator.module.startswith(f"{module}.")
        ]
        if not operators:
            raise PebblerError(f"the planned step has no module '{module}' that computes")
        rewritten = _rewritten(self._record)

        def contexts() -> tuple[Any, Any]:
            passes = {again: iter(operators) for again in (False, True)}  # torch 2.11 asks in both

            def policy(
                context: Any,
                overload: Any,
                *args: Any,  # noqa: ARG001
                **kwargs: Any,  # noqa: ARG001
            ) -> CheckpointPolicy:
                operator = _require_next(next(passes[context.is_recompute], None), overload)
                chosen = {self._chosen.get(s) for s in operator.outputs if s not in rewritten}
                saves = operator.draw is None and bool(chosen & {"keep", "offload"})
                return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE

            found: tuple[Any, Any] = create_selective_checkpoint_contexts(policy)
            return found

        return contexts

    def save_ops(self) -> str:
        """Return what torchtitan's graph trainer saves under ``memory_policy = "full"``, as the plan does.

        It is the value of ``--compile.full_recompute_save_ops``: a module and an operator for each feature
        map that the plan keeps, or copies to the host. What is random is always saved there, and everything
        else inside layers is computed again. Lost is that what is copied stays on the device, and that of
        operators of one kind in a module either all are saved or none.
        """
        selectors = [
            f"{operator.module}::{operator.overload}"
            for operator in _forward(self._record)
            if operator.module
            and operator.draw is None
            and any(self._chosen.get(s) in ("keep", "offload") for s in operator.outputs)
        ]
        return " | ".join(dict.fromkeys(selectors))


# --- what a plan does -----------------------------------------------------------------------------------


def _choices(record: StepRecord, instance: Instance, schedule: Schedule) -> dict[int, Choice]:
    """Return what a schedule does with each feature map that is read behind the forward pass.

    It is what the first reader there finds: what the forward pass has left, a copy from the host, or what an
    operator has made again. A feature map in parts is copied or made again as a whole if one part is.
    """
    tasks = [operator for operator in record.operators if operator.kind == "task"]
    made = {text_of(record.storages[s].name): s for s in _made_forward(record)}
    storages = {
        d: made[name]
        for d, block in enumerate(instance.blocks)
        if (name := block.tensor or block.name) in made
    }
    found: dict[int, Choice] = {}
    settled: dict[int, Choice] = {}
    ran: set[int] = set()
    for operation in schedule.operations:
        if operation.kind == "prefetch" and operation.block in storages:
            found[operation.block] = "offload"
        if operation.task is None:
            continue
        again = operation.task in ran
        ran.add(operation.task)
        task = instance.tasks[operation.task]
        if again or tasks[operation.task].phase != "forward":
            for d in (*task.reads(operation.algorithm or 0), *task.updates):
                if d in storages:
                    settled.setdefault(d, found[d])
        for d in task.makes(operation.algorithm or 0):
            found[d] = "recompute" if again else "keep"
    order: tuple[Choice, ...] = ("keep", "recompute", "offload")
    choices: dict[int, Choice] = {}
    for d, choice in settled.items():
        choices[storages[d]] = max(choice, choices.get(storages[d], "keep"), key=order.index)
    rewritten = _rewritten(record)
    return {
        s: "keep" if choice == "recompute" and s in rewritten else choice for s, choice in choices.items()
    }


def _made_forward(record: StepRecord) -> list[int]:
    """Return the storages that operators of the forward pass make."""
    return [
        s
        for operator in record.operators
        if operator.phase == "forward" and operator.kind == "task"
        for s in operator.outputs
    ]


def _rewritten(record: StepRecord) -> set[int]:
    """Return the storages that operators of the forward pass rewrite, and what is made beside that.

    A policy cannot make them again: batch norm, say, would rewrite its running statistics once more.
    """
    operators = _forward(record)
    made = {s for operator in operators if operator.updates for s in operator.outputs}
    return made | {s for operator in operators for s in operator.updates}


def _forward(record: StepRecord) -> list[StepOperator]:
    return [
        call
        for operator in record.operators
        for call in operator.calls
        if call.phase == "forward" and call.overload is not _DETACH
    ]


def _require_next(operator: StepOperator | None, overload: Any) -> StepOperator:
    """Refuse an operator that is not the next one of the record."""
    if operator is None or operator.overload is not overload:
        expected = "nothing more" if operator is None else f"'{operator.name}'"
        raise PebblerError(
            f"the forward pass runs {overload} where {expected} was planned; plan the step as it is"
        )
    return operator


# --- forward and backward passes ------------------------------------------------------------------------


class _Source(Protocol):
    """Where the backward pass finds storages."""

    def storage(self, s: int) -> Any:
        """Return the storage of this number in the record."""


class _Kept:
    """A storage that stays where it is."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def storage(self, s: int) -> Any:  # noqa: ARG002
        return self._storage


class _Offloaded:
    """A storage with a copy on the host, which comes back when it is asked for first."""

    def __init__(self, storage: Any) -> None:
        self._device = storage.device
        self._copy = bytes_of(storage).to("cpu", copy=True)
        self._back: Any = None

    def storage(self, s: int) -> Any:  # noqa: ARG002
        if self._back is None:
            self._back = self._copy.to(self._device, copy=True).untyped_storage()
        return self._back


class _Again:
    """An operator that runs again when what it makes is asked for first."""

    def __init__(self, operator: StepOperator, inputs: Mapping[int, _Source], device: Device) -> None:
        self._device = device
        self._operator = operator
        self._inputs = inputs
        self._generator = None if operator.draw is None else device.rng_state()
        self._made: dict[int, Any] = {}

    def storage(self, s: int) -> Any:
        if not self._made:
            self._run()
        return self._made[s]

    def _run(self) -> None:
        operator = self._operator

        def tensor_of(reference: Reference) -> Any:
            s = reference.storage
            return tensor_at(reference, self._inputs[s].storage(s))

        args, kwargs = filled(operator.args, tensor_of, {}), filled(operator.kwargs, tensor_of, {})
        now, kind = self._device.rng_state(), self._device.name.partition(":")[0]
        try:
            if self._generator is not None:
                self._device.set_rng_state(self._generator)
            with torch.set_grad_enabled(operator.grad_mode), torch.autocast(kind, enabled=False):
                returned = operator.overload(*args, **kwargs)
        finally:
            self._device.set_rng_state(now)
        for given, result in zip(leaves_of(returned), leaves_of(operator.results), strict=True):
            if isinstance(result, Reference):
                self._made[result.storage] = given.untyped_storage()


def _unpack(packed: Any) -> Any:
    """Return the tensor that autograd has asked to keep."""
    if isinstance(packed, torch.Tensor):
        return packed
    source, reference = packed
    return tensor_at(reference, source.storage(reference.storage))


class _Forward(TorchDispatchMode):
    """Knows which storage of the record is which while a forward pass runs."""

    def __init__(self, record: StepRecord, chosen: Mapping[int, Choice]) -> None:
        super().__init__()
        self._device = device_of(record.device)
        self._chosen = chosen
        self._rest = iter(_forward(record))
        self._numbers: dict[int, int] = {}
        self._sources: dict[int, _Source] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, and note what it makes."""
        call = partial(func, *args, **(kwargs or {}))
        if func is _DETACH or torch._C._current_autograd_node() is not None:
            return call()
        operator = next(self._rest, None)
        if operator is None:
            self.forget()
            return call()
        _require_next(operator, func)
        again = self._again(operator, args, kwargs or {})
        returned = call()
        for given, result in zip(leaves_of(returned), leaves_of(operator.results), strict=True):
            if isinstance(result, Reference):
                if tuple(given.size()) != result.size:
                    raise PebblerError(
                        f"'{operator.name}' makes a tensor of shape {tuple(given.size())}, and one of shape "
                        f"{result.size} was planned; plan the step as it is"
                    )
                self._numbers[key_of(given)] = result.storage
        for s in operator.updates:
            self._sources.pop(s, None)
        if again is not None:
            self._sources |= {s: again for s in operator.outputs if self._chosen.get(s) == "recompute"}
        return returned

    def forget(self) -> None:
        """Let only autograd hold what it keeps, when the forward pass has ended."""
        self._numbers.clear()
        self._sources.clear()

    def pack(self, tensor: Any) -> Any:
        """Return what autograd keeps in place of a tensor."""
        s = self._numbers.get(key_of(tensor))
        if s is None or self._chosen.get(s, "keep") == "keep":
            return tensor
        return self._source(s, tensor), reference_to(tensor, s)

    def _again(self, operator: StepOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Again | None:
        """Return how an operator runs again, if the plan runs it again; its operands are there."""
        if not any(self._chosen.get(s) == "recompute" for s in operator.outputs):
            return None
        recorded = leaves_of((operator.args, operator.kwargs))
        given = leaves_of((args, kwargs))
        return _Again(
            operator,
            {
                at.storage: self._source(at.storage, tensor)
                for at, tensor in zip(recorded, given, strict=True)
                if isinstance(at, Reference)
            },
            self._device,
        )

    def _source(self, s: int, tensor: Any) -> _Source:
        """Return where the backward pass finds the storage of a tensor, of this number in the record."""
        if s not in self._sources:
            if self._chosen.get(s) != "offload":
                return _Kept(tensor.untyped_storage())
            with _disable_current_modes():  # a copy is no operator of the step
                self._sources[s] = _Offloaded(tensor.untyped_storage())
        return self._sources[s]
