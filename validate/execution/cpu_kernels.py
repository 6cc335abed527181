"""The CPU's kernels: what `kernel` describes, in NumPy, one function for each kind of layer and pass.

Nothing is allocated that grows with the batch (see `cpu_scratch`); sums are taken in one order, so that the
same numbers give the same bits wherever they lie. Gradients that are not added to begin as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...instances.errors import PebblerError
from ...instances.network import Shape
from .cpu_convolution import Convolution
from .cpu_memory import array_at
from .cpu_scratch import Scratch, pieces
from .kernel import EPSILON, LRN, Kernel, keep, resampling

CpuKernel = Callable[[Mapping[str, int], int], None]
"""Takes the addresses of the operands and the index of the first image."""

Array = NDArray[np.float32]


class Operands:
    """The arrays that a launch works on.

    Attributes
    ----------
    kernel
        What is computed.
    first
        Index of the first image.
    scratch
        Room for a little more.
    """

    def __init__(self, kernel: Kernel, addresses: Mapping[str, int], first: int, scratch: Scratch) -> None:
        self.kernel = kernel
        self.first = first
        self.scratch = scratch
        self._addresses = addresses

    def __contains__(self, word: str) -> bool:
        return word in self._addresses

    def source(self, word: str, i: int) -> Array:
        """Return x or dx of the layer's input `i`."""
        return self._images(f"{word}{i}", self.kernel.sources[i])

    def target(self, word: str) -> Array:
        """Return y or dy."""
        return self._images(word, self.kernel.layer.shape)

    def gradient(self, i: int) -> Array:
        """Return dx of an input, to be added to."""
        dx = self.source("dx", i)
        if f"dx{i}" not in self.kernel.adds:
            dx[...] = 0
        return dx

    def weights(self, word: str) -> Array:
        """Return w, or dw to be added to; flat."""
        found = array_at(self._addresses[word], (self.kernel.parameters,))
        if word == "dw" and word not in self.kernel.adds:
            found[...] = 0
        return found

    def bytes_of(self, word: str) -> NDArray[np.uint8]:
        """Return a mask or signs: a byte for each value of y."""
        return array_at(self._addresses[word], (self.kernel.images, *self.kernel.layer.shape), np.uint8)

    def saved(self) -> Array:
        """Return batch norm's statistics: means, then inverse deviations."""
        return array_at(self._addresses["saved"], (2, self.kernel.layer.shape.channels))

    def saved_of_images(self) -> Array:
        """Return layer norm's statistics of each image: means, then inverse deviations."""
        return array_at(self._addresses["saved"], (self.kernel.images, 2, self.kernel.layer.shape.positions))

    def labels(self) -> NDArray[np.int32]:
        """Return the labels of the images, one a position."""
        positions = self.kernel.layer.shape.positions
        address = self._addresses["labels"] + 4 * positions * self.first
        return array_at(address, (self.kernel.images, positions), np.int32)

    def losses(self) -> Array:
        """Return the losses of the images."""
        return array_at(self._addresses["losses"] + 4 * self.first, (self.kernel.images,))

    def workspace(self) -> NDArray[np.uint8]:
        """Return the planned workspace."""
        size = self.kernel.workspace_bytes
        return array_at(self._addresses["workspace"], (size,), np.uint8) if size else np.empty(0, np.uint8)

    def flat(self, word: str) -> Array:
        """Return an operand of a copy."""
        return array_at(self._addresses[word], (self.kernel.values,))

    def _images(self, word: str, shape: Shape) -> Array:
        return array_at(self._addresses[word], (self.kernel.images, *shape))


