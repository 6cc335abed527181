"""What a torch model does on a GPU, where recording runs it on fake tensors of the CPU.

Dropout, attention, oneDNN's layers, autocast and whatever moves a tensor to a GPU are other than on a CPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

_LOWERED = ("addmv", "addr", "mv")
"""What CUDA's autocast computes in half precision and the CPU's has no rule for."""

_COMPOSED = (
    "_convolution",
    "_scaled_dot_product_flash_attention",
    "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell",
    "chain_matmul",
    "convolution",
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "einsum",
    "gru_cell",
    "linalg_multi_dot",
    "lstm_cell",
    "rnn_relu_cell",
    "rnn_tanh_cell",
)
"""The same, but made of products that the CPU's autocast has a rule for, or called by no one."""

_PROMOTED = (
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "index_put",
    "scatter_add",
    "tensordot",
    "vdot",
)
"""What CUDA's autocast computes in the widest precision of its operands; the rest is in single precision."""

_FUSED = {
    "aten::softmax.int": torch.ops.aten._softmax.default,
    "aten::log_softmax.int": torch.ops.aten._log_softmax.default,
}
"""Kernels of CUDA that read float16 and write float32."""

_HALF = (torch.float16, torch.bfloat16)


class OnGpu(TorchFunctionMode):
    """Takes whatever would go to a GPU for a tensor that is there already.

    Parameters
    ----------
    device
        Where the tensors are that stand for those of the GPU: ``meta`` or ``cpu``.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function with the stand-in's device in the place of a GPU's."""
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        named = {key: self._stand_in(value) for key, value in (kwargs or {}).items()}
        return func(*map(self._stand_in, args), **named)

    def _stand_in(self, value: Any) -> Any:
        named = isinstance(value, str) and value.partition(":")[0] == "cuda"
        return self._device if named or (isinstance(value, torch.device) and value.type == "cuda") else value


@contextmanager
def gpu_kernels() -> Iterator[None]:
    """Put in the place of what torch does on a CPU only what it does on a GPU.

    Dropout keeps a mask of a byte a value. Dropout inside attention takes no memory, since it is drawn again
    in the backward pass. oneDNN's layers, a whole LSTM among them, give way to torch's own kernels. Autocast,
    for whatever device, chooses precisions as CUDA's does.
    """
    dropout, attention, onednn = F.dropout, F.scaled_dot_product_attention, torch._C._get_mkldnn_enabled()

    def gpu_dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002
        if training and 0 < p < 1 and not inplace:
            return torch.native_dropout(input, p, True)[0]
        return dropout(input, p, training, inplace)

    def gpu_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        *rest: Any,
        **named: Any,
    ) -> Any:
        del dropout_p
        return attention(query, key, value, attn_mask, 0.0, *rest, **named)

    F.dropout, F.scaled_dot_product_attention = gpu_dropout, gpu_attention
    torch._C._set_mkldnn_enabled(False)
    try:
        with _cuda_autocast():
            yield
    finally:
        F.dropout, F.scaled_dot_product_attention = dropout, attention
        torch._C._set_mkldnn_enabled(onednn)


@contextmanager
def _cuda_autocast() -> Iterator[None]:
    """Let autocast for CUDA act on the CPU's tensors, and round only what CUDA's would.

    Both lower the precision of the same products. What CUDA's computes in single precision for safety, and
    the CPU's in half, is taught to the CPU's; a cast is an operator of its own, as on a GPU.
    """
    begin = torch.autocast.__init__

    def begin_as_cuda(
        self: Any,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if dtype is None:
            dtype = torch.get_autocast_dtype(device_type)
        begin(self, "cpu" if device_type == "cuda" else device_type, dtype, enabled, cache_enabled)

    library = torch.library.Library("aten", "IMPL")
    for overload, by_cuda in _differing():
        if overload._schema.name.removeprefix("aten::") not in _COMPOSED:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
                rule = _rule(overload) if by_cuda else torch.library.fallthrough_kernel
                library.impl(overload, rule, "AutocastCPU", allow_override=True)
    torch.autocast.__init__ = begin_as_cuda
    try:
        yield
    finally:
        torch.autocast.__init__ = begin
        library._destroy()


@cache
def _differing() -> list[tuple[Any, bool]]:
    """Return the operators that only one autocast has a rule for, and whether that is CUDA's."""
    found = []
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        if not schema.name.startswith("aten::") or not torch._C._dispatch_has_kernel(name):
            continue
        by_cuda, by_cpu = (
            torch._C._dispatch_has_kernel_for_dispatch_key(name, f"Autocast{kind}")
            for kind in ("CUDA", "CPU")
        )
        if by_cuda != by_cpu:
            packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"))
            found.append((getattr(packet, schema.overload_name or "default"), by_cuda))
    return found


def _rule(overload: Any) -> Callable[..., Any]:
    """Return an operator in the precision that CUDA's autocast has it in.

    One in single precision that takes the precision of its result casts by itself; softmax does so in one
    kernel.
    """
    name = overload._schema.name.removeprefix("aten::")
    if name in _LOWERED:
        return _cast(overload, lambda _: torch.get_autocast_dtype("cpu"))
    if name in _PROMOTED:
        return _cast(overload, lambda operands: max(operands, key=lambda dtype: dtype.itemsize))
    if not any(argument.name == "dtype" for argument in overload._schema.arguments):
        return _cast(overload, lambda _: torch.float32)
    fused = _FUSED.get(overload.name())

    def call(source: Any, *args: Any, **kwargs: Any) -> Any:
        with _past_autocast():
            given = kwargs.get("dtype") or any(isinstance(value, torch.dtype) for value in args)
            if given or source.dtype not in _HALF:
                return overload(source, *args, **kwargs)
            if fused is not None and source.dtype is torch.float16:
                return fused(source, args[0], True)
            kwargs["dtype"] = torch.float32
            return overload(source, *args, **kwargs)

    return call


def _cast(overload: Any, target: Callable[[set[Any]], Any]) -> Callable[..., Any]:
    """Return an operator whose operands are cast to what a rule makes of their precisions."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with _past_autocast():
            eligible = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if _is_eligible(leaf)}
            dtype = target(eligible) if eligible else None
            args, kwargs = tree_map(
                lambda leaf: leaf.to(dtype) if _is_eligible(leaf) else leaf, (args, kwargs)
            )
            return overload(*args, **kwargs)

    return call


def _is_eligible(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (*_HALF, torch.float32)


def _past_autocast() -> Any:
    """Let what is called within go past autocast."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))
