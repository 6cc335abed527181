"""One execution of a bound program, on memories that remember what every byte holds."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from random import Random

from .binding import AS_FOUND, Binding, Side, Use
from .durations import number
from .fault import Fault, FaultKind
from .layout import Piece
from .memory import GARBAGE, NO_BLOCK, Memory


class Execution:
    """One execution: the state of the machine, from the first event to the last.

    Parameters
    ----------
    bound
        The program, bound to its memories.
    durations_ns
        Duration of each operation in nanoseconds; zeros are allowed.
    rng
        Generator that chooses the order of simultaneous events that the program does not order.
    before
        The round before, which has left the carried blocks; None: this is the first round, and it finds their
        first versions where the schedule says.

    Attributes
    ----------
    faults
        The faults found.
    starts, ends
        Start and end of each operation in nanoseconds.
    """

    def __init__(
        self,
        bound: Binding,
        durations_ns: Sequence[int],
        rng: Random,
        before: Execution | None = None,
    ) -> None:
        self._bound = bound
        blocks = bound.instance.blocks
        count = len(durations_ns)
        self.faults: list[Fault] = []
        self.starts = [0] * count
        self.ends = [0] * count
        self._ended = [False] * count
        self._memories: dict[Side, Memory] = {
            side: Memory(layout, self._fault) for side, layout in bound.layouts.items()
        }
        self._copying = [0] * len(blocks)
        self._writing = [0] * len(blocks)
        self._held: list[list[list[int]]] = [[] for _ in range(count)]
        self._found = [GARBAGE] * count
        self._place_initial_blocks(before)
        self._execute(durations_ns, rng)
        self._look_at_the_end()

    def _fault(self, kind: FaultKind, text: str) -> None:
        self.faults.append(Fault(kind, text))

    def _place_initial_blocks(self, before: Execution | None) -> None:
        """Let what is there from the start hold its block, if that begins on that side.

        It is the first version, but for a carried block: that is what the round before has left there.
        """
        for side, layout in self._bound.layouts.items():
            for r in layout.at_start:
                self._acquire(side, r, None)
                d = layout.residences[r].block
                if d is None or side not in self._bound.begins[d]:
                    continue
                is_carried = self._bound.instance.blocks[d].initially == "carried"
                version = before.left(side, d, layout.pieces[r]) if before is not None and is_carried else 0
                self._memories[side].write(d, layout.used[r], version)

    def left(self, side: Side, block: int, pieces: Sequence[Piece]) -> int:
        """Return the version of a block that has been left where the next round looks for it.

        In divisible memory there are no addresses, so that the next round finds the block's last residence.
        """
        layout = self._bound.layouts[side]
        if self._bound.schedule.memory_model == "divisible":
            r = self._bound.last_place[side].get(block)
            return GARBAGE if r is None else self._memories[side].version(block, layout.used[r])
        return self._memories[side].version(block, layout.cells_at(pieces))

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
        for layout in bound.layouts.values():
            for r in layout.releases[i]:
                acquirer = layout.acquirer[r]
                if acquirer is not None and acquirer != i and not self._ended[acquirer]:
                    self._fault("rule", f"{bound.name(i)} releases {layout.name(r)}, which is not there yet")
        for side, layout in bound.layouts.items():
            for r in layout.acquires[i]:
                self._acquire(side, r, i)
        operation = bound.schedule.operations[i]
        if operation.block is not None and operation.kind != "move":
            self._copying[operation.block] += 1
            if self._writing[operation.block]:
                self._fault("rule", f"{bound.name(i)} overlaps a run that writes it")
        held = self._held[i]
        for use in bound.uses[i]:
            memory = self._memories[use.side]
            if not memory.is_live(use.residence):
                self._fault("data", f"{bound.name(i)} uses {self._what(use)} outside its stay")
            if use.before is not None:
                self._read(i, use)
            held.append([] if use.after is not None else memory.stamps(use.cells))
        taken = set(bound.taken[i].values())
        for n, use in enumerate(bound.uses[i]):
            if use.after is not None:
                memory = self._memories[use.side]
                memory.write(use.block, use.cells, GARBAGE)
                held[n] = memory.stamps(use.cells)
                if operation.kind == "run" and use.block != NO_BLOCK:
                    self._writing[use.block] += 1
                    if self._copying[use.block]:
                        self._fault("rule", f"{bound.name(i)} writes a block during a copy of it")

        for n, use in enumerate(bound.uses[i]):
            if use.after is None and use.residence in taken and use.side == "device":
                held[n] = self._memories["device"].stamps(use.cells)  # those of what takes its place

    def _what(self, use: Use) -> str:
        return self._bound.block_name(use.side, use.block)

    def _end(self, i: int) -> None:
        bound = self._bound
        operation = bound.schedule.operations[i]
        self._ended[i] = True
        for use, stamps in zip(bound.uses[i], self._held[i], strict=True):
            memory = self._memories[use.side]
            if memory.is_gone(use.residence):
                self._fault("data", f"{bound.name(i)}: {self._what(use)} is released while in use")
            if memory.stamps(use.cells) != stamps:
                self._fault("data", f"{bound.name(i)}: {self._what(use)} is overwritten while in use")
                if use.before == AS_FOUND:
                    self._found[i] = GARBAGE
        if operation.block is not None and operation.kind != "move":
            self._copying[operation.block] -= 1
        for use in bound.uses[i]:
            if use.after is not None and use.block != NO_BLOCK:
                version = self._found[i] if use.after == AS_FOUND else use.after
                self._memories[use.side].write(use.block, use.cells, version)
                if operation.kind == "run":
                    self._writing[use.block] -= 1
        for memory in self._memories.values():
            memory.end(i)
        source = bound.source[i]
        if source is not None and not self._memories["device"].is_gone(source):
            self._fault("rule", f"{bound.name(i)} has ended and its source is still held")

    def _acquire(self, side: Side, r: int, i: int | None) -> None:
        """Acquire a residence; beside it a block may only have the one that a move copies from."""
        source = self._bound.source[i] if i is not None and side == "device" else None
        block = self._bound.layouts[side].residences[r].block
        memory, taken = self._memories[side], None
        if i is not None and side == "device":
            taken = self._bound.taken[i].get(r)
            if taken is not None and not memory.ends_with(taken, i):
                name = self._bound.layouts[side].name(taken)
                self._fault("data", f"{self._bound.name(i)} takes over {name}, which does not end with it")
        for _ in memory.acquire(r, source, taken):
            what = self._bound.block_name(side, number(block))
            self._fault("rule", f"{what} has two residences at a time")

    def _read(self, i: int, use: Use) -> None:
        """Check whether the block is there, whole and in the right version."""
        version = self._memories[use.side].version(use.block, use.cells)
        name, what = self._bound.name(i), self._what(use)
        if version == GARBAGE:
            self._fault("data", f"{name} does not find {what}")
        elif use.before == AS_FOUND:
            self._found[i] = version
            if version != self._bound.copied[i]:
                self._fault("rule", f"{name} copies an outdated {what}")
        elif version != use.before:
            self._fault("data", f"{name} finds version {version} of {what}, not {use.before}")

    def _look_at_the_end(self) -> None:
        """Check that every block has its last version where it must be when the round ends."""
        bound = self._bound
        for d, block in enumerate(bound.instance.blocks):
            for side, layout in bound.layouts.items():
                if side not in bound.ends[d]:
                    continue
                memory, r = self._memories[side], bound.last_place[side].get(d)
                wanted = bound.first[d] + len(bound.instance.writers[d])
                if r is None or not memory.is_live(r) or memory.version(d, layout.used[r]) != wanted:
                    self._fault("data", f"'{block.name}' is not on the {side} at the end")
