"""Networks whose output is a map: FCN, U-Net and the denoising U-Net of latent diffusion."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import PebblerError
from .builder import NetworkBuilder
from .classic import vgg_trunk
from .entry import Entry, number
from .network import Shape

_GROUPS = (2, 2, 3, 3, 3)


def _fcn32s(net: NetworkBuilder, size: int = 224, width: int = 64) -> None:
    """The classifier as convolutions, 21 classes a pixel, one 32-fold upsampling."""
    x = vgg_trunk(net, net.input(3, size, size), _GROUPS, width=width)
    x = net.conv("fc6", x, 64 * width, 7, pad=3, relu=True)
    x = net.conv("fc7", x, 64 * width, 1, relu=True)
    x = net.conv("score", x, 21, 1)
    net.softmax("loss", net.deconv("upscore", x, 21, 64, stride=32, pad=16, bias=False))


def _fcn8s(net: NetworkBuilder, size: int = 500, width: int = 64) -> None:
    """Padded by 100, with scores of the third and the fourth pooling added, all cropped to fit."""
    image = net.input(3, size, size)
    x = vgg_trunk(net, image, _GROUPS, width=width, pad=100, ceil=True)
    x = net.dropout("drop6", net.conv("fc6", x, 64 * width, 7, relu=True))
    x = net.dropout("drop7", net.conv("fc7", x, 64 * width, 1, relu=True))
    x = net.conv("score_fr", x, 21, 1)
    for pool in (4, 3):
        x = net.deconv(f"upscore{pool}", x, 21, 4, stride=2, pad=0, bias=False)
        y = net.conv(f"score_pool{pool}", f"pool{pool}", 21, 1)
        x = net.add(f"fuse_pool{pool}", x, net.resample(f"crop_pool{pool}", y, net.shape(x)))
    x = net.deconv("upscore8", x, 21, 16, stride=8, pad=0, bias=False)
    net.softmax("loss", net.resample("score", x, Shape(21, size, size)))


def _unet(net: NetworkBuilder, size: int = 572, width: int = 64) -> None:
    """Convolutions without padding: 572 x 572 pixels in, 388 x 388 out; `width` is that of the first."""
    x = net.input(1, size, size)
    skips = []
    for level in range(5):
        if level:
            skips.append(x)
            x = net.maxpool(f"down{level}", x, 2, stride=2)
        x = _two_convolutions(net, f"left{level}", x, width << level)
    for level in reversed(range(4)):
        x = net.deconv(f"up{level}", x, width << level, 2, stride=2, pad=0)
        skip = net.resample(f"crop{level}", skips.pop(), net.shape(x))
        x = net.concat(f"join{level}", skip, x)
        x = _two_convolutions(net, f"right{level}", x, width << level)
    net.softmax("loss", net.conv("score", x, 2, 1))


def _two_convolutions(net: NetworkBuilder, name: str, x: str, channels: int) -> str:
    for index in (1, 2):
        x = net.conv(f"{name}_{index}", x, channels, 3, relu=True)
    return x


class _Denoiser:
    """Builds the U-Net of latent diffusion (Rombach et al. 2022), as Stable Diffusion 1.5 has it."""

    def __init__(self, net: NetworkBuilder, widths: Sequence[int], heads: int) -> None:
        self.net = net
        self.widths = widths
        self.heads = heads
        self.time = ""
        self.text = ""

    def build(self, size: int) -> None:
        net, first = self.net, self.widths[0]
        x = net.input(4, size, size)
        self.text = net.input(768, 77, 1, name="text")
        t = net.fc("time1", net.input(first, 1, 1, name="time"), 4 * first)
        t = net.fc("time2", net.silu("time_silu", t), 4 * first)
        self.time = net.silu("time_out", t)
        x = net.conv("conv_in", x, first, 3, pad=1)
        skips = [x]
        last = len(self.widths) - 1
        for level, width in enumerate(self.widths):
            for index in range(2):
                x = self.block(f"down{level}_{index}", x, width, attend=level < last)
                skips.append(x)
            if level < last:
                x = net.conv(f"down{level}_half", x, width, 3, stride=2, pad=1)
                skips.append(x)
        x = self.block("middle1", x, self.widths[-1], attend=True)
        x = self.residual("middle2", x, self.widths[-1])
        for level, width in reversed(list(enumerate(self.widths))):
            for index in range(3):
                x = net.concat(f"up{level}_{index}_join", x, skips.pop())
                x = self.block(f"up{level}_{index}", x, width, attend=level < last)
            if level:
                _, height, other = net.shape(x)
                x = net.resample(f"up{level}_twice", x, Shape(width, 2 * height, 2 * other))
                x = net.conv(f"up{level}_conv", x, width, 3, pad=1)
        x = net.silu("out_silu", net.group_norm("out_norm", x, 32))
        x = net.conv("conv_out", x, 4, 3, pad=1)
        net.loss("loss", x, net.input(4, size, size, name="noise"))

    def block(self, name: str, x: str, width: int, *, attend: bool) -> str:
        x = self.residual(f"{name}_res", x, width)
        return self.transformer(f"{name}_attn", x) if attend else x

    def residual(self, name: str, x: str, width: int) -> str:
        net, shortcut = self.net, x
        y = net.silu(f"{name}_silu1", net.group_norm(f"{name}_norm1", x, 32))
        y = net.conv(f"{name}_conv1", y, width, 3, pad=1)
        y = net.add(f"{name}_shift", y, net.fc(f"{name}_time", self.time, width))
        y = net.silu(f"{name}_silu2", net.group_norm(f"{name}_norm2", y, 32))
        y = net.conv(f"{name}_conv2", y, width, 3, pad=1)
        if net.shape(x).channels != width:
            shortcut = net.conv(f"{name}_short", x, width, 1)
        return net.add(f"{name}_add", shortcut, y)

    def transformer(self, name: str, x: str) -> str:
        net, width = self.net, self.net.shape(x).channels
        y = net.conv(f"{name}_in", net.group_norm(f"{name}_norm", x, 32), width, 1)
        y = self.attend(f"{name}_self", y, None)
        y = self.attend(f"{name}_cross", y, self.text)
        z = net.layer_norm(f"{name}_mlp_norm", y)
        gate = net.gelu(f"{name}_gelu", net.linear(f"{name}_gate", z, outputs=4 * width))
        z = net.multiply(f"{name}_gated", net.linear(f"{name}_wide", z, outputs=4 * width), gate)
        y = net.add(f"{name}_mlp_add", y, net.linear(f"{name}_narrow", z, outputs=width))
        return net.add(f"{name}_add", x, net.conv(f"{name}_out", y, width, 1))

    def attend(self, name: str, x: str, context: str | None) -> str:
        net, width = self.net, self.net.shape(x).channels
        y = net.layer_norm(f"{name}_norm", x)
        sources = (y, context or y, context or y)
        heads = [
            net.linear(f"{name}_{role}", source, outputs=width, bias=False)
            for role, source in zip(("query", "key", "value"), sources, strict=True)
        ]
        y = net.attention(name, *heads, heads=self.heads)
        return net.add(f"{name}_add", x, net.linear(f"{name}_out", y, outputs=width))


def _sd15_unet(net: NetworkBuilder, size: int = 64) -> None:
    if size % 8:
        raise PebblerError(
            f"the diffusion U-Net halves its maps three times; a size of {size} is no multiple of 8"
        )
    _Denoiser(net, (320, 640, 1280, 1280), 8).build(size)


_SIZED = {"size": number}
_SCALED = {**_SIZED, "width": number}
MAPS: dict[str, Entry] = {
    "fcn": Entry(
        _fcn32s,
        128,
        "Long et al. 2015, FCN-32s at 224; fc6 is padded by 3 in place of conv1_1 by 100",
        _SCALED,
    ),
    "fcn8s": Entry(_fcn8s, 1, "Long et al. 2015, FCN-8s as published: conv1_1 is padded by 100", _SCALED),
    "unet": Entry(_unet, 1, "Ronneberger et al. 2015: 572 to 388 pixels, 64 to 1024 channels", _SCALED),
    "sd15_unet": Entry(
        _sd15_unet,
        4,
        "Rombach et al. 2022, the U-Net of Stable Diffusion 1.5 on 64 x 64 latents; no checkpointing",
        _SIZED,
    ),
}
