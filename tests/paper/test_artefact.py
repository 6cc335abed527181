"""The artefact: a sample of the study that exists, its table, and how it is held against committed runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import artefact
from artefact import BUDGETS, WORKLOADS, compared, main, sample
from pebbler.benchmark.sweeps.config import read_config
from pebbler.instances.errors import PebblerError

from ..benchmark.swept import Here
from .test_findings import made

CONFIG = """
title = "two runs of a small network"

[[sweep]]
methods = ["vdnn-all-m", "modnn"]

[[sweep.workloads]]
network = "lenet"
batch = 8
device = "V100"
budgets = ["Mmin+50%", "Mmin+25%"]
"""


def test_the_sample_is_of_the_study_and_has_all_of_its_methods(pytestconfig: pytest.Config) -> None:
    study = read_config(pytestconfig.rootpath / "paper" / "gaps.toml")
    (sweep,) = sample(study).sweep
    assert sweep.methods == study.sweep[0].methods
    assert {(grid.network, grid.device, grid.steady) for grid in sweep.workloads} == set(WORKLOADS)
    assert {budget for grid in sweep.workloads for budget in grid.budgets} == set(BUDGETS)


def test_the_table_is_made_and_nothing_is_left_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "gaps.toml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.setattr(artefact, "WORKLOADS", (("lenet", "V100", False),))
    monkeypatch.setattr(artefact, "ThreadPoolExecutor", lambda _: Here())
    monkeypatch.setattr(artefact, "picture", lambda finding: finding.exhibit.name.encode())
    out = tmp_path / "out"
    arguments = ["--folder", str(tmp_path), "--out", str(out)]
    with pytest.raises(SystemExit, match="2"):  # there are no committed runs
        main(arguments)
    assert "gaps.sqlite cannot be read" in capsys.readouterr().err
    (out / "gaps.sqlite").rename(tmp_path / "data" / "gaps.sqlite")
    main(arguments)
    told = capsys.readouterr().out
    assert "| modnn |" in told
    assert "Rules: 2 of 2 runs are those that are committed" in told
    assert (out / "gaps.pdf").read_bytes() == b"gaps"
    assert "| modnn |" in (out / "gaps.md").read_text("utf-8")


def test_a_study_without_the_sample_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gaps.toml").write_text(CONFIG, encoding="utf-8")
    with pytest.raises(PebblerError, match="no workload of the sample"):
        sample(read_config(tmp_path / "gaps.toml"))


def test_rules_are_held_to_the_nanosecond_and_what_the_clock_ends_is_not() -> None:
    old = [made("a", "modnn", 100, 90), made("a", "flow", 100, 90), made("b", "modnn", 100, 90)]
    assert compared(old[:1], []) == "The committed runs have none of these problems."
    assert compared(old, old).startswith("Rules: 2 of 2 runs")
    assert compared(old, old).endswith("Searches: 1.0000 to 1.0000 times what is committed.")
    new = [made("a", "modnn", 101, 90), made("a", "flow", 98, 90), made("b", "modnn", 90, 90)]
    new[2] = replace(new[2], found=replace(new[2].found, stopped_by="time limit"))
    assert compared(new, old).startswith("Rules: 0 of 1 runs")
    assert "Searches: 0.9000 to 0.9800 times" in compared(new, old)
