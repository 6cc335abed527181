"""Files that MONeT's authors publish: graphs with measured costs, schedules, and logs of Gurobi.

They are in their repository monet-schedules. Nothing of theirs is executed. Two programs were solved for the
same networks: Checkmate's, where an operator reads and writes always the same, and MONeT's (Shah et al.,
ICLR 2021), where that is a choice.
"""

from __future__ import annotations

import json
import math
import pickle
import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.instances.errors import PebblerError
from pebbler.instances.foreign.recomputation import instance_of_data
from pebbler.instances.instance import Algorithm, Block, Instance, Task

KIB = 1024
"""Bytes of a unit of size, as their programs have it."""
GIB = 1024 * KIB
"""Units of a gibibyte, which is what a GB is there."""
PER_MS = 100
"""Units of time in a millisecond, as their programs have it."""


Found = TypeVar("Found")


class Published(msgspec.Struct, frozen=True):
    """What Gurobi found for one of the programs, as its log says.

    Attributes
    ----------
    value, bound
        The best objective and the best bound, in hundredths of a millisecond; None where there is none.
    seconds, threads
        How long it took, with how many threads.
    """

    value: int | None
    bound: int | None
    seconds: float
    threads: int


# --- reading their files --------------------------------------------------------------------------------


_PLAIN = {(kind.__module__, kind.__name__): kind for kind in (defaultdict, OrderedDict, list, set, dict)}
"""Classes that their files may have, by module and name."""


_FIGURES = ("dtype", "ndarray", "scalar", "_reconstruct")
"""What of NumPy's their files may have."""


class _Record:
    """An object of their program: its attributes, and nothing that it does."""

    def __init__(self, *_: object) -> None: ...


def _inner(_: object, __: str) -> type[_Record]:
    """Return the class of a name within another class."""
    return _Record


class _Reader(pickle.Unpickler):
    """Reads pickles of theirs without running anything of theirs: classes become records."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class of a name: a plain one, one of NumPy's for figures, or a record."""
        if found := _PLAIN.get((module, name)):
            return found
        if module == "builtins" and name == "getattr":
            return _inner
        if re.fullmatch(r"numpy(\.(_core|core)\.multiarray)?", module) and name in _FIGURES:
            return super().find_class(module.replace(".core.", "._core."), name)
        if module.split(".")[0] in ("monet", "checkmate", "__main__"):
            return _Record
        raise pickle.UnpicklingError(f"it has {module}.{name}, which is not read")


@dataclass(frozen=True, slots=True)
class Network:
    """A network that they solved: its name, its instance, and what is always on the device beside it."""

    name: str
    instance: Instance
    resident: int


def read_network(path: Path) -> Network:
    """Return the network of a schedule of Checkmate's program.

    Every node is an operator with one output. Sizes and times are rounded as in that program.

    Raises
    ------
    PebblerError
        When the file cannot be read.
    """
    return _read(path, _of_graph)


def read_program(path: Path) -> Network | None:
    """Return the network of a schedule of MONeT's program, in the mode of the schedule.

    In their modes, an operator may overwrite its input (*inplace*), a convolution has algorithms (*conv*), a
    gradient is computed from what its operator reads or writes (*multiway*), or from something small that the
    operator makes for it (*newnode*). Sizes and times are rounded up, as in that program.

    Returns
    -------
    Network or None
        None where second runs take another time or workspace than first ones, as those of batch norm do.

    Raises
    ------
    PebblerError
        When the file cannot be read.
    """
    return _read(path, lambda information: _Program(information).network())


def _read(path: Path, make: Callable[[Any], Found]) -> Found:
    """Make something of what a schedule of theirs says of its network."""
    try:
        with path.open("rb") as file:
            information, _ = _Reader(file).load()
        return make(information)
    except (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError, EOFError) as error:
        raise PebblerError(f"{path} cannot be read: {error}; copy monet-schedules anew") from None
    except pickle.UnpicklingError as error:
        raise PebblerError(f"{path} is no schedule of MONeT's authors: {error}") from None


def _of_graph(information: Any) -> Network:
    """Return the network of Checkmate's program, which is its graph."""
    nodes = [information.nodes[i] for i in range(len(information.nodes))]
    graph = {
        "graph": {"order": list(range(len(nodes)))},
        "nodes": [
            {
                "id": i,
                "cost_ram": round(float(node.mem) / KIB),
                "cost_cpu": round(float(node.workspace_compute[0]) * PER_MS),
            }
            for i, node in enumerate(nodes)
        ],
        "links": [{"source": int(u), "target": int(v)} for u, v, _ in information.edge_list],
    }
    name = f"{information.model_name}/{information.bs}"
    instance = instance_of_data(json.dumps(graph).encode(), name)
    return Network(name, instance, round(float(nodes[-1].fixed_mem) / KIB))


