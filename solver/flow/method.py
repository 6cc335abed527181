"""The method ``flow``: FLOW on more and more checkpoints for the bound, and local search for the schedule.

The search starts from the evictions and algorithms of FLOW's solution. FLOW's next checkpoints are tasks at
which its last solution fails.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace as replace_fields
from functools import reduce
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...heuristics.clock import LEAST, OutOfTime, until
from ...heuristics.host_work import HostWork, planned
from ...heuristics.loading import kernels, loads
from ...heuristics.methods import Answer, Limits, Refusal, find_method, register
from ...heuristics.parts import with_parts
from ...heuristics.program.placement import Piece
from ...heuristics.search.incumbent import Incumbent, estimates
from ...heuristics.search.method import RELAXED_SHARE
from ...heuristics.search.method import RULES as SEARCH_RULES
from ...instances.errors import PebblerError
from ...instances.instance import Instance
from ...instances.transforms import in_pages, in_parts
from ...instances.units import format_time
from ...validate.schedule import Schedule
from ..bounds import Bound, best_bound
from ..linear.model import LinearModel, LinearResult, takes_whole_columns
from ..linear.worker import LinearWorker, begin_solver, load_solver
from ..packing.pack import Effort, load_packing, places
from ..sides import take_sides
from ..steady import settle
from .checkpoints import Checkpoints
from .decode import guide_of
from .model import FlowModel, bound_name, flow_model, proven
from .stages import DEFAULT, ROUNDS, Stage, Tiling, finest_integrality, stages, thresholds_for, tightens
from .states import places_offered, sides_offered
from .windows import Windows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...heuristics.recomputation.readings import AnyRerunSearch
    from ...heuristics.search.search import LocalSearch
    from ...heuristics.search.team import Team

SECONDS = 20.0
"""Time limit in seconds when none is given."""

_GLANCE = 100_000
"""Number of tasks that the search simulates before it asks again whether a model is solved."""

_FIRST_SHARE = 0.1
"""Share of a round of the search, enough for easy instances, before the search without addresses starts."""

_BOUND_SHARE = 0.25
"""Largest share of the time limit for the bound that needs no solver."""

_MODEL_SHARE = 0.8
"""Largest share of the time left for one model, as the search needs time to use the model's solution."""

_RULE_SHARE = 0.1
"""Largest share of the time left for each rule after the first whose schedule the search starts from."""

_OFFER_SHARE = 0.1
"""Largest share of the time limit for the models whose solutions say where carried blocks may be."""

_GRACE = 2.0
"""Seconds after the time limit that a solver has to return what it has proven."""

RULES = ("refinement", "hot-checkpoints", "single-peak", "local-search")
"""Rules that a run can leave out, with recomputation or without.

``refinement``: checkpoints at tasks where the last solution fails. ``hot-checkpoints``: checkpoints at tasks
where memory is tight; without this rule, checkpoints are spread evenly. ``single-peak``: the single-peak
bound. ``local-search``: the search from decoded solutions and from rules.
"""

_ALL_RULES = (*RULES, "windows", "unbroken", *SEARCH_RULES)
"""Rules that a run can leave out if tasks run once; ``unbroken``: long copies are not interrupted."""

_FIRST_METHOD = "modnn"
"""The method by rule whose schedule the search starts from."""

_MOST_TASKS = 1000
"""Greatest number of tasks of a model that has a checkpoint at each."""

_log = logging.getLogger(__name__)


@register(
    "flow",
    "FLOW (MILP) for the bound, and a local search that it leads for the schedule",
    "this project",
    rules=_ALL_RULES,
    carries="chosen",
    sides="chosen",
)
@loads(begin_solver, kernels, load_solver, load_packing)
def flow(instance: Instance, limits: Limits) -> Answer:
    """Solve FLOW on more and more checkpoints, and search for schedules meanwhile.

    Bounds only rise, and schedules only improve. The method ends when they meet, or at the time limit.
    Without a time limit, it ends after 20 s, or when every task is a checkpoint and the search finds nothing
    better. Ctrl-C ends it with the best schedule and bound. With one worker, models and search take turns.
    With more workers, the search runs beside the model, and as many searches as workers between models.

    Raises
    ------
    Refusal
        For recomputable tasks.
    """
    _require_single_runs(instance)
    return _answer(FlowRun, instance, limits)


