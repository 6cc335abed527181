"""The best lower bound within a time: from the cheap arguments to FLOW on more and more checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec import UNSET

from ..instances.instance import Instance
from ..instances.transforms import in_pages, in_parts
from ..validate.schedule import MemoryModel
from .bounds import Bound, best_bound
from .cluster_flow import cluster_flow_bound
from .flow import Integrality, flow_bound, hot_checkpoints
from .flow_recompute import recompute_bound
from .linear import (
    LinearModel,
    LinearOptions,
    LinearResult,
    require_linear_solver,
    solve_linear,
    takes_whole_columns,
)
from .windows import Windows

_FIRST = 16
"""Checkpoints of the coarsest model."""

LARGE = 100
"""Tasks above which LPs come before large whole models: one of those may not even finish its relaxation."""

_HUGE = 4000
"""Tasks above which there are only LPs."""

_WINDOW = 12
"""Tasks of a short window: some layers, whose model is solved in some tenths of a second."""

_GROWTH = 3.0
"""A whole model with a third more checkpoints takes about this many times as long."""

_SHARE, _COARSE_SHARE = 0.3, 0.1
"""Shares of the time left that a model may take that is not the last; a whole one before the LPs."""

_WORTH = 8
"""An LP that takes longer than the time left over this is the finest: the next takes several times longer."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A model to solve: on how many checkpoints, what is whole in it, and for how many seconds at most.

    `windowed` says whether it takes what is known of windows.
    """

    count: int
    integrality: Integrality
    time_limit: float
    windowed: bool = False


@dataclass(frozen=True, slots=True)
class Tiling:
    """Windows to solve: of how many tasks each, and for how many seconds at most, all of them."""

    length: int
    time_limit: float


def finest_integrality(instance: Instance, solver: str) -> Integrality:
    """What can be whole in models of an instance.

    In thousands of tasks, nothing: after a minute, a whole model is then no better than its relaxation. Parts
    of tensors approximate evictions of any size, which are then left continuous. With second runs of many
    tasks, a whole model says after a minute hardly more than its relaxation.
    """
    again = any(task.recomputable for task in instance.tasks)
    huge = len(instance.tasks) > (LARGE if again else _HUGE)
    if huge or not takes_whole_columns(solver):
        return "none"
    return "algorithms" if in_parts(instance) else "all"


def stages(tasks: int, deadline: float, whole: Integrality = "all") -> Iterator[Stage | Tiling]:
    """Models from coarse to fine, so that the bound rises as much as the time allows.

    Whole models on more and more checkpoints come first: solved to the end, one says more than a finer one
    that is cut short. Where there are many tasks, LPs follow, as fine as the time allows. The last is the
    whole model that then comes, with all the time left. Where there are few tasks, each comes after its LP,
    which takes little time and whose dual values become a certificate. Short windows, which take seconds,
    come before all models, longer ones before the finest; whole models take what is known of them, and of the
    LPs of many tasks the last.

    Parameters
    ----------
    tasks
        Their number: the finest model has all of them as checkpoints.
    deadline
        When to end, as `time.monotonic` tells it. The time between stages is taken for that of the models.
    whole
        What is whole in the models other than LPs; ``none``: there are only LPs.
    """

    def left() -> float:
        return max(deadline - time.monotonic(), 0.0)

    large, linear = tasks > LARGE, whole == "none"
    share = _COARSE_SHARE if large else _SHARE
    count = min(_FIRST, tasks)

    def more() -> int:
        return min(2 * count if whole == "algorithms" else count * 4 // 3, tasks)

    def solved_whole(share: float) -> Iterator[Stage]:
        if not large:
            yield Stage(count, "none", share * left())
        yield Stage(count, whole, share * left(), windowed=True)

    if not linear and tasks > 2 * _WINDOW and left() > 0:
        yield Tiling(_WINDOW, _SHARE * left())
    while not linear and count < tasks and left() > 0:
        began = time.monotonic()
        yield from solved_whole(share)
        count = more()
        if (time.monotonic() - began) * _GROWTH > share * left():
            break
    if not linear and tasks > 4 * _WINDOW and left() > 0:
        yield Tiling(2 * _WINDOW, _SHARE * left())
    if large or linear:
        finest = count = min(_FIRST if linear else 2 * _FIRST, tasks)
        while left() > 0:
            began = time.monotonic()
            yield Stage(count, "none", left() if count == tasks and linear else _SHARE * left())
            if (time.monotonic() - began) * _WORTH > left():
                break
            finest = count
            if count == tasks:
                break
            count = min(2 * count, tasks)
        count = finest
        if not linear and left() > 0:
            yield Stage(count, "none", _SHARE * left(), windowed=True)
    while not linear and left() > 0:
        yield from solved_whole(1.0)
        if count == tasks:
            break
        count = more()


def refine_bound(
    instance: Instance,
    time_limit: float,
    *,
    seed: int = 0,
    workers: int = 1,
    solver: str = "highs",
    log: bool = False,
    memory: MemoryModel = "contiguous",
    on_better: Callable[[Bound], None] | None = None,
) -> Bound:
    """Return the best bound that the time allows; the bound only rises.

    After the compute and single-peak bounds, which are exact, FLOW takes over on more and more checkpoints,
    as `stages` orders them, until the time is up or every task is a checkpoint. Bounds of linear models are
    certified; those of whole models are the solver's word. With recomputable tasks it is FLOW with
    recomputation.

    Parameters
    ----------
    instance
        What to bound.
    time_limit
        Seconds.
    seed, workers
        Of the solver's random decisions, and its threads.
    solver
        One that `list_linear_solvers` knows; with GLOP and PDLP the models stay linear.
    log
        Whether the solver writes its log to standard error.
    memory
        For paged memory, the models take blocks and workspaces in whole pages.
    on_better
        Called with every bound that is better than those before.

    Raises
    ------
    PebblerError
        For a solver that is not available.
    """
    require_linear_solver(solver)
    deadline = time.monotonic() + time_limit
    best = best_bound(instance, memory=memory)
    if on_better is not None:
        on_better(best)
    whole = finest_integrality(instance, solver)
    if memory == "paged":
        instance = in_pages(instance)
    options = LinearOptions(workers=workers, seed=seed, log=log)
    other = None
    if any(task.recomputable for task in instance.tasks):
        other = recompute_bound
    elif instance.cluster is not UNSET:
        other = cluster_flow_bound
    windows = Windows(instance, whole) if other is None else None

    def solve(model: LinearModel, seconds: float) -> LinearResult:
        return solve_linear(model, solver=solver, **(options | LinearOptions(time_limit=seconds)))

    for stage in stages(len(instance.tasks), deadline, whole):
        if isinstance(stage, Tiling):
            if windows is not None:
                windows.prove(stage.length, stage.time_limit, solve)
            continue
        options["time_limit"] = stage.time_limit
        checkpoints = hot_checkpoints(instance, stage.count)
        if other is not None:
            found = other(instance, checkpoints, integrality=stage.integrality, solver=solver, **options)
        else:
            known = windows.known if stage.windowed and windows is not None else ()
            found = flow_bound(
                instance, checkpoints, integrality=stage.integrality, solver=solver, windows=known, **options
            )
        before = best
        best = best if found is None else best.raised(found)
        if best.lower_bound_ns > before.lower_bound_ns and on_better is not None:
            on_better(best)
    return best
