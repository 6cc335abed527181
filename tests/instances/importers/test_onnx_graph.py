from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.importers.onnx_workload import read_model
from pebbler.instances.networks.network import Network
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
        """Write the model: in operator set 20, or in 23 where it has operators of that."""
        opset = 23 if {"Attention", "RotaryEmbedding"} & {node.op_type for node in self.nodes} else 20
        outputs = [helper.make_tensor_value_info(name, FLOAT, None) for name in results]
        graph = helper.make_graph(self.nodes, "model", self.inputs, outputs, self.weights)
        file = path / "model.onnx"
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets), str(file))
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


def heads(model: Model, name: str, source: str, count: int, *, weights: bool = True) -> str:
    """Add a product whose outputs are as many heads of 8 values, before 6 tokens."""
    if weights:
        source = model.node("MatMul", name, source, model.weight(f"{name}.w", 32, 8 * count))
    model.weights.append(helper.make_tensor(f"{name}.dims", TensorProto.INT64, [4], [0, 6, count, 8]))
    split = model.node("Reshape", f"{name}.split", source, f"{name}.dims")
    return model.node("Transpose", f"{name}.heads", split, perm=[0, 2, 1, 3])


def numbers(model: Model, name: str, *values: int) -> str:
    model.weights.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], list(values)))
    return name


def rotated(model: Model, name: str, source: str) -> str:
    """Add rotary positions whose pairs lie side by side, as their first authors have them."""
    axis, two = numbers(model, f"{name}.axis", -1), numbers(model, f"{name}.two", 2)
    end = numbers(model, f"{name}.end", 8)
    parts = []
    for i in (0, 1):
        start = numbers(model, f"{name}.start{i}", i)
        parts.append(model.node("Slice", f"{name}.{i}", source, start, end, axis, two))
    turned = []
    for i, (kind, first, second) in enumerate((("Sub", *parts), ("Add", *parts[::-1]))):
        cos, sin = (model.weight(f"{name}.{word}{i}", 6, 4) for word in ("cos", "sin"))
        products = (model.node("Mul", f"{name}.{w}*{i}", x, w) for x, w in ((first, cos), (second, sin)))
        both = model.node(kind, f"{name}.turned{i}", *products)
        turned.append(model.node("Unsqueeze", f"{name}.column{i}", both, axis))
    joined = model.node("Concat", f"{name}.pairs", *turned, axis=-1)
    return model.node("Reshape", f"{name}.rotated", joined, numbers(model, f"{name}.shape", 0, -1, 6, 8))


@pytest.mark.parametrize("form", ["written out", "operator", "runtime's operator"])
def test_rotary_positions_are_a_fixed_map(read: Callable[..., Network], form: str) -> None:
    model = Model("batch", 6, 32)
    domain = {"domain": "com.microsoft"} if form.startswith("runtime") else {}
    qkv = []
    for name, count in (("q", 4), ("k", 4), ("v", 4)):
        x = heads(model, name, "x", count)
        if form == "written out" and name != "v":
            x = rotated(model, name, x)
        elif name != "v":
            caches = (model.weight(f"{name}.{word}", 6, 4) for word in ("cos", "sin"))
            x = model.node("RotaryEmbedding", f"{name}.rotated", x, *caches, **domain)
        qkv.append(x)
    turned = model.node("Transpose", "turned", qkv[1], perm=[0, 1, 3, 2])
    x = model.node("Softmax", "rows", model.node("MatMul", "scores", qkv[0], turned), axis=-1)
    network = read(model, model.node("MatMul", "sums", x, qkv[2]))
    assert {
        (layer.name, layer.kind.name, layer.inputs)
        for layer in network.layers
        if layer.kind.name not in ("input", "linear", "softmax")
    } == {
        ("sums", "attention", ("q.rotated", "k.rotated", "v")),
        ("q.rotated", "resample", ("q",)),
        ("k.rotated", "resample", ("k",)),
    }


def test_a_map_that_others_look_into_is_not_one(read: Callable[..., Network]) -> None:
    model = Model("batch", 6, 32)
    x = rotated(model, "q", heads(model, "q", "x", 4))
    with pytest.raises(PebblerError, match="type Mul: it combines a layer with a constant"):
        read(model, x, "q.turned0.out")


