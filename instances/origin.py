"""What an instance was made from, and its layers: the optional keys ``origin`` and ``layers`` of its file.

Earlier versions wrote them under ``meta``; `of_labels` and `of_entries` read what they wrote.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .errors import FormatError
from .figures import Natural, Positive, Text, are_naturals, is_text, require_types, sentence_of, text_of

Graph = Literal["executable", "paper"]

Optimizer = Literal["none", "sgd", "momentum", "adam", "adamw"]
"""What updates the weights in the round; ``none``: nothing does."""

DataPrecision = Literal["fp32", "bf16"]
"""The numbers that weights, feature maps and gradients are stored in."""

VALUE_BYTES: dict[DataPrecision, int] = {"fp32": 4, "bf16": 2}
"""Bytes of such a number."""


class MappingTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time of the host to map pages to consecutive addresses: of a mapping, and more for each page of it."""

    call_ns: Natural
    page_ns: Natural

    def __post_init__(self) -> None:
        require_types(self)


class LaunchTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What launches cost, of kernels that do next to nothing, one after the other.

    Attributes
    ----------
    host_ns
        Time of the host for a launch.
    gap_ns
        Time of the device from one launch to the next on a stream, where all have been queued before.
    graph_gap_ns
        The same in a graph, where each comes after the one before; None: unknown, or there are no graphs.

    Notes
    -----
    Both gaps are of the same kernel, and both include the least time that it takes; so their difference is
    what a graph changes.
    """

    host_ns: Natural
    gap_ns: Natural
    graph_gap_ns: Natural | None = None

    def __post_init__(self) -> None:
        require_types(self)


class Origin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an instance was made from, as far as that is known.

    Attributes
    ----------
    network
        Specification as `find_network` takes it, or what else the network is called.
    batch, sub_batch
        Images of an iteration and of a round.
    device
        Name of the device.
    cudnn
        Version of cuDNN that the cost model took.
    graph
        Which accounting the tasks follow.
    cost_model
        Where times and workspaces are from.
    cost_model_version
        Of the roofline model; absent in files of version 1.
    weights_as_blocks
        Whether weights and their gradients are blocks.
    steady
        Whether weights, and what the optimizer keeps, are carried from one iteration to the next.
    optimizer
        Of a steady state: what updates the weights.
    precision
        Numbers of weights, feature maps and gradients.
    mapping
        What mapping pages costs there.
    launches
        What launching kernels costs there.
    one_gpu_ideal_ns
        Of several GPUs: time of the whole iteration on one, without a memory limit.
    notes
        What whoever reads results should know.

    Raises
    ------
    FormatError
        When a rule of the format is broken.
    """

    network: Text | None = None
    batch: Positive | None = None
    sub_batch: Positive | None = None
    device: Text | None = None
    cudnn: Text | None = None
    graph: Graph | None = None
    cost_model: Literal["roofline", "profile"] | None = None
    cost_model_version: Positive | None = None
    weights_as_blocks: bool = False
    steady: bool = False
    optimizer: Optimizer | None = None
    precision: DataPrecision = "fp32"
    mapping: MappingTimes | None = None
    launches: LaunchTimes | None = None
    one_gpu_ideal_ns: Natural | None = None
    notes: Text | None = None

    def __post_init__(self) -> None:
        require_types(self)


class LayerTasks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A layer with its tasks in either pass.

    Raises
    ------
    FormatError
        When a rule of the format is broken.
    """

    name: Text
    kind: Text
    forward: tuple[Natural, ...]
    backward: tuple[Natural, ...]

    def __post_init__(self) -> None:
        if not (
            is_text(self.name)
            and is_text(self.kind)
            and are_naturals(self.forward)
            and are_naturals(self.backward)
        ):
            require_types(self)


_NEVER_LABELS = {"cost_model_version", "cudnn", "launches", "optimizer", "precision", "steady"}
"""Keys of `Origin` that are younger than those that earlier versions wrote."""


class _Entry(msgspec.Struct):
    """A layer as earlier versions read it: with any text and with keys of one's own."""

    name: str
    kind: str
    forward: tuple[Natural, ...]
    backward: tuple[Natural, ...]


def of_labels(meta: dict[str, Any], instance: str) -> Origin:
    """Take what an earlier version wrote of an instance's origin out of its ``meta``.

    A label of another type than it should have is the user's, and stays.

    Raises
    ------
    FormatError
        When ``mapping`` is no cost of mapping pages.
    """
    found: dict[str, Any] = {}
    for key in Origin.__struct_fields__:
        if key in _NEVER_LABELS:
            continue
        value = meta.get(key)
        if value is None:
            continue
        try:
            msgspec.convert({key: value}, Origin)
        except (msgspec.ValidationError, FormatError) as error:
            if key == "mapping":
                raise FormatError(
                    f"meta.mapping of {instance} is no cost of mapping pages: {sentence_of(error)}"
                ) from None
            continue
        found[key] = meta.pop(key)
    return msgspec.convert(found, Origin)


def of_entries(layers: object, instance: str) -> tuple[LayerTasks, ...]:
    """Return the layers that an earlier version wrote under ``meta.layers``.

    Raises
    ------
    FormatError
        When that is not a list of layers.
    """
    try:
        entries = msgspec.convert(layers, tuple[_Entry, ...])
    except msgspec.ValidationError as error:
        raise FormatError(
            f"{instance}: meta.layers is not a list of layers: {error}; mend it or rename it"
        ) from None
    return tuple(
        LayerTasks(name=text_of(e.name), kind=text_of(e.kind), forward=e.forward, backward=e.backward)
        for e in entries
    )


def require_layers(layers: tuple[LayerTasks, ...], tasks: int, where: str) -> None:
    """Refuse layers that name tasks which do not exist.

    Raises
    ------
    FormatError
        With the layer and the task.
    """
    for layer in layers:
        for k in (*layer.forward, *layer.backward):
            if k >= tasks:
                raise FormatError(f"{where}: layer '{layer.name}' names no task {k}")
