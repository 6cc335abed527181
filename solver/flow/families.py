"""The constraints of FLOW: one function for each family, with the number of its formula in docs/flow.md.

The docstring of such a function begins with the number. The rows of memory and of the engines are made first.
Then `add_version` and `add_single_stay` add the columns of each version, with the version's rows and with its
terms in those first rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..linear.model import ModelBuilder
from .machine.copies import Direction, Times, link_times
from .unbroken import UnbrokenCopies
from .versions import Stay, Version

Columns = NDArray[np.int64]
"""Indices of columns."""

Rows = NDArray[np.int64]
"""Indices of rows."""


class Window(NamedTuple):
    """A stretch of tasks and the least time that it takes.

    It begins at the end of the task before `first`, or at the start of the program. It ends with task `until
    - 1`; if that is the last task, it ends with the program, after the copies that follow all tasks. The time
    is in nanoseconds. With `idle`, the stretch has the last tasks, and only time counts in which the engine
    of prefetches is idle.
    """

    first: int
    until: int
    least_ns: int
    idle: bool = False


class GapColumns(NamedTuple):
    """Columns of a gap, in the order of instants.

    From instant `first` on, `absent` is the share of the block that is absent, and `back` the share that has
    still to come back. From `ready` on, `out` is the share of its version that is out. `soonest` is the share
    that goes out in the first interval in which any of it can; None means that none ever does. Instant -1 is
    the start, which the first gap of a carried block contains.
    """

    first: int
    absent: Columns
    back: Columns
    ready: int
    out: Columns
    soonest: int | None


class CarriedColumns(NamedTuple):
    """Columns of a carried block: the share that is absent at both ends, and that is out at both ends.

    `held` is None where the host holds the block throughout.
    """

    bytes: int
    absent: int
    held: int | None


class Frame(NamedTuple):
    """The columns, rows and units that all versions share.

    A unit of time is `ns` nanoseconds, and a unit of size is `size` bytes. `memory` has one row for each
    instant. `out` and `back` are the directions of copies; with a single engine, its rows are in both.
    `host` has one row for each instant where host memory has a budget, and else none. `carried` has the
    columns of carried blocks, which their first versions add.
    """

    builder: ModelBuilder
    ns: float
    size: float
    memory: Rows
    out: Direction
    back: Direction
    host: Rows
    carried: dict[int, CarriedColumns]


# --- tasks: intervals, algorithms, memory, engines ----------------------------------------------------------


def lengths(builder: ModelBuilder, least: NDArray[np.float64], counted: ArrayLike) -> Columns:
    """(1): The objective is the sum of the lengths of the intervals that count.

    An interval between checkpoints takes at least the least times of its tasks.
    """
    return builder.columns(len(least), lower=least, cost=counted)


def one_algorithm(builder: ModelBuilder, choice: Columns) -> None:
    """(2): A checkpoint runs with one of its algorithms; `choice` has a column for each."""
    builder.entries(builder.rows(1, lower=1.0, upper=1.0, family="algorithm"), choice, 1.0)


def run(builder: ModelBuilder, length: int, choice: Columns, times: Sequence[float]) -> None:
    """(3): The interval of a checkpoint's run is at least as long as its algorithm takes."""
    duration = builder.rows(1, lower=0.0, family="run")
    builder.entries(duration, length, 1.0)
    builder.entries(duration, choice, [-time for time in times])


def memory(
    builder: ModelBuilder,
    room: NDArray[np.float64],
    choices: Sequence[Columns],
    workspaces: Sequence[Sequence[float]],
) -> Rows:
    """(4): At both instants of a checkpoint, its workspace fits in the room beside the present data.

    `room` is the room at each instant if everything is present; `_is_absent` adds the absent data to it.
    `choices` and `workspaces` are by checkpoint.
    """
    rows = builder.rows(len(room), upper=room, family="memory")
    for i, (choice, sizes) in enumerate(zip(choices, workspaces, strict=True)):
        for instant in (2 * i, 2 * i + 1):
            builder.entries(rows[instant], choice, sizes)
    return rows


