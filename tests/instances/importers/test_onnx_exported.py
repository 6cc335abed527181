"""Networks as torch's exporter writes them, beside the same models recorded from torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.importers.onnx_workload import read_model
from pebbler.instances.importers.torch_workload import TorchWorkload
from pebbler.instances.memory import live_bytes
from pebbler.instances.networks.network import Layer, Network
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve

from ...extras import needs_onnx, needs_torch

torch = needs_torch()
onnx = needs_onnx()
from torch.nn import functional as F  # noqa: E402, N812

from pebbler.instances.importers.torch_graph import record  # noqa: E402

from .exported import FOLDER, MODELS, VERSIONS, Transformers  # noqa: E402

FILES = [(name, version) for name, versions in VERSIONS.items() for version in versions]


def read(name: str, version: str) -> Network:
    return read_model(str(FOLDER / f"{name}-{version}.onnx"))


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


def make_step(name: str, other: Callable[[], Any] | None = None) -> Any:
    """Return what makes a step of a model, or of another that does the same."""

    def made(batch: int) -> Any:
        make, example = MODELS[name]
        module = (other or make)()

        def step(x: Any, labels: Any) -> Any:
            scores = module(x)
            if name in ("gpt", "gated", "llama"):
                scores = scores.flatten(0, 1)
            return F.cross_entropy(scores, labels)

        shapes = {
            "gpt": (16 * batch,),
            "llama": (16 * batch,),
            "gated": (12 * batch,),
            "unet": (batch, 16, 16),
        }
        labels = torch.zeros(shapes.get(name, (batch,)), dtype=torch.long)
        return module.eval(), step, (example(batch), labels)

    return made


TRANSFORMER = ["norm", "linear", "attention", "linear", "add", "norm", "linear", "gelu", "linear", "add"]
GROUPED = [
    *["norm", "linear", "linear", "linear", "resample", "resample", "attention", "linear", "add"],
    *["norm", "linear", "silu", "linear", "multiply", "linear", "add"],
]
TWO = ["conv", "norm", "silu", "conv", "silu"]
KINDS = {
    "gpt": ["input", "embedding", "position", *TRANSFORMER, *TRANSFORMER, "norm", "linear", "softmax"],
    "vit": ["input", "conv", "position", *TRANSFORMER, *TRANSFORMER, "norm", "resample", "fc", "softmax"],
    "efficientnet": [
        *["input", "conv", "silu", "conv", "silu", "conv", "silu", "avgpool", "conv", "silu", "conv"],
        *["sigmoid", "resample", "multiply", "conv", "add", "avgpool", "fc", "softmax"],
    ],
    "unet": [
        *["input", *TWO, "maxpool", *TWO, "maxpool", "resample", "conv", "deconv", "concat", *TWO, "conv"],
        "softmax",
    ],
    "gated": [
        *["input", "linear", "linear", "linear", "attention", "add", "norm", "linear"],
        *["resample", "gelu", "resample", "multiply", "linear", "add", "softmax"],
    ],
    "llama": ["input", "embedding", *GROUPED, *GROUPED, "norm", "linear", "softmax"],
}


RESIDENT = {
    # The exporter transposes the table of the words, which the last layer shares: another table.
    "gpt": 8 * 100 * 32,
    # Batch norm becomes a bias; its scale, shift, statistics and four counters are gone.
    "efficientnet": 48 * (8 - 16 - 8) - 4 * 8,
    # The cosines and sines of the positions are no weights.
    "llama": -2 * 4 * 16 * 8,
}
"""By how many bytes weights and gradients differ."""
SCORES = {"gpt": 4 * 8 * 16 * 100, "llama": 4 * 8 * 16 * 100, "unet": 4 * 8 * 2 * 16 * 16}
"""Bytes of scores, which torch's cross entropy keeps once more."""
WRITTEN_OUT = {"llama": 4 * 8 * 16 * (5 * 32 + 2 * 2 * 16)}
"""Bytes that torch keeps of norms that are written out, x over its root mean square, and of repeated keys."""
NEAR = {"gpt": 0.01, "vit": 0.01, "unet": 0.05, "efficientnet": 0.1, "gated": 0.12, "llama": 0.01}
"""How near the peaks are: in torch, batch norm has outputs of its own, and the halves of a gate have none."""


