"""The best lower bound within a time: from the cheap arguments to FLOW on more and more checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec import UNSET

from ...heuristics.clock import until
from ...instances.instance import Instance
from ...instances.transforms import in_pages, in_parts
from ...validate.schedule import MemoryModel
from ..bounds import Bound, best_bound
from ..linear.available import require_linear_solver
from ..linear.facade import solve_linear
from ..linear.model import LinearModel, LinearOptions, LinearResult, takes_whole_columns
from ..linear.worker import LinearWorker
from .checkpoints import Checkpoints
from .gpus import cluster_flow_bound
from .model import Integrality, bound_name, flow_model, proven
from .recompute import recompute_bound
from .unbroken import LONG
from .windows import Windows

_FEW, _MANY, _IN_PARTS = (7 / 6, 2.0), (4 / 3, 3.0), (2.0, 3.0)
"""By which factor the checkpoints of whole models grow, and about how much longer a model takes then: for few
tasks, for many, and where tensors are in parts. Of few tasks, more models make for more schedules."""

_SHARE = 0.3
"""Share of the time left that a model may take that is not the last."""

ROUNDS = 4
"""LPs of so many checkpoints in a row, each on those that the last one suggests."""

_LONGER = 5
"""There is another on as many as the finer of those LPs have, where there is the time for it: it takes about
that many times longer."""

_WORTH, _WORTH_LINEAR = 25, 4
"""An LP that takes longer than the time left over this is the finest: the next takes several times longer.
The second is for where nothing but LPs is to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """From how many tasks on there are which models, and of how many tasks they are; tests take other ones.

    Attributes
    ----------
    first, first_linear
        Checkpoints of the coarsest model; the second is for where there are so many tasks that there are only
        LPs: of those, sixteen are too few to find out which ones matter.
    large
        Tasks above which LPs come before large whole models (one of those may not even finish its
        relaxation), and copies may be interrupted.
    huge
        Tasks above which there are only LPs.
    window
        Tasks of a short window: some layers, whose model is solved in some tenths of a second. Longer ones
        are of twice and four times as many. A program has more than two windows of a length.
    ends
        Tasks of windows at the ends of a large program: what the last ones use has to come back, what the
        first ones write has to leave, and whole evictions say far more of that than their relaxation.
    finding
        Checkpoints of the LPs that find out which ones matter: with many more, they share their prices out.
    choosing
        Checkpoints of the model in which only the choice of algorithms is whole, the dearest of those.
    long
        Share of the time of the longest copy over which a copy is long, so that none cuts in on it.
    """

    first: int = 16
    first_linear: int = 64
    large: int = 100
    huge: int = 4000
    window: int = 12
    ends: tuple[int, ...] = (96, 144)
    finding: tuple[int, ...] = (32, 48)
    choosing: int = 36
    long: float = LONG


DEFAULT = Thresholds()


@dataclass(frozen=True, slots=True)
class Stage:
    """A model to solve: on how many checkpoints, what is whole in it, and for how many seconds at most.

    `windowed` says whether it takes what is known of windows, `leads` whether the next checkpoints follow
    from its solution, `unbroken` whether long copies are not interrupted.
    """

    count: int
    integrality: Integrality
    time_limit: float
    windowed: bool = False
    leads: bool = True
    unbroken: bool = False


@dataclass(frozen=True, slots=True)
class Tiling:
    """Windows to solve: of how many tasks each, and for how many seconds at most, all of them.

    `ends` says whether only the last and the first tasks are windows.
    """

    length: int
    time_limit: float
    ends: bool = False


def finest_integrality(instance: Instance, solver: str, thresholds: Thresholds = DEFAULT) -> Integrality:
    """What can be whole in models of an instance.

    In thousands of tasks, nothing: after a minute, a whole model is then no better than its relaxation. Parts
    of tensors approximate evictions of any size, which are then left continuous. With second runs of many
    tasks, a whole model says after a minute hardly more than its relaxation.
    """
    again = any(task.recomputable for task in instance.tasks)
    huge = len(instance.tasks) > (thresholds.large if again else thresholds.huge)
    if huge or not takes_whole_columns(solver):
        return "none"
    return "algorithms" if in_parts(instance) else "all"


