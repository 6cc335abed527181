"""Kernels of the CPU for matrix products: fully connected and linear layers."""

from __future__ import annotations

import numpy as np

from .operands import Array, Operands, positions, rows
from .scratch import pieces


def fc(at: Operands) -> None:
    """Compute y = w x + b."""
    x, y = rows(at.source("x", 0)), rows(at.target("y"))
    w, b = _split(at.weights("w"), y.shape[1], x.shape[1])
    np.matmul(x, w.T, out=y)
    y += b


def fc_data(at: Operands) -> None:
    """Compute dx, or add to it."""
    dy, dx = rows(at.target("dy")), rows(at.source("dx", 0))
    w, _ = _split(at.weights("w"), dy.shape[1], dx.shape[1])
    if "dx0" not in at.kernel.adds:
        np.matmul(dy, w, out=dx)
        return
    for part in pieces(dx.shape[1], 4 * len(dx)):
        (share,) = at.scratch.arrays(((len(dx), part.stop - part.start), np.float32))
        dx[:, part] += np.matmul(dy, w[:, part], out=share)


def fc_filter(at: Operands) -> None:
    """Add the gradient of the weights to dw."""
    x, dy = rows(at.source("x", 0)), rows(at.target("dy"))
    dw, db = _split(at.weights("dw"), dy.shape[1], x.shape[1])
    for part in pieces(len(dw), 4 * x.shape[1]):
        (share,) = at.scratch.arrays(((part.stop - part.start, x.shape[1]), np.float32))
        dw[part] += np.matmul(dy[:, part].T, x, out=share)
    db += dy.sum(axis=0)


def _split(values: Array, outputs: int, inputs: int) -> tuple[Array, Array]:
    """Return the weights and biases of a fully connected layer."""
    return values[: outputs * inputs].reshape(outputs, inputs), values[outputs * inputs :]


def linear(at: Operands) -> None:
    """Compute y = w x + b at every position."""
    y = positions(at.target("y"))
    sources = [positions(at.source("x", i)) for i in range(len(at.kernel.sources))]
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


def linear_data(at: Operands) -> None:
    """Add the gradient of each input to its dx."""
    dy = positions(at.target("dy"))
    inputs = sum(shape.channels for shape in at.kernel.sources)
    w, _ = _split(at.weights("w"), dy.shape[1], inputs)
    begin = 0
    for i, shape in enumerate(at.kernel.sources):
        part = w[:, begin : begin + shape.channels].T
        begin += shape.channels
        if f"dx{i}" not in at:
            continue
        dx = positions(at.gradient(i))
        for n in range(len(dy)):
            for p in pieces(dy.shape[2], 4 * shape.channels):
                (share,) = at.scratch.arrays((dx[n, :, p].shape, np.float32))
                dx[n, :, p] += np.matmul(part, dy[n, :, p], out=share)


def linear_filter(at: Operands) -> None:
    """Add the gradient of the weights to dw."""
    dy = positions(at.target("dy"))
    inputs = sum(shape.channels for shape in at.kernel.sources)
    dw, db = _split(at.weights("dw"), dy.shape[1], inputs)
    begin = 0
    for i, shape in enumerate(at.kernel.sources):
        x = positions(at.source("x", i))
        into = dw[:, begin : begin + shape.channels]
        begin += shape.channels
        for outputs in pieces(len(into), 4 * shape.channels):
            (share,) = at.scratch.arrays((into[outputs].shape, np.float32))
            for n in range(len(dy)):
                into[outputs] += np.matmul(dy[n, outputs], x[n].T, out=share)
    if db.size:
        db += dy.sum(axis=(0, 2))
