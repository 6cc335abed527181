"""The executor: one host thread issues the operations of a plan in the order of the list.

For each operation, the executor waits, on the operation's stream, for exactly the events that the program
names. It records an event, issues the work, and records another event. The host itself waits only before it
maps pages. So the device decides which operations overlap, and in which order unordered operations run, as on
any machine that runs the schedule.

A round begins at an event that all streams wait for. The streams are held before this event while the host
issues the first operations, as if the host came from the round before. This time is not measured. In paged
memory, the host maps pages before it issues the first operations. This time is measured, so the streams are
not held.

An iteration of a steady state begins with the carried data that the one before has left. When a round has
ended, the host reads this data where the schedule has it then: on the device (in paged memory, in the pages
that the block has at the end) or on the host. It writes it where the schedule has it at the start of the next
round. In contiguous memory, that is the same place. In paged memory, the data goes to the pages of the start
instead of a renaming of all pages. This is not measured.

If the device has graphs, the same work can be captured once. A round is then one launch, before which the
stream is held, and has one time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...instances.errors import PebblerError
from .data import Data
from .device import Backend, DeviceError, Event, Graph, Launch, Stream, require_kernels
from .kernel import Kernel
from .plan import Load, Place, Plan, Step
from .streams import hold, works

_NUMBERS = np.float32
"""Type of all numbers."""

_ALL = "all pages"
"""Name of the area of all pages."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of an executed operation, in nanoseconds from the event at which the round begins.

    Attributes
    ----------
    start_ns, end_ns
        Times on its stream: after its waits, and at its end.
    host_ns
        Time of the host thread to issue it, without the two times below.
    mapping_ns, waiting_ns
        Time of the host thread to map pages, and to wait until it could map them.
    """

    start_ns: int
    end_ns: int
    host_ns: int
    mapping_ns: int
    waiting_ns: int


@dataclass(frozen=True, slots=True)
class Execution:
    """An iteration that was executed.

    Attributes
    ----------
    rounds
        Per round, the times of each operation in the order of the list; for a graph, the times of all
        together.
    losses
        The loss of each image that was run, summed over the network's losses.
    gradients
        Gradient of the mean loss for the weights of each layer, biases at the end; of a steady state, those
        that must reach the host.
    carried
        Of a steady state, the weights and what the optimizer keeps after the iteration, by name.
    nodes
        Number of nodes of each operation in the graph of a round; None without a graph.
    """

    rounds: tuple[tuple[Timed, ...], ...]
    losses: NDArray[np.float32]
    gradients: dict[str, NDArray[np.float32]]
    carried: dict[str, NDArray[np.float32]]
    nodes: tuple[int, ...] | None = None

    @property
    def measured_ns(self) -> int:
        """Time of all rounds in nanoseconds; loading images between rounds is not measured."""
        return sum(max((timed.end_ns for timed in timed), default=0) for timed in self.rounds)

    @property
    def loss(self) -> float:
        """Mean loss over these images."""
        return float(np.mean(self.losses, dtype=np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A plan, with the kernels that the device has prepared for it, and the addresses of the operands."""

    plan: Plan
    launches: list[Launch]
    addresses: list[dict[str, int]]


