"""Symbolic replay: a program run on a machine that remembers what every byte of the pool holds.

It judges the checker from outside: where the checker reasons about all speeds at once, the replay runs the
program at one drawn speed and looks for damage. It finds a fault only in the draws that it is given, so
it can refute a schedule, never prove it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import Random
from typing import Literal

from ..instances.instance import Instance
from .schedule import Operation, Residence, Schedule

FaultKind = Literal["data", "rule", "figure"]

_GARBAGE = -1
_NO_BLOCK = -1
_AS_FOUND = -2


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that went wrong in a replay.

    Attributes
    ----------
    kind
        ``data``: an operation reads wrong bytes, loses its own, or touches memory that it does not own or
        that another residence still holds; or work is missing at the end. ``rule``: a rule of the format is
        broken without damage in this replay. ``figure``: a reported time, makespan or peak is not what
        happened.
    text
        What and where.
    """

    kind: FaultKind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def replay(
    instance: Instance, schedule: Schedule, durations_ns: Sequence[int] | None, rng: Random
) -> list[Fault]:
    """Execute a program once and return the faults found; an empty list: it survived.

    Parameters
    ----------
    instance, schedule
        The program and what it is for.
    durations_ns
        One duration an operation, zeros allowed; None: the instance's own, and the reported times, makespan
        and peak (and the capacity of a divisible schedule) are then compared with what happened.
    rng
        Breaks ties between events that the program leaves unordered.
    """
    return Machine(instance, schedule).replay(durations_ns, rng)


def own_durations(instance: Instance, schedule: Schedule) -> list[int]:
    """Return the instance's duration of every operation; a copy that is not possible takes no time."""
    durations = []
    for operation in schedule.operations:
        if operation.kind == "run":
            task, algorithm = _number(operation.task), _number(operation.algorithm)
            durations.append(instance.tasks[task].algorithms[algorithm].duration_ns)
        else:
            durations.append(_copy_ns(instance, operation) or 0)
    return durations