@register(
    "flow-parts",
    "flow where tensors are in parts, which leave and come back one by one",
    "this project",
    shown="named",
    transform=with_parts,
    rules=_ALL_RULES,
    carries="chosen",
    sides="chosen",
)
@loads(begin_solver, kernels, load_solver, load_packing)
def flow_parts(instance: Instance, limits: Limits) -> Answer:
    """Run `flow` on an instance in parts.

    Raises
    ------
    PebblerError
        When the tensors are whole.
    Refusal
        As `flow`.
    """
    if not in_parts(instance):
        raise PebblerError(
            f"{instance.name}: its tensors are whole, and flow-parts schedules parts; "
            "make the file with pebbler instance --parts auto, or take flow"
        )
    _require_single_runs(instance)
    return _answer(_PartsRun, instance, limits)


@register(
    "milp",
    "FLOW as one integer program with a checkpoint at every task, and nothing beside it",
    "this project",
    shown="named",
)
@loads(begin_solver, kernels, load_solver, load_packing)
def milp(instance: Instance, limits: Limits) -> Answer:
    """Solve FLOW once, as fine as it can be, and build the schedule of its solution.

    This shows what a linear solver does by itself. Nothing is searched before the model or after it: its
    evictions, orders of copies and algorithms are simulated, and places are found for them. Without a time
    limit, it ends when the solver does.

    Raises
    ------
    Refusal
        For recomputable tasks, too many tasks, or a solver that takes no whole variables.
    """
    _require_single_runs(instance)
    if not takes_whole_columns(limits.solver):
        raise Refusal(f"milp: solver '{limits.solver}' takes no whole variables")
    if len(instance.tasks) > _MOST_TASKS:
        raise Refusal(f"milp: {len(instance.tasks)} tasks are too many for one model; take flow")
    return _PlainRun(instance, replace_fields(limits, without=limits.without | {"local-search"})).answer()


def _require_single_runs(instance: Instance) -> None:
    if any(task.recomputable for task in instance.tasks):
        raise Refusal("recomputation is not modelled here; take flow-recompute")


def _answer(run: type[FlowRun], instance: Instance, limits: Limits) -> Answer:
    """Run the method; where blocks are carried, on the choice of their places that suits a rule best.

    So it is with tasks that may run on the host. The models leave places and sides free, so that the bound is
    that of the instance. The solutions of first ones are offered as choices.
    """
    if not (instance.carried or instance.has_host_work):
        return run(instance, limits).answer()
    seconds = SECONDS if limits.time_limit is None else limits.time_limit
    began = time.monotonic()
    try:
        if instance.has_host_work:
            few = run.thresholds.first_hosted
            offered = sides_offered(instance, limits, _OFFER_SHARE * seconds, few)
        else:
            offered = places_offered(instance, limits, _OFFER_SHARE * seconds)
    except KeyboardInterrupt:
        return Answer(None, "interrupted")
    left = max(seconds - (time.monotonic() - began), 0.0)

    def solve(chosen: Instance, given: Limits) -> Answer:
        return run(chosen, given, original=instance, known=offered.bounds).answer()

    def placed(sided: Instance, rest: Limits) -> list[frozenset[int]]:
        return places_offered(sided, rest, _OFFER_SHARE * (rest.time_limit or 0.0)).choices

    read = replace_fields(find_method(run.name), carries="homing", sides="read")
    given = replace_fields(limits, time_limit=left)
    if instance.has_host_work:
        return take_sides(instance, read, solve, given, offered.choices, bounded=True, placed=placed)
    return settle(instance, read, solve, given, offered.choices, bounded=True)


