"""cuDNN's legacy convolutions: the one interface that lets the caller choose algorithm and workspace.

It is deprecated since cuDNN 9 and still complete there. Tensors are NCHW in single precision, computed
without tensor cores (``CUDNN_FMA_MATH``), so that results compare with other devices.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from functools import cached_property

from .calls import ALGORITHMS, algorithm_number
from .libraries import Library
from .providers import Convolution, Pass

_FMA_MATH = 3
"""cuDNN's number for computation without tensor cores."""

_CROSS_CORRELATION = 1
"""cuDNN's number for a convolution without flipped filters."""

_NCHW = _FLOAT = 0
"""cuDNN's numbers for the order NCHW and for single precision."""

_WORKSPACE_SIZE: dict[Pass, str] = {
    "forward": "cudnnGetConvolutionForwardWorkspaceSize",
    "backward_data": "cudnnGetConvolutionBackwardDataWorkspaceSize",
    "backward_filter": "cudnnGetConvolutionBackwardFilterWorkspaceSize",
}
"""Functions that return the bytes of a workspace, by pass."""

_SUGGESTION: dict[Pass, str] = {
    "forward": "cudnnGetConvolutionForwardAlgorithm_v7",
    "backward_data": "cudnnGetConvolutionBackwardDataAlgorithm_v7",
    "backward_filter": "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
}
"""Functions that list the algorithms, by pass."""

_COMPUTATION: dict[Pass, str] = {
    "forward": "cudnnConvolutionForward",
    "backward_data": "cudnnConvolutionBackwardData",
    "backward_filter": "cudnnConvolutionBackwardFilter",
}
"""Functions that compute a convolution, by pass."""


class _Performance(c.Structure):
    """``cudnnConvolutionFwdAlgoPerf_t``, and those of the other passes, which have the same members."""

    _fields_ = (
        ("algorithm", c.c_int),
        ("status", c.c_int),
        ("time", c.c_float),
        ("memory", c.c_size_t),
        ("determinism", c.c_int),
        ("math", c.c_int),
        ("reserved", c.c_int * 3),
    )


class Cudnn:
    """A handle of cuDNN on a stream.

    Parameters
    ----------
    stream
        Handle of the stream on which it computes.

    Raises
    ------
    PebblerError
        When cuDNN is missing.
    """

    def __init__(self, stream: int) -> None:
        self._library = load_cudnn()
        self._declare()
        self._handle = self._library.create("cudnnCreate")
        self._library.call("cudnnSetStream", self._handle, stream)
        self._one, self._zero = c.c_float(1), c.c_float(0)
        self._made: list[Descriptors] = []

    @property
    def version(self) -> str:
        """Version of cuDNN, such as 9.13.0."""
        number = self._library.loaded.cudnnGetVersion()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def close(self) -> None:
        """Release the descriptors and the handle."""
        for made in self._made:
            made.close()
        self._library.call("cudnnDestroy", self._handle)

    def describe(self, convolution: Convolution) -> Descriptors:
        """Create the descriptors of a convolution."""
        found = Descriptors(self, convolution)
        self._made.append(found)
        return found

    def _declare(self) -> None:
        pointer, integer, size = c.c_void_p, c.c_int, c.c_size_t
        self._library.loaded.cudnnGetVersion.restype = size
        self._library.loaded.cudnnGetErrorString.restype = c.c_char_p
        size_of = [*[pointer] * 5, integer, pointer]
        suggestion = [*[pointer] * 5, integer, pointer, pointer]
        compute = [*[pointer] * 7, integer, pointer, size, *[pointer] * 3]
        self._library.declare(
            cudnnCreate=[pointer],
            cudnnDestroy=[pointer],
            cudnnSetStream=[pointer, pointer],
            cudnnSetTensor4dDescriptor=[pointer, *[integer] * 6],
            cudnnSetFilter4dDescriptor=[pointer, *[integer] * 6],
            cudnnSetConvolution2dDescriptor=[pointer, *[integer] * 8],
            cudnnSetConvolutionMathType=[pointer, integer],
            cudnnSetConvolutionGroupCount=[pointer, integer],
            **{f"cudnnCreate{kind}Descriptor": [pointer] for kind in ("Tensor", "Filter", "Convolution")},
            **{f"cudnnDestroy{kind}Descriptor": [pointer] for kind in ("Tensor", "Filter", "Convolution")},
            **dict.fromkeys(_WORKSPACE_SIZE.values(), size_of),
            **dict.fromkeys(_SUGGESTION.values(), suggestion),
            cudnnConvolutionForward=compute,
            cudnnConvolutionBackwardData=compute,
            cudnnConvolutionBackwardFilter=compute,
        )


