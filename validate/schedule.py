"""The schedule: a program of operations on streams, and the places of blocks and workspaces.

The classes mirror the schedule file key by key (format ``pebbler/schedule/1``). Times are those of simulating
the program; hardware may run it at any other speed.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from ..instances.applied import unmappable
from ..instances.arguments import require_kind
from ..instances.errors import FormatError
from ..instances.figures import (
    Text,
    are_all,
    are_naturals,
    are_optional,
    is_natural,
    is_one_of,
    is_positive,
    is_text,
    require_types,
)
from ..instances.files import read_document, reread, write_document
from ..instances.instance import Instance, Natural, Positive
from ..instances.units import LARGEST, PAGE_BYTES, as_html, as_lines, format_size, format_time

Stream = Literal["compute", "d2h", "h2d", "copy", "host", "cpu", "network", "nvlink"]
"""Name of a stream."""

Kind = Literal["run", "offload", "prefetch", "move", "send", "accumulate", "exchange", "return", "reduce"]
"""Kind of an operation."""

MemoryModel = Literal["contiguous", "paged", "divisible"]
"""Name of a memory model."""

_STREAMS, _KINDS, _MODELS = get_args(Stream), get_args(Kind), get_args(MemoryModel)
"""All names of streams, kinds of operations and memory models."""

GRADIENT_KINDS: tuple[Kind, ...] = ("send", "accumulate", "exchange", "return", "reduce")
"""Kinds of operations that pass gradients on, for several GPUs."""

COLLECTIVE_KINDS: tuple[Kind, ...] = ("exchange", "reduce")
"""Kinds of operations that all nodes, or all GPUs, do together."""

Extent = tuple[Natural, Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]]
"""Offset and bytes of a range of pages."""


def unit_bytes(instance: Instance, memory: MemoryModel) -> int:
    """Return the bytes to which sizes are rounded up in a memory model: alignment, page, or one byte."""
    units: dict[MemoryModel, int] = {
        "contiguous": instance.alignment_bytes,
        "paged": PAGE_BYTES,
        "divisible": 1,
    }
    return units[memory]


class Operation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A step of one stream: run a task, offload, prefetch or move a block, or pass a gradient on.

    Attributes
    ----------
    id
        Number of the operation, unique within the schedule.
    gpu
        The GPU that does it; for an ``accumulate``, the GPU whose gradient is added; 0 for an operation of
        all GPUs together.
    task, algorithm
        Task and algorithm of a run, else None.
    block
        Block of an offload, a prefetch or a move, else None.
    gradient
        Gradient of a send, an accumulate, an exchange, a return or a reduce, else None.
    after
        Ids of operations earlier in the list that must have ended before this one starts.
    start_ns, end_ns
        Simulated times in nanoseconds.
    """

    id: Natural
    stream: Stream
    kind: Kind
    gpu: Natural = 0
    task: Natural | None = None
    algorithm: Natural | None = None
    block: Natural | None = None
    gradient: Natural | None = None
    after: tuple[Natural, ...] = ()
    start_ns: Natural
    end_ns: Natural

    def __post_init__(self) -> None:
        if not (
            is_natural(self.id)
            and is_one_of(self.stream, _STREAMS)
            and is_one_of(self.kind, _KINDS)
            and is_natural(self.gpu)
            and are_optional(self.task, self.algorithm, self.block, self.gradient)
            and are_naturals(self.after)
            and is_natural(self.start_ns)
            and is_natural(self.end_ns)
        ):
            require_types(self)


