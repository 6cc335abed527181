"""The task graph against the table of what backward reads, and against the chain rule."""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.networks.builder import NetworkBuilder
from pebbler.instances.networks.kinds import KINDS as LAYER_KINDS
from pebbler.instances.networks.network import Layer, Network, Shape
from pebbler.instances.networks.taskgraph import LayerTask, TaskGraph, task_graph
from pebbler.instances.networks.zoo import find_network

from ...samples import sampled

PRIME = 2**61 - 1


def touched(graph: TaskGraph) -> dict[str, tuple[list[str], list[str], list[str]]]:
    """Names of the inputs, outputs and updates of every task, by its name."""
    return {
        task.name: tuple(
            [graph.blocks[d].name for d in group] for group in (task.inputs, task.outputs, task.updates)
        )
        for task in graph.tasks
    }


@pytest.fixture
def every_kind() -> Network:
    net = NetworkBuilder("every-kind")
    x = net.conv("conv1", net.input(3, 8, 8), 4, 3, pad=1, bias=False)
    x = net.bn("bn1", x, relu=True)
    x = net.lrn("lrn1", x)
    x = net.maxpool("pool1", x, 2, stride=2)
    a = net.conv("conv2", x, 4, 1, relu=True)
    b = net.avgpool("pool2", x, 3, stride=1, pad=1)
    x = net.concat("cat", a, b)
    x = net.deconv("up", x, 2, 4, stride=4, pad=0)
    x = net.fc("fc1", x, 5, relu=True)
    x = net.dropout("drop1", x)
    net.softmax("loss", net.fc("fc2", x, 5))
    return net.finish(batch=2, source="test")


EXECUTABLE = {
    "FP(conv1)": (["X(input)"], ["Y(conv1)"], []),
    "FP(bn1)": (["Y(conv1)"], ["Y(bn1)", "S(bn1)"], []),
    "FP(lrn1)": (["Y(bn1)"], ["Y(lrn1)"], []),
    "FP(pool1)": (["Y(lrn1)"], ["Y(pool1)"], []),
    "FP(conv2)": (["Y(pool1)"], ["Y(conv2)"], []),
    "FP(pool2)": (["Y(pool1)"], ["Y(pool2)"], []),
    "FP(cat)": (["Y(conv2)", "Y(pool2)"], ["Y(cat)"], []),
    "FP(up)": (["Y(cat)"], ["Y(up)"], []),
    "FP(fc1)": (["Y(up)"], ["Y(fc1)"], []),
    "FP(drop1)": ([], ["M(drop1)"], ["Y(fc1)"]),
    "FP(fc2)": (["Y(fc1)"], ["Y(fc2)"], []),
    "FP(loss)": (["Y(fc2)"], ["Y(loss)"], []),
    "BP1(loss)": (["Y(loss)"], ["dY(fc2)"], []),
    "BP2(fc2)": (["Y(fc1)", "dY(fc2)"], [], []),
    "BP1(fc2)": (["dY(fc2)"], ["dY(fc1)"], []),
    "BP1(drop1)": (["M(drop1)"], [], ["dY(fc1)"]),
    "BP(relu fc1)": (["Y(fc1)"], [], ["dY(fc1)"]),
    "BP2(fc1)": (["Y(up)", "dY(fc1)"], [], []),
    "BP1(fc1)": (["dY(fc1)"], ["dY(up)"], []),
    "BP2(up)": (["Y(cat)", "dY(up)"], [], []),
    "BP1(up)": (["dY(up)"], ["dY(cat)"], []),
    "BP1(cat)": (["dY(cat)"], ["dY(conv2)", "dY(pool2)"], []),
    "BP1(pool2)": (["dY(pool2)"], ["dY(pool1)"], []),
    "BP(relu conv2)": (["Y(conv2)"], [], ["dY(conv2)"]),
    "BP2(conv2)": (["Y(pool1)", "dY(conv2)"], [], []),
    "BP1(conv2)": (["dY(conv2)"], [], ["dY(pool1)"]),
    "BP1(pool1)": (["dY(pool1)", "Y(lrn1)", "Y(pool1)"], ["dY(lrn1)"], []),
    "BP1(lrn1)": (["dY(lrn1)", "Y(bn1)", "Y(lrn1)"], ["dY(bn1)"], []),
    "BP(relu bn1)": (["Y(bn1)"], [], ["dY(bn1)"]),
    "BP1(bn1)": (["dY(bn1)", "Y(conv1)", "S(bn1)"], ["dY(conv1)"], []),
    "BP2(conv1)": (["X(input)", "dY(conv1)"], [], []),
}
PAPER = {
    "FP(bn1)": ([], [], ["Y(conv1)"]),
    "FP(lrn1)": (["Y(conv1)"], ["Y(lrn1)"], []),
    "BP1(drop1)": (["M(drop1)", "Y(fc1)"], [], ["dY(fc1)"]),
    "BP1(cat)": (["dY(cat)", "Y(conv2)"], ["dY(conv2)", "dY(pool2)"], []),
    "BP1(lrn1)": (["dY(lrn1)", "Y(conv1)", "Y(lrn1)"], ["dY(conv1)"], []),
    "BP1(bn1)": (["Y(conv1)"], [], ["dY(conv1)"]),
}


