"""Read an ONNX model as a network: its forward pass; the backward pass follows from the layers.

Shapes come from ONNX's own inference, for a batch of one where the file leaves it open; the first dimension
of every input is the batch.

It is long because an operator of ONNX is a method, and few share more than how operands are found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from math import prod
from pathlib import Path
from textwrap import shorten
from typing import Any

import onnx
from onnx import numpy_helper

from ..errors import PebblerError
from ..files import read_bytes
from ..networks.builder import NetworkBuilder
from ..networks.network import Network, Shape
from .onnx_axes import Axes, expanded, names, parts, regrouped, repeats, whole
from .onnx_fused import fuse
from .onnx_shapes import with_shapes

_RESHAPING = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_CUTTING = ("Gather", "Slice", "Split")
_POINTWISE = (
    "Add",
    "Div",
    "Erf",
    "Exp",
    "Mul",
    "Neg",
    "Pow",
    "Reciprocal",
    "Sigmoid",
    "Softplus",
    "Sqrt",
    "Sub",
    "Tanh",
)
"""What activations are written with, value by value."""
_ACTIVATIONS = ("Celu", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Selu", "Swish")
_LOSSES = ("LogSoftmax", "Softmax", "SoftmaxCrossEntropyLoss")
_ROOT_MEAN_SQUARES = ("RMSNormalization", "SimplifiedLayerNormalization")
_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Trilu")
"""What masks are made with that leave out what comes later: of constants, which are the positions then."""
_RUNTIME = ("GroupQueryAttention", "RotaryEmbedding", "SimplifiedLayerNormalization")
"""Operators that a runtime's domain has and that are read all the same."""


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
        graph = with_shapes(onnx.load_model_from_string(read_bytes(path)))
        fuse(graph)
    except Exception as error:
        reason = shorten(str(error), 400)  # the inference lists every node behind the first mistake
        raise PebblerError(f"{path} cannot be read as ONNX: {type(error).__name__}: {reason}") from error
    return _Reader(str(path), graph).read()


