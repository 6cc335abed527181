from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from pebbler.instances.suites.draws import Draws
from pebbler.instances.suites.shapes import (
    Chain,
    Dense,
    Inception,
    Layered,
    Node,
    Recurrent,
    Residual,
    Shape,
    UShaped,
)

SHAPES: list[Shape] = [
    Chain(layers=1),
    Chain(layers=9),
    Residual(blocks=3, depth=2),
    Inception(modules=3, branches=4),
    Dense(blocks=2, layers=4),
    UShaped(levels=3, width=2),
    UShaped(levels=1, width=1),
    Recurrent(layers=3, steps=4),
    Layered(size=2, width=1),
    Layered(size=3, width=7),
    Layered(size=200, width=9),
    Layered(size=50, width=1, variance=0, skip_density=90),
]


def draw(shape: Shape, seed: int = 0) -> list[Node]:
    return shape.nodes(Draws(np.random.default_rng(seed)))


def graph(nodes: list[Node]) -> nx.DiGraph[int]:
    made: nx.DiGraph[int] = nx.DiGraph()
    made.add_nodes_from(range(len(nodes)))
    made.add_edges_from((source, k) for k, node in enumerate(nodes) for source in node.reads)
    return made


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_a_shape_is_one_piece_in_topological_order_with_one_end(shape: Shape, seed: int) -> None:
    nodes = draw(shape, seed)
    assert all(0 <= source < k for k, node in enumerate(nodes) for source in node.reads)
    assert all(len(set(node.reads)) == len(node.reads) for node in nodes)
    assert nodes[0].reads == ()
    assert all(node.reads for node in nodes[1:])
    made = graph(nodes)
    assert nx.is_weakly_connected(made)
    assert [k for k in made if not made.out_degree(k)] == [len(nodes) - 1]


def test_a_chain() -> None:
    assert draw(Chain(layers=3)) == [Node(()), Node((0,)), Node((1,))]


def test_a_residual_block_adds_its_start_to_its_end() -> None:
    assert [node.reads for node in draw(Residual(blocks=2, depth=2))] == [
        (),
        *[(0,), (1,), (0, 2)],
        *[(3,), (4,), (3, 5)],
    ]


def test_branches_of_a_module_start_together_and_are_joined() -> None:
    made = graph(draw(Inception(modules=2, branches=3)))
    forks = [k for k in made if made.out_degree(k) == 3]
    joins = [k for k in made if made.in_degree(k) == 3]
    assert len(forks) == len(joins) == 2
    assert all(
        nx.dag_longest_path_length(made.subgraph(range(a, b + 1))) in (2, 3, 4)
        for a, b in zip(forks, joins, strict=True)
    )


def test_a_dense_layer_reads_all_before_it_in_its_block() -> None:
    assert [node.reads for node in draw(Dense(blocks=2, layers=2))] == [(), (0,), (0, 1), (2,), (2, 3)]


def test_a_u_joins_what_is_of_one_size() -> None:
    nodes = draw(UShaped(levels=3, width=2))
    assert [node.halvings for node in nodes] == [0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 1, 1, 0, 0]
    joins = [(node, k) for k, node in enumerate(nodes) if len(node.reads) == 2]
    assert [node.reads for node, _ in joins] == [(5, 7), (3, 9), (1, 11)]
    assert all(nodes[node.reads[0]].halvings == node.halvings for node, _ in joins)


def test_a_cell_reads_its_past_and_the_layer_below() -> None:
    nodes = draw(Recurrent(layers=2, steps=3))
    assert [node.reads for node in nodes] == [(), (0,), (0,), (1, 2), (2,), (3, 4)]


@pytest.mark.parametrize(
    ("size", "width", "edges"), [(100, 5, 236), (250, 11, 944), (500, 16, 2461), (1000, 20, 5875)]
)
def test_layered_graphs_have_about_as_many_edges_as_moccasin_s(size: int, width: int, edges: int) -> None:
    counts = [
        sum(len(node.reads) for node in draw(Layered(size=size, width=width), seed)) for seed in range(5)
    ]
    assert 0.75 * edges < sum(counts) / 5 < 1.25 * edges


def test_skip_density_is_the_share_of_edges_that_skip_layers() -> None:
    none = draw(Layered(size=300, width=6, variance=0, skip_density=0))
    some = draw(Layered(size=300, width=6, variance=0, skip_density=25))
    layer = [0, *((k - 1) // 6 + 1 for k in range(1, 299)), 51]

    def share(nodes: list[Node]) -> float:
        lengths = [layer[k] - layer[source] for k, node in enumerate(nodes) for source in node.reads]
        return sum(length > 1 for length in lengths) / len(lengths)

    assert share(none) == 0
    assert 0.2 < share(some) < 0.3
