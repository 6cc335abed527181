"""Recomputation problems of other projects: operators that are computed in a fixed order.

There are graphs in networkx's node-link JSON, as MOCCASIN and Checkmate write them, and operator logs of DTR.
In both, every operator may run again and nothing is ever copied to the host. Their units stay as they are:
one unit of time is a nanosecond, and one of size a byte.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import networkx as nx

from ..errors import FormatError
from ..figures import distinct, text_of
from ..files import require_unique_keys
from ..instance import Algorithm, Block, Instance, Task
from ..units import LARGEST

Figure = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]

_LABELS = (("out_cost", "duration"), ("cost_ram", "cost_cpu"))
"""What MOCCASIN and Checkmate call the size of a node's output and the time of the node."""


def instance_of_data(data: bytes, path: str | Path) -> Instance:
    """Make an instance of what is in a file; its budget is still 0.

    Raises
    ------
    FormatError
        When it is of neither format; the sentence names the place.
    """
    name = Path(path).name.removesuffix(".json").removesuffix(".log")
    try:
        if b'"INSTRUCTION"' in data.partition(b"\n")[0]:
            return _instance(name, "DTR", *_operators_of_log(data))
        return _instance(name, "node-link", *_operators_of_graph(data))
    except (msgspec.MsgspecError, FormatError, UnicodeDecodeError, RecursionError) as error:
        text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise FormatError(
            f"{path} is no config of G10, no graph in node-link JSON and no DTR log: "
            f"{text[:1].lower()}{text[1:]}"
        ) from None


@dataclass(slots=True)
class _Tensor:
    """A value: its bytes, whether it is there from the start, and whether it must be there at the end."""

    name: str
    bytes: int
    given: bool = False
    kept: bool = False


@dataclass(slots=True)
class _Operator:
    """An operator: its time, and the tensors that it reads and makes, by index."""

    name: str
    time: int
    reads: list[int]
    makes: list[int]


def _instance(
    name: str, source: str, tensors: Sequence[_Tensor], operators: Sequence[_Operator], resident: int
) -> Instance:
    """Make the instance; a tensor of no bytes takes no memory and is left out."""
    blocks: dict[int, int] = {}
    made: list[Block] = []
    names = distinct(tensor.name for tensor in tensors)
    for t, tensor in enumerate(tensors):
        if tensor.bytes:
            blocks[t] = len(made)
            made.append(
                Block(
                    name=names[t],
                    bytes=tensor.bytes,
                    offload_ns=None,
                    prefetch_ns=None,
                    initially="device" if tensor.given else "absent",
                    finally_="device" if tensor.kept else "anywhere",
                )
            )
    return Instance(
        name=text_of(name),
        engines="duplex",
        budget_bytes=0,
        resident_bytes=resident,
        alignment_bytes=1,
        blocks=tuple(made),
        tasks=tuple(
            Task(
                name=title,
                inputs=tuple(blocks[t] for t in dict.fromkeys(operator.reads) if t in blocks),
                outputs=tuple(blocks[t] for t in operator.makes if t in blocks),
                algorithms=(Algorithm(name="only", duration_ns=operator.time, workspace_bytes=0),),
                recomputable=True,
            )
            for title, operator in zip(distinct(o.name for o in operators), operators, strict=True)
        ),
        meta={"source": source},
    )


# --- node-link JSON -----------------------------------------------------------------------------------


class _Graph(msgspec.Struct):
    nodes: list[dict[str, Any]]
    links: list[dict[str, Any]]
    graph: dict[str, Any] = {}


