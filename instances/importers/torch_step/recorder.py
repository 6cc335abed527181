"""Runs a step for real, and notes every operator below autograd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..torch_labels import OUTSIDE, ModuleLabels
from ..torch_refusals import StepError
from .calls import out_form
from .devices import Device
from .generator import GeneratorStates
from .memory import Allocations, Copies, aligned, are_equal, bytes_of, have_same_bits
from .provenance import PythonCalls
from .record import Draw, Kind, Manner, Phase, Reference, StepOperator, TensorName, leaves_of, mapped
from .refusals import require_replayable
from .scalars import Expression, Formula, Guard, ScalarInput, Traced
from .storages import Storages
from .trials import Trial, idle_of, repeatable, try_out

_ALLOCATE = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
}
_PREFIX: dict[Phase, str] = {"forward": "FP", "backward": "BP", "clip": "CLIP", "optimizer": "UP"}
_ON_LISTS = ("aten::_foreach_", "aten::_fused_adam", "aten::_fused_sgd")


_FOREIGN = (
    "it writes into a tensor that is neither the module's nor made by an operator of torch in the step; "
    "make it a buffer, or a clone"
)
_ON_HOST = "it computes with single numbers on the host; make them where the module is, by device="
_NEW_STATE = (
    "the optimizer makes its states in its first step, which is another than those behind it; take one step "
    "before you return the optimizer"
)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that has returned.

    Attributes
    ----------
    operands, made
        Storages of its arguments, and of its results.
    declared, hidden
        Those that it rewrites according to its schema, and those that it rewrites in fact beside them.
    trial
        What its other overload did, where there is one and it was tried.
    within_bytes
        Most that it allocated at once, less what it returned; 0 where that was not measured.
    call_ns
        Time of the call.
    """

    overload: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    returned: Any
    operands: dict[int, Any]
    made: dict[int, Any]
    declared: set[int]
    hidden: tuple[int, ...]
    draw: Draw | None
    trial: Trial | None
    within_bytes: int
    call_ns: int


