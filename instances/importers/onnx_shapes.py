"""Shapes of every value of an ONNX graph, by ONNX's own inference."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import checker, defs, shape_inference


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
    known = _without_group_norms(model)
    known = shape_inference.infer_shapes(known, check_type=True, strict_mode=True, data_prop=True)
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
            least = defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain).min_input
            if len(node.input) < least:
                raise ValueError(f"node '{node.name}' has {len(node.input)} operands of at least {least}")


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


def _without_group_norms(model: Any) -> Any:
    """Return a model of the same shapes without the operator whose shape the inference does not know."""
    known = onnx.ModelProto()
    known.CopyFrom(model)
    for node in known.graph.node:
        if node.op_type == "GroupNormalization":
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:]
    return known
