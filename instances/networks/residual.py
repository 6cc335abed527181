"""Residual networks of convolutions: ResNet, wide ResNet, ConvNeXt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..errors import PebblerError
from .builder import NetworkBuilder
from .entry import Entry, counts, flag, number

_RESNET = "He et al. 2016, v1: the stride on the first 1x1 convolution of a block"
_LAYRUB = "Layrub (TACO 2018), Table 6: ResNet v1 of that depth"
_INFERRED = f"{_LAYRUB}; its split into blocks is inferred"
_WIDE = "Zagoruyko and Komodakis 2016, without dropout"


def _resnet(
    net: NetworkBuilder, blocks: Sequence[int], basic: bool = False, size: int = 224, stride_3x3: bool = False
) -> None:
    """ResNet v1; with `stride_3x3` a bottleneck's stride is on its 3x3 convolution, as in Torch."""
    x = _conv_bn(net, "conv1", net.input(3, size, size), 64, 7, stride=2, relu=True)
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
                first, second = (1, stride) if stride_3x3 else (stride, 1)
                x = _conv_bn(net, f"{name}_conv1", x, width, 1, stride=first, relu=True)
                x = _conv_bn(net, f"{name}_conv2", x, width, 3, stride=second, relu=True)
                x = _conv_bn(net, f"{name}_conv3", x, wide, 1)
            x = net.add(f"{name}_add", shortcut, x, relu=True)
            channels = wide
    x = net.avgpool("pool5", x)
    net.softmax("loss", net.fc("fc1000", x, 1000))


def _preactivated_resnet(net: NetworkBuilder, blocks: Sequence[int], size: int = 224) -> None:
    """Bottlenecks behind their batch norms, the stride on the 3x3 convolution.

    The first block of a stage normalises before its shortcut branches off, other blocks after that; the first
    block of all does not normalise again.
    """
    x = _conv_bn(net, "conv1", net.input(3, size, size), 64, 7, stride=2, relu=True)
    x = net.maxpool("pool1", x, 3, stride=2, ceil=True)
    for stage, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True), start=2):
        for index in range(1, count + 1):
            name = f"res{stage}_{index}"
            stride = 2 if stage > 2 and index == 1 else 1
            y = x if stage == 2 and index == 1 else net.bn(f"{name}_bn", x, relu=True)
            if index == 1:
                x = net.conv(f"{name}_proj", y, 4 * width, 1, stride=stride, bias=False)
            y = _conv_bn(net, f"{name}_conv1", y, width, 1, relu=True)
            y = _conv_bn(net, f"{name}_conv2", y, width, 3, stride=stride, relu=True)
            x = net.add(f"{name}_add", x, net.conv(f"{name}_conv3", y, 4 * width, 1, bias=False))
    x = net.avgpool("pool5", net.bn("bn5", x, relu=True))
    net.softmax("loss", net.fc("fc1000", x, 1000))


def _cifar_resnet(net: NetworkBuilder, depth: int = 56) -> None:
    """Three stages of basic blocks; shortcuts subsample and pad with zeros (option A)."""
    blocks, rest = divmod(depth - 2, 6)
    if rest or not blocks:
        raise PebblerError(f"a CIFAR ResNet has 6 n + 2 layers, not {depth}; try 20, 56 or 110")
    x = _conv_bn(net, "conv1", net.input(3, 32, 32), 16, 3, relu=True)
    for stage, width in enumerate((16, 32, 64), start=2):
        for index in range(1, blocks + 1):
            name = f"res{stage}_{index}"
            stride = 2 if stage > 2 and index == 1 else 1
            shortcut = x
            x = _conv_bn(net, f"{name}_conv1", x, width, 3, stride=stride, relu=True)
            x = _conv_bn(net, f"{name}_conv2", x, width, 3)
            if stride > 1:
                shortcut = net.resample(f"{name}_short", shortcut, net.shape(x))
            x = net.add(f"{name}_add", shortcut, x, relu=True)
    net.softmax("loss", net.fc("fc10", net.avgpool("pool5", x), 10))


def _wide_resnet(net: NetworkBuilder, depth: int, width: int) -> None:
    """Blocks of two 3x3 convolutions behind their batch norms, on 32 x 32 images."""
    blocks = (depth - 2) // 6
    if blocks < 1 or depth not in (6 * blocks + 2, 6 * blocks + 4):
        raise PebblerError(f"a wide ResNet has 6 n + 4 layers, or 6 n + 2, not {depth}; try 16 or 28")
    x = net.conv("conv1", net.input(3, 32, 32), 16, 3, pad=1, bias=False)
    channels = 16
    for stage, narrow in enumerate((16, 32, 64), start=2):
        for index in range(1, blocks + 1):
            name, wide = f"res{stage}_{index}", narrow * width
            stride = 2 if stage > 2 and index == 1 else 1
            y = net.bn(f"{name}_bn1", x, relu=True)
            if stride > 1 or channels != wide:
                x = net.conv(f"{name}_proj", y, wide, 1, stride=stride, bias=False)
            y = _conv_bn(net, f"{name}_conv1", y, wide, 3, stride=stride, relu=True)
            y = net.conv(f"{name}_conv2", y, wide, 3, pad=1, bias=False)
            x = net.add(f"{name}_add", x, y)
            channels = wide
    x = net.avgpool("pool5", net.bn("bn5", x, relu=True))
    net.softmax("loss", net.fc("fc10", x, 10))


