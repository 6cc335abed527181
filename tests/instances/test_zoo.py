"""Parameter counts against public figures, and the totals of the papers.

The accounting of a paper's total is no part of the package and lives here.
"""

import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.network import Network, Shape
from pebbler.instances.zoo import find_network, list_networks

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lenet", 431_080),
        ("cifar10_quick", 145_578),
        ("alexnet", 61_100_840),
        ("overfeat", 145_920_872),
        ("googlenet", 6_998_552),
        ("vgg16", 138_357_544),
        ("vgg19", 143_667_240),
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
    ],
)
def test_parameters(name, parameters):
    assert find_network(name).parameters == parameters


@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet1001", 336.3), ("resnet1172", 394.3), ("resnet1304", 437.7), ("resnet1517", 507.2)],
)
def test_parameters_of_the_deepest_with_the_running_statistics_of_batch_norm(name, millions):
    network = find_network(name)
    running = sum(2 * layer.shape.channels for layer in network.layers if layer.kind == "bn")
    assert round((network.parameters + running) / 1e6, 1) == millions


@pytest.mark.parametrize("name", [name for name in list_networks() if name.startswith(("vgg", "resnet"))])
def test_depth_is_in_the_name(name):
    layers = find_network(name).layers
    depth = sum(layer.kind in ("conv", "fc") and not layer.name.endswith("_proj") for layer in layers)
    assert str(depth) == name.removeprefix("vgg").removeprefix("resnet").removesuffix("b")


@pytest.mark.parametrize("name", list_networks())
def test_every_network_ends_in_its_classes(name):
    network = find_network(name)
    classes = {"lenet": 10, "cifar10_quick": 10, "fcn": 21}.get(name, 1000)
    size = 224 if name == "fcn" else 1
    assert network.layers[-1].shape == Shape(classes, size, size)
    assert network.name == name


@pytest.mark.parametrize(
    ("name", "layer", "shape"),
    [
        ("alexnet", "conv1", (64, 55, 55)),
        ("alexnet", "pool5", (256, 6, 6)),
        ("overfeat", "conv2", (256, 24, 24)),
        ("overfeat", "pool5", (1024, 6, 6)),
        ("googlenet", "3a_concat", (256, 28, 28)),
        ("googlenet", "4e_concat", (832, 14, 14)),
        ("googlenet", "pool4", (832, 7, 7)),
        ("cifar10_quick", "pool3", (64, 4, 4)),
        ("lenet", "pool2", (50, 4, 4)),
        ("vgg16", "pool5", (512, 7, 7)),
        ("resnet50", "pool1", (64, 56, 56)),
        ("resnet50", "res5_3_add", (2048, 7, 7)),
    ],
)
def test_shapes(name, layer, shape):
    assert find_network(name)[layer].shape == shape


def test_bottlenecks_stride_on_their_first_convolution():
    network = find_network("resnet50")
    assert [network[f"res3_1_conv{index}"].stride for index in (1, 2, 3)] == [2, 1, 1]
    assert network["res3_1_proj"].stride == 2


def test_generic_specifications_are_the_named_networks():
    assert find_network("vgg:groups=2-2-3-3-3").layers == find_network("vgg16").layers
    assert find_network("resnet:blocks=3-4-6-3").layers == find_network("resnet50").layers
    assert find_network("resnet:blocks=3-4-6-3,basic=1").layers == find_network("resnet34").layers
    assert find_network("vgg:groups=2-24-64-4-4").layers == find_network("vgg101b").layers


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("vgg61", "there is no network 'vgg61'; close names: .*vgg16"),
        ("zzz", "there is no network 'zzz'; there are lenet,"),
        ("vgg16:groups=1", "vgg16 takes no parameters"),
        ("vgg", "'groups' is ''; give 5 numbers"),
        ("vgg:groups=1-2-3", "'groups' is '1-2-3'; give 5 numbers"),
        ("vgg:groups=1-2-3-4-0", "give 5 numbers of 1 to 9999"),
        ("vgg:groups=1-2-3-4-5,depth=3", "there is no parameter 'depth'; it takes groups"),
        ("resnet:blocks=1-1-1-1,basic=2", "'basic' is '2'; write 0 or 1"),
        ("resnet:blocks=1-1-1-1,blocks=1-1-1-1", "write every parameter once"),
        ("resnet:1-1-1-1", "'1-1-1-1' is wrong"),
    ],
)
def test_wrong_specifications_are_refused(spec, message):
    with pytest.raises(PebblerError, match=message):
        find_network(spec)