def _operators_of_graph(data: bytes) -> tuple[list[_Tensor], list[_Operator], int]:
    """Read a graph whose nodes are operators; each makes one output, which its successors read.

    A node is known by its ``id``, else by its ``name``; a link's ends are ``source`` and ``target``, or 0 and
    1. The nodes are computed in the order ``graph.order``, else in that of the list where it is topological,
    else in a topological order. Parameters (``param_cost``) are always resident.
    """
    document = msgspec.json.decode(data, type=_Graph)
    require_unique_keys(data)
    graph: nx.DiGraph[Hashable] = nx.DiGraph()
    figures: dict[Hashable, tuple[str, int, int]] = {}
    resident = 0
    for k, node in enumerate(document.nodes):
        where = f"nodes[{k}]"
        identity = _identity(node, ("id", "name"), where)
        if identity in figures:
            raise FormatError(f"{where}: node {identity!r} is there twice")
        labels = next((pair for pair in _LABELS if pair[0] in node), _LABELS[0])
        size, time = (_figure(node, label, where) for label in labels)
        resident += _figure(node, "param_cost", where) if "param_cost" in node else 0
        figures[identity] = str(node.get("name", identity)), size, time
        graph.add_node(identity)
    for k, link in enumerate(document.links):
        ends = [_identity(link, keys, f"links[{k}]") for keys in (("source", "0"), ("target", "1"))]
        for end in ends:
            if end not in figures:
                raise FormatError(f"links[{k}]: there is no node {end!r}")
        graph.add_edge(*ends)
    order = _order(graph, document.graph.get("order"))
    index = {identity: t for t, identity in enumerate(order)}
    tensors = [_Tensor(figures[identity][0], figures[identity][1]) for identity in order]
    operators = [
        _Operator(
            name, time, sorted(index[source] for source in graph.predecessors(identity)), [index[identity]]
        )
        for identity, (name, _, time) in ((identity, figures[identity]) for identity in order)
    ]
    return tensors, operators, resident


def _order(graph: nx.DiGraph[Hashable], given: object) -> list[Hashable]:
    """Return the order in which nodes are computed."""
    listed = list(graph) if given is None else given
    if (
        not isinstance(listed, list)
        or len(listed) != len(graph)
        or set(map(repr, listed)) != set(map(repr, graph))
    ):
        raise FormatError("graph.order: it does not list every node once")
    position = {identity: k for k, identity in enumerate(listed)}
    if all(position[source] < position[target] for source, target in graph.edges):
        return listed
    if given is not None:
        raise FormatError("graph.order: it is not topological; a node comes before one that it reads")
    if not nx.is_directed_acyclic_graph(graph):
        raise FormatError("links: they form a cycle")
    return list(nx.lexicographical_topological_sort(graph, key=position.__getitem__))


def _identity(entry: dict[str, Any], keys: Sequence[str], where: str) -> Hashable:
    for key in keys:
        if isinstance(entry.get(key), str | int):
            identity: Hashable = entry[key]
            return identity
    raise FormatError(f"{where}: it has no '{keys[0]}'")


def _figure(node: dict[str, Any], label: str, where: str) -> int:
    try:
        return msgspec.convert(node.get(label), Figure)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}, '{label}': {error}") from None


# --- DTR's logs ---------------------------------------------------------------------------------------


class _Line(msgspec.Struct, tag_field="INSTRUCTION", rename="upper"):
    """A line of a log, by its instruction; other keys are passed over."""


class _Annotate(_Line, tag="ANNOTATE"):
    annotation: str


class _Constant(_Line, tag="CONSTANT"):
    name: str


class _Memory(_Line, tag="MEMORY"):
    name: str
    memory: Figure


class _Alias(_Line, tag="ALIAS"):
    name: str
    alias: int


class _Call(_Line, tag="CALL"):
    name: str
    args: list[str]
    result: list[str]
    time: Figure


class _Mutate(_Line, tag="MUTATE"):
    name: str
    args: list[str]
    mutate: list[int]
    time: Figure


class _Copy(_Line, tag="COPY"):
    dst: str
    src: str


class _CopyFrom(_Line, tag="COPY_FROM"):
    dst: str
    src: str


class _Release(_Line, tag="RELEASE"):
    name: str


_Instruction = _Annotate | _Constant | _Memory | _Alias | _Call | _Mutate | _Copy | _CopyFrom | _Release


