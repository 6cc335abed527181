"""Training by schedules: gradient descent by executed iterations, and images of digits to train on."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .data import Data
from .executor import Executor

_SIDE = 28
"""Rows and columns of an image."""

_SCALE = 3
"""Pixels of an image for each point of a digit's grid, in each direction."""

_NOISE = 0.3
"""Standard deviation of the noise."""

_GLYPHS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111",
    "01110 10001 00001 00110 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "01110 10000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00001 01110",
)
"""The digits on a grid of 5 x 7."""


def digits(count: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Draw images of digits, of shape (count, 1, 28, 28), and the digits that they show.

    Digits of 15 x 21 pixels lie anywhere, in normally distributed noise.
    """
    labels = rng.integers(10, size=count, dtype=np.int32)
    images = _NOISE * rng.standard_normal((count, 1, _SIDE, _SIDE), dtype=np.float32)
    for image, label in zip(images, labels, strict=True):
        rows = _GLYPHS[label].split()
        glyph = np.kron([[int(dot) for dot in row] for row in rows], np.ones((_SCALE, _SCALE)))
        top, left = (int(rng.integers(_SIDE - size + 1)) for size in glyph.shape)
        image[0, top : top + glyph.shape[0], left : left + glyph.shape[1]] += glyph
    return images, labels


def descend(executor: Executor, data: Data, batches: Iterable[Data], rate: float) -> tuple[list[float], Data]:
    """Train by stochastic gradient descent; return the loss of every batch and the weights at the end.

    Parameters
    ----------
    executor
        The executor of an iteration.
    data
        The weights at the start.
    batches
        Images and labels by name, with the names of `initial`.
    rate
        Learning rate.
    """
    weights = {name: values.copy() for name, values in data.items() if name.startswith("W(")}
    losses = []
    for batch in batches:
        executor.load(weights | batch)
        execution = executor.run()
        losses.append(execution.loss)
        for name, gradient in execution.gradients.items():
            weights[f"W({name})"] -= np.float32(rate) * gradient
    return losses, weights
