"""Measuring how methods scale: which networks, which figures, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest

import scaling
from pebbler.instances.workload import Workload
from scaling import BEGIN, BUDGETS, END, METHODS, Point, exponent, measure, network


@pytest.mark.parametrize("family", scaling.FAMILIES)
@pytest.mark.parametrize("tasks", [1_000, 3_000])
def test_networks_have_about_so_many_tasks(family: str, tasks: int) -> None:
    instance = Workload(network(family, tasks), 1, "K40").instance(0, check_budget=False)
    assert len(instance.tasks) == pytest.approx(tasks, rel=0.15)


@pytest.mark.parametrize("power", [1, 1.5, 2])
def test_exponent_is_the_power_of_the_growth(power: float) -> None:
    points = [Point(n, 3e-6 * n**power, 1.0) for n in (100, 1_000, 5_000)]
    assert exponent([*points, Point(9_000, None, 1.0)]) == pytest.approx(power)
    assert exponent(points[:1]) is None


def test_every_method_is_measured_under_every_budget() -> None:
    found = list(measure("vgg", [100]))
    assert [(budget, name) for budget, name, _ in found] == [(b, m) for b in BUDGETS for m in METHODS]
    assert all(point.seconds and point.baseline > 0 for _, name, point in found if name == "modnn")


def test_the_page_has_a_table_a_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    monkeypatch.setattr(scaling, "SIZES", (200, 400))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    scaling.main(["--write", str(page)])
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}Python ")
    assert text.endswith(f"{END}after\n")
    ours = (pytestconfig.rootpath / "docs" / "scaling.md").read_text(encoding="utf-8")
    for some in (text, ours):
        tables = some.split(BEGIN)[1].split(END)[0]
        assert [row.split(" | ")[0][2:] for row in tables.splitlines() if row.endswith("exponent |")] == [
            *scaling.FAMILIES
        ]
        assert tables.count("| modnn |") == len(BUDGETS) * len(scaling.FAMILIES)
