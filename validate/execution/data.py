"""The data at the start of an execution: weights, images and labels, drawn from a seed.

The data is the same on every backend.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...instances.networks.network import Layer, Network
from ...instances.networks.optimizers import STATES
from ...instances.origin import Optimizer

Data = dict[str, NDArray[Any]]
"""Arrays by name: ``W(l)``, ``m(l)``, ``v(l)``, and of the whole batch ``X(l)`` and ``labels(l)``."""


def initial(network: Network, batch: int, seed: int = 0, optimizer: Optimizer | None = None) -> Data:
    """Draw weights (He et al. 2015), images and labels.

    Biases are 0, and normalisation starts with scales of 1 and shifts of 0. Images are normally distributed,
    labels uniformly. What an optimizer keeps starts at 0. Each layer has a generator of its own.
    """
    data: Data = {}
    for index, layer in enumerate(network.layers):
        rng = np.random.default_rng([seed, index])
        shape = layer.shape
        if layer.kind.is_input:
            data[f"X({layer.name})"] = rng.standard_normal((batch, *shape), dtype=np.float32)
        elif layer.kind.is_loss:
            labels = rng.integers(classes_of(layer), size=(batch, shape.positions), dtype=np.int32)
            data[f"labels({layer.name})"] = labels
        if layer.parameters:
            data[f"W({layer.name})"] = _weights(network, layer, rng)
            for letter in () if optimizer is None else STATES[optimizer]:
                data[f"{letter}({layer.name})"] = np.zeros(layer.parameters, dtype=np.float32)
    return data


def classes_of(layer: Layer) -> int:
    """Return how many labels there are to choose from."""
    return layer.shape.channels if layer.kind.labels == "classes" else 2


def scales_of(layer: Layer) -> int:
    """Return how many of its first parameters start at 1, where their gradient has no task of its own."""
    return layer.shape.channels if layer.kind.scales else 0


def weight_shape(layer: Layer, source_channels: int, source_elements: int) -> tuple[int, ...]:
    """Return the shape of a layer's weights without the biases; channels are those of all its inputs."""
    operation = layer.kind.operation
    if operation == "convolution":
        return layer.shape.channels, source_channels // layer.groups, layer.kernel, layer.kernel
    if operation == "transposed-convolution":
        return source_channels, layer.shape.channels, layer.kernel, layer.kernel
    if operation == "lookup":
        return layer.parameters // layer.shape.channels, layer.shape.channels
    if operation == "grouped":
        return layer.groups * layer.shape.channels, source_channels
    return layer.shape.channels, source_channels if operation == "positionwise" else source_elements


def _weights(network: Network, layer: Layer, rng: np.random.Generator) -> NDArray[np.float32]:
    values = np.zeros(layer.parameters, dtype=np.float32)
    if not layer.kind.has_weight_task:
        values[: scales_of(layer)] = 1
        return values
    sources = [network[name].shape for name in layer.inputs]
    shape = weight_shape(layer, sum(one.channels for one in sources), sources[0].elements)
    count = math.prod(shape)
    drawn = values[:count]
    rng.standard_normal(dtype=np.float32, out=drawn)
    drawn *= np.float32(math.sqrt(2 * shape[0] / count))
    return values
