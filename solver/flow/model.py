"""FLOW: a big-M-free, position-indexed model of transfers, whose every subset of checkpoints is a bound.

Positions are tasks. At some of them, the checkpoints, memory is accounted for at two instants, the start
(2i) and the end (2i + 1) of the i-th checkpoint; interval j ends at instant j, so that odd intervals are the
runs of checkpoints and even ones what lies between. Bytes flow out (Q, cumulative, per version of a block)
and have still to come back (R, per gap between uses); a block may be absent at an instant (x) only as far as
it is out and has still to come back. Memory between instants is left out, and so is that transfers are not
interrupted, unless copies are `unbroken`. So any choice of checkpoints, with whole or continuous x and
lambda, bounds the problem from below.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import accumulate, chain, pairwise
from typing import Literal, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from ...heuristics.gaps import Gap
from ...instances.instance import Instance
from ...instances.memory import footprint
from ...validate.bounds.arguments import Prices, fitting, least_times
from ...validate.bounds.certificate import certify, name_of_bound
from ...validate.bounds.reruns import RerunKey
from ..bounds import Bound, certified_bound
from ..linear.facade import solve_linear
from ..linear.model import LinearModel, LinearOptions, LinearResult, ModelBuilder
from ..scaling import copies_ns, proven_ns, size_unit, slowest_ns, time_unit
from .unbroken import LONG, UnbrokenCopies

Integrality = Literal["none", "algorithms", "all"]
"""What must be whole: nothing (LP), the choice of algorithms, or that and the evictions (MILP)."""

_ROUNDING = 1e-15
"""Of a row of memory, relative to the sizes in it: so much its coefficients may be off."""

_FASTEST = -40
"""Of the paces that are told apart: bytes take a fortieth of the time or less."""

_PRICE_BITS = 52
"""Of the largest price of a certificate: figures of files are exact in a double."""


class _Stay(NamedTuple):
    """A stay between clusters of uses, by the instants (first to last) at which its block may be absent.

    `must_load` marks a block that starts on the host only.
    """

    first: int
    last: int
    must_load: bool


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of a block, or of several that the checkpoints cannot tell apart.

    `ready` is the first instant at which bytes of it can be out, None where the host has a copy from the
    start; `must_leave` that the host must end up with it; a copy time of None that it never moves that way.
    `names` says for each gap which blocks' gaps it stands for.
    """

    bytes: int
    offload_ns: Fraction | None
    prefetch_ns: Fraction | None
    ready: int | None
    gaps: tuple[_Stay, ...]
    must_leave: bool
    names: tuple[tuple[Gap, ...], ...]

    @property
    def stays_once(self) -> bool:
        """Whether it is offloaded and prefetched around one gap, if at all."""
        copied = self.ready is not None and self.offload_ns is not None and self.prefetch_ns is not None
        return copied and not self.must_leave and len(self.gaps) == 1 and not self.gaps[0].must_load


class Window(NamedTuple):
    """A stretch of tasks and the least time that it takes.

    From the end of the task before `first`, or the start of the program, to the end of task `until - 1`; if
    that is the last task, to the end of the program, with the copies that come after all tasks. In
    nanoseconds. With `idle` it is of the last tasks, and only the time counts for which the engine of
    prefetches is idle.
    """

    first: int
    until: int
    least_ns: int
    idle: bool = False


