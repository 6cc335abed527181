"""The command ``pack`` on several files; what it does with one, `tests/solver/packing/test_pack.py` has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pebbler.cli.main import main
from pebbler.instances.buffers import Buffer, read_buffers
from pebbler.solver.packing.pack import PackResult, pack
from pebbler.validate.packing import check_packing

from .refusals import refusal

HIGH = "id,lower,upper,size\na,0,3,4\nb,3,9,4\nc,0,9,8\n"
LOW = "id,lower,upper,size\na,0,3,4\nb,3,9,4\n"


@pytest.fixture(autouse=True)
def folder(elsewhere: Path) -> Path:
    """A folder of two files, and one that is none of buffers."""
    place = elsewhere / "buffers"
    place.mkdir()
    (place / "high.csv").write_text(HIGH)
    (place / "low.csv").write_text(LOW)
    (place / "notes.txt").write_text("")
    return place


def answers(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    packings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["packings"]
    return packings


def offsets_of(file: Path) -> list[int]:
    return [int(line.rsplit(",", 1)[1]) for line in file.read_text().splitlines()[1:]]


@pytest.mark.parametrize("given", [["buffers"], ["buffers/high.csv", "buffers/low.csv"]])
def test_files_are_packed_side_by_side(
    given: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", *given]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["file", "buffers", "status", "height", "lower", "bound", "solve", "time"]
    assert [row.split()[:5] for row in rows] == [
        ["buffers/high.csv", "3", "optimal", "12", "12"],
        ["buffers/low.csv", "2", "optimal", "4", "4"],
    ]
    assert main(["pack", *given, "--json", "-o", "made/packed"]) == 0
    for answer, buffers in zip(answers(capsys), (3, 2), strict=True):
        assert answer.pop("solve_seconds") >= 0
        file = Path("made/packed", Path(answer["file"]).name)
        height = answer["height"]
        assert answer == {
            "file": f"buffers/{file.name}",
            "buffers": buffers,
            "status": "optimal",
            "height": height,
            "capacity": None,
            "lower_bound": height,
        }
        assert check_packing(read_buffers(folder / file.name), offsets_of(file), height) == ()


def test_one_file_that_does_not_fit_is_a_no(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", "buffers", "--capacity", "11", "-o", "packed"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[2:5] == ["infeasible", "none", "12"]
    assert lines[-1] == "capacity: 11 (11 B)"
    assert [path.name for path in Path("packed").iterdir()] == ["low.csv"]


def test_a_folder_of_one_file_gives_a_table_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "low.csv").unlink()
    assert main(["pack", "buffers", "--json"]) == 0
    assert [answer["height"] for answer in answers(capsys)] == [12]


def test_what_is_packed_stays_when_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(buffers: Sequence[Buffer], **options: Any) -> PackResult:
        return replace(pack(buffers, **options), interrupted=len(buffers) == 3)

    monkeypatch.setattr("pebbler.solver.packing.pack.pack", interrupted)
    assert main(["pack", "buffers", "--json", "-o", "packed"]) == 130
    printed = capsys.readouterr()
    assert [answer["height"] for answer in json.loads(printed.out)["packings"]] == [12]
    assert printed.err == "pebbler: interrupted\n"
    assert offsets_of(Path("packed/high.csv"))
    assert not Path("packed/low.csv").exists()


def test_what_cannot_be_packed_is_refused_before_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    Path("again").mkdir()
    Path("again/low.csv").write_text(LOW)
    for words, told in (
        ("empty", "empty has no .csv file"),
        ("buffers none.csv", "none.csv cannot be read"),
        ("buffers again -o packed", "buffers/low.csv and again/low.csv have one name"),
        ("buffers -o again/low.csv", "again/low.csv is a file"),
        ("buffers/low.csv -o again", "again cannot be written: it is a folder"),
        ("buffers --capacity much", "'much' is not a size"),
    ):
        assert told in refusal(capsys, "pack", *words.split())
    (folder / "none.csv").write_text("id,lower,upper,size\n")
    assert "buffers/none.csv: there are no buffers" in refusal(capsys, "pack", "buffers", "-o", "packed")


def test_names_that_do_not_print_are_shown_as_their_codes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "low.csv").rename(folder / "\x1b[31m\udcff.csv")
    assert main(["pack", "buffers"]) == 0
    assert r"buffers/\x1b[31m\udcff.csv" in capsys.readouterr().out
    assert main(["pack", "buffers", "--json"]) == 0
    assert answers(capsys)[0]["file"] == r"buffers/\x1b[31m\udcff.csv"
