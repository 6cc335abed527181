"""What the papers print about memory, against the rules; docs/networks.md has the same figures."""

import pytest

from pebbler.instances.networks.accounting import (
    layrub_data_and_gradient,
    layrub_resident,
    modnn_ideal,
    modnn_lower_bound,
    vdnn_network_wide,
)
from pebbler.instances.networks.builder import NetworkBuilder
from pebbler.instances.networks.zoo import find_network
from pebbler.instances.workload import Workload

GIB = 2**30


@pytest.fixture
def forked():
    """A fork behind a batch norm, and a dropout: 5 + 2 x 20 + 3 values, 2 x 5 + 2 + 2 x 5 + 63 parameters."""
    net = NetworkBuilder("forked")
    x = net.bn("norm", net.conv("a", net.input(5, 1, 1), 20, 1, bias=False), relu=True)
    y = net.dropout("drop", net.conv("b", x, 20, 1, bias=False))
    net.softmax("loss", net.fc("c", net.add("sum", x, y), 3))
    return net.finish(batch=1, source="test")


def test_the_rules_by_hand(forked):
    weights = 5 * 20 + 40 + 20 * 20 + 21 * 3
    assert forked.parameters == weights
    assert vdnn_network_wide(forked, 7) == 4 * (7 * (5 + 20 + 20 + 20 + 3 + 2 * 20) + 2 * weights)
    assert modnn_ideal(forked, 7) == 4 * (7 * (5 + 2 * (20 + 20 + 20 + 3)) + 2 * weights)
    # The map of a is read by b and by the sum: a gradient for each, and their sum.
    assert layrub_data_and_gradient(forked, 7) == 4 * 7 * (5 + 20 * 4 + 20 * 2 + 20 * 2 + 3 * 2)


@pytest.mark.parametrize(
    ("name", "batch", "gib"),
    [
        ("vgg16", 256, 21.69),
        ("vgg16", 128, 11.36),
        ("vgg16", 64, 6.20),
        ("vgg16", 32, 3.61),
        ("vgg116", 32, 19.03),
        ("vgg216", 32, 34.44),
        ("vgg316", 32, 49.85),
        ("vgg416", 32, 65.27),
        ("alexnet", 128, 0.99),
    ],
)
def test_network_wide_memory_of_vdnn(name, batch, gib):
    assert vdnn_network_wide(find_network(name), batch) / GIB == pytest.approx(gib, abs=0.005)


def test_vdnn_prints_how_much_four_hundred_layers_add():
    """62.2 GB, from 4.9 to 67.1: without the workspace, which does not grow, 61.7 GiB."""
    added = vdnn_network_wide(find_network("vgg416"), 32) - vdnn_network_wide(find_network("vgg16"), 32)
    assert added / GIB == pytest.approx(62.2, rel=0.01)


def test_vdnn_offloads_the_16_gb_that_it_prints():
    """The inputs of all layers before the classifier, each once."""
    network = find_network("vgg16")
    read = {x for layer in network.layers if layer.kind.name in ("conv", "maxpool") for x in layer.inputs}
    assert 4 * 256 * sum(network[x].shape.elements for x in read) / 1e9 == pytest.approx(16, abs=0.5)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("vgg16", 32.2), ("vgg19", 34.9), ("vgg101", 95.5), ("vgg101b", 103.8), ("resnet152", 73.1)],
)
def test_ideal_memory_of_modnn(name, gigabytes):
    network = find_network(name)
    assert modnn_ideal(network, network.batch) / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(("name", "theirs"), [("resnet34", 11.6), ("fcn", 17.7)])
def test_ideal_memory_of_modnn_that_other_definitions_give(name, theirs):
    """A projection in the first stage of ResNet-34 gives 11.6; FCN's fc6 on one pixel gives 17.7."""
    network = find_network(name)
    change = {"resnet34": 64 * 56 * 56, "fcn": -2 * 4096 * 48 - 21 * 48}[name]
    total = modnn_ideal(network, network.batch) + 8 * network.batch * change
    assert total / 1e9 == pytest.approx(theirs, abs=0.05)


@pytest.mark.parametrize("name", ["vgg16", "googlenet_bvlc", "resnet152", "fcn"])
def test_the_lower_bound_of_modnn_is_the_least_budget_of_one_image(name):
    floor = Workload(name, 8, "K40", graph="paper").floor()
    assert 0 <= floor - modnn_lower_bound(find_network(name)) < 8 * 512


def test_modnn_saves_59_times_on_average():
    names = ("vgg16", "vgg19", "vgg101b", "resnet34", "resnet152", "fcn")
    networks = [find_network(name) for name in names]
    ratios = [modnn_ideal(network, network.batch) / modnn_lower_bound(network) for network in networks]
    assert round(sum(ratios) / len(ratios)) == 59


@pytest.mark.parametrize(("name", "gib"), [("resnet152", 11.61), ("resnet1001", 67.2), ("resnet1517", 100.4)])
def test_data_and_gradients_of_layrub(name, gib):
    assert layrub_data_and_gradient(find_network(name), 32) / GIB == pytest.approx(gib, abs=0.05)


def test_layrubs_figure_for_vgg19_is_that_of_vgg16():
    """Table 1 prints 7.24 GB for VGG-19 (64)."""
    vgg16, vgg19 = (layrub_data_and_gradient(find_network(name), 64) / GIB for name in ("vgg16", "vgg19"))
    assert vgg16 == pytest.approx(7.24, abs=0.02)
    assert vgg19 == pytest.approx(7.85, abs=0.01)


def test_layrub_saves_98_9_percent_of_resnet1001():
    data = layrub_data_and_gradient(find_network("resnet1001"), 32)
    assert 1 - 759.5 * 2**20 / data == pytest.approx(0.989, abs=0.0005)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("resnet695", 5968),
        ("resnet1001", 7901),
        ("resnet1172", 9022),
        ("resnet1304", 9872),
        ("resnet1517", 11239),
    ],
)
def test_the_fit_to_layrubs_table_6_predicts_deeper_networks(name, printed):
    assert layrub_resident(find_network(name)) / 2**20 == pytest.approx(printed, rel=0.0015)
