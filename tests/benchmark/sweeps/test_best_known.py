from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from pebbler.benchmark.sweeps.best_known import (
    Record,
    Registry,
    admit,
    admit_file,
    best_known,
    improve,
    read_registry,
    submission,
    verify,
)
from pebbler.heuristics.methods import Answer, Limits, Method
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode
from pebbler.instances.instance import Instance
from pebbler.instances.suites.suite import find_suite, list_suites, members
from pebbler.solver.bounds import Bound, best_bound
from pebbler.solver.solve import solve
from pebbler.validate.bounds.certificate import sealed
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule

EMPTY = Registry(suite="tiny")
Toys = Callable[..., None]


@pytest.fixture(scope="module")
def instance() -> Instance:
    """One on which moDNN is not optimal."""
    return next(m for m in members(find_suite("tiny")) if m.name == "residual-slack-s0").build()


@pytest.fixture(scope="module")
def best(instance: Instance) -> Schedule:
    """What is shipped: an optimum, by an exhaustive search."""
    record = next(record for record in best_known("tiny").records if record.instance == instance.name)
    assert record.schedule is not None
    return record.schedule


@pytest.fixture(scope="module")
def worse(instance: Instance, best: Schedule) -> Schedule:
    schedule = solve(instance, "modnn").schedule
    assert schedule is not None
    assert schedule.makespan_ns > best.makespan_ns
    return schedule


def only(registry: Registry) -> Record:
    (record,) = registry.records
    return record


# --- what is shipped ----------------------------------------------------------------------------------


BUILT = [suite for suite in list_suites() if not find_suite(suite).frozen]


@pytest.mark.parametrize(
    ("suite", "step"),
    [
        *((suite, 1 if suite == "tiny" else 8) for suite in BUILT),
        *(pytest.param(suite, 1, marks=pytest.mark.slow) for suite in BUILT),
    ],
)
def test_every_shipped_record_is_of_its_instance_and_passes_the_checker(suite: str, step: int) -> None:
    """One instance in eight of the larger suites; slowly, all of them."""
    records = {(r.instance, r.memory_model): r for r in best_known(suite).records}
    assert len(records) == len(best_known(suite).records)
    for turn, member in enumerate(members(find_suite(suite)) if records else ()):
        for memory in ("contiguous", "paged"):
            record = records.pop((member.name, memory), None)  # type: ignore[call-overload]
            if record is None or turn % step:
                continue
            instance = member.build()
            assert record.instance_sha256 == sha256(encode(instance)).hexdigest()
            assert best_bound(instance).lower_bound_ns <= record.lower_bound_ns
            if record.schedule is not None:
                assert check(instance, record.schedule).valid
                assert record.schedule.memory_model == record.memory_model
                assert record.schedule.makespan_ns == record.makespan_ns >= record.lower_bound_ns
    assert not records


def test_tiny_has_the_optimum_of_every_instance() -> None:
    found = {record.instance: record for record in best_known("tiny").records}
    assert set(found) == {member.name for member in members(find_suite("tiny"))}
    assert all(record.optimal for record in found.values())


@pytest.mark.parametrize(
    "name", ["chain2-s1", "chain3-single-s1", "residual-workspaces-s1", "chain2-recompute-s0"]
)
def test_the_shipped_optima_are_those_of_an_exhaustive_search(name: str) -> None:
    instance = next(member for member in members(find_suite("tiny")) if member.name == name).build()
    record = next(record for record in best_known("tiny").records if record.instance == name)
    assert solve(instance, "brute-force").makespan_ns == record.makespan_ns


def test_no_method_beats_an_optimum() -> None:
    found = {record.instance: record.lower_bound_ns for record in best_known("tiny").records}
    met = 0
    for member in members(find_suite("tiny")):
        instance = member.build()
        for method in ("modnn", "vdnn-all-m", "vdnn-dyn"):
            makespan = solve(instance, method).makespan_ns
            assert makespan is None or makespan >= found[member.name]
            met += makespan == found[member.name]
    assert met


def test_a_suite_without_records_has_none() -> None:
    assert best_known("scaling") == Registry(suite="scaling")
    with pytest.raises(PebblerError, match="there is no suite"):
        best_known("none")


# --- what enters --------------------------------------------------------------------------------------


def test_schedules_only_improve(instance: Instance, best: Schedule, worse: Schedule) -> None:
    first = admit(EMPTY, instance, schedule=worse)
    assert only(first).makespan_ns == worse.makespan_ns
    second = admit(first, instance, schedule=best)
    assert (only(second).makespan_ns, only(second).schedule) == (best.makespan_ns, best)
    assert admit(second, instance, schedule=worse) == second


