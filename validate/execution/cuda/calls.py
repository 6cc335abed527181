"""What a task is on CUDA: calls of cuDNN, of cuBLAS and of kernels of our own, in order on one stream.

A call names its operands by their words (`Kernel`), so that a backend can bind them to addresses and a
generated script can print them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from ....instances.errors import PebblerError
from ....instances.networks.kinds import LayerKind, Operation
from ....instances.networks.network import Shape
from ....instances.units import ceil_to
from ..kernel import ADAM, EPSILON, LRN, MOMENTUM, RATE, Kernel, resampling
from ..plan import ALIGNMENT
from .providers import Convolution, Operand, Pass, provider_of

BLOCK = 256
"""Number of threads of a block, as in the source of the kernels."""

MOST_BLOCKS = 4096
"""Greatest number of blocks of a kernel over values, each of whose threads may compute several values."""

PART = 8 * BLOCK
"""Number of values that one block adds up; a sum over more is cut into parts of at least half as many."""

COLUMNS = 32
"""Number of positions of a layer norm's block, as in the source of the kernels."""

FLOAT = 4
"""Bytes of a single-precision number."""


ALGORITHMS: dict[Pass, tuple[str, ...]] = {
    "forward": (
        "implicit-gemm",
        "implicit-precomp-gemm",
        "gemm",
        "direct",
        "fft",
        "fft-tiling",
        "winograd",
        "winograd-nonfused",
    ),
    "backward_data": ("algo-0", "algo-1", "fft", "fft-tiling", "winograd", "winograd-nonfused"),
    "backward_filter": (
        "algo-0",
        "algo-1",
        "fft",
        "algo-3",
        "winograd",
        "winograd-nonfused",
        "fft-tiling",
    ),
}
"""Names of cuDNN's algorithms, each at its number in the legacy API's enumerations."""

PLAIN = ("kernel", "gemm")
"""Names of the only algorithm of a task that is no convolution."""

_PASSES: dict[Operation, dict[str, Pass]] = {
    "convolution": {"FP": "forward", "BP1": "backward_data", "BP2": "backward_filter"},
    "transposed-convolution": {"FP": "backward_data", "BP1": "forward", "BP2": "backward_filter"},
}
"""cuDNN's pass for each task; a transposed convolution is a convolution from its output to its input."""

_RESULTS = {"FP": "y", "BP1": "dx0", "BP2": "dw"}
"""Operand that such a task writes."""

_MODES = {"crop": 0, "repeat": 1, "subsample": 2}
"""Number of each map of a resampling layer in the source of the kernels."""


@dataclass(frozen=True, slots=True)
class First:
    """The number of values in the batch before those of the round, with so many an image."""

    per_image: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """An address in memory in which calls of a task leave numbers for later calls of that task.

    The memory has `bytes`, the same in all calls of a task. Tasks run one after the other, so one such memory
    does for all of them; it is outside the budget.
    """

    bytes: int
    offset: int = 0


Argument = Operand | First | Scratch | int | float | None
"""Argument of a kernel; None is the address 0."""


@dataclass(frozen=True, slots=True)
class Own:
    """A launch of a kernel of our own, by name: rows of blocks; those of a task have `BLOCK` threads."""

    name: str
    blocks: int
    arguments: tuple[Argument, ...]
    threads: int = BLOCK
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Product:
    """A product of matrices by cuBLAS, column-major: c (m x n) = op(a) (m x k) op(b) (k x n), or c + that.

    `leading` has the leading dimensions of a, b and c.
    """

    transpose: tuple[bool, bool]
    sizes: tuple[int, int, int]
    leading: tuple[int, int, int]
    operands: tuple[Operand, Operand, Operand]
    adds: bool


Call = Own | Convolution | Product
"""A call that is part of a task's computation."""


def source() -> str:
    """Return the CUDA source of our own kernels, and of those that were registered."""
    ours = resources.files(__package__).joinpath("kernels.cu").read_text(encoding="utf-8")
    return "\n\n".join((ours.rstrip(), *SOURCES.values())) + "\n"