def test_the_executable_graph_of_every_kind_of_layer(every_kind):
    got = touched(task_graph(every_kind, 2))
    assert got == EXECUTABLE
    assert list(got) == list(EXECUTABLE)


def test_the_paper_graph_of_every_kind_of_layer(every_kind):
    expected = {name: blocks for name, blocks in EXECUTABLE.items() if "relu" not in name} | PAPER
    got = touched(task_graph(every_kind, 2, "paper"))
    assert got == expected
    assert list(got) == list(expected)


def test_sizes_of_blocks(every_kind):
    graph = task_graph(every_kind, 2)
    sizes = {block.name: block.bytes for block in graph.blocks}
    assert sizes["X(input)"] == 2 * 3 * 8 * 8 * 4
    assert sizes["Y(conv1)"] == sizes["dY(conv1)"] == 2 * 4 * 8 * 8 * 4
    assert sizes["M(drop1)"] == 2 * 5
    assert sizes["S(bn1)"] == 2 * 4 * 4
    assert graph.resident_bytes == 2 * 4 * every_kind.parameters
    assert [block.name for block in graph.blocks if block.initially != "absent"] == ["X(input)"]


def test_weights_as_blocks(every_kind):
    graph = task_graph(every_kind, 2, weights_as_blocks=True)
    blocks = {block.name: block for block in graph.blocks}
    trained = [layer for layer in every_kind.layers if layer.parameters]
    for layer in trained:
        weights, gradient = blocks[f"W({layer.name})"], blocks[f"dW({layer.name})"]
        assert weights.bytes == gradient.bytes == 4 * layer.parameters
        assert (weights.initially, weights.finally_) == ("host", "anywhere")
        assert (gradient.initially, gradient.finally_) == ("absent", "host")
    assert len(graph.blocks) == len(task_graph(every_kind, 2).blocks) + 2 * len(trained)
    assert graph.resident_bytes == 0
    got = touched(graph)
    assert got["FP(conv1)"] == (["X(input)", "W(conv1)"], ["Y(conv1)"], [])
    assert got["BP2(fc2)"] == (["Y(fc1)", "dY(fc2)"], ["dW(fc2)"], [])
    assert got["BP1(fc2)"] == (["dY(fc2)", "W(fc2)"], ["dY(fc1)"], [])
    assert got["BP1(bn1)"] == (
        ["dY(bn1)", "Y(conv1)", "S(bn1)", "W(bn1)"],
        ["dW(bn1)", "dY(conv1)"],
        [],
    )


@pytest.fixture
def tied():
    net = NetworkBuilder("tied")
    x = net.conv("a", net.input(4, 6, 6), 4, 1, bias=False)
    x = net.conv("b", x, 4, 1, bias=False, tied="a")
    net.softmax("loss", net.fc("fc", x, 3))
    return net.finish(batch=1, source="test")


@pytest.mark.parametrize(
    ("optimizer", "letters"), [("sgd", "W"), ("momentum", "Wm"), ("adam", "Wmv"), ("none", "W")]
)
def test_a_steady_state_carries_weights_and_what_the_optimizer_keeps(every_kind, optimizer, letters):
    graph = task_graph(every_kind, 2, optimizer=optimizer)
    blocks = {block.name: block for block in graph.blocks}
    trained = [layer.name for layer in every_kind.layers if layer.parameters]
    carried = {block.name: block for block in graph.blocks if block.initially == "carried"}
    assert set(carried) == {f"{letter}({name})" for letter in letters for name in trained}
    got = touched(graph)
    updates = {name for name in got if name.startswith("OPT")}
    assert updates == ({f"OPT({name})" for name in trained} if optimizer != "none" else set())
    for name in trained:
        assert all(carried[f"{letter}({name})"].bytes == blocks[f"W({name})"].bytes for letter in letters)
        assert all(carried[f"{letter}({name})"].finally_ == "anywhere" for letter in letters)
        assert blocks[f"dW({name})"].finally_ == ("host" if optimizer == "none" else "anywhere")
        if optimizer != "none":
            assert got[f"OPT({name})"] == ([f"dW({name})"], [], [f"{letter}({name})" for letter in letters])
    assert graph.resident_bytes == 0


