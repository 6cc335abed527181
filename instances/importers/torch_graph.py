"""Record one training iteration of a torch module, without memory for its data and without computing.

The module is built on torch's meta device; its tensors then become fake ones on the CPU. While forward and
backward pass run, every operator below autograd is noted with the storages that it reads and writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import compress
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from ..devices.device import Precision
from ..devices.roofline import Convolution, Pass
from ..errors import PebblerError
from .operators import Operator, OperatorGraph, Place, Storage

MakeStep = Callable[[int], tuple[Any, Callable[..., Any], tuple[Any, ...]]]
"""From a batch size to a module, a function of the inputs that computes the loss with it, and the inputs."""

_ALLOCATE = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
}
_LIFT = {"aten::lift", "aten::lift_fresh", "aten::lift_fresh_copy"}
_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
_CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)
_HALF: dict[Any, Precision] = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_MIRRORED: dict[Pass, Pass] = {"FP": "BP1", "BP1": "FP", "BP2": "BP2"}


def record(make_step: MakeStep, batch: int) -> OperatorGraph:
    """Run forward and backward pass of a step on fake tensors and return what they did.

    Parameters
    ----------
    make_step
        Called with the batch size; returns ``(module, step, inputs)``, where ``step(*inputs)`` computes the
        scalar loss with the module.
    batch
        Images, or whatever the model counts.

    Raises
    ------
    PebblerError
        When `make_step` or the step fails, or returns something else.
    """
    with _explained(f"make_step({batch})"), torch.device("meta"):
        made = make_step(batch)
    module, step, tensors = _require_step(made)
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    inputs = _fake(module, tensors, fakes)
    recorder = _Recorder()
    for name, tensor in module.named_parameters():
        recorder.hold(tensor, f"W({name})", "parameter")
    for name, tensor in module.named_buffers():
        recorder.hold(tensor, f"B({name})", "buffer")
    for index, tensor in enumerate(inputs):
        recorder.hold(tensor, f"X({index})", "input")
    trained = {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}
    with recorder.labels(module), _gpu_kernels(), fakes, recorder:
        with _explained("the forward pass"):
            loss = step(*inputs)
        _require_loss(loss)
        recorder.direction = "backward"
        with _explained("the backward pass"):
            gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    for name, gradient in zip(trained, gradients, strict=True):
        if gradient is not None:
            recorder.hold(gradient, f"dW({name})", "gradient")
    return recorder.graph()


class _Recorder(TorchDispatchMode):
    """Notes every operator that writes memory.

    An operator of the forward pass runs right after its autograd node was made; the node's number tells
    later which module its backward pass belongs to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.direction: Literal["forward", "backward"] = "forward"
        self._storages: list[Storage] = []
        self._index: dict[int, int] = {}
        self._allocated: set[int] = set()
        self._alive: list[Any] = []
        self._written: set[int] = set()
        self._operators: list[Operator] = []
        self._names: Counter[str] = Counter()
        self._modules: list[tuple[str, str]] = [("step", "function")]
        self._origins: dict[int, tuple[str, str]] = {}

    def graph(self) -> OperatorGraph:
        """Return what was recorded."""
        return OperatorGraph(tuple(self._storages), tuple(self._operators))

    def hold(self, tensor: Any, name: str, place: Place) -> None:
        """Say what a tensor's storage holds, unless that is known."""
        index = self._find(tensor, place)
        if index is not None and self._storages[index].place in (place, "data"):
            self._storages[index] = Storage(name, self._storages[index].bytes, place)

    @contextmanager
    def labels(self, module: Any) -> Iterator[None]:
        """Keep track of the module whose forward pass is running."""
        hooks = []
        for name, part in module.named_modules():
            label = name or type(part).__name__, type(part).__name__

            def enter(*_: Any, label: tuple[str, str] = label) -> None:
                self._modules.append(label)

            def leave(*_: Any) -> None:
                self._modules.pop()

            hooks.append(part.register_forward_pre_hook(enter))
            hooks.append(part.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, and note it unless it launches no kernel."""
        kwargs = kwargs or {}
        label = self._label()
        out = func(*args, **kwargs)
        if func._schema.name in _ALLOCATE:
            self._keep(out)
            self._allocated.add(_key(out))
        elif func._schema.name in _LIFT:
            self._find(out, "constant")
        else:
            self._note(func, args, kwargs, out, label)
        return out

    def _label(self) -> tuple[str, str]:
        """Return the module, and its class, that what runs now belongs to."""
        node = torch._C._current_autograd_node()
        if node is not None and len(self._modules) == 1:
            return self._origins.get(node._sequence_nr(), self._modules[0])
        self._origins.setdefault(torch._C._autograd._get_sequence_nr() - 1, self._modules[-1])
        return self._modules[-1]

    def _note(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, label: tuple[str, str]
    ) -> None:
        operands, results = _tensors((args, kwargs)), _tensors(out)
        read = {d: tensor for tensor in operands if (d := self._find(tensor, "constant")) is not None}
        rewritten = {self._find(tensor, "constant") for tensor in _mutated(func, args, kwargs)} - {None}
        made = {d: tensor for tensor in results if (d := self._find(tensor, "data")) is not None}
        if not made.keys() - read.keys() and not rewritten:
            return
        outputs = tuple(d for d in {**read, **made} if d not in self._written)
        updates = tuple(d for d in read if d in rewritten and d not in outputs)
        self._written.update(outputs)
        name = self._unique(f"{label[0]} {func._schema.name.removeprefix('aten::')}")
        for position, d in enumerate(outputs):
            self._storages[d] = Storage(
                name if len(outputs) == 1 else f"{name}[{position}]", self._storages[d].bytes, "data"
            )
        convolution, passes = _convolution(func, args, out)
        self._operators.append(
            Operator(
                name=name,
                module=label[0],
                module_kind=label[1],
                direction=self.direction,
                inputs=tuple(d for d in read if d not in outputs and d not in updates),
                outputs=outputs,
                updates=updates,
                flops=_flops(func, args, kwargs, out),
                elements=sum(tensor.numel() for tensor in results),
                moved_bytes=sum(_bytes(tensor) for tensor in {**read, **made}.values())
                + sum(_bytes(read[d]) for d in updates),
                precision=_precision(func, operands),
                convolution=convolution,
                passes=passes,
            )
        )

    def _unique(self, label: str) -> str:
        prefix = "FP" if self.direction == "forward" else "BP"
        self._names[prefix + label] += 1
        count = self._names[prefix + label]
        return f"{prefix}({label})" if count == 1 else f"{prefix}({label} #{count})"

    def _find(self, tensor: Any, place: Place) -> int | None:
        """Return the index of a tensor's storage, a new one for a storage not seen before; None if empty."""
        key = _key(tensor)
        if key not in self._index:
            size = tensor.untyped_storage().nbytes()
            if size == 0:
                return None
            self._keep(tensor)
            self._index[key] = len(self._storages)
            if key in self._allocated:
                place = "data"
            if place != "data":
                self._written.add(len(self._storages))
            self._storages.append(Storage(f"{place} {len(self._storages)}", size, place))
        return self._index[key]

    def _keep(self, tensor: Any) -> None:
        """Keep a storage alive, so that no later one gets its key."""
        self._alive.append(tensor.untyped_storage())


@contextmanager
def _gpu_kernels() -> Iterator[None]:
    """Put in the place of what torch does on a CPU only what it does on a GPU.

    Dropout keeps a mask of a byte a value. Dropout inside attention takes no memory, since it is drawn again
    in the backward pass. oneDNN's layers, a whole LSTM among them, give way to torch's own kernels.
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
        yield
    finally:
        F.dropout, F.scaled_dot_product_attention = dropout, attention
        torch._C._set_mkldnn_enabled(onednn)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn whatever a user's code raises into one sentence; its traceback stays attached."""
    try:
        yield
    except PebblerError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise PebblerError(
            f"{what} failed: {type(error).__name__}: {reason}; see docs/importers.md for what works"
        ) from error


def _require_step(made: Any) -> tuple[Any, Callable[..., Any], tuple[Any, ...]]:
    if (
        isinstance(made, tuple)
        and len(made) == 3
        and isinstance(made[0], torch.nn.Module)
        and callable(made[1])
        and isinstance(made[2], tuple)
        and all(isinstance(tensor, torch.Tensor) for tensor in made[2])
    ):
        return made
    raise PebblerError(
        "make_step returned something else than (module, step, inputs): return a torch.nn.Module, a function "
        "that computes the loss with it, and a tuple of tensors to call that with"
    )


def _require_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise PebblerError(
            "the step returned no loss to train with: return one number that depends on a parameter"
        )


def _fake(module: Any, inputs: tuple[Any, ...], fakes: FakeTensorMode) -> tuple[Any, ...]:
    """Make the tensors of a module fake ones on the CPU, shared ones shared, and return its fake inputs."""
    made: dict[int, Any] = {}

    def fake(tensor: Any) -> Any:
        if id(tensor) not in made:
            with fakes:
                copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            if isinstance(tensor, torch.nn.Parameter):
                copy = torch.nn.Parameter(copy, requires_grad=tensor.requires_grad)
            made[id(tensor)] = copy
        return made[id(tensor)]

    parts = list(module.modules())
    held = [
        (part, name, tensor)
        for part in parts
        for name, tensor in (
            *part.named_parameters(recurse=False, remove_duplicate=False),
            *part.named_buffers(recurse=False, remove_duplicate=False),
        )
    ]
    for part, name, tensor in held:
        setattr(part, name, fake(tensor))
    return tuple(fake(tensor) for tensor in inputs)


def _tensors(tree: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _key(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _bytes(tensor: Any) -> int:
    """Bytes of a tensor's values; of an expanded one, those that it repeats."""
    return int(min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))


def _mutated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Tensors that an operator writes in place, according to its signature."""
    given = [
        args[position] if position < len(args) else kwargs.get(argument.name)
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return _tensors(given)


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Operations of the matrix products that an operator computes, a multiply-add counted as two."""
    if func._schema.name == _ATTENTION:
        return int(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))
    if func._schema.name == f"{_ATTENTION}_backward":
        return int(sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))
    count = flop_registry.get(func.overloadpacket)
    return int(count(*args, **kwargs, out_val=out)) if count else 0


