"""Training steps of torch in the suite pebbler-2026: whole ones, with clipping and an optimizer.

``freeze_2026.py`` asks for them. The networks are those of the literature, narrow and on small inputs, so
that a step is recorded on the CPU within seconds. The link is as slow as makes such a step interesting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pebbler import Instance
from pebbler.benchmark.gpu.torch_models import Gpt, ResNet, VisionTransformer, image_step, language_step
from pebbler.instances.importers.torch_workload import TorchStepWorkload

Made = tuple[nn.Module, Callable[..., Any], tuple[torch.Tensor, ...], torch.optim.Optimizer]


def gpt(batch: int) -> Made:
    """GPT with four layers of width 128 on 64 tokens, with dropout and AdamW."""
    module = Gpt(512, 64, 128, 4, 4, dropout=0.1)
    return _with(language_step(module, batch, 64), partial(torch.optim.AdamW, lr=1e-3, fused=True))


def vit(batch: int) -> Made:
    """ViT with six layers of width 96 on 64 x 64 pixels, with AdamW."""
    module = VisionTransformer(64, 96, 6, 6, 100)
    return _with(image_step(module, batch, 64), partial(torch.optim.AdamW, lr=1e-3, fused=True))


def resnet(batch: int) -> Made:
    """ResNet with bottlenecks in stages of 2, 2, 2 and 2 on 64 x 64 pixels, with SGD and momentum."""
    module = ResNet((2, 2, 2, 2), 16, 100)
    return _with(image_step(module, batch, 64), partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True))


def resnet50(batch: int) -> Made:
    """ResNet-50, an eighth as wide, on 64 x 64 pixels, with AdamW."""
    module = ResNet((3, 4, 6, 3), 8, 100)
    return _with(image_step(module, batch, 64), partial(torch.optim.AdamW, lr=1e-3, fused=True))


class Lstm(nn.Module):
    """A language model of two recurrent layers."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.LSTM(width, width, 2)
        self.head = nn.Linear(width, words)

    def forward(self, given: torch.Tensor) -> Any:
        """Return a score for every next word."""
        return self.head(self.layers(self.words(given).transpose(0, 1))[0].transpose(0, 1))


def lstm(batch: int) -> Made:
    """Two recurrent layers of width 128 on 32 words, with Adam."""
    return _with(language_step(Lstm(512, 128), batch, 32), partial(torch.optim.Adam, lr=1e-3))


def mlp(batch: int) -> Made:
    """Six linear layers of growing and falling width with GELU, with Adam."""
    widths = (64, 256, 1024, 512, 256, 128, 10)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.GELU()]
    module = nn.Sequential(*layers[:-1])

    def step(given: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(module(given), classes)

    inputs = torch.randn(batch, 64), torch.zeros(batch, dtype=torch.long)
    return _with((module, step, inputs), partial(torch.optim.Adam, lr=1e-3))


def _with(
    made: tuple[nn.Module, Callable[..., Any], tuple[torch.Tensor, ...]],
    optimizer: Callable[..., torch.optim.Optimizer],
) -> Made:
    return (*made, optimizer(made[0].parameters()))


def steps() -> Iterator[tuple[str, Callable[[], Instance]]]:
    """Yield the names of the steps and what makes them."""
    for make, batch, budget, link, steady, recompute in (
        (mlp, 256, "75%", "4GB/s", False, False),
        (mlp, 256, "85%", "4GB/s", True, False),
        (lstm, 32, "90%", "4GB/s", False, False),
        (gpt, 8, "60%", "6GB/s", False, False),
        (gpt, 8, "75%", "6GB/s", True, False),
        (gpt, 8, "80%", "3GB/s", False, True),
        (vit, 32, "60%", "6GB/s", False, False),
        (vit, 32, "75%", "4GB/s", True, False),
        (resnet, 16, "60%", "4GB/s", False, False),
        (resnet, 16, "75%", "4GB/s", True, False),
        (resnet50, 16, "60%", "2GB/s", False, False),
    ):
        workload = TorchStepWorkload(
            make.__name__, batch, make_step=make, link=link, clip=1.0, steady=steady, recompute=recompute
        )
        words = [word for word, told in (("steady", steady), ("again", recompute)) if told]
        name = "-".join([make.__name__, f"b{batch}", budget.replace("%", "pc"), *words])
        yield name, partial(workload.instance, budget)
