"""The picture of a frontier: time against budget, between what is found and what is proven."""

from __future__ import annotations

from matplotlib import style
from matplotlib.figure import Figure

from .compare import MODEL_LIMITS
from .drawing import footnote, png, size_unit, time_unit
from .frontier import Frontier
from .plots import COLOURS


def frontier_picture(frontier: Frontier) -> bytes:
    """Draw a frontier, as PNG: steps of schedules above steps of bounds, with the ideal below.

    A schedule serves every larger budget, so its step goes to the right; a bound holds for every smaller one,
    so its step goes to the left.
    """
    points = frontier.points
    unit, scale = time_unit(max([frontier.ideal_ns, *(p.makespan_ns or p.lower_bound_ns for p in points)]))
    size_word, size = size_unit(frontier.peak_bytes)
    with style.context("default"):
        figure = Figure(figsize=(9.0, 5.2), dpi=150, layout="constrained")
        axes = figure.subplots()
        solved = [point for point in points if point.makespan_ns is not None]
        made = [(point.makespan_ns or 0) / scale for point in solved]
        axes.step(
            [point.budget_bytes / size for point in solved],
            made,
            where="post",
            color=COLOURS["stall"],
            marker="o",
            markersize=4,
            label=f"{frontier.method}: schedules",
        )
        budgets = [point.budget_bytes / size for point in points]
        bounds = [point.lower_bound_ns / scale for point in points]
        proven = [point.certified_lower_bound_ns / scale for point in points]
        exact = bounds == proven
        label = "lower bound" + (" (certified)" if exact else " (with solvers' words)")
        axes.step(budgets, bounds, where="pre", color=COLOURS["compute"], marker=".", label=label)
        if not exact:
            axes.step(
                budgets, proven, where="pre", color=COLOURS["compute"], linestyle=":", label="certified bound"
            )
        axes.axhline(
            frontier.ideal_ns / scale, color="black", linewidth=1.0, linestyle="--", label="ideal, no limit"
        )
        for budget, word in ((frontier.least_budget_bytes, "least"), (frontier.peak_bytes, "peak")):
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
        axes.legend(frameon=False, fontsize=8)
        figure.suptitle(f"{frontier.instance}: time against budget", fontsize=11)
        footnote(figure, f"{frontier.memory_model} memory; {MODEL_LIMITS}")
        return png(figure)
