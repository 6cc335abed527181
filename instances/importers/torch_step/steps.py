"""Record a training step of a user's module and optimizer, and compare it with those that follow."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from ...errors import PebblerError
from ..torch_cuda import count_gpus
from ..torch_refusals import explained, loss_in, loss_of
from .calls import merged
from .devices import Device, common_device
from .memory import aligned, key_of
from .persistent import create_states, find_tensors, grouped_parameters, kept_as_they_are
from .provenance import fixed_settings, traced_groups
from .record import Reference, StepOperator, StepRecord, StepStorage, TensorName, scalars_of
from .recorder import Recorder
from .refusals import require_recordable
from .scalars import Formula, Guard, inputs_of

_log = logging.getLogger(__name__)

MakeTrainingStep = Callable[[int], tuple[Any, ...]]
"""From a batch size to a module, a function of the inputs that computes the loss with it, the inputs, and the
optimizer; the last may be left out."""

_SCALES = (1.0, 0.9)
"""Learning rates and other numbers of the optimizer in the recorded steps, of the user's.

The first step shows what its operators do. The second one shows what follows from these numbers, and with the
operators known, it tries how they can write where they are told, and measures.
"""

_OTHER = "differs, or is used for one of them only; return one that does not depend on the size"
_NO_CUDA = (
    "it asks for CUDA, and its module is on the CPU; leave everything there, or put all of it on the GPU"
)
_TWICE = (("backward through the graph a second time", "it runs a second backward pass through one loss"),)
_KNOWN = {
    "CPU": (("CUDA", _NO_CUDA), ("NVIDIA", _NO_CUDA), *_TWICE),
    "CUDA": (
        ("out of memory", "the GPU has too little memory for one of its operators"),
        *_TWICE,
    ),
}
"""Parts of torch's messages, and what they mean, by the key of the device."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A step that has run."""

    operators: list[StepOperator]
    storages: list[StepStorage]
    guards: dict[Guard, None]
    tensors: dict[TensorName, Reference]
    loss: Reference
    gradients: dict[str, Reference]
    draws: int
    last_draw: int
    copies_ns: dict[int, int]
    peak_bytes: int
    goes_back: bool
    updates: bool


def record_made(make_step: MakeTrainingStep, batch: int, *, clip: float | None = None) -> StepRecord:
    """Record the training step that a function makes for a batch size.

    Parameters
    ----------
    make_step
        Called with the batch size; returns ``(module, step, inputs, optimizer)`` or ``(module, step,
        inputs)`` for `record_step`.
    batch
        Images, or whatever the model counts.
    clip
        As in `record_step`.

    Raises
    ------
    PebblerError
        When `make_step` fails or returns something else, and as in `record_step`.
    """
    with _explained(f"make_step({batch})", "CUDA" if count_gpus() else "CPU"):
        made = make_step(batch)
    fits = (
        isinstance(made, tuple)
        and len(made) in (3, 4)
        and isinstance(made[0], torch.nn.Module)
        and callable(made[1])
        and isinstance(made[2], tuple)
        and all(isinstance(tensor, torch.Tensor) for tensor in made[2])
        and (len(made) == 3 or isinstance(made[3], torch.optim.Optimizer))
    )
    if not fits:
        raise PebblerError(
            "make_step returned something else than (module, step, inputs, optimizer): return a "
            "torch.nn.Module, a function that computes the loss with it, a tuple of tensors to call that "
            "with, and an optimizer of torch.optim, which may be left out"
        )
    return record_step(*made, clip=clip)