class Recorder(TorchDispatchMode):
    """Notes every operator of one step.

    Parameters
    ----------
    module, optimizer
        Whose step it is; the optimizer may be None.
    tensors
        What the step finds, by name.
    device
        Where the step computes.
    known
        The operators of the same step, recorded before. Given them, overloads that write where they are told
        are tried, copies are timed, scratch is measured, and what is alive is added up.

    Attributes
    ----------
    operators
        As a `StepRecord` has them.
    storages, generator
        Their storages, and the states of the generator.
    copies_ns
        Time of the copies of what operators allocated, by their position.
    guards
        Choices of the optimizer by traced numbers.
    went_back
        Whether there has been a backward pass.
    last_loss
        The number that the last call of ``backward()`` began with; None before one.
    updated
        Whether the optimizer has taken its step.
    """

    def __init__(
        self,
        module: Any,
        optimizer: Any,
        tensors: Mapping[TensorName, Any],
        device: Device,
        known: Sequence[StepOperator] = (),
    ) -> None:
        super().__init__()
        self.operators: list[StepOperator] = []
        self.storages = Storages(tensors, device)
        self.generator = GeneratorStates(device)
        self.copies_ns: dict[int, int] = {}
        self.guards: dict[Guard, None] = {}
        self.went_back = False
        self.last_loss: Reference | None = None
        self.updated = False
        self._module = module
        self._optimizer = optimizer
        self._device = device
        self._known = known
        self._copies = Copies()
        self._written = set(range(len(self.storages.entries)))
        self._names: Counter[str] = Counter()
        self._labels = ModuleLabels()
        self._calls = PythonCalls(self._read, self._backward)
        self._kinds = {name: type(part).__name__ for name, part in module.named_modules()}
        self._owner = OUTSIDE[0]
        self._last_phase: Phase = "forward"
        self._going_back = self._updating = self._reading = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note what runs within."""
        hooks = []
        if self._optimizer is not None:
            hooks = [
                self._optimizer.register_step_pre_hook(lambda *_: self._update(begins=True)),
                self._optimizer.register_step_post_hook(lambda *_: self._update(begins=False)),
            ]
        try:
            with self._labels.watching(self._module), self._calls, self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and note it; one on lists of tensors once a tensor, which gives the same bits."""
        kwargs = kwargs or {}
        if func.namespace == "profiler" or self._reading:
            return func(*args, **kwargs)
        require_replayable(func, types, args)
        if func._schema.name == "aten::set_":  # a view of memory that is known, by what had none of its own
            return func(*args, **kwargs)
        if not func._schema.name.startswith(_ON_LISTS):
            return self._run(func, args, kwargs)
        count = len(args[0])

        def one(value: Any, position: int) -> Any:
            return [value[position]] if isinstance(value, list | tuple) and len(value) == count else value

        returned = [
            self._run(
                func,
                tuple(one(value, position) for value in args),
                {name: one(value, position) for name, value in kwargs.items()},
            )
            for position in range(count)
        ]
        return [leaf for result in returned for leaf in result] if func._schema.returns else None

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, and find out what it does."""
        label, phase = self._labels.current(), self._phase()
        if phase != self._last_phase and phase in ("clip", "optimizer"):
            self.storages.name_gradients(self._module)
        self._last_phase = phase
        given = self._given(func, args, kwargs)
        operands = {self._find(tensor): tensor for tensor in _tensors((args, kwargs))}
        declared = {self._find(tensor) for tensor in _declared(func, args, kwargs)}
        others = {d: bytes_of(x.untyped_storage()) for d, x in operands.items() if d not in declared}
        before = self._copies.of(others)
        state = self._device.rng_state()
        trial = None
        if len(self.operators) < len(self._known) and out_form(func, self._device.key) is not None:
            trial = self._try(func, args, kwargs, operands)
        with self._device.allocations() if self._known else nullcontext(Allocations()) as memory:
            returned, call_ns = self._device.timed(partial(func, *args, **kwargs))
        made = {self.storages.find(tensor, "data"): tensor for tensor in _tensors(returned)}
        call = _Call(
            overload=func,
            args=given[0],
            kwargs=given[1],
            returned=returned,
            operands=operands,
            made=made,
            declared=declared,
            hidden=tuple(d for d, data in others.items() if not are_equal(before[d], data)),
            draw=self.generator.draw(state),
            trial=trial,
            within_bytes=memory.peak_bytes - memory.kept_bytes,
            call_ns=call_ns,
        )
        if self.storages.include_constant({*declared, *call.hidden}):
            raise StepError(_NEW_STATE if self._updating else _FOREIGN)
        self._note(call, label, phase)
        if self._known:
            self._repeat(args, kwargs, operands, returned)
            self.storages.measure()
            if self.operators[-1].manner == "copied":
                new = [tensor for d, tensor in made.items() if d not in operands]
                self.copies_ns[len(self.operators) - 1] = self._time(
                    lambda: [tensor.clone() for tensor in new]
                )
        return returned

    def _repeat(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], operands: dict[int, Any], returned: Any
    ) -> None:
        """Run the last operator again where that tells what its run did not."""
        operator, device = self.operators[-1], self._device
        idle = idle_of(operator, args, kwargs, operands, returned, device)
        self.operators[-1] = operator = replace(operator, idle=idle)
        is_large = operator.scratch_bytes > device.large_bytes
        if operator.kind != "task" or not (is_large or device.is_oversubscribed):
            return
        with repeatable(operator, args, kwargs, operands, device) as again:
            if device.is_oversubscribed:
                operator = replace(operator, duration_ns=self._time(again))
            if is_large:
                operator = replace(operator, segments_bytes=device.segments_of(again, operator.scratch_bytes))
        self.operators[-1] = operator

    def _time(self, work: Callable[[], object]) -> int:
        """Return the time of some work, which is done before, too, where its memory may be on the host."""
        if self._device.is_oversubscribed:
            work()
        return self._device.timed(work)[1]

    def _try(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: dict[int, Any]
    ) -> Trial | None:
        known = self._known[len(self.operators)]
        if known.overload is not func:
            return None
        return try_out(known, args, kwargs, operands, self._device)

    def _note(self, call: _Call, label: tuple[str, str], phase: Phase) -> None:
        """Add a call to the operators, and name the storages that it is the first to write."""
        kind, rewritten = self._kind(call), {*call.declared, *call.hidden}
        touched = dict.fromkeys((*call.operands, *call.made))
        if kind == "task":
            if all(self.storages.entries[d].on_host for d in touched):
                raise StepError(_ON_HOST)
            self._require_written(call.operands.keys() - rewritten)
        writes = [d for d in touched if d in rewritten or d not in call.operands]
        outputs = [d for d in writes if d not in self._written and kind != "allocation"]
        self._written.update(outputs)
        manner, scratch = self._manner(call, kind)
        if phase == "optimizer":
            label = self._label_of_update(touched)
        who = self._owner if phase == "optimizer" else label[0]
        name = self._unique(f"{_PREFIX[phase]}({who} {call.overload._schema.name.rpartition('::')[2]}")
        for position, d in enumerate(outputs):
            if self.storages.entries[d].role == "data":
                self.storages.call(d, name if len(outputs) == 1 else f"{name}[{position}]", "data")
        self.operators.append(
            StepOperator(
                name=name,
                module=label[0],
                module_kind=label[1],
                phase=phase,
                kind=kind,
                overload=call.overload,
                args=call.args,
                kwargs=call.kwargs,
                results=mapped(self._result, call.returned),
                reads=tuple(d for d in call.operands if d not in writes),
                outputs=tuple(outputs),
                updates=tuple(d for d in writes if d not in outputs and kind != "allocation"),
                hidden=call.hidden,
                draw=call.draw,
                grad_mode=torch.is_grad_enabled(),
                manner=manner,
                out=out_form(call.overload, self._device.key) if manner == "out" else None,
                scratch_bytes=scratch,
                duration_ns=call.call_ns,
            )
        )

    def _kind(self, call: _Call) -> Kind:
        if call.overload._schema.name in _ALLOCATE:
            return "allocation"
        changes = call.draw is not None or call.hidden or not call.made.keys() <= call.operands.keys()
        if not changes and (not call.declared or torch.Tag.inplace_view in call.overload.tags):
            return "view"
        return "host" if self.storages.are_on_host({*call.operands, *call.made}) else "task"

    def _manner(self, call: _Call, kind: Kind) -> tuple[Manner, int]:
        """Return how an operator can write to given memory, and the scratch that it takes on the way."""
        new = [d for d in call.made if d not in call.operands]
        unit = self._device.alignment
        if kind in ("view", "allocation"):
            return "none", 0
        if not new:
            return "in place", aligned(call.within_bytes, unit)
        if call.trial is not None and all(map(_have_same_bits, call.trial.written, _tensors(call.returned))):
            return "out", aligned(call.trial.scratch_bytes, unit)
        entries = [self.storages.entries[d] for d in new]
        results = sum(aligned(entry.bytes, unit) for entry in entries if not entry.on_host)
        return "copied", results + aligned(call.within_bytes, unit)

    def _require_written(self, operands: set[int]) -> None:
        unwritten = [d for d in operands - self._written if self.storages.entries[d].bytes]
        if unwritten:
            raise StepError("it reads memory that nothing has written; make it with torch.zeros")

    def _label_of_update(self, touched: dict[int, None]) -> tuple[str, str]:
        """Return the module of the parameter that the optimizer is busy with."""
        owners = self.storages.owners
        self._owner = next((owners[d] for d in touched if d in owners), self._owner)
        name = self._owner.rpartition(".")[0]
        return (name or self._kinds[""], self._kinds[name]) if self._owner != OUTSIDE[0] else OUTSIDE

    def _unique(self, opened: str) -> str:
        self._names[opened] += 1
        count = self._names[opened]
        return f"{opened})" if count == 1 else f"{opened} #{count})"

    def _given(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments with references for tensors and expressions for traced numbers."""

        def named(name: str, value: Any) -> Any:
            return mapped(lambda leaf: self._argument(name, leaf), value)

        names = [argument.name for argument in func._schema.arguments]
        positional = tuple(named(name, value) for name, value in zip(names, args, strict=False))
        return positional, {name: named(name, value) for name, value in kwargs.items()}

    def _argument(self, name: str, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self.storages.reference(leaf)
        if isinstance(leaf, torch.Generator):
            raise StepError("it draws from a generator of its own; leave 'generator' out")
        return self._calls.expression(name, leaf) if type(leaf) is float else leaf

    def _result(self, leaf: Any) -> Any:
        return self.storages.reference(leaf) if isinstance(leaf, torch.Tensor) else leaf

    def _find(self, tensor: Any) -> int:
        """Return the storage of an operand; one that was never made in the step is a constant."""
        d = self.storages.find(tensor, "constant")
        if self.storages.entries[d].role == "constant":
            self._written.add(d)
        return d

    def _phase(self) -> Phase:
        if self._updating:
            return "optimizer"
        if self._going_back or torch._C._current_autograd_node() is not None:
            self.went_back = True
            return "backward"
        if self.went_back and self._labels.outside and not torch.is_grad_enabled():
            return "optimizer" if self.updated else "clip"
        return "forward"

    def _update(self, *, begins: bool) -> None:
        self._updating = begins
        self.updated = True

    def _backward(self, loss: Any) -> None:
        """Note that the backward pass of a loss begins; None: that it has ended."""
        self._going_back = loss is not None
        if loss is not None:
            self.last_loss = self.storages.reference(loss)

    def _read(self, tensor: Any) -> Traced | None:
        """Return a number in the optimizer's state that it asks for, by what it was at the step's begin."""
        count = self.storages.count_in(tensor)
        if count is None or not self._updating:
            return None
        name, begin = count
        self._reading = True
        try:
            value = float(tensor)
        finally:
            self._reading = False
        source = ScalarInput(name.name, name.key)
        expression: Expression = source if value == begin else Formula("+", (source, value - begin))
        return Traced(value, expression, self.guards)


def _have_same_bits(written: Any, returned: Any) -> bool:
    """Whether what was written is what an operator returned, which may be a number on the host."""
    return written.device == returned.device and have_same_bits(written, returned)


def _tensors(tree: Any) -> list[Any]:
    return [leaf for leaf in leaves_of(tree) if isinstance(leaf, torch.Tensor)]


def _declared(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the tensors that an operator rewrites, according to its schema."""
    given = [
        args[position] if position < len(args) else kwargs.get(argument.name)
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return _tensors(given)
