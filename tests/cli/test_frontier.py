"""The command ``frontier``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pebbler.cli.main import main
from pebbler.heuristics.parts import with_parts
from pebbler.instances.files import read_instance, write_instance
from pebbler.instances.instance import Instance
from pebbler.instances.workload import Workload


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_over_budgets_of_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["frontier", "alexnet", "--batch", "64", "--method", "modnn", "--points", "4", "-o", "out"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 2 <= len(found["points"]) <= 4
    assert {"budget_bytes", "makespan_ns", "lower_bound_ns", "method"} <= set(found["points"][0])
    for point in found["points"]:
        name = f"out/alexnet-b64-{point['budget_bytes']}"
        assert main(["check", f"{name}.instance.json", f"{name}.modnn.schedule.json"]) == 0
        assert main(["check-bound", f"{name}.instance.json", f"{name}.modnn.certificate.json"]) == 0
    assert json.loads(Path("out/alexnet-b64.modnn.frontier.json").read_text()) == found
    capsys.readouterr()
    assert main(arguments) == 0
    assert capsys.readouterr().out.endswith("files: out\n")


def test_over_budgets_of_a_file(tight: Instance, capsys: pytest.CaptureFixture[str]) -> None:
    write_instance(tight, "tight.instance.json")
    assert (
        main(["frontier", "tight.instance.json", "--method", "modnn", "--spacing", "even", "-o", "\x1b[31m"])
        == 0
    )
    printed = capsys.readouterr().out
    assert "chain-b4, modnn, contiguous memory" in printed
    assert r"\x1b[31m" in printed
    assert "\x1b" not in printed


def test_over_batches(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["frontier", "lenet", "--over", "batch", "--method", "modnn", "--budget", "8MiB", "-o", "out"]
    assert main([*arguments, "--overhead", "20%", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    largest = found["largest_batch"]
    assert 0 < largest < found["excluded_from"]
    assert json.loads(Path("out/lenet.modnn.largest-batch.json").read_text()) == found
    name = f"out/lenet-b{largest}"
    assert main(["check", f"{name}.instance.json", f"{name}.modnn.schedule.json"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("lenet --method modnn", "--output"),
        ("lenet -o out", "--method"),
        ("lenet --method magic -o out", "no method 'magic'"),
        ("--method modnn -o out", "made from one thing"),
        ("nothing --method modnn -o out", "nothing"),
        ("missing.json --method modnn -o out", "cannot be read"),
        ("bad.json --method modnn -o out", "is not an instance"),
        ("lenet --method modnn --points 0 -o out", "whole number from 1"),
        ("lenet --method modnn --budget 1GiB -o out", "settles --budget"),
        ("lenet --method modnn --overhead 10% -o out", "settles --overhead"),
        ("lenet --method modnn --over batch --overhead 10 -o out", "is not a share"),
        ("lenet --method modnn --over batch --batch 3 -o out", "settles --batch"),
        ("lenet --method modnn --over batch --budget 1 -o out", "under the minimum"),
        ("lenet --method modnn --batch 7 --sub-batch 2 -o out", "divides 7"),
        ("lenet --method modnn -o bad.json", "cannot be a folder"),
    ],
)
def test_wrong_usage_is_one_sentence_and_nothing_written(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.json").write_text("{")
    assert main(["frontier", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert words in line
    assert not Path("out").exists() or not list(Path("out").iterdir())


def test_two_methods_on_two_variants_share_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["frontier", "alexnet", "--batch", "64", "--method", "modnn,modnn-parts", "--points", "3"]
    assert main([*arguments, "-o", "out", "--json"]) == 0
    whole, parts = json.loads(capsys.readouterr().out)["frontiers"]
    assert (whole["instance"], parts["instance"]) == ("alexnet-b64", "alexnet-b64-parts")
    assert whole["least_budget_bytes"] == parts["least_budget_bytes"]
    assert Path("out/alexnet-b64.frontiers.png").read_bytes().startswith(b"\x89PNG")
    cut = with_parts(Workload("alexnet", 64, "k40").instance(whole["least_budget_bytes"])).blocks
    for point in parts["points"]:
        assert read_instance(f"out/alexnet-b64-parts-{point['budget_bytes']}.instance.json").blocks == cut
    for found, method in ((whole, "modnn"), (parts, "modnn-parts")):
        assert json.loads(Path(f"out/{found['instance']}.{method}.frontier.json").read_text()) == found
        name = f"out/{found['instance']}-{found['points'][0]['budget_bytes']}"
        assert main(["check", f"{name}.instance.json", f"{name}.{method}.schedule.json"]) == 0
        assert main(["check-bound", f"{name}.instance.json", f"{name}.{method}.certificate.json"]) == 0
