"""A program bound to its memory: the data that every operation reads and writes, and its place."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from ...instances.instance import Instance
from ..schedule import Operation, Residence, Schedule
from .durations import number
from .fault import Fault, FaultKind

GARBAGE = -1
"""Version of bytes without valid data."""

NO_BLOCK = -1
"""Block of bytes that belong to no block."""

AS_FOUND = -2
"""Version that stands for the version that the operation finds."""


@dataclass(frozen=True, slots=True)
class Use:
    """An access of one operation to one residence.

    `cells` are pairs (cell, base): the cell, and the address that byte 0 of the block has if the cell is
    reached with it. `before` is the version that must be found (None: not read), and `after` the version that
    is written (None: not written).
    """

    block: int
    residence: int
    cells: tuple[tuple[int, int], ...]
    before: int | None
    after: int | None


_Wanted = tuple[int, int | None, int | None, int | None]
"""A use before binding: block, residence if there is one, version before and version after."""


class Binding:
    """A program bound to its memory, with the pointers that an executor would fix before it runs.

    An operation uses the residence of a block that was acquired latest in the list, at or before it. Cells
    are the pieces of the address space between all beginnings and ends of residences.

    Attributes
    ----------
    instance, schedule, index
        The program and its instance; the position of every operation in the list, by id.
    faults
        The faults at every speed, found while binding.
    waits, successors
        Per operation, the number of its direct predecessors, by its stream or its waits; and its direct
        successors.
    acquires, releases, uses, source
        Per operation, the residences that it acquires, and those that it releases; its reads and writes; the
        residence that a move copies from.
    at_start, place_at_end
        Residences at time 0; by block, its last residence.
    acquirer, release_count, owned, used, overlapping
        Per residence, the operation that acquires it; the number of operations that release it; its cells;
        the cells that its content uses, each with the address of byte 0; and the residences that share cells
        with it.
    stays
        The residences of each block.
    cell_count
        Upper bound on the number of cells.
    """

    def __init__(self, instance: Instance, schedule: Schedule) -> None:
        self.instance = instance
        self.schedule = schedule
        self.faults: list[Fault] = []
        self.index = {operation.id: i for i, operation in enumerate(schedule.operations)}
        self._bind_order()
        self._bind_residences()
        self._bind_cells()
        self._bind_uses()

    def _fault(self, kind: FaultKind, text: str) -> None:
        self.faults.append(Fault(kind, text))

    def name(self, i: int) -> str:
        """Return how faults name an operation."""
        operation = self.schedule.operations[i]
        subject = (
            self.instance.tasks[number(operation.task)].name
            if operation.kind == "run"
            else self.instance.blocks[number(operation.block)].name
        )
        return f"{operation.kind} of '{subject}' (id {operation.id})"

    def _bind_order(self) -> None:
        """Find successors and number of predecessors of every operation: its stream's, and its waits'."""
        operations = self.schedule.operations
        before: list[set[int]] = []
        last: dict[str, int] = {}
        for i, operation in enumerate(operations):
            predecessors = {self.index[other] for other in operation.after}
            if operation.stream in last:
                predecessors.add(last[operation.stream])
            before.append(predecessors)
            last[operation.stream] = i
        self.waits = [len(predecessors) for predecessors in before]
        self.successors: list[list[int]] = [[] for _ in operations]
        for i, predecessors in enumerate(before):
            for j in sorted(predecessors):
                self.successors[j].append(i)

    def _bind_residences(self) -> None:
        """Find which operations acquire and release each residence, and the residences at time 0."""
        count = len(self.schedule.operations)
        self.acquires: list[list[int]] = [[] for _ in range(count)]
        self.releases: list[list[int]] = [[] for _ in range(count)]
        self.at_start: list[int] = []
        self.acquirer: list[int | None] = []
        self.release_count: list[int] = []
        for r, residence in enumerate(self.schedule.residences):
            acquirer = None if residence.acquired_by is None else self.index[residence.acquired_by]
            self.acquirer.append(acquirer)
            (self.at_start if acquirer is None else self.acquires[acquirer]).append(r)
            releases = {self.index[other] for other in residence.released_after}
            self.release_count.append(len(releases))
            for i in releases:
                self.releases[i].append(r)

    def needed(self, residence: Residence) -> int:
        """Return the bytes that the content of a residence really uses."""
        if residence.block is not None:
            return self.instance.blocks[residence.block].bytes
        run = self.schedule.operations[self.index[number(residence.workspace_of)]]
        if run.kind != "run":
            return residence.bytes
        return self.instance.tasks[number(run.task)].algorithms[number(run.algorithm)].workspace_bytes

    def _bind_cells(self) -> None:
        """Cut the address space where any residence begins or ends; list the cells of every residence.

        In divisible memory, every residence gets its own addresses.
        """
        pieces: list[tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]] = []
        cursor = 0
        for residence in self.schedule.residences:
            needed = self.needed(residence)
            if residence.extents is not None:
                begins = accumulate((size for _, size in residence.extents), initial=0)
                owned = [
                    (address, address + size, address - begin)
                    for (address, size), begin in zip(residence.extents, begins, strict=False)
                ]
                used = [
                    (begin, min(end, base + needed), base)
                    for begin, end, base in owned
                    if begin < base + needed
                ]
            else:
                base = cursor if residence.offset is None else residence.offset
                owned = [(base, base + residence.bytes, base)]
                used = [(base, base + needed, base)] if needed else []
            cursor += max(residence.bytes, needed)
            pieces.append((owned, used))
        cuts = sorted({edge for pair in pieces for piece in pair for a, b, _ in piece for edge in (a, b)})

        def cells(piece: list[tuple[int, int, int]]) -> tuple[tuple[int, int], ...]:
            return tuple(
                (cell, base)
                for begin, end, base in piece
                for cell in range(bisect_left(cuts, begin), bisect_left(cuts, end))
            )

        self.cell_count = len(cuts)
        self.owned = [tuple(cell for cell, _ in cells(owned)) for owned, _ in pieces]
        self.used = [cells(used) for _, used in pieces]
        sets = [frozenset(owned) for owned in self.owned]
        self.overlapping = [
            [other for other in range(len(sets)) if other != r and sets[r] & sets[other]]
            for r in range(len(sets))
        ]
        self.stays: dict[int, list[int]] = defaultdict(list)
        for r, residence in enumerate(self.schedule.residences):
            if residence.block is not None:
                self.stays[residence.block].append(r)

    def _bind_uses(self) -> None:
        """Find what every operation reads and writes, and where, in list order."""
        schedule = self.schedule
        place: dict[int, int] = {}
        for r in self.at_start:
            block = schedule.residences[r].block
            if block is not None:
                place[block] = r
        workspaces: dict[int, int] = {
            residence.workspace_of: r
            for r, residence in enumerate(schedule.residences)
            if residence.workspace_of is not None
        }
        self.uses: list[list[Use]] = []
        self.source: list[int | None] = []
        for i, operation in enumerate(schedule.operations):
            previous = dict(place)
            for r in self.acquires[i]:
                block = schedule.residences[r].block
                if block is not None:
                    place[block] = r
            source = None
            if operation.kind == "run":
                uses = self._uses_of_run(i, operation, place, workspaces)
            else:
                block = number(operation.block)
                wanted: list[tuple[int | None, int | None, int | None]]
                if operation.kind == "offload":
                    wanted = [(place.get(block), AS_FOUND, None)]
                elif operation.kind == "prefetch":
                    wanted = [(self._acquired(i, block), None, AS_FOUND)]
                else:
                    source = previous.get(block)
                    wanted = [(source, AS_FOUND, None), (self._acquired(i, block), None, AS_FOUND)]
                uses = self._bound(i, [(block, r, before, after) for r, before, after in wanted])
            self.uses.append(uses)
            self.source.append(source)
        self.place_at_end = place

    def _acquired(self, i: int, block: int) -> int | None:
        mine = [r for r in self.acquires[i] if self.schedule.residences[r].block == block]
        return mine[-1] if mine else None

    def _uses_of_run(
        self, i: int, operation: Operation, place: dict[int, int], workspaces: dict[int, int]
    ) -> list[Use]:
        k = number(operation.task)
        task = self.instance.tasks[k]

        def version(d: int) -> int:
            return sum(writer < k for writer in self.instance.writers[d])

        wanted: list[_Wanted] = [
            *((d, place.get(d), version(d), None) for d in task.inputs),
            *((d, place.get(d), version(d), version(d) + 1) for d in task.updates),
            *((d, place.get(d), None, version(d) + 1) for d in task.outputs),
        ]
        if task.algorithms[number(operation.algorithm)].workspace_bytes:
            wanted.append((NO_BLOCK, workspaces.get(operation.id), None, GARBAGE))
        if self.schedule.memory_model == "contiguous":
            bases: dict[str, set[int]] = defaultdict(set)
            for d, r, _, _ in wanted:
                block = self.instance.blocks[d]
                if d != NO_BLOCK and r is not None and block.tensor is not None:
                    offset = number(self.schedule.residences[r].offset)
                    bases[block.tensor].add(offset - number(block.begin))
            for tensor, several in bases.items():
                if len(several) > 1:
                    self._fault("data", f"{self.name(i)} finds the parts of '{tensor}' apart")
        return self._bound(i, wanted)

    def _bound(self, i: int, wanted: Iterable[_Wanted]) -> list[Use]:
        uses = []
        for block, r, before, after in wanted:
            what = "workspace" if block == NO_BLOCK else f"'{self.instance.blocks[block].name}'"
            if r is None:
                self._fault("data", f"{self.name(i)} has no place for {what}")
                continue
            residence = self.schedule.residences[r]
            room = residence.bytes
            if residence.extents is not None:
                room = min(room, sum(size for _, size in residence.extents))
            if self.needed(residence) > room:
                self._fault("data", f"{self.name(i)} overruns residences[{r}], too small for {what}")
            if len({cell for cell, _ in self.used[r]}) != len(self.used[r]):
                self._fault("data", f"{self.name(i)} has two addresses for the same bytes of {what}")
            uses.append(Use(block, r, self.used[r], before, after))
        return uses
