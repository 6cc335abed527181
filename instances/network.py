"""Networks: layers on a directed acyclic graph, with output shapes and parameter counts.

A `NetworkBuilder` adds layers one by one and infers their shapes; `finish` gives the immutable `Network`.
A ReLU is no layer of its own but an attribute of the layer on whose output it acts in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import networkx as nx

from .errors import PebblerError

Kind = Literal[
    "input",
    "conv",
    "deconv",
    "fc",
    "maxpool",
    "avgpool",
    "lrn",
    "bn",
    "add",
    "concat",
    "dropout",
    "softmax",
]
"""``softmax`` is softmax and loss in one; ``deconv`` is a transposed convolution."""


class Shape(NamedTuple):
    """Output of a layer for one image: channels, height, width."""

    channels: int
    height: int
    width: int

    @property
    def elements(self) -> int:
        """Number of values."""
        return self.channels * self.height * self.width


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer.

    Attributes
    ----------
    name
        Unique within the network.
    kind
        What it computes.
    inputs
        Names of the layers whose outputs it reads, in order.
    shape
        Its output for one image.
    parameters
        Number of trained values: weights and biases; two a channel for batch norm.
    kernel, stride, pad
        Of convolutions and pooling: square windows, equal padding on every side.
    groups
        Of convolutions.
    relu
        Whether a ReLU acts in place on the output.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    shape: Shape
    parameters: int = 0
    kernel: int = 1
    stride: int = 1
    pad: int = 0
    groups: int = 1
    relu: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A network.

    Attributes
    ----------
    name
        What `find_network` finds it by.
    batch
        Default batch size: the one that the papers train it with.
    source
        Where the definition comes from.
    layers
        All layers in forward order, the input included.
    graph
        The same layers: a node per name with the `Layer` under ``layer``, edges along the data. Frozen.
    """

    name: str
    batch: int
    source: str
    layers: tuple[Layer, ...]
    graph: nx.DiGraph[str]

    def __getitem__(self, name: str) -> Layer:
        """Return the layer of that name."""
        layer: Layer = self.graph.nodes[name]["layer"]
        return layer

    def consumers(self, name: str) -> tuple[Layer, ...]:
        """Layers that read the output of a layer."""
        return tuple(self[other] for other in self.graph.successors(name))

    @property
    def parameters(self) -> int:
        """Number of trained values."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def has_batch_norm(self) -> bool:
        """Whether cutting the batch into sub-batches changes what the network computes."""
        return any(layer.kind == "bn" for layer in self.layers)


class NetworkBuilder:
    """Defines a network layer by layer; every method returns the name of the layer that it adds.

    The methods raise PebblerError when a name is used twice, an input does not exist, or shapes do not fit.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._layers: dict[str, Layer] = {}

    def input(self, channels: int, height: int, width: int) -> str:
        """Add the input, named ``input``."""
        return self._add(Layer("input", "input", (), Shape(channels, height, width)))

    def conv(
        self,
        name: str,
        source: str,
        channels: int,
        kernel: int,
        *,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        bias: bool = True,
        relu: bool = False,
    ) -> str:
        """Add a convolution with `channels` outputs."""
        shape = self._shape(source)
        if shape.channels % groups or channels % groups:
            raise self._error(name, f"{groups} groups do not divide {shape.channels} and {channels} channels")
        weights = shape.channels // groups * channels * kernel * kernel
        height, width = (self._windows(name, size, kernel, stride, pad, False) for size in shape[1:])
        return self._add(
            Layer(
                name,
                "conv",
                (source,),
                Shape(channels, height, width),
                parameters=weights + channels * bias,
                kernel=kernel,
                stride=stride,
                pad=pad,
                groups=groups,
                relu=relu,
            )
        )

    def deconv(
        self, name: str, source: str, channels: int, kernel: int, *, stride: int, pad: int, bias: bool = True
    ) -> str:
        """Add a transposed convolution: ``stride * (size - 1) + kernel - 2 * pad`` values a side."""
        shape = self._shape(source)
        height, width = (stride * (size - 1) + kernel - 2 * pad for size in shape[1:])
        if min(height, width) < 1:
            raise self._error(name, f"a padding of {pad} leaves no output")
        return self._add(
            Layer(
                name,
                "deconv",
                (source,),
                Shape(channels, height, width),
                parameters=shape.channels * channels * kernel * kernel + channels * bias,
                kernel=kernel,
                stride=stride,
                pad=pad,
            )
        )

    def fc(self, name: str, source: str, outputs: int, *, relu: bool = False) -> str:
        """Add a fully connected layer, with biases."""
        inputs = self._shape(source).elements
        return self._add(
            Layer(
                name,
                "fc",
                (source,),
                Shape(outputs, 1, 1),
                parameters=(inputs + 1) * outputs,
                relu=relu,
            )
        )

    def maxpool(
        self,
        name: str,
        source: str,
        kernel: int,
        *,
        stride: int,
        pad: int = 0,
        ceil: bool = False,
        relu: bool = False,
    ) -> str:
        """Add max pooling; with `ceil` the last window may reach over the border, as in Caffe."""
        return self._pool("maxpool", name, source, kernel, stride, pad, ceil, relu)

    def avgpool(
        self,
        name: str,
        source: str,
        kernel: int,
        *,
        stride: int,
        pad: int = 0,
        ceil: bool = False,
    ) -> str:
        """Add average pooling; `ceil` as for max pooling."""
        return self._pool("avgpool", name, source, kernel, stride, pad, ceil, False)

    def lrn(self, name: str, source: str) -> str:
        """Add local response normalisation."""
        return self._add(Layer(name, "lrn", (source,), self._shape(source)))

    def bn(self, name: str, source: str, *, relu: bool = False) -> str:
        """Add batch norm with a scale and a shift a channel."""
        shape = self._shape(source)
        return self._add(Layer(name, "bn", (source,), shape, parameters=2 * shape.channels, relu=relu))

    def add(self, name: str, *sources: str, relu: bool = False) -> str:
        """Add the sum of layers of one shape."""
        shapes = {self._shape(source) for source in sources}
        if len(shapes) != 1:
            raise self._error(name, "its inputs differ in shape; give it inputs of one shape")
        return self._add(Layer(name, "add", sources, shapes.pop(), relu=relu))

    def concat(self, name: str, *sources: str) -> str:
        """Add the concatenation of layers along the channels."""
        shapes = [self._shape(source) for source in sources]
        if len({shape[1:] for shape in shapes}) != 1:
            raise self._error(name, "its inputs differ in height or width; give it inputs of one size")
        shape = Shape(sum(shape.channels for shape in shapes), *shapes[0][1:])
        return self._add(Layer(name, "concat", sources, shape))

    def dropout(self, name: str, source: str) -> str:
        """Add dropout."""
        return self._add(Layer(name, "dropout", (source,), self._shape(source)))

    def softmax(self, name: str, source: str) -> str:
        """Add softmax and loss: the end of the network."""
        return self._add(Layer(name, "softmax", (source,), self._shape(source)))

    def finish(self, *, batch: int, source: str) -> Network:
        """Return the network; every path must end in a softmax.

        Raises
        ------
        PebblerError
            When a layer's output is read by nobody and is no loss, or when a loss is read.
        """
        graph: nx.DiGraph[str] = nx.DiGraph()
        for layer in self._layers.values():
            graph.add_node(layer.name, layer=layer)
            graph.add_edges_from((source, layer.name) for source in layer.inputs)
        for name, layer in self._layers.items():
            if (layer.kind == "softmax") != (graph.out_degree(name) == 0):
                raise self._error(name, "every path ends in exactly one softmax; add one where it ends")
        place = {name: index for index, name in enumerate(self._layers)}
        order = nx.lexicographical_topological_sort(graph, key=place.__getitem__)
        layers = tuple(self._layers[name] for name in order)
        return Network(self._name, batch, source, layers, nx.freeze(graph))

    def _pool(
        self,
        kind: Literal["maxpool", "avgpool"],
        name: str,
        source: str,
        kernel: int,
        stride: int,
        pad: int,
        ceil: bool,
        relu: bool,
    ) -> str:
        shape = self._shape(source)
        height, width = (self._windows(name, size, kernel, stride, pad, ceil) for size in shape[1:])
        return self._add(
            Layer(
                name,
                kind,
                (source,),
                Shape(shape.channels, height, width),
                kernel=kernel,
                stride=stride,
                pad=pad,
                relu=relu,
            )
        )

    def _windows(self, name: str, size: int, kernel: int, stride: int, pad: int, ceil: bool) -> int:
        """Count the windows along one side; with `ceil` the last one starts inside the image (Caffe)."""
        span = size + 2 * pad - kernel
        if span < 0:
            raise self._error(name, f"a window of {kernel} does not fit into {size} with a padding of {pad}")
        count = (-(-span // stride) if ceil else span // stride) + 1
        return count - 1 if ceil and (count - 1) * stride >= size + pad else count

    def _shape(self, source: str) -> Shape:
        if source not in self._layers:
            raise PebblerError(
                f"network '{self._name}': there is no layer '{source}' to read; define it first"
            )
        return self._layers[source].shape

    def _add(self, layer: Layer) -> str:
        if layer.name in self._layers:
            raise self._error(layer.name, "the name is used twice; give every layer its own")
        if len(set(layer.inputs)) != len(layer.inputs):
            raise self._error(layer.name, "it reads a layer twice; list every input once")
        self._layers[layer.name] = layer
        return layer.name

    def _error(self, name: str, what: str) -> PebblerError:
        return PebblerError(f"network '{self._name}', layer '{name}': {what}")
