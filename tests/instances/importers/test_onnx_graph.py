from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.importers.onnx_workload import read_model
from pebbler.instances.networks.builder import Network
from pebbler.instances.networks.taskgraph import task_graph
from pebbler.instances.networks.zoo import find_network
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve

from ...extras import needs_onnx

onnx = needs_onnx()
from onnx import TensorProto, helper  # noqa: E402

FLOAT = TensorProto.FLOAT


class Model:
    """An ONNX graph under construction; weights have shapes only."""

    def __init__(self, *dims: int | str) -> None:
        self.inputs = [helper.make_tensor_value_info("x", FLOAT, dims)]
        self.weights: list[Any] = []
        self.nodes: list[Any] = []

    def weight(self, name: str, *dims: int) -> str:
        self.weights.append(TensorProto(name=name, data_type=FLOAT, dims=dims))
        return name

    def node(self, kind: str, name: str, *inputs: str, outputs: Sequence[str] = (), **attributes: Any) -> str:
        outputs = outputs or [f"{name}.out"]
        self.nodes.append(helper.make_node(kind, list(inputs), list(outputs), name=name, **attributes))
        return outputs[0]

    def conv(self, name: str, source: str, channels: tuple[int, int], kernel: int, **attributes: Any) -> str:
        weights = self.weight(f"{name}.w", channels[1], channels[0], kernel, kernel)
        return self.node("Conv", name, source, weights, self.weight(f"{name}.b", channels[1]), **attributes)

    def gemm(self, name: str, source: str, sizes: tuple[int, int]) -> str:
        weights = self.weight(f"{name}.w", sizes[1], sizes[0])
        return self.node("Gemm", name, source, weights, self.weight(f"{name}.b", sizes[1]), transB=1)

    def save(self, path: Path, *results: str) -> str:
        outputs = [helper.make_tensor_value_info(name, FLOAT, None) for name in results]
        graph = helper.make_graph(self.nodes, "model", self.inputs, outputs, self.weights)
        file = path / "model.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), str(file))
        return str(file)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Network]:
    return lambda model, *results: read_model(model.save(tmp_path, *results))


def kinds(network: Network) -> list[tuple[str, str, bool]]:
    return [(layer.name, layer.kind.name, layer.relu) for layer in network.layers]


def vgg16() -> tuple[Model, str]:
    model = Model("batch", 3, 224, 224)
    x, last = "x", 3
    for group, (count, channels) in enumerate(zip((2, 2, 3, 3, 3), (64, 128, 256, 512, 512), strict=True), 1):
        for index in range(1, count + 1):
            name = f"conv{group}_{index}"
            x = model.conv(name, x, (last, channels), 3, pads=[1, 1, 1, 1])
            x, last = model.node("Relu", f"relu{group}_{index}", x), channels
        x = model.node("MaxPool", f"pool{group}", x, kernel_shape=[2, 2], strides=[2, 2])
    x = model.node("Flatten", "flatten", x)
    for index, sizes in enumerate(((25088, 4096), (4096, 4096), (4096, 1000)), 6):
        x = model.gemm(f"fc{index}", x, sizes)
        if index < 8:
            x = model.node("Relu", f"relu{index}", x)
    return model, x


def test_vgg16_is_the_one_of_the_zoo(tmp_path: Path) -> None:
    model, result = vgg16()
    path = model.save(tmp_path, result)
    read, known = task_graph(read_model(path), 32), task_graph(find_network("vgg16"), 32)
    assert read.resident_bytes == known.resident_bytes
    assert [block.bytes for block in read.blocks] == [block.bytes for block in known.blocks]
    assert [(task.inputs, task.outputs, task.updates) for task in read.tasks] == [
        (task.inputs, task.outputs, task.updates) for task in known.tasks
    ]
    workload = Workload(read_model(path), 32, "k40")
    instance, same = workload.instance("80%"), Workload("vgg16", 32, "k40").instance("80%")
    assert [task.algorithms for task in instance.tasks] == [task.algorithms for task in same.tasks]
    assert (instance.name, instance.budget_bytes) == ("model-b32", same.budget_bytes)
    assert workload.instance("2GiB", 8, rounds=4).made_from.sub_batch == 8
    assert solve(instance, "modnn").schedule is not None