class Descriptors:
    """Descriptors of a convolution; `close` releases them."""

    def __init__(self, cudnn: Cudnn, convolution: Convolution) -> None:
        self._cudnn = cudnn
        self._library = library = cudnn._library
        self._convolution = convolution
        self._x = library.create("cudnnCreateTensorDescriptor")
        self._y = library.create("cudnnCreateTensorDescriptor")
        self._w = library.create("cudnnCreateFilterDescriptor")
        self._conv = library.create("cudnnCreateConvolutionDescriptor")
        pad, stride = convolution.pad, convolution.stride
        library.call("cudnnSetTensor4dDescriptor", self._x, _NCHW, _FLOAT, *convolution.x)
        library.call("cudnnSetTensor4dDescriptor", self._y, _NCHW, _FLOAT, *convolution.y)
        library.call("cudnnSetFilter4dDescriptor", self._w, _FLOAT, _NCHW, *convolution.w)
        sizes = (pad, pad, stride, stride, 1, 1, _CROSS_CORRELATION, _FLOAT)
        library.call("cudnnSetConvolution2dDescriptor", self._conv, *sizes)
        library.call("cudnnSetConvolutionMathType", self._conv, _FMA_MATH)
        library.call("cudnnSetConvolutionGroupCount", self._conv, convolution.groups)

    def close(self) -> None:
        """Release the descriptors."""
        self._library.call("cudnnDestroyTensorDescriptor", self._x)
        self._library.call("cudnnDestroyTensorDescriptor", self._y)
        self._library.call("cudnnDestroyFilterDescriptor", self._w)
        self._library.call("cudnnDestroyConvolutionDescriptor", self._conv)

    def algorithms(self) -> Sequence[tuple[str, int]]:
        """Return the names of cuDNN's algorithms, each with its workspace; 0 where cuDNN refuses it."""
        names = ALGORITHMS[self._convolution.which]
        return [(name, self.workspace_bytes(name) or 0) for name in names]

    def workspace_bytes(self, algorithm: str) -> int | None:
        """Return the bytes that an algorithm needs; None if it cannot compute this convolution."""
        found = c.c_size_t()
        name = _WORKSPACE_SIZE[self._convolution.which]
        arguments = (*self._in_order(), self._number(algorithm), c.byref(found))
        return None if self._library.status(name, self._cudnn._handle, *arguments) else int(found.value)

    def is_deterministic(self, algorithm: str) -> bool:
        """Return whether cuDNN reports an algorithm as deterministic here."""
        return self._number(algorithm) in self._deterministic

    @cached_property
    def _deterministic(self) -> set[int]:
        """Return the numbers of deterministic algorithms.

        cuDNN lists each algorithm once for every type of math, which is at most twice.
        """
        which = self._convolution.which
        found = (_Performance * (2 * len(ALGORITHMS[which])))()
        count = c.c_int()
        tensors = (self._cudnn._handle, *self._in_order())
        self._library.call(_SUGGESTION[which], *tensors, len(found), c.byref(count), found)
        usable = [item for item in found[: count.value] if item.status == 0]
        return {item.algorithm for item in usable} - {
            item.algorithm for item in usable if item.determinism != 1
        }

    def _number(self, algorithm: str) -> int:
        return algorithm_number(self._convolution.which, algorithm)

    def compute(self, algorithm: str, x: int, w: int, y: int, workspace: int, workspace_bytes: int) -> None:
        """Issue the convolution on the stream; the operand that it computes is written or added to."""
        one = c.byref(self._cudnn._one)
        beta = c.byref(self._cudnn._one if self._convolution.adds else self._cudnn._zero)
        how = (self._conv, self._number(algorithm), workspace, workspace_bytes, beta)
        sides = {
            "forward": (self._x, x, self._w, w, *how, self._y, y),
            "backward_data": (self._w, w, self._y, y, *how, self._x, x),
            "backward_filter": (self._x, x, self._y, y, *how, self._w, w),
        }
        which = self._convolution.which
        self._library.call(_COMPUTATION[which], self._cudnn._handle, one, *sides[which])

    def _in_order(self) -> tuple[c.c_void_p, ...]:
        """Return the descriptors in the order in which the calls of this pass take them."""
        orders = {
            "forward": (self._x, self._w, self._conv, self._y),
            "backward_data": (self._w, self._y, self._conv, self._x),
            "backward_filter": (self._x, self._y, self._conv, self._w),
        }
        return orders[self._convolution.which]


def load_cudnn() -> Library:
    """Return cuDNN.

    Raises
    ------
    PebblerError
        When it is missing.
    """
    return Library("cuDNN", ["libcudnn.so.9"], _explain, "install nvidia-cudnn-cu13 from PyPI")


def _explain(library: c.CDLL, status: int) -> str:
    return str(library.cudnnGetErrorString(status).decode())
