"""The first iteration against the steady state, for the page on steady states."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import steady_state
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
from pebbler.validate.check import check
from steady_state import MARKS, first_iteration, main

LENET = Workload("lenet", 16, "k40", steady=True, optimizer="adam")


def test_the_table_goes_into_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady_state, "CASES", (LENET,))
    monkeypatch.setattr(steady_state, "BUDGETS", ("1.1xMmin", "64MiB"))
    monkeypatch.setattr(steady_state, "METHODS", ("modnn",))
    page = tmp_path / "steady-state.md"
    page.write_text("".join(MARKS), encoding="utf-8")
    main(["--write", str(tmp_path), "--seconds", "0.3"])
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in page.read_text("utf-8").splitlines()[3:-3]
    ]
    assert [row[1] for row in rows] == ["contiguous", "paged"] * 2
    assert all(row[0].startswith("lenet, 16, ") for row in rows)
    (tight, _, roomy, _) = rows
    assert float(tight[4].removesuffix("%")) >= 0
    assert roomy[4:7] == ["+0.0%", "nothing", "+0.0%"]


def test_a_steady_state_is_a_first_iteration() -> None:
    instance = LENET.instance("1.1xMmin")
    first = first_iteration(instance)
    assert not first.carried
    schedule = solve(instance, "modnn").schedule
    assert schedule is not None
    assert not check(first, schedule).valid
    assert check(first, msgspec.structs.replace(schedule, instance=first.name, carried=msgspec.UNSET)).valid
