"""Work on the host in FLOW: where a task runs, the stream of the host, and the blocks that it touches.

A task that may run on the host is no checkpoint: on the device it takes time between checkpoints, on the host
time of a stream of its own. A block that just one such task touches has its gaps here; one that several touch
is left out, so that it takes memory only at checkpoints that touch it. Numbers are those of docs/flow.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....heuristics.gaps import Gap
from ....instances.instance import Instance
from ...linear.model import ModelBuilder
from ..families import (
    CarriedColumns,
    Columns,
    Frame,
    GapColumns,
    Rows,
    absent_is_out,
    absent_is_to_come_back,
    comes_back_once,
    is_saved,
    stays_out,
)
from ..versions import instants_of, ready_at, stays
from .copies import link_times
from .together import HostTask, SharedBlocks

_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class HostRun:
    """The columns of a task that may run on the host.

    Attributes
    ----------
    task
        The task.
    on_host
        The column that says whether it runs there.
    first
        The first interval in which it can.
    done
        By interval from then on, the share of its run on the host that is done when the interval ends.
    """

    task: int
    on_host: int
    first: int
    done: Columns


def add_host_runs(
    builder: ModelBuilder,
    tasks: Sequence[HostTask],
    positions: Columns,
    delta: Columns,
    least: Sequence[float],
    slowed: Rows,
    ns: float,
    *,
    whole: bool,
) -> tuple[dict[int, HostRun], Rows]:
    """Add all tasks that may run on the host; return them by task, and the rows of (44).

    `least` is the time of each interval's other tasks in units, and `slowed` the rows of (42). Where several
    tasks are one, part of them may run on the host.
    """
    runs = {}
    last = len(delta) - 1
    on_device: dict[int, list[tuple[int, float]]] = {}
    on_host: list[tuple[HostRun, float]] = []
    for task in tasks:
        k, is_one = task.task, len(task.tasks) == 1
        lower = float(task.device_ns is None)
        chosen = int(builder.columns(1, lower=lower, upper=1.0, integer=whole and is_one)[0])
        begin = task.soonest
        runs[k] = HostRun(k, chosen, begin, builder.columns(last + 1 - begin, upper=1.0))
        runs_once(builder, runs[k])
        if task.device_ns is not None:
            interval = 2 * int(np.searchsorted(positions, k))
            on_device.setdefault(interval, []).append((chosen, float(task.device_ns) / ns))
        on_host.append((runs[k], float(task.host_ns) / ns))
    for interval, choices in on_device.items():
        what_is_not_on_host(builder, int(delta[interval]), choices, least[interval])
        if len(slowed) and slowed[interval] >= 0:
            for chosen, time in choices:
                one = builder.columns(1, lower=1.0, upper=1.0)
                builder.entries(slowed[interval], [*one.tolist(), chosen], [-time, time])
    return runs, stream_of_the_host(builder, delta, on_host)


def what_is_not_on_host(
    builder: ModelBuilder, length: int, choices: Sequence[tuple[int, float]], least: float
) -> None:
    """(43): An interval is as long as its tasks, those included that may run on the host and do not."""
    total = least + sum(time for _, time in choices)
    row = builder.rows(1, lower=total, family="choice")
    builder.entries(row, length, 1.0)
    for chosen, time in choices:
        builder.entries(row, chosen, time)


def stream_of_the_host(builder: ModelBuilder, delta: Columns, runs: Sequence[tuple[HostRun, float]]) -> Rows:
    """(44): What the host runs in an interval takes no longer than the interval."""
    rows = builder.rows(len(delta), upper=0.0, family="host stream")
    builder.entries(rows, delta, -1.0)
    for run, time in runs:
        builder.entries(rows[run.first :], run.done, time)
        builder.entries(rows[run.first + 1 :], run.done[:-1], -time)
    return rows


def runs_once(builder: ModelBuilder, run: HostRun) -> None:
    """(45): What is done on the host stays done, and in the end it is all of what runs there."""
    rows = builder.rows(len(run.done) - 1, lower=0.0, family="host rising")
    builder.entries(rows, run.done[1:], 1.0)
    builder.entries(rows, run.done[:-1], -1.0)
    end = builder.rows(1, lower=0.0, upper=0.0, family="host done")
    builder.entries(end, [int(run.done[-1]), run.on_host], [1.0, -1.0])


def reads_what_is_out(builder: ModelBuilder, done: Columns, out: Columns) -> None:
    """(46): A run on the host has what it reads there: no more of it is done than is out."""
    rows = builder.rows(len(done), lower=0.0, family="host reads")
    builder.entries(rows, done, -1.0)
    if len(out):
        builder.entries(rows, out, 1.0)


def stays_away(builder: ModelBuilder, through: int, on_host: int) -> None:
    """(47): What a task only reads is away while it runs no more than it runs on the host."""
    row = builder.rows(1, lower=0.0, family="away")
    builder.entries(row, [on_host, through], [1.0, -1.0])


def arrives(builder: ModelBuilder, arrived: Columns, through: int, at_the_end: int | None) -> None:
    """(48): What is away while the task runs arrives before the next use, or is away at both ends."""
    rows = builder.rows(len(arrived) - 1 if len(arrived) else 0, lower=0.0, family="arriving")
    if len(arrived):
        builder.entries(rows, arrived[1:], 1.0)
        builder.entries(rows, arrived[:-1], -1.0)
    row = builder.rows(1, lower=0.0, family="arrived")
    builder.entries(row, through, -1.0)
    if len(arrived):
        builder.entries(row, arrived[-1], 1.0)
    if at_the_end is not None:
        builder.entries(row, at_the_end, 1.0)


def arrives_once_made(builder: ModelBuilder, arrived: Columns, done: Columns) -> None:
    """(49): No more of what the host makes arrives than it has made."""
    rows = builder.rows(len(arrived), lower=0.0, family="made")
    builder.entries(rows, done, 1.0)
    builder.entries(rows, arrived, -1.0)


def loads_first(builder: ModelBuilder, loaded: int, through: int | None, still: Columns) -> None:
    """(50): What begins on the host is loaded, unless it is away while the task runs that uses it first."""
    row = builder.rows(1, lower=1.0, family="loads")
    builder.entries(row, loaded, 1.0)
    if through is not None:
        builder.entries(row, through, 1.0)
    if len(still):
        later = builder.rows(1, lower=0.0, family="later")
        builder.entries(later, [loaded, int(still[0])], [1.0, -1.0])


def ends_there(builder: ModelBuilder, out: Columns, done: int | None) -> None:
    """(51): What must end on the host is out at the end, or a run has made it there."""
    row = builder.rows(1, lower=1.0, family="ends there")
    if done is not None:
        builder.entries(row, done, 1.0)
    if len(out):
        builder.entries(row, out[-1], 1.0)


class _Out:
    """The share of a version that is out, by instant from `ready` on; `held`: the host has it throughout."""

    def __init__(self, ready: int, columns: Columns, *, held: bool = False) -> None:
        self.ready, self.columns, self.held = ready, columns, held

    def at(self, instants: Columns) -> tuple[NDArray[np.bool_], Columns]:
        """Return which of some instants have a column, and these."""
        where = instants - self.ready
        inside = (where >= 0) & (where < len(self.columns))
        return inside, self.columns[where[inside]]


class SharedBlock:
    """Blocks as one that one task touches that may run on the host: their versions, gaps and copies.

    `gaps` has the columns of the gaps that have some, by the gap.
    """

    def __init__(
        self,
        frame: Frame,
        instance: Instance,
        positions: Columns,
        group: SharedBlocks,
        run: HostRun,
        *,
        whole: bool,
    ) -> None:
        d = group.block
        self.whole, self.group = whole, group
        self.frame, self.instance, self.positions, self.d, self.run = frame, instance, positions, d, run
        self.block, self.writers = instance.blocks[d], instance.writers[d]
        self.is_carried = self.block.initially == "carried"
        self.last = len(frame.out.engine) - 1
        task = instance.tasks[run.task]
        self.writes = d in (*task.outputs, *task.updates)
        self.made = bisect_right(self.writers, run.task) if self.writes else -1  # its version
        self.marks = list(stays(instance, d))
        self.gaps: dict[tuple[Gap, ...], GapColumns] = {}
        self.out = {
            number: self._offload(number)
            for number in range(0 if self.block.initially != "absent" else 1, len(self.writers) + 1)
        }
        self.absent_at_ends: int | None = None
        self.arrived, self.arrives_from = _NOTHING, 0
        self.through = run.on_host
        after = next(((since, until) for since, until in self.marks if since == run.task), None)
        if after is not None and not self.writes:
            self.through = int(frame.builder.columns(1, upper=1.0)[0])
            stays_away(frame.builder, self.through, run.on_host)
        if d not in task.outputs:
            self._is_read()
        if after is not None:
            self._arrivals(after[1])
        for since, until in self.marks:
            self._gap(since, until)
        if after is not None:
            at_the_end = self.absent_at_ends if after[1] == len(instance.tasks) else None
            arrives(frame.builder, self.arrived, self.through, at_the_end)
        self._ends()

    def _offload(self, number: int) -> _Out:
        """Add the offload of a version."""
        frame, builder, group = self.frame, self.frame.builder, self.group
        ready = ready_at(self.writers[number - 1], self.positions) if number else -1
        if number == 0 and not (self.is_carried and (self.writers or self.instance.has_host_budget)):
            return _Out(-1, _NOTHING, held=True)
        if group.offload_ns is None:
            if number:
                return _Out(ready, _NOTHING)
            return _Out(-1, np.full(self.last + 2, builder.columns(1, upper=1.0, integer=self.whole)[0]))
        at_the_start = builder.columns(int(ready < 0), upper=1.0, integer=self.whole)
        columns = np.concatenate([at_the_start, builder.columns(self.last + 1 - max(ready, 0), upper=1.0)])
        stays_out(builder, columns)
        intervals = np.arange(ready, self.last + 1)
        time, link = float(group.offload_ns) / frame.ns, link_times(group.out_link, frame.ns)
        inside = intervals >= 0
        frame.out.move(builder, intervals[inside], columns[inside], time, link)
        frame.out.move(builder, intervals[1:], columns[:-1], -time, -link)
        return _Out(ready, columns)

    def _is_read(self) -> None:
        """Let the run on the host wait for the version that it reads."""
        out = self.out[bisect_left(self.writers, self.run.task)]
        if not out.held:
            instants = np.arange(self.run.first, self.last + 1)
            reads_what_is_out(self.frame.builder, self.run.done, out.at(instants)[1])

    def _arrivals(self, until: int) -> None:
        """Add what comes back of the version that is away while the task runs, up to the next use."""
        if self.group.prefetch_ns is None:
            return
        end = 2 * int(np.searchsorted(self.positions, until, "left"))
        begin = 2 * int(np.searchsorted(self.positions, self.run.task, "right"))
        if self.writes:
            before = next((since for since, other in self.marks if other == self.run.task), None)
            earliest = 0 if before is None else instants_of(before, self.run.task, self.positions)[0]
            begin = max(self.run.first, earliest)
        self.arrives_from = begin
        self.arrived = self.frame.builder.columns(end + 1 - begin, upper=1.0)
        self._come_back(np.arange(begin, end + 1), self.arrived, 1.0)
        self._come_back(np.arange(begin + 1, end + 1), self.arrived[:-1], -1.0)
        if self.writes:
            done = self.run.done[begin - self.run.first : end + 1 - self.run.first]
            arrives_once_made(self.frame.builder, self.arrived, done)

    def _come_back(self, intervals: Columns, columns: Columns, share: float) -> None:
        time = float(self.group.prefetch_ns or 0) / self.frame.ns
        link = link_times(self.group.back_link, self.frame.ns)
        self.frame.back.move(self.frame.builder, intervals, columns, share * time, share * link)

    def _gap(self, since: int, until: int) -> None:
        """Add a gap: what is absent, and what has still to come back."""
        builder, block = self.frame.builder, self.block
        first, last = instants_of(since, until, self.positions)
        first = -1 if since == -1 and self.is_carried else first
        instants = np.arange(first, last + 1)
        comes_back = self.group.prefetch_ns is not None
        rho = builder.columns(len(instants), upper=1.0) if comes_back else _NOTHING
        through = self.through if self.run.task in (since, until) else None
        if since == -1 and block.initially == "host" and comes_back:
            loaded = builder.columns(1, upper=1.0)
            loads_first(builder, int(loaded[0]), through if until == self.run.task else None, rho)
            self._come_back(np.zeros(1, dtype=np.int64), loaded, 1.0)
            self._come_back(np.zeros(len(rho[:1]), dtype=np.int64), rho[:1], -1.0)
        if not len(instants):
            return
        x = builder.columns(len(instants), upper=1.0, integer=self.whole)
        if first == -1:
            self.absent_at_ends = int(x[0])
        if comes_back:
            comes_back_once(builder, rho)
            self._come_back(instants[1:], rho[:-1], 1.0)
            self._come_back(instants[1:], rho[1:], -1.0)
            self._come_back(instants[-1:] + 1, rho[-1:], 1.0)
        is_last = self.is_carried and until == len(self.instance.tasks)
        rows = absent_is_to_come_back(builder, x, rho, self.absent_at_ends if is_last else None)
        if through is not None:
            builder.entries(rows, through, 1.0)
            where = instants - self.arrives_from
            inside = (where >= 0) & (where < len(self.arrived))
            if since == self.run.task or self.writes:
                builder.entries(rows[inside], self.arrived[where[inside]], -1.0)
        number = bisect_right(self.writers, since)
        self._is_out(number, instants, x, follows=since == self.run.task)
        self._is_absent(instants, x, made=number == self.made and since == self.run.task)
        out = self.out[number]
        names = self.group.gaps_at(self.instance, [mark[0] for mark in self.marks].index(since))
        self.gaps[names] = GapColumns(
            first,
            x,
            rho if comes_back else x,
            max(out.ready, first),
            out.at(instants)[1] if len(out.at(instants)[1]) else x,
            int(out.columns[0]) if len(out.columns) else None,
        )

    def _is_out(self, number: int, instants: Columns, x: Columns, *, follows: bool) -> None:
        """Let a version be absent only where it is out, or on the host where a run makes it."""
        builder, out = self.frame.builder, self.out[number]
        if out.held:
            return
        inside, columns = out.at(instants)
        rows = absent_is_out(builder, x, _NOTHING)
        builder.entries(rows[inside], columns, 1.0)
        if number != self.made:
            return
        builder.entries(rows, self.run.on_host, 1.0)
        before = self.out.get(number - 1)
        if follows and before is not None and not before.held:
            rows = absent_is_out(builder, x, _NOTHING)
            builder.entries(rows[inside], columns, 1.0)
            inside, columns = before.at(instants)
            builder.entries(rows[inside], columns, 1.0)

    def _is_absent(self, instants: Columns, x: Columns, *, made: bool) -> None:
        """Add the terms of what is absent in the rows of memory, and of host memory.

        What a run on the host has read for the last time, or has not made yet, need not be anywhere.
        """
        builder, frame = self.frame.builder, self.frame
        size = self.group.bytes / frame.size
        x, instants = x[instants >= 0], instants[instants >= 0]
        builder.entries(frame.memory[instants], x, -size)
        if not len(frame.host):
            return
        builder.entries(frame.host[instants], x, size)
        where = instants - self.run.first
        done = self.run.done[where[where >= 0]]
        later = instants[where >= 0]
        if self.marks[-1][1] == self.run.task and self.block.finally_ != "host":
            builder.entries(frame.host[later], done, -size)
        if made and self.d in self.instance.tasks[self.run.task].outputs:
            builder.entries(frame.host[instants], self.run.on_host, -size)
            builder.entries(frame.host[later], done, size)

    def _ends(self) -> None:
        """Require what must be on the host at the end, and that it is there as at the start."""
        builder, final = self.frame.builder, len(self.writers)
        if final and self.block.finally_ == "host":
            out = self.out[final]
            ends_there(builder, out.columns, int(self.run.done[-1]) if final == self.made else None)
        if self.absent_at_ends is None:
            return
        first = self.out[0]
        held = None if first.held else int(first.columns[0])
        self.frame.carried[self.d] = CarriedColumns(self.group.bytes, self.absent_at_ends, held)
        if final and held is not None:
            out = self.out[final]
            row = is_saved(builder, int(out.columns[-1]) if len(out.columns) else None, held)
            if final == self.made:
                builder.entries(row, self.run.done[-1], 1.0)
