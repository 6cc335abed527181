"""Graphs of torch.compile, as torch logs them: the operators of both passes below autograd.

``TORCH_LOGS=aot_joint_graph`` writes them to standard error, and tlparse has them in files
``aot_joint_graph_*.txt``. Their text is Python, which is read here and never run. What torch calls a node is
the name of a block here, so that policies for nodes can be written. Once torch has cut a joint graph in two,
``TORCH_LOGS=aot_graphs`` writes the forward graph, which returns its outputs and what is saved.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from math import prod
from pathlib import Path
from typing import Any

from ..devices.device import Device, Precision
from ..devices.roofline import COST_MODEL, Convolution, Pass
from ..errors import FormatError
from ..importers.operators import (
    Operator,
    OperatorGraph,
    Place,
    Storage,
    convolution_of,
    grouped_flops,
    operator_instance,
)
from ..instance import Instance
from ..origin import Origin

_HEAD = re.compile(r"^(\s*)def forward\(self, primals, tangents\)", re.MULTILINE)
_FORWARD = re.compile(r"^(\s*)def forward\(self, primals_\d+: (?!.*\btangents_\d)", re.MULTILINE)
_LOGGED = re.compile(r"^(?:\[rank\d+\]:)?[A-Z]\d{4} .*?\[__aot_(?:joint_graph|graphs)\] ?", re.MULTILINE)
_TENSOR = re.compile(r"(\w+)\[([^\]]*)\](?:\[([^\]]*)\])?")

_BYTES = {
    **dict.fromkeys(("f64", "i64", "c64", "u64"), 8),
    **dict.fromkeys(("f32", "i32", "u32"), 4),
    **dict.fromkeys(("f16", "bf16", "i16", "u16"), 2),
    **dict.fromkeys(("i8", "u8", "b8", "f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz"), 1),
    "c128": 16,
}
"""Bytes of a value by torch's short names of types."""

_HALF: dict[str, Precision] = {"f16": "fp16", "bf16": "bf16"}

