"""Comparison of runs: names of settings, the best bound of each problem, and figures by problem."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from msgspec import UNSET
from msgspec.structs import replace

from ...instances.errors import DefectError, PebblerError
from ...instances.units import format_size
from ...solver.bounds import Bound
from .jobs import GRACE, Setting
from .problems import About, own_sha256
from .results import Run

_log = logging.getLogger(__name__)


class SweepContradictionError(DefectError, PebblerError):
    """A certified bound of one run is above the schedule of another."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Runs of several settings on several problems.

    Attributes
    ----------
    runs
        The last run of each job.
    settings
        Names of the settings in the order in which they first ran: the method, and the options that differ.
    problems
        The problems by checksum, in the order in which they were first run.
    bounds
        The best lower bound that runs have, or that was known before, by the solved iteration and
        memory model.
    whole
        Whether every setting is compared on every problem: one that it was not run on is one without a
        schedule.
    """

    runs: tuple[Run, ...]
    settings: dict[Setting, str]
    problems: dict[str, About]
    bounds: dict[tuple[str, str], Bound]
    whole: bool = False

    def bound(self, run: Run) -> Bound | None:
        """Return the best known bound for the instances of a run; None if no run has a bound."""
        return self.bounds.get(_question(run))

    def gap(self, run: Run, iteration_ns: int | None = None) -> float:
        """Return the gap of a run, or of an iteration time that it reached; infinite without a schedule."""
        bound = self.bound(run)
        reached = run.found.iteration_ns if iteration_ns is None else iteration_ns
        return math.inf if reached is None or bound is None else bound.gap(reached)

    def of(self, setting: Setting) -> list[Run]:
        """Return the runs of a setting."""
        return [run for run in self.runs if run.setting == setting]

    def times(self, setting: Setting) -> dict[str, float]:
        """Return the iteration time by problem, as the median over seeds; infinite without a schedule."""
        return self.medians(
            setting, lambda run: math.inf if run.found.iteration_ns is None else run.found.iteration_ns
        )

    def gaps(self, setting: Setting) -> dict[str, float]:
        """Return the gap from the best bound by problem (median over seeds); infinite without a schedule."""
        return self.medians(setting, self.gap)

    def medians(self, setting: Setting, value: Callable[[Run], float]) -> dict[str, float]:
        """Return a value of a setting's runs by problem: the median over seeds, which is one of them."""
        found: dict[str, list[float]] = defaultdict(list)
        for run in self.of(setting):
            found[run.about.problem_sha256].append(value(run))
        medians = {key: median_low(some) for key, some in found.items()}
        return {key: medians.get(key, math.inf) for key in self.problems} if self.whole else medians

    def common(self) -> list[str]:
        """Return the problems on which all settings are compared: those that every one was run on."""
        if self.whole:
            return list(self.problems)
        ran = [{run.about.problem_sha256 for run in self.of(setting)} for setting in self.settings]
        return [problem for problem in self.problems if all(problem in some for some in ran)]


def evaluate(
    runs: Sequence[Run], known: Mapping[tuple[str, str], Bound] | None = None, *, whole: bool = False
) -> Evaluation:
    """Compare runs; those in divisible memory, which is a relaxation, are no solutions and are left out.

    A run may claim a bound, or that there is no schedule, on the word of a solver or method. If another run
    has a shorter schedule, the claim is rejected: a warning names the method, and the run becomes one with an
    error.

    Parameters
    ----------
    runs
        The runs; of several of one job, the last counts.
    known
        Bounds from elsewhere, by the checksum of an instance and the memory model.
    whole
        As in `Evaluation`.

    Raises
    ------
    PebblerError
        When there are no runs.
    SweepContradictionError
        When an iteration is shorter than a certified bound, so that one of the two is wrong.
    """
    last = {
        (run.about.problem_sha256, run.setting, run.seed): run
        for run in runs
        if run.setting.memory_model != "divisible"
    }
    if not last:
        raise PebblerError("there are no runs to report; make some with pebbler bench")
    kept, bounds = _settled(tuple(last.values()), known or {})
    return Evaluation(
        kept,
        name_settings(dict.fromkeys(run.setting for run in kept)),
        {run.about.problem_sha256: run.about for run in kept},
        bounds,
        whole,
    )