class FlowRun:
    """One call of the method.

    Parameters
    ----------
    instance, limits
        The instance to schedule, and the limits of the call.
    original
        The instance that the models bound, of which the schedule is one as well; None means the same.
    known
        What is proven for that instance before.

    Attributes
    ----------
    name
        Name of the method.
    rules
        Methods by rule whose schedules the search starts from.
    bounded
        The instance that the models bound.
    modelled
        The same as the models have it: in paged memory, its sizes are whole pages.
    rounds
        Number of LPs in a row with the same number of checkpoints, each with the checkpoints that the last
        one suggests.
    turn
        Largest share of the time left for a turn of the search, as long as models follow.
    thresholds
        Sizes from which on models are built.
    effort
        How much is done for the places of one of the search's programs.
    """

    name = "flow"
    rounds = ROUNDS
    turn = 1.0
    thresholds = DEFAULT
    effort: Effort = "least"  # there are many programs
    rules: tuple[str, ...] = (_FIRST_METHOD,)

    def __init__(
        self,
        instance: Instance,
        limits: Limits,
        *,
        original: Instance | None = None,
        known: Sequence[Bound] = (),
    ) -> None:
        kernels(limits)
        self.bounded = bounded = instance if original is None else original
        began = time.monotonic()
        seconds = SECONDS if limits.time_limit is None else limits.time_limit
        self.deadline = began + seconds
        self.instance, self.limits = instance, limits
        self.modelled = in_pages(bounded) if limits.memory == "paged" else bounded
        self.thresholds = thresholds_for(bounded, type(self).thresholds)
        self.whole = finest_integrality(bounded, limits.solver, self.thresholds)
        with until(began + _BOUND_SHARE * seconds, LEAST):
            self.bound = reduce(Bound.raised, known, best_bound(bounded, limits.without, limits.memory))
        self.best, self.estimated = Incumbent(self.name), estimates(instance)
        self.best.offer(limits.incumbent)
        self.searches = "local-search" not in limits.without
        self.refines = "refinement" not in limits.without
        self.reason = "no schedule was found"
        self.cut, self.searched = False, 0.0
        self.told: tuple[int | None, int] | None = None
        self.windows: Windows | None = None
        self.checkpoints = Checkpoints(self.modelled, 0.0 if "hot-checkpoints" in limits.without else 0.5)
        self.team: Team | None = None
        with until(max(self.deadline, began + LEAST)):
            self.search = self._new_search()

    def answer(self) -> Answer:
        """Run until done, until the time limit or until Ctrl-C; return the best schedule and bound."""
        stopped_by = "done"
        try:
            with LinearWorker(self.limits.solver) as worker:
                self._start()
                for stage in self._stages():
                    if self._met() or self._late():
                        break
                    if isinstance(stage, Tiling):
                        self._tile(worker, stage)
                    else:
                        self._solve(worker, stage)
            self.turn = 1.0
            while self.search is not None and self.searches and not (self._met() or self._late()):
                if self.search.done and self.limits.time_limit is None:
                    break
                self._search()
            if not self._met() and (self._late() or self.cut):
                stopped_by = "time limit"
        except KeyboardInterrupt:
            stopped_by = "interrupted"
        best, bound = self._schedule(), self.bound
        if best is None and stopped_by != "interrupted":
            stopped_by = self.reason
        return Answer(best, stopped_by, bound.lower_bound_ns, bound.bound_by, bound.certificate)

    def _stages(self) -> Iterator[Stage | Tiling]:
        tasks, rounds = len(self.instance.tasks), self.rounds if self.refines else 1
        priced, thresholds = tightens(self.modelled, self.limits.solver), self.thresholds
        return stages(tasks, self.deadline, self.whole, rounds, thresholds, self._clock, priced=priced)

    def _new_search(self) -> LocalSearch | AnyRerunSearch | None:
        from ...heuristics.search.contiguous import new_search  # with it comes Numba
        from ...heuristics.search.team import Team

        limits, rules = self.limits, self.limits.without & set(SEARCH_RULES)

        def made(i: int) -> LocalSearch:
            return new_search(self.instance, limits.memory, limits.seed + i, rules, self._places)

        try:
            search = made(0)
        except Refusal as refusal:
            self.reason = str(refusal)
            return None
        self.team = Team(search, made, limits.workers - 1)
        return search

    def _places(self, pieces: Sequence[Piece], capacity: int, alignment: int) -> Sequence[int] | None:
        """Find places until the deadline."""
        with until(self.deadline, LEAST):
            return places(pieces, capacity, alignment, self.effort)

    def _new_windows(self) -> Windows | None:
        return Windows(self.modelled, self.whole)

    def _start(self) -> None:
        """Start the search from the warm start and from a rule's schedule."""
        found = [] if self.limits.warm_start is None else [self.limits.warm_start]
        for rule in self.rules:
            try:
                now = time.monotonic()
                ends = now + (1.0 if rule == _FIRST_METHOD else _RULE_SHARE) * (self.deadline - now)
                with until(ends, LEAST if rule == _FIRST_METHOD else 0.0):
                    ruled = self._ruled(rule)
            except Refusal as refusal:
                if rule == _FIRST_METHOD:
                    self.reason = str(refusal)
                continue
            if ruled is not None:
                found.append(ruled)
                self.best.offer(ruled)
        from ...heuristics.search.contiguous import ContiguousSearch
        from ...heuristics.search.search import LocalSearch

        if self.search is None:
            return
        self._tell()
        for start in found:
            self.search.offer(start)
        if self.search.instance.has_host_budget and isinstance(self.search, LocalSearch):
            self._fit_host(self.search)
        if isinstance(self.search, LocalSearch) and self.searches:
            self._search(_FIRST_SHARE)
            if isinstance(self.search, ContiguousSearch) and not self._met():
                seconds = RELAXED_SHARE * (self.deadline - time.monotonic())
                self.search.lead(seconds, self.bound.lower_bound_ns)
        if self.limits.workers == 1:  # else the search runs beside the models
            self._search()

    def _ruled(self, rule: str) -> Schedule | None:
        """Return the schedule of a rule."""
        return planned(find_method(rule).call, self.instance, self.limits).schedule

    def _fit_host(self, search: LocalSearch) -> None:
        """Suggest evictions to the search whose copies fit host memory at every task, if there are any."""
        from .host import fitting_guide

        if self._met() or not self.searches:
            return
        now = time.monotonic()
        try:
            with until(now + RELAXED_SHARE * (self.deadline - now), LEAST):
                guide = fitting_guide(search.instance, search.problem, self.limits.seed)
        except OutOfTime:
            return
        if guide is not None:
            search.suggest(guide)

    def _solve(self, worker: LinearWorker, stage: Stage) -> None:
        """Solve a model, for its bound and for its decisions."""
        checkpoints = self.checkpoints.choose(stage.count)
        linear, take = self._model(checkpoints, stage)
        if self._late():  # to build it took the time that was left
            return
        result = self._solved(worker, linear, stage.time_limit)
        if result is not None:
            self.cut = self.cut or result.status not in ("optimal", "infeasible")
            take(result)
            self._tell()
        _log.info("%s: %d checkpoints, %s: %s", self.name, len(checkpoints), stage.integrality, self)
        if self.limits.workers == 1 and stage.integrality == self.whole and not stage.coarse:
            self._search()

    def _tile(self, worker: LinearWorker, stage: Tiling) -> None:
        """Solve windows, for use in the models after them."""
        if self.windows is None and "windows" not in self.limits.without:
            self.windows = self._new_windows()
        if self.windows is None:
            return
        self.windows.prove(
            stage.length,
            stage.time_limit,
            lambda model, seconds: self._solved(worker, model, seconds),
            ends=stage.ends,
        )
        _log.info("%s: windows of %d tasks: %d known", self.name, stage.length, len(self.windows.known))

    def _solved(self, worker: LinearWorker, linear: LinearModel, seconds: float) -> LinearResult | None:
        """Solve a model while the search goes on; return None if the search made the model needless."""
        if self.search is not None and self.searches:
            seconds = min(seconds, _MODEL_SHARE * (self.deadline - time.monotonic()))
        worker.start(
            linear,
            time_limit=seconds,
            workers=self.limits.workers,
            seed=self.limits.seed,
            log=self.limits.log,
        )
        while self.limits.workers > 1 and self.search is not None and self.searches and not worker.done():
            if self._met() or self._late():
                break
            self._run(math.inf, _GLANCE, beside=True)
        return None if self._met() else self._result(worker)

    def _result(self, worker: LinearWorker) -> LinearResult:
        """Return the solver's result; a solver that is still running after the time limit is stopped."""
        try:
            return worker.result(max(self.deadline - time.monotonic(), 0.0) + _GRACE)
        except TimeoutError:
            worker.stop()
            return worker.result()

    def _model(
        self, checkpoints: list[int], stage: Stage
    ) -> tuple[LinearModel, Callable[[LinearResult], None]]:
        """Return a model, and the function that uses its result."""
        windows = self.windows.known if stage.windowed and self.windows is not None else ()
        unbroken = stage.unbroken and "unbroken" not in self.limits.without
        model = flow_model(
            self.modelled,
            checkpoints,
            stage.integrality,
            windows,
            unbroken=unbroken,
            long=self.thresholds.long,
        )
        return model.linear, lambda result: self._take(stage, model, result)

    def _take(self, stage: Stage, model: FlowModel, result: LinearResult) -> None:
        found = proven(self.modelled, result, model, bound_name(stage.integrality, self.limits.solver))
        if found is not None:
            self.bound = self.bound.raised(found)
        if stage.leads and self.refines:
            self.checkpoints.learn(model, result)
        from ...heuristics.search.search import LocalSearch

        if result.values is None or not isinstance(self.search, LocalSearch):
            return
        large = len(self.instance.tasks) > self.thresholds.large
        if stage.integrality != "none" or large:  # else whole models come soon
            guide = guide_of(self.modelled, model, result.values)
            if self.bounded.has_host_work:
                guide = HostWork(self.instance).guided(self.bounded, guide)
            self.search.suggest(guide)

    def _search(self, share: float = 1.0) -> None:
        """Search for a share of a round."""
        if self.search is not None and self.searches and not self._met():
            left = self.deadline - time.monotonic()
            self._run(self.turn * left, int(share * self.search.round))

    def _run(self, seconds: float, work: int, *, beside: bool = False) -> None:
        """Search for some time: with all workers, or with all but the one that solves a model beside."""
        began = time.monotonic()
        if self.team is not None:
            self.team.run(seconds, work, idle=int(beside))
        elif self.search is not None:
            self.search.run(seconds, work)
        self.searched += 0.0 if beside else time.monotonic() - began
        self._tell()

    def _clock(self) -> float:
        """Read a clock that stands still during the search, except beside a model."""
        return time.monotonic() - self.searched

    def _tell(self) -> None:
        """Report the makespan and the bound if either has improved."""
        if self.estimated and self.search is not None:
            self.best.look(self.search)
        known = self._makespan_ns(), self.bound.lower_bound_ns
        if known != self.told and self.limits.on_better is not None:
            self.limits.on_better(*known)
        self.told = known

    def _makespan_ns(self) -> int | None:
        best = self.best.schedule
        found = [] if best is None else [best.makespan_ns]
        if self.search is not None and self.search.makespan_ns is not None and not self.estimated:
            found.append(self.search.makespan_ns)
        return min(found, default=None)

    def _met(self) -> bool:
        """Return whether the bound meets the schedule, so that nothing can improve."""
        return (makespan := self._makespan_ns()) is not None and self.bound.meets(makespan)

    def _late(self) -> bool:
        return time.monotonic() >= self.deadline

    def _schedule(self) -> Schedule | None:
        if self.search is not None:
            self.best.offer(self.search.schedule(self.name))
        best = self.best.schedule
        return None if best is None else replace(best, method=self.name)

    def __str__(self) -> str:
        makespan = self._makespan_ns()
        made = "no schedule yet" if makespan is None else format_time(makespan)
        return f"{made}, bound {format_time(self.bound.lower_bound_ns)} ({self.bound.bound_by})"