def record_step(
    module: Any,
    step: Callable[..., Any],
    inputs: tuple[Any, ...],
    optimizer: Any = None,
    *,
    clip: float | None = None,
) -> StepRecord:
    """Run a training step for real, where its module is, and return what its operators did.

    The step runs twice, with the optimizer's states made before, and with smaller learning rates and other
    numbers the second time. What then differs between the steps follows from numbers that the optimizer has
    when a step begins, or the step is refused. Module, optimizer, gradients and the
    generator of random numbers are afterwards as they were. On a GPU, eager torch takes a step between these
    two, for its peak. A step that needs more memory than the GPU has runs in memory that CUDA moves between
    GPU and host, and operators are then measured when they run once more.

    Parameters
    ----------
    module
        With all parameters that are trained.
    step
        ``step(*inputs)`` returns the scalar loss; or it runs the backward pass itself, once or in several
        micro-batches, and may go on with clipping and the optimizer's step. What it leaves out is done behind
        it.
    inputs
        Tensors. Copies of them are given to the step.
    optimizer
        Of ``torch.optim``; None: the step ends with the gradients.
    clip
        The norm that `torch.nn.utils.clip_grad_norm_` clips gradients to before the optimizer's step; None:
        it is not called.

    Raises
    ------
    PebblerError
        When the step fails, when it cannot be recorded (hooks, values that Python asks for, sparse gradients,
        subclasses of tensors, compiled or distributed modules, loss scaling, tensors on several devices), or
        when steps differ in what the optimizer's numbers do not explain.
    """
    require_recordable(module, optimizer, inputs)
    device = common_device(module, inputs)
    device.require_ready()
    try:
        return _recorded(module, step, inputs, optimizer, clip, device)
    except (PebblerError, torch.OutOfMemoryError) as error:
        if not isinstance(error.__cause__ or error, torch.OutOfMemoryError):
            raise
    _log.info("%s has too little memory for eager torch; CUDA moves it meanwhile", device.name)
    with device.oversubscribed():
        return _recorded(module, step, inputs, optimizer, clip, device)


def _recorded(
    module: Any,
    step: Callable[..., Any],
    inputs: tuple[Any, ...],
    optimizer: Any,
    clip: float | None,
    device: Device,
) -> StepRecord:
    """See `record_step`."""
    with kept_as_they_are(module, optimizer, device):
        created = create_states(module, optimizer)
        first = _run(module, step, inputs, optimizer, clip, device, _SCALES[0], [])
        peak_bytes = device.peak_of(
            lambda: _run_eagerly(module, step, inputs, optimizer, clip, device, first),
            sum(
                aligned(first.storages[s].bytes, device.alignment)
                for s in {at.storage for name, at in first.tensors.items() if name.role != "input"}
                if not first.storages[s].on_host
            ),
        )
        runs = [first, _run(module, step, inputs, optimizer, clip, device, _SCALES[1], first.operators)]
        _require_same(*runs)
        settings = fixed_settings(optimizer)
    training = {name: part.training for name, part in module.named_modules()}
    guards = {guard: None for run in runs for guard in run.guards}
    _require_one_way(guards)
    last, operators = runs[-1], merged(_joined(runs))
    touched = {d for operator in operators for d in (*operator.reads, *operator.outputs, *operator.updates)}
    unneeded = {name for name in created if last.tensors[name].storage not in touched}
    return StepRecord(
        storages=tuple(last.storages),
        operators=tuple(operators),
        tensors={name: tensor for name, tensor in last.tensors.items() if name not in unneeded},
        loss=last.loss,
        gradients=last.gradients,
        scalars=tuple(sorted(scalars_of(operators, guards), key=str)),
        guards=tuple(guards),
        groups=grouped_parameters(module, optimizer),
        settings=settings,
        draws=last.draws,
        last_draw=last.last_draw,
        created_states=tuple(name for name in created if name not in unneeded),
        training=training,
        environment=device.environment(),
        eager_peak_bytes=last.peak_bytes if peak_bytes is None else peak_bytes,
        device=device.name,
    )


def require_alike(records: Sequence[StepRecord]) -> None:
    """Refuse steps of other sizes that are not of one module and optimizer, or have inputs of one shape.

    What outlives a step has the same storages, by number, in all of them.

    Raises
    ------
    PebblerError
        When they are; the message says in what they differ.
    """
    first, *others = map(_lasting, records)
    for record, other in zip(records[1:], others, strict=True):
        differing = [name for name in {**first, **other} if first.get(name) != other.get(name)]
        if differing or record.training != records[0].training:
            what = f"{differing[0].role} '{differing[0].name}'" if differing else "the mode of training"
            raise PebblerError(f"make_step returns another module for another batch size: {what} {_OTHER}")
    shapes = [tuple((at.dtype, at.size) for at in record.inputs) for record in records]
    if len({*shapes}) < len(shapes):
        raise PebblerError(
            "make_step returns inputs of the same shapes for several batch sizes, so that no step could tell "
            "which of them it is given; plan for one of these sizes"
        )