def stages(
    tasks: int,
    deadline: float,
    whole: Integrality = "all",
    rounds: int = ROUNDS,
    thresholds: Thresholds = DEFAULT,
) -> Iterator[Stage | Tiling]:
    """Models from coarse to fine, so that the bound rises as much as the time allows.

    Short windows, which take seconds, come first. Where there are many tasks, LPs on few checkpoints follow:
    they find out which ones matter. On the dearest of these, algorithms alone are whole at first: such a
    model is often solved to the end where one that is all whole is not. It is solved again with long windows
    of the last and the first tasks, which take more time than it does. Then come whole models on more and
    more of them: solved to the end, one says more than a finer one that is cut short. Longer windows and
    finer LPs come before the last, which has all the time left. Where there are few tasks, each whole model
    leads to the next, and comes after its LP, which takes little time and whose dual values become a
    certificate. Where nothing is whole, LPs on more and more checkpoints are all. Whole models take what is
    known of windows, and so does one LP.

    Parameters
    ----------
    tasks
        Their number: the finest model has all of them as checkpoints.
    deadline
        When to end, as `time.monotonic` tells it. The time between stages is taken for that of the models.
    whole
        What is whole in the models other than LPs; ``none``: there are only LPs.
    rounds
        How many LPs have the same number of checkpoints; more than one where each leads to the next.
    thresholds
        When to build which models.
    """

    def left() -> float:
        return max(deadline - time.monotonic(), 0.0)

    large, linear = tasks > thresholds.large, whole == "none"
    count, worth = min(thresholds.first, tasks), _WORTH
    if linear and tasks > thresholds.huge:
        count, worth = thresholds.first_linear, _WORTH_LINEAR

    def tilings(*lengths: int, ends: bool = False) -> Iterator[Tiling]:
        """Windows of each length of which the program has more than two."""
        for length in lengths:
            if tasks > 2 * length and left() > 0:
                yield Tiling(length, _SHARE * left(), ends)

    def algorithms(count: int) -> Stage:
        return Stage(count, "algorithms", _SHARE * left(), windowed=True, leads=False)

    def solved_linear(fine: int, rounds: int) -> Iterator[Stage]:
        """LPs as fine as the time allows."""
        while left() > 0:
            last = fine == tasks
            for _ in range(1 if last else rounds):
                began = time.monotonic()
                yield Stage(fine, "none", left() if last and linear else _SHARE * left(), leads=linear)
                if last or (time.monotonic() - began) * worth > left():
                    return
            fine = min(max(fine * 3 // 2, fine + 1), tasks)

    def solved_whole(share: float) -> Iterator[Stage]:
        if not large:
            yield Stage(count, "none", share * left(), leads=False)
        yield Stage(
            count,
            whole,
            share * left(),
            windowed=True,
            leads=not large,
            unbroken=not large and whole == "all",
        )

    if whole == "algorithms":
        growth, longer = _IN_PARTS
    else:
        growth, longer = _MANY if large else _FEW

    def more() -> int:
        return min(math.ceil(growth * count), tasks)

    if linear:
        yield from solved_linear(count, rounds)
        return
    finding, choosing, ends = thresholds.finding, thresholds.choosing, thresholds.ends
    *short, long = (thresholds.window * factor for factor in ((1, 2, 4) if large else (1, 2)))
    yield from tilings(*short)
    for fine in finding if large and left() > 0 else ():
        for _ in range(rounds):
            yield Stage(fine, "none", _SHARE * left())
    took = math.inf
    if large and whole == "all" and left() > 0:
        began = time.monotonic()
        yield algorithms(choosing)
        took = time.monotonic() - began
        yield from tilings(*ends, ends=True)
        if tasks > 2 * min(ends) and left() > 0:
            yield algorithms(choosing)
    while count < tasks and left() > 0:
        began = time.monotonic()
        yield from solved_whole(_SHARE)
        count = more()
        if (time.monotonic() - began) * longer > _SHARE * left():
            break
    yield from tilings(long)
    if large:
        fine = count
        for stage in solved_linear(min(finding[-1] * 3 // 2, tasks), 1):
            fine = stage.count
            yield stage
        if left() > 0:
            yield Stage(fine, "none", _SHARE * left(), windowed=True, leads=False)
        if _LONGER * took < _SHARE * left():
            yield algorithms(finding[-1])
    while left() > 0:
        began = time.monotonic()
        yield from solved_whole(1.0)
        if count == tasks or time.monotonic() - began > left():
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
    shortest_ns: int | None = None,
    on_better: Callable[[Bound], None] | None = None,
    thresholds: Thresholds = DEFAULT,
) -> Bound:
    """Return the best bound that the time allows; the bound only rises.

    After the compute and single-peak bounds, which are exact, FLOW takes over on more and more checkpoints,
    as `stages` orders them, until the time is up, every task is a checkpoint or the bound meets a schedule.
    Bounds of linear models are certified; those of whole models are the solver's word. With recomputable
    tasks it is FLOW with recomputation.

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
    shortest_ns
        The makespan of a schedule that is known.
    on_better
        Called with every bound that is better than those before.
    thresholds
        When to build which models.

    Raises
    ------
    PebblerError
        For a solver that is not available.
    """
    require_linear_solver(solver)
    with LinearWorker(solver):  # its process has loaded the solver when the clock starts
        deadline = time.monotonic() + time_limit
    with until(deadline):
        best = best_bound(instance, memory=memory)
    if on_better is not None:
        on_better(best)
    whole = finest_integrality(instance, solver, thresholds)
    if memory == "paged":
        instance = in_pages(instance)
    options = LinearOptions(workers=workers, seed=seed, log=log)
    other = None
    if any(task.recomputable for task in instance.tasks):
        other = recompute_bound
    elif instance.cluster is not UNSET:
        other = cluster_flow_bound
    windows = Windows(instance, whole) if other is None else None
    chosen = Checkpoints(instance)

    def solve(model: LinearModel, seconds: float) -> LinearResult:
        return solve_linear(model, solver=solver, **(options | LinearOptions(time_limit=seconds)))

    def bound(stage: Stage) -> Bound | None:
        checkpoints, how = chosen.choose(stage.count), stage.integrality
        if other is not None:
            limit = LinearOptions(time_limit=stage.time_limit)
            return other(instance, checkpoints, integrality=how, solver=solver, **(options | limit))
        known = windows.known if stage.windowed and windows is not None else ()
        model = flow_model(instance, checkpoints, how, known, unbroken=stage.unbroken, long=thresholds.long)
        result = solve(model.linear, stage.time_limit)
        if stage.leads:
            chosen.learn(model, result)
        return proven(instance, result, model, bound_name(how, solver))

    rounds = 1 if other is not None else ROUNDS
    for stage in stages(len(instance.tasks), deadline, whole, rounds, thresholds):
        if shortest_ns is not None and best.meets(shortest_ns):
            break
        if isinstance(stage, Tiling):
            if windows is not None:
                windows.prove(stage.length, stage.time_limit, solve, ends=stage.ends)
            continue
        found = bound(stage)
        before = best
        best = best if found is None else best.raised(found)
        if best.lower_bound_ns > before.lower_bound_ns and on_better is not None:
            on_better(best)
    return best
