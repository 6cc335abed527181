from __future__ import annotations

from pathlib import Path

import pytest

import footprint
from footprint import BEGIN, END, LARGEST, main, measure


@pytest.mark.slow
def test_each_step_has_a_time_and_a_peak_of_its_own() -> None:
    uses = measure("random", "chain-copies-s0")
    assert len(uses) == 4
    assert all(0 <= use.seconds < 60 and 20 < use.mebibytes < 2000 for use in uses)


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "name"), LARGEST)
def test_a_hundred_thousand_tasks_stay_under_a_gigabyte(suite: str, name: str) -> None:
    assert max(use.mebibytes for use in measure(suite, name)) < 10**9 / 2**20


def test_the_page_is_written_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "LARGEST", (("random", "chain-copies-s0"),))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    main(["--write", str(page)])
    before, rest = page.read_text().split(BEGIN)
    table, after = rest.split(END)
    assert (before, after) == ("before\n", "after\n")
    assert "| chain-copies-s0 |" in table
    assert "old" not in table
