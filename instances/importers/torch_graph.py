"""Record one training iteration of a torch module, without memory for its data and without computing.

The module is built on torch's meta device; its tensors then become fake ones on the CPU. While forward and
backward pass run, every operator below autograd is noted with the storages that it reads and writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import compress
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from ..devices.device import Precision
from ..devices.roofline import Convolution, Pass
from ..errors import PebblerError
from .operators import Operator, OperatorGraph, Place, Storage, convolution_of, grouped_flops
from .torch_gpu import OnGpu, gpu_kernels
from .torch_labels import ModuleLabels
from .torch_refusals import StepError, explained, is_loss, loss_of

MakeStep = Callable[[int], tuple[Any, ...]]
"""From a batch size to a module, a function of the inputs that computes the loss with it, and the inputs; an
optimizer may come fourth."""

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


def record(make_step: MakeStep, batch: int) -> OperatorGraph:
    """Run forward and backward pass of a step on fake tensors and return what they did.

    Parameters
    ----------
    make_step
        Called with the batch size; returns ``(module, step, inputs)``, where ``step(*inputs)`` computes the
        scalar loss with the module, and returns it or runs its backward pass. An optimizer behind them is
        left out.
    batch
        Images, or whatever the model counts.

    Raises
    ------
    PebblerError
        When `make_step` or the step fails, or returns something else.
    """
    with explained(f"make_step({batch})"), gpu_kernels(), torch.device("meta"), OnGpu("meta"):
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
    iteration = _Iteration(recorder, list(trained.values()))
    with recorder.labels.watching(module), gpu_kernels(), fakes, recorder, iteration:
        with explained("the step"):
            result = step(*inputs)
        if iteration.gradients is None:
            loss = loss_of(result, step)
            with explained("the backward pass"):
                iteration.backward(loss)
    for name, gradient in zip(trained, iteration.gradients or (), strict=True):
        if gradient is not None:
            recorder.hold(gradient, f"dW({name})", "gradient")
    return recorder.graph()


class _Iteration(OnGpu):
    """Runs the backward pass, where the step calls it or behind the step.

    Attributes
    ----------
    gradients
        Of the trained parameters, None for one that the loss does not depend on; None before the backward
        pass. The parameters' own ``grad`` stays empty, so that an optimizer in the step does nothing.
    """

    def __init__(self, recorder: _Recorder, trained: list[Any]) -> None:
        super().__init__("cpu")
        self.gradients: tuple[Any, ...] | None = None
        self._recorder = recorder
        self._trained = trained

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take the backward pass of a step for that of the iteration."""
        if func is torch.Tensor.backward:
            self.backward(args[0])
            return None
        return super().__torch_function__(func, types, args, kwargs)

    def backward(self, loss: Any) -> None:
        """Compute the gradients of a loss; once in an iteration."""
        if self.gradients is not None:
            raise StepError("a step has one backward pass, and this is another; add the losses up first")
        if not is_loss(loss):
            raise StepError(
                "backward() starts from one number that depends on a parameter; make the loss one"
            )
        self._recorder.direction = "backward"
        self.gradients = torch.autograd.grad(loss, self._trained, allow_unused=True)


class _Recorder(TorchDispatchMode):
    """Notes every operator that writes memory."""

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
        self.labels = ModuleLabels()

    def graph(self) -> OperatorGraph:
        """Return what was recorded."""
        return OperatorGraph(tuple(self._storages), tuple(self._operators))

    def hold(self, tensor: Any, name: str, place: Place) -> None:
        """Say what a tensor's storage holds, unless that is known."""
        index = self._find(tensor, place)
        if index is not None and self._storages[index].place in (place, "data"):
            self._storages[index] = Storage(name, self._storages[index].bytes, place)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, and note it unless it launches no kernel."""
        kwargs = kwargs or {}
        label = self.labels.current()
        out = func(*args, **kwargs)
        if func._schema.name in _ALLOCATE:
            self._keep(out)
            self._allocated.add(_key(out))
        elif func._schema.name in _LIFT:
            self._find(out, "constant")
        else:
            self._note(func, args, kwargs, out, label)
        return out

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
                matrix=_matrix(func, args),
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


def _require_step(made: Any) -> tuple[Any, Callable[..., Any], tuple[Any, ...]]:
    if (
        isinstance(made, tuple)
        and (len(made) == 3 or (len(made) == 4 and isinstance(made[3], torch.optim.Optimizer)))
        and isinstance(made[0], torch.nn.Module)
        and callable(made[1])
        and isinstance(made[2], tuple)
        and all(isinstance(tensor, torch.Tensor) for tensor in made[2])
    ):
        return made[:3]
    raise PebblerError(
        "make_step returned something else than (module, step, inputs): return a torch.nn.Module, a function "
        "that computes the loss with it, and a tuple of tensors to call that with"
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
        if torch.nn.parameter.is_lazy(tensor):
            raise PebblerError(
                f"'{name}' of a {type(part).__name__} has no shape yet: give the layer its sizes in make_step"
            )
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
    if func._schema.name == "aten::_grouped_mm":
        return grouped_flops(*(tuple(tensor.shape) for tensor in args[:2]))
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


def _matrix(func: Any, args: tuple[Any, ...]) -> tuple[int, int, int] | None:
    """Return rows, columns and inner dimension of a single matrix product; None for other operators."""
    if func is torch.ops.aten.mm.default:
        left, right = args[:2]
    elif func is torch.ops.aten.addmm.default:
        left, right = args[1:3]
    else:
        return None
    return left.shape[0], right.shape[1], left.shape[1]


def _convolution(func: Any, args: tuple[Any, ...], out: Any) -> tuple[Convolution | None, tuple[Pass, ...]]:
    """Return a convolution's shapes and the passes that an operator computes of it.

    Only in single or half precision or bfloat16, and where `convolution_of` knows one.
    """
    passes: list[Pass] = ["FP"]
    if func is torch.ops.aten.convolution.default:
        source, weights, _, *numbers = args
        target = out
    elif func is torch.ops.aten.convolution_backward.default:
        target, source, weights, _, *numbers, wanted = args
        passes = list(compress(("BP2", "BP1"), (wanted[1], wanted[0])))
    else:
        return None, ()
    if source.dtype is not torch.float32 and source.dtype not in _HALF:
        return None, ()
    return convolution_of(source.shape, weights.shape, target.shape, numbers, passes, source.element_size())
