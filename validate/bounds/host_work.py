"""Work on the host in the bound by prices: where a task runs, and the courses of the blocks that it touches.

Intervals and instants are those of `arguments.Prices`. This module imports nothing that solves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...instances.instance import Instance
from .carried import NEVER
from .machine import CopyCosts


class _Paid(NamedTuple):
    """The least paid so far to be in each state.

    The newest version is on the device alone, on the device and the host, or on the host alone; or an older
    one is still on the device, and the newest on the host alone; or there is no version yet.
    """

    device: int = NEVER
    both: int = NEVER
    host: int = NEVER
    older: int = NEVER
    absent: int = NEVER


_STATES = len(_Paid())
_UNITS = [_Paid(*(0 if i == state else NEVER for i in range(_STATES))) for state in range(_STATES)]


def alone_with_host(instance: Instance) -> dict[int, list[int]]:
    """Return, for each task that may run on the host, the blocks that no other such task touches."""
    touching: dict[int, list[int]] = {}
    tasks = [k for k, task in enumerate(instance.tasks) if task.may_run_on_host]
    for k in tasks:
        for d in instance.tasks[k].blocks:
            touching.setdefault(d, []).append(k)
    return {k: [d for d in instance.tasks[k].blocks if touching[d] == [k]] for k in tasks}


def least_on_host(
    instance: Instance,
    k: int,
    blocks: Sequence[int],
    checkpoints: Sequence[int],
    memory: Sequence[int],
    stream: Sequence[int],
    costs: Sequence[CopyCosts],
    ends: Sequence[int],
) -> int:
    """Return the least that a task pays that runs on the host, with its blocks, for time, memory and copies.

    The task runs in one interval: what it does over several is a mixture of such choices. By then, the host
    has what it reads; what it writes comes back from then on.

    Parameters
    ----------
    instance, k, blocks, checkpoints
        The task, and those of its blocks that no other task touches that may run on the host.
    memory, stream
        Per instant, what a byte pays on the device; per interval, what a nanosecond of the host pays.
    costs
        What copies of each of the blocks cost.
    ends
        What a byte of a carried block pays at both ends together: on the device, and on the host.
    """
    time = min(a.duration_ns for a in instance.tasks[k].algorithms if a.on == "host")
    total = [time * price for price in stream] or [0] * (2 * len(checkpoints) + 1)
    for d, cost in zip(blocks, costs, strict=True):
        course = _Course(instance, k, d, checkpoints, memory, cost)
        total = [paid + more for paid, more in zip(total, course.by_interval(ends), strict=True)]
    return min(total)


class _Course:
    """The least that a block pays, for each interval in which a task on the host uses it."""

    def __init__(
        self,
        instance: Instance,
        k: int,
        d: int,
        checkpoints: Sequence[int],
        memory: Sequence[int],
        costs: CopyCosts,
    ) -> None:
        self.instance, self.k, self.d, self.memory, self.costs = instance, k, d, memory, costs
        self.block = instance.blocks[d]
        self.last = 2 * len(checkpoints)
        task = instance.tasks[k]
        self.makes, self.writes = d in task.outputs, d in (*task.outputs, *task.updates)
        self.used: list[list[int]] = [[] for _ in range(self.last + 1)]
        self.written: list[list[int]] = [[] for _ in range(self.last + 1)]
        for uses, found in ((instance.uses[d], self.used), (instance.writers[d], self.written)):
            for use in uses:
                if use != k:
                    found[bisect_left(checkpoints, use) + bisect_right(checkpoints, use)].append(use)

        # after the task has run, from each state: the states that an interval can end in, with what is paid
        self.ways = [
            [
                [
                    (i, paid)
                    for i, paid in enumerate(self._rent(j, self._after(j, unit, old=True), ran=True))
                    if paid < NEVER
                ]
                for unit in _UNITS
            ]
            for j in range(self.last + 1)
        ]

    def by_interval(self, ends: Sequence[int]) -> list[int]:
        """Return the least paid, for each interval in which the task runs."""
        if not self.writes and any(writer > self.k for writer in self.instance.writers[self.d]):
            return [0] * (self.last + 1)  # the task may read a version after the device has made the next
        on_device, on_host = (self.block.bytes * price for price in ends)
        # what is paid at the start, and what is left to pay at the end
        rounds: list[tuple[_Paid, _Paid]] = []
        kept = _Paid(0, 0, 0, 0, 0)
        if self.block.finally_ == "device":
            kept = _Paid(device=0, both=0)
        elif self.block.finally_ == "host":
            kept = _Paid(both=0, host=0)
        if self.block.initially == "carried":
            rounds = [
                (_Paid(both=on_device + on_host), _Paid(both=0)),
                (_Paid(host=on_host), _Paid(both=0, host=0)),
            ]
            if self.instance.writers[self.d] or self.instance.has_host_budget:
                rounds.append((_Paid(device=on_device), _Paid(device=0, both=0)))
        elif self.block.initially == "absent":
            rounds = [(_Paid(absent=0), kept)]
        else:
            rounds = [(_Paid(both=0) if self.block.initially == "device" else _Paid(host=0), kept)]
        return [min(paid) for paid in zip(*(list(self._round(*ends)) for ends in rounds), strict=True)]

    def _round(self, start: _Paid, end: _Paid) -> Iterator[int]:
        """Yield the least paid for each interval in which the task runs."""
        later = [end] * (self.last + 2)
        wanted = self.block.initially == "carried" or self.block.finally_ != "anywhere"
        until = self.last if wanted else max((j for j, uses in enumerate(self.used) if uses), default=-1)
        for j in range(until, -1, -1):
            left = later[j + 1]
            later[j] = _Paid(
                *(min([paid + left[i] for i, paid in ways], default=NEVER) for ways in self.ways[j])
            )
        paid = start
        for j in range(self.last + 1):
            before = self._before(j, paid)
            host = min(before.both, before.host)
            if not self.writes:
                ran = _Paid(both=before.both, host=before.host)
            elif self.makes:
                ran = _Paid(host=before.absent)
            else:
                ran = _Paid(host=host, older=before.both)
            yield _least(self._rent(j, self._after(j, ran, old=False), ran=True), later[j + 1])
            paid = self._rent(j, before, ran=False)
            if self.writes and any(use > self.k for use in self.used[j]):
                paid = _Paid()

    def _before(self, j: int, paid: _Paid) -> _Paid:
        """Return what is paid once copies and uses of an interval are done, before the task has run.

        If the task writes the block, these are the uses before it, else all.
        """
        return self._step(
            j,
            paid,
            [use for use in self.used[j] if use < self.k or not self.writes],
            [use for use in self.written[j] if use < self.k or not self.writes],
        )

    def _after(self, j: int, paid: _Paid, *, old: bool) -> _Paid:
        """Return the same after the task has run, in the same interval or, with `old`, in a later one.

        In a later one, earlier uses of what the task writes have to find the older version on the device. In
        the same one, `_before` has seen to them, and to all uses of what the task only reads.
        """
        if not self.writes:
            return self._step(j, paid, self.used[j], self.written[j]) if old else self._step(j, paid, [], [])
        if old and any(use < self.k for use in self.used[j]):
            is_written = any(use < self.k for use in self.written[j])
            paid = _Paid(older=NEVER if is_written else paid.older)
        paid = paid._replace(host=min(paid.host, paid.older))
        uses = [use for use in self.used[j] if use > self.k]
        return self._step(j, paid, uses, [use for use in self.written[j] if use > self.k])

    def _step(self, j: int, paid: _Paid, used: Sequence[int], written: Sequence[int]) -> _Paid:
        device, both, host, older, absent = paid
        costs = self.costs
        if costs.back_ns is not None:
            both = min(both, host + costs.back_ns * costs.back[j])
        if written:
            device, both, host, older, absent = min(device, both, absent), NEVER, NEVER, NEVER, NEVER
        elif used:
            host, older, absent = NEVER, NEVER, NEVER
        if costs.out_ns is not None and not (written and j % 2):
            both = min(both, device + costs.out_ns * costs.out[j])
        return _Paid(device, both, host, older, absent)

    def _rent(self, j: int, paid: _Paid, *, ran: bool) -> _Paid:
        """Return what is paid after the instant that ends an interval; what the host has may leave before."""
        device, both, host, older, absent = paid
        if j == self.last:
            return _Paid(device, both, min(both, host, older), older, absent)
        touching = self.used[j if j % 2 else j + 1]
        if touching:
            is_old = self.writes and ran and touching[0] < self.k
            makes = j % 2 == 0 and self.block.initially == "absent" and touching[0] == self._maker()
            if is_old:
                return _Paid(older=older)
            return _Paid(device, both, absent=absent if makes else NEVER)
        rent = self.block.bytes * self.memory[j]
        return _Paid(device + rent, both + rent, min(host, both, older), older + rent, absent)

    def _maker(self) -> int:
        return self.instance.writers[self.d][0]


def _least(paid: _Paid, left: _Paid) -> int:
    """Return the least of what is paid in a state and left to pay from it."""
    return min(one + other for one, other in zip(paid, left, strict=True))
