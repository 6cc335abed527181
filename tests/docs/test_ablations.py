"""Ablations: which runs there are, and the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

import ablations
from ablations import BEGIN, CELLS, END, jobs, report
from core_grid import cells
from pebbler.benchmark.sweeps import runner
from pebbler.benchmark.sweeps.results import read_latest
from pebbler.heuristics.methods import find_method
from pebbler.solver.bounds import best_bound

from ..benchmark.swept import made_here


@pytest.mark.slow
def test_cells_are_of_the_core_grid() -> None:
    assert set(CELLS) <= set(cells())


def test_each_rule_is_left_out_once() -> None:
    found = [job.setting.without for job in jobs(CELLS[:2], 1.0)]
    assert found[: len(found) // 2] == [(), *((rule,) for rule in find_method("flow").rules)]
    assert found[len(found) // 2 :] == found[: len(found) // 2]
    assert ("single-peak",) in found


def test_page_shows_what_a_rule_buys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, data = tmp_path / "page.md", tmp_path / "runs.sqlite"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    some = [job for job in jobs(CELLS[:1], 0.2) if job.setting.without in ((), ("single-peak",))]
    monkeypatch.setattr(ablations, "jobs", lambda *_: some)
    monkeypatch.setattr(runner, "perform", made_here)
    ablations.main(["--seconds", "0.2", "--data", str(data), "--write", str(page)])
    runs = {run.setting.without: run.found for run in read_latest(data)}
    whole, bare = runs[()], runs["single-peak",]
    (instance,) = CELLS[0].instances()
    assert whole.lower_bound_ns is not None
    assert whole.lower_bound_ns >= best_bound(instance).lower_bound_ns
    assert best_bound(instance).bound_by == "single-peak"
    assert bare.bound_by != "single-peak"
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}- 2 runs, ")
    assert text.count(f"| {CELLS[0].name} |") == 2
    assert "| nothing | 1 |" in text
    assert text.endswith(f"{END}after\n")


def test_committed_page_is_of_the_committed_runs(pytestconfig: pytest.Config) -> None:
    folder = pytestconfig.rootpath / "docs"
    tables = (folder / "ablations.md").read_text("utf-8").split(BEGIN)[1].split(END)[0]
    assert tables == report(read_latest(folder / "data" / "ablations.sqlite"))
