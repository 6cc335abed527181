"""The study: what has been done stays done, and a contradiction is told with its instance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import study, theorems
from .instances import Shape
from .study import BEGIN, DATA, END, main, read, table
from .theorems import Case, Claim, Theorem, theorem


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> dict[str, Theorem]:
    """Two theorems about instances of one task: one holds, and one that does not where there is a block."""
    chosen: dict[str, Theorem] = {}
    monkeypatch.setattr(theorems, "THEOREMS", chosen)
    monkeypatch.setattr(study, "THEOREMS", chosen)
    monkeypatch.setattr(study, "COUNT", 40)

    @theorem("docs/flow.md", Shape(tasks=1, blocks=2))
    def sound(case: Case) -> Iterator[Claim]:
        yield Claim("nothing", 0, case.optimum)

    @theorem("docs/flow.md", Shape(tasks=1, blocks=2), slow=True)
    def unsound(case: Case) -> Iterator[Claim]:
        yield Claim("blocks", len(case.instance.blocks), 0)

    return chosen


@pytest.mark.usefixtures("toys")
def test_a_contradiction_is_told_with_the_smallest_instance(tmp_path: Path) -> None:
    data, page = tmp_path / "lines.jsonl", tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}{END}after\n")
    arguments = ["--instances", "20", "--data", str(data), "--write", str(page)]
    assert main(arguments) == 1
    sound, unsound = read(data)
    assert sound["instances"] == sound["active"] == study.COUNT
    assert "contradiction" not in sound
    assert unsound["contradiction"]["says"] == "blocks: 1, possible 0"
    assert len(unsound["contradiction"]["instance"]["blocks"]) == 1
    assert unsound["contradiction"]["instance"]["blocks"][0]["bytes"] == 1
    assert f"{BEGIN}{table(read(data))}{END}" in page.read_text()
    assert "| 1 |" in page.read_text()


def test_what_has_been_done_is_not_done_again(toys: dict[str, Theorem], tmp_path: Path) -> None:
    del toys["unsound"]
    data = tmp_path / "lines.jsonl"
    assert main(["--instances", "1", "--data", str(data)]) == 0
    first = data.read_text()
    assert main(["--instances", "1", "--data", str(data)]) == 0
    assert data.read_text() == first
    assert main(["--instances", str(study.COUNT + 1), "--data", str(data)]) == 0
    assert [line["seed"] for line in read(data)] == [1, 2]


def test_instances_whose_host_memory_ends_have_lines_of_their_own(
    toys: dict[str, Theorem], tmp_path: Path
) -> None:
    del toys["unsound"]

    @theorem("docs/flow.md", Shape(tasks=1, blocks=1), without=("host_budget",))
    def endless(case: Case) -> Iterator[Claim]:
        yield Claim("a budget", case.instance.has_host_budget, 0)

    data = tmp_path / "lines.jsonl"
    arguments = ["--instances", "1", "--data", str(data)]
    assert main(arguments) == 0
    assert main([*arguments, "--host-budget"]) == 0
    assert main([*arguments, "--host-budget"]) == 0
    lines = read(data)
    assert [(line["theorem"], "host_budget" in line) for line in lines] == [
        ("sound", False),
        ("endless", False),
        ("sound", True),
    ]
    assert "host memory ends" not in lines[0]["features"]
    assert lines[2]["features"]["host memory ends"] == lines[2]["instances"]


def test_instances_with_carried_blocks_have_lines_of_their_own(
    toys: dict[str, Theorem], tmp_path: Path
) -> None:
    del toys["unsound"]

    @theorem("docs/flow.md", Shape(tasks=1, blocks=1), without=("carried",))
    def ordinary(case: Case) -> Iterator[Claim]:
        yield Claim("carried", len(case.instance.carried), 0)

    data = tmp_path / "lines.jsonl"
    arguments = ["--instances", "1", "--data", str(data)]
    for keys in ([], ["--carried"], ["--carried"], ["--carried", "--host-budget"]):
        assert main([*arguments, *keys]) == 0
    lines = read(data)
    assert [(line["theorem"], "carried" in line, "host_budget" in line) for line in lines] == [
        ("sound", False, False),
        ("ordinary", False, False),
        ("sound", True, False),
        ("sound", True, True),
    ]
    assert "a carried block" not in lines[0]["features"]
    assert lines[3]["features"]["a carried block"] == lines[3]["instances"]


def test_one_theorem_is_attacked_alone_with_keys_that_it_takes(
    toys: dict[str, Theorem], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @theorem("docs/flow.md", Shape(tasks=1, blocks=1), without=("carried",))
    def ordinary(case: Case) -> Iterator[Claim]:
        yield Claim("nothing", 0, case.optimum)

    data = tmp_path / "lines.jsonl"
    arguments = ["--instances", "1", "--data", str(data), "--theorem", "ordinary"]
    assert main(arguments) == 0
    assert [line["theorem"] for line in read(data)] == ["ordinary"]
    assert len(toys) == 3
    with pytest.raises(SystemExit):
        main([*arguments, "--carried"])
    assert "'ordinary' is not about instances with all of these keys" in capsys.readouterr().err


def test_an_error_is_told(toys: dict[str, Theorem], tmp_path: Path) -> None:
    toys.clear()

    @theorem("docs/flow.md", Shape(tasks=1, blocks=1))
    def broken(case: Case) -> Iterator[Claim]:
        yield Claim("no number", int("no number"), case.optimum)

    data = tmp_path / "lines.jsonl"
    assert main(["--instances", "1", "--data", str(data)]) == 1
    (line,) = read(data)
    assert "no number" in line["contradiction"]["says"]
    assert "Instance(" in line["contradiction"]["says"]


def test_the_page_has_the_table_of_the_data(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "reliability.md").read_text(encoding="utf-8")
    lines = read(pytestconfig.rootpath / DATA)
    assert BEGIN + table(lines) + END in page
    assert not [line for line in lines if "contradiction" in line]
