"""Cells of pages: the right one, and a sentence where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import Pages
from pebbler.instances.errors import PebblerError

PAGE = """
| network | ours | printed |
| --- | --- | --- |
| a | 1 | 2 |

At most 12.5% of them.

<!-- begin second -->
| graph | network | ours |
| --- | --- | --- |
| paper | a | 3 |
| executable | a | 4 |
<!-- end second -->
"""


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    return Pages(tmp_path)


def test_cells_are_found_by_row_and_column(pages: Pages) -> None:
    assert pages.cell("page", "a", "printed") == "2"
    assert pages.cell("page", "executable | a", "ours") == "4"
    assert pages.cell("page", "paper | a", "ours", "second") == "3"
    assert pages.line("page", r"At most ([\d.]+%)") == "12.5%"


@pytest.mark.parametrize(
    ("page", "row", "column", "mark", "message"),
    [
        ("page", "b", "ours", None, "no table has a row 'b' and a column 'ours'"),
        ("page", "a", "theirs", None, "no table has a row 'a' and a column 'theirs'"),
        ("page", "a", "network", None, "no table has"),
        ("page", "a", "ours", "third", "has no marks 'third'"),
        ("other", "a", "ours", None, r"other\.md cannot be read"),
    ],
)
def test_what_is_missing_is_told(
    pages: Pages, page: str, row: str, column: str, mark: str | None, message: str
) -> None:
    with pytest.raises(PebblerError, match=message):
        pages.cell(page, row, column, mark)


def test_line_that_is_missing_is_told(pages: Pages) -> None:
    with pytest.raises(PebblerError, match="nothing there matches"):
        pages.line("page", "at least")