def host_memory(builder: ModelBuilder, room: NDArray[np.float64]) -> Rows:
    """(37): At both instants of a checkpoint, the absent data, all of which has copies there, fits the host.

    `room` is the budget of host memory at each instant; `_is_absent` adds the absent data.
    """
    return builder.rows(len(room), upper=room, family="host")


def _is_absent(frame: Frame, version: Version, instants: NDArray[np.int64], absent: Columns) -> None:
    """Add the terms of a gap in (4) and (37), which have no rows for the start."""
    size = version.bytes / frame.size
    instants, absent = instants[instants >= 0], absent[instants >= 0]
    frame.builder.entries(frame.memory[instants], absent, -size)
    if len(frame.host):
        frame.builder.entries(frame.host[instants], absent, size)


def engine_of_offloads(builder: ModelBuilder, delta: Columns, least: float) -> Rows:
    """(5): The offloads in an interval take no longer than the interval.

    Versions add their terms. A `least` of zero makes both equal, for (25).
    """
    return _engine(builder, delta, least, family="out")


def engine_of_prefetches(builder: ModelBuilder, delta: Columns, least: float) -> Rows:
    """(6): The prefetches in an interval take no longer than the interval.

    Versions and `load_first` add their terms. With a single engine, the rows of (5) serve both directions.
    """
    return _engine(builder, delta, least, family="back")


def _engine(builder: ModelBuilder, delta: Columns, least: float, *, family: str) -> Rows:
    rows = builder.rows(len(delta), lower=least, upper=0.0, family=family)
    builder.entries(rows, delta, -1.0)
    return rows


def load_first(builder: ModelBuilder, back: Direction, time: float, link: Times) -> None:
    """Add the term in (6) of data that must be loaded in the first interval, by a column that is 1."""
    back.move(builder, np.zeros(1, dtype=np.int64), builder.columns(1, lower=1.0, upper=1.0), time, link)


# --- versions: what is out, what has still to come back, what is absent -------------------------------------


def add_version(
    frame: Frame, version: Version, whole: bool, lines: tuple[UnbrokenCopies, UnbrokenCopies] | None
) -> list[GapColumns]:
    """Add a version of a block, which goes out at most once and comes back after each gap of absence.

    `whole` says whether a block is absent as a whole or not at all. `lines` are the engines on which long
    copies are not interrupted.
    """
    out, left = _add_offload(frame, version, whole, lines)
    gaps = version.gaps if version.prefetch_ns is not None else ()
    return [_add_gap(frame, version, gap, whole, out, left, lines) for gap in gaps]


def _add_offload(
    frame: Frame, version: Version, whole: bool, lines: tuple[UnbrokenCopies, UnbrokenCopies] | None
) -> tuple[Columns, Columns | None]:
    """Add the offload of a version, and return its columns by instant from `ready` on.

    The first columns are the share that is out; they are empty if nothing can be out. The second say whether
    a long offload is done; they are None if the offload is not long.
    """
    nothing = np.zeros(0, dtype=np.int64)
    begins_out = version.ready == -1  # as far as the round before has left it on the host
    if version.ready is None or (version.offload_ns is None and not begins_out):
        return nothing, None
    builder = frame.builder
    is_wanted = version.must_leave or version.is_saved
    last = len(frame.out.engine) - 1 if is_wanted else max((gap.last for gap in version.gaps), default=-1)
    instants = np.arange(version.ready, last + 1)
    if not len(instants):
        return nothing, None
    if version.offload_ns is None:
        return np.full(len(instants), builder.columns(1, upper=1.0, integer=whole)[0]), None
    time = float(version.offload_ns)
    at_the_start = builder.columns(int(begins_out), upper=1.0, integer=whole)
    lower = np.zeros(len(instants) - len(at_the_start))
    lower[-1:] = float(version.must_leave)
    q = np.concatenate([at_the_start, builder.columns(len(lower), lower=lower, upper=1.0)])
    stays_out(builder, q)
    progress = None
    if lines is not None:
        progress = lines[0].add(instants, q, time, comes_back=False)
    inside = instants >= 0
    link = link_times(version.out_link, frame.ns)
    frame.out.move(builder, instants[inside], q[inside], time / frame.ns, link)
    frame.out.move(builder, instants[1:], q[:-1], -(time / frame.ns), -link)
    if version.is_saved and version.carried is not None:
        held = frame.carried[version.carried].held
        assert held is not None  # the block is written, so that its first version has the column
        is_saved(builder, int(q[-1]), held)
    return q, None if progress is None else progress.done


