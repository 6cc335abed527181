"""An integer program over stages, after Checkmate (Jain et al., MLSys 2020, section 4).

Tasks run for the first time in their order. Stage t begins after the first run of task t - 1 and ends with
the first run of task t. In a stage, earlier tasks may run again, in their order and at most once each. Whole
variables say what runs in a stage. The places of blocks follow from them: in place of Checkmate's products,
one continuous variable for each stage, block and touch is enough, and one for the blocks that remain from
stage to stage. Blocks, in-place updates, several outputs and choices of algorithms are those of the instance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...heuristics.clock import look
from ...heuristics.methods import Limits, Refusal
from ...heuristics.program.builder import ProgramBuilder
from ...heuristics.program.placement import build_planned, build_program
from ...heuristics.recomputation.reruns import each_stage
from ...instances.arguments import require_fixed_reads
from ...instances.buffers import Buffer
from ...instances.instance import Instance
from ...instances.memory import ideal_ns
from ...instances.units import ceil_to
from ...validate.schedule import MemoryModel, unit_bytes
from ..linear.model import LinearModel, ModelBuilder
from ..packing.pack import pack
from ..scaling import size_unit, slowest_ns, time_unit

_PACK_SECONDS = 10.0
"""Time limit in seconds of the search for addresses, if first fit finds none."""

_MOST_STEPS = 30_000
"""Number of runs in all stages above which the model is not built, as it would not be solved either."""


def require_stages(method: str, instance: Instance) -> list[list[int]]:
    """Return the stages of an instance, unless they have too many runs for the model.

    Raises
    ------
    Refusal
        When there are too many runs; the message names the method.
    """
    require_fixed_reads(instance, method)
    stages, runs = [], 0
    for stage in each_stage(instance):
        stages.append(stage)
        runs += len(stage)
        if runs > _MOST_STEPS:
            raise Refusal(f"{method}: more than {_MOST_STEPS} runs to decide on; the instance is too large")
    return stages


@dataclass(frozen=True, slots=True)
class StageModel:
    """The integer program.

    Attributes
    ----------
    linear
        The model, in scaled units; its objective is the makespan.
    nanoseconds, bytes
        Nanoseconds in the model's unit of time, and bytes in that of size.
    memory
        The rows that are about bytes; all coefficients of the others but the costs are whole.
    choices
        The column of each algorithm, by stage and by task that may run in it, in order.
    """

    linear: LinearModel
    nanoseconds: float
    bytes: float
    memory: NDArray[np.int64]
    choices: dict[tuple[int, int], NDArray[np.int64]]


@dataclass(slots=True)
class Stages:
    """A builder of the integer program.

    Attributes
    ----------
    instance, stages
        The instance, and the tasks that may run in each stage.
    memory
        Memory model whose unit rounds sizes up, so that paged and aligned bytes count; the relaxation counts
        bytes without rounding.
    first_runs_only
        Whether memory counts during first runs only. Then every schedule is covered, and the optimum is a
        bound.
    builder, choices, ns
        The model built so far, its columns of algorithms, and the nanoseconds in its unit of time.
    """

    instance: Instance
    stages: list[list[int]]
    memory: MemoryModel
    first_runs_only: bool = False
    builder: ModelBuilder = field(default_factory=ModelBuilder, init=False)
    choices: dict[tuple[int, int], NDArray[np.int64]] = field(default_factory=dict, init=False)
    ns: float = field(init=False)

    def build(self) -> StageModel:
        """Build the program.

        Raises
        ------
        OutOfTime
            When the deadline passes.
        """
        instance, builder = self.instance, self.builder
        unit = unit_bytes(instance, self.memory)
        unit = 1 if self.first_runs_only else unit
        pool = instance.pool_bytes // unit * unit
        others = self._copies_ns() + slowest_ns(task.algorithms for task in instance.tasks)
        self.ns, size = time_unit(ideal_ns(instance), others), size_unit(pool, ())
        rows: dict[tuple[int, int], int] = {}
        for t, steps in enumerate(self.stages):
            look()
            for k in steps:
                algorithms = instance.tasks[k].algorithms
                durations = [a.duration_ns / self.ns for a in algorithms]
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
        memory = np.array(list(rows.values()), dtype=np.int64)
        linear = replace(builder.build(), simplex=instance.nothing_returns)  # twice as fast on large programs
        return StageModel(linear, self.ns, size, memory, self.choices)

    def _copies_ns(self) -> int:
        """Return the time of the copies that the program may make."""
        return 0

    def _add_block(self, d: int, size: float, rows: dict[tuple[int, int], int]) -> int | None:
        """Add the columns of a block; return the column of its share at the end.

        A block remains from stage to stage, or is there from its writer on, and is released once. Within a
        stage, its share at one touch is at most its share at the touch before.
        """
        instance, builder = self.instance, self.builder
        block, count = instance.blocks[d], len(self.stages)
        users = set(instance.uses[d])
        (writer,) = [k for k in instance.writers[d][:1] if d in instance.tasks[k].outputs] or [-1]
        left = self._column(1.0) if block.initially == "device" else None
        look()
        for t, steps in enumerate(self.stages):
            start = self._at_start(d, t, left)
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
            left = following
        return left

    def _at_start(self, d: int, t: int, left: int | None) -> int | None:  # noqa: ARG002
        """Return the column of a block's share at a stage's start: the share that the stage before leaves."""
        return left

    def _require_purpose(self, t: int, k: int, start: int | None, following: int, touches: list[int]) -> None:
        """Leave out second runs whose output is there already, or is neither read in the stage nor kept."""
        again = self.choices[t, k].tolist()
        later = [column for e in touches if e > k for column in self.choices[t, e].tolist()]
        if start is not None:
            self.builder.entries(self.builder.rows(1, upper=1.0), [start, *again], 1.0)
        useful = self.builder.rows(1, lower=0.0)
        self.builder.entries(useful, [following, *later], 1.0)
        self.builder.entries(useful, again, -1.0)

    def _column(self, upper: float, lower: float = 0.0) -> int:
        """Return a column for the share of a block that is on the device."""
        return int(self.builder.columns(1, lower=lower, upper=upper)[0])

    def _at_most(self, column: int, others: list[int]) -> None:
        row = self.builder.rows(1, upper=0.0)
        self.builder.entries(row, column, 1.0)
        self.builder.entries(row, others, -1.0)


# --- the program --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Action:
    """A run of a task with an algorithm, or a copy of a block; and the blocks that are released after it."""

    kind: Literal["run", "offload", "prefetch"]
    item: int
    algorithm: int = 0
    released: tuple[int, ...] = ()


def runs_of(chosen: Iterable[tuple[int, int]]) -> list[Action]:
    """Return runs of tasks with algorithms as actions."""
    return [Action("run", k, algorithm) for k, algorithm in chosen]


def chosen_in(model: StageModel, values: NDArray[np.float64]) -> dict[tuple[int, int], int]:
    """Return the algorithms of a solution's runs, by stage and task, in order."""
    return {
        run: int(np.argmax(values[columns]))
        for run, columns in model.choices.items()
        if values[columns].max() > 0.5
    }


