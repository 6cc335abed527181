"""FLOW: a position-indexed model of transfers without big-M terms; each subset of checkpoints gives a bound.

Positions are tasks. At some of them, the checkpoints, memory is accounted for at two instants: the start (2i)
and the end (2i + 1) of the i-th checkpoint. Interval j ends at instant j, so that odd intervals are the runs
of checkpoints, and even ones lie between them.

Bytes flow out (Q, cumulative, per version of a block) and have still to come back (R, per gap between uses).
A block may be absent at an instant (x) only as far as it is out and has still to come back. The model leaves
out memory between instants. It also leaves out that transfers are not interrupted, unless copies are
`unbroken`. So any choice of checkpoints, with whole or continuous x and lambda, bounds the problem from
below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from types import MappingProxyType
from typing import Literal, NamedTuple, Unpack

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from ...heuristics.gaps import Gap
from ...instances.arguments import require_fixed_reads
from ...instances.instance import Instance
from ...instances.memory import footprint
from ...validate.bounds.arguments import Prices, fitting, least_times
from ...validate.bounds.certificate import certify, name_of_bound
from ...validate.bounds.divisor import in_steps_ns
from ...validate.bounds.machine import slowed_intervals, touched_on_host
from ...validate.bounds.reruns import RerunKey
from ...validate.bounds.survival import SurvivalKey
from ..bounds import Bound, certified_bound
from ..linear.facade import solve_linear
from ..linear.model import LinearModel, LinearOptions, LinearResult, ModelBuilder, RowFamilies
from ..scaling import copies_ns, proven_ns, size_unit, slowest_ns, time_unit
from .families import (
    Frame,
    GapColumns,
    Window,
    add_idle_windows,
    add_single_stay,
    add_version,
    add_windows,
    engine_of_offloads,
    engine_of_prefetches,
    fits_at_the_ends,
    host_fits_at_the_ends,
    host_memory,
    idle_time,
    lengths,
    load_first,
    memory,
    one_algorithm,
    run,
)
from .machine.copies import directions, link_times
from .machine.host_work import HostRun, SharedBlock, add_host_runs
from .machine.together import host_tasks
from .unbroken import LONG, UnbrokenCopies
from .versions import first_loads_ns, fixed_blocks, merged, staying_bytes, versions_of

Integrality = Literal["none", "algorithms", "all"]
"""The variables that must be whole: none (an LP), the choice of algorithms, or this and the evictions
(MILPs).
"""

ROUNDING = 1e-15
"""Relative error of a memory row's coefficients, as a share of the sizes in the row."""

