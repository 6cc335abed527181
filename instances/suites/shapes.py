"""Shapes of synthetic networks: the graph of the forward pass, without sizes and times.

A graph is a list of nodes in an order in which they can be computed. A shape is a record of its parameters,
so a suite's file can hold it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, NamedTuple

import msgspec

from .draws import Draws

Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
"""Number of nodes, layers or levels."""

Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
"""Share in percent."""


class Node(NamedTuple):
    """A node: the nodes that it reads (none: the network's input), and how often its size is halved."""

    reads: tuple[int, ...]
    halvings: int = 0


class _Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="family"):
    """A family of graphs; in a file, the key `family` has its name."""


class Chain(_Shape, frozen=True, tag="chain"):
    """Layers one after another."""

    layers: Count

    def nodes(self, draws: Draws) -> list[Node]:  # noqa: ARG002 - nothing is drawn
        """Return the graph."""
        return [Node((k - 1,) if k else ()) for k in range(self.layers)]


class Residual(_Shape, frozen=True, tag="residual"):
    """Blocks of `depth` layers, each with a shortcut that is added to its end (ResNet)."""

    blocks: Count
    depth: Count

    def nodes(self, draws: Draws) -> list[Node]:  # noqa: ARG002 - nothing is drawn
        """Return the graph."""
        nodes = [Node(())]
        for _ in range(self.blocks):
            shortcut = len(nodes) - 1
            nodes += [Node((shortcut + k,)) for k in range(self.depth)]
            nodes.append(Node((shortcut, len(nodes) - 1)))
        return nodes


class Inception(_Shape, frozen=True, tag="inception"):
    """Modules of parallel branches of one to three layers, joined at the end (GoogLeNet)."""

    modules: Count
    branches: Count

    def nodes(self, draws: Draws) -> list[Node]:
        """Return the graph; the lengths of the branches are drawn."""
        nodes = [Node(())]
        for _ in range(self.modules):
            start, ends = len(nodes) - 1, []
            for _ in range(self.branches):
                last = start
                for _ in range(draws.between(1, 3)):
                    nodes.append(Node((last,), halvings=1))
                    last = len(nodes) - 1
                ends.append(last)
            nodes.append(Node(tuple(ends)))
        return nodes


class Dense(_Shape, frozen=True, tag="dense"):
    """Blocks in which every layer reads all layers before it in the block (DenseNet)."""

    blocks: Count
    layers: Count

    def nodes(self, draws: Draws) -> list[Node]:  # noqa: ARG002 - nothing is drawn
        """Return the graph; the last layer of a block reads all of it, and is the first of the next block."""
        nodes = [Node(())]
        for _ in range(self.blocks):
            first = len(nodes) - 1
            nodes += [Node(tuple(range(first, first + k + 1))) for k in range(self.layers)]
        return nodes


class UShaped(_Shape, frozen=True, tag="u-shaped"):
    """Levels of ever smaller layers down and up again, those of a level joined across (U-Net)."""

    levels: Annotated[int, msgspec.Meta(ge=1, le=12)]
    width: Count

    def nodes(self, draws: Draws) -> list[Node]:  # noqa: ARG002 - nothing is drawn
        """Return the graph, with `width` layers for each level and direction."""
        nodes: list[Node] = []

        def level(halvings: int, *reads: int) -> int:
            nodes.append(Node(reads, halvings))
            for _ in range(self.width - 1):
                nodes.append(Node((len(nodes) - 1,), halvings))
            return len(nodes) - 1

        across = [level(0)]
        for depth in range(1, self.levels):
            across.append(level(depth, across[-1]))
        last = level(self.levels, across[-1])
        for depth in reversed(range(self.levels)):
            last = level(depth, across[depth], last)
        return nodes


class Recurrent(_Shape, frozen=True, tag="recurrent"):
    """A stack of recurrent layers, unrolled over time steps."""

    layers: Count
    steps: Count

    def nodes(self, draws: Draws) -> list[Node]:  # noqa: ARG002 - nothing is drawn
        """Return the graph; a cell reads the cell before it in time and the cell below it."""
        return [
            Node(
                tuple(
                    reached
                    for reached, exists in (
                        ((step - 1) * self.layers + layer, step > 0),
                        (step * self.layers + layer - 1, layer > 0),
                    )
                    if exists
                )
            )
            for step in range(self.steps)
            for layer in range(self.layers)
        ]


class Layered(_Shape, frozen=True, tag="layered"):
    """A random layered graph, like those of MOCCASIN (after Gagrani et al. 2022, appendix A).

    Attributes
    ----------
    size
        Number of nodes; the first and the last node are each a layer.
    width
        Mean number of nodes of the other layers.
    variance
        Greatest difference of a layer's width from the mean, in percent of the mean.
    edge_density
        Share of the pairs in neighbouring layers with an edge, in addition to the one edge of every node.
    skip_density
        Share of all edges that skip at least one layer.
    """

    size: Annotated[int, msgspec.Meta(ge=2, le=10**6)]
    width: Count
    variance: Percent = 75
    edge_density: Percent = 20
    skip_density: Annotated[int, msgspec.Meta(ge=0, le=90)] = 14

    def nodes(self, draws: Draws) -> list[Node]:
        """Return the graph."""
        spread = self.width * self.variance // 100
        widths, left = [1], self.size - 2
        while left:
            widths.append(min(left, max(draws.between(self.width - spread, self.width + spread), 1)))
            left -= widths[-1]
        widths.append(1)
        begins = [0, *accumulate(widths)]
        reads: list[set[int]] = [set() for _ in range(self.size)]
        for layer in range(1, len(widths)):
            self._join(begins[layer - 1 : layer + 2], reads, draws)
        self._skip(begins, reads, draws)
        return [Node(tuple(sorted(sources))) for sources in reads]

    def _join(self, begins: Sequence[int], reads: list[set[int]], draws: Draws) -> None:
        """Connect two neighbouring layers: each node has an edge to the other layer; then further edges."""
        first, middle, end = begins
        before, here = middle - first, end - middle
        for k in range(here):
            source = first + k * before // here
            reads[middle + k].add(source)
            for other in range(first, middle):
                if other != source and draws.chance(self.edge_density):
                    reads[middle + k].add(other)
        read = set().union(*reads[middle:end])
        for k in range(before):
            if first + k not in read:
                reads[middle + k * here // before].add(first + k)

    def _skip(self, begins: Sequence[int], reads: list[set[int]], draws: Draws) -> None:
        """Add edges between layers that are not neighbours."""
        if len(begins) < 4:
            return
        edges = sum(map(len, reads))
        for _ in range(edges * self.skip_density // (100 - self.skip_density)):
            source = draws.below(begins[-3])
            next_layer = begins[bisect_right(begins, source) + 1]
            reads[draws.between(next_layer, self.size - 1)].add(source)


Shape = Chain | Residual | Inception | Dense | UShaped | Recurrent | Layered
"""Any family of graphs."""
