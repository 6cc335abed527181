from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from pebbler.benchmark.comparison.frontier import Frontier
from pebbler.benchmark.comparison.frontier import Point as Budget
from pebbler.benchmark.comparison.largest_batch import LargestBatch
from pebbler.benchmark.comparison.largest_batch import Point as Batch
from pebbler.benchmark.comparison.least import Least
from pebbler.benchmark.comparison.least import Point as Value
from pebbler.benchmark.output.series import COLOURS
from pebbler.benchmark.pictures import frontier as frontiers
from pebbler.benchmark.pictures import sizing

GB = 10**9


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are written, as they are then."""
    figures: list[Figure] = []

    def keep(figure: Figure) -> bytes:
        FigureCanvasAgg(figure).draw()
        figures.append(figure)
        return b""

    monkeypatch.setattr(sizing, "png", keep)
    monkeypatch.setattr(frontiers, "png", keep)
    return figures


def words(figure: Figure) -> list[Text]:
    texts: list[Any] = figure.findobj(Text)
    return [text for text in texts if text.get_visible() and text.get_text().strip()]


def require_legible(figure: Figure) -> None:
    """Every text but the note is as large as the axes' figures and in the picture; none overlaps another."""
    shown = [text for text in words(figure) if text.get_fontsize() > 8.5]
    assert all(text.get_fontsize() >= 10 for text in shown)
    beyond = {  # figures of an axis beyond its ends, which are not shown
        tick.label1
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown if text not in beyond]
    for (_, one), (_, other) in combinations(boxes, 2):
        assert not one.padded(-1).overlaps(other.padded(-1)), boxes
    width, height = figure.canvas.get_width_height()
    assert all(box.x0 >= -2 and box.x1 <= width + 2 and box.y1 <= height + 2 for _, box in boxes), boxes


def least(over: str, impossible: int | None, enough: int | None, values: dict[int, float]) -> Least:
    """What was found where schedules have these overheads, and bounds half of them."""
    return Least(
        instance="net-b8",
        over=over,  # type: ignore[arg-type]
        method="modnn,flow",
        memory_model="contiguous",
        overhead=0.05,
        time_limit=45.0,
        budget_bytes=None if over == "budget" else 2**33,
        least_budget_bytes=2**32,
        least_host_bytes=0 if over == "host-memory" else None,
        unlimited_ns=10**9 if over == "host-memory" else None,
        ideal_ns=10**9,
        longest_ns=1_050_000_000,
        least=enough,
        impossible=impossible,
        certified_impossible=impossible,
        points=tuple(
            Value(
                value=value,
                makespan_ns=round(1e9 * (1 + overhead)),
                method="flow",
                lower_bound_ns=round(1e9 * (1 + overhead / 2)),
                bound_by="flow",
                certified_lower_bound_ns=0,
                answer="unknown",
                stopped_by="done",
            )
            for value, overhead in values.items()
        ),
        stopped_by="done",
        made=("2026-01-02: a machine",),
    )


OF_LEAST: dict[str, tuple[str, int | None, int | None, dict[int, float]]] = {
    "both": ("link", 9 * GB, 10 * GB, {2 * GB: 0.6, 9 * GB: 0.12, 10 * GB: 0.05, 20 * GB: 0.0}),
    "no proof": ("link", None, 10 * GB, {10 * GB: 0.05, 90 * GB: 0.0}),
    "no schedule": ("link", 9 * GB, None, {9 * GB: 0.6}),
    "at the least budget": (
        *("budget", 2**32 + 2**26, 2**32 + 2**27),
        {2**32 + 2**26: 0.2, 2**32 + 2**27: 0.0, 2**33: 0.0},
    ),
    "at the peak": (
        *("budget", 2**33 - 2**26, 2**33 - 2**25),
        {2**32: 3.0, 2**33 - 2**26: 0.2, 2**33: 0.0},
    ),
    "host": ("host-memory", 2**32, 2**32 + 2**29, {2**32: 0.5, 2**32 + 2**29: 0.04, 2**33: 0.0}),
    "no host": ("host-memory", None, 0, {0: 0.0, 2**33: 0.0}),
}
FEW_OF_LEAST = ("no schedule", "at the peak", "no host")


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(least(*asked), id=name, marks=() if name in FEW_OF_LEAST else pytest.mark.slow)
        for name, asked in OF_LEAST.items()
    ],
)
def test_the_least_value_is_told_legibly(found: Least, drawn: list[Figure]) -> None:
    sizing.least_picture(found)
    (figure,) = drawn
    require_legible(figure)
    said = [text.get_text() for text in words(figure)]
    assert any(text.startswith("no, proven, up to") for text in said) == (found.impossible is not None)
    assert any(text.startswith("yes, by a schedule, from") for text in said) == (found.least is not None)
    assert {"schedules", "lower bound", "5% asked for"} <= set(said)
    (note,) = [text for text in said if "45 s" in text]
    assert ("host memory is unlimited" in note) == (found.over != "host-memory")
    (upwards,) = [text for text in said if text.startswith("overhead over")]
    assert ("unlimited host memory" in upwards) == (found.over == "host-memory")


