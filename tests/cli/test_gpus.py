"""Several GPUs on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pebbler.cli.main import main
from pebbler.instances.files import write_instance
from pebbler.instances.gpus.workload import cluster_instances, several_gpus
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
from pebbler.validate.schedule import write_schedule

pytestmark = pytest.mark.usefixtures("elsewhere", "unrendered")


COMPARE = ["compare", "alexnet", "--batch", "64", "--budget", "1.1xMmin", "--methods", "modnn"]
NAME = "pebbler-out/alexnet-b8-gpus4-last"


def test_files_of_several_gpus_go_through_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMPARE, "--gpus", "4", "--sub-batch", "8", "--cores", "2"]) == 0
    out = capsys.readouterr().out
    assert "GPUs:         4, a bus of 12 GB/s, gradients added up by 2 cores; 244 MB of gradients each" in out
    assert "speed-up:" in out
    files = [f"{NAME}.instance.json", f"{NAME}.modnn.schedule.json"]
    assert main(["check", *files]) == 0
    assert main(["trace", *files, "-o", "trace.json"]) == 0
    names = {event["args"].get("name") for event in json.loads(Path("trace.json").read_text())["traceEvents"]}
    assert {f"alexnet-b8-gpus4-last by modnn, GPU {gpu}" for gpu in range(4)} <= names
    assert main(["bound", files[0]]) == 0
    assert main(["solve", files[0], "--method", "modnn", "-o", "again.json"]) == 0
    assert Path("again.json").read_bytes() == Path(files[1]).read_bytes()


def test_one_gpu_is_what_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for folder, more in (("one", []), ("same", ["--gpus", "1"])):
        assert main([*COMPARE, "--json", "--out", folder, *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
        del found[-1]["results"][0]["solve_seconds"]
    assert found[0] == found[1]
    for path in Path("one").iterdir():
        assert path.read_bytes() == (Path("same") / path.name).read_bytes()


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMPARE, "--gpus", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["instance"]["gpus"] == 2
    assert found["gradient_bytes"] == 244_403_360
    assert found["one_gpu_ideal_ns"] > found["ideal_ns"]
    assert found["naive_ideal_ns"] > found["ideal_ns"]


@pytest.mark.parametrize("more", ["--nvlink 20GB", "--nodes 2 --network 1Gbps"])
def test_other_ways_of_gradients(more: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "lenet", "--batch", "64", "--methods", "modnn", "--gpus", "2"]
    assert main([*arguments, *more.split()]) == 0
    assert "gradients added up" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--gpus 0", "from 1 on"),
        ("--gpus 65", "at least one image"),
        ("--gpus 2 --bus fast", "not a bandwidth"),
        ("--gpus 2 --bus 0GB", "passes nothing"),
        ("--gpus 3 --nodes 2 --network 1Gbps", "do not share 3 GPUs evenly"),
        ("--gpus 2 --nodes 2", "come together"),
        ("--cores 4", "one GPU settles --cores"),
        ("--gpus 1 --nvlink 20GB", "one GPU settles --nvlink"),
        ("--gpus 2 --sub-batch auto", "settles --gpus"),
        ("--gpus 2 --sub-batch 33", "not within 1 and the batch of 32"),
        ("--gpus 2 --weights-as-blocks", "keep their weights"),
        ("--gpus 2 --steady", "leave --steady out"),
        ("--steady --sub-batch 16", "leave out the sub-batch"),
        ("--steady --sub-batch auto", "leave out the sub-batch"),
        ("--optimizer adam", "of a steady state only"),
        ("--gpus 2 --budget 1", "under the minimum"),
    ],
)
def test_wrong_usage(more: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    budget = [] if "--budget" not in more else ["--budget"]
    arguments = COMPARE if not budget else [word for word in COMPARE if word not in ("--budget", "1.1xMmin")]
    assert main([*arguments, *more.split()]) == 2
    assert words in capsys.readouterr().err


@pytest.fixture
def files() -> list[str]:
    """An instance on two GPUs and a schedule of it."""
    workload = Workload("lenet", 8, "k40")
    (instance,) = cluster_instances(workload, several_gpus(workload, 2), "1.1xMmin")
    schedule = solve(instance, "modnn").schedule
    assert schedule is not None
    write_instance(instance, "two.instance.json")
    write_schedule(schedule, "two.schedule.json")
    return ["two.instance.json", "two.schedule.json"]


def test_commands_of_one_gpu_refuse_several(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *files]) == 0
    assert main(["run", *files, "--backend", "cpu"]) == 2
    assert main(["emit", *files, "-o", "script.py"]) == 2
    assert main(["compare", files[0], "--gpus", "2"]) == 2
    assert main(["solve", files[0], "--method", "modnn", "--warm-start", files[1], "-o", "x.json"]) == 2
    err = capsys.readouterr().err
    assert err.count("takes an instance of one") == 2
    assert "settles --gpus" in err
    assert "no method takes a warm start" in err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"gpus":2', '"gpus":0', "gpus"),
        ('"produced_by":', '"produced_by":9', "out of range"),
        ('"cluster": {', '"cluster": {"cards":2,', "cards"),
    ],
)
def test_wrong_file(
    files: list[str], old: str, new: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(files[0])
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert main(["solve", str(path), "--method", "modnn", "-o", "x.json"]) == 2
    assert words in capsys.readouterr().err
    path.write_text(text[: len(text) // 2])
    assert main(["check", *files]) == 2


def test_schedule_that_is_wrong_on_one_gpu_is_told(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(files[1])
    schedule = json.loads(path.read_text())
    last = [operation for operation in schedule["operations"] if operation["kind"] == "return"][-1]
    last["after"] = []
    path.write_text(json.dumps(schedule))
    assert main(["check", *files]) == 1
    assert "may start before all of them are added up" in capsys.readouterr().out
