"""Operators: what running a user's model once did, as operators on storages, and the instance that it gives.

A storage is a piece of memory; tensors that are views of each other share one. The importers record an
`OperatorGraph`; this module knows no framework.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Literal

from ..devices.device import Device, Precision
from ..devices.roofline import (
    Convolution,
    Pass,
    convolution_algorithms,
    matrix_algorithms,
    memory_bound_algorithms,
    product_algorithms,
)
from ..figures import text_of
from ..instance import Algorithm, Block, Instance, Task
from ..origin import LayerTasks, Origin

Place = Literal["parameter", "buffer", "constant", "gradient", "input", "data"]

_MIRRORED: dict[Pass, Pass] = {"FP": "BP1", "BP1": "FP", "BP2": "BP2"}
"""Passes of a transposed convolution, as those of the convolution that it is the backward pass of."""

_RESIDENT = ("parameter", "buffer", "constant", "gradient")


@dataclass(frozen=True, slots=True)
class Storage:
    """A piece of memory.

    Attributes
    ----------
    name
        Unique within the graph.
    bytes
        Size, at least 1.
    place
        What it holds; ``gradient`` is that of a parameter. Everything but inputs and data is resident.
    """

    name: str
    bytes: int
    place: Place


@dataclass(frozen=True, slots=True)
class Operator:
    """One call of a kernel.

    Attributes
    ----------
    name
        Unique within the graph: pass, module and operator, ``FP(layer1.0.conv1 convolution)``.
    module, module_kind
        The module in whose forward pass it was called or that it is the backward pass of, and its class.
    direction
        ``forward`` or ``backward``.
    inputs, outputs, updates
        Disjoint sets of storages, by index: read; written for the first time; read and rewritten in place.
    flops
        Operations of its matrix products; 0 for work that only moves data.
    elements
        Number of values that it writes.
    moved_bytes
        Memory traffic when every operand is read and every result written once.
    precision
        Of its matrix products, where the device has tensor cores for it.
    matrix
        Rows, columns and inner dimension of a single matrix product; None for other operators.
    convolution, passes
        For convolutions that the cost model has algorithms for: the shapes, and what is computed of it.
    """

    name: str
    module: str
    module_kind: str
    direction: Literal["forward", "backward"]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    updates: tuple[int, ...]
    flops: int
    elements: int
    moved_bytes: int
    precision: Precision = "fp32"
    matrix: tuple[int, int, int] | None = None
    convolution: Convolution | None = None
    passes: tuple[Pass, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class OperatorGraph:
    """The operators of one training iteration, in order, and the storages that they touch."""

    storages: tuple[Storage, ...]
    operators: tuple[Operator, ...]

    @property
    def resident_bytes(self) -> int:
        """Bytes of parameters, their gradients, buffers and constants."""
        return sum(storage.bytes for storage in self.storages if storage.place in _RESIDENT)


def grouped_flops(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the operations of ``_grouped_mm``, the products of experts, a multiply-add counted as two.

    Parameters
    ----------
    left, right
        Sizes of its operands: of three numbers, where each expert has its own part; of two, where the rows,
        the columns or what is summed over is shared out among experts.
    """
    groups = left[0] if len(left) == len(right) == 3 else 1
    return 2 * groups * prod(left[-2:]) * right[-1]


def convolution_of(
    source: Sequence[int],
    weights: Sequence[int],
    target: Sequence[int],
    numbers: Sequence[Any],
    passes: Sequence[Pass],
    value_bytes: int,
) -> tuple[Convolution | None, tuple[Pass, ...]]:
    """Return a convolution and the passes that an operator computes of it.

    Only where the cost model has algorithms: two dimensions, one stride and one padding, no dilation. A
    transposed convolution is the one that it is the backward pass of.

    Parameters
    ----------
    source, weights, target
        Sizes of the input, the weights and the output.
    numbers
        As torch's operator has them: strides, paddings, dilations, whether it is transposed, paddings of the
        output, and groups.
    passes
        What the operator computes.
    value_bytes
        Bytes of a value.
    """
    strides, pads, dilations, transposed, _, groups = numbers
    simple = len(set(strides)) == len(set(pads)) == 1 and set(dilations) == {1}
    if not (passes and simple and len(source) == 4):
        return None, ()
    if transposed:
        source, target = target, source
        passes = [_MIRRORED[which] for which in passes]
    (batch, in_channels, in_height, in_width), (_, out_channels, out_height, out_width) = source, target
    convolution = Convolution(
        batch=batch,
        in_channels=in_channels,
        out_channels=out_channels,
        in_height=in_height,
        in_width=in_width,
        out_height=out_height,
        out_width=out_width,
        kernel_h=weights[2],
        kernel_w=weights[3],
        stride=strides[0],
        pad=pads[0],
        groups=groups,
        value_bytes=value_bytes,
    )
    return convolution, tuple(passes)


