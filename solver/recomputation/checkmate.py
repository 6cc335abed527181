"""The method ``checkmate``: recomputation alone, by a search over states and a program over stages.

After Checkmate (Jain et al., MLSys 2020, section 4). Nothing is copied to the host. The integer program
leaves out schedules that run a task twice within one stage, and such a schedule may be shorter. So the bound
comes from models that cover every schedule: FLOW with recomputation, and a second program, in which memory
counts during first runs only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace as replace_fields
from functools import partial

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ...heuristics.clock import OutOfTime, until
from ...heuristics.loading import kernels, loads, plan_kernels
from ...heuristics.methods import Answer, Limits, Refusal, register
from ...heuristics.production.partition import load_networkx
from ...heuristics.program.placement import build_program
from ...heuristics.recomputation.reruns import algorithms_of, staying
from ...heuristics.recomputation.rules import planned
from ...instances.instance import Instance
from ...validate.bounds.divisor import in_steps_ns
from ...validate.schedule import Schedule
from ..bounds import Bound
from ..flow.recompute_method import RecomputeRun
from ..linear.model import LinearModel, LinearResult, takes_whole_columns
from ..linear.worker import LinearWorker, begin_solver, load_solver
from ..packing.pack import load_packing
from ..scaling import proven_ns
from .pebbling import pebble
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
"""Share of the time limit that the integer program for a schedule may take; the bound gets the rest."""

_FLOW_SHARE = 0.4
"""Share of the time limit for FLOW with recomputation."""

_SEARCH_SHARE = 0.3
"""Share of the time left that the search over states may take; the integer programs get the rest."""

_GLANCE = 20_000
"""Number of states after which FLOW comes before the search over states, where there is a time limit."""

_START_WORK = 3_000_000
"""Number of tasks that local search simulates where there is no time limit."""

_MOST_STATES, _MOST_BYTES = 3_000_000, 2 << 30
"""Numbers of states and of bytes after which the search over states gives up, to limit its memory."""

_STATE_BYTES = 600
"""Bytes of a state apart from its sets of blocks, which take a bit for each block."""

_STATES, _SEARCH = "states", "local-search"
"""Rules that can be left out: the search over states, and local search with the FLOW that leads it.

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
@loads(begin_solver, kernels, plan_kernels, load_solver, load_packing, load_networkx)
def checkmate(instance: Instance, limits: Limits) -> Answer:
    """Search the states; then solve the integer program for a schedule, and its relaxation for a bound.

    There is a bound only if no copy is possible. With a time limit, FLOW with recomputation comes after a
    glance at the states: its bound holds here, too, and its schedule is where the integer program starts.
    Without a limit, that starts from the schedule of local search. Where the integer program would have too
    many runs, FLOW has its time.

    Raises
    ------
    Refusal
        When a block can be brought or saved only by a copy, the solver has no whole variables, the instance
        is too large and FLOW is left out, or has no time limit.
    """
    _require_no_copies(instance)
    if not takes_whole_columns(limits.solver):
        raise Refusal(f"checkmate: solver '{limits.solver}' takes no whole variables")
    return _Run(instance, limits).answer()


