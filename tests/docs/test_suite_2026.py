"""The page of pebbler-2026 and its data: what is recorded holds, and what is shown follows from it."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET

import suite_2026
from pebbler.benchmark.output.drawing import png
from pebbler.benchmark.sweeps.best_known import Record, Registry, best_known, read_registry, verify
from pebbler.benchmark.sweeps.history import Step
from pebbler.benchmark.sweeps.shelf import with_documents
from pebbler.instances.suites.suite import find_suite, members
from suite_2026 import (
    CLASSES,
    COLOURS,
    MARKS,
    SUITE,
    Features,
    Known,
    as_csv,
    classes_table,
    features,
    gaps_picture,
    instances_table,
    kinds_table,
    known,
    space_picture,
)

from ..samples import counts
from .documents import names_of_documents


@pytest.fixture(scope="module")
def root(pytestconfig: pytest.Config) -> Path:
    return pytestconfig.rootpath


@pytest.fixture(scope="module")
def registry(root: Path) -> Registry:
    return read_registry(root / suite_2026.FOLDER / f"{SUITE}.json", SUITE)


@pytest.fixture(scope="module")
def rows(root: Path) -> list[dict[str, str]]:
    with (root / suite_2026.FOLDER / f"{SUITE}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def found(rows: list[dict[str, str]]) -> dict[str, Features]:
    """The features that are recorded."""
    return {
        row["instance"]: Features(
            int(row["tasks"]), int(row["blocks"]), float(row["room"]), float(row["copies"])
        )
        for row in rows
    }


# --- what is recorded ---------------------------------------------------------------------------------


@pytest.mark.parametrize("few", counts(8, 1000))
def test_schedules_and_certificates_hold(few: int, root: Path, registry: Registry) -> None:
    chosen = registry.records[:: max(len(registry.records) // few, 1)]
    part = with_documents(msgspec.structs.replace(registry, records=chosen), root / suite_2026.FOLDER)
    assert any(record.schedule is not None for record in part.records)
    assert list(verify(part)) == []


def test_every_document_is_there_and_of_a_record(root: Path, registry: Registry) -> None:
    files = list((root / suite_2026.FOLDER / SUITE).iterdir())
    assert {file.name for file in files} == names_of_documents(registry)
    assert sum(file.stat().st_size for file in files) < 30e6


def test_values_only_improve(registry: Registry) -> None:
    assert list(verify(registry)) == []
    for record in registry.records:
        steps = () if record.history is UNSET else record.history
        makespans = [step.makespan_ns for step in steps if step.makespan_ns is not UNSET]
        bounds = [step.lower_bound_ns for step in steps if step.lower_bound_ns is not UNSET]
        assert makespans == sorted(makespans, reverse=True)
        assert makespans[-1:] == ([] if record.makespan_ns is None else [record.makespan_ns])
        assert bounds[-1] == record.lower_bound_ns
        assert record.makespan_ns is None or record.makespan_ns >= record.lower_bound_ns


def test_what_is_shipped_has_the_same_values_and_no_schedule(registry: Registry) -> None:
    assert best_known(SUITE) == registry
    assert all(record.schedule is None and record.certificate is UNSET for record in registry.records)


# --- what is shown ------------------------------------------------------------------------------------


def test_the_page_and_the_csv_file_show_what_is_recorded(
    root: Path, registry: Registry, found: dict[str, Features]
) -> None:
    page = (root / suite_2026.PAGE).read_text(encoding="utf-8")
    all_known = known(registry)
    for name, text in (
        ("kinds", kinds_table(found)),
        ("classes", classes_table(all_known)),
        ("instances", instances_table(all_known)),
    ):
        begin, end = MARKS[name]
        assert begin + text + end in page, "python docs/scripts/suite_2026.py --write"
    file = root / suite_2026.FOLDER / f"{SUITE}.csv"
    assert file.read_text(encoding="utf-8") == as_csv(all_known, found)


@pytest.mark.parametrize("few", counts(8, 1000))
def test_features_are_those_of_the_instances(few: int, rows: list[dict[str, str]]) -> None:
    recorded = {row["instance"]: row for row in rows}
    planned = list(members(find_suite(SUITE)))
    assert list(recorded) == [member.name for member in planned]
    for member in planned[:: max(len(planned) // few, 1)]:
        at, row = features(member.build()), recorded[member.name]
        told = (str(at.tasks), str(at.blocks), f"{at.room:.4f}", f"{at.copies:.4f}")
        assert told == (row["tasks"], row["blocks"], row["room"], row["copies"])


def record_of(name: str, makespan: int | None, bound: int, *seconds: float) -> Record:
    """A record whose history has steps of that many seconds each."""
    steps = tuple(
        Step(
            date="2026-01-02",
            who="x",
            pebbler="1",
            machine="m",
            method="flow",
            seconds=one,
            makespan_ns=makespan or 0,
        )
        for one in seconds
    )
    return Record(
        instance=name,
        instance_sha256="0",
        memory_model="paged",
        makespan_ns=makespan,
        lower_bound_ns=bound,
        bound_by="compute",
        certified=True,
        schedule=None,
        schedule_sha256=UNSET if makespan is None else "0" * 64,
        history=steps,
    )


@pytest.mark.parametrize(
    ("makespan", "bound", "seconds", "word"),
    [
        (1000, 1000, (0.5,), "easy"),
        (1001, 1000, (20.0, 40.0), "easy"),
        (1001, 1000, (20.0, 40.1), "hard"),
        (1002, 1000, (1.0,), "open"),
        (None, 1000, (1.0,), "open"),
    ],
)
def test_the_class_follows_from_what_was_measured(
    makespan: int | None, bound: int, seconds: tuple[float, ...], word: str
) -> None:
    record = record_of("x", makespan, bound, *seconds)
    assert Known("x", "link", "paged", record).difficulty == word
    assert Known("x", "link", "paged", None).difficulty == "not tried"


def test_pictures_have_every_kind_and_class(found: dict[str, Features]) -> None:
    assert {part.kind for part in find_suite(SUITE).frozen} == set(COLOURS)
    names = [one.name for one in known(Registry(suite=SUITE))]
    times = ((1000, (1.0,)), (1000, (90.0,)), (1020, (9.0,)))
    records = tuple(
        record_of(name, makespan, 1000, *seconds)
        for name, (makespan, seconds) in zip(names, times, strict=False)
    )
    all_known = known(Registry(suite=SUITE, records=records))
    assert {one.difficulty for one in all_known} == set(CLASSES)
    gaps, space = gaps_picture(all_known), space_picture(all_known, found)
    legends = [text.get_text() for text in gaps.axes[0].get_legend().get_texts()]
    assert legends == ["easy: 1", "hard: 1", "open: 1", f"not tried: {len(names) - 3}"]
    assert [text.get_text() for text in space.axes[0].get_legend().get_texts()] == list(COLOURS)
    assert png(gaps).startswith(b"\x89PNG")
