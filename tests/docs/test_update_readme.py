"""README's table of methods; its main job is run by the test of the documentation."""

from __future__ import annotations

from pathlib import Path

from update_readme import METHODS, PAGES, methods

ROOT = Path(__file__).parents[2]


def test_the_table_of_methods_has_the_figures_of_the_study_and_begins_with_the_least_gap() -> None:
    table = methods((ROOT / "docs" / "study.md").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.split(METHODS[0])[1].split(METHODS[1])[0] == table
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert len(rows) == len(PAGES)
    gaps = [float(row[3].rstrip("%")) for row in rows if row[3] != "no schedule"]
    assert gaps == sorted(gaps)
    assert rows[-1][3] == "no schedule"
