"""Comparison of methods on one training iteration: the main job of pebbler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from msgspec.structs import replace

from ...heuristics.methods import Limits, MethodInfo, OnBetter, Transform, find_method, list_methods
from ...instances.arguments import names_of, require_instance
from ...instances.errors import BudgetError, PebblerError
from ...instances.files import checksum
from ...instances.instance import Instance
from ...instances.memory import ideal_ns, least_budget, require_budget
from ...instances.units import format_time
from ...instances.workload import Workload, require_workload
from ...solver.answers import ContradictionError, Ledger
from ...solver.bounds import Bound, best_bound
from ...solver.flow.stages import refine_bound
from ...solver.guests import Host
from ...solver.linear.available import require_linear_solver
from ...solver.result import Result, Status
from ...solver.solve import attempt, log_defect
from ...solver.sub_batch_search import Choice, Iterations, iteration_bound, search_sub_batch
from ...validate.measures import average_bytes, moved_bytes, pinned_bytes
from ...validate.schedule import Schedule
from ..output.usage import stall_ns
from .plan import auto_budget, own_instances, planned
from .result import (
    Comparison,
    Figures,
    Row,
)

_TINY = 6
"""Greatest number of tasks of instances for which a comparison includes brute force."""

_SEARCH_SECONDS = 60.0
"""Time limit in seconds of a search for the sub-batch when none is given."""

_log = logging.getLogger(__name__)


def default_methods(instances: Sequence[Instance], *, auto: bool = False) -> tuple[str, ...]:
    """Return the methods that a comparison includes by default; for a few tasks, brute force is one of them.

    `auto` says whether methods choose their sub-batch.
    """
    shown = {"always", "auto"} if auto else {"always"}
    tiny = all(len(instance.tasks) <= _TINY for instance in instances)
    return tuple(
        info.name for info in list_methods() if info.shown in shown or (tiny and info.name == "brute-force")
    )


def compare(
    instances: Instance | Sequence[Instance],
    methods: Sequence[str] | None = None,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    workers: int = 1,
    memory: Literal["contiguous", "paged"] = "contiguous",
    without: Collection[str] = (),
    solver: str = "highs",
    refine: bool = True,
    on_better: OnBetter | None = None,
) -> Comparison:
    """Solve an iteration with every method, and compare the answers with the ideal and a lower bound.

    A method that fails has a row with status ``error``. Ctrl-C ends the comparison with the methods that have
    ended, and the best bound so far. Progress is logged, one line for each method.

    Parameters
    ----------
    instances
        The iteration: one instance, or the instances that `instances_of` returns.
    methods
        Names of registered methods (`list_methods`); by default those of `default_methods`.
    time_limit
        Time limit in seconds of each method on each instance. If no schedule meets the bound of an instance
        then, the bound is refined for as long. None means until each method is done; bounds are then those of
        cheap arguments and those that methods prove.
    seed, workers
        Seed of random decisions, and number of a solver's threads.
    memory
        Memory model of the schedules: ``contiguous`` or ``paged``.
    without
        Names of the methods' rules to leave out.
    solver
        Name of the solver for linear models.
    refine
        Whether to refine bounds after all methods have ended.
    on_better
        Function to call with better makespans and bounds of a round, as in `solve`.

    Returns
    -------
    Comparison
        A row for each method, and the best lower bound. It prints as a table.

    Raises
    ------
    PebblerError
        For an unknown method, no method at all, a wrong argument, or a budget below the minimum.
    """
    rounds = (instances,) if isinstance(instances, Instance) else _instances(instances)
    left_out = names_of("without", without)
    Limits(time_limit, seed, workers, memory, on_better=on_better)
    require_linear_solver(solver)
    names = default_methods(rounds) if methods is None else names_of("methods", methods)
    if not rounds or not names:
        raise PebblerError("there is nothing to compare; give at least one instance and one method")
    for name in names:
        find_method(name)
    for instance in rounds:
        require_budget(instance)
    run = _Run(Ledger(memory), time_limit, seed, workers, left_out, on_better, solver)
    run.require_names(rounds)
    for instance in rounds:
        run.ledger.of(instance).claim(best_bound(instance, left_out, memory))
    run.all(_Task(info.name, rounds, _planning(info, rounds)) for info in map(find_method, names))
    if refine and time_limit is not None:
        run.refine(rounds, time_limit)
    return run.comparison(rounds, lambda: run.bound(rounds), max(map(least_budget, rounds)), auto=False)


def compare_auto(
    workload: Workload,
    budget: int | str,
    methods: Sequence[str] | None = None,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    workers: int = 1,
    memory: Literal["contiguous", "paged"] = "contiguous",
) -> Comparison:
    """Compare methods that choose their own sub-batch; for a method without a rule, the best one is sought.

    The lower bound is the least over all sub-batches.

    Parameters
    ----------
    workload
        Network, batch and device.
    budget
        Bytes, or a text such as ``12GiB``. A share of the peak refers to the whole batch in one round, and a
        multiple of the minimum to a single image.
    methods, seed, workers, memory
        As for `compare`.
    time_limit
        Time limit in seconds of each method on each instance, and also of a whole search for the sub-batch.
        None means until each method is done; a search then ends after 60 s.

    Returns
    -------
    Comparison
        A row for each method, each with its own sub-batch.

    Raises
    ------
    PebblerError
        For an unknown method, no method at all, or a budget below the minimum.
    """
    require_workload(workload)
    Limits(time_limit, seed, workers, memory)
    budget_bytes = auto_budget(workload, budget)
    whole = workload.instance(budget_bytes, check_budget=False)
    names = default_methods([whole], auto=True) if methods is None else names_of("methods", methods)
    found = [find_method(name) for name in names]
    run = _Run(Ledger(memory), time_limit, seed, workers)
    whole_tensors = Iterations(workload, budget_bytes, ledger=run.ledger)
    iterations: dict[Transform | None, Iterations] = {None: whole_tensors}

    def searched(info: MethodInfo, host: Host) -> Iterations:
        if info.transform not in iterations:
            iterations[info.transform] = Iterations(workload, budget_bytes, host.transform, run.ledger)
        return iterations[info.transform]

    def ruled(_: MethodInfo, host: Host) -> tuple[Instance, ...]:
        return tuple(map(host.transform, own_instances(host.sub_batch, workload, budget_bytes)))

    with ExitStack() as hosts:
        run.all(
            _Task(info.name, (whole,), partial(ruled if info.sub_batch else searched, info, host))
            for info in found
            for host in [hosts.enter_context(Host(info))]
        )
        return run.comparison((whole,), whole_tensors.least_bound, workload.floor(), auto=True)


def _instances(given: Sequence[Instance]) -> tuple[Instance, ...]:
    """Return the instances of an iteration, and refuse what is none."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        require_instance(given)
    instances = tuple(given)
    for instance in instances:
        require_instance(instance)
    return instances