def _add_gap(
    frame: Frame,
    version: Version,
    gap: Stay,
    whole: bool,
    out: Columns,
    left: Columns | None,
    lines: tuple[UnbrokenCopies, UnbrokenCopies] | None,
) -> GapColumns:
    """Add a gap of a version; `out` is the share that is out, `left` whether its long offload is done."""
    builder, time = frame.builder, float(version.prefetch_ns or 0)
    rate = time / frame.ns
    instants = np.arange(gap.first, gap.last + 1)
    # columns of `out` begin at `ready` and reach beyond the gap, if there are any
    at = instants - (version.ready or 0)
    possible = (at >= 0) & (at < len(out)) if version.ready is not None else np.ones(len(at), dtype=bool)
    r = builder.columns(len(instants), upper=1.0)
    x = builder.columns(len(instants), upper=possible.astype(float), integer=whole)
    if gap.first < 0 and version.carried is not None:
        held = int(out[0]) if version.ready is not None else None
        frame.carried[version.carried] = CarriedColumns(version.bytes, int(x[0]), held)
    at_the_end = None
    if gap.is_last and version.carried is not None:
        at_the_end = frame.carried[version.carried].absent
    if lines is not None:
        coming = lines[1].add(instants, r, time, comes_back=True)
        if coming is not None:
            absent_until_it_returns(builder, x, coming.begun, at_the_end)
    comes_back_once(builder, r)
    absent_is_to_come_back(builder, x, r, at_the_end)
    if version.ready is not None and possible.any():
        absent_is_out(builder, x[possible], out[at[possible]])
        if left is not None:
            absent_once_it_has_left(builder, x[possible], left[at[possible]])
    _is_absent(frame, version, instants, x)
    link = link_times(version.back_link, frame.ns)
    frame.back.move(builder, instants[1:], r[:-1], rate, link)
    frame.back.move(builder, instants[1:], r[1:], -rate, -link)
    frame.back.move(builder, instants[-1:] + 1, r[-1:], rate, link)
    if gap.must_load:
        # what is not left at the first instant was loaded before it: 1 - r, a constant on the row
        load = builder.columns(1, lower=1.0, upper=1.0)
        frame.back.move(builder, instants[:1], load, rate, link)
        frame.back.move(builder, instants[:1], r[:1], -rate, -link)
    return GapColumns(gap.first, x, r, version.ready or 0, out, int(out[0]) if len(out) else None)


def stays_out(builder: ModelBuilder, out: Columns) -> None:
    """(7): The share of a version that is out never falls from one instant to the next."""
    rising = builder.rows(len(out) - 1, lower=0.0, family="rising")
    builder.entries(rising, out[1:], 1.0)
    builder.entries(rising, out[:-1], -1.0)


def comes_back_once(builder: ModelBuilder, back: Columns) -> None:
    """(8): The share that has still to come back never rises, and is zero after the gap."""
    falling = builder.rows(len(back) - 1, lower=0.0, family="falling")
    builder.entries(falling, back[:-1], 1.0)
    builder.entries(falling, back[1:], -1.0)


def absent_is_to_come_back(
    builder: ModelBuilder, absent: Columns, back: Columns, at_the_end: int | None
) -> Rows:
    """(9): Absent bytes have still to come back, but for those of a carried block that are absent at the end.

    `at_the_end` is their share; None means that there are none. Without `back`, nothing can come back.
    """
    still = builder.rows(len(absent), lower=0.0, family="still")
    if len(back):
        builder.entries(still, back, 1.0)
    builder.entries(still, absent, -1.0)
    if at_the_end is not None:
        builder.entries(still, at_the_end, 1.0)
    return still


def absent_is_out(builder: ModelBuilder, absent: Columns, out: Columns) -> Rows:
    """(10): Absent bytes are out; a version that the host holds from the start has no such row.

    Without `out`, the terms of what is out are added to the rows that are returned.
    """
    gone = builder.rows(len(absent), lower=0.0, family="gone")
    if len(out):
        builder.entries(gone, out, 1.0)
    builder.entries(gone, absent, -1.0)
    return gone


