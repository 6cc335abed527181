"""Put operators back together that exporters write out: root-mean-square norms, rotary positions, guards.

Every pattern is replaced by one node with the pattern's name for its output, so that what reads it need not
change. Values of weights are not read; a constant is whatever does not depend on the inputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import Any

from onnx import helper

_OF_ONE = ("Add", "Cast", "Div", "Pow", "Reciprocal", "Sqrt")
"""What makes the factor of a norm out of the mean of squares, with constants."""
_LINEAR = ("Concat", "Div", "Gather", "Identity", "Mul", "Neg", "Reshape", "Slice", "Split", "Squeeze")
_SUMS = ("Add", "Sub")
_MAPS = (*_LINEAR, *_SUMS, "Unsqueeze")
"""What fixed linear maps are written with: with constants, but sums and joins of parts only."""


def fuse(graph: Any) -> None:
    """Replace patterns of nodes in a graph, which must have the shape of every value.

    ==================  ====================================================================================
    RMSNormalization    ``w * x / sqrt(mean(x**2) + e)``, over the last dimension
    RotaryEmbedding     a fixed linear map of one value that cuts it up and joins its parts: rotary positions
                        of any layout, a cyclic shift
    the value itself    ``where(isnan(x), 0, x)``
    ==================  ====================================================================================
    """
    _Graph(graph).fuse()


class _Graph:
    """A graph with who reads and who makes each value.

    Attributes
    ----------
    computed
        Values that depend on the inputs, by more than their shape.
    gone
        Outputs of nodes that became part of another.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.nodes: list[Any] = list(graph.node)
        self.place = {name: index for index, node in enumerate(self.nodes) for name in node.output}
        self.readers: dict[str, list[Any]] = defaultdict(list)
        weights = {tensor.name for tensor in graph.initializer}
        self.computed = {value.name for value in graph.input} - weights
        for node in self.nodes:
            for name in dict.fromkeys(node.input):
                self.readers[name].append(node)
            if node.op_type != "Shape" and any(name in self.computed for name in node.input):
                self.computed.update(node.output)
        self.results = {value.name for value in graph.output}
        self.dims = {
            value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            for value in (*graph.value_info, *graph.input, *graph.output)
        }
        self.dims |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self.gone: set[str] = set()

    def fuse(self) -> None:
        for node in self.nodes:
            if node.op_type == "IsNaN":
                self._guard(node)
            elif node.op_type == "ReduceMean":
                self._norm(node)
        for name in [name for node in self.nodes for name in node.output]:
            if name in self.computed and name not in self.gone:
                self._map(name)
        del self.graph.node[:]
        self.graph.node.extend(node for node in self.nodes if not set(node.output) <= self.gone)

    def _guard(self, test: Any) -> None:
        """Let readers of ``where(isnan(x), 0, x)`` read x."""
        value = test.input[0]
        for node in self.readers[test.output[0]]:
            if node.op_type != "Where" or node.input[2] != value or node.output[0] in self.results:
                return
        for node in self.readers[test.output[0]]:
            for reader in self.readers[node.output[0]]:
                names = [value if name == node.output[0] else name for name in reader.input]
                reader.ClearField("input")
                reader.input.extend(names)
                self.readers[value].append(reader)
            self.gone.add(node.output[0])
        self.gone.add(test.output[0])
        self.readers[value] = [reader for reader in self.readers[value] if reader.output[0] not in self.gone]

    def _norm(self, mean: Any) -> None:
        """Replace a root-mean-square norm around the mean of its squares."""
        square = self._maker(mean.input[0])
        if square is None or square.op_type not in ("Mul", "Pow"):
            return
        source = square.input[0]
        if square.op_type == "Mul" and square.input[1] != source:
            return
        dims = self.dims.get(source, ())
        if self.dims.get(mean.output[0]) not in ((*dims[:-1], 1), dims[:-1]) or not dims:
            return
        inside, node = [square, mean], self._only_reader(mean.output[0])
        while node is not None and source not in node.input:
            if node.op_type not in _OF_ONE or len(self._computed(node)) > 1:
                return
            inside.append(node)
            node = self._only_reader(node.output[0])
        scale = None if node is None else self._only_reader(node.output[0])
        if node is None or node.op_type not in ("Div", "Mul") or scale is None or scale.op_type != "Mul":
            return
        weights = [name for name in scale.input if name not in self.computed]
        if [prod(self.dims.get(name, ())) for name in weights] == [dims[-1]]:
            self._replace("RMSNormalization", (source, *weights), [*inside, node, scale])

    def _map(self, source: str) -> None:
        """Replace the largest fixed linear map of a value that has its shape and joins its parts."""
        readers = self.readers[source]
        if len(readers) < 2 and not any(node.op_type == "Split" for node in readers):
            return
        inside: dict[str, Any] = {source: None}
        waiting = {self.place[node.output[0]]: node for node in readers if node.op_type in _MAPS}
        best: list[Any] = []
        while waiting:
            node = waiting.pop(min(waiting))
            parts = self._computed(node)
            mixed = node.op_type in (*_SUMS, "Concat") and len(parts) < len(node.input)
            if mixed or not all(name in inside for name in parts) or not self._is_linear(node, parts):
                continue
            inside |= dict.fromkeys(node.output, node)
            for reader in [reader for name in node.output for reader in self.readers[name]]:
                if reader.op_type in _MAPS:
                    waiting[self.place[reader.output[0]]] = reader
            region = list({id(one): one for one in inside.values() if one is not None}.values())
            if self._is_map(source, node, region):
                best = region
        if best:
            self._replace("RotaryEmbedding", (source,), best)

    def _is_linear(self, node: Any, parts: Sequence[str]) -> bool:
        """Whether a node multiplies one value by constants at most, and takes fixed parts only."""
        if node.op_type in (*_SUMS, "Concat"):
            return True
        return len(parts) == 1 and (node.op_type == "Mul" or node.input[0] == parts[0])

    def _is_map(self, source: str, last: Any, region: Sequence[Any]) -> bool:
        """Whether others read only the last of some nodes, with the source's shape, and some are joined."""
        names = {name for node in region for name in node.output}
        return (
            len(last.output) == 1
            and self.dims.get(last.output[0]) == self.dims.get(source)
            and any(node.op_type == "Concat" for node in region)
            and not any(
                name in self.results or any(not set(reader.output) <= names for reader in self.readers[name])
                for name in names - set(last.output)
            )
        )

    def _replace(self, kind: str, inputs: Sequence[str], nodes: Sequence[Any]) -> None:
        """Put one node in place of some, the last of which has its output."""
        last, parts = nodes[-1], {name for node in nodes for name in node.output}
        new = helper.make_node(kind, list(inputs), list(last.output), name=last.name)
        self.gone |= parts - set(last.output)
        self.nodes[self.place[last.output[0]]] = new
        for name in inputs:
            self.readers[name] = [one for one in self.readers[name] if one.output[0] not in parts]
            self.readers[name].append(new)

    def _maker(self, name: str) -> Any:
        return self.nodes[self.place[name]] if name in self.place else None

    def _only_reader(self, name: str) -> Any:
        readers = self.readers[name]
        return readers[0] if len(readers) == 1 and name not in self.results else None

    def _computed(self, node: Any) -> list[str]:
        return [name for name in node.input if name in self.computed]
