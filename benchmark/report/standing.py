"""The standing by a protocol: what each setting solved, how soon, and in how many times a fixed kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from ...instances.suites.suite import list_suites
from ...solver.bounds import Bound
from ..sweeps.best_known import best_known
from ..sweeps.config import protocol_problems
from ..sweeps.evaluation import Evaluation
from ..sweeps.jobs import Setting
from ..sweeps.protocol import Protocol
from ..sweeps.results import Run
from . import exhibit_plots as plots
from .exhibits import SIZE, Cell, Exhibit, Table, leading

_SHIFT = 1.0
"""Seconds, or times of the kernel, that are added before a geometric mean and taken off after it."""


def known_bounds(runs: Iterable[Run]) -> dict[tuple[str, str], Bound]:
    """Return the bounds that are shipped for the suites of some runs, by instance and memory model."""
    suites = dict.fromkeys(run.about.problem.partition("/")[0] for run in runs)
    return {
        (record.instance_sha256, record.memory_model): record.bound
        for suite in suites
        if suite in list_suites()
        for record in best_known(suite).records
    }


def without_run(evaluation: Evaluation, title: str) -> int:
    """Return on how many problems of the shipped protocol with a title no setting has run."""
    return len(protocol_problems(title) - {about.problem for about in evaluation.problems.values()})


def standing(evaluation: Evaluation, protocol: Protocol, unrun: int = 0, *, checked: bool = False) -> Exhibit:
    """Return how many instances each setting solved by the rules of a protocol, and its mean time.

    Parameters
    ----------
    evaluation
        The runs.
    protocol
        The rules.
    unrun
        Instances that no setting has run on; they count as not solved.
    checked
        Whether runs have been held against their files, and have only bounds that are proven there.
    """
    rows = [_row(evaluation, protocol, setting, name, unrun) for setting, name in evaluation.settings.items()]
    times = {
        name: sorted(filter(math.isfinite, _solved_after(evaluation, protocol, setting).values()))
        for setting, name in evaluation.settings.items()
    }
    counted = ("setting", "instances", "not run", "with a schedule", "solved", "proven", "late or failed")
    source, own = ("a run has", ", which may be its word")
    if checked:
        source, own = ("the files of the runs prove", ", as far as these files prove it")
    header = (*counted, "mean time (s)", "mean time (kernels)")
    shown = [
        (*map(str, row[:7]), *("" if mean is None else f"{mean:.2f}" for mean in row[7:])) for row in rows
    ]
    return Exhibit(
        name="standing",
        title="Standing by the protocol",
        caption=f"Solved: a schedule within {protocol.solved_gap:.2%} of the best bound that {source} or "
        f"that is shipped, by a run that ended within its time limit and {protocol.overtime}. Proven: within "
        f"that of the run's own bound, too{own}. Of several seeds the median counts. "
        f"Means over all instances are geometric, shifted by {_SHIFT:g}; what is not solved has its time "
        f"limit. {_told(unrun)}{kernels(evaluation.runs)} Solve times are measured. In the picture, the "
        "instances solved.",
        table=Table(header, tuple(shown)),
        data=Table(header, tuple(rows)),
        size=SIZE,
        draw=lambda figure: plots.draw_cactus(figure, times, leading(evaluation), "instances solved"),
    )


def _told(unrun: int) -> str:
    return f"{unrun} instances have no run at all, and other exhibits leave them out. " if unrun else ""


def _row(
    evaluation: Evaluation, protocol: Protocol, setting: Setting, name: str, unrun: int
) -> tuple[Cell, ...]:
    kernel = _kernel(evaluation.of(setting))
    after = _solved_after(evaluation, protocol, setting)
    limit = math.inf if setting.time_limit is None else setting.time_limit
    seconds = [*(min(one, limit) for one in after.values()), *[limit] * unrun]
    proven = evaluation.medians(
        setting, _truth(lambda run: protocol.solves(setting, run.found, run.found.gap))
    )
    failed = evaluation.medians(setting, _truth(lambda run: _failed(protocol, run)))
    missing = evaluation.problems.keys() - {run.about.problem_sha256 for run in evaluation.of(setting)}
    return (
        name,
        len(evaluation.problems) + unrun,
        len(missing) + unrun,
        _finite(evaluation.times(setting).values()),
        _finite(after.values()),
        _finite(proven.values()),
        _finite(failed.values()),
        _mean(seconds),
        None if kernel is None else _mean([one / kernel for one in seconds]),
    )


def _solved_after(evaluation: Evaluation, protocol: Protocol, setting: Setting) -> dict[str, float]:
    """Return the solve time by problem in seconds, as the median over seeds; infinite if it is not solved."""

    def after(run: Run) -> float:
        solved = protocol.solves(setting, run.found, evaluation.gap(run))
        return math.inf if run.found.solve_seconds is None or not solved else run.found.solve_seconds

    return evaluation.medians(setting, after)


def _truth(holds: Callable[[Run], bool]) -> Callable[[Run], float]:
    """Return 0 for runs for which something holds, and infinity for others."""
    return lambda run: 0.0 if holds(run) else math.inf


def _failed(protocol: Protocol, run: Run) -> bool:
    return run.found.status == "error" or not protocol.in_time(run.setting, run.found)


def _finite(values: Iterable[float]) -> int:
    return sum(map(math.isfinite, values))


def _mean(values: Sequence[float]) -> float | None:
    """Return the shifted geometric mean; None if a value is infinite."""
    if not all(map(math.isfinite, values)):
        return None
    return math.exp(sum(math.log(one + _SHIFT) for one in values) / len(values)) - _SHIFT


def _kernel(runs: Iterable[Run]) -> float | None:
    """Return the median time of the kernel over some runs in seconds; None if one has not timed it."""
    seconds = [run.kernel_seconds for run in runs]
    known = [one for one in seconds if one is not None]
    return median(known) if known and len(known) == len(seconds) else None


def kernels(runs: Iterable[Run]) -> str:
    """Return a sentence about the time of the kernel on each machine."""
    machines: dict[str, list[float]] = {}
    for run in runs:
        if run.kernel_seconds is not None:
            machines.setdefault(run.origin.machine, []).append(run.kernel_seconds)
    told = [
        f"{median(some):.3f} s on {machine} ({min(some):.3f} to {max(some):.3f} s)"
        for machine, some in machines.items()
    ]
    return f"A kernel takes {', '.join(told)}." if told else "The kernel was not timed."