def _lasting(record: StepRecord) -> dict[TensorName, tuple[Reference, int, bool]]:
    """Return where everything that outlives a step lies, in how many bytes, and whether a task touches it."""
    touched = {
        d
        for operator in record.operators
        if operator.kind == "task"
        for d in (*operator.reads, *operator.outputs, *operator.updates)
    }
    return {
        name: (at, record.storages[at.storage].bytes, at.storage in touched)
        for name, at in record.lasting.items()
    }


def _run(
    module: Any,
    step: Callable[..., Any],
    inputs: tuple[Any, ...],
    optimizer: Any,
    clip: float | None,
    device: Device,
    scale: float,
    known: list[StepOperator],
) -> _Run:
    """Run the step once, and note what it does."""
    given = _copies_of(inputs)
    for parameter in module.parameters():
        parameter.grad = None
    found = find_tensors(module, optimizer)
    named = {TensorName("input", str(number)): tensor for number, tensor in enumerate(given)}
    recorder = Recorder(module, optimizer, {**found, **named}, device, known)
    with traced_groups(optimizer, recorder.guards, scale), recorder.recording():
        with _explained("the step", device.key):
            result = step(*given)
        goes_back, updates = recorder.went_back, recorder.updated
        if not goes_back:
            loss = loss_of(result, step)
            if str(loss.device) != device.name:
                raise PebblerError(
                    f"the step returns its loss on {loss.device}, and its module is on {device.name}; return "
                    "it there"
                )
            with _explained("the backward pass", device.key):
                loss.backward()
        else:
            loss = loss_in(result)
        reference = recorder.last_loss
        if isinstance(loss, torch.Tensor):
            reference = recorder.storages.reference(loss)
        if reference is None:
            raise PebblerError("the step runs a backward pass and returns no loss; return the number")
        del result
        if clip is not None and not updates:
            with _explained("clipping", device.key):
                torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        recorder.storages.name_gradients(module)
        if optimizer is not None and not updates:
            with _explained("the optimizer's step", device.key):
                optimizer.step()
    with _explained("the step", device.key):
        last_draw = recorder.generator.number(device.rng_state())
    _require_in_place(found, find_tensors(module, optimizer))
    tensors = {name: recorder.storages.reference(tensor) for name, tensor in {**found, **named}.items()}
    for parameter in module.parameters():
        parameter.grad = None
    return _Run(
        operators=recorder.operators,
        storages=recorder.storages.entries,
        guards=recorder.guards,
        tensors=tensors,
        loss=reference,
        gradients=recorder.storages.gradients,
        draws=recorder.generator.count,
        last_draw=last_draw,
        copies_ns=recorder.copies_ns,
        peak_bytes=recorder.storages.peak_bytes,
        goes_back=goes_back,
        updates=updates,
    )


@contextmanager
def _explained(what: str, key: str) -> Iterator[None]:
    """As `explained`; on the CPU, what asks for CUDA fails, where torch would only warn and do without."""
    with warnings.catch_warnings():
        if key == "CPU":
            warnings.filterwarnings("error", ".*CUDA is not available", UserWarning)
        with explained(what, _KNOWN[key]):
            yield


