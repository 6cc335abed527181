"""The profiler: a network's tasks with all algorithms, copies, and mappings of pages, measured on a device.

Tasks are measured where they will run: in the network's order, on its data, each between two others. The
whole iteration is executed without a budget, with the first algorithm of every task, then with the second,
and so on. A task's time is what it adds to its stream, from the end of the task before to its own end. Of
several times the least counts: whatever else the machine does only adds.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from ...instances.errors import PebblerError
from ...instances.instance import Algorithm, Instance
from ...instances.origin import LaunchTimes, MappingTimes
from ...instances.profile import (
    CopyTimes,
    IterationEnergy,
    Machine,
    Profile,
    TaskKernels,
    TaskTimes,
)
from ...instances.units import PAGE_BYTES
from ...instances.workload import Workload
from ..schedule import Operation, Schedule
from .cuda import CudaBackend
from .cuda_kernels import graph_gap_ns, kernels_of_tasks
from .data import initial
from .device import Backend, DeviceError, Event, Stream
from .executor import Executor
from .kernel import Kernel
from .plan import plan
from .rebuild import rebuild
from .unlimited import unlimited

SMALLEST_COPY = 4096
"""Bytes of the smallest copy that is measured; sizes rise by a factor of 4 to that of the largest block."""

_STRUCTURE = "K40"
"""Device of the cost model that instances are made with before their algorithms are replaced."""

_MAPPED = 16
"""Pages of the larger of the two mappings that are measured."""

_log = logging.getLogger(__name__)


def profile(
    network: str,
    batch: int,
    backend: Callable[[], Backend],
    *,
    sub_batches: Sequence[int] = (),
    repeat: int = 5,
    seed: int = 0,
) -> Profile:
    """Measure a network on a device.

    ``meta`` has what does not fit the profile's rules: algorithms that could not be measured and why, those
    whose bits vary, how far times spread, and what copies and kernels cost beside each other.

    Parameters
    ----------
    network, batch
        Specification and images of an iteration.
    backend
        Opens the device.
    sub_batches
        Images of a round, each measured; by default the batch alone.
    repeat
        Executions of which the least time counts; one more comes first and does not.
    seed
        Of weights, images and labels.

    Raises
    ------
    PebblerError
        When there is no such network or sub-batch, or the device has no room or no code for a task.
    """
    sizes = sorted(set(sub_batches or (batch,)))
    if repeat < 1:
        raise PebblerError(f"{repeat} executions are too few; give 1 or more")
    if not 1 <= sizes[0] <= sizes[-1] <= batch:
        wrong = sizes[0] if sizes[0] < 1 else sizes[-1]
        raise PebblerError(f"a sub-batch of {wrong} is not within 1 and the batch of {batch}")
    tasks: list[TaskTimes] = []
    statuses: list[dict[str, Any]] = []
    varying: list[dict[str, Any]] = []
    spread: list[float] = []
    kernels: list[TaskKernels] = []
    energy: list[IterationEnergy] = []
    instances = [Workload(network, size, _STRUCTURE).round(size, 1) for size in sizes]
    for instance in instances:
        measured = _SubBatch(instance, backend, repeat, seed)
        tasks += measured.tasks()
        statuses += measured.statuses
        varying += measured.varying
        spread += measured.spread
        energy += measured.energy
        kernels += measured.kernels()
    device = backend()
    try:
        largest = max(block.bytes for instance in instances for block in instance.blocks)
        copies, beside = _copies(device, largest, repeat)
        mapping = _mapping(device, repeat)
        launches = _launches(device)
        versions = device.versions()
        machine = Machine(
            device=device.device,
            memory_bytes=device.memory_bytes(),
            driver=versions.pop("driver"),
            libraries=versions,
            date=datetime.now(UTC).date().isoformat(),
        )
    finally:
        device.close()
    return Profile(
        network=network,
        graph="executable",
        machine=machine,
        copies=copies,
        tasks=tuple(tasks),
        mapping=mapping,
        launches=launches,
        kernels=tuple(kernels),
        energy=tuple(energy),
        meta={
            "backend": device.name,
            "executions": repeat,
            "not_measured": statuses,
            "not_deterministic": varying,
            "median_spread": round(statistics.median(spread), 4),
            "beside_compute": beside,
        },
    )


class _SubBatch:
    """The tasks of one sub-batch.

    Attributes
    ----------
    statuses
        Algorithms that were not measured, and why.
    varying
        Algorithms of which the device does not promise the same bits each time.
    spread
        Per algorithm, the middle half of its times as a share of the median.
    energy
        Of the executions, where the device counts it.
    """

    def __init__(self, instance: Instance, backend: Callable[[], Backend], repeat: int, seed: int) -> None:
        self._backend = backend
        self._repeat = repeat
        self.statuses: list[dict[str, Any]] = []
        self.varying: list[dict[str, Any]] = []
        self.spread: list[float] = []
        self.energy: list[IterationEnergy] = []
        self._rebuilt = rebuild(instance)
        self._data = initial(self._rebuilt.graph.network, self._rebuilt.batch, seed)
        self._instance = self._with_algorithms(instance)

    def tasks(self) -> list[TaskTimes]:
        """Measure all algorithms of all tasks."""
        instance = self._instance
        found: list[dict[int, int]] = [{} for _ in instance.tasks]
        for column in range(max(len(task.algorithms) for task in instance.tasks)):
            chosen = [min(column, len(task.algorithms) - 1) for task in instance.tasks]
            _log.info("%s: algorithms number %d", instance.name, column + 1)
            for k, times in enumerate(self._times(chosen, column + 1)):
                if chosen[k] == column:
                    found[k][column] = max(1, min(times))
                    self.spread.append(_middle_half(times))
        return [
            TaskTimes(
                sub_batch=self._rebuilt.graph.batch,
                name=task.name,
                algorithms=tuple(
                    msgspec.structs.replace(task.algorithms[a], duration_ns=ns)
                    for a, ns in sorted(found[k].items())
                ),
            )
            for k, task in enumerate(instance.tasks)
        ]

    def _with_algorithms(self, instance: Instance) -> Instance:
        """Return the instance with every algorithm that the device prepares, by rising workspace."""
        device = self._backend()
        try:
            most = device.memory_bytes() // 4
            tasks = []
            for k, task in enumerate(instance.tasks):
                usable = []
                for name, size in sorted(device.algorithms(self._rebuilt.kernels[k]), key=lambda one: one[1]):
                    kernel = replace(self._rebuilt.kernels[k], algorithm=name, workspace_bytes=size)
                    what = {"sub_batch": self._rebuilt.graph.batch, "task": task.name, "algorithm": name}
                    if (reason := _refused(device, kernel, most)) is not None:
                        self.statuses.append(what | {"workspace_bytes": size, "status": reason})
                        continue
                    usable.append(Algorithm(name=name, duration_ns=0, workspace_bytes=size))
                    if not device.is_deterministic(kernel):
                        self.varying.append(what)
                if not usable:
                    raise PebblerError(f"task '{task.name}': the device has no algorithm for it")
                tasks.append(msgspec.structs.replace(task, algorithms=tuple(usable)))
        finally:
            device.close()
        return msgspec.structs.replace(instance, tasks=tuple(tasks))

    def kernels(self) -> list[TaskKernels]:
        """Have the device record the kernels of all algorithms of all tasks; none where it cannot."""
        device = self._backend()
        algorithms = {
            task.name: [(one.name, one.workspace_bytes) for one in task.algorithms]
            for task in self._instance.tasks
        }
        try:
            if device.record_kernels(lambda: None) is None:
                return []
            _log.info("%s: kernels", self._instance.name)
            sub_batch = self._rebuilt.graph.batch
            found = kernels_of_tasks(device, self._rebuilt.graph, algorithms)
            return [msgspec.convert({"sub_batch": sub_batch} | one, TaskKernels) for one in found]
        finally:
            device.close()

    def _times(self, chosen: Sequence[int], number: int) -> list[list[int]]:
        """Execute the iteration with these algorithms, the n-th; return the times of each task."""
        operations = tuple(
            Operation(id=k, stream="compute", kind="run", task=k, algorithm=a, start_ns=0, end_ns=0)
            for k, a in enumerate(chosen)
        )
        program = Schedule(
            format="pebbler/schedule/1",
            instance=self._instance.name,
            method="profile",
            memory_model="contiguous",
            operations=operations,
            residences=(),
            makespan_ns=0,
            peak_bytes=0,
        )
        settled = plan(*unlimited(self._instance, program), self._rebuilt)
        times: list[list[int]] = [[] for _ in chosen]
        with Executor(self._backend(), settled, 1) as executor:
            executor.load(self._data)
            executor.run()
            taken = executor.backend.energy_j()
            for _ in range(self._repeat):
                before = 0
                for k, timed in enumerate(executor.run().rounds[0]):
                    times[k].append(timed.end_ns - before)
                    before = timed.end_ns
            after = executor.backend.energy_j()
        if taken is not None and after is not None:
            energy_mj = round((after - taken) * 1000 / self._repeat)
            sub_batch = self._rebuilt.graph.batch
            self.energy.append(IterationEnergy(sub_batch=sub_batch, algorithms=number, energy_mj=energy_mj))
        return times


def _refused(device: Backend, kernel: Kernel, most: int) -> str | None:
    """Say why a task cannot be measured with its algorithm; None when it can."""
    if kernel.workspace_bytes > most:
        return f"its workspace is more than a quarter of the memory, {most} bytes"
    try:
        device.prepare(kernel)
    except PebblerError as error:
        return str(error)
    return None


def _middle_half(times: Sequence[int]) -> float:
    if len(times) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / max(middle, 1)


# --- copies -------------------------------------------------------------------------------------------


def _copies(device: Backend, largest: int, repeat: int) -> tuple[tuple[CopyTimes, ...], dict[str, int]]:
    """Measure copies alone; and the largest of them beside a stream of moves inside the device."""
    sizes = [SMALLEST_COPY]
    while sizes[-1] < largest:
        sizes.append(min(4 * sizes[-1], largest))
    place, other = device.allocate(sizes[-1]), device.allocate(sizes[-1])
    host = device.allocate_host(sizes[-1])
    ends = {"offload_ns": (host, place), "prefetch_ns": (place, host), "move_ns": (other, place)}
    streams = {
        name: device.stream(stream) for name, stream in zip(ends, ("d2h", "h2d", "compute"), strict=True)
    }
    found = []
    for size in sizes:
        times = {name: _copy_time(streams[name], *pair, size, repeat) for name, pair in ends.items()}
        found.append(CopyTimes(bytes=size, **times))
    beside = {"bytes": sizes[-1]}
    for name in ("offload_ns", "prefetch_ns"):
        beside[f"{name}_alone"] = getattr(found[-1], name)
        busy: list[tuple[Event, Event]] = []
        for _ in range(4 * repeat):
            start = streams["move_ns"].record()
            streams["move_ns"].copy(*ends["move_ns"], sizes[-1])
            busy.append((start, streams["move_ns"].record()))
        beside[name] = _copy_time(streams[name], *ends[name], sizes[-1], repeat)
        busy[-1][1].synchronize()
        beside[f"move_ns_beside_{name}"] = min(end.time_ns() - start.time_ns() for start, end in busy)
    return tuple(found), beside


def _copy_time(stream: Stream, target: int, source: int, size: int, repeat: int) -> int:
    events = []
    for _ in range(repeat + 1):
        start = stream.record()
        stream.copy(target, source, size)
        events.append((start, stream.record()))
    events[-1][1].synchronize()
    times = [end.time_ns() - start.time_ns() for start, end in events[1:]]
    return max(1, min(times))


# --- mappings -----------------------------------------------------------------------------------------


def _mapping(device: Backend, repeat: int) -> MappingTimes | None:
    """Measure the host's time to map one page and many, each time others than before."""
    try:
        device.allocate_pages(2 * _MAPPED, PAGE_BYTES)
        address = device.reserve(_MAPPED * PAGE_BYTES)
    except DeviceError as error:
        _log.warning("the cost of mapping pages stays unknown: %s", error)
        return None
    least = {}
    for count in (1, _MAPPED):
        times = []
        for index in range(2 * (repeat + _MAPPED)):  # the first two use the pages for the first time
            begin = time.perf_counter_ns()
            device.map(address, range(index % 2 * _MAPPED, index % 2 * _MAPPED + count))
            times.append(time.perf_counter_ns() - begin)
        least[count] = min(times[2:])
    page_ns = max(0, least[_MAPPED] - least[1]) // (_MAPPED - 1)
    return MappingTimes(call_ns=max(0, least[1] - page_ns), page_ns=page_ns)


# --- launches -----------------------------------------------------------------------------------------


def _launches(device: Backend) -> LaunchTimes | None:
    """Measure what launching small kernels costs on CUDA."""
    if not isinstance(device, CudaBackend):
        return None
    try:
        return LaunchTimes(graph_gap_ns=graph_gap_ns(device))
    except PebblerError as error:
        _log.warning("the gaps between kernels in graphs stay unknown: %s", error)
        return None