def batches(name: str, overheads: dict[int, float | None], limit: float | None = None) -> LargestBatch:
    fits = [batch for batch, overhead in overheads.items() if overhead is not None]
    cannot = [batch for batch, overhead in overheads.items() if overhead is None]
    return LargestBatch(
        network="net",
        device="v100",
        method=name,
        memory_model="contiguous",
        budget_bytes=2**33,
        overhead=limit,
        largest_batch=max(fits, default=None),
        excluded_from=min(cannot, default=None),
        limited_by=None,
        points=tuple(
            Batch(
                batch=batch,
                least_budget_bytes=2**30,
                ideal_ns=10**9,
                makespan_ns=None if overhead is None else round(1e9 * (1 + overhead)),
                lower_bound_ns=10**9,
                bound_by="compute",
                certified=True,
                within=overhead is not None,
                excluded_by="budget" if overhead is None else None,
                stopped_by=None,
                method=None,
            )
            for batch, overhead in overheads.items()
        ),
        stopped_by="done",
    )


@pytest.mark.parametrize(
    ("found", "asked"),
    [
        ({"one": batches("one", {64: 0.0, 100: 0.04, 101: None}, limit=0.05)}, None),
        (
            {
                "in memory": batches("in memory", {13: 0.0, 14: None}),
                "recomputation": batches("recomputation", {13: 0.0, 16: 0.01, 31: 0.2, 33: None}),
                "copies": batches("copies", {13: 0.0, 16: 0.0, 32: 0.5, 33: None}),
                "both": batches("both", {13: 0.0, 16: 0.0, 32: 0.5, 33: None}),
            },
            16,
        ),
        ({"none": batches("none", {1: None}), "small": batches("small", {1: 0.0, 2: None})}, 1),
    ],
    ids=["one way", "four ways", "nothing fits"],
)
def test_ways_of_training_have_colours_and_their_names_at_the_ends(
    found: dict[str, LargestBatch], asked: int | None, drawn: list[Figure]
) -> None:
    sizing.batch_picture(found, asked)
    (figure,) = drawn
    require_legible(figure)
    below = figure.axes[1]
    named = {line.get_label(): line.get_color() for line in below.get_lines() if line.get_label() in found}
    assert list(named.values()) == list(COLOURS[: len(found)])
    said = [text.get_text() for text in below.texts]
    assert all(name in said or f"{name}: no schedule" in said for name in found)


def test_lines_of_a_frontier_that_end_together_are_told_apart(drawn: list[Figure]) -> None:
    def frontier(method: str, *times: int) -> Frontier:
        return Frontier(
            instance="net-b8",
            instance_sha256=method,
            method=method,
            memory_model="contiguous",
            seed=0,
            time_limit=10.0,
            ideal_ns=10 * 10**6,
            least_budget_bytes=2**20,
            peak_bytes=len(times) * 2**20,
            points=tuple(
                Budget(
                    budget_bytes=i * 2**20,
                    makespan_ns=time * 10**6,
                    solved_at_bytes=i * 2**20,
                    lower_bound_ns=(time + 10) * 10**6 // 2,
                    bound_by="flow",
                    certified_lower_bound_ns=10 * 10**6,
                    own_makespan_ns=time * 10**6,
                    own_lower_bound_ns=10 * 10**6,
                    own_bound_by="flow",
                    stopped_by="done",
                    method=method,
                )
                for i, time in enumerate(times, start=1)
            ),
        )

    frontiers.frontier_picture([frontier("flow", 30, 20, 10), frontier("flow-parts", 25, 15, 10)])
    (figure,) = drawn
    require_legible(figure)
    said = {text.get_text() for text in figure.axes[0].texts}
    assert {"flow", "flow-parts", "bound of net-b8", "certified bound of net-b8", "ideal, no limit"} <= said
    assert any("10 s a point" in text.get_text() for text in words(figure))
