"""What an answer takes, for the pages on fits and frontiers."""

from __future__ import annotations

import json
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import questions
from pebbler.cli.main import main as run
from pebbler.instances.errors import PebblerError
from questions import FITS, LINKS, Answer, ask, main


def here(*arguments: str) -> Answer:
    """Ask in this process."""
    with TemporaryDirectory() as folder, chdir(folder), redirect_stdout(StringIO()) as out:
        assert run([*arguments, "--json"]) in (0, 1)
    return Answer(json.loads(out.getvalue()), 1.0, 2.0)


@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_tables_go_into_their_pages(apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not apart:
        monkeypatch.setattr(questions, "ask", here)
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


def test_a_command_has_a_process_that_is_timed() -> None:
    answer = ask("devices")
    assert answer.found["devices"]
    assert 0 < answer.processors < 10 * answer.wall


def test_a_command_that_fails_is_told() -> None:
    with pytest.raises(PebblerError, match=r"ended with 2: .*no network 'nothing'"):
        ask("fits", "nothing")