def test_a_residual_block(read: Callable[..., Network]) -> None:
    model = Model("batch", 8, 10, 10)
    for name in ("scale", "shift", "mean", "variance"):
        model.weight(name, 8)
    x = model.conv("first", "x", (8, 8), 3, pads=[1, 1, 1, 1], group=1)
    y = model.node("BatchNormalization", "norm", x, "scale", "shift", "mean", "variance")
    y = model.node("Relu", "relu", y)
    y = model.conv("second", y, (8, 8), 1)
    x = model.node("Relu", "sum.relu", model.node("Add", "sum", y, x))
    axes = model.node("Constant", "axes", value=helper.make_tensor("axes", TensorProto.INT64, [2], [2, -1]))
    x = model.node("ReduceMean", "mean over the image", x, axes, keepdims=0)
    network = read(model, model.gemm("classes", x, (8, 5)))
    assert kinds(network) == [
        ("x", "input", False),
        ("first", "conv", False),
        ("norm", "bn", True),
        ("second", "conv", False),
        ("sum", "add", True),
        ("mean over the image", "avgpool", False),
        ("classes", "fc", False),
        ("loss(classes.out)", "softmax", False),
    ]
    assert network.parameters == (8 * 8 * 9 + 8) + 16 + (8 * 8 + 8) + (8 * 5 + 5)


def test_other_layers(read: Callable[..., Network]) -> None:
    model = Model(7, 6, 12, 12)
    x = model.conv("conv", "x", (6, 4), 3, strides=[2, 2], pads=[1, 1, 1, 1])
    x = model.node("LRN", "lrn", x, size=5)
    left = model.node("AveragePool", "average", x, kernel_shape=[2, 2], strides=[2, 2])
    left = model.node("ConvTranspose", "up", left, model.weight("up.w", 4, 4, 2, 2), strides=[2, 2])
    right = model.node("Gelu", "gelu", x)
    x = model.node("Concat", "join", left, model.node("Mul", "times", right, left), axis=1)
    x = model.node("Dropout", "drop", x)
    x = model.node("Resize", "larger", x, "", "scales")
    model.weights += [
        helper.make_tensor("scales", FLOAT, [4], [1.0, 1.0, 2.0, 2.0]),
        helper.make_tensor("zero", FLOAT, [], [0.0]),
    ]
    x = model.node("Clip", "relu6", model.conv("last", x, (8, 3), 1), "zero")
    network = read(model, x)
    assert [(layer.name, layer.kind.name, tuple(layer.shape)) for layer in network.layers[1:]] == [
        ("conv", "conv", (4, 6, 6)),
        ("lrn", "lrn", (4, 6, 6)),
        ("average", "avgpool", (4, 3, 3)),
        ("up", "deconv", (4, 6, 6)),
        ("gelu", "gelu", (4, 6, 6)),
        ("times", "multiply", (4, 6, 6)),
        ("join", "concat", (8, 6, 6)),
        ("drop", "dropout", (8, 6, 6)),
        ("larger", "resample", (8, 12, 12)),
        ("last", "conv", (3, 12, 12)),
        ("loss(relu6.out)", "softmax", (3, 12, 12)),
    ]
    assert network["last"].relu


def test_products_at_every_position_and_shared_weights(read: Callable[..., Network]) -> None:
    model = Model("batch", 5, 16)
    weights, shift = model.weight("w", 16, 16), model.weight("b", 16)
    x = model.node("Add", "a.bias", model.node("MatMul", "a", "x", weights), shift)
    x = model.node("LayerNormalization", "norm", x, model.weight("g", 16), model.weight("h", 16))
    x = model.node("Add", "b.bias", shift, model.node("MatMul", "b", x, weights))
    x = model.node("MatMul", "c", x, model.weight("v", 16, 3))
    network = read(model, model.node("Softmax", "end", x, axis=-1))
    assert [
        (layer.name, layer.kind.name, tuple(layer.shape), layer.parameters) for layer in network.layers
    ] == [
        ("x", "input", (16, 5, 1), 0),
        ("a", "linear", (16, 5, 1), 17 * 16),
        ("norm", "norm", (16, 5, 1), 32),
        ("b", "linear", (16, 5, 1), 0),
        ("c", "linear", (3, 5, 1), 48),
        ("end", "softmax", (3, 5, 1), 0),
    ]
    assert network["b"].tied == "a"


def test_a_batch_size_that_the_model_computes_from_its_input(read: Callable[..., Network]) -> None:
    """As older exporters of torch write x.view(x.size(0), -1)."""
    model = Model("batch", 3, 4, 4)
    model.weights += [
        helper.make_tensor("first", TensorProto.INT64, [], [0]),
        helper.make_tensor("axes", TensorProto.INT64, [1], [0]),
        helper.make_tensor("rest", TensorProto.INT64, [1], [-1]),
    ]
    x = model.conv("conv", "x", (3, 2), 1)
    size = model.node("Gather", "size", model.node("Shape", "shape", x), "first")
    target = model.node("Concat", "target", model.node("Unsqueeze", "u", size, "axes"), "rest", axis=0)
    network = read(model, model.gemm("fc", model.node("Reshape", "view", x, target), (32, 4)))
    assert [layer.kind.name for layer in network.layers] == ["input", "conv", "fc", "softmax"]


