"""Methods side by side on one training iteration: the main job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, Literal

from msgspec.structs import replace

from ..heuristics.methods import MethodInfo, OnBetter, Transform, find_method, list_methods
from ..instances.errors import BudgetError, PebblerError
from ..instances.files import checksum
from ..instances.instance import Instance
from ..instances.memory import ideal_ns, least_budget, require_budget
from ..instances.transforms import in_parts
from ..instances.units import format_size, format_time
from ..instances.workload import Workload
from ..solver.answers import ContradictionError, Ledger
from ..solver.bounds import Bound, best_bound
from ..solver.guests import Host
from ..solver.refine import refine_bound
from ..solver.solve import Result, Status, attempt, log_defect
from ..solver.sub_batch_search import Choice, Iterations, iteration_bound, search_sub_batch
from ..validate.measures import average_bytes
from ..validate.schedule import Schedule
from .captions import MODEL_LIMITS
from .cluster_notes import cluster_figures, cluster_notes
from .plan import auto_budget, own_instances, planned
from .table import format_table, line_width, wrapped
from .usage import stall_ns

_TINY = 6
"""Instances of at most so many tasks are compared with brute force, too."""

_SEARCH_SECONDS = 60.0
"""Time limit of a search for the sub-batch where none is given."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of an iteration: all rounds of all instances.

    Attributes
    ----------
    iteration_ns, stall_ns
        Time of the iteration, and for how much of it the compute stream idles.
    overhead
        (iteration time - ideal) / ideal.
    optimality_gap
        (iteration time - lower bound) / lower bound.
    makespan_ns
        Time of a round of the first instance.
    peak_bytes, average_bytes, pinned_bytes
        Greatest peak, time average, and most host memory of a round.
    offloaded_bytes, prefetched_bytes
        Totals of the iteration.
    """

    iteration_ns: int
    stall_ns: int
    overhead: float
    optimality_gap: float
    makespan_ns: int
    peak_bytes: int
    average_bytes: int
    offloaded_bytes: int
    prefetched_bytes: int
    pinned_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """What one method has found.

    Attributes
    ----------
    method, status, stopped_by
        Who, what is known, and why the method ended: the reason where there is no schedule.
    solve_seconds
        Wall time of the method on all instances, or of the search for its sub-batch.
    figures
        None without a schedule.
    instances
        What it solved: one instance, or a second one for a smaller last round.
    schedules
        One an instance; fewer where one is missing.
    bound
        The best lower bound known for what it solved: the comparison's, unless it planned on other instances.
    planned
        Whether these differ from what was asked.
    """

    method: str
    status: Status
    stopped_by: str
    solve_seconds: float
    figures: Figures | None
    instances: tuple[Instance, ...]
    schedules: tuple[Schedule, ...]
    bound: Bound
    planned: bool = False

    @property
    def variant(self) -> str:
        """What kind of instance the method has scheduled."""
        return _variant(self.instances[0])

    @property
    def sub_batch(self) -> int | None:
        """Images of a round, where the instance says so."""
        return self.instances[0].made_from.sub_batch

    @property
    def rounds(self) -> int:
        """Rounds of the iteration."""
        return sum(instance.rounds for instance in self.instances)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Methods side by side; prints as a table.

    Attributes
    ----------
    instances
        The iteration: one instance, or a second one for a smaller last round. With `auto`, the whole batch in
        one round, and each row has its own.
    rows
        One a method, in the order in which they ran.
    ideal_ns
        Time of the iteration without a memory limit: the sum of the fastest algorithms.
    bound
        The best lower bound known on the iteration time; with `auto`, the least over all sub-batches.
    auto
        Whether each method has its own sub-batch.
    least_budget
        M_min in bytes, of all instances; with `auto` M_floor, that of a single image.
    memory, seed
        Memory model of the schedules, and seed of random decisions.
    interrupted
        Whether the user ended it before all methods had run.
    refuted
        What was said of bounds and is wrong, as checked schedules show; nothing rests on it.
    """

    instances: tuple[Instance, ...]
    rows: tuple[Row, ...]
    ideal_ns: int
    bound: Bound
    least_budget: int
    memory: str
    seed: int
    interrupted: bool
    auto: bool = False
    refuted: tuple[str, ...] = ()

    @property
    def instance(self) -> Instance:
        """The first instance, which names the comparison."""
        return self.instances[0]

    @property
    def variant(self) -> str:
        """What kind of instance it is: ``whole``, ``parts``, ``mask`` or ``recompute``."""
        return _variant(self.instance)

    def as_dict(self) -> dict[str, Any]:
        """What ``compare --json`` prints."""
        instance = self.instance
        bound = self.bound.as_dict()
        origin = instance.made_from
        rounds = sum(part.rounds for part in self.instances)
        shared = {"memory_model": self.memory, "seed": self.seed}
        missing = dict.fromkeys(f.name for f in fields(Figures))
        return {
            "instance": {
                "name": instance.name,
                "network": origin.network,
                "batch": origin.batch,
                "sub_batch": origin.sub_batch,
                "device": origin.device,
                "graph": origin.graph,
                "engines": instance.engines,
                "budget_bytes": instance.budget_bytes,
                "least_budget_bytes": self.least_budget,
                "resident_bytes": instance.resident_bytes,
                "rounds": rounds,
                "gpus": instance.gpus,
                "tasks": len(instance.tasks),
                "blocks": len(instance.blocks),
            },
            "ideal_ns": self.ideal_ns,
            **bound,
            "interrupted": self.interrupted,
            "refuted": list(self.refuted),
            **cluster_figures(self.instances),
            "results": [
                {
                    "method": row.method,
                    "status": row.status,
                    "stopped_by": row.stopped_by,
                    **(asdict(row.figures) if row.figures else missing),
                    **row.bound.as_dict(),
                    **shared,
                    "variant": row.variant,
                    "sub_batch": row.sub_batch,
                    "rounds": row.rounds,
                    "solve_seconds": row.solve_seconds,
                }
                for row in self.rows
            ],
        }

    def __str__(self) -> str:
        width = line_width()
        solved = [row for row in self.rows if row.figures is not None]
        parts = []
        if solved:
            columns = _columns(solved)
            table = format_table(
                tuple(columns),
                [*zip(*columns.values(), strict=True)],
                "ll".ljust(len(columns), "r"),
                width,
            )
            parts = [table, wrapped(_LEGEND, width)]
        for notes in filter(None, (self._failures(), self._notes())):
            lines = (wrapped(text, width, first=f"{name + ':':<13} ", indent=14) for name, text in notes)
            parts.append("\n".join(lines))
        return "\n\n".join(parts)

    def _failures(self) -> list[tuple[str, str]]:
        """Which methods have no schedule, and why; those of one reason together."""
        methods: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row.figures is None:
                methods.setdefault((row.status.words, row.stopped_by), []).append(row.method)
        return [(words, f"{', '.join(names)}: {reason}") for (words, reason), names in methods.items()]

    def _notes(self) -> list[tuple[str, str]]:
        instance, bound = self.instance, self.bound
        notes = [
            ("instance", _describe(self.instances)),
            (
                "budget",
                f"{instance.budget_bytes} bytes ({format_size(instance.budget_bytes)}), of which "
                f"{format_size(instance.resident_bytes)} are resident; "
                f"the least possible is {format_size(self.least_budget)}",
            ),
            ("ideal", f"{format_time(self.ideal_ns)} (fastest algorithms, no memory limit)"),
            (
                "lower bound",
                f"{format_time(bound.lower_bound_ns)} ({bound.bound_by}, "
                + ("in exact arithmetic)" if bound.certified else "the solver's word)")
                + ("" if bound.certified else f"; {format_time(bound.certified_ns)} in exact arithmetic")
                + (", the least over all sub-batches" if self.auto else ""),
            ),
            (
                "model",
                f"{_GRAPHS[instance.made_from.graph]}, {_COPIES[instance.engines]}, "
                f"{self.memory} memory, tensors {self.variant}",
            ),
            *(("planned", told) for told in self._plans()),
            *cluster_notes(self),
            ("limits", MODEL_LIMITS),
        ]
        warnings = {row.instances[0].made_from.notes for row in self.rows}
        told = sorted(filter(None, warnings))
        notes += [("warning", warning) for warning in (*told, *self.refuted)]
        if self.interrupted:
            notes.append(("interrupted", "methods that had not ended are missing, and bounds may be far off"))
        return notes

    def _plans(self) -> list[str]:
        """Which methods worked on other instances, whose bounds differ."""
        methods: dict[str, list[str]] = {}
        for row in self.rows:
            if row.planned:
                told = f"{format_time(row.bound.lower_bound_ns)} ({row.bound.bound_by})"
                methods.setdefault(f"{row.instances[0].name}, lower bound {told}", []).append(row.method)
        return [f"{', '.join(names)} on {which}" for which, names in methods.items()]


