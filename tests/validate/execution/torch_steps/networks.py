"""Six networks of the literature with training steps: their structure in full, narrow and on small inputs.

Each function takes a batch size; losses are in 32 bits, or in 16 by autocast (`lowered`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from pebbler.benchmark.gpu.torch_models import Gpt, Llama, Lstm, ResNet, Unet, VisionTransformer

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


def llama(batch: int) -> Made:
    """Four blocks of Llama: RMS norm, rotary positions, grouped queries, SwiGLU (Grattafiori et al. 2024)."""
    return language(Llama(256, 16, 64, 192, 4, 8, 2), 256, batch, 16)


def vit_b(batch: int) -> Made:
    """ViT-B/16: 12 layers and 12 heads on patches and a class token (Dosovitskiy et al. 2021)."""
    return images(VisionTransformer(64, 48, 12, 12, 100), 100, batch, 64)


def resnet50(batch: int) -> Made:
    """ResNet-50: four stages of 3, 4, 6 and 3 bottlenecks with batch norm (He et al. 2016)."""
    return images(ResNet((3, 4, 6, 3), 8, 100), 100, batch, 64)


def unet(batch: int) -> Made:
    """A U-Net whose largest feature maps have several pages."""
    module = Unet(8, 3)

    def step(given: Any, mask: Any) -> Any:
        return F.binary_cross_entropy_with_logits(module(given), mask)

    return module, step, (torch.randn(batch, 3, 128, 128), torch.rand(batch, 1, 128, 128)), adamw(module)


def lstm(batch: int) -> Made:
    """A language model of four recurrent layers with dropout between them (Zaremba et al. 2014)."""
    return language(Lstm(256, 64, 4, dropout=0.2), 256, batch, 16)


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