def _settled(
    runs: tuple[Run, ...], known: Mapping[tuple[str, str], Bound]
) -> tuple[tuple[Run, ...], dict[tuple[str, str], Bound]]:
    """Reject claims that another run's schedule refutes; return the runs and the best bounds."""
    shortest: dict[tuple[str, str], Run] = {}
    bounds: dict[tuple[str, str], Bound] = {}
    for run in runs:
        reached = run.found.iteration_ns
        best = shortest.setdefault(_question(run), run).found.iteration_ns
        if reached is not None and (best is None or reached < best):
            shortest[_question(run)] = run
    for run in sorted(runs, key=_is_word):  # what is certified first: words may fall back on it
        question, bound, reached = _question(run), _bound(run), shortest[_question(run)].found.iteration_ns
        if bound is None:
            continue
        if reached is None or bound.lower_bound_ns <= reached:
            bounds[question] = bounds[question].raised(bound) if question in bounds else bound
        elif bound.certified:
            raise SweepContradictionError(
                f"{run.about.problem}: {reached} ns by {shortest[question].setting.method} contradicts the "
                f"{bound.bound_by} bound of {bound.lower_bound_ns} ns, which is in exact arithmetic; one of "
                "them is wrong, so that nothing is shown"
            )
    for question in known.keys() & shortest.keys():
        bound, other = known[question], shortest[question]
        reached = other.found.iteration_ns
        if reached is None or bound.lower_bound_ns <= reached:
            bounds[question] = bounds[question].raised(bound) if question in bounds else bound
            continue
        told = f"{other.about.problem}: {reached} ns by {other.setting.method} is under the known bound"
        if bound.certified:
            raise SweepContradictionError(
                f"{told} of {bound.lower_bound_ns} ns, which is in exact arithmetic; one of them is wrong, "
                "so that nothing is shown"
            )
        _log.warning("%s of %d ns by %s, which is left out", told, bound.lower_bound_ns, bound.bound_by)
    return tuple(_refuted(run, shortest[_question(run)], bounds.get(_question(run))) for run in runs), bounds


def _refuted(run: Run, other: Run, bound: Bound | None) -> Run:
    """Return a run after comparison with the shortest schedule: with an error if its claim is rejected."""
    reached, claimed = other.found.iteration_ns, _bound(run)
    if reached is None:
        return run
    reason = f"a schedule by {other.setting.method} passed the checker, and "
    if claimed is not None and claimed.lower_bound_ns > reached:
        reason += (
            f"its iteration of {reached} ns is under the {claimed.bound_by} bound {claimed.lower_bound_ns}"
        )
    elif run.found.status == "infeasible":
        reason += "there was said to be none"
    else:
        return run
    _log.warning(
        "%s: method %s was wrong, and what is certified counts alone: %s",
        run.about.problem,
        run.setting.method,
        reason,
    )
    found = replace(
        run.found,
        status="error",
        stopped_by=reason,
        lower_bound_ns=None if bound is None else bound.lower_bound_ns,
        bound_by=None if bound is None else bound.bound_by,
        certified=None if bound is None else bound.certified,
    )
    return replace(run, found=found)


def _bound(run: Run) -> Bound | None:
    found = run.found
    if found.lower_bound_ns is None:
        return None
    return Bound(found.lower_bound_ns, found.bound_by or "none", bool(found.certified))


def _is_word(run: Run) -> bool:
    return not run.found.certified


def _question(run: Run) -> tuple[str, str]:
    """Return the question of a run: the iteration that it solved, in its memory model."""
    return solved(run), run.setting.memory_model


def solved(run: Run) -> str:
    """Return a checksum of what a run solved: its problem, or the instances of its method's plan.

    If the method chooses the sub-batch, its name is part of the checksum, because the bound over all
    sub-batches is for the instances that the method makes.
    """
    about, sums = run.about, run.found.instances
    if about.rounds_of == "auto":
        return f"{about.problem_sha256} {run.setting.method}"
    return own_sha256(sums) if sums else about.problem_sha256


def name_settings(settings: Iterable[Setting]) -> dict[Setting, str]:
    """Name settings by their methods, and by the options that they do not all share."""
    told = {setting: _words(setting) for setting in settings}
    shared = {key for key in next(iter(told.values())) if len({words[key] for words in told.values()}) == 1}
    own = {
        setting: [word for key, word in words.items() if word and key not in shared]
        for setting, words in told.items()
    }
    return {setting: ", ".join([setting.method, *words]) for setting, words in own.items()}


def _words(setting: Setting) -> dict[str, str]:
    def limit(seconds: float | None) -> str:
        return "no limit" if seconds is None else f"{seconds:g} s"

    size = setting.memory_limit_bytes
    usual = None if setting.time_limit is None else setting.time_limit + GRACE
    return {
        "memory_model": setting.memory_model,
        "time_limit": limit(setting.time_limit),
        "wall_limit": "" if setting.wall_limit == usual else f"wall {limit(setting.wall_limit)}",
        "memory_limit_bytes": "any memory" if size is None else f"in {format_size(size)}",
        "workers": f"{setting.workers} workers",
        "without": f"without {' '.join(setting.without)}" if setting.without else "",
        "solver": "" if setting.solver is UNSET else setting.solver,
    }
