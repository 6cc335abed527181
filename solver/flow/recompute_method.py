"""The method ``flow-recompute``: as ``flow``, with recomputation beside transfers."""

from __future__ import annotations

import logging
import time
from dataclasses import replace as replace_fields
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...heuristics.loading import kernels, loads, plan_kernels
from ...heuristics.methods import Answer, Limits, OnBetter, Refusal, find_method, register
from ...heuristics.production.partition import load_networkx
from ...heuristics.recomputation.reruns import staying
from ...heuristics.recomputation.rules import planned
from ...heuristics.search.method import RULES as SEARCH_RULES
from ...instances.instance import Instance
from ...validate.check import check
from ...validate.schedule import Schedule
from ..linear.model import LinearModel, LinearResult
from ..linear.worker import LinearWorker, begin_solver, load_solver
from ..packing.pack import Effort, load_packing
from ..steady import settle
from .decode import decided, plan_in
from .method import RULES, SECONDS, FlowRun, flow
from .recompute import RecomputeModel, proven_with_reruns, recompute_model
from .stages import DEFAULT, Stage, refine_bound, tightened

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from ...heuristics.recomputation.readings import AnyRerunSearch, ReadingSearch
    from ...heuristics.recomputation.search import RerunSearch


_log = logging.getLogger(__name__)

FRAMEWORKS = ("torch-memory-budget", "checkpoint-layers")
"""Rules of frameworks whose schedules the search starts from as well."""

_TRANSFERS = "transfers"
"""Name of the rule that is left out for recomputation alone."""

_FLOW_SHARE = 0.2
"""Share of the time limit in which `flow` looks for a schedule in which nothing runs again."""

_BOUND_SHARE = 0.15
"""Share of the time limit for the bound where blocks are carried."""


@register(
    "flow-recompute",
    "as flow, with recomputation beside transfers: forward tasks may run again",
    "this project",
    shown="named",
    reads="chosen",
    transform=planned,
    rules=(*RULES, *SEARCH_RULES, _TRANSFERS),
    carries="chosen",
)
@loads(begin_solver, kernels, plan_kernels, load_solver, load_packing, load_networkx)
def flow_recompute(instance: Instance, limits: Limits) -> Answer:
    """Solve FLOW with recomputation on more and more checkpoints, and search for schedules meanwhile.

    It ends as `flow` does. If no task may run again, it is `flow` with another model. Without transfers, it
    makes only the copies that the instance requires. If the instance allows others, the models prove nothing
    for it, and the bound is one that needs no model. Where blocks are carried, `flow` plans first, and a
    bound is proven that leaves their places free; then they are chosen.

    Where what tasks read depends on their algorithms, the models choose these, and so does the search.

    Raises
    ------
    Refusal
        Where tasks may run on the host; where blocks are carried and what tasks read is to be chosen.
    """
    if instance.has_host_work:
        raise Refusal("second runs are not modelled together with work on the host; take flow")
    alone = staying(instance)
    is_alone = _TRANSFERS in limits.without and alone != instance
    if instance.reads_vary:
        if instance.carried:
            raise Refusal(
                "what a task reads or makes depends on its algorithm, and blocks are carried: no method "
                "plans both; leave out 'inputs', 'outputs' and 'takes_over' of algorithms, or begin the "
                "blocks on the device"
            )
        return _ReadingAlone(alone, limits).answer() if is_alone else ReadingRun(instance, limits).answer()
    if is_alone:
        return _placed(_Alone, alone, limits) if instance.carried else _Alone(alone, limits).answer()
    if not instance.carried:
        return RecomputeRun(instance, limits).answer()
    seconds = SECONDS if limits.time_limit is None else limits.time_limit
    began = time.monotonic()
    once = _by_flow(instance, replace_fields(limits, time_limit=_FLOW_SHARE * seconds))
    if once.stopped_by == "interrupted":
        return once
    known = min(
        (start for start in (once.schedule, limits.incumbent) if start is not None),
        key=lambda start: start.makespan_ns,
        default=None,
    )
    bound = Answer(None)
    try:
        bound = _bounded(instance, limits, _BOUND_SHARE * seconds, known)
        if known is not None and known.makespan_ns == bound.lower_bound_ns:
            return replace_fields(bound, schedule=replace(known, method=RecomputeRun.name))
        if limits.time_limit is not None:
            limits = replace_fields(limits, time_limit=max(seconds - (time.monotonic() - began), 0.0))
        tell = _at_most(limits.on_better, known)
        answer = _placed(RecomputeRun, instance, replace_fields(limits, on_better=tell))
    except Refusal:
        if known is None:
            raise
        answer = Answer(None)
    except KeyboardInterrupt:
        answer = Answer(None, "interrupted")
    best = answer.schedule
    if known is not None and (best is None or known.makespan_ns < best.makespan_ns):
        best = replace(known, method=RecomputeRun.name)
    return replace_fields(bound, schedule=best, stopped_by=answer.stopped_by)


