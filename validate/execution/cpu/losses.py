"""Kernels of the CPU for losses."""

from __future__ import annotations

import numpy as np

from .operands import Operands, positions, rows
from .scratch import pieces


def contrast(at: Operands) -> None:
    """Compute the contrastive loss of each image."""
    one, other, losses = rows(at.source("x", 0)), rows(at.source("x", 1)), at.losses()
    for n, label in enumerate(at.labels()[:, 0]):
        distance = np.sqrt(np.square(one[n] - other[n]).sum())
        losses[n] = np.square(distance if label else max(1 - distance, 0)) / 2
    at.target("y")[:, 0, 0, 0] = losses


def contrast_backward(at: Operands) -> None:
    """Add the loss's derivative to both inputs' gradients."""
    one, other = rows(at.source("x", 0)), rows(at.source("x", 1))
    into = [rows(at.gradient(i)) if f"dx{i}" in at else None for i in range(2)]
    for n, label in enumerate(at.labels()[:, 0]):
        slope = one[n] - other[n]
        if not label:
            distance = max(np.sqrt(np.square(slope).sum()), np.finfo(np.float32).tiny)
            slope *= -max(1 - distance, 0) / distance
        slope /= at.kernel.batch
        for dx, sign in zip(into, (1, -1), strict=True):
            if dx is not None:
                dx[n] += sign * slope


def softmax(at: Operands) -> None:
    """Compute probabilities and the loss of each image."""
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
