"""Networks of stacked convolutions: LeNet to GoogLeNet and VGG."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .builder import NetworkBuilder
from .entry import Entry, counts, flag, number

_VGG = "Simonyan and Zisserman 2015; without dropout, as in soumith/convnet-benchmarks"
_VDNN = "vDNN (MICRO 2016), section IV-C: VGG-16 with 20 more convolutions a group for every 100 layers"
_MODNN = "moDNN (TPDS 2019), section 7: 98 convolutions; their split into groups is not printed"


def _lenet(net: NetworkBuilder) -> None:
    x = _lenet_trunk(net, net.input(1, 28, 28))
    net.softmax("loss", net.fc("ip2", x, 10))


def _siamese(net: NetworkBuilder) -> None:
    """Two LeNets that share their weights, and a contrastive loss on the two features."""
    ends = []
    for suffix in ("", "_p"):
        x = _lenet_trunk(net, net.input(1, 28, 28, name=f"input{suffix}"), suffix)
        for name, width in (("ip2", 10), ("feat", 2)):
            x = net.fc(f"{name}{suffix}", x, width, tied=name if suffix else None)
        ends.append(x)
    net.loss("loss", *ends)


def _lenet_trunk(net: NetworkBuilder, x: str, suffix: str = "") -> str:
    """Layers up to the first fully connected one; a second trunk has the weights of the first."""
    for index, channels in ((1, 20), (2, 50)):
        name = f"conv{index}"
        x = net.conv(f"{name}{suffix}", x, channels, 5, tied=name if suffix else None)
        x = net.maxpool(f"pool{index}{suffix}", x, 2, stride=2, ceil=True)
    return net.fc(f"ip1{suffix}", x, 500, relu=True, tied="ip1" if suffix else None)


def _cifar10_quick(net: NetworkBuilder) -> None:
    x = net.conv("conv1", net.input(3, 32, 32), 32, 5, pad=2)
    x = net.maxpool("pool1", x, 3, stride=2, ceil=True, relu=True)
    x = net.conv("conv2", x, 32, 5, pad=2, relu=True)
    x = net.avgpool("pool2", x, 3, stride=2, ceil=True)
    x = net.conv("conv3", x, 64, 5, pad=2, relu=True)
    x = net.avgpool("pool3", x, 3, stride=2, ceil=True)
    net.softmax("loss", net.fc("ip2", net.fc("ip1", x, 64), 10))


def _alexnet(net: NetworkBuilder, size: int = 224) -> None:
    x = net.conv("conv1", net.input(3, size, size), 64, 11, stride=4, pad=2, relu=True)
    x = net.maxpool("pool1", x, 3, stride=2)
    x = net.conv("conv2", x, 192, 5, pad=2, relu=True)
    x = net.maxpool("pool2", x, 3, stride=2)
    x = net.conv("conv3", x, 384, 3, pad=1, relu=True)
    x = net.conv("conv4", x, 256, 3, pad=1, relu=True)
    x = net.conv("conv5", x, 256, 3, pad=1, relu=True)
    x = net.maxpool("pool5", x, 3, stride=2)
    _classifier(net, x, (4096, 4096, 1000))


def _caffe_alexnet(pool_first: bool, net: NetworkBuilder, size: int = 227, grouped: bool = True) -> None:
    """The two towers of 2012 as grouped convolutions; CaffeNet pools before it normalises."""
    groups = 2 if grouped else 1
    x = net.conv("conv1", net.input(3, size, size), 96, 11, stride=4, relu=True)
    x = _pool_and_lrn(net, "1", x, pool_first)
    x = net.conv("conv2", x, 256, 5, pad=2, groups=groups, relu=True)
    x = _pool_and_lrn(net, "2", x, pool_first)
    x = net.conv("conv3", x, 384, 3, pad=1, relu=True)
    x = net.conv("conv4", x, 384, 3, pad=1, groups=groups, relu=True)
    x = net.conv("conv5", x, 256, 3, pad=1, groups=groups, relu=True)
    x = net.maxpool("pool5", x, 3, stride=2, ceil=True)
    _classifier(net, x, (4096, 4096, 1000), dropout=True)


def _pool_and_lrn(net: NetworkBuilder, index: str, x: str, pool_first: bool) -> str:
    if pool_first:
        return net.lrn(f"norm{index}", net.maxpool(f"pool{index}", x, 3, stride=2, ceil=True))
    return net.maxpool(f"pool{index}", net.lrn(f"norm{index}", x), 3, stride=2, ceil=True)


def _overfeat(net: NetworkBuilder, size: int = 231) -> None:
    x = net.conv("conv1", net.input(3, size, size), 96, 11, stride=4, relu=True)
    x = net.maxpool("pool1", x, 2, stride=2)
    x = net.conv("conv2", x, 256, 5, relu=True)
    x = net.maxpool("pool2", x, 2, stride=2)
    x = net.conv("conv3", x, 512, 3, pad=1, relu=True)
    x = net.conv("conv4", x, 1024, 3, pad=1, relu=True)
    x = net.conv("conv5", x, 1024, 3, pad=1, relu=True)
    x = net.maxpool("pool5", x, 2, stride=2)
    _classifier(net, x, (3072, 4096, 1000))


def _classifier(net: NetworkBuilder, x: str, widths: Sequence[int], dropout: bool = False) -> None:
    """Fully connected layers 6, 7 and 8, a ReLU between them, and the loss."""
    for index, width in enumerate(widths):
        last = index == len(widths) - 1
        x = net.fc(f"fc{index + 6}", x, width, relu=not last)
        if dropout and not last:
            x = net.dropout(f"drop{index + 6}", x)
    net.softmax("loss", x)


def vgg_trunk(
    net: NetworkBuilder, x: str, groups: Sequence[int], *, width: int = 64, pad: int = 1, ceil: bool = False
) -> str:
    """Add VGG's convolutions in five groups, each with a pooling; `width` and `pad` are the first one's."""
    for group, (count, times) in enumerate(zip(groups, (1, 2, 4, 8, 8), strict=True), start=1):
        for index in range(1, count + 1):
            x = net.conv(f"conv{group}_{index}", x, times * width, 3, pad=pad, relu=True)
            pad = 1
        x = net.maxpool(f"pool{group}", x, 2, stride=2, ceil=ceil)
    return x


def _vgg(net: NetworkBuilder, groups: Sequence[int], size: int = 224, dense: int = 4096) -> None:
    _classifier(net, vgg_trunk(net, net.input(3, size, size), groups), (dense, dense, 1000))


def _googlenet(bvlc: bool, net: NetworkBuilder, size: int = 224, lrn: bool = False) -> None:
    """BVLC's has local response normalisation and two auxiliary classifiers; `lrn` adds the former alone."""
    lrn = lrn or bvlc
    x = net.conv("conv1", net.input(3, size, size), 64, 7, stride=2, pad=3, relu=True)
    x = net.maxpool("pool1", x, 3, stride=2, ceil=True)
    if lrn:
        x = net.lrn("norm1", x)
    x = net.conv("conv2_reduce", x, 64, 1, relu=True)
    x = net.conv("conv2", x, 192, 3, pad=1, relu=True)
    if lrn:
        x = net.lrn("norm2", x)
    x = net.maxpool("pool2", x, 3, stride=2, ceil=True)
    x = _inception(net, "3a", x, 64, (96, 128), (16, 32), 32)
    x = _inception(net, "3b", x, 128, (128, 192), (32, 96), 64)
    x = net.maxpool("pool3", x, 3, stride=2, ceil=True)
    x = _inception(net, "4a", x, 192, (96, 208), (16, 48), 64)
    if bvlc:
        _auxiliary(net, "loss1", x)
    x = _inception(net, "4b", x, 160, (112, 224), (24, 64), 64)
    x = _inception(net, "4c", x, 128, (128, 256), (24, 64), 64)
    x = _inception(net, "4d", x, 112, (144, 288), (32, 64), 64)
    if bvlc:
        _auxiliary(net, "loss2", x)
    x = _inception(net, "4e", x, 256, (160, 320), (32, 128), 128)
    x = net.maxpool("pool4", x, 3, stride=2, ceil=True)
    x = _inception(net, "5a", x, 256, (160, 320), (32, 128), 128)
    x = _inception(net, "5b", x, 384, (192, 384), (48, 128), 128)
    x = net.dropout("drop5", net.avgpool("pool5", x))
    net.softmax("loss", net.fc("fc", x, 1000))


