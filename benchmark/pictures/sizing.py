"""Pictures of sizing questions: where the answer is yes, where no, where nobody knows, with the overheads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from ..comparison.largest_batch import LargestBatch
from ..comparison.least import Least, format_value
from ..output.captions import caption
from ..output.drawing import footnote, png, size_unit
from ..output.series import label_ends
from ..output.series import style as look

_YES, _NO, _UNKNOWN = "#b7ddb0", "#f2b8b5", "#dddddd"
_ROOM = 0.35
"""Share of an axis in which what is said of a region has room beside the region's end."""
_TEXT = 10
"""Size of words within a picture, in points: that of the axes' figures."""
_HEADROOM, _MOST, _LEAST_TOP = 1.15, 1.0, 0.01
"""How far an axis goes over what it shows, the overhead over which none is shown, and the least top."""


def least_picture(found: Least) -> bytes:
    """Draw overheads against links, budgets or host memory, as PNG, with the regions of the answers behind.

    A schedule serves every larger value, so its step goes to the right; a bound holds for every smaller one,
    so its step goes to the left.
    """
    unit, scale = ("GB/s", 10**9) if found.over == "link" else size_unit(found.least or found.impossible or 1)
    over, reference = "the ideal", found.ideal_ns
    if found.unlimited_ns is not None:
        over, reference = "unlimited host memory", found.unlimited_ns
    reference = max(reference, 1)
    made = [(p.value, p.makespan_ns / reference - 1) for p in found.points if p.makespan_ns is not None]
    proven = [(p.value, max(p.lower_bound_ns / reference - 1, 0.0)) for p in found.points]
    for i in range(1, len(made)):
        made[i] = made[i][0], min(made[i][1], made[i - 1][1])
    for i in reversed(range(len(proven) - 1)):
        proven[i] = proven[i][0], max(proven[i][1], proven[i + 1][1])
    most = max(found.points[-1].value, 1)
    edge = found.least or found.impossible or most
    left, right = (found.impossible or edge) / 2, edge * 2
    if found.over != "link":
        right = min(right, most)
    if found.over == "budget":
        left = max(left, 0.97 * found.least_budget_bytes)
    with style.context("default"):
        figure = Figure(figsize=(9.0, 5.0), dpi=150, layout="constrained")
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_xlim(left / scale, right / scale)
        _regions(axes, found, scale)
        for points, where, how in (
            (made, "post", {**look(0), "label": "schedules"}),
            (proven, "pre", {"color": "black", "marker": ".", "linewidth": 1.2, "label": "lower bound"}),
        ):
            axes.step(
                [value / scale for value, _ in points],
                [100 * overhead for _, overhead in points],
                where=where,  # type: ignore[arg-type]
                **how,
            )
        _draw_limit(axes, found.overhead)
        inside = [y for points in (made, proven) for x, y in points if left <= x <= right]
        top = min(max([2 * found.overhead, _LEAST_TOP, *inside]), 4 * found.overhead + 0.05)
        axes.set_ylim(0, 100 * _HEADROOM * top)
        narrow = right < 4 * left
        axes.xaxis.set_major_locator(MaxNLocator(7) if narrow else LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlabel(f"{found.sought} ({unit}, logarithmic)")
        axes.set_ylabel(f"overhead over {over} (%)")
        axes.spines[["top", "right"]].set_visible(False)
        label_ends(axes)
        told = "none was found" if found.least is None else format_value(found.over, found.least)
        figure.suptitle(
            f"{found.instance}: the least {found.sought} within {found.overhead:.0%}: {told}", fontsize=12
        )
        limits = found.limits
        if found.over == "host-memory":
            limits = msgspec.structs.replace(limits, host_ends=True)
        footnote(
            figure,
            caption(
                f"{found.method}, {found.time_limit:g} s, {found.memory_model} memory",
                found.made,
                limits,
            ),
        )
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
    left, right = max(min(shown) // 2, 1), math.ceil(1.3 * max(shown))
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
        for i, (name, one) in enumerate(found.items()):
            _overheads(below, name, one, look(i))
        if first.overhead is not None:
            _draw_limit(below, first.overhead)
        for axes in (above, below):
            axes.set_xscale("log", base=2)
            axes.set_xlim(left, right)
            if right < 8 * left:
                axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
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
                fontsize=_TEXT,
            )
        below.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        below.xaxis.set_minor_formatter(NullFormatter())
        costs = [p.overhead for one in found.values() for p in one.points if p.overhead is not None]
        below.set_ylim(0, 100 * _HEADROOM * min(max([0.05, first.overhead or 0.0, *costs]), _MOST))
        below.set_xlabel("batch (logarithmic)")
        below.set_ylabel("overhead over the ideal (%)")
        dotted = Line2D([], [], color="#444444", linewidth=1.2, linestyle=":", label="proven of any schedule")
        below.legend(handles=[dotted], loc="upper left", framealpha=0.9, edgecolor="none", fontsize=_TEXT)
        label_ends(below)
        size, scale = size_unit(first.budget_bytes)
        figure.suptitle(
            f"{first.network} on {first.device}, {first.budget_bytes / scale:.2f} {size}: which batches fit",
            fontsize=12,
        )
        footnote(figure, caption(f"{first.memory_model} memory", first.made, first.limits))
        return png(figure)


def _draw_limit(axes: Axes, overhead: float) -> None:
    """Draw the overhead that is asked for."""
    axes.axhline(
        100 * overhead, color="black", linestyle="--", linewidth=1.0, label=f"{overhead:.0%} asked for"
    )


def _regions(axes: Axes, found: Least, scale: float) -> None:
    """Colour where the answer is no, unknown and yes, and say so above, where the regions end."""
    left, right = axes.get_xlim()
    no = left if found.impossible is None else found.impossible / scale
    yes = right if found.least is None else max(found.least / scale, left)
    for begin, end, colour in ((left, no, _NO), (no, yes, _UNKNOWN), (yes, right, _YES)):
        if begin < end:
            axes.axvspan(begin, end, color=colour, linewidth=0, zorder=0)
    told = {
        "right": ("no, proven, up to", found.impossible),
        "left": ("yes, by a schedule, from", found.least),
    }
    edges = {"right": math.log(no / left), "left": math.log(right / yes)}
    for side, (word, value) in told.items():
        if value is None:
            continue
        roomy = edges[side] > _ROOM * math.log(right / left)
        inner, outer = (no, left) if side == "right" else (yes, right)
        outward = "left" if side == "right" else "right"
        axes.annotate(
            f"{word} {format_value(found.over, value)}",
            (inner if roomy else outer, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=((-3 if side == "right" else 3) if roomy else 0, 4 if roomy else 20),
            textcoords="offset points",
            ha=side if roomy else outward,
            fontsize=_TEXT,
        )


def _bar(axes: Axes, row: int, found: LargestBatch, left: int, right: int) -> None:
    """Colour a row up to the largest batch, from the least that is excluded on, and between them."""
    yes, no = max(found.largest_batch or 0, left), found.excluded_from or right
    unknown = max(no - 1, yes)
    for begin, end, colour in ((left, yes, _YES), (yes, unknown, _UNKNOWN), (unknown, right, _NO)):
        axes.barh(row, end - begin, left=begin, height=0.7, color=colour, linewidth=0)
    told = "no schedule was found" if found.largest_batch is None else f"{found.largest_batch} fit"
    if found.excluded_from is not None:
        told += f", {found.excluded_from} cannot"
    axes.text(1.05 * left, row, told, va="center", fontsize=_TEXT)


def _overheads(axes: Axes, name: str, found: LargestBatch, how: Mapping[str, Any]) -> None:
    """Draw the overheads of schedules, and the bounds under them."""
    shown = [point for point in found.points if point.overhead is not None]
    batches = [point.batch for point in shown]
    axes.plot(batches, [100 * (point.overhead or 0.0) for point in shown], label=name, **how)
    proven = [100 * point.least_overhead for point in shown]
    axes.plot(batches, proven, color=how["color"], linewidth=1.2, linestyle=":", label=f"_{name}, proven")
