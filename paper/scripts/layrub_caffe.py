"""Layrub's program on Caffe's graphs: its memory, its process and its time, for the tables of layrub.py.

A process has more than its schedule: handles, streams and workspaces of every convolution, and the context.
Two constants stand for that, fitted to two rows of Table 6; nothing else is fitted.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import msgspec

from caffe_graph import caffe_instance
from pebbler.heuristics.choices import leanest
from pebbler.heuristics.papers.layrub import caffe_algorithms
from pebbler.heuristics.papers.layrub_program import buffer_bytes
from pebbler.heuristics.papers.layrub_rules import rules_of
from pebbler.instances.instance import Instance
from pebbler.instances.networks.zoo import find_network
from pebbler.instances.transforms import with_link
from pebbler.solver.solve import solve

MIB = 2**20
K40M, TITAN_Z, CUDNN = 11580 * MIB, 6082 * MIB, "4"
"""Bytes of the two GPUs' memories, and the version of cuDNN (Table 4)."""

ENOUGH = 2**44
PROGRAM = "layrub-program"


class Table6(NamedTuple):
    """A row of Table 6: MiB of processes, None where they ran out of memory; Titan Z first, then K40M."""

    titan_caffe: int | None
    titan_mxnet: int | None
    titan: int | None
    caffe: int | None
    mxnet: int | None
    layrub: int


TABLE_6 = {
    "resnet34": Table6(4426, 1554, 1251, 4430, 1431, 1257),
    "resnet50": Table6(None, 2298, 1802, 11425, 2195, 1805),
    "resnet302": Table6(None, 4873, 3444, None, 4911, 3448),
    "resnet695": Table6(None, None, 5964, None, 7885, 5968),
    "resnet1001": Table6(None, None, None, None, 10104, 7901),
    "resnet1172": Table6(None, None, None, None, 11455, 9022),
    "resnet1304": Table6(None, None, None, None, None, 9872),
    "resnet1517": Table6(None, None, None, None, None, 11239),
}
FITTED = ("resnet50", "resnet302")
"""The rows to which the constants of a process are fitted."""


@cache
def on_caffe(network: str, batch: int, *, keeps: bool = True) -> Instance:
    """Return an iteration on Caffe's graph, on the K40 with cuDNN 4 and all the memory that it wants."""
    return caffe_instance(find_network(network), batch, "K40", CUDNN, ENOUGH, keeps=keeps)


# --- memory -----------------------------------------------------------------------------------------------


class Buffers(NamedTuple):
    """Bytes of data and gradients by the program's rules.

    Attributes
    ----------
    data, forks, splits, signs
        Its buffers: for data, for forks, for the gradients of their readers, and for the signs of ReLUs.
    allocated
        What lies in none of them, at its peak.
    intra
        With intra-layer reuse alone: every piece of data has a place, and so has every gradient that does not
        lie over its data.
    inter
        With inter-layer reuse alone: data in its buffers, and a place for every gradient of data.
    """

    data: int
    forks: int
    splits: int
    signs: int
    allocated: int
    intra: int
    inter: int

    @property
    def hybrid(self) -> int:
        """All buffers and what is allocated."""
        return self.data + self.forks + self.splits + self.signs + self.allocated


@cache
def buffers(network: str, batch: int) -> Buffers:
    """Return the program's bytes of data and gradients; without workspaces, and without what layers keep."""
    instance = _lean(on_caffe(network, batch, keeps=False))
    sizes = buffer_bytes(instance)
    peak = solve(instance, PROGRAM).peak_bytes
    assert peak is not None
    splits = sum(size for name, size in sizes.items() if name.startswith("split"))
    named = {block.name: block.bytes for block in instance.blocks}
    data = sum(size for name, size in named.items() if name[0] in "XY")
    over = {instance.blocks[d].name for d in rules_of(instance).over}
    gradients = {name: size for name, size in named.items() if name[0] == "d" and " of " not in name}
    apart = (size for name, size in gradients.items() if name not in over)
    allocated = peak - instance.resident_bytes - sum(sizes.values())
    return Buffers(
        data=sizes["data"],
        forks=sizes.get("fork", 0),
        splits=splits,
        signs=sizes.get("relu 0", 0),
        allocated=allocated,
        intra=data + splits + sizes.get("relu 0", 0) + sum(apart),
        inter=sizes["data"] + sizes.get("fork", 0) + splits + sum(gradients.values()),
    )


