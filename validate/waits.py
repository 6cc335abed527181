"""Which operations of a program wait for others, for simulations that go from event to event."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from .schedule import Operation


class Waits:
    """What each operation of a program still waits for; operations are positions in the list.

    Parameters
    ----------
    operations
        The program.
    tracks
        Per operation, whose order it follows: its stream, or that of its GPU.
    """

    def __init__(self, operations: Sequence[Operation], tracks: Sequence[Hashable]) -> None:
        self._count = [0] * len(operations)
        self._followers: list[list[int]] = [[] for _ in operations]
        position: dict[int, int] = {}
        last: dict[Hashable, int] = {}
        for i, (operation, track) in enumerate(zip(operations, tracks, strict=True)):
            before = {position[other] for other in operation.after}
            if track in last:
                before.add(last[track])
            for j in before:
                self._followers[j].append(i)
            self._count[i] = len(before)
            position[operation.id] = last[track] = i

    def ready(self) -> list[int]:
        """Return what can start at once."""
        return [i for i, count in enumerate(self._count) if not count]

    def end(self, i: int) -> list[int]:
        """Note that an operation has ended; return what can start with that."""
        ready = []
        for j in self._followers[i]:
            self._count[j] -= 1
            if not self._count[j]:
                ready.append(j)
        return ready