def _inception(
    net: NetworkBuilder,
    name: str,
    x: str,
    one: int,
    three: tuple[int, int],
    five: tuple[int, int],
    pool: int,
) -> str:
    a = net.conv(f"{name}_1x1", x, one, 1, relu=True)
    b = net.conv(f"{name}_3x3_reduce", x, three[0], 1, relu=True)
    b = net.conv(f"{name}_3x3", b, three[1], 3, pad=1, relu=True)
    c = net.conv(f"{name}_5x5_reduce", x, five[0], 1, relu=True)
    c = net.conv(f"{name}_5x5", c, five[1], 5, pad=2, relu=True)
    d = net.maxpool(f"{name}_pool", x, 3, stride=1, pad=1)
    d = net.conv(f"{name}_pool_proj", d, pool, 1, relu=True)
    return net.concat(f"{name}_concat", a, b, c, d)


def _auxiliary(net: NetworkBuilder, name: str, x: str) -> None:
    x = net.avgpool(f"{name}_pool", x, 5, stride=3, ceil=True)
    x = net.conv(f"{name}_conv", x, 128, 1, relu=True)
    x = net.dropout(f"{name}_drop", net.fc(f"{name}_fc", x, 1024, relu=True))
    net.softmax(name, net.fc(f"{name}_classifier", x, 1000))