def absent_until_it_returns(
    builder: ModelBuilder, absent: Columns, begun: Columns, at_the_end: int | None
) -> None:
    """(19): A block is absent only while its long prefetch has not begun, or until the end if it is then."""
    before = builder.rows(len(absent), upper=1.0, family="returns")
    builder.entries(before, absent, 1.0)
    builder.entries(before, begun, 1.0)
    if at_the_end is not None:
        builder.entries(before, at_the_end, -1.0)


def absent_once_it_has_left(builder: ModelBuilder, absent: Columns, done: Columns) -> None:
    """(20): A block is absent only once its long offload is done."""
    after = builder.rows(len(absent), upper=0.0, family="left")
    builder.entries(after, absent, 1.0)
    builder.entries(after, done, -1.0)


def add_single_stay(frame: Frame, version: Version) -> list[GapColumns]:
    """Add a version with one gap, if nothing is whole: fewer columns and rows give the same bound.

    Copies that are not used do not count. Bytes that come back in vain and are dropped again count as absent
    in between.
    """
    (gap,) = version.gaps
    builder, ready = frame.builder, version.ready or 0
    instants = np.arange(gap.first, gap.last + 1)
    absent = builder.columns(len(instants), upper=1.0)
    leaving = builder.columns(max(gap.last - ready + 1, 0), upper=1.0)
    coming = builder.columns(len(instants), upper=1.0)  # in the interval after each instant
    intervals = np.arange(ready, gap.last + 1)
    leaves_and_returns(builder, absent, leaving, coming, np.maximum(intervals - gap.first, 0))
    _is_absent(frame, version, instants, absent)
    out, back = float(version.offload_ns or 0) / frame.ns, float(version.prefetch_ns or 0) / frame.ns
    frame.out.move(builder, intervals, leaving, out, link_times(version.out_link, frame.ns))
    frame.back.move(builder, instants + 1, coming, back, link_times(version.back_link, frame.ns))
    soonest = int(leaving[0]) if len(leaving) else None
    return [GapColumns(gap.first, absent, absent, gap.first, absent, soonest)]


def leaves_and_returns(
    builder: ModelBuilder, absent: Columns, leaving: Columns, coming: Columns, leaves_in: NDArray[np.int64]
) -> None:
    """(11): The absent share rises by what goes out in an interval, and falls by what comes back.

    There is a row for the interval before each instant of the gap, and one for the interval after it.
    `leaves_in` has the row of each column of `leaving`; for all bytes that go out before the gap, this is the
    first row.
    """
    balance = builder.rows(len(absent) + 1, lower=0.0, upper=0.0, family="balance")
    builder.entries(balance[:-1], absent, 1.0)
    builder.entries(balance[1:], absent, -1.0)
    builder.entries(balance[1:], coming, 1.0)
    builder.entries(balance[leaves_in], leaving, -1.0)


# --- carried blocks -----------------------------------------------------------------------------------------


def is_saved(builder: ModelBuilder, out: int | None, held: int) -> Rows:
    """(38): What the host has of a carried block at the start, it has of the last version at the end.

    Without `out`, the last version cannot go out.
    """
    row = builder.rows(1, lower=0.0, family="saved")
    if out is not None:
        builder.entries(row, out, 1.0)
    builder.entries(row, held, -1.0)
    return row


def fits_at_the_ends(
    builder: ModelBuilder, carried: Iterable[CarriedColumns], size: float, room: float
) -> Rows:
    """(39): At the end, as at the start, what is not absent of carried blocks fits the pool.

    `room` is the room if nothing of them is absent, in units of `size` bytes.
    """
    row = builder.rows(1, upper=room, family="both ends")
    for block in carried:
        builder.entries(row, block.absent, -block.bytes / size)
    return row


def host_fits_at_the_ends(
    builder: ModelBuilder, carried: Iterable[CarriedColumns], size: float, room: float
) -> Rows:
    """(40): At the start and at the end, the host has room for its copies of carried blocks.

    `room` is the room beside what begins, or must end, on the host, in units of `size` bytes.
    """
    row = builder.rows(1, upper=room, family="host at both ends")
    for block in carried:
        if block.held is not None:
            builder.entries(row, block.held, block.bytes / size)
    return row