@pytest.mark.parametrize("graph", ["executable", "paper"])
def test_no_task_reads_weights_after_their_update(every_kind, tied, graph):
    for network in (every_kind, tied):
        order = task_graph(network, 2, graph, optimizer="sgd")
        names = [task.name for task in order.tasks]
        for name in (name for name in names if name.startswith("OPT")):
            layer = name[3:]
            users = [
                k
                for k, task in enumerate(order.tasks)
                for d in (*task.inputs, *task.outputs, *task.updates)
                if order.blocks[d].name in (f"W{layer}", f"dW{layer}")
            ]
            assert max(users) == names.index(name) > users[0]
            assert order.tasks[names.index(name)].layer.name == layer[1:-1]


def test_tied_weights_are_updated_once(tied):
    names = [task.name for task in task_graph(tied, 1, optimizer="adam").tasks]
    assert [name for name in names if name.startswith("OPT")] == ["OPT(fc)", "OPT(a)"]
    assert names[-1] == "OPT(a)"


@pytest.mark.parametrize(
    ("optimizer", "letters"), [("sgd", "Wp"), ("momentum", "Wpm"), ("adamw", "Wpmv"), ("none", "W")]
)
def test_bfloat16_halves_data_and_the_optimizer_keeps_weights_in_single_precision(
    every_kind, optimizer, letters
):
    single = task_graph(every_kind, 2, optimizer=optimizer)
    graph = task_graph(every_kind, 2, optimizer=optimizer, precision="bf16")
    sizes, half = ({block.name: block.bytes for block in one.blocks} for one in (single, graph))
    for name in sizes:
        same = name[0] in "Smv" or name == "M(drop1)"  # statistics, states, and a mask of a byte a value
        assert half[name] == (sizes[name] if same else sizes[name] // 2)
    masters = {name for name in half if name.startswith("p(")}
    assert set(half) - set(sizes) == masters
    assert all(half[name] == 2 * half[f"W{name[1:]}"] for name in masters)
    updates = {name: blocks for name, blocks in touched(graph).items() if name.startswith("OPT")}
    assert bool(updates) == (optimizer != "none") == bool(masters)
    for name, blocks in updates.items():
        assert blocks == ([f"dW{name[3:]}"], [], [f"{letter}{name[3:]}" for letter in letters])
    assert [task.name for task in graph.tasks] == [task.name for task in single.tasks]


def test_bfloat16_halves_resident_weights_and_leaves_indices(every_kind):
    assert task_graph(every_kind, 2, precision="bf16").resident_bytes == 2 * 2 * every_kind.parameters
    net = NetworkBuilder("words")
    x = net.embedding("table", net.input(1, 6, 1), 10, 8)
    net.softmax("loss", net.linear("head", x, outputs=10))
    graph = task_graph(net.finish(batch=1, source="test"), 3, precision="bf16")
    sizes = {block.name: block.bytes for block in graph.blocks}
    assert sizes["X(input)"] == 3 * 6 * 4
    assert sizes["Y(table)"] == sizes["dY(table)"] == 3 * 6 * 8 * 2


def test_an_unknown_optimizer_is_refused(tied):
    with pytest.raises(PebblerError, match="no optimizer 'lion'; there are none, sgd, momentum, adam"):
        task_graph(tied, 1, optimizer="lion")


def test_tied_weights_are_one_block_that_every_layer_reads_and_adds_to(tied):
    network = tied
    assert network.parameters == 16 + (4 * 36 + 1) * 3
    graph = task_graph(network, 1, weights_as_blocks=True)
    got = touched(graph)
    assert got["FP(b)"] == (["Y(a)", "W(a)"], ["Y(b)"], [])
    assert got["BP2(b)"] == (["Y(a)", "dY(b)"], ["dW(a)"], [])
    assert got["BP1(b)"] == (["dY(b)", "W(a)"], ["dY(a)"], [])
    assert got["BP2(a)"] == (["X(input)", "dY(a)"], [], ["dW(a)"])
    assert [block.name for block in graph.blocks if "W(a)" in block.name] == ["W(a)", "dW(a)"]


def test_a_transformer_block_reads_what_its_derivatives_need():
    net = NetworkBuilder("block")
    x = net.embedding("e", net.input(1, 6, 1), 10, 8)
    y = net.linear("qkv", net.layer_norm("n", x), outputs=24)
    y = net.add("sum", x, net.attention("att", y, heads=2))
    y = net.linear("narrow", net.gelu("g", net.linear("wide", y, outputs=32)), outputs=8)
    net.softmax("loss", y)
    graph = task_graph(net.finish(batch=3, source="test"), 3)
    got = touched(graph)
    assert got["FP(att)"] == (["Y(qkv)"], ["Y(att)", "S(att)"], [])
    assert got["BP1(att)"] == (["dY(sum)", "Y(qkv)", "Y(att)", "S(att)"], ["dY(qkv)"], [])
    assert got["BP1(g)"] == (["dY(g)", "Y(wide)"], ["dY(wide)"], [])
    assert got["BP1(n)"] == (["dY(n)", "Y(e)", "S(n)"], [], ["dY(sum)"])
    assert got["BP2(e)"] == (["X(input)", "dY(sum)"], [], [])
    assert "BP1(e)" not in got
    sizes = {block.name: block.bytes for block in graph.blocks}
    assert sizes["S(n)"] == 4 * 3 * 2 * 6
    assert sizes["S(att)"] == 4 * 3 * 2 * 6
    assert sizes["X(input)"] == 4 * 3 * 6


def test_a_mixture_of_experts_reads_what_its_derivatives_need():
    """Where tokens go has no gradient; how their results are weighted has one."""
    net = NetworkBuilder("mixture")
    x = net.linear("a", net.input(2, 6, 1), outputs=8, bias=False)
    shares = net.route("shares", net.linear("router", x, outputs=4, bias=False))
    y = net.experts("up", net.dispatch("sent", x, shares, slots=3), outputs=5, experts=4)
    net.softmax("loss", net.combine("back", y, shares))
    network = net.finish(batch=2, source="test")
    graph = task_graph(network, 2)
    got = touched(graph)
    assert got["FP(shares)"] == (["Y(router)"], ["Y(shares)", "S(shares)"], [])
    assert got["FP(sent)"] == (["Y(a)", "Y(shares)"], ["Y(sent)", "S(sent)"], [])
    assert got["BP1(back)"] == (["dY(back)", "Y(up)", "Y(shares)"], ["dY(up)", "dY(shares)"], [])
    assert got["BP2(up)"] == (["Y(sent)", "dY(up)"], [], [])
    assert got["BP1(up)"] == (["dY(up)"], ["dY(sent)"], [])
    assert got["BP1(sent)"] == (["dY(sent)", "S(sent)"], ["dY(a)"], [])
    assert got["BP1(shares)"] == (["dY(shares)", "Y(shares)", "S(shares)"], ["dY(router)"], [])
    assert got["BP1(router)"] == (["dY(router)"], [], ["dY(a)"])
    sizes = {block.name: block.bytes for block in graph.blocks}
    assert sizes["S(shares)"] == 4 * 2 * 4 * 6
    assert sizes["S(sent)"] == 4 * 2 * 4 * 3
    require_chain_rule(network)


def test_what_only_says_where_values_go_is_not_trained():
    """Shares that weight nothing have no gradient, so that nothing computes one for their router."""
    net = NetworkBuilder("hash")
    x = net.linear("a", net.input(2, 6, 1), outputs=8)
    shares = net.route("shares", net.linear("router", x, outputs=4))
    y = net.experts("up", net.dispatch("sent", x, shares, slots=3), outputs=5, experts=4)
    net.softmax("loss", y)
    graph = task_graph(net.finish(batch=2, source="test"), 2, optimizer="sgd")
    names = [task.name for task in graph.tasks]
    assert not {"BP1(shares)", "BP2(router)", "BP1(router)", "OPT(router)"} & set(names)
    assert {"BP1(sent)", "BP2(a)", "OPT(a)", "OPT(up)"} <= set(names)


def test_a_value_a_channel_has_a_gradient_of_its_own():
    net = NetworkBuilder("shift")
    x = net.conv("a", net.input(4, 6, 6), 4, 1)
    net.softmax("loss", net.add("sum", x, net.fc("f", net.input(9, 1, 1, name="time"), 4)))
    network = net.finish(batch=1, source="test")
    graph = task_graph(network, 1)
    got = touched(graph)
    assert got["BP1(sum)"] == (["dY(sum)"], ["dY(f)"], [])
    assert got["BP2(a)"] == (["X(input)", "dY(sum)"], [], [])
    assert {block.name: block.bytes for block in graph.blocks}["dY(f)"] == 4 * 4
    require_chain_rule(network)


def least(graph: TaskGraph) -> int:
    return graph.resident_bytes + max(
        sum(graph.blocks[d].bytes for d in (*task.inputs, *task.outputs, *task.updates))
        for task in graph.tasks
    )


@pytest.mark.parametrize(
    ("name", "batch", "gigabytes"),
    [("vgg16", 256, 10.97), ("vgg16", 1, 1.15), ("vgg101", 1, 2.09), ("vgg101b", 1, 1.39 * 2**30 / 1e9)],
)
def test_least_memory_on_the_paper_graph(name, batch, gigabytes):
    assert least(task_graph(find_network(name), batch, "paper")) / 1e9 == pytest.approx(gigabytes, abs=0.006)


def test_least_memory_of_vgg16_is_its_weights_and_three_maps_of_conv1():
    graph = task_graph(find_network("vgg16"), 256, "paper")
    assert least(graph) == 2 * 4 * 138_357_544 + 3 * 4 * 256 * 64 * 224 * 224


def test_modnn_saves_59_times_on_average():
    ideals = {
        "vgg16": 32.2,
        "vgg19": 34.9,
        "vgg101b": 103.8,
        "resnet34": 11.6,
        "resnet152": 73.1,
        "fcn": 17.7,
    }
    ratios = [
        ideal * 1e9 / least(task_graph(find_network(name), 1, "paper")) for name, ideal in ideals.items()
    ]
    assert round(sum(ratios) / len(ratios)) == 59


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "googlenet"])
def test_the_networks_of_the_zoo_need_no_copies(name):
    roles = Counter(task.role for task in task_graph(find_network(name), 1).tasks)
    assert roles["copy"] == 0


