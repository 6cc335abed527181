"""Networks as torch's exporter writes them, beside the same models recorded from torch."""

from __future__ import annotations

from typing import Any

import pytest

from pebbler.instances.importers.onnx_workload import read_model
from pebbler.instances.importers.torch_workload import TorchWorkload
from pebbler.instances.memory import live_bytes
from pebbler.instances.networks.builder import Layer, Network
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve

from ...extras import needs_onnx, needs_torch

torch = needs_torch()
needs_onnx()
from torch.nn import functional as F  # noqa: E402, N812

from pebbler.instances.importers.torch_graph import record  # noqa: E402

from .exported import FOLDER, MODELS, OPSETS  # noqa: E402

FILES = [(name, opset) for name, opsets in OPSETS.items() for opset in opsets]


def read(name: str, opset: int) -> Network:
    return read_model(str(FOLDER / f"{name}-{opset}.onnx"))


def multiply_adds(network: Network, layer: Layer) -> int:
    """Of one image, forward; attention in full, as torch counts it."""
    if layer.kind.name not in ("conv", "deconv", "fc", "linear"):
        full = 2 * layer.shape.elements * layer.shape.positions
        causal = layer.kind.name == "attention" and layer.products < full
        return layer.products * (2 if causal else 1)
    inputs = network[layer.inputs[0]].shape
    if layer.kind.name == "fc":
        return inputs.elements * layer.shape.elements
    window = layer.kernel**2 * inputs.channels * layer.shape.channels // layer.groups
    return window * (inputs if layer.kind.name == "deconv" else layer.shape).positions


def make_step(name: str) -> Any:
    def made(batch: int) -> Any:
        make, example = MODELS[name]
        module = make()

        def step(x: Any, labels: Any) -> Any:
            scores = module(x)
            if name in ("gpt", "gated"):
                scores = scores.flatten(0, 1)
            return F.cross_entropy(scores, labels)

        shapes = {"gpt": (16 * batch,), "gated": (12 * batch,), "unet": (batch, 16, 16)}
        labels = torch.zeros(shapes.get(name, (batch,)), dtype=torch.long)
        return module.eval(), step, (example(batch), labels)

    return made


TRANSFORMER = ["norm", "linear", "attention", "linear", "add", "norm", "linear", "gelu", "linear", "add"]
TWO = ["conv", "norm", "silu", "conv", "silu"]
KINDS = {
    "gpt": ["input", "embedding", "position", *TRANSFORMER, *TRANSFORMER, "norm", "linear", "softmax"],
    "vit": ["input", "conv", "position", *TRANSFORMER, *TRANSFORMER, "norm", "resample", "fc", "softmax"],
    "efficientnet": [
        *["input", "conv", "silu", "conv", "silu", "conv", "silu", "avgpool", "conv", "silu", "conv"],
        *["rowsoftmax", "resample", "multiply", "conv", "add", "avgpool", "fc", "softmax"],
    ],
    "unet": [
        *["input", *TWO, "maxpool", *TWO, "maxpool", "resample", "conv", "deconv", "concat", *TWO, "conv"],
        "softmax",
    ],
    "gated": [
        *["input", "linear", "linear", "linear", "attention", "add", "norm", "linear"],
        *["resample", "gelu", "resample", "multiply", "linear", "add", "softmax"],
    ],
}


RESIDENT = {
    # The exporter transposes the table of the words, which the last layer shares: another table.
    "gpt": 8 * 100 * 32,
    # Batch norm becomes a bias; its scale, shift, statistics and four counters are gone.
    "efficientnet": 48 * (8 - 16 - 8) - 4 * 8,
}
"""By how many bytes weights and gradients differ."""
SCORES = {"gpt": 4 * 8 * 16 * 100, "unet": 4 * 8 * 2 * 16 * 16}
"""Bytes of scores, which torch's cross entropy keeps once more."""
NEAR = {"gpt": 0.01, "vit": 0.01, "unet": 0.05, "efficientnet": 0.1, "gated": 0.12}
"""How near the peaks are: in torch, batch norm has outputs of its own, and the halves of a gate have none."""


@pytest.mark.parametrize(("name", "opset"), FILES)
def test_the_layers_are_those_of_the_model(name: str, opset: int) -> None:
    assert [layer.kind.name for layer in read(name, opset).layers] == KINDS[name]


@pytest.mark.parametrize(("name", "opset"), FILES)
def test_the_products_are_those_that_torch_records(name: str, opset: int) -> None:
    network = read(name, opset)
    recorded = record(make_step(name), 3).operators
    flops = sum(operator.flops for operator in recorded if operator.direction == "forward")
    assert 2 * 3 * sum(multiply_adds(network, layer) for layer in network.layers) == flops


@pytest.mark.parametrize(("name", "opset"), FILES)
def test_blocks_and_weights_are_those_that_torch_records(name: str, opset: int) -> None:
    ours = Workload(read(name, opset), 8, "a100").instance(0, check_budget=False)
    theirs = TorchWorkload(name, 8, "a100", make_step=make_step(name)).instance(0, check_budget=False)
    assert ours.resident_bytes == theirs.resident_bytes + RESIDENT.get(name, 0)
    assert max(live_bytes(ours)) + SCORES.get(name, 0) == pytest.approx(
        max(live_bytes(theirs)), rel=NEAR[name]
    )


@pytest.mark.parametrize(("name", "opset"), FILES)
def test_an_exported_network_can_be_scheduled(name: str, opset: int) -> None:
    instance = Workload(read(name, opset), 4, "a100").instance("95%")
    assert solve(instance, "modnn").schedule is not None
