"""The best lower bound within a time: from cheap arguments to FLOW on more and more checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from msgspec import UNSET

from ...heuristics.clock import until
from ...heuristics.methods import Limits
from ...instances.arguments import require_instance, require_kind
from ...instances.instance import Instance
from ...instances.transforms import in_pages, in_parts
from ...validate.schedule import MemoryModel
from ..bounds import Bound, best_bound
from ..linear.available import require_linear_solver
from ..linear.facade import solve_linear
from ..linear.model import LinearModel, LinearOptions, LinearResult, takes_whole_columns
from ..linear.worker import LinearWorker
from .checkpoints import Checkpoints, crowded, dearest
from .decode import plan_in
from .gpus import cluster_flow_bound
from .model import Integrality, bound_name, flow_model, proven
from .recompute import RecomputeModel, proven_with_reruns, recompute_model
from .unbroken import LONG
from .windows import Windows

_FEW, _MANY, _IN_PARTS = (7 / 6, 2.0), (4 / 3, 3.0), (2.0, 3.0)
"""Growth of the checkpoints of whole models from one to the next, and the resulting growth of the time.

The pairs are for few tasks, for many tasks, and for tensors in parts. With few tasks, more models give more
schedules.
"""

_SHARE = 0.3
"""Largest share of the time left for a model that is not the last."""

_COARSEST = 0.6
"""The same of the coarsest LP, and where there are LPs only of the first finer one, too.

If they are not solved, no other is.
"""

ROUNDS = 4
"""Number of LPs in a row with the same number of checkpoints, each with those that the last one suggests."""

_LONGER = 5
"""Estimated ratio of times of two models in which only algorithms are whole, with more and with fewer
checkpoints.

The model with more has as many checkpoints as the finer LPs of `Thresholds.finding`, and is built if there is
time for it.
"""

_TIGHTEN, _TIGHTEN_SECONDS, _TIGHTEN_LAST = 1.5, 1.0, 0.3
"""How long whole models on the checkpoints of an LP that have a price may take: so many times as long as the
LP, and so many seconds in any case; after the finest LP, a share of the time left.
"""

_MORE = 2
"""Number of checkpoints that a whole model has more than the one before, whose plan has no room there."""

_WORTH, _WORTH_LINEAR = 25, 4
"""Divisors of the time left: an LP that takes longer than the quotient is the finest, as the next takes
several times longer.

