"""Densely connected networks of convolutions: DenseNet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .builder import NetworkBuilder
from .entry import Entry, counts, number

_SOURCE = "Huang et al. 2017, DenseNet-BC for ImageNet, Table 1"


def _densenet(net: NetworkBuilder, blocks: Sequence[int], growth: int = 32, size: int = 224) -> None:
    """Every layer of a block reads what all layers before it in the block made, and adds `growth` channels.

    A layer is a 1x1 and a 3x3 convolution, each behind its batch norm. Each concatenation is a tensor of its
    own, as in Torch, so that a block of n layers takes memory in n^2. Between blocks, the channels and each
    side are halved.
    """
    x = net.conv("conv0", net.input(3, size, size), 2 * growth, 7, stride=2, pad=3, bias=False)
    x = net.maxpool("pool0", net.bn("bn0", x, relu=True), 3, stride=2, pad=1)
    for block, count in enumerate(blocks, start=1):
        for index in range(1, count + 1):
            name = f"dense{block}_{index}"
            y = net.conv(f"{name}_conv1", net.bn(f"{name}_bn1", x, relu=True), 4 * growth, 1, bias=False)
            y = net.bn(f"{name}_bn2", y, relu=True)
            y = net.conv(f"{name}_conv2", y, growth, 3, pad=1, bias=False)
            x = net.concat(f"{name}_concat", x, y)
        if block < len(blocks):
            half = net.shape(x).channels // 2
            x = net.conv(f"down{block}", net.bn(f"down{block}_bn", x, relu=True), half, 1, bias=False)
            x = net.avgpool(f"down{block}_pool", x, 2, stride=2)
    x = net.avgpool("pool", net.bn("bn", x, relu=True))
    net.softmax("loss", net.fc("fc", x, 1000))


def _entry(blocks: Sequence[int], growth: int = 32) -> Entry:
    return Entry(partial(_densenet, blocks=blocks, growth=growth), 256, _SOURCE, {"size": number})


DENSE: dict[str, Entry] = {
    "densenet121": _entry((6, 12, 24, 16)),
    "densenet169": _entry((6, 12, 32, 32)),
    "densenet201": _entry((6, 12, 48, 32)),
    "densenet161": _entry((6, 12, 36, 24), growth=48),
    "densenet": Entry(
        _densenet, 256, _SOURCE, {"blocks": counts(4), "growth": number, "size": number}, ("blocks",)
    ),
}
