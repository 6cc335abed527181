"""The table of rules and searches, and its page."""

from __future__ import annotations

from pathlib import Path

import pytest

import sub_batches
from pebbler.instances.workload import Workload
from sub_batches import BEGIN, BUDGETS, END, METHODS, RULES, rows


def test_the_search_is_no_worse_than_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sub_batches, "METHODS", ("modnn",))
    for budget in ("1.3xMmin", "2xMmin", "60%"):
        found = rows(Workload("cifar10_quick", 12, "K40"), budget, 5)
        assert [row[2] for row in found] == [*RULES, "search"]
        *ruled, searched = [float(row[5].rstrip("%")) if row[5] else float("inf") for row in found]
        assert 0 <= searched <= min(ruled)
        assert "tried" in found[-1][-1]


def test_a_sub_batch_that_does_not_fit_has_no_schedule() -> None:
    workload = Workload("cifar10_quick", 12, "K40")
    iterations = sub_batches.Iterations(workload, workload.floor())
    assert sub_batches.iteration_ns(iterations, "modnn", 12, 1) is None
    assert sub_batches.iteration_ns(iterations, "modnn", 1, 1) is not None


def test_the_page_has_a_row_for_every_rule_and_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    ours = (pytestconfig.rootpath / "docs" / "sub-batches.md").read_text(encoding="utf-8")
    lines = ours.split(BEGIN)[1].split(END)[0].splitlines()
    assert len(lines) == 2 + len(BUDGETS) * len(METHODS) * (len(RULES) + 1)
    monkeypatch.setattr(sub_batches, "METHODS", ("modnn",))
    monkeypatch.setattr(sub_batches, "BUDGETS", ("100%",))
    monkeypatch.setattr(sub_batches, "WORKLOAD", Workload("lenet", 8, "K40"))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    sub_batches.main(["--write", str(page), "--seconds", "5"])
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}| budget |")
    assert text.endswith(f"{END}after\n")
    assert text.count("| modnn |") == len(RULES) + 1