def test_wrong_arguments_are_refused(every_kind):
    with pytest.raises(PebblerError, match="a batch of 0 is not positive"):
        task_graph(every_kind, 0)
    with pytest.raises(PebblerError, match="there is no graph 'other'"):
        task_graph(every_kind, 1, "other")


# --- The chain rule -------------------------------------------------------------------------------------
# Every derivative is a random number modulo a prime, so a gradient is the sum over all paths to the loss of
# the products along them. Two different sums agree with a probability of about 2**-60.

READS = {
    "maxpool": "XY",  # where the greatest value lay: compare both
    "lrn": "XY",
    "softmax": "Y",
    "rowsoftmax": "Y",
    "route": "Y",
    "sigmoid": "Y",
    "attention": "XY",
    **dict.fromkeys(("bn", "norm", "scale", "gelu", "silu", "loss"), "X"),
    **dict.fromkeys(("multiply", "matmul", "combine", "lstm_cell", "lstm_hidden"), "X"),
}
"""What a derivative for the inputs depends on besides dY, weights and saved statistics: inputs, output."""


@dataclass
class ChainRule:
    """True values of outputs and gradients, by definition."""

    network: Network
    seed: int
    known: dict[tuple[str, str], int] = field(default_factory=dict)

    def factor(self, *key: str) -> int:
        return random.Random(f"{self.seed} {key}").randrange(2, PRIME)

    def derivative(self, layer: Layer, source: str) -> int:
        if layer.kind.name == "dispatch" and source == layer.inputs[1]:
            return 0
        passed = layer.kind.name == "add" and self.network[source].shape == layer.shape
        return 1 if passed else self.factor("derivative", layer.name, source)

    def sign(self, layer: Layer) -> int:
        return self.factor("relu", layer.name) if layer.relu else 1

    def output(self, name: str) -> int:
        layer = self.network[name]
        key = ("output", name)
        if key not in self.known:
            self.known[key] = hash((name, *(self.output(source) for source in layer.inputs)))
        return self.known[key]

    def gradient(self, name: str) -> int:
        """Gradient of the loss for the output after the ReLU."""
        key = ("gradient", name)
        if key not in self.known:
            readers = self.network.consumers(name)
            terms = [self.inner_gradient(reader.name) * self.derivative(reader, name) for reader in readers]
            self.known[key] = sum(terms) % PRIME
        return self.known[key]

    def inner_gradient(self, name: str) -> int:
        """Gradient of the loss for the output before the ReLU."""
        layer = self.network[name]
        if layer.kind.name in ("softmax", "loss"):
            return 1
        return self.gradient(name) * self.sign(layer) % PRIME


