"""The picture of frontiers: time against budget, of schedules and of proven bounds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..comparison.frontier import Frontier
from ..output import series
from ..output.captions import caption
from ..output.drawing import footnote, png, size_unit, time_unit

_PROVEN = ("black", "#666666", "#aaaaaa")
"""Colours of the bounds on each problem."""


class _Bounds(NamedTuple):
    """Bounds on one problem: budgets, and at each the best bound of all frontiers and what is certified."""

    budgets: list[int]
    best: list[int]
    certified: list[int]


def frontier_picture(frontiers: Sequence[Frontier]) -> bytes:
    """Draw frontiers, as PNG: steps of schedules above steps of bounds, with the ideal below.

    A schedule serves every larger budget, so its step goes to the right; a bound holds for every smaller one,
    so its step goes to the left. Several frontiers have a colour each; those of one instance have one line of
    bounds, the best of theirs, for a bound is of the problem and not of a method.

    Parameters
    ----------
    frontiers
        Frontiers of one iteration, by different methods or on different variants of it; the first names the
        picture.
    """
    first = frontiers[0]
    times = [p.makespan_ns or p.lower_bound_ns for frontier in frontiers for p in frontier.points]
    unit, scale = time_unit(max([first.ideal_ns, *times]))
    size_word, size = size_unit(first.peak_bytes)
    with style.context("default"):
        figure = Figure(figsize=(10.0, 5.4), dpi=150, layout="constrained")
        axes = figure.subplots()
        for i, frontier in enumerate(frontiers):
            _draw_schedules(axes, frontier, series.style(i), scale, size)
        problems = list(dict.fromkeys(frontier.instance_sha256 for frontier in frontiers))
        for i, problem in enumerate(problems):
            same = [frontier for frontier in frontiers if frontier.instance_sha256 == problem]
            name = "lower bound" if len(problems) == 1 else f"bound of {same[0].instance}"
            _draw_bounds(axes, bounds_of(same), name, _PROVEN[i % len(_PROVEN)], scale, size)
        axes.axhline(
            first.ideal_ns / scale, color="black", linewidth=1.0, linestyle="--", label="ideal, no limit"
        )
        for budget, word in ((first.least_budget_bytes, "least"), (first.peak_bytes, "peak")):
            axes.axvline(budget / size, color="#999999", linewidth=0.8)
            axes.annotate(
                word,
                (budget / size, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, -10),
                textcoords="offset points",
                fontsize=10,
                color="#666666",
            )
        axes.set_xlabel(f"budget ({size_word})")
        axes.set_ylabel(f"iteration time ({unit})")
        axes.spines[["top", "right"]].set_visible(False)
        series.label_ends(axes)
        figure.suptitle(f"{first.instance}: time against budget", fontsize=12)
        limit = "" if first.time_limit is None else f", {first.time_limit:g} s a point"
        made = dict.fromkeys(chain.from_iterable(frontier.made for frontier in frontiers))
        footnote(figure, caption(f"{first.memory_model} memory{limit}", made, first.limits))
        return png(figure)


def bounds_of(frontiers: Sequence[Frontier]) -> _Bounds:
    """Return the best bounds on one problem: at each budget the best of all frontiers there or above it."""
    budgets = sorted({point.budget_bytes for frontier in frontiers for point in frontier.points})
    points = [point for frontier in frontiers for point in frontier.points]
    best, certified = [], []
    for budget in budgets:
        above = [point for point in points if point.budget_bytes >= budget]
        best.append(max(point.lower_bound_ns for point in above))
        certified.append(max(point.certified_lower_bound_ns for point in above))
    return _Bounds(budgets, best, certified)


def _draw_schedules(axes: Axes, frontier: Frontier, look: dict[str, Any], scale: float, size: float) -> None:
    """Draw the steps of the schedules of one frontier."""
    solved = [point for point in frontier.points if point.makespan_ns is not None]
    axes.step(
        [point.budget_bytes / size for point in solved],
        [(point.makespan_ns or 0) / scale for point in solved],
        where="post",
        **look,
        label=frontier.method,
    )


def _draw_bounds(axes: Axes, bounds: _Bounds, name: str, colour: str, scale: float, size: float) -> None:
    """Draw the steps of bounds; what is certified dotted, where that is less than what is proven."""
    budgets = [budget / size for budget in bounds.budgets]
    exact = bounds.best == bounds.certified
    label = f"{name}, certified" if exact else name
    best = [bound / scale for bound in bounds.best]
    axes.step(budgets, best, where="pre", color=colour, marker=".", linewidth=1.0, label=label)
    if not exact:
        certified = [bound / scale for bound in bounds.certified]
        label = f"certified {name.removeprefix('lower ')}"
        axes.step(budgets, certified, where="pre", color=colour, linestyle=":", label=label)