def prepare(kernel: Kernel, scratch: Scratch) -> CpuKernel:
    """Return the code of a kernel.

    Raises
    ------
    PebblerError
        When there is none, or its workspace is too small for the algorithm.
    """
    layer, role = kernel.layer, kernel.role
    compute: Callable[[Operands], None]
    if layer.kind in ("conv", "deconv") and role not in ("relu", "copy"):
        passes = _CONVOLUTION if layer.kind == "conv" else _TRANSPOSED
        compute = passes[role](Convolution(kernel))
    else:
        found = _KERNELS.get((role, "") if role in ("relu", "copy") else (role, layer.kind))
        if found is None or kernel.algorithm not in ("kernel", "gemm"):
            raise PebblerError(f"task '{kernel.task}': the CPU has no algorithm '{kernel.algorithm}' for it")
        compute = found

    def launch(addresses: Mapping[str, int], first: int) -> None:
        operands = Operands(kernel, addresses, first, scratch)
        compute(operands)
        if role == "FP" and layer.relu:
            _relu(operands)

    return launch


def algorithms(kernel: Kernel) -> list[tuple[str, int]]:
    """Algorithms that the CPU has for a kernel, each with the workspace that it is given."""
    if kernel.role in ("relu", "copy"):
        return [("kernel", 0)]
    if kernel.layer.kind in ("conv", "deconv"):
        return Convolution.algorithms(kernel)
    return [("gemm" if kernel.layer.kind in ("fc", "linear") else "kernel", 0)]


# --- element by element -------------------------------------------------------------------------------


def _relu(at: Operands) -> None:
    y = at.target("y")
    np.maximum(y, 0, out=y)
    if "signs" in at:
        np.greater(y, 0, out=at.bytes_of("signs").view(np.bool_))


def _relu_backward(at: Operands) -> None:
    dy = at.target("dy").reshape(-1)
    if "signs" in at:
        np.multiply(dy, at.bytes_of("signs").reshape(-1), out=dy)
        return
    y = at.target("y").reshape(-1)
    for part in pieces(dy.size, 1):
        (sign,) = at.scratch.arrays(((part.stop - part.start,), np.bool_))
        np.multiply(dy[part], np.greater(y[part], 0, out=sign), out=dy[part])


def _copy(at: Operands) -> None:
    at.flat("y")[...] = at.flat("x0")


def _add(at: Operands) -> None:
    y = at.target("y")
    y[...] = at.source("x", 0)
    for i in range(1, len(at.kernel.sources)):
        y += at.source("x", i)


def _add_backward(at: Operands) -> None:
    dy = at.target("dy")
    for i, shape in enumerate(at.kernel.sources):
        if f"dx{i}" in at:
            whole = shape == at.kernel.layer.shape
            at.gradient(i)[...] += dy if whole else dy.sum(axis=(2, 3), keepdims=True)


def _concat(at: Operands) -> None:
    y = at.target("y")
    begin = 0
    for i, shape in enumerate(at.kernel.sources):
        y[:, begin : begin + shape.channels] = at.source("x", i)
        begin += shape.channels


def _concat_backward(at: Operands) -> None:
    dy = at.target("dy")
    begin = 0
    for i, shape in enumerate(at.kernel.sources):
        if f"dx{i}" in at:
            at.gradient(i)[...] += dy[:, begin : begin + shape.channels]
        begin += shape.channels


def _dropout(at: Operands) -> None:
    x, y, mask = (values.reshape(-1) for values in (at.source("x", 0), at.target("y"), at.bytes_of("mask")))
    before = at.first * at.kernel.layer.shape.elements
    for part in pieces(y.size, 64):
        mask[part] = keep(at.kernel.key, before + part.start, part.stop - part.start)
        np.multiply(x[part], mask[part], out=y[part])
        y[part] *= 2


def _dropout_backward(at: Operands) -> None:
    dy, mask = at.target("dy").reshape(-1), at.bytes_of("mask").reshape(-1)
    if at.kernel.operands["dx0"] == at.kernel.operands["dy"]:
        np.multiply(dy, mask, out=dy)
        dy *= 2
        return
    dx = at.gradient(0).reshape(-1)
    for part in pieces(dx.size, 4):
        (kept,) = at.scratch.arrays(((part.stop - part.start,), np.float32))
        np.multiply(dy[part], mask[part], out=kept)
        kept *= 2
        dx[part] += kept