def _operators_of_log(data: bytes) -> tuple[list[_Tensor], list[_Operator], int]:
    """Read a log of DTR (Kirisame et al. 2021), as its simulator does.

    What comes before the annotation START is not part of the step. Constants are on the device at first. A
    view is its storage. A mutation makes a new tensor, so that every operator can be repeated. What has not
    been released when the log ends must be on the device then.
    """
    lines = data.splitlines()
    log = _Log()
    decoder = msgspec.json.Decoder(_Instruction, strict=False)
    begun = not any(b'"START"' in line for line in lines)
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
            if begun:
                log.follow(line)
            elif isinstance(line, _Annotate) and line.annotation == "START":
                begun = True
        except (msgspec.MsgspecError, FormatError) as error:
            raise FormatError(f"line {number}: {error}") from None
    for t, tensor in enumerate(log.tensors):
        if tensor.bytes < 0:
            raise FormatError(f"tensor '{tensor.name}' has no MEMORY line")
        tensor.kept = log.references[t] > 0
    return log.tensors, log.operators, 0


@dataclass(slots=True)
class _Log:
    """A log as far as it has been read: which tensor each name means, and how many names each has."""

    tensors: list[_Tensor] = field(default_factory=list)
    operators: list[_Operator] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    references: list[int] = field(default_factory=list)

    def follow(self, line: _Instruction) -> None:
        """Do what a line says."""
        match line:
            case _Constant():
                self.bind(line.name, self.make(line.name, given=True))
            case _Memory():
                self.tensors[self.find(line.name)].bytes = line.memory
            case _Alias():
                if line.alias >= 0:
                    self.view(line.name, line.alias)
            case _Call():
                reads = [self.find(name) for name in line.args]
                made = [self.make(name) for name in line.result]
                self.operators.append(_Operator(self.title(line.name), line.time, reads, made))
                for name, t in zip(line.result, made, strict=True):
                    self.bind(name, t)
            case _Mutate():
                self.mutate(line)
            case _Copy() | _CopyFrom():
                self.bind(line.dst, self.find(line.src))
            case _Release():
                if line.name in self.names:
                    self.references[self.names[line.name]] -= 1

    def mutate(self, line: _Mutate) -> None:
        """Make new tensors of the arguments that an operator changes."""
        reads = [self.find(name) for name in line.args]
        if any(not 0 <= m < len(reads) for m in line.mutate):
            raise FormatError(f"{line.name} changes an argument that it has not")
        made = [self.make(line.args[m], self.tensors[reads[m]].bytes) for m in line.mutate]
        self.operators.append(_Operator(self.title(line.name), line.time, reads, made))
        for m, t in zip(line.mutate, made, strict=True):
            self.bind(line.args[m], t)

    def view(self, name: str, argument: int) -> None:
        """Let a result of the last operator be a view of one of its arguments."""
        if not self.operators or self.find(name) not in self.operators[-1].makes:
            raise FormatError(f"'{name}' is no result of the operator before")
        operator, t = self.operators[-1], self.names[name]
        if argument >= len(operator.reads):
            raise FormatError(f"'{name}' is a view of argument {argument}, which {operator.name} has not")
        operator.makes.remove(t)
        self.tensors[t].bytes = 0
        self.bind(name, operator.reads[argument])

    def make(self, name: str, size: int = -1, *, given: bool = False) -> int:
        """Add a tensor that no name means yet; a MEMORY line tells its size unless it is known."""
        count = len(self.tensors)
        self.tensors.append(_Tensor(f"{name}#{count}", size, given))
        self.references.append(0)
        return count

    def bind(self, name: str, tensor: int) -> None:
        """Let a name mean a tensor, and no other any more."""
        if name in self.names:
            self.references[self.names[name]] -= 1
        self.names[name] = tensor
        self.references[tensor] += 1

    def find(self, name: str) -> int:
        """Return the tensor that a name means."""
        if name not in self.names:
            raise FormatError(f"there is no tensor '{name}'")
        return self.names[name]

    def title(self, name: str) -> str:
        """Name of the next operator, which no other has."""
        return f"{name}#{len(self.operators)}"