def _placed(run: type[RecomputeRun], instance: Instance, limits: Limits) -> Answer:
    """Run the method on a choice of places for carried blocks; what its models prove holds for that alone.

    `flow` chooses places for copies alone, which are others. So only a warm start that was given chooses.
    """
    info = replace_fields(find_method(run.name), carries="settled")
    return settle(instance, info, lambda chosen, rest: run(chosen, rest).answer(), limits)


def _bounded(instance: Instance, limits: Limits, seconds: float, known: Schedule | None) -> Answer:
    """Return the bound that models prove in some seconds, which leave the places of carried blocks free."""
    found = refine_bound(
        instance,
        seconds,
        seed=limits.seed,
        workers=limits.workers,
        solver=limits.solver,
        log=limits.log,
        memory=limits.memory,
        shortest_ns=None if known is None else known.makespan_ns,
        thresholds=replace_fields(DEFAULT, first=DEFAULT.first_again),
    )
    return Answer(
        None,
        lower_bound_ns=found.lower_bound_ns,
        bound_by=found.bound_by,
        certificate=found.certificate,
    )


def _by_flow(instance: Instance, limits: Limits) -> Answer:
    """Return the schedule of `flow`, where tasks run once; its bound does not hold if they may run again."""
    tasks = tuple(replace(task, recomputable=False) for task in instance.tasks)
    once = replace(instance, tasks=tasks)
    start = limits.warm_start
    if start is not None and check(once, start).reasons:
        start = None
    try:
        answer = flow(
            once,
            replace_fields(
                limits,
                warm_start=start,
                without=limits.without - {_TRANSFERS},
                on_better=_unbounded(limits.on_better),
            ),
        )
    except Refusal as refusal:
        return Answer(None, str(refusal))
    return Answer(answer.schedule, answer.stopped_by)


def _unbounded(tell: OnBetter | None) -> OnBetter | None:
    """Return a function that is told of makespans alone."""
    return None if tell is None else lambda makespan_ns, _: tell(makespan_ns, None)


def _at_most(tell: OnBetter | None, known: Schedule | None) -> OnBetter | None:
    """Return a function that is told of a known schedule in the place of longer ones."""
    if tell is None or known is None:
        return tell
    best_ns = known.makespan_ns

    def told(makespan_ns: int | None, bound_ns: int | None) -> None:
        tell(best_ns if makespan_ns is None else min(makespan_ns, best_ns), bound_ns)

    return told


