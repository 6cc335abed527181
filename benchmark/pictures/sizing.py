"""Pictures of sizing questions: where the answer is yes, where no, where nobody knows, with the overheads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ..comparison.largest_batch import LargestBatch
from ..comparison.least import Least, format_value
from ..output.captions import caption
from ..output.drawing import footnote, png, size_unit
from .schedule import COLOURS

_YES, _NO, _UNKNOWN = "#b7ddb0", "#f2b8b5", "#dddddd"
_LINES = (COLOURS["compute"], COLOURS["stall"], COLOURS["offload"], COLOURS["prefetch"])
_HEADROOM, _MOST = 1.15, 1.0
"""How far an axis goes over what it shows, and the overhead over which none is shown."""


def least_picture(found: Least) -> bytes:
    """Draw overheads against links or budgets, as PNG, with the regions of the answers behind.

    A schedule serves every larger value, so its step goes to the right; a bound holds for every smaller one,
    so its step goes to the left.
    """
    unit, scale = (
        size_unit(found.least or found.impossible or 1) if found.over == "budget" else ("GB/s", 10**9)
    )
    ideal = max(found.ideal_ns, 1)
    made = [(p.value, p.makespan_ns / ideal - 1) for p in found.points if p.makespan_ns is not None]
    proven = [(p.value, max(p.lower_bound_ns / ideal - 1, 0.0)) for p in found.points]
    for i in range(1, len(made)):
        made[i] = made[i][0], min(made[i][1], made[i - 1][1])
    for i in reversed(range(len(proven) - 1)):
        proven[i] = proven[i][0], max(proven[i][1], proven[i + 1][1])
    edge = found.least or found.impossible or found.points[-1].value
    left, right = (found.impossible or edge) / 2, edge * 2
    if found.over == "budget":
        left, right = max(left, 0.97 * found.least_budget_bytes), min(right, found.points[-1].value)
    with style.context("default"):
        figure = Figure(figsize=(9.0, 5.0), dpi=150, layout="constrained")
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_xlim(left / scale, right / scale)
        _regions(axes, found.impossible, found.least, scale)
        for points, where, colour, label in (
            (made, "post", COLOURS["stall"], "schedules"),
            (proven, "pre", COLOURS["compute"], "lower bound"),
        ):
            axes.step(
                [value / scale for value, _ in points],
                [100 * overhead for _, overhead in points],
                where=where,  # type: ignore[arg-type]
                color=colour,
                marker=".",
                label=label,
            )
        axes.axhline(100 * found.overhead, color="black", linestyle="--", linewidth=1.0, label="asked for")
        inside = [y for points in (made, proven) for x, y in points if left <= x <= right]
        axes.set_ylim(0, 100 * _HEADROOM * min(max([2 * found.overhead, *inside]), 4 * found.overhead + 0.05))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.tick_params(axis="x", which="minor", labelsize=8)
        axes.set_xlabel(f"{found.over} ({unit}, logarithmic)")
        axes.set_ylabel("overhead over the ideal (%)")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper right", framealpha=0.9, edgecolor="none", fontsize=8)
        told = "none was found" if found.least is None else format_value(found.over, found.least)
        figure.suptitle(
            f"{found.instance}: the least {found.over} within {found.overhead:.0%}: {told}", fontsize=11
        )
        footnote(figure, caption(f"{found.method}, {found.memory_model} memory", found.made))
        return png(figure)


def batch_picture(found: Mapping[str, LargestBatch], asked: int | None = None) -> bytes:
    """Draw which batches fit, and what they cost, as PNG.

    Above, a bar for each way of training: yes by a schedule, no by proof, between them unknown. Below, the
    overheads of the schedules and, thin and dotted, what is proven of any.

    Parameters
    ----------
    found
        By the name of a way, what a search for its largest batch has found.
    asked
        A batch to be marked.
    """
    first = next(iter(found.values()))
    ends = [b for one in found.values() for b in (one.largest_batch, one.excluded_from) if b is not None]
    shown = [*ends, *([] if asked is None else [asked])] or [1]
    left, right = max(min(shown) // 4, 1), 2 * max(shown)
    with style.context("default"):
        figure = Figure(figsize=(9.0, 4.2 + 0.35 * len(found)), dpi=150, layout="constrained")
        above, below = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [0.5 + 0.35 * len(found), 3]}
        )
        for row, one in enumerate(found.values()):
            _bar(above, row, one, left, right)
        above.set_yticks(range(len(found)), list(found))
        above.invert_yaxis()
        above.tick_params(axis="y", length=0)
        for (name, one), colour in zip(found.items(), _LINES * len(found), strict=False):
            _overheads(below, name, one, colour)
        if first.overhead is not None:
            below.axhline(
                100 * first.overhead, color="black", linestyle="--", linewidth=1.0, label="asked for"
            )
        for axes in (above, below):
            axes.set_xscale("log", base=2)
            axes.set_xlim(left, right)
            axes.spines[["top", "right"]].set_visible(False)
            if asked is not None:
                axes.axvline(asked, color="#444444", linewidth=1.0)
        if asked is not None:
            above.annotate(
                f"batch {asked}",
                (asked, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, 3),
                textcoords="offset points",
                fontsize=8,
            )
        below.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        below.xaxis.set_minor_formatter(NullFormatter())
        costs = [p.overhead for one in found.values() for p in one.points if p.overhead is not None]
        below.set_ylim(0, 100 * _HEADROOM * min(max([0.05, first.overhead or 0.0, *costs]), _MOST))
        below.set_xlabel("batch (logarithmic)")
        below.set_ylabel("overhead over the ideal (%)")
        below.plot([], [], color="#444444", linewidth=0.8, linestyle=":", label="proven of any schedule")
        below.legend(loc="upper left", framealpha=0.9, edgecolor="none", fontsize=8)
        size, scale = size_unit(first.budget_bytes)
        figure.suptitle(
            f"{first.network} on {first.device}, {first.budget_bytes / scale:.2f} {size}: which batches fit",
            fontsize=11,
        )
        footnote(figure, caption(f"{first.memory_model} memory", first.made))
        return png(figure)


def _regions(axes: Axes, impossible: int | None, least: int | None, scale: float) -> None:
    """Colour where the answer is no, unknown and yes, and say so."""
    left, right = axes.get_xlim()
    no, yes = left if impossible is None else impossible / scale, right if least is None else least / scale
    for begin, end, colour, word in (
        (left, no, _NO, "no: proven"),
        (no, yes, _UNKNOWN, ""),
        (yes, right, _YES, "yes: a schedule"),
    ):
        if begin < end:
            axes.axvspan(begin, end, color=colour, linewidth=0, zorder=0)
            if word:
                middle = (begin * end) ** 0.5
                axes.text(middle, 0.02, word, transform=axes.get_xaxis_transform(), ha="center", fontsize=8)


def _bar(axes: Axes, row: int, found: LargestBatch, left: int, right: int) -> None:
    """Colour a row up to the largest batch, from the least that is excluded on, and between them."""
    yes, no = max(found.largest_batch or 0, left), found.excluded_from or right
    unknown = max(no - 1, yes)
    for begin, end, colour in ((left, yes, _YES), (yes, unknown, _UNKNOWN), (unknown, right, _NO)):
        axes.barh(row, end - begin, left=begin, height=0.7, color=colour, linewidth=0)
    told = "no schedule was found" if found.largest_batch is None else f"{found.largest_batch} fit"
    if found.excluded_from is not None:
        told += f", {found.excluded_from} cannot"
    axes.text(1.05 * left, row, told, va="center", fontsize=8)


def _overheads(axes: Axes, name: str, found: LargestBatch, colour: str) -> None:
    """Draw the overheads of schedules, and the bounds under them."""
    made = [(point.batch, point.overhead) for point in found.points if point.overhead is not None]
    if made:
        _line(axes, made, colour, marker="o", markersize=3, linewidth=1.0, label=name)
        proven = [(p.batch, p.least_overhead) for p in found.points if p.overhead is not None]
        _line(axes, proven, colour, linewidth=0.8, linestyle=":")


def _line(axes: Axes, points: Sequence[tuple[int, float]], colour: str, **how: object) -> None:
    axes.plot([x for x, _ in points], [100 * y for _, y in points], color=colour, **how)  # type: ignore[arg-type]
