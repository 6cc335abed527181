"""The commands ``bound`` and ``check-bound``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from pebbler.cli.main import main
from pebbler.instances.files import read_instance, write_instance
from pebbler.instances.instance import Instance
from pebbler.instances.memory import with_budget
from pebbler.instances.workload import Workload


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tight: Instance) -> str:
    write_instance(tight, "tight.instance.json")
    return "tight.instance.json"


def test_bound(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bound", file, "--json"]) == 0
    bound = json.loads(capsys.readouterr().out)
    assert set(bound) == {"lower_bound_ns", "bound_by", "certified", "certified_lower_bound_ns"}
    assert main(["bound", file]) == 0
    assert f"({bound['lower_bound_ns']} ns), {bound['bound_by']}, in exact" in capsys.readouterr().out
    assert sorted(Path().iterdir()) == [Path(file)]


def test_a_bound_is_proven_anew_from_its_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    write_instance(Workload("vgg16", 64, "v100").instance("1.05xMmin"), "vgg.instance.json")
    assert main(["bound", "vgg.instance.json", "--time-limit", "2s", "-o", "c.json"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"flow-\S+-highs\S*, the solver's word; in exact arithmetic", told)
    assert told.endswith("flow-lp-highs\n")
    proven = json.loads(Path("c.json").read_text())["lower_bound_ns"]
    assert main(["check-bound", "vgg.instance.json", "c.json"]) == 0
    assert capsys.readouterr().out == f"proven: no schedule takes less than {proven} ns\n"
    assert main(["check-bound", "vgg.instance.json", "c.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"valid": True, "reasons": []}


def test_a_false_or_foreign_certificate_is_refused_with_status_1(
    file: str, tight: Instance, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bound", file, "-o", "c.json"]) == 0
    write_instance(with_budget(tight, 2 * tight.budget_bytes), "wide.instance.json")
    capsys.readouterr()
    assert main(["check-bound", "wide.instance.json", "c.json"]) == 1
    assert "instance_sha256 is not the checksum of the instance's file" in capsys.readouterr().out
    document = json.loads(Path("c.json").read_text())
    document["lower_bound_ns"] += 1
    Path("d.json").write_text(json.dumps(document))
    assert main(["check-bound", file, "d.json", "--json"]) == 1
    (reason,) = json.loads(capsys.readouterr().out)["reasons"]
    assert "checksum" in reason


@pytest.mark.parametrize("content", ["", "{", '{"format": "pebbler/certificate/1", "instance": "x"'])
def test_what_is_no_certificate_is_refused_with_status_2(
    content: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("c.json").write_text(content)
    assert main(["check-bound", file, "c.json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pebbler: c.json is not a certificate: ")
    assert len(captured.err.splitlines()) == 1


def test_wrong_usage_is_refused_and_nothing_written(
    file: str, tight: Instance, capsys: pytest.CaptureFixture[str]
) -> None:
    write_instance(with_budget(tight, 1), "byte.instance.json")
    before = sorted(Path().iterdir())
    for arguments in (
        ["bound", file, "-o", "no/such/folder.json"],
        ["bound", file, "-o", "."],
        ["bound", "missing.json", "-o", "c.json"],
        ["bound", "byte.instance.json", "-o", "c.json"],
        ["bound", file, "--time-limit", "soon"],
        ["check-bound", file],
        ["check-bound", file, "missing.json"],
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert len(captured.err.splitlines()) == 1
    assert sorted(Path().iterdir()) == before


@pytest.fixture
def stuck() -> str:
    """A file whose budget is over the minimum of every task, and yet too small: nothing can leave."""
    workload = Workload("alexnet", 32, "k40").instance("1.05xMmin")
    blocks = tuple(msgspec.structs.replace(b, offload_ns=None, prefetch_ns=None) for b in workload.blocks)
    write_instance(msgspec.structs.replace(workload, blocks=blocks), "stuck.instance.json")
    return "stuck.instance.json"


def test_infeasible_is_explained(stuck: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`bound` and `solve` name the task, what it needs, and how much is missing; status 1."""
    why = re.compile(
        r"task '.+' needs .+ of blocks and .+ of workspace, while .+ of other blocks can neither be copied "
        r"to the host and back nor be computed again and .+ are resident: \d+ bytes .* together, "
        r"\d+ bytes .* more"
    )
    assert main(["bound", stuck, "-o", "c.json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert why.search(captured.err)
    assert main(["solve", stuck, "--method", "modnn", "-o", "s.json", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == "infeasible"
    assert why.fullmatch(answer["stopped_by"].removesuffix(" than the budget"))
    assert main(["compare", stuck, "--methods", "modnn", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert (row["status"], row["stopped_by"]) == ("infeasible", answer["stopped_by"])
    assert not Path("c.json").exists()
    assert not Path("s.json").exists()


def test_tasks_that_may_run_again_are_no_proof(stuck: str, capsys: pytest.CaptureFixture[str]) -> None:
    instance = read_instance(stuck)
    tasks = tuple(msgspec.structs.replace(t, recomputable=not t.updates) for t in instance.tasks)
    write_instance(msgspec.structs.replace(instance, tasks=tasks), "again.instance.json")
    assert main(["bound", "again.instance.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bound_by"] == "compute"
