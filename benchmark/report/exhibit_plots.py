"""Drawing of a report's pictures from plain numbers.

Colours are those of Okabe and Ito, which colour-blind people can distinguish. Lines differ in style as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from ..output.drawing import size_unit, time_unit

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Colours of lines."""

_STYLES = ("-", "--", "-.", ":")
"""Styles of lines."""

_LINEAR = 1e-3
"""Gap below which the scale is linear; above, it is logarithmic."""

_MOST_NUMBERS = 400
"""Greatest number of cells of a heat map with numbers in its cells."""

_MOST_ROWS = 200
"""Number of rows above which not every row has its name."""


def draw_gaps(figure: Figure, gaps: Mapping[str, Sequence[float]]) -> None:
    """Draw the gaps of each setting as a box, beside the share of problems with a schedule."""
    boxes, shares = figure.subplots(1, 2, sharey=True, width_ratios=(4.0, 1.0))
    finite = [[gap for gap in some if math.isfinite(gap)] for some in gaps.values()]
    places = range(len(gaps))
    boxes.boxplot(
        finite,
        positions=list(places),
        orientation="horizontal",
        widths=0.6,
        whis=(0, 100),
        patch_artist=True,
        boxprops={"facecolor": "#A6D3EE"},
        medianprops={"color": "black"},
    )
    gap_axis(boxes, "x")
    boxes.set_xlabel("gap from the best bound")
    boxes.set_xlim(left=0)
    boxes.set_yticks(list(places), list(gaps))
    boxes.set_ylim(len(gaps) - 0.5, -0.5)
    boxes.grid(axis="x", color="#dddddd")
    boxes.set_axisbelow(True)
    share = [len(some) / len(all_) for some, all_ in zip(finite, gaps.values(), strict=True)]
    shares.barh(places, share, height=0.6, color="#009E73")
    shares.set_xlim(0, 1)
    shares.xaxis.set_major_formatter(PercentFormatter(1.0))
    shares.set_xlabel("with a schedule")
    for axes in (boxes, shares):
        axes.spines[["top", "right"]].set_visible(False)


def draw_heat_map(
    figure: Figure, rows: Sequence[str], columns: Sequence[str], gaps: Sequence[Sequence[float | None]]
) -> None:
    """Draw one cell for each gap: darker is worse, a cross is no schedule, white was not run."""
    axes = figure.subplots()
    cells = [[math.nan if gap is None or math.isinf(gap) else gap for gap in row] for row in gaps]
    most = max([gap for row in cells for gap in row if math.isfinite(gap)], default=0.0)
    norm = SymLogNorm(_LINEAR, vmin=0.0, vmax=max(most, 10 * _LINEAR))
    image = axes.imshow(cells, cmap="cividis_r", norm=norm, aspect="auto")
    small = len(rows) * len(columns) <= _MOST_NUMBERS
    for y, row in enumerate(gaps):
        for x, gap in enumerate(row):
            if gap is None:
                continue
            if math.isinf(gap):
                axes.text(x, y, "x", ha="center", va="center", fontsize=8, color="#D55E00")
            elif small:
                dark = norm(gap) > 0.5
                axes.text(
                    x,
                    y,
                    f"{gap:.1%}",
                    ha="center",
                    va="center",
                    fontsize=6,
                    color="white" if dark else "black",
                )
    axes.set_xticks(range(len(columns)), columns, rotation=40, ha="right", rotation_mode="anchor", fontsize=8)
    step = math.ceil(len(rows) / _MOST_ROWS)
    axes.set_yticks(range(0, len(rows), step), rows[::step], fontsize=7)
    bar = figure.colorbar(image, ax=axes, label="gap from the best bound", shrink=0.8, extend="neither")
    bar.ax.yaxis.set_major_formatter(FuncFormatter(_percent))


def draw_profile(figure: Figure, ratios: Mapping[str, Sequence[float]], problems: int) -> None:
    """Draw, for each setting, the share of problems up to each ratio, as steps."""
    axes = figure.subplots()
    most = max([some[-1] for some in ratios.values() if some], default=1.0)
    end = max(1.02, 1 + 1.1 * (most - 1))
    for (name, some), style in zip(ratios.items(), styles(), strict=False):
        xs = [1.0, *some, end]
        ys = [sum(one <= 1.0 for one in some), *range(1, len(some) + 1), len(some)]
        axes.step(xs, [y / max(problems, 1) for y in ys], where="post", label=name, **style)
    axes.set_xlim(1.0, end)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("iteration time, as a multiple of the shortest")
    axes.set_ylabel("share of problems")
    finish(axes)