def process_bytes(network: str, batch: int) -> int:
    """Bytes of Layrub's process: a schedule with weights, momentum, input and all that layers keep, and more.

    Beyond the schedule come two constants, for the process and for each convolution and group.
    """
    return _scheduled(network, batch) + more_bytes(network)


def caffe_process_bytes(network: str, batch: int) -> int:
    """Bytes of Caffe's process: its blocks and all that its layers keep have places of their own."""
    instance = on_caffe(network, batch)
    norms = {k for layer in instance.named_layers if layer.kind == "bn" for k in layer.backward}
    apart = sum(instance.tasks[k].algorithms[0].workspace_bytes for k in norms)
    blocks = sum(block.bytes for block in instance.blocks if not block.name.startswith("sign("))
    return instance.resident_bytes + blocks + apart + more_bytes(network)


@cache
def _scheduled(network: str, batch: int) -> int:
    peak = solve(on_caffe(network, batch), PROGRAM).peak_bytes
    assert peak is not None
    return peak


def more_bytes(network: str) -> int:
    """Bytes of a process beyond its schedule: the two constants."""
    base, each = process_constants()
    return base + each * _convolutions(network)


@cache
def process_constants() -> tuple[int, int]:
    """Bytes of a process, and of each convolution and group, from the two rows of `FITTED`."""
    (few, less), (many, more) = (
        (_convolutions(name), TABLE_6[name].layrub * MIB - _scheduled(name, 32)) for name in FITTED
    )
    each = (more - less) // (many - few)
    return less - each * few, each


def _convolutions(network: str) -> int:
    """Convolutions, a group counting as one: Caffe gives each three handles and streams."""
    return sum(layer.groups for layer in find_network(network).layers if layer.kind.name == "conv")


def _lean(instance: Instance) -> Instance:
    """Leave the algorithm with the least workspace to each task."""
    tasks = tuple(
        msgspec.structs.replace(task, algorithms=(task.algorithms[leanest(task)],)) for task in instance.tasks
    )
    return msgspec.structs.replace(instance, tasks=tasks)


# --- time -------------------------------------------------------------------------------------------------


def caffe_iteration_ns(network: str, batch: int) -> int:
    """Time of an iteration of Caffe: the tasks of its graph one after the other."""
    instance = on_caffe(network, batch)
    chosen = caffe_algorithms(instance)
    return sum(task.algorithms[a].duration_ns for task, a in zip(instance.tasks, chosen, strict=True))


@cache
def program_ns(network: str, batch: int) -> int:
    """Time of an iteration of Layrub's program."""
    return _makespan_ns(on_caffe(network, batch))


def added_at(network: str, batch: int, iteration_ns: int, link: str | None = None) -> float:
    """What Layrub's program adds to an iteration where Caffe takes as long as is said, as a share of that.

    Copies are over the device's link, or over another.
    """
    instance = slowed(on_caffe(network, batch), iteration_ns, caffe_iteration_ns(network, batch))
    return _makespan_ns(instance if link is None else with_link(instance, link)) / iteration_ns - 1


def slowed(instance: Instance, to_ns: int, base_ns: int) -> Instance:
    """Let computing take longer by a factor, `to_ns` for `base_ns`, and copies as long as before."""
    tasks = tuple(
        msgspec.structs.replace(
            task,
            algorithms=tuple(
                msgspec.structs.replace(a, duration_ns=a.duration_ns * to_ns // base_ns)
                for a in task.algorithms
            ),
        )
        for task in instance.tasks
    )
    return msgspec.structs.replace(instance, tasks=tasks)


def _makespan_ns(instance: Instance) -> int:
    found = solve(instance, PROGRAM)
    assert found.makespan_ns is not None, found.stopped_by
    return found.makespan_ns