class _Run:
    """One call of the method."""

    def __init__(self, instance: Instance, limits: Limits) -> None:
        self.instance, self.limits = instance, limits
        seconds = math.inf if limits.time_limit is None else limits.time_limit
        self.deadline = time.monotonic() + seconds
        self.alone = instance.nothing_returns
        self.schedule: Schedule | None = None
        self.bound = Bound(0, "checkmate", certified=False)
        self.infeasible = False
        try:
            self.stages: list[list[int]] = require_stages("checkmate", instance)
        except Refusal:
            if limits.time_limit is None or _SEARCH in limits.without:
                raise
            self.stages = []

    def answer(self) -> Answer:
        """Run until done, until the time limit or until Ctrl-C; return the best schedule and bound."""
        try:
            stopped_by = self._run()
        except KeyboardInterrupt:
            stopped_by = "interrupted"
        except OutOfTime as late:
            stopped_by = str(late)
        if self.infeasible:
            return Answer(None, stopped_by, infeasible=True)
        bound = self.bound
        return Answer(self.schedule, stopped_by, bound.lower_bound_ns, bound.bound_by, bound.certificate)

    def _run(self) -> str:
        """Run one part after the other, and return why the last one has ended."""
        limited, states = self.limits.time_limit is not None, _STATES not in self.limits.without
        solved = states and self._search(_GLANCE if limited else _MOST_STATES)
        if limited and not solved:
            if _SEARCH not in self.limits.without:
                stopped_by = self._flow(_FLOW_SHARE if self.stages else 1 - _SEARCH_SHARE)
                if stopped_by == "interrupted" or self._met():
                    return stopped_by
            solved = states and self._search(_MOST_STATES)
        if self.infeasible:
            return "no program without copies fits"
        if solved and self.schedule is not None:
            return "done"
        return self._programs(solved) if self.stages else "time limit"

    def _left(self, share: float) -> float:
        """Return a share of the seconds that are left."""
        return share * max(self.deadline - time.monotonic(), 0.0)

    def _met(self) -> bool:
        return self.schedule is not None and self.bound.meets(self.schedule.makespan_ns)

    def _offer(self, found: Schedule | None) -> None:
        """Take a schedule if it is better."""
        if found is not None and (self.schedule is None or found.makespan_ns < self.schedule.makespan_ns):
            self.schedule = replace(found, method="checkmate")

    def _search(self, most: int) -> bool:
        """Search the states, and return whether the search came to its end.

        It counts bytes: with addresses, the program found may not fit.
        """
        instance = self.instance
        most = min(most, _MOST_BYTES // (_STATE_BYTES + len(instance.blocks) // 4))
        until = time.monotonic() + self._left(_SEARCH_SHARE)
        found = pebble(instance, deadline=until, most_states=most)
        if self.alone and found.lower_bound_ns == math.inf:
            self.infeasible = True
            return True
        if self.alone:
            self.bound = self.bound.raised(Bound(int(found.lower_bound_ns), "pebbling", certified=False))
        if found.runs is None:
            return False
        actions = with_releases(instance, runs_of(found.runs))
        with suppress(Refusal):  # by first fit: what the integer program finds may be placed more easily
            program = build_program(instance, self.limits.memory, partial(issue, actions=actions))
            self._offer(program.finish("checkmate"))
        return True

    def _flow(self, share: float) -> str:
        """Let FLOW with recomputation find a schedule and a bound; return why it ended."""
        limits = replace_fields(self.limits, time_limit=self._left(share), without=frozenset())
        run = RecomputeRun(staying(self.instance), limits)
        answer = run.answer()
        self._offer(answer.schedule)
        if self.alone:
            self.bound = self.bound.raised(run.bound)
        return answer.stopped_by

    def _programs(self, searched: bool) -> str:
        """Solve the integer program, and its relaxation unless all states were searched."""
        instance, limits, deadline = self.instance, self.limits, self.deadline
        if limits.time_limit is None and _SEARCH not in limits.without:
            self._offer(_started(instance, limits))
        start = self.schedule
        with LinearWorker(limits.solver) as worker, until(deadline):
            model = Stages(instance, self.stages, limits.memory).build()
            hint = None if start is None else _hint(model, start)
            result = _solved(worker, model.linear, limits, deadline, _SHARE, hint)
            stopped_by, actions = _ending(result), None
            if result.values is not None:
                chosen = chosen_in(model, result.values)
                actions = with_releases(instance, runs_of((k, a) for (_, k), a in chosen.items()))
            if self.alone and not searched:
                proof, proven = _proof(worker, instance, self.stages, limits, deadline)
                self.bound = self.bound.raised(proven)
                stopped_by = stopped_by if stopped_by != "done" else proof
        if actions is not None and (start is None or _time(instance, actions) < start.makespan_ns):
            try:
                self._offer(placed(instance, actions, limits, deadline).finish("checkmate"))
            except Refusal as refusal:
                return stopped_by if start is not None else str(refusal)
        return stopped_by


def _require_no_copies(instance: Instance) -> None:
    for d, block in enumerate(instance.blocks):
        if block.initially == "host" and (instance.uses[d] or block.finally_ == "device"):
            raise Refusal(
                f"checkmate: '{block.name}' must be copied from the host, and nothing is copied here"
            )
        if block.finally_ == "host" and instance.writers[d]:
            raise Refusal(f"checkmate: '{block.name}' must end on the host, and nothing is copied here")


def _started(instance: Instance, limits: Limits) -> Schedule | None:
    """Return a schedule by local search, without copies."""
    from ...heuristics.recomputation.search import RerunSearch  # with it comes Numba

    search = RerunSearch(staying(instance), limits.memory, limits.seed)
    search.run(work=_START_WORK)
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
    return _ending(result), _bound(instance, result, relaxed, limits.solver)


def _ending(result: LinearResult) -> str:
    if result.status == "infeasible":
        return "no program runs each task at most once in a stage"
    return (
        "done" if result.status == "optimal" else "time limit" if result.status != "error" else result.detail
    )


def _bound(instance: Instance, result: LinearResult, model: StageModel, solver: str) -> Bound:
    known = math.isfinite(result.bound)
    proven = proven_ns(result.bound, len(model.linear.cost), model.nanoseconds) if known else 0
    return Bound(in_steps_ns(instance, proven), f"checkmate-{solver}", certified=False)