def draw_cactus(figure: Figure, seconds: Mapping[str, Sequence[float]]) -> None:
    """Draw how many runs were done after each time, with one line for each setting."""
    axes = figure.subplots()
    for (name, some), style in zip(seconds.items(), styles(), strict=False):
        axes.plot([max(one, 1e-4) for one in some], range(1, len(some) + 1), label=name, marker=".", **style)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("solve time (s), measured")
    axes.set_ylabel("runs")
    finish(axes)


def draw_anytime(figure: Figure, grid: Sequence[float], curves: Mapping[str, Sequence[float]]) -> None:
    """Draw the median gap over time, with one line for each setting."""
    axes = figure.subplots()
    for (name, gaps), style in zip(curves.items(), styles(), strict=False):
        shown = [gap if math.isfinite(gap) else math.nan for gap in gaps]
        axes.step(grid, shown, where="post", label=name, **style)
    axes.set_xscale("log")
    gap_axis(axes, "y")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time since the run began (s), measured")
    axes.set_ylabel("median gap from the best bound")
    finish(axes)


def draw_against_budget(
    figure: Figure, budgets: Sequence[int], curves: Mapping[str, Mapping[int, int]], ideal: int | None
) -> None:
    """Draw the iteration time under each budget, with one line for each setting; bounds are black."""
    axes = figure.subplots()
    unit, scale = time_unit(max([ns for found in curves.values() for ns in found.values()], default=1))
    size_name, size = size_unit(budgets[-1])
    chosen = styles()
    for name, found in curves.items():
        proven = name.startswith("lower bound")
        style = {"color": "black", "linestyle": ":"} if proven else next(chosen)
        times = [found[budget] / scale if budget in found else math.nan for budget in budgets]
        axes.plot([budget / size for budget in budgets], times, marker="o", markersize=4, label=name, **style)
    if ideal is not None:
        axes.axhline(ideal / scale, color="#999999", linewidth=1.0, label="ideal (no memory limit)")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"budget ({size_name})")
    axes.set_ylabel(f"iteration time ({unit}), predicted")
    finish(axes)


def draw_win_loss(
    figure: Figure, names: Sequence[str], rows: Sequence[tuple[str, str, int, int, int, float, float]]
) -> None:
    """Draw how often the setting of a row has a shorter iteration than the setting of a column."""
    axes = figure.subplots()
    wins = [[math.nan] * len(names) for _ in names]
    for first, second, won, _, lost, _, fair in rows:
        for one, other, times in ((first, second, won), (second, first, lost)):
            y, x = names.index(one), names.index(other)
            wins[y][x] = times
            weight = "bold" if fair < 0.05 else "normal"
            axes.text(x, y, str(times), ha="center", va="center", fontweight=weight)
    most = max(max(won, lost) for _, _, won, _, lost, _, _ in rows)
    axes.imshow(wins, cmap="Blues", vmin=0, vmax=max(2 * most, 1), aspect="auto")
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel("... than this one")
    axes.set_ylabel("shorter iteration with this one ...")


def styles() -> Iterator[dict[str, Any]]:
    """Yield styles of lines; neighbours differ, and later lines are thinner, to show the lines below."""
    for i in count():
        yield {
            "color": _COLOURS[i % len(_COLOURS)],
            "linestyle": _STYLES[i // len(_COLOURS) % len(_STYLES)],
            "linewidth": max(1.2, 3.6 - 0.5 * i),
        }


def gap_axis(axes: Axes, which: str) -> None:
    """Scale an axis for gaps, some of which are 0 and some of which are large."""
    if which == "x":
        axes.set_xscale("symlog", linthresh=_LINEAR)
        axes.xaxis.set_major_formatter(FuncFormatter(_percent))
    else:
        axes.set_yscale("symlog", linthresh=_LINEAR)
        axes.yaxis.set_major_formatter(FuncFormatter(_percent))


def _percent(value: float, _: int | None = None) -> str:
    return f"{100 * value:g} %"


def finish(axes: Axes) -> None:
    """Add the common parts of all pictures: a grid, and a legend at the side."""
    axes.grid(color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
