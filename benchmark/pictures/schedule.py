"""Pictures: the timeline of a schedule, and methods side by side.

Colours are those of Okabe and Ito, which colour-blind people can distinguish. The same input gives the same
bytes, whatever the user's matplotlib settings.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from msgspec import UNSET

from ...instances.arguments import require_instance, require_kind
from ...instances.instance import Instance
from ...instances.memory import ideal_ns, least_budget
from ...instances.units import format_size, format_time
from ...validate.gpus.program import gradient_of, part_of
from ...validate.measures import host_curve
from ...validate.schedule import Operation, Schedule, Stream, require_schedule
from ..output.captions import caption, limits_of
from ..output.drawing import footnote, png, size_unit, time_unit
from ..output.series import label_ends
from ..output.usage import memory_use

if TYPE_CHECKING:
    from ..comparison.result import Comparison, Row

COLOURS = {
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "compute": "#0072B2",
    "update": "#661100",
    "stall": "#D55E00",
    "offload": "#E69F00",
    "prefetch": "#009E73",
    "move": "#CC79A7",
    "send": "#F0E442",
    "accumulate": "#882255",
    "exchange": "#332288",
    "return": "#117733",
    "reduce": "#882255",
    "resident": "#999999",
    "carried": "#3E8FB0",
    "blocks": "#A6D3EE",
    "workspaces": "#CC79A7",
}
"""Colours of tasks, copies and kinds of memory."""

_DARK = ("backward", "update", "accumulate", "exchange", "return", "reduce")
"""Kinds whose colours are dark, so that names on them are white."""

_ROWS: dict[Stream, str] = {
    "compute": "compute",
    "d2h": "to the host",
    "h2d": "to the device",
    "copy": "copies",
    "host": "on the host",
    "cpu": "the host's cores",
    "network": "network",
    "nvlink": "NVLink",
}
"""Title of each stream."""

_MOST_EDGES = 200
"""Greatest number of bars in a row that are drawn separately, with names; more are merged if they touch."""

_LETTER = 0.0585
"""Width in inches of a letter of a name on a bar."""


_THICK = 0.8
"""Height of a bar as a share of its row."""


class _Span(NamedTuple):
    """A bar in nanoseconds, with its name."""

    start: int
    end: int
    name: str


def timeline(instance: Instance, schedule: Schedule, made: str | None = None) -> bytes:
    """Draw one round of a schedule as PNG: the streams as bars, above the memory in use.

    Runs on the host have a row of their own. Where host memory has a budget, copies there are drawn below.
    Blocks that are carried are a layer of the memory of their own, whose height is the same at both ends.
    For several GPUs, the streams of the first GPU and the host's cores are drawn.

    Parameters
    ----------
    instance, schedule
        The schedule, and the instance that it is for.
    made
        When, where and with which versions it was found; by default the picture does not say this.

    Returns
    -------
    bytes
        The PNG file.

    Raises
    ------
    PebblerError
        If this is no instance or no schedule.
    """
    require_instance(instance)
    require_schedule(schedule)
    unit, scale = time_unit(schedule.makespan_ns)
    if instance.cluster is not UNSET:
        schedule = part_of(schedule, 0, "cpu")
    with style.context("default"):
        host = [0.6] if schedule.host_peak_bytes is not UNSET else []
        figure = Figure(figsize=(10.0, 7.6 + 2.2 * len(host)), dpi=150, layout="constrained")
        streams, memory, *below = figure.subplots(
            2 + len(host), 1, sharex=True, height_ratios=(1.0, 1.0, *host)
        )
        _draw_streams(streams, instance, schedule, scale, schedule.makespan_ns, inches=2.8)
        _draw_memory(memory, instance, schedule, scale)
        for axes in below:
            _draw_host_memory(axes, instance, schedule, scale)
        memory.set_xlim(0, max(schedule.makespan_ns, 1) / scale)
        (below or [memory])[-1].set_xlabel(f"time ({unit})")
        figure.suptitle(_title(instance, schedule), fontsize=12)
        footnote(figure, _conditions(instance, schedule.memory_model, made))
        return png(figure)


def timelines(instance: Instance, schedules: Mapping[str, Schedule], title: str, note: str) -> bytes:
    """Draw several timings of one program, as PNG: the streams of each, above the memory in use of the last.

    Parameters
    ----------
    instance
        The instance of the program.
    schedules
        The program with different times, by a word for each; all have one axis.
    title, note
        Texts above and below the picture.
    """
    longest = max(schedule.makespan_ns for schedule in schedules.values())
    unit, scale = time_unit(longest)
    with style.context("default"):
        figure = Figure(figsize=(10.0, 3.6 + 3.4 * len(schedules)), dpi=150, layout="constrained")
        ratios = [1.0] * len(schedules) + [1.3]
        *rows, memory = figure.subplots(len(schedules) + 1, 1, sharex=True, height_ratios=ratios)
        for axes, (word, schedule) in zip(rows, schedules.items(), strict=True):
            _draw_streams(axes, instance, schedule, scale, longest, inches=2.6, gaps=False)
            axes.set_title(f"{word}: {format_time(schedule.makespan_ns)}", fontsize=10, loc="right")
        word, schedule = list(schedules.items())[-1]
        _draw_memory(memory, instance, schedule, scale)
        memory.set_title(f"memory, {word}", fontsize=10, loc="right")
        memory.set_xlim(0, max(longest, 1) / scale)
        memory.set_xlabel(f"time ({unit})")
        figure.suptitle(title, fontsize=12)
        footnote(figure, note)
        return png(figure)


def overview(comparison: Comparison, made: str | None = None) -> bytes:
    """Draw the methods of a comparison side by side, as PNG: iteration times and peaks.

    Parameters
    ----------
    comparison
        The comparison to draw.
    made
        When, where and with which versions the methods ran; by default the picture does not say this.

    Raises
    ------
    PebblerError
        If this is no comparison.
    """
    from ..comparison.result import Comparison

    require_kind("comparison", comparison, Comparison, "give what compare returns")
    rows = comparison.rows
    longest = max((row.figures.iteration_ns for row in rows if row.figures), default=1)
    unit, scale = time_unit(longest)
    with style.context("default"):
        figure = Figure(figsize=(10.0, 2.7 + 0.42 * len(rows)), dpi=150, layout="constrained")
        times, peaks = figure.subplots(1, 2, sharey=True, width_ratios=(1.7, 1.0))
        _draw_times(times, comparison, unit, scale)
        _draw_peaks(peaks, comparison)
        times.set_yticks(range(len(rows)), [row.method for row in rows])
        times.set_ylim(len(rows) - 0.5, -0.5)
        figure.suptitle(f"{comparison.instance.name}: one training iteration", fontsize=12)
        footnote(figure, _conditions(comparison.instance, comparison.memory, made))
        return png(figure)


# --- timeline -----------------------------------------------------------------------------------------


def _draw_streams(
    axes: Axes,
    instance: Instance,
    schedule: Schedule,
    scale: int,
    length: int,
    *,
    inches: float,
    gaps: bool = True,
) -> None:
    """Draw the streams on an axis of `length` nanoseconds, so many inches high, roughly.

    Without gaps, even thin bars are visible.
    """
    used = {"compute", *(operation.stream for operation in schedule.operations)}
    used |= {"d2h", "h2d"} if instance.engines == "duplex" else {"copy"}
    rows = [stream for stream in _ROWS if stream in used]
    counts: dict[str, int] = defaultdict(int)
    spans: dict[tuple[Stream, str], list[_Span]] = defaultdict(list)
    for operation in schedule.operations:
        kind, name = _kind_and_name(instance, operation)
        counts[operation.stream] += 1
        spans[operation.stream, kind].append(_Span(operation.start_ns, operation.end_ns, name))
    if stalls := _stalls(schedule):
        spans["compute", "stall"] = stalls
    shown = [kind for kind in COLOURS if any((stream, kind) in spans for stream in rows)]
    for (stream, kind), bars in spans.items():
        apart = counts[stream] <= _MOST_EDGES
        drawn = bars if apart else _merge(bars)
        y = rows.index(stream)
        axes.broken_barh(
            [(bar.start / scale, (bar.end - bar.start) / scale) for bar in drawn],
            (y - _THICK / 2, _THICK),
            facecolors=COLOURS[kind],
            edgecolor=("white" if gaps else "face") if apart else "none",
            linewidth=0.3 if apart else 0.0,
        )
        if apart and kind != "stall":
            _write_names(axes, drawn, kind, y, length, scale, inches / len(rows))
    for kind in shown:
        axes.broken_barh([], (0, 0), facecolors=COLOURS[kind], label=kind)
    axes.set_yticks(range(len(rows)), [_ROWS[stream] for stream in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(**_ABOVE, ncols=len(shown))


def _kind_and_name(instance: Instance, operation: Operation) -> tuple[str, str]:
    """Return the colour of an operation, and its name; tasks of networks are named after their pass."""
    if operation.gradient is not None:
        return operation.kind, gradient_of(instance, operation).name
    if operation.task is None:
        assert operation.block is not None
        return operation.kind, instance.blocks[operation.block].name
    name = instance.tasks[operation.task].name
    if name.startswith("FP("):
        return "forward", name
    if name.startswith("OPT("):
        return "update", name
    return ("backward" if name.startswith("BP") else "compute"), name


def _stalls(schedule: Schedule) -> list[_Span]:
    runs = [operation for operation in schedule.operations if operation.stream == "compute"]
    marks = [0, *(time for run in runs for time in (run.start_ns, run.end_ns)), schedule.makespan_ns]
    return [_Span(marks[i], marks[i + 1], "") for i in range(0, len(marks), 2) if marks[i + 1] > marks[i]]


def _merge(spans: Sequence[_Span]) -> list[_Span]:
    """Join bars that touch."""
    merged: list[_Span] = []
    for span in spans:
        if merged and merged[-1].end == span.start:
            merged[-1] = _Span(merged[-1].start, span.end, "")
        else:
            merged.append(span)
    return merged


def _write_names(
    axes: Axes, spans: Sequence[_Span], kind: str, y: int, length: int, scale: int, inches: float
) -> None:
    """Write a name on every bar that has room for it, across or else upwards; rows have so many inches."""
    longest = int(_THICK * inches / _LETTER)
    for start, end, name in spans:
        share = (end - start) / max(length, 1)
        across = share > 0.0082 * len(name) + 0.005
        if across or (share > 0.0165 and len(name) <= longest):
            axes.text(
                (start + end) / 2 / scale,
                y,
                name,
                ha="center",
                va="center",
                rotation=0 if across else 90,
                fontsize=7.5,
                color="white" if kind in _DARK else "black",
                clip_on=True,
            )


def _draw_memory(axes: Axes, instance: Instance, schedule: Schedule, scale: int) -> None:
    use = memory_use(schedule)
    unit, size = size_unit(max(schedule.peak_bytes, 1))
    times = [instant / scale for instant in use.instants]
    others = [both - carried for both, carried in zip(use.blocks, use.carried, strict=True)]
    layers = [
        ("resident", [instance.resident_bytes] * len(times)),
        *([("carried", [*use.carried])] if schedule.states else []),
        ("blocks", others),
        ("workspaces", [*use.workspaces]),
    ]
    base = [0.0] * len(times)
    for name, amounts in layers:
        top = [below + amount / size for below, amount in zip(base, amounts, strict=True)]
        axes.fill_between(times, base, top, step="post", color=COLOURS[name], linewidth=0, label=name)
        base = top
    axes.set_xlim(0, max(schedule.makespan_ns, 1) / scale)
    _draw_limits(axes, instance, schedule.peak_bytes, size)
    axes.set_ylabel(f"memory ({unit})")
    axes.spines[["top", "right"]].set_visible(False)
    fills = axes.collections
    axes.legend(handles=fills, **_ABOVE, ncols=len(fills))


def _draw_host_memory(axes: Axes, instance: Instance, schedule: Schedule, scale: int) -> None:
    """Draw the bytes of copies on the host, their budget and their highest byte."""
    assert instance.host_budget_bytes is not UNSET
    assert schedule.host_peak_bytes is not UNSET
    instants, levels = host_curve(schedule)
    budget, peak = instance.host_budget_bytes, schedule.host_peak_bytes
    is_far = _is_far(budget, peak)
    unit, size = size_unit(max(peak, 1))
    times = [instant / scale for instant in instants]
    amounts = [level / size for level in levels]
    axes.fill_between(times, 0, amounts, step="post", color=COLOURS["blocks"], linewidth=0)
    label = f"budget {format_size(budget)}"
    if is_far:
        axes.text(0.01, 0.99, f"{label}, far above", transform=axes.transAxes, va="top")
    else:
        axes.axhline(budget / size, color="black", linewidth=1.4, label=label)
    told = f"highest byte {format_size(peak)}"
    axes.axhline(peak / size, color="#D55E00", linewidth=1.0, linestyle=":", label=told)
    axes.set_ylim(0, (1.2 if is_far else 1.06) * max(peak, 1 if is_far else budget, 1) / size)
    axes.set_ylabel(f"on the host ({unit})")
    axes.spines[["top", "right"]].set_visible(False)
    label_ends(axes)


def _draw_limits(axes: Axes, instance: Instance, peak: int, size: int) -> None:
    """Draw the budget (unless it is far above), the highest byte in use, and the least budget."""
    budget, least = instance.budget_bytes, least_budget(instance)
    is_far = _is_far(budget, peak)
    label = f"budget {format_size(budget)}"
    if is_far:
        axes.text(0.01, 0.99, f"{label}, far above", transform=axes.transAxes, va="top")
    else:
        axes.axhline(budget / size, color="black", linewidth=1.4, label=label)
    axes.axhline(
        peak / size, color="#D55E00", linewidth=1.0, linestyle=":", label=f"highest byte {format_size(peak)}"
    )
    axes.axhline(
        least / size, color="black", linewidth=1.0, linestyle="--", label=f"least budget {format_size(least)}"
    )
    axes.set_ylim(0, (1.2 if is_far else 1.06) * max(peak, least, 0 if is_far else budget) / size)
    label_ends(axes)


def _title(instance: Instance, schedule: Schedule) -> str:
    ideal = ideal_ns(instance)
    overhead = (schedule.makespan_ns - ideal) / max(ideal, 1)
    rounds = f"{instance.rounds} rounds of " if instance.rounds > 1 else ""
    return (
        f"{instance.name} by {schedule.method}: {rounds}{format_time(schedule.makespan_ns)}, "
        f"{overhead:.1%} over the ideal, peak {format_size(schedule.peak_bytes)}"
    )


# --- overview -----------------------------------------------------------------------------------------


def _draw_times(axes: Axes, comparison: Comparison, unit: str, scale: int) -> None:
    solved = [(y, row.figures) for y, row in enumerate(comparison.rows) if row.figures is not None]
    places = [y for y, _ in solved]
    stalls = [figures.stall_ns / scale for _, figures in solved]
    computing = [(figures.iteration_ns - figures.stall_ns) / scale for _, figures in solved]
    axes.barh(places, computing, height=0.62, color=COLOURS["forward"], label="compute")
    axes.barh(places, stalls, left=computing, height=0.62, color=COLOURS["stall"], label="stall")
    for y, figures in solved:
        text = f"{format_time(figures.iteration_ns)}, gap {figures.optimality_gap:.1%}"
        _write(axes, figures.iteration_ns / scale, y, text, "white")
    for y, row in enumerate(comparison.rows):
        if row.figures is None:
            _write(axes, 0, y, _reason(row), "white")
    bound, ideal = comparison.bound, comparison.ideal_ns
    label = f"ideal {format_time(ideal)}"
    axes.axvline(ideal / scale, color="#BBBBBB", linewidth=4.0, label=label)
    label = f"lower bound {format_time(bound.lower_bound_ns)}"
    axes.axvline(bound.lower_bound_ns / scale, color="black", linewidth=1.2, linestyle="--", label=label)
    longest = max([bound.lower_bound_ns, ideal, *(figures.iteration_ns for _, figures in solved)])
    axes.set_xlim(0, 1.3 * max(longest, 1) / scale)
    axes.set_xlabel(f"iteration time ({unit})")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(**_ABOVE, ncols=2)


def _draw_peaks(axes: Axes, comparison: Comparison) -> None:
    solved = [(y, row.figures) for y, row in enumerate(comparison.rows) if row.figures is not None]
    budget, least = comparison.instance.budget_bytes, comparison.least_budget
    highest = max((figures.peak_bytes for _, figures in solved), default=1)
    unit, size = size_unit(highest)
    axes.barh(
        [y for y, _ in solved],
        [figures.peak_bytes / size for _, figures in solved],
        height=0.62,
        color=COLOURS["blocks"],
    )
    for y, figures in solved:
        _write(axes, 0, y, format_size(figures.peak_bytes), COLOURS["blocks"])
    is_far = _is_far(budget, highest)
    label = f"budget {format_size(budget)}" + (", far beyond" if is_far else "")
    if is_far:
        axes.plot([], [], color="black", linewidth=1.4, label=label)
    else:
        axes.axvline(budget / size, color="black", linewidth=1.4, label=label)
    axes.axvline(
        least / size, color="black", linewidth=1.2, linestyle="--", label=f"least {format_size(least)}"
    )
    axes.set_xlim(0, 1.08 * max(highest, least, 0 if is_far else budget) / size)
    axes.set_xlabel(f"peak memory ({unit})")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(**_ABOVE, ncols=2)


def _write(axes: Axes, x: float, y: int, text: str, background: str) -> None:
    """Write to the right of a point, so that it can be read where lines cross."""
    axes.annotate(
        text,
        (x, y),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        path_effects=[withStroke(linewidth=3.0, foreground=background)],
    )


def _reason(row: Row) -> str:
    return f"{row.status}: " + textwrap.shorten(row.stopped_by, 56, placeholder=" ...")


# --- shared -------------------------------------------------------------------------------------------


def _conditions(instance: Instance, memory: str, made: str | None) -> str:
    graph = instance.made_from.graph
    words = [f"graph {graph}"] if graph else []
    subject = "; ".join([*words, f"{instance.engines} copies", f"{memory} memory"])
    return caption(subject, [] if made is None else [made], limits_of(instance))


_ABOVE: dict[str, Any] = {
    "loc": "lower left",
    "bbox_to_anchor": (0.0, 1.0),
    "frameon": False,
    "fontsize": 10,
    "borderpad": 0.2,
    "borderaxespad": 0.2,
    "columnspacing": 1.4,
}
"""Place and look of a legend above the axes."""


def _is_far(budget: int, used: int) -> bool:
    """Return whether a line at the budget would leave little room for the memory in use."""
    return budget > 3 * used
