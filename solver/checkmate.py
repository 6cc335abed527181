"""The method ``checkmate``: recomputation alone, as an integer program over stages.

After Checkmate (Jain et al., MLSys 2020, section 4). Tasks run for the first time in their order, and stage t
is all that happens after the first run of task t - 1 up to and with that of task t: in it, earlier tasks may
run again, in their order and at most once each, over all stages as often as it pays. Whole variables say what
runs in a stage. Where blocks are follows from that: one continuous variable for each stage, block and touch
is enough, and one for what stays from stage to stage, in place of Checkmate's products. Blocks, in-place
updates, several outputs and choices of algorithms are those of the instance; nothing is copied to the host.

A program that runs a task twice within one stage is not among these, and may be shorter. So the bound comes
from a second model, in which memory counts during first runs only: that covers every program.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..heuristics.methods import Answer, Limits, Refusal, register
from ..heuristics.placement import build
from ..heuristics.program import ProgramBuilder
from ..heuristics.rematerialise import planned
from ..heuristics.reruns import algorithms_of, stages_of, staying
from ..instances.buffers import Buffer
from ..instances.instance import Instance
from ..instances.memory import ideal_ns
from ..instances.units import ceil_to
from ..validate.schedule import PAGE_BYTES, MemoryModel, Schedule
from .bounds import Bound, best_bound
from .linear import LinearModel, LinearResult, ModelBuilder, takes_whole_columns
from .linear_worker import LinearWorker
from .packing import pack
from .pebbling import Pebbling, Step, pebble

_RANGE = 1e4
"""What the ideal time and the pool are scaled to, so that tolerances of solvers stay small beside them."""

_SAFETY = 1e-6
"""Relative amount by which a floating-point bound is lowered before it is used."""

_SHARE = 0.6
"""Share of the time limit that the search for a schedule may take; the bound gets the rest."""

_SEARCH_SHARE = 0.6
"""Share of the time limit that the search over states may take; the integer programs get the rest."""

_START_SHARE, _START_WORK = 0.2, 3_000_000
"""Share of the time left for local search, and the tasks that it may simulate."""

_MOST_STATES = 1_000_000
"""After which that search gives up, too: each takes some hundred bytes."""

_PACK_SECONDS = 10.0
"""Time limit of the search for addresses, where first fit finds none."""

_MOST_STEPS = 30_000
"""Runs in all stages above which the model is not built: it would not be solved either."""


_STATES, _SEARCH = "states", "local-search"
"""What can be left out: the search over states; local search for a schedule and a start for the program."""


@register(
    "checkmate",
    "recomputation alone, by a search over states and an integer program (no copies)",
    "Jain et al., MLSys 2020",
    shown="named",
    transform=planned,
    rules=(_STATES, _SEARCH),
)
def checkmate(instance: Instance, limits: Limits) -> Answer:
    """Search the states; then solve the integer program for a schedule, and its relaxation for a bound.

    There is a bound where no copy is possible. The program starts from what local search finds.

    Raises
    ------
    Refusal
        For a block that only a copy could bring or save, a solver without whole variables, an instance that
        is too large, or a program that finds no addresses.
    """
    _require_no_copies(instance)
    if not takes_whole_columns(limits.solver):
        raise Refusal(f"checkmate: solver '{limits.solver}' takes no whole variables")
    stages = stages_of(instance)
    if sum(map(len, stages)) > _MOST_STEPS:
        raise Refusal(f"checkmate: more than {_MOST_STEPS} runs to decide on; the instance is too large")
    deadline = math.inf if limits.time_limit is None else time.monotonic() + limits.time_limit
    schedule, stopped_by, bound = None, "done", best_bound(instance)
    alone = all(block.prefetch_ns is None for block in instance.blocks)
    runs: list[_Run] | None = None
    try:
        found = Pebbling(None, 0.0) if _STATES in limits.without else _searched(instance, deadline)
        if alone and found.lower_bound_ns == math.inf:
            return Answer(None, "no program without copies fits", infeasible=True)
        if alone:
            bound = bound.raised(Bound(int(found.lower_bound_ns), "pebbling", certified=False))
        if found.runs is not None:
            runs = _runs(instance, found.runs)
            with suppress(Refusal):  # by first fit: what the integer program finds may be placed more easily
                schedule = build(instance, limits.memory, partial(_issue, runs=runs)).finish("checkmate")
        if schedule is None:
            start = None if _SEARCH in limits.without else _started(instance, limits, deadline)
            with LinearWorker(limits.solver) as worker:
                model = stage_model(instance, stages, limits.memory)
                hint = None if start is None else _hint(model, start)
                result = _solved(worker, model.linear, limits, deadline, _SHARE, hint)
                stopped_by = _ending(result)
                if result.values is not None:
                    runs = _runs(instance, _chosen(model, result.values))
                if alone and found.runs is None:
                    relaxed = stage_model(instance, stages, limits.memory, first_runs_only=True)
                    proof = _solved(worker, relaxed.linear, limits, deadline, 1.0)
                    bound = bound.raised(_bound(proof, relaxed, limits.solver))
                    stopped_by = stopped_by if stopped_by != "done" else _ending(proof)
            schedule = start
            if runs is not None and (start is None or _time(instance, runs) < start.makespan_ns):
                schedule = _placed(instance, runs, limits).finish("checkmate")
    except KeyboardInterrupt:
        stopped_by = "interrupted"
    return Answer(schedule, stopped_by, bound.lower_bound_ns, bound.bound_by, bound.certificate)


def _require_no_copies(instance: Instance) -> None:
    for d, block in enumerate(instance.blocks):
        if block.initially == "host" and (instance.uses[d] or block.finally_ == "device"):
            raise Refusal(
                f"checkmate: '{block.name}' must be copied from the host, and nothing is copied here"
            )
        if block.finally_ == "host" and instance.writers[d]:
            raise Refusal(f"checkmate: '{block.name}' must end on the host, and nothing is copied here")


def _searched(instance: Instance, deadline: float) -> Pebbling:
    """Search the states for a while, in bytes: with addresses a program of as many bytes may not fit."""
    left = math.inf if deadline == math.inf else _SEARCH_SHARE * (deadline - time.monotonic())
    return pebble(instance, deadline=time.monotonic() + left, most_states=_MOST_STATES)


def _started(instance: Instance, limits: Limits, deadline: float) -> Schedule | None:
    """A schedule by local search, without copies."""
    from ..heuristics.rerun_search import RerunSearch  # with it comes Numba

    search = RerunSearch(staying(instance), limits.memory, limits.seed)
    search.run(_START_SHARE * max(deadline - time.monotonic(), 0.0), _START_WORK)
    return search.schedule("checkmate")


def _hint(model: StageModel, schedule: Schedule) -> NDArray[np.float64]:
    """Per column of the program, what a schedule says: which algorithm runs in which stage."""
    hint = np.full(len(model.linear.cost), np.nan)
    for columns in model.choices.values():
        hint[columns] = 0.0
    for (k, t), algorithm in algorithms_of(schedule).items():
        hint[model.choices[t, k][algorithm]] = 1.0
    return hint


def _time(instance: Instance, runs: Sequence[_Run]) -> int:
    return sum(instance.tasks[run.task].algorithms[run.algorithm].duration_ns for run in runs)


def _solved(
    worker: LinearWorker,
    model: LinearModel,
    limits: Limits,
    deadline: float,
    share: float,
    hint: NDArray[np.float64] | None = None,
) -> LinearResult:
    left = None if deadline == math.inf else share * max(deadline - time.monotonic(), 0.0)
    worker.start(model, time_limit=left, workers=limits.workers, seed=limits.seed, log=limits.log, hint=hint)
    return worker.result()


def _ending(result: LinearResult) -> str:
    if result.status == "infeasible":
        return "no program runs each task at most once in a stage"
    return (
        "done" if result.status == "optimal" else "time limit" if result.status != "error" else result.detail
    )


def _bound(result: LinearResult, model: StageModel, solver: str) -> Bound:
    proven = result.bound * model.nanoseconds * (1 - _SAFETY) if math.isfinite(result.bound) else 0.0
    return Bound(max(math.ceil(proven), 0), f"checkmate-{solver}", certified=False)


# --- the model ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageModel:
    """The integer program.

    Attributes
    ----------
    linear
        The model, in scaled units; its objective is the makespan.
    nanoseconds
        What one unit of time in the model is.
    choices
        Per stage and task that may run in it, in order, the column of each algorithm.
    """

    linear: LinearModel
    nanoseconds: float
    choices: dict[tuple[int, int], NDArray[np.int64]]


def stage_model(
    instance: Instance, stages: list[list[int]], memory: MemoryModel, *, first_runs_only: bool = False
) -> StageModel:
    """Build the integer program.

    Parameters
    ----------
    instance, stages
        What may run when.
    memory
        Its unit rounds sizes up, so that paged and aligned bytes count; the relaxation takes bytes as they
        are.
    first_runs_only
        Count memory during first runs only: then every program is covered, and its optimum is a bound.
    """
    return _Stages(instance, stages, memory, first_runs_only).build()


@dataclass(slots=True)
class _Stages:
    instance: Instance
    stages: list[list[int]]
    memory: MemoryModel
    first_runs_only: bool
    builder: ModelBuilder = field(default_factory=ModelBuilder, init=False)
    choices: dict[tuple[int, int], NDArray[np.int64]] = field(default_factory=dict, init=False)

    def build(self) -> StageModel:
        instance, builder = self.instance, self.builder
        unit = {"contiguous": instance.alignment_bytes, "paged": PAGE_BYTES, "divisible": 1}[self.memory]
        unit = 1 if self.first_runs_only else unit
        pool = instance.pool_bytes // unit * unit
        ns, size = max(ideal_ns(instance), 1) / _RANGE, max(pool, 1) / _RANGE
        rows: dict[tuple[int, int], int] = {}
        for t, steps in enumerate(self.stages):
            for k in steps:
                algorithms = instance.tasks[k].algorithms
                durations = [a.duration_ns / ns for a in algorithms]
                columns = builder.columns(len(algorithms), upper=1.0, cost=durations, integer=True)
                self.choices[t, k] = columns
                first = float(k == t)
                builder.entries(builder.rows(1, lower=first, upper=1.0), columns, 1.0)
                if first or not self.first_runs_only:
                    (row,) = builder.rows(1, upper=pool / size).tolist()
                    rows[t, k] = row
                    scratch = [ceil_to(a.workspace_bytes, unit) / size for a in algorithms]
                    builder.entries(row, columns, scratch)
        if len(self.stages) > len(instance.tasks):  # what must stay fits after the last run, too
            (rows[len(self.stages), -1],) = builder.rows(1, upper=pool / size).tolist()
        for d, block in enumerate(instance.blocks):
            if instance.uses[d] or block.finally_ == "device":
                self._add_block(d, ceil_to(block.bytes, unit) / size, rows)
        return StageModel(builder.build(), ns, self.choices)

    def _add_block(self, d: int, size: float, rows: dict[tuple[int, int], int]) -> None:
        """Where a block is: it stays from stage to stage, or is there from its writer on, and is let go once.

        Within a stage, what is there at one touch can be no more than at the one before.
        """
        instance, builder = self.instance, self.builder
        block, count = instance.blocks[d], len(self.stages)
        users = set(instance.uses[d])
        (writer,) = [k for k in instance.writers[d][:1] if d in instance.tasks[k].outputs] or [-1]
        there = block.initially == "device"
        start = self._column(1.0) if there else None
        for t, steps in enumerate(self.stages):
            if start is None and writer not in steps:
                continue
            touches = [k for k in steps if k in users]
            at = {k: self._column(1.0) for k in touches}
            following = self._column(1.0, 1.0 if t + 1 == count and block.finally_ == "device" else 0.0)
            known = start
            for k in touches:
                if k == writer:  # there by its run, or because it has stayed
                    self._at_most(at[k], [*([] if start is None else [start]), *self.choices[t, k].tolist()])
                    if k != t and len(instance.tasks[k].outputs) == 1:
                        self._require_purpose(t, k, start, following, touches)
                elif known is not None:
                    self._at_most(at[k], [known])
                row = builder.rows(1, lower=0.0)
                builder.entries(row, at[k], 1.0)
                builder.entries(row, self.choices[t, k], -1.0)
                known = at[k]
            assert known is not None
            self._at_most(following, [known])
            for k in steps:
                if (t, k) not in rows:
                    continue
                if writer in steps and k < writer:
                    held = start
                else:
                    held = next((at[e] for e in touches if e >= k), following)
                if held is not None:
                    builder.entries(rows[t, k], held, size)
            if (t + 1, -1) in rows:
                builder.entries(rows[t + 1, -1], following, size)
            start = following

    def _require_purpose(self, t: int, k: int, start: int | None, following: int, touches: list[int]) -> None:
        """A second run whose output has stayed, or is neither read in its stage nor kept, can be left out."""
        again = self.choices[t, k].tolist()
        later = [column for e in touches if e > k for column in self.choices[t, e].tolist()]
        if start is not None:
            self.builder.entries(self.builder.rows(1, upper=1.0), [start, *again], 1.0)
        useful = self.builder.rows(1, lower=0.0)
        self.builder.entries(useful, [following, *later], 1.0)
        self.builder.entries(useful, again, -1.0)

    def _column(self, upper: float, lower: float = 0.0) -> int:
        """A column that says how much of a block is there."""
        return int(self.builder.columns(1, lower=lower, upper=upper)[0])

    def _at_most(self, column: int, others: list[int]) -> None:
        row = self.builder.rows(1, upper=0.0)
        self.builder.entries(row, column, 1.0)
        self.builder.entries(row, others, -1.0)


# --- the program --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """A run, and the blocks that are let go after it."""

    task: int
    algorithm: int
    released: tuple[int, ...]


def _chosen(model: StageModel, values: NDArray[np.float64]) -> list[Step]:
    """Read a solution: what runs, in order."""
    return [
        (k, int(np.argmax(values[columns])))
        for (_, k), columns in model.choices.items()
        if values[columns].max() > 0.5
    ]


def _runs(instance: Instance, chosen: Sequence[Step]) -> list[_Run]:
    """Say what is let go after each run: a block that is written next, or not touched again."""
    needed = {d for d, block in enumerate(instance.blocks) if block.finally_ == "device"}
    runs = []
    for k, algorithm in reversed(chosen):
        task = instance.tasks[k]
        runs.append(_Run(k, algorithm, tuple(d for d in task.blocks if d not in needed)))
        needed -= set(task.outputs)
        needed |= {*task.inputs, *task.updates}
    return runs[::-1]


def _placed(instance: Instance, runs: list[_Run], limits: Limits) -> ProgramBuilder:
    """Issue the runs with addresses; where first fit finds none, those of the packing search."""
    try:
        return build(instance, limits.memory, lambda builder: _issue(builder, runs))
    except Refusal:
        if limits.memory != "contiguous" or any(block.tensor is not None for block in instance.blocks):
            raise
        sketch = ProgramBuilder(instance, memory="divisible")
        start = dict.fromkeys(sketch.resident_blocks())
        _issue(sketch, runs)
        buffers = [
            Buffer(str(i), begin, end, size, instance.alignment_bytes)
            for i, (size, begin, end) in enumerate(sketch.lifetimes())
        ]
        capacity, seconds = instance.pool_bytes, _PACK_SECONDS
        found = pack(buffers, capacity=capacity, time_limit=seconds, workers=limits.workers, seed=limits.seed)
        if found.interrupted:
            raise KeyboardInterrupt from None
        if found.offsets is None:
            raise
        builder = ProgramBuilder(instance, plan=found.offsets, start=start)
        _issue(builder, runs)
        return builder


def _issue(builder: ProgramBuilder, runs: list[_Run]) -> None:
    """Issue the runs; pages may not hold what bytes would."""
    instance, there = builder.instance, set(builder.resident_blocks())
    for d, block in enumerate(instance.blocks):
        if block.initially == "device" and instance.uses[d] and d not in there:
            raise Refusal(f"no place for block '{block.name}', which starts on the device")
    for run in runs:
        builder.run(run.task, run.algorithm)
        for d in run.released:
            builder.release(d)