class Issuer:
    """A plan bound to a device, whose operations one host thread issues; a context manager.

    Nothing here knows what the plan computes.

    Parameters
    ----------
    backend
        The device; the issuer closes it.
    plan
        The plan to execute.
    poison
        Whether memory is filled with NaN at the start, and whenever it is released, so that stale reads
        become visible.
    omit
        Pairs of ids of an operation and an earlier one: the first does not wait for the second. So faults are
        forced that a device must show.
    late_ns
        Nanoseconds, less than a second, for which the stream of an operation pauses before it, by its id. So
        a certain operation of another stream overtakes it, if no wait prevents that. Memory that several
        operations release is then not filled.

    Raises
    ------
    DeviceError
        When the device has too little memory.
    PebblerError
        When the device has no code for a kernel.
    """

    def __init__(
        self,
        backend: Backend,
        plan: Plan,
        *,
        poison: bool = False,
        omit: Collection[tuple[int, int]] = (),
        late_ns: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.backend = backend
        self.plan = plan
        self.poison = poison
        self.omit = frozenset(omit)
        self.late_ns = late_ns
        self._bases: dict[str, int] = {}
        self._streams: dict[str, Stream] = {}
        try:
            self._prepare()
        except BaseException:
            backend.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self.backend.close()

    def address(self, place: Place) -> int:
        """Return the address of a place on the device or on the host."""
        return self._bases[place.area] + place.offset

    def bind(self, plan: Plan) -> Program:
        """Prepare another plan for this executor's memory; its areas must not be larger than the own plan's.

        Raises
        ------
        PebblerError
            When the device has no code for a kernel.
        """
        for step in plan.steps:
            if (name := step.operation.stream) not in self._streams:
                self._streams[name] = self.backend.stream(name)
        return Program(
            plan,
            [None if step.kernel is None else self.backend.prepare(step.kernel) for step in plan.steps],
            [{word: self.address(place) for word, place in step.operands.items()} for step in plan.steps],
        )

    def attempt(self, position: int, kernel: Kernel) -> DeviceError | None:
        """Run one operation of the plan alone, with another kernel; return why the device refuses it.

        The kernel's workspace is no larger than that of the plan's kernel.

        Raises
        ------
        DeviceError
            When the device does no further work after the operation.
        """
        launch = self.backend.prepare(kernel)
        stream = self._streams[self.plan.steps[position].operation.stream]
        try:
            stream.launch(launch, self._program.addresses[position], 0)
            stream.record().synchronize()
        except DeviceError as error:
            if works(stream):
                return error
            raise DeviceError(f"{error}; the device does nothing more after it") from None
        return None

    def clear(self, program: Program) -> None:
        """Make memory ready for a round: fill it with NaN where that is wanted, and map the first pages."""
        if self.poison:
            self._poison_pool()
            if "host" in self._streams:  # whose runs read and write there
                host = np.full(program.plan.areas["host"], 0xFF, dtype=np.uint8)
                self.backend.write(self._bases["host"], host)
        for mapped in program.plan.maps:
            self.backend.map(self.address(mapped.place), mapped.pages)

    def issue(self, program: Program, first: int, *, ahead: bool = True) -> tuple[Timed, ...]:
        """Execute a round's operations; what they read is in memory.

        Parameters
        ----------
        program
            The operations.
        first
            Index in the batch of the round's first image.
        ahead
            Whether streams are held while the host issues the first operations.

        Raises
        ------
        DeviceError
            When an operation fails; the message names the first one that failed, if it is known.
        """
        plan = program.plan
        events: list[tuple[Event, Event]] = []
        hosts = []
        origin = hold(list(self._streams.values()), _before_mapping(plan) if ahead else 0)
        try:
            for i in range(len(plan.steps)):
                begin = time.perf_counter_ns()
                mapping, waiting = self._map(plan.steps[i], events)
                events.append(self._issue(program, i, events, first))
                hosts.append((time.perf_counter_ns() - begin - mapping - waiting, mapping, waiting))
        except DeviceError:
            self._finish(plan, events)
            raise
        self._finish(plan, events)
        origin.synchronize()
        return tuple(
            Timed(start.since_ns(origin), end.since_ns(origin), *host)
            for (start, end), host in zip(events, hosts, strict=True)
        )

    # --- preparation ------------------------------------------------------------------------------

    def _prepare(self) -> None:
        plan, backend = self.plan, self.backend
        require_kernels(backend, (step.kernel for step in plan.steps if step.kernel is not None))
        if plan.pages:
            backend.allocate_pages(plan.pages, plan.page_bytes)
        for area, size in plan.areas.items():
            if area == "host":
                self._bases[area] = backend.allocate_host(size)
            elif area in ("pool", "resident"):
                self._bases[area] = backend.allocate(size)
            else:
                self._bases[area] = backend.reserve(size)
        self._program = self.bind(plan)

    # --- a round ----------------------------------------------------------------------------------

    def _finish(self, plan: Plan, events: list[tuple[Event, Event]]) -> None:
        """Wait for all issued work; a failure is that of the first operation of the list that has failed."""
        last = {step.operation.stream: end for step, (_, end) in zip(plan.steps, events, strict=False)}
        failed = False
        for end in last.values():  # which tell whether anything before them has failed
            try:
                end.synchronize()
            except DeviceError:
                failed = True
        if not failed:
            return
        for step, (_, end) in zip(plan.steps, events, strict=False):
            try:
                end.synchronize()
            except DeviceError as error:
                raise DeviceError(f"{step.name} (operation {step.operation.id}): {error}") from None

    def _issue(
        self, program: Program, i: int, events: list[tuple[Event, Event]], first: int
    ) -> tuple[Event, Event]:
        step = program.plan.steps[i]
        stream = self._streams[step.operation.stream]
        for p in step.waits:
            if (step.operation.id, program.plan.steps[p].operation.id) not in self.omit:
                stream.wait(events[p][1])
        if step.operation.id in self.late_ns:
            stream.pause(self.late_ns[step.operation.id])
        start = stream.record()
        if step.kernel is not None:
            stream.launch(program.launches[i], program.addresses[i], first)
        else:
            assert step.source is not None
            assert step.target is not None
            stream.copy(self.address(step.target), self.address(step.source), step.bytes)
        if self.poison:
            # A fill that waits for a late operation would hold a stream that the program does not hold.
            for item in (item for item in step.poisoned if not (self.late_ns and item.after)):
                for p in item.after:
                    stream.wait(events[p][1])
                stream.fill(self.address(item.place), item.bytes)
        return start, stream.record()

    def _map(self, step: Step, events: list[tuple[Event, Event]]) -> tuple[int, int]:
        """Map the pages of a step; return the time for mapping, and the time of waiting before."""
        mapping = waiting = 0
        for mapped in step.maps:
            begin = time.perf_counter_ns()
            for p in mapped.after:
                events[p][1].synchronize()
            between = time.perf_counter_ns()
            self.backend.map(self.address(mapped.place), mapped.pages)
            waiting += between - begin
            mapping += time.perf_counter_ns() - between
        return mapping, waiting

    def _poison_pool(self) -> None:
        plan = self.plan
        area, size = "pool", plan.areas.get("pool", 0)
        if plan.pages:
            area, size = _ALL, plan.pages * plan.page_bytes
            if area not in self._bases:
                self._bases[area] = self.backend.reserve(size)
            self.backend.map(self._bases[area], range(plan.pages))
        stream = next(iter(self._streams.values()))
        stream.fill(self._bases[area], size)
        stream.record().synchronize()


class Executor(Issuer):
    """A network's plan bound to a device, which can be executed any number of times; a context manager.

    Parameters
    ----------
    backend, plan, poison, omit
        See `Issuer`.
    rounds
        Number of rounds of an iteration.

    Raises
    ------
    DeviceError
        When the device has too little memory.
    PebblerError
        When the device has no code for a kernel.
    """

    def __init__(
        self,
        backend: Backend,
        plan: Plan,
        rounds: int,
        *,
        poison: bool = False,
        omit: Collection[tuple[int, int]] = (),
    ) -> None:
        self.rounds = rounds
        self._graphs: dict[tuple[Program, int, bool], Graph] = {}
        super().__init__(backend, plan, poison=poison, omit=omit)

    def load(self, data: Data) -> None:
        """Copy weights and labels to the device, and keep the images for the rounds.

        A steady state starts anew.

        Raises
        ------
        PebblerError
            When an array is missing or too small.
        """
        self._left: dict[str, NDArray[np.uint8]] = {}
        self._data = {
            name: np.ascontiguousarray(values).view(np.uint8).reshape(-1) for name, values in data.items()
        }
        for name, (place, size) in self.plan.outside.items():
            if name.startswith(("W(", "labels(")):
                self._require(name, size)
                self.backend.write(self.address(place), self._data[name])
        for load in self.plan.loads:
            size = load.begin + load.bytes
            if load.tensor.startswith("X("):
                size = size * self.plan.batch // self.plan.images
            self._require(load.tensor, size)

    def run(self, program: Program | None = None, *, graph: bool = False) -> Execution:
        """Execute an iteration; of a steady state, the one after that which was executed before.

        Parameters
        ----------
        program
            A program that `bind` returned; by default the executor's own plan.
        graph
            Whether each round is launched as a graph, which is captured the first time. An iteration without
            graphs must come before, because libraries load and allocate at their first use, which a capture
            cannot contain.

        Raises
        ------
        DeviceError
            When an operation fails; the message names the first one that failed, if it is known.
        PebblerError
            When rounds cannot be graphs.
        """
        program = program or self._program
        if graph:
            require_no_pages(program.plan)
        for name, (place, size) in self.plan.outside.items():
            if name.startswith("dW("):
                self.backend.write(self.address(place), np.zeros(size, dtype=np.uint8))
        sizes: dict[str, int] = {}
        for load in self.plan.final:
            sizes[load.tensor] = max(sizes.get(load.tensor, 0), load.begin + load.bytes)
        gradients = {name: np.zeros(size // 4, dtype=_NUMBERS) for name, size in sizes.items()}
        rounds = []
        for index in range(self.rounds):
            rounds.append(self._round(program, index, graph))
            for load in self.plan.final:
                part = self.backend.read(self.address(load.place), load.bytes).view(_NUMBERS)
                gradients[load.tensor][load.begin // 4 :][: part.size] += part
            self._leave(program.plan)
        nodes = self._graphs[program, 0, self.poison].nodes if graph else None
        left = {name: values.view(_NUMBERS).copy() for name, values in self._left.items()}
        return Execution(tuple(rounds), self._losses(), self._gradients(gradients), left, nodes)

    def _require(self, name: str, size: int) -> None:
        if name not in self._data or self._data[name].size < size:
            raise PebblerError(f"the data has no array '{name}' of {size} bytes or more; give one")

    # --- a round ----------------------------------------------------------------------------------

    def _round(self, program: Program, index: int, graph: bool) -> tuple[Timed, ...]:
        first = index * program.plan.images
        self.clear(program)
        for load in program.plan.loads:
            self.backend.write(self.address(load.place), self._loaded(load, first))
        return (self._launch(program, index),) if graph else self.issue(program, first)

    def _leave(self, plan: Plan) -> None:
        """Keep what a round has left of carried data."""
        for mapped in plan.last_maps:
            self.backend.map(self.address(mapped.place), mapped.pages)
        for load in plan.ends:
            if load.tensor not in self._left:
                self._left[load.tensor] = self._data[load.tensor].copy()
            part = self.backend.read(self.address(load.place), load.bytes)
            self._left[load.tensor][load.begin : load.begin + load.bytes] = part

    def _launch(self, program: Program, index: int) -> Timed:
        """Execute a round as a graph; each round has its own, as its data is fixed in it."""
        key = (program, index, self.poison)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._capture(program, index * program.plan.images)
        stream = next(iter(self._streams.values()))
        origin = hold([stream], len(program.plan.steps))
        begin = time.perf_counter_ns()
        graph.launch()
        host_ns = time.perf_counter_ns() - begin
        end = stream.record()
        end.synchronize()
        return Timed(0, end.since_ns(origin), host_ns, 0, 0)

    def _capture(self, program: Program, first: int) -> Graph:
        """Capture the work of a round, in the same order with the same waits."""
        events: list[tuple[Event, Event]] = []

        def issue(i: int) -> None:
            events.append(self._issue(program, i, events, first))

        return self.backend.capture(
            list(self._streams.values()),
            [
                (f"{step.name} (operation {step.operation.id})", partial(issue, i))
                for i, step in enumerate(program.plan.steps)
            ],
        )

    def _loaded(self, load: Load, first: int) -> NDArray[np.uint8]:
        """Return the bytes of a tensor; if it is data, only those of the round's images.

        What is carried is as the round before has left it.
        """
        values = self._left.get(load.tensor, self._data[load.tensor])
        begin = load.begin
        if load.tensor.startswith("X("):
            begin += first * (values.size // self.plan.batch)
        return values[begin : begin + load.bytes]

    # --- results ----------------------------------------------------------------------------------

    def _losses(self) -> NDArray[np.float32]:
        found = [
            self.backend.read(self.address(place), size).view(_NUMBERS)
            for name, (place, size) in self.plan.outside.items()
            if name.startswith("losses(")
        ]
        total: NDArray[np.float32] = np.sum(np.stack(found), axis=0, dtype=_NUMBERS)
        return total[: self.rounds * self.plan.images]

    def _gradients(self, moved: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
        found = {
            name[3:-1]: self.backend.read(self.address(place), size).view(_NUMBERS)
            for name, (place, size) in self.plan.outside.items()
            if name.startswith("dW(")
        }
        return found | {name[3:-1]: values for name, values in moved.items()}


def _before_mapping(plan: Plan) -> int:
    """Return the operations of a round that the host issues before it maps any page."""
    return next((i for i, step in enumerate(plan.steps) if step.maps), len(plan.steps))


def require_no_pages(plan: Plan) -> None:
    """Refuse a plan whose rounds cannot be one graph: one in paged memory, or with runs on the host.

    Raises
    ------
    PebblerError
        For such a plan.
    """
    for step in plan.steps:
        if step.operation.stream == "host":
            raise PebblerError(
                f"{step.name} runs on the host, so that a round cannot be one graph; run it without --graph"
            )
    if plan.pages:
        raise PebblerError(
            "in paged memory a round cannot be one graph, for the host maps pages in the middle of it; "
            "solve with --memory contiguous, or run it without --graph"
        )
