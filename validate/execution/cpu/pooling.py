"""Kernels of the CPU for pooling."""

from __future__ import annotations

import numpy as np

from .operands import Array, Operands
from .scratch import pieces


def _taps(at: Operands) -> list[tuple[slice, slice, slice, slice]]:
    """Return, per position in the window, the rows and columns of y for which x has it, and those of x."""
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


def maxpool(at: Operands) -> None:
    """Store the greatest value of every window."""
    x, y = at.source("x", 0), at.target("y")
    y[...] = -np.inf
    for h, v, below, right in _taps(at):
        window = y[:, :, h, v]
        np.maximum(window, x[:, :, below, right], out=window)


def maxpool_backward(at: Operands) -> None:
    """Add dy to the first value of the window that equals y."""
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
    """Return, per position of y, how many values of x its window has."""
    counts = np.zeros(at.kernel.layer.shape[1:], dtype=np.float32)
    for h, v, _, _ in _taps(at):
        counts[h, v] += 1
    return counts


def avgpool(at: Operands) -> None:
    """Store the mean of the values that every window has."""
    x, y = at.source("x", 0), at.target("y")
    y[...] = 0
    for h, v, below, right in _taps(at):
        y[:, :, h, v] += x[:, :, below, right]
    y /= _counts(at)


def avgpool_backward(at: Operands) -> None:
    """Add equal parts of dy to the values of the window."""
    dy, dx = at.target("dy"), at.gradient(0)
    counts, taps = _counts(at), _taps(at)
    planes = dy.shape[0] * dy.shape[1]
    dy, dx = (values.reshape(planes, *values.shape[2:]) for values in (dy, dx))
    for part in pieces(planes, 4 * counts.size):
        (share,) = at.scratch.arrays(((part.stop - part.start, *counts.shape), np.float32))
        np.divide(dy[part], counts, out=share)
        for h, v, below, right in taps:
            dx[part, below, right] += share[:, h, v]