def _conv_bn(
    net: NetworkBuilder, name: str, x: str, channels: int, kernel: int, *, stride: int = 1, relu: bool = False
) -> str:
    x = net.conv(name, x, channels, kernel, stride=stride, pad=kernel // 2, bias=False)
    return net.bn(f"{name}_bn", x, relu=relu)


def _convnext(
    net: NetworkBuilder, blocks: Sequence[int], widths: Sequence[int] = (96, 192, 384, 768), size: int = 224
) -> None:
    x = net.input(3, size, size)
    for stage, (count, width) in enumerate(zip(blocks, widths, strict=True), start=1):
        if stage == 1:
            x = net.layer_norm("stem_norm", net.conv("stem", x, width, 4, stride=4))
        else:
            x = net.conv(f"down{stage}", net.layer_norm(f"down{stage}_norm", x), width, 2, stride=2)
        for index in range(1, count + 1):
            name = f"block{stage}_{index}"
            y = net.conv(f"{name}_depthwise", x, width, 7, pad=3, groups=width)
            y = net.layer_norm(f"{name}_norm", y)
            y = net.gelu(f"{name}_gelu", net.linear(f"{name}_wide", y, outputs=4 * width))
            y = net.scale(f"{name}_scale", net.linear(f"{name}_narrow", y, outputs=width))
            x = net.add(f"{name}_add", x, y)
    x = net.layer_norm("norm", net.avgpool("pool", x))
    net.softmax("loss", net.fc("head", x, 1000))


_SIZED = {"size": number}
_COUNTS = {"blocks": counts(4)}


def _resnet_entry(blocks: Sequence[int], batch: int, source: str, *, basic: bool = False) -> Entry:
    parameters = _SIZED if basic else {**_SIZED, "stride_3x3": flag}
    return Entry(partial(_resnet, blocks=blocks, basic=basic), batch, source, parameters)


def _wide_entry(depth: int, width: int, source: str) -> Entry:
    return Entry(partial(_wide_resnet, depth=depth, width=width), 128, source)


RESIDUAL: dict[str, Entry] = {
    "resnet18": _resnet_entry((2, 2, 2, 2), 256, _RESNET, basic=True),
    "resnet34": _resnet_entry((3, 4, 6, 3), 256, _RESNET, basic=True),
    "resnet50": _resnet_entry((3, 4, 6, 3), 32, _RESNET),
    "resnet101": _resnet_entry((3, 4, 23, 3), 32, _RESNET),
    "resnet152": _resnet_entry((3, 8, 36, 3), 256, _RESNET),
    "resnet200": Entry(
        partial(_preactivated_resnet, blocks=(3, 24, 36, 3)),
        32,
        "He et al. 2016, Identity Mappings; as in facebook/fb.resnet.torch, models/preresnet.lua",
        _SIZED,
    ),
    "resnet302": _resnet_entry((3, 15, 79, 3), 32, _INFERRED),
    "resnet695": _resnet_entry((3, 37, 188, 3), 32, _INFERRED),
    "resnet1001": _resnet_entry((3, 57, 270, 3), 32, _LAYRUB),
    "resnet1172": _resnet_entry((3, 64, 320, 3), 32, _LAYRUB),
    "resnet1304": _resnet_entry((3, 71, 357, 3), 32, _LAYRUB),
    "resnet1517": _resnet_entry((3, 83, 416, 3), 32, _LAYRUB),
    "resnet": Entry(
        _resnet, 32, _RESNET, {**_COUNTS, "basic": flag, **_SIZED, "stride_3x3": flag}, ("blocks",)
    ),
    "resnet56": Entry(
        _cifar_resnet,
        256,
        "He et al. 2016, section 4.2: CIFAR-10, shortcuts without weights",
        {"depth": number},
    ),
    "wrn16_8": _wide_entry(16, 8, _WIDE),
    "wrn28_10": _wide_entry(28, 10, _WIDE),
    "wrn8_128": _wide_entry(8, 128, f"{_WIDE}; Layrub's depth of 8 read as 6 n + 2, a guess"),
    "wrn8_256": _wide_entry(8, 256, f"{_WIDE}; Layrub's depth of 8 read as 6 n + 2, a guess"),
    "wrn": Entry(_wide_resnet, 128, _WIDE, {"depth": number, "width": number}, ("depth", "width")),
    "convnext_t": Entry(
        partial(_convnext, blocks=(3, 3, 9, 3)),
        256,
        "Liu et al. 2022, ConvNeXt-T; no stochastic depth",
        _SIZED,
    ),
    "convnext": Entry(
        _convnext,
        256,
        "Liu et al. 2022; no stochastic depth",
        {**_COUNTS, "widths": counts(4), **_SIZED},
        ("blocks",),
    ),
}
