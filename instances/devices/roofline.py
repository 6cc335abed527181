"""The roofline cost model: how long a task takes and what workspace it needs, from shapes and a device.

A kernel takes ``max(operations / (peak x efficiency x utilisation), bytes / effective bandwidth)`` and a
fixed launch time; an algorithm is the sum of its kernels. ``docs/costs.md`` gives every formula with its
source. Products are in single precision, or on tensor cores in another one. Constants that say "fitted" are
those of ``docs/scripts/fit_costs.py``; one that says "chosen" is a round number that suits the same
measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

from ..instance import Algorithm
from .device import Device, Precision, whole_ns
from .library import has_winograd, has_winograd_nonfused, joins_groups, product_edge, product_slice

Pass = Literal["FP", "BP1", "BP2"]
"""Forward; backward data (the gradient of the input); backward filter (the gradient of the weights)."""

COST_MODEL = 2
"""Version of this model. The first one had no library, and was held against no measured layer."""
FLOAT = 4
"""Bytes of a number in single precision."""
HALF = 2
"""Bytes of a number in half precision and bfloat16."""
TILE = 64
"""Rows and columns of the output tile that one thread block of a matrix product computes."""
RESIDENT_TILES = 4
"""Thread blocks that a multiprocessor holds at once to hide latency."""
SLICE = 512
"""Depth of a slice when the gradient of the filters is split among thread blocks; chosen."""
RAMP = 32
"""What the inner dimension of a convolution counts more, for what blocks do before and after; chosen."""
TABLE_SPEED = 1.25
"""Speed of a convolution with precomputed indices relative to the one that computes them."""
FILTER_SPEED = 0.59
"""Speed of the gradient of the filters relative to a forward convolution; fitted."""
STRIDED_SPEED = 0.27
"""Speed of the gradient of the input relative to a forward convolution, where it has a stride; fitted."""
DEPTHWISE_SPEED = 0.1
"""Share of the peak that a convolution reaches whose groups have one input channel each; an assumption."""
WINOGRAD_SPEED = 0.93
"""Speed of the products of non-fused Winograd relative to a large matrix product; fitted."""
FFT_SPEED = 0.6
"""The same of FFTs; calibrated with the workspaces that vDNN prints."""
TENSOR_SPEED = 0.96
"""Efficiency of large matrix products on tensor cores relative to that in single precision; fitted."""
TENSOR_CONVOLUTION_SPEED = 0.79
"""The same of convolutions on tensor cores, of all passes and strides; fitted."""
TENSOR_SLICE = 1024
"""What `SLICE` is on tensor cores; chosen."""
CHUNKED_FROM = 256 * 2**20
"""Workspaces up to this size (256 MiB) are not reduced by chunks of the batch."""
FFT_LIMIT = 256
"""Largest padded height and width of the untiled FFT (cuDNN Developer Guide)."""
FFT_TILE = 32
"""Height and width of the tiles of the tiled FFT (cuDNN Developer Guide)."""
WINOGRAD_TILE = 6
"""Height and width of the input tiles of non-fused Winograd: F(4x4, 3x3) and F(2x2, 5x5)."""
FUSED_TILE = 4
"""The same of Winograd in one kernel: F(2x2, 3x3)."""
GAIN = 0.999
"""An algorithm with more workspace is kept when its duration is under this share of the others'."""

_ALIGNED: dict[Precision, int] = {"tf32": 4, "fp16": 8, "bf16": 8}
"""On tensor cores, channels are multiples of it (NVIDIA, Convolutional Layers User's Guide)."""
_NAMES: dict[Pass, tuple[str, str]] = {
    "FP": ("implicit-gemm", "implicit-precomp-gemm"),
    "BP1": ("algo-0", "algo-1"),
    "BP2": ("algo-0", "algo-3"),
}


@dataclass(frozen=True, slots=True)
class Convolution:
    """Shapes of a convolution layer; `stride` and `pad` hold in both directions.

    `value_bytes` are those of a number of its input, output and filters.
    """

    batch: int
    in_channels: int
    out_channels: int
    in_height: int
    in_width: int
    out_height: int
    out_width: int
    kernel_h: int
    kernel_w: int
    stride: int
    pad: int
    groups: int = 1
    value_bytes: int = FLOAT

    @property
    def input_bytes(self) -> int:
        """Bytes of X or dX."""
        return self.value_bytes * self.batch * self.in_channels * self.in_height * self.in_width

    @property
    def output_bytes(self) -> int:
        """Bytes of Y or dY."""
        return self.value_bytes * self.batch * self.out_channels * self.out_height * self.out_width

    @property
    def pairs(self) -> int:
        """Pairs of an input and an output channel that a filter plane joins."""
        return self.in_channels * self.out_channels // self.groups

    @property
    def filter_bytes(self) -> int:
        """Bytes of W or dW."""
        return self.value_bytes * self.pairs * self.kernel_h * self.kernel_w