class Machine:
    """Executes a task graph and compares with the chain rule whatever a task reads."""

    def __init__(self, graph: TaskGraph, truth: ChainRule) -> None:
        self.graph = graph
        self.truth = truth
        self.memory: dict[int, int] = {}
        self.trained: Counter[str] = Counter()
        self.written: dict[str, int] = {}
        for index, block in enumerate(graph.blocks):
            if block.name.startswith("X("):
                self.memory[index] = truth.output(block.name[2:-1])
        self.fused = self.find_fused_relus()

    def find_fused_relus(self) -> dict[str, str]:
        """Per layer with a ReLU that has no task, the last task that contributes to its gradient."""
        with_task = {task.layer.name for task in self.graph.tasks if task.role == "relu"}
        return {
            source: task.name
            for task in self.graph.tasks
            if task.role == "BP1"
            for source, target in zip(task.layer.inputs, task.targets, strict=True)
            if target is not None and self.graph.network[source].relu and source not in with_task
        }

    def run(self) -> None:
        for task in self.graph.tasks:
            assert all(d in self.memory for d in (*task.inputs, *task.updates)), task.name
            assert not any(d in self.memory for d in task.outputs), task.name
            getattr(self, task.role)(task)
            for d in task.outputs:  # masks and statistics hold nothing that is compared
                self.memory.setdefault(d, 0)

    def FP(self, task: LayerTask) -> None:  # noqa: N802
        read = [d for d in (*task.inputs, *task.updates) if self.graph.blocks[d].name[0] != "W"]
        values = [self.memory[d] for d in read]
        assert values == [self.truth.output(source) for source in task.layer.inputs], task.name
        target = task.updates[0] if task.updates else task.outputs[0]
        self.memory[target] = self.truth.output(task.layer.name)
        self.written[task.layer.name] = target

    def relu(self, task: LayerTask) -> None:
        (gradient,) = task.updates
        assert self.memory[gradient] == self.truth.gradient(task.layer.name), task.name
        self.read_output(task.layer.name, task.inputs[0])
        self.memory[gradient] = self.truth.inner_gradient(task.layer.name)

    def read_output(self, name: str, block: int) -> None:
        """A layer's output, perhaps after dropouts in place."""
        outputs = {self.truth.output(name)}
        while [reader.kind.name for reader in self.graph.network.consumers(name)] == ["dropout"]:
            (name,) = (reader.name for reader in self.graph.network.consumers(name))
            outputs.add(self.truth.output(name))
        assert self.memory[block] in outputs, name

    def copy(self, task: LayerTask) -> None:
        self.memory[task.outputs[0]] = self.memory[task.inputs[0]]

    def BP2(self, task: LayerTask) -> None:  # noqa: N802
        *sources, gradient = task.inputs
        values = [self.memory[d] for d in sources]
        assert values == [self.truth.output(source) for source in task.layer.inputs], task.name
        assert self.memory[gradient] == self.truth.inner_gradient(task.layer.name), task.name
        self.trained[task.layer.name] += 1

    def BP1(self, task: LayerTask) -> None:  # noqa: N802
        layer = task.layer
        value = self.truth.inner_gradient(layer.name)
        in_place = layer.kind.name in ("dropout", "bn") and self.graph.blocks[task.inputs[0]].name[0] != "d"
        read = list(task.inputs)
        if layer.kind.name not in ("softmax", "loss"):
            assert self.memory[task.updates[0] if in_place else read.pop(0)] == value, task.name
        if not in_place:
            for source in layer.inputs if "X" in READS.get(layer.kind.name, "") else ():
                assert self.memory[read.pop(0)] == self.truth.output(source), task.name
            if "Y" in READS.get(layer.kind.name, ""):
                self.read_output(layer.name, read.pop(0))
            read = [d for d in read if self.graph.blocks[d].name[0] not in "SM"]
            signs = [self.written[source] for source, name in self.fused.items() if name == task.name]
            assert set(read) <= set(signs), task.name
        targets = [target for target in task.targets if target is not None]
        assert Counter(targets) == Counter((*task.outputs, *task.updates)), task.name
        for source, target in zip(layer.inputs, task.targets, strict=True):
            if target is None:
                continue
            present = 0 if in_place else self.memory.get(target, 0)
            result = present + value * self.truth.derivative(layer, source)
            if self.fused.get(source) == task.name:
                assert self.written[source] in task.inputs, task.name
                self.read_output(source, self.written[source])
                result *= self.truth.sign(self.graph.network[source])
            self.memory[target] = result % PRIME
        if layer.kind.name in ("bn", "norm", "scale", "position"):
            self.trained[layer.name] += 1


