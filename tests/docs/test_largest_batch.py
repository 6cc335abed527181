"""The largest batches of Layrub's networks."""

from __future__ import annotations

from pathlib import Path

import pytest

import largest_batch
from largest_batch import BEGIN, END, main


def test_the_table_goes_into_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(largest_batch, "LAYRUB", (("alexnet", 2100),))
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}", encoding="utf-8")
    main(["--write", str(page)])
    (row,) = [line for line in page.read_text(encoding="utf-8").splitlines() if "alexnet" in line]
    _, network, printed, largest, impossible, *_ = [cell.strip() for cell in row.split("|")]
    assert (network, printed) == ("alexnet", "2100")
    assert 2100 < int(largest) < int(impossible)
