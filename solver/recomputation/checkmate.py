"""The method ``checkmate``: recomputation alone, by a search over states and a program over stages.

After Checkmate (Jain et al., MLSys 2020, section 4). Nothing is copied to the host. The integer program
leaves out schedules that run a task twice within one stage, and such a schedule may be shorter. So the bound
comes from a second model, in which memory counts during first runs only. This model covers every schedule.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...heuristics.clock import OutOfTime, until
from ...heuristics.loading import kernels, loads
from ...heuristics.methods import Answer, Limits, Refusal, register
from ...heuristics.program.placement import build_program
from ...heuristics.recomputation.reruns import algorithms_of, staying
from ...heuristics.recomputation.rules import planned
from ...instances.instance import Instance
from ...validate.schedule import Schedule
from ..bounds import Bound
from ..linear.model import LinearModel, LinearResult, takes_whole_columns
from ..linear.worker import LinearWorker, begin_solver, load_solver
from ..packing.pack import load_packing
from ..scaling import proven_ns
from .pebbling import Pebbling, pebble
from .stage_model import (
    Action,
    StageModel,
    Stages,
    chosen_in,
    issue,
    placed,
    require_stages,
    runs_of,
    with_releases,
)

_SHARE = 0.6
"""Share of the time limit that the search for a schedule may take; the bound gets the rest."""

_SEARCH_SHARE = 0.6
"""Share of the time limit that the search over states may take; the integer programs get the rest."""

_START_SHARE, _START_WORK = 0.2, 3_000_000
"""Largest share of the time left for local search, and largest number of tasks that it simulates."""

_MOST_STATES, _MOST_BYTES = 3_000_000, 2 << 30
"""Numbers of states and of bytes after which the search over states gives up, to limit its memory."""

_STATE_BYTES = 600
"""Bytes of a state apart from its sets of blocks, which take a bit for each block."""

_STATES, _SEARCH = "states", "local-search"
"""Rules that can be left out: the search over states, and local search.