class Residence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A stay of a block, or of a run's workspace, in device memory.

    Attributes
    ----------
    gpu
        The GPU whose memory it is in.
    block, workspace_of
        Its content: a block, or the workspace of the run with that id.
    offset
        Offset of its first byte from the start of the pool (contiguous).
    extents
        ``(offset, bytes)`` pairs of whole pages in the order of their addresses (paged).
    bytes
        Size of the block or workspace in bytes.
    acquired_by
        The operation that writes the block there; None for a block that is initially on the device.
    released_after
        Ids of operations: the residence ends when all of them have ended. If empty, it lasts to the end.
    takes_over
        Whether it is the place of an input of the run that acquires it, which ends with that run.
    """

    gpu: Natural = 0
    block: Natural | None = None
    workspace_of: Natural | None = None
    offset: Natural | None = None
    extents: tuple[Extent, ...] | None = None
    bytes: Positive
    acquired_by: Natural | None = None
    released_after: tuple[Natural, ...] = ()
    takes_over: bool = False

    def __post_init__(self) -> None:
        if not (
            is_natural(self.gpu)
            and are_optional(self.block, self.workspace_of, self.offset, self.acquired_by)
            and type(self.takes_over) is bool
            and (self.extents is None or _are_extents(self.extents))
            and is_positive(self.bytes)
            and are_naturals(self.released_after)
        ):
            require_types(self)


class HostResidence(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A stay of a copy of a block, or of a run's workspace, in host memory, where that has a budget.

    Attributes
    ----------
    block, workspace_of
        Its content: a block, or the workspace of the run on the host with that id.
    offset
        Offset of its first byte from the start of host memory; None in divisible memory.
    bytes
        Size of the block or workspace in bytes.
    acquired_by
        The offload, or the run on the host, that writes it; None for a copy that is there from the start.
    released_after
        Ids of operations: the residence ends when all of them have ended. If empty, it lasts to the end.
    """

    block: Natural | None = None
    workspace_of: Natural | None = None
    offset: Natural | None = None
    bytes: Positive
    acquired_by: Natural | None = None
    released_after: tuple[Natural, ...] = ()

    def __post_init__(self) -> None:
        if not (
            are_optional(self.block, self.workspace_of, self.offset, self.acquired_by)
            and is_positive(self.bytes)
            and are_naturals(self.released_after)
        ):
            require_types(self)