def _precision(func: Any, operands: list[Any]) -> Precision:
    """Return the precision of an operator's products on a GPU: that of its first operand.

    Single precision is TF32 where torch is set to use it, now: by default in convolutions only.
    """
    kind = operands[0].dtype if operands else torch.float32
    library = torch.backends.cudnn.conv if func in _CONVOLUTIONS else torch.backends.cuda.matmul
    if kind is torch.float32 and library.fp32_precision == "tf32":
        return "tf32"
    return _HALF.get(kind, "fp32")


def _convolution(func: Any, args: tuple[Any, ...], out: Any) -> tuple[Convolution | None, tuple[Pass, ...]]:
    """Return a convolution's shapes and the passes that an operator computes of it.

    Only where the cost model has algorithms: single precision, two dimensions, one stride and one padding,
    no dilation. A transposed convolution is the one that it is the backward pass of.
    """
    passes: list[Pass] = ["FP"]
    if func is torch.ops.aten.convolution.default:
        source, weights, _, strides, pads, dilations, transposed, _, groups = args
        target = out
    elif func is torch.ops.aten.convolution_backward.default:
        target, source, weights, _, strides, pads, dilations, transposed, _, groups, wanted = args
        passes = list(compress(("BP2", "BP1"), (wanted[1], wanted[0])))
    else:
        return None, ()
    simple = len(set(strides)) == len(set(pads)) == 1 and set(dilations) == {1}
    if not (passes and simple and source.dim() == 4 and source.dtype is torch.float32):
        return None, ()
    if transposed:
        source, target = target, source
        passes = [_MIRRORED[which] for which in passes]
    (batch, in_channels, in_height, in_width), (_, out_channels, out_height, out_width) = (
        source.shape,
        target.shape,
    )
    convolution = Convolution(
        batch=batch,
        in_channels=in_channels,
        out_channels=out_channels,
        in_height=in_height,
        in_width=in_width,
        out_height=out_height,
        out_width=out_width,
        kernel_h=weights.shape[2],
        kernel_w=weights.shape[3],
        stride=strides[0],
        pad=pads[0],
        groups=groups,
    )
    return convolution, tuple(passes)
