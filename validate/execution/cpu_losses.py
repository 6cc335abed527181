"""Kernels of the CPU for losses."""

from __future__ import annotations

import numpy as np

from .cpu_operands import Array, Operands, positions, rows
from .cpu_scratch import pieces


def _apart(at: Operands) -> tuple[Array, Array]:
    """Difference of the two inputs, image by image, and its length."""
    difference = rows(at.source("x", 0)) - rows(at.source("x", 1))
    return difference, np.sqrt(np.square(difference).sum(axis=1))


def contrast(at: Operands) -> None:
    """Compute the contrastive loss of each image."""
    _, distance = _apart(at)
    alike = at.labels()[:, 0] == 1
    at.losses()[:] = np.square(np.where(alike, distance, np.maximum(1 - distance, 0))) / 2
    at.target("y")[:, 0, 0, 0] = at.losses()


def contrast_backward(at: Operands) -> None:
    """Add its derivative for both inputs."""
    difference, distance = _apart(at)
    alike = at.labels()[:, 0] == 1
    far = -np.maximum(1 - distance, 0) / np.maximum(distance, np.finfo(np.float32).tiny)
    difference *= (np.where(alike, 1, far) / at.kernel.batch).astype(np.float32)[:, None]
    for i, sign in enumerate((1, -1)):
        if f"dx{i}" in at:
            rows(at.gradient(i))[...] += sign * difference


def softmax(at: Operands) -> None:
    """Compute probabilities, and the loss of each image."""
    x, y = positions(at.source("x", 0)), positions(at.target("y"))
    labels, losses = at.labels(), at.losses()
    for n in range(len(x)):
        np.subtract(x[n], x[n].max(axis=0), out=y[n])
        np.exp(y[n], out=y[n])
        y[n] /= y[n].sum(axis=0)
        right = y[n, labels[n], np.arange(y.shape[2])]
        losses[n] = -np.log(np.maximum(right, np.finfo(np.float32).tiny)).mean()


def softmax_backward(at: Operands) -> None:
    """Add the derivative of the mean loss to dx."""
    y, dx = positions(at.target("y")), positions(at.gradient(0))
    labels, share = at.labels(), np.float32(1 / (at.kernel.batch * y.shape[2]))
    for n in range(len(y)):
        for part in pieces(y.shape[2], 4 * y.shape[1]):
            (given,) = at.scratch.arrays(((y.shape[1], part.stop - part.start), np.float32))
            np.multiply(y[n, :, part], share, out=given)
            dx[n, :, part] += given
        dx[n, labels[n], np.arange(y.shape[2])] -= share
