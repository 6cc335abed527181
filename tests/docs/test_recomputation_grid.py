"""The page of recomputation together with copies on a grid: its cells, its passes, its tables."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import recomputation_grid
from pebbler.benchmark.output.machine import Origin
from pebbler.benchmark.sweeps.jobs import Found
from pebbler.benchmark.sweeps.problems import WorkloadProblem
from pebbler.benchmark.sweeps.results import Run, read_latest
from pebbler.instances.workload import Workload
from recomputation_grid import BEGIN, END, LONG, SHORT, cells, in_parts, report, setting, wide

from ..benchmark.swept import ABOUT


def run(cell: str, makespan: int | None, seconds: float = SHORT) -> Run:
    return Run(
        fingerprint=f"{cell} {seconds}",
        about=dataclasses.replace(ABOUT, problem=cell, problem_sha256=f"{abs(hash(cell)):064}"[:64]),
        seed=0,
        setting=setting(seconds),
        found=Found(
            status="unknown" if makespan is None else "feasible",
            stopped_by="time limit",
            iteration_ns=makespan,
            ideal_ns=900_000,
            lower_bound_ns=1_000_000,
            bound_by="flow-recompute-lp-highs",
            certified=True,
        ),
        wall_seconds=None,
        date="2026-01-02",
        origin=Origin("a machine", "3.11.7", {"pebbler": "0.1.0"}, None),
    )


def test_cells_are_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputation_grid, "NETWORKS", (("gpt2", 8), ("resnet50", 64)))
    found = cells.__wrapped__()
    assert [cell.name for cell in found] == [
        *(f"gpt2/8/V100/{budget}" for budget in ("75%", "50%")),
        *(f"resnet50/64/V100/{budget}" for budget in ("75%", "50%", "35%", "25%")),
    ]
    assert found[0].workload == Workload("gpt2", 8, "V100")


def test_cells_with_a_wide_gap_get_more_time_the_widest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputation_grid, "NETWORKS", (("resnet50", 64),))
    some = cells.__wrapped__()
    names = [cell.name for cell in some]
    gaps = zip(names, (1_005_000, 1_020_000, None), strict=False)  # one has no run
    runs = [run(name, makespan) for name, makespan in gaps]
    assert [cell.name for cell in wide(some, runs)] == [names[2], names[1]]
    assert wide(some, [run(names[0], 1_500_000, LONG)]) == []


def test_a_longer_run_counts_where_it_is_better() -> None:
    runs = [run("a/1/V100/50%", 1_040_000), run("b/1/V100/50%", 1_020_000), run("c/1/V100/50%", 1_000_000)]
    text = report([*runs, run("a/1/V100/50%", 1_010_000, LONG)])
    assert "| 60 s | 3 | 2.00%, missed: 1.00% | 4.00%, missed: 3.00% |" in text
    assert "| 3 | 1.00%, met: 1.00% | 2.00%, met: 3.00% |" in text
    assert "Without a run of 600 s yet: b/1/V100/50%." in text
    row = next(line for line in text.splitlines() if line.startswith("| a/1/V100/50%"))
    assert [cell.strip() for cell in row.split("|")[3:-1]] == [
        "900.000 us",
        "+11.11% (flow-recompute-lp-highs)",
        "+15.56%, 4.00%",
        "+12.22%, 1.00%",
    ]
    assert "no schedule" in report([run("a/1/V100/50%", None)])


def test_each_cell_has_its_tensors_in_parts_as_well() -> None:
    cell = WorkloadProblem(Workload("lenet", 4096, "V100"), "1.1xMmin")
    problem = in_parts(cell)
    assert problem.name == "lenet/4096/V100/1.1xMmin/parts"
    (whole,), (parts,) = cell.instances(), problem.instances()
    assert parts.budget_bytes == whole.budget_bytes
    assert len(parts.blocks) > len(whole.blocks)


def test_parts_and_whole_tensors_have_tables_of_their_own() -> None:
    runs = [run("a/1/V100/50%", 1_040_000), run("a/1/V100/50%/parts", 1_020_000)]
    text = report([*runs, run("a/1/V100/50%/parts", 1_010_000, LONG)])
    parts, whole = text.split("### Whole tensors")
    assert parts.startswith("### Tensors in parts")
    assert "| 60 s | 1 | 2.00%, missed: 1.00% | 2.00%, met: 3.00% |" in parts
    assert "| 1 | 1.00%, met: 1.00% | 1.00%, met: 3.00% |" in parts
    assert "| 60 s | 1 | 4.00%, missed: 1.00% | 4.00%, missed: 3.00% |" in whole
    assert "Without a run of 600 s yet: a/1/V100/50%." in whole
    assert "Without" not in parts


def test_the_page_has_the_tables_of_the_data() -> None:
    folder = Path("docs")
    tables = (folder / "recomputation-grid.md").read_text("utf-8").split(BEGIN)[1].split(END)[0]
    assert tables == report(read_latest(folder / "data" / "recomputation-grid.sqlite"))
