"""The rules of the schedule's form, each broken once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pebbler.instances.errors import FormatError
from pebbler.instances.files import encode
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.units import PAGE_BYTES
from pebbler.validate.schedule import (
    Operation,
    Residence,
    Schedule,
    read_schedule,
    require_indices,
    write_schedule,
)


@pytest.fixture
def instance() -> Instance:
    algorithms = tuple(Algorithm(name=name, duration_ns=5, workspace_bytes=4) for name in "ab")
    return Instance(
        name="hand",
        engines="duplex",
        budget_bytes=2**30,
        resident_bytes=0,
        blocks=(
            Block(name="x", bytes=8, offload_ns=1, prefetch_ns=1, initially="device"),
            Block(name="y", bytes=8, offload_ns=1, prefetch_ns=1),
        ),
        tasks=(Task(name="t", inputs=(0,), outputs=(1,), algorithms=algorithms),),
    )


@pytest.fixture
def schedule() -> Schedule:
    return Schedule(
        format="pebbler/schedule/1",
        instance="hand",
        instance_sha256="0" * 64,
        method="hand",
        memory_model="contiguous",
        operations=(
            Operation(id=7, stream="compute", kind="run", task=0, algorithm=1, start_ns=0, end_ns=5),
            Operation(id=3, stream="d2h", kind="offload", block=1, after=(7,), start_ns=5, end_ns=6),
        ),
        residences=(
            Residence(block=0, offset=0, bytes=8, released_after=(7,)),
            Residence(block=1, offset=512, bytes=8, acquired_by=7, released_after=(3,)),
            Residence(workspace_of=7, offset=1024, bytes=4, acquired_by=7, released_after=(7,)),
        ),
        makespan_ns=6,
        peak_bytes=1028,
        meta={"note": "ü"},
    )


@pytest.fixture
def document(schedule: Schedule) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(encode(schedule))
    return document


def test_a_file_comes_back_as_it_went(schedule: Schedule, instance: Instance, tmp_path: Path) -> None:
    write_schedule(schedule, tmp_path / "a")
    assert read_schedule(tmp_path / "a", instance) == schedule
    write_schedule(read_schedule(tmp_path / "a", instance), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_absent_keys_and_nulls_are_one_and_the_same(
    document: dict[str, Any], schedule: Schedule, instance: Instance, tmp_path: Path
) -> None:
    for operation in document["operations"]:
        for key in ("task", "algorithm", "block"):
            operation.setdefault(key, None)
        operation.setdefault("after", [])
    for residence in document["residences"]:
        for key in ("block", "workspace_of", "extents", "acquired_by"):
            residence.setdefault(key, None)
    (tmp_path / "a").write_text(json.dumps(document))
    assert read_schedule(tmp_path / "a", instance) == schedule


Place = tuple[str | int, ...]


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("colour",), 1, "colour"),
        (("operations", 0, "colour"), 1, "colour"),
        (("residences", 0, "colour"), 1, "colour"),
        (("format",), "pebbler/schedule/2", "pebbler/schedule/2"),
        (("memory_model",), "virtual", "virtual"),
        (("operations", 0, "id"), -1, ">= 0"),
        (("operations", 0, "id"), 3, "operations[1] (id 3): the id is used twice"),
        (("operations", 0, "stream"), "d2d", "d2d"),
        (("operations", 0, "kind"), "copy", "copy"),
        (("operations", 0, "after"), [7], "operations[0] (id 7): 'after' names 7, no operation earlier"),
        (("operations", 0, "after"), [3], "operations[0] (id 7): 'after' names 3, no operation earlier"),
        (("operations", 1, "after"), [99], "operations[1] (id 3): 'after' names 99, no operation earlier"),
        (("operations", 0, "task"), None, "a run has 'task' and 'algorithm'"),
        (("operations", 0, "algorithm"), None, "a run has 'task' and 'algorithm'"),
        (("operations", 0, "block"), 0, "have 'block', and nothing else has it"),
        (("operations", 1, "block"), None, "have 'block', and nothing else has it"),
        (("operations", 1, "task"), 0, "a run has 'task' and 'algorithm', and nothing else has them"),
        (("operations", 1, "algorithm"), 0, "a run has 'task' and 'algorithm', and nothing else has them"),
        (("operations", 0, "start_ns"), -1, ">= 0"),
        (("operations", 0, "end_ns"), 5.5, "`int`"),
        (("operations", 0, "task"), 1, "operations[0]: task 1 is out of range 0..0"),
        (("operations", 0, "algorithm"), 2, "operations[0]: algorithm 2 is out of range 0..1"),
        (("operations", 1, "block"), 2, "operations[1]: block 2 is out of range 0..1"),
        (("residences", 1, "block"), 2, "residences[1]: block 2 is out of range 0..1"),
        (("residences", 1, "block"), None, "residences[1]: it has either 'block' or 'workspace_of'"),
        (("residences", 1, "workspace_of"), 7, "residences[1]: it has either 'block' or 'workspace_of'"),
        (("residences", 2, "workspace_of"), 99, "residences[2]: it names operation 99, which does not exist"),
        (("residences", 1, "acquired_by"), 99, "residences[1]: it names operation 99, which does not exist"),
        (("residences", 1, "released_after"), [7, 99], "residences[1]: it names operation 99"),
        (("residences", 1, "offset"), None, "residences[1]: a contiguous schedule gives it an 'offset'"),
        (("residences", 1, "offset"), -512, ">= 0"),
        (("residences", 1, "extents"), [[0, 8]], "residences[1]: a paged schedule gives it 'extents'"),
        (("residences", 1, "bytes"), 0, ">= 1"),
        (("page_bytes",), PAGE_BYTES, "page_bytes: a paged schedule has it, and no other"),
        (("memory_model",), "paged", "page_bytes: a paged schedule has it, and no other"),
        (("memory_model",), "divisible", "residences[0]: a contiguous schedule gives it an 'offset'"),
        (("makespan_ns",), -1, ">= 0"),
        (("peak_bytes",), None, "`int`"),
    ],
)
def test_a_broken_rule_is_named_in_one_sentence(
    place: Place, value: object, words: str, document: dict[str, Any], instance: Instance, tmp_path: Path
) -> None:
    *path, last = place
    target: Any = document
    for key in path:
        target = target[key]
    target[last] = value
    file = tmp_path / "bad.schedule.json"
    file.write_text(json.dumps(document))
    with pytest.raises(FormatError) as caught:
        read_schedule(file, instance)
    sentence = str(caught.value)
    assert sentence.startswith(f"{file} is not a schedule")
    assert words in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "key",
    ["format", "instance", "method", "memory_model", "operations", "residences", "makespan_ns", "peak_bytes"],
)
def test_a_missing_key_is_named(
    key: str, document: dict[str, Any], instance: Instance, tmp_path: Path
) -> None:
    del document[key]
    (tmp_path / "bad").write_text(json.dumps(document))
    with pytest.raises(FormatError, match=f"missing required field `{key}`"):
        read_schedule(tmp_path / "bad", instance)


def paged(schedule: Schedule, extents: tuple[tuple[int, int], ...] | None) -> Schedule:
    residences = tuple(msgspec.structs.replace(r, offset=None, extents=extents) for r in schedule.residences)
    return msgspec.structs.replace(
        schedule, memory_model="paged", page_bytes=PAGE_BYTES, residences=residences
    )


def test_a_paged_schedule_has_extents_and_no_offsets(schedule: Schedule) -> None:
    good = paged(schedule, ((0, PAGE_BYTES),))
    with pytest.raises(FormatError, match="a paged schedule gives it 'extents'"):
        paged(schedule, None)
    with pytest.raises(FormatError, match="a contiguous schedule gives it an 'offset', and no other model"):
        msgspec.structs.replace(
            good, residences=(msgspec.structs.replace(good.residences[0], offset=0), *good.residences[1:])
        )


def test_an_extent_is_not_empty(schedule: Schedule, instance: Instance, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=">= 1"):
        paged(schedule, ((0, 0),))
    document = json.loads(encode(paged(schedule, ((0, PAGE_BYTES),))))
    document["residences"][0]["extents"] = [[0, 0]]
    (tmp_path / "a").write_text(json.dumps(document))
    with pytest.raises(FormatError, match=">= 1"):
        read_schedule(tmp_path / "a", instance)


def test_a_divisible_schedule_has_no_places(schedule: Schedule) -> None:
    residences = tuple(msgspec.structs.replace(r, offset=None) for r in schedule.residences)
    made = msgspec.structs.replace(schedule, memory_model="divisible", residences=residences)
    assert all(r.offset is None and r.extents is None for r in made.residences)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda i: msgspec.structs.replace(i, blocks=i.blocks[:1], tasks=(_bare(i),)),
            "block 1 is out of range",
        ),
        (
            lambda i: msgspec.structs.replace(
                i, tasks=(msgspec.structs.replace(i.tasks[0], algorithms=i.tasks[0].algorithms[:1]),)
            ),
            "algorithm 1 is out of range",
        ),
    ],
)
def test_indices_are_those_of_the_instance(
    change: Callable[[Instance], Instance], words: str, schedule: Schedule, instance: Instance
) -> None:
    require_indices(instance, schedule)
    with pytest.raises(FormatError, match=words):
        require_indices(change(instance), schedule)
    other = msgspec.structs.replace(change(instance), name="other")
    with pytest.raises(FormatError, match=f"^the schedule is for instance .*, not for 'other': .*{words}"):
        require_indices(other, schedule)


def _bare(instance: Instance) -> Task:
    return msgspec.structs.replace(instance.tasks[0], outputs=())
