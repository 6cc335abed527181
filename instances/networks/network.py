"""Networks: layers on a directed acyclic graph, with output shapes and parameter counts.

A ReLU is no layer of its own but an attribute of the layer on whose output it acts in place.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ..units import as_html, as_lines
from .kinds import LayerKind

if TYPE_CHECKING:
    import networkx as nx


class Shape(NamedTuple):
    """Output of a layer for one image: channels, height, width; of a sequence: features, tokens, 1."""

    channels: int
    height: int
    width: int

    @property
    def elements(self) -> int:
        """Number of values."""
        return self.channels * self.positions

    @property
    def positions(self) -> int:
        """Number of pixels or tokens."""
        return self.height * self.width


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a network: what it computes, from which layers, and the shape of what comes out.

    Attributes
    ----------
    name
        Unique within the network.
    kind
        What it computes, and what follows from that.
    inputs
        Names of the layers whose outputs it reads, in order.
    shape
        Its output for one image.
    parameters
        Number of trained values of its own: weights and biases; two a channel for batch norm.
    kernel, stride, pad
        Of convolutions and pooling: square windows, equal padding on every side.
    groups
        Of convolutions; of products by experts, how many experts there are.
    relu
        Whether a ReLU acts in place on the output.
    tied
        The earlier layer whose weights it uses, in place of weights of its own.
    saved
        Values that its forward pass keeps for its backward pass, for one image, beside the output.
    products
        Multiply-adds of one image, forward, in products of two layers' outputs.
    """

    name: str
    kind: LayerKind
    inputs: tuple[str, ...]
    shape: Shape
    parameters: int = 0
    kernel: int = 1
    stride: int = 1
    pad: int = 0
    groups: int = 1
    relu: bool = False
    tied: str | None = None
    saved: int = 0
    products: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """A network: its layers in forward order, which read each other's outputs.

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
    """

    name: str
    batch: int
    source: str
    layers: tuple[Layer, ...]

    def __repr__(self) -> str:
        return f"<Network {self.name!r} of {len(self.layers)} layers>"

    def __str__(self) -> str:
        return as_lines(self._facts())

    def _repr_html_(self) -> str:
        return as_html(self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        kinds = Counter(layer.kind for layer in self.layers)
        return [
            ("network", self.name),
            ("source", self.source),
            ("layers", ", ".join(f"{count} {kind}" for kind, count in kinds.items())),
            ("parameters", f"{self.parameters:,}"),
            ("usual batch", str(self.batch)),
        ]

    def __getitem__(self, name: str) -> Layer:
        """Return the layer of that name."""
        return self._named[name]

    @cached_property
    def _named(self) -> dict[str, Layer]:
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def _readers(self) -> dict[str, list[Layer]]:
        readers: dict[str, list[Layer]] = {layer.name: [] for layer in self.layers}
        for layer in self.layers:
            for source in layer.inputs:
                readers[source].append(layer)
        return readers

    def consumers(self, name: str) -> tuple[Layer, ...]:
        """Layers that read the output of a layer."""
        return tuple(self._readers[name])

    @cached_property
    def graph(self) -> nx.DiGraph[str]:
        """The same layers: a node per name with the `Layer` under ``layer``, edges along the data. Frozen."""
        import networkx as nx  # here, for its import takes a quarter of a short command

        graph: nx.DiGraph[str] = nx.DiGraph()
        for layer in self.layers:
            graph.add_node(layer.name, layer=layer)
            graph.add_edges_from((source, layer.name) for source in layer.inputs)
        nx.freeze(graph)
        return graph

    @property
    def parameters(self) -> int:
        """Number of trained values."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def has_batch_norm(self) -> bool:
        """Whether cutting the batch into sub-batches changes what the network computes."""
        return any(layer.kind.couples_images for layer in self.layers)
