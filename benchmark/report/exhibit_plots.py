"""Drawing of a report's pictures from plain numbers.

Lines are told apart by colour and marker, and named where they end. Of many settings six have a colour, and
the others are grey: `leading` has the names of the six.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, PercentFormatter

from ..output.drawing import size_unit, time_unit
from ..output.series import label_ends, looks, sparse

_LINEAR = 1e-3
"""Gap below which the scale is linear; above, it is logarithmic."""

_MOST_NUMBERS = 400
"""Greatest number of cells of a heat map with numbers in its cells."""

_MOST_ROWS = 200
"""Number of rows above which not every row has its name."""

_WIDE = 3.0
"""Ratio of the longest time to the shortest from which times have a logarithmic axis."""

_DARK = 0.45
"""Shade of a heat map's cells from which their numbers are white."""

_LEAST = 5e-4
"""Least gap that a heat map's numbers tell from 0."""

_SHORTEST = 1e-4
"""Shortest solve time in seconds that is told apart."""

_NONE = "#dddddd"
"""Colour of a heat map's cells without a schedule."""


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
    for place, (some, all_) in enumerate(zip(finite, gaps.values(), strict=True)):
        if not some:
            boxes.text(0.01, place, "no schedule", transform=boxes.get_yaxis_transform(), va="center")
        shares.text(1.04, place, f"{len(some)} of {len(all_)}", va="center")
    shares.set_xlim(0, 1)
    shares.set_xticks([0, 0.5, 1])
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
                axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=_NONE, edgecolor="none"))
            if small or math.isinf(gap):
                dark = math.isfinite(gap) and norm(gap) > _DARK
                colour = "white" if dark else "black"
                axes.text(x, y, cell_text(gap), ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(columns)), columns, rotation=40, ha="right", rotation_mode="anchor")
    step = math.ceil(len(rows) / _MOST_ROWS)
    axes.set_yticks(range(0, len(rows), step), rows[::step], fontsize=9)
    bar = figure.colorbar(image, ax=axes, label="gap from the best bound", shrink=0.8, extend="neither")
    bar.ax.yaxis.set_major_formatter(FuncFormatter(_percent))


def cell_text(gap: float) -> str:
    """Return what a cell of a heat map says; a gap of 0 is not told as one that is rounded to it."""
    if math.isinf(gap):
        return "x"
    if 0 < gap < _LEAST:
        return f"<{_LEAST:.1%}"
    return f"{gap:.1%}" if gap else "0"


def draw_profile(
    figure: Figure, ratios: Mapping[str, Sequence[float]], problems: int, leading: Sequence[str]
) -> None:
    """Draw, for each setting, the share of problems up to each ratio, as steps.

    Winners crowd at a ratio of 1, so that the axis has what is over it, on a logarithmic scale.
    """
    axes = figure.subplots()
    most = max([some[-1] for some in ratios.values() if some], default=1.0)
    end = 1.5 * max(most - 1, 10 * _LINEAR)
    for i, (name, look) in enumerate(looks(list(ratios), leading)):
        some = ratios[name]
        first = sum(one <= 1.0 for one in some)
        xs = [0.0, *(ratio - 1 for ratio in some[first:]), end]
        ys = [first, *range(first + 1, len(some) + 1), len(some)]
        shares = [y / max(problems, 1) for y in ys]
        axes.step(xs, shares, where="post", markevery=sparse(i), **look)
    gap_axis(axes, "x")
    axes.set_xlim(0, end)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("iteration time over the shortest of all settings")
    axes.set_ylabel("share of problems")
    _finish_lines(axes)


def draw_cactus(
    figure: Figure, seconds: Mapping[str, Sequence[float]], leading: Sequence[str], counted: str = "runs"
) -> None:
    """Draw how many runs were done after each time, as steps, with one line for each setting."""
    axes = figure.subplots()
    times = [max(one, _SHORTEST) for some in seconds.values() for one in some] or [1.0]
    first, last = min(times) / 2, 2 * max(times)
    for i, (name, look) in enumerate(looks(list(seconds), leading)):
        some = seconds[name]
        xs = [first, *(max(one, _SHORTEST) for one in some), last]
        counts = [*range(len(some) + 1), len(some)]
        axes.step(xs, counts, where="post", markevery=sparse(i), **look)
    _seconds_axis(axes)
    axes.set_xlim(first, last)
    axes.set_ylim(0, 1.05 * max(1, *map(len, seconds.values())))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("solve time (s), measured")
    axes.set_ylabel(counted)
    _finish_lines(axes)


