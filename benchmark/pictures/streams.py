"""Pictures of time against the number of streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..output.drawing import footnote, png
from ..output.series import MOST, label_ends, looks


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
        figure = Figure(figsize=(2.8 * wide + 1.4, 2.5 * len(rows) + 0.7), dpi=150, layout="constrained")
        grid = figure.subplots(len(rows), wide, sharex=True, sharey=True, squeeze=False)
        for axes_row, row in zip(grid, rows, strict=True):
            for axes, panel in zip(axes_row, row, strict=True):
                _draw(axes, panel)
            axes_row[0].set_ylabel("time, one stream = 1")
            label_ends(axes_row[-1])
        for axes in grid[-1]:
            axes.set_xlabel("streams")
        footnote(
            figure,
            f"Markers on lines: choices of the model {model}; predicted by simulation, not measured. {made}.",
        )
        return png(figure)


def _draw(axes: Axes, panel: Panel) -> None:
    layers = {layer.partition("/")[2] or layer: layer for layer in panel.speedups}
    for name, look in looks(list(layers), list(layers)[:MOST]):
        gains, streams = panel.speedups[layers[name]], panel.chosen[layers[name]]
        chosen = [i for i, count in enumerate(gains) if count == streams]
        axes.plot(list(gains), [1 / gain for gain in gains.values()], markevery=chosen, **look)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
    axes.set_ylim(0, 1.1)
    axes.grid(color="#dddddd", linewidth=0.5)
    axes.set_title(panel.title, fontsize=10)