def operator_instance(
    graph: OperatorGraph,
    device: Device,
    *,
    name: str,
    engines: Literal["duplex", "single"],
    rounds: int,
    origin: Origin,
    meta: dict[str, Any],
) -> Instance:
    """Return the instance of a graph on a device, under a budget of 0.

    Every operator is a task. Inputs and data are blocks; inputs are on the device at the start. The layers
    are the modules, of kind ``conv`` where they compute a convolution and else of their class.
    """
    places = [d for d, storage in enumerate(graph.storages) if storage.place not in _RESIDENT]
    number = {d: index for index, d in enumerate(places)}

    def blocks(storages: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number[d] for d in storages if d in number)

    return Instance(
        name=name,
        engines=engines,
        budget_bytes=0,
        resident_bytes=graph.resident_bytes,
        rounds=rounds,
        blocks=tuple(_block(graph.storages[d], device) for d in places),
        tasks=tuple(
            Task(
                name=operator.name,
                inputs=blocks(operator.inputs),
                outputs=blocks(operator.outputs),
                updates=blocks(operator.updates),
                algorithms=operator_algorithms(device, operator),
            )
            for operator in graph.operators
        ),
        meta=meta,
        origin=origin,
        layers=_layers(graph),
    )


def operator_algorithms(device: Device, operator: Operator) -> tuple[Algorithm, ...]:
    """Return the algorithms of an operator on a device, by rising workspace.

    Convolutions have those of `convolution_algorithms`; where one operator computes both gradients, one
    algorithm of each, which run one after the other in one workspace. Everything else is a single kernel
    on the roofline that ``docs/costs.md`` describes.
    """
    precision = operator.precision
    if precision == "tf32" and device.architecture == "cdna3":
        precision = "fp32"  # torch for AMD's GPUs asks for TF32 by a variable of the environment only
    if operator.matrix is not None:
        rows, columns, depth = operator.matrix
        return matrix_algorithms(device, rows, columns, depth, operator.moved_bytes, precision=precision)
    if operator.convolution is None:
        if operator.flops:
            return product_algorithms(
                device, operator.flops // 2, operator.elements, operator.moved_bytes, precision
            )
        return memory_bound_algorithms(device, operator.moved_bytes)
    choices = [
        convolution_algorithms(device, operator.convolution, which, precision=precision)
        for which in operator.passes
    ]
    joint = [
        Algorithm(
            name="+".join(algorithm.name for algorithm in combination),
            duration_ns=sum(algorithm.duration_ns for algorithm in combination),
            workspace_bytes=max(algorithm.workspace_bytes for algorithm in combination),
        )
        for combination in product(*choices)
    ]
    kept: list[Algorithm] = []
    for algorithm in sorted(joint, key=lambda item: (item.workspace_bytes, item.duration_ns)):
        if not kept or algorithm.duration_ns < kept[-1].duration_ns:
            kept.append(algorithm)
    return tuple(kept)


def _block(storage: Storage, device: Device) -> Block:
    return Block(
        name=storage.name,
        bytes=storage.bytes,
        offload_ns=device.copy_ns(storage.bytes, "offload"),
        prefetch_ns=device.copy_ns(storage.bytes, "prefetch"),
        move_ns=device.move_ns(storage.bytes),
        initially="device" if storage.place == "input" else "absent",
    )


def _layers(graph: OperatorGraph) -> tuple[LayerTasks, ...]:
    """List the modules with their tasks, in the order of their first ones."""
    tasks: dict[str, dict[str, list[int]]] = defaultdict(lambda: {"forward": [], "backward": []})
    kinds: dict[str, str] = {}
    for k, operator in enumerate(graph.operators):
        tasks[operator.module][operator.direction].append(k)
        kinds.setdefault(operator.module, operator.module_kind)
        if operator.convolution is not None:
            kinds[operator.module] = "conv"
    return tuple(
        LayerTasks(
            name=text_of(module),
            kind=text_of(kinds[module]),
            forward=tuple(lists["forward"]),
            backward=tuple(lists["backward"]),
        )
        for module, lists in tasks.items()
    )