def draw_anytime(
    figure: Figure, grid: Sequence[float], curves: Mapping[str, Sequence[float]], leading: Sequence[str]
) -> None:
    """Draw the median gap over time, as steps, with one line for each setting."""
    axes = figure.subplots()
    for i, (name, look) in enumerate(looks(list(curves), leading)):
        shown = [gap if math.isfinite(gap) else math.nan for gap in curves[name]]
        axes.step(grid, shown, where="post", markevery=(3 * i, 20), **look)
    _seconds_axis(axes)
    axes.set_xlim(grid[0], grid[-1])
    gap_axis(axes, "y")
    most = max([gap for gaps in curves.values() for gap in gaps if math.isfinite(gap)], default=_LINEAR)
    axes.set_ylim(0, 1.5 * max(most, _LINEAR))
    axes.set_xlabel("time since the run began (s), measured")
    axes.set_ylabel("median gap from the best bound")
    _finish_lines(axes)


def draw_against_budget(
    figure: Figure,
    budgets: Sequence[int],
    curves: Mapping[str, Mapping[int, int]],
    ideal: int | None,
    leading: Sequence[str],
) -> None:
    """Draw the iteration time under each budget, with one line for each setting; bounds are black.

    The axis of times is logarithmic where the longest is several times the shortest.
    """
    axes = figure.subplots()
    everything = [ns for found in curves.values() for ns in found.values()] + [ideal or 0]
    shortest, longest = min(filter(None, everything), default=1), max(1, *everything)
    unit, scale = time_unit(longest)
    size_name, size = size_unit(budgets[-1])
    bounds = [name for name in curves if name.startswith("lower bound")]
    chosen = list(looks([name for name in curves if name not in bounds], leading))
    for i, bound in enumerate(bounds):
        chosen.append((bound, {"label": bound, "color": "black", "linestyle": (":", "-.")[i % 2]}))
    for name, look in chosen:
        found = curves[name]
        times = [found[budget] / scale if budget in found else math.nan for budget in budgets]
        axes.plot([budget / size for budget in budgets], times, **look)
    if ideal is not None:
        ends = [budgets[0] / size, budgets[-1] / size]
        axes.plot(ends, [ideal / scale] * 2, color="black", linewidth=0.8, label="ideal, no memory limit")
    if longest >= _WIDE * shortest:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(_plain))
        axes.yaxis.set_minor_formatter(FuncFormatter(_nothing))
        axes.set_ylim(0.8 * shortest / scale, 1.25 * longest / scale)
    else:
        room = 0.06 * max(longest - shortest, longest / 20)
        axes.set_ylim((shortest - room) / scale, (longest + room) / scale)
    axes.set_xlabel(f"budget ({size_name})")
    axes.set_ylabel(f"iteration time ({unit}), predicted")
    _finish_lines(axes)


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
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("... than this one")
    axes.set_ylabel("faster: this one ...")


def gap_axis(axes: Axes, which: str) -> None:
    """Scale an axis for gaps, some of which are 0 and some of which are large."""
    if which == "x":
        axes.set_xscale("symlog", linthresh=_LINEAR)
        axes.xaxis.set_major_formatter(FuncFormatter(_percent))
    else:
        axes.set_yscale("symlog", linthresh=_LINEAR)
        axes.yaxis.set_major_formatter(FuncFormatter(_percent))


def _percent(value: float, _: int | None = None) -> str:
    return f"{100 * value:g}%"


def _plain(value: float, _: int | None = None) -> str:
    return f"{value:g}"


def _nothing(_: float, __: int | None = None) -> str:
    return ""


def _seconds_axis(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    axes.xaxis.set_minor_formatter(FuncFormatter(_nothing))


def _finish_lines(axes: Axes) -> None:
    """Add a grid, and the names of lines at their ends."""
    open_grid(axes)
    label_ends(axes)


def finish(axes: Axes) -> None:
    """Add a grid, and a legend at the side."""
    open_grid(axes)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def open_grid(axes: Axes) -> None:
    """Add a grid, and leave the top and the right open."""
    axes.grid(color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