_VIEWS = frozenset(
    (
        *(
            "_unsafe_view",
            "alias",
            "as_strided",
            "chunk",
            "detach",
            "diagonal",
            "expand",
            "movedim",
            "narrow",
        ),
        *("permute", "real", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose"),
        *("unbind", "unfold", "unsqueeze", "view"),
    )
)
"""Operators whose results share the memory of their first operand."""

_RANDOM = frozenset(
    (
        *("dropout", "_fused_dropout", "_standard_gamma", "bernoulli", "multinomial", "native_dropout"),
        *("normal", "poisson", "binomial", "rrelu", "rand_like", "rand", "randint", "randn", "randperm"),
        "empty",
    )
)
"""Operators whose results differ from call to call (`torch._functorch.compile_utils.fx_graph_cse`)."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Type, sizes and strides of a tensor."""

    kind: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Bytes from the first value to the last; of an expanded tensor, those that it repeats."""
        if not self.elements:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True))
        return (last + 1) * _BYTES[self.kind]


@dataclass(frozen=True, slots=True)
class _Call:
    """A node that calls an operator: its name, the operator's, and what it is called with.

    What it is called with is in `value`, too, with keywords.
    """

    name: str
    operator: str
    args: tuple[ast.expr, ...]
    operands: tuple[str, ...]
    value: ast.expr


@dataclass(frozen=True, slots=True)
class SavedValues:
    """What the forward graph of a partition leaves: its outputs, and what is saved for the backward pass.

    Attributes
    ----------
    names
        Names of the nodes that have bytes and are not given to the graph.
    views
        For each node that has the memory of another one, the name of that.
    """

    names: tuple[str, ...]
    views: Mapping[str, str]


def has_forward(data: bytes) -> bool:
    """Whether a file's bytes have a forward graph of torch."""
    return re.search(rb"\bdef forward\(self, primals_\d+: ", data) is not None


def saved_values(data: bytes, path: str | Path) -> SavedValues:
    """Return what the forward graph in a file saves.

    Raises
    ------
    FormatError
        When the file has several forward graphs, none, or one that cannot be read; the sentence names it.
    """
    text = _text(data, path)
    reader = _Reader(path, _statements(text, _only(_FORWARD, text, "forward", path), path))
    views: dict[str, str] = {}
    for call in reader.calls:
        if call.operator in _VIEWS and call.operands:
            views[call.name] = call.operands[0]
            views |= dict.fromkeys(reader.items.get(call.name, ()), call.operands[0])
    names = [name for name in reader.returned if name is not None and name in reader.shapes]
    return SavedValues(tuple(name for name in names if reader.shapes[name].bytes), views)


def is_joint(data: bytes) -> bool:
    """Whether a file's bytes have a joint graph of torch."""
    return b"def forward(self, primals, tangents)" in data


def instance_of_joint(data: bytes, path: str | Path, device: Device) -> Instance:
    """Return the instance of a joint graph on a device, under a budget of 0.

    An operator is a task, as in an instance that is recorded from torch, and views are none. Nodes that
    compute the same are one, as they are for torch before it cuts the graph in two. A primal of
    which a gradient is returned counts as a parameter: it is resident, and so is its gradient. Other primals
    are inputs. Between the passes, one task stands for all that makes the tangents from the outputs.

    Raises
    ------
    FormatError
        When the file has several joint graphs, or one that cannot be read; the sentence names the place.
    """
    text = _text(data, path)
    graph = _Reader(path, _statements(text, _only(_HEAD, text, "joint", path), path)).graph()
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(path).stem).strip("-.") or "joint"
    origin = Origin(
        network=stem,
        device=device.name,
        cost_model="roofline",
        cost_model_version=COST_MODEL,
        graph="executable",
    )
    return operator_instance(
        graph,
        device,
        name=stem,
        engines="duplex",
        rounds=1,
        origin=origin,
        meta={"source": "a joint graph of torch.compile"},
    )


def _text(data: bytes, path: str | Path) -> str:
    """Return a file's text without what loggers put before each line."""
    try:
        return _LOGGED.sub("", data.decode())
    except UnicodeDecodeError:
        raise FormatError(f"{path} is not UTF-8, as the graphs of torch are") from None


def _only(head: re.Pattern[str], text: str, what: str, path: str | Path) -> re.Match[str]:
    """Return where the only graph of a text begins."""
    heads = list(head.finditer(text))
    if len(heads) != 1:
        raise FormatError(f"{path} has {len(heads)} {what} graphs; give a file with one of them")
    return heads[0]


def _statements(text: str, head: re.Match[str], path: str | Path) -> list[ast.stmt]:
    """Return the statements of the function whose definition begins at a place of a text."""
    body, indent = [], head[1]
    for line in text[head.start() :].splitlines()[1:]:
        if line.strip() and not line.startswith(f"{indent} "):
            break
        body.append(line.removeprefix(indent))
        if line.strip().startswith("return "):
            break
    source = "\n".join(["def forward(self, primals, tangents):", *body])
    try:
        (function,) = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = f", line {error.lineno} of its graph" if isinstance(error, SyntaxError) else ""
        raise FormatError(f"{path} has a graph that is no Python{place}: it may be cut off") from None
    assert isinstance(function, ast.FunctionDef)
    return function.body