def _copies_of(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return copies of inputs, with which a step may do what it likes."""
    return tuple(tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs)


def _run_eagerly(
    module: Any,
    step: Callable[..., Any],
    inputs: tuple[Any, ...],
    optimizer: Any,
    clip: float | None,
    device: Device,
    recorded: _Run,
) -> None:
    """Run the step as it was recorded, with nothing beside it."""
    with _explained("the step", device.key):
        loss = loss_in(step(*_copies_of(inputs)))
        if not recorded.goes_back:
            loss.backward()
        if clip is not None and not recorded.updates:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        if optimizer is not None and not recorded.updates:
            optimizer.step()
    for parameter in module.parameters():
        parameter.grad = None


def _require_in_place(before: dict[TensorName, Any], after: dict[TensorName, Any]) -> None:
    """Refuse a step that puts another tensor in the place of one that outlives it."""
    for name in sorted({*before, *after}, key=str):
        if name not in before or name not in after or key_of(before[name]) != key_of(after[name]):
            what = f"the step makes {name.role} '{' '.join(filter(None, (name.name, name.key)))}' anew"
            if name.role == "state":
                raise PebblerError(f"{what}; take one step before you return the optimizer")
            raise PebblerError(f"{what}; make it before the first step, and write into it")


def _joined(runs: list[_Run]) -> list[StepOperator]:
    """Return the operators of the last run, with the least times of all and every write that one showed."""
    joined = []
    copies_ns = runs[-1].copies_ns
    for k, same in enumerate(zip(*(run.operators for run in runs), strict=True)):
        last: StepOperator = same[-1]
        hidden = tuple(dict.fromkeys(d for operator in same for d in operator.hidden))
        updates = tuple(dict.fromkeys((*last.updates, *hidden)))
        joined.append(
            replace(
                last,
                kind="task" if hidden else last.kind,
                hidden=hidden,
                updates=updates,
                reads=tuple(d for d in last.reads if d not in updates),
                duration_ns=min(operator.duration_ns for operator in same) + copies_ns.get(k, 0),
            )
        )
    return joined


def _require_same(first: _Run, other: _Run) -> None:
    """Refuse steps that differ in more than numbers that follow from the optimizer's.

    Raises
    ------
    PebblerError
        With the first operator that differs.
    """
    for left, right in zip(first.operators, other.operators, strict=False):
        if left.overload is not right.overload:
            raise PebblerError(
                f"the step takes other ways from time to time: '{left.name}' is '{right.name}' in a later "
                "step; leave out what depends on the count of steps or on Python's random numbers"
            )
        for before, after in zip(_leaves(left), _leaves(right), strict=False):
            if isinstance(before, Formula) and before != after:
                names = ", ".join(sorted(str(scalar) for scalar in inputs_of(before)))
                raise PebblerError(
                    f"'{left.name}' takes a number that follows from {names} in another way in a later step; "
                    "use an optimizer whose numbers follow from those that it is given and its count of "
                    "steps"
                )
            if not _is_same(before, after):
                raise PebblerError(
                    f"'{left.name}' has {_shown(before)} in one step and {_shown(after)} in a later one, "
                    "which follows from no number in the optimizer's groups or states; keep it as it is, or "
                    "make it a tensor that is an input"
                )
    if len(first.operators) != len(other.operators):
        longer = max(first.operators, other.operators, key=len)
        extra = longer[min(len(first.operators), len(other.operators))]
        raise PebblerError(f"the step takes other ways from time to time: not every step has '{extra.name}'")
    for one, same in zip(first.storages, other.storages, strict=True):
        if one.values is not None and not torch.equal(one.values, same.values):
            user = next(o.name for o in first.operators if first.storages.index(one) in o.reads)
            raise PebblerError(
                f"'{user}' reads values that are made without torch's operators, and others in a later step; "
                "make them an input"
            )


def _leaves(operator: StepOperator) -> Iterator[Any]:
    leaves, form = tree_flatten((operator.args, operator.kwargs, operator.results))
    yield form
    yield from leaves


def _is_same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    return bool(left == right) or (isinstance(left, float) and isnan(left) and isnan(right))


def _shown(value: Any) -> str:
    return f"a tensor of size {list(value.size)}" if isinstance(value, Reference) else f"{value}"


def _require_one_way(guards: dict[Guard, None]) -> None:
    """Refuse an optimizer that chose otherwise in a later step."""
    for guard in guards:
        if Guard(guard.condition, not guard.outcome) in guards:
            names = ", ".join(sorted(str(scalar) for scalar in inputs_of(guard.condition)))
            raise PebblerError(
                f"the optimizer takes other ways from step to step, by {names}; use another one"
            )
