"""Small networks as torch's exporter writes them: the models, and how the files of tests/data/onnx were made.

``python tests/instances/importers/exported.py`` writes them anew; it needs torch, onnx and onnxscript.
Weights are left out of the files, of which only the shapes are read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

from pebbler.benchmark.gpu.torch_models import Gpt, Llama, VisionTransformer

FOLDER = Path(__file__).parents[2] / "data" / "onnx"
SMALL = 16
"""Constants of so many values are kept: they are axes, shapes and scales."""


class SqueezeNet(nn.Module):
    """A block of EfficientNet (Tan and Le 2019): depthwise convolution, squeeze and excitation, SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.SiLU())
        self.wide = nn.Sequential(
            nn.Conv2d(8, 16, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.SiLU(),
            nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False),
            nn.BatchNorm2d(16),
            nn.SiLU(),
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.SiLU(), nn.Conv2d(4, 16, 1), nn.Sigmoid()
        )
        self.narrow = nn.Sequential(nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.head = nn.Linear(8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a score for every class."""
        x = self.stem(images)
        y = self.wide(x)
        x = x + self.narrow(y * self.squeeze(y))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Denoiser(nn.Module):
    """A U-Net of one level with group norm and SiLU, as latent diffusion has them (Rombach et al. 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle, self.out = (self._two(*sizes) for sizes in ((3, 8), (8, 16), (16, 8)))
        self.same = nn.Conv2d(16, 16, 3, 1, 1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(8, 2, 1)

    @staticmethod
    def _two(before: int, after: int) -> nn.Module:
        first, second = nn.Conv2d(before, after, 3, 1, 1), nn.Conv2d(after, after, 3, 1, 1)
        return nn.Sequential(first, nn.GroupNorm(4, after), nn.SiLU(), second, nn.SiLU())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return maps of two channels."""
        x = self.down(images)
        y = F.max_pool2d(self.middle(F.max_pool2d(x, 2)), 2)
        y = self.same(F.interpolate(y, scale_factor=2.0, mode="nearest"))
        return self.last(self.out(torch.cat((self.up(y), x), 1)))


class Gated(nn.Module):
    """A block with queries, keys and values apart, and a gated MLP (Shazeer 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.both, self.narrow = nn.Linear(32, 128), nn.Linear(64, 32)
        self.norm = nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return vectors of the same shape."""
        parts = [layer(x).view(-1, 12, 4, 8).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        seen = F.scaled_dot_product_attention(*parts)
        x = x + seen.transpose(1, 2).flatten(2)
        gate, rest = self.both(self.norm(x)).chunk(2, dim=-1)
        return x + self.narrow(F.gelu(gate, approximate="tanh") * rest)


class Transformers(nn.Module):
    """The same network in the words of transformers."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=100,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
        self.model = LlamaForCausalLM(config)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a score for every next word."""
        return self.model(input_ids=tokens, use_cache=False).logits


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "gpt": (lambda: Gpt(100, 16, 32, 2, 2), lambda batch: torch.zeros(batch, 16, dtype=torch.long)),
    "vit": (lambda: VisionTransformer(32, 32, 2, 4, 10), lambda batch: torch.zeros(batch, 3, 32, 32)),
    "efficientnet": (SqueezeNet, lambda batch: torch.zeros(batch, 3, 32, 32)),
    "unet": (Denoiser, lambda batch: torch.zeros(batch, 3, 16, 16)),
    "gated": (Gated, lambda batch: torch.zeros(batch, 12, 32)),
    "llama": (
        lambda: Llama(100, 16, 32, 64, 2, 4, 2),
        lambda batch: torch.zeros(batch, 16, dtype=torch.long),
    ),
}
"""Per name, the network and its input for a batch."""

VERSIONS = {
    "gpt": ("18", "20", "23"),
    "vit": ("20", "23"),
    "efficientnet": ("20",),
    "unet": ("20", "23"),
    "gated": ("20", "23"),
    "llama": ("17-legacy", "20", "23", "20-transformers", "23-transformers"),
}
"""Sets of operators that each is exported with: torch 2.13 takes 20; 18 has no GELU, only 23 attention.

`legacy` stands for torch's exporter before that (``dynamo=False``), `transformers` for its model.
"""


def write(name: str, version: str) -> None:
    """Export a network, and keep of its file what a network follows from."""
    import onnx

    torch.manual_seed(0)
    make, example = MODELS[name]
    opset, _, form = version.partition("-")
    module = (Transformers() if form == "transformers" else make()).eval()
    for tensor in module.state_dict().values():  # weights that are alike would become one
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5)
    file = str(FOLDER / f"{name}-{version}.onnx")
    how: dict[str, Any] = {"opset_version": int(opset), "verbose": False}
    if form == "legacy":
        open_batch = {"tokens": {0: "batch"}}
        torch.onnx.export(
            module, (example(2),), file, dynamo=False, input_names=["tokens"], dynamic_axes=open_batch, **how
        )
    else:
        # The vision transformer asks for the length of its input, which fixes the batch.
        batch = None if name == "vit" else ({0: torch.export.Dim.AUTO},)
        program = torch.onnx.export(module, (example(2),), dynamo=True, dynamic_shapes=batch, **how)
        program.save(file, external_data=False)
    model = onnx.load(file)
    graph: Any = model.graph
    del graph.value_info[:], model.metadata_props[:], graph.metadata_props[:]
    for part in (*graph.node, *graph.input, *graph.output):
        part.ClearField("doc_string")
        del part.metadata_props[:]
    for tensor in graph.initializer:
        if onnx.numpy_helper.to_array(tensor).size > SMALL:
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
    onnx.save(model, file)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each, versions in VERSIONS.items():
        for one in versions:
            write(each, one)