The second divisor is for models with LPs only.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Numbers of tasks that decide which models are built, and how large they are; tests use smaller ones.

    Attributes
    ----------
    first, first_linear
        Checkpoints of the coarsest model. The second number is for so many tasks that there are only LPs:
        sixteen checkpoints are then too few to find out which of them matter.
    first_again
        The same of so many tasks that there are only LPs, where some of them may run again.
    large
        Number of tasks above which LPs come before large whole models, and copies may be interrupted. Such a
        whole model may not even finish its relaxation.
    huge
        Number of tasks above which there are only LPs.
    hosted, first_hosted
        The same where some tasks may run on the host, and checkpoints of the coarsest model of so many tasks.
    window
        Tasks of a short window: some layers, whose model is solved in some tenths of a second. Longer windows
        have twice and four times as many. A program has more than two windows of a length.
    ends
        Tasks of windows at the ends of a large program. The data of the last tasks has to come back, and the
        data of the first tasks has to leave. Whole evictions prove far more there than their relaxation.
    coarse, coarse_again
        Checkpoints of an LP that is solved in tenths of a second, so that there is its bound in any case. The
        second number is for tasks that may run again or on the host.
    finding
        Checkpoints of the LPs that find out which checkpoints matter. With many more checkpoints, each has
        too small a price.
    choosing
        Checkpoints of the model in which only the choice of algorithms is whole: those with the highest
        prices.
    long
        Share of the time of the longest copy above which a copy is long, so that no copy interrupts it.
    worth, worth_again, worth_alone
        Divisors of the time left: where there are only LPs, one that takes longer than the quotient is the
        finest, as the next takes several times longer. The second one is for second runs, and the third one
        for those without copies: their search is done soon, and finer LPs prove more.
    """

    first: int = 16
    first_linear: int = 64
    first_again: int = 6
    large: int = 100
    huge: int = 4000
    hosted: int = 100
    first_hosted: int = 10
    window: int = 12
    ends: tuple[int, ...] = (96, 144)
    coarse: int = 12
    coarse_again: int = 1
    finding: tuple[int, ...] = (32, 48)
    choosing: int = 36
    long: float = LONG
    worth: float = _WORTH
    worth_again: float = 8
    worth_alone: float = 4


DEFAULT = Thresholds()
"""Thresholds of the methods and commands."""


def thresholds_for(instance: Instance, thresholds: Thresholds = DEFAULT) -> Thresholds:
    """Return thresholds for an instance: where tasks may run again or on the host, first LPs are small.

    Each such task has columns in every interval, so that models grow with the square of the checkpoints. Few
    are enough: on a step of GPT-2 XL with work on the host, 10 prove as much as 16, in a tenth of the time,
    and where transformers run tasks again, 6 often prove as much.
    """
    if len(instance.tasks) > thresholds.large and any(task.recomputable for task in instance.tasks):
        worth = thresholds.worth_alone if instance.nothing_returns else thresholds.worth_again
        first = min(thresholds.first, thresholds.first_again)
        return replace(thresholds, first=first, coarse=thresholds.coarse_again, worth=worth)
    if not instance.has_host_work or len(instance.tasks) <= thresholds.hosted:
        return thresholds
    first, coarse = thresholds.first_hosted, thresholds.coarse_again
    return replace(thresholds, huge=thresholds.hosted, first_linear=first, coarse=coarse)


@dataclass(frozen=True, slots=True)
class Stage:
    """A model to solve: its number of checkpoints, its whole variables, and its time limit in seconds.

    `windowed` says whether the model uses what is known of windows. `leads` says whether the next checkpoints
    follow from its solution. `unbroken` says whether long copies are not interrupted. `priced`: the models of
    `tightened` in the place of one on so many checkpoints; the time limit is for all. `last` says whether
    these are the last of their kind; others may be left out after one that was not solved to the end.
    `coarse`: an LP that is solved for its bound alone.
    """

    count: int
    integrality: Integrality
    time_limit: float
    windowed: bool = False
    leads: bool = True
    unbroken: bool = False
    priced: bool = False
    last: bool = False
    coarse: bool = False


@dataclass(frozen=True, slots=True)
class Tiling:
    """Windows to solve: the number of tasks of each, and the time limit in seconds of all together.

    With `ends`, only the last and the first tasks are windows.
    """

    length: int
    time_limit: float
    ends: bool = False


def finest_integrality(instance: Instance, solver: str, thresholds: Thresholds = DEFAULT) -> Integrality:
    """Return the variables that can be whole in models of an instance.

    With thousands of tasks, no variable can: after a minute, a whole model is then no better than its
    relaxation. Parts of tensors approximate evictions of any size, so that evictions are left continuous.
    With second runs of many tasks, a whole model proves after a minute hardly more than its relaxation. Where
    nothing else saves memory, `tightened` has whole models on few checkpoints.
    """
    again = any(task.recomputable for task in instance.tasks)
    huge = len(instance.tasks) > (thresholds.large if again else thresholds.huge)
    if huge or not takes_whole_columns(solver) or tightens(instance, solver):
        return "none"
    return "algorithms" if in_parts(instance) else "all"


def tightens(instance: Instance, solver: str) -> bool:
    """Return whether second runs alone save memory, so that `tightened` has models of an instance."""
    again = any(task.recomputable for task in instance.tasks)
    chosen = instance.reads_vary or in_parts(instance)
    return again and instance.nothing_returns and not chosen and takes_whole_columns(solver)


def tightened(
    instance: Instance,
    model: RecomputeModel,
    result: LinearResult,
    solve: Callable[[LinearModel], LinearResult | None],
) -> Iterator[tuple[RecomputeModel, LinearResult]]:
    """Solve whole models on few checkpoints: those to which an LP gives a price, and what solutions ask for.

    Where nothing returns, memory has a price at a few tasks only, and a whole model on these is solved in the
    time of the LP. Its plan of second runs may have no room somewhere else. Checkpoints there come to it, two
    at a time, until there is room everywhere that checkpoints can see.

    Parameters
    ----------
    instance
        An instance that `tightens`.
    model, result
        A relaxation and its solution.
    solve
        Solves a model; None where there is no time left.

    Yields
    ------
    RecomputeModel, LinearResult
        Each model with its solution. One that is not solved to the end is the last.
    """
    spots, known = [] if result.duals is None else dearest(model, result.duals), list[int]()
    while spots != known:
        whole = recompute_model(instance, spots, "all", between=True)
        found = solve(whole.linear)
        if found is None:
            return
        yield whole, found
        if found.values is None or found.status != "optimal":
            return
        plan = plan_in(instance, whole, found.values)
        known, spots = spots, sorted({*spots, *crowded(instance, plan, _MORE)})


def stages(
    tasks: int,
    deadline: float,
    whole: Integrality = "all",
    rounds: int = ROUNDS,
    thresholds: Thresholds = DEFAULT,
    clock: Callable[[], float] = time.monotonic,
    *,
    priced: bool = False,
) -> Iterator[Stage | Tiling]:
    """Yield models from coarse to fine, so that the bound rises as much as the time allows.

    With many tasks, a coarse LP comes first. Short windows, which take seconds, are next. With many tasks,
    LPs on few checkpoints follow: they find out which checkpoints matter. On those with the highest prices,
    only algorithms are whole at first. Such a model is often solved to the end when a model with all
    variables whole is not. It is solved again with long windows of the last and the first tasks, which take
    more time than the model.

    Then come whole models on more and more checkpoints. A model that is solved to the end proves more than a
    finer one that is stopped. Longer windows and finer LPs come before the last model, which has all the time
    left.

    With few tasks, each whole model leads to the next. It comes after its LP, which takes little time and
    whose dual values become a certificate. If nothing is whole, there are only LPs on more and more
    checkpoints. Whole models use what is known of windows, and so does one LP.

    Parameters
    ----------
    tasks
        Number of tasks. The finest model has all of them as checkpoints.
    deadline
        When to end, in seconds on the clock of `time.monotonic`.
    whole
        Variables that are whole in the models other than LPs; with ``none``, there are only LPs.
    rounds
        Number of LPs with the same number of checkpoints; more than one if each leads to the next.
    thresholds
        Numbers of tasks that decide which models are built.
    clock
        A clock of the time of LPs: where they alternate with a search, it stands still for the search. The
        time between other stages counts as that of the models.
    priced
        Whether whole models on checkpoints that have a price follow each LP, where there are only LPs else.
    """

    def left() -> float:
        return max(deadline - time.monotonic(), 0.0)

    large, linear = tasks > thresholds.large, whole == "none"
    count, worth = min(thresholds.first, tasks), thresholds.worth
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
        share = _COARSEST if linear else _SHARE
        while left() > 0:
            last = fine == tasks
            for _ in range(1 if last else rounds):
                began = clock()
                yield Stage(fine, "none", left() if last and linear else share * left(), leads=linear)
                share, took = _SHARE, clock() - began
                done = last or took * worth > left()
                if priced:
                    limit = _TIGHTEN_LAST * left()
                    if not done:
                        limit = min(limit, max(_TIGHTEN * took, _TIGHTEN_SECONDS))
                    yield Stage(fine, "all", limit, leads=False, priced=True, last=done)
                if done:
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

    if large and not priced and left() > 0:
        yield Stage(min(thresholds.coarse, tasks), "none", _COARSEST * left(), leads=False, coarse=True)
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

    The bounds that need no solver, which are exact, come first. FLOW follows on more and more
    checkpoints, as `stages` orders them, until the time is up, every task is a checkpoint or the bound meets
    a schedule. Bounds of linear models are certified. Those of whole models rest on the solver's word. With
    recomputable tasks, and where what tasks read depends on their algorithms, the model is FLOW with
    recomputation; if other tasks may run on the host, there is no model of both.

    Parameters
    ----------
    instance
        The instance to bound.
    time_limit
        Time limit in seconds.
    seed, workers
        Seed of the solver's random decisions, and number of its threads.
    solver
        A name that `list_linear_solvers` returns. With GLOP and PDLP, all models are linear.
    log
        Whether the solver writes its log to standard error.
    memory
        Memory model; for paged memory, blocks and workspaces of the models are whole pages.
    shortest_ns
        The makespan of a known schedule in nanoseconds.
    on_better
        Function to call with every bound that is better than those before.
    thresholds
        Numbers of tasks that decide which models are built.

    Raises
    ------
    PebblerError
        For a solver that is not available, or a wrong argument.
    """
    require_instance(instance)
    require_kind("time_limit", time_limit, (int, float), "give seconds as a number, such as 10")
    Limits(time_limit, seed, workers)
    require_linear_solver(solver)
    with LinearWorker(solver):  # its process has loaded the solver when the clock starts
        deadline = time.monotonic() + time_limit
    with until(deadline):
        best = best_bound(instance, memory=memory)
    if on_better is not None:
        on_better(best)
    again = instance.reads_vary or any(task.recomputable for task in instance.tasks)
    if again and instance.has_host_work:  # there is no model of both
        return best
    thresholds = thresholds_for(instance, thresholds)
    whole = finest_integrality(instance, solver, thresholds)
    if memory == "paged":
        instance = in_pages(instance)
    options = LinearOptions(workers=workers, seed=seed, log=log)
    shared = instance.cluster is not UNSET and not again
    windows = None if again or shared else Windows(instance, whole)
    chosen = Checkpoints(instance)
    relaxation: list[tuple[RecomputeModel, LinearResult]] = []

    def solve(model: LinearModel, seconds: float) -> LinearResult:
        return solve_linear(model, solver=solver, **(options | LinearOptions(time_limit=seconds)))

    def solved(stage: Stage) -> Iterator[tuple[RecomputeModel, LinearResult]]:
        """Yield the models of a stage where tasks may run again, with their solutions."""
        if stage.priced:
            ends = time.monotonic() + stage.time_limit
            yield from tightened(
                instance,
                *relaxation[0],
                lambda model: None if (left := ends - time.monotonic()) <= 0 else solve(model, left),
            )
            return
        model = recompute_model(instance, chosen.choose(stage.count), stage.integrality)
        relaxation[:] = [(model, solve(model.linear, stage.time_limit))]
        if not (instance.nothing_returns or stage.coarse):
            chosen.learn_with_reruns(model, model.versions, relaxation[0][1])
        yield relaxation[0]

    def bounds(stage: Stage) -> Iterator[Bound | None]:
        how = stage.integrality
        if again:
            for model, result in solved(stage):
                yield proven_with_reruns(instance, result, model, how, solver)
        else:
            yield bound(stage)

    def bound(stage: Stage) -> Bound | None:
        checkpoints, how = chosen.choose(stage.count), stage.integrality
        if shared:
            limit = LinearOptions(time_limit=stage.time_limit)
            return cluster_flow_bound(
                instance, checkpoints, integrality=how, solver=solver, **(options | limit)
            )
        known = windows.known if stage.windowed and windows is not None else ()
        model = flow_model(instance, checkpoints, how, known, unbroken=stage.unbroken, long=thresholds.long)
        result = solve(model.linear, stage.time_limit)
        if stage.leads:
            chosen.learn(model, result)
        return proven(instance, result, model, bound_name(how, solver))

    rounds, priced = 1 if windows is None else ROUNDS, tightens(instance, solver)
    for stage in stages(len(instance.tasks), deadline, whole, rounds, thresholds, priced=priced):
        if time.monotonic() >= deadline or (shortest_ns is not None and best.meets(shortest_ns)):
            break
        if isinstance(stage, Tiling):
            if windows is not None:
                windows.prove(stage.length, stage.time_limit, solve, ends=stage.ends)
            continue
        for found in bounds(stage):
            before = best
            best = best if found is None else best.raised(found)
            if best.lower_bound_ns > before.lower_bound_ns and on_better is not None:
                on_better(best)
            if shortest_ns is not None and best.meets(shortest_ns):
                break
    return best
