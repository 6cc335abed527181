"""The commands that execute: `run` and `profile`."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from pebbler import solve
from pebbler.cli.main import main
from pebbler.instances.files import read_instance, write_instance
from pebbler.instances.instance import Instance
from pebbler.instances.profile import read_profile
from pebbler.instances.workload import Workload
from pebbler.validate.execution.cpu.memory import available_bytes
from pebbler.validate.schedule import Schedule, write_schedule

from ..validate.execution.profiling.virtual_device import VirtualDevice

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run every command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@cache
def solved() -> tuple[Instance, Schedule]:
    """LeNet under a budget, and a schedule that copies."""
    instance = Workload("lenet", 2, "K40").instance("1.5xMmin")
    schedule = solve(instance, "vdnn-all-m").schedule
    assert schedule is not None
    return instance, schedule


@pytest.fixture
def files(elsewhere: Path) -> Path:
    """Both in files."""
    instance, schedule = solved()
    write_instance(instance, "i.json")
    write_schedule(schedule, "s.json")
    return elsewhere


def refusal(capsys: Output, *arguments: str) -> str:
    """Run a command that must be refused with status 2 and one sentence, without a new file."""
    before = sorted(Path.cwd().iterdir())
    assert main(arguments) == 2
    assert sorted(Path.cwd().iterdir()) == before
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def edit(file: str, **changes: object) -> None:
    document = json.loads(Path(file).read_text())
    Path(file).write_text(json.dumps(document | changes))


RUN = ("run", "i.json", "s.json", "--backend", "cpu", "--repeat", "1")


@pytest.mark.usefixtures("files")
def test_run_prints_predicted_and_measured(capsys: Output) -> None:
    assert main([*RUN, "--operations"]) == 0
    out = capsys.readouterr().out
    assert "losses and gradients have the same bits as without a budget" in out
    for word in ("predicted:", "measured:", "difference:", "host:", "FP(conv1)", "offload Y(conv1)"):
        assert word in out


@pytest.mark.usefixtures("elsewhere")
def test_a_steady_state_is_made_solved_checked_and_run(capsys: Output) -> None:
    network = ["lenet", "--batch", "2", "--steady", "--optimizer", "momentum", "--budget", "1.2xMmin"]
    assert main(["instance", *network, "-o", "i.json"]) == 0
    assert main(["solve", "i.json", "--method", "modnn", "-o", "s.json"]) == 0
    assert main(["check", "i.json", "s.json"]) == 0
    capsys.readouterr()
    assert main([*RUN]) == 0
    told = "losses, gradients and what is carried have the same bits as without a budget"
    assert told in capsys.readouterr().out
    schedule = json.loads(Path("s.json").read_text())
    del schedule["instance_sha256"]
    Path("s.json").write_text(json.dumps(schedule))
    document = json.loads(Path("i.json").read_text())
    edit("i.json", origin=document["origin"] | {"optimizer": "adam"})
    assert main([*RUN]) == 2
    assert "is not what its origin says" in capsys.readouterr().err
    edit("i.json", origin={key: v for key, v in document["origin"].items() if key != "optimizer"})
    assert main([*RUN]) == 2
    assert "'steady' and 'optimizer' come together" in capsys.readouterr().err


@pytest.mark.usefixtures("files")
def test_run_as_json(capsys: Output) -> None:
    assert main([*RUN, "--json", "--operations"]) == 0
    found = json.loads(capsys.readouterr().out)
    contract = ["backend", "device", "predicted_ns", "measured_ns", "peak_bytes", "identical_to_unbudgeted"]
    assert list(found)[:8] == [*contract, "max_abs_error", "energy_j"]
    schedule = json.loads(Path("s.json").read_text())
    assert found["backend"] == "cpu"
    assert found["predicted_ns"] == schedule["makespan_ns"]
    assert found["peak_bytes"] == schedule["peak_bytes"]
    assert found["identical_to_unbudgeted"] is True
    assert (found["max_abs_error"], found["energy_j"]) == (0.0, None)
    assert sum(found["error_ns"].values()) == found["measured_ns"] - found["predicted_ns"]
    assert len(found["operations"]) == len(schedule["operations"])
    assert max(one["end_ns"] for one in found["operations"]) == found["measured_ns"]


@pytest.mark.usefixtures("files")
def test_run_draws_and_traces_both_timelines(capsys: Output) -> None:
    assert main([*RUN, "--picture", "p.png", "--trace", "t.json"]) == 0
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2}
    titles = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert titles == ["lenet-b2 by vdnn-all-m", "lenet-b2 by vdnn-all-m, measured on cpu"]
    capsys.readouterr()


@pytest.mark.usefixtures("files", "unrendered")
@pytest.mark.parametrize(("full", "other"), [("--trace", "--picture"), ("--picture", "--trace")])
def test_where_a_device_is_full_no_file_is_written(capsys: Output, full: str, other: str) -> None:
    assert "/dev/full" in refusal(capsys, *RUN, other, "out", full, "/dev/full")


@pytest.mark.usefixtures("files")
def test_an_invalid_schedule_is_not_run(capsys: Output) -> None:
    document = json.loads(Path("s.json").read_text())
    waiting = next(one for one in document["operations"] if one.get("after"))
    waiting["after"] = []
    Path("s.json").write_text(json.dumps(document))
    assert main(RUN) == 1
    out = capsys.readouterr().out
    assert out.startswith("the schedule is invalid, so it is not run:")
    assert len(out.splitlines()) > 1


@pytest.mark.usefixtures("files")
def test_run_refuses_a_file_of_something_else(capsys: Output) -> None:
    origin = json.loads(Path("i.json").read_text())["origin"]
    edit("i.json", origin=origin | {"network": "cifar10_quick"})
    assert "lenet-b2 is not what its origin says" in refusal(capsys, *RUN)
    edit("i.json", origin=origin | {"graph": "paper"})
    assert "which cannot be run" in refusal(capsys, *RUN)
    edit("i.json", origin=origin | {"mapping": {"call_ns": "x"}})
    assert "$.origin.mapping.call_ns" in refusal(capsys, *RUN)
    edit("i.json", origin={}, meta=origin)
    assert "its origin has no 'network'" in refusal(capsys, *RUN)
    document = json.loads(Path("i.json").read_text())
    del document["origin"], document["layers"]  # as earlier versions wrote it
    Path("i.json").write_text(json.dumps(document | {"meta": origin | {"mapping": {"call_ns": "x"}}}))
    assert "is no cost of mapping pages" in refusal(capsys, *RUN)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("file", ["i.json", "s.json"])
@pytest.mark.parametrize("keep", [0, 200])
def test_run_refuses_an_empty_and_a_truncated_file(capsys: Output, file: str, keep: int) -> None:
    Path(file).write_bytes(Path(file).read_bytes()[:keep])
    assert f"{file} is not" in refusal(capsys, *RUN)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "i.json", "s.json"), "say where it runs: give --backend cpu"),
        (("run", "i.json", "--backend", "cpu"), "give FILE and SCHEDULE, or a step of your own as --torch"),
        ((*RUN, "--budget", "1GiB"), "--budget is for a step of torch"),
        ((*RUN, "--torch", "a:b"), "--torch plans a step of its own; leave out i.json"),
        (("run", "--torch", "a:b", "--backend", "cpu"), "a step of torch runs with the backend torch"),
        (("run", "--torch", "a:b", "--graph"), "a step of torch has no graphs"),
        (("run", "--torch", "a:b", "--batch", "4"), "--torch needs --budget"),
        (("run", "--torch", "a:b", "--budget", "50%"), "--torch needs --batch"),
        (("run", "--torch", "a:b", "--clip", "nan"), "'nan' is not a number above 0"),
        (("run", "i.json", "s.json", "--backend", "tpu"), "there is no backend 'tpu'; there are cpu, cuda"),
        (("run", "i.json", "none.json", "--backend", "cpu"), "none.json cannot be read"),
        ((*RUN, "--repeat", "0"), "'0' is not a whole number from 1 on"),
        ((*RUN, "--picture", "no/p.png"), "no/p.png cannot be written"),
        ((*RUN, "--trace", "."), "cannot be written"),
    ],
)
def test_run_refuses_wrong_arguments(capsys: Output, arguments: tuple[str, ...], words: str) -> None:
    assert words in refusal(capsys, *arguments)


def test_run_refuses_a_budget_beyond_the_memory(capsys: Output) -> None:
    instance = Workload("lenet", 2, "K40").instance(2 * available_bytes())
    schedule = solve(instance, "network-wide").schedule
    assert schedule is not None
    write_instance(instance, "i.json")
    write_schedule(schedule, "s.json")
    assert "bytes of memory are needed" in refusal(capsys, *RUN)


@pytest.mark.usefixtures("files")
def test_execution_imports_no_solver_and_draws_nothing_unasked() -> None:
    profiling = ("profile", "lenet", "--batch", "1", "--backend", "cpu", "--repeat", "1", "-o", "p.json")
    code = (
        "import sys; from pebbler.cli.main import main; "
        f"assert main({RUN!r}) == main({profiling!r}) == 0; "
        "print(sorted({name.split('.')[0] for name in sys.modules} & "
        "{'ortools', 'numba', 'pulp', 'matplotlib', 'torch'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# --- profile ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", ["lenet", pytest.param("cifar10_quick", marks=pytest.mark.slow)])
def test_from_a_profile_to_predicted_against_measured(network: str, capsys: Output) -> None:
    profiling = ["profile", network, "--batch", "2", "--sub-batch", "1,2", "--repeat", "1", "-o", "p.json"]
    assert main([*profiling, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    profile = read_profile("p.json")
    assert told["algorithms"] == sum(len(task.algorithms) for task in profile.tasks)
    assert told["not_measured"] == []
    assert set(profile.algorithms) == {1, 2}
    convolution = profile.task_algorithms(2, "FP(conv1)")
    assert convolution[0].workspace_bytes == 0
    assert {"implicit-gemm", "gemm", "fft", "winograd-nonfused"} <= {one.name for one in convolution}
    assert all(one.duration_ns > 0 for task in profile.tasks for one in task.algorithms)
    assert profile.meta["beside_compute"]["offload_ns"]["alone"] > 0
    making = ["instance", network, "--batch", "2", "--profile", "p.json", "--budget", "1.2xMmin"]
    assert main([*making, "-o", "i.json"]) == 0
    instance = read_instance("i.json")
    assert instance.made_from.cost_model == "profile"
    assert instance.tasks[0].algorithms == convolution
    assert profile.mapping is not None
    assert profile.mapping.page_ns > 0
    assert instance.made_from.mapping == profile.mapping
    assert main(["solve", "i.json", "--method", "modnn", "-o", "s.json"]) == 0
    capsys.readouterr()
    assert main([*RUN, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["identical_to_unbudgeted"]
    assert found["device"] == profile.machine.device
    assert found["predicted_ns"] > 0
    assert found["measured_ns"] > 0


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "command",
    [
        ("emit", "i.json", "s.json"),
        ("emit", "i.json", "s.json", "--json"),
        ("profile", "lenet", "--batch", "1", "--backend", "cpu", "--repeat", "1"),
    ],
)
def test_names_of_output_files_are_printed_escaped(
    capsys: Output, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pebbler.validate.execution.cpu.backend.CpuBackend", VirtualDevice)
    name = "\x1b[31m\udcff"
    assert main([*command, "-o", name]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())
    assert Path(name).stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("profile", "no-such", "-o", "p.json"), "there is no network 'no-such'"),
        (("profile", "gpt2:layers=1,tokens=8", "--batch", "1", "-o", "p.json"), "no kernels for"),
        (("profile", "lenet", "--batch", "2", "--sub-batch", "3", "-o", "p.json"), "a sub-batch of 3"),
        (("profile", "lenet", "--sub-batch", "2,x", "-o", "p.json"), "'x' is not a whole number"),
        (("profile", "lenet", "-o", "no/p.json"), "no/p.json cannot be written"),
        (
            ("profile", "lenet", "--backend", "tpu", "-o", "p.json"),
            "there is no backend 'tpu'",
        ),
        (("profile", "lenet", "--provider", "magic", "-o", "p.json"), "there is no provider 'magic'"),
        (("profile", "lenet", "--provider", "cudnn", "-o", "p.json"), "'cpu' has its own"),
        (("profile", "lenet"), "-o"),
    ],
)
def test_profile_refuses_wrong_arguments(capsys: Output, arguments: tuple[str, ...], words: str) -> None:
    assert words in refusal(capsys, *arguments)