def _resample(at: Operands) -> None:
    x, y = at.source("x", 0), at.target("y")
    which, rows, columns = resampling(at.kernel.sources[0], at.kernel.layer.shape)
    channels, height, width = at.kernel.sources[0]
    if which == "subsample":
        y[:, :channels] = x[:, :, ::rows, ::columns]
        y[:, channels:] = 0
    elif which == "crop":
        y[...] = x[:, :, rows : rows + y.shape[2], columns : columns + y.shape[3]]
    else:
        for i in range(rows):
            for j in range(columns):
                y[:, :, i : rows * height : rows, j : columns * width : columns] = x


def _resample_backward(at: Operands) -> None:
    dy, dx = at.target("dy"), at.gradient(0)
    which, rows, columns = resampling(at.kernel.sources[0], at.kernel.layer.shape)
    channels, height, width = at.kernel.sources[0]
    if which == "subsample":
        dx[:, :, ::rows, ::columns] += dy[:, :channels]
    elif which == "crop":
        dx[:, :, rows : rows + dy.shape[2], columns : columns + dy.shape[3]] += dy
    else:
        for i in range(rows):
            for j in range(columns):
                dx += dy[:, :, i : rows * height : rows, j : columns * width : columns]


# --- windows ------------------------------------------------------------------------------------------


