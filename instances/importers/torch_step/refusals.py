"""What a recorded step must not have, each named in one sentence."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules import module as modules

from ...errors import PebblerError
from ..torch_refusals import StepError

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_VALUE = (
    "it asks for the value of a tensor, and a recorded step runs without Python; log and print behind the "
    "step, and decide by torch.where or by what is no tensor"
)
_SHAPE = (
    "the shape of a result depends on values, and a recorded step has fixed ones; keep the shape and mask "
    "with torch.where"
)
_SCALER = "it scales the loss with a GradScaler, which decides by values; train in bfloat16, which needs none"
_INDEX = {"aten::index", "aten::_unsafe_index"}
_ASKING = (
    torch.Tensor.item,
    torch.Tensor.tolist,
    torch.Tensor.numpy,
    torch.Tensor.__array__,
    torch.Tensor.__format__,
)


def require_recordable(module: Any, optimizer: Any, inputs: tuple[Any, ...]) -> None:
    """Refuse what cannot be recorded, or would be lost in what is replayed.

    Raises
    ------
    PebblerError
        When there are hooks, subclasses of tensors, compiled or distributed modules, or a learning rate that
        is a tensor.
    """
    for name, part in module.named_modules():
        _require_plain_module(f"module '{name or type(part).__name__}'", part)
    require_plain_surroundings(optimizer)
    named = (
        *((f"parameter '{name}'", tensor) for name, tensor in module.named_parameters()),
        *((f"buffer '{name}'", tensor) for name, tensor in module.named_buffers()),
        *((f"input {number}", tensor) for number, tensor in enumerate(inputs)),
    )
    for what, tensor in named:
        _require_plain_tensor(what, tensor)


def require_plain_surroundings(optimizer: Any) -> None:
    """Refuse hooks for all modules, and what cannot be recorded of an optimizer (None: there is none).

    Raises
    ------
    PebblerError
        When there are hooks, or a learning rate that is a tensor.
    """
    if any(getattr(modules, f"_global{name}", None) for name in _HOOKS):
        raise PebblerError("there are hooks for all modules, and a recorded step calls none; remove them")
    if optimizer is not None:
        _require_plain_optimizer(optimizer)


def require_replayable(overload: Any, types: Any, args: tuple[Any, ...]) -> None:
    """Refuse an operator that a record cannot stand for.

    Raises
    ------
    StepError
        When it asks for a value, has results whose shape depends on values, replaces memory, or belongs to
        something else that is refused.
    """
    name = overload._schema.name
    if any(kind not in _PLAIN for kind in types):
        raise StepError("it computes with a subclass of torch.Tensor; use plain tensors")
    if "_amp_" in name:
        raise StepError(_SCALER)
    if torch.Tag.data_dependent_output in overload.tags:
        raise StepError(_VALUE)
    masked = name in _INDEX and any(_is_mask(one) for one in args[1])
    if masked or (torch.Tag.dynamic_output_shape in overload.tags and name not in _INDEX):
        raise StepError(_SHAPE)
    if name == "aten::resize_" or (name == "aten::set_" and args[0].untyped_storage().nbytes()):
        raise StepError(
            f"it gives a tensor other memory by {name.removeprefix('aten::')}; write into it with copy_"
        )
    if overload.namespace in ("c10d", "_c10d_functional"):
        raise StepError("it communicates with other processes; record the step of one")


def require_plain_call(function: Any) -> None:
    """Refuse a function that takes values out of torch.

    Raises
    ------
    StepError
        When it does.
    """
    if function in _ASKING:
        raise StepError(_VALUE)


def require_dense(tensor: Any, device: str) -> None:
    """Refuse a tensor that is no plain piece of memory on a device, or a single number on the host.

    Raises
    ------
    StepError
        When it is not.
    """
    if tensor.layout is not torch.strided:
        raise StepError(
            f"it has a tensor of layout {str(tensor.layout).removeprefix('torch.')}; leave gradients and "
            "other tensors dense (sparse=False)"
        )
    is_number = tensor.device.type == "cpu" and tensor.dim() == 0
    if str(tensor.device) != device and not is_number:
        raise StepError(
            f"it has a tensor on {tensor.device}, and the step is recorded on {device}; make it there, by "
            "device="
        )
    if tensor.is_conj() or tensor.is_neg():
        raise StepError("it has a tensor that is conjugated lazily; call resolve_conj()")


def _require_plain_module(what: str, part: Any) -> None:
    origin = type(part).__module__
    if hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None:
        raise PebblerError(f"{what} is compiled; return the module as it was before torch.compile")
    if isinstance(part, torch.jit.ScriptModule):
        raise PebblerError(f"{what} is a script; return the module as it was before torch.jit")
    if origin.startswith(("torch.nn.parallel", "torch.distributed")):
        raise PebblerError(f"{what} is distributed ({type(part).__name__}); return the module within it")
    if any(getattr(part, name, None) for name in _HOOKS):
        raise PebblerError(f"{what} has hooks, and a recorded step calls none; remove them")


def _require_plain_tensor(what: str, tensor: Any) -> None:
    if type(tensor) not in _PLAIN:
        raise PebblerError(f"{what} is a {type(tensor).__name__}, a subclass of tensors; use plain ones")
    if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
        raise PebblerError(f"{what} has hooks, and a recorded step calls none; remove them")


def _require_plain_optimizer(optimizer: Any) -> None:
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise PebblerError("the optimizer has hooks, and a recorded step calls none; remove them")
    for number, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key != "params" and any(isinstance(one, torch.Tensor) for one in _several(value)):
                raise PebblerError(f"'{key}' of group {number} of the optimizer is a tensor; give a number")


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
