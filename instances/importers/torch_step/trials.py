"""Whether an operator's overload that writes where it is told gives the bits of the operator itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from .calls import new_results, out_form
from .devices import Device
from .memory import bytes_of, fresh, have_same_bits, key_of, reference_to, tensor_at
from .record import Reference, StepOperator, leaves_of, mapped


@dataclass(frozen=True, slots=True)
class Trial:
    """What an overload did that writes where it is told.

    Attributes
    ----------
    written
        The results.
    scratch_bytes
        Most that it allocated at once on the way.
    """

    written: list[Any]
    scratch_bytes: int


def try_out(
    known: StepOperator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    operands: dict[int, Any],
    device: Device,
) -> Trial | None:
    """Run the overload of an operator into memory filled with NaN, and return what it did.

    The generator is afterwards as before, and what the operator rewrites is copied first, so nothing is
    changed.

    Parameters
    ----------
    known
        The operator as it was recorded in an earlier step.
    args, kwargs
        What it is about to be called with.
    operands
        The tensors among them by storage.
    device
        Where they are.

    Returns
    -------
    Trial or None
        None where it has no such overload, or one that refuses the operator's own results, writes elsewhere
        or gives them another size on the way, as those of losses do that are reduced.
    """
    form, targets = out_form(known.overload, device.key), new_results(known)
    if form is None or known.kind != "task" or {target.storage for target in targets} & operands.keys():
        return None
    if _reduces(known):
        return None
    spare = {d: bytes_of(operands[d].untyped_storage()).clone().untyped_storage() for d in known.hidden}
    written = [_fresh_at(target, device) for target in targets]
    places = list(map(_place_of, written))
    generator = device.rng_state()
    try:
        given, named = _elsewhere((args, kwargs), operands, spare)
        with device.allocations() as scratch:
            form.overload(*given, **named, **dict(zip(form.names, written, strict=True)))
    except RuntimeError:
        return None
    finally:
        device.set_rng_state(generator)
    unmoved = list(map(_place_of, written)) == places
    return Trial(written, scratch.peak_bytes) if unmoved else None


@contextmanager
def repeatable(
    operator: StepOperator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    operands: dict[int, Any],
    device: Device,
) -> Iterator[Callable[[], object]]:
    """Give a function that runs an operator once more, in its manner of writing.

    The generator is afterwards as before, and so is what the operator rewrites.

    Parameters
    ----------
    operator
        The operator, as it has just been recorded.
    args, kwargs
        What it was called with.
    operands
        The tensors among them by storage.
    device
        Where they are.
    """
    written = [bytes_of(operands[d].untyped_storage()) for d in operands if d not in operator.reads]
    before, generator = [data.clone() for data in written], device.rng_state()
    overload, named = operator.overload, kwargs
    if operator.out is not None:
        targets = [_fresh_at(target, device) for target in new_results(operator)]
        overload = operator.out.overload
        named = kwargs | dict(zip(operator.out.names, targets, strict=True))
    try:
        yield partial(overload, *args, **named)
    finally:
        device.set_rng_state(generator)
        device.copy_all(written, before)


def idle_of(
    operator: StepOperator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    operands: dict[int, Any],
    returned: Any,
    device: Device,
) -> tuple[int, ...]:
    """Return what an operator rewrites unseen and does not depend on: all of it, or nothing.

    It runs once more, with NaN there, and has to return the same bits. What also rewrites operands that it
    names, or draws, is not tried.

    Parameters
    ----------
    operator
        The operator, as it has just been recorded.
    args, kwargs, returned
        What it was called with, and returned.
    operands
        The tensors among its arguments by storage.
    device
        Where they are.
    """
    unseen = {*operator.hidden}
    damages = unseen != {*operator.updates} or operands.keys() & {*operator.outputs}
    if operator.kind != "task" or not unseen or operator.draw is not None or damages:
        return ()
    others = {d: fresh(operands[d].untyped_storage().nbytes(), device.name) for d in operator.hidden}
    given, named = _elsewhere((args, kwargs), operands, others)
    again = operator.overload(*given, **named)
    pairs = zip(leaves_of(again), leaves_of(returned), strict=True)
    tensors = [pair for pair in pairs if isinstance(pair[0], torch.Tensor)]
    return operator.hidden if tensors and all(have_same_bits(*pair) for pair in tensors) else ()


def _elsewhere(tree: Any, operands: dict[int, Any], storages: dict[int, Any]) -> Any:
    """Return arguments in which the tensors of some operands lie in other storages."""
    others = {key_of(operands[d]): storage for d, storage in storages.items()}

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and key_of(leaf) in others:
            return tensor_at(reference_to(leaf, 0), others[key_of(leaf)])
        return leaf

    return mapped(moved, tree)


def _fresh_at(target: Reference, device: Device) -> Any:
    """Return the tensor of a result in memory of its own, filled with NaN."""
    return tensor_at(target, fresh(_end_of(target), device.name))


def _reduces(operator: StepOperator) -> bool:
    """Whether an operator is a loss that sums up or takes the mean, and not the gradient of one."""
    if operator.overload._schema.name.endswith("_backward"):
        return False
    arguments = operator.overload._schema.arguments
    names = [argument.name for argument in arguments]
    defaults = {argument.name: argument.default_value for argument in arguments}
    given = defaults | dict(zip(names, operator.args, strict=False)) | operator.kwargs
    return bool(given.get("reduction", 0) != 0)


def _place_of(tensor: Any) -> tuple[int, int]:
    """Return where a tensor begins, and how large its storage is."""
    return tensor.data_ptr(), tensor.untyped_storage().nbytes()


def _end_of(target: Reference) -> int:
    """Return the bytes from a storage's begin to the end of a tensor in it."""
    if 0 in target.size:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(target.size, target.stride, strict=True))
    return int((target.offset + last + 1) * target.dtype.itemsize)
