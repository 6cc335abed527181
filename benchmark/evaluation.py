"""Runs set side by side: names of settings, the best bound of each problem, figures by problem."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low

from ..instances.errors import PebblerError
from ..instances.units import format_size
from ..solver.bounds import Bound
from .jobs import GRACE, Setting
from .problems import About, own_sha256
from .results import Run


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Runs of several settings on several problems.

    Attributes
    ----------
    runs
        Of each job the last run.
    settings
        Names of the settings, in the order in which they first ran: the method, and what not all have.
    problems
        By checksum, in the order in which they were first run.
    bounds
        The best lower bound on an iteration that runs have proven, by what was solved and memory model.
    """

    runs: tuple[Run, ...]
    settings: dict[Setting, str]
    problems: dict[str, About]
    bounds: dict[tuple[str, str], Bound]

    def bound(self, run: Run) -> Bound | None:
        """Return the best bound known for what a run solved; None where no run could tell one."""
        return self.bounds.get((solved(run), run.setting.memory_model))

    def gap(self, run: Run, iteration_ns: int | None = None) -> float:
        """Gap of a run, or of an iteration time that it had reached; infinite without a schedule."""
        bound = self.bound(run)
        reached = run.found.iteration_ns if iteration_ns is None else iteration_ns
        return math.inf if reached is None or bound is None else bound.gap(reached)

    def of(self, setting: Setting) -> list[Run]:
        """Return the runs of a setting."""
        return [run for run in self.runs if run.setting == setting]

    def times(self, setting: Setting) -> dict[str, float]:
        """Iteration time by problem, the median over seeds; infinite without a schedule."""
        return _medians(
            (run.about.problem_sha256, math.inf if run.found.iteration_ns is None else run.found.iteration_ns)
            for run in self.of(setting)
        )

    def gaps(self, setting: Setting) -> dict[str, float]:
        """Gap from the best bound by problem, the median over seeds; infinite without a schedule."""
        return _medians((run.about.problem_sha256, self.gap(run)) for run in self.of(setting))

    def common(self) -> list[str]:
        """Return the problems that every setting was run on."""
        ran = [{run.about.problem_sha256 for run in self.of(setting)} for setting in self.settings]
        return [problem for problem in self.problems if all(problem in some for some in ran)]


def evaluate(runs: Sequence[Run]) -> Evaluation:
    """Set runs side by side; those in divisible memory, a relaxation, are no solutions and are left out.

    Raises
    ------
    PebblerError
        When there are none, or an iteration is shorter than a proven bound: one of the two is wrong.
    """
    last = {
        (run.about.problem_sha256, run.setting, run.seed): run
        for run in runs
        if run.setting.memory_model != "divisible"
    }
    if not last:
        raise PebblerError("there are no runs to report; make some with pebbler bench")
    kept = tuple(last.values())
    bounds: dict[tuple[str, str], Bound] = {}
    for run in kept:
        found, key = run.found, (solved(run), run.setting.memory_model)
        if found.lower_bound_ns is None:
            continue
        if key not in bounds or found.lower_bound_ns > bounds[key].lower_bound_ns:
            bounds[key] = Bound(found.lower_bound_ns, found.bound_by or "none", bool(found.certified))
    evaluation = Evaluation(
        kept,
        _names(dict.fromkeys(run.setting for run in kept)),
        {run.about.problem_sha256: run.about for run in kept},
        bounds,
    )
    for run in kept:
        if evaluation.gap(run) < 0:
            bound = evaluation.bound(run)
            assert bound is not None
            raise PebblerError(
                f"{run.about.problem}: {run.found.iteration_ns} ns by {run.setting.method} contradicts the "
                f"{bound.bound_by} bound of {bound.lower_bound_ns} ns; one of them is wrong"
            )
    return evaluation


def solved(run: Run) -> str:
    """Return a checksum of what a run solved: of its problem, unless the method planned on other instances.

    Where the method chooses the sub-batch, the word of the method comes with it, since the bound over all
    sub-batches is for the instances that it makes of them.
    """
    about, sums = run.about, run.found.instances
    if about.rounds_of == "auto":
        return f"{about.problem_sha256} {run.setting.method}"
    return own_sha256(sums) if sums else about.problem_sha256


def _medians(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for key, value in values:
        found[key].append(value)
    return {key: median_low(some) for key, some in found.items()}


def _names(settings: Iterable[Setting]) -> dict[Setting, str]:
    """Name settings by their methods, and by what they do not all share."""
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
    }
