"""The network of an instance file, rebuilt: each block's tensor, and each task's computation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ...instances.arguments import require_fixed_reads
from ...instances.errors import PebblerError
from ...instances.instance import Instance
from ...instances.networks.taskgraph import TaskGraph, task_graph
from ...instances.networks.zoo import find_network
from .kernel import DECAY, Kernel, kernels_of, resident

_Value = TypeVar("_Value")
"""Value of a key of the origin."""


@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """The network that an instance was made from.

    Attributes
    ----------
    graph
        Tasks and blocks of a round.
    batch
        Number of images of an iteration.
    tensors
        Bytes of each tensor by name: a block of the graph, or the signs of a ReLU.
    parts
        Per block of the instance, its tensor, and the offset of its first byte in the tensor.
    kernels
        Per task, its computation without an algorithm.
    """

    graph: TaskGraph
    batch: int
    tensors: dict[str, int]
    parts: tuple[tuple[str, int], ...]
    kernels: tuple[Kernel, ...]

    @property
    def unit(self) -> int:
        """Bytes that arrays beside the blocks are aligned to, as backends want them."""
        return 512

    @property
    def images(self) -> int:
        """Number of images of a round."""
        return self.graph.batch

    def resident(self) -> Iterator[tuple[str, int]]:
        """Return names and bytes of the arrays beside blocks, which are always resident."""
        for name, size in resident(self.graph.network, self.batch):
            if name not in self.tensors:
                yield name, size

    def kernel(self, instance: Instance, task: int, algorithm: int) -> Kernel:
        """Return the computation of a task with one of the instance's algorithms."""
        chosen = instance.tasks[task].algorithms[algorithm]
        return replace(
            self.kernels[task],
            algorithm=chosen.name,
            workspace_bytes=chosen.workspace_bytes,
            on=chosen.on,
        )


def rebuild(instance: Instance) -> Rebuilt:
    """Rebuild the network of an instance, and refuse an instance that does not match its network.

    Network, batch, sub-batch and graph come from the instance's origin. Tensors in parts and ReLUs that keep
    signs are recognised. Durations, workspaces and budget may have any value.

    Raises
    ------
    PebblerError
        When the origin does not say what to rebuild, the graph is the papers', a layer has no kernels, or a
        block or a task differs from the network's.
    """
    origin = instance.made_from
    network, batch = _known(instance, "network", origin.network), _known(instance, "batch", origin.batch)
    sub_batch = _known(instance, "sub_batch", origin.sub_batch)
    if _known(instance, "graph", origin.graph) != "executable":
        raise PebblerError(
            f"{instance.name}: the graph is the papers' accounting, which cannot be run; make the instance "
            "with --graph executable"
        )
    if origin.precision != "fp32":
        raise PebblerError(
            f"{instance.name}: its data is in {origin.precision}, and kernels are of single precision; make "
            "the instance with --precision fp32"
        )
    if origin.steady != (origin.optimizer is not None):
        raise PebblerError(
            f"{instance.name}: in its origin, 'steady' and 'optimizer' come together; give both or neither"
        )
    graph = task_graph(
        find_network(network), sub_batch, "executable", origin.weights_as_blocks, origin.optimizer
    )
    parts = tuple((block.tensor or block.name, block.begin or 0) for block in instance.blocks)
    tensors = {block.name: block.bytes for block in graph.blocks}
    present = {name for name, _ in parts}
    signs = {
        f"M({layer.name})": sub_batch * layer.shape.elements
        for layer in graph.network.layers
        if layer.relu and f"M({layer.name})" in present
    }
    tensors |= signs
    decay = DECAY if origin.optimizer == "adamw" else 0.0
    kernels = kernels_of(graph, batch, frozenset(name[2:-1] for name in signs), decay=decay)
    _require_blocks(instance, graph, parts, tensors)
    _require_tasks(instance, graph, parts, signs)
    return Rebuilt(graph, batch, tensors, parts, tuple(kernels))


