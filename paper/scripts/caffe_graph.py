"""A network as Caffe runs it: every layer on its own, in place where Caffe is, with what its layers keep.

Pebbler's own graphs have what a backward pass needs. Caffe, and so Layrub, has more: a split layer behind
each fork, a gradient for each of the fork's readers, copies in the backward pass of sums, and batch norm and
scale in place, for which they keep values. The rules were read in the layers' ``.cu`` files of Caffe, as
github.com/CGCL-codes/Layrub has them. Batch norm is in place wherever it is, so that whoever else reads its
input reads its output, as in the authors' wide residual networks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import msgspec

from pebbler.heuristics.papers.layrub_rules import SPLIT
from pebbler.instances.applied import Transform
from pebbler.instances.devices.device import Device, find_device
from pebbler.instances.devices.roofline import memory_bound_algorithms
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.networks.network import Layer, Network
from pebbler.instances.networks.taskgraph import FLOAT_BYTES, LayerTask, TaskGraph, task_graph
from pebbler.instances.origin import LayerTasks
from pebbler.instances.workload import modelled

PREFETCHED = 3
"""Batches of input that Caffe's data layer has on the GPU beside the one in use."""

_KINDS = frozenset(
    [
        "input",
        "conv",
        "fc",
        "maxpool",
        "avgpool",
        "lrn",
        "bn",
        "dropout",
        "add",
        "concat",
        "resample",
        "softmax",
    ]
)
"""Kinds of layers that there are; of resampling, the shortcuts of a ResNet without projections."""

_PASSES = {"bn": (12, 19), "scale": (4, 7), "relu": (3.25, 2.25), "dropout": (3, 3)}
"""How often layers in place read or write as many bytes as their blob has, forward and backward.

Counted in the calls of their kernels: batch norm is made of matrix products and element-wise calls.
"""


class _Step(NamedTuple):
    """A layer of Caffe: its name and kind, the layer of the network, the data it reads and the data it makes.

    A layer in place makes what it reads.
    """

    name: str
    kind: str
    layer: Layer
    reads: tuple[int, ...]
    makes: int


def caffe_instance(
    network: Network, batch: int, device: str, cudnn: str, budget: int, *, keeps: bool = True
) -> Instance:
    """Return an iteration of a network as Caffe runs it.

    Parameters
    ----------
    network, batch
        What is trained.
    device, cudnn
        As `find_device` takes them.
    budget
        Bytes of memory.
    keeps
        Whether the values that batch norm and scale keep, indices of pooling and masks of dropout are blocks.
        The signs of ReLUs always are (`with_mask`).

    Raises
    ------
    PebblerError
        When the network has a layer that Caffe's graph does not know.
    """
    return _Builder(network, batch, find_device(device, cudnn), keeps).build(budget)


def caffe_resident_bytes(network: Network, batch: int) -> int:
    """Bytes that stay: weights, gradients and momentum, batch norm's statistics among them, and input."""
    statistics = sum(2 * layer.shape.channels for layer in network.layers if layer.kind.name == "bn")
    values = sum(layer.shape.elements for layer in network.layers if layer.kind.is_input)
    return FLOAT_BYTES * (3 * (network.parameters + statistics) + PREFETCHED * batch * values)