class _PartsRun(FlowRun):
    """One call of the method with tensors in parts."""

    name = "flow-parts"


class _PlainRun(FlowRun):
    """One call of the method that solves one model."""

    name = "milp"

    def answer(self) -> Answer:
        """Solve the model until it is done, until the time limit or until Ctrl-C."""
        limits = self.limits
        try:
            model = flow_model(self.modelled, range(len(self.instance.tasks)), self.whole)
            left = None if limits.time_limit is None else max(self.deadline - time.monotonic(), 0.0)
            with LinearWorker(limits.solver) as worker:
                worker.start(
                    model.linear, time_limit=left, workers=limits.workers, seed=limits.seed, log=limits.log
                )
                result = worker.result()
            stopped_by = {"optimal": "done", "error": result.detail}.get(result.status, "time limit")
            self._build(model, result)
        except KeyboardInterrupt:
            stopped_by = "interrupted"
        best, bound = self.best.schedule, self.bound
        if best is None and stopped_by == "done":
            stopped_by = self.reason
        return Answer(best, stopped_by, bound.lower_bound_ns, bound.bound_by, bound.certificate)

    def _build(self, model: FlowModel, result: LinearResult) -> None:
        """Use what the solver has proven, and build the schedule of its solution."""
        found = proven(self.modelled, result, model, bound_name(self.whole, self.limits.solver))
        if found is not None:
            self.bound = self.bound.raised(found)
        from ...heuristics.search.contiguous import ContiguousSearch

        search = self.search
        if result.values is None or search is None:
            return
        search.offer(guide_of(self.modelled, model, result.values))
        if isinstance(search, ContiguousSearch):
            search.place()
        self.best.offer(search.schedule(self.name))
