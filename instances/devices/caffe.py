"""Caffe's convolution, sample by sample: kernels, derived for a device, and the layers of GLP4NN's Table 5.

Caffe without cuDNN computes a convolution one sample after the other: im2col lowers the sample to a matrix,
a matrix product per group follows, and another adds the bias (Jia et al. 2014). Configurations of im2col and
col2im are those of Caffe's source (GLP4NN, ICPP 2018, section 3.1 agrees on CaffeNet's conv1); those of
cuBLAS's kernels are assumptions, one tile for all sizes and devices, where cuBLAS has many. Durations come
from the roofline of the cost model and a latency per block.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import msgspec

from ..errors import PebblerError
from ..networks.zoo import find_network
from ..workload import convolution_of
from .device import Device, whole_ns
from .kernels import Kernel, LayerKernels, alone_ns, resident_blocks
from .occupancy import ExecutionLimits, execution_limits
from .roofline import FLOAT, Convolution, Pass

Direction = Literal["forward", "backward"]

CAFFE_THREADS = 512
"""Threads of a block of im2col and col2im (Caffe, ``CAFFE_CUDA_NUM_THREADS``)."""
CAFFE_REGISTERS = 33
"""Registers of a thread of im2col (GLP4NN, section 3.1); of col2im an assumption."""
SGEMM_ROWS, SGEMM_COLUMNS, SGEMM_DEPTH = 128, 64, 8
"""Tile of the output that one block of sgemm computes, and depth of what it loads at a time: assumptions."""
SGEMM_SHARED, SGEMM_REGISTERS = 8448, 70
"""Shared memory of a block and registers of a thread: assumptions."""
GEMMK_ROWS, GEMMK_COLUMNS = 32, 128
"""Tile of a product whose inner dimension is 1, which adds the bias: an assumption."""
GEMM_THREADS = 256
GEMMK_REGISTERS = 30
GEMV_THREADS = 128
"""Threads that sum up one row, for the gradient of the bias: an assumption."""
LATENCY_CYCLES = 400
"""Clock cycles of a load from device memory: 200 to 400 (CUDA C Programming Guide, on 3.x)."""
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
    derive = _Derivation(device, execution_limits(device), conv)
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
    limits: ExecutionLimits
    conv: Convolution

    def kernels(self, task: Pass) -> list[Kernel]:
        """Kernels of a task in the order of their launches (Caffe's ``base_conv_layer.cpp``)."""
        conv = self.conv
        rows = conv.out_channels // conv.groups
        depth = conv.in_channels // conv.groups * conv.kernel_h * conv.kernel_w
        columns = conv.out_height * conv.out_width
        taps = conv.kernel_h * conv.kernel_w
        if task == "FP":
            product = self._sgemm("sgemm", rows, columns, depth)
            return [*self._lowering("im2col", columns, taps), product, self._bias(conv.out_channels, columns)]
        if task == "BP2":
            product = self._sgemm("sgemm_dw", rows, depth, columns)
            return [
                self._row_sums(conv.out_channels, columns),
                *self._lowering("im2col", columns, taps),
                product,
            ]
        windows = -(-conv.kernel_h // conv.stride) * -(-conv.kernel_w // conv.stride)
        return [
            self._sgemm("sgemm_dx", depth, columns, rows),
            *self._lowering("col2im", conv.in_height * conv.in_width, windows),
        ]

    def _lowering(self, name: str, positions: int, loads: int) -> list[Kernel]:
        """im2col or col2im: a thread per channel and position, with so many loads one after another."""
        if not _is_lowered(self.conv):
            return []
        conv = self.conv
        traffic = FLOAT * conv.in_channels * conv.in_height * conv.in_width + buffer_bytes(conv)
        blocks = -(-conv.in_channels * positions // CAFFE_THREADS)
        return [self._kernel(name, (blocks, 1, 1), CAFFE_THREADS, 0, CAFFE_REGISTERS, 0.0, traffic, loads)]

    def _sgemm(self, name: str, rows: int, columns: int, depth: int) -> Kernel:
        """Matrix product, one launch a group; a block computes its whole tile, whatever part is needed."""
        grid = (-(-rows // SGEMM_ROWS), -(-columns // SGEMM_COLUMNS), 1)
        flops = 2.0 * SGEMM_ROWS * SGEMM_COLUMNS * depth * grid[0] * grid[1]
        traffic = FLOAT * (rows * depth + depth * columns + rows * columns)
        loads = -(-depth // SGEMM_DEPTH)
        return self._kernel(
            name, grid, GEMM_THREADS, SGEMM_SHARED, SGEMM_REGISTERS, flops, traffic, loads, self.conv.groups
        )

    def _bias(self, rows: int, columns: int) -> Kernel:
        """Product of the bias with a row of ones, added to the output."""
        grid = (-(-rows // GEMMK_ROWS), -(-columns // GEMMK_COLUMNS), 1)
        traffic = FLOAT * (rows + columns + 2 * rows * columns)
        return self._kernel("gemmk1", grid, GEMM_THREADS, 0, GEMMK_REGISTERS, 0.0, traffic, 2)

    def _row_sums(self, rows: int, columns: int) -> Kernel:
        """Gradient of the bias: product of the output's gradient with a vector of ones."""
        traffic = FLOAT * (rows * columns + columns + rows)
        loads = -(-columns // GEMV_THREADS)
        return self._kernel("gemv", (rows, 1, 1), GEMV_THREADS, 0, GEMMK_REGISTERS, 0.0, traffic, loads)

    def _kernel(
        self,
        name: str,
        grid: tuple[int, int, int],
        threads: int,
        shared: int,
        registers: int,
        flops: float,
        traffic: int,
        loads: int,
        launches: int = 1,
    ) -> Kernel:
        """Roofline of a block's share on one multiprocessor; it takes no less than its loads in turn."""
        blocks = grid[0] * grid[1] * grid[2]
        share = self.limits.multiprocessors / blocks
        compute = flops / (self.device.peak_flops * self.device.gemm_efficiency)
        work = whole_ns(share * max(compute, self.device.memory_seconds(traffic)))
        alone = max(work, whole_ns(loads * LATENCY_CYCLES / self.limits.clock_hz))
        kernel = Kernel(
            name=name,
            grid=grid,
            block=(threads, 1, 1),
            shared_bytes=shared,
            registers=registers,
            duration_ns=1,
            invocations=launches,
            work_ns=work,
        )
        resident = resident_blocks(kernel, self.limits)
        duration = alone_ns(work, alone, blocks, resident, self.limits.multiprocessors)
        return msgspec.structs.replace(kernel, duration_ns=round(duration))