def draw_durations(instance: Instance, schedule: Schedule, rng: Random) -> list[int]:
    """Draw a duration for every operation, in one of several regimes that favour different races.

    The regimes: all zero, nominal, up to twice nominal, each operation zero or nominal or a thousandfold, one
    slow or one instant stream, one slow or one instant operation, magnitudes spread over six decades.
    """
    nominal = [max(duration, 1) for duration in own_durations(instance, schedule)]
    count = len(nominal)
    if not count:
        return []
    streams = [operation.stream for operation in schedule.operations]
    base = [0] * count if rng.random() < 0.3 else nominal
    regime = rng.randrange(8)
    if regime == 0:
        return base
    if regime == 1:
        return [rng.randint(0, 2 * duration) for duration in nominal]
    if regime == 2:
        return [duration * rng.choice((0, 1, 1000)) for duration in nominal]
    if regime == 3:
        chosen = rng.choice(streams)
        factor = rng.choice((0, 1000))
        return [nominal[i] * factor if streams[i] == chosen else base[i] for i in range(count)]
    if regime in (4, 5):
        slow = {rng.randrange(count) for _ in range(regime - 3)}
        return [sum(nominal) * 1000 if i in slow else base[i] for i in range(count)]
    if regime == 6:
        instant = rng.randrange(count)
        return [0 if i == instant else nominal[i] for i in range(count)]
    return [int(10 ** rng.uniform(0, 6)) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class _Use:
    """An access of one operation to one residence.

    `cells` are pairs (cell, base): the cell, and the address that byte 0 of the block has if the cell is
    reached with it. `before` is the version that must be found (None: not read), `after` the version
    that is left behind (None: not written).
    """

    block: int
    residence: int
    cells: tuple[tuple[int, int], ...]
    before: int | None
    after: int | None


_Wanted = tuple[int, int | None, int | None, int | None]
"""A use that is not bound yet: block, residence if there is one, version before and version after."""


class Machine:
    """A program bound to its memory, ready to be replayed at any speed.

    An operation uses the residence of a block that was acquired latest in the list, at or before it: the
    pointers that an executor would bind when it is built.

    Attributes
    ----------
    faults
        What is wrong at every speed, found while binding.
    """

    def __init__(self, instance: Instance, schedule: Schedule) -> None:
        self._instance = instance
        self._schedule = schedule
        self.faults: list[Fault] = []
        self._index = {operation.id: i for i, operation in enumerate(schedule.operations)}
        self._bind_order()
        self._bind_residences()
        self._bind_cells()
        self._bind_uses()
        self._look_at_tasks()
        self._look_at_operations()
        self._look_at_residences()

    def replay(self, durations_ns: Sequence[int] | None, rng: Random) -> list[Fault]:
        """Execute the program once; see `replay`."""
        if durations_ns is not None:
            return [*self.faults, *_Replay(self, durations_ns, rng).faults]
        happened = _Replay(self, own_durations(self._instance, self._schedule), rng)
        return [*self.faults, *happened.faults, *self._figure_faults(happened.starts, happened.ends)]

    def _fault(self, kind: FaultKind, text: str) -> None:
        self.faults.append(Fault(kind, text))

    def _name(self, i: int) -> str:
        operation = self._schedule.operations[i]
        subject = (
            self._instance.tasks[_number(operation.task)].name
            if operation.kind == "run"
            else self._instance.blocks[_number(operation.block)].name
        )
        return f"{operation.kind} of '{subject}' (id {operation.id})"

    def _bind_order(self) -> None:
        """Successors and number of predecessors of every operation: its stream's, and its waits'."""
        operations = self._schedule.operations
        before: list[set[int]] = []
        last: dict[str, int] = {}
        for i, operation in enumerate(operations):
            predecessors = {self._index[other] for other in operation.after}
            if operation.stream in last:
                predecessors.add(last[operation.stream])
            before.append(predecessors)
            last[operation.stream] = i
        self._waits = [len(predecessors) for predecessors in before]
        self._successors: list[list[int]] = [[] for _ in operations]
        for i, predecessors in enumerate(before):
            for j in sorted(predecessors):
                self._successors[j].append(i)

    def _bind_residences(self) -> None:
        """Who acquires and who releases what; the residences that are there at time 0."""
        count = len(self._schedule.operations)
        self._acquires: list[list[int]] = [[] for _ in range(count)]
        self._releases: list[list[int]] = [[] for _ in range(count)]
        self._at_start: list[int] = []
        self._acquirer: list[int | None] = []
        self._release_count: list[int] = []
        for r, residence in enumerate(self._schedule.residences):
            acquirer = None if residence.acquired_by is None else self._index[residence.acquired_by]
            self._acquirer.append(acquirer)
            (self._at_start if acquirer is None else self._acquires[acquirer]).append(r)
            releases = {self._index[other] for other in residence.released_after}
            self._release_count.append(len(releases))
            for i in releases:
                self._releases[i].append(r)

    def _needed(self, residence: Residence) -> int:
        """Bytes that what lies in a residence really takes."""
        if residence.block is not None:
            return self._instance.blocks[residence.block].bytes
        run = self._schedule.operations[self._index[_number(residence.workspace_of)]]
        if run.kind != "run":
            return residence.bytes
        return self._instance.tasks[_number(run.task)].algorithms[_number(run.algorithm)].workspace_bytes

    def _bind_cells(self) -> None:
        """Cut the address space where any residence begins or ends; list the cells of every residence.

        In divisible memory every residence gets addresses of its own.
        """
        pieces: list[tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]] = []
        cursor = 0
        for residence in self._schedule.residences:
            needed = self._needed(residence)
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

        self._cell_count = len(cuts)
        self._owned = [tuple(cell for cell, _ in cells(owned)) for owned, _ in pieces]
        self._used = [cells(used) for _, used in pieces]
        sets = [frozenset(owned) for owned in self._owned]
        self._overlapping = [
            [other for other in range(len(sets)) if other != r and sets[r] & sets[other]]
            for r in range(len(sets))
        ]
        self._stays: dict[int, list[int]] = defaultdict(list)
        for r, residence in enumerate(self._schedule.residences):
            if residence.block is not None:
                self._stays[residence.block].append(r)

    def _bind_uses(self) -> None:
        """What every operation reads and writes where, in list order."""
        schedule = self._schedule
        place: dict[int, int] = {}
        for r in self._at_start:
            block = schedule.residences[r].block
            if block is not None:
                place[block] = r
        workspaces: dict[int, int] = {
            residence.workspace_of: r
            for r, residence in enumerate(schedule.residences)
            if residence.workspace_of is not None
        }
        self._uses: list[list[_Use]] = []
        self._source: list[int | None] = []
        for i, operation in enumerate(schedule.operations):
            previous = dict(place)
            for r in self._acquires[i]:
                block = schedule.residences[r].block
                if block is not None:
                    place[block] = r
            source = None
            if operation.kind == "run":
                uses = self._uses_of_run(i, operation, place, workspaces)
            else:
                block = _number(operation.block)
                wanted: list[tuple[int | None, int | None, int | None]]
                if operation.kind == "offload":
                    wanted = [(place.get(block), _AS_FOUND, None)]
                elif operation.kind == "prefetch":
                    wanted = [(self._acquired(i, block), None, _AS_FOUND)]
                else:
                    source = previous.get(block)
                    wanted = [(source, _AS_FOUND, None), (self._acquired(i, block), None, _AS_FOUND)]
                uses = self._bound(i, [(block, r, before, after) for r, before, after in wanted])
            self._uses.append(uses)
            self._source.append(source)
        self._place_at_end = place

    def _acquired(self, i: int, block: int) -> int | None:
        mine = [r for r in self._acquires[i] if self._schedule.residences[r].block == block]
        return mine[-1] if mine else None

    def _uses_of_run(
        self, i: int, operation: Operation, place: dict[int, int], workspaces: dict[int, int]
    ) -> list[_Use]:
        k = _number(operation.task)
        task = self._instance.tasks[k]

        def version(d: int) -> int:
            return sum(writer < k for writer in self._instance.writers[d])

        wanted: list[_Wanted] = [
            *((d, place.get(d), version(d), None) for d in task.inputs),
            *((d, place.get(d), version(d), version(d) + 1) for d in task.updates),
            *((d, place.get(d), None, version(d) + 1) for d in task.outputs),
        ]
        if task.algorithms[_number(operation.algorithm)].workspace_bytes:
            wanted.append((_NO_BLOCK, workspaces.get(operation.id), None, _GARBAGE))
        if self._schedule.memory_model == "contiguous":
            bases: dict[str, set[int]] = defaultdict(set)
            for d, r, _, _ in wanted:
                block = self._instance.blocks[d]
                if d != _NO_BLOCK and r is not None and block.tensor is not None:
                    offset = _number(self._schedule.residences[r].offset)
                    bases[block.tensor].add(offset - _number(block.begin))
            for tensor, several in bases.items():
                if len(several) > 1:
                    self._fault("data", f"{self._name(i)} finds the parts of '{tensor}' apart")
        return self._bound(i, wanted)

    def _bound(self, i: int, wanted: Iterable[_Wanted]) -> list[_Use]:
        uses = []
        for block, r, before, after in wanted:
            what = "workspace" if block == _NO_BLOCK else f"'{self._instance.blocks[block].name}'"
            if r is None:
                self._fault("data", f"{self._name(i)} has no place for {what}")
                continue
            residence = self._schedule.residences[r]
            room = residence.bytes
            if residence.extents is not None:
                room = min(room, sum(size for _, size in residence.extents))
            if self._needed(residence) > room:
                self._fault("data", f"{self._name(i)} overruns residences[{r}], too small for {what}")
            if len({cell for cell, _ in self._used[r]}) != len(self._used[r]):
                self._fault("data", f"{self._name(i)} has two addresses for the same bytes of {what}")
            uses.append(_Use(block, r, self._used[r], before, after))
        return uses

    def _look_at_tasks(self) -> None:
        """Every task has run, first runs in order; re-runs only where allowed, and not after an update."""
        done: set[int] = set()
        for i, operation in enumerate(self._schedule.operations):
            if operation.kind != "run":
                continue
            k = _number(operation.task)
            task = self._instance.tasks[k]
            if k not in done:
                if k != len(done):
                    self._fault("rule", f"{self._name(i)} is out of order")
            elif not task.recomputable:
                self._fault("rule", f"{self._name(i)} runs again, and is not recomputable")
            elif any(w in done for d in task.outputs for w in self._instance.writers[d] if w != k):
                self._fault("rule", f"{self._name(i)} runs again after an update of what it wrote")
            done.add(k)
        for k, task in enumerate(self._instance.tasks):
            if k not in done:
                self._fault("data", f"task '{task.name}' never runs")

    def _look_at_operations(self) -> None:
        """Streams are those of the kind and of the engines; a null time forbids a copy."""
        single = self._instance.engines == "single"
        streams = {
            "run": "compute",
            "move": "compute",
            "offload": "copy" if single else "d2h",
            "prefetch": "copy" if single else "h2d",
        }
        if self._schedule.instance != self._instance.name:
            self._fault("rule", f"the schedule is for '{self._schedule.instance}'")
        for i, operation in enumerate(self._schedule.operations):
            if operation.stream != streams[operation.kind]:
                self._fault("rule", f"{self._name(i)} is on stream {operation.stream}")
            if operation.kind != "run" and _copy_ns(self._instance, operation) is None:
                self._fault("rule", f"{self._name(i)}: the block never moves that way")

    def _look_at_residences(self) -> None:
        """Sizes, alignment, the pool, and who may acquire and release what."""
        instance, schedule = self._instance, self._schedule
        if instance.pool_bytes < 0:
            self._fault("data", "resident bytes are above the budget")
        if schedule.page_bytes is not None:
            for block in instance.blocks:
                if block.begin is not None and block.begin % schedule.page_bytes:
                    self._fault("rule", f"part '{block.name}' does not begin on a page")
        for r, residence in enumerate(schedule.residences):
            where = f"residences[{r}]"
            if residence.bytes != self._needed(residence):
                self._fault("rule", f"{where} has {residence.bytes} bytes for {self._needed(residence)}")
            if residence.offset is not None:
                if residence.offset % instance.alignment_bytes:
                    self._fault("rule", f"{where} is not aligned")
                if residence.offset + residence.bytes > instance.pool_bytes:
                    self._fault("data", f"{where} lies outside the pool")
            if residence.extents is not None:
                self._look_at_extents(where, residence)
            if residence.block is None:
                self._look_at_workspace(where, residence)
            else:
                self._look_at_acquirer(where, r, residence.block)
        for i, acquired in enumerate(self._acquires):
            blocks = [schedule.residences[r].block for r in acquired]
            if len(set(blocks)) != len(blocks):
                self._fault("rule", f"{self._name(i)} acquires two residences of one thing")

    def _look_at_extents(self, where: str, residence: Residence) -> None:
        page = _number(self._schedule.page_bytes)
        extents = residence.extents or ()
        if any(edge % page for extent in extents for edge in extent):
            self._fault("rule", f"{where} is not of whole pages")
        if sum(size for _, size in extents) != -(-residence.bytes // page) * page:
            self._fault("rule", f"{where} has too many or too few pages")
        if max((address + size for address, size in extents), default=0) > self._instance.pool_bytes:
            self._fault("data", f"{where} lies outside the pool")
        edges = sorted((address, address + size) for address, size in extents)
        if any(end > begin for (_, end), (begin, _) in pairwise(edges)):
            self._fault("rule", f"{where} has a page twice")

    def _look_at_workspace(self, where: str, residence: Residence) -> None:
        run = residence.workspace_of
        operation = self._schedule.operations[self._index[_number(run)]]
        if operation.kind != "run" or not self._needed(residence):
            self._fault("rule", f"{where} is a workspace of nothing that needs one")
        if residence.acquired_by != run or residence.released_after != (run,):
            self._fault("rule", f"{where} is not held for its run and no longer")

    def _look_at_acquirer(self, where: str, r: int, block: int) -> None:
        i = self._acquirer[r]
        if i is None:
            if self._instance.blocks[block].initially != "device":
                self._fault("rule", f"{where} is there from the start, and its block is not")
            return
        operation = self._schedule.operations[i]
        writes = (
            block in self._instance.tasks[_number(operation.task)].outputs
            if operation.kind == "run"
            else operation.kind != "offload" and operation.block == block
        )
        if not writes:
            self._fault("rule", f"{where} is acquired by {self._name(i)}, which does not write it")

    def _figure_faults(self, starts: list[int], ends: list[int]) -> list[Fault]:
        """Compare what is reported with what happened at the instance's own durations."""
        schedule, instance = self._schedule, self._instance
        faults = []
        for i, operation in enumerate(schedule.operations):
            if (operation.start_ns, operation.end_ns) != (starts[i], ends[i]):
                faults.append(Fault("figure", f"{self._name(i)} ran from {starts[i]} to {ends[i]}"))
        makespan = max(ends, default=0)
        if schedule.makespan_ns != makespan:
            faults.append(Fault("figure", f"the makespan was {makespan}"))
        if schedule.memory_model == "divisible":
            top = self._largest_live_sum(starts, ends)
            if top > instance.pool_bytes:
                faults.append(Fault("data", f"the live sum reached {top}, the pool is {instance.pool_bytes}"))
        else:
            top = max(
                (
                    end
                    for residence in schedule.residences
                    for begin, size in residence.extents or ((residence.offset or 0, residence.bytes),)
                    for end in (begin + size,)
                ),
                default=0,
            )
        if schedule.peak_bytes != instance.resident_bytes + top:
            faults.append(Fault("figure", f"the peak was {instance.resident_bytes + top}"))
        return faults

    def _largest_live_sum(self, starts: list[int], ends: list[int]) -> int:
        """What ends at t is gone for what starts at t; what is kept to the end counts to the makespan."""
        changes: list[tuple[int, int]] = []
        for r, residence in enumerate(self._schedule.residences):
            acquirer = self._acquirer[r]
            begin = 0 if acquirer is None else starts[acquirer]
            releases = [ends[self._index[other]] for other in residence.released_after]
            end = max(releases, default=max(ends, default=0))
            changes += [(begin, residence.bytes), (max(begin, end), -residence.bytes)]
        return max(accumulate((change for _, change in sorted(changes)), initial=0))


class _Replay:
    """One execution: the state of the machine, from the first event to the last."""

    def __init__(self, machine: Machine, durations_ns: Sequence[int], rng: Random) -> None:
        self._m = machine
        blocks = machine._instance.blocks
        count = len(durations_ns)
        self.faults: list[Fault] = []
        self.starts = [0] * count
        self.ends = [0] * count
        self._ended = [False] * count
        self._content: list[tuple[int, int, int, int]] = [(_NO_BLOCK, _GARBAGE, 0, 0)] * machine._cell_count
        self._owner = [-1] * machine._cell_count
        self._stamps = 0
        self._acquired = [False] * len(machine._owned)
        self._pending = list(machine._release_count)
        self._gone = [False] * len(machine._owned)
        self._host = [(_GARBAGE if block.initially == "absent" else 0, 0) for block in blocks]
        self._latest = [_GARBAGE if block.initially == "absent" else 0 for block in blocks]
        self._copying = [0] * len(blocks)
        self._writing = [0] * len(blocks)
        self._held: list[list[tuple[int, ...]]] = [[] for _ in range(count)]
        self._found = [_GARBAGE] * count
        self._host_stamp = [0] * count
        self._place_initial_blocks()
        self._execute(durations_ns, rng)
        self._look_at_the_end()

    def _fault(self, kind: FaultKind, text: str) -> None:
        self.faults.append(Fault(kind, text))

    def _block(self, d: int) -> str:
        return "workspace" if d == _NO_BLOCK else f"'{self._m._instance.blocks[d].name}'"

    def _place_initial_blocks(self) -> None:
        for r in self._m._at_start:
            self._acquire(r, None)
            block = self._m._schedule.residences[r].block
            if block is not None and self._m._instance.blocks[block].initially == "device":
                self._write(block, self._m._used[r], 0)

    def _execute(self, durations_ns: Sequence[int], rng: Random) -> None:
        """Take events in order of time, and those of one time in random order."""
        waits = list(self._m._waits)
        events = [(0, rng.random(), i, True) for i, count in enumerate(waits) if not count]
        heapq.heapify(events)
        while events:
            now, _, i, starts = heapq.heappop(events)
            if starts:
                self.starts[i] = now
                self._start(i)
                heapq.heappush(events, (now + durations_ns[i], rng.random(), i, False))
                continue
            self.ends[i] = now
            self._end(i)
            for j in self._m._successors[i]:
                waits[j] -= 1
                if not waits[j]:
                    heapq.heappush(events, (now, rng.random(), j, True))

    def _start(self, i: int) -> None:
        m = self._m
        for r in m._releases[i]:
            acquirer = m._acquirer[r]
            if acquirer is not None and acquirer != i and not self._ended[acquirer]:
                self._fault("rule", f"{m._name(i)} releases residences[{r}], which is not there yet")
        for r in m._acquires[i]:
            self._acquire(r, i)
        kind = m._schedule.operations[i].kind
        block = m._schedule.operations[i].block
        if block is not None:
            self._start_copy(i, kind, block)
        held = self._held[i]
        for use in m._uses[i]:
            if not self._acquired[use.residence] or self._gone[use.residence]:
                self._fault("data", f"{m._name(i)} uses {self._block(use.block)} outside its stay")
            if use.before is not None:
                self._read(i, use)
            held.append(tuple([self._content[cell][3] for cell, _ in use.cells]))
        for n, use in enumerate(m._uses[i]):
            if use.after is not None:
                held[n] = (self._write(use.block, use.cells, _GARBAGE),) * len(use.cells)
                if kind == "run" and use.block != _NO_BLOCK:
                    self._writing[use.block] += 1
                    if self._copying[use.block]:
                        self._fault("rule", f"{m._name(i)} writes a block during a copy of it")

    def _start_copy(self, i: int, kind: str, block: int) -> None:
        self._copying[block] += 1
        if self._writing[block]:
            self._fault("rule", f"{self._m._name(i)} overlaps a run that writes it")
        if kind == "prefetch":
            version, self._host_stamp[i] = self._host[block]
            self._found[i] = version
            if version == _GARBAGE:
                self._fault("data", f"{self._m._name(i)} finds no copy on the host")
            elif version != self._latest[block]:
                self._fault("rule", f"{self._m._name(i)} reads a stale copy on the host")
        elif kind == "offload":
            self._host[block] = (_GARBAGE, self._next_stamp())

    def _end(self, i: int) -> None:
        m = self._m
        operation = m._schedule.operations[i]
        self._ended[i] = True
        for use, stamps in zip(m._uses[i], self._held[i], strict=True):
            if self._gone[use.residence]:
                self._fault("data", f"{m._name(i)}: {self._block(use.block)} is released while in use")
            if any(
                self._content[cell][3] != stamp for (cell, _), stamp in zip(use.cells, stamps, strict=True)
            ):
                self._fault("data", f"{m._name(i)}: {self._block(use.block)} is overwritten while in use")
                if use.before == _AS_FOUND:
                    self._found[i] = _GARBAGE
        block = operation.block
        if block is not None:
            self._copying[block] -= 1
            if operation.kind == "offload":
                self._host[block] = (self._found[i], self._next_stamp())
            elif operation.kind == "prefetch" and self._host[block][1] != self._host_stamp[i]:
                self._fault("data", f"{m._name(i)}: the copy on the host changes meanwhile")
                self._found[i] = _GARBAGE
        for use in m._uses[i]:
            if use.after is not None and use.block != _NO_BLOCK:
                version = self._found[i] if use.after == _AS_FOUND else use.after
                self._write(use.block, use.cells, version)
                if operation.kind == "run":
                    self._writing[use.block] -= 1
                    self._latest[use.block] = max(self._latest[use.block], version)
        for r in m._releases[i]:
            self._pending[r] -= 1
            if not self._pending[r]:
                self._release(r)
        source = m._source[i]
        if source is not None and not self._gone[source]:
            self._fault("rule", f"{m._name(i)} has ended and its source is still held")

    def _acquire(self, r: int, i: int | None) -> None:
        m = self._m
        self._acquired[r] = True
        source = None if i is None else m._source[i]
        for other in m._overlapping[r]:
            if self._is_live(other):
                together = m._acquirer[r] == m._acquirer[other]
                self._fault(
                    "rule" if together else "data",
                    f"residences[{r}] is acquired over residences[{other}], which is still held",
                )
        block = m._schedule.residences[r].block
        if block is not None:
            for other in m._stays[block]:
                if other not in (r, source) and self._is_live(other):
                    self._fault("rule", f"{self._block(block)} has two residences at a time")
        for cell in m._owned[r]:
            self._owner[cell] = r

    def _is_live(self, r: int) -> bool:
        return self._acquired[r] and not self._gone[r]

    def _release(self, r: int) -> None:
        self._gone[r] = True
        stamp = self._next_stamp()
        for cell in self._m._owned[r]:
            if self._owner[cell] == r:
                self._content[cell] = (_NO_BLOCK, _GARBAGE, 0, stamp)

    def _read(self, i: int, use: _Use) -> None:
        """Look whether the block is there, whole and in the right version."""
        found = {self._content[cell][1] for cell, _ in use.cells}
        right = all(
            self._content[cell][0] == use.block and self._content[cell][2] == base for cell, base in use.cells
        )
        if not right or len(found) != 1 or _GARBAGE in found:
            self._fault("data", f"{self._m._name(i)} does not find {self._block(use.block)}")
            return
        version = found.pop()
        if use.before == _AS_FOUND:
            self._found[i] = version
            if version != self._latest[use.block]:
                self._fault("rule", f"{self._m._name(i)} copies an outdated {self._block(use.block)}")
        elif version != use.before:
            self._fault(
                "data",
                f"{self._m._name(i)} finds version {version} of {self._block(use.block)}, not {use.before}",
            )

    def _write(self, block: int, cells: tuple[tuple[int, int], ...], version: int) -> int:
        stamp = self._next_stamp()
        for cell, base in cells:
            self._content[cell] = (block, version, base, stamp)
        return stamp

    def _next_stamp(self) -> int:
        self._stamps += 1
        return self._stamps

    def _look_at_the_end(self) -> None:
        m = self._m
        for d, block in enumerate(m._instance.blocks):
            wanted = len(m._instance.writers[d])
            if block.finally_ == "host" and self._host[d][0] != wanted:
                self._fault("data", f"{self._block(d)} is not on the host at the end")
            if block.finally_ == "device":
                r = m._place_at_end.get(d)
                if (
                    r is None
                    or not self._is_live(r)
                    or any(self._content[cell][:3] != (d, wanted, base) for cell, base in m._used[r])
                ):
                    self._fault("data", f"{self._block(d)} is not on the device at the end")


def _copy_ns(instance: Instance, operation: Operation) -> int | None:
    """Duration of a copy as the instance gives it; None where the block never moves that way."""
    block = instance.blocks[_number(operation.block)]
    return {"offload": block.offload_ns, "prefetch": block.prefetch_ns, "move": block.move_ns}[operation.kind]


def _number(value: int | None) -> int:
    """A key that the format guarantees to be there."""
    assert value is not None
    return value