_PRICE_BITS = 52
"""Number of bits of a certificate's largest price, so that a double holds the figures of files exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedModel:
    """A linear model of a schedule on some checkpoints, in scaled units. Its dual values are prices.

    Attributes
    ----------
    linear
        The model; its objective is the makespan.
    rows
        Its rows by family: ``rows["memory"]`` and others, which docs/flow.md lists.
    nanoseconds, bytes
        Nanoseconds in the model's unit of time, and bytes in its unit of size.
    checkpoints
        Tasks, in increasing order.
    choices
        Per checkpoint, the columns of its algorithms, with their indices.
    memory_rows, engine_rows
        The rows of memory, one for each instant, and the rows of each copy engine, one for each interval.
    host_rows
        The rows of host memory, one for each instant; none where it never ends.
    end_rows
        Where blocks are carried, the row of memory at both ends, and that of host memory if it has a budget.
    link_rows
        The rows of a link that both directions share, one for each interval: for each of `LinkTimes`, or for
        the first alone; none without it.
    stream_rows
        Those of the stream of the host, where tasks may run on it.
    """

    linear: LinearModel
    rows: RowFamilies
    nanoseconds: float
    bytes: float
    checkpoints: tuple[int, ...]
    choices: dict[int, dict[int, int]]
    memory_rows: NDArray[np.int64]
    engine_rows: tuple[NDArray[np.int64], ...]
    host_rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    end_rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    link_rows: tuple[NDArray[np.int64], ...] = ()
    stream_rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowModel(PricedModel):
    """FLOW as a linear model.

    Attributes
    ----------
    gaps
        The columns of each gap, or of each set of gaps that are the same to the checkpoints.
    on_host
        For each task that may run on the host, the column that says whether it does.
    beyond
        The extensions of the model: ``unbroken`` copies, and ``windows`` with their proven times.
    """

    gaps: dict[tuple[Gap, ...], GapColumns]
    on_host: dict[int, int]
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
        None when the solver gives no bound, as at a limit.

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
    """Return the name of a bound by its model and its solver."""
    models = {"none": "flow-lp", "algorithms": "flow-partial", "all": "flow-milp"}
    return f"{models[integrality]}-{solver}"


def proven(instance: Instance, result: LinearResult, model: FlowModel, name: str) -> Bound | None:
    """Return the bound in nanoseconds that a solver has proven on FLOW; None if it has proven nothing.

    Dual values of a linear model are prices of memory and of the engines' time. From these, a bound is
    derived in exact arithmetic, with its certificate; windows have no part in it. A bound that rests on
    floating point alone is lowered by the effect of its tolerances (`proven_ns`). It counts if it is higher.
    """
    return proven_by(instance, result, model, name, "+".join((name, *model.beyond)), {})


def proven_by(
    instance: Instance,
    result: LinearResult,
    model: PricedModel,
    name: str,
    word: str,
    reruns: Mapping[RerunKey, float],
    survival: Mapping[SurvivalKey, float] = MappingProxyType({}),
) -> Bound | None:
    """Return the bound that a solver has proven on any model with prices, as `proven` does.

    Parameters
    ----------
    instance, result, model
        The instance, the solver's result, and the model.
    name, word
        Name of the bound by prices, and of the solver's word.
    reruns
        Prices of second runs beside those of the model, in nanoseconds per byte.
    survival
        Prices of survival, in nanoseconds per byte.
    """
    found = []
    if result.duals is not None and np.isfinite(result.duals).all():
        prices = _prices(model, result.duals, reruns, survival)
        certificate = certify(instance, "prices", name, checkpoints=model.checkpoints, prices=prices)
        found.append(certified_bound(certificate))
    if math.isfinite(result.bound):
        bound = proven_ns(result.bound, len(model.linear.cost), model.nanoseconds)
        in_steps = in_steps_ns(instance, bound)
        found.append(Bound(in_steps, name_of_bound(instance, word), certified=False))
    return reduce(Bound.raised, found) if found else None


def _prices(
    model: PricedModel,
    duals: NDArray[np.float64],
    reruns: Mapping[RerunKey, float],
    survival: Mapping[SurvivalKey, float],
) -> Prices:
    """Round dual values to prices that are exact fractions of one denominator."""
    memory, host, ends = (
        np.maximum(-duals[rows], 0.0) * (model.nanoseconds / model.bytes)
        for rows in (model.memory_rows, model.host_rows, model.end_rows)
    )
    others = [*model.link_rows, *([model.stream_rows] if len(model.stream_rows) else [])]
    engines = [np.clip(-duals[rows], 0.0, 1.0) for rows in (*model.engine_rows, *others)]
    of_bytes = (float(price.max(initial=0.0)) for price in (memory, host, ends))
    highest = max(1.0, *of_bytes, *reruns.values(), *survival.values())
    bits = _PRICE_BITS - math.frexp(highest)[1]
    if bits < 0:  # of a byte that would cost days
        memory, host, ends = np.zeros_like(memory), np.zeros_like(host), np.zeros_like(ends)
        reruns, survival, bits = {}, {}, _PRICE_BITS
    whole = [np.floor(price * 2.0**bits).astype(np.int64).tolist() for price in engines]
    for j, paid in enumerate(zip(*whole, strict=True)):
        for price in whole:
            price[j] = price[j] * 2**bits // max(sum(paid), 2**bits)
    count = len(model.engine_rows)
    paid_again = {key: math.floor(price * 2.0**bits) for key, price in reruns.items()}
    surviving = {key: math.floor(price * 2.0**bits) for key, price in survival.items()}
    return Prices(
        2**bits,
        np.floor(memory * 2.0**bits).astype(np.int64).tolist(),
        whole[:count],
        {key: price for key, price in paid_again.items() if price > 0},
        np.floor(host * 2.0**bits).astype(np.int64).tolist(),
        np.floor(ends * 2.0**bits).astype(np.int64).tolist(),
        whole[count : count + len(model.link_rows)],
        whole[-1] if len(model.stream_rows) else (),
        {key: price for key, price in surviving.items() if price > 0},
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
        The instance to bound, and the tasks at which memory is accounted for.
    integrality
        The variables that must be whole.
    windows
        Stretches of tasks with proven least times.
    unbroken
        Whether long copies are not interrupted; only with whole evictions.
    long
        Share of the time of the longest copy above which a copy is long.

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
    require_fixed_reads(instance, "FLOW over gaps")  # the gaps lie between uses that are known
    if windows and instance.has_host_work:
        raise ValueError("FLOW has no windows where tasks may run on the host")
    positions = np.array(tasks_of(instance, checkpoints), dtype=np.int64)
    whole = _Stretch(0, len(instance.tasks), range(len(instance.blocks)))
    before = [0, *accumulate(least_times(instance))]
    return _model(instance, positions, integrality, whole, before, windows, long=long if unbroken else None)


def tasks_of(instance: Instance, checkpoints: Sequence[int]) -> list[int]:
    """Return checkpoints in order, without duplicates and without tasks that may run on the host.

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
    return [k for k in positions if not instance.tasks[k].may_run_on_host]


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

    Every task of the stretch is a checkpoint, and so is the task before it, at whose end the time begins. The
    time ends with the last task of the stretch, or with the program if that is the last task of all. Copies
    before and after cost nothing, so that blocks that the stretch does not use leave the device if they can.

    Parameters
    ----------
    instance, first, until, integrality
        The stretch, from task `first` to task `until - 1`, and the variables that must be whole.
    before
        Sums of the least times of the tasks before each task, and of all tasks, in nanoseconds.
    idle
        Whether only time counts in which the engine of prefetches is idle, in a stretch of the last tasks.
        Copies of all blocks count then, each with its own time.
    """
    positions = np.arange(max(first - 1, 0), until, dtype=np.int64)
    blocks: Sequence[int] = range(len(instance.blocks))
    if not idle:
        used = {d for k in positions for d in instance.tasks[k].blocks}
        blocks = sorted(used | fixed_blocks(instance))
    stretch = _Stretch(first, until, blocks)
    return _model(instance, positions, integrality, stretch, before, (), idle=idle)


class _Stretch(NamedTuple):
    """The tasks whose time counts, from the first on, and the blocks that are modelled."""

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
    """Build FLOW for the time of a stretch, or for the time in it without prefetches.

    Copies that take more than a share `long` of the longest are not interrupted; None means that all may be.
    """
    count = len(positions)
    room = instance.pool_bytes
    builder = ModelBuilder()
    fits = [fitting(instance, k) for k in positions.tolist()]
    timed = np.ones(2 * count + 1)
    if stretch.first > 0:
        timed[:2] = 0.0
    if stretch.until < len(instance.tasks):
        timed[-1] = 0.0

    # blocks that a run on the host may touch have their versions at the end, or are left out
    on_host = touched_on_host(instance)
    hosted = host_tasks(instance, positions, merges=integrality != "all") if instance.has_host_work else []
    shared = {d for task in hosted for group in task.blocks for d, _ in group.members}
    blocks = [d for d in stretch.blocks if d not in on_host] if on_host else stretch.blocks
    modelled = [d for d in stretch.blocks if d in shared or d not in on_host] if on_host else blocks

    # units of time and size
    versions = versions_of(instance, positions, blocks)
    others = copies_ns(instance.blocks[d] for d in stretch.blocks) + slowest_ns(fits)
    others += slowest_ns(task.algorithms for task in instance.tasks if task.may_run_on_host)
    held = (version.bytes for version in versions)
    scratch = (algorithm.workspace_bytes for algorithms in fits for algorithm in algorithms)
    ns = time_unit(before[stretch.until] - before[stretch.first], others)
    size = size_unit(room, (*held, *scratch))

    # intervals: the tasks that are skipped between checkpoints take at least their least times
    starts = [0, *(k + 1 for k in positions.tolist())]
    ends = [*positions.tolist(), len(instance.tasks)]
    skipped = np.array([before[end] - before[start] for start, end in zip(starts, ends, strict=True)])
    least = np.zeros(2 * count + 1)
    least[0::2] = skipped * timed[0::2]
    delta = lengths(builder, least / ns, 0.0 if idle else timed)

    # memory at both instants of each checkpoint, and the choice of its algorithm
    if integrality != "all" and not idle:
        versions = merged(versions)
    columns = [
        builder.columns(len(algorithms), upper=1.0, integer=integrality != "none") for algorithms in fits
    ]
    workspaces = [[a.workspace_bytes / size for a in algorithms] for algorithms in fits]
    capacity = np.repeat([float(room - footprint(instance, k)) for k in positions.tolist()], 2)
    staying = staying_bytes(instance, positions, modelled)
    slack = ROUNDING * (room + staying)
    held_in = memory(builder, (capacity - staying + slack) / size, columns, workspaces)
    choices: dict[int, dict[int, int]] = {}
    for i, (k, algorithms, choice) in enumerate(zip(positions.tolist(), fits, columns, strict=True)):
        indices = map(instance.tasks[k].algorithms.index, algorithms)
        choices[k] = dict(zip(indices, choice.tolist(), strict=True))
        one_algorithm(builder, choice)
        run(builder, delta[2 * i + 1], choice, [a.duration_ns / ns for a in algorithms])

    host = np.zeros(0, dtype=np.int64)
    if instance.host_budget_bytes is not UNSET and instance.host_budget_bytes < staying.max(initial=0.0):
        host = host_memory(builder, (instance.host_budget_bytes + ROUNDING * staying) / size)

    # engines: what is moved in an interval fits its length
    single = instance.engines == "single"
    least_copied = 0.0 if idle else -np.inf  # beside what the engine is idle
    out = engine_of_offloads(builder, delta, least_copied if single else -np.inf)
    back = out if single else engine_of_prefetches(builder, delta, least_copied)
    if idle:
        idle_time(builder, back, timed)
    lost = slowed_intervals(instance, positions.tolist(), {}) if instance.is_slowed else []
    outward, inward = directions(builder, instance, delta, (out, back), least / ns, lost)
    for i, (algorithms, choice) in enumerate(zip(fits, columns, strict=True)):
        if lost and any(lost[2 * i + 1]):
            builder.entries(outward.slowed[2 * i + 1], choice, [-a.duration_ns / ns for a in algorithms])
    runs: dict[int, HostRun] = {}
    stream = np.zeros(0, dtype=np.int64)
    if instance.has_host_work:
        runs, stream = add_host_runs(
            builder,
            hosted,
            positions,
            delta,
            (least / ns).tolist(),
            outward.slowed,
            ns,
            whole=integrality != "none",
        )
    load, passing = first_loads_ns(instance, positions, blocks) if stretch.first == 0 else (0, None)
    if load:
        load_first(builder, inward, load / ns, link_times(passing, ns))
    lines: tuple[UnbrokenCopies, UnbrokenCopies] | None = None
    if long is not None:
        longest = max(
            (float(time or 0) for v in versions for time in (v.offload_ns, v.prefetch_ns)), default=0.0
        )
        line = UnbrokenCopies(builder, 2 * count + 1, long * longest)
        lines = line, line if single else UnbrokenCopies(builder, 2 * count + 1, long * longest)

    frame = Frame(builder, ns, size, held_in, outward, inward, host, {})
    gaps: dict[tuple[Gap, ...], GapColumns] = {}
    for version in versions:
        if integrality != "all" and version.stays_once:
            added = add_single_stay(frame, version)
        else:
            added = add_version(frame, version, integrality == "all", lines)
        gaps.update(zip(version.names, added, strict=False))
    for task in hosted:
        for group in task.blocks:
            one = SharedBlock(frame, instance, positions, group, runs[task.task], whole=integrality == "all")
            gaps.update(one.gaps)
    end_rows = np.zeros(0, dtype=np.int64)
    if frame.carried:
        end_rows = _fit_at_the_ends(instance, modelled, frame)
    idle_windows = [window for window in windows if window.idle]
    if idle_windows:
        add_idle_windows(builder, idle_windows, positions, back, ns)
    timed_windows = [window for window in windows if not window.idle]
    if timed_windows:
        add_windows(builder, timed_windows, positions, delta, np.array(before) / ns, ns)
    return FlowModel(
        linear=builder.build(),
        rows=builder.families,
        nanoseconds=ns,
        bytes=size,
        checkpoints=tuple(positions.tolist()),
        choices=choices,
        memory_rows=held_in,
        engine_rows=(out,) if single else (out, back),
        host_rows=host,
        end_rows=end_rows,
        link_rows=outward.link,
        stream_rows=stream,
        gaps=gaps,
        on_host={k: runs[task.task].on_host for task in hosted for k in task.tasks},
        beyond=(*(["unbroken"] if long is not None else []), *(["windows"] if windows else [])),
    )


def host_bytes_at_the_ends(instance: Instance, blocks: Iterable[int]) -> int:
    """Return the bytes of what begins on the host and is used or ends somewhere, or of what must end there.

    Whichever are more: host memory has no room for carried blocks there.
    """
    begins = ends = 0
    for d in blocks:
        block = instance.blocks[d]
        if block.initially == "host" and (instance.uses[d] or block.finally_ != "anywhere"):
            begins += block.bytes
        if block.finally_ == "host":
            ends += block.bytes
    return max(begins, ends)


def _fit_at_the_ends(instance: Instance, blocks: Sequence[int], frame: Frame) -> NDArray[np.int64]:
    """Add the row of memory at both ends, where carried blocks are in the same place, and that of the host.

    Return the one row, or both.
    """
    kept = sum(
        block.bytes
        for d in blocks
        for block in [instance.blocks[d]]
        if block.finally_ == "device" or (block.initially == "carried" and instance.uses[d])
    )
    room = instance.pool_bytes
    builder, carried, size = frame.builder, frame.carried.values(), frame.size
    rows = [fits_at_the_ends(builder, carried, size, (room - kept + ROUNDING * (room + kept)) / size)]
    if instance.host_budget_bytes is not UNSET:
        taken = host_bytes_at_the_ends(instance, blocks)
        slack = ROUNDING * (taken + sum(block.bytes for block in carried))
        beside = (instance.host_budget_bytes - taken + slack) / size
        rows.append(host_fits_at_the_ends(builder, carried, size, beside))
    return np.concatenate(rows)
