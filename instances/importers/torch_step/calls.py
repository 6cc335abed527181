"""How an operator writes its results to given memory, its call on given tensors, and which calls are one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from .record import OutForm, Reference, StepOperator, leaves_of, mapped
from .scalars import Formula, ScalarInput, evaluate

_COPIES = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)

_DAMAGING = (torch.ops.aten.cudnn_batch_norm.default,)
"""Operators whose overloads that write results damage the memory of the process (torch 2.11 on an H100)."""

TensorOf = Callable[[Reference], Any]
"""From a reference to the tensor that stands there."""


def filled(tree: Any, tensor_of: TensorOf, values: Mapping[ScalarInput, float]) -> Any:
    """Return arguments of a record with tensors and numbers in the place of references and expressions."""

    def fill(leaf: Any) -> Any:
        if isinstance(leaf, Reference):
            return tensor_of(leaf)
        return evaluate(leaf, values) if isinstance(leaf, ScalarInput | Formula) else leaf

    return mapped(fill, tree)


def perform(operator: StepOperator, tensor_of: TensorOf, values: Mapping[ScalarInput, float]) -> None:
    """Run an operator on the tensors of its references, in its own manner, and what follows at once.

    Views and allocations do nothing.

    Parameters
    ----------
    operator
        Of a record.
    tensor_of
        Gives operands and results. Where the operator's manner is ``copied``, results are copied there.
    values
        Of the record's scalars.

    Notes
    -----
    No tensor may require gradients. Where the operator draws, the generator must be in the state of
    ``operator.draw.before``.
    """
    for call in operator.calls if operator.kind not in ("view", "allocation") else ():
        _perform(call, tensor_of, values)


def _perform(operator: StepOperator, tensor_of: TensorOf, values: Mapping[ScalarInput, float]) -> None:
    args = filled(operator.args, tensor_of, values)
    kwargs = filled(operator.kwargs, tensor_of, values)
    with torch.set_grad_enabled(operator.grad_mode):
        if operator.out is not None:
            targets = zip(operator.out.names, new_results(operator), strict=True)
            operator.out.overload(*args, **kwargs, **{name: tensor_of(target) for name, target in targets})
            return
        returned = operator.overload(*args, **kwargs)
        if operator.manner == "copied":
            made = set(operator.outputs)
            for given, target in zip(leaves_of(returned), leaves_of(operator.results), strict=True):
                if isinstance(target, Reference) and target.storage in made:
                    tensor_of(target).copy_(given)


def new_results(operator: StepOperator) -> list[Reference]:
    """Return the results that an operator makes, in the order in which it returns them."""
    return [leaf for leaf in leaves_of(operator.results) if isinstance(leaf, Reference)]


def _copy_to(source: Any, *_: Any, out: Any, **__: Any) -> Any:
    """Copy a tensor to its result, whose type and layout are those that were asked for."""
    return out.copy_(source)


@cache
def out_form(overload: Any, key: str) -> OutForm | None:
    """Return the overload that writes an operator's results, where a device has a kernel of its own for it.

    The device is that of a key of torch's dispatcher, ``CPU`` or ``CUDA``. Many such overloads are generated:
    they call the operator and copy. Those are not returned, nor those that take other arguments. What only
    copies, with or without a cast, is a copy to where the result is wanted.
    """
    if overload in _DAMAGING:
        return None
    if overload in _COPIES:
        return OutForm(_copy_to, ("out",))
    wanted = [(argument.name, str(argument.type)) for argument in overload._schema.arguments]
    if any(argument.alias_info is not None for argument in overload._schema.arguments):
        return None
    for name in overload.overloadpacket.overloads():
        candidate = getattr(overload.overloadpacket, name)
        arguments = candidate._schema.arguments
        names = tuple(argument.name for argument in arguments if argument.is_out)
        plain = [(argument.name, str(argument.type)) for argument in arguments if not argument.is_out]
        fits = names and plain == wanted and len(names) == len(overload._schema.returns)
        if fits and torch._C._dispatch_has_kernel_for_dispatch_key(candidate.name(), key):
            return OutForm(candidate, names)
    return None


def merged(operators: Iterable[StepOperator]) -> list[StepOperator]:
    """Return operators, where what only rewrites what the one before has made is one with it (``then``).

    Batch norm and a ReLU in place behind it are an example: what the first makes is nothing that anybody else
    reads. As one, they make the same data again whenever they run, and so they may run again.
    """
    found: list[StepOperator] = []
    for operator in operators:
        if found and _may_follow(found[-1], operator):
            found[-1] = _as_one(found[-1], operator)
        else:
            found.append(operator)
    return found


def _may_follow(first: StepOperator, second: StepOperator) -> bool:
    """Whether an operator only rewrites what the one before it has made, by nothing but what is recorded."""
    numbers = leaves_of((second.args, second.kwargs))
    return (
        first.kind == second.kind == "task"
        and first.phase == second.phase != "optimizer"
        and second.manner == "in place"
        and {*second.updates} <= {*first.outputs}
        and not second.outputs
        and not second.hidden
        and not second.segments_bytes
        and second.draw is None
        and first.grad_mode == second.grad_mode
        and not any(isinstance(number, ScalarInput | Formula) for number in numbers)
    )


def _as_one(first: StepOperator, second: StepOperator) -> StepOperator:
    written = {*first.outputs, *first.updates}
    what = second.overload._schema.name.rpartition("::")[2]
    return replace(
        first,
        name=f"{first.name[:-1]}, {what})",
        reads=tuple(dict.fromkeys((*first.reads, *(d for d in second.reads if d not in written)))),
        scratch_bytes=max(first.scratch_bytes, second.scratch_bytes),
        duration_ns=first.duration_ns + second.duration_ns,
        then=(*first.then, second),
    )
