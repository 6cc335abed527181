"""The networks of the papers, by name or by a generic specification such as ``vgg:groups=2-2-3-3-3``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from .errors import PebblerError
from .network import Network, NetworkBuilder

_VGG = "Simonyan and Zisserman 2015; without dropout, as in soumith/convnet-benchmarks"
_RESNET = "He et al. 2016, v1: the stride on the first 1x1 convolution of a block"
_VDNN = "vDNN (MICRO 2016), section IV-C: VGG-16 with 20 more convolutions a group for every 100 layers"
_MODNN = "moDNN (TPDS 2019), section 7: 98 convolutions; their split into groups is not printed"
_LAYRUB = "Layrub (TACO 2018), Table 6: ResNet v1 of that depth"
_INFERRED = f"{_LAYRUB}; its split into blocks is inferred"


@lru_cache(maxsize=64)
def find_network(spec: str) -> Network:
    """Return the network that a specification names.

    Parameters
    ----------
    spec
        A name of `list_networks`, or a generic one with its parameters: ``vgg:groups=2-24-64-4-4``
        (convolutions in each group), ``resnet:blocks=3-83-416-3`` (bottleneck blocks in each stage) or
        ``resnet:blocks=2-2-2-2,basic=1`` (blocks of two 3x3 convolutions).

    Raises
    ------
    PebblerError
        When there is no such network, with close names, or when a parameter is wrong.
    """
    name, colon, rest = spec.partition(":")
    if name in _GENERIC:
        entry = _GENERIC[name](spec, _parse_parameters(spec, rest))
    elif name not in _NAMED:
        close = difflib.get_close_matches(name, [*_NAMED, *_GENERIC], n=3)
        hint = f"close names: {', '.join(close)}" if close else f"there are {', '.join([*_NAMED, *_GENERIC])}"
        raise PebblerError(f"there is no network '{name}'; {hint}")
    elif colon:
        raise PebblerError(f"network '{spec}': {name} takes no parameters; write {name}")
    else:
        entry = _NAMED[name]
    builder = NetworkBuilder(spec)
    entry.define(builder)
    return builder.finish(batch=entry.batch, source=entry.source)


def list_networks() -> tuple[str, ...]:
    """Names of all networks that take no parameters."""
    return tuple(_NAMED)


@dataclass(frozen=True, slots=True)
class _Entry:
    define: Callable[[NetworkBuilder], None]
    batch: int
    source: str


def _lenet(net: NetworkBuilder) -> None:
    x = net.conv("conv1", net.input(1, 28, 28), 20, 5)
    x = net.maxpool("pool1", x, 2, stride=2, ceil=True)
    x = net.conv("conv2", x, 50, 5)
    x = net.maxpool("pool2", x, 2, stride=2, ceil=True)
    x = net.fc("ip1", x, 500, relu=True)
    net.softmax("loss", net.fc("ip2", x, 10))


def _cifar10_quick(net: NetworkBuilder) -> None:
    x = net.conv("conv1", net.input(3, 32, 32), 32, 5, pad=2)
    x = net.maxpool("pool1", x, 3, stride=2, ceil=True, relu=True)
    x = net.conv("conv2", x, 32, 5, pad=2, relu=True)
    x = net.avgpool("pool2", x, 3, stride=2, ceil=True)
    x = net.conv("conv3", x, 64, 5, pad=2, relu=True)
    x = net.avgpool("pool3", x, 3, stride=2, ceil=True)
    net.softmax("loss", net.fc("ip2", net.fc("ip1", x, 64), 10))


def _alexnet(net: NetworkBuilder) -> None:
    x = net.conv("conv1", net.input(3, 224, 224), 64, 11, stride=4, pad=2, relu=True)
    x = net.maxpool("pool1", x, 3, stride=2)
    x = net.conv("conv2", x, 192, 5, pad=2, relu=True)
    x = net.maxpool("pool2", x, 3, stride=2)
    x = net.conv("conv3", x, 384, 3, pad=1, relu=True)
    x = net.conv("conv4", x, 256, 3, pad=1, relu=True)
    x = net.conv("conv5", x, 256, 3, pad=1, relu=True)
    x = net.maxpool("pool5", x, 3, stride=2)
    _classifier(net, x, (4096, 4096, 1000))


def _overfeat(net: NetworkBuilder) -> None:
    x = net.conv("conv1", net.input(3, 231, 231), 96, 11, stride=4, relu=True)
    x = net.maxpool("pool1", x, 2, stride=2)
    x = net.conv("conv2", x, 256, 5, relu=True)
    x = net.maxpool("pool2", x, 2, stride=2)
    x = net.conv("conv3", x, 512, 3, pad=1, relu=True)
    x = net.conv("conv4", x, 1024, 3, pad=1, relu=True)
    x = net.conv("conv5", x, 1024, 3, pad=1, relu=True)
    x = net.maxpool("pool5", x, 2, stride=2)
    _classifier(net, x, (3072, 4096, 1000))


def _classifier(net: NetworkBuilder, x: str, widths: Sequence[int]) -> None:
    """Fully connected layers 6, 7 and 8, a ReLU between them, and the loss."""
    for index, width in enumerate(widths):
        x = net.fc(f"fc{index + 6}", x, width, relu=index < len(widths) - 1)
    net.softmax("loss", x)


def _vgg_trunk(net: NetworkBuilder, groups: Sequence[int]) -> str:
    x = net.input(3, 224, 224)
    for group, (count, channels) in enumerate(zip(groups, (64, 128, 256, 512, 512), strict=True), start=1):
        for index in range(1, count + 1):
            x = net.conv(f"conv{group}_{index}", x, channels, 3, pad=1, relu=True)
        x = net.maxpool(f"pool{group}", x, 2, stride=2)
    return x


def _vgg(groups: Sequence[int], net: NetworkBuilder) -> None:
    _classifier(net, _vgg_trunk(net, groups), (4096, 4096, 1000))


def _fcn(net: NetworkBuilder) -> None:
    """FCN-32s at 224: the classifier as convolutions, 21 classes a pixel, one 32-fold upsampling."""
    x = net.conv("fc6", _vgg_trunk(net, (2, 2, 3, 3, 3)), 4096, 7, pad=3, relu=True)
    x = net.conv("fc7", x, 4096, 1, relu=True)
    x = net.conv("score", x, 21, 1)
    net.softmax("loss", net.deconv("upscore", x, 21, 64, stride=32, pad=16, bias=False))


def _resnet(blocks: Sequence[int], basic: bool, net: NetworkBuilder) -> None:
    x = _conv_bn(net, "conv1", net.input(3, 224, 224), 64, 7, stride=2, relu=True)
    x = net.maxpool("pool1", x, 3, stride=2, ceil=True)
    channels = 64
    for stage, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True), start=2):
        wide = width if basic else 4 * width
        for index in range(1, count + 1):
            name = f"res{stage}_{index}"
            stride = 2 if stage > 2 and index == 1 else 1
            shortcut = x
            if stride > 1 or channels != wide:
                shortcut = _conv_bn(net, f"{name}_proj", x, wide, 1, stride=stride)
            if basic:
                x = _conv_bn(net, f"{name}_conv1", x, width, 3, stride=stride, relu=True)
                x = _conv_bn(net, f"{name}_conv2", x, wide, 3)
            else:
                x = _conv_bn(net, f"{name}_conv1", x, width, 1, stride=stride, relu=True)
                x = _conv_bn(net, f"{name}_conv2", x, width, 3, relu=True)
                x = _conv_bn(net, f"{name}_conv3", x, wide, 1)
            x = net.add(f"{name}_add", shortcut, x, relu=True)
            channels = wide
    x = net.avgpool("pool5", x, 7, stride=1)
    net.softmax("loss", net.fc("fc1000", x, 1000))


def _conv_bn(
    net: NetworkBuilder, name: str, x: str, channels: int, kernel: int, *, stride: int = 1, relu: bool = False
) -> str:
    x = net.conv(name, x, channels, kernel, stride=stride, pad=kernel // 2, bias=False)
    return net.bn(f"{name}_bn", x, relu=relu)


def _googlenet(net: NetworkBuilder) -> None:
    x = net.conv("conv1", net.input(3, 224, 224), 64, 7, stride=2, pad=3, relu=True)
    x = net.maxpool("pool1", x, 3, stride=2, ceil=True)
    x = net.conv("conv2_reduce", x, 64, 1, relu=True)
    x = net.conv("conv2", x, 192, 3, pad=1, relu=True)
    x = net.maxpool("pool2", x, 3, stride=2, ceil=True)
    x = _inception(net, "3a", x, 64, (96, 128), (16, 32), 32)
    x = _inception(net, "3b", x, 128, (128, 192), (32, 96), 64)
    x = net.maxpool("pool3", x, 3, stride=2, ceil=True)
    x = _inception(net, "4a", x, 192, (96, 208), (16, 48), 64)
    x = _inception(net, "4b", x, 160, (112, 224), (24, 64), 64)
    x = _inception(net, "4c", x, 128, (128, 256), (24, 64), 64)
    x = _inception(net, "4d", x, 112, (144, 288), (32, 64), 64)
    x = _inception(net, "4e", x, 256, (160, 320), (32, 128), 128)
    x = net.maxpool("pool4", x, 3, stride=2, ceil=True)
    x = _inception(net, "5a", x, 256, (160, 320), (32, 128), 128)
    x = _inception(net, "5b", x, 384, (192, 384), (48, 128), 128)
    x = net.dropout("drop5", net.avgpool("pool5", x, 7, stride=1))
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


def _vgg_entry(groups: Sequence[int], batch: int, source: str) -> _Entry:
    return _Entry(partial(_vgg, groups), batch, source)


def _resnet_entry(blocks: Sequence[int], batch: int, source: str, *, basic: bool = False) -> _Entry:
    return _Entry(partial(_resnet, blocks, basic), batch, source)


def _generic_vgg(spec: str, parameters: dict[str, str]) -> _Entry:
    groups = _take_counts(spec, parameters, "groups", 5)
    _require_empty(spec, parameters, "groups")
    return _vgg_entry(groups, 32, _VGG)


def _generic_resnet(spec: str, parameters: dict[str, str]) -> _Entry:
    blocks = _take_counts(spec, parameters, "blocks", 4)
    basic = parameters.pop("basic", "0")
    if basic not in ("0", "1"):
        raise PebblerError(f"network '{spec}': 'basic' is '{basic}'; write 0 or 1")
    _require_empty(spec, parameters, "blocks and basic")
    return _resnet_entry(blocks, 32, _RESNET, basic=basic == "1")


def _parse_parameters(spec: str, text: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for item in text.split(",") if text else ():
        key, equals, value = item.partition("=")
        if not equals or key in parameters:
            raise PebblerError(
                f"network '{spec}': '{item}' is wrong; write every parameter once, as key=value"
            )
        parameters[key] = value
    return parameters


def _take_counts(spec: str, parameters: dict[str, str], key: str, length: int) -> tuple[int, ...]:
    """Take a parameter of `length` positive numbers with hyphens between them."""
    text = parameters.pop(key, "")
    if not re.fullmatch(rf"[1-9]\d{{0,3}}(-[1-9]\d{{0,3}}){{{length - 1}}}", text):
        example = "-".join("2" * length)
        raise PebblerError(
            f"network '{spec}': '{key}' is '{text}'; give {length} numbers of 1 to 9999 as {key}={example}"
        )
    return tuple(map(int, text.split("-")))


def _require_empty(spec: str, parameters: dict[str, str], known: str) -> None:
    if parameters:
        raise PebblerError(f"network '{spec}': there is no parameter '{min(parameters)}'; it takes {known}")


_NAMED: dict[str, _Entry] = {
    "lenet": _Entry(_lenet, 64, "BVLC Caffe, examples/mnist"),
    "cifar10_quick": _Entry(_cifar10_quick, 100, "BVLC Caffe, examples/cifar10"),
    "alexnet": _Entry(
        _alexnet, 128, "Krizhevsky 2014 (one tower); without dropout, as in convnet-benchmarks"
    ),
    "overfeat": _Entry(_overfeat, 128, "Sermanet et al. 2013, fast model; as in soumith/convnet-benchmarks"),
    "googlenet": _Entry(
        _googlenet,
        128,
        "Szegedy et al. 2015; without LRN and auxiliary heads, as in soumith/convnet-benchmarks",
    ),
    "vgg16": _vgg_entry((2, 2, 3, 3, 3), 256, _VGG),
    "vgg19": _vgg_entry((2, 2, 4, 4, 4), 256, _VGG),
    "vgg101": _vgg_entry((12, 12, 24, 25, 25), 128, f"{_MODNN}; 12-12-24-25-25, the even recipe"),
    "vgg101b": _vgg_entry((2, 24, 64, 4, 4), 128, f"{_MODNN}; 2-24-64-4-4 fits its 1.4 GB"),
    "vgg116": _vgg_entry((22, 22, 23, 23, 23), 32, _VDNN),
    "vgg216": _vgg_entry((42, 42, 43, 43, 43), 32, _VDNN),
    "vgg316": _vgg_entry((62, 62, 63, 63, 63), 32, _VDNN),
    "vgg416": _vgg_entry((82, 82, 83, 83, 83), 32, _VDNN),
    "fcn": _Entry(
        _fcn, 128, "Long et al. 2015, FCN-32s at 224; fc6 is padded by 3 in place of conv1_1 by 100"
    ),
    "resnet18": _resnet_entry((2, 2, 2, 2), 256, _RESNET, basic=True),
    "resnet34": _resnet_entry((3, 4, 6, 3), 256, _RESNET, basic=True),
    "resnet50": _resnet_entry((3, 4, 6, 3), 32, _RESNET),
    "resnet101": _resnet_entry((3, 4, 23, 3), 32, _RESNET),
    "resnet152": _resnet_entry((3, 8, 36, 3), 256, _RESNET),
    "resnet302": _resnet_entry((3, 15, 79, 3), 32, _INFERRED),
    "resnet695": _resnet_entry((3, 37, 188, 3), 32, _INFERRED),
    "resnet1001": _resnet_entry((3, 57, 270, 3), 32, _LAYRUB),
    "resnet1172": _resnet_entry((3, 64, 320, 3), 32, _LAYRUB),
    "resnet1304": _resnet_entry((3, 71, 357, 3), 32, _LAYRUB),
    "resnet1517": _resnet_entry((3, 83, 416, 3), 32, _LAYRUB),
}
_GENERIC: dict[str, Callable[[str, dict[str, str]], _Entry]] = {
    "vgg": _generic_vgg,
    "resnet": _generic_resnet,
}
