"""The plan of an execution: a schedule with every address and every wait fixed before any operation runs.

An address is a place: an offset in an area. Areas are ``pool`` (contiguous memory), ``resident`` (weights,
gradients, labels and losses, outside the pool), ``host`` (pinned buffers, one for each block that is copied
or that a run on the host touches, and one for the workspaces of such runs; where host memory has a budget,
exactly that many bytes, with copies and workspaces at their places),
and, in paged memory, reserved addresses: one area for every tensor, one for the pages of every workspace, and
one for moves. Executors bind areas to addresses; a stand-alone script can be written from a plan alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from msgspec import UNSET

from ...instances.errors import PebblerError
from ...instances.instance import Instance
from ...instances.units import ceil_to
from ..schedule import Operation, Residence, Schedule

ALIGNMENT = 512
"""Bytes that buffers on the host are aligned to."""


class Computed(Protocol):
    """What the blocks and tasks of an instance stand for.

    Attributes
    ----------
    parts
        Per block of the instance, its tensor, and the offset of its first byte in the tensor.
    images, batch
        Number of images of a round, and of all rounds together.
    unit
        Bytes that arrays beside the blocks are aligned to.
    """

    @property
    def parts(self) -> tuple[tuple[str, int], ...]: ...  # noqa: D102

    @property
    def images(self) -> int: ...  # noqa: D102

    @property
    def batch(self) -> int: ...  # noqa: D102

    @property
    def unit(self) -> int: ...  # noqa: D102

    def resident(self) -> Iterator[tuple[str, int]]:
        """Return names and bytes of the arrays beside blocks, which are always resident."""

    def kernel(self, instance: Instance, task: int, algorithm: int) -> Any:
        """Return the computation of a task with one of the instance's algorithms: a `Computation`."""


class Place(NamedTuple):
    """An address, as bytes from the start of an area."""

    area: str
    offset: int