@dataclass(frozen=True, slots=True)
class _Transform:
    """A fast convolution: tiles are transformed, multiplied point by point and transformed back.

    `tiles` per image and channel; `points` values per tile, of `value_bytes` each, whose product takes
    `product_flops` operations, addition included, at `speed` relative to a large matrix product.
    """

    name: str
    tiles: int
    points: int
    value_bytes: int
    product_flops: int
    speed: float


@lru_cache(maxsize=65536)
def convolution_algorithms(
    device: Device, conv: Convolution, which: Pass, extra_bytes: int = 0, precision: Precision = "fp32"
) -> tuple[Algorithm, ...]:
    """Return the algorithms of a convolution that are worth having, by rising workspace.

    The first needs no workspace. `extra_bytes` is memory traffic of work done in the same task by a
    kernel of its own. `precision` is that of the algorithm that has tensor cores: the one with precomputed
    indices; the others compute in single precision. For bfloat16 cuDNN has products only.
    """
    if conv.groups == conv.in_channels > 1:
        candidates = [_depthwise(device, conv, which)]
    else:
        candidates = [*_implicit(device, conv, which, precision), *_explicit(device, conv, which)]
        if precision != "bf16":
            transforms = _transforms(device, conv, which)
            candidates += _fused(device, conv, which)
            candidates += (_transformed(device, conv, which, transform) for transform in transforms)
    extra = extra_seconds(device, extra_bytes)
    return undominated(
        Algorithm(name=name, duration_ns=whole_ns(seconds + extra), workspace_bytes=workspace)
        for name, seconds, workspace in candidates
    )


@lru_cache(maxsize=65536)
def dense_algorithms(
    device: Device,
    batch: int,
    inputs: int,
    outputs: int,
    which: Pass,
    extra_bytes: int = 0,
    precision: Precision = "fp32",
    groups: int = 1,
) -> tuple[Algorithm, ...]:
    """Return the algorithm of a fully connected layer: one matrix product, no workspace.

    With several groups, such as experts, each has a batch of that size and weights of its own.
    """
    rows, columns, depth = {
        "FP": (batch, outputs, inputs),
        "BP1": (batch, inputs, outputs),
        "BP2": (inputs, outputs, batch),
    }[which]
    value_bytes = HALF if precision in ("fp16", "bf16") else FLOAT
    traffic = groups * value_bytes * (batch * inputs + batch * outputs + inputs * outputs)
    return matrix_algorithms(device, rows, columns, depth, traffic, extra_bytes, precision, groups)


@lru_cache(maxsize=65536)
def matrix_algorithms(
    device: Device,
    rows: int,
    columns: int,
    depth: int,
    bytes_moved: int,
    extra_bytes: int = 0,
    precision: Precision = "fp32",
    groups: int = 1,
) -> tuple[Algorithm, ...]:
    """Return the algorithm of one matrix product, which may be split along its inner dimension.

    Parameters
    ----------
    device
        A GPU.
    rows, columns, depth
        Size of the result, and the inner dimension.
    bytes_moved
        What is read and written.
    extra_bytes
        Memory traffic of work done in the same task by a kernel of its own.
    precision
        At whose peak the device multiplies.
    groups
        How many products of this size one launch computes side by side.
    """
    edge = product_edge(device.cudnn)
    tiles = groups * max(rows, edge) * max(columns, edge) / TILE**2
    seconds = _product_seconds(
        device,
        _product_rate(device, precision),
        2 * tiles * TILE**2 * depth,
        tiles * max(1.0, depth / product_slice(device.cudnn)),
        bytes_moved,
    )
    duration = whole_ns(seconds + extra_seconds(device, extra_bytes))
    return (Algorithm(name="gemm", duration_ns=duration, workspace_bytes=0),)


