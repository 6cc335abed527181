"""The best lower bound within a time: from the cheap arguments to FLOW on more and more checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..instances.instance import Instance
from .bounds import Bound, best_bound
from .flow import Integrality, flow_bound, hot_checkpoints
from .linear import require_linear_solver, takes_whole_columns

_FIRST = 16
_STEPS: tuple[Integrality, ...] = ("none", "all")


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

    After the compute and single-peak bounds, which are exact, FLOW takes over on checkpoints whose number
    doubles from 16 on, first as an LP, then with whole evictions and algorithms, until the time is up or
    every task is a checkpoint. Its bounds are in floating point. An instance with recomputable tasks keeps
    the compute bound.

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
    steps = _STEPS if takes_whole_columns(solver) else _STEPS[:1]
    deadline = time.monotonic() + time_limit
    best = best_bound(instance)
    if on_better is not None:
        on_better(best)
    if any(task.recomputable for task in instance.tasks):
        return best
    count = _FIRST
    while True:
        checkpoints = hot_checkpoints(instance, count)
        for integrality in steps:
            left = deadline - time.monotonic()
            if left <= 0:
                return best
            found = flow_bound(
                instance,
                checkpoints,
                integrality=integrality,
                solver=solver,
                time_limit=left,
                seed=seed,
                workers=workers,
                log=log,
            )
            if found is not None and found.lower_bound_ns > best.lower_bound_ns:
                best = found
                if on_better is not None:
                    on_better(best)
        if len(checkpoints) == len(instance.tasks):
            return best
        count *= 2