@dataclass(frozen=True, slots=True)
class Mapped:
    """Pages that are mapped at a place before an operation is issued.

    Attributes
    ----------
    place, pages
        The place, and the pages of the pool that are mapped there in order.
    after
        Positions in the list of the operations that the host waits for, because they use the present mapping.
    """

    place: Place
    pages: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Data that is at a place when a round begins: the bytes of a tensor from `begin` on."""

    place: Place
    tensor: str
    begin: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Memory that is released when a step and the operations at these positions have ended."""

    place: Place
    bytes: int
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """An operation of the schedule, in the order of its list.

    Attributes
    ----------
    operation
        The operation.
    name
        Its name for people: ``FP(conv1)``, ``offload Y(conv1)``.
    waits
        Positions in the list of the operations on other streams that its stream waits for: exactly `after`.
    maps
        Pages to map before.
    kernel, operands
        For a run, its computation (a `Computation` of the backend's own), and the place of each operand by
        its word.
    source, target, bytes
        For a copy, its places and its size in bytes.
    poisoned
        Memory that is released after it.
    """

    operation: Operation
    name: str
    waits: tuple[int, ...]
    maps: tuple[Mapped, ...] = ()
    kernel: Any = None
    operands: Mapping[str, Place] = field(default_factory=dict)
    source: Place | None = None
    target: Place | None = None
    bytes: int = 0
    poisoned: tuple[Poisoned, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for the execution of one round.

    Attributes
    ----------
    images, batch
        Number of images of the round, and of all rounds together.
    areas
        Bytes of each area; all but ``pool``, ``resident`` and ``host`` are reserved addresses for pages.
    pages, page_bytes
        Number of pages of the pool (0 in contiguous memory), and bytes of a page.
    maps
        Pages that are mapped before a round begins.
    loads
        Data that is in memory when a round begins.
    outside
        Place and bytes of each array outside the blocks, by name: ``W(l)``, ``dW(l)``, ``labels(l)``,
        ``losses(l)``.
    final
        Places on the host of the weights' gradients at the end of a round, if the gradients are blocks.
    steps
        The operations in order.
    last_maps, ends
        Pages to map when a round has ended, and where carried data is then, which the next round begins with.
    left
        Where all data is when a round has ended: on the device if it stays there, else on the host.
    """

    images: int
    batch: int
    areas: dict[str, int]
    pages: int
    page_bytes: int
    maps: tuple[Mapped, ...]
    loads: tuple[Load, ...]
    outside: dict[str, tuple[Place, int]]
    final: tuple[Load, ...]
    steps: tuple[Step, ...]
    last_maps: tuple[Mapped, ...] = ()
    ends: tuple[Load, ...] = ()
    left: tuple[Load, ...] = ()


def plan(instance: Instance, schedule: Schedule, rebuilt: Computed) -> Plan:
    """Fix every address and every wait of a valid schedule.

    Raises
    ------
    PebblerError
        When the memory is divisible, as it has no addresses.
    """
    if schedule.memory_model == "divisible":
        raise PebblerError("a schedule in divisible memory has no addresses; solve with --memory contiguous")
    return _Planner(instance, schedule, rebuilt).plan()


class _Planner:
    """A pass over the operations, which knows the place of every block and the users of every mapping."""

    def __init__(self, instance: Instance, schedule: Schedule, rebuilt: Computed) -> None:
        self.instance = instance
        self.schedule = schedule
        self.rebuilt = rebuilt
        self.page = schedule.page_bytes or 0
        self.position = {operation.id: i for i, operation in enumerate(schedule.operations)}
        self.areas: dict[str, int] = {}
        self.place: dict[int, Residence] = {}
        self.mapped: dict[Place, tuple[int, ...]] = {}
        self.users: dict[Place, list[int]] = defaultdict(list)
        self.acquired: dict[int, list[Residence]] = defaultdict(list)
        self.released: dict[int, list[tuple[Residence, tuple[int, ...]]]] = defaultdict(list)
        self.copies: dict[int, Place] = {}
        self.written_to: dict[tuple[int, int | None], Place] = {}
        self.newer_on_host: set[int] = set()
        for residence in schedule.residences:
            if residence.acquired_by is not None:
                self.acquired[self.position[residence.acquired_by]].append(residence)
            if residence.released_after:
                releases = sorted({self.position[i] for i in residence.released_after})
                self.released[releases[-1]].append((residence, tuple(releases[:-1])))

    def plan(self) -> Plan:
        """Return the plan."""
        outside = self._outside()
        self._host()
        maps: list[Mapped] = []
        loads = []
        for residence in self.schedule.residences:
            if residence.acquired_by is None and residence.block is not None:
                self.place[residence.block] = residence
                place = self._use(residence, None, maps)
                loads.append(self._load(residence.block, place))
        stale = {state.block for state in self.schedule.states if not state.host}
        for d, block in enumerate(self.instance.blocks):
            if block.initially != "absent" and d in self.copies and d not in stale:
                loads.append(self._load(d, self.copies[d]))
        steps = tuple(self._step(i, outside) for i in range(len(self.schedule.operations)))
        final = tuple(
            self._load(d, self.copies[d])
            for d, block in enumerate(self.instance.blocks)
            if block.finally_ == "host"
        )
        last_maps: list[Mapped] = []
        ends = tuple(
            self._load(state.block, self._use(self.place[state.block], None, last_maps))
            if state.device
            else self._load(state.block, self.copies[state.block])
            for state in self.schedule.states
            if state.device or state.block in self.copies
        )
        if not self.page:
            self.areas["pool"] = max(self.instance.pool_bytes, 0)
        pages = max(self.instance.pool_bytes, 0) // self.page if self.page else 0
        return Plan(
            images=self.rebuilt.images,
            batch=self.rebuilt.batch,
            areas=self.areas,
            pages=pages,
            page_bytes=self.page,
            maps=tuple(maps),
            loads=tuple(loads),
            outside=outside,
            final=final,
            steps=steps,
            last_maps=tuple(last_maps),
            ends=ends,
            left=tuple(self._left()),
        )

    def _outside(self) -> dict[str, tuple[Place, int]]:
        """Return the places of arrays that are no blocks, which are always resident."""
        found = {}
        end = 0
        for name, size in self.rebuilt.resident():
            found[name] = (Place("resident", end), size)
            end = ceil_to(end + size, self.rebuilt.unit)
        self.areas["resident"] = end
        return found

    def _host(self) -> None:
        """Note where copies lie on the host: at their places, or in a buffer for each block that has any."""
        if self.instance.host_budget_bytes is not UNSET:
            self._host_places(self.instance.host_budget_bytes)
            return
        operations, blocks = self.schedule.operations, self.instance.blocks
        copied = {operation.block for operation in operations if operation.kind != "move"}
        runs = [operation for operation in operations if operation.stream == "host"]
        touched = {d for run in runs if run.task is not None for d in self.instance.tasks[run.task].blocks}
        together = {self.rebuilt.parts[d][0] for d in touched}
        extents: dict[str, int] = defaultdict(int)
        for (tensor, begin), block in zip(self.rebuilt.parts, blocks, strict=True):
            extents[tensor] = max(extents[tensor], begin + block.bytes)
        end, bases = 0, dict[str, int]()
        for d, block in enumerate(blocks):
            tensor, begin = self.rebuilt.parts[d]
            if tensor in together:
                if tensor not in bases:
                    bases[tensor], end = end, ceil_to(end + extents[tensor], ALIGNMENT)
                self.copies[d] = Place("host", bases[tensor] + begin)
            elif d in copied or block.finally_ == "host":
                self.copies[d] = Place("host", end)
                end = ceil_to(end + block.bytes, ALIGNMENT)
        for run in runs:
            self.written_to[self.position[run.id], None] = Place("host", end)
        self.areas["host"] = end + max(map(self._workspace_bytes, runs), default=0)

    def _host_places(self, budget: int) -> None:
        self.areas["host"] = budget
        for residence in self.schedule.host_copies:
            assert residence.offset is not None
            place = Place("host", residence.offset)
            if residence.acquired_by is not None:
                self.written_to[self.position[residence.acquired_by], residence.block] = place
            elif residence.block is not None:
                self.copies[residence.block] = place

    def _workspace_bytes(self, run: Operation) -> int:
        assert run.task is not None
        assert run.algorithm is not None
        return self.instance.tasks[run.task].algorithms[run.algorithm].workspace_bytes

    def _left(self) -> Iterator[Load]:
        """Yield where each block is at the end: in its last residence if that lasts, else on the host."""
        for d in range(len(self.instance.blocks)):
            on_device = d in self.place and not self.place[d].released_after
            if on_device and d not in self.newer_on_host:
                if (
                    place := self._where(self.place[d])
                ) is not None:  # else its pages lie where a move put them
                    yield self._load(d, place)
            elif d in self.copies:
                yield self._load(d, self.copies[d])

    def _load(self, block: int, place: Place) -> Load:
        tensor, begin = self.rebuilt.parts[block]
        return Load(place, tensor, begin, self.instance.blocks[block].bytes)

    def _step(self, i: int, outside: Mapping[str, tuple[Place, int]]) -> Step:
        operation = self.schedule.operations[i]
        waits = tuple(
            p
            for p in sorted(self.position[other] for other in operation.after)
            if self.schedule.operations[p].stream != operation.stream
        )
        maps: list[Mapped] = []
        before = dict(self.place)
        for residence in self.acquired[i]:
            if residence.block is not None:
                self.place[residence.block] = residence
        if operation.stream == "host":
            step = self._host_run(i, operation, waits)
        elif operation.task is not None:
            step = self._run(i, operation, waits, maps, outside)
        else:
            assert operation.block is not None
            name = self.instance.blocks[operation.block].name
            step = self._copy(i, operation, f"{operation.kind} {name}", waits, maps, before)
        poisoned = tuple(
            Poisoned(place, residence.bytes, after)
            for residence, after in self.released[i]
            if (place := self._where(residence)) is not None
        )
        for item in poisoned:
            self._used(item.place, i)
        return replace(step, maps=tuple(maps), poisoned=poisoned)

    def _run(
        self,
        i: int,
        operation: Operation,
        waits: tuple[int, ...],
        maps: list[Mapped],
        outside: Mapping[str, tuple[Place, int]],
    ) -> Step:
        assert operation.task is not None
        assert operation.algorithm is not None
        task = self.instance.tasks[operation.task]
        kernel = self.rebuilt.kernel(self.instance, operation.task, operation.algorithm)
        found: dict[str, Place] = {}
        for d in task.blocks:
            tensor, begin = self.rebuilt.parts[d]
            area, offset = self._use(self.place[d], i, maps)
            found[tensor] = Place(area, offset - begin)
        self.newer_on_host.difference_update((*task.outputs, *task.updates))
        operands = {
            word: found[name] if name in found else outside[name][0] for word, name in kernel.operands.items()
        }
        for residence in self.acquired[i]:
            if residence.workspace_of == operation.id:
                operands["workspace"] = self._use(residence, i, maps)
        return Step(operation, task.name, waits, kernel=kernel, operands=operands)

    def _host_run(self, i: int, operation: Operation, waits: tuple[int, ...]) -> Step:
        assert operation.task is not None
        assert operation.algorithm is not None
        task = self.instance.tasks[operation.task]
        kernel = self.rebuilt.kernel(self.instance, operation.task, operation.algorithm)
        found: dict[str, Place] = {}
        for d in task.blocks:
            self.copies[d] = self.written_to.get((i, d)) or self.copies[d]
            tensor, begin = self.rebuilt.parts[d]
            place = Place("host", self.copies[d].offset - begin)
            if found.setdefault(tensor, place) != place:
                raise PebblerError(
                    f"task '{task.name}' runs on the host, where parts of '{tensor}' lie apart; "
                    "make the instance without parts, or without a budget of host memory"
                )
        self.newer_on_host.update((*task.outputs, *task.updates))
        if missing := [name for name in kernel.operands.values() if name not in found]:
            raise PebblerError(
                f"task '{task.name}' runs on the host, and '{missing[0]}', which it touches, is no block; "
                "make the instance with weights as blocks"
            )
        operands = {word: found[name] for word, name in kernel.operands.items()}
        if self._workspace_bytes(operation):
            operands["workspace"] = self.written_to[i, None]
        return Step(operation, task.name, waits, kernel=kernel, operands=operands)

    def _copy(
        self,
        i: int,
        operation: Operation,
        name: str,
        waits: tuple[int, ...],
        maps: list[Mapped],
        before: Mapping[int, Residence],
    ) -> Step:
        d = operation.block
        assert d is not None
        if operation.kind == "move":
            source = self._use(before[d], i, maps)
            target = self._use(self.place[d], i, maps, moving=True)
        elif operation.kind == "offload":
            self.copies[d] = self.written_to.get((i, d)) or self.copies[d]
            source, target = self._use(self.place[d], i, maps), self.copies[d]
        else:
            source, target = self.copies[d], self._use(self.place[d], i, maps)
            self.newer_on_host.discard(d)
        size = self.instance.blocks[d].bytes
        return Step(operation, name, waits, source=source, target=target, bytes=size)

    # --- places -----------------------------------------------------------------------------------

    def _where(self, residence: Residence, *, moving: bool = False) -> Place | None:
        """Return the place of a residence; None in paged memory if other pages are mapped there now."""
        if residence.offset is not None:
            return Place("pool", residence.offset)
        place = self._address(residence, moving)
        return place if self.mapped.get(place) == self._pages(residence) else None

    def _address(self, residence: Residence, moving: bool) -> Place:
        if residence.block is None:
            return Place(f"workspace {'-'.join(map(str, self._pages(residence)))}", 0)
        if moving:
            return Place("moves", 0)
        tensor, begin = self.rebuilt.parts[residence.block]
        return Place(tensor, begin)

    def _pages(self, residence: Residence) -> tuple[int, ...]:
        return tuple(
            page
            for start, size in residence.extents or ()
            for page in range(start // self.page, (start + size) // self.page)
        )

    def _use(self, residence: Residence, i: int | None, maps: list[Mapped], *, moving: bool = False) -> Place:
        """Return the place of a residence, after mapping its pages there if they are not."""
        if residence.offset is not None:
            return Place("pool", residence.offset)
        place, pages = self._address(residence, moving), self._pages(residence)
        if self.mapped.get(place) != pages:
            maps.append(Mapped(place, pages, tuple(self.users.pop(place, ()))))
            self.mapped[place] = pages
            end = place.offset + len(pages) * self.page
            self.areas[place.area] = max(self.areas.get(place.area, 0), end)
        if i is not None:
            self._used(place, i)
        return place

    def _used(self, place: Place, i: int) -> None:
        """Note the users of a mapping: the last operation of each stream."""
        if place.area == "pool":
            return
        stream = self.schedule.operations[i].stream
        others = [p for p in self.users[place] if self.schedule.operations[p].stream != stream]
        self.users[place] = sorted([*others, i])