def default_methods(instances: Sequence[Instance], *, auto: bool = False) -> tuple[str, ...]:
    """All methods that a comparison includes by default; brute force for instances of a few tasks.

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
    refine: bool = True,
    on_better: OnBetter | None = None,
) -> Comparison:
    """Solve an iteration with every method, and set the answers beside the ideal and a lower bound.

    A method that fails leaves a row with status ``error``; Ctrl-C ends the comparison with the methods that
    have ended, and the best bound so far. Progress is logged, a line a method.

    Parameters
    ----------
    instances
        The iteration: one instance, or those that `instances_of` gives.
    methods
        Names that `list_methods` knows; by default `default_methods`.
    time_limit
        Seconds for each method on each instance. Where no schedule meets the bound of an instance then, the
        bound is refined for as long. None: until each method is done, and no bounds but those that are cheap
        and those that the methods prove.
    seed, workers
        Of random decisions, and threads of a solver.
    memory
        Memory model of the schedules.
    without
        Rules that the methods leave out.
    refine
        Whether to refine bounds when all methods have ended.
    on_better
        As `solve` takes it: told of better schedules and bounds of a round.

    Raises
    ------
    PebblerError
        For an unknown method, none at all, or a budget under the minimum.
    """
    rounds = (instances,) if isinstance(instances, Instance) else tuple(instances)
    names = default_methods(rounds) if methods is None else tuple(dict.fromkeys(methods))
    if not rounds or not names:
        raise PebblerError("there is nothing to compare; give at least one instance and one method")
    for name in names:
        find_method(name)
    for instance in rounds:
        require_budget(instance)
    run = _Run(Ledger(memory), time_limit, seed, workers, without, on_better)
    run.require_names(rounds)
    for instance in rounds:
        run.ledger.of(instance).claim(best_bound(instance, without, memory))
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
    """Compare methods that choose their own sub-batch; for those without a rule the best one is searched for.

    The bound is the least over all sub-batches. Parameters and errors as for `compare`, of a workload under a
    budget; a budget refers to the peak at the whole batch, or to the least at one image. The time limit is
    for a whole search, too; where none is given, a search ends after 60 s.
    """
    budget_bytes = auto_budget(workload, budget)
    whole = workload.instance(budget_bytes, check_budget=False)
    names = default_methods([whole], auto=True) if methods is None else tuple(dict.fromkeys(methods))
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


def _planning(info: MethodInfo, instances: Sequence[Instance]) -> Callable[[], tuple[Instance, ...]]:
    return lambda: planned(info, instances)


@dataclass(frozen=True, slots=True)
class _Task:
    """A method to run: `plan` makes the instances that it gets of what was asked, or what it searches."""

    method: str
    asked: tuple[Instance, ...]
    plan: Callable[[], tuple[Instance, ...] | Iterations]


@dataclass(slots=True)
class _Run:
    """Methods one after the other; the ledger has what they, and the bounds before them, say."""

    ledger: Ledger
    time_limit: float | None
    seed: int
    workers: int
    without: Collection[str] = ()
    on_better: OnBetter | None = None
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
        """Run a method; whatever fails, from its planning on, is its answer."""
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
        """Refuse two instances of one name: their files and figures could be taken for each other's."""
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
        """Run a method at the sub-batch that is best for it; at the whole batch where it has no schedule."""
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
            return task.asked, _failed((), error, method, iterations.workload.network)
        if choice.sub_batch is None:
            reason = choice.refusal or choice.stopped_by
            return instances, _Answer((), reason, Status.UNKNOWN, choice)
        return instances, _Answer(choice.results, None, Status.FEASIBLE, choice)

    def refine(self, instances: Iterable[Instance], seconds: float) -> None:
        """Refine the bound of each instance that no schedule meets, until it does or the time is up."""
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
        """Return the best bound on an iteration that stands."""
        return iteration_bound(
            [instance.rounds for instance in instances],
            [self.ledger.of(instance).bound() for instance in instances],
        )

    def comparison(
        self, instances: tuple[Instance, ...], bound: Callable[[], Bound], least: int, *, auto: bool
    ) -> Comparison:
        """Set the answers side by side, once no more come that could refute others."""
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
    """Results of a method, one an instance, up to what ended it, and why there is no schedule of all."""

    results: tuple[Result, ...]
    failure: str | None
    status: Status
    search: Choice | None = None

    @property
    def seconds(self) -> float:
        """Wall time of the method; of the search where there was one."""
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
    """Turn an error into an answer; it is logged in full where it is a defect."""
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
        figures = _figures(instances, results, schedules, ideal, bound)
        optimal = figures.iteration_ns == bound.lower_bound_ns
        status = Status.OPTIMAL if optimal else Status.FEASIBLE
    return Row(
        method, status, answer.stopped_by, answer.seconds, figures, instances, schedules, bound, planned
    )


