"""FLOW with recomputation: tasks that run again in an interval beside the copies in it.

As in `flow`, memory is accounted for at both instants of some checkpoints, which are first runs here, and
every choice of checkpoints bounds the problem from below. In the intervals between checkpoints, tasks may run
again.

Each version of a block has, at each instant, a share that can be read (`valid`), a share that uses memory
(`present`), and a share that is out on the host. In an interval, it becomes valid as far as it is prefetched,
or wholly by a run of its producer. An absent version is out, or is made again before its next use.

Where what a task reads depends on its algorithm, it reads the least that it can, and at a checkpoint also
what the algorithm reads that runs there. What some algorithms of a task leave out is made by those of a
checkpoint that make it, by tasks that are no checkpoints, and by second runs.

The model leaves out that copies are not interrupted, memory between instants (and so while tasks run again),
and how often a task runs again within an interval. Numbers are those of docs/flow.md. It is long because all
rows are of the same columns.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Unpack

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from ...heuristics.recomputation.reruns import Run, last_uses
from ...instances.instance import Algorithm, Instance
from ...instances.memory import footprint
from ...validate.bounds.arguments import fitting, least_times
from ...validate.bounds.machine import FairShares, fair_shares, slowed_intervals
from ...validate.bounds.reads import with_least_reads
from ...validate.bounds.reruns import RerunKey, rerun_intervals
from ...validate.bounds.survival import SurvivalKey
from ..bounds import Bound
from ..linear.facade import solve_linear
from ..linear.model import LinearOptions, LinearResult, ModelBuilder
from ..scaling import copies_ns, size_unit, slowest_ns, time_unit
from .checkpoints import interval_before, interval_of
from .families import (
    CarriedColumns,
    engine_of_offloads,
    engine_of_prefetches,
    fits_at_the_ends,
    host_fits_at_the_ends,
    is_saved,
    lengths,
    memory,
    one_algorithm,
    stays_out,
)
from .machine.copies import Direction, directions, link_times
from .model import ROUNDING, Integrality, PricedModel, host_bytes_at_the_ends, proven_by, tasks_of
from .versions import Parts, VersionColumns, can_be_away, joined


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeModel(PricedModel):
    """FLOW with recomputation as a linear model.

    Attributes
    ----------
    again
        The column of each task and interval: whether the task runs again in the interval.
    parts
        The blocks of the instance for which the model's blocks stand: equal parts of tensors are one.
    versions
        The columns of each version, by block of the instance and number of the version.
    block_rows
        Per row, the model's block to which the row's version belongs, or -1.
    survival_rows
        Rows (54) and (55), as prices of survival are named, with the model's blocks, as below.
    read_rows
        Rows (57) and (58), by checkpoint, instant of it, and block that it reads with some algorithms only;
        rows (59), by checkpoint, its last instant, and block that it makes with some only.
    """

    again: dict[Run, int]
    parts: Parts
    versions: dict[tuple[int, int], VersionColumns]
    block_rows: NDArray[np.int64]
    survival_rows: dict[SurvivalKey, int]
    read_rows: dict[RerunKey, list[int]]


def recompute_bound(
    instance: Instance,
    checkpoints: Sequence[int],
    *,
    integrality: Integrality = "none",
    solver: str = "highs",
    **options: Unpack[LinearOptions],
) -> Bound | None:
    """Bound the makespan by FLOW with recomputation on some checkpoints.

    The options are those of `solve_linear`.

    Returns
    -------
    Bound or None
        None when the solver gives no bound, as at a limit.
    """
    model = recompute_model(instance, checkpoints, integrality)
    result = solve_linear(model.linear, solver=solver, **options)
    return proven_with_reruns(instance, result, model, integrality, solver)


def proven_with_reruns(
    instance: Instance, result: LinearResult, model: RecomputeModel, integrality: Integrality, solver: str
) -> Bound | None:
    """Return the bound in nanoseconds that a solver has proven, as `flow.model.proven` does."""
    models = {"none": "lp", "algorithms": "partial", "all": "milp"}
    name = f"flow-recompute-{models[integrality]}-{solver}"
    if result.duals is None:
        return proven_by(instance, result, model, name, name, {})
    reruns = _rerun_prices(instance, model, result.duals)
    survival = _survival_prices(instance, model, result.duals)
    return proven_by(instance, result, model, name, name, reruns, survival)


def _bytes(instance: Instance, parts: Sequence[int]) -> int:
    return sum(instance.blocks[d].bytes for d in parts)


def _rerun_prices(
    instance: Instance, model: RecomputeModel, duals: NDArray[np.float64]
) -> dict[RerunKey, float]:
    """Return what second runs gain per byte written, and pay per byte read, in nanoseconds.

    Checkpoints pay likewise for what they read with some algorithms only, and gain for what they make so.
    """
    linear = model.linear
    runs = dict(zip(model.again.values(), model.again, strict=True))
    prices: dict[RerunKey, float] = defaultdict(float)
    own = np.isin(linear.columns, list(runs)) & (model.block_rows[linear.rows] >= 0)
    for row, column, value in zip(linear.rows[own], linear.columns[own], linear.values[own], strict=True):
        parts = model.parts[int(model.block_rows[row])]
        worth = float(duals[row] * abs(value)) * model.nanoseconds / _bytes(instance, parts)
        for d in parts:
            prices[*runs[int(column)], d] += max(worth, 0.0)
    for (k, t, joint), rows in model.read_rows.items():
        worth = sum(max(float(duals[row]), 0.0) for row in rows)
        for d in model.parts[joint]:
            prices[k, t, d] += worth * model.nanoseconds / _bytes(instance, model.parts[joint])
    return prices


def _survival_prices(
    instance: Instance, model: RecomputeModel, duals: NDArray[np.float64]
) -> dict[SurvivalKey, float]:
    """Return what versions pay that do not survive, in nanoseconds per byte.

    Each of equal parts pays the same, to each part of an input.
    """
    prices: dict[SurvivalKey, float] = {}
    for (t, joint, input_), row in model.survival_rows.items():
        lost, read = model.parts[joint], model.parts[input_]
        worth = max(float(duals[row]), 0.0) * model.nanoseconds / _bytes(instance, lost)
        if joint == input_:
            prices |= {(t, d, d): worth for d in lost}
        elif worth:
            prices |= {(t, d, x): worth / len(read) for d in lost for x in read}
    return prices


def recompute_model(
    instance: Instance, checkpoints: Sequence[int], integrality: Integrality, *, between: bool = False
) -> RecomputeModel:
    """Build FLOW with recomputation on some checkpoints.

    With `between`, memory counts at the runs between two checkpoints as well, by (61) and (62). That is for
    few checkpoints, and for instances in which nothing returns from the host. Unless evictions are whole,
    equal parts of a tensor are one block of the model (`joined`).

    Raises
    ------
    ValueError
        When a checkpoint is no task, or tasks may run on the host; with `between`, when a block may return.
    """
    if instance.has_host_work:
        raise ValueError("FLOW with second runs does not cover tasks that may run on the host")
    if between and not instance.nothing_returns:
        raise ValueError("what is there before and after a run may be away meanwhile, as blocks may return")
    alone = tuple((d,) for d in range(len(instance.blocks)))
    joint, parts = (instance, alone) if integrality == "all" else joined(instance)
    least, chosen = with_least_reads(joint), tuple(tasks_of(instance, checkpoints))
    return _Model(joint, parts, least, chosen, integrality, between).build()


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of a block: its writer (-1: there from the start), and the next task that updates it."""

    block: int
    number: int
    writer: int
    until: int | None


