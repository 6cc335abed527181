"""Kernels of the CPU that compute value by value, and those that only move values."""

from __future__ import annotations

import numpy as np

from ..kernel import ADAM, MOMENTUM, RATE, keep, resampling
from .operands import Array, Operands, per_channel, positions
from .scratch import pieces


def relu(at: Operands) -> None:
    """Set y to 0 where it is negative; store its signs if they are used."""
    y = at.target("y")
    np.maximum(y, 0, out=y)
    if "signs" in at:
        np.greater(y, 0, out=at.bytes_of("signs").view(np.bool_))


def relu_backward(at: Operands) -> None:
    """Set dy to 0 where y is not above 0."""
    dy = at.target("dy").reshape(-1)
    if "signs" in at:
        np.multiply(dy, at.bytes_of("signs").reshape(-1), out=dy)
        return
    y = at.target("y").reshape(-1)
    for part in pieces(dy.size, 1):
        (sign,) = at.scratch.arrays(((part.stop - part.start,), np.bool_))
        np.multiply(dy[part], np.greater(y[part], 0, out=sign), out=dy[part])


def copy(at: Operands) -> None:
    """Copy x to y."""
    at.flat("y")[...] = at.flat("x0")


def update(at: Operands) -> None:
    """Update w, and what the optimizer keeps; that tells which optimizer it is."""
    w, dw = at.weights("w"), at.weights("dw")
    if "v" in at:
        _adam(at, w, dw)
        return
    step = dw
    if "m" in at:
        step = at.weights("m")
        step *= np.float32(MOMENTUM)
        step += dw
    for p in pieces(w.size, 4):
        (change,) = at.scratch.arrays((w[p].shape, np.float32))
        w[p] -= np.multiply(step[p], np.float32(RATE), out=change)


def _adam(at: Operands, w: Array, dw: Array) -> None:
    m, v = at.weights("m"), at.weights("v")
    rate, first, second, epsilon = map(np.float32, ADAM)
    kept = np.float32(1 - ADAM[0] * at.kernel.decay)
    for p in pieces(w.size, 8):
        if at.kernel.decay:
            w[p] *= kept
        change, root = at.scratch.arrays(*[(w[p].shape, np.float32)] * 2)
        m[p] *= first
        m[p] += np.multiply(dw[p], 1 - first, out=change)
        v[p] *= second
        np.square(dw[p], out=change)
        v[p] += np.multiply(change, 1 - second, out=change)
        np.sqrt(v[p], out=root)
        root += epsilon
        np.multiply(m[p], rate, out=change)
        w[p] -= np.divide(change, root, out=change)


def add(at: Operands) -> None:
    """Sum the inputs."""
    y = at.target("y")
    y[...] = at.source("x", 0)
    for i in range(1, len(at.kernel.sources)):
        y += at.source("x", i)


def add_backward(at: Operands) -> None:
    """Add dy to every dx."""
    dy = at.target("dy")
    for i, shape in enumerate(at.kernel.sources):
        if f"dx{i}" in at:
            whole = shape == at.kernel.layer.shape
            at.gradient(i)[...] += dy if whole else dy.sum(axis=(2, 3), keepdims=True)


def concat(at: Operands) -> None:
    """Join the inputs along the channels."""
    y = at.target("y")
    begin = 0
    for i, shape in enumerate(at.kernel.sources):
        y[:, begin : begin + shape.channels] = at.source("x", i)
        begin += shape.channels


def concat_backward(at: Operands) -> None:
    """Add the channels of dy to the dx that they belong to."""
    dy = at.target("dy")
    begin = 0
    for i, shape in enumerate(at.kernel.sources):
        if f"dx{i}" in at:
            at.gradient(i)[...] += dy[:, begin : begin + shape.channels]
        begin += shape.channels


def dropout(at: Operands) -> None:
    """Draw the mask, and double the values that it keeps."""
    x, y, mask = (values.reshape(-1) for values in (at.source("x", 0), at.target("y"), at.bytes_of("mask")))
    before = at.first * at.kernel.layer.shape.elements
    for part in pieces(y.size, 64):
        mask[part] = keep(at.kernel.key, before + part.start, part.stop - part.start)
        np.multiply(x[part], mask[part], out=y[part])
        y[part] *= 2


def dropout_backward(at: Operands) -> None:
    """Apply the mask to dy."""
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


def resample(at: Operands) -> None:
    """Crop, repeat or subsample x."""
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


def resample_backward(at: Operands) -> None:
    """Apply the transpose of `resample`."""
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


def scale(at: Operands) -> None:
    """Multiply each channel by its factor."""
    np.multiply(at.source("x", 0), per_channel(at.weights("w")), out=at.target("y"))


def scale_backward(at: Operands) -> None:
    """Add to dw and dx."""
    x, dy = positions(at.source("x", 0)), positions(at.target("dy"))
    dx = positions(at.gradient(0)) if "dx0" in at else None
    w, dw = at.weights("w")[:, None], at.weights("dw")
    for n in range(len(x)):
        for p in pieces(x.shape[2], 4 * x.shape[1]):
            (share,) = at.scratch.arrays((x[n, :, p].shape, np.float32))
            dw += np.multiply(x[n, :, p], dy[n, :, p], out=share).sum(axis=1)
            if dx is not None:
                dx[n, :, p] += np.multiply(dy[n, :, p], w, out=share)


def sigmoid(at: Operands) -> None:
    """Compute 1 / (1 + exp(-x)) as (1 + tanh(x / 2)) / 2, which does not overflow."""
    y = at.target("y")
    np.multiply(at.source("x", 0), np.float32(0.5), out=y)
    np.tanh(y, out=y)
    y += 1
    y *= 0.5


def sigmoid_backward(at: Operands) -> None:
    """Add y (1 - y) dy to dx."""
    y, dy, dx = (values.reshape(-1) for values in (at.target("y"), at.target("dy"), at.gradient(0)))
    for p in pieces(y.size, 4):
        (slope,) = at.scratch.arrays((y[p].shape, np.float32))
        np.subtract(1, y[p], out=slope)
        slope *= y[p]
        dx[p] += np.multiply(slope, dy[p], out=slope)


def gelu(at: Operands) -> None:
    """Compute the Gaussian error linear unit."""
    x, y = at.source("x", 0).reshape(-1), at.target("y").reshape(-1)
    for p in pieces(x.size, 8):
        _bent(x[p], y[p])
        y[p] += 1
        y[p] *= x[p]
        y[p] *= 0.5


def gelu_backward(at: Operands) -> None:
    """Add the slope times dy to dx."""
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
"""Coefficient of the cubic term of GELU's approximation."""

_SLOPE = np.float32(np.sqrt(2 / np.pi))
"""Factor of the argument of GELU's tanh."""


def _bent(x: Array, out: Array) -> None:
    """Compute tanh(sqrt(2 / pi) (x + 0.044715 x^3))."""
    np.square(x, out=out)
    out *= _CUBIC
    out += 1
    out *= x
    out *= _SLOPE
    np.tanh(out, out=out)
