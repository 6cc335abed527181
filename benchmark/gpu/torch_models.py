"""Models in plain torch, from their definitions only, as examples and tests for ``--torch``.

Functions such as ``gpt2`` and ``resnet50`` take a batch size and return ``(module, step, inputs)``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.checkpoint import checkpoint

Made = tuple[nn.Module, Callable[..., Any], tuple[torch.Tensor, ...]]
"""A module, its training step and its inputs."""


class Block(nn.Module):
    """A transformer block with the norms first (Radford et al. 2019)."""

    def __init__(self, width: int, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output; shapes (batch, tokens, width)."""
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        rate = self.dropout.p if self.training else 0.0
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=self.causal)
        x = x + self.dropout(self.project(seen.transpose(1, 2).reshape(batch, tokens, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    """A language model with tied embeddings (Radford et al. 2019)."""

    def __init__(
        self, words: int, context: int, width: int, depth: int, heads: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, True, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a score for every next word; shapes (batch, tokens) and (batch, tokens, words)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.words(tokens) + self.places(places))
        return self.head(self.norm(self.blocks(x)))


class Bottleneck(nn.Module):
    """A residual block of 1x1, 3x3 and 1x1 convolutions, ReLU in place (He et al. 2016, v1)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, stride, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if channels != 4 * width:
            self.shortcut.append(nn.Conv2d(channels, 4 * width, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output; shapes (batch, channels, height, width)."""
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        y += self.shortcut(x)
        return self.relu(y)


class ResNet(nn.Sequential):
    """A residual network with blocks in stages that halve the image from the second on."""

    def __init__(self, blocks: tuple[int, ...], width: int, classes: int) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]
        channels = width
        for stage, count in enumerate(blocks):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                layers.append(Bottleneck(channels, width << stage, stride))
                channels = 4 * (width << stage)
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class VisionTransformer(nn.Module):
    """A transformer on patches of 16 x 16 pixels and a class token (Dosovitskiy et al. 2021)."""

    def __init__(self, side: int, width: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (side // 16) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads, False, 0.0) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a score for every class; shapes (batch, 3, side, side) and (batch, classes)."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class RootMeanSquare(nn.Module):
    """A division by the root mean square, written out as in transformers (Zhang and Sennrich 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return vectors of the same shape."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class LlamaBlock(nn.Module):
    """Rotary positions, keys and values for groups of heads, a gated MLP (Grattafiori et al. 2024)."""

    def __init__(self, width: int, hidden: int, heads: int, groups: int) -> None:
        super().__init__()
        self.size = width // heads
        self.shared = heads // groups
        keys = groups * self.size
        self.norm1, self.norm2 = RootMeanSquare(width), RootMeanSquare(width)
        self.query, self.key, self.value, self.project = (
            nn.Linear(width, outputs, bias=False) for outputs in (width, keys, keys, width)
        )
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Return vectors of the same shape; cos and sin have a row a token."""
        batch, tokens, _ = x.shape
        y = self.norm1(x)
        query, key, value = (
            layer(y).view(batch, tokens, -1, self.size).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        query, key = (part * cos + self._half_turned(part) * sin for part in (query, key))
        key, value = (self._repeated(part) for part in (key, value))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, tokens, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    @staticmethod
    def _half_turned(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), -1)

    def _repeated(self, x: torch.Tensor) -> torch.Tensor:
        batch, groups, tokens, size = x.shape
        return x[:, :, None].expand(batch, groups, self.shared, tokens, size).reshape(batch, -1, tokens, size)


class Llama(nn.Module):
    """Blocks of Llama between an embedding and a product with weights of its own."""

    def __init__(
        self, words: int, tokens: int, width: int, hidden: int, depth: int, heads: int, groups: int
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, hidden, heads, groups) for _ in range(depth))
        self.norm = RootMeanSquare(width)
        self.head = nn.Linear(width, words, bias=False)
        size = width // heads
        speed = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.arange(tokens)[:, None] * torch.cat((speed, speed))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a score for every next word; shapes (batch, tokens) and (batch, tokens, words)."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


class Unet(nn.Module):
    """Levels with two convolutions each on both ways (Ronneberger et al. 2015), with group norm and SiLU."""

    def __init__(self, channels: int, levels: int) -> None:
        super().__init__()
        widths = [channels << level for level in range(levels)]
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

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return one map an image; shapes (batch, 3, side, side) and (batch, 1, side, side)."""
        x, left = images, []
        for down in self.down:
            left.append(down(x))
            x = F.max_pool2d(left[-1], 2)
        x = self.middle(x)
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat((up(x), left.pop()), 1))
        return self.last(x)


class Lstm(nn.Module):
    """A language model of recurrent layers with dropout behind each (Zaremba et al. 2014).

    Each layer is a module of its own, and so an operator: one for all layers needs the memory of all at once.
    """

    def __init__(self, words: int, width: int, depth: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(nn.LSTM(width, width) for _ in range(depth))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a score for every next word; shapes (batch, tokens) and (batch, tokens, words)."""
        x = self.words(tokens).transpose(0, 1)
        # In 16 bits, oneDNN has such layers on some processors only, and torch asks for them on all.
        in_half = torch.is_autocast_enabled("cpu")
        with torch.backends.mkldnn.flags(enabled=False) if in_half else nullcontext():
            for layer in self.layers:
                x = self.dropout(layer(x)[0])
        return self.head(x.transpose(0, 1))


class Recomputed(nn.Module):
    """A part whose feature maps are computed again in the backward pass (Chen et al. 2016)."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        """Return the part's output."""
        return checkpoint(self.part, *given, use_reentrant=False)


def gpt2(batch: int) -> Made:
    """GPT-2 small with 1024 tokens, without dropout."""
    return language_step(Gpt(50257, 1024, 768, 12, 12), batch, 1024)


def resnet50(batch: int) -> Made:
    """ResNet-50 on 224 x 224 pixels."""
    return image_step(ResNet((3, 4, 6, 3), 64, 1000), batch, 224)


def llama(batch: int) -> Made:
    """Four blocks as those of Llama 3.2 1B between 32000 words, on 1024 tokens."""
    return language_step(Llama(32000, 1024, 2048, 8192, 4, 32, 8), batch, 1024)


def vit_b(batch: int) -> Made:
    """ViT-B/16 on 224 x 224 pixels."""
    return image_step(VisionTransformer(224, 768, 12, 12, 1000), batch, 224)


def vit_l(batch: int) -> Made:
    """ViT-L/16 on 224 x 224 pixels."""
    return image_step(VisionTransformer(224, 1024, 24, 16, 1000), batch, 224)


def unet(batch: int) -> Made:
    """A U-Net of three levels from 32 channels on, on 512 x 512 pixels."""
    return mask_step(Unet(32, 3), batch, 512)


def lstm(batch: int) -> Made:
    """Four recurrent layers of 1024 units between 10000 words, on 256 tokens, without dropout."""
    return language_step(Lstm(10000, 1024, 4), batch, 256)


def small_gpt(batch: int) -> Made:
    """Two narrow blocks with dropout between tied weights."""
    return language_step(Gpt(64, 32, 32, 2, 4, dropout=0.1), batch, 32)


def small_half(batch: int) -> Made:
    """The same, with products in bfloat16."""
    module, step, inputs = small_gpt(batch)

    def half(given: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        with torch.autocast(given.device.type, dtype=torch.bfloat16):
            return step(given, following)

    return module, half, inputs


def small_cnn(batch: int) -> Made:
    """Convolutions with batch norm and ReLU in place."""
    blocks = (Bottleneck(16, 4, 1) for _ in range(4))
    layers = (
        nn.Conv2d(3, 16, 3, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return image_step(nn.Sequential(*layers), batch, 32)


def language_step(module: nn.Module, batch: int, tokens: int) -> Made:
    """Predict every next word of a batch of texts."""

    def step(given: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(module(given).flatten(0, 1), following.flatten())

    given, following = (torch.zeros(batch, tokens, dtype=torch.long) for _ in range(2))
    return module, step, (given, following)


def image_step(module: nn.Module, batch: int, side: int) -> Made:
    """Classify a batch of images."""

    def step(images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(module(images), classes)

    return module, step, (torch.zeros(batch, 3, side, side), torch.zeros(batch, dtype=torch.long))


def mask_step(module: nn.Module, batch: int, side: int) -> Made:
    """Say for every pixel of a batch of images whether it belongs to something."""

    def step(images: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(module(images), mask)

    return module, step, (torch.zeros(batch, 3, side, side), torch.zeros(batch, 1, side, side))
