"""Caffe's kernels: their configurations, their durations, and the layers of Table 5."""

from __future__ import annotations

import pytest

from glp4nn_cases import LENET_LOG
from pebbler.instances.devices.caffe import TABLE_5, buffer_bytes, caffe_kernels, find_layer
from pebbler.instances.devices.device import Device, find_device, list_devices
from pebbler.instances.devices.roofline import Convolution
from pebbler.instances.errors import PebblerError
from pebbler.instances.networks.zoo import find_network


@pytest.fixture
def k40() -> Device:
    return find_device("K40")


def grids(device: Device, name: str, which: str) -> dict[str, int]:
    layer = caffe_kernels(device, find_layer(name).conv, which)  # type: ignore[arg-type]
    return {kernel.name: kernel.blocks * kernel.invocations for kernel in layer.kernels}


def test_lenet_conv1_has_the_configurations_of_the_authors_profile(k40: Device) -> None:
    """``NVPROF`` in the history of their repository, on a K40c; there, sgemm has 276 bytes more.

    GLP4NN, section 3.1, prints 33 registers and CaffeNet's grid of 18 for im2col.
    """
    lenet = Convolution(64, 1, 20, 28, 28, 24, 24, 5, 5, 1, 0)
    layer = caffe_kernels(k40, lenet, "forward")
    told = [(k.name, k.blocks, k.threads, k.shared_bytes, k.registers) for k in layer.kernels]
    assert told == [("im2col", 2, 512, 0, 33), ("sgemm", 9, 256, 8192, 71), ("gemmk1", 18, 256, 272, 12)]
    assert [(k.grid, k.registers) for k in LENET_LOG.kernels] == [
        (k.grid, k.registers) for k in layer.kernels
    ]
    assert grids(k40, "caffenet/conv1", "forward") == {"im2col": 18, "sgemm": 2 * 48, "gemmk1": 3 * 95}


def test_a_1x1_convolution_is_not_lowered(k40: Device) -> None:
    conv = find_layer("googlenet/conv_2").conv
    assert list(grids(k40, "googlenet/conv_2", "forward")) == ["sgemm", "gemmk1"]
    assert buffer_bytes(conv) == 0


def test_backward_is_the_weights_gradient_and_then_the_inputs(k40: Device) -> None:
    found = grids(k40, "caffenet/conv3", "backward")
    assert list(found) == ["gemv", "im2col", "sgemm_dw", "sgemm_dx", "col2im"]
    assert found["col2im"] == -(-256 * 13 * 13 // 512)
    assert found["sgemm_dw"] == 256 * 9 // 32 * (384 // 64)
    assert found["sgemm_dx"] == -(-169 // 64) * (256 * 9 // 64)


def test_every_group_has_a_product_of_its_own(k40: Device) -> None:
    grouped = caffe_kernels(k40, find_layer("caffenet:grouped=1/conv2").conv, "forward")
    assert {kernel.name: kernel.invocations for kernel in grouped.kernels} == {
        "im2col": 1,
        "sgemm": 2,
        "gemmk1": 1,
    }


def test_the_layers_of_the_table_are_those_of_the_networks() -> None:
    """CaffeNet without groups, CIFAR10 and both Siamese branches by name; GoogLeNet's by their shapes."""
    names = {"caffenet": "caffenet:grouped=0", "cifar10": "cifar10_quick", "siamese": "siamese"}
    assert len(TABLE_5) == 18
    for layer in TABLE_5:
        network, _, name = layer.name.partition("/")
        if network in names:
            described = find_network(names[network])
            assert (described[name].shape, described.batch) == (
                (layer.conv.out_channels, layer.conv.out_height, layer.conv.out_width),
                layer.conv.batch,
            )
            assert find_layer(f"{names[network]}/{name}").conv == layer.conv
    units = {
        "conv_1": "5a_3x3",
        "conv_2": "5a_5x5_reduce",
        "conv_3": "5b_1x1",
        "conv_4": "5b_3x3",
        "conv_5": "5b_3x3_reduce",
        "conv_6": "5b_5x5_reduce",
    }
    for row, unit in units.items():
        assert find_layer(f"googlenet_bvlc/{unit}", 32).conv == find_layer(f"googlenet/{row}").conv


def test_the_buffer_is_the_lowered_sample() -> None:
    assert find_layer("caffenet/conv1").buffer_bytes == 4 * 3 * 11 * 11 * 55 * 55


@pytest.mark.parametrize(
    "device", [d for d in list_devices() if d.architecture != "cdna3"], ids=lambda device: device.name
)
def test_durations_are_no_less_than_the_work_of_the_device(device: Device) -> None:
    for layer in TABLE_5:
        for which in ("forward", "backward"):
            for kernel in caffe_kernels(device, layer.conv, which).kernels:  # type: ignore[arg-type]
                assert kernel.work_ns is not None
                assert kernel.duration_ns >= kernel.work_ns * (kernel.blocks / device.multiprocessors) - 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("conv1", "write network/layer, such as caffenet/conv1"),
        ("cifar10/conv9", "there is no layer 'cifar10/conv9'; try conv1, conv2, conv3"),
        ("vgg16/conv1", "no convolution 'conv1'; try conv"),
        ("googlenet/conv_7", "no convolution 'conv_7'; try conv_6"),
        ("vgg17/conv1_1", "there is no network 'vgg17'"),
    ],
)
def test_a_layer_that_is_not_there_is_refused_with_close_ones(name: str, said: str) -> None:
    with pytest.raises(PebblerError, match=said):
        find_layer(name)


def test_the_batch_can_be_another_one() -> None:
    assert find_layer("caffenet/conv1", 8).conv.batch == 8
    assert find_layer("vgg16/conv1_1").conv.batch == 256
