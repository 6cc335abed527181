"""Caffe's convolution, sample by sample: kernels, derived for a device, and the layers of GLP4NN's Table 5.

Caffe without cuDNN computes a convolution one sample after the other: im2col lowers the sample to a matrix,
a matrix product per group follows, and another adds the bias (Jia et al. 2014). Configurations of im2col and
col2im are those of Caffe's source (GLP4NN, ICPP 2018, section 3.1 agrees on CaffeNet's conv1). Durations come
from the roofline of the cost model and a latency per block; kernels of cuBLAS are those of `products`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from ..errors import PebblerError
from ..networks.zoo import find_network
from ..workload import convolution_of
from .device import Device
from .kernels import Kernel, LayerKernels, derived_kernel
from .products import Layout, product_kernel
from .roofline import FLOAT, Convolution, Pass

Direction = Literal["forward", "backward"]

CAFFE_THREADS = 512
"""Threads of a block of im2col and col2im (Caffe, ``CAFFE_CUDA_NUM_THREADS``)."""
CAFFE_REGISTERS = 33
"""Registers of a thread of im2col (GLP4NN, section 3.1); of col2im an assumption."""
GEMMK_EDGE = 32
"""Edge of a tile of a product whose inner dimension is 1, which adds the bias: 18 blocks for LeNet's conv1 in
the authors' profile, 576 positions and 20 channels."""
GEMMK_THREADS, GEMMK_SHARED, GEMMK_REGISTERS = 256, 272, 12
"""Of a block of that product, and registers of a thread, in the same profile."""
GEMV_THREADS, GEMV_REGISTERS = 128, 30
"""Threads that sum up one row, for the gradient of the bias, and registers of each: assumptions."""
T_LAUNCH_NS = 3000
"""Idle time between kernels of a sample: 568981 ns for 192 kernels in the authors' log of LeNet's conv1."""


@dataclass(frozen=True, slots=True)
class ConvLayer:
    """A convolution layer by name, ``network/layer``."""

    name: str
    conv: Convolution

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the lowered matrix of one sample: what every stream needs for itself."""
        return buffer_bytes(self.conv)


def _row(
    name: str, batch: int, inputs: int, size: int, outputs: int, kernel: int, stride: int, pad: int
) -> ConvLayer:
    """Read a row of the table; images and windows are square."""
    out = (size + 2 * pad - kernel) // stride + 1
    shape = Convolution(batch, inputs, outputs, size, size, out, out, kernel, kernel, stride, pad)
    return ConvLayer(name, shape)


TABLE_5 = (
    _row("cifar10/conv1", 100, 3, 32, 32, 5, 1, 2),
    _row("cifar10/conv2", 100, 32, 16, 32, 5, 1, 2),
    _row("cifar10/conv3", 100, 32, 8, 64, 5, 1, 2),
    _row("siamese/conv1", 64, 1, 28, 20, 5, 1, 0),
    _row("siamese/conv2", 64, 20, 12, 50, 5, 1, 0),
    _row("siamese/conv1_p", 64, 1, 28, 20, 5, 1, 0),
    _row("siamese/conv2_p", 64, 20, 12, 50, 5, 1, 0),
    _row("caffenet/conv1", 256, 3, 227, 96, 11, 4, 0),
    _row("caffenet/conv2", 256, 96, 27, 256, 5, 1, 2),
    _row("caffenet/conv3", 256, 256, 13, 384, 3, 1, 1),
    _row("caffenet/conv4", 256, 384, 13, 384, 3, 1, 1),
    _row("caffenet/conv5", 256, 384, 13, 256, 3, 1, 1),
    _row("googlenet/conv_1", 32, 160, 7, 320, 3, 1, 1),
    _row("googlenet/conv_2", 32, 832, 7, 32, 1, 1, 0),
    _row("googlenet/conv_3", 32, 832, 7, 384, 1, 1, 0),
    _row("googlenet/conv_4", 32, 192, 7, 384, 3, 1, 1),
    _row("googlenet/conv_5", 32, 832, 7, 192, 1, 1, 0),
    _row("googlenet/conv_6", 32, 832, 7, 48, 1, 1, 0),
)
"""GLP4NN (ICPP 2018), Table 5, as printed: CaffeNet's layers without groups."""


def find_layer(name: str, batch: int | None = None) -> ConvLayer:
    """Return a layer of Table 5, or a convolution of a network of the zoo.

    Parameters
    ----------
    name
        ``network/layer``, such as ``caffenet/conv1``; a row of Table 5 comes before a layer of the zoo.
    batch
        Samples; by default those of the table, or the network's own.

    Raises
    ------
    PebblerError
        When there is none; what could be meant is listed.
    """
    network, slash, layer = name.partition("/")
    if not slash:
        raise PebblerError(f"'{name}' is no layer; write network/layer, such as {TABLE_5[7].name}")
    found = next((row for row in TABLE_5 if row.name == name), None) or _zoo_layer(name, network, layer)
    return found if batch is None else replace(found, conv=replace(found.conv, batch=batch))