def test_bounds_only_improve(instance: Instance, best: Schedule) -> None:
    low, high = Bound(3, "compute", True), Bound(best.makespan_ns, "brute-force", False)
    registry = admit(EMPTY, instance, bound=low)
    assert (only(registry).lower_bound_ns, only(registry).makespan_ns) == (3, None)
    registry = admit(admit(registry, instance, bound=high), instance, bound=low)
    record = only(registry)
    assert (record.lower_bound_ns, record.bound_by, record.certified) == (
        best.makespan_ns,
        "brute-force",
        False,
    )
    assert not record.optimal
    assert only(admit(registry, instance, schedule=best)).optimal


def test_memory_models_have_records_of_their_own(instance: Instance, best: Schedule) -> None:
    registry = admit(
        admit(EMPTY, instance, schedule=best), instance, memory="paged", bound=Bound(5, "x", True)
    )
    assert [(r.memory_model, r.makespan_ns) for r in registry.records] == [
        ("contiguous", best.makespan_ns),
        ("paged", None),
    ]


def test_an_invalid_schedule_never_enters(instance: Instance, best: Schedule) -> None:
    with pytest.raises(PebblerError, match=r"not valid: .*makespan"):
        admit(EMPTY, instance, schedule=msgspec.structs.replace(best, makespan_ns=best.makespan_ns - 1))
    with pytest.raises(PebblerError, match=r"not valid: .*residence"):
        admit(EMPTY, instance, schedule=msgspec.structs.replace(best, residences=best.residences[:-1]))
    with pytest.raises(PebblerError, match="memory model is contiguous, not paged"):
        admit(EMPTY, instance, memory="paged", schedule=best)


def test_a_schedule_for_another_file_never_enters(instance: Instance, best: Schedule) -> None:
    other = msgspec.structs.replace(best, instance_sha256="0" * 64)
    with pytest.raises(PebblerError, match="not the checksum"):
        admit(EMPTY, instance, schedule=other)


def test_a_contradiction_is_refused_either_way(instance: Instance, best: Schedule) -> None:
    wrong = Bound(best.makespan_ns + 1, "wishful", True)
    for known, new in (({"bound": wrong}, {"schedule": best}), ({"schedule": best}, {"bound": wrong})):
        registry = admit(EMPTY, instance, **known)  # type: ignore[arg-type]
        with pytest.raises(PebblerError, match="contradicts the wishful bound"):
            admit(registry, instance, **new)  # type: ignore[arg-type]


