"""The operations of a program under construction, each with its waits and its times.

While a program is built, each operation takes its time of the instance. Copies that share a link, and tasks
that copies slow down, take longer, depending on what is issued later; so the times of a finished program are
simulated.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ...instances.instance import Instance
from ...validate.schedule import Kind, Operation, Schedule, Stream
from ...validate.simulate import simulate


class Timeline:
    """Operations issued to streams, in their order.

    Attributes
    ----------
    operations, starts, ends
        The operations issued so far, and their simulated times in nanoseconds, by id.
    last
        The latest operation of every stream.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.last: dict[Stream, int] = {}
        self._clocks: list[dict[Stream, int]] = []
        """Per operation, the latest of every stream that has ended when it ends."""

    def issue(
        self,
        stream: Stream,
        kind: Kind,
        duration: int,
        waits: Iterable[int],
        *,
        task: int | None = None,
        algorithm: int | None = None,
        block: int | None = None,
    ) -> int:
        """Append an operation without those waits that other waits imply; return its id."""
        i = len(self.operations)
        previous = self.last.get(stream)
        clock: dict[Stream, int] = {} if previous is None else dict(self._clocks[previous])
        start = 0 if previous is None else self.ends[previous]
        after = []
        for j in sorted(waits, reverse=True):
            other = self.operations[j].stream
            if j > clock.get(other, -1):
                after.append(j)
                for name, latest in self._clocks[j].items():
                    clock[name] = max(clock.get(name, -1), latest)
            start = max(start, self.ends[j])
        clock[stream] = i
        self._clocks.append(clock)
        self.last[stream] = i
        self.starts.append(start)
        self.ends.append(start + duration)
        self.operations.append(
            Operation(
                id=i,
                stream=stream,
                kind=kind,
                task=task,
                algorithm=algorithm,
                block=block,
                after=tuple(sorted(after)),
                start_ns=start,
                end_ns=start + duration,
            )
        )
        return i

    def latest(self, ops: Iterable[int]) -> list[int]:
        """Return those of `ops` that come before no other of them."""
        kept: list[int] = []
        for i in sorted(ops, reverse=True):
            stream = self.operations[i].stream
            if not any(self._clocks[j].get(stream, -1) >= i for j in kept):
                kept.append(i)
        return kept


def simulated(instance: Instance, schedule: Schedule) -> Schedule:
    """Return a schedule with the times that simulation gives its operations."""
    starts, ends = simulate(instance, schedule)
    operations = tuple(
        replace(operation, start_ns=start, end_ns=end)
        for operation, start, end in zip(schedule.operations, starts, ends, strict=True)
    )
    return replace(schedule, operations=operations, makespan_ns=max(ends, default=0))