class Carried(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a carried block is when the round begins, and when it ends.

    Attributes
    ----------
    block
        The block.
    device, host
        Whether it is on the device, and whether the host has a valid copy; one of the two, or both.
    """

    block: Natural
    device: bool
    host: bool

    def __post_init__(self) -> None:
        if not (is_natural(self.block) and type(self.device) is bool and type(self.host) is bool):
            require_types(self)


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A program for one round of an instance.

    Attributes
    ----------
    instance, instance_sha256
        Name of the instance, and the SHA-256 checksum of its file if there is one.
    method
        Name of the method that made it.
    operations, residences
        The program; the list of operations is a topological order.
    makespan_ns, peak_bytes
        End of the last operation in nanoseconds, and the resident bytes plus the highest byte in use.
    host_residences, host_peak_bytes
        The places of copies in host memory, and the highest byte in use there; unset where the instance gives
        host memory no budget.
    carried
        Where the blocks that the instance carries are at both ends of the round, in their order; unset where
        it carries none.

    Raises
    ------
    FormatError
        When a rule of the format is broken.
    """

    format: Literal["pebbler/schedule/1"]
    instance: Text
    instance_sha256: Text | None = None
    method: Text
    memory_model: MemoryModel
    page_bytes: Positive | None = None
    operations: tuple[Operation, ...]
    residences: tuple[Residence, ...]
    makespan_ns: Natural
    peak_bytes: Natural
    meta: dict[str, Any] = {}
    host_residences: tuple[HostResidence, ...] | msgspec.UnsetType = msgspec.UNSET
    host_peak_bytes: Natural | msgspec.UnsetType = msgspec.UNSET
    carried: tuple[Carried, ...] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if not (
            is_one_of(self.format, ("pebbler/schedule/1",))
            and is_text(self.instance)
            and (self.instance_sha256 is None or is_text(self.instance_sha256))
            and is_text(self.method)
            and is_one_of(self.memory_model, _MODELS)
            and (self.page_bytes is None or is_positive(self.page_bytes))
            and is_natural(self.makespan_ns)
            and is_natural(self.peak_bytes)
            and type(self.meta) is dict
            and are_all(self.operations, Operation)
            and are_all(self.residences, Residence)
            and (self.host_residences is msgspec.UNSET or are_all(self.host_residences, HostResidence))
            and (self.host_peak_bytes is msgspec.UNSET or is_natural(self.host_peak_bytes))
            and (self.carried is msgspec.UNSET or are_all(self.carried, Carried))
        ):
            require_types(self)
        _require_operations(self)
        _require_residences(self)
        _require_host_residences(self)
        _require_carried(self)

    def __str__(self) -> str:
        return as_lines(self._facts())

    def _repr_html_(self) -> str:
        return as_html(self._facts())

    @property
    def host_copies(self) -> tuple[HostResidence, ...]:
        """The places of copies in host memory; none where it has no budget."""
        return () if self.host_residences is msgspec.UNSET else self.host_residences

    @property
    def states(self) -> tuple[Carried, ...]:
        """Where carried blocks are at both ends of the round; none where the instance carries none."""
        return () if self.carried is msgspec.UNSET else self.carried

    def _facts(self) -> list[tuple[str, str]]:
        kinds = Counter(operation.kind for operation in self.operations)
        return [
            ("schedule of", self.instance),
            ("method", self.method),
            ("operations", ", ".join(f"{count} {kind}" for kind, count in kinds.items())),
            ("makespan", format_time(self.makespan_ns)),
            ("peak memory", format_size(self.peak_bytes)),
            *(
                []
                if self.host_peak_bytes is msgspec.UNSET
                else [("peak of host memory", format_size(self.host_peak_bytes))]
            ),
            ("memory model", self.memory_model),
        ]


def read_schedule(path: str | Path, instance: Instance) -> Schedule:
    """Read a schedule file for an instance. The schedule is not checked: see `check`.

    Parameters
    ----------
    path
        The file to read.
    instance
        The instance that the schedule is for.

    Returns
    -------
    Schedule
        The schedule as the file has it.

    Raises
    ------
    PebblerError
        When the file cannot be read, breaks a rule of the format, or names a task, block or algorithm that
        the instance does not have.
    """
    schedule = read_document(path, Schedule, "a schedule")
    try:
        require_indices(instance, schedule)
    except FormatError as error:
        raise FormatError(f"{path} is not a schedule for {instance.name}: {error}") from None
    return schedule


def require_schedule(value: object) -> None:
    """Refuse what is no schedule, such as that of a result without one."""
    require_kind("schedule", value, Schedule, "give a schedule; result.schedule is None where none was found")


def write_schedule(schedule: Schedule, path: str | Path, instance_sha256: str | None = None) -> None:
    """Write a schedule file.

    Parameters
    ----------
    schedule
        Any schedule.
    path
        The file to write.
    instance_sha256
        SHA-256 checksum of the instance's file; by default the one that the schedule has, if any.
    """
    require_schedule(schedule)
    if instance_sha256 is not None:
        schedule = msgspec.structs.replace(schedule, instance_sha256=instance_sha256)
    write_document(schedule, path)


def as_from_files(instance: Instance, schedule: Schedule) -> tuple[Instance, Schedule]:
    """Return an instance and a schedule in the form in which they are read from files.

    Raises
    ------
    FormatError
        When files cannot hold them, or the schedule names a task, block or algorithm that the instance does
        not have.
    """
    for given, kind in ((instance, Instance), (schedule, Schedule)):
        if type(given) is not kind:
            raise FormatError(f"a {type(given).__name__} was given where a {kind.__name__} is needed")
    instance, schedule = reread(instance), reread(schedule)
    require_indices(instance, schedule)
    return instance, schedule


def require_indices(instance: Instance, schedule: Schedule) -> None:
    """Refuse a schedule that names a task, algorithm, block, GPU or gradient that does not exist.

    Raises
    ------
    FormatError
        Names the place and the index; first, if it is another, the instance that the schedule is for.
    """
    try:
        _require_each_index(instance, schedule)
    except FormatError as error:
        if schedule.instance == instance.name:
            raise
        told = f"the schedule is for instance '{schedule.instance}', not for '{instance.name}'"
        raise FormatError(f"{told}: {error}") from None


def _require_each_index(instance: Instance, schedule: Schedule) -> None:
    gradients = () if instance.cluster is msgspec.UNSET else instance.cluster.gradients
    for i, operation in enumerate(schedule.operations):
        _require_index(f"operations[{i}]", "gpu", operation.gpu, instance.gpus)
        _require_index(f"operations[{i}]", "gradient", operation.gradient, len(gradients))
        _require_index(f"operations[{i}]", "task", operation.task, len(instance.tasks))
        _require_index(f"operations[{i}]", "block", operation.block, len(instance.blocks))
        if operation.task is not None:
            count = len(instance.tasks[operation.task].algorithms)
            _require_index(f"operations[{i}]", "algorithm", operation.algorithm, count)
    for i, residence in enumerate(schedule.residences):
        _require_index(f"residences[{i}]", "gpu", residence.gpu, instance.gpus)
        _require_index(f"residences[{i}]", "block", residence.block, len(instance.blocks))
    for i, copy in enumerate(schedule.host_copies):
        _require_index(f"host_residences[{i}]", "block", copy.block, len(instance.blocks))
    for i, state in enumerate(schedule.states):
        _require_index(f"carried[{i}]", "block", state.block, len(instance.blocks))


def _require_index(where: str, key: str, index: int | None, count: int) -> None:
    if index is not None and index >= count:
        known = f"is out of range 0..{count - 1}" if count else "does not exist: the instance has none"
        raise FormatError(f"{where}: {key} {index} {known}")


def _are_extents(extents: object) -> bool:
    """Return whether a value is a tuple of pairs of an offset and a size."""
    return type(extents) is tuple and all(
        are_naturals(extent) and len(extent) == 2 and extent[1] > 0 for extent in extents
    )


def _require_operations(schedule: Schedule) -> None:
    """Check that ids are unique, `after` names earlier operations, and each kind has exactly its keys."""
    seen: set[int] = set()
    for i, operation in enumerate(schedule.operations):
        where = f"operations[{i}] (id {operation.id})"
        if operation.id in seen:
            raise FormatError(f"{where}: the id is used twice; give every operation its own")
        for other in operation.after:
            if other not in seen:
                raise FormatError(f"{where}: 'after' names {other}, no operation earlier in the list")
        seen.add(operation.id)
        is_run = operation.kind == "run"
        if is_run != (operation.task is not None) or is_run != (operation.algorithm is not None):
            raise FormatError(f"{where}: a run has 'task' and 'algorithm', and nothing else has them")
        is_copy = operation.kind in ("offload", "prefetch", "move")
        if is_copy != (operation.block is not None):
            raise FormatError(f"{where}: offload, prefetch and move have 'block', and nothing else has it")
        if (operation.kind in GRADIENT_KINDS) != (operation.gradient is not None):
            raise FormatError(
                f"{where}: {', '.join(GRADIENT_KINDS)} have 'gradient', and nothing else has it"
            )
        if operation.kind in COLLECTIVE_KINDS and operation.gpu:
            raise FormatError(f"{where}: all GPUs do an {operation.kind} together; leave out 'gpu'")


def _require_residences(schedule: Schedule) -> None:
    """Check that each residence has one content, names existing operations, and has a place of its model."""
    ids = {operation.id for operation in schedule.operations}
    model = schedule.memory_model
    if (model == "paged") != (schedule.page_bytes is not None):
        raise FormatError("page_bytes: a paged schedule has it, and no other")
    if schedule.page_bytes is not None and (wrong := unmappable(schedule.page_bytes)):
        raise FormatError(f"page_bytes: {wrong}")
    for i, residence in enumerate(schedule.residences):
        where = f"residences[{i}]"
        if (residence.block is None) == (residence.workspace_of is None):
            raise FormatError(f"{where}: it has either 'block' or 'workspace_of'")
        named = [residence.workspace_of, residence.acquired_by, *residence.released_after]
        for other in named:
            if other is not None and other not in ids:
                raise FormatError(f"{where}: it names operation {other}, which does not exist")
        if (model == "contiguous") != (residence.offset is not None):
            raise FormatError(f"{where}: a contiguous schedule gives it an 'offset', and no other model does")
        if (model == "paged") != (residence.extents is not None):
            raise FormatError(f"{where}: a paged schedule gives it 'extents', and no other model does")


def _require_host_residences(schedule: Schedule) -> None:
    """Check that host residences come with their peak, name existing operations, and have offsets."""
    if (schedule.host_residences is msgspec.UNSET) != (schedule.host_peak_bytes is msgspec.UNSET):
        raise FormatError("host_residences and host_peak_bytes come together; give both or neither")
    ids = {operation.id for operation in schedule.operations}
    for i, residence in enumerate(schedule.host_copies):
        where = f"host_residences[{i}]"
        if (residence.block is None) == (residence.workspace_of is None):
            raise FormatError(f"{where}: it has either 'block' or 'workspace_of'")
        for other in (residence.workspace_of, residence.acquired_by, *residence.released_after):
            if other is not None and other not in ids:
                raise FormatError(f"{where}: it names operation {other}, which does not exist")
        if (schedule.memory_model == "divisible") != (residence.offset is None):
            raise FormatError(f"{where}: it has an 'offset', except in a divisible schedule")


def _require_carried(schedule: Schedule) -> None:
    """Check that carried blocks come in their order, each once, and each somewhere."""
    last = -1
    for i, state in enumerate(schedule.states):
        if state.block <= last:
            raise FormatError(f"carried[{i}]: block {state.block} follows {last}; name each once, in order")
        last = state.block
        if not (state.device or state.host):
            raise FormatError(f"carried[{i}]: the block is nowhere; set 'device', 'host' or both")
