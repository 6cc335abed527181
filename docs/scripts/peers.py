"""Others' ways to decide, as programs that pebbler calls as methods: what they share.

A `program` makes a schedule by itself. What is given to `run` solves an instance of recomputation alone,
where a task makes one block and nothing can be copied. It finds the order in which tasks run, some of them
several times; pebbler makes a schedule of that, as of a schedule of its own. So all schedules stand in the
same memory model, and pass the same checker.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from pebbler.heuristics.methods import Limits, Refusal
from pebbler.heuristics.recomputation.reruns import stages_of
from pebbler.instances.files import read_instance
from pebbler.instances.instance import Instance
from pebbler.solver.linear.facade import solve_linear
from pebbler.solver.recomputation.stage_model import (
    StageModel,
    Stages,
    chosen_in,
    placed,
    runs_of,
    with_releases,
)
from pebbler.validate.schedule import MemoryModel, Schedule, write_schedule

MARGIN = 2.0
"""Seconds of the time limit that are left for the schedule."""

Find = Callable[[Instance, Limits], Sequence[int] | None]
"""Returns the tasks in the order in which they run, within the time limit; None without a solution."""


def program(find: Callable[[Instance, Limits], Schedule | None]) -> None:
    """Be a program ``PROGRAM INSTANCE SCHEDULE --time-limit SECONDS``: solve, and write a schedule if any."""
    begun = time.monotonic()
    parser = argparse.ArgumentParser()
    parser.add_argument("instance", type=Path)
    parser.add_argument("schedule", type=Path)
    parser.add_argument("--time-limit", type=float, required=True)
    options = parser.parse_args()
    instance, file = read_instance(options.instance), options.schedule.absolute()
    memory = msgspec.convert(os.environ["PEBBLER_MEMORY"], MemoryModel)
    limit = max(options.time_limit - MARGIN - (time.monotonic() - begun), 0.0)
    limits = Limits(time_limit=limit, seed=int(os.environ["PEBBLER_SEED"]), memory=memory)
    if (schedule := find(instance, limits)) is not None:
        write_schedule(schedule, file)


def run(name: str, find: Find) -> None:
    """Be such a program that finds the order in which tasks run."""

    def solve(instance: Instance, limits: Limits) -> Schedule | None:
        if (order := find(instance, limits)) is None:
            return None
        actions = with_releases(instance, runs_of((task, 0) for task in order))
        try:
            return placed(instance, actions, limits).finish(name)
        except Refusal as refusal:
            print(f"{name}: {refusal}")
            return None

    program(solve)


# --- Checkmate's program ----------------------------------------------------------------------------------


def on_highs(instance: Instance, limits: Limits) -> Sequence[int] | None:
    """Solve Checkmate's program on HiGHS, with its own settings."""
    begun, model = time.monotonic(), stages(instance, limits)
    result = solve_linear(model.linear, solver="highs", time_limit=_left(limits, begun), seed=limits.seed)
    return None if result.values is None else order_of(model, result.values)


def on_cp_sat(instance: Instance, limits: Limits) -> Sequence[int] | None:
    """Solve Checkmate's program on CP-SAT, in whole bytes and nanoseconds and with one thread."""
    begun, model = time.monotonic(), stages(instance, limits)
    program, columns = whole_program(model)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = limits.seed
    solver.parameters.max_time_in_seconds = _left(limits, begun)
    if solver.solve(program) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return order_of(model, np.array([solver.value(column) for column in columns], dtype=np.float64))


def stages(instance: Instance, limits: Limits) -> StageModel:
    """Return Checkmate's program, however large it is."""
    return Stages(instance, stages_of(instance), limits.memory).build()


def whole_program(model: StageModel) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
    """Return the program for CP-SAT with its columns: whole, in bytes and nanoseconds."""
    linear, program = model.linear, cp_model.CpModel()
    bounds = zip(linear.lower.tolist(), linear.upper.tolist(), strict=True)
    columns = [program.new_int_var(int(lower), int(upper), "") for lower, upper in bounds]
    costs = np.rint(linear.cost * model.nanoseconds).astype(int).tolist()
    program.minimize(cp_model.LinearExpr.weighted_sum(columns, costs))
    units = np.ones(len(linear.row_lower))
    units[model.memory] = model.bytes
    order = np.argsort(linear.rows, kind="stable")
    ends = np.cumsum(np.bincount(linear.rows, minlength=len(units)))
    for row, entries in enumerate(np.split(order, ends[:-1])):
        lower, upper = linear.row_lower[row] * units[row], linear.row_upper[row] * units[row]
        program.add_linear_constraint(
            cp_model.LinearExpr.weighted_sum(
                [columns[j] for j in linear.columns[entries]],
                np.rint(linear.values[entries] * units[row]).astype(int).tolist(),
            ),
            round(lower) if np.isfinite(lower) else cp_model.INT_MIN,
            round(upper) if np.isfinite(upper) else cp_model.INT_MAX,
        )
    return program, columns


def order_of(model: StageModel, values: NDArray[np.float64]) -> Sequence[int]:
    """Return the runs of a solution."""
    return [task for _, task in chosen_in(model, values)]


def _left(limits: Limits, begun: float) -> float:
    assert limits.time_limit is not None
    return max(limits.time_limit - (time.monotonic() - begun), 0.0)
