"""Random traces that are correct by construction, and waits dropped from them.

Bytes and ancestors are bits of whole numbers here, so that nothing is shared with the checker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import msgspec

from pebbler import Trace, TraceBuffer, TraceOperation

POOL = 32
"""First byte of the memory ``device`` that the allocator gives out."""


@dataclass(slots=True)
class _Writer:
    """A trace that grows, and who waits for whom in it."""

    rng: Random
    streams: list[str]
    buffers: list[TraceBuffer] = field(default_factory=list)
    masks: dict[str, tuple[str, int]] = field(default_factory=dict)  # of a buffer: its memory, and its bytes
    operations: list[TraceOperation] = field(default_factory=list)
    ancestors: list[int] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)  # buffers that the allocator has nothing to do with
    held: dict[str, bool] = field(default_factory=dict)  # acquired buffers, and whether something is in them

    def add_buffer(self, memory: str, offset: int | None, size: int) -> str:
        name = f"b{len(self.buffers)}"
        self.buffers.append(TraceBuffer(name=name, memory=memory, offset=offset, bytes=size))
        space = memory if offset is not None else name
        self.masks[name] = space, (1 << size) - 1 << (offset or 0)
        return name

    def meet(self, some: tuple[str, ...], others: tuple[str, ...]) -> bool:
        """Whether buffers have bytes in common."""
        return any(
            self.masks[a][0] == self.masks[b][0] and self.masks[a][1] & self.masks[b][1]
            for a in some
            for b in others
        )

    def issue(self, kind: str, stream: str | None, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
        """Issue an operation with the waits that it needs, and now and then one more."""
        rng, i = self.rng, len(self.operations)
        needed = [
            p
            for p, other in enumerate(self.operations)
            if self.meet(writes, (*other.reads, *other.writes)) or self.meet(reads, other.writes)
        ]
        if self.operations and rng.random() < 0.1:
            needed.append(rng.randrange(i))
        waits: list[str] = []
        joins: list[str] = []
        known = self.known(stream, waits, joins)
        for p in reversed(needed):
            if known >> p & 1:
                continue
            place = self.operations[p].stream
            assert place is not None  # what the host does, everything later waits for
            if rng.random() < 0.15 and kind != "wait":
                self.issue_wait(p)
            elif rng.random() < 0.3:
                joins.append(place)
            else:
                waits.append(self.record(p))
            known = self.known(stream, waits, joins)
        self.append(kind, stream, reads, writes, waits, joins)

    def issue_wait(self, p: int) -> None:
        """Let the host wait for an operation."""
        place = self.operations[p].stream
        assert place is not None
        if self.rng.random() < 0.5:
            self.append("wait", None, (), (), [], [place])
        else:
            self.append("wait", None, (), (), [self.record(p)], [])

    def record(self, p: int) -> str:
        """An event that happens once an operation has ended, or a later one of its stream."""
        stream = self.operations[p].stream
        later = range(p, len(self.operations))
        at = self.rng.choice([q for q in later if self.operations[q].stream == stream])
        event = f"e{at}"
        if event not in self.operations[at].records:
            self.operations[at] = msgspec.structs.replace(self.operations[at], records=(event,))
        return event

    def append(
        self,
        kind: str,
        stream: str | None,
        reads: tuple[str, ...],
        writes: tuple[str, ...],
        waits: list[str],
        joins: list[str],
    ) -> None:
        self.ancestors.append(self.known(stream, waits, joins))
        self.operations.append(
            TraceOperation(
                name=f"o{len(self.operations)}",
                kind=kind,  # type: ignore[arg-type]
                stream=stream,
                reads=reads,
                writes=writes,
                waits=tuple(dict.fromkeys(waits)),
                joins=tuple(dict.fromkeys(joins)),
            )
        )

    def known(self, stream: str | None, waits: list[str], joins: list[str]) -> int:
        """What has ended when an operation starts that is issued now: bits by position."""
        found = 0
        for q, operation in enumerate(self.operations):
            if operation.stream in (None, stream) or operation.stream in joins or f"e{q}" in waits:
                found |= self.ancestors[q] | 1 << q
        return found

    # --- what is issued -----------------------------------------------------------------------

    def step(self) -> None:
        """Issue something that is right where the list has come to."""
        rng = self.rng
        stream = None if rng.random() < 0.12 else rng.choice(self.streams)
        chance = rng.random()
        if chance < 0.15:
            self.acquire(stream)
        elif chance < 0.3 and self.held:
            name = rng.choice([*self.held])
            del self.held[name]
            self.issue("free", stream, (), (name,))
        elif chance < 0.35:
            self.issue("wait", stream, (), ())
        else:
            full = [*self.fixed, *(name for name, filled in self.held.items() if filled)]
            usable = [*self.fixed, *self.held]
            reads = tuple(rng.sample(full, rng.randint(0, 2)))
            writes = tuple(rng.sample(usable, rng.randint(0 if reads else 1, 2)))
            kind = "copy" if reads and writes and rng.random() < 0.5 else "run"
            self.issue(kind, stream, reads, writes)
            self.held |= dict.fromkeys(self.held.keys() & set(writes), True)

    def acquire(self, stream: str | None) -> None:
        """Give out bytes that nobody holds, if there are any in a place that is drawn."""
        offset, size = POOL + self.rng.randrange(12), self.rng.randint(1, 4)
        for buffer in self.buffers:
            if buffer.name in self.held:
                assert buffer.offset is not None
                if offset < buffer.offset + buffer.bytes and buffer.offset < offset + size:
                    return
        name = self.add_buffer("device", offset, size)
        self.issue("acquire", stream, (), (name,))
        self.held[name] = False


def random_trace(rng: Random, operations: int = 14) -> Trace:
    """Draw a correct trace of at least so many operations."""
    writer = _Writer(rng, [f"s{i}" for i in range(rng.randint(1, 4))])
    for _ in range(rng.randint(2, 5)):
        memory, apart = rng.choice(("device", "host")), rng.random() < 0.4
        writer.fixed.append(writer.add_buffer(memory, None if apart else rng.randrange(8), rng.randint(1, 6)))
    while len(writer.operations) < operations:
        writer.step()
    return Trace(name="random", buffers=tuple(writer.buffers), operations=tuple(writer.operations))


def with_a_wait_less(trace: Trace) -> Iterator[Trace]:
    """Yield the trace without one of its waits or joins, for each of them."""
    for i, operation in enumerate(trace.operations):
        for key in ("waits", "joins"):
            names = getattr(operation, key)
            for name in names:
                rest = tuple(other for other in names if other != name)
                changed = msgspec.structs.replace(operation, **{key: rest})
                yield msgspec.structs.replace(
                    trace, operations=(*trace.operations[:i], changed, *trace.operations[i + 1 :])
                )