def elements(network: Network, *left_out: str) -> int:
    return sum(layer.shape.elements for layer in network.layers if layer.kind not in left_out)


def vdnn_network_wide(network: Network, batch: int) -> float:
    """GiB without workspace: all Y with the input, twice the largest dY, W and dW."""
    largest = max(layer.shape.elements for layer in network.layers if layer.kind != "input")
    return 4 * (batch * (elements(network, "softmax") + 2 * largest) + 2 * network.parameters) / GIB


@pytest.mark.parametrize(
    ("name", "batch", "total"),
    [
        ("vgg16", 256, 21.69),
        ("vgg16", 128, 11.36),
        ("vgg16", 64, 6.20),
        ("vgg16", 32, 3.61),
        ("vgg116", 32, 19.0),
        ("vgg216", 32, 34.4),
        ("vgg316", 32, 49.9),
        ("vgg416", 32, 65.27),
        ("alexnet", 128, 0.99),
    ],
)
def test_network_wide_memory_of_vdnn(name, batch, total):
    assert vdnn_network_wide(find_network(name), batch) == pytest.approx(total, abs=0.05)


def modnn_ideal(name: str) -> float:
    """GB: Y and its derivative per layer with batch norm in place, the input, W and dW."""
    network = find_network(name)
    images = 2 * elements(network, "softmax", "bn") - network["input"].shape.elements
    return 4 * (network.batch * images + 2 * network.parameters) / 1e9


@pytest.mark.parametrize(
    ("name", "total"),
    [("vgg16", 32.2), ("vgg19", 34.9), ("vgg101", 95.5), ("vgg101b", 96.7 * GIB / 1e9), ("resnet152", 73.1)],
)
def test_ideal_memory_of_modnn(name, total):
    assert modnn_ideal(name) == pytest.approx(total, abs=0.05)


@pytest.mark.parametrize(("name", "theirs"), [("resnet34", 11.6), ("fcn", 17.7)])
def test_ideal_memory_of_modnn_that_other_definitions_give(name, theirs):
    """A projection in the first stage of ResNet-34 gives 11.6; FCN's fc6 on one pixel gives 17.7."""
    network = find_network(name)
    change = {"resnet34": 64 * 56 * 56, "fcn": -2 * 4096 * 48 - 21 * 48}[name]
    assert modnn_ideal(name) + 8 * network.batch * change / 1e9 == pytest.approx(theirs, abs=0.05)


def layrub_data_and_gradients(network: Network, batch: int) -> float:
    """GiB: data and gradient of every blob with batch norm in place, a gradient more per reader of a fork."""
    total = 0
    for layer in network.layers:
        if layer.kind in ("bn", "softmax"):
            continue
        blob = layer
        while [reader.kind for reader in network.consumers(blob.name)] == ["bn"]:
            (blob,) = network.consumers(blob.name)
        readers = len(network.consumers(blob.name))
        gradients = 0 if layer.kind == "input" else 1 + (readers if readers > 1 else 0)
        total += layer.shape.elements * (1 + gradients)
    return 4 * batch * total / GIB


@pytest.mark.parametrize(
    ("name", "total"), [("resnet152", 11.61), ("resnet1001", 67.21), ("resnet1517", 100.4)]
)
def test_data_and_gradients_of_layrub(name, total):
    assert layrub_data_and_gradients(find_network(name), 32) == pytest.approx(total, abs=0.05)
