"""The command ``policy``: a schedule of a joint graph becomes tags, one of a transformer lists of modules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from pebbler.cli.main import main
from pebbler.instances.files import read_instance, write_instance
from pebbler.instances.memory import with_budget
from pebbler.validate.schedule import read_schedule, write_schedule

from ..heuristics.production.steps import MIB, solved, transformer
from ..instances.foreign.test_fx import JOINT


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def planned() -> tuple[str, str]:
    """Instance and schedule of a small transformer, as files."""
    instance = with_budget(transformer(4, copy=15), 200 * MIB)
    write_instance(instance, Path("t.instance.json"))
    write_schedule(solved("torchtitan-selective", instance, "paged"), Path("t.schedule.json"))
    return "t.instance.json", "t.schedule.json"


def test_a_logged_graph_becomes_tags(capsys: pytest.CaptureFixture[str]) -> None:
    Path("joint.txt").write_text(JOINT)
    asked = ["--device", "a100", "--budget", "100%", "--recompute", "-o", "j.instance.json"]
    assert main(["instance", "--from", "joint.txt", *asked]) == 0
    assert main(["solve", "j.instance.json", "--method", "torch-compile", "-o", "j.schedule.json"]) == 0
    capsys.readouterr()
    assert main(["policy", "j.instance.json", "j.schedule.json"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[:2] == ["relu MUST_SAVE", "getitem_1 MUST_SAVE"]
    assert told[-1].startswith("lost")


def test_modules_are_printed_or_written(planned: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    line = "--recompute-granularity selective --recompute-modules layernorm"
    assert main(["policy", *planned, "--for", "megatron", "-o", "options.txt", "--json"]) == 0
    assert Path("options.txt").read_text() == f"{line}\n"
    told = json.loads(capsys.readouterr().out)
    assert told["policy"] == [line]
    assert told["other_bytes"] == told["moved_bytes"] == told["offload_bytes"] == 0
    assert told["recompute_bytes"] == 4 * 10 * MIB


def test_what_is_no_schedule_has_no_policy(
    planned: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = read_schedule(planned[1], read_instance(planned[0]))
    write_schedule(replace(schedule, peak_bytes=schedule.peak_bytes + 1), Path("broken.schedule.json"))
    assert main(["policy", planned[0], "broken.schedule.json"]) == 2
    assert "is no schedule of small-transformer" in capsys.readouterr().err
