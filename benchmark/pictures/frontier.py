"""The picture of frontiers: time against budget, of schedules and of proven bounds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..comparison.frontier import Frontier
from ..output.captions import caption
from ..output.drawing import footnote, png, size_unit, time_unit
from .schedule import COLOURS


class _Look(NamedTuple):
    """Colours of a frontier's steps, and the name of its bounds."""

    found: str
    proven: str
    bound: str


_ALONE = _Look(COLOURS["stall"], COLOURS["compute"], "lower bound")
"""Look of a single frontier."""

_BESIDE = (COLOURS["stall"], COLOURS["compute"], COLOURS["offload"], COLOURS["prefetch"])
"""Colours of several frontiers."""


def frontier_picture(frontiers: Sequence[Frontier]) -> bytes:
    """Draw frontiers, as PNG: steps of schedules above steps of bounds, with the ideal below.

    A schedule is valid for every larger budget, so its step goes to the right. A bound holds for every
    smaller budget, so its step goes to the left. Each of several frontiers has its own colour.

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
        figure = Figure(figsize=(9.0, 5.2), dpi=150, layout="constrained")
        axes = figure.subplots()
        for i, frontier in enumerate(frontiers):
            colour = _BESIDE[i % len(_BESIDE)]
            look = _ALONE if len(frontiers) == 1 else _Look(colour, colour, f"{frontier.method}: lower bound")
            _draw(axes, frontier, look, scale, size)
        axes.axhline(
            first.ideal_ns / scale, color="black", linewidth=1.0, linestyle="--", label="ideal, no limit"
        )
        for budget, word in ((first.least_budget_bytes, "least"), (first.peak_bytes, "peak")):
            axes.axvline(budget / size, color="#999999", linewidth=0.8)
            axes.annotate(
                word,
                (budget / size, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, -9),
                textcoords="offset points",
                fontsize=8,
                color="#666666",
            )
        axes.set_xlabel(f"budget ({size_word})")
        axes.set_ylabel(f"time of a round ({unit})")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(framealpha=0.85, edgecolor="none", fontsize=8)
        figure.suptitle(f"{first.instance}: time against budget", fontsize=11)
        made = dict.fromkeys(chain.from_iterable(frontier.made for frontier in frontiers))
        footnote(figure, caption(f"{first.memory_model} memory", made))
        return png(figure)


def _draw(axes: Axes, frontier: Frontier, look: _Look, scale: float, size: float) -> None:
    """Draw the steps of one frontier; certified bounds are dotted if they are below the bounds."""
    points = frontier.points
    solved = [point for point in points if point.makespan_ns is not None]
    axes.step(
        [point.budget_bytes / size for point in solved],
        [(point.makespan_ns or 0) / scale for point in solved],
        where="post",
        color=look.found,
        marker="o",
        markersize=4,
        label=f"{frontier.method}: schedules",
    )
    budgets = [point.budget_bytes / size for point in points]
    bounds = [point.lower_bound_ns / scale for point in points]
    proven = [point.certified_lower_bound_ns / scale for point in points]
    exact = bounds == proven
    label = look.bound + (" (certified)" if exact else " (with solvers' words)")
    axes.step(budgets, bounds, where="pre", color=look.proven, marker=".", linewidth=1.0, label=label)
    if not exact:
        label = look.bound.replace("lower", "certified")
        axes.step(budgets, proven, where="pre", color=look.proven, linestyle=":", label=label)