_SIZED = {"size": number}


def _vgg_entry(groups: Sequence[int], batch: int, source: str) -> Entry:
    return Entry(partial(_vgg, groups=groups), batch, source, _SIZED)


CLASSIC: dict[str, Entry] = {
    "lenet": Entry(_lenet, 64, "BVLC Caffe, examples/mnist"),
    "cifar10_quick": Entry(_cifar10_quick, 100, "BVLC Caffe, examples/cifar10"),
    "siamese": Entry(_siamese, 64, "BVLC Caffe, examples/siamese: two LeNets with one set of weights"),
    "alexnet": Entry(
        _alexnet, 128, "Krizhevsky 2014 (one tower); without dropout, as in convnet-benchmarks", _SIZED
    ),
    "alexnet_caffe": Entry(
        partial(_caffe_alexnet, False),
        256,
        "Krizhevsky et al. 2012, as in BVLC Caffe, models/bvlc_alexnet; grouped=0 drops the groups",
        {**_SIZED, "grouped": flag},
    ),
    "caffenet": Entry(
        partial(_caffe_alexnet, True),
        256,
        "BVLC Caffe, models/bvlc_reference_caffenet; grouped=0 drops the groups, as in GLP4NN (ICPP 2018)",
        {**_SIZED, "grouped": flag},
    ),
    "overfeat": Entry(
        _overfeat, 128, "Sermanet et al. 2013, fast model; as in soumith/convnet-benchmarks", _SIZED
    ),
    "googlenet": Entry(
        partial(_googlenet, False),
        128,
        "Szegedy et al. 2015; without LRN and auxiliary heads, as in soumith/convnet-benchmarks",
        {**_SIZED, "lrn": flag},
    ),
    "googlenet_bvlc": Entry(
        partial(_googlenet, True),
        32,
        "Szegedy et al. 2015, as in BVLC Caffe, models/bvlc_googlenet: with LRN and auxiliary heads",
        _SIZED,
    ),
    "vgg16": _vgg_entry((2, 2, 3, 3, 3), 256, _VGG),
    "vgg19": _vgg_entry((2, 2, 4, 4, 4), 256, _VGG),
    "vgg101": _vgg_entry((12, 12, 24, 25, 25), 128, f"{_MODNN}; 12-12-24-25-25, the even recipe"),
    "vgg101b": _vgg_entry((2, 24, 64, 4, 4), 128, f"{_MODNN}; 2-24-64-4-4 fits its 1.4 GB"),
    "vgg116": _vgg_entry((22, 22, 23, 23, 23), 32, _VDNN),
    "vgg216": _vgg_entry((42, 42, 43, 43, 43), 32, _VDNN),
    "vgg316": _vgg_entry((62, 62, 63, 63, 63), 32, _VDNN),
    "vgg416": _vgg_entry((82, 82, 83, 83, 83), 32, _VDNN),
    "vgg": Entry(_vgg, 32, _VGG, {"groups": counts(5), **_SIZED, "dense": number}, ("groups",)),
}
