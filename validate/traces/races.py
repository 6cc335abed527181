"""The check of a trace: whether some durations of its operations corrupt data.

An **execution** of a trace gives every operation a start and an end. An operation starts when the one before
it on its stream, the last earlier one of the issuing thread, and all that it waits for have ended; from there
on it may take any time. Operations touch bytes: some are read, others written, and what an allocator acquires
or frees counts as written. Two operations **conflict** if one writes bytes that the other touches. An
execution is **intact** if no two conflicting operations are under way at once, and every operation finds in
its bytes what it finds when the list runs from top to bottom, one operation at a time.

*Theorem.* All executions of a trace are intact if and only if every two conflicting operations are ordered:
the later one in the list waits for the earlier one, directly or by way of others.

*Proof.* Waits lead back in the list only, so that what is ordered is ordered as in the list. (1) If all
conflicting operations are ordered, no two are ever under way at once. For every byte, the writes are a chain,
and each read has its place in it, which is the place that it has in the list. So in every execution each
read finds what the same write has left, and by induction over the list this write has written the same.
(2) Let `p` and `q` conflict, `p` earlier in the list and `q` without a wait for it. Let both take long and
all else no time. What `p` waits for is earlier in the list, so that `q` is not among it: it ends at time 0,
and `p` starts. What `q` waits for is not ordered after `p`, else `q` would be: it ends at time 0, too, and
`q` starts while `p` is under way. QED.

So bytes suffice, and one pass over the list: it keeps for each byte the last operation that has written it,
and on each stream the last one that has read it since. If a new operation is ordered after those that it
conflicts with, it is ordered after all earlier ones, because these are ordered among themselves. The order
itself is that of the checker of schedules: vector clocks (Mattern, "Virtual Time and Global States of
Distributed Systems", 1989), in `..order`.

What is wrong even when the list runs from top to bottom is found in the same pass: bytes that are read after
an acquisition with no write between, that are touched after they were freed or through a buffer whose bytes
another one has acquired, and bytes that are given out twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..check import CheckReport
from ..order import NEVER, Clocks
from .trace import ALLOCATIONS, Trace, as_from_file

_WORDS = {"acquire": ("acquire", "acquired"), "free": ("free", "freed")}


def check_trace(trace: Trace) -> CheckReport:
    """Prove that no timing of a trace corrupts data, or say what does.

    Parameters
    ----------
    trace
        What was issued to streams, with waits and buffers.

    Returns
    -------
    CheckReport
        Whether all executions are intact. If not, the reasons: which operation may touch which bytes too
        early, and what it should wait for. Of the races for some bytes, those with what touched them last
        are named.

    Raises
    ------
    FormatError
        When a file cannot hold the trace.
    """
    reasons = tuple(_Pass(as_from_file(trace)).reasons())
    return CheckReport(not reasons, reasons)


class _Pass:
    """The pass over the list; who has touched each cell last, and how.

    A cell is a range of bytes of which every buffer has all or nothing. Those of a buffer are numbered one
    after the other.
    """

    def __init__(self, trace: Trace) -> None:
        self.operations = trace.operations
        self.buffers = trace.buffers
        self.number = {buffer.name: b for b, buffer in enumerate(trace.buffers)}
        self.cells, self.sizes = _cells(trace)
        self.order = Clocks([operation.stream for operation in self.operations], trace.predecessors())
        self.first_allocations: dict[str, str] = {}
        for operation in self.operations:
            if operation.kind in ALLOCATIONS:
                for name in operation.writes:
                    self.first_allocations.setdefault(name, operation.kind)
        self.writers = np.full(len(self.sizes), NEVER)
        self.readers = {  # since the last write, the last of each stream
            operation.stream: np.full(len(self.sizes), NEVER) for operation in self.operations
        }
        self.allocations = np.full(len(self.sizes), NEVER)
        self.holders = np.full(len(self.sizes), NEVER)  # the buffers that were acquired or freed there

    def reasons(self) -> Iterator[str]:
        """Yield every reason why the trace is not intact."""
        for q, operation in enumerate(self.operations):
            for name in dict.fromkeys((*operation.reads, *operation.writes)):
                if (told := self.misuse(q, name)) is not None:
                    yield told
                if operation.kind in ALLOCATIONS:
                    self.allocations[self.cells[name]] = q
                    self.holders[self.cells[name]] = self.number[name]
            for p in sorted(self.neighbours(q)):
                if p not in (NEVER, q) and not self.order.ends_before(p, q):
                    yield self.race(p, q)
            for name in operation.reads:
                self.readers[operation.stream][self.cells[name]] = q
            for name in operation.writes:
                self.writers[self.cells[name]] = q
                for readers in self.readers.values():
                    readers[self.cells[name]] = NEVER

    # --- between operations -----------------------------------------------------------------------

    def neighbours(self, q: int) -> set[int]:
        """Return the operations that operation `q` conflicts with and that touched the same bytes last."""
        operation = self.operations[q]
        found: set[int] = set()
        for name in (*operation.reads, *operation.writes):
            found.update(self.writers[self.cells[name]].tolist())
        for name in operation.writes:
            for readers in self.readers.values():
                found.update(readers[self.cells[name]].tolist())
        return found

    def race(self, p: int, q: int) -> str:
        """Return the reason of a race in words, and the wait that mends it."""
        first, second = self.operations[p], self.operations[q]
        write, written = _WORDS.get(second.kind, ("write",))[0], _WORDS.get(first.kind, ("", "written"))[1]
        ways = (
            ("read", second.reads, written, first.writes),
            (write, second.writes, written, first.writes),
            (write, second.writes, "read", first.reads),
        )
        do, done, shared = next(
            (do, done, shared)
            for do, done, shared in ((do, done, self.shared(mine, theirs)) for do, mine, done, theirs in ways)
            if shared
        )
        name, other = next(iter(shared.values()))
        what = "it" if name == other else f"'{other}', which has the same bytes"
        waits = "it" if second.stream is not None else "the host"
        return (
            f"{self.name(q)} may {do} '{name}' before {self.name(p)} has {done} {what} "
            f"({self.extent(shared, name)}); let {waits} wait for operation {p} first"
        )

    def shared(self, mine: Iterable[str], theirs: Iterable[str]) -> dict[int, tuple[str, str]]:
        """Return the cells that some buffers share with others, each with a buffer of both."""
        found: dict[int, tuple[str, str]] = {}
        for a in mine:
            for b in theirs:
                first = max(self.cells[a].start, self.cells[b].start)
                last = min(self.cells[a].stop, self.cells[b].stop)
                found |= {c: (a, b) for c in range(first, last) if c not in found}
        return found

    # --- in the order of the list -----------------------------------------------------------------

    def misuse(self, q: int, name: str) -> str | None:
        """Return what is wrong with an operation's use of a buffer even if nothing runs side by side."""
        if not self.first_allocations:
            return None
        operation, cells = self.operations[q], self.cells[name]
        acquires, own = operation.kind == "acquire", self.first_allocations.get(name)
        states = zip(self.allocations[cells].tolist(), self.holders[cells].tolist(), strict=True)
        for a, h in dict.fromkeys(states):
            if a == NEVER:
                if own == "acquire" and not acquires:
                    return f"{self.name(q)} uses '{name}' before anything has acquired it"
                continue
            holder, held = self.buffers[h].name, self.operations[a].kind == "acquire"
            as_what = "it" if holder == name else f"its bytes as '{holder}'"
            if acquires and held:
                return (
                    f"{self.name(q)} acquires '{name}', but {self.name(a)} has acquired {as_what}, and "
                    f"nothing has freed '{holder}' since"
                )
            if not acquires and not held:
                return f"{self.name(q)} uses '{name}' after {self.name(a)} has freed {as_what}"
            if own is not None and holder != name and not acquires:
                return f"{self.name(q)} uses '{name}' after {self.name(a)} has acquired {as_what}"
            empty = cells.start + np.flatnonzero(self.writers[cells] == a)
            if name in operation.reads and empty.size:
                return (
                    f"{self.name(q)} reads '{name}', where nothing has been written since {self.name(a)} has "
                    f"acquired {as_what} ({self.extent(empty.tolist(), name)})"
                )
        return None

    # --- words ------------------------------------------------------------------------------------

    def name(self, p: int) -> str:
        """Return operation `p` in words."""
        operation = self.operations[p]
        place = "by the host" if operation.stream is None else f"on {operation.stream}"
        return f"operation {p} ({operation.kind} '{operation.name}' {place})"

    def extent(self, cells: Iterable[int], name: str) -> str:
        """Return in words how many bytes of a buffer some cells have."""
        return f"{self.sizes[[*cells]].sum()} bytes of {self.buffers[self.number[name]].memory} memory"


def _cells(trace: Trace) -> tuple[dict[str, slice], NDArray[np.int64]]:
    """Return the cells of each buffer by name, and the bytes of each cell."""
    cuts: dict[str, set[int]] = {}
    for buffer in trace.buffers:
        if buffer.offset is not None:
            cuts.setdefault(buffer.memory, set()).update((buffer.offset, buffer.offset + buffer.bytes))
    sizes: list[int] = []
    places: dict[str, dict[int, int]] = {}  # of a memory: the cell after each cut
    for memory, found in cuts.items():
        points = sorted(found)
        places[memory] = {point: c for c, point in enumerate(points, start=len(sizes))}
        sizes += [end - start for start, end in pairwise(points)]
    cells = {}
    for buffer in trace.buffers:
        if buffer.offset is None:
            cells[buffer.name] = slice(len(sizes), len(sizes) + 1)
            sizes.append(buffer.bytes)
        else:
            place = places[buffer.memory]
            cells[buffer.name] = slice(place[buffer.offset], place[buffer.offset + buffer.bytes])
    return cells, np.array(sizes, dtype=np.int64)
