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

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

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

    A cell is a range of bytes of which every buffer has all or nothing.
    """

    def __init__(self, trace: Trace) -> None:
        self.operations = trace.operations
        self.memory = {buffer.name: buffer.memory for buffer in trace.buffers}
        self.cells, self.sizes = _cells(trace)
        self.order = Clocks([operation.stream for operation in self.operations], trace.predecessors())
        self.first_allocations: dict[str, str] = {}
        for operation in self.operations:
            if operation.kind in ALLOCATIONS:
                for name in operation.writes:
                    self.first_allocations.setdefault(name, operation.kind)
        count = len(self.sizes)
        self.writers = [NEVER] * count
        self.readers: list[dict[str | None, int]] = [
            {} for _ in range(count)
        ]  # since, the last of each stream
        self.allocations = [NEVER] * count
        self.holders = [""] * count  # the buffers that were acquired or freed there

    def reasons(self) -> Iterator[str]:
        """Yield every reason why the trace is not intact."""
        for q, operation in enumerate(self.operations):
            for name in dict.fromkeys((*operation.reads, *operation.writes)):
                if (told := self.misuse(q, name)) is not None:
                    yield told
            for p in sorted(self.neighbours(q)):
                if p not in (NEVER, q) and not self.order.ends_before(p, q):
                    yield self.race(p, q)
            for name in operation.reads:
                for c in self.cells[name]:
                    self.readers[c][operation.stream] = q
            for name in operation.writes:
                for c in self.cells[name]:
                    self.writers[c], self.readers[c] = q, {}
                    if operation.kind in ALLOCATIONS:
                        self.allocations[c], self.holders[c] = q, name

    # --- between operations -----------------------------------------------------------------------

    def neighbours(self, q: int) -> set[int]:
        """Return the operations that operation `q` conflicts with and that touched the same bytes last."""
        operation = self.operations[q]
        found = {self.writers[c] for name in operation.reads for c in self.cells[name]}
        for name in operation.writes:
            for c in self.cells[name]:
                found.add(self.writers[c])
                found.update(self.readers[c].values())
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
        do, now, done, before = next(
            (do, now, done, before)
            for do, now, done, before in (
                (do, self.touched(mine), done, self.touched(theirs)) for do, mine, done, theirs in ways
            )
            if now.keys() & before.keys()
        )
        shared = [c for c in now if c in before]
        name, other = now[shared[0]], before[shared[0]]
        what = "it" if name == other else f"'{other}', which has the same bytes"
        waits = "it" if second.stream is not None else "the host"
        return (
            f"{self.name(q)} may {do} '{name}' before {self.name(p)} has {done} {what} "
            f"({self.extent(shared, name)}); let {waits} wait for operation {p} first"
        )

    def touched(self, names: Iterable[str]) -> Mapping[int, str]:
        """Return the cells of some buffers, each with the first buffer that has it."""
        found: dict[int, str] = {}
        for name in names:
            for c in self.cells[name]:
                found.setdefault(c, name)
        return found

    # --- in the order of the list -----------------------------------------------------------------

    def misuse(self, q: int, name: str) -> str | None:
        """Return what is wrong with an operation's use of a buffer even if nothing runs side by side."""
        operation = self.operations[q]
        acquires, reads = operation.kind == "acquire", name in operation.reads
        own = self.first_allocations.get(name)
        for c in self.cells[name]:
            a = self.allocations[c]
            if a == NEVER:
                if own == "acquire" and not acquires:
                    return f"{self.name(q)} uses '{name}' before anything has acquired it"
                continue
            holder, held = self.holders[c], self.operations[a].kind == "acquire"
            as_what = "it" if holder == name else f"its bytes as '{holder}'"
            if acquires and held:
                return (
                    f"{self.name(q)} acquires '{name}', but {self.name(a)} has acquired {as_what}, and nothing "
                    f"has freed '{holder}' since"
                )
            if not acquires and not held:
                return f"{self.name(q)} uses '{name}' after {self.name(a)} has freed {as_what}"
            if own is not None and holder != name and not acquires:
                return f"{self.name(q)} uses '{name}' after {self.name(a)} has acquired {as_what}"
            if reads and self.writers[c] == a:
                empty = [d for d in self.cells[name] if self.writers[d] == a]
                return (
                    f"{self.name(q)} reads '{name}', where nothing has been written since {self.name(a)} has "
                    f"acquired {as_what} ({self.extent(empty, name)})"
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
        return f"{sum(self.sizes[c] for c in cells)} bytes of {self.memory[name]} memory"


def _cells(trace: Trace) -> tuple[dict[str, range], list[int]]:
    """Return the cells of each buffer by name, and the bytes of each cell."""
    cuts: dict[str, set[int]] = {}
    for buffer in trace.buffers:
        if buffer.offset is not None:
            cuts.setdefault(buffer.memory, set()).update((buffer.offset, buffer.offset + buffer.bytes))
    sizes: list[int] = []
    places: dict[str, tuple[int, list[int]]] = {}
    for memory, found in cuts.items():
        points = sorted(found)
        places[memory] = len(sizes), points
        sizes += [end - start for start, end in pairwise(points)]
    cells = {}
    for buffer in trace.buffers:
        if buffer.offset is None:
            cells[buffer.name] = range(len(sizes), len(sizes) + 1)
            sizes.append(buffer.bytes)
        else:
            base, points = places[buffer.memory]
            first = bisect_left(points, buffer.offset)
            last = bisect_left(points, buffer.offset + buffer.bytes)
            cells[buffer.name] = range(base + first, base + last)
    return cells, sizes