@lru_cache(maxsize=65536)
def product_algorithms(
    device: Device, products: int, results: int, bytes_moved: int, precision: Precision = "fp32"
) -> tuple[Algorithm, ...]:
    """Return the algorithm of products of two layers' outputs: attention, and its batched matrix products.

    Parameters
    ----------
    device
        A GPU.
    products
        Multiply-adds.
    results
        Values that are computed, which fill the device in tiles.
    bytes_moved
        What is read and written.
    precision
        At whose peak the device multiplies.
    """
    rate = _product_rate(device, precision)
    seconds = _product_seconds(device, rate, 2 * products, results / TILE**2, bytes_moved)
    return (Algorithm(name="gemm", duration_ns=whole_ns(seconds), workspace_bytes=0),)


@lru_cache(maxsize=65536)
def memory_bound_algorithms(device: Device, bytes_moved: int) -> tuple[Algorithm, ...]:
    """Return the algorithm of a kernel that only moves data: pooling, normalisation, element-wise work."""
    duration = whole_ns(device.memory_seconds(bytes_moved) + device.launch_ns / 1e9)
    return (Algorithm(name="kernel", duration_ns=duration, workspace_bytes=0),)


def extra_seconds(device: Device, extra_bytes: int) -> float:
    """Time of a kernel of its own that only moves so many bytes; none for none."""
    return device.memory_seconds(extra_bytes) + device.launch_ns / 1e9 if extra_bytes else 0.0


def undominated(algorithms: Iterable[Algorithm]) -> tuple[Algorithm, ...]:
    """Keep, by rising workspace, what is faster by 0.1 % than everything with no more workspace."""
    kept: list[Algorithm] = []
    for algorithm in sorted(algorithms, key=lambda item: (item.workspace_bytes, item.duration_ns)):
        if not kept or algorithm.duration_ns < GAIN * kept[-1].duration_ns:
            kept.append(algorithm)
    return tuple(kept)


