"""What an answer takes, for the pages on fits and frontiers."""

from __future__ import annotations

from pathlib import Path

import pytest

import questions
from pebbler.instances.errors import PebblerError
from questions import FITS, LINKS, ask, main


def test_the_tables_go_into_their_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "NETWORKS", (("lenet", 64),))
    for name, marks in (("fits", FITS), ("frontier", LINKS)):
        (tmp_path / f"{name}.md").write_text("".join(marks), encoding="utf-8")
    main(["--write", str(tmp_path), "--time-limit", "0.2s"])
    cells = {}
    for name in ("fits", "frontier"):
        row = (tmp_path / f"{name}.md").read_text("utf-8").splitlines()[3]
        cells[name] = [cell.strip() for cell in row.split("|")]
    _, asked, in_memory, *_, takes, processors, _ = cells["fits"]
    assert asked == "lenet, 64"
    assert in_memory.startswith("0.0% (at least 0.0%); up to ")
    for cell in (takes, processors):
        assert float(cell.removesuffix(" s")) > 0
    _, asked, enough, too_little, *_ = cells["frontier"]
    assert asked == "lenet, 64"
    assert enough.endswith("B/s")
    assert too_little == "none"


def test_a_command_that_fails_is_told() -> None:
    with pytest.raises(PebblerError, match=r"ended with 2: .*no network 'nothing'"):
        ask("fits", "nothing")
