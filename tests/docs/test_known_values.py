"""Best-known values of the suites that are built on demand: what is recorded holds, and the page shows it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET

import known_values
from known_values import CSV, FOLDER, MARKS, PAGE, SUITES, as_csv, known, open_table, registry
from pebbler.benchmark.sweeps.best_known import Record, best_known, verify
from pebbler.benchmark.sweeps.shelf import with_documents
from suite_2026 import Known, classes_table

from ..samples import counts
from .documents import names_of_documents

RECORDED = [suite for suite in SUITES if (FOLDER / f"{suite}.json").exists()]


def test_there_are_suites_with_values() -> None:
    assert {"tight", "transformers"} <= set(RECORDED)


@pytest.mark.parametrize("suite", RECORDED)
@pytest.mark.parametrize("few", counts(4, 1000))
def test_schedules_and_certificates_hold(suite: str, few: int) -> None:
    found = registry(suite)
    chosen = found.records[:: max(len(found.records) // few, 1)]
    part = with_documents(msgspec.structs.replace(found, records=chosen), FOLDER)
    assert any(record.schedule is not None for record in part.records)
    assert list(verify(part)) == []


@pytest.mark.parametrize("suite", RECORDED)
def test_what_is_shipped_has_the_same_values_and_every_document_lies_apart(suite: str) -> None:
    found = registry(suite)
    assert best_known(suite) == found
    assert all(record.memory_model == "contiguous" for record in found.records)
    assert {file.name for file in (FOLDER / suite).iterdir()} == names_of_documents(found)


def test_all_documents_together_are_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.rglob("*.gz")) < 30e6


def test_the_page_and_the_csv_file_show_what_is_recorded() -> None:
    page, all_known = PAGE.read_text(encoding="utf-8"), known()
    for name, text in (("classes", classes_table(all_known)), ("open", open_table(all_known))):
        begin, end = MARKS[name]
        assert begin + text + end in page, "python docs/scripts/known_values.py --write"
    assert CSV.read_text(encoding="utf-8") == as_csv(all_known)


def test_what_is_open_is_shown_with_the_widest_gap_first() -> None:
    def one(name: str, makespan: int | None) -> Known:
        record = Record(
            instance=name,
            instance_sha256="0",
            memory_model="contiguous",
            makespan_ns=makespan,
            lower_bound_ns=1000,
            bound_by="compute",
            certified=True,
            schedule=None,
            schedule_sha256=UNSET if makespan is None else "1",
        )
        return Known(name, "tight", "contiguous", record)

    shown = open_table([one("a", 1000), one("b", 1010), one("c", 1500), one("d", None)])
    rows = [line.split(" | ")[1] for line in shown.splitlines()[2:]]
    assert rows == ["`d`", "`c`", "`b`"]


def test_without_write_the_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    known_values.main([])
    assert "| `transformers` |" in capsys.readouterr().out