class _Reader:
    """Walks the nodes in their order and adds a layer for each that is more than another view of its input.

    Attributes
    ----------
    layers
        Per value that depends on the inputs, the layer that has it as its output.
    constants
        Per value that does not, what it was made from: a weight, or the value itself.
    axes
        Per such value, which dimensions of the layer's output its own are made of.
    cut
        Such values that are only a part of the layer's output, or repeat it; attention takes them, parts are
        copied for others.
    labels
        Inputs of other numbers than single precision; only an embedding or a loss may read them.
    masks
        Constants that leave out what comes later.
    fused
        Outputs of nodes that became part of the layer before them.
    """

    def __init__(self, path: str, graph: Any) -> None:
        self.path = path
        self.graph = graph
        self.net = NetworkBuilder(path)
        self.layers: dict[str, str] = {}
        self.axes: dict[str, Axes] = {}
        self.cut: set[str] = set()
        self.masks: set[str] = set()
        self.constants = {tensor.name: tensor.name for tensor in graph.initializer}
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.dims = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        for value in (*graph.value_info, *graph.input, *graph.output):
            self.dims[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        self.readers: dict[str, list[Any]] = defaultdict(list)
        self.places = {node.output[0]: place for place, node in enumerate(graph.node) if node.output}
        for node in graph.node:
            for name in dict.fromkeys(node.input):
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
        self._require_known()
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
        self.axes[value.name] = whole(dims)

    def _require_known(self) -> None:
        """Refuse a graph with operators that no layer computes, all of them in one sentence."""
        reached = {*self.layers, *self.labels}
        unknown: dict[str, list[str]] = defaultdict(list)
        for node in self.graph.node:
            if node.op_type != "Shape" and any(name in reached for name in node.input):
                reached.update(node.output)
                if node.domain not in ("", "ai.onnx") and node.op_type not in _RUNTIME:
                    unknown[f"{node.domain}.{node.op_type}"].append(_name(node))
                elif node.op_type not in _KNOWN:
                    unknown[node.op_type].append(_name(node))
        if unknown:
            listed = ", ".join(
                f"{kind} (node '{names[0]}'" + (f" and {len(names) - 1} more)" if names[1:] else ")")
                for kind, names in sorted(unknown.items())
            )
            runtime = any("." in kind for kind in unknown)
            advice = "; read the file from before a runtime optimised it" if runtime else ""
            raise PebblerError(
                f"{self.path}: no layer computes {listed}{advice}; docs/importers.md lists what can be "
                "read, and a model in torch can be recorded with all its operators"
            )

    def _node(self, node: Any) -> None:
        if node.op_type in _LOSSES:
            self._loss(node)
        elif node.op_type in ("Cast", "Identity") and node.input[0] in self.labels:
            self.labels.add(node.output[0])
        elif node.op_type == "Shape":
            self._constant(node)
        elif node.op_type == "Gather" and node.input[1] in self.labels and node.input[0] in self.constants:
            self._embedding(node)
        elif numbers := [name for name in node.input if name in self.labels]:
            raise self._error(
                node,
                f"it reads '{numbers[0]}', an input of other numbers than single precision, of which a "
                "network has tokens and labels only; export the model with it as a constant, or without it",
            )
        elif not any(name in self.layers for name in node.input):
            self._constant(node)
        elif node.op_type == "Cast":
            self._view(node, self.axes[node.input[0]])
        elif node.op_type in (*_RESHAPING, "Transpose"):
            self._reshape(node)
        elif node.op_type in _CUTTING:
            self._cut(node)
        elif node.op_type == "Expand":
            self._expand(node)
        elif node.op_type in _LAYERS:
            output = node.output[0]
            dims = self.dims.get(output, ())
            if len(dims) < 2 or not all(dims[1:]):
                raise self._error(node, f"its output has the shape {list(dims)}, 0 where it is open")
            layer, last = _LAYERS[node.op_type](self, node)
            if last not in self.cut and self.net.shape(layer).elements != prod(self.dims[last][1:]):
                raise self._error(
                    node, f"its output has the shape {list(self.dims[last])}, which no layer has"
                )
            self.layers[last] = layer
            self.axes.setdefault(last, self._axes_of(node, last))
        else:
            raise self._error(node, "no layer computes that")

    def _constant(self, node: Any) -> None:
        for name in node.output:
            self.constants[name] = name
        if node.op_type in ("Identity", "Transpose"):
            self.constants[node.output[0]] = self.constants[node.input[0]]
        if node.op_type in _COMPARISONS or any(name in self.masks for name in node.input):
            self.masks.update(node.output)
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                self.tensors[node.output[0]] = attribute.t

    def _reshape(self, node: Any) -> None:
        """Take the same data for the output, with the axes that it has now."""
        axes, dims = self.axes[node.input[0]], self.dims.get(node.output[0], ())
        if node.op_type == "Transpose":
            order = _attribute(node, "perm", range(len(axes))[::-1])
            self._view(node, [axes[position] for position in order])
            return
        if not dims or not all(dims):
            raise self._error(node, f"its output has the shape {list(dims)}, 0 where it is open")
        found = regrouped(axes, dims)
        if found is None:
            before = list(self.dims[node.input[0]])
            raise self._error(node, f"it makes {list(dims)} of {before}, which cuts across dimensions")
        self._view(node, found)

    def _expand(self, node: Any) -> None:
        """Take the same data several times, as attention with groups of heads takes keys and values."""
        value, dims = node.input[0], self.dims.get(node.output[0], ())
        found = expanded(self.axes[value], self.dims[value], dims)
        if found is None:
            raise self._error(node, f"it makes {list(dims)} of {list(self.dims[value])}, 0 where it is open")
        self._view(node, found)
        if repeats(found) > 1:
            self.cut.add(node.output[0])

    def _view(self, node: Any, axes: Axes) -> None:
        for output in node.output:
            self.layers[output], self.axes[output] = self.layers[node.input[0]], axes
            if node.input[0] in self.cut:
                self.cut.add(output)

    def _cut(self, node: Any) -> None:
        """Take a part of the data for each output."""
        if node.input[0] not in self.layers or any(name in self.layers for name in node.input[1:]):
            raise self._error(node, "what it takes depends on values")
        for output in node.output:
            dims = self.dims.get(output, ())
            if not dims or not all(dims):
                raise self._error(node, f"its output has the shape {list(dims)}, 0 where it is open")
            axes = self.axes[node.input[0]]
            if node.op_type == "Gather" and len(dims) < len(axes):
                axis = _attribute(node, "axis", 0) % len(axes)
                axes = [*axes[:axis], *axes[axis + 1 :]]
            self.layers[output] = self.layers[node.input[0]]
            self.axes[output] = parts(axes, dims)
            if prod(dims) != prod(self.dims[node.input[0]]) or node.input[0] in self.cut:
                self.cut.add(output)

    def _embedding(self, node: Any) -> None:
        """Read vectors of a table; the input with their indices is data."""
        entries, width = self.dims[node.input[0]]
        dims = self.dims[node.output[0]]
        source = self.layers.get(node.input[1])
        if source is None:
            source = self.net.input(1, prod(dims[1:-1]), 1, node.input[1])
            self.layers[node.input[1]] = source
        layer = self.net.embedding(_name(node), source, entries, width)
        self.owners[(self.constants[node.input[0]],)] = layer
        self.layers[node.output[0]], self.axes[node.output[0]] = layer, whole(dims)

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
        if node.op_type == "MatMul" and all(name in self.layers for name in node.input):
            return self._scores(node)
        outputs, last = self.dims[node.output[0]][-1], node.output[0]
        biased = node.op_type == "Gemm" and _has(node, 2)
        if node.input[1] not in self.constants or _attribute(node, "transA", 0):
            raise self._error(node, "its second factor is no weight")
        following = self._follower(last, ("Add",))
        if following is not None and not biased and any(name in self.constants for name in following.input):
            biased, last = True, self._fuse(following)
        source, flat = self._source(node), len(self.dims[node.input[0]]) == 2
        if flat and biased:
            relu, last = self._relu(last)
            return self.net.fc(_name(node), source, outputs, relu=relu, tied=self._tied(node)), last
        if flat and self.net.shape(source).positions > 1:
            raise self._error(node, "it has no bias, but a layer behind a flattened image has")
        if names(self.axes[node.input[0]][-1]) - {"C"}:
            raise self._error(node, "it adds up over positions, which no layer does")
        tied = self._tied(node)
        return self.net.linear(_name(node), source, outputs=outputs, bias=biased, tied=tied), last

    def _scores(self, node: Any) -> tuple[str, str]:
        """Read attention that is written out: scores, scaled and masked, a softmax, a product with values."""
        causal, value = False, node.output[0]
        following = self._follower(value, ("Add", "Div", "Mul", "Where", "Softmax"))
        while following is not None and following.op_type != "Softmax":
            others = [name for name in following.input if name != value]
            if any(name in self.layers for name in others):
                break
            causal = causal or any(name in self.masks for name in others)
            value = self._fuse(following)
            following = self._follower(value, ("Add", "Div", "Mul", "Where", "Softmax"))
        if following is not None and following.op_type == "Softmax":
            value = self._fuse(following)
            if (dropout := self._follower(value, ("Dropout",))) is not None:
                value = self._fuse(dropout)
            following = self._follower(value, ("MatMul",))
            if following is not None and following.input[0] == value and following.input[1] in self.layers:
                last = self._fuse(following)
                self.axes[last] = self.axes[node.input[0]]
                operands = (*node.input, following.input[1])
                return self._attend(following, operands, causal=causal), last
        raise self._error(node, "it is a product of two layers, but no attention: scores, softmax and values")

    def _attention(self, node: Any) -> tuple[str, str]:
        past = (3, 4) if node.op_type == "GroupQueryAttention" else (4, 5)
        if any(node.output[1:]) or any(_has(node, position) for position in past):
            raise self._error(
                node, "it has keys and values of earlier tokens; export the model without a cache of them"
            )
        masked = node.op_type == "GroupQueryAttention" or (_has(node, 3) and node.input[3] in self.masks)
        causal = bool(_attribute(node, "is_causal", 0)) or masked
        self.axes[node.output[0]] = self.axes[node.input[0]]
        return self._attend(node, node.input[:3], causal=causal), node.output[0]

    def _attend(self, node: Any, operands: Any, *, causal: bool) -> str:
        """Add attention of queries, keys and values, which may lie in one layer or in several."""
        if missing := [name for name in operands if name not in self.layers]:
            raise self._error(node, f"'{missing[0]}' is no layer's output")
        queries, keys, _ = (self.dims[name] for name in operands)
        if len(queries) == 4:
            heads, groups, width = queries[1], keys[1] // repeats(self.axes[operands[1]]), queries[3]
        else:
            heads = _attribute(node, "q_num_heads", _attribute(node, "num_heads", 1))
            groups, width = _attribute(node, "kv_num_heads", 1), queries[-1] // heads
        sources = dict.fromkeys(self.layers[name] for name in operands)
        if sum(self.net.shape(source).channels for source in sources) != (heads + 2 * groups) * width:
            sources = dict.fromkeys(self._sources(node, operands))
        return self.net.attention(_name(node), *sources, heads=heads, groups=groups, causal=causal)

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
                raise self._error(
                    node,
                    "it averages over something else than height and width, and is no part of a "
                    "root-mean-square norm with a scale; export layer norms with operator set 17 or later",
                )
        source = self._source(node)
        return self.net.avgpool(_name(node), source, self.net.shape(source).height, stride=1), node.output[0]

    def _norm(self, node: Any) -> tuple[str, str]:
        source = self._source(node)
        if prod(self.dims[node.input[1]]) != self.net.shape(source).channels:
            raise self._error(node, "its scale has not one value a channel")
        if node.op_type in ("LayerNormalization", *_ROOT_MEAN_SQUARES):
            if names(self.axes[node.input[0]][-1]) - {"C"}:
                raise self._error(node, "it normalises over positions, which no layer does")
            add = self.net.layer_norm if node.op_type == "LayerNormalization" else self.net.rms_norm
            return add(_name(node), source), node.output[0]
        if node.op_type == "GroupNormalization":
            return self.net.group_norm(_name(node), source, _attribute(node, "num_groups", 1)), node.output[0]
        relu, last = self._relu(node.output[0])
        return self.net.bn(_name(node), source, relu=relu), last

    def _instance_norm(self, node: Any) -> tuple[str, str]:
        """Read a group norm as operator sets before 21 write it: groups as channels, then a scale."""
        source, last = self._source(node), node.output[0]
        channels, groups = self.net.shape(source).channels, self.dims[node.input[0]][1]
        for kind in ("Reshape", "Mul", "Add"):
            following = self._follower(last, (kind,))
            sizes = (
                []
                if following is None
                else [prod(self.dims.get(name, ())) for name in following.input if name in self.constants]
            )
            if following is None or (kind != "Reshape" and sizes != [channels]):
                raise self._error(node, "no scale and shift a channel follow, as a group norm has")
            last = self._fuse(following)
        self.axes[last] = whole(self.dims[last])
        return self.net.group_norm(_name(following), source, groups), last

    def _combine(self, node: Any) -> tuple[str, str]:
        """Read a sum or a product: of layers, or of one with trained values, or within an activation."""
        layers = [name for name in node.input if name in self.layers]
        if len(layers) == 1 or len(set(layers)) == 1:
            return self._with_constant(node, layers[0])
        shapes = [self.net.shape(source) for source in self._sources(node)]
        largest = max(shapes, key=lambda shape: shape.elements)
        order = sorted(range(len(shapes)), key=lambda position: shapes[position] != largest)
        sources = [self._sources(node)[position] for position in order]
        if node.op_type in ("Add", "Sub", "Sum"):
            relu, last = self._relu(node.output[0])
            return self.net.add(_name(node), *sources, relu=relu), last
        if node.op_type != "Mul":
            raise self._error(node, "it divides a layer by another")
        if len(set(shapes)) > 1:  # a factor a channel
            sources[1] = self.net.resample(f"{_name(node)}.everywhere", sources[1], largest)
        return self.net.multiply(_name(node), *sources), node.output[0]

    def _with_constant(self, node: Any, value: str) -> tuple[str, str]:
        sizes = [prod(self.dims.get(name, ())) for name in node.input if name in self.constants]
        if not sizes or sizes == [1]:
            return self._pointwise(node)
        shape = self.net.shape(self._source(node, value))
        if node.op_type == "Add" and sizes == [prod(self.dims[value][1:])]:
            return self.net.position(_name(node), self.layers[value]), node.output[0]
        if node.op_type == "Mul" and sizes == [shape.channels]:
            return self.net.scale(_name(node), self.layers[value]), node.output[0]
        raise self._error(node, "it combines a layer with a constant")

    def _pointwise(self, node: Any) -> tuple[str, str]:
        """Read an activation that is written out, as far as it is a function of one value.

        What decides about memory is whether the backward pass reads the input or the output. A single
        function whose slope follows from its output has the kind of the sigmoid.
        """
        value = next(name for name in node.input if name in self.layers)
        last, nodes = self._function_of(value, node)
        kinds = {one.op_type for one in nodes}
        linear = kinds <= {"Add", "Div", "Mul", "Neg", "Sub"} and all(
            one.op_type == "Neg" or any(name in self.constants for name in one.input) for one in nodes
        )
        for one in nodes:
            self._fuse(one)
        self.axes[last] = self.axes[value]
        reader = self._follower(last, ("MatMul",))
        if linear and reader is not None and not any(name in self.constants for name in reader.input):
            if value in self.cut:  # scaled queries or keys: a part of attention
                self.cut.add(last)
            return self.layers[value], last
        source, name = self._source(node, value), _name(nodes[-1])
        if linear:
            return self.net.resample(name, source, self.net.shape(source)), last
        if len(nodes) == 1 and kinds <= {"Exp", "Reciprocal", "Sigmoid", "Sqrt", "Tanh"}:
            return self.net.layer(name, "sigmoid", source), last
        return (self.net.silu if "Sigmoid" in kinds else self.net.gelu)(name, source), last

    def _function_of(self, value: str, node: Any) -> tuple[str, list[Any]]:
        """Return the last value that follows from one alone, point by point, and the nodes up to there."""
        inside: dict[str, Any] = {}
        best = node.output[0], [node]
        waiting = {node.output[0]: node}
        while waiting:
            output = min(waiting, key=self.places.__getitem__)
            one = waiting.pop(output)
            given = [name for name in one.input if name not in inside and name != value]
            if any(prod(self.dims.get(name, (2,))) != 1 or name not in self.constants for name in given):
                continue
            inside[output] = one
            read = (reader for name in (value, output) for reader in self.readers[name])
            waiting |= {
                reader.output[0]: reader
                for reader in read
                if reader.op_type in _POINTWISE and self.places[reader.output[0]] > self.places[output]
            }
            within = [name for name in inside if name != output]
            if not any(
                name in self.results or any(reader.output[0] not in inside for reader in self.readers[name])
                for name in within
            ):
                best = output, list(inside.values())
        return best

    def _concat(self, node: Any) -> tuple[str, str]:
        layers = [name for name in node.input if name in self.layers]
        axis = _attribute(node, "axis", 0) % len(self.dims[node.output[0]])
        following = self._follower(node.output[0], ("Add",))
        if len(layers) == 1 and len(node.input) == 2 and axis == 1 and following is not None:
            return self._tokens(node, layers[0], following)
        if any(names(self.axes[name][axis]) - {"C"} for name in layers):
            raise self._error(node, "it joins something else than channels")
        layer = self.net.concat(_name(node), *self._sources(node))
        self.axes[node.output[0]] = parts(self.axes[layers[0]], self.dims[node.output[0]])
        return layer, node.output[0]

    def _tokens(self, node: Any, value: str, following: Any) -> tuple[str, str]:
        """Read trained tokens before a sequence, with a trained vector that is added to every token."""
        dims = self.dims[node.output[0]]
        sizes = [prod(self.dims.get(name, ())) for name in following.input if name in self.constants]
        if sizes != [prod(dims[1:])] or value in self.cut:
            raise self._error(node, "it joins a layer and a constant, and no positions are added to both")
        extra = dims[1] - self.dims[value][1]
        last = self._fuse(following)
        self.axes[last] = whole(dims)
        return self.net.position(_name(following), self.layers[value], extra=extra), last

    def _rotation(self, node: Any) -> tuple[str, str]:
        """Read a fixed linear map of one value, which may be a part of a layer."""
        value = node.input[0]
        self._require_once(node, value)
        layer = self.net.resample(_name(node), self.layers[value], self._shape(value))
        self.axes[node.output[0]] = self.axes[value]
        return layer, node.output[0]

    def _resize(self, node: Any) -> tuple[str, str]:
        shape = Shape(*self.dims[node.output[0]][1:])
        return self.net.resample(_name(node), self._source(node), shape), node.output[0]

    def _dropout(self, node: Any) -> tuple[str, str]:
        return self.net.dropout(_name(node), self._source(node)), node.output[0]

    def _activation(self, node: Any) -> tuple[str, str]:
        add = self.net.silu if node.op_type in ("HardSwish", "Swish") else self.net.gelu
        return add(_name(node), self._source(node)), node.output[0]

    def _lrn(self, node: Any) -> tuple[str, str]:
        return self.net.lrn(_name(node), self._source(node)), node.output[0]

    def _source(self, node: Any, value: str | None = None) -> str:
        return self._sources(node, [value or node.input[0]])[0]

    def _sources(self, node: Any, values: Any = None) -> list[str]:
        values = node.input if values is None else values
        if not all(value in self.layers for value in values):
            raise self._error(node, "it combines a layer with a constant")
        for value in values:
            self._require_once(node, value)
            if value in self.cut:  # a part that is no part of attention is a tensor of its own
                self.layers[value] = self.net.resample(value, self.layers[value], self._shape(value))
                self.cut.remove(value)
        return [self.layers[value] for value in values]

    def _require_once(self, node: Any, value: str) -> None:
        if repeats(self.axes[value]) > 1:
            raise self._error(node, f"'{value}' has values several times, which only attention takes")

    def _shape(self, value: str) -> Shape:
        """Return the shape of a layer with the data of a value: of the whole layer or of a part."""
        if value not in self.cut:
            return self.net.shape(self.layers[value])
        factors = [factor for axis in self.axes[value] for factor in axis]
        channels, positions = (prod(n for name, n in factors if name == kind) for kind in "CP")
        return Shape(channels, positions, 1)

    def _axes_of(self, node: Any, value: str) -> Axes:
        """Return the axes of a layer's output: those of its input where it has them, too."""
        source = next(name for name in node.input if name in self.layers)
        dims, before = self.dims[value], self.dims[source]
        if dims == before:
            return self.axes[source]
        if node.op_type in ("Gemm", "MatMul") and dims[:-1] == before[:-1]:
            return [*self.axes[source][:-1], [("C", dims[-1])]]
        return whole(dims)

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
                least = self._values(following, 1)
            if least not in (0, [0]):
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
        name = node.input[position] if _has(node, position) else ""
        tensor = self.tensors.get(self.constants.get(name, ""))
        if tensor is None:
            raise self._error(node, f"'{name}' is no constant")
        if tensor.data_location == onnx.TensorProto.EXTERNAL:  # a model may name any file
            raise self._error(node, f"the values of '{name}' are in another file, which is not read")
        try:
            values: list[Any] = numpy_helper.to_array(tensor).reshape(-1).tolist()
        except (KeyError, TypeError, ValueError) as error:  # of data that do not fit their shape or type
            raise self._error(node, f"'{name}' has no values: {error}") from error
        return values

    def _error(self, node: Any, what: str) -> PebblerError:
        return PebblerError(
            f"{self.path}: node '{_name(node)}' of type {node.op_type}: {what}; "
            "docs/importers.md lists what can be read"
        )


_LAYERS: dict[str, Callable[[_Reader, Any], tuple[str, str]]] = {
    "Attention": _Reader._attention,
    "AveragePool": _Reader._pool,
    "BatchNormalization": _Reader._norm,
    "Concat": _Reader._concat,
    "Conv": _Reader._conv,
    "ConvTranspose": _Reader._deconv,
    "Dropout": _Reader._dropout,
    "Gelu": _Reader._activation,
    "Gemm": _Reader._product,
    "GroupQueryAttention": _Reader._attention,
    "GlobalAveragePool": _Reader._global_pool,
    "GroupNormalization": _Reader._norm,
    "InstanceNormalization": _Reader._instance_norm,
    "LRN": _Reader._lrn,
    "LayerNormalization": _Reader._norm,
    "MatMul": _Reader._product,
    "MaxPool": _Reader._pool,
    "ReduceMean": _Reader._global_pool,
    "Resize": _Reader._resize,
    "RotaryEmbedding": _Reader._rotation,
    "Sum": _Reader._combine,
    **dict.fromkeys(_ACTIVATIONS, _Reader._activation),
    **dict.fromkeys(_ROOT_MEAN_SQUARES, _Reader._norm),
    **dict.fromkeys(_POINTWISE, _Reader._pointwise),
    **dict.fromkeys(("Add", "Div", "Mul", "Sub"), _Reader._combine),
}
"""Per operator, what adds its layer and returns it with the value that it ends in."""

_KNOWN = {*_LAYERS, *_LOSSES, *_RESHAPING, *_CUTTING, "Cast", "Clip", "Expand", "Relu", "Transpose", "Where"}


def _name(node: Any) -> str:
    return str(node.name or next(iter(node.output), ""))


def _has(node: Any, position: int) -> bool:
    """Whether an optional operand is given."""
    return len(node.input) > position and bool(node.input[position])


def _attribute(node: Any, key: str, default: Any) -> Any:
    found = [attribute for attribute in node.attribute if attribute.name == key]
    return onnx.helper.get_attribute_value(found[0]) if found else default