@cache
def formats() -> dict[str, str]:
    """Return the types of every own kernel's arguments, in the letters of Python's struct."""
    letters = {"int": "i", "long": "l", "float": "f", "unsigned": "I"}
    found = {}
    for name, arguments in re.findall(r"^KERNEL\((\w+), ([^)]*)\)", source(), re.MULTILINE):
        types = [argument.split() for argument in arguments.split(",")]
        found[name] = "".join("P" if "*" in "".join(words) else letters[words[0]] for words in types)
    return found


def algorithm_number(which: Pass, algorithm: str) -> int:
    """Return the number of one of cuDNN's algorithms of a pass in its legacy interface."""
    return ALGORITHMS[which].index(algorithm)


def convolution_of(kernel: Kernel, provider: str | None = None) -> Convolution | None:
    """Return the convolution that a task is, but for its ReLU and biases; None where it is none.

    It is as a provider computes it, by default that of the task's algorithm. A plan of cudnn-frontend only
    writes: what it is to add goes to the start of the workspace first.
    """
    layer = kernel.layer
    operation = layer.kind.operation
    if operation not in _PASSES or kernel.role not in _PASSES[operation]:
        return None
    which = _PASSES[operation][kernel.role]
    x, w, y = {"FP": ("x0", "w", "y"), "BP1": ("dx0", "w", "dy")}.get(kernel.role, ("x0", "dw", "dy"))
    source, target = kernel.sources[0], layer.shape
    if operation == "transposed-convolution":
        x, y, source, target = y, x, target, source
    convolution = Convolution(
        which,
        kernel.algorithm,
        (kernel.images, *source),
        (target.channels, source.channels // layer.groups, layer.kernel, layer.kernel),
        (kernel.images, *target),
        layer.pad,
        layer.stride,
        layer.groups,
        (Operand(x), Operand(w), Operand(y)),
        _RESULTS[kernel.role] in kernel.adds,
    )
    if convolution.adds and (provider or provider_of(kernel.algorithm)) == "cudnn-frontend":
        return _into_workspace(convolution, Operand(_RESULTS[kernel.role]))
    return convolution


def _into_workspace(convolution: Convolution, result: Operand) -> Convolution:
    """Return the convolution with its result at the start of the workspace."""
    x, w, y = (Operand("workspace") if one == result else one for one in convolution.operands)
    scratch = ceil_to(FLOAT * math.prod(convolution.written), ALIGNMENT)
    return replace(convolution, operands=(x, w, y), adds=False, scratch=scratch)


def calls_of(kernel: Kernel) -> list[Call]:
    """Return what computes a task.

    Raises
    ------
    PebblerError
        When nothing does, or cuDNN has no algorithm of that name.
    """
    if kernel.role == "copy":
        return [_copy(kernel, "x0", "y", kernel.layer.shape, adds=False)]
    if kernel.role == "relu":
        return [_relu_backward(kernel)]
    if kernel.role == "OPT":
        return [_update(kernel)]
    return list(_Calls(kernel).made())


def scratch_bytes(calls: Iterable[Call]) -> int:
    """Return the size of the memory in which calls of one task leave numbers for later ones (`Scratch`)."""
    own = (call for call in calls if isinstance(call, Own))
    used = (argument for call in own for argument in call.arguments if isinstance(argument, Scratch))
    return max((one.bytes for one in used), default=0)


def cut(count: int, sums: int) -> tuple[int, int]:
    """Cut each of several sums over `count` values into parts, for a block each.

    There are enough of them to keep a large GPU busy. Their number follows from the sizes alone, so that no
    result depends on the device.

    Returns
    -------
    tuple[int, int]
        The number of parts, and of values in each; the last may have fewer.
    """
    parts = max(1, min(math.ceil(count / PART), MOST_BLOCKS // sums))
    size = ceil_to(math.ceil(count / parts), BLOCK)
    return math.ceil(count / size), size


def each(name: str, n: int, *arguments: Argument) -> Own:
    """Return the launch of a kernel that runs over n values, which are its last argument."""
    return Own(name, max(1, min(MOST_BLOCKS, math.ceil(n / BLOCK))), (*arguments, n))


def _each_image(name: str, images: int, n: int, *arguments: Argument) -> Own:
    """A kernel that runs over the n values of each image; both numbers are its last arguments."""
    call = each(name, n, *arguments, images)
    return replace(call, rows=max(1, min(images, MOST_BLOCKS // call.blocks)))


def _copy(kernel: Kernel, x: str, y: str, shape: Shape, *, adds: bool) -> Own:
    return each("copy", kernel.images * shape.elements, Operand(x), Operand(y), int(adds))


def _relu_backward(kernel: Kernel) -> Own:
    n = kernel.images * kernel.layer.shape.elements
    if "signs" in kernel.operands:
        return each("relu_backward_signs", n, Operand("signs"), Operand("dy"))
    return each("relu_backward", n, Operand("y"), Operand("dy"))


def _update(kernel: Kernel) -> Own:
    """Return the update of weights; what the optimizer keeps tells which one it is."""
    name = "update_sgd"
    constants: tuple[float, ...] = (RATE,)
    if "v" in kernel.operands:
        name, constants = "update_adam", (*ADAM, 1 - ADAM[0] * kernel.decay)
    elif "m" in kernel.operands:
        name, constants = "update_momentum", (MOMENTUM, RATE)
    touched = (Operand(word) for word in ("dw", "w", "m", "v") if word in kernel.operands)
    return each(name, kernel.parameters, *touched, *constants)


class _Calls:
    """The calls of a task by the kind of its layer."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.layer = kernel.layer
        self.images = kernel.images
        self.shape = kernel.layer.shape
        self.values = kernel.images * kernel.layer.shape.elements

    def made(self) -> Iterator[Call]:
        """Do what the role says; after a forward pass, the ReLU in place."""
        name = self.layer.kind.name
        if name in _CALLS:
            yield from _CALLS[name](self)
        elif name in REGISTERED:
            yield from REGISTERED[name](self.kernel)
        else:
            raise PebblerError(f"task '{self.kernel.task}': there is no CUDA kernel for '{name}'")
        if self.kernel.role == "FP" and self.layer.relu:
            signs = Operand("signs") if "signs" in self.kernel.operands else None
            yield each("relu_forward", self.values, Operand("y"), signs)

    def _adds(self, word: str) -> int:
        return int(word in self.kernel.adds)

    def _has(self, word: str) -> bool:
        return word in self.kernel.operands

    def _each_image(self, name: str, *arguments: Argument) -> Own:
        return _each_image(name, self.images, self.shape.elements, *arguments)

    def _sums_of_channels(
        self, name: str, read: tuple[Operand, ...], result: Operand, *, each: int = 1
    ) -> Iterator[Own]:
        """Gradients of what there is for a channel, `each` numbers: sums over images and positions.

        A kernel gives the sums of parts; where there are several, those go to scratch and are added up.
        """
        channels, positions = self.shape.channels, self.shape.positions
        parts, size = cut(self.images * positions, channels)
        sizes, adds = (self.images, channels, positions, size), self._adds("dw")
        if parts == 1:
            yield Own(name, channels, (*read, result, *sizes, adds))
            return
        scratch = Scratch(FLOAT * each * channels * parts)
        yield Own(name, channels, (*read, scratch, *sizes, 0), rows=parts)
        yield Own("sum_planes", each * channels, (scratch, result, parts, adds))

    def _conv(self) -> Iterator[Call]:
        convolution = convolution_of(self.kernel)
        assert convolution is not None
        names = ALGORITHMS[convolution.which]
        if provider_of(convolution.algorithm) == "cudnn" and convolution.algorithm not in names:
            raise PebblerError(
                f"task '{self.kernel.task}': cuDNN has no algorithm '{convolution.algorithm}'; "
                f"it has {', '.join(names)}"
            )
        yield convolution
        if convolution.scratch:
            result = _RESULTS[self.kernel.role]
            yield each("copy", math.prod(convolution.written), Operand("workspace"), Operand(result), 1)
        yield from self._biases(math.prod(convolution.w))

    def _fc(self) -> Iterator[Call]:
        inputs, outputs = self.kernel.sources[0].elements, self.shape.elements
        x, w, y = Operand("x0"), Operand("w"), Operand("y")
        if self.kernel.role == "FP":
            sizes, leading = (outputs, self.images, inputs), (inputs, inputs, outputs)
            yield Product((True, False), sizes, leading, (w, x, y), False)
        elif self.kernel.role == "BP1":
            dx, dy = Operand("dx0"), Operand("dy")
            sizes, leading = (inputs, self.images, outputs), (inputs, outputs, inputs)
            yield Product((False, False), sizes, leading, (w, dy, dx), "dx0" in self.kernel.adds)
        else:
            dw, dy = Operand("dw"), Operand("dy")
            sizes, leading = (inputs, outputs, self.images), (inputs, outputs, inputs)
            yield Product((False, True), sizes, leading, (x, dy, dw), "dw" in self.kernel.adds)
        yield from self._biases(inputs * outputs)

    def _linear(self) -> Iterator[Call]:
        """One product for each image and each input: its channels meet their columns of the weights."""
        outputs, positions = self.shape.channels, self.shape.positions
        width = sum(source.channels for source in self.kernel.sources)
        for image in range(self.images):
            begin = 0
            here = FLOAT * image * outputs * positions
            for i, source in enumerate(self.kernel.sources):
                inputs, there = source.channels, FLOAT * image * source.elements
                w, dw = Operand("w", FLOAT * begin), Operand("dw", FLOAT * begin)
                x, dx = Operand(f"x{i}", there), Operand(f"dx{i}", there)
                y, dy = Operand("y", here), Operand("dy", here)
                begin += inputs
                if self.kernel.role == "FP":
                    sizes, leading = (positions, outputs, inputs), (positions, width, positions)
                    yield Product((False, False), sizes, leading, (x, w, y), i > 0)
                elif self.kernel.role == "BP2":
                    sizes, leading = (inputs, outputs, positions), (positions, positions, width)
                    adds = image > 0 or "dw" in self.kernel.adds
                    yield Product((True, False), sizes, leading, (x, dy, dw), adds)
                elif self._has(dx.word):
                    sizes, leading = (positions, inputs, outputs), (positions, width, positions)
                    yield Product((False, True), sizes, leading, (dy, w, dx), dx.word in self.kernel.adds)
        yield from self._biases(width * outputs)

    def _biases(self, weights: int) -> Iterator[Call]:
        """Add the biases, or compute their gradient; they follow the weights, if there are any."""
        if self.kernel.parameters == weights:
            return
        positions = self.shape.positions
        if self.kernel.role == "FP":
            biases = Operand("w", FLOAT * weights)
            yield self._each_image("add_bias", biases, Operand("y"), positions)
        elif self.kernel.role == "BP2":
            biases = Operand("dw", FLOAT * weights)
            yield from self._sums_of_channels("sum_channels", (Operand("dy"),), biases)

    def _pool(self) -> Iterator[Call]:
        layer, source = self.layer, self.kernel.sources[0]
        sizes = (*source[1:], *self.shape[1:], layer.kernel, layer.stride, layer.pad)
        if self.kernel.role == "FP":
            yield each(f"{layer.kind}_forward", self.values, Operand("x0"), Operand("y"), *sizes)
            return
        reads = (Operand("x0"), Operand("y")) if layer.kind.reads_output else ()
        n = self.images * source.elements
        yield each(
            f"{layer.kind}_backward", n, Operand("dy"), *reads, Operand("dx0"), *sizes, self._adds("dx0")
        )

    def _lrn(self) -> Iterator[Call]:
        size, alpha, beta, k = LRN
        sizes = (self.shape.channels, self.shape.positions, size, alpha, beta, k)
        x, y = Operand("x0"), Operand("y")
        if self.kernel.role == "FP":
            yield self._each_image("lrn_forward", x, y, *sizes)
        else:
            dx, adds = Operand("dx0"), self._adds("dx0")
            yield self._each_image("lrn_backward", Operand("dy"), x, y, dx, *sizes, adds)

    def _bn(self) -> Iterator[Call]:
        """Sums of parts of each channel, which every block of that channel adds up in the next call."""
        channels, positions = self.shape.channels, self.shape.positions
        parts, size = cut(self.images * positions, channels)
        sizes = (self.images, channels, positions, size)
        sums = Scratch(2 * FLOAT * channels * parts)
        squares = replace(sums, offset=sums.bytes // 2)
        x, w, saved = Operand("x0"), Operand("w"), Operand("saved")
        if self.kernel.role == "FP":
            into = (Operand("y"), saved)
            yield Own("sum_channels", channels, (x, sums, *sizes, 0), rows=parts)
            yield Own("bn_squares", channels, (x, sums, squares, saved, *sizes), rows=parts)
            yield Own("bn_forward", channels, (x, w, squares, *into, *sizes, EPSILON), rows=parts)
            return
        dy, dx, adds = Operand("dy"), Operand("dx0"), self._adds("dx0")
        yield Own("bn_sums", channels, (dy, x, saved, sums, *sizes), rows=parts)
        yield Own("sum_planes", 2 * channels, (sums, Operand("dw"), parts, self._adds("dw")))
        if self._has("dx0"):
            yield Own("bn_backward", channels, (dy, x, saved, w, sums, dx, *sizes, adds), rows=parts)

    def _norm(self) -> Iterator[Call]:
        channels, positions = self.shape.channels, self.shape.positions
        n = self.images * positions
        blocks = math.ceil(n / COLUMNS)
        x, w, saved = Operand("x0"), Operand("w"), Operand("saved")
        if self.kernel.role == "FP":
            yield Own("norm_forward", blocks, (x, w, Operand("y"), saved, channels, positions, EPSILON, n))
            return
        dy, dx = Operand("dy"), Operand("dx0")
        if self._has("dx0"):
            arguments = (dy, x, saved, w, dx, channels, positions, self._adds("dx0"), n)
            yield Own("norm_backward", blocks, arguments)
        yield from self._sums_of_channels("norm_weights", (dy, x, saved), Operand("dw"), each=2)

    def _scale(self) -> Iterator[Call]:
        positions = self.shape.positions
        x, w, dy = Operand("x0"), Operand("w"), Operand("dy")
        if self.kernel.role == "FP":
            yield self._each_image("scale", x, w, Operand("y"), positions, 0)
            return
        if self._has("dx0"):
            yield self._each_image("scale", dy, w, Operand("dx0"), positions, self._adds("dx0"))
        yield from self._sums_of_channels("scale_weights", (dy, x), Operand("dw"))

    def _activation(self) -> Iterator[Call]:
        kind = self.layer.kind
        if self.kernel.role == "FP":
            yield each(f"{kind}_forward", self.values, Operand("x0"), Operand("y"))
        else:
            read = Operand("y" if kind.reads_output else "x0")
            dx, adds = Operand("dx0"), self._adds("dx0")
            yield each(f"{kind}_backward", self.values, Operand("dy"), read, dx, adds)

    def _contrast(self) -> Iterator[Call]:
        values = self.kernel.sources[0].elements
        read = (Operand("x0"), Operand("x1"), Operand("labels", per_image=4))
        if self.kernel.role == "FP":
            losses = Operand("losses", per_image=FLOAT)
            yield Own("contrast_forward", self.images, (*read, Operand("y"), losses, values))
            return
        for word, sign in (("dx0", 1.0), ("dx1", -1.0)):
            if self._has(word):
                how = (values, float(self.kernel.batch), sign, self._adds(word))
                yield Own("contrast_backward", self.images, (*read, Operand(word), *how))

    def _add(self) -> Iterator[Call]:
        """Sums of full inputs and of values a channel, forward in the order of the inputs."""
        positions = self.shape.positions
        for i, source in enumerate(self.kernel.sources):
            if self.kernel.role == "FP":
                if source == self.shape:
                    yield _copy(self.kernel, f"x{i}", "y", source, adds=i > 0)
                else:
                    yield each("add_planes", self.values, Operand(f"x{i}"), Operand("y"), positions)
            elif self._has(f"dx{i}"):
                adds = self._adds(f"dx{i}")
                if source == self.shape:
                    yield _copy(self.kernel, "dy", f"dx{i}", source, adds=bool(adds))
                else:
                    planes = self.images * self.shape.channels
                    yield Own("sum_planes", planes, (Operand("dy"), Operand(f"dx{i}"), positions, adds))

    def _concat(self) -> Iterator[Call]:
        begin, whole = 0, self.shape.elements
        for i, source in enumerate(self.kernel.sources):
            mine = source.elements
            x, y, dx, dy = Operand(f"x{i}"), Operand("y"), Operand(f"dx{i}"), Operand("dy")
            if self.kernel.role == "FP":
                places = (x, mine, 0, y, whole, begin, 0)
                yield _each_image("copy_channels", self.images, mine, *places)
            elif self._has(f"dx{i}"):
                places = (dy, whole, begin, dx, mine, 0, self._adds(f"dx{i}"))
                yield _each_image("copy_channels", self.images, mine, *places)
            begin += mine

    def _dropout(self) -> Iterator[Call]:
        mask = Operand("mask")
        if self.kernel.role == "FP":
            first = First(self.shape.elements)
            yield each(
                "dropout_forward", self.values, Operand("x0"), Operand("y"), mask, first, self.kernel.key
            )
        else:
            adds = self._adds("dx0")
            yield each("dropout_backward", self.values, Operand("dy"), mask, Operand("dx0"), adds)

    def _softmax(self) -> Iterator[Call]:
        channels, positions = self.shape.channels, self.shape.positions
        labels = Operand("labels", per_image=4 * positions)
        if self.kernel.role == "FP":
            losses = Operand("losses", per_image=FLOAT)
            parts, size = cut(positions, self.images)
            found = losses if parts == 1 else Scratch(FLOAT * self.images * parts)
            arguments = (Operand("x0"), labels, Operand("y"), found, channels, positions, size)
            yield Own("softmax_forward", self.images, arguments, rows=parts)
            if parts > 1:
                yield Own("sum_planes", self.images, (found, losses, parts, 0))
        else:
            total = float(self.kernel.batch * positions)
            arguments_of = (Operand("y"), labels, Operand("dx0"), positions, total)
            yield self._each_image("softmax_backward", *arguments_of, self._adds("dx0"))

    def _resample(self) -> Iterator[Call]:
        source = self.kernel.sources[0]
        mode, a, b = resampling(source, self.shape)
        sizes = (*source, *self.shape, _MODES[mode], a, b)
        if self.kernel.role == "FP":
            yield self._each_image("resample_forward", Operand("x0"), Operand("y"), *sizes)
        else:
            arguments = (Operand("dy"), Operand("dx0"), *sizes, self._adds("dx0"))
            yield _each_image("resample_backward", self.images, source.elements, *arguments)


_CALLS: dict[str, Callable[[_Calls], Iterator[Call]]] = {
    "conv": _Calls._conv,
    "deconv": _Calls._conv,
    "fc": _Calls._fc,
    "linear": _Calls._linear,
    "maxpool": _Calls._pool,
    "avgpool": _Calls._pool,
    "lrn": _Calls._lrn,
    "bn": _Calls._bn,
    "norm": _Calls._norm,
    "scale": _Calls._scale,
    "gelu": _Calls._activation,
    "sigmoid": _Calls._activation,
    "add": _Calls._add,
    "concat": _Calls._concat,
    "dropout": _Calls._dropout,
    "softmax": _Calls._softmax,
    "loss": _Calls._contrast,
    "resample": _Calls._resample,
}
"""The kernels by kind: a kind that is neither here nor registered cannot be run on CUDA."""

REGISTERED: dict[str, Callable[[Kernel], Iterable[Call]]] = {}
"""The kernels of kinds that users have registered."""

SOURCES: dict[str, str] = {}
"""Their code in CUDA C++."""


def kinds() -> frozenset[str]:
    """Return the names of the kinds of layers that can be run on CUDA."""
    return frozenset((*_CALLS, *REGISTERED))


def register_calls(kind: LayerKind, calls: Callable[[Kernel], Iterable[Call]], source: str = "") -> None:
    """Enter what computes a kind of layers on CUDA; registering again replaces it, as a notebook does.

    Parameters
    ----------
    kind
        The kind.
    calls
        From a task to its calls in order, a layer's ReLU left out: `Own` launches, which `each` makes for
        kernels that run over values, and `Product` ones.
    source
        CUDA source of its own kernels, with the macros of ``kernels.cu``: ``KERNEL(NAME, ARGUMENTS) {...}``,
        an empty line before each but the first.

    Raises
    ------
    PebblerError
        When the kind is one of ours that has kernels.
    """
    if kind.name in _CALLS:
        raise PebblerError(f"CUDA has kernels for '{kind}' already; give the kind another name")
    REGISTERED[kind.name] = calls
    SOURCES[kind.name] = source.strip()
    formats.cache_clear()
