"""The lower bound from runs and copies that follow each other in every schedule, in whole numbers only.

This module imports only the instance and other arguments, and nothing that solves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from ...instances.instance import Instance, Task
from .arguments import least_times
from .machine import alone_ns
from .reads import with_least_reads

_Side = Literal["device", "host"]


def critical_path_ns(instance: Instance) -> int:
    """Return the length of the longest path of runs and copies, in nanoseconds.

    On each side, the device and the host, first runs follow each other in the order of the tasks. Between the
    sides lie copies: what a task on the host reads has gone out after a task on the device has written it,
    and what a task on the device uses has come back after one on the host has written it. What begins on the
    host is loaded before its first use on the device, and what is written last on one side and must end on
    the other is copied at the end. A task that may run on either side is on no path, and what it writes needs
    no copy. Neither does anything of which the copy is impossible: then there is no schedule.

    Let a task that can run on the host alone write the last version of a carried block. Either the block is
    on the device at both ends, and comes back after that task; or it is not, and is loaded before its first
    use on the device. So the shorter of both paths is a bound, too.

    Nothing is assumed of memory, and tasks may run again. A copy takes no less than with a shared link to
    itself.
    """
    paths = _Paths(instance)
    return max(*paths.lengths(), *paths.round_trips(), 0)


class _Wait(NamedTuple):
    """A task waits for the end of another one, and for a copy after that if they are on two sides."""

    task: int
    copy_ns: int


class _Paths:
    """The longest paths to the start of each task, and from its end."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance = with_least_reads(instance)
        self.sides = [_side(task) for task in instance.tasks]
        self.times = [
            min(a.duration_ns for a in task.algorithms) if side == "host" else least
            for task, side, least in zip(instance.tasks, self.sides, least_times(instance), strict=True)
        ]
        waits = list(self._waits())
        self.starts, self.tails = self._loads(), self._copies_at_the_end()
        for k, found in enumerate(waits):
            for task, copy_ns in found:
                self.starts[k] = max(self.starts[k], self.end(task) + copy_ns)
        for k in reversed(range(len(waits))):
            for task, copy_ns in waits[k]:
                self.tails[task] = max(self.tails[task], copy_ns + self.times[k] + self.tails[k])

    def end(self, k: int) -> int:
        """Return the length of the longest path to the end of a task."""
        return self.starts[k] + self.times[k]

    def lengths(self) -> Iterator[int]:
        """Yield the length of the longest path through each task."""
        return (self.end(k) + tail for k, tail in enumerate(self.tails))

    def round_trips(self) -> Iterator[int]:
        """Yield the shorter path of each carried block of which the last version is made on the host."""
        for d in self.instance.carried:
            writers, first = self.instance.writers[d], self._first_use(d)
            if writers and self.sides[writers[-1]] == "host" and first is not None:
                back_ns = self._copy_ns(d, "host", "device")
                yield min(self.end(writers[-1]), self.times[first] + self.tails[first]) + back_ns

    def _waits(self) -> Iterator[list[_Wait]]:
        """Yield what each task waits for."""
        before: dict[_Side, int] = {}
        writers: dict[int, int] = {}
        for k, (task, side) in enumerate(zip(self.instance.tasks, self.sides, strict=True)):
            waits = []
            if side is not None:
                if side in before:
                    waits.append(_Wait(before[side], 0))
                before[side] = k
                for d in (*task.inputs, *task.updates):
                    if d in writers:
                        writer = writers[d]
                        waits.append(_Wait(writer, self._copy_ns(d, self.sides[writer], side)))
            yield waits
            writers.update(dict.fromkeys((*task.outputs, *task.updates), k))

    def _loads(self) -> list[int]:
        """Return, per task, the time of the longest load before its start."""
        loads = [0] * len(self.times)
        for d, block in enumerate(self.instance.blocks):
            first = self._first_use(d)
            if block.initially == "host" and first is not None:
                loads[first] = max(loads[first], self._copy_ns(d, "host", "device"))
        return loads

    def _copies_at_the_end(self) -> list[int]:
        """Return, per task, the time of the longest copy of what it writes last and must end elsewhere."""
        copies = [0] * len(self.times)
        for d, (block, writers) in enumerate(zip(self.instance.blocks, self.instance.writers, strict=True)):
            if writers and block.finally_ != "anywhere":
                last = writers[-1]
                copies[last] = max(copies[last], self._copy_ns(d, self.sides[last], block.finally_))
        return copies

    def _first_use(self, d: int) -> int | None:
        """Return the first task on the device that uses the version of a block that is there at the start."""
        until = min(self.instance.writers[d], default=len(self.times))
        uses = (k for k in self.instance.uses[d] if k <= until and self.sides[k] == "device")
        return next(uses, None)

    def _copy_ns(self, d: int, written_on: _Side | None, wanted_on: _Side) -> int:
        """Return the least time of a copy between two sides; 0 if none is needed."""
        if written_on is None or written_on == wanted_on:
            return 0
        block = self.instance.blocks[d]
        time = block.prefetch_ns if wanted_on == "device" else block.offload_ns
        return alone_ns(self.instance, block.loaded_bytes, time or 0)


def _side(task: Task) -> _Side | None:
    """Return the side on which a task runs; None if it may run on either."""
    if not task.may_run_on_host:
        return "device"
    return None if task.device_algorithms else "host"