def _taps(at: Operands) -> list[tuple[slice, slice, slice, slice]]:
    """Per position in the window, the rows and columns of y for which x has it, and those of x."""
    layer, (_, height, width) = at.kernel.layer, at.kernel.sources[0]

    def along(tap: int, size: int, count: int) -> tuple[slice, slice]:
        begin = tap - layer.pad
        first = max(0, -(begin // layer.stride))
        last = min(count - 1, (size - 1 - begin) // layer.stride)
        if last < first:
            return slice(0, 0), slice(0, 0)
        start = first * layer.stride + begin
        return slice(first, last + 1), slice(start, last * layer.stride + begin + 1, layer.stride)

    down = [along(i, height, layer.shape.height) for i in range(layer.kernel)]
    across = [along(j, width, layer.shape.width) for j in range(layer.kernel)]
    return [(h, v, below, right) for h, below in down for v, right in across]


def _maxpool(at: Operands) -> None:
    x, y = at.source("x", 0), at.target("y")
    y[...] = -np.inf
    for h, v, below, right in _taps(at):
        window = y[:, :, h, v]
        np.maximum(window, x[:, :, below, right], out=window)


def _maxpool_backward(at: Operands) -> None:
    x, y, dy, dx = at.source("x", 0), at.target("y"), at.target("dy"), at.gradient(0)
    taps = _taps(at)
    planes = y.shape[0] * y.shape[1]
    x, y, dy, dx = (values.reshape(planes, *values.shape[2:]) for values in (x, y, dy, dx))
    for part in pieces(planes, 6 * y[0].size + 64):
        shape = (part.stop - part.start, *y.shape[1:])
        left, hit, share = at.scratch.arrays((shape, np.bool_), (shape, np.bool_), (shape, np.float32))
        left[...] = True
        for h, v, below, right in taps:
            here, rest = hit[:, h, v], left[:, h, v]
            np.equal(x[part, below, right], y[part, h, v], out=here)
            np.logical_and(here, rest, out=here)
            np.logical_xor(rest, here, out=rest)
            given = share[:, h, v]
            np.multiply(dy[part, h, v], here, out=given)
            dx[part, below, right] += given


def _counts(at: Operands) -> Array:
    """Per position of y, how many values of x its window has."""
    counts = np.zeros(at.kernel.layer.shape[1:], dtype=np.float32)
    for h, v, _, _ in _taps(at):
        counts[h, v] += 1
    return counts


def _avgpool(at: Operands) -> None:
    x, y = at.source("x", 0), at.target("y")
    y[...] = 0
    for h, v, below, right in _taps(at):
        y[:, :, h, v] += x[:, :, below, right]
    y /= _counts(at)


def _avgpool_backward(at: Operands) -> None:
    dy, dx = at.target("dy"), at.gradient(0)
    counts, taps = _counts(at), _taps(at)
    planes = dy.shape[0] * dy.shape[1]
    dy, dx = (values.reshape(planes, *values.shape[2:]) for values in (dy, dx))
    for part in pieces(planes, 4 * counts.size):
        (share,) = at.scratch.arrays(((part.stop - part.start, *counts.shape), np.float32))
        np.divide(dy[part], counts, out=share)
        for h, v, below, right in taps:
            dx[part, below, right] += share[:, h, v]


# --- normalisation ------------------------------------------------------------------------------------


def _neighbours(values: Array, out: Array) -> Array:
    """Sum over `LRN`'s channels around each, of values as (channels, positions)."""
    half = LRN[0] // 2
    out[...] = values
    for shift in range(1, half + 1):
        out[shift:] += values[:-shift]
        out[:-shift] += values[shift:]
    return out


def _lrn_scale(x: Array, square: Array, scale: Array) -> None:
    count, alpha, _, constant = LRN
    _neighbours(np.multiply(x, x, out=square), scale)
    scale *= alpha / count
    scale += constant


def _lrn(at: Operands) -> None:
    x, y = (values.reshape(*values.shape[:2], -1) for values in (at.source("x", 0), at.target("y")))
    for n in range(len(x)):
        for part in pieces(x.shape[2], 8 * x.shape[1]):
            shape = (x.shape[1], part.stop - part.start)
            square, scale = at.scratch.arrays((shape, np.float32), (shape, np.float32))
            _lrn_scale(x[n, :, part], square, scale)
            np.power(scale, -LRN[2], out=scale)
            np.multiply(x[n, :, part], scale, out=y[n, :, part])


def _lrn_backward(at: Operands) -> None:
    count, alpha, beta, _ = LRN
    found = (at.source("x", 0), at.target("y"), at.target("dy"), at.gradient(0))
    x, y, dy, dx = (values.reshape(*values.shape[:2], -1) for values in found)
    for n in range(len(x)):
        for part in pieces(x.shape[2], 12 * x.shape[1]):
            shape = (x.shape[1], part.stop - part.start)
            share, scale, around = at.scratch.arrays(*[(shape, np.float32)] * 3)
            _lrn_scale(x[n, :, part], share, scale)
            np.multiply(dy[n, :, part], y[n, :, part], out=share)
            share /= scale
            _neighbours(share, around)
            around *= x[n, :, part]
            around *= 2 * alpha * beta / count
            np.power(scale, -beta, out=scale)
            scale *= dy[n, :, part]
            scale -= around
            dx[n, :, part] += scale


def _per_channel(values: Array) -> Array:
    return values[:, None, None]


def _blocks(x: Array) -> list[tuple[slice, list[tuple[slice, slice]]]]:
    """Cut (images, channels, ...) so that a piece fits the scratch buffer: channels, and pieces of those."""
    count, plane = x.size // x.shape[1], x[0, 0].size
    found = []
    for channels in pieces(x.shape[1], 4 * count):
        size = 4 * plane * (channels.stop - channels.start)
        found.append((channels, [(images, channels) for images in pieces(len(x), size)]))
    return found


def _bn(at: Operands) -> None:
    x, y, saved = at.source("x", 0), at.target("y"), at.saved()
    scale, shift = at.weights("w").reshape(2, -1)
    count = x.size // x.shape[1]
    for c, blocks in _blocks(x):
        saved[0, c] = np.sum(x[:, c], axis=(0, 2, 3), dtype=np.float64) / count
        total = np.zeros(c.stop - c.start)
        for block in blocks:
            (centred,) = at.scratch.arrays((x[block].shape, np.float32))
            np.subtract(x[block], _per_channel(saved[0, c]), out=centred)
            total += np.sum(np.square(centred, out=centred), axis=(0, 2, 3), dtype=np.float64)
        saved[1, c] = 1 / np.sqrt(total / count + EPSILON)
        for block in blocks:
            np.subtract(x[block], _per_channel(saved[0, c]), out=y[block])
            y[block] *= _per_channel(saved[1, c] * scale[c])
            y[block] += _per_channel(shift[c])


def _bn_backward(at: Operands) -> None:
    x, dy, (mean, inverse) = at.source("x", 0), at.target("dy"), at.saved()
    dx = at.gradient(0) if "dx0" in at else None
    scale = at.weights("w").reshape(2, -1)[0]
    dw = at.weights("dw").reshape(2, -1)
    count = x.size // x.shape[1]
    for c, blocks in _blocks(x):
        of_shift = np.sum(dy[:, c], axis=(0, 2, 3), dtype=np.float64)
        of_scale = np.zeros(c.stop - c.start)
        for block in blocks:
            (share,) = at.scratch.arrays((x[block].shape, np.float32))
            np.subtract(x[block], _per_channel(mean[c]), out=share)
            share *= _per_channel(inverse[c])
            share *= dy[block]
            of_scale += np.sum(share, axis=(0, 2, 3), dtype=np.float64)
        dw[0, c] += of_scale.astype(np.float32)
        dw[1, c] += of_shift.astype(np.float32)
        for block in blocks if dx is not None else ():
            assert dx is not None
            (share,) = at.scratch.arrays((x[block].shape, np.float32))
            np.subtract(x[block], _per_channel(mean[c]), out=share)
            share *= _per_channel(inverse[c] * (of_scale / count).astype(np.float32))
            np.subtract(dy[block], share, out=share)
            share -= _per_channel((of_shift / count).astype(np.float32))
            share *= _per_channel(scale[c] * inverse[c])
            dx[block] += share


def _norm(at: Operands) -> None:
    x, y = _positions(at.source("x", 0)), _positions(at.target("y"))
    saved = at.saved_of_images()
    scale, shift = at.weights("w").reshape(2, -1, 1)
    for n in range(len(x)):
        for p in pieces(x.shape[2], 8 * x.shape[1]):
            (centred,) = at.scratch.arrays((x[n, :, p].shape, np.float32))
            saved[n, 0, p] = x[n, :, p].mean(axis=0)
            np.subtract(x[n, :, p], saved[n, 0, p], out=centred)
            np.multiply(centred, scale, out=y[n, :, p])
            saved[n, 1, p] = 1 / np.sqrt(np.square(centred, out=centred).mean(axis=0) + EPSILON)
            y[n, :, p] *= saved[n, 1, p]
            y[n, :, p] += shift


def _norm_backward(at: Operands) -> None:
    x, dy = _positions(at.source("x", 0)), _positions(at.target("dy"))
    dx = _positions(at.gradient(0)) if "dx0" in at else None
    saved = at.saved_of_images()
    scale = at.weights("w").reshape(2, -1, 1)[0]
    dw = at.weights("dw").reshape(2, -1)
    for n in range(len(x)):
        for p in pieces(x.shape[2], 12 * x.shape[1]):
            normal, share = at.scratch.arrays(*[(x[n, :, p].shape, np.float32)] * 2)
            mean, inverse = saved[n, 0, p], saved[n, 1, p]
            np.multiply(np.subtract(x[n, :, p], mean, out=normal), inverse, out=normal)
            dw[0] += np.multiply(normal, dy[n, :, p], out=share).sum(axis=1)
            dw[1] += dy[n, :, p].sum(axis=1)
            if dx is not None:
                np.multiply(dy[n, :, p], scale, out=share)
                along = (share * normal).mean(axis=0)
                share -= share.mean(axis=0)
                share -= np.multiply(normal, along, out=normal)
                dx[n, :, p] += np.multiply(share, inverse, out=share)


def _scale(at: Operands) -> None:
    np.multiply(at.source("x", 0), _per_channel(at.weights("w")), out=at.target("y"))


def _scale_backward(at: Operands) -> None:
    x, dy = _positions(at.source("x", 0)), _positions(at.target("dy"))
    dx = _positions(at.gradient(0)) if "dx0" in at else None
    w, dw = at.weights("w")[:, None], at.weights("dw")
    for n in range(len(x)):
        for p in pieces(x.shape[2], 4 * x.shape[1]):
            (share,) = at.scratch.arrays((x[n, :, p].shape, np.float32))
            dw += np.multiply(x[n, :, p], dy[n, :, p], out=share).sum(axis=1)
            if dx is not None:
                dx[n, :, p] += np.multiply(dy[n, :, p], w, out=share)


def _gelu(at: Operands) -> None:
    x, y = at.source("x", 0).reshape(-1), at.target("y").reshape(-1)
    for p in pieces(x.size, 8):
        _bent(x[p], y[p])
        y[p] += 1
        y[p] *= x[p]
        y[p] *= 0.5


def _gelu_backward(at: Operands) -> None:
    x, dy, dx = (values.reshape(-1) for values in (at.source("x", 0), at.target("dy"), at.gradient(0)))
    for p in pieces(x.size, 12):
        bend, slope = at.scratch.arrays(*[(x[p].shape, np.float32)] * 2)
        _bent(x[p], bend)
        np.square(x[p], out=slope)  # d bend / dx = (1 - bend^2) sqrt(2 / pi) (1 + 3 x 0.044715 x^2)
        slope *= 3 * _CUBIC
        slope += 1
        slope *= _SLOPE * x[p]
        slope *= 1 - bend * bend
        slope += bend
        slope += 1
        slope *= 0.5
        dx[p] += np.multiply(slope, dy[p], out=slope)


_CUBIC = np.float32(0.044715)
_SLOPE = np.float32(np.sqrt(2 / np.pi))


def _bent(x: Array, out: Array) -> None:
    """Compute tanh(sqrt(2 / pi) (x + 0.044715 x^3))."""
    np.square(x, out=out)
    out *= _CUBIC
    out += 1
    out *= x
    out *= _SLOPE
    np.tanh(out, out=out)


# --- products and losses ------------------------------------------------------------------------------


def _rows(values: Array) -> Array:
    return values.reshape(len(values), -1)


def _fc(at: Operands) -> None:
    x, y = _rows(at.source("x", 0)), _rows(at.target("y"))
    w, b = _split(at.weights("w"), y.shape[1], x.shape[1])
    np.matmul(x, w.T, out=y)
    y += b


def _fc_data(at: Operands) -> None:
    dy, dx = _rows(at.target("dy")), _rows(at.source("dx", 0))
    w, _ = _split(at.weights("w"), dy.shape[1], dx.shape[1])
    if "dx0" not in at.kernel.adds:
        np.matmul(dy, w, out=dx)
        return
    for part in pieces(dx.shape[1], 4 * len(dx)):
        (share,) = at.scratch.arrays(((len(dx), part.stop - part.start), np.float32))
        dx[:, part] += np.matmul(dy, w[:, part], out=share)


def _fc_filter(at: Operands) -> None:
    x, dy = _rows(at.source("x", 0)), _rows(at.target("dy"))
    dw, db = _split(at.weights("dw"), dy.shape[1], x.shape[1])
    for part in pieces(len(dw), 4 * x.shape[1]):
        (share,) = at.scratch.arrays(((part.stop - part.start, x.shape[1]), np.float32))
        dw[part] += np.matmul(dy[:, part].T, x, out=share)
    db += dy.sum(axis=0)


def _split(values: Array, outputs: int, inputs: int) -> tuple[Array, Array]:
    """Weights and biases of a fully connected layer."""
    return values[: outputs * inputs].reshape(outputs, inputs), values[outputs * inputs :]


def _positions(values: Array) -> Array:
    return values.reshape(*values.shape[:2], -1)


def _linear(at: Operands) -> None:
    y = _positions(at.target("y"))
    sources = [_positions(at.source("x", i)) for i in range(len(at.kernel.sources))]
    w, b = _split(at.weights("w"), y.shape[1], sum(x.shape[1] for x in sources))
    y[...] = b[:, None] if b.size else 0
    begin = 0
    for x in sources:
        part = w[:, begin : begin + x.shape[1]]
        for n in range(len(y)):
            for p in pieces(y.shape[2], 4 * y.shape[1]):
                (share,) = at.scratch.arrays((y[n, :, p].shape, np.float32))
                y[n, :, p] += np.matmul(part, x[n, :, p], out=share)
        begin += x.shape[1]


def _linear_data(at: Operands) -> None:
    dy = _positions(at.target("dy"))
    inputs = sum(shape.channels for shape in at.kernel.sources)
    w, _ = _split(at.weights("w"), dy.shape[1], inputs)
    begin = 0
    for i, shape in enumerate(at.kernel.sources):
        part = w[:, begin : begin + shape.channels].T
        begin += shape.channels
        if f"dx{i}" not in at:
            continue
        dx = _positions(at.gradient(i))
        for n in range(len(dy)):
            for p in pieces(dy.shape[2], 4 * shape.channels):
                (share,) = at.scratch.arrays((dx[n, :, p].shape, np.float32))
                dx[n, :, p] += np.matmul(part, dy[n, :, p], out=share)


def _linear_filter(at: Operands) -> None:
    dy = _positions(at.target("dy"))
    inputs = sum(shape.channels for shape in at.kernel.sources)
    dw, db = _split(at.weights("dw"), dy.shape[1], inputs)
    begin = 0
    for i, shape in enumerate(at.kernel.sources):
        x = _positions(at.source("x", i))
        into = dw[:, begin : begin + shape.channels]
        begin += shape.channels
        for rows in pieces(len(into), 4 * shape.channels):
            (share,) = at.scratch.arrays((into[rows].shape, np.float32))
            for n in range(len(dy)):
                into[rows] += np.matmul(dy[n, rows], x[n].T, out=share)
    if db.size:
        db += dy.sum(axis=(0, 2))


def _apart(at: Operands) -> tuple[Array, Array]:
    """Difference of the two inputs, image by image, and its length."""
    difference = _rows(at.source("x", 0)) - _rows(at.source("x", 1))
    return difference, np.sqrt(np.square(difference).sum(axis=1))


def _contrast(at: Operands) -> None:
    _, distance = _apart(at)
    alike = at.labels()[:, 0] == 1
    at.losses()[:] = np.square(np.where(alike, distance, np.maximum(1 - distance, 0))) / 2
    at.target("y")[:, 0, 0, 0] = at.losses()


def _contrast_backward(at: Operands) -> None:
    difference, distance = _apart(at)
    alike = at.labels()[:, 0] == 1
    far = -np.maximum(1 - distance, 0) / np.maximum(distance, np.finfo(np.float32).tiny)
    difference *= (np.where(alike, 1, far) / at.kernel.batch).astype(np.float32)[:, None]
    for i, sign in enumerate((1, -1)):
        if f"dx{i}" in at:
            _rows(at.gradient(i))[...] += sign * difference


def _softmax(at: Operands) -> None:
    x, y = (values.reshape(*values.shape[:2], -1) for values in (at.source("x", 0), at.target("y")))
    labels, losses = at.labels(), at.losses()
    for n in range(len(x)):
        np.subtract(x[n], x[n].max(axis=0), out=y[n])
        np.exp(y[n], out=y[n])
        y[n] /= y[n].sum(axis=0)
        right = y[n, labels[n], np.arange(y.shape[2])]
        losses[n] = -np.log(np.maximum(right, np.finfo(np.float32).tiny)).mean()


def _softmax_backward(at: Operands) -> None:
    y, dx = (values.reshape(*values.shape[:2], -1) for values in (at.target("y"), at.gradient(0)))
    labels, share = at.labels(), np.float32(1 / (at.kernel.batch * y.shape[2]))
    for n in range(len(y)):
        for part in pieces(y.shape[2], 4 * y.shape[1]):
            (given,) = at.scratch.arrays(((y.shape[1], part.stop - part.start), np.float32))
            np.multiply(y[n, :, part], share, out=given)
            dx[n, :, part] += given
        dx[n, labels[n], np.arange(y.shape[2])] -= share


# --- convolution --------------------------------------------------------------------------------------


def _conv_forward(convolution: Convolution) -> Callable[[Operands], None]:
    def compute(at: Operands) -> None:
        y = at.target("y")
        w, b = convolution.split(at.weights("w"))
        convolution.forward(at.source("x", 0), w, y, at.workspace(), at.scratch)
        if b.size:
            y += _per_channel(b)

    return compute


def _conv_data(convolution: Convolution) -> Callable[[Operands], None]:
    def compute(at: Operands) -> None:
        w, _ = convolution.split(at.weights("w"))
        convolution.data(at.target("dy"), w, at.gradient(0), at.workspace(), at.scratch)

    return compute


def _conv_filter(convolution: Convolution) -> Callable[[Operands], None]:
    def compute(at: Operands) -> None:
        dy = at.target("dy")
        dw, db = convolution.split(at.weights("dw"))
        convolution.filter(at.source("x", 0), dy, dw, at.workspace(), at.scratch)
        if db.size:
            db += dy.sum(axis=(0, 2, 3))

    return compute


def _deconv_forward(convolution: Convolution) -> Callable[[Operands], None]:
    def compute(at: Operands) -> None:
        y = at.target("y")
        y[...] = 0
        w, b = convolution.split(at.weights("w"))
        convolution.data(at.source("x", 0), w, y, at.workspace(), at.scratch)
        if b.size:
            y += _per_channel(b)

    return compute


def _deconv_data(convolution: Convolution) -> Callable[[Operands], None]:
    kernel = convolution.kernel
    if "dx0" in kernel.adds:
        raise PebblerError(f"task '{kernel.task}': the CPU has no kernel that adds to this gradient")

    def compute(at: Operands) -> None:
        w, _ = convolution.split(at.weights("w"))
        convolution.forward(at.target("dy"), w, at.source("dx", 0), at.workspace(), at.scratch)

    return compute


def _deconv_filter(convolution: Convolution) -> Callable[[Operands], None]:
    def compute(at: Operands) -> None:
        dy = at.target("dy")
        dw, db = convolution.split(at.weights("dw"))
        convolution.filter(dy, at.source("x", 0), dw, at.workspace(), at.scratch)
        if db.size:
            db += dy.sum(axis=(0, 2, 3))

    return compute


_CONVOLUTION = {"FP": _conv_forward, "BP1": _conv_data, "BP2": _conv_filter}
_TRANSPOSED = {"FP": _deconv_forward, "BP1": _deconv_data, "BP2": _deconv_filter}

_KERNELS: dict[tuple[str, str], Callable[[Operands], Any]] = {
    ("relu", ""): _relu_backward,
    ("copy", ""): _copy,
    ("FP", "fc"): _fc,
    ("BP1", "fc"): _fc_data,
    ("BP2", "fc"): _fc_filter,
    ("FP", "linear"): _linear,
    ("BP1", "linear"): _linear_data,
    ("BP2", "linear"): _linear_filter,
    ("FP", "norm"): _norm,
    ("BP1", "norm"): _norm_backward,
    ("FP", "scale"): _scale,
    ("BP1", "scale"): _scale_backward,
    ("FP", "gelu"): _gelu,
    ("BP1", "gelu"): _gelu_backward,
    ("FP", "loss"): _contrast,
    ("BP1", "loss"): _contrast_backward,
    ("FP", "maxpool"): _maxpool,
    ("BP1", "maxpool"): _maxpool_backward,
    ("FP", "avgpool"): _avgpool,
    ("BP1", "avgpool"): _avgpool_backward,
    ("FP", "lrn"): _lrn,
    ("BP1", "lrn"): _lrn_backward,
    ("FP", "bn"): _bn,
    ("BP1", "bn"): _bn_backward,
    ("FP", "add"): _add,
    ("BP1", "add"): _add_backward,
    ("FP", "concat"): _concat,
    ("BP1", "concat"): _concat_backward,
    ("FP", "dropout"): _dropout,
    ("BP1", "dropout"): _dropout_backward,
    ("FP", "resample"): _resample,
    ("BP1", "resample"): _resample_backward,
    ("FP", "softmax"): _softmax,
    ("BP1", "softmax"): _softmax_backward,
}
