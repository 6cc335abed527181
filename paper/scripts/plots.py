"""How the study's pictures are drawn, from plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from pebbler.benchmark.output.series import COLOURS, label_ends, style
from pebbler.benchmark.report.exhibit_plots import finish, gap_axis, open_grid

_MOST_LARGE = 8
"""Names of more groups than that are written smaller."""


def draw_gaps_by_budget(
    figure: Figure, budgets: Sequence[str], gaps: Mapping[str, Mapping[str, float]]
) -> None:
    """Draw the median gap at each budget, a line a method; nothing where half of the problems have none."""
    axes = figure.subplots()
    for i, (name, found) in enumerate(gaps.items()):
        values = [found.get(budget, math.inf) for budget in budgets]
        shown = [value if math.isfinite(value) else math.nan for value in values]
        axes.plot(range(len(budgets)), shown, label=name, **style(i))
    gap_axis(axes, "y")
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(len(budgets)), budgets)
    axes.set_xlabel("budget")
    axes.set_ylabel("median gap, predicted")
    open_grid(axes)
    label_ends(axes)


def draw_decisions(figure: Figure, overheads: Mapping[str, Mapping[str, float]]) -> None:
    """Draw the overhead with each set of decisions as bars, a group a case; a cross where none fits."""
    axes = figure.subplots()
    words = list(dict.fromkeys(word for found in overheads.values() for word in found))
    width = 0.8 / max(len(words), 1)
    for i, word in enumerate(words):
        places = [group - 0.4 + (i + 0.5) * width for group in range(len(overheads))]
        values = [found.get(word, math.nan) for found in overheads.values()]
        heights = [value if math.isfinite(value) else 0.0 for value in values]
        axes.bar(places, heights, width=width, color=COLOURS[i % len(COLOURS)], label=word)
        for place, value in zip(places, values, strict=True):
            if math.isinf(value):
                axes.text(place, 0.002, "x", ha="center", va="bottom", fontsize=8)
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    small = 7.0 if len(overheads) <= _MOST_LARGE else 5.5
    axes.set_xticks(range(len(overheads)), [_in_lines(case) for case in overheads], fontsize=small)
    axes.set_ylabel("overhead over the ideal, predicted")
    finish(axes)


def draw_spans(figure: Figure, spans: Mapping[str, Mapping[str, tuple[float, float]]]) -> None:
    """Draw overheads as bars, a group a problem, each with its bound as a line across; a cross for none."""
    axes = figure.subplots()
    words = list(dict.fromkeys(word for found in spans.values() for word in found))
    width = 0.8 / max(len(words), 1)
    for i, word in enumerate(words):
        places = [group - 0.4 + (i + 0.5) * width for group in range(len(spans))]
        bounds, times = zip(*(found[word] for found in spans.values()), strict=True)
        heights = [time if math.isfinite(time) else 0.0 for time in times]
        axes.bar(places, heights, width=0.9 * width, color=COLOURS[i % len(COLOURS)], alpha=0.6, label=word)
        for place, bound, time in zip(places, bounds, times, strict=True):
            axes.plot([place - 0.48 * width, place + 0.48 * width], [bound, bound], color="black")
            if math.isinf(time):
                axes.text(place, bound, "x", ha="center", va="bottom", fontsize=8)
    axes.plot([], [], color="black", label="bound")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xticks(range(len(spans)), [_in_lines(problem) for problem in spans], fontsize=7)
    axes.set_ylabel("overhead over the ideal, predicted")
    finish(axes)


def _in_lines(case: str) -> str:
    """Break the name of a case: ``vgg16 (64), K40, 6GiB`` in two lines, ``vgg16/64/K40/6GiB`` in three."""
    if ")" in case:
        return case.replace("), ", ")\n")
    network, batch, device, *rest = case.split("/")
    return f"{network}\n{batch}/{device}\n{'/'.join(rest)}"


def draw_links(figure: Figure, links: Sequence[str], panels: Mapping[str, Mapping[str, list[float]]]) -> None:
    """Draw times over the ideal for each link, a panel a case and a line a method; bounds are black."""
    rows = -(-len(panels) // 2)
    grid = figure.subplots(rows, 2, squeeze=False)
    cells = [axes for row in grid for axes in row]
    for axes, (title, curves) in zip(cells, panels.items(), strict=False):
        for i, (name, times) in enumerate(curves.items()):
            look = {"color": "black", "linestyle": ":"} if name == "lower bound" else style(i)
            shown = [time if math.isfinite(time) else math.nan for time in times]
            axes.plot(range(len(links)), shown, label=name, **look)
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(len(links)), links)
        axes.set_ylabel("time / ideal, predicted", fontsize=8)
        axes.grid(color="#dddddd")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in cells[len(panels) :]:
        axes.set_axis_off()
    figure.legend(
        *cells[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False
    )
