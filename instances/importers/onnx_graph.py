"""Read an ONNX model as a network: its forward pass; the backward pass follows from the layers.

Shapes come from ONNX's own inference, for a batch of one; the first dimension of every tensor is the batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper, shape_inference

from ..errors import PebblerError
from ..files import read_bytes
from ..networks.builder import Network, NetworkBuilder, Shape

_RESHAPING = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_LOSSES = ("LogSoftmax", "Softmax", "SoftmaxCrossEntropyLoss")


def read_network(path: str | Path) -> Network:
    """Return the network that an ONNX model describes.

    Layers are named after their nodes. A ReLU, or a Clip from 0 on, acts in place on the output of the node
    before it; a bias that is added to a matrix product is part of that; weights that several nodes use are
    counted once. Behind an output that is no softmax comes one, since training needs a loss.

    Raises
    ------
    PebblerError
        When the file cannot be read, a shape cannot be inferred, or a node has no place in a network.
    """
    try:
        model = onnx.load_model_from_string(read_bytes(path))
        _forget_shapes(model.graph)
        model = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise PebblerError(f"{path} cannot be read as ONNX: {type(error).__name__}: {reason}") from error
    return _Reader(str(path), model.graph).read()


def _forget_shapes(graph: Any) -> None:
    """Set the batch to 1, and leave every shape but those of inputs and weights to the inference."""
    weights = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.name not in weights and value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_value = 1
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    del graph.value_info[:]


class _Reader:
    """Walks the nodes in their order and adds a layer for each that is more than another view of its input.

    Attributes
    ----------
    layers
        Per value that depends on the inputs, the layer that has it as its output.
    constants
        Per value that does not, what it was made from: a weight, or the value itself.
    labels
        Inputs of other numbers than single precision; only a loss may read them.
    fused
        Outputs of nodes that became part of the layer before them.
    """

    def __init__(self, path: str, graph: Any) -> None:
        self.path = path
        self.graph = graph
        self.net = NetworkBuilder(path)
        self.layers: dict[str, str] = {}
        self.constants = {tensor.name: tensor.name for tensor in graph.initializer}
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.dims = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        for value in (*graph.value_info, *graph.input, *graph.output):
            self.dims[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        self.readers: dict[str, list[Any]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self.readers[name].append(node)
        self.results = {value.name for value in graph.output}
        self.labels: set[str] = set()
        self.fused: set[str] = set()
        self.owners: dict[tuple[str, ...], str] = {}

    def read(self) -> Network:
        """Return the network."""
        for value in self.graph.input:
            if value.name not in self.constants:
                self._input(value)
        for node in self.graph.node:
            if not node.output:
                raise self._error(node, "it has no output")
            if node.output[0] not in self.fused:
                self._node(node)
        for value in self.graph.output:
            if value.name in self.layers:
                self.net.softmax(f"loss({value.name})", self.layers[value.name])
        return self.net.finish(batch=1, source=f"ONNX model {Path(self.path).name}")

    def _input(self, value: Any) -> None:
        if value.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
            self.labels.add(value.name)
            return
        dims = self.dims[value.name]
        if not 2 <= len(dims) <= 4 or not all(dims):
            raise PebblerError(
                f"{self.path}: input '{value.name}' has the shape {list(dims)}, 0 where it is open; "
                "export the model with two to four dimensions, all but the first of them fixed"
            )
        channels, height, width = {2: (*dims[1:], 1, 1), 3: (*dims[:0:-1], 1), 4: dims[1:]}[len(dims)]
        self.layers[value.name] = self.net.input(channels, height, width, value.name)

    def _node(self, node: Any) -> None:
        if node.op_type in _LOSSES:
            self._loss(node)
        elif any(name in self.labels for name in node.input):
            raise self._error(node, "it reads an input of other numbers than single precision")
        elif node.op_type == "Shape" or not any(name in self.layers for name in node.input):
            self._constant(node)
        elif node.op_type in _RESHAPING:
            self._reshape(node)
        elif node.op_type in _LAYERS:
            output = node.output[0]
            dims = self.dims.get(output, ())
            if len(dims) < 2 or not all(dims[1:]):
                raise self._error(node, f"its output has the shape {list(dims)}, 0 where it is open")
            layer, last = _LAYERS[node.op_type](self, node)
            if self.net.shape(layer).elements != prod(self.dims[output][1:]):
                raise self._error(
                    node, f"its output has the shape {list(self.dims[output])}, which no layer has"
                )
            self.layers[last] = layer
        else:
            raise self._error(node, "no layer computes that")

    def _constant(self, node: Any) -> None:
        for name in node.output:
            self.constants[name] = name
        if node.op_type == "Identity":
            self.constants[node.output[0]] = self.constants[node.input[0]]
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                self.tensors[node.output[0]] = attribute.t

    def _reshape(self, node: Any) -> None:
        """Take the same data for the output; only dimensions of 1 may come or go, or all but one."""
        before, after = self.dims[node.input[0]], self.dims[node.output[0]]
        plain = [size for size in before if size > 1] == [size for size in after if size > 1]
        if not (plain or after == (1, prod(before))):
            raise self._error(node, f"it makes {list(after)} of {list(before)}; only flattening has a place")
        self.layers[node.output[0]] = self.layers[node.input[0]]

    def _loss(self, node: Any) -> None:
        if any(self.readers[name] for name in node.output):
            raise self._error(node, "it does not end the network")
        self.net.softmax(_name(node), self._source(node))

    def _conv(self, node: Any) -> tuple[str, str]:
        relu, last = self._relu(node.output[0])
        return (
            self.net.conv(
                _name(node),
                self._source(node),
                self.dims[node.output[0]][1],
                self._kernel(node),
                stride=self._same(node, "strides", 1),
                pad=self._padding(node),
                groups=_attribute(node, "group", 1),
                bias=_has(node, 2),
                relu=relu,
                tied=self._tied(node),
            ),
            last,
        )

    def _deconv(self, node: Any) -> tuple[str, str]:
        if _attribute(node, "group", 1) != 1 or any(_attribute(node, "output_padding", ())):
            raise self._error(node, "it has groups or output padding, which no layer has")
        layer = self.net.deconv(
            _name(node),
            self._source(node),
            self.dims[node.output[0]][1],
            self._kernel(node),
            stride=self._same(node, "strides", 1),
            pad=self._padding(node),
            bias=_has(node, 2),
        )
        return layer, node.output[0]

    def _product(self, node: Any) -> tuple[str, str]:
        """Read a product with weights: of all values of an image, or of the channels at every position."""
        outputs, last = self.dims[node.output[0]][-1], node.output[0]
        biased = node.op_type == "Gemm" and _has(node, 2)
        if node.input[1] not in self.constants or _attribute(node, "transA", 0):
            raise self._error(node, "its second factor is no weight; record attention from torch instead")
        following = self._follower(last, ("Add",))
        if following is not None and not biased and any(name in self.constants for name in following.input):
            biased, last = True, self._fuse(following)
        source, flat = self._source(node), len(self.dims[node.input[0]]) == 2
        if flat and biased:
            relu, last = self._relu(last)
            return self.net.fc(_name(node), source, outputs, relu=relu, tied=self._tied(node)), last
        if flat and self.net.shape(source).positions > 1:
            raise self._error(node, "it has no bias, but a layer behind a flattened image has")
        tied = self._tied(node)
        return self.net.linear(_name(node), source, outputs=outputs, bias=biased, tied=tied), last

    def _pool(self, node: Any) -> tuple[str, str]:
        kernel, stride = self._kernel(node), self._same(node, "strides", 1)
        pad, ceil = self._padding(node), bool(_attribute(node, "ceil_mode", 0))
        name, source = _name(node), self._source(node)
        if node.op_type == "AveragePool":
            return self.net.avgpool(name, source, kernel, stride=stride, pad=pad, ceil=ceil), node.output[0]
        relu, last = self._relu(node.output[0])
        return self.net.maxpool(name, source, kernel, stride=stride, pad=pad, ceil=ceil, relu=relu), last

    def _global_pool(self, node: Any) -> tuple[str, str]:
        if node.op_type == "ReduceMean":
            axes = _attribute(node, "axes", ()) or self._values(node, 1)
            if sorted(axis % 4 for axis in axes) != [2, 3]:
                raise self._error(node, "it averages over something else than height and width")
        source = self._source(node)
        return self.net.avgpool(_name(node), source, self.net.shape(source).height, stride=1), node.output[0]

    def _norm(self, node: Any) -> tuple[str, str]:
        source = self._source(node)
        if prod(self.dims[node.input[1]]) != self.net.shape(source).channels:
            raise self._error(node, "its scale has not one value a channel")
        if node.op_type == "LayerNormalization":
            return self.net.layer_norm(_name(node), source), node.output[0]
        relu, last = self._relu(node.output[0])
        return self.net.bn(_name(node), source, relu=relu), last

    def _add(self, node: Any) -> tuple[str, str]:
        relu, last = self._relu(node.output[0])
        return self.net.add(_name(node), *self._sources(node), relu=relu), last

    def _multiply(self, node: Any) -> tuple[str, str]:
        return self.net.multiply(_name(node), *self._sources(node)), node.output[0]

    def _concat(self, node: Any) -> tuple[str, str]:
        if _attribute(node, "axis", 0) % len(self.dims[node.output[0]]) != 1:
            raise self._error(node, "it joins something else than channels")
        return self.net.concat(_name(node), *self._sources(node)), node.output[0]

    def _resize(self, node: Any) -> tuple[str, str]:
        shape = Shape(*self.dims[node.output[0]][1:])
        return self.net.resample(_name(node), self._source(node), shape), node.output[0]

    def _dropout(self, node: Any) -> tuple[str, str]:
        return self.net.dropout(_name(node), self._source(node)), node.output[0]

    def _gelu(self, node: Any) -> tuple[str, str]:
        return self.net.gelu(_name(node), self._source(node)), node.output[0]

    def _lrn(self, node: Any) -> tuple[str, str]:
        return self.net.lrn(_name(node), self._source(node)), node.output[0]

    def _source(self, node: Any) -> str:
        return self._sources(node, node.input[:1])[0]

    def _sources(self, node: Any, names: Any = None) -> list[str]:
        names = node.input if names is None else names
        if not all(name in self.layers for name in names):
            raise self._error(node, "it combines a layer with a constant")
        return [self.layers[name] for name in names]

    def _follower(self, value: str, kinds: tuple[str, ...]) -> Any:
        """Return the node that alone reads a value, if it is of these kinds; else None."""
        readers = self.readers[value]
        alone = len(readers) == 1 and value not in self.results
        return readers[0] if alone and readers[0].op_type in kinds else None

    def _fuse(self, node: Any) -> str:
        output = str(node.output[0])
        self.fused.add(output)
        return output

    def _relu(self, value: str) -> tuple[bool, str]:
        """Whether a ReLU alone follows a value, and the value behind it."""
        following = self._follower(value, ("Relu", "Clip"))
        if following is None:
            return False, value
        if following.op_type == "Clip":
            least = _attribute(following, "min", None)
            if least is None and _has(following, 1):
                (least,) = self._values(following, 1)
            if least != 0:
                raise self._error(following, "it clips at something else than 0")
        return True, self._fuse(following)

    def _tied(self, node: Any) -> str | None:
        """Return the earlier layer that has the same weights; else remember this one as their owner."""
        if missing := [name for name in node.input[1:] if name and name not in self.constants]:
            raise self._error(node, f"'{missing[0]}' is no constant")
        weights = tuple(self.constants[name] for name in node.input[1:] if name)
        owner = self.owners.get(weights)
        if owner is None:
            self.owners[weights] = _name(node)
        return owner

    def _kernel(self, node: Any) -> int:
        """Side of a square window in two dimensions without dilation."""
        sizes = _attribute(node, "kernel_shape", ()) or self.dims[node.input[1]][2:]
        if len(sizes) != 2 or sizes[0] != sizes[1] or self._same(node, "dilations", 1) != 1:
            raise self._error(node, "its window is not a square of neighbouring values")
        return int(sizes[0])

    def _padding(self, node: Any) -> int:
        if _attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
            raise self._error(node, "'auto_pad' is set; write the padding out in 'pads'")
        return self._same(node, "pads", 0)

    def _same(self, node: Any, key: str, default: int) -> int:
        """Return what an attribute has for every side."""
        values = set(_attribute(node, key, (default,)))
        if len(values) != 1:
            raise self._error(node, f"'{key}' differs from side to side")
        return int(values.pop())

    def _values(self, node: Any, position: int) -> list[Any]:
        """Numbers of a constant operand."""
        tensor = self.tensors.get(self.constants.get(node.input[position], ""))
        if tensor is None:
            raise self._error(node, f"'{node.input[position]}' is no constant")
        values: list[Any] = numpy_helper.to_array(tensor).reshape(-1).tolist()
        return values

    def _error(self, node: Any, what: str) -> PebblerError:
        return PebblerError(
            f"{self.path}: node '{_name(node)}' of type {node.op_type}: {what}; "
            "docs/importers.md lists what can be read"
        )


_LAYERS: dict[str, Callable[[_Reader, Any], tuple[str, str]]] = {
    "Add": _Reader._add,
    "AveragePool": _Reader._pool,
    "BatchNormalization": _Reader._norm,
    "Concat": _Reader._concat,
    "Conv": _Reader._conv,
    "ConvTranspose": _Reader._deconv,
    "Dropout": _Reader._dropout,
    "Gelu": _Reader._gelu,
    "Gemm": _Reader._product,
    "GlobalAveragePool": _Reader._global_pool,
    "LRN": _Reader._lrn,
    "LayerNormalization": _Reader._norm,
    "MatMul": _Reader._product,
    "MaxPool": _Reader._pool,
    "Mul": _Reader._multiply,
    "ReduceMean": _Reader._global_pool,
    "Resize": _Reader._resize,
    "Sum": _Reader._add,
}
"""Per operator, what adds its layer and returns it with the value that it ends in."""


def _name(node: Any) -> str:
    return str(node.name or next(iter(node.output), ""))


def _has(node: Any, position: int) -> bool:
    """Whether an optional operand is given."""
    return len(node.input) > position and bool(node.input[position])


def _attribute(node: Any, key: str, default: Any) -> Any:
    found = [attribute for attribute in node.attribute if attribute.name == key]
    return onnx.helper.get_attribute_value(found[0]) if found else default
