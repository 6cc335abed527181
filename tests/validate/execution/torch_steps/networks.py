"""Six networks of the literature with training steps: their structure in full, narrow and on small inputs.

Each function takes a batch size; losses are in 32 bits, or in 16 by autocast (`lowered`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from pebbler.benchmark.gpu.torch_models import Gpt, ResNet, VisionTransformer

from ....instances.importers.exported import LlamaBlock, RootMeanSquare
from .models import Made


def adamw(module: nn.Module, *, fused: bool = False) -> torch.optim.Optimizer:
    """Return the optimizer; fused for those of many parameters, each of which is one operator then."""
    return torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.1, fused=fused)


def language(module: nn.Module, words: int, batch: int, tokens: int, *, fused: bool = False) -> Made:
    def step(given: Any, following: Any) -> Any:
        return F.cross_entropy(module(given).flatten(0, 1), following.flatten())

    given, following = (torch.randint(words, (batch, tokens)) for _ in range(2))
    return module, step, (given, following), adamw(module, fused=fused)


def images(module: nn.Module, classes: int, batch: int, side: int) -> Made:
    def step(given: Any, labels: Any) -> Any:
        return F.cross_entropy(module(given), labels)

    inputs = torch.randn(batch, 3, side, side), torch.randint(classes, (batch,))
    return module, step, inputs, adamw(module, fused=True)


def gpt2_small(batch: int) -> Made:
    """GPT-2 small: 12 layers and 12 heads, tied embeddings, dropout in four places (Radford et al. 2019)."""
    return language(Gpt(256, 16, 48, 12, 12, dropout=0.1), 256, batch, 16, fused=True)


class Grouped(LlamaBlock):
    heads, groups, size = 8, 2, 8


class Llama(nn.Module):
    def __init__(self, words: int, tokens: int, depth: int) -> None:
        super().__init__()
        width = Grouped.heads * Grouped.size
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Grouped(width, 3 * width) for _ in range(depth))
        self.norm = RootMeanSquare(width)
        self.head = nn.Linear(width, words, bias=False)
        speed = 10000.0 ** (-torch.arange(0, Grouped.size, 2) / Grouped.size)
        angles = torch.arange(tokens)[:, None] * torch.cat((speed, speed))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, given: Any) -> Any:
        x = self.words(given)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def llama(batch: int) -> Made:
    """Four blocks of Llama: RMS norm, rotary positions, grouped queries, SwiGLU (Grattafiori et al. 2024)."""
    return language(Llama(256, 16, 4), 256, batch, 16)


def vit_b(batch: int) -> Made:
    """ViT-B/16: 12 layers and 12 heads on patches and a class token (Dosovitskiy et al. 2021)."""
    return images(VisionTransformer(64, 48, 12, 12, 100), 100, batch, 64)


def resnet50(batch: int) -> Made:
    """ResNet-50: four stages of 3, 4, 6 and 3 bottlenecks with batch norm (He et al. 2016)."""
    return images(ResNet((3, 4, 6, 3), 8, 100), 100, batch, 64)


class Unet(nn.Module):
    """Three levels with two convolutions each on both ways (Ronneberger et al. 2015), with group norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths = [channels, 2 * channels, 4 * channels]
        self.down = nn.ModuleList(
            self._two(before, after) for before, after in zip([3, *widths], widths, strict=False)
        )
        self.middle = self._two(widths[-1], 2 * widths[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in reversed(widths))
        self.joined = nn.ModuleList(self._two(2 * width, width) for width in reversed(widths))
        self.last = nn.Conv2d(channels, 1, 1)

    @staticmethod
    def _two(before: int, after: int) -> nn.Module:
        layers: list[nn.Module] = []
        for width in (before, after):
            layers += [nn.Conv2d(width, after, 3, padding=1), nn.GroupNorm(4, after), nn.SiLU()]
        return nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        left = []
        for down in self.down:
            left.append(down(x))
            x = F.max_pool2d(left[-1], 2)
        x = self.middle(x)
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat((up(x), left.pop()), 1))
        return self.last(x)


def unet(batch: int) -> Made:
    """A U-Net whose largest feature maps have several pages."""
    module = Unet(8)

    def step(given: Any, mask: Any) -> Any:
        return F.binary_cross_entropy_with_logits(module(given), mask)

    return module, step, (torch.randn(batch, 3, 128, 128), torch.rand(batch, 1, 128, 128)), adamw(module)


class Lstm(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.LSTM(width, width, 4, dropout=0.2)
        self.head = nn.Linear(width, words)

    def forward(self, given: Any) -> Any:
        x = self.words(given).transpose(0, 1)
        # In 16 bits, oneDNN has such layers on some processors only, and torch asks for them on all.
        in_half = torch.is_autocast_enabled("cpu")
        with torch.backends.mkldnn.flags(enabled=False) if in_half else nullcontext():
            x = self.layers(x)[0]
        return self.head(x.transpose(0, 1))


def lstm(batch: int) -> Made:
    """A language model of four recurrent layers with dropout between them (Zaremba et al. 2014)."""
    return language(Lstm(256, 64), 256, batch, 16)


def lowered(make: Callable[[int], Made]) -> Callable[[int], Made]:
    """Return the same network with its forward pass in bfloat16 by autocast."""

    def made(batch: int) -> Made:
        module, step, inputs, optimizer = make(batch)

        def in_half(*given: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return step(*given)

        return module, in_half, inputs, optimizer

    return made


NETWORKS: dict[str, Callable[[int], Made]] = {
    make.__name__: make for make in (gpt2_small, llama, vit_b, resnet50, unet, lstm)
}
"""All of them, by name."""