class GapColumns(NamedTuple):
    """Columns of a gap, in the order of instants.

    From instant `first` on, `absent` says which share of it is absent, and `back` which has still to come
    back; from `ready` on, `out` which share of its version is out. `soonest` is the share that goes out in
    the first interval in which any of it can (None: nothing ever).
    """

    first: int
    absent: NDArray[np.int64]
    back: NDArray[np.int64]
    ready: int
    out: NDArray[np.int64]
    soonest: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedModel:
    """A linear model of a schedule on some checkpoints, in scaled units, whose dual values are prices.

    Attributes
    ----------
    linear
        The model; its objective is the makespan.
    nanoseconds, bytes
        What one unit of time and of size in the model is.
    checkpoints
        Tasks, in increasing order.
    choices
        Per checkpoint, the columns of its algorithms, with their indices.
    memory_rows, engine_rows
        The rows of memory, one an instant, and those of each copy engine, one an interval.
    """

    linear: LinearModel
    nanoseconds: float
    bytes: float
    checkpoints: tuple[int, ...]
    choices: dict[int, dict[int, int]]
    memory_rows: NDArray[np.int64]
    engine_rows: tuple[NDArray[np.int64], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowModel(PricedModel):
    """FLOW as a linear model.

    Attributes
    ----------
    gaps
        Per gap its columns, or per set of gaps that the checkpoints cannot tell apart.
    beyond
        What it has beside the rows of FLOW: ``unbroken`` copies, and ``windows``, of which it takes what was
        proven.
    """

    gaps: dict[tuple[Gap, ...], GapColumns]
    beyond: tuple[str, ...]


def flow_bound(
    instance: Instance,
    checkpoints: Sequence[int],
    *,
    integrality: Integrality = "none",
    solver: str = "highs",
    windows: Sequence[Window] = (),
    unbroken: bool = False,
    long: float = LONG,
    **options: Unpack[LinearOptions],
) -> Bound | None:
    """Bound the makespan by FLOW on some checkpoints.

    Parameters
    ----------
    instance, checkpoints, integrality, windows, unbroken, long
        As for `flow_model`.
    solver, **options
        As for `solve_linear`.

    Returns
    -------
    Bound or None
        None when the solver gives no bound (a limit).

    Raises
    ------
    ValueError
        For an instance with recomputable tasks, which the model does not cover, or a checkpoint that is no
        task.
    """
    model = flow_model(instance, checkpoints, integrality, windows, unbroken=unbroken, long=long)
    result = solve_linear(model.linear, solver=solver, **options)
    return proven(instance, result, model, bound_name(integrality, solver))


def bound_name(integrality: Integrality, solver: str) -> str:
    """Name of a bound by the model and who solved it."""
    models = {"none": "flow-lp", "algorithms": "flow-partial", "all": "flow-milp"}
    return f"{models[integrality]}-{solver}"


def proven(instance: Instance, result: LinearResult, model: FlowModel, name: str) -> Bound | None:
    """Turn what a solver has proven on FLOW into a bound in nanoseconds; None where it has proven nothing.

    Dual values of a linear model are prices of memory and of the engines' time, from which a bound is worked
    out in exact arithmetic, with its certificate; windows have no part in it. What rests on floating point
    alone is lowered by what its tolerances can make (`proven_ns`); it counts where it is higher.
    """
    return proven_by(instance, result, model, name, "+".join((name, *model.beyond)), {})


def proven_by(
    instance: Instance,
    result: LinearResult,
    model: PricedModel,
    name: str,
    word: str,
    reruns: Mapping[RerunKey, float],
) -> Bound | None:
    """Do what `proven` does for any model with prices.

    Parameters
    ----------
    instance, result, model
        What was solved.
    name, word
        Name of the bound by prices, and of the solver's word.
    reruns
        Prices of second runs beside those of the model, nanoseconds for a byte.
    """
    found = []
    if result.duals is not None and np.isfinite(result.duals).all():
        prices = _prices(model, result.duals, reruns)
        certificate = certify(instance, "prices", name, checkpoints=model.checkpoints, prices=prices)
        found.append(certified_bound(certificate))
    if math.isfinite(result.bound):
        bound = proven_ns(result.bound, len(model.linear.cost), model.nanoseconds)
        found.append(Bound(bound, name_of_bound(instance, word), certified=False))
    return reduce(Bound.raised, found) if found else None


def _prices(model: PricedModel, duals: NDArray[np.float64], reruns: Mapping[RerunKey, float]) -> Prices:
    """Round dual values to prices in fractions of one denominator that are such prices exactly."""
    memory = np.maximum(-duals[model.memory_rows], 0.0) * (model.nanoseconds / model.bytes)
    engines = [np.clip(-duals[rows], 0.0, 1.0) for rows in model.engine_rows]
    highest = max(1.0, float(memory.max(initial=0.0)), *reruns.values())
    bits = _PRICE_BITS - math.frexp(highest)[1]
    if bits < 0:  # of a byte that would cost days
        memory, reruns, bits = np.zeros_like(memory), {}, _PRICE_BITS
    whole = [np.floor(price * 2.0**bits).astype(np.int64).tolist() for price in engines]
    for j, paid in enumerate(zip(*whole, strict=True)):
        for price in whole:
            price[j] = price[j] * 2**bits // max(sum(paid), 2**bits)
    paid_again = {key: math.floor(price * 2.0**bits) for key, price in reruns.items()}
    return Prices(
        2**bits,
        np.floor(memory * 2.0**bits).astype(np.int64).tolist(),
        whole,
        {key: price for key, price in paid_again.items() if price > 0},
    )


def flow_model(
    instance: Instance,
    checkpoints: Sequence[int],
    integrality: Integrality,
    windows: Sequence[Window] = (),
    *,
    unbroken: bool = False,
    long: float = LONG,
) -> FlowModel:
    """Build FLOW on some checkpoints.

    Parameters
    ----------
    instance, checkpoints
        What to bound; where memory is accounted for.
    integrality
        What must be whole.
    windows
        Stretches of tasks of which more is known than the checkpoints say.
    unbroken
        Whether long copies are not interrupted, where evictions are whole.
    long
        Share of the time of the longest copy over which a copy is long.

    Raises
    ------
    ValueError
        For an instance with recomputable tasks, a checkpoint that is no task, or copies that are unbroken
        while evictions are not whole.
    """
    if unbroken and integrality != "all":
        raise ValueError("copies are unbroken only where evictions are whole")
    if any(task.recomputable for task in instance.tasks):
        raise ValueError("FLOW does not cover recomputable tasks")
    positions = np.array(tasks_of(instance, checkpoints), dtype=np.int64)
    whole = _Stretch(0, len(instance.tasks), range(len(instance.blocks)))
    before = [0, *accumulate(least_times(instance))]
    return _model(instance, positions, integrality, whole, before, windows, long=long if unbroken else None)


def tasks_of(instance: Instance, checkpoints: Sequence[int]) -> list[int]:
    """Return checkpoints in order, each once.

    Raises
    ------
    ValueError
        When one of them is no task.
    """
    positions = sorted(set(checkpoints))
    for k in (*positions[:1], *positions[-1:]):
        if not 0 <= k < len(instance.tasks):
            last = len(instance.tasks) - 1
            raise ValueError(f"checkpoint {k} is no task of {instance.name}; tasks are 0 to {last}")
    return positions


def window_model(
    instance: Instance,
    first: int,
    until: int,
    integrality: Integrality,
    before: Sequence[int],
    *,
    idle: bool = False,
) -> FlowModel:
    """Build FLOW for the least time of a stretch of tasks, whatever comes before and after it.

    Every task of it is a checkpoint, and so is the one before it, at whose end the time begins. It ends with
    the last of these tasks, or with the program if that is the last of all. Copies before and after cost
    nothing, so that blocks that it does not use leave the device if they can.

    Parameters
    ----------
    instance, first, until, integrality
        The stretch, from task `first` to task `until - 1`, and what must be whole.
    before
        Sums of the least times of the tasks before each task, and of all; nanoseconds.
    idle
        Whether only the time counts for which the engine of prefetches is idle, in a stretch of the last
        tasks. Copies of all blocks count then, each for what it takes.
    """
    positions = np.arange(max(first - 1, 0), until, dtype=np.int64)
    blocks: Sequence[int] = range(len(instance.blocks))
    if not idle:
        used = {d for k in positions for d in instance.tasks[k].blocks}
        blocks = sorted(used | fixed_blocks(instance))
    stretch = _Stretch(first, until, blocks)
    return _model(instance, positions, integrality, stretch, before, (), idle=idle)


def fixed_blocks(instance: Instance) -> set[int]:
    """Blocks that cannot both leave the device and come back."""
    return {
        d for d, block in enumerate(instance.blocks) if block.offload_ns is None or block.prefetch_ns is None
    }


class _Stretch(NamedTuple):
    """Tasks whose time counts, from the first on, and the blocks that are looked at."""

    first: int
    until: int
    blocks: Sequence[int]


def _model(
    instance: Instance,
    positions: NDArray[np.int64],
    integrality: Integrality,
    stretch: _Stretch,
    before: Sequence[int],
    windows: Sequence[Window],
    *,
    long: float | None = None,
    idle: bool = False,
) -> FlowModel:
    """FLOW on some checkpoints for the time of a stretch, or for how long no copy back is made in it.

    Copies that take more than a share `long` of the longest are not interrupted; None: all may be.
    """
    count = len(positions)
    room = instance.pool_bytes
    builder = ModelBuilder()
    fits = {int(k): fitting(instance, int(k)) for k in positions}
    timed = np.ones(2 * count + 1)
    if stretch.first > 0:
        timed[:2] = 0.0
    if stretch.until < len(instance.tasks):
        timed[-1] = 0.0

    # intervals: the tasks that are skipped between checkpoints take at least their least times
    starts = [0, *(int(k) + 1 for k in positions)]
    ends = [*(int(k) for k in positions), len(instance.tasks)]
    skipped = np.array([before[end] - before[start] for start, end in zip(starts, ends, strict=True)])
    least = np.zeros(2 * count + 1)
    least[0::2] = skipped * timed[0::2]
    versions = _versions(instance, positions, stretch.blocks)
    others = copies_ns(instance.blocks[d] for d in stretch.blocks) + slowest_ns(fits.values())
    held = (version.bytes for version in versions)
    scratch = (algorithm.workspace_bytes for algorithms in fits.values() for algorithm in algorithms)
    compute = before[stretch.until] - before[stretch.first]
    units = time_unit(compute, others), size_unit(room, (*held, *scratch))
    ns, size = units
    delta = builder.columns(2 * count + 1, lower=least / ns, cost=0.0 if idle else timed)

    # memory at both instants of each checkpoint, and the choice of its algorithm
    if integrality != "all" and not idle:
        versions = _merged(versions)
    capacity = np.repeat([float(room - footprint(instance, int(k))) for k in positions], 2)
    staying = _staying_bytes(instance, positions, stretch.blocks)
    slack = _ROUNDING * (room + staying)
    memory = builder.rows(2 * count, upper=(capacity - staying + slack) / size)
    whole = integrality != "none"
    choices: dict[int, dict[int, int]] = {}
    for i, k in enumerate(positions.tolist()):
        algorithms = fits[k]
        choice = builder.columns(len(algorithms), upper=1.0, integer=whole)
        indices = map(instance.tasks[k].algorithms.index, algorithms)
        choices[k] = dict(zip(indices, choice.tolist(), strict=True))
        builder.entries(builder.rows(1, lower=1.0, upper=1.0), choice, 1.0)
        duration = builder.rows(1, lower=0.0)
        builder.entries(duration, delta[2 * i + 1], 1.0)
        builder.entries(duration, choice, [-a.duration_ns / ns for a in algorithms])
        for instant in (2 * i, 2 * i + 1):
            builder.entries(memory[instant], choice, [a.workspace_bytes / size for a in algorithms])

    # engines: what is moved in an interval fits its length
    single = instance.engines == "single"
    least_copied = 0.0 if idle else -np.inf  # beside what the engine is idle
    out = builder.rows(2 * count + 1, lower=least_copied if single else -np.inf, upper=0.0)
    back = out if single else builder.rows(2 * count + 1, lower=least_copied, upper=0.0)
    builder.entries(out, delta, -1.0)
    if not single:
        builder.entries(back, delta, -1.0)
    if idle:
        builder.entries(back, builder.columns(2 * count + 1, cost=timed), 1.0)
    load = _first_loads_ns(instance, positions) if stretch.first == 0 else 0
    if load:
        builder.entries(back[:1], builder.columns(1, lower=1.0, upper=1.0), load / ns)
    lines: tuple[UnbrokenCopies, UnbrokenCopies] | None = None
    if long is not None:
        longest = max(
            (float(time or 0) for v in versions for time in (v.offload_ns, v.prefetch_ns)), default=0.0
        )
        line = UnbrokenCopies(builder, 2 * count + 1, long * longest)
        lines = line, line if single else UnbrokenCopies(builder, 2 * count + 1, long * longest)
    gaps: dict[tuple[Gap, ...], GapColumns] = {}
    for version in versions:
        if integrality != "all" and version.stays_once:
            columns = _add_stay(builder, version, units, memory, out, back)
        else:
            columns = _add_version(builder, version, units, memory, out, back, integrality == "all", lines)
        gaps.update(zip(version.names, columns, strict=False))
    idle_windows = [window for window in windows if window.idle]
    if idle_windows:
        _add_idle_windows(builder, idle_windows, positions, back, ns)
    timed_windows = [window for window in windows if not window.idle]
    if timed_windows:
        _add_windows(builder, timed_windows, positions, delta, np.array(before) / ns, ns)
    return FlowModel(
        linear=builder.build(),
        nanoseconds=ns,
        bytes=size,
        checkpoints=tuple(positions.tolist()),
        choices=choices,
        memory_rows=memory,
        engine_rows=(out,) if single else (out, back),
        gaps=gaps,
        beyond=(*(["unbroken"] if long is not None else []), *(["windows"] if windows else [])),
    )


def _add_windows(
    builder: ModelBuilder,
    windows: Sequence[Window],
    positions: NDArray[np.int64],
    delta: NDArray[np.int64],
    before: NDArray[np.float64],
    ns: float,
) -> None:
    """Columns for the ends of tasks, which the intervals and the windows keep apart; `before` in units.

    The last of them is the end of the program: of a window of the last tasks, and of the last interval.
    """
    total = len(before) - 1
    marks = {0, total, *(positions + 1).tolist(), *(end for window in windows for end in window[:2])}
    ends = np.array(sorted(marks), dtype=np.int64)
    at = builder.columns(len(ends))
    column = dict(zip(ends.tolist(), at.tolist(), strict=True))
    apart = builder.rows(len(ends) - 1, lower=np.diff(before[ends]))
    builder.entries(apart, at[1:], 1.0)
    builder.entries(apart, at[:-1], -1.0)
    reached = 0
    for i, k in enumerate(positions.tolist()):
        passed = delta[2 * i : 2 * i + (3 if k + 1 == total else 2)]
        interval = builder.rows(1, lower=0.0, upper=0.0)
        builder.entries(interval, [column[k + 1], column[reached]], [1.0, -1.0])
        builder.entries(interval, passed, -1.0)
        last = int(ends[np.searchsorted(ends, k, "right") - 1])
        run = builder.rows(1, lower=before[k] - before[last])
        builder.entries(run, [column[k + 1], column[last]], [1.0, -1.0])
        builder.entries(run, passed[1:], -1.0)
        reached = k + 1
    if reached < total:
        rest = builder.rows(1, lower=0.0, upper=0.0)
        builder.entries(rest, [column[total], column[reached], delta[-1]], [1.0, -1.0, -1.0])
    rows = builder.rows(len(windows), lower=[window.least_ns / ns for window in windows])
    builder.entries(rows, [column[window.until] for window in windows], 1.0)
    builder.entries(rows, [column[window.first] for window in windows], -1.0)


def _add_idle_windows(
    builder: ModelBuilder,
    windows: Sequence[Window],
    positions: NDArray[np.int64],
    back: NDArray[np.int64],
    ns: float,
) -> None:
    """Columns for what the engine of prefetches is idle in each interval, and a row for each window.

    It takes the intervals from the last checkpoint before the window on.
    """
    idle = builder.columns(len(back))
    builder.entries(back, idle, 1.0)
    for window in windows:
        begin = 2 * int(np.searchsorted(positions, window.first))
        builder.entries(builder.rows(1, lower=window.least_ns / ns), idle[begin:], 1.0)


def _add_version(
    builder: ModelBuilder,
    version: _Version,
    units: tuple[float, float],
    memory: NDArray[np.int64],
    out: NDArray[np.int64],
    back: NDArray[np.int64],
    whole: bool,
    lines: tuple[UnbrokenCopies, UnbrokenCopies] | None,
) -> list[GapColumns]:
    """Columns and rows of one version of a block: out once, back after every gap in which it was absent."""
    gaps = []
    ns, size = units[0], version.bytes / units[1]
    final = len(out) - 1
    offloaded: dict[int, int] = {}
    left: dict[int, int] = {}
    if version.ready is not None and version.offload_ns is not None:
        last = final if version.must_leave else max((gap.last for gap in version.gaps), default=-1)
        instants = np.arange(version.ready, last + 1)
        if len(instants):
            lower = np.zeros(len(instants))
            lower[-1] = float(version.must_leave)
            q = builder.columns(len(instants), lower=lower, upper=1.0)
            offloaded = dict(zip(instants.tolist(), q.tolist(), strict=True))
            rising = builder.rows(len(q) - 1, lower=0.0)
            builder.entries(rising, q[1:], 1.0)
            builder.entries(rising, q[:-1], -1.0)
            rate = float(version.offload_ns) / ns
            if lines is not None:
                leaving = lines[0].add(instants, q, float(version.offload_ns), comes_back=False)
                if leaving is not None:
                    left = dict(zip(instants.tolist(), leaving.done.tolist(), strict=True))
            builder.entries(out[instants], q, rate)
            builder.entries(out[instants[1:]], q[:-1], -rate)
    for gap in version.gaps if version.prefetch_ns is not None else ():
        instants = np.arange(gap.first, gap.last + 1)
        rate = float(version.prefetch_ns or 0) / ns
        possible = np.array([version.ready is None or int(i) in offloaded for i in instants])
        r = builder.columns(len(instants), upper=1.0)
        x = builder.columns(len(instants), upper=possible.astype(float), integer=whole)
        q = np.array(list(offloaded.values()), dtype=np.int64)
        soonest = int(q[0]) if len(q) else None
        gaps.append(GapColumns(gap.first, x, r, version.ready or 0, q, soonest))
        if lines is not None:
            coming = lines[1].add(instants, r, float(version.prefetch_ns or 0), comes_back=True)
            if coming is not None:
                before = builder.rows(len(r), upper=1.0)
                builder.entries(before, x, 1.0)
                builder.entries(before, coming.begun, 1.0)
        falling = builder.rows(len(r) - 1, lower=0.0)
        builder.entries(falling, r[:-1], 1.0)
        builder.entries(falling, r[1:], -1.0)
        still = builder.rows(len(r), lower=0.0)
        builder.entries(still, r, 1.0)
        builder.entries(still, x, -1.0)
        if version.ready is not None and possible.any():
            gone = builder.rows(int(possible.sum()), lower=0.0)
            builder.entries(gone, [offloaded[int(i)] for i in instants[possible]], 1.0)
            builder.entries(gone, x[possible], -1.0)
            if left:
                after = builder.rows(int(possible.sum()), upper=0.0)
                builder.entries(after, x[possible], 1.0)
                builder.entries(after, [left[int(i)] for i in instants[possible]], -1.0)
        builder.entries(memory[instants], x, -size)
        builder.entries(back[instants[1:]], r[:-1], rate)
        builder.entries(back[instants[1:]], r[1:], -rate)
        builder.entries(back[gap.last + 1], r[-1], rate)
        if gap.must_load:
            # what is not left at the first instant was loaded before it: 1 - r, a constant on the row
            load = builder.columns(1, lower=1.0, upper=1.0)
            builder.entries(back[gap.first], load, rate)
            builder.entries(back[gap.first], r[0], -rate)
    return gaps


def _add_stay(
    builder: ModelBuilder,
    version: _Version,
    units: tuple[float, float],
    memory: NDArray[np.int64],
    out: NDArray[np.int64],
    back: NDArray[np.int64],
) -> list[GapColumns]:
    """Columns and rows of a version with one gap, where nothing is whole: fewer, for the same bound.

    What is absent rises by what goes out in an interval, and falls by what comes back. Copies that are not
    used do not count, and bytes that come back in vain and are dropped again count as absent meanwhile.
    """
    (gap,) = version.gaps
    ns, size = units[0], version.bytes / units[1]
    ready = version.ready or 0
    absent = builder.columns(gap.last - gap.first + 1, upper=1.0)
    leaving = builder.columns(max(gap.last - ready + 1, 0), upper=1.0)
    instants = np.arange(gap.first, gap.last + 1)
    coming = builder.columns(len(instants), upper=1.0)  # in the interval after each instant
    balance = builder.rows(len(instants) + 1, lower=0.0, upper=0.0)
    builder.entries(balance[:-1], absent, 1.0)
    builder.entries(balance[1:], absent, -1.0)
    builder.entries(balance[1:], coming, 1.0)
    row = np.maximum(np.arange(ready, gap.last + 1) - gap.first, 0)
    builder.entries(balance[row], leaving, -1.0)
    builder.entries(memory[instants], absent, -size)
    builder.entries(out[np.arange(ready, gap.last + 1)], leaving, float(version.offload_ns or 0) / ns)
    builder.entries(back[instants + 1], coming, float(version.prefetch_ns or 0) / ns)
    soonest = int(leaving[0]) if len(leaving) else None
    return [GapColumns(gap.first, absent, absent, gap.first, absent, soonest)]


def _versions(instance: Instance, positions: NDArray[np.int64], blocks: Sequence[int]) -> list[_Version]:
    """Versions that can leave the device, or must, with the gaps that have an instant inside."""
    versions = []
    for d in blocks:
        block, writers = instance.blocks[d], instance.writers[d]
        gaps: dict[int, list[_Stay]] = defaultdict(list)
        names: dict[int, list[tuple[Gap, ...]]] = defaultdict(list)
        for after, first, last in _stays(instance, d, positions):
            must_load = after == -1 and block.initially == "host"
            gaps[bisect_right(writers, after)].append(_Stay(first, last, must_load))
            names[bisect_right(writers, after)].append(((d, after),))
        final = len(writers) if block.finally_ == "host" else 0
        for written in sorted({*gaps, *([final] if final else [])}):
            versions.append(
                _Version(
                    block.bytes,
                    None if block.offload_ns is None else Fraction(block.offload_ns),
                    None if block.prefetch_ns is None else Fraction(block.prefetch_ns),
                    _ready(writers[written - 1], positions) if written else None,
                    tuple(gaps[written]),
                    must_leave=final > 0 and written == final,
                    names=tuple(names[written]),
                )
            )
    return versions


def _merged(versions: list[_Version]) -> list[_Version]:
    """Make one of the versions that the checkpoints cannot tell apart, at the fastest rates among them.

    Versions whose bytes take far less or more time than those of others stay apart.
    """
    groups: dict[tuple[object, ...], list[_Version]] = defaultdict(list)
    largest = max(versions, key=lambda v: v.bytes, default=None)
    for v in versions:
        assert largest is not None
        out = _pace(v.offload_ns, v.bytes, largest.offload_ns, largest.bytes)
        back = _pace(v.prefetch_ns, v.bytes, largest.prefetch_ns, largest.bytes)
        groups[v.ready, v.gaps, v.must_leave, out, back].append(v)
    return [
        _Version(
            total,
            _least_time([(v.offload_ns, v.bytes) for v in group], total),
            _least_time([(v.prefetch_ns, v.bytes) for v in group], total),
            group[0].ready,
            group[0].gaps,
            group[0].must_leave,
            tuple(tuple(chain.from_iterable(same)) for same in zip(*(v.names for v in group), strict=True)),
        )
        for group in groups.values()
        for total in [sum(v.bytes for v in group)]
    ]


def _pace(time: Fraction | None, size: int, other_time: Fraction | None, other: int) -> int | None:
    """Steps of a tenth by which bytes take longer in a copy than in another one; None without copies."""
    if time is None:
        return None
    if not time or not other_time:
        return _FASTEST
    return max(round(math.log(time * other / (other_time * size)) / math.log(1.1)), _FASTEST)


def _least_time(copies: list[tuple[Fraction | None, int]], total: int) -> Fraction | None:
    """Time of `total` bytes at the fastest rate of some copies; None where there are none."""
    rates = [time / size for time, size in copies if time is not None]
    return min(rates) * total if rates else None


def _ready(writer: int, positions: NDArray[np.int64]) -> int:
    """First instant by which bytes that a task writes can have been copied."""
    i = int(np.searchsorted(positions, writer, "left"))
    return 2 * i + 2 if i < len(positions) and positions[i] == writer else 2 * i


def _stays(instance: Instance, d: int, positions: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Stays of a block between uses: the task after which, and the first and last instant inside."""
    marks = [*([-1] if instance.blocks[d].initially != "absent" else []), *instance.uses[d]]
    marks += [len(instance.tasks)] if instance.blocks[d].finally_ == "device" else []
    for after, until in pairwise(marks):
        first = int(np.searchsorted(positions, after, "right"))
        last = int(np.searchsorted(positions, until, "left")) - 1
        if first <= last:
            yield after, 2 * first, 2 * last + 1


def _first_loads_ns(instance: Instance, positions: NDArray[np.int64]) -> int:
    """Time of the prefetches that come before the first checkpoint whatever is decided.

    They are of blocks that are on the host only, and are used before it or by it. Without checkpoints, the
    one interval has them all.
    """
    until = positions[0] if len(positions) else len(instance.tasks)
    return sum(
        block.prefetch_ns or 0
        for d, block in enumerate(instance.blocks)
        if block.initially == "host" and instance.uses[d] and instance.uses[d][0] <= until
    )


def _staying_bytes(
    instance: Instance, positions: NDArray[np.int64], blocks: Sequence[int]
) -> NDArray[np.float64]:
    """Per instant, the bytes of the blocks between uses: they take memory unless they are absent."""
    bytes_at = np.zeros(2 * len(positions))
    for d in blocks:
        for _, first, last in _stays(instance, d, positions):
            bytes_at[first : last + 1] += instance.blocks[d].bytes
    return bytes_at