def with_releases(instance: Instance, actions: Sequence[Action]) -> list[Action]:
    """Add to each action the blocks to release: those written or copied back next, or not used again.

    Copies whose data is not used are left out.
    """
    needed = {d for d, block in enumerate(instance.blocks) if block.finally_ == "device"}
    saved = {d for d, block in enumerate(instance.blocks) if block.finally_ == "host"}
    found = []
    for action in reversed(actions):
        if action.kind == "run":
            task = instance.tasks[action.item]
            touched = task.blocks
        else:
            touched = (action.item,)
        if (action.kind == "offload" and action.item not in saved) or (
            action.kind == "prefetch" and action.item not in needed
        ):
            continue
        found.append(replace(action, released=tuple(d for d in touched if d not in needed)))
        if action.kind == "run":
            needed -= set(task.outputs)
            needed |= {*task.inputs, *task.updates}
            saved -= set(task.updates)
        elif action.kind == "offload":
            saved.remove(action.item)
            needed.add(action.item)
        else:
            needed.remove(action.item)
            saved.add(action.item)
    return found[::-1]


def placed(
    instance: Instance, actions: list[Action], limits: Limits, deadline: float = math.inf
) -> ProgramBuilder:
    """Build the program of actions; if first fit finds no addresses, take those of the packing search.

    The packing search ends at the deadline, in seconds on the clock of `time.monotonic`. The program is built
    after the deadline as well.

    Raises
    ------
    Refusal
        When no place is found for a block.
    """

    def issued(builder: ProgramBuilder) -> None:
        issue(builder, actions)

    try:
        return build_program(instance, limits.memory, issued)
    except Refusal as error:
        if limits.memory != "contiguous" or any(block.tensor is not None for block in instance.blocks):
            raise
        reason = str(error)

    def searched(sketch: ProgramBuilder) -> Sequence[int]:
        buffers = [
            Buffer(str(i), begin, end, size, instance.alignment_bytes)
            for i, (size, begin, end) in enumerate(sketch.lifetimes())
        ]
        capacity, seconds = instance.pool_bytes, min(max(deadline - time.monotonic(), 0.0), _PACK_SECONDS)
        found = pack(buffers, capacity=capacity, time_limit=seconds, workers=limits.workers, seed=limits.seed)
        if found.interrupted:
            raise KeyboardInterrupt
        if found.offsets is None:
            raise Refusal(reason)
        return found.offsets

    return build_planned(instance, issued, searched)


def issue(builder: ProgramBuilder, actions: Sequence[Action]) -> None:
    """Add actions to a program; pages may not hold what bytes would.

    Raises
    ------
    Refusal
        When a block that starts on the device has no place there.
    OutOfMemoryError
        When another block has no place.
    """
    instance, there = builder.instance, set(builder.resident_blocks())
    loaded = _loaded_first(instance, actions)
    for d, block in enumerate(instance.blocks):
        is_over = not instance.uses[d] and block.finally_ != "device"
        if d in there and (d in loaded or is_over):
            builder.release(d)
        elif block.initially == "device" and instance.uses[d] and d not in loaded | there:
            raise Refusal(f"no place for block '{block.name}', which starts on the device")
    for action in actions:
        if action.kind == "run":
            builder.run(action.item, action.algorithm)
        elif action.kind == "offload":
            builder.offload(action.item)
        else:
            builder.prefetch(action.item)
        for d in action.released:
            builder.release(d)


def _loaded_first(instance: Instance, actions: Sequence[Action]) -> set[int]:
    """Return the blocks whose first action is a prefetch."""
    seen: set[int] = set()
    loaded = set()
    for action in actions:
        if action.kind == "prefetch" and action.item not in seen:
            loaded.add(action.item)
        seen.update(instance.tasks[action.item].blocks if action.kind == "run" else (action.item,))
    return loaded
