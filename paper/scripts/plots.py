"""How the study's pictures are drawn, from plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter

from pebbler.benchmark.output.series import COLOURS, label_ends, style
from pebbler.benchmark.report.exhibit_plots import gap_axis, open_grid

_SMALL = 8
"""Points of type in crowded places; elsewhere it is as large as the text's."""


def draw_gaps_by_budget(
    figure: Figure,
    budgets: Sequence[str],
    names: Sequence[str],
    gaps: Mapping[str, Mapping[str, float]],
    *,
    joined: bool,
) -> None:
    """Draw the median gap at each budget, a marker or a line a method; nothing where half have none.

    `names` are what the budgets are called. Only where all budgets have the same problems a line is `joined`.
    """
    axes = figure.subplots()
    for i, (name, found) in enumerate(gaps.items()):
        values = [found.get(budget, math.inf) for budget in budgets]
        shown = [value if math.isfinite(value) else math.nan for value in values]
        look = style(i) if joined else {**style(i), "linestyle": "none"}
        axes.plot(range(len(budgets)), shown, label=name, **look)
    gap_axis(axes, "y")
    axes.set_ylim(bottom=-2e-4)
    axes.set_xlim(-0.3, len(budgets) - 0.7)
    axes.set_xticks(range(len(budgets)), [name.replace(" (", "\n(") for name in names], fontsize=_SMALL)
    axes.set_xlabel("budget")
    axes.set_ylabel("median gap, predicted")
    open_grid(axes)
    label_ends(axes)


def draw_decisions(figure: Figure, overheads: Mapping[str, Mapping[str, float]]) -> None:
    """Draw the overhead with each set of decisions as a bar, a panel a case; sets of no case are left out."""
    words = list(dict.fromkeys(word for found in overheads.values() for word in found))
    words = [w for w in words if any(math.isfinite(found.get(w, math.inf)) for found in overheads.values())]
    grid = figure.subplots(1, len(overheads), sharey=True, squeeze=False)[0]
    for axes, (case, found) in zip(grid, overheads.items(), strict=True):
        values = [found.get(word, math.inf) for word in words]
        heights = [value if math.isfinite(value) else 0.0 for value in values]
        axes.barh(range(len(words)), heights, color=COLOURS[0], height=0.7)
        for place, value in enumerate(values):
            text = f" {100 * value:.1f}%" if math.isfinite(value) else " none"
            axes.text(max(heights[place], 0.0), place, text, va="center", fontsize=_SMALL)
        axes.set_xlim(0, 2.0 * max([*heights, 0.01]))
        axes.set_xticks([])
        axes.set_title(_in_lines(case), fontsize=_SMALL)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    grid[0].set_yticks(range(len(words)), words)
    grid[0].invert_yaxis()
    figure.supxlabel("overhead over the ideal, predicted", fontsize=10)


def draw_dots(figure: Figure, overheads: Mapping[str, Mapping[str, float]]) -> None:
    """Draw the overhead of each series as a dot, a row a problem; nothing where there is no schedule."""
    axes = figure.subplots()
    words = list(dict.fromkeys(word for found in overheads.values() for word in found))
    for i, word in enumerate(words):
        values = [found.get(word, math.nan) for found in overheads.values()]
        shown = [value if math.isfinite(value) else math.nan for value in values]
        look = {**style(i), "linestyle": "none", "markersize": 7.0 - i}
        axes.plot(shown, range(len(overheads)), label=word, **look)
    gap_axis(axes, "x")
    axes.set_xlim(left=-2e-4)
    axes.set_yticks(range(len(overheads)), list(overheads))
    axes.invert_yaxis()
    axes.set_xlabel("overhead over the ideal, predicted")
    open_grid(axes)
    figure.legend(loc="outside upper center", ncols=len(words), frameon=False)


def draw_spans(figure: Figure, spans: Mapping[str, Mapping[str, tuple[float, float]]]) -> None:
    """Draw overheads as bars, a row a problem, each with its bound as a line across; no bar for none."""
    axes = figure.subplots()
    words = list(dict.fromkeys(word for found in spans.values() for word in found))
    width = 0.8 / max(len(words), 1)
    for i, word in enumerate(words):
        places = [row - 0.4 + (i + 0.5) * width for row in range(len(spans))]
        bounds, times = zip(*(found[word] for found in spans.values()), strict=True)
        lengths = [time if math.isfinite(time) else 0.0 for time in times]
        axes.barh(places, lengths, height=0.9 * width, color=COLOURS[i % len(COLOURS)], alpha=0.6, label=word)
        for place, bound in zip(places, bounds, strict=True):
            axes.plot([bound, bound], [place - 0.48 * width, place + 0.48 * width], color="black")
    axes.plot([], [], color="black", label="bound")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_yticks(range(len(spans)), list(spans))
    axes.invert_yaxis()
    axes.set_xlabel("overhead over the ideal, predicted")
    open_grid(axes)
    figure.legend(loc="outside upper center", ncols=len(words) + 1, frameon=False)


def _in_lines(case: str) -> str:
    """Break the name of a case: ``vgg16 (64), K40, 6GiB`` in four lines."""
    return case.replace(" (", "\n(").replace(", ", "\n")


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
        axes.set_title(title, fontsize=10)
        axes.set_xticks(range(len(links)), links)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(bottom=0.95)
        axes.set_ylabel("time / ideal")
        axes.grid(color="#dddddd")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in cells[len(panels) :]:
        axes.set_axis_off()
    figure.legend(*cells[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
