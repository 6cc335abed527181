"""The profile: measured times, workspaces and copies of a network's tasks, in place of the cost model.

The classes mirror the profile file key by key (format ``pebbler/profile/1``, docs/profiles.md). Times are
whole nanoseconds and sizes whole bytes, as in an instance.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec

from .arguments import require_kind
from .devices.device import Direction
from .devices.kernels import Kernel
from .errors import FormatError, PebblerError
from .figures import Text, require_types
from .files import read_document, write_document
from .gpus.cluster import SECOND
from .instance import Algorithm, Natural, Positive, Slowdown
from .origin import Graph, LaunchTimes, MappingTimes


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where and when a profile was measured.

    Attributes
    ----------
    device
        Name of the GPU, or of the processor.
    memory_bytes
        Memory of it that programs can have.
    driver
        Version of the driver.
    libraries
        Versions of what the kernels come from, by name: cuDNN, PyCUDA, NumPy.
    date
        Day of the measurement, as 2026-11-20.
    """

    device: Text
    memory_bytes: Positive
    driver: Text
    libraries: dict[str, str]
    date: Text

    def __post_init__(self) -> None:
        require_types(self)


class CopyTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Times of the copies of a number of bytes.

    Attributes
    ----------
    bytes
        How many.
    offload_ns, prefetch_ns, move_ns
        To the host, to the device, and inside the device, each alone.
    offload_beside_prefetch_ns, prefetch_beside_offload_ns
        To the host and to the device while the other direction is busy all the time; None: unknown.
    """

    bytes: Positive
    offload_ns: Natural
    prefetch_ns: Natural
    move_ns: Natural
    offload_beside_prefetch_ns: Natural | None = None
    prefetch_beside_offload_ns: Natural | None = None


class TaskTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Algorithms of the task of a name at a sub-batch."""

    sub_batch: Positive
    name: Text
    algorithms: tuple[Algorithm, ...]

    def __post_init__(self) -> None:
        require_types(self)


class TaskKernels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kernels that a task launches with an algorithm, in the order in which they began."""

    sub_batch: Positive
    name: str
    algorithm: str
    kernels: tuple[Kernel, ...]


class IterationEnergy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Energy of an iteration without a budget, in millijoules, on average.

    `algorithms` is the number of the algorithm that every task has, from 1; tasks with fewer have their last.
    """

    sub_batch: Positive
    algorithms: Positive
    energy_mj: Natural


class TrainingStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a training step of torch was measured with beside its function.

    Attributes
    ----------
    clip
        Norm to which gradients were clipped before the optimizer's step; None: they were not, or the step
        itself did.
    """

    clip: float | None


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False, dict=True):
    """Measurements of a network on a machine.

    Attributes
    ----------
    network
        Specification of the network.
    graph
        Which graph's tasks were measured.
    machine
        Where and when.
    copies
        At least one size; sizes rise.
    tasks
        Every task of every measured sub-batch, once.
    mapping
        What mapping pages costs; None: unknown, or the machine maps none.
    launches
        What launches cost; None: unknown.
    slowdown_ppm
        What copies take of the speed of the longest convolution or product; None: unknown.
    host_bandwidth
        Bytes a second that a step of Adam on the host reads and writes; None: unknown.
    training_step
        Where the tasks are the operators of a whole training step of torch; then `network` is what the step
        is called, and a sub-batch is a batch size.
    kernels, energy
        What the device's own counters say; empty where nothing counts.
    meta
        Free: repetitions, clocks, spread.

    Raises
    ------
    FormatError
        When a rule of the format is broken.
    """

    format: Literal["pebbler/profile/1"] = "pebbler/profile/1"
    network: Text
    graph: Graph
    machine: Machine
    copies: tuple[CopyTimes, ...]
    tasks: tuple[TaskTimes, ...]
    mapping: MappingTimes | None = None
    launches: LaunchTimes | None = None
    slowdown_ppm: Slowdown | None = None
    host_bandwidth: Positive | None = None
    kernels: tuple[TaskKernels, ...] = ()
    energy: tuple[IterationEnergy, ...] = ()
    training_step: TrainingStep | msgspec.UnsetType = msgspec.UNSET
    meta: dict[str, Any] = {}

    def __post_init__(self) -> None:
        require_types(self)
        if not self.copies:
            raise FormatError("copies: there is none; a profile has the times of at least one size")
        for index, (less, more) in enumerate(pairwise(self.copies), start=1):
            if less.bytes >= more.bytes:
                raise FormatError(
                    f"copies[{index}]: {more.bytes} bytes do not come after {less.bytes}; sort them"
                )
        seen = set()
        for index, task in enumerate(self.tasks):
            where = f"tasks[{index}] ('{task.name}', sub-batch {task.sub_batch})"
            own = [(one.inputs, one.outputs, one.takes_over) for one in task.algorithms]
            if any(keys != (msgspec.UNSET, msgspec.UNSET, ()) for keys in own):
                raise FormatError(
                    f"{where}: what a task reads and makes is its network's, and not measured; leave out "
                    "'inputs', 'outputs' and 'takes_over'"
                )
            if not task.algorithms:
                raise FormatError(f"{where}: it has no algorithm; give it at least one")
            if (task.sub_batch, task.name) in seen:
                raise FormatError(f"{where}: it is listed twice; give every task one entry a sub-batch")
            seen.add((task.sub_batch, task.name))

    @cached_property
    def algorithms(self) -> dict[int, dict[str, tuple[Algorithm, ...]]]:
        """Per measured sub-batch, the algorithms of the tasks by name."""
        found: dict[int, dict[str, tuple[Algorithm, ...]]] = {}
        for task in self.tasks:
            found.setdefault(task.sub_batch, {})[task.name] = task.algorithms
        return found

    @property
    def both_bandwidth(self) -> int | None:
        """Bytes a second that the largest copies in both directions at once reach together; None: unknown."""
        largest = self.copies[-1]
        times = (largest.offload_beside_prefetch_ns, largest.prefetch_beside_offload_ns)
        if not all(times):
            return None
        return sum(largest.bytes * SECOND // time for time in times if time)

    def task_algorithms(self, sub_batch: int, name: str) -> tuple[Algorithm, ...]:
        """Return what was measured for a task.

        Raises
        ------
        PebblerError
            When the sub-batch or the task was not measured.
        """
        if sub_batch not in self.algorithms:
            raise PebblerError(
                f"the profile of {self.network} on {self.machine.device} has no sub-batch {sub_batch}; "
                f"it has {', '.join(map(str, sorted(self.algorithms)))}"
            )
        if name not in self.algorithms[sub_batch]:
            raise PebblerError(
                f"the profile of {self.network} on {self.machine.device} has no task '{name}' at sub-batch "
                f"{sub_batch}; measure it again"
            )
        return self.algorithms[sub_batch][name]

    def copy_ns(self, bytes: int, direction: Direction) -> int:  # noqa: A002
        """Time of a copy between device and host: on the line between the measured sizes, to the nearest ns.

        Below the smallest size it is that one's time; beyond the largest it grows with the bytes.
        """
        return self._interpolated(bytes, f"{direction}_ns")

    def move_ns(self, bytes: int) -> int:  # noqa: A002
        """Time of a copy inside the device, by the same rule."""
        return self._interpolated(bytes, "move_ns")

    def _interpolated(self, bytes: int, key: str) -> int:  # noqa: A002
        first, last = self.copies[0], self.copies[-1]
        if bytes <= first.bytes:
            return int(getattr(first, key))
        if bytes >= last.bytes:
            return _nearest(getattr(last, key) * bytes, last.bytes)
        less, more = next(pair for pair in pairwise(self.copies) if bytes <= pair[1].bytes)
        begin, end = getattr(less, key), getattr(more, key)
        return int(begin) + _nearest((end - begin) * (bytes - less.bytes), more.bytes - less.bytes)


def read_profile(path: str | Path) -> Profile:
    """Read a profile file.

    Raises
    ------
    PebblerError
        When the file cannot be read or breaks a rule of the format; the sentence names the place.
    """
    return read_document(path, Profile, "a profile")


def write_profile(profile: Profile, path: str | Path) -> str:
    """Write a profile file and return the SHA-256 of its bytes."""
    require_kind("profile", profile, Profile, "give what read_profile returns")
    return write_document(profile, path)


def _nearest(numerator: int, denominator: int) -> int:
    """Divide and round to the nearest integer, halves up."""
    return (2 * numerator + denominator) // (2 * denominator)