@dataclass(slots=True)
class _Model:
    """The model while it is built: `memory`, `out` and `back` are rows, and all others are columns.

    In `instance`, tasks read and make the least that they do in the `given` one. `optional` has, per version,
    the checkpoints that read it with some algorithms only, and the columns of these; `makers`, per block that
    some algorithms of a checkpoint leave out, the columns of the others.
    `parts` has what the blocks stand for. `needed` has, per version that is not held, the last interval in
    which first runs, or the end, need it.
    """

    given: Instance
    parts: Parts
    instance: Instance
    checkpoints: tuple[int, ...]
    integrality: Integrality
    between: bool
    builder: ModelBuilder = field(default_factory=ModelBuilder, init=False)
    choices: dict[int, dict[int, int]] = field(default_factory=dict, init=False)
    optional: dict[tuple[int, int], dict[int, list[int]]] = field(default_factory=dict, init=False)
    makers: dict[int, list[int]] = field(default_factory=dict, init=False)
    read_rows: dict[RerunKey, list[int]] = field(default_factory=dict, init=False)
    again: dict[Run, int] = field(default_factory=dict, init=False)
    absent: dict[int, int] = field(default_factory=dict, init=False)
    versions: dict[tuple[int, int], VersionColumns] = field(default_factory=dict, init=False)
    needed: dict[tuple[int, int], int] = field(default_factory=dict, init=False)
    ns: float = field(init=False)
    size: float = field(init=False)
    memory: NDArray[np.int64] = field(init=False)
    out: Direction = field(init=False)
    back: Direction = field(init=False)
    shares: FairShares | None = field(init=False)

    def build(self) -> RecomputeModel:
        """Return the whole model."""
        instance, builder, count = self.instance, self.builder, len(self.checkpoints)
        total = len(instance.tasks)
        least = least_times(instance)
        before = [0, *accumulate(least)]
        fits = [fitting(self.given, k) for k in self.checkpoints]
        self.ns = time_unit(before[-1], copies_ns(instance.blocks) + slowest_ns(fits))
        sizes = (
            block.bytes
            for d, block in enumerate(instance.blocks)
            if instance.uses[d] or block.finally_ == "device" or d in self.given.optional
        )
        scratch = [
            [a.workspace_bytes + self._made_beside(k, a) for a in algorithms]
            for k, algorithms in zip(self.checkpoints, fits, strict=True)
        ]
        self.size = size_unit(instance.pool_bytes, (*sizes, *(some for each in scratch for some in each)))

        # intervals: the first runs that are skipped between checkpoints, and all second runs
        starts = [0, *(k + 1 for k in self.checkpoints)]
        ends = [*self.checkpoints, total]
        shortest = np.zeros(2 * count + 1)
        shortest[0::2] = [
            (before[end] - before[start]) / self.ns for start, end in zip(starts, ends, strict=True)
        ]
        delta = lengths(builder, shortest, 1.0)
        whole = self.integrality != "none"
        possible = sorted(self._possible())
        again = builder.columns(len(possible), upper=1.0, integer=whole).tolist()
        self.again = dict(zip(possible, again, strict=True))
        choices = [builder.columns(len(algorithms), upper=1.0, integer=whole) for algorithms in fits]
        for k, algorithms, choice in zip(self.checkpoints, fits, choices, strict=True):
            indices = map(self.given.tasks[k].algorithms.index, algorithms)
            self.choices[k] = dict(zip(indices, choice.tolist(), strict=True))
            self._note_what_is_optional(k)
        times = [[a.duration_ns / self.ns for a in algorithms] for algorithms in fits]
        self._intervals_hold_their_work(delta, shortest, [time / self.ns for time in least], choices, times)

        # memory at both instants of each checkpoint, and the choice of its algorithm
        fixed = np.array(
            [instance.pool_bytes - footprint(instance, k) for k in self.checkpoints], dtype=float
        )
        workspaces = [[some / self.size for some in each] for each in scratch]
        self.memory = memory(builder, np.repeat(fixed, 2) / self.size, choices, workspaces)
        for choice in choices:
            one_algorithm(builder, choice)

        # engines: what is moved in an interval fits its length
        single = instance.engines == "single"
        out = engine_of_offloads(builder, delta, -np.inf)
        engines = out, (out if single else engine_of_prefetches(builder, delta, -np.inf))
        intervals = rerun_intervals(instance, self.checkpoints)
        lost = slowed_intervals(instance, self.checkpoints, intervals) if instance.is_slowed else []
        self.shares = fair_shares(instance)
        self.out, self.back = directions(builder, instance, delta, engines, shortest, lost)
        if lost:
            self._runs_lose_time(self.out.slowed, [time / self.ns for time in least], choices, times)
        at_ends = self._fit_at_the_ends()
        readers, owners = self._readers(), [np.full(builder.row_count, -1)]
        for version in _versions(self.given):
            before_it = builder.row_count
            self._add(version, readers[version.block, version.number])
            owners.append(np.full(builder.row_count - before_it, version.block))
        before_it = builder.row_count
        survival_rows = self._what_is_nowhere_is_made_again()
        if self.between:
            self._runs_between_have_room()
        owners.append(np.full(builder.row_count - before_it, -1))
        return RecomputeModel(
            # without copies, the interior-point method takes up to ten times as long; with them, it is faster
            linear=replace(builder.build(), simplex=instance.nothing_returns),
            rows=builder.families,
            nanoseconds=self.ns,
            bytes=self.size,
            checkpoints=self.checkpoints,
            choices=self.choices,
            memory_rows=self.memory,
            engine_rows=engines[:1] if single else engines,
            end_rows=at_ends,
            link_rows=self.out.link,
            again=self.again,
            parts=self.parts,
            versions={
                (d, number): columns
                for (joint, number), columns in self.versions.items()
                for d in self.parts[joint]
            },
            block_rows=np.concatenate(owners),
            survival_rows=survival_rows,
            read_rows=self.read_rows,
        )

    def _made_beside(self, k: int, algorithm: Algorithm) -> int:
        """Return the bytes of what an algorithm of task k makes and others leave out."""
        made = self.given.tasks[k].outputs if algorithm.outputs is UNSET else algorithm.outputs
        return sum(self.given.blocks[d].bytes for d in made if d in self.given.optional)

    def _note_what_is_optional(self, k: int) -> None:
        """Note the columns of the algorithms with which a checkpoint reads or makes more than with all."""
        task = self.given.tasks[k]
        for d in self.given.optional.intersection(task.outputs):
            self.makers[d] = [column for a, column in self.choices[k].items() if d in task.makes(a)]
        for d in task.may_read if task.reads_vary else ():
            if d not in task.must_hold:
                version = d, bisect_left(self.given.writers[d], k)
                if columns := [column for a, column in self.choices[k].items() if d in task.holds(a)]:
                    self.optional.setdefault(version, {})[k] = columns

    def _fit_at_the_ends(self) -> NDArray[np.int64]:
        """Let carried blocks fit the pool and host memory at both ends, (39) and (40); return the rows.

        Each that can be away gets a column: whether it is absent at both ends, and so on the host.
        """
        instance, builder = self.instance, self.builder
        if not instance.carried:
            return np.zeros(0, dtype=np.int64)
        used = {d for d in instance.carried if instance.uses[d]}
        away = [d for d in sorted(used) if can_be_away(instance, d)]
        columns = builder.columns(len(away), upper=1.0, integer=self.integrality == "all")
        self.absent = dict(zip(away, columns.tolist(), strict=True))
        carried = [CarriedColumns(instance.blocks[d].bytes, a, held=a) for d, a in self.absent.items()]
        kept = sum(b.bytes for d, b in enumerate(instance.blocks) if d in used or b.finally_ == "device")
        room = instance.pool_bytes - kept + ROUNDING * (instance.pool_bytes + kept)
        rows = [fits_at_the_ends(builder, carried, self.size, room / self.size)]
        if instance.host_budget_bytes is not UNSET:
            taken = host_bytes_at_the_ends(instance, range(len(instance.blocks)))
            slack = ROUNDING * (taken + sum(block.bytes for block in carried))
            room = instance.host_budget_bytes - taken + slack
            rows.append(host_fits_at_the_ends(builder, carried, self.size, room / self.size))
        return np.concatenate(rows)

    def _possible(self) -> set[Run]:
        """Return the tasks that may run again, each with the intervals in which a run can be of use."""
        last = last_uses(self.given)
        return {
            (k, j)
            for k, intervals in rerun_intervals(self.instance, self.checkpoints).items()
            for j in intervals
            if last[k] > k and j <= interval_before(self.checkpoints, last[k])
        }

    def _readers(self) -> dict[tuple[int, int], set[Run]]:
        """Return, per version of a block, the second runs that read it."""
        readers: dict[tuple[int, int], set[Run]] = defaultdict(set)
        for k, j in self.again:
            for d in self.given.tasks[k].must_read:
                readers[d, bisect_left(self.instance.writers[d], k)].add((k, j))
        return readers

    def _add(self, version: _Version, readers: set[Run]) -> None:
        """Add the columns and rows of a version of a block."""
        instance, builder, d = self.instance, self.builder, version.block
        block, count = instance.blocks[d], len(self.checkpoints)
        bytes_, last_version = block.bytes / self.size, version.until is None
        first = 0 if version.writer < 0 else 2 * bisect_left(self.checkpoints, version.writer)
        if version.writer >= 0 and interval_of(self.checkpoints, version.writer) != first:
            first += 2  # it is among the blocks of that checkpoint
        begin = bisect_right(instance.uses[d], version.writer)
        end = None if version.until is None else bisect_right(instance.uses[d], version.until)
        uses = instance.uses[d][begin:end]
        at_uses = {interval_of(self.checkpoints, k) for k in uses}
        wanted = set(at_uses)
        absent, is_carried = self.absent.get(d), block.initially == "carried" and bool(instance.uses[d])
        if last_version and (block.finally_ == "device" or is_carried):
            wanted.add(2 * count)
        leaves = last_version and block.finally_ == "host" and version.writer >= 0
        optional = self.optional.get((d, version.number), {})
        chosen = {k: self._instants(k) for k in optional}
        horizon = max([*wanted, *(j for _, j in readers), *(t + 1 for _, t in chosen.values())], default=-1)
        instants = range(first, max(horizon, first))
        touched = {i for k in uses for i in self._instants(k)}

        # what is valid takes memory; at checkpoints that touch the block, it is valid
        there = np.array([float(i in touched) for i in instants])
        whole = self.integrality == "all"
        present = builder.columns(len(instants), lower=there, upper=1.0, integer=whole)
        valid = builder.columns(len(instants), lower=there, upper=1.0)
        self._valid_is_present(present, valid)
        for i, column in zip(instants, present.tolist(), strict=True):
            if i not in touched:
                builder.entries(self.memory[i], column, bytes_)

        # copies: out once, and back as often as it pays
        held = version.writer < 0  # the host has it
        out: dict[int, int] = {}
        end = 2 * count if leaves else horizon
        if not held and block.offload_ns is not None and first <= end:
            span = range(first, end + 1)
            lower = np.array([float(leaves and j == end) for j in span])
            columns = builder.columns(len(span), lower=lower, upper=1.0)
            out = dict(zip(span, columns.tolist(), strict=True))
            stays_out(builder, columns)
            rate = block.offload_ns / self.ns
            link = link_times(None if self.shares is None else self.shares.of_offload(block), self.ns)
            self.out.move(builder, np.arange(first, end + 1), columns, rate, link)
            self.out.move(builder, np.arange(first + 1, end + 1), columns[:-1], -rate, -link)
            if last_version and absent is not None:
                is_saved(builder, int(columns[-1]), absent)
        back: dict[int, int] = {}
        if block.prefetch_ns is not None and (held or out):
            begin = first if version.writer < 0 else first + 1
            span = range(begin, horizon + 1)
            columns = builder.columns(len(span), upper=1.0)
            back = dict(zip(span, columns.tolist(), strict=True))
            link = link_times(None if self.shares is None else self.shares.of_prefetch(block), self.ns)
            self.back.move(builder, np.arange(begin, horizon + 1), columns, block.prefetch_ns / self.ns, link)
            if not held:
                self._back_is_out(columns, [out[j] for j in span])

        maker = version.writer
        if version.number != 1 or d not in self.given.tasks[maker].outputs:
            maker = -1

        def arrives(j: int) -> list[int]:
            """What makes it valid in an interval: what was so before, is prefetched, or is made again."""
            before = [valid[j - 1 - first]] if 0 <= j - 1 - first < len(instants) else []
            added = (back.get(j), self.again.get((maker, j)))
            return [*before, *(column for column in added if column is not None)]

        arrived = 0 if version.writer < 0 else first
        # valid at the first instant without more; of a carried block, what is not absent at the start
        fresh = version.writer >= 0 or block.initially in ("device", "carried")
        begins, ends = absent if version.writer < 0 else None, absent if last_version else None
        if d in self.makers:
            made_rows = self.read_rows[maker, self._instants(maker)[1], d] = []
            for j, column in [*zip(instants, valid.tolist()[:1], strict=False), *out.items()]:
                made = [self.again[maker, i] for i in range(first, j + 1) if (maker, i) in self.again]
                made_rows.append(self._is_made(column, [*self.makers[d], *made]))
        for i in instants:
            if i > first or not fresh or begins is not None:
                self._becomes_valid(valid[i - first], arrives(i), begins if i == 0 else None)
        for j in sorted(wanted):
            if j > arrived or not fresh or begins is not None:
                missing = [begins if j == 0 else None, ends if j == 2 * count and j not in at_uses else None]
                self._is_valid_where_wanted(arrives(j), *missing)
        for k, j in sorted(readers):
            if j > arrived or not fresh or begins is not None:
                self._is_valid_where_read_again(self.again[k, j], arrives(j), begins if j == 0 else None)

        if not held:
            following = sorted({*wanted, *([2 * count] if leaves else [])})
            self.needed[d, version.number] = max(following, default=-1)
            for i in instants:
                until = next((j for j in following if j > i), None)
                if until is None or i in touched:
                    continue
                made = [self.again[maker, j] for j in range(i + 1, until + 1) if (maker, j) in self.again]
                self._absent_is_out_or_made(present[i - first], [*([out[i]] if i in out else []), *made])
        for k, algorithms in optional.items():
            for t in chosen[k]:
                self.read_rows[k, t, d] = [self._is_valid_where_chosen(valid[t - first], algorithms)]
            begin = chosen[k][0]
            for i in () if held else range(max([first, *(j for j in wanted if j < begin)]), begin):
                made = [self.again[maker, j] for j in range(i + 1, begin + 1) if (maker, j) in self.again]
                somewhere = [present[i - first], *([out[i]] if i in out else []), *made]
                self.read_rows[k, begin, d].append(self._is_somewhere_until_chosen(somewhere, algorithms))
        self.versions[d, version.number] = VersionColumns(
            first, tuple(present.tolist()), tuple(valid.tolist()), out
        )

    def _intervals_hold_their_work(
        self,
        delta: NDArray[np.int64],
        shortest: NDArray[np.float64],
        least: Sequence[float],
        choices: Sequence[NDArray[np.int64]],
        times: Sequence[Sequence[float]],
    ) -> None:
        """(30): An interval takes as long as its first runs and its second runs.

        `shortest` is the time of its first runs that are no checkpoints. `least` is by task; `choices` and
        `times` are by checkpoint.
        """
        builder = self.builder
        work = builder.rows(len(delta), lower=shortest, family="work")
        builder.entries(work, delta, 1.0)
        for (k, j), again in self.again.items():
            builder.entries(work[j], again, -least[k])
        for i, (choice, taken) in enumerate(zip(choices, times, strict=True)):
            builder.entries(work[2 * i + 1], choice, [-time for time in taken])

    def _runs_lose_time(
        self,
        rows: NDArray[np.int64],
        least: Sequence[float],
        choices: Sequence[NDArray[np.int64]],
        times: Sequence[Sequence[float]],
    ) -> None:
        """Add the terms of checkpoints and of second runs in (42)."""
        for (k, j), again in self.again.items():
            if rows[j] >= 0:
                self.builder.entries(rows[j], again, -least[k])
        for i, (choice, taken) in enumerate(zip(choices, times, strict=True)):
            if rows[2 * i + 1] >= 0:
                self.builder.entries(rows[2 * i + 1], choice, [-time for time in taken])

    def _valid_is_present(self, present: NDArray[np.int64], valid: NDArray[np.int64]) -> None:
        """(31): Valid bytes are present, and use memory."""
        rows = self.builder.rows(len(present), lower=0.0, family="present")
        self.builder.entries(rows, present, 1.0)
        self.builder.entries(rows, valid, -1.0)

    def _back_is_out(self, back: NDArray[np.int64], out: Sequence[int]) -> None:
        """(32): No more bytes come back in an interval than are out at its end."""
        rows = self.builder.rows(len(back), lower=0.0, family="source")
        self.builder.entries(rows, out, 1.0)
        self.builder.entries(rows, back, -1.0)

    def _becomes_valid(self, valid: int, arrived: Sequence[int], begins: int | None) -> None:
        """(33): Bytes valid at an instant were valid before, came back since, or were made since.

        Of a carried block, those are valid before that are not absent at the start.
        """
        row = self.builder.rows(1, lower=0.0 if begins is None else -1.0, family="valid")
        if arrived:
            self.builder.entries(row, arrived, 1.0)
        self.builder.entries(row, [valid, *([] if begins is None else [begins])], -1.0)

    def _is_valid_where_wanted(self, arrived: Sequence[int], begins: int | None, ends: int | None) -> None:
        """(34): All of a version is valid in an interval whose first run needs it, or at the end.

        Of a carried block, what is absent at the start has to arrive, and what is absent at the end need not.
        """
        row = self.builder.rows(1, lower=1.0 if begins is None else 0.0, family="wanted")
        if arrived:
            self.builder.entries(row, arrived, 1.0)
        if begins is not None:
            self.builder.entries(row, begins, -1.0)
        if ends is not None:
            self.builder.entries(row, ends, 1.0)

    def _is_valid_where_read_again(self, again: int, arrived: Sequence[int], begins: int | None) -> None:
        """(35): A second run is at most the share of its inputs that is valid or becomes so meanwhile."""
        row = self.builder.rows(1, lower=0.0 if begins is None else -1.0, family="read")
        if arrived:
            self.builder.entries(row, arrived, 1.0)
        self.builder.entries(row, [again, *([] if begins is None else [begins])], -1.0)

    def _is_valid_where_chosen(self, valid: int, algorithms: Sequence[int]) -> int:
        """(57): At both instants of a checkpoint, what the algorithm reads that runs there is valid."""
        row = self.builder.rows(1, lower=0.0, family="chosen")
        self.builder.entries(row, valid, 1.0)
        self.builder.entries(row, algorithms, -1.0)
        return int(row[0])

    def _is_somewhere_until_chosen(self, there: Sequence[int], algorithms: Sequence[int]) -> int:
        """(58): Before that checkpoint, it is present or out, or is made again until then."""
        row = self.builder.rows(1, lower=0.0, family="until chosen")
        self.builder.entries(row, there, 1.0)
        self.builder.entries(row, algorithms, -1.0)
        return int(row[0])

    def _is_made(self, share: int, made: Sequence[int]) -> int:
        """(59): What is valid at first, or out, is made by an algorithm that makes it, or by a second run."""
        row = self.builder.rows(1, lower=0.0, family="makers")
        if made:
            self.builder.entries(row, made, 1.0)
        self.builder.entries(row, share, -1.0)
        return int(row[0])

    def _absent_is_out_or_made(self, present: int, others: Sequence[int]) -> None:
        """(36): Absent bytes are out, or are made again before they are used next."""
        row = self.builder.rows(1, lower=1.0, family="absent")
        self.builder.entries(row, [present, *others], 1.0)

    def _what_is_nowhere_is_made_again(self) -> dict[SurvivalKey, int]:
        """Add (54) to (56) at the first instant of each checkpoint; return rows (54) and (55).

        Without them, a few bytes of an input that stay would make all bytes of an output, little by little.
        """
        instance, builder = self.instance, self.builder
        rows: dict[SurvivalKey, int] = {}
        runs: dict[int, list[Run]] = defaultdict(list)
        for k, j in self.again:
            runs[k].append((k, j))
        for t in range(0, 2 * len(self.checkpoints), 2):
            there = {
                d: [columns.valid[t - columns.first], *([columns.out[t]] if t in columns.out else [])]
                for (d, number), columns in self.versions.items()
                if (d, number) in self.needed and number == 1 and instance.blocks[d].initially != "carried"
                if columns.first <= t < columns.first + len(columns.valid)
            }
            later = {k: own for k in runs if (own := [self.again[run] for run in runs[k] if run[1] > t])}
            makers = {d: self.given.writers[d][0] for d in there}
            made = {d: k for d, k in makers.items() if k in later and d in instance.tasks[k].outputs}
            lost = dict(zip(made, builder.columns(len(made), upper=np.inf).tolist(), strict=True))
            for d, here in there.items():
                if self.needed[d, 1] > t:
                    rows[t, d, d] = self._is_somewhere_or_lost([*here, *([lost[d]] if d in lost else [])])
            for d, k in made.items():
                for x in self.given.tasks[k].must_read:
                    if x in there and bisect_left(instance.writers[x], k) == 1:
                        here = [*there[x], *([lost[x]] if x in lost else [])]
                        rows[t, d, x] = self._is_lost_with_its_input(lost[d], here)
                self._lost_is_made_again(lost[d], later[k])
        return rows

    def _is_somewhere_or_lost(self, columns: Sequence[int]) -> int:
        """(54): A version that is needed later is valid or out, or else lost."""
        row = self.builder.rows(1, lower=1.0, family="somewhere")
        self.builder.entries(row, columns, 1.0)
        return int(row[0])

    def _is_lost_with_its_input(self, lost: int, there: Sequence[int]) -> int:
        """(55): Where a version is lost, each input of its producer is valid or out, or lost as well."""
        row = self.builder.rows(1, lower=0.0, family="lost")
        self.builder.entries(row, there, 1.0)
        self.builder.entries(row, lost, -1.0)
        return int(row[0])

    def _lost_is_made_again(self, lost: int, again: Sequence[int]) -> None:
        """(56): What is lost is made again, once or more often."""
        row = self.builder.rows(1, lower=0.0, family="made again")
        self.builder.entries(row, again, 1.0)
        self.builder.entries(row, lost, -1.0)

    def _instants(self, k: int) -> tuple[int, ...]:
        """Return both instants of a task that is a checkpoint."""
        j = interval_of(self.checkpoints, k)
        return (j - 1, j) if j % 2 else ()

    def _runs_between_have_room(self) -> None:
        """Add (61) and (62) for first and second runs between two checkpoints.

        Where nothing returns, what is in memory before and after them is there all the time, or made again.
        """
        for i, (last, following) in enumerate(pairwise(self.checkpoints), 1):
            kept = []
            for (d, number), columns in self.versions.items():
                at = 2 * i - 1 - columns.first
                if 0 <= at < len(columns.present) - 1:
                    made = number == 1 and d in self.given.tasks[self.given.writers[d][0]].outputs
                    again = self.again.get((self.given.writers[d][0], 2 * i)) if made else None
                    kept.append((d, self._is_kept(columns.present[at : at + 2], again)))
            for k in range(last + 1, following):
                self._has_room_beside(k, None, kept)
            for (k, j), again in self.again.items():
                if j == 2 * i:
                    self._has_room_beside(k, again, kept)

    def _is_kept(self, present: Sequence[int], again: int | None) -> int:
        """(61): What is present at both ends of an interval, and not made again in it, is kept."""
        (kept,) = self.builder.columns(1, upper=1.0).tolist()
        row = self.builder.rows(1, lower=-1.0, family="kept")
        self.builder.entries(row, [kept, *([] if again is None else [again])], 1.0)
        self.builder.entries(row, present, -1.0)
        return int(kept)

    def _has_room_beside(self, k: int, again: int | None, kept: Sequence[tuple[int, int]]) -> None:
        """(62): What a run needs, a second one with `again`, fits beside the kept bytes of other blocks."""
        instance, task = self.instance, self.instance.tasks[k]
        needs = footprint(instance, k) + min(algorithm.workspace_bytes for algorithm in task.algorithms)
        others = [(column, instance.blocks[d].bytes) for d, column in kept if d not in task.blocks]
        if not others:
            return  # it fits alone
        columns, sizes = zip(*others, strict=True)
        room = instance.pool_bytes - (needs if again is None else 0)
        row = self.builder.rows(1, upper=room / self.size, family="beside")
        self.builder.entries(row, columns, np.array(sizes, dtype=float) / self.size)
        if again is not None:
            self.builder.entries(row, again, needs / self.size)


def _versions(instance: Instance) -> Iterator[_Version]:
    """Return the versions of blocks: those there from the start, then those that each writer makes."""
    for d, block in enumerate(instance.blocks):
        writers = instance.writers[d]
        there = block.initially != "absent"
        for number in range(0 if there else 1, len(writers) + 1):
            until = writers[number] if number < len(writers) else None
            yield _Version(d, number, writers[number - 1] if number else -1, until)