def _figures(
    instances: Sequence[Instance],
    results: Sequence[Result],
    schedules: Sequence[Schedule],
    ideal: int,
    bound: Bound,
) -> Figures:
    rounds = [instance.rounds for instance in instances]

    def total(amounts: Iterable[int]) -> int:
        return sum(count * amount for count, amount in zip(rounds, amounts, strict=True))

    iteration = total(schedule.makespan_ns for schedule in schedules)
    area = total(
        schedule.makespan_ns * average_bytes(instance, schedule)
        for instance, schedule in zip(instances, schedules, strict=True)
    )
    return Figures(
        iteration_ns=iteration,
        stall_ns=total(map(stall_ns, schedules)),
        overhead=(iteration - ideal) / max(ideal, 1),
        optimality_gap=bound.gap(iteration),
        makespan_ns=schedules[0].makespan_ns,
        peak_bytes=max(schedule.peak_bytes for schedule in schedules),
        average_bytes=area // max(iteration, 1),
        offloaded_bytes=total(result.offloaded_bytes or 0 for result in results),
        prefetched_bytes=total(result.prefetched_bytes or 0 for result in results),
        pinned_bytes=max(result.pinned_bytes or 0 for result in results),
    )


_LEGEND = (
    "overhead: over the ideal. gap: over the lower bound; optimal: there is none. stalls: share of the time "
    "without compute. moved: copied out and back. solve time: of the method alone."
)

