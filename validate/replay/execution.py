"""One execution of a bound program, on memory that remembers what every byte holds."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from random import Random

from .binding import AS_FOUND, GARBAGE, NO_BLOCK, Binding, Use
from .fault import Fault, FaultKind


class Execution:
    """One execution: the state of the machine, from the first event to the last.

    Parameters
    ----------
    bound
        The program, bound to its memory.
    durations_ns
        Duration of each operation in nanoseconds; zeros are allowed.
    rng
        Generator that chooses the order of simultaneous events that the program does not order.

    Attributes
    ----------
    faults
        The faults found.
    starts, ends
        Start and end of each operation in nanoseconds.
    """

    def __init__(self, bound: Binding, durations_ns: Sequence[int], rng: Random) -> None:
        self._bound = bound
        blocks = bound.instance.blocks
        count = len(durations_ns)
        self.faults: list[Fault] = []
        self.starts = [0] * count
        self.ends = [0] * count
        self._ended = [False] * count
        self._content: list[tuple[int, int, int, int]] = [(NO_BLOCK, GARBAGE, 0, 0)] * bound.cell_count
        self._owner = [-1] * bound.cell_count
        self._stamps = 0
        self._acquired = [False] * len(bound.owned)
        self._pending = list(bound.release_count)
        self._gone = [False] * len(bound.owned)
        self._host = [(GARBAGE if block.initially == "absent" else 0, 0) for block in blocks]
        self._latest = [GARBAGE if block.initially == "absent" else 0 for block in blocks]
        self._copying = [0] * len(blocks)
        self._writing = [0] * len(blocks)
        self._held: list[list[tuple[int, ...]]] = [[] for _ in range(count)]
        self._found = [GARBAGE] * count
        self._host_stamp = [0] * count
        self._place_initial_blocks()
        self._execute(durations_ns, rng)
        self._look_at_the_end()

    def _fault(self, kind: FaultKind, text: str) -> None:
        self.faults.append(Fault(kind, text))

    def _block(self, d: int) -> str:
        return "workspace" if d == NO_BLOCK else f"'{self._bound.instance.blocks[d].name}'"

    def _place_initial_blocks(self) -> None:
        for r in self._bound.at_start:
            self._acquire(r, None)
            block = self._bound.schedule.residences[r].block
            if block is not None and self._bound.instance.blocks[block].initially == "device":
                self._write(block, self._bound.used[r], 0)

    def _execute(self, durations_ns: Sequence[int], rng: Random) -> None:
        """Take events in order of time, and those of one time in random order."""
        waits = list(self._bound.waits)
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
            for j in self._bound.successors[i]:
                waits[j] -= 1
                if not waits[j]:
                    heapq.heappush(events, (now, rng.random(), j, True))

    def _start(self, i: int) -> None:
        bound = self._bound
        for r in bound.releases[i]:
            acquirer = bound.acquirer[r]
            if acquirer is not None and acquirer != i and not self._ended[acquirer]:
                self._fault("rule", f"{bound.name(i)} releases residences[{r}], which is not there yet")
        for r in bound.acquires[i]:
            self._acquire(r, i)
        kind = bound.schedule.operations[i].kind
        block = bound.schedule.operations[i].block
        if block is not None:
            self._start_copy(i, kind, block)
        held = self._held[i]
        for use in bound.uses[i]:
            if not self._acquired[use.residence] or self._gone[use.residence]:
                self._fault("data", f"{bound.name(i)} uses {self._block(use.block)} outside its stay")
            if use.before is not None:
                self._read(i, use)
            held.append(tuple([self._content[cell][3] for cell, _ in use.cells]))
        for n, use in enumerate(bound.uses[i]):
            if use.after is not None:
                held[n] = (self._write(use.block, use.cells, GARBAGE),) * len(use.cells)
                if kind == "run" and use.block != NO_BLOCK:
                    self._writing[use.block] += 1
                    if self._copying[use.block]:
                        self._fault("rule", f"{bound.name(i)} writes a block during a copy of it")

    def _start_copy(self, i: int, kind: str, block: int) -> None:
        self._copying[block] += 1
        if self._writing[block]:
            self._fault("rule", f"{self._bound.name(i)} overlaps a run that writes it")
        if kind == "prefetch":
            version, self._host_stamp[i] = self._host[block]
            self._found[i] = version
            if version == GARBAGE:
                self._fault("data", f"{self._bound.name(i)} finds no copy on the host")
            elif version != self._latest[block]:
                self._fault("rule", f"{self._bound.name(i)} reads a stale copy on the host")
        elif kind == "offload":
            self._host[block] = (GARBAGE, self._next_stamp())

    def _end(self, i: int) -> None:
        bound = self._bound
        operation = bound.schedule.operations[i]
        self._ended[i] = True
        for use, stamps in zip(bound.uses[i], self._held[i], strict=True):
            if self._gone[use.residence]:
                self._fault("data", f"{bound.name(i)}: {self._block(use.block)} is released while in use")
            if any(
                self._content[cell][3] != stamp for (cell, _), stamp in zip(use.cells, stamps, strict=True)
            ):
                self._fault("data", f"{bound.name(i)}: {self._block(use.block)} is overwritten while in use")
                if use.before == AS_FOUND:
                    self._found[i] = GARBAGE
        block = operation.block
        if block is not None:
            self._copying[block] -= 1
            if operation.kind == "offload":
                self._host[block] = (self._found[i], self._next_stamp())
            elif operation.kind == "prefetch" and self._host[block][1] != self._host_stamp[i]:
                self._fault("data", f"{bound.name(i)}: the copy on the host changes meanwhile")
                self._found[i] = GARBAGE
        for use in bound.uses[i]:
            if use.after is not None and use.block != NO_BLOCK:
                version = self._found[i] if use.after == AS_FOUND else use.after
                self._write(use.block, use.cells, version)
                if operation.kind == "run":
                    self._writing[use.block] -= 1
                    self._latest[use.block] = max(self._latest[use.block], version)
        for r in bound.releases[i]:
            self._pending[r] -= 1
            if not self._pending[r]:
                self._release(r)
        source = bound.source[i]
        if source is not None and not self._gone[source]:
            self._fault("rule", f"{bound.name(i)} has ended and its source is still held")

    def _acquire(self, r: int, i: int | None) -> None:
        bound = self._bound
        self._acquired[r] = True
        source = None if i is None else bound.source[i]
        for other in bound.overlapping[r]:
            if self._is_live(other):
                together = bound.acquirer[r] == bound.acquirer[other]
                self._fault(
                    "rule" if together else "data",
                    f"residences[{r}] is acquired over residences[{other}], which is still held",
                )
        block = bound.schedule.residences[r].block
        if block is not None:
            for other in bound.stays[block]:
                if other not in (r, source) and self._is_live(other):
                    self._fault("rule", f"{self._block(block)} has two residences at a time")
        for cell in bound.owned[r]:
            self._owner[cell] = r

    def _is_live(self, r: int) -> bool:
        return self._acquired[r] and not self._gone[r]

    def _release(self, r: int) -> None:
        self._gone[r] = True
        stamp = self._next_stamp()
        for cell in self._bound.owned[r]:
            if self._owner[cell] == r:
                self._content[cell] = (NO_BLOCK, GARBAGE, 0, stamp)

    def _read(self, i: int, use: Use) -> None:
        """Check whether the block is there, whole and in the right version."""
        found = {self._content[cell][1] for cell, _ in use.cells}
        right = all(
            self._content[cell][0] == use.block and self._content[cell][2] == base for cell, base in use.cells
        )
        if not right or len(found) != 1 or GARBAGE in found:
            self._fault("data", f"{self._bound.name(i)} does not find {self._block(use.block)}")
            return
        version = found.pop()
        if use.before == AS_FOUND:
            self._found[i] = version
            if version != self._latest[use.block]:
                self._fault("rule", f"{self._bound.name(i)} copies an outdated {self._block(use.block)}")
        elif version != use.before:
            self._fault(
                "data",
                f"{self._bound.name(i)} finds version {version} of {self._block(use.block)}, "
                f"not {use.before}",
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
        bound = self._bound
        for d, block in enumerate(bound.instance.blocks):
            wanted = len(bound.instance.writers[d])
            if block.finally_ == "host" and self._host[d][0] != wanted:
                self._fault("data", f"{self._block(d)} is not on the host at the end")
            if block.finally_ == "device":
                r = bound.place_at_end.get(d)
                if (
                    r is None
                    or not self._is_live(r)
                    or any(self._content[cell][:3] != (d, wanted, base) for cell, base in bound.used[r])
                ):
                    self._fault("data", f"{self._block(d)} is not on the device at the end")
