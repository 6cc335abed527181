"""The page of tensors in parts: tables beside those of whole tensors, and the picture of both frontiers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from matplotlib.image import imread
from msgspec.structs import replace

import parts
from core_grid import setting
from frontiers_plot import frontiers_picture
from pebbler.benchmark.output.machine import Origin
from pebbler.benchmark.sweeps.jobs import Found
from pebbler.benchmark.sweeps.results import Results, Run
from pebbler.validate.schedule import MemoryModel

from ..benchmark.swept import ABOUT


def run(
    percentage: int,
    makespan: int | None,
    bound: int,
    method: str = parts.METHOD,
    memory: MemoryModel = "paged",
    seconds: float = 60.0,
) -> Run:
    name = f"net/1/K40/{percentage}%"
    return Run(
        fingerprint=f"{name} {method} {memory} {seconds}",
        about=dataclasses.replace(
            ABOUT,
            problem=name,
            problem_sha256=f"{percentage:064}",
            budget_bytes=percentage * 2**20,
        ),
        seed=0,
        setting=setting(memory, seconds, method=method),
        found=Found(
            status="unknown" if makespan is None else "feasible",
            stopped_by="time limit",
            iteration_ns=makespan,
            ideal_ns=1_000_000,
            lower_bound_ns=bound,
            bound_by="flow-partial-highs",
            certified=True,
        ),
        wall_seconds=None,
        date="2026-01-02",
        origin=Origin("a machine", "3.11.7", {"pebbler": "0.1.0"}, None),
    )


def test_cells_stand_beside_whole_tensors_and_are_measured_against_both_bounds() -> None:
    found = [run(50, 1_020_000, 1_000_000), run(75, 1_000_000, 1_000_000)]
    whole = [run(50, 1_300_000, 1_200_000, "flow"), run(50, 1_250_000, 1_190_000, "flow", "contiguous")]
    text = parts.report(found, whole)
    row = next(line for line in text.splitlines() if line.startswith("| net/1/K40/50%"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells == [
        "net/1/K40/50%",
        "1.000 ms (flow-partial-highs)",
        "",
        "1.020 ms (2.00%)",
        "1.200 ms",
        "1.250 ms (5.04%)",
        "1.300 ms (8.33%)",
        "",
        "-15.0%",
    ]


def test_each_time_limit_has_its_target() -> None:
    quick = [run(50, 1_020_000, 1_000_000), run(75, 1_010_000, 1_000_000)]
    text = parts.report([*quick, run(50, 1_020_000, 1_000_000, seconds=600.0)], [])
    short, long = text.split("## 600 s a cell")
    assert "2.00% at worst (met: 3.00%); 2 are within" in short
    assert "The hardest, the worst first: net/1/K40/50%, net/1/K40/75%." in short
    assert "2.00% at worst (missed: 1.50%); 0 are within" in long
    assert "The hardest" not in long
    assert "without such a run, and with these gaps in less time: net/1/K40/75% (1.00%).\n" in long


def test_a_cell_without_a_schedule_says_so_and_meets_nothing() -> None:
    text = parts.report([run(50, None, 1_000_000), run(75, 1_000_000, 1_000_000)], [])
    assert "no schedule" in text
    assert "at worst (missed: 3.00%); 1 are within" in text


def _lines(variants: dict[str, list[Run]], monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """Draw, and return the heights of all steps by their labels."""
    figures = []
    monkeypatch.setattr("frontiers_plot.png", lambda figure: figures.append(figure) or b"")
    frontiers_picture(variants)
    return {
        str(line.get_label()): [float(y) for y in line.get_ydata()]
        for axes in figures[0].axes
        for line in axes.get_lines()
    }


def test_schedules_serve_larger_budgets_and_bounds_hold_for_smaller_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [run(75, 1_400_000, 1_100_000), run(50, 1_300_000, 1_050_000), run(30, 1_500_000, 1_200_000)]
    lines = _lines({"tensors in parts": found}, monkeypatch)
    assert lines["tensors in parts: schedules"] == pytest.approx([0.5, 0.3, 0.3])
    assert lines["tensors in parts: lower bounds"] == pytest.approx([0.2, 0.1, 0.1])


def test_panels_that_are_ideal_throughout_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    other = run(50, 1_000_000, 1_000_000)
    flat = replace(other, about=dataclasses.replace(other.about, network="flat"))
    lines = _lines({"whole tensors": [flat]}, monkeypatch)
    assert lines == {}


def test_the_command_writes_page_and_picture(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "picture.png"
    page.write_text(f"before\n{parts.BEGIN}{parts.END}after\n", encoding="utf-8")
    for name, method in (("parts", parts.METHOD), ("whole", "flow")):
        with Results(tmp_path / f"{name}.sqlite", write=True) as results:
            results.add(run(50, 1_020_000, 1_000_000, method))
    parts.main(
        [
            *("--cells", "none", "--data", str(tmp_path / "parts.sqlite")),
            *("--whole", str(tmp_path / "whole.sqlite"), "--write", str(page), "--picture", str(picture)),
        ]
    )
    assert "1.020 ms (2.00%)" in page.read_text(encoding="utf-8")
    assert imread(picture).shape[1] > 1000
