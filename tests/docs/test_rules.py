from __future__ import annotations

from pathlib import Path

import pytest

import rules
from pebbler.heuristics.methods import list_methods
from pebbler.instances.errors import PebblerError
from pebbler.instances.suites.suite import find_suite, members
from rules import METHODS, REASONS, Line, main, outcomes, read, sweep, table, word, write

from ..samples import counts


@pytest.fixture(scope="module")
def data(pytestconfig: pytest.Config) -> list[Line]:
    return read(pytestconfig.rootpath / "docs" / "data" / "rules.csv")


def test_the_file_has_every_rule_on_every_instance_of_the_suites_that_are_built(data: list[Line]) -> None:
    expected = {
        (suite, member.name, method)
        for suite in rules.SUITES
        for member in members(find_suite(suite))
        for method in METHODS
    }
    assert {(line.suite, line.instance, line.method) for line in data} == expected
    assert len(data) == len(expected)
    assert all(line.outcome.isdigit() or line.outcome in REASONS.values() for line in data)


def test_every_reason_is_explained_in_the_docs(pytestconfig: pytest.Config, data: list[Line]) -> None:
    page = (pytestconfig.rootpath / "docs" / "comparators.md").read_text(encoding="utf-8")
    for reason in {line.outcome for line in data if not line.outcome.isdigit()}:
        assert f"**{reason}**" in page
    for method in METHODS:
        assert f"`{method}`" in page


def test_the_page_shows_the_file(pytestconfig: pytest.Config, data: list[Line]) -> None:
    page = (pytestconfig.rootpath / "docs" / "comparators.md").read_text(encoding="utf-8")
    assert rules.BEGIN + table(data) + rules.END in page


@pytest.mark.parametrize("few", counts(2, 5))
@pytest.mark.parametrize("suite", ["tiny", "random", "tight", "transformers", "papers"])
def test_a_few_instances_of_every_suite_come_out_as_in_the_file(
    suite: str, few: int, data: list[Line]
) -> None:
    recorded: dict[str, dict[str, str]] = {}
    for line in data:
        if line.suite == suite and int(line.tasks) < 120:
            recorded.setdefault(line.instance, {})[line.method] = line.outcome
    small = [member for member in members(find_suite(suite)) if member.name in recorded]
    for member in small[:: max(len(small) // few, 1)]:
        assert outcomes(member.build()) == recorded[member.name]


def test_what_is_in_the_file_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rules.csv"
    monkeypatch.setattr(rules, "METHODS", ("caffe-rule", "save-on-cpu-rule"))
    main(["--data", str(path), "--suite", "tiny", "--most-tasks", "6"])
    lines = read(path)
    assert lines
    assert {line.method for line in lines} == {"caffe-rule", "save-on-cpu-rule"}
    assert all(int(line.tasks) <= 6 for line in lines)
    assert list(sweep(["tiny"], lines, 6)) == []
    write(lines[1:], path)
    (again,) = sweep(["tiny"], read(path), 6)
    assert again == lines[:1]


def test_a_refusal_without_a_word_is_a_defect() -> None:
    with pytest.raises(AssertionError, match="no word for the refusal 'because'"):
        word("because")


def test_all_rules_of_layrub_and_its_tables_are_swept() -> None:
    ours = {info.name for info in list_methods() if info.name.startswith("layrub-") or "-rule" in info.name}
    assert ours == set(METHODS)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rules.csv"
    write([Line("tiny", "a", "5", "caffe-rule", "memory")], path)
    path.write_text(path.read_text()[:-10], encoding="utf-8")
    with pytest.raises(PebblerError, match=r"line 2 has 4 cells, not 5"):
        read(path)
