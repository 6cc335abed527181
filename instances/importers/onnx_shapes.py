"""Shapes of every value of an ONNX graph, by ONNX's own inference."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import checker, defs, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

_ALIKE = ("GroupNormalization", "GroupQueryAttention", "RotaryEmbedding", "SimplifiedLayerNormalization")
"""Operators whose output has the shape of their first input, which the inference does not know."""
_ARITHMETIC = (
    *("Add", "Cast", "Concat", "Constant", "ConstantOfShape", "Div", "Equal", "Gather", "Identity", "Mul"),
    *("Reshape", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where"),
)
"""What shapes are computed with."""
_SMALL = 16
"""Shapes, and what they are computed from, have no more values than that."""


def with_shapes(model: Any) -> Any:
    """Return a model's graph with the shape of every value that the inference finds one for.

    Raises
    ------
    Exception
        Whatever ONNX raises where attributes are malformed or shapes contradict each other, and ValueError
        where nodes do not follow each other or lack operands.
    """
    _require_well_formed(model)
    _forget_shapes(model.graph)
    known = _inferred(model)
    while _is_open(known.graph) and _fold(model.graph, known.graph):
        known = _inferred(model)
    model.graph.value_info.extend(known.graph.value_info)
    for ours, inferred in zip(model.graph.output, known.graph.output, strict=True):
        ours.CopyFrom(inferred)
    return model.graph


def _require_well_formed(model: Any) -> None:
    """Refuse what ONNX's inference lets pass: nodes that read what nobody has written before, or too little.

    Protobuf gives texts that are not Unicode as bytes, and attributes may have no type or several.
    """
    versions = {opset.domain: opset.version for opset in model.opset_import}
    written = {"", *(value.name for value in (*model.graph.input, *model.graph.initializer))}
    for node in model.graph.node:
        for text in (node.name, node.op_type, node.domain, *node.input, *node.output):
            if not isinstance(text, str):
                raise ValueError(f"a text of a node is not Unicode: {text!r}")
        for attribute in node.attribute:
            if attribute.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                checker.check_attribute(attribute)
        if unknown := [name for name in node.input if name not in written]:
            raise ValueError(f"node '{node.name}' reads '{unknown[0]}', which no node before it writes")
        written.update(node.output)
        if defs.has(node.op_type, node.domain):
            schema = defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
            if len(node.input) < schema.min_input:
                raise ValueError(
                    f"node '{node.name}' has {len(node.input)} operands of at least {schema.min_input}"
                )
            for attribute in node.attribute:
                if attribute.name == "num_outputs" and attribute.i != len(
                    node.output
                ):  # aborts the inference
                    raise ValueError(f"node '{node.name}' has {len(node.output)} outputs, not {attribute.i}")
                known = schema.attributes.get(attribute.name)
                if known is not None and attribute.type != known.type.value:
                    raise ValueError(f"attribute '{attribute.name}' of node '{node.name}' has another type")


def _forget_shapes(graph: Any) -> None:
    """Set an open batch to 1, and leave every shape but those of inputs and weights to the inference."""
    weights = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in weights and dims and not dims[0].dim_value:
            dims[0].dim_value = 1
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    del graph.value_info[:]


def _inferred(model: Any) -> Any:
    """Return a model of the same shapes with those that the inference finds."""
    known = onnx.ModelProto()
    known.CopyFrom(model)
    for node in known.graph.node:
        if node.op_type in _ALIKE:
            node.op_type, node.domain = "Identity", ""
            del node.input[1:], node.output[1:], node.attribute[:]
    return shape_inference.infer_shapes(known, check_type=True, strict_mode=True, data_prop=True)


def _is_open(graph: Any) -> bool:
    return any(_dims(value) is None for value in (*graph.value_info, *graph.output))


def _dims(value: Any) -> tuple[int, ...] | None:
    """Return a value's dimensions, if all are known."""
    dims = value.type.tensor_type.shape.dim
    found = value.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims)
    return tuple(dim.dim_value for dim in dims) if found else None


def _fold(graph: Any, known: Any) -> bool:
    """Put numbers in place of nodes that compute small constants from shapes; whether there were any."""
    dims = {value.name: _dims(value) for value in (*known.value_info, *graph.input)}
    values = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if prod(tensor.dims) <= _SMALL and _has_data(tensor)
    }
    rest = []
    for node in graph.node:
        found = dims.get(node.output[0]) if len(node.output) == 1 else None
        shape = dims.get(node.input[0]) if node.op_type == "Shape" else None
        if found is None or prod(found) > _SMALL:
            rest.append(node)
            continue
        if shape is not None:
            ends = {attribute.name: attribute.i for attribute in node.attribute}
            value = np.array(shape[ends.get("start", 0) : ends.get("end")], np.int64)
        elif node.op_type in _ARITHMETIC and all(name in values for name in node.input if name):
            given = {name: values[name] for name in node.input if name}
            value = np.asarray(ReferenceEvaluator(node).run(None, given)[0])
        else:
            rest.append(node)
            continue
        values[node.output[0]] = value
        graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
    folded = len(rest) < len(graph.node)
    del graph.node[:]
    graph.node.extend(rest)
    return folded


def _has_data(tensor: Any) -> bool:
    return bool(tensor.raw_data or tensor.int64_data or tensor.int32_data or tensor.float_data)
