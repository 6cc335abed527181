"""What judges the check of traces: executions in a memory that knows who has written each byte.

It shares nothing with the checker but the format. It has no notion of order: it lets operations start and
end, and looks at what is in the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pebbler import Trace

Byte = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Step:
    """What must have ended before a step starts, and the bytes that it reads and writes."""

    before: frozenset[int]
    reads: tuple[Byte, ...]
    writes: tuple[Byte, ...]


@dataclass(slots=True)
class _Memory:
    """What is in each byte: nothing yet, the garbage of a step under way, or what a step has made."""

    steps: list[_Step]
    content: dict[Byte, object]
    found: dict[int, tuple[object, ...]]

    def start(self, i: int) -> None:
        step = self.steps[i]
        self.found[i] = tuple(self.content.get(byte) for byte in step.reads)
        for byte in step.writes:
            self.content[byte] = ("garbage", i)

    def end(self, i: int) -> bool:
        """End a step; return whether its bytes were its own all the time."""
        step = self.steps[i]
        alone = all(self.content[byte] == ("garbage", i) for byte in step.writes)
        for byte, found in zip(step.reads, self.found[i], strict=True):
            alone = alone and (byte in step.writes or self.content.get(byte) == found)
        for byte in step.writes:
            self.content[byte] = ("made", i, hash(self.found[i]))
        return alone


def _steps(trace: Trace) -> list[_Step]:
    places = {
        buffer.name: tuple(
            (buffer.memory if buffer.offset is not None else f"own {buffer.name}", (buffer.offset or 0) + k)
            for k in range(buffer.bytes)
        )
        for buffer in trace.buffers
    }
    steps: list[_Step] = []
    for i, operation in enumerate(trace.operations):
        earlier = trace.operations[:i]
        before = {
            p
            for p, other in enumerate(earlier)
            if other.stream in (None, operation.stream) or other.stream in operation.joins
        }
        for event in operation.waits:
            before.add(max(p for p, other in enumerate(earlier) if event in other.records))
        reads, writes = (
            tuple(dict.fromkeys(byte for name in names for byte in places[name]))
            for names in (operation.reads, operation.writes)
        )
        steps.append(_Step(frozenset(before), reads, writes))
    return steps


def _from_top_to_bottom(steps: list[_Step]) -> dict[int, tuple[object, ...]]:
    """What each step finds when they run one by one in the order of the list."""
    memory = _Memory(steps, {}, {})
    for i in range(len(steps)):
        memory.start(i)
        memory.end(i)
    return memory.found


def is_corrupted_by_a_slow_one(trace: Trace) -> bool:
    """Return whether data is corrupted when one operation starts as soon as it can and is the last to end.

    All operations are tried. While one is under way, what can run runs, in the order of the list.
    """
    steps = _steps(trace)
    right = _from_top_to_bottom(steps)
    for slow in range(len(steps)):
        memory = _Memory(steps, {}, {})
        ended: set[int] = set()
        fine = True
        needed = {slow}
        for i in range(slow, -1, -1):
            if i in needed:
                needed |= steps[i].before
        for turn in ("what it needs", "it", "what can", "its end", "the rest"):
            if turn == "it":
                memory.start(slow)
            elif turn == "its end":
                fine &= memory.end(slow)
                ended.add(slow)
            else:
                for i, step in enumerate(steps):
                    if i != slow and i not in ended and step.before <= ended:
                        if turn == "what it needs" and i not in needed:
                            continue
                        memory.start(i)
                        fine &= memory.end(i)
                        ended.add(i)
        assert len(ended) == len(steps)
        if not fine or memory.found != right:
            return True
    return False


def is_corrupted_somehow(trace: Trace) -> bool:
    """Return whether data is corrupted in any of all orders of starts and ends, for tiny traces."""
    steps = _steps(trace)
    right = _from_top_to_bottom(steps)
    seen: set[tuple[frozenset[int], frozenset[int]]] = set()

    def wrong(started: frozenset[int], ended: frozenset[int], content: dict[Byte, object]) -> bool:
        # Once is enough: where the content depends on the way here, two that write overlap on another way.
        if (started, ended) in seen:
            return False
        seen.add((started, ended))
        for memory, i, starts in _next(steps, started, ended, content, right):
            if starts:
                memory.start(i)
                if memory.found[i] != right[i] or wrong(started | {i}, ended, memory.content):
                    return True
            elif not memory.end(i) or wrong(started, ended | {i}, memory.content):
                return True
        return False

    return wrong(frozenset(), frozenset(), {})


def _next(
    steps: list[_Step],
    started: frozenset[int],
    ended: frozenset[int],
    content: dict[Byte, object],
    right: dict[int, tuple[object, ...]],
) -> Iterator[tuple[_Memory, int, bool]]:
    """Yield a copy of the memory with each step that can start or end, and whether it starts."""
    for i, step in enumerate(steps):
        if i not in started and step.before <= ended:
            yield _Memory(steps, dict(content), {}), i, True
        elif i in started and i not in ended:
            yield _Memory(steps, dict(content), {i: right[i]}), i, False