def require_chain_rule(network: Network, seed: int = 0) -> None:
    trained = {layer.name: 1 for layer in network.layers if layer.parameters or layer.tied}
    for kind in ("executable", "paper"):
        graph = task_graph(network, 1, kind)
        machine = Machine(graph, ChainRule(network, seed))
        machine.run()
        assert machine.trained == trained
        assert not (kind == "executable" and machine.fused)


MAP = Shape(4, 6, 6)
KINDS = [
    *(
        "conv",
        "conv",
        "conv",
        "bn",
        "bn",
        "add",
        "add",
        "add",
        "concat",
        "dropout",
        "maxpool",
        "avgpool",
        "lrn",
    ),
    *("linear", "tied", "norm", "scale", "gelu", "multiply", "attention", "product", "lstm", "position"),
    *("shift", "resample", "embedding", "mixture"),
]


def random_network(seed: int) -> Network:
    """A random directed acyclic graph of all kinds of layers on maps of one size."""
    rng = random.Random(seed)
    net = NetworkBuilder(f"random-{seed}")
    layers = [net.input(*MAP)]
    unread = set(layers)
    for index in range(rng.randint(3, 14)):
        kind = rng.choice(KINDS)
        count = {"add": 3, "concat": 3, "linear": 3, "multiply": 2, "attention": 3, "product": 3, "shift": 2}
        most = count.get(kind, 1)
        recent = layers[-rng.randint(1, 6) :]
        sources = rng.sample(recent, min(rng.randint(min(2, most), most), len(recent)))
        if kind in ("attention", "product") and len(sources) == 2:
            del sources[1]
        name = add_random_layer(rng, net, f"{kind}{index}", kind, sources)
        unread.difference_update(sources)
        layers.append(name)
        unread.add(name)
    if rng.random() < 0.3:
        net.softmax("auxiliary", rng.choice(layers[1:]))
    if rng.random() < 0.3:
        net.loss("second", *rng.sample(layers, 2))
    last = net.add("sum", *sorted(unread)) if len(unread) > 1 else unread.pop()
    net.softmax("loss", net.fc("fc", last, 3))
    return net.finish(batch=1, source="test")