# --- windows ------------------------------------------------------------------------------------------------


def add_windows(
    builder: ModelBuilder,
    windows: Sequence[Window],
    positions: NDArray[np.int64],
    delta: Columns,
    before: NDArray[np.float64],
    ns: float,
) -> None:
    """Add columns for the ends of tasks that the intervals and the windows relate; `before` is in units.

    The last of them is the end of the program, which ends a window of the last tasks, and the last interval.
    """
    total = len(before) - 1
    marks = {0, total, *(positions + 1).tolist(), *(end for window in windows for end in window[:2])}
    ends = np.array(sorted(marks), dtype=np.int64)
    at = builder.columns(len(ends))
    column = dict(zip(ends.tolist(), at.tolist(), strict=True))
    ends_are_apart(builder, at, np.diff(before[ends]))
    reached = 0
    for i, k in enumerate(positions.tolist()):
        passed = delta[2 * i : 2 * i + (3 if k + 1 == total else 2)]
        intervals_reach_ends(builder, column[reached], column[k + 1], passed)
        last = int(ends[np.searchsorted(ends, k, "right") - 1])
        runs_begin_after_ends(builder, column[last], column[k + 1], passed[1:], before[k] - before[last])
        reached = k + 1
    if reached < total:
        intervals_reach_ends(builder, column[reached], column[total], delta[-1:])
    windows_take_their_time(
        builder,
        [column[window.first] for window in windows],
        [column[window.until] for window in windows],
        [window.least_ns / ns for window in windows],
    )


def ends_are_apart(builder: ModelBuilder, ends: Columns, least: NDArray[np.float64]) -> None:
    """(21): Consecutive ends of tasks are at least as far apart as the least times between them."""
    apart = builder.rows(len(ends) - 1, lower=least, family="apart")
    builder.entries(apart, ends[1:], 1.0)
    builder.entries(apart, ends[:-1], -1.0)


def intervals_reach_ends(builder: ModelBuilder, since: int, end: int, passed: Columns) -> None:
    """(22): From the end of one checkpoint to that of the next, the intervals between them pass."""
    interval = builder.rows(1, lower=0.0, upper=0.0, family="ends")
    builder.entries(interval, [end, since], [1.0, -1.0])
    builder.entries(interval, passed, -1.0)


def runs_begin_after_ends(builder: ModelBuilder, since: int, end: int, run: Columns, least: float) -> None:
    """(23): A checkpoint starts after the last end before it and the least times of tasks in between.

    `run` are the intervals from then to the checkpoint's end.
    """
    row = builder.rows(1, lower=least, family="begins")
    builder.entries(row, [end, since], [1.0, -1.0])
    builder.entries(row, run, -1.0)


def windows_take_their_time(
    builder: ModelBuilder, firsts: Sequence[int], untils: Sequence[int], least: Sequence[float]
) -> None:
    """(24): The two ends of a window are at least as far apart as was proven."""
    rows = builder.rows(len(least), lower=least, family="windows")
    builder.entries(rows, untils, 1.0)
    builder.entries(rows, firsts, -1.0)


def idle_time(builder: ModelBuilder, back: Rows, counted: ArrayLike = 0.0) -> Columns:
    """(25): An engine's interval consists of its copies and its idle time; `counted` is minimised.

    The idle time is a further term of (6), which otherwise leaves it out.
    """
    idle = builder.columns(len(back), cost=counted)
    builder.entries(back, idle, 1.0)
    return idle


def add_idle_windows(
    builder: ModelBuilder, windows: Sequence[Window], positions: NDArray[np.int64], back: Rows, ns: float
) -> None:
    """Add columns for the idle time of the engine of prefetches by interval, and a row for each window."""
    idle = idle_time(builder, back)
    for window in windows:
        begin = 2 * int(np.searchsorted(positions, window.first))
        idle_windows_take_their_time(builder, idle[begin:], window.least_ns / ns)


def idle_windows_take_their_time(builder: ModelBuilder, idle: Columns, least: float) -> None:
    """(26): From the last checkpoint before a window on, the engine is idle for at least the proven time."""
    builder.entries(builder.rows(1, lower=least, family="idle"), idle, 1.0)
