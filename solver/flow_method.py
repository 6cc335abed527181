"""The method ``flow``: FLOW on more and more checkpoints, each solution decoded to a schedule."""

from __future__ import annotations

import logging
import time
from functools import partial

from ..heuristics.methods import Answer, Limits, Refusal, register
from ..instances.instance import Instance
from ..instances.units import format_time
from ..validate.schedule import PAGE_BYTES, Schedule
from .bounds import Bound, best_bound
from .decode import execute, execute_leanly, make_plan
from .flow import FlowModel, flow_model, hot_checkpoints, proven
from .linear import LinearResult, solve_linear

_FIRST = 16
_SECONDS = 20.0
"""Time limit where none is given."""

_SLACK = (1.0, 0.98, 0.95, 0.92, 0.88, 0.84, 0.8)
"""Shares of the pool to plan with: less leaves room for fragmentation where addresses count."""

_log = logging.getLogger(__name__)


@register("flow", "FLOW (MILP) on hot checkpoints, decoded, with the bound of its solver", "this project")
def flow(instance: Instance, limits: Limits) -> Answer:
    """Solve FLOW on 16, 32, 64 ... checkpoints and decode every solution; bounds rise, schedules improve.

    Ends when schedule and bound meet, when every task is a checkpoint and solved, or with the time limit
    (20 s where none is given). Ctrl-C between models keeps the best schedule.

    Raises
    ------
    Refusal
        For recomputable tasks, or when no solution could be decoded.
    """
    if any(task.recomputable for task in instance.tasks):
        raise Refusal("flow: recomputation is not modelled yet")
    deadline = time.monotonic() + (_SECONDS if limits.time_limit is None else limits.time_limit)
    bound, best = best_bound(instance), None
    stopped_by, count, reason = "done", _FIRST, "no time to solve a model"
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                stopped_by = "time limit"
                break
            checkpoints = hot_checkpoints(instance, count)
            model = flow_model(instance, checkpoints, "all")
            result = solve_linear(
                model.linear, solver=limits.solver, time_limit=left, seed=limits.seed, log=limits.log
            )
            found = proven(result, model, f"flow-milp-{limits.solver}")
            if found is not None and found.lower_bound_ns > bound.lower_bound_ns:
                bound = found
            if result.values is not None:
                schedule, why = _decode(instance, model, result, limits)
                reason = why or reason
                if schedule is not None and (best is None or schedule.makespan_ns < best.makespan_ns):
                    best = schedule
            _log.info("flow: %d checkpoints: %s", len(checkpoints), _told(best, bound))
            if best is not None and best.makespan_ns <= bound.lower_bound_ns:
                break
            if len(checkpoints) == len(instance.tasks):
                stopped_by = "done" if result.status == "optimal" else "time limit"
                break
            count *= 2
    except KeyboardInterrupt:
        stopped_by = "interrupted"
    if best is None:
        raise Refusal(f"flow: {reason}")
    return Answer(best, stopped_by, bound.lower_bound_ns, bound.bound_by, bound.certified)


def _decode(
    instance: Instance, model: FlowModel, result: LinearResult, limits: Limits
) -> tuple[Schedule | None, str]:
    """Return the shortest schedule that the solution decodes to under any slack, or why there is none."""
    values = result.values
    assert values is not None
    evicted = [gap for gap, columns in model.absences.items() if values[columns].max() > 0.5]
    algorithms = {k: max(c, key=lambda a: float(values[c[a]])) for k, c in model.choices.items()}
    unit = PAGE_BYTES if limits.memory == "paged" else instance.alignment_bytes
    best, reason = None, "live blocks exceed the pool whatever is evicted"
    for slack in _SLACK:
        capacity = int(instance.pool_bytes * slack)
        plan = make_plan(instance, evicted, algorithms, unit=unit, capacity=capacity)
        if plan is None:
            break
        ways = [partial(execute, instance, plan, limits.memory, "flow")]
        if limits.memory == "contiguous":
            ways.append(partial(execute_leanly, instance, plan, "flow"))
        for way in ways:
            try:
                schedule = way()
            except Refusal as refusal:
                reason = str(refusal)
                continue
            if best is None or schedule.makespan_ns < best.makespan_ns:
                best = schedule
    return best, reason


def _told(best: Schedule | None, bound: Bound) -> str:
    made = "no schedule yet" if best is None else format_time(best.makespan_ns)
    return f"{made}, bound {format_time(bound.lower_bound_ns)} ({bound.bound_by})"