def test_a_word_above_a_schedule_falls_either_way(
    instance: Instance, best: Schedule, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = best_bound(instance).certificate
    wrong = Bound(best.makespan_ns + 1, "wishful", False, certificate)
    for known, new in (({"bound": wrong}, {"schedule": best}), ({"schedule": best}, {"bound": wrong})):
        registry = admit(EMPTY, instance, **known)  # type: ignore[arg-type]
        caplog.clear()
        record = only(admit(registry, instance, **new))  # type: ignore[arg-type]
        assert (record.makespan_ns, record.certified) == (best.makespan_ns, True)
        assert record.lower_bound_ns == best_bound(instance).lower_bound_ns
        assert f"is under the wishful bound {best.makespan_ns + 1}" in caplog.text


def test_what_was_known_of_an_instance_that_has_changed_is_forgotten(
    instance: Instance, best: Schedule
) -> None:
    registry = admit(EMPTY, instance, schedule=best)
    changed = msgspec.structs.replace(instance, budget_bytes=instance.budget_bytes + 512)
    assert only(admit(registry, changed)).makespan_ns is None


# --- solving and files ---------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Leave two instances of the suite `tiny`, and return their names."""
    chosen = [m for m in members(find_suite("tiny")) if m.name in ("chain2-s0", "residual-slack-s1")]
    monkeypatch.setattr("pebbler.benchmark.sweeps.best_known.members", lambda _: iter(chosen))
    return [member.name for member in chosen]


def test_solving_fills_the_registry_and_a_second_time_finds_nothing_open(few: list[str]) -> None:
    steps = list(improve(EMPTY, ["modnn", "brute-force"], time_limit=60.0))
    registry, result = steps[-1]
    assert [record.instance for record in registry.records] == sorted(few)
    assert all(record.optimal for record in registry.records)
    assert {found.method for _, found in steps} == {"modnn", "brute-force"}
    assert result.makespan_ns in {record.makespan_ns for record in registry.records}
    assert list(improve(registry, ["modnn", "brute-force"])) == []


def test_only_what_is_selected_is_solved(few: list[str]) -> None:
    ((registry, _),) = improve(EMPTY, ["modnn"], select=["chain*", "none"])
    assert [record.instance for record in registry.records] == ["chain2-s0"]
    assert "chain2-s0" in few
    with pytest.raises(PebblerError, match=r"no instance of suite 'tiny' matches none, x\*"):
        list(improve(EMPTY, ["modnn"], select=["none", "x*"]))


def test_a_program_is_run_again_when_it_has_changed(
    tmp_path: Path, instance: Instance, worse: Schedule
) -> None:
    (tmp_path / "s.json").write_bytes(encode(worse))
    program, registry = tmp_path / "mine", EMPTY
    for lines, runs in (("", 1), ("", 0), ("# better\n", 1)):
        program.write_text(f'#!/bin/sh\n{lines}cp {tmp_path}/s.json "$2"\n')
        program.chmod(0o755)
        steps = list(improve(registry, [f"exec:{program}"], select=[instance.name]))
        assert len(steps) == runs
        registry = steps[-1][0] if steps else registry


@pytest.mark.usefixtures("few")
def test_what_an_interrupted_method_has_found_enters(toys: Toys, swap: Method) -> None:
    def press(instance: Instance, limits: Limits) -> Answer:
        return dataclasses.replace(swap(instance, limits), stopped_by="interrupted")

    toys(press=press)
    steps = improve(EMPTY, ["press"])
    registry, result = next(steps)
    assert only(registry).makespan_ns == result.makespan_ns is not None
    with pytest.raises(KeyboardInterrupt):
        next(steps)


@pytest.mark.usefixtures("few")
def test_a_defect_of_a_method_is_told_and_enters_nothing(
    toys: Toys, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Instance, __: Limits) -> Answer:
        raise RuntimeError("out of order")

    toys(broken=broken)
    results = [result for _, result in improve(EMPTY, ["broken"])]
    assert [type(result.failure) for result in results] == [RuntimeError, RuntimeError]
    assert caplog.text.count("this is a defect of the method: ") == 2


def test_a_schedule_from_elsewhere_enters(tmp_path: Path, instance: Instance, best: Schedule) -> None:
    file = tmp_path / "s.schedule.json"
    file.write_bytes(encode(best))
    assert admit_file(EMPTY, file) == admit(EMPTY, instance, schedule=best)
    file.write_bytes(encode(msgspec.structs.replace(best, instance="another")))
    with pytest.raises(PebblerError, match="which is not in suite 'tiny'"):
        admit_file(EMPTY, file)


def test_a_known_schedule_that_is_wrong_is_refused(instance: Instance, best: Schedule) -> None:
    registry = admit(EMPTY, instance, schedule=best)
    wrong = msgspec.structs.replace(best, residences=best.residences[:-1])
    record = msgspec.structs.replace(only(registry), schedule=wrong)
    with pytest.raises(PebblerError, match="is not valid"):
        admit(msgspec.structs.replace(registry, records=(record,)), instance)


def test_a_schedule_of_another_instance_is_refused_by_names(instance: Instance, best: Schedule) -> None:
    other = next(m for m in members(find_suite("tiny")) if len(m.build().tasks) < len(instance.tasks))
    last = msgspec.structs.replace(best.operations[-1], after=())
    short = msgspec.structs.replace(best, operations=(last,), residences=())
    with pytest.raises(PebblerError, match=f"^{other.name}: .* is not valid: the schedule is for instance"):
        admit(EMPTY, other.build(), schedule=short)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ('{"format": "pebbler/best-known/1", "suite": "tiny", "suite": "tiny"}', "'suite' is there twice"),
        ('{"format": "pebbler/best-known/1", "suite": "tight"}', "is of suite 'tight', not of 'tiny'"),
        ('{"format": "pebbler/best-known/2", "suite": "tiny"}', "best-known/2"),
        (
            '{"format": "pebbler/best-known/1", "suite": "tiny", "records": [%s]}',
            "is not that of its schedule",
        ),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused(data: str, told: str, tmp_path: Path) -> None:
    record = (
        '{"instance": "x", "instance_sha256": "0", "memory_model": "paged", "makespan_ns": 3, '
        '"lower_bound_ns": 2, "bound_by": "y", "certified": true, "schedule": null}'
    )
    file = tmp_path / "tiny.json"
    file.write_text(data % record if "%s" in data else data)
    with pytest.raises(PebblerError, match=told):
        read_registry(file, "tiny")


def test_a_shipped_registry_with_a_key_twice_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "best_known").mkdir()
    data = '{"format": "pebbler/best-known/1", "suite": "tiny", "suite": "tiny"}'
    (tmp_path / "best_known" / "tiny.json").write_text(data)
    monkeypatch.setattr("pebbler.benchmark.sweeps.best_known.resources.files", lambda _: tmp_path)
    with pytest.raises(PebblerError, match="'suite' is there twice"):
        best_known("tiny")