def refused(kind: str) -> tuple[Model, str]:
    """A small model with something that has no place in a network."""
    model = Model("batch", 4, 8, 8)
    x = model.conv("conv", "x", (4, 4), 3, pads=[1, 1, 1, 1])
    match kind:
        case "operator":
            x = model.node("Hardmax", "bad", x)
        case "second reader":
            x = model.node("Add", "sum", model.node("Relu", "bad", x), x)
        case "dilation":
            x = model.conv("bad", x, (4, 4), 3, dilations=[2, 2])
        case "stride":
            x = model.conv("bad", x, (4, 4), 3, strides=[1, 2])
        case "auto_pad":
            x = model.conv("bad", x, (4, 4), 3, auto_pad="SAME_UPPER")
        case "constant":
            x = model.node("Add", "bad", x, model.weight("shift", 4, 1, 1))
        case "clip":
            model.weights.append(helper.make_tensor("low", FLOAT, [], [-1.0]))
            x = model.node("Clip", "bad", x, "low")
        case "positions":
            x = model.node("Transpose", "t", x, perm=[0, 2, 1, 3])
            x = model.node("MatMul", "bad", x, model.weight("w", 8, 8))
        case "reshape":
            model.weights.append(helper.make_tensor("dims", TensorProto.INT64, [3], [1, 9, 16]))
            x = model.node("Reshape", "bad", model.node("MaxPool", "p", x, kernel_shape=[3, 3]), "dims")
        case "norm":
            scale = model.weight("scale", 8)
            x = model.node("LayerNormalization", "bad", x, scale)
        case "quotient":
            x = model.node("Div", "bad", x, model.node("MaxPool", "p", x, kernel_shape=[1, 1]))
        case "values":
            model.inputs.append(helper.make_tensor_value_info("which", TensorProto.INT64, [1]))
            x = model.node("Gather", "bad", x, "which", axis=1)
        case "softmax":
            x = model.conv("next", model.node("Softmax", "bad", x), (4, 4), 1)
        case "axis":
            x = model.node("Concat", "bad", x, model.node("MaxPool", "p", x, kernel_shape=[1, 1]), axis=2)
        case "scores":
            x = model.node("MatMul", "bad", x, model.node("MaxPool", "p", x, kernel_shape=[1, 1]))
    return model, x


@pytest.mark.parametrize(
    "kind",
    [
        "operator",
        "second reader",
        "dilation",
        "stride",
        "auto_pad",
        "constant",
        "clip",
        "positions",
        "reshape",
        "norm",
        "quotient",
        "values",
        "softmax",
        "axis",
        "scores",
    ],
)
def test_what_has_no_place_is_refused_by_node_and_operator(read: Callable[..., Network], kind: str) -> None:
    model, result = refused(kind)
    operator = next(node.op_type for node in model.nodes if node.name == "bad")
    said = (
        f"node 'bad' of type {operator}: "
        if kind != "operator"
        else r"no layer computes Hardmax \(node 'bad'\);"
    )
    with pytest.raises(PebblerError, match=said) as caught:
        read(model, result)
    assert "\n" not in str(caught.value)


def test_all_operators_that_no_layer_computes_are_told_at_once(read: Callable[..., Network]) -> None:
    model = Model("batch", 4, 8, 8)
    x = model.conv("conv", "x", (4, 4), 1)
    for index in range(3):
        x = model.node("Hardmax", f"hard{index}", model.node("LpNormalization", f"lp{index}", x))
    model.node("Det", "no business of a layer", model.weight("square", 3, 3))
    with pytest.raises(PebblerError, match=r"Hardmax .*LpNormalization") as caught:
        read(model, x)
    assert (
        ": no layer computes Hardmax (node 'hard0' and 2 more), LpNormalization (node 'lp0' and 2 more); "
        in str(caught.value)
    )


def test_a_file_that_is_no_model_or_has_open_sizes(tmp_path: Path, read: Callable[..., Network]) -> None:
    with pytest.raises(PebblerError, match=r"none\.onnx cannot be read as ONNX"):
        read_model(str(tmp_path / "none.onnx"))
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(PebblerError, match=r"text\.onnx cannot be read as ONNX"):
        read_model(str(tmp_path / "text.onnx"))
    model = Model("batch", 3, "height", "width")
    with pytest.raises(PebblerError, match=r"input 'x' has the shape \[1, 3, 0, 0\]"):
        read(model, model.conv("conv", "x", (3, 3), 1))