def add_random_layer(
    rng: random.Random, net: NetworkBuilder, name: str, kind: str, sources: list[str]
) -> str:
    """Add a layer, with others before it where its kind needs them; a kind with too few sources is a bn."""
    relu = rng.random() < 0.5
    first = sources[0]
    if kind == "conv":
        return net.conv(name, first, 4, 3, pad=1, relu=relu)
    if kind == "add":
        return net.add(name, *sources, relu=relu)
    if kind == "concat":
        return net.conv(name, net.concat(f"wide-{name}", *sources), 4, 1, relu=relu)
    if kind in ("maxpool", "avgpool"):
        return getattr(net, kind)(name, first, 3, stride=1, pad=1)
    if kind in ("dropout", "lrn", "scale"):
        return getattr(net, kind)(name, first)
    if kind == "linear":
        return net.linear(name, *sources, outputs=4)
    if kind == "tied":
        own = net.linear(f"own-{name}", first, outputs=4)
        return net.linear(name, own, outputs=4, tied=own)
    if kind == "norm":
        if relu:
            return net.group_norm(name, first, 2)
        return rng.choice([net.layer_norm, net.rms_norm])(name, first)
    if kind == "gelu":
        return net.layer(name, rng.choice(["gelu", "silu", "sigmoid"]), first)
    if kind == "multiply" and len(sources) == 2:
        return net.multiply(name, *sources)
    if kind == "attention":
        if len(sources) == 3:
            return net.attention(name, *sources, heads=2, causal=relu)
        return net.attention(name, net.linear(f"qkv-{name}", first, outputs=12), heads=2)
    if kind == "product" and len(sources) == 3:
        x = net.rowsoftmax(f"rows-{name}", net.scores(f"scores-{name}", *sources[:2], heads=2))
        return net.resample(name, net.context(f"context-{name}", x, sources[2]), MAP)
    if kind == "mixture":
        shares = net.route(f"shares-{name}", net.linear(f"router-{name}", first, outputs=3))
        x = net.dispatch(f"sent-{name}", first, shares, slots=12)
        x = net.experts(f"experts-{name}", x, outputs=4, experts=3)
        return net.combine(name, x, shares)
    if kind == "lstm":
        gates = net.linear(f"gates-{name}", first, outputs=16)
        return net.lstm_hidden(name, gates, net.lstm_cell(f"cell-{name}", gates, first))
    if kind == "position":
        x = net.position(f"position-{name}", first, extra=1)
        return net.resample(name, x, MAP)
    if kind == "shift":
        return net.add(name, first, net.avgpool(f"mean-{name}", sources[-1]), relu=relu)
    if kind == "resample":
        return net.resample(name, first, MAP)
    if kind == "embedding":
        x = net.embedding(f"table-{name}", net.input(1, 6, 6, name=f"ids-{name}"), 9, 4)
        return net.add(name, first, x, relu=relu)
    return net.bn(name, first, relu=relu)


