"""Pictures of time against the number of streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..output.drawing import footnote, png

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours of the layers' lines."""

_LINES = ("-", "--", ":", "-.", "-", "--")
"""Styles of the layers' lines."""


class Panel(NamedTuple):
    """The layers in one pair of axes.

    Attributes
    ----------
    title
        Text above it.
    speedups
        Speed-up of each layer over one stream, by number of streams.
    chosen
        A model's number of streams for each layer, or None.
    """

    title: str
    speedups: Mapping[str, Mapping[int, float]]
    chosen: Mapping[str, int | None]


def draw_times(rows: Sequence[Sequence[Panel]], model: str, made: str) -> bytes:
    """Draw time, relative to one stream, against the number of streams, as PNG.

    Parameters
    ----------
    rows
        Rows of panels of the same length; the panels of a row show the same layers.
    model
        Name of the model whose choices are the circles.
    made
        When, where and with which versions the times were computed.
    """
    wide = len(rows[0])
    with style.context("default"):
        figure = Figure(figsize=(3.6 * wide + 1.6, 2.7 * len(rows) + 0.5), dpi=120, layout="constrained")
        grid = figure.subplots(len(rows), wide, sharex=True, sharey=True, squeeze=False)
        for axes_row, row in zip(grid, rows, strict=True):
            for axes, panel in zip(axes_row, row, strict=True):
                _draw(axes, panel)
            axes_row[0].set_ylabel("time, one stream = 1")
            axes_row[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
        for axes in grid[-1]:
            axes.set_xlabel("streams")
        footnote(
            figure,
            f"circles: the choice of the model {model}; predicted by simulation, not measured. {made}.",
        )
        return png(figure)


def _draw(axes: Axes, panel: Panel) -> None:
    for i, (layer, gains) in enumerate(panel.speedups.items()):
        colour, line = _COLOURS[i % len(_COLOURS)], _LINES[i % len(_LINES)]
        axes.plot(
            list(gains),
            [1 / gain for gain in gains.values()],
            color=colour,
            linestyle=line,
            label=layer.partition("/")[2] or layer,
        )
        streams = panel.chosen[layer]
        if streams is not None and streams in gains:
            axes.plot([streams], [1 / gains[streams]], "o", color=colour, markerfacecolor="white")
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
    axes.set_ylim(0, 1.1)
    axes.grid(color="#dddddd", linewidth=0.5)
    axes.set_title(panel.title, fontsize=9)
