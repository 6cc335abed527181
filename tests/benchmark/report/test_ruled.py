"""Runs by a protocol: what it does not ask for is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pebbler.benchmark.output.machine import origin
from pebbler.benchmark.report.ruled import Ruling
from pebbler.benchmark.sweeps.config import read_protocol
from pebbler.benchmark.sweeps.jobs import Found, Setting
from pebbler.benchmark.sweeps.results import Results, Run
from pebbler.instances.errors import PebblerError

from ..swept import ABOUT

TINY = read_protocol("2026", suite="tiny")

SETTING = Setting("exec:./mine", time_limit=60.0, wall_limit=180.0, memory_limit_bytes=8 * 10**9)


def made(setting: Setting = SETTING, seed: int = 0, problem: str = "tiny/chain2-s1") -> Run:
    return Run(
        fingerprint="a",
        about=replace(ABOUT, problem=problem),
        seed=seed,
        setting=setting,
        found=Found(status="unknown", stopped_by="done"),
        wall_seconds=1.0,
        date="2026-01-02",
        origin=origin(),
    )


def ruling(folder: Path, title: str = TINY.title, **rules: Any) -> Ruling:
    assert TINY.protocol is not None
    with Results(folder / "r.sqlite", write=True) as results:
        results.set_protocol(title, structs.replace(TINY.protocol, **rules))
        return Ruling(results)


@pytest.mark.parametrize(
    "run",
    [
        made(),
        made(replace(SETTING, method="flow"), seed=2),
        made(replace(SETTING, method="milp", solver="scip")),
    ],
)
def test_what_the_protocol_asks_for_passes(run: Run, tmp_path: Path) -> None:
    found = ruling(tmp_path)
    assert found.is_there
    assert found.why_not(run) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"time_limit": None}, "its time_limit is None, and Protocol 2026, on suite tiny does not say so"),
        ({"time_limit": 600.0}, "its time_limit is 600.0"),
        ({"wall_limit": 800.0}, "its wall_limit is 800.0"),
        ({"memory_limit_bytes": None}, "its memory_limit_bytes is None"),
        ({"workers": 8}, "its workers is 8"),
        ({"memory_model": "paged"}, "its memory_model is paged"),
        ({"without": ("single-peak",)}, "its without is ('single-peak',)"),
        ({"solver": "gurobi"}, "its solver is gurobi"),
    ],
)
def test_another_setting_is_told(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    why = ruling(tmp_path).why_not(made(replace(SETTING, **changes)))
    assert why is not None
    assert why.startswith(said)


def test_another_seed_and_another_problem_are_told(tmp_path: Path) -> None:
    found = ruling(tmp_path)
    assert "its seed is 1" in (found.why_not(made(seed=1)) or "")
    assert "has no such problem" in (found.why_not(made(problem="tiny/easy")) or "")


def test_other_rules_under_its_title_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PebblerError, match="has other rules than Protocol 2026, on suite tiny"):
        ruling(tmp_path, solved_gap=0.9)


def test_what_is_not_shipped_allows_all(tmp_path: Path) -> None:
    found = ruling(tmp_path, "mine", solved_gap=0.9)
    assert found.is_there
    assert found.why_not(made(seed=7, problem="mine/1")) is None
    with Results(tmp_path / "s.sqlite", write=True) as results:
        assert not Ruling(results).is_there