def _planning(info: MethodInfo, instances: Sequence[Instance]) -> Callable[[], tuple[Instance, ...]]:
    return lambda: planned(info, instances)


@dataclass(frozen=True, slots=True)
class _Task:
    """A method to run; `plan` returns its instances, or the iterations among which it searches."""

    method: str
    asked: tuple[Instance, ...]
    plan: Callable[[], tuple[Instance, ...] | Iterations]


@dataclass(slots=True)
class _Run:
    """Runs of one method after the other; the ledger has their answers, and the bounds from before."""

    ledger: Ledger
    time_limit: float | None
    seed: int
    workers: int
    without: Collection[str] = ()
    on_better: OnBetter | None = None
    solver: str = "highs"
    answers: dict[str, tuple[tuple[Instance, ...], _Answer]] = field(default_factory=dict)
    searched: dict[str, Iterations] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    def all(self, tasks: Iterable[_Task]) -> None:
        """Run every method on its instances, or search for its sub-batch, until done or interrupted."""
        try:
            for task in tasks:
                instances, answer = self.run(task)
                self.answers[task.method] = instances, answer
                _log.info("%s", _progress(task.method, answer), extra={"stays": True})
                ends = [result.stopped_by for result in answer.results]
                if answer.search is not None:
                    ends.append(answer.search.stopped_by)
                if "interrupted" in ends:  # the method has kept its best, and said so
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            self.interrupted = True

    def run(self, task: _Task) -> tuple[tuple[Instance, ...], _Answer]:
        """Run a method; any failure, from its planning on, is its answer."""
        _log.debug("%s, on %s", task.method, task.asked[0].name)
        try:
            plan = task.plan()
            if isinstance(plan, Iterations):
                self.searched[task.method] = plan
                return self.search(task, plan)
            self.require_names(plan)
        except ContradictionError:
            raise
        except Exception as error:
            return task.asked, _failed((), error, task.method, task.asked[0].name)
        return plan, self.one(task.method, plan)

    def require_names(self, instances: Iterable[Instance]) -> None:
        """Refuse two instances of one name, whose files and figures could be confused."""
        for instance in instances:
            one_round = checksum(replace(instance, rounds=1))
            if self.names.setdefault(instance.name, one_round) != one_round:
                raise PebblerError(
                    f"two different instances have the name '{instance.name}'; give each its own"
                )

    def one(self, method: str, instances: Sequence[Instance]) -> _Answer:
        """Run a method on its instances; a failure ends it."""
        results: list[Result] = []
        for instance in instances:
            try:
                result = attempt(
                    self.ledger.of(instance),
                    method,
                    time_limit=self.time_limit,
                    seed=self.seed,
                    workers=self.workers,
                    without=self.without,
                    solver=self.solver,
                    on_better=self.on_better,
                )
            except ContradictionError:
                raise
            except PebblerError as error:
                return _failed(tuple(results), error, method, instance.name)
            if result.failure is not None:
                return _failed(tuple(results), result.failure, method, instance.name)
            results.append(result)
            if result.schedule is None:
                return _Answer(tuple(results), result.stopped_by, result.status)
            if result.stopped_by == "interrupted" and len(results) < len(instances):
                return _Answer(tuple(results), result.stopped_by, Status.UNKNOWN)
        return _Answer(tuple(results), None, Status.FEASIBLE)

    def search(self, task: _Task, iterations: Iterations) -> tuple[tuple[Instance, ...], _Answer]:
        """Run a method at its best sub-batch; at the whole batch if it has no schedule."""
        method, batch = task.method, iterations.workload.batch
        try:
            choice = search_sub_batch(
                iterations,
                method,
                time_limit=_SEARCH_SECONDS if self.time_limit is None else self.time_limit,
                seed=self.seed,
                workers=self.workers,
            )
            instances = choice.instances or iterations.instances(batch)
            self.require_names(instances)
        except ContradictionError:
            raise
        except Exception as error:
            return task.asked, _failed((), error, method, iterations.workload.name)
        if choice.sub_batch is None:
            reason = choice.refusal or choice.stopped_by
            return instances, _Answer((), reason, Status.UNKNOWN, choice)
        return instances, _Answer(choice.results, None, Status.FEASIBLE, choice)

    def refine(self, instances: Iterable[Instance], seconds: float) -> None:
        """Refine the bound of each instance until a schedule meets it or the time is over."""
        for instance in instances:
            answers = self.ledger.of(instance)
            shortest = None if answers.shortest is None else answers.shortest.makespan_ns
            if self.interrupted or (shortest is not None and answers.bound().meets(shortest)):
                continue
            _log.info("refining the bound of %s, for at most %.0f s", instance.name, seconds)
            found: list[Bound] = []
            try:
                best = refine_bound(
                    instance,
                    seconds,
                    seed=self.seed,
                    workers=self.workers,
                    memory=self.ledger.memory,
                    shortest_ns=shortest,
                    on_better=found.append,
                )
                found.append(best)
            except KeyboardInterrupt:
                self.interrupted = True
            if found:
                answers.claim(found[-1])

    def bound(self, instances: Sequence[Instance]) -> Bound:
        """Return the best bound on an iteration that is not rejected."""
        return iteration_bound(
            [instance.rounds for instance in instances],
            [self.ledger.of(instance).bound() for instance in instances],
        )

    def comparison(
        self, instances: tuple[Instance, ...], bound: Callable[[], Bound], least: int, *, auto: bool
    ) -> Comparison:
        """Return the comparison, after all answers that could refute others have come."""
        ideal = sum(instance.rounds * ideal_ns(instance) for instance in instances)
        shared = bound()
        rows = []
        for name, (solved, answer) in self.answers.items():
            if name in self.ledger.refuted and answer.status is not Status.ERROR:
                answer = _Answer(answer.results, self.ledger.refuted[name], Status.ERROR, answer.search)
            # Where each has its sub-batch, only a transform makes instances that differ otherwise.
            may_differ = not auto or find_method(name).transform is not None
            other = may_differ and [*map(checksum, solved)] != [*map(checksum, instances)]
            own = shared
            if other:
                own = self.searched[name].least_bound() if name in self.searched else self.bound(solved)
            rows.append(_row(name, answer, solved, ideal, own, planned=other))
        return Comparison(
            instances,
            tuple(rows),
            ideal,
            shared,
            least,
            self.ledger.memory,
            self.seed,
            self.interrupted,
            auto,
            tuple(dict.fromkeys(self.ledger.refuted.values())),
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    """Results of a method on each instance, up to a failure, and why not all instances have a schedule."""

    results: tuple[Result, ...]
    failure: str | None
    status: Status
    search: Choice | None = None

    @property
    def seconds(self) -> float:
        """Wall time of the method in seconds; of the search if there was one."""
        if self.search is not None:
            return self.search.seconds
        return sum(result.solve_seconds for result in self.results)

    @property
    def stopped_by(self) -> str:
        """Why the method ended."""
        if self.failure is not None:
            return self.failure
        if self.search is not None:
            return self.search.stopped_by
        return ", ".join(dict.fromkeys(result.stopped_by for result in self.results))


def _failed(results: tuple[Result, ...], error: Exception, method: str, where: str) -> _Answer:
    """Return the answer for an error, which is logged in full if it is a defect."""
    if isinstance(error, BudgetError):
        return _Answer(results, str(error), Status.UNKNOWN)
    if isinstance(error, PebblerError):
        return _Answer(results, str(error), Status.ERROR)
    return _Answer(results, log_defect(method, where, error), Status.ERROR)


def _progress(method: str, answer: _Answer) -> str:
    if answer.failure is not None:
        return f"{method}: {answer.status.words}: {answer.failure}"
    told = format_time(answer.results[0].makespan_ns or 0) + " a round"
    if answer.search is not None:
        told += f" of {answer.search.sub_batch}, {answer.search.evaluated} sub-batches tried"
    return f"{method}: {told} (solved in {answer.seconds:.2f} s)"


def _row(
    method: str,
    answer: _Answer,
    instances: tuple[Instance, ...],
    ideal: int,
    bound: Bound,
    *,
    planned: bool,
) -> Row:
    results, figures, status = answer.results, None, answer.status
    schedules = tuple(result.schedule for result in results if result.schedule is not None)
    if status is Status.ERROR:
        schedules = ()
    elif answer.failure is None:
        figures = figures_of(instances, schedules, ideal, bound)
        optimal = figures.iteration_ns == bound.lower_bound_ns
        status = Status.OPTIMAL if optimal else Status.FEASIBLE
    return Row(
        method, status, answer.stopped_by, answer.seconds, figures, instances, schedules, bound, planned
    )


def figures_of(
    instances: Sequence[Instance], schedules: Sequence[Schedule], ideal: int, bound: Bound
) -> Figures:
    """Return the figures of an iteration as they follow from its schedules.

    Parameters
    ----------
    instances, schedules
        The instances of the iteration, and one schedule for each.
    ideal, bound
        Time of the iteration without a memory limit in nanoseconds, and the best known bound on it.
    """
    rounds = [instance.rounds for instance in instances]
    pairs = list(zip(instances, schedules, strict=True))

    def total(amounts: Iterable[int]) -> int:
        return sum(count * amount for count, amount in zip(rounds, amounts, strict=True))

    iteration = total(schedule.makespan_ns for schedule in schedules)
    area = total(schedule.makespan_ns * average_bytes(one, schedule) for one, schedule in pairs)
    return Figures(
        iteration_ns=iteration,
        stall_ns=total(map(stall_ns, schedules)),
        overhead=(iteration - ideal) / max(ideal, 1),
        optimality_gap=bound.gap(iteration),
        makespan_ns=schedules[0].makespan_ns,
        peak_bytes=max(schedule.peak_bytes for schedule in schedules),
        average_bytes=area // max(iteration, 1),
        offloaded_bytes=total(moved_bytes(*pair, "offload") for pair in pairs),
        prefetched_bytes=total(moved_bytes(*pair, "prefetch") for pair in pairs),
        pinned_bytes=max(pinned_bytes(*pair) for pair in pairs),
    )
