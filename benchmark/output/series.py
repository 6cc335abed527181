"""Lines that are told apart: six colours with their markers, the rest in grey, names at the ends of lines.

Colours are those of Okabe and Ito, which colour-blind people can distinguish.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours of lines."""

MARKERS = ("o", "s", "^", "D", "v", "P")
"""Markers of lines, each with the colour at its place."""

GREY = "#999999"
"""Colour of lines beyond the six."""

MOST = len(COLOURS)
"""Greatest number of lines with a colour of their own."""

_SIZE = 10
"""Size of names in points."""

_INNER = 0.7
"""Share of a figure's height that its axes have, roughly."""


def style(i: int) -> dict[str, Any]:
    """Return colour, marker and width of a line; later lines are thinner, to show the lines below."""
    if i >= MOST:
        return {"color": GREY, "linewidth": 1.0}
    width = max(1.2, 3.0 - 0.4 * i)
    return {"color": COLOURS[i], "marker": MARKERS[i], "markersize": 5.5, "linewidth": width}


def looks(names: Sequence[str], leading: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each name with the look and the label of its line.

    Parameters
    ----------
    names
        Names of the lines.
    leading
        Names that have a colour of their own, at most six: the same one wherever `leading` is the same. The
        other lines come first, so that they lie below; they are grey, and have one label together.
    """
    others = [name for name in names if name not in leading]
    for i, name in enumerate(others):
        label = name if len(others) == 1 else f"{len(others)} others"
        yield name, {"label": "_other" if i else label, **style(MOST)}
    for name in names:
        if name in leading:
            yield name, {"label": name, **style(leading.index(name))}


def sparse(i: int) -> tuple[float, float]:
    """Return where a line with many points has markers, so that those of lines on each other alternate."""
    return (0.03 * i, 0.2)


def label_ends(axes: Axes) -> None:
    """Write the label of each line beside the axes, at the height where the line ends.

    Labels that would overlap are moved apart; of lines that end at one height, the label of that which goes
    farthest is the lowest. A line without points has its label at the foot, with the
    words `no schedule`. Limits and scales of the axes must be set before.
    """
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    ends = {line: _end(axes, line) for line in lines}
    lines.sort(key=lambda line: (round(ends[line][1], 2), -ends[line][0]))
    spec = axes.get_subplotspec()
    rows = 1 if spec is None else spec.get_gridspec().nrows
    figure = axes.get_figure(root=True)
    assert figure is not None
    apart = 1.35 * _SIZE / 72 / (_INNER * figure.get_figheight() / rows)
    heights = _spread([ends[line][1] for line in lines], apart)
    for line, height in zip(lines, heights, strict=True):
        x, y = ends[line]
        drawn = math.isfinite(x)
        look: dict[str, Any] = {"color": line.get_color(), "transform": axes.transAxes, "clip_on": False}
        if drawn:
            dashes = line.get_linestyle()
            axes.plot([x, 1.03], [y, height], linewidth=0.8, linestyle=dashes, label="_leader", **look)
        axes.plot([1.03], [height], marker=line.get_marker(), markersize=5.5, label="_mark", **look)
        text = str(line.get_label()) if drawn else f"{line.get_label()}: no schedule"
        axes.annotate(
            text,
            (1.03, height),
            xycoords=axes.transAxes,
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=_SIZE,
        )


def _end(axes: Axes, line: Line2D) -> tuple[float, float]:
    """Return the last point of a line as shares of the axes' width and height; no line ends at the foot."""
    data: Any = line.get_xydata()
    points = [(x, y) for x, y in data if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return math.inf, 0.0
    x, y = axes.transAxes.inverted().transform(line.get_transform().transform(points[-1]))
    return min(max(float(x), 0.0), 1.0), min(max(float(y), 0.0), 1.0)


def _spread(heights: Sequence[float], apart: float) -> list[float]:
    """Move increasing heights apart by so much, upwards, and from the top down where there is no room."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + apart) if placed else height)
    top = max(1.0, heights[0] + apart * (len(heights) - 1)) if heights else 1.0
    for i in range(len(placed) - 1, -1, -1):
        placed[i] = min(placed[i], top)
        top = placed[i] - apart
    return placed