Local search gives a schedule and a start for the integer program.
"""


@register(
    "checkmate",
    "recomputation alone, by a search over states and an integer program (no copies)",
    "Jain et al., MLSys 2020",
    shown="named",
    transform=planned,
    rules=(_STATES, _SEARCH),
)
@loads(begin_solver, kernels, load_solver, load_packing)
def checkmate(instance: Instance, limits: Limits) -> Answer:
    """Search the states; then solve the integer program for a schedule, and its relaxation for a bound.

    There is a bound only if no copy is possible. The integer program starts from the schedule of local
    search.

    Raises
    ------
    Refusal
        When a block can be brought or saved only by a copy, the solver has no whole variables, the instance
        is too large, or no addresses are found.
    """
    _require_no_copies(instance)
    if not takes_whole_columns(limits.solver):
        raise Refusal(f"checkmate: solver '{limits.solver}' takes no whole variables")
    deadline = math.inf if limits.time_limit is None else time.monotonic() + limits.time_limit
    stages = require_stages("checkmate", instance)
    schedule, stopped_by, bound = None, "done", Bound(0, "checkmate", certified=False)
    alone = all(block.prefetch_ns is None for block in instance.blocks)
    actions: list[Action] | None = None
    try:
        found = Pebbling(None, 0.0) if _STATES in limits.without else _searched(instance, deadline)
        if alone and found.lower_bound_ns == math.inf:
            return Answer(None, "no program without copies fits", infeasible=True)
        if alone:
            bound = bound.raised(Bound(int(found.lower_bound_ns), "pebbling", certified=False))
        if found.runs is not None:
            actions = with_releases(instance, runs_of(found.runs))
            with suppress(Refusal):  # by first fit: what the integer program finds may be placed more easily
                program = build_program(instance, limits.memory, partial(issue, actions=actions))
                schedule = program.finish("checkmate")
        if schedule is None:
            with until(deadline):
                start = None if _SEARCH in limits.without else _started(instance, limits, deadline)
            schedule = start
            with LinearWorker(limits.solver) as worker, until(deadline):
                model = Stages(instance, stages, limits.memory).build()
                hint = None if start is None else _hint(model, start)
                result = _solved(worker, model.linear, limits, deadline, _SHARE, hint)
                stopped_by = _ending(result)
                if result.values is not None:
                    chosen = chosen_in(model, result.values)
                    actions = with_releases(instance, runs_of((k, a) for (_, k), a in chosen.items()))
                if alone and found.runs is None:
                    proof, proven = _proof(worker, instance, stages, limits, deadline)
                    bound = bound.raised(proven)
                    stopped_by = stopped_by if stopped_by != "done" else proof
            if actions is not None and (start is None or _time(instance, actions) < start.makespan_ns):
                schedule = placed(instance, actions, limits, deadline).finish("checkmate")
    except KeyboardInterrupt:
        stopped_by = "interrupted"
    except OutOfTime as late:
        stopped_by = str(late)
    return Answer(schedule, stopped_by, bound.lower_bound_ns, bound.bound_by)


def _require_no_copies(instance: Instance) -> None:
    for d, block in enumerate(instance.blocks):
        if block.initially == "host" and (instance.uses[d] or block.finally_ == "device"):
            raise Refusal(
                f"checkmate: '{block.name}' must be copied from the host, and nothing is copied here"
            )
        if block.finally_ == "host" and instance.writers[d]:
            raise Refusal(f"checkmate: '{block.name}' must end on the host, and nothing is copied here")


def _searched(instance: Instance, deadline: float) -> Pebbling:
    """Search the states for a while, counting bytes: with addresses, the program found may not fit."""
    left = math.inf if deadline == math.inf else _SEARCH_SHARE * (deadline - time.monotonic())
    most = min(_MOST_STATES, _MOST_BYTES // (_STATE_BYTES + len(instance.blocks) // 4))
    return pebble(instance, deadline=time.monotonic() + left, most_states=most)


def _started(instance: Instance, limits: Limits, deadline: float) -> Schedule | None:
    """Return a schedule by local search, without copies."""
    from ...heuristics.recomputation.search import RerunSearch  # with it comes Numba

    search = RerunSearch(staying(instance), limits.memory, limits.seed)
    search.run(_START_SHARE * max(deadline - time.monotonic(), 0.0), _START_WORK)
    return search.schedule("checkmate")


def _hint(model: StageModel, schedule: Schedule) -> NDArray[np.float64]:
    """Return, per column of the program, its value in a schedule: the algorithms of each stage's runs."""
    hint = np.full(len(model.linear.cost), np.nan)
    for columns in model.choices.values():
        hint[columns] = 0.0
    for (k, t), algorithm in algorithms_of(schedule).items():
        hint[model.choices[t, k][algorithm]] = 1.0
    return hint


def _time(instance: Instance, runs: Sequence[Action]) -> int:
    return sum(instance.tasks[run.item].algorithms[run.algorithm].duration_ns for run in runs)


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


def _proof(
    worker: LinearWorker, instance: Instance, stages: list[list[int]], limits: Limits, deadline: float
) -> tuple[str, Bound]:
    """Return how the relaxation ended, and the bound that it gives."""
    try:
        relaxed = Stages(instance, stages, limits.memory, first_runs_only=True).build()
    except OutOfTime as late:
        return str(late), Bound(0, "checkmate", certified=False)
    result = _solved(worker, relaxed.linear, limits, deadline, 1.0)
    return _ending(result), _bound(result, relaxed, limits.solver)


def _ending(result: LinearResult) -> str:
    if result.status == "infeasible":
        return "no program runs each task at most once in a stage"
    return (
        "done" if result.status == "optimal" else "time limit" if result.status != "error" else result.detail
    )


def _bound(result: LinearResult, model: StageModel, solver: str) -> Bound:
    known = math.isfinite(result.bound)
    proven = proven_ns(result.bound, len(model.linear.cost), model.nanoseconds) if known else 0
    return Bound(proven, f"checkmate-{solver}", certified=False)