class _Reader:
    """Reads the statements of a graph: nodes, and of a joint graph operators and storages."""

    def __init__(self, path: str | Path, statements: Sequence[ast.stmt]) -> None:
        self.path = path
        self.shapes: dict[str, _Shape] = {}
        self.calls: list[_Call] = []
        self.items: dict[str, list[str]] = defaultdict(list)
        self.item_of: dict[str, str] = {}
        self.place_of: dict[str, str] = {}
        self.returned: list[str | None] = []
        for statement in statements:
            self._read(statement)
        if not self.returned:
            raise FormatError(f"{path} has a graph that returns nothing: it may be cut off")
        self.storages: list[Storage] = []
        self.storage_of: dict[str, int] = {}

    def graph(self) -> OperatorGraph:
        """Return the operators, in order."""
        self._merge()
        primals = [name for name in self.shapes if name.startswith("primals_")]
        tangents = [name for name in self.shapes if name.startswith("tangents_")]
        outputs = self.returned[: len(self.returned) - len(primals)]
        gradients = self.returned[len(outputs) :]
        if not tangents or len(self.returned) <= len(primals):
            raise FormatError(
                f"{self.path} has a joint graph with {len(primals)} primals, {len(tangents)} tangents and "
                f"{len(self.returned)} results, which are outputs and then a gradient of each primal"
            )
        for name, gradient in zip(primals, gradients, strict=True):
            self._new(name, "input" if gradient is None else "parameter")
        operators: list[Operator] = []
        behind = set(tangents)
        backward = False
        for call in self.calls:
            if not backward and not behind.isdisjoint(call.operands):
                backward = True
                operators.append(self._tangents(tangents, [name for name in outputs if name is not None]))
            try:
                operator = self._operator(call, backward=backward)
            except (ValueError, IndexError, KeyError, TypeError):
                raise FormatError(
                    f"{self.path}: node '{call.name}' calls {call.operator} otherwise than torch does"
                ) from None
            if operator is not None:
                operators.append(operator)
        for name, gradient in zip(primals, gradients, strict=True):
            place = self.storage_of.get(gradient or "")
            if place is not None and self.storages[place].place == "data":
                self.storages[place] = Storage(f"d{name}", self.storages[place].bytes, "gradient")
        if not operators or not backward:
            raise FormatError(f"{self.path} has a joint graph in which nothing reads a tangent")
        return OperatorGraph(tuple(self.storages), tuple(operators))

    # --- statements -----------------------------------------------------------------------------------

    def _read(self, statement: ast.stmt) -> None:
        match statement:
            case ast.AnnAssign(
                target=ast.Name(id=name), annotation=ast.Constant(value=str(text)), value=value
            ):
                if (shape := self._shape(name, text)) is not None:
                    self.shapes[name] = shape
                if value is not None:
                    self._node(name, value)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not _is_none(value):
                self._node(name, value)
            case ast.Return(value=ast.Call(args=[ast.List(elts=results), *_]) | ast.Tuple(elts=results)):
                self.returned = [one.id if isinstance(one, ast.Name) else None for one in results]
            case _:
                pass  # names that are let go, and the names of all arguments

    def _node(self, name: str, value: ast.expr) -> None:
        match value:
            case ast.Call(func=ast.Attribute() as func, args=args, keywords=keywords):
                words = ast.unparse(func).split(".")
                operator = words[3] if words[:2] == ["torch", "ops"] and len(words) > 3 else words[-1]
                given = [*args, *(keyword.value for keyword in keywords)]
                operands = tuple(dict.fromkeys(one for arg in given for one in _names(arg)))
                self.calls.append(_Call(name, operator, tuple(args), operands, value))
            case ast.Subscript(value=ast.Name(id=base), slice=place):
                self.items[base].append(name)
                self.item_of[name] = base
                self.place_of[name] = ast.unparse(place)
            case ast.Name(id=base):
                self.calls.append(_Call(name, "alias", (value,), (base,), value))
            case _:
                raise FormatError(f"{self.path}: node '{name}' is {ast.unparse(value)[:60]}, not a call")

    def _merge(self) -> None:
        """Let the first of the nodes that compute the same stand for all, except for what is returned."""
        returned = {name for name in self.returned if name is not None}
        for call in reversed(self.calls):
            if call.operator in _VIEWS and not returned.isdisjoint(
                (call.name, *self.items.get(call.name, ()))
            ):
                returned.update(call.operands[:1])
        first: dict[str, _Call] = {}
        same: dict[str, str] = {}
        calls = []
        for call in self.calls:
            for part in ast.walk(call.value):
                if isinstance(part, ast.Name):
                    part.id = same.get(part.id, part.id)
            operands = tuple(dict.fromkeys(same.get(name, name) for name in call.operands))
            call = replace(call, operands=operands)
            stays = call.operator in _RANDOM or call.name in returned
            other = call if stays else first.setdefault(ast.unparse(call.value), call)
            if other is call:
                calls.append(call)
                continue
            same[call.name] = other.name
            places = {self.place_of[name]: name for name in self.items.get(other.name, ())}
            for name in self.items.pop(call.name, ()):
                if (known := places.get(self.place_of[name])) is not None:
                    same[name] = known
                else:
                    self.items[other.name].append(name)
                    self.item_of[name] = other.name
        self.calls = calls
        self.returned = [same.get(name, name) if name is not None else None for name in self.returned]

    def _shape(self, name: str, text: str) -> _Shape | None:
        """Return what an annotation says; None for what is no tensor."""
        found = _TENSOR.match(text)
        if found is None:
            return None
        if found[1] not in _BYTES:
            raise FormatError(f"{self.path}: node '{name}' has values of the unknown type '{found[1]}'")
        try:
            sizes = _whole(found[2])
            strides = _whole(found[3]) if found[3] is not None else _contiguous(sizes)
        except ValueError:
            raise FormatError(
                f"{self.path}: node '{name}' is {text}, which has no fixed sizes; use dynamic=False"
            ) from None
        if len(strides) != len(sizes):
            raise FormatError(f"{self.path}: node '{name}' is {text}, with another number of strides")
        return _Shape(found[1], sizes, strides)

    # --- operators ------------------------------------------------------------------------------------

    def _new(self, name: str, place: Place) -> int | None:
        """Return a new storage for a tensor; None if it has no bytes."""
        shape = self.shapes.get(name)
        if shape is None or not shape.bytes:
            return None
        self.storage_of[name] = len(self.storages)
        self.storages.append(Storage(name, shape.bytes, place))
        return self.storage_of[name]

    def _tangents(self, tangents: Sequence[str], outputs: Sequence[str]) -> Operator:
        """Return the task that makes tangents of the outputs, for what is outside of the graph.

        It counts as one that rewrites the outputs: they have been given away, and are not made again.
        """
        made = [d for name in tangents if (d := self._new(name, "data")) is not None]
        given = dict.fromkeys(self.storage_of[name] for name in outputs if name in self.storage_of)
        read = [d for d in given if self.storages[d].place == "data"]
        return Operator(
            name="BP(tangents loss)",
            module="tangents",
            module_kind="loss",
            direction="backward",
            inputs=(),
            outputs=tuple(made),
            updates=tuple(read),
            flops=0,
            elements=sum(self.shapes[name].elements for name in tangents),
            moved_bytes=sum(self.storages[d].bytes for d in (*read, *made)),
        )

    def _operator(self, call: _Call, *, backward: bool) -> Operator | None:
        """Return the operator of a node; None for views."""
        results = self.items.get(call.name, [call.name])
        if call.operator in _VIEWS:
            base = self.storage_of.get(call.operands[0]) if call.operands else None
            if base is not None:
                self.storage_of |= dict.fromkeys([call.name, *results], base)
            return None
        read = {d: name for name in call.operands if (d := self.storage_of.get(name)) is not None}
        made = {d: name for name in results if (d := self._new(name, "data")) is not None}
        moved = [self.shapes[name] for name in (*read.values(), *made.values()) if name in self.shapes]
        kinds = [self.shapes[name].kind for name in call.operands if name in self.shapes]
        convolution, passes = self._convolution(call, results)
        return Operator(
            name=f"{'BP' if backward else 'FP'}({call.name} {call.operator})",
            module=call.name,
            module_kind=call.operator,
            direction="backward" if backward else "forward",
            inputs=tuple(read),
            outputs=tuple(made),
            updates=(),
            flops=self._flops(call, results),
            elements=sum(self.shapes[name].elements for name in made.values()),
            moved_bytes=sum(shape.bytes for shape in moved),
            precision=_HALF.get(kinds[0], "fp32") if kinds else "fp32",
            matrix=self._matrix(call),
            convolution=convolution,
            passes=passes,
        )

    def _sizes(self, args: Sequence[ast.expr]) -> list[tuple[int, ...]]:
        """Return the sizes of the arguments that are tensors."""
        return [
            self.shapes[arg.id].sizes for arg in args if isinstance(arg, ast.Name) and arg.id in self.shapes
        ]

    def _matrix(self, call: _Call) -> tuple[int, int, int] | None:
        """Return rows, columns and inner dimension of a single matrix product."""
        if call.operator not in ("mm", "addmm"):
            return None
        (rows, depth), (_, columns) = self._sizes(call.args)[-2:]
        return rows, columns, depth

    def _flops(self, call: _Call, results: Sequence[str]) -> int:
        """Return the operations of the products that a node computes, a multiply-add counted as two."""
        sizes = self._sizes(call.args)
        if call.operator in ("mm", "addmm"):
            (rows, depth), (_, columns) = sizes[-2:]
            return 2 * rows * depth * columns
        if call.operator in ("bmm", "baddbmm"):
            (batch, rows, depth), (_, _, columns) = sizes[-2:]
            return 2 * batch * rows * depth * columns
        if call.operator == "_grouped_mm":
            return grouped_flops(*sizes[:2])
        if "scaled_dot_product" in call.operator:
            grown = "backward" in call.operator
            query, key, value = sizes[grown : 3 + grown]
            scores = prod(query[:-1]) * key[-2]
            return 2 * scores * ((3 if grown else 1) * query[-1] + (2 if grown else 1) * value[-1])
        if call.operator.startswith("convolution") and len(sizes) > 1:
            *_, weights = sizes[:2] if call.operator == "convolution" else sizes[:3]
            target = self.shapes[results[0]] if call.operator == "convolution" else None
            elements = target.elements if target else prod(sizes[0])
            return 2 * elements * prod(weights[1:]) * (1 if target else 2)
        return 0

    def _convolution(
        self, call: _Call, results: Sequence[str]
    ) -> tuple[Convolution | None, tuple[Pass, ...]]:
        """Return a convolution's shapes and the passes that a node computes, where costs are known."""
        if call.operator == "convolution":
            names, numbers = call.args[:2], call.args[3:9]
            passes: list[Pass] = ["FP"]
            source, weights = (self._tensor(one) for one in names)
            target = self.shapes.get(results[0])
        elif call.operator == "convolution_backward":
            target, source, weights = (self._tensor(one) for one in call.args[:3])
            numbers = call.args[4:10]
            wanted = _literal(call.args[10]) if len(call.args) > 10 else (True, True)
            passes = list(compress(("BP2", "BP1"), (wanted[1], wanted[0])))
        else:
            return None, ()
        if source is None or target is None or weights is None or len(numbers) != 6:
            return None, ()
        if source.kind not in ("f32", *_HALF):
            return None, ()
        read = [_literal(number) for number in numbers]
        value_bytes = _BYTES[source.kind]
        return convolution_of(source.sizes, weights.sizes, target.sizes, read, passes, value_bytes)

    def _tensor(self, argument: ast.expr) -> _Shape | None:
        return self.shapes.get(argument.id) if isinstance(argument, ast.Name) else None


def _names(argument: ast.expr) -> Iterator[str]:
    """Yield the nodes that an argument has in it."""
    for part in ast.walk(argument):
        if isinstance(part, ast.Name) and part.id not in ("torch", "device"):
            yield part.id


def _literal(argument: ast.expr) -> Any:
    return ast.literal_eval(argument)


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _whole(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())


def _contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(sizes[i + 1 :]) for i in range(len(sizes)))
