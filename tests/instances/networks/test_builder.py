import networkx as nx
import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.networks.builder import NetworkBuilder
from pebbler.instances.networks.network import Shape


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


def test_normalisations_keep_statistics(net):
    net.conv("c", "input", 8, 1)
    net.layer_norm("layer", "c")
    net.rms_norm("rms", "layer")
    network = finish(net, net.group_norm("group", "rms", 4))
    sizes = {name: (network[name].parameters, network[name].saved) for name in ("layer", "rms", "group")}
    assert sizes == {"layer": (16, 2 * 32 * 32), "rms": (8, 32 * 32), "group": (16, 2 * 4)}
    assert not network.has_batch_norm


def test_linear_layers_take_the_channels_of_all_sources(net):
    net.conv("c", "input", 8, 1)
    layer = finish(net, net.linear("l", "c", "input", outputs=5))["l"]
    assert layer.shape == Shape(5, 32, 32)
    assert layer.parameters == (8 + 3 + 1) * 5


def test_attention_from_one_source_and_from_three():
    net = NetworkBuilder("test")
    text = net.input(6, 10, 1, name="text")
    x = net.linear("qkv", net.input(4, 7, 1), outputs=12)
    x = net.attention("one", x, heads=2, causal=True)
    keys, values = net.linear("k", text, outputs=2), net.linear("v", text, outputs=2)
    x = net.attention("three", x, keys, values, heads=2, groups=1)
    network = finish(net, x)
    one, three = network["one"], network["three"]
    assert (one.shape, one.saved, one.products) == (Shape(4, 7, 1), 14, 4 * 7 * 7)
    assert (three.shape, three.saved, three.products) == (Shape(4, 7, 1), 14, 2 * 4 * 7 * 10)


def test_experts_get_as_many_slots_each_and_have_weights_of_their_own():
    net = NetworkBuilder("test")
    x = net.input(6, 10, 1)
    shares = net.route("shares", net.linear("router", x, outputs=4, bias=False))
    y = net.dispatch("sent", x, shares, slots=3)
    y = net.combine("back", net.experts("up", y, outputs=5, experts=4), shares)
    network = finish(net, y)
    assert (network["shares"].shape, network["shares"].saved) == (Shape(4, 10, 1), 4 * 10)
    assert (network["sent"].shape, network["sent"].saved) == (Shape(6, 4 * 3, 1), 4 * 3)
    assert (network["up"].shape, network["up"].parameters) == (Shape(5, 4 * 3, 1), 4 * 6 * 5)
    assert network["back"].shape == Shape(5, 10, 1)


def test_attention_with_stored_scores():
    net = NetworkBuilder("test")
    net.input(4, 7, 1)
    text = net.linear("v", net.input(6, 10, 1, name="text"), outputs=4)
    x = net.rowsoftmax("rows", net.scores("scores", "input", text, heads=2))
    network = finish(net, net.context("context", x, text))
    assert network["scores"].shape == network["rows"].shape == Shape(2, 7, 10)
    assert network["context"].shape == Shape(4, 7, 1)
    assert network["scores"].products == network["context"].products == 4 * 7 * 10


def test_positions_and_their_tokens(net):
    layer = finish(net, net.position("p", "input", extra=2))["p"]
    assert layer.shape == Shape(3, 1026, 1)
    assert layer.parameters == 3 * (2 + 1026)


def test_average_pooling_takes_the_whole_map_by_default(net):
    assert finish(net, net.avgpool("p", "input"))["p"].shape == Shape(3, 1, 1)


def test_a_value_a_channel_is_added_everywhere(net):
    net.fc("f", "input", 3)
    assert finish(net, net.add("sum", "input", "f"))["sum"].shape == Shape(3, 32, 32)


def test_tied_layers_have_no_weights_of_their_own(net):
    net.conv("a", "input", 3, 1)
    network = finish(net, net.conv("b", "a", 3, 1, tied="a"))
    assert network["b"].tied == "a"
    assert network.parameters == network["a"].parameters == 12


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
        (lambda net: net.add("s", net.fc("f", "input", 3), "input"), "differ in shape"),
        (lambda net: net.multiply("m", "input", net.fc("f", "input", 3)), "differ in shape"),
        (lambda net: net.linear("l", "input", net.fc("f", "input", 3), outputs=2), "in height or width"),
        (lambda net: net.group_norm("g", "input", 2), "2 groups do not divide 3 channels"),
        (lambda net: net.embedding("e", "input", 9, 2), "'input' is no input of one channel"),
        (lambda net: net.attention("a", "input", heads=2), r"2 \+ 2 x 2 heads do not divide"),
        (lambda net: net.scores("a", "input", net.fc("f", "input", 3), heads=2), "2 heads do not divide 3"),
        (lambda net: net.context("a", "input", net.fc("f", "input", 3)), "differ in tokens or heads"),
        (
            lambda net: net.dispatch("d", "input", net.fc("f", "input", 2), slots=1),
            "'input' and 'f' differ in positions",
        ),
        (
            lambda net: net.dispatch("d", "input", net.linear("l", "input", outputs=2), slots=1025),
            "an expert cannot get 1025 of 1024 positions; give fewer slots",
        ),
        (lambda net: net.experts("e", "input", outputs=2, experts=3), "3 experts do not divide 1024 posit"),
        (
            lambda net: net.combine("c", "input", net.linear("l", "input", outputs=3)),
            "3 experts do not divide 1024 positions of 'input'",
        ),
        (lambda net: net.lstm_cell("c", "input", net.fc("f", "input", 3)), "not the four gates of 'f'"),
        (lambda net: net.conv("c", "input", 3, 1, tied="d"), "'d' has no weights of its own of that size"),
        (lambda net: net.conv("c", "input", 3, 1, tied="input"), "'input' has no weights of its own"),
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
