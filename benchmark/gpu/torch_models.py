"""Models in plain torch, from their definitions only, as examples and tests for ``--torch``.

``gpt2``, ``resnet50`` and ``vit_l`` take a batch size and return ``(module, step, inputs)``.
"""

from __future__ import annotations

from collections.abc import Callable
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


class Recomputed(nn.Module):
    """A block whose feature maps are computed again in the backward pass (Chen et al. 2016)."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return checkpoint(self.block, x, use_reentrant=False)


def gpt2(batch: int) -> Made:
    """GPT-2 small with 1024 tokens, without dropout."""
    return language_step(Gpt(50257, 1024, 768, 12, 12), batch, 1024)


def resnet50(batch: int) -> Made:
    """ResNet-50 on 224 x 224 pixels."""
    return image_step(ResNet((3, 4, 6, 3), 64, 1000), batch, 224)


def vit_l(batch: int) -> Made:
    """ViT-L/16 on 224 x 224 pixels."""
    return image_step(VisionTransformer(224, 1024, 24, 16, 1000), batch, 224)


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
