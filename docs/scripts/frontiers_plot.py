"""The picture of many frontiers at once: a panel a network and device, steps of two variants in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from math import ceil

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from pebbler.benchmark.output.captions import caption
from pebbler.benchmark.output.drawing import footnote, png, size_unit
from pebbler.benchmark.output.series import COLOURS, MARKERS
from pebbler.benchmark.sweeps.results import Run, origins

_ACROSS = 3
"""Panels beside each other."""

_FLAT = 0.02
"""An axis shows at least this much over the ideal, so that hundredths of a per cent do not look like much."""


def frontiers_picture(variants: Mapping[str, Sequence[Run]]) -> bytes:
    """Draw time against budget, as PNG: for each problem a panel with the steps of each variant.

    A schedule serves every larger budget, so its step goes to the right; a bound holds for every smaller one,
    so its step goes to the left. Panels in which all schedules take the ideal time are left out.

    Parameters
    ----------
    variants
        Runs in one memory model and with one time limit, by what they are of; at most two. Problems are told
        apart by network, batch and device.
    """
    everything = list(chain.from_iterable(variants.values()))
    panels: dict[str, dict[str, list[Run]]] = {}
    for run in sorted(everything, key=lambda run: (run.about.tasks, run.about.budget_bytes)):
        panels.setdefault(_panel(run), {variant: [] for variant in variants})
    for variant, runs in variants.items():
        for run in sorted(runs, key=lambda run: run.about.budget_bytes):
            panels[_panel(run)][variant].append(run)
    shown = {
        name: mine
        for name, mine in panels.items()
        if any(map(_over_ideal, chain.from_iterable(mine.values())))
    }
    word, size = size_unit(max((run.about.budget_bytes for run in everything), default=1))
    with style.context("default"):
        down = max(ceil(len(shown) / _ACROSS), 1)
        figure = Figure(figsize=(3.6 * _ACROSS, 2.7 * down + 0.8), dpi=130, layout="constrained")
        grid = figure.subplots(down, _ACROSS, squeeze=False).flatten()
        for axes, (name, mine) in zip(grid, shown.items(), strict=False):
            for colour, marker, (variant, runs) in zip(COLOURS, MARKERS, mine.items(), strict=False):
                _draw(axes, runs, variant, colour, marker, size)
            axes.set_title(name, fontsize=10)
            axes.set_xlabel(f"budget ({word})")
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            axes.set_ylim(0, max(_FLAT, axes.get_ylim()[1]))
            axes.spines[["top", "right"]].set_visible(False)
        for axes in grid[len(shown) :]:
            axes.set_axis_off()
        figure.supylabel("over the ideal time", fontsize=12)
        lines = {line.get_label(): line for axes in grid for line in axes.get_lines()}
        figure.legend(
            lines.values(), lines.keys(), loc="outside upper center", ncols=2, frameon=False, fontsize=12
        )
        models = sorted({run.setting.memory_model for run in everything})
        footnote(figure, caption(f"{', '.join(models)} memory", origins(everything, most=2)))
        return png(figure)


def _panel(run: Run) -> str:
    return f"{run.about.network},\n{run.about.batch} images, {run.about.device}"


def _draw(axes: Axes, runs: Sequence[Run], variant: str, colour: str, marker: str, size: int) -> None:
    """Draw the steps of one variant, its budgets from the least: schedules thick, bounds dotted."""
    budgets = [run.about.budget_bytes / size for run in runs]
    found = list(accumulate(map(_over_ideal, runs), min))
    proven = list(accumulate(map(_bound_over_ideal, reversed(runs)), max))[::-1]
    label = f"{variant}: schedules"
    axes.step(budgets, found, where="post", color=colour, marker=marker, markersize=4, label=label)
    label = f"{variant}: lower bounds"
    axes.step(budgets, proven, where="pre", color=colour, linestyle=":", marker="_", label=label)


def _over_ideal(run: Run) -> float:
    """How much longer than the ideal a run's schedule takes; infinite without one."""
    if run.found.iteration_ns is None or run.found.ideal_ns is None:
        return float("inf")
    return run.found.iteration_ns / run.found.ideal_ns - 1


def _bound_over_ideal(run: Run) -> float:
    if run.found.lower_bound_ns is None or run.found.ideal_ns is None:
        return 0.0
    return run.found.lower_bound_ns / run.found.ideal_ns - 1
