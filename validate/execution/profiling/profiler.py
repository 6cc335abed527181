"""The profiler: a network's tasks with all algorithms, copies, and mappings of pages, measured on a device.

Tasks are measured as they will run: in the network's order, on its data, each between two others. The
whole iteration is executed without a budget, with the first algorithm of every task, then with the second,
and so on. All of this is repeated, so that changes over time, such as those of clocks, affect all times
alike. A task's time is the time that it adds to its stream, from the end of the task before to its own end.
The median of several times counts, as it does for executions of a schedule (`trial`).

All these iterations use the same memory, with room for the largest workspaces. Before an algorithm is part of
an iteration, it is launched alone, because libraries refuse some algorithms only at a launch.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from ....instances.errors import PebblerError
from ....instances.instance import Algorithm, Instance
from ....instances.profile import (
    IterationEnergy,
    Machine,
    Profile,
    TaskKernels,
    TaskTimes,
)
from ....instances.workload import Workload
from ..cuda.recorded import kernels_of_tasks
from ..data import initial
from ..device import Backend, DeviceError, require_kernels
from ..executor import Executor, Program
from ..kernel import Kernel
from ..plan import Plan, plan
from ..rebuild import rebuild
from ..unlimited import in_order, unlimited
from .copies import Copies, longest_kernel, slowdown_of
from .host_costs import host_bandwidth, launch_times, mapping_times

_STRUCTURE = "K40"
"""Device of the cost model for instances whose algorithms are then replaced by measured ones."""

MOST_COPIES = 20
"""Greatest number of times that each copy, launch and mapping is measured: large ones take long and vary
little.
"""

_log = logging.getLogger(__name__)


def profile(
    network: str,
    batch: int,
    backend: Callable[[], Backend],
    *,
    sub_batches: Sequence[int] = (),
    repeat: int = 5,
    seed: int = 0,
    keep: Callable[[Profile], None] | None = None,
) -> Profile:
    """Measure a network on a device.

    The profile's ``meta`` has further results: algorithms that could not be measured and why, those
    whose bits vary, how far times spread, what copies and kernels cost beside each other, why no kernels were
    recorded, and whether the profile is complete.

    Parameters
    ----------
    network, batch
        Specification of the network, and number of images of an iteration.
    backend
        Function that opens the device.
    sub_batches
        Numbers of images of a round, each of which is measured; by default the batch alone.
    repeat
        Number of executions whose median counts, after a first one that does not count. Copies, launches and
        mappings are measured as often, but at most 20 times.
    seed
        Seed of weights, images and labels.
    keep
        Function that is given the profile so far, as soon as every task of a sub-batch has a time, and after
        each further algorithm and each repetition. Such a profile can be used; ``complete`` in its ``meta``
        is False. The last two profiles are complete: one without the recorded kernels, and the one that is
        returned.

    Raises
    ------
    PebblerError
        When there is no such network or sub-batch, or the device has no room or no code for a task.
    DeviceError
        When the device fails and does no further work.
    """
    sizes = sorted(set(sub_batches or (batch,)))
    if repeat < 1:
        raise PebblerError(f"{repeat} executions are too few; give 1 or more")
    if not 1 <= sizes[0] <= sizes[-1] <= batch:
        wrong = sizes[0] if sizes[0] < 1 else sizes[-1]
        raise PebblerError(f"a sub-batch of {wrong} is not within 1 and the batch of {batch}")
    instances = [Workload(network, size, _STRUCTURE).round(size, 1) for size in sizes]
    measured: list[_SubBatch] = []
    whole = _machine(network, instances, backend, min(repeat, MOST_COPIES))

    def keep_so_far() -> None:
        so_far = _with_tasks(whole, measured)
        if keep is not None and so_far.tasks:
            keep(so_far)

    for instance in instances:
        measured.append(_SubBatch(instance, backend, repeat, seed))
        measured[-1].measure(keep_so_far)
    done = _with_tasks(whole, measured)
    done = msgspec.structs.replace(done, meta=done.meta | {"complete": True})
    if keep is not None:
        keep(done)  # what records kernels may take the process with it
    kernels, reason = _kernels(measured)
    meta = done.meta if reason is None else done.meta | {"kernels_not_recorded": reason}
    done = msgspec.structs.replace(done, kernels=kernels, meta=meta)
    if keep is not None:
        keep(done)
    return done


def _machine(
    network: str, instances: Sequence[Instance], backend: Callable[[], Backend], repeat: int
) -> Profile:
    """Return a profile without tasks, with the measurements of the machine."""
    on_host = host_bandwidth(repeat)
    device = backend()
    try:
        rebuilt = rebuild(instances[-1])
        require_kernels(device, rebuilt.kernels)
        largest = max(block.bytes for instance in instances for block in instance.blocks)
        _log.info("%s: copies of up to %d bytes", network, largest)
        copies = Copies(device, largest)
        times = tuple(copies.times(repeat))
        kernel = longest_kernel(device, copies.compute, instances[-1], rebuilt)
        beside = None if kernel is None else copies.beside(kernel, repeat)
        launches, mapping = launch_times(device, repeat), mapping_times(device, repeat)
        machine = machine_of(device)
    finally:
        device.close()
    return Profile(
        network=network,
        graph="executable",
        machine=machine,
        copies=times,
        tasks=(),
        mapping=mapping,
        launches=launches,
        slowdown_ppm=None if beside is None else slowdown_of(beside["kernel_ns"]),
        host_bandwidth=on_host,
        meta={"backend": device.name, "beside_compute": beside},
    )


def machine_of(device: Backend) -> Machine:
    """Say where and when something is measured."""
    versions = device.versions()
    return Machine(
        device=device.device,
        memory_bytes=device.memory_bytes(),
        driver=versions.pop("driver"),
        libraries=versions,
        date=datetime.now(UTC).date().isoformat(),
    )


def _with_tasks(whole: Profile, measured: Sequence[_SubBatch]) -> Profile:
    """Return the profile with the measurements of tasks so far."""
    tasks = [task for one in measured for task in one.tasks()]
    spread = [middle_half(times) for one in measured for times in one.times()]
    return msgspec.structs.replace(
        whole,
        tasks=tuple(tasks),
        energy=tuple(energy for one in measured for energy in one.energy()),
        meta=whole.meta
        | {
            "complete": False,
            "executions": min((len(times) for one in measured for times in one.times()), default=0),
            "not_measured": [status for one in measured for status in one.statuses],
            "not_deterministic": [what for one in measured for what in one.varying],
            "median_spread": round(statistics.median(spread), 4) if spread else None,
        },
    )


def _kernels(measured: Sequence[_SubBatch]) -> tuple[tuple[TaskKernels, ...], str | None]:
    """Record the kernels of all tasks; return why this failed, if the device has kernels."""
    try:
        found = tuple(kernels for one in measured for kernels in one.kernels())
    except (PebblerError, msgspec.ValidationError) as error:
        reason = str(error)
    else:
        if not found or any(one.kernels for one in found):
            return found, None
        reason = "the device has reported no kernel of any task"
    _log.warning("no kernel configurations: %s", reason)
    return (), reason


@dataclass(slots=True)
class _Column:
    """An iteration in which every task has its n-th algorithm, or its last.

    Attributes
    ----------
    program
        The program of the iteration.
    new
        Tasks whose algorithm is in no earlier column.
    energy_j
        Energy of each execution in joules, if the device counts it.
    """

    program: Program
    new: list[int]
    energy_j: list[float] = field(default_factory=list)


class _SubBatch:
    """The measurements of the tasks of one sub-batch.

    Attributes
    ----------
    statuses
        Algorithms that were not measured, and why.
    varying
        Algorithms of which the device does not promise the same bits each time.
    """

    def __init__(self, instance: Instance, backend: Callable[[], Backend], repeat: int, seed: int) -> None:
        self._instance = instance
        self._backend = backend
        self._repeat = repeat
        self._rebuilt = rebuild(instance)
        self._data = initial(self._rebuilt.graph.network, self._rebuilt.batch, seed)
        self._size = self._rebuilt.graph.batch
        self._columns: list[_Column] = []
        self._usable: list[list[Algorithm]] = [[] for _ in instance.tasks]
        self._times: list[list[list[int]]] = [[] for _ in instance.tasks]
        self.statuses: list[dict[str, Any]] = []
        self.varying: list[dict[str, Any]] = []

    # --- results ----------------------------------------------------------------------------------

    def tasks(self) -> Iterator[TaskTimes]:
        """Return the measurements of every task; nothing before each task has a time."""
        if not all(self._times):
            return
        for task, usable, found in zip(self._instance.tasks, self._usable, self._times, strict=True):
            algorithms = tuple(
                msgspec.structs.replace(algorithm, duration_ns=max(1, statistics.median_low(times)))
                for algorithm, times in zip(usable, found, strict=False)  # the last may have no time yet
            )
            yield TaskTimes(sub_batch=self._size, name=task.name, algorithms=algorithms)

    def times(self) -> Iterator[list[int]]:
        """Return the times of every algorithm of every task."""
        for found in self._times:
            yield from found

    def energy(self) -> Iterator[IterationEnergy]:
        """Return the energy of an iteration with each of the algorithms, if the device counts it."""
        for number, column in enumerate(self._columns, start=1):
            if column.energy_j:
                energy_mj = round(1000 * statistics.fmean(column.energy_j))
                yield IterationEnergy(sub_batch=self._size, algorithms=number, energy_mj=energy_mj)

    # --- measuring --------------------------------------------------------------------------------

    def measure(self, kept: Callable[[], object]) -> None:
        """Measure all algorithms of all tasks, and report whenever there is more to store.

        Raises
        ------
        DeviceError
            When the device does no further work.
        """
        device = self._backend()
        try:
            candidates = [self._prepared(device, k) for k in range(len(self._usable))]
            largest = [max(found, key=lambda one: one.workspace_bytes) for found in candidates]
            roomy = self._plan(largest)
        except BaseException:
            device.close()
            raise
        with Executor(device, roomy, 1) as executor:
            executor.load(self._data)
            while new := self._advance(executor, candidates, kept):
                program = executor.bind(self._plan([usable[-1] for usable in self._usable]))
                executor.run(program)  # once for what is loaded and chosen at first
                self._columns.append(_Column(program, new))
                _log.info("%s: algorithms number %d", self._instance.name, len(self._columns))
                self._execute(executor, len(self._columns) - 1)
                kept()
            for index in range(1, self._repeat):
                _log.info("%s: execution %d of %d", self._instance.name, index + 1, self._repeat)
                for number in range(len(self._columns)):
                    self._execute(executor, number)
                kept()

    def _prepared(self, device: Backend, k: int) -> list[Algorithm]:
        """Return the algorithms of a task that the device prepares, by rising workspace."""
        most = device.memory_bytes() // 4
        found = []
        for name, size in sorted(device.algorithms(self._rebuilt.kernels[k]), key=lambda one: one[1]):
            algorithm = Algorithm(name=name, duration_ns=0, workspace_bytes=size)
            if size > most:
                self._refuse(
                    k, algorithm, f"its workspace is more than a quarter of the memory, {most} bytes"
                )
                continue
            try:
                device.prepare(self._kernel(k, algorithm))
            except PebblerError as error:
                self._refuse(k, algorithm, str(error))
            else:
                found.append(algorithm)
        if not found:
            raise PebblerError(f"task '{self._instance.tasks[k].name}': the device has no algorithm for it")
        return found

    def _advance(
        self, executor: Executor, candidates: Sequence[list[Algorithm]], kept: Callable[[], object]
    ) -> list[int]:
        """Give each task its next candidate that the device launches; return the tasks that got one."""
        new = []
        for k, left in enumerate(candidates):
            while left and k not in new:
                algorithm = left.pop(0)
                try:
                    refused = executor.attempt(k, self._kernel(k, algorithm))
                except DeviceError as error:
                    self._refuse(k, algorithm, str(error))
                    kept()
                    name = self._instance.tasks[k].name
                    raise DeviceError(f"task '{name}', algorithm '{algorithm.name}': {error}") from None
                if refused is None:
                    self._usable[k].append(algorithm)
                    new.append(k)
                else:
                    self._refuse(k, algorithm, str(refused))
            if not self._usable[k]:
                name, reason = self._instance.tasks[k].name, self.statuses[-1]["status"]
                raise PebblerError(f"task '{name}': the device launches no algorithm of it: {reason}")
        return new

    def _execute(self, executor: Executor, number: int) -> None:
        """Execute a column, and store its times and energy."""
        column = self._columns[number]
        taken = executor.backend.energy_j()
        timed = executor.run(column.program).rounds[0]
        after = executor.backend.energy_j()
        if taken is not None and after is not None:
            column.energy_j.append(after - taken)
        before = 0
        for k, one in enumerate(timed):
            if k in column.new:
                if len(self._times[k]) == number:
                    self._times[k].append([])
                    self._note_bits(executor.backend, k)
                self._times[k][number].append(one.end_ns - before)
            before = one.end_ns

    def _note_bits(self, device: Backend, k: int) -> None:
        algorithm = self._usable[k][-1]
        if not device.is_deterministic(self._kernel(k, algorithm)):
            self.varying.append(self._named(k, algorithm))

    def _refuse(self, k: int, algorithm: Algorithm, reason: str) -> None:
        size = algorithm.workspace_bytes
        self.statuses.append(self._named(k, algorithm) | {"workspace_bytes": size, "status": reason})

    def _named(self, k: int, algorithm: Algorithm) -> dict[str, Any]:
        return {"sub_batch": self._size, "task": self._instance.tasks[k].name, "algorithm": algorithm.name}

    def _kernel(self, k: int, algorithm: Algorithm) -> Kernel:
        size = algorithm.workspace_bytes
        return replace(self._rebuilt.kernels[k], algorithm=algorithm.name, workspace_bytes=size)

    def _plan(self, algorithms: Sequence[Algorithm]) -> Plan:
        """Return the plan of an iteration without a budget, with one algorithm for each task."""
        tasks = tuple(
            msgspec.structs.replace(task, algorithms=(algorithm,))
            for task, algorithm in zip(self._instance.tasks, algorithms, strict=True)
        )
        instance = msgspec.structs.replace(self._instance, tasks=tasks)
        return plan(*unlimited(instance, in_order(instance)), self._rebuilt)

    # --- kernels ----------------------------------------------------------------------------------

    def kernels(self) -> Iterator[TaskKernels]:
        """Record the kernels of all algorithms of all tasks; return none if the device has none."""
        device = self._backend()
        try:
            if device.record_kernels(lambda: None) is None:
                return
            _log.info("%s: kernels", self._instance.name)
            algorithms = {
                task.name: [(one.name, one.workspace_bytes) for one in usable]
                for task, usable in zip(self._instance.tasks, self._usable, strict=True)
            }
            for one in kernels_of_tasks(device, self._rebuilt.graph, algorithms):
                yield msgspec.convert({"sub_batch": self._size} | one, TaskKernels)
        finally:
            device.close()


def middle_half(times: Sequence[int]) -> float:
    """Return the width of the middle half of some times as a share of the median."""
    if len(times) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / max(middle, 1)