def _known(instance: Instance, key: str, value: _Value | None) -> _Value:
    if value is None:
        raise PebblerError(
            f"{instance.name}: its origin has no '{key}', so its network cannot be rebuilt; run an instance "
            "that pebbler made from a network"
        )
    return value


def _differs(instance: Instance, what: str) -> PebblerError:
    origin = instance.made_from
    return PebblerError(
        f"{instance.name} is not what its origin says, network '{origin.network}' with a sub-batch of "
        f"{origin.sub_batch}: {what}"
    )


def _require_blocks(
    instance: Instance, graph: TaskGraph, parts: Sequence[tuple[str, int]], tensors: dict[str, int]
) -> None:
    """Check that the blocks are the network's tensors, whole or in parts without gaps."""
    places = {block.name: (block.initially, block.finally_) for block in graph.blocks}
    reached = dict.fromkeys(tensors, 0)
    for block, (name, begin) in sorted(zip(instance.blocks, parts, strict=True), key=lambda pair: pair[1]):
        if name not in tensors:
            raise _differs(instance, f"the network has no block '{name}'")
        if begin != reached[name]:
            raise _differs(instance, f"'{block.name}' begins at byte {begin}, not at {reached[name]}")
        reached[name] = begin + block.bytes
        if block.finally_ != places.get(name, ("", "anywhere"))[1]:
            raise _differs(instance, f"'{block.name}' has another place at the end")
        if _begins(block.initially) != _begins(places.get(name, ("absent", ""))[0]):
            raise _differs(instance, f"'{block.name}' has another place at the start")
    for name, size in tensors.items():
        if reached[name] != size:
            raise _differs(instance, f"'{name}' has {reached[name]} bytes, and should have {size}")
    if instance.resident_bytes != graph.resident_bytes:
        raise _differs(
            instance, f"{instance.resident_bytes} bytes are resident, and should be {graph.resident_bytes}"
        )


def _begins(initially: str) -> str:
    """Return how a block begins: on the device or on the host is the same, as data may lie in either."""
    return "there" if initially in ("device", "host") else initially


def _require_tasks(
    instance: Instance, graph: TaskGraph, parts: Sequence[tuple[str, int]], signs: dict[str, int]
) -> None:
    """Check that the tasks are the network's, in its order, and touch the same tensors in the same way."""
    if len(instance.tasks) != len(graph.tasks):
        raise _differs(instance, f"there are {len(instance.tasks)} tasks, and should be {len(graph.tasks)}")
    written = {name for task in instance.tasks for d in task.outputs for name in (parts[d][0],)}
    for name in signs:
        if name not in written:
            raise _differs(instance, f"no task writes '{name}'")
    require_fixed_reads(instance, "the kernels")
    for task, own in zip(instance.tasks, graph.tasks, strict=True):
        if task.name != own.name:
            raise _differs(instance, f"task '{task.name}' is where '{own.name}' should be")
        kept = f"M({own.layer.name})"
        expected = [
            {graph.blocks[d].name for d in blocks} for blocks in (own.inputs, own.outputs, own.updates)
        ]
        if kept in signs:
            if own.role == "relu":
                expected[0] = {kept}
            elif own.role == "FP":
                expected[1] = expected[1] | {kept}
        found = [{parts[d][0] for d in blocks} for blocks in (task.inputs, task.outputs, task.updates)]
        for word, blocks, wanted in zip(("inputs", "outputs", "updates"), found, expected, strict=True):
            if blocks != wanted:
                raise _differs(
                    instance,
                    f"the {word} of task '{task.name}' are {sorted(blocks)}, and should be {sorted(wanted)}",
                )
        if sum(d is not None for d in task.blocks) != _touched(parts, [*found[0], *found[1], *found[2]]):
            raise _differs(instance, f"task '{task.name}' does not list every part of what it touches")


def _touched(parts: Sequence[tuple[str, int]], tensors: Sequence[str]) -> int:
    """Return the number of blocks that these tensors are in."""
    return sum(name in tensors for name, _ in parts)
