"""The trace of a schedule: what its program issues to the streams, with the bytes that are touched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import UNSET

from ...instances.errors import PebblerError
from ...instances.figures import distinct, text_of
from ...instances.instance import Instance
from ..order import NEVER, Order, in_words, is_on_host
from ..schedule import HostResidence, Operation, Residence, Schedule, as_from_files
from .trace import Trace, TraceBuffer, TraceOperation


def trace_of(instance: Instance, schedule: Schedule) -> Trace:
    """Return the trace of a schedule of one GPU, in contiguous or in paged memory.

    Every residence becomes a buffer at its address, in pages one for each extent; host memory without a
    budget has room of its own for a copy of every block. An operation also reads the residences that it
    releases, because it uses them to its end. What other rules of schedules say, such as that a block has one
    residence at a time, is not in the trace. So a valid schedule has a trace without races, and a trace
    without races need not be that of a valid schedule.

    Parameters
    ----------
    instance, schedule
        A schedule, and the instance that it is for.

    Raises
    ------
    PebblerError
        When there are several GPUs, memory is divisible, or the schedule uses a block that has no residence.
    """
    instance, schedule = as_from_files(instance, schedule)
    if instance.cluster is not UNSET:
        raise PebblerError("the schedule is of several GPUs; trace_of takes those of one")
    if schedule.memory_model == "divisible":
        raise PebblerError("divisible memory has no addresses; give a contiguous or a paged schedule")
    return _Program(instance, schedule).trace()


class _Program:
    """The pass over a program, with the residence of each block that an executor's pointer leads to."""

    def __init__(self, instance: Instance, schedule: Schedule) -> None:
        self.instance, self.schedule, self.order = instance, schedule, Order(schedule)
        self.residences: tuple[Residence | HostResidence, ...] = (*schedule.residences, *schedule.host_copies)
        ranges: list[tuple[str, str, int | None, int]] = []  # name, memory, offset, bytes
        self.places: dict[int, range] = {}  # of a residence, by its position
        for r, residence in enumerate(self.residences):
            memory = "host" if isinstance(residence, HostResidence) else "device"
            name = self.content(residence) + (" on the host" if memory == "host" else "")
            first = len(ranges)
            ranges += [(name, memory, offset, size) for offset, size in _ranges(residence)]
            self.places[r] = range(first, len(ranges))
        self.own: dict[int, int] = {}  # of a block, in host memory without a budget
        if not instance.has_host_budget:
            for d, block in enumerate(instance.blocks):
                self.own[d] = len(ranges)
                ranges.append((f"{block.name} on the host", "host", None, block.bytes))
        self.buffers = tuple(
            TraceBuffer(name=name, memory=memory, offset=offset, bytes=size)
            for name, (_, memory, offset, size) in zip(
                distinct(name for name, *_ in ranges), ranges, strict=True
            )
        )
        self.acquired: dict[int, list[int]] = defaultdict(list)
        self.released: dict[int, list[int]] = defaultdict(list)
        self.device: dict[int, int] = {}  # of a block: its residence
        self.host: dict[int, int] = {}
        for r, residence in enumerate(self.residences):
            self.acquired[self.order.acquisition(residence)].append(r)
            for p in self.order.releases(residence):
                self.released[p].append(r)

    def content(self, residence: Residence | HostResidence) -> str:
        """Return the content of a residence in words."""
        if residence.block is not None:
            return self.instance.blocks[residence.block].name
        assert residence.workspace_of is not None
        p = self.order.position[residence.workspace_of]
        return f"workspace of {in_words(self.instance, self.order.operations[p])}"

    def trace(self) -> Trace:
        """Return the whole trace."""
        self.acquire(NEVER)
        awaited = {i for operation in self.order.operations for i in operation.after}
        operations = []
        for p, operation in enumerate(self.order.operations):
            reads, writes = self.touched(p, operation)
            operations.append(
                TraceOperation(
                    name=self.name(operation),
                    kind="run" if operation.kind == "run" else "copy",
                    stream=operation.stream,
                    reads=tuple(self.buffers[i].name for i in dict.fromkeys(reads)),
                    writes=tuple(self.buffers[i].name for i in dict.fromkeys(writes)),
                    waits=tuple(map(_event, operation.after)),
                    records=(_event(operation.id),) if operation.id in awaited else (),
                )
            )
        name = text_of(f"{self.schedule.instance}, {self.schedule.method}")
        return Trace(name=name, buffers=self.buffers, operations=tuple(operations))

    def name(self, operation: Operation) -> str:
        """Return the name of an operation: of its task, or what it does with which block."""
        if operation.task is not None:
            return self.instance.tasks[operation.task].name
        assert operation.block is not None
        return text_of(f"{operation.kind} {self.instance.blocks[operation.block].name}")

    def touched(self, p: int, operation: Operation) -> tuple[list[int], list[int]]:
        """Return the buffers that an operation reads and writes, and let it acquire its residences."""
        if operation.task is not None:
            task, on_host = self.instance.tasks[operation.task], is_on_host(self.instance, operation)
            algorithm = operation.algorithm or 0
            read, written = ((*of(algorithm), *task.updates) for of in (task.reads, task.makes))
            reads = [i for d in read for i in self.place(d, p, on_host=on_host)]
            writes = self.acquire(p)
            writes += [i for d in written for i in self.place(d, p, on_host=on_host)]
        else:
            assert operation.block is not None
            d, kind = operation.block, operation.kind
            reads = self.place(d, p, on_host=kind == "prefetch")
            writes = [*self.acquire(p), *self.place(d, p, on_host=kind == "offload")]
        reads += [i for r in self.released[p] for i in self.places[r]]
        return reads, writes

    def acquire(self, p: int) -> list[int]:
        """Let an operation acquire its residences; return their buffers."""
        for r in self.acquired[p]:
            residence = self.residences[r]
            if residence.block is not None:
                (self.host if isinstance(residence, HostResidence) else self.device)[residence.block] = r
        return [i for r in self.acquired[p] for i in self.places[r]]

    def place(self, d: int, p: int, *, on_host: bool) -> list[int]:
        """Return the buffers of a block."""
        if on_host and d in self.own:
            return [self.own[d]]
        found = (self.host if on_host else self.device).get(d)
        if found is None:
            where = in_words(self.instance, self.order.operations[p])
            raise PebblerError(f"{where} uses '{self.instance.blocks[d].name}', which has no residence")
        return [*self.places[found]]


def _event(operation: int) -> str:
    return f"end of {operation}"


def _ranges(residence: Residence | HostResidence) -> Sequence[tuple[int, int]]:
    """Return the offsets and sizes of a residence."""
    if residence.offset is not None:
        return ((residence.offset, residence.bytes),)
    return residence.extents or () if isinstance(residence, Residence) else ()
