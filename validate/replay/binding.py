"""A program bound to its memories: the data that every operation reads and writes, and its place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET

from ...instances.instance import Instance
from ..schedule import HostResidence, Operation, Residence, Schedule
from .durations import number
from .fault import Fault, FaultKind
from .layout import Layout
from .memory import GARBAGE, NO_BLOCK, Cells

AS_FOUND = -2
"""Version that stands for the version that the operation finds."""

Side = Literal["device", "host"]
"""Name of a memory."""


@dataclass(frozen=True, slots=True)
class Use:
    """An access of one operation to one residence.

    `before` is the version that must be found (None: not read), and `after` the version that is written
    (None: not written).
    """

    side: Side
    block: int
    residence: int
    cells: Cells
    before: int | None
    after: int | None


_Wanted = tuple[Side, int, int | None, int | None, int | None]
"""A use before binding: memory, block, residence if there is one, version before and version after."""


class Binding:
    """A program bound to its memories, with the pointers that an executor would fix before it runs.

    An operation uses the residence of a block that was acquired latest in the list, at or before it. This
    holds for copies on the host, too, where these have a budget. Elsewhere each block has a place of its own
    there, from the start to the end. A run uses the memory of the side on which it runs, and no other.

    Parameters
    ----------
    instance, schedule
        The program, and the instance that it is for.
    rounds_before
        How many rounds have been before. Versions of carried blocks count on from round to round.

    Attributes
    ----------
    instance, schedule, index
        The program and its instance; the position of every operation in the list, by id.
    first
        Per block, its version when the round begins.
    begins, ends
        Per block, the memories that have its latest version when the round begins, and those that must have
        it when the round ends.
    faults
        The faults at every speed, found while binding.
    layouts
        The residences on the device and on the host.
    waits, successors
        Per operation, the number of its direct predecessors, by its stream or its waits; and its direct
        successors.
    uses, source
        Per operation, its reads and writes; the residence that a move copies from.
    taken
        Per operation, the residences that it acquires in the place of others, each with that one.
    copied
        Per operation, the version that a copy must find: the newest that a run earlier in the list has
        written.
    last_place
        By memory and block, its last residence.
    """

    def __init__(self, instance: Instance, schedule: Schedule, rounds_before: int = 0) -> None:
        self.instance = instance
        self.schedule = schedule
        self.faults: list[Fault] = []
        self.first = [0] * len(instance.blocks)
        for d in instance.carried:
            self.first[d] = rounds_before * len(instance.writers[d])
        self.begins, self.ends = _places_at_both_ends(instance, schedule)
        self.index = {operation.id: i for i, operation in enumerate(schedule.operations)}
        self._bind_order()
        self.layouts: dict[Side, Layout] = {
            "device": self._laid_out("residences", schedule.residences),
            "host": self._laid_out(
                "host_residences",
                schedule.host_copies if instance.has_host_budget else _copies_without_end(instance),
            ),
        }
        self._bind_uses()

    def _laid_out(self, key: str, residences: Sequence[Residence | HostResidence]) -> Layout:
        return Layout(key, residences, [self._needed(residence) for residence in residences], self.index)

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

    def is_on_host(self, i: int) -> bool:
        """Return whether an operation is a run with an algorithm of the host."""
        operation = self.schedule.operations[i]
        if operation.kind != "run":
            return False
        task = self.instance.tasks[number(operation.task)]
        return task.algorithms[number(operation.algorithm)].on == "host"

    def block_name(self, side: Side, block: int) -> str:
        """Return how faults name what a residence holds."""
        if block == NO_BLOCK:
            return "workspace" + (" on the host" if side == "host" else "")
        return f"'{self.instance.blocks[block].name}'" + (" on the host" if side == "host" else "")

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

    def _needed(self, residence: Residence | HostResidence) -> int:
        """Return the bytes that the content of a residence really uses."""
        if residence.block is not None:
            return self.instance.blocks[residence.block].bytes
        run = self.schedule.operations[self.index[number(residence.workspace_of)]]
        if run.kind != "run":
            return residence.bytes
        return self.instance.tasks[number(run.task)].algorithms[number(run.algorithm)].workspace_bytes

    def _bind_uses(self) -> None:
        """Find what every operation reads and writes, and where, in list order."""
        schedule, device, host = self.schedule, self.layouts["device"], self.layouts["host"]
        place, copy = device.places(), host.places()
        newest = list(self.first)
        self.uses: list[list[Use]] = []
        self.source: list[int | None] = []
        self.copied: list[int] = []
        self.taken: list[dict[int, int]] = []
        for r in device.at_start:
            self._may_take(device.residences[r], None, r)
        for i, operation in enumerate(schedule.operations):
            old_place, old_copy = dict(place), dict(copy)
            device.enter(i, place)
            host.enter(i, copy)
            source = None
            wanted: list[_Wanted]
            if operation.kind == "run":
                side: Side = "host" if self.is_on_host(i) else "device"
                wanted = self._wanted_by_run(i, operation, side, copy if side == "host" else place)
                self.copied.append(AS_FOUND)
                for _, d, _, _, after in wanted:
                    if d != NO_BLOCK and after is not None:
                        newest[d] = max(newest[d], after)
            else:
                block = number(operation.block)
                self.copied.append(newest[block])
                there: _Wanted = ("device", block, device.acquired_for(i, block), None, AS_FOUND)
                if operation.kind == "offload":
                    new = host.acquired_for(i, block) if self.instance.has_host_budget else copy[block]
                    wanted = [
                        ("device", block, place.get(block), AS_FOUND, None),
                        ("host", block, new, None, AS_FOUND),
                    ]
                elif operation.kind == "prefetch":
                    wanted = [("host", block, old_copy.get(block), AS_FOUND, None), there]
                else:
                    source = old_place.get(block)
                    wanted = [("device", block, source, AS_FOUND, None), there]
            self.taken.append(self._taken(i, operation, old_place))
            self.uses.append(self._bound(i, wanted))
            self.source.append(source)
        self.last_place: dict[Side, dict[int, int]] = {"device": place, "host": copy}

    def _taken(self, i: int, operation: Operation, place: dict[int, int]) -> dict[int, int]:
        """Return the residences that an operation acquires in the place of others, each with that one."""
        layout, found = self.layouts["device"], {}
        for r in layout.acquires[i]:
            residence = layout.residences[r]
            if (x := self._may_take(residence, operation, r)) is None:
                continue
            old = place.get(x)
            before = None if old is None else layout.residences[old]
            if before is None or not isinstance(residence, Residence) or not isinstance(before, Residence):
                self._fault("data", f"{layout.name(r)} takes over the place of what is nowhere")
            elif (before.offset, before.extents) != (residence.offset, residence.extents):
                self._fault("data", f"{layout.name(r)} takes over a place and lies elsewhere")
            elif old is not None:
                found[r] = old
        return found

    def _may_take(
        self, residence: Residence | HostResidence, operation: Operation | None, r: int
    ) -> int | None:
        """Return the block whose place a residence may take over, if it does so at all."""
        if not isinstance(residence, Residence) or not residence.takes_over:
            return None
        pairs: dict[int | None, int] = {}
        if operation is not None and operation.kind == "run":
            task = self.instance.tasks[number(operation.task)]
            pairs.update(task.algorithms[number(operation.algorithm)].takes_over)
        if residence.block not in pairs:
            self._fault("rule", f"{self.layouts['device'].name(r)} takes over a place and may not")
        return pairs.get(residence.block)

    def _wanted_by_run(
        self, i: int, operation: Operation, side: Side, place: dict[int, int]
    ) -> list[_Wanted]:
        k = number(operation.task)
        task = self.instance.tasks[k]

        algorithm = task.algorithms[number(operation.algorithm)]
        read = task.inputs if algorithm.inputs is UNSET else algorithm.inputs
        made = task.outputs if algorithm.outputs is UNSET else algorithm.outputs

        def version(d: int) -> int:
            return self.first[d] + sum(writer < k for writer in self.instance.writers[d])

        wanted: list[_Wanted] = [
            *((side, d, place.get(d), version(d), None) for d in read),
            *((side, d, place.get(d), version(d), version(d) + 1) for d in task.updates),
            *((side, d, place.get(d), None, version(d) + 1) for d in made),
        ]
        workspace = algorithm.workspace_bytes
        if workspace and (side == "device" or self.instance.has_host_budget):
            wanted.append((side, NO_BLOCK, self.layouts[side].workspaces.get(operation.id), None, GARBAGE))
        if side == "device" and self.schedule.memory_model == "contiguous":
            bases: dict[str, set[int]] = defaultdict(set)
            for _, d, r, _, _ in wanted:
                if d == NO_BLOCK or r is None:
                    continue
                block = self.instance.blocks[d]
                if block.tensor is not None:
                    offset = number(self.schedule.residences[r].offset)
                    bases[block.tensor].add(offset - number(block.begin))
            for tensor, several in bases.items():
                if len(several) > 1:
                    self._fault("data", f"{self.name(i)} finds the parts of '{tensor}' apart")
        return wanted

    def _bound(self, i: int, wanted: Iterable[_Wanted]) -> list[Use]:
        uses = []
        for side, block, r, before, after in wanted:
            what = self.block_name(side, block)
            if r is None:
                self._fault("data", f"{self.name(i)} has no place for {what}")
                continue
            layout = self.layouts[side]
            if layout.needed[r] > layout.room(r):
                self._fault("data", f"{self.name(i)} overruns {layout.name(r)}, too small for {what}")
            if len({cell for cell, _ in layout.used[r]}) != len(layout.used[r]):
                self._fault("data", f"{self.name(i)} has two addresses for the same bytes of {what}")
            uses.append(Use(side, block, r, layout.used[r], before, after))
        return uses


def _places_at_both_ends(
    instance: Instance, schedule: Schedule
) -> tuple[list[frozenset[Side]], list[frozenset[Side]]]:
    """Return, per block, the memories where a round finds it, and those where it must leave it."""
    known: dict[str, frozenset[Side]] = {
        "device": frozenset(("device", "host")),
        "host": frozenset(("host",)),
    }
    begins = [known.get(block.initially, frozenset()) for block in instance.blocks]
    sides: tuple[Side, ...] = ("device", "host")
    ends = [frozenset(side for side in sides if block.finally_ == side) for block in instance.blocks]
    for state in schedule.states:
        if state.block in instance.carried:
            there = {"device": state.device, "host": state.host}
            begins[state.block] = ends[state.block] = frozenset(side for side in sides if there[side])
    return begins, ends


def _copies_without_end(instance: Instance) -> tuple[HostResidence, ...]:
    """Return a place on the host for every block, from the start to the end."""
    return tuple(HostResidence(block=d, bytes=block.bytes) for d, block in enumerate(instance.blocks))