class _Builder:
    """Walks Caffe's layers forward, then backward.

    Attributes
    ----------
    modelled, by_name
        Pebbler's own graph and its tasks, for the algorithms of convolutions and products.
    forward, backward
        Per layer of Caffe, the indices of its tasks.
    readers
        Per piece of data, the names of the layers that read it and do not change it.
    trained
        Data that has a gradient.
    kept
        Per layer of Caffe, the blocks that it keeps for its backward pass.
    gradient, parts
        The gradient of data, and what each of several readers makes of it.
    """

    def __init__(self, network: Network, batch: int, device: Device, keeps: bool) -> None:
        self.network, self.batch, self.device, self.keeps = network, batch, device, keeps
        self.modelled: TaskGraph = task_graph(network, batch)
        self.by_name: dict[str, LayerTask] = {task.name: task for task in self.modelled.tasks}
        self.blocks: list[Block] = []
        self.tasks: list[Task] = []
        self.forward: dict[str, list[int]] = defaultdict(list)
        self.backward: dict[str, list[int]] = defaultdict(list)
        self.readers: dict[int, list[str]] = defaultdict(list)
        self.trained: set[int] = set()
        self.kept: dict[str, list[int]] = {}
        self.gradient: dict[int, int] = {}
        self.parts: dict[tuple[int, str], int] = {}

    def build(self, budget: int) -> Instance:
        """Return the instance."""
        steps = self._steps()
        for step in steps:
            self._run_forward(step)
        for step in reversed(steps):
            self._run_backward(step)
        return Instance(
            name=f"{self.network.name}-b{self.batch}-caffe",
            engines="duplex",
            budget_bytes=budget,
            resident_bytes=caffe_resident_bytes(self.network, self.batch),
            blocks=tuple(self.blocks),
            tasks=tuple(self.tasks),
            transforms=(Transform(kind="mask"),),
            layers=tuple(
                LayerTasks(
                    name=step.name,
                    kind=step.kind,
                    forward=tuple(self.forward[step.name]),
                    backward=tuple(self.backward[step.name]),
                )
                for step in steps
            ),
        )

    def _steps(self) -> list[_Step]:
        """Return Caffe's layers in forward order; data is made on the way."""
        steps: list[_Step] = []
        feature: dict[str, int] = {}
        for layer in self.network.layers:
            kind = layer.kind.name
            if kind not in _KINDS:
                raise PebblerError(
                    f"{self.network.name}: layer '{layer.name}' is of kind '{kind}', which is not Caffe's"
                )
            reads = tuple(feature[name] for name in layer.inputs)
            if layer.kind.is_input:
                feature[layer.name] = self._block(f"X({layer.name})", layer, "device")
                continue
            in_place = kind in ("bn", "dropout")
            feature[layer.name] = reads[0] if in_place else self._block(f"Y({layer.name})", layer)
            made = feature[layer.name]
            for d in reads if not in_place else ():
                self.readers[d].append(layer.name)
            steps.append(_Step(layer.name, kind, layer, reads, made))
            if layer.parameters or self.trained.intersection(reads):
                self.trained.add(made)
            if kind == "bn":
                steps.append(_Step(f"scale {layer.name}", "scale", layer, (made,), made))
            if layer.relu:
                steps.append(_Step(f"relu {layer.name}", "relu", layer, (made,), made))
        last = {step.makes: i for i, step in enumerate(steps)}
        with_splits: list[_Step] = []
        for i, step in enumerate(steps):
            with_splits.append(step)
            if last[step.makes] == i and step.makes in self.trained and len(self.readers[step.makes]) > 1:
                block = self.blocks[step.makes].name
                with_splits.append(_Step(f"split {block}", SPLIT, step.layer, (step.makes,), step.makes))
        return with_splits

    def _run_forward(self, step: _Step) -> None:
        layer, size = step.layer, self.blocks[step.makes].bytes
        kept = self._keep(step)
        changes = step.kind in _PASSES
        algorithms: tuple[Algorithm, ...]
        if step.kind == SPLIT:  # it shares its input with the readers
            algorithms = (Algorithm(name="pointer", duration_ns=0, workspace_bytes=0),)
        elif step.kind in ("conv", "fc"):
            algorithms = self._multiply(f"FP({layer.name})")
        elif step.kind == "add":
            algorithms = self._moving(size * (1 + 3 * len(step.reads)))
        elif changes:
            algorithms = self._moving(_PASSES[step.kind][0] * size)
        else:
            algorithms = self._moving(sum(self.blocks[d].bytes for d in (*step.reads, step.makes)))
        self._add(
            self.forward,
            step,
            f"FP({step.name})",
            algorithms,
            inputs=() if changes else step.reads,
            outputs=(*(() if changes or step.kind == SPLIT else (step.makes,)), *kept),
            updates=(step.makes,) if changes else (),
        )

    def _keep(self, step: _Step) -> list[int]:
        """Make the blocks of what a layer keeps for its backward pass."""
        size = self.blocks[step.makes].bytes
        kept: list[int] = []
        if step.makes in self.trained:
            if step.kind == "relu":
                kept = [self._copied(f"sign({step.name})", -(-size // 4))]
            elif self.keeps and step.kind == "bn":
                kept = [self._copied(f"{word}({step.name})", size) for word in ("norm", "deviation")]
            elif self.keeps and step.kind == "scale":
                kept = [self._copied(f"copy({step.name})", size)]
            elif self.keeps and step.kind in ("maxpool", "dropout"):
                kept = [self._staying(f"index({step.name})", size)]
        self.kept[step.name] = kept
        return kept

    def _run_backward(self, step: _Step) -> None:
        if step.makes not in self.trained:
            return
        layer, kept, name = step.layer, self.kept[step.name], f"BP({step.name})"
        if step.kind == SPLIT:
            parts = [self.parts[step.makes, reader] for reader in self.readers[step.makes]]
            size = self.blocks[step.makes].bytes
            self.gradient[step.makes] = whole = self._copied(f"d{self.blocks[step.makes].name}", size)
            algorithms = self._moving(3 * (len(parts) - 1) * size)
            self._add(self.backward, step, name, algorithms, inputs=parts, outputs=(whole,))
            return
        inputs = () if layer.kind.is_loss else (self.gradient[step.makes],)
        if step.kind in _PASSES:
            size = self.blocks[step.makes].bytes
            workspace = size if step.kind == "bn" and self.keeps else 0
            algorithms = self._moving(_PASSES[step.kind][1] * size, workspace)
            self._add(self.backward, step, name, algorithms, inputs=kept, updates=inputs)
            return
        if step.kind in ("conv", "fc"):
            algorithms = self._multiply(f"BP2({layer.name})")
            self._add(self.backward, step, f"BP2({layer.name})", algorithms, inputs=(*step.reads, *inputs))
        outputs = [self._part(d, step) for d in step.reads if d in self.trained]
        if not outputs:
            return
        if step.kind in ("conv", "fc"):
            algorithms = self._multiply(f"BP1({layer.name})")
        elif step.kind == "lrn" or layer.kind.is_loss:
            inputs = (*inputs, *(step.reads if step.kind == "lrn" else ()), step.makes)
            algorithms = self._moving(sum(self.blocks[d].bytes for d in (*inputs, *outputs)))
        else:
            algorithms = self._moving(2 * sum(self.blocks[d].bytes for d in outputs))
        self._add(
            self.backward, step, f"BP1({layer.name})", algorithms, inputs=(*inputs, *kept), outputs=outputs
        )

    def _part(self, data: int, step: _Step) -> int:
        """Make the gradient that a reader of data makes, which is the data's own unless there is a split."""
        name = f"d{self.blocks[data].name}"
        forked = len(self.readers[data]) > 1
        block = self._copied(f"{name} of {step.name}" if forked else name, self.blocks[data].bytes)
        if forked:
            self.parts[data, step.name] = block
        else:
            self.gradient[data] = block
        return block

    def _block(self, name: str, layer: Layer, initially: Literal["absent", "device"] = "absent") -> int:
        return self._copied(name, FLOAT_BYTES * self.batch * layer.shape.elements, initially)

    def _copied(self, name: str, size: int, initially: Literal["absent", "device"] = "absent") -> int:
        """Add a block that can leave and return."""
        self.blocks.append(
            Block(
                name=name,
                bytes=size,
                offload_ns=self.device.copy_ns(size, "offload"),
                prefetch_ns=self.device.copy_ns(size, "prefetch"),
                initially=initially,
            )
        )
        return len(self.blocks) - 1

    def _staying(self, name: str, size: int) -> int:
        """Add a block that stays on the device."""
        self.blocks.append(Block(name=name, bytes=size, offload_ns=None, prefetch_ns=None))
        return len(self.blocks) - 1

    def _multiply(self, name: str) -> tuple[Algorithm, ...]:
        """Return the algorithms of a convolution or a product, without ReLU and without sums of gradients."""
        task = replace(self.by_name[name], updates=(), extra_bytes=0)
        return modelled(self.modelled, task, self.device)

    def _moving(self, moved: float, workspace: int = 0) -> tuple[Algorithm, ...]:
        """Return the algorithm of what only moves data."""
        (only,) = memory_bound_algorithms(self.device, round(moved))
        return (msgspec.structs.replace(only, workspace_bytes=workspace),)

    def _add(
        self,
        tasks: dict[str, list[int]],
        step: _Step,
        name: str,
        algorithms: tuple[Algorithm, ...],
        *,
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
        updates: Sequence[int] = (),
    ) -> None:
        tasks[step.name].append(len(self.tasks))
        self.tasks.append(
            Task(
                name=name,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                updates=tuple(updates),
                algorithms=algorithms,
            )
        )
