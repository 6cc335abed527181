"""The parts of a program on several GPUs: its streams, its copies' buses, and each GPU's own program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace
from numpy.typing import NDArray

from ...instances.gpus.cluster import Cluster, Gradient
from ...instances.instance import Instance
from ..schedule import Operation, Schedule, Stream

Track = tuple[str, int]
"""A stream with its GPU; for ``cpu`` with its node, and for operations of all together with 0."""

Bus = tuple[int, str]
"""A node, and the direction of copies on its bus: ``d2h``, ``h2d``, or ``both``."""

OUT = ("offload", "send")
"""Kinds of copies to the host."""

BACK = ("prefetch", "return")
"""Kinds of copies from the host."""


def cluster_of(instance: Instance) -> Cluster:
    """Return the cluster of an instance that has one."""
    assert instance.cluster is not UNSET
    return instance.cluster


def one_gpu(instance: Instance) -> Instance:
    """Return the instance of a single GPU of the cluster, without gradients."""
    return replace(instance, cluster=UNSET)


def track_of(cluster: Cluster, operation: Operation) -> Track:
    """Return the track whose order an operation follows."""
    if operation.stream == "cpu":
        return "cpu", operation.gpu // cluster.node_gpus
    if operation.stream in ("network", "nvlink"):
        return operation.stream, 0
    return operation.stream, operation.gpu


def bus_of(instance: Instance, operation: Operation) -> Bus | None:
    """Return the bus of an operation's copy; None if it is no copy to or from the host."""
    if operation.kind not in (*OUT, *BACK):
        return None
    direction = "both" if instance.engines == "single" else "d2h" if operation.kind in OUT else "h2d"
    return operation.gpu // cluster_of(instance).node_gpus, direction


def bus_load(instance: Instance, operation: Operation) -> Fraction:
    """Return how many bytes a copy puts on its bus."""
    if operation.gradient is not None:
        size = gradient_of(instance, operation).bytes
    else:
        assert operation.block is not None
        size = instance.blocks[operation.block].bytes
    return cluster_of(instance).load(size, alone_ns(instance, operation))


def gradient_of(instance: Instance, operation: Operation) -> Gradient:
    """Return the gradient of an operation that passes one on."""
    assert operation.gradient is not None
    return cluster_of(instance).gradients[operation.gradient]


def alone_ns(instance: Instance, operation: Operation) -> int:
    """Return an operation's duration with the bus to itself; 0 for a copy that is not possible."""
    if operation.task is not None and operation.algorithm is not None:
        return instance.tasks[operation.task].algorithms[operation.algorithm].duration_ns
    if operation.block is not None:
        block = instance.blocks[operation.block]
        times = {"offload": block.offload_ns, "prefetch": block.prefetch_ns, "move": block.move_ns}
        return times[operation.kind] or 0
    cluster, gradient = cluster_of(instance), gradient_of(instance, operation)
    if operation.kind in ("send", "return"):
        return gradient.offload_ns if operation.kind == "send" else gradient.prefetch_ns
    of_kind: Mapping[str, Literal["accumulate_ns", "exchange_ns", "reduce_ns"]] = {
        "accumulate": "accumulate_ns",
        "exchange": "exchange_ns",
        "reduce": "reduce_ns",
    }
    duration: int = getattr(cluster, of_kind[operation.kind])(gradient)
    return duration


def part_of(schedule: Schedule, gpu: int, *streams: Stream) -> Schedule:
    """Return one GPU's operations of a schedule, and all of some streams, for display only."""
    return replace(
        schedule,
        operations=tuple(
            replace(operation, gpu=0, after=())
            for operation in schedule.operations
            if operation.gpu == gpu or operation.stream in streams
        ),
        residences=tuple(replace(stay, gpu=0) for stay in schedule.residences if stay.gpu == gpu),
    )


@dataclass(frozen=True, slots=True)
class Clocks:
    """What has ended on each track when an operation ends.

    Attributes
    ----------
    columns
        The column of each track.
    latest
        Per operation and track, the last position of the track that has ended then; -1 if there is none.
    """

    columns: Mapping[Track, int]
    latest: NDArray[np.int32]

    def at(self, p: int, track: Track) -> int:
        """Return the last position of a track that has ended when the operation at a position ends, or -1."""
        return int(self.latest[p, self.columns[track]])


def clocks(cluster: Cluster, operations: Sequence[Operation]) -> Clocks:
    """Return, per operation and track, the last position that has ended when the operation ends.

    On its own track, this is the operation itself. Operations of a track form a chain, so these few numbers
    answer every question of order, whatever the durations.
    """
    tracks = [track_of(cluster, operation) for operation in operations]
    columns = {track: column for column, track in enumerate(dict.fromkeys(tracks))}
    position = {operation.id: p for p, operation in enumerate(operations)}
    latest = np.full((len(operations), len(columns)), -1, dtype=np.int32)
    last: dict[Track, int] = {}
    for p, (operation, track) in enumerate(zip(operations, tracks, strict=True)):
        row = latest[p]
        for q in (*(position[i] for i in operation.after), *([last[track]] if track in last else ())):
            np.maximum(row, latest[q], out=row)
        row[columns[track]] = last[track] = p
    return Clocks(columns, latest)


def gpu_programs(instance: Instance, schedule: Schedule, known: Clocks) -> list[Schedule]:
    """Return each GPU's part of a program as a schedule of `one_gpu`, with the times of the whole program.

    An operation waits for all operations of the same GPU that the whole program lets end before it, including
    waits through other GPUs. `known` are the clocks of the whole program. Gradients are left out, as they are
    in resident memory.
    """
    tracks = [track_of(cluster_of(instance), operation) for operation in schedule.operations]
    programs = []
    for gpu in range(instance.gpus):
        operations = []
        latest: dict[int, int] = {}  # position on a track: id of the last operation kept at or before it
        recent: dict[Track, int] = {}
        for p, operation in enumerate(schedule.operations):
            if operation.gpu == gpu and operation.gradient is None:
                others = (known.at(p, track) for track in recent if track != tracks[p])
                after = tuple(sorted(latest[q] for q in others if q in latest))
                operations.append(replace(operation, gpu=0, after=after))
                recent[tracks[p]] = operation.id
            if tracks[p] in recent:
                latest[p] = recent[tracks[p]]
        residences = tuple(replace(stay, gpu=0) for stay in schedule.residences if stay.gpu == gpu)
        programs.append(
            replace(schedule, operations=tuple(operations), residences=residences, instance_sha256=None)
        )
    return programs
