"""The arrays of a launch on the CPU, by the words of `kernel`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ....instances.networks.network import Shape
from ..kernel import Kernel
from .memory import array_at
from .scratch import Scratch

Array = NDArray[np.float32]
"""Array of single-precision numbers."""


class Operands:
    """The arrays of a launch.

    Attributes
    ----------
    kernel
        The computation.
    first
        Index of the first image.
    scratch
        Buffer for intermediate results.
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
        """Return dx of an input, to which the gradient is added."""
        dx = self.source("dx", i)
        if f"dx{i}" not in self.kernel.adds:
            dx[...] = 0
        return dx

    def weights(self, word: str) -> Array:
        """Return w, or dw to which the gradient is added, as a flat array."""
        found = array_at(self._addresses[word], (self.kernel.parameters,))
        if word == "dw" and word not in self.kernel.adds:
            found[...] = 0
        return found

    def bytes_of(self, word: str) -> NDArray[np.uint8]:
        """Return a mask or signs: one byte for each value of y."""
        return array_at(self._addresses[word], (self.kernel.images, *self.kernel.layer.shape), np.uint8)

    def saved(self) -> Array:
        """Return batch norm's statistics: means, then inverse deviations."""
        return array_at(self._addresses["saved"], (2, self.kernel.layer.shape.channels))

    def saved_of_images(self) -> Array:
        """Return layer norm's statistics of each image: means, then inverse deviations."""
        return array_at(self._addresses["saved"], (self.kernel.images, 2, self.kernel.layer.shape.positions))

    def labels(self) -> NDArray[np.int32]:
        """Return the labels of the images, one for each position."""
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


Compute = Callable[[Operands], None]
"""A function that computes a kernel on its operands."""


def per_channel(values: Array) -> Array:
    """Shape one value for each channel to fit (images, channels, rows, columns)."""
    return values[:, None, None]


def rows(values: Array) -> Array:
    """Return a view as (images, values)."""
    return values.reshape(len(values), -1)


def positions(values: Array) -> Array:
    """Return a view as (images, channels, positions)."""
    return values.reshape(*values.shape[:2], -1)
