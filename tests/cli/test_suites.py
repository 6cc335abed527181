"""The commands ``suite``, ``generate``, ``best-known`` and ``schemas``, and the old names of the last two."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET

from pebbler.benchmark.sweeps.best_known import Registry, admit, best_known
from pebbler.cli.main import main
from pebbler.heuristics.methods import Answer, Limits, Method
from pebbler.instances.files import encode, read_instance, sha256_of, write_instance
from pebbler.instances.instance import Instance
from pebbler.instances.suites.suite import find_suite, list_suites, members
from pebbler.solver.bounds import Bound, best_bound
from pebbler.validate.schedule import Schedule
from pebbler.validate.schemas import FORMATS

from .refusals import refusal

Toys = Callable[..., None]
EMPTY = Registry(suite="tiny")

pytestmark = pytest.mark.usefixtures("elsewhere")


# --- suite --------------------------------------------------------------------------------------------


def test_suites_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(list_suites())
    assert main(["suite", "list", "--json"]) == 0
    counts = {entry["name"]: entry["instances"] for entry in json.loads(capsys.readouterr().out)["suites"]}
    assert counts["tiny"] == 51
    assert main(["suite", "show", "tiny"]) == 0
    names = [member.name for member in members(find_suite("tiny"))]
    first, *shown, last = capsys.readouterr().out.splitlines()
    assert (first, shown) == (f"tiny: {find_suite('tiny').title}", names)
    assert last == "51 instances; 51 have a best-known schedule; pebbler best-known tiny shows them"
    assert main(["suite", "show", "pebbler-2026"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["instance", "kind", "memory"]
    assert ["random-layered-copies", "random", "paged"] in lines
    assert main(["suite", "show", "tight", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["instances"]) == 68


def test_a_suite_is_exported_as_an_archive(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "export", "tiny", "-o", "t.tar", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"suite": "tiny", "instances": 51, "sha256": sha256_of("t.tar")}


def test_suite_needs_a_command_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        ("", "required: COMMAND; see pebbler suite --help"),
        ("lists", "there is no command 'lists'; did you mean list?"),
        ("show tinny", "there is no suite 'tinny'; did you mean tiny"),
        ("export tiny -o no/t.tar", "no/t.tar cannot be written"),
    ):
        assert told in refusal(capsys, "suite", *words.split())


# --- generate -----------------------------------------------------------------------------------------


def test_generate_writes_a_suite_with_its_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "tiny", "-o", "made/tiny"]) == 0
    assert "suite tiny, " in capsys.readouterr().out
    manifest = json.loads(Path("made/tiny/manifest.json").read_text())
    names = {entry["file"] for entry in manifest["instances"]}
    assert {path.name for path in Path("made/tiny").iterdir()} == {*names, "manifest.json", "best-known.json"}
    for entry in manifest["instances"]:
        path = Path("made/tiny", entry["file"])
        assert sha256_of(path) == entry["sha256"]
        instance = read_instance(path)
        assert (instance.name, len(instance.tasks)) == (entry["name"], entry["tasks"])
        assert entry["least_budget_bytes"] <= entry["budget_bytes"]


def test_the_help_of_generate_names_every_suite(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert f"{', '.join(list_suites()[:-1])} or {list_suites()[-1]}" in told


def test_generate_prints_the_manifest_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "tiny", "-o", "tiny", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == json.loads(Path("tiny/manifest.json").read_text())
    assert captured.err == ""


def test_generate_tells_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "tiny", "-o", "tiny", "-v"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"1 of {len(lines)}: ")
    assert lines[-1].startswith(f"{len(lines)} of {len(lines)}: ")


def test_generate_refuses_an_unknown_suite_and_a_file_for_a_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "there is no suite 'tinny'; did you mean tiny" in refusal(capsys, "generate", "tinny", "-o", "x")
    Path("taken").write_text("")
    assert "taken is a file" in refusal(capsys, "generate", "tiny", "-o", "taken")


def test_an_interrupted_suite_has_no_manifest_and_no_half_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "tiny", "-o", "tiny"]) == 0
    whole = {path.name: path.read_bytes() for path in Path("tiny").iterdir()}
    written = []

    def interrupt(instance: Instance, path: Path) -> str:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(path.name)
        return write_instance(instance, path)

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr("pebbler.instances.suites.manifest.write_instance", interrupt)
        assert main(["generate", "tiny", "-o", "tiny"]) == 130
    assert capsys.readouterr().err == "pebbler: interrupted\n"
    assert {path.name for path in Path("tiny").iterdir()} == set(whole) - {"manifest.json"}
    assert main(["generate", "tiny", "-o", "tiny"]) == 0
    assert {path.name: path.read_bytes() for path in Path("tiny").iterdir()} == whole


# --- best-known ---------------------------------------------------------------------------------------


@pytest.fixture
def instance() -> Instance:
    return next(m for m in members(find_suite("tiny")) if m.name == "residual-slack-s0").build()


@pytest.fixture
def best() -> Schedule:
    schedule = next(r for r in best_known("tiny").records if r.instance == "residual-slack-s0").schedule
    assert schedule is not None
    return schedule


@pytest.fixture
def open_suite(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Leave two instances of `tiny` of which nothing is known, in the folder `known`; return their names."""
    few = [m for m in members(find_suite("tiny")) if m.name in ("chain2-s0", "residual-slack-s1")]
    monkeypatch.setattr("pebbler.benchmark.sweeps.best_known.members", lambda _: iter(few))
    (elsewhere / "known").mkdir()
    (elsewhere / "known" / "tiny.json").write_bytes(encode(EMPTY))
    return sorted(member.name for member in few)


