"""Small models with their training steps, deep enough that half of eager torch's memory can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from pebbler.benchmark.gpu.torch_models import Gpt

Made = tuple[nn.Module, Callable[..., Any], tuple[torch.Tensor, ...], torch.optim.Optimizer]


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2)


def gpt(batch: int) -> Made:
    """Tied weights, causal attention and dropout."""
    module = Gpt(64, 32, 32, 2, 4, dropout=0.1)

    def step(given: Any, following: Any) -> Any:
        return F.cross_entropy(module(given).flatten(0, 1), following.flatten())

    return module, step, (torch.randint(64, (batch, 32)), torch.randint(64, (batch, 32))), adamw(module)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Any) -> Any:
        return F.relu(x + self.norm(self.conv(x)), inplace=True)


class Cnn(nn.Module):
    def __init__(self, channels: int, depth: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(channels) for _ in range(depth)))
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.dropout(self.blocks(self.stem(x)).mean((2, 3))))


def cnn(batch: int) -> Made:
    """Batch norm, whose running statistics are written unseen, and ReLU in place."""
    module = Cnn(8)

    def step(images: Any, classes: Any) -> Any:
        return F.cross_entropy(module(images), classes)

    return module, step, (torch.randn(batch, 3, 16, 16), torch.randint(10, (batch,))), adamw(module)


def wide(batch: int) -> Made:
    """Feature maps of a page and more."""
    module = nn.Sequential(
        *(layer for _ in range(8) for layer in (nn.Linear(128, 128, bias=False), nn.Tanh()))
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)

    def step(x: Any) -> Any:
        return module(x).square().mean()

    return module, step, (torch.randn(256 * batch, 128),), optimizer


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(16, 16, 6, dropout=0.1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(x)[0])


def lstm(batch: int) -> Made:
    """Recurrent layers, each of which oneDNN computes in one operator."""
    module = Lstm()

    def step(x: Any, classes: Any) -> Any:
        return F.cross_entropy(module(x).flatten(0, 1), classes.flatten())

    return module, step, (torch.randn(12, batch, 16), torch.randint(5, (12, batch))), adamw(module)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = F.gelu(layer(x)) * torch.rand(x.shape)
        return x


def noisy(batch: int) -> Made:
    """Noise that the backward pass reads again."""
    module = Noisy()

    def step(x: Any) -> Any:
        return module(x).square().mean()

    return module, step, (torch.randn(64 * batch, 32),), adamw(module)


def half(batch: int) -> Made:
    """In bfloat16 by autocast."""
    module, step, inputs, optimizer = noisy(batch)

    def lowered(*given: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return step(*given)

    return module, lowered, inputs, optimizer


def checkpointed(batch: int) -> Made:
    """Layers that torch computes again itself, with the same dropout; and a fused optimizer."""
    module = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1)) for _ in range(4))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, fused=True)

    def step(x: Any) -> Any:
        for layer in module:
            x = checkpoint(layer, x, use_reentrant=False)
        return x.square().mean()

    return module, step, (torch.randn(16 * batch, 32),), optimizer


def momentum(batch: int) -> Made:
    """Gradient descent with Nesterov's momentum."""
    module, step, inputs, _ = noisy(batch)
    return module, step, inputs, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, nesterov=True)
