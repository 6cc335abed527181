"""The best lower bound within a time: from the cheap arguments to FLOW on more and more checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec import UNSET

from ..instances.instance import Instance
from .bounds import Bound, best_bound
from .cluster_flow import cluster_flow_bound
from .flow import Integrality, flow_bound, hot_checkpoints
from .linear import require_linear_solver, takes_whole_columns

_FIRST = 16
"""Checkpoints of the coarsest model."""

_LARGE = 100
"""Tasks above which LPs come before large whole models: one of those may not even finish its relaxation."""

_GROWTH = 3.0
"""A whole model with a third more checkpoints takes about this many times as long."""

_SHARE, _COARSE_SHARE = 0.3, 0.1
"""Shares of the time left that a model may take that is not the last; a whole one before the LPs."""

_WORTH = 8
"""An LP that takes longer than the time left over this is the finest: the next takes several times longer."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A model to solve: on how many checkpoints, what is whole in it, and for how many seconds at most."""

    count: int
    integrality: Integrality
    time_limit: float


def stages(tasks: int, deadline: float, *, whole: bool = True) -> Iterator[Stage]:
    """Models from coarse to fine, so that the bound rises as much as the time allows.

    Whole models on more and more checkpoints come first: solved to the end, one says more than a finer one
    that is cut short. Where there are many tasks, LPs follow, as fine as the time allows. The last is the
    whole model that then comes, with all the time left.

    Parameters
    ----------
    tasks
        Their number: the finest model has all of them as checkpoints.
    deadline
        When to end, as `time.monotonic` tells it. The time between stages is taken for that of the models.
    whole
        Whether there are whole models.
    """

    def left() -> float:
        return max(deadline - time.monotonic(), 0.0)

    large = tasks > _LARGE
    share = _COARSE_SHARE if large else _SHARE
    count = min(_FIRST, tasks)
    while whole and count < tasks and left() > 0:
        began = time.monotonic()
        yield Stage(count, "all", share * left())
        count = min(count * 4 // 3, tasks)
        if (time.monotonic() - began) * _GROWTH > share * left():
            break
    if large or not whole:
        finest = count = min(2 * _FIRST, tasks)
        while left() > 0:
            began = time.monotonic()
            yield Stage(count, "none", left() if count == tasks and not whole else _SHARE * left())
            if (time.monotonic() - began) * _WORTH > left():
                break
            finest = count
            if count == tasks:
                break
            count = min(2 * count, tasks)
        count = finest
    while whole and left() > 0:
        yield Stage(count, "all", left())
        if count == tasks:
            break
        count = min(count * 4 // 3, tasks)


def refine_bound(
    instance: Instance,
    time_limit: float,
    *,
    seed: int = 0,
    workers: int = 1,
    solver: str = "highs",
    log: bool = False,
    on_better: Callable[[Bound], None] | None = None,
) -> Bound:
    """Return the best bound that the time allows; the bound only rises.

    After the compute and single-peak bounds, which are exact, FLOW takes over on more and more checkpoints,
    as `stages` orders them, until the time is up or every task is a checkpoint. Bounds of linear models are
    certified; those of whole models are the solver's word, and the linear model is solved before a small one
    for the best certificate. An instance with recomputable tasks keeps the compute bound.

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
    on_better
        Called with every bound that is better than those before.

    Raises
    ------
    PebblerError
        For a solver that is not available.
    """
    require_linear_solver(solver)
    deadline = time.monotonic() + time_limit
    best = best_bound(instance)
    if on_better is not None:
        on_better(best)
    if any(task.recomputable for task in instance.tasks):
        return best
    bound_by_flow = flow_bound if instance.cluster is UNSET else cluster_flow_bound
    for stage in stages(len(instance.tasks), deadline, whole=takes_whole_columns(solver)):
        linear_first = stage.integrality != "none" and stage.count <= _LARGE
        for integrality in ("none", stage.integrality) if linear_first else (stage.integrality,):
            found = bound_by_flow(
                instance,
                hot_checkpoints(instance, stage.count),
                integrality=integrality,
                solver=solver,
                time_limit=stage.time_limit,
                workers=workers,
                seed=seed,
                log=log,
            )
            known = best
            best = best if found is None else best.raised(found)
            if best.lower_bound_ns > known.lower_bound_ns and on_better is not None:
                on_better(best)
    return best