# --- the old name -------------------------------------------------------------------------------------


def test_the_old_module_works_and_names_the_new_one() -> None:
    sys.modules.pop("pebbler.benchmark.best_known", None)
    with pytest.warns(DeprecationWarning, match=r"is now pebbler\.benchmark\.sweeps\.best_known"):
        old = importlib.import_module("pebbler.benchmark.best_known")
    assert old.best_known("tiny") == best_known("tiny")


# --- submissions --------------------------------------------------------------------------------------


@pytest.fixture
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pebbler.benchmark.sweeps.best_known.best_known", lambda suite: Registry(suite=suite))


@pytest.mark.usefixtures("nothing_known")
def test_a_submission_has_what_is_better_and_is_entered_like_a_schedule(
    tmp_path: Path, instance: Instance, best: Schedule, worse: Schedule
) -> None:
    certificate = best_bound(instance).certificate
    assert certificate is not None
    files = {"worse": worse, "best": best, "bound": certificate}
    for name, document in files.items():
        (tmp_path / name).write_bytes(encode(document))
    sent = submission("tiny", [tmp_path / name for name in files])
    record = only(sent)
    assert (record.schedule, record.certificate) == (best, certificate)
    assert (record.lower_bound_ns, record.certified) == (certificate.lower_bound_ns, True)
    assert "certificate" not in record.as_dict()
    (tmp_path / "sent").write_bytes(encode(sent))
    assert admit_file(EMPTY, tmp_path / "sent") == sent
    assert list(verify(sent)) == []
    with pytest.raises(PebblerError, match="worse is no better than what is known"):
        submission("tiny", [tmp_path / "best", tmp_path / "worse"])


def test_what_is_no_better_than_the_shipped_records_is_not_submitted(
    tmp_path: Path, instance: Instance, best: Schedule
) -> None:
    certificate = best_bound(instance).certificate
    assert certificate is not None
    for document in (best, certificate):
        (tmp_path / "mine").write_bytes(encode(document))
        with pytest.raises(PebblerError, match="mine is no better than what is known"):
            submission("tiny", [tmp_path / "mine"])


@pytest.mark.usefixtures("nothing_known")
def test_a_certificate_that_proves_less_is_refused_and_a_better_bound_drops_it(
    tmp_path: Path, instance: Instance, best: Schedule
) -> None:
    proof = best_bound(instance).certificate
    assert proof is not None
    too_much = sealed(msgspec.structs.replace(proof, lower_bound_ns=proof.lower_bound_ns + 1))
    (tmp_path / "mine").write_bytes(encode(too_much))
    with pytest.raises(PebblerError, match="the certificate is not valid: its figures prove a bound of"):
        submission("tiny", [tmp_path / "mine"])
    (tmp_path / "mine").write_bytes(encode(msgspec.structs.replace(proof, instance="nobody")))
    with pytest.raises(PebblerError, match="is for 'nobody', which is not in suite 'tiny'"):
        submission("tiny", [tmp_path / "mine"])
    proven = admit(EMPTY, instance, certificate=proof)
    assert only(proven).certificate == proof
    higher = Bound(best.makespan_ns, "somebody", certified=False)
    assert only(admit(proven, instance, bound=higher)).certificate is msgspec.UNSET


def test_records_that_do_not_hold_are_told(instance: Instance, best: Schedule) -> None:
    proof = best_bound(instance).certificate
    assert proof is not None
    record = only(admit(EMPTY, instance, schedule=best, certificate=proof))
    change = msgspec.structs.replace
    bad = change(best, makespan_ns=best.makespan_ns - 1)
    wrong = {
        "the suite has no such instance": [change(record, instance="nobody")],
        "the checksum is of another instance": [change(record, instance_sha256="0" * 64)],
        "is under the bound": [change(record, lower_bound_ns=10**12, certificate=msgspec.UNSET)],
        "there are two records": [record, record],
        "the schedule by brute-force is not valid": [
            change(record, schedule=bad, makespan_ns=bad.makespan_ns)
        ],
        "the certificate is not valid": [change(record, certificate=change(proof, instance="nobody"))],
        "the certificate is for a bound of": [change(record, lower_bound_ns=0)],
        "its memory model is contiguous, not paged": [change(record, memory_model="paged")],
    }
    for told, records in wrong.items():
        (reason, *_) = verify(Registry(suite="tiny", records=tuple(records)))
        assert told in reason
    assert list(verify(Registry(suite="tiny", records=(record,)))) == []