@pytest.mark.parametrize("how", ["Reciprocal", "Div", "quotient"])
def test_a_root_mean_square_norm_that_is_written_out(read: Callable[..., Network], how: str) -> None:
    model = Model("batch", 6, 32)
    for name, value in (("two", 2.0), ("least", 1e-6), ("one", 1.0)):
        model.weights.append(helper.make_tensor(name, FLOAT, [], [value]))
    mean = model.node("ReduceMean", "mean", model.node("Pow", "squares", "x", "two"), numbers(model, "a", -1))
    root = model.node("Sqrt", "root", model.node("Add", "more", mean, "least"))
    if how == "quotient":
        x = model.node("Div", "ratio", "x", root)
    else:
        rest = [root] if how == "Reciprocal" else ["one", root]
        x = model.node("Mul", "ratio", "x", model.node(how, "inverse", *rest))
    network = read(model, model.node("Mul", "norm", model.weight("scale", 32), x))
    assert kinds(network)[1:] == [("norm", "norm", False), ("loss(norm.out)", "softmax", False)]
    assert (network["norm"].parameters, network["norm"].saved) == (32, 6)


def test_a_root_mean_square_norm_of_a_runtime(read: Callable[..., Network]) -> None:
    model = Model("batch", 6, 32)
    x = model.node("SimplifiedLayerNormalization", "norm", "x", model.weight("scale", 32), axis=-1)
    assert read(model, x)["norm"].parameters == 32


@pytest.mark.parametrize("operator", ["Sigmoid", "Tanh"])
def test_an_activation_whose_slope_follows_from_its_output(
    read: Callable[..., Network], operator: str
) -> None:
    model = Model("batch", 6, 32)
    network = read(model, model.node(operator, "gate", "x"))
    assert kinds(network)[1:] == [("gate", "sigmoid", False), ("loss(gate.out)", "softmax", False)]


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
        case "elsewhere":
            low = TensorProto(name="low", data_type=FLOAT, data_location=TensorProto.EXTERNAL)
            low.external_data.add(key="location", value="low.bin")
            model.weights.append(low)
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
        case "cache":
            model = Model("batch", 6, 32)
            past = [model.weight(name, 1, 4, 3, 8) for name in ("keys", "values")]
            x = heads(model, "q", "x", 4)
            outputs = ["y", "new keys", "new values"]
            x = model.node("Attention", "bad", x, x, x, "", *past, outputs=outputs)
        case "runtime's cache":
            model = Model("batch", 6, 32)
            past = [model.weight(name, 1, 4, 3, 8) for name in ("keys", "values")]
            numbered = [numbers(model, name, 6) for name in ("seqlens_k", "total")]
            x = model.node(
                "GroupQueryAttention",
                "bad",
                "x",
                "x",
                "x",
                *past,
                *numbered,
                domain="com.microsoft",
                num_heads=4,
            )
        case "mask":
            model = Model("batch", 6, 32)
            model.inputs.append(helper.make_tensor_value_info("mask", TensorProto.INT64, ["batch", 32]))
            x = model.node("Mul", "bad", "x", model.node("Cast", "cast", "mask", to=FLOAT))
        case "repeats":
            model = Model("batch", 6, 32)
            x = model.node("Unsqueeze", "more", heads(model, "k", "x", 2), numbers(model, "two", 2))
            x = model.node("Expand", "twice", x, numbers(model, "sizes", 1, 2, 2, 6, 8))
            x = model.node("Relu", "bad", x)
        case "mean":
            model = Model("batch", 6, 32)
            x = model.node("ReduceMean", "bad", "x", numbers(model, "last", -1))
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
        "elsewhere",
        "positions",
        "reshape",
        "norm",
        "quotient",
        "values",
        "softmax",
        "axis",
        "scores",
        "cache",
        "runtime's cache",
        "mask",
        "repeats",
        "mean",
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


def test_operators_of_a_runtime_are_told_with_their_domain(read: Callable[..., Network]) -> None:
    model = Model("batch", 6, 32)
    x = model.node("MultiHeadAttention", "heads", "x", "x", "x", domain="com.microsoft", num_heads=4)
    with pytest.raises(
        PebblerError, match=r"no layer computes com\.microsoft\.MultiHeadAttention \(node"
    ) as told:
        read(model, x)
    assert "read the file from before a runtime optimised it" in str(told.value)


def test_a_file_that_is_no_model_or_has_open_sizes(tmp_path: Path, read: Callable[..., Network]) -> None:
    with pytest.raises(PebblerError, match=r"none\.onnx cannot be read as ONNX"):
        read_model(str(tmp_path / "none.onnx"))
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(PebblerError, match=r"text\.onnx cannot be read as ONNX"):
        read_model(str(tmp_path / "text.onnx"))
    model = Model("batch", 3, "height", "width")
    with pytest.raises(PebblerError, match=r"input 'x' has the shape \[1, 3, 0, 0\]"):
        read(model, model.conv("conv", "x", (3, 3), 1))