def _zoo_layer(name: str, network: str, layer: str) -> ConvLayer:
    printed = [row.name.partition("/")[2] for row in TABLE_5 if row.name.startswith(f"{network}/")]
    try:
        described = find_network(network)
    except PebblerError:
        if not printed:
            raise
        raise PebblerError(f"there is no layer '{name}'; try {', '.join(printed)}") from None
    known = [known for known in described.layers if known.kind.operation == "convolution"]
    for target in known:
        if target.name == layer:
            source = described[target.inputs[0]]
            return ConvLayer(name, convolution_of(described.batch, target, source, target))
    names = list(dict.fromkeys([*printed, *(target.name for target in known)]))
    close = difflib.get_close_matches(layer, names, n=3) or names
    raise PebblerError(f"network '{network}' has no convolution '{layer}'; try {', '.join(close)}")


def buffer_bytes(conv: Convolution) -> int:
    """Bytes of the lowered matrix of one sample; none where the input is that matrix already."""
    taps = conv.kernel_h * conv.kernel_w
    return FLOAT * conv.in_channels * taps * conv.out_height * conv.out_width if _is_lowered(conv) else 0


@lru_cache(maxsize=4096)
def caffe_kernels(device: Device, conv: Convolution, which: Pass | Direction) -> LayerKernels:
    """Return the kernels that Caffe launches for one sample.

    Parameters
    ----------
    device
        A packaged device.
    conv
        The layer; its batch does not matter.
    which
        A task (``FP``, ``BP1``, ``BP2``), or the layer's whole pass: backward is BP2 and then BP1.

    Raises
    ------
    PebblerError
        For a device whose multiprocessors are not known.
    """
    derive = _Derivation(device, conv)
    tasks: tuple[Pass, ...]
    match which:
        case "forward":
            tasks = ("FP",)
        case "backward":
            tasks = ("BP2", "BP1")
        case _:
            tasks = (which,)
    kernels = [kernel for task in tasks for kernel in derive.kernels(task)]
    return LayerKernels(t_launch_ns=T_LAUNCH_NS, kernels=tuple(kernels))


def _is_lowered(conv: Convolution) -> bool:
    """Whether im2col runs; a 1x1 window without stride and padding needs none."""
    return (conv.kernel_h, conv.kernel_w, conv.stride, conv.pad) != (1, 1, 1, 0)


@dataclass(frozen=True, slots=True)
class _Derivation:
    """Makes kernels of one layer on one device."""

    device: Device
    conv: Convolution

    def kernels(self, task: Pass) -> list[Kernel]:
        """Kernels of a task in the order of their launches (Caffe's ``base_conv_layer.cpp``)."""
        conv = self.conv
        rows = conv.out_channels // conv.groups
        depth = conv.in_channels // conv.groups * conv.kernel_h * conv.kernel_w
        columns = conv.out_height * conv.out_width
        taps = conv.kernel_h * conv.kernel_w
        if task == "FP":
            product = self._sgemm("sgemm", "nn", rows, columns, depth)
            return [*self._lowering("im2col", columns, taps), product, self._bias(conv.out_channels, columns)]
        if task == "BP2":
            product = self._sgemm("sgemm_dw", "tn", rows, depth, columns)
            return [
                self._row_sums(conv.out_channels, columns),
                *self._lowering("im2col", columns, taps),
                product,
            ]
        windows = -(-conv.kernel_h // conv.stride) * -(-conv.kernel_w // conv.stride)
        return [
            self._sgemm("sgemm_dx", "nt", depth, columns, rows),
            *self._lowering("col2im", conv.in_height * conv.in_width, windows),
        ]

    def _lowering(self, name: str, positions: int, loads: int) -> list[Kernel]:
        """im2col or col2im: a thread per channel and position, with so many loads one after another."""
        if not _is_lowered(self.conv):
            return []
        conv = self.conv
        lowering = derived_kernel(
            self.device,
            name,
            blocks=-(-conv.in_channels * positions // CAFFE_THREADS),
            threads=CAFFE_THREADS,
            registers=CAFFE_REGISTERS,
            traffic=FLOAT * conv.in_channels * conv.in_height * conv.in_width + buffer_bytes(conv),
            loads=loads,
        )
        return [lowering]

    def _sgemm(self, name: str, layout: Layout, rows: int, columns: int, depth: int) -> Kernel:
        """Matrix product, one launch a group; Caffe's rows are cuBLAS's columns."""
        return product_kernel(self.device, name, layout, columns, rows, depth, self.conv.groups)

    def _bias(self, rows: int, columns: int) -> Kernel:
        """Product of the bias with a row of ones, added to the output."""
        return derived_kernel(
            self.device,
            "gemmk1",
            blocks=-(-rows // GEMMK_EDGE) * -(-columns // GEMMK_EDGE),
            threads=GEMMK_THREADS,
            shared_bytes=GEMMK_SHARED,
            registers=GEMMK_REGISTERS,
            traffic=FLOAT * (rows + columns + 2 * rows * columns),
            loads=2,
        )

    def _row_sums(self, rows: int, columns: int) -> Kernel:
        """Gradient of the bias: product of the output's gradient with a vector of ones."""
        return derived_kernel(
            self.device,
            "gemv",
            blocks=rows,
            threads=GEMV_THREADS,
            registers=GEMV_REGISTERS,
            traffic=FLOAT * (rows * columns + columns + rows),
            loads=-(-columns // GEMV_THREADS),
        )
