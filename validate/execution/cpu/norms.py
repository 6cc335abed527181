"""Kernels of the CPU for normalisation: local response, batch, layer."""

from __future__ import annotations

import numpy as np

from ..kernel import EPSILON, LRN
from .operands import Array, Operands, per_channel, positions
from .scratch import pieces


def _neighbours(values: Array, out: Array) -> Array:
    """Return each channel's sum over its neighbours (`LRN`), for values as (channels, positions)."""
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


def lrn(at: Operands) -> None:
    """Divide by a power of the sum of squares of neighbouring channels."""
    x, y = positions(at.source("x", 0)), positions(at.target("y"))
    for n in range(len(x)):
        for part in pieces(x.shape[2], 8 * x.shape[1]):
            shape = (x.shape[1], part.stop - part.start)
            square, scale = at.scratch.arrays((shape, np.float32), (shape, np.float32))
            _lrn_scale(x[n, :, part], square, scale)
            np.power(scale, -LRN[2], out=scale)
            np.multiply(x[n, :, part], scale, out=y[n, :, part])


def lrn_backward(at: Operands) -> None:
    """Add the derivative to dx."""
    count, alpha, beta, _ = LRN
    found = (at.source("x", 0), at.target("y"), at.target("dy"), at.gradient(0))
    x, y, dy, dx = map(positions, found)
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


def _blocks(x: Array) -> list[tuple[slice, list[tuple[slice, slice]]]]:
    """Cut (images, channels, ...) into channels, and pieces of these, that fit the scratch buffer."""
    count, plane = x.size // x.shape[1], x[0, 0].size
    found = []
    for channels in pieces(x.shape[1], 4 * count):
        size = 4 * plane * (channels.stop - channels.start)
        found.append((channels, [(images, channels) for images in pieces(len(x), size)]))
    return found


def bn(at: Operands) -> None:
    """Normalise every channel over images and positions, and store the statistics."""
    x, y, saved = at.source("x", 0), at.target("y"), at.saved()
    scale, shift = at.weights("w").reshape(2, -1)
    count = x.size // x.shape[1]
    for c, blocks in _blocks(x):
        saved[0, c] = np.sum(x[:, c], axis=(0, 2, 3), dtype=np.float64) / count
        total = np.zeros(c.stop - c.start)
        for block in blocks:
            (centred,) = at.scratch.arrays((x[block].shape, np.float32))
            np.subtract(x[block], per_channel(saved[0, c]), out=centred)
            total += np.sum(np.square(centred, out=centred), axis=(0, 2, 3), dtype=np.float64)
        saved[1, c] = 1 / np.sqrt(total / count + EPSILON)
        for block in blocks:
            np.subtract(x[block], per_channel(saved[0, c]), out=y[block])
            y[block] *= per_channel(saved[1, c] * scale[c])
            y[block] += per_channel(shift[c])


def bn_backward(at: Operands) -> None:
    """Add the derivatives to dw and dx."""
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
            np.subtract(x[block], per_channel(mean[c]), out=share)
            share *= per_channel(inverse[c])
            share *= dy[block]
            of_scale += np.sum(share, axis=(0, 2, 3), dtype=np.float64)
        dw[0, c] += of_scale.astype(np.float32)
        dw[1, c] += of_shift.astype(np.float32)
        for block in blocks if dx is not None else ():
            assert dx is not None
            (share,) = at.scratch.arrays((x[block].shape, np.float32))
            np.subtract(x[block], per_channel(mean[c]), out=share)
            share *= per_channel(inverse[c] * (of_scale / count).astype(np.float32))
            np.subtract(dy[block], share, out=share)
            share -= per_channel((of_shift / count).astype(np.float32))
            share *= per_channel(scale[c] * inverse[c])
            dx[block] += share


def norm(at: Operands) -> None:
    """Normalise every position over the channels, and store the statistics."""
    x, y = positions(at.source("x", 0)), positions(at.target("y"))
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


def norm_backward(at: Operands) -> None:
    """Add the derivatives to dw and dx."""
    x, dy = positions(at.source("x", 0)), positions(at.target("dy"))
    dx = positions(at.gradient(0)) if "dx0" in at else None
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