_GRAPHS = {
    "executable": "tasks as they can be executed (graph executable)",
    "paper": "tasks as papers count them (graph paper)",
    None: "tasks of the file",
}

_COPIES = {"duplex": "copies out and back at once (duplex)", "single": "one copy at a time (single)"}


def _columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Columns of the table of methods with a schedule, by their titles.

    There is a gap to what of the bound is certified where that is less, and rounds where there are several.
    """
    columns: dict[str, list[str]] = {}
    exactly = any(not row.bound.certified for row in rows)
    in_rounds = any(row.rounds > 1 for row in rows)
    for row in rows:
        figures = row.figures
        assert figures is not None
        proven = row.bound.certified_ns
        cells = {
            "method": row.method,
            "status": row.status.words,
            "iteration": format_time(figures.iteration_ns),
            "overhead": f"{figures.overhead:.2%}",
            "gap": f"{figures.optimality_gap:.2%}",
            "certified gap": f"{(figures.iteration_ns - proven) / max(proven, 1):.2%}" if exactly else None,
            "stalls": f"{figures.stall_ns / max(figures.iteration_ns, 1):.1%}",
            "peak memory": format_size(figures.peak_bytes),
            "moved": f"{(figures.offloaded_bytes + figures.prefetched_bytes) / 1e9:.2f} GB",
            "rounds": _rounds(row.instances) if in_rounds else None,
            "solve time": f"{row.solve_seconds:.2f} s",
        }
        for title, cell in cells.items():
            if cell is not None:
                columns.setdefault(title, []).append(cell)
    return columns


def _rounds(instances: Sequence[Instance]) -> str:
    """How many rounds, and of how many images where the instances say so."""
    sizes = [instance.made_from.sub_batch for instance in instances]
    if None in sizes:
        return " and ".join(str(instance.rounds) for instance in instances)
    words = (f"{instance.rounds} of {size}" for instance, size in zip(instances, sizes, strict=True))
    return f"{' and '.join(words)} images"


def _variant(instance: Instance) -> str:
    """Those of ``mask``, ``recompute`` and ``parts`` that went into an instance, or else ``whole``."""
    kinds = {transform.kind for transform in instance.applied}
    words = [kind for kind in ("mask", "recompute") if kind in kinds]
    return "+".join([*words, *(["parts"] if in_parts(instance) else [])]) or "whole"


def _describe(instances: Sequence[Instance]) -> str:
    """Network, device and rounds of an iteration in words."""
    origin = instances[0].made_from
    words = [origin.network or "", f"on {origin.device}" if origin.device else ""]
    asked = " ".join(filter(None, words))
    batch = f"a batch of {origin.batch}" if origin.batch else ""
    rounds = [
        f"{instance.rounds} round{'s' * (instance.rounds > 1)} of {instance.name} "
        f"({len(instance.tasks)} tasks, {len(instance.blocks)} blocks)"
        for instance in instances
    ]
    return ", ".join(filter(None, (asked, batch, " and ".join(rounds))))
