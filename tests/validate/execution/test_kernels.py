"""Kernels against independent references: finite differences always, torch where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pebbler import solve
from pebbler.instances import workload
from pebbler.instances.errors import PebblerError
from pebbler.instances.networks.builder import NetworkBuilder
from pebbler.instances.networks.network import Network, Shape
from pebbler.instances.networks.taskgraph import task_graph
from pebbler.instances.networks.zoo import find_network
from pebbler.instances.workload import Workload
from pebbler.validate.execution import rebuild as rebuild_module
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.data import Data, initial
from pebbler.validate.execution.executor import Execution, Executor
from pebbler.validate.execution.kernel import keep, kernels_of, resampling
from pebbler.validate.execution.plan import plan
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.execution.trial import attempt

from ...extras import needs_torch

BATCH = 3


def _windows(net: NetworkBuilder) -> str:
    x = net.conv("conv1", net.input(2, 11, 11), 6, 3, pad=1, relu=True)
    x = net.maxpool("pool1", x, 3, stride=2, pad=1, ceil=True, relu=True)
    x = net.lrn("norm", x)
    x = net.conv("conv2", x, 4, 3, groups=2, stride=1, pad=0)
    return net.avgpool("pool2", x, 3, stride=2, ceil=True)


def _branches(net: NetworkBuilder) -> str:
    x = net.conv("conv1", net.input(2, 8, 8), 4, 3, pad=1, bias=False)
    x = net.bn("bn1", x, relu=True)
    left = net.conv("left", x, 4, 3, stride=2, pad=1)
    right = net.resample("half", x, Shape(4, 4, 4))
    both = net.concat("join", left, net.maxpool("pool", x, 2, stride=2))
    wide = net.resample("wide", net.add("sum", left, right, relu=True), Shape(8, 4, 4))
    total = net.add("all", both, wide, relu=True)
    gate = net.fc("gate", net.avgpool("mean", total), 8)
    return net.bn("bn2", net.add("shifted", total, gate))


def _regularised(net: NetworkBuilder) -> str:
    x = net.fc("fc1", net.input(3, 4, 4), 24, relu=True)
    x = net.dropout("drop1", x)
    x = net.fc("fc2", x, 24, relu=True)
    other = net.dropout("drop2", x)
    return net.concat("both", x, other)


def _maps(net: NetworkBuilder) -> str:
    x = net.conv("conv1", net.input(2, 6, 6), 4, 3, pad=1)
    x = net.resample("crop", x, Shape(4, 4, 4))
    x = net.conv("conv2", net.resample("twice", x, Shape(4, 8, 8)), 5, 3, pad=1, relu=True)
    net.softmax("pixels", x)
    return x


def _shared(net: NetworkBuilder) -> str:
    first = net.fc("a", net.input(2, 3, 3, name="one"), 6, relu=True)
    other = net.fc("b", net.input(2, 3, 3, name="two"), 6, relu=True, tied="a")
    return net.add("sum", first, other)


def _transposed(net: NetworkBuilder) -> str:
    x = net.conv("conv1", net.input(2, 5, 6), 4, 3, pad=1, relu=True)
    return net.deconv("up", x, 3, 4, stride=2, pad=1)


def _tokens(net: NetworkBuilder) -> str:
    x = net.conv("stem", net.input(2, 8, 8), 6, 2, stride=2)
    y = net.layer_norm("norm", net.conv("depthwise", x, 6, 3, pad=1, groups=6))
    y = net.gelu("gelu", net.linear("wide", y, x, outputs=10))
    y = net.layer("sigmoid", "sigmoid", y)
    return net.add("sum", x, net.scale("scale", net.linear("narrow", y, outputs=6, bias=False)))


def _pair(net: NetworkBuilder) -> str:
    ends = []
    for suffix, tied in (("", None), ("_p", "trunk")):
        x = net.fc(f"trunk{suffix}", net.input(1, 3, 3, name=f"in{suffix}"), 5, tied=tied)
        ends.append(x)
    net.loss("apart", *ends)
    return ends[0]


DEFINITIONS: dict[str, Callable[[NetworkBuilder], str]] = {
    "windows": _windows,
    "branches": _branches,
    "regularised": _regularised,
    "maps": _maps,
    "shared": _shared,
    "transposed": _transposed,
    "tokens": _tokens,
    "pair": _pair,
}


@pytest.fixture(params=DEFINITIONS)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Network:
    """A tiny network, which the zoo then has under its name."""
    builder = NetworkBuilder(request.param)
    builder.softmax("loss", builder.fc("last", DEFINITIONS[request.param](builder), 7))
    network = builder.finish(batch=BATCH, source="tests")
    for module in (workload, rebuild_module):
        monkeypatch.setattr(module, "find_network", lambda _: network)
    return network


@pytest.fixture
def computed(small: Network) -> Iterator[Callable[[Data], Execution]]:
    """Executes the network on data."""
    instance = Workload(small.name, BATCH, "K40").instance("16MiB")
    schedule = solve(instance, "network-wide").schedule
    assert schedule is not None
    with Executor(CpuBackend(), plan(instance, schedule, rebuild(instance)), 1, poison=True) as executor:

        def run(data: Data) -> Execution:
            executor.load(data)
            return executor.run()

        yield run


def jittered(network: Network) -> Data:
    """Data in which no bias, scale or shift is a round number."""
    data = initial(network, BATCH, seed=5)
    rng = np.random.default_rng(6)
    for name, values in data.items():
        if name.startswith("W("):
            values += rng.normal(0, 0.05, values.shape).astype(np.float32)
    return data


def test_gradients_are_the_slopes_of_the_loss(small: Network, computed: Callable[[Data], Execution]) -> None:
    data = jittered(small)
    start = computed(data)
    for name, gradient in start.gradients.items():
        length = float(np.linalg.norm(gradient.astype(np.float64)))
        assert length > 1e-4
        step = 2e-3 * max(1.0, float(np.linalg.norm(data[f"W({name})"]))) ** 0.5
        direction = (gradient / length).astype(np.float32)
        losses = []
        for sign in (1, -1):
            moved = data[f"W({name})"] + np.float32(sign * step) * direction
            losses.append(computed(data | {f"W({name})": moved}).losses.astype(np.float64))
        slope = float(np.mean(losses[0] - losses[1])) / (2 * step)
        assert slope == pytest.approx(length, rel=0.03, abs=2e-4), name


def test_gradients_are_those_of_torch(small: Network, computed: Callable[[Data], Execution]) -> None:
    torch = needs_torch()
    data = jittered(small)
    found = computed(data)
    loss, gradients = torch_gradients(torch, small, data)
    assert found.loss == pytest.approx(loss, rel=1e-5)
    for name, values in gradients.items():
        np.testing.assert_allclose(
            found.gradients[name], values, rtol=0, atol=2e-5 * max(1e-2, float(np.abs(values).max()))
        )


def torch_gradients(torch: Any, network: Network, data: Data) -> tuple[float, dict[str, NDArray[Any]]]:
    """The same network in torch, in double precision."""
    functional = torch.nn.functional
    weights = {
        name[2:-1]: torch.tensor(values, dtype=torch.float64, requires_grad=True)
        for name, values in data.items()
        if name.startswith("W(")
    }
    values: dict[str, Any] = {}
    loss: Any = 0.0
    for index, layer in enumerate(network.layers):
        inputs = [values[name] for name in layer.inputs]
        w = weights.get(layer.tied or layer.name)
        channels, height, width = layer.shape
        if layer.kind.name == "input":
            y = torch.tensor(data[f"X({layer.name})"], dtype=torch.float64)
        elif layer.kind.name == "conv":
            count = channels * inputs[0].shape[1] // layer.groups * layer.kernel**2
            filters = w[:count].reshape(channels, -1, layer.kernel, layer.kernel)
            bias = w[count:] if len(w) > count else None
            y = functional.conv2d(inputs[0], filters, bias, layer.stride, layer.pad, 1, layer.groups)
        elif layer.kind.name == "deconv":
            count = inputs[0].shape[1] * channels * layer.kernel**2
            filters = w[:count].reshape(-1, channels, layer.kernel, layer.kernel)
            y = functional.conv_transpose2d(inputs[0], filters, w[count:], layer.stride, layer.pad)
        elif layer.kind.name == "linear":
            joined = torch.cat(inputs, 1)
            count = channels * joined.shape[1]
            y = torch.einsum("oi,nihw->nohw", w[:count].reshape(channels, -1), joined)
            if len(w) > count:
                y = y + w[count:, None, None]
        elif layer.kind.name == "norm":
            along = inputs[0].permute(0, 2, 3, 1)
            y = functional.layer_norm(along, (channels,), w[:channels], w[channels:]).permute(0, 3, 1, 2)
        elif layer.kind.name == "scale":
            y = inputs[0] * w[:, None, None]
        elif layer.kind.name == "gelu":
            y = functional.gelu(inputs[0], approximate="tanh")
        elif layer.kind.name == "sigmoid":
            y = functional.sigmoid(inputs[0])
        elif layer.kind.name == "fc":
            flat = inputs[0].flatten(1)
            count = channels * flat.shape[1]
            y = (flat @ w[:count].reshape(channels, -1).T + w[count:])[:, :, None, None]
        elif layer.kind.name == "maxpool":
            y = functional.max_pool2d(inputs[0], layer.kernel, layer.stride, layer.pad, ceil_mode=True)
        elif layer.kind.name == "avgpool":
            y = functional.avg_pool2d(inputs[0], layer.kernel, layer.stride, layer.pad, ceil_mode=True)
        elif layer.kind.name == "lrn":
            y = functional.local_response_norm(inputs[0], 5, 1e-4, 0.75, 1.0)
        elif layer.kind.name == "bn":
            y = functional.batch_norm(inputs[0], None, None, w[:channels], w[channels:], training=True)
        elif layer.kind.name == "add":
            y = sum(inputs)
        elif layer.kind.name == "concat":
            y = torch.cat(inputs, 1)
        elif layer.kind.name == "dropout":
            kept = keep(index, 0, inputs[0].numel()).reshape(inputs[0].shape)
            y = inputs[0] * torch.tensor(2.0 * kept)
        elif layer.kind.name == "resample":
            which, a, b = resampling(network[layer.inputs[0]].shape, layer.shape)
            if which == "crop":
                y = inputs[0][:, :, a : a + height, b : b + width]
            elif which == "repeat":
                y = inputs[0].repeat_interleave(a, 2).repeat_interleave(b, 3)
            else:
                y = inputs[0][:, :, ::a, ::b]
                y = functional.pad(y, (0, 0, 0, 0, 0, channels - y.shape[1]))
        elif layer.kind.name == "loss":
            apart = torch.linalg.vector_norm((inputs[0] - inputs[1]).flatten(1), dim=1)
            alike = torch.tensor(data[f"labels({layer.name})"][:, 0] == 1)
            loss = loss + (torch.where(alike, apart, torch.relu(1 - apart)) ** 2 / 2).mean()
            continue
        else:
            labels = torch.tensor(data[f"labels({layer.name})"], dtype=torch.int64)
            loss = loss + functional.cross_entropy(inputs[0].flatten(2), labels)
            continue
        assert tuple(y.shape[1:]) == tuple(layer.shape), layer.name
        values[layer.name] = torch.relu(y) if layer.relu else y
    loss.backward()
    return float(loss.detach()), {name: w.grad.numpy() for name, w in weights.items()}


def test_every_layer_of_the_convolutional_zoo_has_kernels() -> None:
    names = ["lenet", "cifar10_quick", "alexnet", "alexnet_caffe", "caffenet", "overfeat", "googlenet"]
    names += ["googlenet_bvlc", "vgg16", "resnet18", "resnet50", "resnet56", "wrn16_8", "siamese"]
    names += ["fcn", "fcn8s:size=64", "unet:size=572", "convnext_t", "densenet121"]
    for name in names:
        network = find_network(name)
        graph = task_graph(network, 2)
        kernels = kernels_of(graph, 2)
        backend = CpuBackend()
        for kernel, task in zip(kernels, graph.tasks, strict=True):
            touched = {graph.blocks[d].name for d in (*task.inputs, *task.outputs, *task.updates)}
            named = set(kernel.operands.values())
            assert touched == {
                one for one in named if not one.startswith(("W(", "dW(", "labels(", "losses("))
            }
            assert backend.algorithms(kernel)
        backend.close()


@pytest.mark.parametrize(
    ("network", "batch"),
    [
        ("alexnet_caffe", 256),
        ("googlenet_bvlc", 32),
        ("vgg16", 256),
        ("resnet50", 32),
        ("unet", 2),
        ("fcn", 8),
    ],
)
def test_every_algorithm_of_the_cost_model_runs_in_its_workspace(network: str, batch: int) -> None:
    instance = Workload(network, batch, "V100").round(batch, 1)
    rebuilt = rebuild(instance)
    backend = CpuBackend()
    names = set()
    for k, task in enumerate(instance.tasks):
        for a, algorithm in enumerate(task.algorithms):
            backend.prepare(rebuilt.kernel(instance, k, a))
            names.add(algorithm.name)
    backend.close()
    assert {"implicit-gemm", "algo-0", "kernel"} <= names
    assert names & {"gemm", "winograd", "winograd-nonfused", "fft", "fft-tiling"}


def test_other_layers_are_refused() -> None:
    instance = Workload("gpt2:layers=1,tokens=8", 1, "K40").instance("100GiB")
    schedule = solve(instance, "network-wide").schedule
    assert schedule is not None
    with pytest.raises(PebblerError, match=r"task 'FP\(wte\)': the backend cpu has no .*'embedding'"):
        attempt(instance, schedule, CpuBackend)


@pytest.mark.parametrize("norm", ["rms_norm", "group_norm"])
def test_layers_of_a_kind_that_compute_something_else_are_refused(norm: str) -> None:
    net = NetworkBuilder("other")
    x = net.conv("conv", net.input(3, 4, 4), 4, 1)
    x = net.rms_norm("norm", x) if norm == "rms_norm" else net.group_norm("norm", x, 2)
    net.softmax("loss", net.fc("fc", x, 3))
    with pytest.raises(PebblerError, match=r"layer 'norm': there are no kernels for this 'norm'"):
        kernels_of(task_graph(net.finish(batch=1, source="test"), 1), 1)


def test_a_dropout_mask_is_a_fair_coin_and_does_not_depend_on_where_it_begins() -> None:
    mask = keep(3, 0, 100_000)
    assert abs(int(mask.sum()) - 50_000) < 1000
    assert (keep(3, 41_000, 1000) == mask[41_000:42_000]).all()
    assert (keep(4, 0, 1000) != mask[:1000]).sum() > 300


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (Shape(4, 8, 8), Shape(8, 4, 4), ("subsample", 2, 2)),
        (Shape(4, 8, 8), Shape(4, 6, 4), ("crop", 1, 2)),
        (Shape(4, 4, 3), Shape(4, 8, 9), ("repeat", 2, 3)),
    ],
)
def test_a_resampling_is_read_off_the_shapes(source: Shape, target: Shape, expected: object) -> None:
    assert resampling(source, target) == expected


def test_a_resampling_of_another_kind_is_refused() -> None:
    with pytest.raises(PebblerError, match="no kernels for a resampling"):
        resampling(Shape(4, 8, 8), Shape(3, 8, 8))
