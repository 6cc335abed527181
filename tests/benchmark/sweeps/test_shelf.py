"""The folder of best-known values, where documents of frozen suites lie beside the values."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET

from pebbler.benchmark.sweeps.best_known import (
    Record,
    Registry,
    admit,
    admit_file,
    best_known,
    improve,
    read_registry,
    verify,
)
from pebbler.benchmark.sweeps.history import Entrant
from pebbler.benchmark.sweeps.shelf import Shelf, with_documents
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode
from pebbler.instances.instance import Instance
from pebbler.instances.suites.suite import Member, find_suite, members
from pebbler.solver.bounds import Bound, best_bound
from pebbler.solver.solve import solve
from pebbler.validate.schedule import Schedule

SUITE = "pebbler-2026"
EMPTY = Registry(suite=SUITE)
METHODS = ("vdnn-all-m", "modnn")
"""Of which the second has the better schedule."""


@pytest.fixture(scope="module")
def member() -> Member:
    """A small instance on which these methods are not optimal."""
    return next(
        one for one in members(find_suite(SUITE)) if one.name == "papers-alexnet-caffe-b256-k40-1800mib"
    )


@pytest.fixture(scope="module")
def instance(member: Member) -> Instance:
    return member.build()


@pytest.fixture(scope="module")
def schedules(instance: Instance) -> tuple[Schedule, Schedule]:
    """A schedule, and a better one."""
    worse, better = (solve(instance, method).schedule for method in METHODS)
    assert worse is not None
    assert better is not None
    assert worse.makespan_ns > better.makespan_ns
    return worse, better


@pytest.fixture
def two(instance: Instance, schedules: tuple[Schedule, Schedule]) -> tuple[Registry, Registry]:
    """What is known after the first schedule and its bound, and after the better one."""
    bound = best_bound(instance)
    assert bound.certificate is not None
    first = admit(
        EMPTY,
        instance,
        schedule=schedules[0],
        certificate=bound.certificate,
        entrant=Entrant("somebody", "vdnn-all-m", 1.5),
    )
    return first, admit(first, instance, schedule=schedules[1], entrant=Entrant("somebody else", "modnn"))


def only(registry: Registry) -> Record:
    (record,) = registry.records
    return record


def documents(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / SUITE).iterdir())


def test_documents_lie_apart_and_are_read_again(tmp_path: Path, two: tuple[Registry, Registry]) -> None:
    shelf = Shelf(tmp_path / "known", SUITE)
    assert shelf.read() == best_known(SUITE)
    shelf.write(two[0])
    bare = only(read_registry(shelf.file, SUITE))
    assert (bare.schedule, bare.certificate) == (None, UNSET)
    assert bare.makespan_ns == only(two[0]).makespan_ns
    assert isinstance(bare.schedule_sha256, str)
    assert isinstance(bare.certificate_sha256, str)
    whole = only(Shelf(tmp_path / "known", SUITE).read())
    assert (whole.schedule, whole.certificate) == (only(two[0]).schedule, only(two[0]).certificate)
    assert set(documents(tmp_path / "known")) == {
        f"{bare.instance}-{bare.certificate_sha256[:8]}.certificate.json.gz",
        f"{bare.instance}-{bare.schedule_sha256[:8]}.schedule.json.gz",
    }
    assert list(verify(Shelf(tmp_path / "known", SUITE).read())) == []


def test_a_better_schedule_takes_the_place_of_the_worse(
    tmp_path: Path, two: tuple[Registry, Registry]
) -> None:
    shelf = Shelf(tmp_path, SUITE)
    shelf.write(two[0])
    before = documents(tmp_path)
    shelf.write(two[1])
    assert len(documents(tmp_path)) == len(before) == 2
    assert documents(tmp_path) != before
    assert only(shelf.read()).schedule == only(two[1]).schedule
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / SUITE).iterdir()}
    shelf.write(shelf.read())
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / SUITE).iterdir()} == files


def test_the_history_says_what_improved(two: tuple[Registry, Registry]) -> None:
    steps = only(two[1]).history
    assert steps is not UNSET
    assert [(step.who, step.method, step.seconds) for step in steps] == [
        ("somebody", "vdnn-all-m", 1.5),
        ("somebody else", "modnn", UNSET),
    ]
    assert steps[0].lower_bound_ns == only(two[0]).lower_bound_ns
    assert steps[1].lower_bound_ns is UNSET
    assert [step.makespan_ns for step in steps] == [only(one).makespan_ns for one in two]
    assert all(step.date and step.machine and step.pebbler for step in steps)
    assert steps[1].gap is not UNSET
    assert steps[0].gap is not UNSET
    assert steps[1].gap < steps[0].gap


def test_what_is_no_better_is_no_step(
    two: tuple[Registry, Registry], instance: Instance, schedules: tuple[Schedule, Schedule]
) -> None:
    entrant = Entrant("a third", "vdnn-all-m")
    assert admit(two[1], instance, schedule=schedules[0], entrant=entrant) == two[1]


def test_values_without_documents_still_count(
    tmp_path: Path,
    two: tuple[Registry, Registry],
    instance: Instance,
    schedules: tuple[Schedule, Schedule],
) -> None:
    shelf = Shelf(tmp_path, SUITE)
    shelf.write(two[1])
    values = read_registry(shelf.file, SUITE)
    record = only(values)
    assert record.method == "modnn"
    assert "history" not in record.as_dict()
    assert list(verify(values)) == []
    assert admit(values, instance, schedule=schedules[0]) == values
    assert only(admit(values, instance, schedule=schedules[1])).schedule is None
    above = Bound(only(two[1]).lower_bound_ns * 2, "wishful", False)
    with pytest.raises(PebblerError, match="enter it where the known schedule lies"):
        admit(values, instance, bound=above)
    for path in (tmp_path / SUITE).iterdir():
        path.unlink()
    assert shelf.read() == values


@pytest.mark.parametrize("data", [b"", b"{}"])
def test_a_damaged_document_is_refused(data: bytes, tmp_path: Path, two: tuple[Registry, Registry]) -> None:
    shelf = Shelf(tmp_path, SUITE)
    shelf.write(two[1])
    (place,) = (tmp_path / SUITE).glob("*.schedule.json.gz")
    place.write_bytes(data)
    with pytest.raises(PebblerError, match="take it out, and enter a schedule again"):
        with_documents(read_registry(shelf.file, SUITE), tmp_path)


def test_another_document_under_the_same_name_is_refused(
    tmp_path: Path, two: tuple[Registry, Registry]
) -> None:
    shelf = Shelf(tmp_path, SUITE)
    shelf.write(two[1])
    (schedule,) = (tmp_path / SUITE).glob("*.schedule.json.gz")
    (certificate,) = (tmp_path / SUITE).glob("*.certificate.json.gz")
    schedule.write_bytes(certificate.read_bytes())
    with pytest.raises(PebblerError, match="is not what the values say"):
        shelf.read()


def test_a_frozen_instance_has_a_memory_model_of_its_own(
    tmp_path: Path, instance: Instance, schedules: tuple[Schedule, Schedule]
) -> None:
    paged = solve(instance, "modnn", memory="paged").schedule
    assert paged is not None
    (tmp_path / "paged").write_bytes(encode(paged))
    with pytest.raises(PebblerError, match="in contiguous memory, and the schedule is for paged; leave it"):
        admit_file(EMPTY, tmp_path / "paged")
    (tmp_path / "good").write_bytes(encode(schedules[0]))
    found = only(admit_file(EMPTY, tmp_path / "good", "paged", who="somebody"))
    assert found.memory_model == "contiguous"
    assert found.history is not UNSET
    assert found.history[0].who == "somebody"
    other = msgspec.structs.replace(found, memory_model="paged", schedule=None, makespan_ns=None)
    (reason,) = verify(Registry(suite=SUITE, records=(other,)))
    assert "the suite has it in contiguous memory" in reason


def test_a_run_that_left_an_instance_open_is_not_made_again(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pebbler.benchmark.sweeps.best_known.members", lambda _: iter([member]))
    steps = list(improve(EMPTY, METHODS))
    registry = steps[-1][0]
    assert [result.method for _, result in steps] == list(METHODS)
    assert list(improve(registry, METHODS)) == []
    assert [result.method for _, result in improve(registry, METHODS, seed=1)] == list(METHODS)
    gap = only(registry).bound.gap(only(registry).makespan_ns or 0)
    assert gap > 0
    assert list(improve(registry, METHODS, seed=2, gap=gap)) == []
    assert [result.method for _, result in improve(EMPTY, METHODS, gap=10.0)] == [METHODS[0]]