@pytest.mark.parametrize(("name", "version"), FILES)
def test_the_layers_are_those_of_the_model(name: str, version: str) -> None:
    assert [layer.kind.name for layer in read(name, version).layers] == KINDS[name]


@pytest.mark.parametrize(("name", "version"), FILES)
def test_the_products_are_those_that_torch_records(name: str, version: str) -> None:
    network = read(name, version)
    recorded = record(make_step(name), 3).operators
    flops = sum(operator.flops for operator in recorded if operator.direction == "forward")
    assert 2 * 3 * sum(multiply_adds(network, layer) for layer in network.layers) == flops


@pytest.mark.parametrize(("name", "version"), FILES)
def test_blocks_and_weights_are_those_that_torch_records(name: str, version: str) -> None:
    ours = Workload(read(name, version), 8, "a100").instance(0, check_budget=False)
    theirs = TorchWorkload(name, 8, "a100", make_step=make_step(name)).instance(0, check_budget=False)
    assert ours.resident_bytes == theirs.resident_bytes + RESIDENT.get(name, 0)
    kept = SCORES.get(name, 0) + WRITTEN_OUT.get(name, 0)
    assert max(live_bytes(ours)) + kept == pytest.approx(max(live_bytes(theirs)), rel=NEAR[name])


@pytest.mark.parametrize(("name", "version"), FILES)
def test_an_exported_network_can_be_scheduled(name: str, version: str) -> None:
    instance = Workload(read(name, version), 4, "a100").instance("95%")
    assert solve(instance, "modnn").schedule is not None


def test_a_llama_of_transformers_is_recorded_with_the_same_products() -> None:
    pytest.importorskip("transformers")

    def products(recorded: Any) -> list[tuple[str, int]]:
        return sorted(
            (operator.direction, operator.flops) for operator in recorded.operators if operator.flops
        )

    theirs = record(make_step("llama", Transformers), 2)
    assert products(theirs) == products(record(make_step("llama"), 2))
    instance = TorchWorkload("theirs", 4, "a100", make_step=make_step("llama", Transformers)).instance("90%")
    assert solve(instance, "modnn").schedule is not None


def untype(data: bytes) -> bytes:
    """Take the type of an attribute away."""
    model = onnx.load_model_from_string(data)
    node = next(node for node in model.graph.node if node.op_type == "Transpose")
    node.attribute[0].ClearField("type")
    return bytes(model.SerializeToString())


def nest(data: bytes) -> bytes:
    """Let an attribute of numbers be a graph."""
    model = onnx.load_model_from_string(data)
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    next(one for one in conv.attribute if one.name == "strides").type = onnx.AttributeProto.GRAPH
    return bytes(model.SerializeToString())


def split_further(data: bytes) -> bytes:
    """Let a node cut its value into more parts than it says, which ends ONNX's inference and its process."""
    model = onnx.load_model_from_string(data)
    node = next(node for node in model.graph.node if node.op_type == "Split")
    node.output.append("one more")
    return bytes(model.SerializeToString())


def lengthen(data: bytes) -> bytes:
    """Let a constant have more numbers than it has data."""
    model = onnx.load_model_from_string(data)
    node = next(node for node in model.graph.node if node.op_type == "ReduceMean")
    next(tensor for tensor in model.graph.initializer if tensor.name == node.input[1]).dims[0] += 1
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("vit-23", untype),
        ("efficientnet-20", nest),
        ("gated-23", split_further),
        ("efficientnet-20", lengthen),
    ],
)
def test_a_damaged_graph_is_refused_in_one_sentence(
    name: str, damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    (tmp_path / "damaged.onnx").write_bytes(damage((FOLDER / f"{name}.onnx").read_bytes()))
    with pytest.raises(PebblerError) as refused:
        read_model(tmp_path / "damaged.onnx")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("seed", range(6))
def test_flipped_bytes_break_nothing(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    for name, version in FILES:
        data = bytearray((FOLDER / f"{name}-{version}.onnx").read_bytes())
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "flipped.onnx").write_bytes(data)
        with suppress(PebblerError):
            read_model(tmp_path / "flipped.onnx")
