"""Kinds of layers: what their records refuse, and that what a record says is what becomes of a layer."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pebbler.heuristics.papers.layers import layer_steps
from pebbler.heuristics.papers.vdnn import convolution, managed
from pebbler.instances import workload
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Algorithm, Instance, Task
from pebbler.instances.networks import kinds
from pebbler.instances.networks.builder import NetworkBuilder
from pebbler.instances.networks.kinds import LayerKind, described_kind, find_kind, register_kind
from pebbler.instances.networks.network import Network, Shape
from pebbler.instances.networks.taskgraph import Graph, TaskGraph, task_graph
from pebbler.instances.origin import LayerTasks


@pytest.fixture(autouse=True)
def own_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(kinds, "KINDS", dict(kinds.KINDS))


def network(**layer: int) -> Network:
    """A layer of the kind ``own`` between a convolution with a ReLU and a fully connected layer."""
    net = NetworkBuilder("own")
    x = net.conv("conv", net.input(3, 4, 4), 2, 1, relu=True)
    x = net.layer("own", "own", x, **layer)  # type: ignore[arg-type]
    net.softmax("loss", net.fc("fc", x, 5))
    return net.finish(batch=2, source="test")


def touched(graph: TaskGraph, task: str) -> list[list[str]]:
    (found,) = (one for one in graph.tasks if one.name == task)
    return [[graph.blocks[d].name for d in blocks] for blocks in (found.inputs, found.outputs, found.updates)]


def test_a_kind_reads_in_backward_what_its_record_says() -> None:
    register_kind(LayerKind(name="own", summary="test", reads_inputs=True, reads_output=True))
    graph = task_graph(network(), 2)
    assert touched(graph, "FP(own)") == [["Y(conv)"], ["Y(own)"], []]
    assert touched(graph, "BP1(own)") == [["dY(own)", "Y(conv)", "Y(own)"], ["dY(conv)"], []]


@pytest.mark.parametrize(
    ("saves", "layer", "block", "size"),
    [
        ("mask", {}, "M(own)", 2 * 32),
        ("statistics", {}, "S(own)", 4 * 2 * 2),
        ("values", {"saved": 3}, "S(own)", 4 * 2 * 3),
    ],
)
def test_a_kind_saves_what_its_record_says(
    saves: kinds.Saved, layer: dict[str, int], block: str, size: int
) -> None:
    register_kind(LayerKind(name="own", summary="test", saves=saves))
    graph = task_graph(network(**layer), 2)
    assert touched(graph, "FP(own)")[1] == ["Y(own)", block]
    assert touched(graph, "BP1(own)")[0] == ["dY(own)", block]
    assert {one.name: one.bytes for one in graph.blocks}[block] == size
    on_paper = touched(task_graph(network(**layer), 2, "paper"), "FP(own)")[1]
    assert (block in on_paper) == (saves != "statistics")


@pytest.mark.parametrize("after_relu", [True, False])
@pytest.mark.parametrize("graph", ["executable", "paper"])
def test_a_kind_is_in_place_where_its_record_says(graph: Graph, after_relu: bool) -> None:
    register_kind(
        LayerKind(
            name="own",
            summary="test",
            reads_output=True,
            in_place=("executable",),
            in_place_after_relu=after_relu,
        )
    )
    found = touched(task_graph(network(), 2, graph), "FP(own)")
    in_place = graph == "executable" and after_relu
    assert found == ([[], [], ["Y(conv)"]] if in_place else [["Y(conv)"], ["Y(own)"], []])


def test_a_kind_that_passes_its_gradient_on_has_no_backward_task() -> None:
    register_kind(LayerKind(name="own", summary="test", passes_on=True))
    graph = task_graph(network(), 2)
    assert "BP1(own)" not in {task.name for task in graph.tasks}
    assert touched(graph, "BP1(fc)")[1] == ["dY(own)"]
    assert touched(graph, "BP2(conv)")[0] == ["X(input)", "dY(own)"]


@pytest.mark.parametrize("operation", ["dense", "memory"])
def test_the_operation_says_whether_weights_have_a_task_of_their_own(operation: kinds.Operation) -> None:
    register_kind(LayerKind(name="own", summary="test", operation=operation))
    graph = task_graph(network(parameters=7), 2, weights_as_blocks=True)
    writer = "BP2(own)" if operation == "dense" else "BP1(own)"
    assert touched(graph, writer)[1][0] == "dW(own)"
    assert ("BP2(own)" in {task.name for task in graph.tasks}) == (operation == "dense")


def test_products_and_passes_cost_what_the_record_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "find_network", lambda _: network(products=10**9))

    def times(**fields: object) -> dict[str, int]:
        register_kind(LayerKind(name="own", summary="test", **fields))  # type: ignore[arg-type]
        tasks = workload.Workload("own", 2, "K40").round(2, 1).tasks
        return {task.name: task.algorithms[0].duration_ns for task in tasks}

    memory, twice = times(), times(extra_passes=(0, 1))
    assert memory["FP(own)"] == twice["FP(own)"]
    assert memory["BP1(own)"] < twice["BP1(own)"]
    product, triple = times(operation="product"), times(operation="product", backward_products=Fraction(3))
    assert memory["FP(own)"] < product["FP(own)"] == triple["FP(own)"]
    assert product["FP(own)"] < product["BP1(own)"] < triple["BP1(own)"]


def test_only_what_couples_images_changes_with_sub_batches() -> None:
    register_kind(LayerKind(name="own", summary="test"))
    assert not network().has_batch_norm
    register_kind(LayerKind(name="own", summary="test", couples_images=True))
    assert network().has_batch_norm


@pytest.mark.parametrize("group", ["classifier", "convolution", "other"])
def test_policies_treat_a_kind_as_its_group(group: kinds.Group, tiny: Instance) -> None:
    register_kind(LayerKind(name="own", summary="test", group=group))
    (unit,) = layer_steps(tiny)
    assert managed(unit) == (group != "classifier")
    assert convolution(unit) == (group == "convolution")


@pytest.fixture
def tiny() -> Instance:
    """One task, of a layer of the kind ``own``."""
    task = Task(
        name="FP(own)",
        inputs=(),
        outputs=(),
        algorithms=(Algorithm(name="kernel", duration_ns=1, workspace_bytes=0),),
    )
    return Instance(
        name="tiny",
        engines="duplex",
        budget_bytes=1,
        resident_bytes=0,
        blocks=(),
        tasks=(task,),
        layers=(LayerTasks(name="own", kind="own", forward=(0,), backward=()),),
    )


def test_a_kind_of_a_file_that_nobody_has_registered_is_nothing_special() -> None:
    found = described_kind("Bilinear")
    assert (found.group, found.expensive, found.is_loss) == ("other", False, False)
    assert described_kind("conv") is find_kind("conv")


def test_wrong_kinds_are_refused() -> None:
    with pytest.raises(PebblerError, match="there is no layer kind 'maxpol'; did you mean maxpool"):
        find_kind("maxpol")
    with pytest.raises(PebblerError, match="layer kind 'conv' is there already; choose another name"):
        register_kind(LayerKind(name="conv", summary="another"))
    for wrong, words in (
        ({"in_place": ("executable",), "reads_inputs": True}, "BP1 reads an input that is overwritten"),
        ({"in_place": ("paper",), "labels": "classes"}, "a loss cannot be in place"),
        ({"scales": True, "operation": "dense"}, "weights of the operation 'dense' are no scales"),
    ):
        with pytest.raises(PebblerError, match=words):
            LayerKind(name="wrong", summary="test", **wrong)  # type: ignore[arg-type]


def test_wrong_layers_of_any_kind_are_refused() -> None:
    net = NetworkBuilder("wrong")
    with pytest.raises(PebblerError, match="layer 'a': 'gelu' reads at least one layer"):
        net.layer("a", "gelu")
    with pytest.raises(PebblerError, match="layer 'a': 'input' reads no layer"):
        net.layer("a", "input", net.input(1, 1, 1), shape=Shape(1, 1, 1))
    with pytest.raises(PebblerError, match="layer 'a': nothing says its shape"):
        net.layer("a", "input")
    with pytest.raises(PebblerError, match="there is no layer kind 'own'"):
        net.layer("a", "own", "input")