def known() -> Registry:
    """What is known, without how it came to be."""
    found = msgspec.json.decode(Path("known/tiny.json").read_bytes(), type=Registry)
    records = (msgspec.structs.replace(record, history=UNSET) for record in found.records)
    return msgspec.structs.replace(found, records=tuple(records))


def test_best_known_shows_what_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["best-known", "tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "residual-slack-s0" in "".join(lines)
    assert lines[-1] == "tiny: of 51 instances 51 have a schedule, and 51 an optimal one"
    assert main(["best-known", "tiny", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["suite"], found["instances"], len(found["records"])) == ("tiny", 51, 51)
    record = best_known("tiny").records[0]
    assert found["records"][0] == {
        "instance": record.instance,
        "instance_sha256": record.instance_sha256,
        "memory_model": "contiguous",
        "makespan_ns": record.makespan_ns,
        "lower_bound_ns": record.lower_bound_ns,
        "bound_by": record.bound_by,
        "certified": record.certified,
        "optimal": True,
        "method": "brute-force",
    }
    assert main(["best-known", "scaling"]) == 0
    assert capsys.readouterr().out == "scaling: of 22 instances 0 have a schedule, and 0 an optimal one\n"
    assert list(Path().iterdir()) == []


def test_best_known_shows_by_its_long_name_and_verifies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two suites; the records of all are checked where they are shipped from."""
    monkeypatch.setattr("pebbler.instances.suites.suite.list_suites", lambda: ("scaling", "tiny"))
    assert main(["best-known", "tiny"]) == 0
    shown = capsys.readouterr().out
    assert main(["best-known", "show", "tiny"]) == 0
    assert capsys.readouterr().out == shown
    assert main(["best-known", "verify"]) == 0
    count = len(best_known("tiny").records)
    assert count >= 51
    assert capsys.readouterr().out.startswith(f"{count} records hold")


def test_best_known_submits_what_is_better_and_a_maintainer_merges_it(
    instance: Instance, best: Schedule, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.json").write_bytes(encode(best))
    with monkeypatch.context() as patch:
        patch.setattr("pebbler.benchmark.sweeps.best_known.best_known", lambda suite: Registry(suite=suite))
        assert main(["best-known", "submit", "tiny", "mine.json", "-o", "sent.json"]) == 0
    assert capsys.readouterr().out == f"sent.json: better than what is known of {instance.name}\n"
    assert main(["best-known", "verify", "sent.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "valid": True,
        "records": 1,
        "values_alone": 0,
        "bounds_alone": 0,
        "reasons": [],
    }
    Path("known").mkdir()
    Path("known/tiny.json").write_bytes(encode(EMPTY))
    assert main(["best-known", "tiny", "--admit", "sent.json", "-o", "known"]) == 0
    assert known() == admit(EMPTY, instance, schedule=best)
    wrong = msgspec.json.decode(Path("sent.json").read_bytes())
    claimed = {"schedule": None, "schedule_sha256": "0", "lower_bound_ns": 1, "certified": True}
    Path("claim").write_bytes(msgspec.json.encode(wrong | {"records": [wrong["records"][0] | claimed]}))
    capsys.readouterr()
    assert main(["best-known", "verify", "claim"]) == 0
    assert capsys.readouterr().out == (
        "1 records hold; 1 have no schedule here (those of suites lie in docs/data/best-known); "
        "1 have a bound without a certificate; such values are taken as they are recorded, and not proven\n"
    )
    wrong["records"][0]["instance_sha256"] = "0"
    Path("sent.json").write_bytes(msgspec.json.encode(wrong))
    capsys.readouterr()
    assert main(["best-known", "verify", "sent.json"]) == 1
    assert "the checksum is of another instance" in capsys.readouterr().out


def test_best_known_fills_the_file_and_a_second_time_finds_nothing_open(
    open_suite: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "best-known",
        "tiny",
        "--methods",
        "modnn,brute-force",
        "--time-limit",
        "60s",
        "-o",
        "known",
        "-v",
    ]
    assert main(arguments) == 0
    assert [record.instance for record in known().records] == open_suite
    assert all(record.optimal for record in known().records)
    said = capsys.readouterr()
    assert "2 of 2: " in said.err
    assert (
        said.out.splitlines()[-1]
        == "known/tiny.json: of 51 instances 2 have a schedule, and 2 an optimal one"
    )
    first = Path("known/tiny.json").read_bytes()
    assert main(arguments) == 0
    assert Path("known/tiny.json").read_bytes() == first
    assert capsys.readouterr().err == ""


def test_best_known_of_a_frozen_suite_lies_beside_its_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    name = "pack-u-shaped-slack103"
    Path("known").mkdir()
    Path("known/pebbler-2026.json").write_bytes(encode(Registry(suite="pebbler-2026")))
    words = f"pebbler-2026 --methods modnn --select {name} --gap 50% --who Somebody -o known"
    assert main(["best-known", *words.split()]) == 0
    found = msgspec.json.decode(Path("known/pebbler-2026.json").read_bytes(), type=Registry)
    (record,) = found.records
    assert (record.instance, record.schedule, record.memory_model) == (name, None, "contiguous")
    assert [step.who for step in record.history or ()] == ["Somebody"]
    files = [path.name for path in Path("known/pebbler-2026").iterdir()]
    assert f"{name}-{str(record.schedule_sha256)[:8]}.schedule.json.gz" in files
    capsys.readouterr()
    assert main(["best-known", "verify", "known/pebbler-2026.json"]) == 0
    assert "records hold" in capsys.readouterr().out
    Path("known/pebbler-2026", files[0]).write_bytes(b"")
    assert "take it out" in refusal(capsys, "best-known", "verify", "known/pebbler-2026.json")


def test_best_known_starts_from_what_is_shipped(
    instance: Instance, best: Schedule, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("s.schedule.json").write_bytes(encode(best))
    assert main(["best-known", "tiny", "--admit", "s.schedule.json", "-o", "new/known"]) == 0
    told = "s.schedule.json is no better than what is known, and is left out\n"
    assert capsys.readouterr().err == told
    assert Path("new/known/tiny.json").read_bytes() == encode(best_known("tiny"))
    Path("known").mkdir()
    Path("known/tiny.json").write_bytes(encode(EMPTY))
    assert main(["best-known", "tiny", "--admit", "s.schedule.json", "-o", "known"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "%" not in said.out  # without a bound there is no gap
    assert known() == admit(EMPTY, instance, schedule=best)


@pytest.mark.usefixtures("open_suite")
def test_what_best_known_has_entered_stays_when_it_is_interrupted(
    toys: Toys, swap: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def press(instance: Instance, limits: Limits) -> Answer:
        calls.append(instance.name)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return swap(instance, limits)

    toys(press=press)
    assert main(["best-known", "tiny", "--methods", "press", "-o", "known"]) == 130
    said = capsys.readouterr()
    assert said.err == "pebbler: interrupted\n"
    assert "of 51 instances 1 have a schedule" in said.out
    solved = [record.instance for record in known().records if record.schedule is not None]
    assert solved == calls[:1]


@pytest.mark.usefixtures("open_suite")
def test_a_method_that_always_fails_has_status_3(
    toys: Toys, swap: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Instance, __: Limits) -> Answer:
        raise RuntimeError("out of order")

    toys(broken=broken, swap=swap)
    assert main(["best-known", "tiny", "--methods", "broken", "-o", "known"]) == 3
    assert "this is a defect of the method" in capsys.readouterr().err
    assert main(["best-known", "tiny", "--methods", "broken,swap", "-o", "known"]) == 0


def test_a_contradiction_keeps_both_files(
    instance: Instance, best: Schedule, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = Bound(best.makespan_ns + 1, "wishful", True, best_bound(instance).certificate)
    registry = admit(EMPTY, instance, bound=wrong)
    Path("known").mkdir()
    Path("known/tiny.json").write_bytes(encode(registry))
    Path("s.schedule.json").write_bytes(encode(best))
    assert main(["best-known", "tiny", "-o", "known", "--admit", "s.schedule.json"]) == 3
    assert "contradicts the wishful bound" in capsys.readouterr().err
    assert known() == registry
    kept = sorted(path.name for path in Path("known").glob("*.contradiction.*"))
    assert kept == [
        f"{instance.name}.contradiction.{what}.json" for what in ("bound", "instance", "schedule")
    ]


def test_best_known_refuses_what_it_cannot_enter(best: Schedule, capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.json").write_bytes(encode(msgspec.structs.replace(best, makespan_ns=best.makespan_ns - 1)))
    Path("other").mkdir()
    Path("other/tiny.json").write_bytes(encode(Registry(suite="tight")))
    for words, told in (
        ("tinny", "there is no suite 'tinny'; did you mean tiny"),
        ("tiny --methods modnn", "give its folder as -o DIR"),
        ("tiny --admit s.json", "give its folder as -o DIR"),
        ("tiny --methods modn -o known", "there is no method 'modn'"),
        ("tiny --methods exec:./none -o known", "there is no program ./none that may be executed"),
        ("tiny --admit none.json -o known", "none.json cannot be read"),
        ("tiny --admit s.json -o known", "is not valid: "),
        ("tiny --admit s.json -o s.json", "s.json is a file"),
        ("tiny tight", "best-known shows one suite; leave out tight"),
        ("show", "best-known show needs a suite"),
        ("submit tiny", "give a suite, files and where to write, such as"),
        ("submit tiny s.json", "give a suite, files and where to write, such as"),
        ("submit tiny s.json -o t.json", "is not valid: "),
        ("submit tiny s.json --methods modnn -o t.json", "best-known submit has no --methods"),
        ("verify tiny -o t.json", "best-known verify writes no file; leave -o out"),
        ("verify s.json", "s.json is not a registry"),
        ("tiny -o other", "other/tiny.json is of suite 'tight', not of 'tiny'"),
    ):
        assert told in refusal(capsys, "best-known", *words.split())


# --- schemas ------------------------------------------------------------------------------------------


def test_schemas_are_listed_printed_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schemas", "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)["schemas"]] == list(FORMATS)
    assert main(["schemas"]) == 0
    assert "A program for one round of an instance." in capsys.readouterr().out
    shipped = resources.files("pebbler.validate").joinpath("schemas")
    for options in ([], ["--json"]):
        assert main(["schemas", "schedule", *options]) == 0
        assert capsys.readouterr().out == shipped.joinpath("schedule.schema.json").read_text()
    assert main(["schemas", "-o", "a/b", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert sorted(files) == sorted(path.name for path in Path("a/b").iterdir())
    for name in files:
        assert Path("a/b", name).read_bytes() == shipped.joinpath(name).read_bytes()


def test_schemas_refuses_an_unknown_format_and_a_file_for_a_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "there is no schema 'schedules'; there are certificate, " in refusal(
        capsys, "schemas", "schedules"
    )
    assert "give one of the two" in refusal(capsys, "schemas", "schedule", "-o", "x")
    Path("taken").write_text("")
    assert "taken is a file" in refusal(capsys, "schemas", "-o", "taken")


# --- old names ----------------------------------------------------------------------------------------


def by_its_old_name(module: str, *arguments: str) -> tuple[int, str, list[str]]:
    command = [sys.executable, "-m", f"pebbler.{module}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr.splitlines()


def test_the_old_name_of_best_known_works_and_names_the_new_one(instance: Instance, best: Schedule) -> None:
    Path("known").mkdir()
    Path("known/tiny.json").write_bytes(encode(EMPTY))
    Path("s.schedule.json").write_bytes(encode(best))
    arguments = ("tiny", "--folder", "known", "--admit", "s.schedule.json")
    status, _, told = by_its_old_name("benchmark.best_known", *arguments)
    assert (status, told) == (
        0,
        ["pebbler: this name goes with the next version; use pebbler best-known"],
    )
    assert known() == admit(EMPTY, instance, schedule=best)
    status, out, told = by_its_old_name("benchmark.best_known", "tinny", "--folder=known")
    assert (status, out) == (2, "")
    assert "there is no suite 'tinny'" in told[-1]


def test_the_old_name_of_schemas_works_and_names_the_new_one() -> None:
    status, _, told = by_its_old_name("validate.schemas", "written")
    assert (status, told) == (
        0,
        ["pebbler: this name goes with the next version; use pebbler schemas -o DIR"],
    )
    assert len(list(Path("written").iterdir())) == len(FORMATS)
