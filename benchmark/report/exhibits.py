"""The tables and pictures of a report as data: the content, the words and the drawing of each."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import combinations
from statistics import median, median_high, median_low

from matplotlib.figure import Figure

from ...instances.units import format_size, format_time
from ..output.series import MOST
from ..sweeps.evaluation import Evaluation, solved
from ..sweeps.jobs import Setting
from ..sweeps.problems import About
from ..sweeps.results import Run
from ..sweeps.significance import holm, signed_rank
from . import exhibit_plots as plots

Cell = str | int | float | None
"""Cell of a table."""

_RATIOS = (1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 5.0)
"""Ratios to the best for which a performance profile has rows."""

_SECONDS = (0.01, 0.1, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Times in seconds for which curves over time have rows."""

_CLOSE = 0.01
"""Greatest gap from the best known bound with which a problem counts as solved."""

_POINTS = 60
"""Number of points of a curve over time."""

SIZE = (8.0, 5.2)
"""Width and height in inches of a picture of lines."""

_TALLEST = 60.0
"""Greatest width and height of a picture in inches; larger pictures would be useless."""

_MEASURED = "Solve times are measured."
"""Sentence of a caption with solve times."""


@dataclass(frozen=True, slots=True)
class Table:
    """A header and rows with numbers that are not rounded; `shown` writes them for reading."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def csv(self) -> str:
        """Return the table as CSV: every number in full, infinity as ``inf``, missing values as nothing."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows((self.header, *self.rows))
        return text.getvalue()


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A picture with its numbers.

    Attributes
    ----------
    name
        Name of its files.
    title, caption
        What it shows; the caption says how to read it, and which part is measured.
    table, data
        The numbers as texts for reading, and the numbers for drawing.
    size
        Width and height of the picture in inches.
    draw
        Function that draws it.
    """

    name: str
    title: str
    caption: str
    table: Table
    data: Table
    size: tuple[float, float]
    draw: Callable[[Figure], None]


def exhibits(evaluation: Evaluation) -> Iterator[Exhibit]:
    """Yield the exhibits for which there are enough runs."""
    yield gap_table(evaluation)
    yield heat_map(evaluation)
    if evaluation.common() and len(evaluation.settings) > 1:
        yield performance_profile(evaluation)
        yield win_loss(evaluation)
    yield cactus(evaluation)
    if any(len(run.found.trace) > 1 for run in evaluation.runs):
        yield anytime(evaluation)
    yield from time_against_budget(evaluation)


def gap_table(evaluation: Evaluation) -> Exhibit:
    """Return how far from the best bound each setting is, over all problems."""
    rows: list[tuple[Cell, ...]] = []
    shown: list[tuple[Cell, ...]] = []
    for setting, name in evaluation.settings.items():
        runs, gaps = evaluation.of(setting), sorted(evaluation.gaps(setting).values())
        finite = [gap for gap in gaps if math.isfinite(gap)]
        seconds = [run.found.solve_seconds for run in runs if run.found.solve_seconds is not None]
        optimal = sum(gap == 0 for gap in gaps)
        figures = (median(gaps), _rank(gaps, 0.9), gaps[-1])
        typical = median(seconds) if seconds else None
        rows.append((name, len(gaps), len(finite), optimal, *figures, typical))
        shown.append(
            (
                name,
                str(len(gaps)),
                str(len(finite)),
                str(optimal),
                *map(percent, figures),
                "" if typical is None else f"{typical:.2f} s",
            )
        )
    counted = ("setting", "problems", "with a schedule", "optimal")
    header = (*counted, "median gap", "90 % of problems", "worst", "median solve time")
    return Exhibit(
        name="gaps",
        title="Gaps from the best bound",
        caption="Gap: (iteration - bound) / bound, with the best bound that any run has of the problem; "
        f"of several seeds the median. {_MEASURED} Boxes hold the middle half of the problems "
        "with a schedule, lines the median, whiskers all; at the right, the share of problems with one.",
        table=Table(header, tuple(shown)),
        data=Table(header, tuple(rows)),
        size=(9.0, 1.8 + 0.42 * len(rows)),
        draw=lambda figure: plots.draw_gaps(
            figure, {name: list(evaluation.gaps(setting).values()) for setting, name in _named(evaluation)}
        ),
    )


def heat_map(evaluation: Evaluation) -> Exhibit:
    """Return the gap of every setting on every problem."""
    gaps = [evaluation.gaps(setting) for setting in evaluation.settings]
    names = {key: about.problem for key, about in evaluation.problems.items()}
    values = [[column.get(key) for column in gaps] for key in names]
    header = ("problem", *evaluation.settings.values())
    return Exhibit(
        name="heat-map",
        title="Gap from the best bound, by problem and setting",
        caption="What a cell says: (iteration - bound) / bound, with the best bound known of the problem; "
        "darker is worse; 0 is exact; x: no schedule; white: not run.",
        table=_percentages(header, zip(names.values(), values, strict=True)),
        data=Table(header, tuple((name, *row) for name, row in zip(names.values(), values, strict=True))),
        size=(min(4.5 + 0.9 * len(gaps), _TALLEST), min(2.6 + 0.22 * len(names), _TALLEST)),
        draw=lambda figure: plots.draw_heat_map(
            figure, list(names.values()), list(evaluation.settings.values()), values
        ),
    )


def performance_profile(evaluation: Evaluation) -> Exhibit:
    """Return the share of problems for which a setting is within a factor of the best.

    Source: Dolan and More, Benchmarking optimization software with performance profiles, 2002.
    """
    common = evaluation.common()
    times = {name: evaluation.times(setting) for setting, name in _named(evaluation)}
    best = {key: min(column[key] for column in times.values()) for key in common}
    solved = [key for key in common if math.isfinite(best[key])]
    ratios = {
        name: sorted(column[key] / max(best[key], 1) for key in solved if math.isfinite(column[key]))
        for name, column in times.items()
    }

    def share(name: str, ratio: float) -> float:
        return sum(one <= ratio for one in ratios[name]) / max(len(common), 1)

    data = tuple((name, ratio, share(name, ratio)) for name in ratios for ratio in sorted(set(ratios[name])))
    return Exhibit(
        name="performance-profile",
        title="Performance profile of iteration times",
        caption="Share of problems on which the iteration of a setting is at most so many times as long as "
        f"the shortest of all settings (Dolan and Moré, 2002), over {_on(evaluation)}. "
        f"{_grouped(evaluation)}".rstrip(),
        table=Table(
            ("at most", *ratios),
            tuple((f"{ratio:g} x", *(f"{share(name, ratio):.0%}" for name in ratios)) for ratio in _RATIOS),
        ),
        data=Table(("setting", "ratio", "share"), data),
        size=SIZE,
        draw=lambda figure: plots.draw_profile(figure, ratios, len(common), leading(evaluation)),
    )


def cactus(evaluation: Evaluation) -> Exhibit:
    """Return how many runs are close to the bound after each time."""
    seconds = {
        name: sorted(
            run.found.solve_seconds
            for run in evaluation.of(setting)
            if run.found.solve_seconds is not None and evaluation.gap(run) <= _CLOSE
        )
        for setting, name in _named(evaluation)
    }
    longest = max((some[-1] for some in seconds.values() if some), default=0.0)
    marks = [mark for mark in _SECONDS if mark < 3 * longest] or [_SECONDS[0]]
    return Exhibit(
        name="cactus",
        title=f"Runs within {_CLOSE:.0%} of the best bound, over time",
        caption=f"How many runs end with a gap of at most {_CLOSE:.0%} from the best bound known within a "
        f"solve time. {_MEASURED} {_grouped(evaluation)}".rstrip(),
        table=Table(
            ("solve time", *seconds),
            tuple(
                (f"{mark:g} s", *(str(sum(one <= mark for one in some)) for some in seconds.values()))
                for mark in marks
            ),
        ),
        data=Table(
            ("setting", "seconds", "runs"),
            tuple((name, one, i) for name, some in seconds.items() for i, one in enumerate(some, start=1)),
        ),
        size=SIZE,
        draw=lambda figure: plots.draw_cactus(figure, seconds, leading(evaluation)),
    )


def anytime(evaluation: Evaluation) -> Exhibit:
    """Return the median gap of the runs over time."""
    ends = [run.found.trace[-1][0] for run in evaluation.runs if run.found.trace]
    starts = [run.found.trace[0][0] for run in evaluation.runs if run.found.trace]
    first, last = max(min(starts), 1e-3), 1.2 * max(ends)
    grid = [first * (last / first) ** (i / (_POINTS - 1)) for i in range(_POINTS)]
    curves = {
        name: [_median_gap(evaluation, setting, seconds) for seconds in grid]
        for setting, name in _named(evaluation)
    }
    marks = [mark for mark in _SECONDS if first <= mark <= last]
    return Exhibit(
        name="anytime",
        title="Gaps over time",
        caption="Median over all runs of the gap that the best schedule so far has from the best bound known "
        "at the end; a line begins when half of the runs have a schedule. Times are measured, "
        f"from the cheap bounds before a method to the check after it. {_grouped(evaluation)}".rstrip(),
        table=_percentages(
            ("after", *curves),
            (
                (f"{mark:g} s", [_median_gap(evaluation, setting, mark) for setting in evaluation.settings])
                for mark in marks
            ),
        ),
        data=Table(
            ("setting", "seconds", "median gap"),
            tuple(
                (name, seconds, gap)
                for name, gaps in curves.items()
                for seconds, gap in zip(grid, gaps, strict=True)
            ),
        ),
        size=SIZE,
        draw=lambda figure: plots.draw_anytime(figure, grid, curves, leading(evaluation)),
    )


def time_against_budget(evaluation: Evaluation) -> Iterator[Exhibit]:
    """Return the iteration time under each budget, for every workload with several budgets.

    The picture is that of moDNN (TPDS 2019, Fig. 12).
    """
    groups: dict[str, list[Run]] = {}
    for run in evaluation.runs:
        groups.setdefault(run.about.family_sha256, []).append(run)
    wanted = [runs for runs in groups.values() if len({run.about.budget_bytes for run in runs}) > 1]
    words = Counter(_workload(runs[0].about) for runs in wanted)
    for i, runs in enumerate(wanted, start=1):
        about = runs[0].about
        what = _workload(about)
        told = what if words[what] == 1 else f"{what}, as {about.problem}"
        yield _against_budget(evaluation, f"time-against-budget-{i}", told, runs)


def _workload(about: About) -> str:
    """Return a problem without its budget, if it has a description."""
    if about.network is None:
        return about.problem
    what = f"{about.network}, batch {about.batch}, {about.device}"
    return what if about.rounds_of == str(about.batch) else f"{what}, sub-batch {about.rounds_of}"


def _against_budget(evaluation: Evaluation, name: str, what: str, runs: Sequence[Run]) -> Exhibit:
    budgets = sorted({run.about.budget_bytes for run in runs})
    bounds: dict[str, dict[int, int]] = {}
    curves: dict[str, dict[int, int]] = {}
    for setting, label in evaluation.settings.items():
        mine = [run for run in runs if run.setting == setting]
        for run in mine:
            bound = evaluation.bound(run)
            if bound is not None and solved(run) == run.about.problem_sha256:
                bounds.setdefault(setting.memory_model, {})[run.about.budget_bytes] = bound.lower_bound_ns
        if mine:
            times = evaluation.times(setting)
            curves[label] = {
                run.about.budget_bytes: int(times[run.about.problem_sha256])
                for run in mine
                if math.isfinite(times[run.about.problem_sha256])
            }
    for memory, found in bounds.items():
        curves["lower bound" if len(bounds) == 1 else f"lower bound, {memory}"] = found
    ideals = [run.found.ideal_ns for run in runs if run.found.ideal_ns is not None]
    ideal = max(ideals, default=None)
    about = runs[0].about
    values = [[found.get(budget) for found in curves.values()] for budget in budgets]
    return Exhibit(
        name=name,
        title=f"Time against budget: {what}",
        caption=f"Iteration time of {what}, under budgets for everything (moDNN, TPDS 2019, Fig. 12); graph "
        f"{about.graph or 'of the file'}, {about.engines} copies; a gap in a line: no schedule; the axis of "
        f"times does not begin at 0. {_grouped(evaluation)}".rstrip(),
        table=Table(
            ("budget", *curves),
            tuple(
                (format_size(budget), *("" if ns is None else format_time(ns) for ns in row))
                for budget, row in zip(budgets, values, strict=True)
            ),
        ),
        data=Table(
            ("budget_bytes", *(f"{label} (ns)" for label in curves)),
            tuple((budget, *row) for budget, row in zip(budgets, values, strict=True)),
        ),
        size=SIZE,
        draw=lambda figure: plots.draw_against_budget(figure, budgets, curves, ideal, leading(evaluation)),
    )


def win_loss(evaluation: Evaluation) -> Exhibit:
    """Compare each setting with each other one by Wilcoxon's signed-rank test, with Holm's correction."""
    common = evaluation.common()
    pairs = list(combinations(evaluation.settings, 2))
    counted = [_compared(evaluation, a, b, common) for a, b in pairs]
    corrected = holm([p for *_, p in counted])
    rows = tuple(
        (evaluation.settings[a], evaluation.settings[b], *figures, fair)
        for (a, b), figures, fair in zip(pairs, counted, corrected, strict=True)
    )
    header = ("first", "second", "first is shorter", "the same", "second is shorter", "p", "p (Holm)")
    names = list(evaluation.settings.values())
    return Exhibit(
        name="win-loss",
        title=f"On how many of {len(common)} problems one setting is faster than another",
        caption=f"On how many of {_on(evaluation)} one setting has the shorter "
        "iteration; no schedule loses to any, and ties with none. p: two-sided Wilcoxon signed-rank test on "
        "the logarithm of the ratio, by problem, as it is and corrected for all pairs (Holm, 1979). In the "
        "picture, wins of the row over the column, in bold where the corrected p is under 5 %.",
        table=Table(
            header,
            tuple((*map(str, row[:5]), f"{row[5]:.2g}", f"{row[6]:.2g}") for row in rows),
        ),
        data=Table(header, rows),
        size=(min(2.6 + 0.95 * len(names), _TALLEST), min(2.6 + 0.5 * len(names), _TALLEST)),
        draw=lambda figure: plots.draw_win_loss(figure, names, rows),
    )


def percent(value: float | None) -> str:
    """Return a gap or a share in percent; without a schedule, the gap is infinite."""
    if value is None:
        return ""
    return f"{value:.2%}" if math.isfinite(value) else "no schedule"


def leading(evaluation: Evaluation) -> list[str]:
    """Return the names of the settings whose lines have colours: at most six, with the least median gaps."""
    ranked = sorted(
        evaluation.settings, key=lambda setting: median_low(list(evaluation.gaps(setting).values()))
    )
    return [name for setting, name in _named(evaluation) if setting in ranked[:MOST]]


def time_limits(evaluation: Evaluation) -> str:
    """Return the time limits of the runs as a sentence."""
    limits = {setting.time_limit for setting in evaluation.settings}
    told = [f"{limit:g} s" for limit in sorted(limit for limit in limits if limit is not None)]
    if None in limits:
        told.append("none")
    return f"Time limit{'s' if len(told) > 1 else ''} of a run: {', '.join(told)}."


def _grouped(evaluation: Evaluation) -> str:
    """Return a sentence about the lines without colours, if there are any."""
    others = len(evaluation.settings) - MOST
    if others <= 0:
        return ""
    return f"In colour: the {MOST} settings with the least median gaps; in grey: the other {others}."


def _on(evaluation: Evaluation) -> str:
    """Return words for the problems on which settings are compared."""
    count = len(evaluation.common())
    return f"all {count} problems" if evaluation.whole else f"the {count} problems that all settings ran on"


def _named(evaluation: Evaluation) -> list[tuple[Setting, str]]:
    return list(evaluation.settings.items())


def _percentages(header: tuple[str, ...], rows: Iterable[tuple[str, Sequence[float | None]]]) -> Table:
    return Table(header, tuple((name, *map(percent, values)) for name, values in rows))


def _rank(ordered: Sequence[float], share: float) -> float:
    """Return the least value that a given share of the values does not exceed."""
    return ordered[math.ceil(share * len(ordered)) - 1]


def _median_gap(evaluation: Evaluation, setting: Setting, seconds: float) -> float:
    """Return the median gap of a setting's runs, by the best schedule that each had after some seconds."""
    gaps = []
    for run in evaluation.of(setting):
        known = [makespan for at, makespan, _ in run.found.trace if at <= seconds and makespan is not None]
        gaps.append(evaluation.gap(run, min(known)) if known else math.inf)
    return median_high(gaps)


def _compared(
    evaluation: Evaluation, first: Setting, second: Setting, problems: Sequence[str]
) -> tuple[int, int, int, float]:
    """Return how often the first setting is shorter, the same and longer, and p."""
    ours, theirs = evaluation.times(first), evaluation.times(second)
    won = sum(ours[key] < theirs[key] for key in problems)
    lost = sum(ours[key] > theirs[key] for key in problems)
    p = signed_rank([ours[key] for key in problems], [theirs[key] for key in problems])
    return won, len(problems) - won - lost, lost, p
