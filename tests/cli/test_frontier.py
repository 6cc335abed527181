"""The command ``frontier``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pebbler.benchmark.comparison.frontier import Frontier
from pebbler.benchmark.pictures.frontier import bounds_of
from pebbler.cli.main import main
from pebbler.heuristics.methods import Method
from pebbler.heuristics.parts import with_parts
from pebbler.instances.files import read_document, read_instance, write_instance
from pebbler.instances.instance import Instance
from pebbler.instances.workload import Workload

Toys = Callable[..., None]


pytestmark = pytest.mark.usefixtures("elsewhere", "unrendered")


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


@pytest.mark.parametrize("more", [["--points", "2"], ["--over", "batch", "--budget", "8MiB"]])
def test_over_steady_states(more: list[str]) -> None:
    arguments = ["frontier", "lenet", "--steady", "--optimizer", "adam", "--method", "modnn", "-o", "out"]
    assert main([*arguments, *more]) == 0
    instances = sorted(Path("out").glob("*.instance.json"))
    assert instances
    for path in instances:
        assert read_instance(path).made_from.optimizer == "adam"
        schedule = str(path).replace(".instance.", ".modnn.schedule.")
        assert main(["check", str(path), schedule]) == 0


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
    capsys.readouterr()
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("files: out\n")
    assert sum(line.endswith("budget") for line in printed.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("lenet --method modnn", "--output"),
        ("lenet --over link -o out", "give one, such as --overhead 5%"),
        ("lenet --over link --link pcie3 --overhead 5% -o out", "settles --link"),
        ("lenet --over link --overhead 5% --points 3 -o out", "settles --points"),
        ("lenet --over link --overhead 5% --budget 1 -o out", "under the minimum"),
        ("lenet --overhead 5% --budget 1GiB -o out", "settles --budget"),
        ("lenet --over host-memory -o out", "the least host memory is that within an overhead; give one"),
        ("lenet --over host-memory --overhead 5% --host-memory 1GiB -o out", "settles --host-memory"),
        ("lenet --over host-memory --overhead 5% --budget 1 -o out", "under the minimum"),
        ("lenet --over link --overhead 5% --method magic -o out", "no method 'magic'"),
        ("lenet --method magic -o out", "no method 'magic'"),
        ("--method modnn -o out", "made from one thing"),
        ("nothing --method modnn -o out", "nothing"),
        ("missing.json --method modnn -o out", "cannot be read"),
        ("bad.json --method modnn -o out", "is not an instance"),
        ("lenet --method modnn --points 0 -o out", "whole number from 1"),
        ("lenet --method modnn --budget 1GiB -o out", "settles --budget"),
        ("lenet --method modnn --over batch --overhead 10 -o out", "is not a share"),
        ("lenet --method modnn --over batch --batch 3 -o out", "settles --batch"),
        ("lenet --method modnn --over batch --budget 1 -o out", "under the minimum"),
        ("bad.json --over batch -o out", "bad.json is a file, and --over batch asks for other batches"),
        ("mine.onnx -o out", "give it as --onnx mine.onnx"),
        ("lenet --method modnn --batch 7 --sub-batch 2 -o out", "divides 7"),
        ("lenet --method modnn --steady --batch 8 --sub-batch 2 -o out", "leave out the sub-batch"),
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


@pytest.mark.parametrize("over", ["link", "budget", "host-memory"])
def test_the_least_within_an_overhead(over: str, tight: Instance, capsys: pytest.CaptureFixture[str]) -> None:
    write_instance(tight, "tight.instance.json")
    question = ["--over", over, "--overhead", "110%", "--method", "modnn", "--time-limit", "30s"]
    assert main(["frontier", "tight.instance.json", *question, "-o", "out", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["impossible"] < found["least"]
    assert json.loads(Path(f"out/chain-b4.least-{over}.json").read_text()) == found
    assert Path(f"out/chain-b4.least-{over}.png").read_bytes().startswith(b"\x89PNG")
    name = f"out/chain-b4.{over}"
    assert main(["check", f"{name}.enough.instance.json", f"{name}.enough.schedule.json"]) == 0
    enough = read_instance(f"{name}.enough.instance.json")
    if over == "budget":
        assert enough.budget_bytes == found["least"]
        return
    if over == "host-memory":
        assert enough.host_budget_bytes == found["least"]
        assert found["longest_ns"] == int(2.1 * found["unlimited_ns"])
        return
    assert enough.applied[-1].value == str(found["least"])
    short = f"{name}.too-little"
    assert read_instance(f"{short}.instance.json").applied[-1].value == str(found["certified_impossible"])
    assert main(["check-bound", f"{short}.instance.json", f"{short}.certificate.json"]) == 0


def test_no_link_at_all_is_status_one(tight: Instance, capsys: pytest.CaptureFixture[str]) -> None:
    write_instance(tight, "tight.instance.json")
    question = ["--over", "link", "--overhead", "5%", "--method", "modnn", "-o", "out"]
    assert main(["frontier", "tight.instance.json", *question]) == 1
    assert "no link was found" in capsys.readouterr().out


def test_methods_on_one_instance_share_a_line_of_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["frontier", "alexnet", "--batch", "64", "--method", "modnn,vdnn-dyn", "--points", "4"]
    assert main([*arguments, "-o", "out", "--json"]) == 0
    capsys.readouterr()
    files = [f"out/alexnet-b64.{method}.frontier.json" for method in ("modnn", "vdnn-dyn")]
    both = [read_document(file, Frontier, "a frontier") for file in files]
    shared = bounds_of(both)
    assert shared.best == sorted(shared.best, reverse=True)
    for frontier in both:
        for point in frontier.points:
            assert shared.best[shared.budgets.index(point.budget_bytes)] >= point.lower_bound_ns
    assert set(shared.best) <= {point.lower_bound_ns for frontier in both for point in frontier.points}


def test_over_batches_the_best_methods_are_tried_and_drawn(
    toys: Toys, keep: Method, swap: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    toys(modnn=keep, flow=swap)
    arguments = ["frontier", "lenet", "--over", "batch", "--budget", "4MiB", "-o", "out"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["method"] == "modnn,flow"
    assert found["largest_batch"] < found["excluded_from"]
    assert Path("out/lenet.modnn+flow.largest-batch.png").read_bytes().startswith(b"\x89PNG")
    for point in found["points"]:
        if point["within"]:
            name = f"out/lenet-b{point['batch']}"
            assert main(["check", f"{name}.instance.json", f"{name}.{point['method']}.schedule.json"]) == 0