class RecomputeRun(FlowRun):
    """One call of the method, or of another that plans second runs.

    Attributes
    ----------
    proves
        Whether bounds of its models hold for the instance that was asked for.
    relaxation
        The last LP, and its solution.
    unsolved
        Whether the last whole model on checkpoints with a price was not solved to the end.
    """

    name = "flow-recompute"
    rounds = 1
    proves = True
    effort: Effort = "little"  # of few programs: those of the best plans
    turn = 0.2  # of the time left: each plan is a program of its own, so that a round may take minutes
    reruns: RerunSearch | None = None
    relaxation: tuple[RecomputeModel, LinearResult] | None = None
    unsolved = False
    rules = ("modnn", "memonger-rule", "superneurons-rule", "knapsack-rule", *FRAMEWORKS)

    def _new_search(self) -> AnyRerunSearch | None:
        from ...heuristics.recomputation.contiguous import new_rerun_search  # with it comes Numba

        limits = self.limits
        rules = limits.without & set(SEARCH_RULES)
        try:
            self.reruns = new_rerun_search(self.instance, limits.memory, limits.seed, rules, self._places)
        except Refusal as refusal:
            self.reason = str(refusal)
        return self.reruns

    def _new_windows(self) -> None:
        return None  # they rest on runs that are not repeated

    def _model(
        self, checkpoints: list[int], stage: Stage
    ) -> tuple[LinearModel, Callable[[LinearResult], None]]:
        model = recompute_model(self.modelled, checkpoints, stage.integrality)
        return model.linear, lambda result: self._decide(stage, model, result)

    def _solve(self, worker: LinearWorker, stage: Stage) -> None:
        if not stage.priced:
            super()._solve(worker, stage)
            return
        if self.unsolved and not stage.last:
            return
        assert self.relaxation is not None  # each such stage follows an LP
        ends = time.monotonic() + stage.time_limit

        def solved(model: LinearModel) -> LinearResult | None:
            left = ends - time.monotonic()
            return None if left <= 0 or self._met() or self._late() else self._solved(worker, model, left)

        for model, result in tightened(self.modelled, *self.relaxation, solved):
            self.unsolved = result.status != "optimal"
            self._decide(stage, model, result)
            self._tell()
            _log.info("%s: %d checkpoints with a price: %s", self.name, len(model.checkpoints), self)

    def _decide(self, stage: Stage, model: RecomputeModel, result: LinearResult) -> None:
        """Use what the solver has proven, and guide the search by its solution."""
        if stage.integrality == "none":
            self.relaxation = model, result
            if self.refines and not (self.modelled.nothing_returns or stage.coarse):
                self.checkpoints.learn_with_reruns(model, model.versions, result)
        found = proven_with_reruns(self.modelled, result, model, stage.integrality, self.limits.solver)
        if found is not None and self.proves:
            self.bound = self.bound.raised(found)
        if result.values is None or stage.coarse:
            return
        if stage.priced and self.reruns is not None:
            # of few checkpoints: memory may be too small for the plan
            self.reruns.offer_plan(plan_in(self.modelled, model, result.values), None)
        elif stage.integrality == self.whole:
            self._guide(model, result.values)

    def _guide(self, model: RecomputeModel, values: NDArray[np.float64]) -> None:
        """Guide the search by a solution."""
        if self.reruns is not None:
            self.reruns.offer_plan(*decided(self.modelled, model, values))


class ReadingRun(RecomputeRun):
    """One call of the method where what tasks read depends on their algorithms.

    The models choose among all algorithms. Rules schedule the instance in which tasks read their inputs.
    """

    searched_readings: ReadingSearch | None = None

    def __init__(self, instance: Instance, limits: Limits) -> None:
        from ...heuristics.recomputation.readings import Readings  # with it comes Numba

        self.readings = Readings(instance)
        self.plain = self.readings.starts()[0]
        super().__init__(self.readings.instance(self.plain), limits, original=instance)

    def _new_search(self) -> ReadingSearch | None:
        from ...heuristics.recomputation.contiguous import new_rerun_search
        from ...heuristics.recomputation.readings import ReadingSearch

        limits = self.limits
        rules = limits.without & set(SEARCH_RULES)

        def made(instance: Instance) -> RerunSearch:
            return new_rerun_search(instance, limits.memory, limits.seed, rules, self._places)

        try:
            self.searched_readings = ReadingSearch(self.bounded, made, limits.seed)
        except Refusal as refusal:
            self.reason = str(refusal)
        return self.searched_readings

    def _ruled(self, rule: str) -> Schedule | None:
        found = super()._ruled(rule)
        return None if found is None else self.readings.restored(self.plain, found)

    def _guide(self, model: RecomputeModel, values: NDArray[np.float64]) -> None:
        if self.searched_readings is None:
            return
        chosen = {k: max(of, key=lambda a: float(values[of[a]])) for k, of in model.choices.items()}
        reading = self.readings.of(lambda k: chosen.get(k, 0))
        numbers = {k: self.readings.numbers(reading, k) for k in model.choices}
        choices = {
            k: {numbers[k].index(a): column for a, column in of.items() if a in numbers[k]}
            for k, of in model.choices.items()
        }
        # what nobody reads is left out of the reading, and so may be the algorithm that makes it
        plain = replace_fields(model, choices={k: of for k, of in choices.items() if of})
        decisions = decided(self.readings.instance(reading, self.modelled), plain, values)
        self.searched_readings.offer_plan(reading, *decisions)


class _Alone(RecomputeRun):
    """One call of the method without transfers, whose bounds do not hold for the instance itself."""

    proves = False


class _ReadingAlone(ReadingRun):
    """The same where what tasks read depends on their algorithms."""

    proves = False