@pytest.mark.parametrize("seeds", sampled(range(75), range(0, 300, 75)))
def test_gradients_on_random_networks(seeds):
    for seed in seeds:
        require_chain_rule(random_network(seed), seed)


def test_random_networks_have_every_kind_of_layer():
    kinds = {layer.kind.name for seed in range(300) for layer in random_network(seed).layers}
    assert set(LAYER_KINDS) - kinds == {"deconv"}


@pytest.mark.parametrize(
    "name",
    [
        "siamese",
        "alexnet",
        "caffenet",
        "cifar10_quick",
        "googlenet_bvlc",
        "resnet18",
        "resnet50",
        "wrn16_8",
        "densenet121",
        "convnext_t",
        "fcn",
        "fcn8s",
        "unet",
        "sd15_unet",
        "lstm_rnn:steps=3",
        "gpt2:layers=2",
        "gpt2:layers=2,math=1",
        "llama32_1b:layers=2",
        "llama_block",
        "mixtral_8x7b:layers=2",
        "moe_xs:layers=2",
        "vit_b16",
    ],
)
def test_gradients_on_networks_of_the_zoo(name):
    require_chain_rule(find_network(name))


def test_an_addition_whose_branches_both_change_its_gradient_needs_a_copy():
    net = NetworkBuilder("two-relus")
    net.input(4, 6, 6)
    net.conv("a", "input", 4, 1, relu=True)
    net.conv("b", "input", 4, 1, relu=True)
    net.softmax("loss", net.add("sum", "a", "b"))
    network = net.finish(batch=1, source="test")
    got = touched(task_graph(network, 1))
    assert got["copy(dY(b))"] == (["dY(sum)"], ["dY(b)"], [])
    assert got["BP(relu b)"] == (["Y(b)"], [], ["dY(b)"])
    assert got["BP(relu a)"] == (["Y(a)"], [], ["dY(sum)"])
    require_chain_rule(network)


def test_a_branch_that_reads_a_gradient_and_adds_to_it_needs_a_copy():
    net = NetworkBuilder("short")
    x = net.conv("a", net.input(4, 6, 6), 4, 1)
    net.softmax("loss", net.add("sum", x, net.conv("b", x, 4, 1)))
    network = net.finish(batch=1, source="test")
    got = touched(task_graph(network, 1))
    assert got["BP1(b)"] == (["dY(sum)"], [], ["dY(a)"])
    assert got["copy(dY(a))"] == (["dY(sum)"], ["dY(a)"], [])
    require_chain_rule(network)


def test_meeting_gradients_are_added_by_a_task_when_the_later_one_is_an_additions():
    net = NetworkBuilder("late")
    x = net.conv("a", net.input(4, 6, 6), 4, 1)
    y = net.add("sum", x, net.conv("b", x, 4, 1))
    net.softmax("loss", net.concat("cat", y, x))
    network = net.finish(batch=1, source="test")
    assert touched(task_graph(network, 1))["BP1(sum)"] == (["dY(sum)"], [], ["dY(a)"])
    require_chain_rule(network)


def test_dropout_is_in_place_only_where_nobody_else_reads_its_input():
    net = NetworkBuilder("forked")
    x = net.conv("a", net.input(4, 6, 6), 4, 1)
    net.softmax("loss", net.add("sum", x, net.dropout("drop", x)))
    network = net.finish(batch=1, source="test")
    got = touched(task_graph(network, 1))
    assert got["FP(drop)"] == (["Y(a)"], ["Y(drop)", "M(drop)"], [])
    assert got["BP1(drop)"] == (["dY(sum)", "M(drop)"], [], ["dY(a)"])
    require_chain_rule(network)