class _Program:
    """MONeT's program for a network, of which an instance is made.

    Nodes up to `loss` are the forward pass and have one output each. Those after it are gradients. A gradient
    of parameters stays to the end: `fixed_mem` grows by it. What an operator makes for its gradient alone is
    a node of its own in their program, and here an output that the operator may leave out.
    """

    def __init__(self, information: Any) -> None:
        self.nodes = [information.nodes[i] for i in range(len(information.nodes))]
        letters = "".join(word[0] for word in ("inplace", *information.mode.split("_")) if word != "normal")
        self.name = f"{information.model_name}/{information.bs} {letters}"
        self.loss = int(information.loss)
        self.convolutions = set(information.conv_list)
        self.in_place = set(information.inplace_list)
        self.beside = {
            i: [int(made) for _, made in own]
            for i, node in enumerate(self.nodes)
            if (own := getattr(node, "intermediates", None))
        }
        if any(len(made) != 1 for made in self.beside.values()):
            raise ValueError("an operator makes several things for its gradient")
        self.blocks: list[Block] = []
        self.written: list[tuple[int, ...]] = []  # blocks of each node, of which others read the first
        fixed = [_kib(node.fixed_mem) for node in self.nodes]
        for i, node in enumerate(self.nodes):
            first = len(self.blocks)
            if size := _kib(node.mem):
                self.blocks.append(_block(f"{i}", size))
            if kept := fixed[i] - fixed[i - 1] if i > self.loss else 0:
                self.blocks.append(_block(f"{i} kept", kept, "device"))
            self.written.append(tuple(range(first, len(self.blocks))))

    def network(self) -> Network | None:
        """Return the network; None where second runs take another time or workspace than first ones."""
        for node in self.nodes:
            again = node.recompute_workspace_compute, node.recompute_workspace_mem
            if again != (node.workspace_compute, node.workspace_mem):
                return None
        made = {node for own in self.beside.values() for node in own}
        instance = Instance(
            name=self.name,
            engines="duplex",
            budget_bytes=0,
            resident_bytes=0,
            alignment_bytes=1,
            blocks=tuple(self.blocks),
            tasks=tuple(self._task(i) for i in range(len(self.nodes)) if i not in made),
            meta={"source": "MONeT"},
        )
        return Network(self.name, instance, _kib(self.nodes[0].fixed_mem))

    def _task(self, i: int) -> Task:
        node, beside = self.nodes[i], self.beside.get(i, [])
        inputs = self._read(node.args[0])
        costs = list(zip(node.workspace_compute, node.workspace_mem, strict=True))
        if i in self.convolutions:
            ways = [self._way(i, f"{c}", inputs, *cost) for c, cost in enumerate(costs) if cost[0] >= 0]
        elif i > self.loss:
            ways = [self._way(i, f"{p}", self._read(args), *costs[p]) for p, args in enumerate(node.args)]
        else:
            ways = self._forward_ways(i, inputs)
        return Task(
            name=f"{i} {node.op.removeprefix('aten::')}",
            inputs=inputs,
            outputs=tuple(block for made in (i, *beside) for block in self.written[made]),
            algorithms=tuple(ways),
            recomputable=i <= self.loss,
        )

    def _forward_ways(self, i: int, inputs: tuple[int, ...]) -> list[Algorithm]:
        """Return the algorithms of an operator: apart or in place, without and with what is made beside."""
        ways = []
        for name, prefix in (("apart", ""), *([("in place", "inplace_")] if i in self.in_place else [])):

            def cost(node: Any, key: str, prefix: str = prefix) -> float:
                return float(getattr(node, f"{prefix}workspace_{key}")[0])

            node = self.nodes[i]
            alone = self._way(i, name, inputs, cost(node, "compute"), cost(node, "mem"))
            if i not in self.beside:
                ways.append(alone)
                continue
            ways.append(replace(alone, outputs=self.written[i]))
            for made in self.beside[i]:
                more = self._way(
                    i, "more", inputs, cost(self.nodes[made], "compute"), cost(self.nodes[made], "mem")
                )
                ways.append(
                    replace(
                        alone,
                        name=f"{name}, and {made}",
                        duration_ns=alone.duration_ns + more.duration_ns,
                        workspace_bytes=max(alone.workspace_bytes, more.workspace_bytes),
                    )
                )
        return ways

    def _read(self, args: Sequence[int]) -> tuple[int, ...]:
        """Return the blocks that are read where the outputs of some nodes are."""
        return tuple(dict.fromkeys(block for u in args for block in self.written[u][:1]))

    def _way(self, i: int, name: str, read: tuple[int, ...], time: float, megabytes: float) -> Algorithm:
        """Return an algorithm.

        Where the workspace is below nothing, the output is written where the last of the inputs of its size
        is: where that is a gradient, it is the gradient of the output, and else the operator's only input.
        """
        workspace = math.ceil(float(megabytes) * KIB)
        over: tuple[tuple[int, int], ...] = ()
        if workspace < 0:
            output = self.written[i][0]
            size = self.blocks[output].bytes
            over = ((output, [block for block in read if self.blocks[block].bytes == size][-1]),)
            workspace = max(workspace + size, 0)
        return Algorithm(
            name=name,
            duration_ns=math.ceil(float(time) * PER_MS),
            workspace_bytes=workspace,
            inputs=UNSET if set(read) == set(self._read(self.nodes[i].args[0])) else read,
            takes_over=over,
        )


