import networkx as nx
import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.network import NetworkBuilder, Shape


@pytest.fixture
def net() -> NetworkBuilder:
    builder = NetworkBuilder("test")
    builder.input(3, 32, 32)
    return builder


def finish(net: NetworkBuilder, last: str):
    net.softmax("loss", last)
    return net.finish(batch=1, source="test")


def test_convolution_shape_and_parameters(net):
    layer = finish(net, net.conv("c", "input", 8, 5, stride=2, pad=1))["c"]
    assert layer.shape == Shape(8, 15, 15)
    assert layer.parameters == 3 * 8 * 25 + 8


def test_grouped_convolution_without_biases(net):
    net.conv("a", "input", 8, 1)
    layer = finish(net, net.conv("b", "a", 16, 3, pad=1, groups=4, bias=False))["b"]
    assert layer.shape == Shape(16, 32, 32)
    assert layer.parameters == 2 * 16 * 9


def test_transposed_convolution_undoes_a_strided_one(net):
    net.conv("down", "input", 8, 4, stride=4)
    layer = finish(net, net.deconv("up", "down", 5, 8, stride=4, pad=2))["up"]
    assert layer.shape == Shape(5, 32, 32)
    assert layer.parameters == 8 * 5 * 64 + 5


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "ceil", "size"),
    [
        (3, 2, 0, False, 15),
        (3, 2, 0, True, 16),
        (2, 2, 0, True, 16),
        (3, 1, 1, True, 32),
        (2, 3, 1, True, 11),  # a twelfth window would start in the padding, where Caffe drops it
        (1, 3, 1, True, 11),
    ],
)
def test_pooling_windows(net, kernel, stride, pad, ceil, size):
    net.maxpool("p", "input", kernel, stride=stride, pad=pad, ceil=ceil)
    assert finish(net, "p")["p"].shape == Shape(3, size, size)


def test_fully_connected_flattens_its_input(net):
    layer = finish(net, net.fc("f", "input", 10))["f"]
    assert layer.shape == Shape(10, 1, 1)
    assert layer.parameters == 3 * 32 * 32 * 10 + 10


def test_batch_norm_has_a_scale_and_a_shift(net):
    network = finish(net, net.bn("n", "input"))
    assert network["n"].parameters == 6
    assert network.has_batch_norm


def test_concatenation_and_addition(net):
    net.conv("a", "input", 4, 1)
    net.conv("b", "input", 4, 1)
    net.add("sum", "a", "b", relu=True)
    network = finish(net, net.concat("cat", "sum", "input"))
    assert network["cat"].shape == Shape(7, 32, 32)
    assert network["sum"].shape == Shape(4, 32, 32)
    assert [layer.name for layer in network.consumers("input")] == ["a", "b", "cat"]
    assert not network.has_batch_norm


def test_layers_come_in_the_order_of_their_definition(net):
    net.conv("z", "input", 4, 1)
    net.conv("a", "input", 4, 1)
    net.add("m", "z", "a")
    assert [layer.name for layer in finish(net, "m").layers] == ["input", "z", "a", "m", "loss"]


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda net: net.conv("input", "input", 4, 1), "'input': the name is used twice"),
        (lambda net: net.conv("c", "nowhere", 4, 1), "no layer 'nowhere'"),
        (lambda net: net.conv("c", "input", 4, 33), "a window of 33 does not fit into 32"),
        (lambda net: net.conv("c", "input", 4, 1, groups=2), "2 groups do not divide 3 and 4 channels"),
        (lambda net: net.deconv("d", "input", 4, 1, stride=1, pad=16), "a padding of 16 leaves no output"),
        (lambda net: net.add("s", "input", "input"), "it reads a layer twice"),
        (lambda net: net.add("s", "input", net.conv("c", "input", 4, 1)), "differ in shape"),
        (lambda net: net.concat("s", "input", net.conv("c", "input", 4, 2)), "differ in height or width"),
    ],
)
def test_wrong_layers_are_refused(net, define, message):
    with pytest.raises(PebblerError, match=message):
        define(net)


def test_every_path_ends_in_a_loss(net):
    net.softmax("loss", net.conv("c", "input", 4, 1))
    net.conv("loose", "input", 4, 1)
    with pytest.raises(PebblerError, match="'loose': every path ends in exactly one loss"):
        net.finish(batch=1, source="test")


def test_a_network_does_not_change(net):
    network = finish(net, "input")
    with pytest.raises(nx.NetworkXError):
        network.graph.add_node("more")