def _implicit(
    device: Device, conv: Convolution, which: Pass, precision: Precision
) -> Iterator[tuple[str, float, int]]:
    """Matrix products that never form the lowered matrix (Chetlur et al. 2014, section 3)."""
    taps = conv.kernel_h * conv.kernel_w
    speed = {"FP": 1.0, "BP1": 1.0 if conv.stride == 1 else STRIDED_SPEED, "BP2": FILTER_SPEED}[which]
    table = FLOAT * (conv.out_height * conv.out_width + conv.in_channels // conv.groups * taps)
    baseline, indexed = _NAMES[which]
    computing, looking_up = (
        _direct_seconds(
            device, conv, which, device.peak_flops * (device.convolution_efficiency * speed * faster), SLICE
        )
        for faster in (1.0, TABLE_SPEED)
    )
    yield baseline, computing, 0
    peak = device.tensor_peak(precision)
    if peak is not None and _is_aligned(conv, precision):
        rate = peak * (device.gemm_efficiency * TENSOR_CONVOLUTION_SPEED)
        multiplying = _direct_seconds(device, conv, which, rate, TENSOR_SLICE, _filled(conv, which))
        looking_up = min(looking_up, multiplying)
    yield indexed, looking_up, table


def _direct_seconds(
    device: Device, conv: Convolution, which: Pass, rate: float, slice_depth: int, filled: float = 1.0
) -> float:
    """Time of a convolution as one matrix product, with `filled` times the operations that it needs."""
    taps = conv.kernel_h * conv.kernel_w
    depth = {
        "FP": conv.in_channels // conv.groups * taps,
        "BP1": conv.out_channels // conv.groups * taps,
        "BP2": conv.batch * conv.out_height * conv.out_width,
    }[which]
    flops = 2 * conv.batch * conv.pairs * taps * conv.out_height * conv.out_width
    return _product_seconds(
        device,
        rate,
        filled * flops * (1 + RAMP / depth),
        filled * _output_tiles(conv, which, slice_depth),
        conv.input_bytes + conv.output_bytes + conv.filter_bytes,
        _launches(device, conv),
    )


def _is_aligned(conv: Convolution, precision: Precision) -> bool:
    """Whether channels of a group are what tensor cores need."""
    channels = conv.in_channels // conv.groups, conv.out_channels // conv.groups
    return all(count % _ALIGNED[precision] == 0 for count in channels)


def _filled(conv: Convolution, which: Pass) -> float:
    """How much more a product of whole tiles computes where the result has fewer rows or columns than one."""
    inputs, outputs = conv.in_channels // conv.groups, conv.out_channels // conv.groups
    sides = {
        "FP": (conv.batch * conv.out_height * conv.out_width, outputs),
        "BP1": (conv.batch * conv.in_height * conv.in_width, inputs),
        "BP2": (inputs * conv.kernel_h * conv.kernel_w, outputs),
    }[which]
    return prod(max(1.0, TILE / side) for side in sides)


def _depthwise(device: Device, conv: Convolution, which: Pass) -> tuple[str, float, int]:
    """Every output from the taps of one input channel: no matrix product, but a kernel of its own."""
    traffic = conv.input_bytes + conv.output_bytes + conv.filter_bytes
    flops = 2 * conv.batch * conv.pairs * conv.kernel_h * conv.kernel_w * conv.out_height * conv.out_width
    compute = flops / (device.peak_flops * DEPTHWISE_SPEED)
    return _NAMES[which][0], max(compute, device.memory_seconds(traffic)) + device.launch_ns / 1e9, 0


def _launches(device: Device, conv: Convolution) -> int:
    return 1 if joins_groups(device.cudnn) else conv.groups


def _explicit(device: Device, conv: Convolution, which: Pass) -> Iterator[tuple[str, float, int]]:
    """Lower the input to a matrix (im2col), then multiply; forward only, and not where it is a copy."""
    taps = conv.kernel_h * conv.kernel_w
    if which != "FP" or (taps == 1 and conv.stride == 1):
        return
    positions = conv.out_height * conv.out_width
    per_image = conv.value_bytes * conv.in_channels * taps * positions
    rounds, workspace = _chunks(conv, 0, per_image)
    lowered = conv.batch * per_image
    lowering = device.memory_seconds(conv.input_bytes + lowered) + rounds * device.launch_ns / 1e9
    product = _product_seconds(
        device,
        _product_rate(device),
        2 * conv.batch * conv.pairs * positions * (taps + RAMP * conv.groups / conv.in_channels),
        _output_tiles(conv, which, SLICE),
        lowered + conv.output_bytes + rounds * conv.filter_bytes,
        rounds * _launches(device, conv),
    )
    yield "gemm", lowering + product, workspace


def _fused(device: Device, conv: Convolution, which: Pass) -> Iterator[tuple[str, float, int]]:
    """Winograd with its transforms in the kernel that multiplies, at the speed of a convolution."""
    if not _has_fused(device, conv, which):
        return
    tiles = conv.batch * _tiles(conv, which, FUSED_TILE - 2, FUSED_TILE - 2)
    inputs, outputs = (
        (conv.in_channels, conv.out_channels) if which == "FP" else (conv.out_channels, conv.in_channels)
    )
    filters = FLOAT * FUSED_TILE**2 * conv.pairs
    image = FLOAT * FUSED_TILE**2 * (tiles // conv.batch) * (inputs + outputs)
    seconds = _product_seconds(
        device,
        device.peak_flops * (device.convolution_efficiency * TABLE_SPEED),
        2 * tiles * FUSED_TILE**2 * conv.pairs * (1 + RAMP * conv.groups / inputs),
        tiles * (FUSED_TILE - 2) ** 2 * outputs / TILE**2,
        conv.input_bytes + conv.output_bytes + conv.filter_bytes,
        _launches(device, conv),
    )
    yield "winograd", seconds, filters + image


def _has_fused(device: Device, conv: Convolution, which: Pass) -> bool:
    shape = conv.kernel_h, conv.kernel_w, conv.stride
    able = has_winograd(device.cudnn, device.architecture)
    return able and which != "BP2" and shape == (3, 3, 1) and conv.pad < 3


def _transforms(device: Device, conv: Convolution, which: Pass) -> Iterator[_Transform]:
    """Fast convolutions that apply to a layer, under the conditions of the cuDNN Developer Guide."""
    side = max(conv.kernel_h, conv.kernel_w)
    if conv.stride != 1 or min(conv.kernel_h, conv.kernel_w) <= conv.pad:
        return
    padded = conv.in_height + 2 * conv.pad, conv.in_width + 2 * conv.pad
    if max(padded) <= FFT_LIMIT:
        rows, columns = map(_power_of_two, padded)
        yield _Transform("fft", 1, rows * (columns // 2 + 1), 2 * FLOAT, 8, FFT_SPEED)
    if side <= FFT_TILE:
        tiles = _tiles(conv, which, FFT_TILE + 1 - conv.kernel_h, FFT_TILE + 1 - conv.kernel_w)
        yield _Transform("fft-tiling", tiles, FFT_TILE * (FFT_TILE // 2 + 1), 2 * FLOAT, 8, FFT_SPEED)
    if conv.kernel_h == conv.kernel_w and side in (3, 5) and has_winograd_nonfused(device.cudnn):
        step = WINOGRAD_TILE + 1 - side
        tiles = _tiles(conv, which, step, step)
        yield _Transform("winograd-nonfused", tiles, WINOGRAD_TILE**2, FLOAT, 2, WINOGRAD_SPEED)


def _tiles(conv: Convolution, which: Pass, rows: int, columns: int) -> int:
    """Tiles of a plane: of the input's for its gradient, else of the output's."""
    height, width = (conv.in_height, conv.in_width) if which == "BP1" else (conv.out_height, conv.out_width)
    return -(-height // rows) * -(-width // columns)


def _transformed(
    device: Device, conv: Convolution, which: Pass, transform: _Transform
) -> tuple[str, float, int]:
    """Transform two operands, multiply a matrix per point, transform the result back."""
    tile_bytes = transform.points * transform.value_bytes
    filters = tile_bytes * conv.pairs
    per_image = tile_bytes * transform.tiles * (conv.in_channels + conv.out_channels)
    rounds, workspace = _chunks(conv, filters, per_image)
    data = conv.batch * per_image
    plain = conv.input_bytes + conv.output_bytes + conv.filter_bytes
    transforming = device.memory_seconds(plain + data + filters) + (2 * rounds + 1) * device.launch_ns / 1e9
    spots = conv.batch / rounds * transform.tiles
    if which == "BP2":
        depth = spots
        tiles = conv.pairs / TILE**2 * max(1.0, (spots + RAMP) / SLICE)
    else:
        depth, channels = conv.in_channels / conv.groups, conv.out_channels
        if which == "BP1":
            depth, channels = conv.out_channels / conv.groups, conv.in_channels
        tiles = spots * channels / TILE**2
    flops = transform.product_flops * transform.points * conv.pairs * transform.tiles * conv.batch
    product = _product_seconds(
        device,
        device.peak_flops * (device.gemm_efficiency * transform.speed),
        flops * (1 + RAMP / depth),
        transform.points * tiles * rounds,
        data + rounds * filters,
        rounds,
    )
    return transform.name, transforming + product, workspace


def _output_tiles(conv: Convolution, which: Pass, slice_depth: int) -> float:
    """Tiles of work of the matrix product that a direct convolution is, in fractions.

    The gradient of the filters is small and its inner dimension (batch x positions) long, so that one is
    split into slices of a depth, as cuDNN's backward-filter algorithm 0 does with atomic additions.
    """
    positions = conv.batch * conv.out_height * conv.out_width
    if which == "FP":
        return positions * conv.out_channels / TILE**2
    if which == "BP1":
        return conv.batch * conv.in_height * conv.in_width * conv.in_channels / TILE**2
    return conv.pairs * conv.kernel_h * conv.kernel_w / TILE**2 * max(1.0, (positions + RAMP) / slice_depth)


def _product_rate(device: Device, precision: Precision = "fp32") -> float:
    """Operations a second of a large matrix product: on tensor cores where they are faster."""
    single = device.peak_flops * device.gemm_efficiency
    return max(single, device.peak(precision) * device.gemm_efficiency * TENSOR_SPEED)


def _product_seconds(
    device: Device, rate: float, flops: float, tiles: float, traffic: float, launches: int = 1
) -> float:
    """Roofline of matrix products, launches included; `rate` is the operations a second of a full device.

    A launch of t tiles takes ceil(t / slots) waves; on average over t that is half a wave more than
    t / slots, so the utilisation is t / (t + slots / 2).
    """
    slots = device.multiprocessors * RESIDENT_TILES
    utilisation = tiles / (tiles + launches * slots / 2)
    compute = flops / (rate * utilisation)
    return max(compute, device.memory_seconds(traffic)) + launches * device.launch_ns / 1e9


def _chunks(conv: Convolution, fixed: int, per_image: int) -> tuple[int, int]:
    """Return in how many chunks the batch is processed, and the workspace in bytes.

    A workspace over 256 MiB is reduced until what is stored per image, for one chunk, takes no more than
    the layer's plain input and output for the whole batch.
    """
    rounds = 1
    if fixed + conv.batch * per_image > CHUNKED_FROM:
        rounds = min(conv.batch, -(-conv.batch * per_image // (conv.input_bytes + conv.output_bytes)))
    images = -(-conv.batch // rounds)
    return rounds, fixed + images * per_image


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
