from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pebbler.benchmark.sweeps.best_known import best_known
from pebbler.instances.files import encode
from pebbler.instances.instance import Instance
from pebbler.instances.suites.manifest import write_suite
from pebbler.instances.suites.suite import find_suite, members
from pebbler.validate.schedule import Schedule
from pebbler.validate.schemas import FORMATS, json_schema, write_schemas

Document = dict[str, Any]


def shipped(name: str) -> Document:
    file = resources.files("pebbler.validate").joinpath("schemas", f"{name}.schema.json")
    schema: Document = json.loads(file.read_bytes())
    return schema


def complaints(name: str, document: Document) -> list[str]:
    validator = jsonschema.Draft202012Validator(shipped(name))
    return [error.message for error in validator.iter_errors(document)]


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return next(record.schedule for record in best_known("tiny").records if record.schedule is not None)


def test_the_shipped_schemas_are_those_of_the_classes(tmp_path: Path) -> None:
    write_schemas(tmp_path)
    folder = resources.files("pebbler.validate").joinpath("schemas")
    assert {file.name for file in folder.iterdir()} == {path.name for path in tmp_path.iterdir()}
    for path in tmp_path.iterdir():
        assert folder.joinpath(path.name).read_text() == path.read_text(), (
            "run pebbler schemas -o validate/schemas"
        )


@pytest.mark.parametrize("name", FORMATS)
def test_schemas_are_schemas(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(shipped(name))


def test_every_file_of_the_tiny_suite_is_valid(tmp_path: Path) -> None:
    manifest = write_suite("tiny", tmp_path)
    for entry in manifest.instances:
        assert not complaints("instance", json.loads((tmp_path / entry.file).read_bytes()))
    assert not complaints("manifest", json.loads((tmp_path / "manifest.json").read_bytes()))
    for record in best_known("tiny").records:
        assert record.schedule is not None
        assert not complaints("schedule", json.loads(encode(record.schedule)))


def edited(document: Document, change: Callable[[Document], object]) -> Document:
    copy: Document = json.loads(json.dumps(document))
    change(copy)
    return copy


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("format"),
        lambda d: d.pop("engines"),
        lambda d: d.update(format="pebbler/instance/2"),
        lambda d: d.update(colour=1),
        lambda d: d.update(budget_bytes=-1),
        lambda d: d.update(budget_bytes=1.5),
        lambda d: d["blocks"][0].update(bytes=0),
        lambda d: d["blocks"][0].update(initially="disk"),
        lambda d: d["blocks"][0].update(finally_="host"),
        lambda d: d["tasks"][0].pop("outputs"),
        lambda d: d["tasks"][0]["algorithms"][0].update(duration_ns=None),
    ],
)
def test_what_the_reader_refuses_the_schema_refuses(change: Callable[[Document], object]) -> None:
    document = json.loads(encode(next(members(find_suite("tiny"))).build()))
    assert not complaints("instance", document)
    assert complaints("instance", edited(document, change))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("format"),
        lambda d: d.update(memory_model="segmented"),
        lambda d: d["operations"][0].update(kind="walk"),
        lambda d: d["operations"][0].pop("start_ns"),
        lambda d: d["residences"][0].update(bytes=0),
        lambda d: d["residences"][0].update(extents=[[0]]),
    ],
)
def test_what_the_reader_of_schedules_refuses_the_schema_refuses(
    change: Callable[[Document], object], schedule: Schedule
) -> None:
    document = json.loads(encode(schedule))
    assert not complaints("schedule", document)
    assert complaints("schedule", edited(document, change))


def test_a_document_of_another_kind_is_refused(schedule: Schedule) -> None:
    assert complaints("instance", json.loads(encode(schedule)))
    assert json_schema(Instance)["properties"] != json_schema(Schedule)["properties"]
