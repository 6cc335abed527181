"""Small models with their training steps, as a user's `make_step` returns them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from pebbler.benchmark.gpu.torch_models import Gpt, ResNet

Made = tuple[nn.Module, Callable[..., Any], tuple[torch.Tensor, ...], torch.optim.Optimizer]


def adamw(module: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1, **options)


def gpt(batch: int) -> Made:
    """Tied weights, causal attention and dropout."""
    module = Gpt(300, 32, 32, 2, 2, dropout=0.1)

    def step(given: Any, following: Any) -> Any:
        return F.cross_entropy(module(given).flatten(0, 1), following.flatten())

    return module, step, (torch.randint(300, (batch, 32)), torch.randint(300, (batch, 32))), adamw(module)


def cnn(batch: int) -> Made:
    """Convolutions, batch norm whose running statistics are written unseen, and ReLU in place."""
    module = ResNet((1, 1), 4, 10)

    def step(images: Any, classes: Any) -> Any:
        return F.cross_entropy(module(images), classes)

    return module, step, (torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))), adamw(module)


def channels_last(batch: int) -> Made:
    """Convolutions whose images and filters have their channels last."""
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    module.to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 8, 8).to(memory_format=torch.channels_last)
    return module, lambda x: module(x).square().mean(), (images,), adamw(module)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(16, 24, 2, dropout=0.1)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(x)[0])


def lstm(batch: int) -> Made:
    """Recurrent layers, which oneDNN computes in one operator."""
    module = Lstm()

    def step(x: Any, classes: Any) -> Any:
        return F.cross_entropy(module(x).flatten(0, 1), classes.flatten())

    return module, step, (torch.randn(6, batch, 16), torch.randint(5, (6, batch))), adamw(module)


def half_gpt(batch: int) -> Made:
    """The same GPT in bfloat16 by autocast."""
    module, step, inputs, optimizer = gpt(batch)

    def lowered(*given: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return step(*given)

    return module, lowered, inputs, optimizer


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.down = nn.Conv2d(8, 16, 3, 2, 1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(16, 1, 1)

    def forward(self, x: Any) -> Any:
        wide = F.silu(self.norm(self.first(x)))
        deep = F.relu(self.down(wide))
        deep = deep + F.interpolate(F.max_pool2d(deep, 2), scale_factor=2, mode="bilinear")
        return self.last(torch.cat((self.up(deep), wide), 1))


def unet(batch: int) -> Made:
    """Transposed convolution, group norm, resampling and a skip connection."""
    module = Unet()

    def step(x: Any, y: Any) -> Any:
        return F.binary_cross_entropy_with_logits(module(x), y)

    return module, step, (torch.randn(batch, 3, 16, 16), torch.rand(batch, 1, 16, 16)), adamw(module)


def encoder(batch: int) -> Made:
    """Torch's own transformer, with dropout inside attention."""
    module = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return module, lambda x: module(x).square().mean(), (torch.randn(batch, 5, 16),), adamw(module)


def perceptron(batch: int) -> Made:
    """Two layers; for what does not depend on the model."""
    module = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))

    def step(x: Any, y: Any) -> Any:
        return F.mse_loss(module(x), y)

    return module, step, (torch.randn(batch, 6), torch.randn(batch, 3)), adamw(module)