def _block(name: str, size: int, finally_: Literal["anywhere", "device"] = "anywhere") -> Block:
    return Block(name=name, bytes=size, offload_ns=None, prefetch_ns=None, finally_=finally_)


def _kib(size: float) -> int:
    return math.ceil(float(size) / KIB)


_ENDS = re.compile(
    r"^Explored [^\n]* in ([\d.]+) seconds(?:(?!^Explored).)*?^Thread count was (\d+)"
    r"(?:(?!^Explored).)*?^Best objective (\S+), best bound (\S+), gap",
    re.MULTILINE | re.DOTALL,
)
"""How a run of Gurobi ends."""


def told_by(text: str) -> Published | None:
    """Return the best that a log of Gurobi's runs says of a problem; None if none gets that far."""
    told = []
    for seconds, threads, *figures in _ENDS.findall(text):
        value, bound = (None if figure == "-" else round(float(figure)) for figure in figures)
        if not value is bound is None:
            told.append(Published(value, bound, float(seconds), int(threads)))
    return min(told, key=lambda one: (one.value or math.inf, -(one.bound or 0)), default=None)


_IN_TEXT = re.compile(r"^Memory budget +([\d.]+)", re.MULTILINE)
_IN_NAME = re.compile(r"_(\d+(?:\.\d+)?)(?:_new|_noconv\.out)?$")
"""Where a log has its budget in GB."""


def read_folder(folder: Path) -> tuple[dict[str, Instance], dict[str, Published]]:
    """Return the problems of a copy of monet-schedules, and what its logs say of each.

    Those are taken that a program was solved for, under every budget with a log of a value or a bound. A
    problem of MONeT's own program has the mode in its name, by first letters: *im* is inplace_multiway.

    Raises
    ------
    PebblerError
        When the folder has none of them.
    """
    problems, published = {}, {}
    for network, log in (*_of_checkmate(folder), *_of_monet(folder)):
        text = log.read_text(errors="replace")
        budget = _IN_TEXT.search(text) or _IN_NAME.search(log.name)
        if budget is None or (told := told_by(text)) is None:
            continue
        gigabytes = float(budget[1])
        name = f"{network.name}, {gigabytes:g} GB"
        published[name] = told
        problems[name] = replace(
            network.instance, name=name, budget_bytes=round(gigabytes * GIB) - network.resident
        )
    if not problems:
        raise PebblerError(f"{folder} has no schedules with logs; copy monet-schedules anew")
    return problems, published


def _of_checkmate(folder: Path) -> Iterator[tuple[Network, Path]]:
    """Find the networks that Checkmate's program was solved for, with each log of theirs."""
    for place in sorted(folder.glob("checkmate_*")):
        if schedules := sorted(place.glob("checkmate_solution_*.pkl")):
            network = read_network(schedules[0])
            yield from ((network, log) for log in sorted(place.iterdir()) if log.suffix != ".pkl")


def _of_monet(folder: Path) -> Iterator[tuple[Network, Path]]:
    """Find the networks that MONeT's program was solved for, in each mode, with each log of theirs."""
    for place in sorted(folder.glob("monet_*")):
        schedules: dict[str, Path] = {}
        for schedule in sorted(place.glob("solution_*.pkl")):
            schedules.setdefault(schedule.name.rpartition("_")[0], schedule)
        for schedule in schedules.values():
            if network := read_program(schedule):
                letters = network.name.rpartition(" ")[2]
                logs = [log for log in sorted(place.iterdir()) if f"_{letters}_" in log.name]
                yield from ((network, log) for log in logs if log.suffix != ".pkl")
