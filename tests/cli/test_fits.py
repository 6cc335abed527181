"""The command ``fits``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pebbler.benchmark.comparison.fits import WAYS
from pebbler.cli.main import main
from pebbler.heuristics.methods import Method
from pebbler.instances.networks.zoo import find_network

Toys = Callable[..., None]
METHODS = dict.fromkeys(name for way in WAYS for name in way.methods)

pytestmark = pytest.mark.usefixtures("elsewhere", "unrendered")


def test_the_answer_is_printed_drawn_and_can_be_checked(
    toys: Toys, keep: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    toys(**dict.fromkeys(METHODS, keep))
    assert main(["fits", "lenet", "--device", "k40", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads(Path("pebbler-out/lenet-b64.fits.json").read_text()) == found
    assert Path("pebbler-out/lenet-b64.fits.png").read_bytes().startswith(b"\x89PNG")
    assert found["memory_bytes"] - found["budget_bytes"] == found["reserve_bytes"] == 3 * 2**29
    assert found["optimizer"] == "adam"
    for row in found["rows"]:
        assert row["answer"] == "yes"
        for batch in (64, row["batches"]["largest_batch"]):
            name = f"pebbler-out/lenet-b{batch}-{row['way'].replace(' ', '-')}"
            assert main(["check", f"{name}.instance.json", f"{name}.schedule.json"]) == 0


@pytest.mark.parametrize(
    ("more", "optimizer", "numbers"), [([], "adam", 3), (["--optimizer", "sgd"], "sgd", 1)]
)
def test_a_steady_state_carries_weights_and_states(
    more: list[str], optimizer: str, numbers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fits", "lenet", "--steady", "--json", "--time-limit", "0s", *more]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["optimizer"], found["resident_bytes"]) == (optimizer, 0)
    assert found["carried_bytes"] == numbers * 4 * find_network("lenet").parameters


def test_no_is_status_one(toys: Toys, keep: Method, capsys: pytest.CaptureFixture[str]) -> None:
    toys(**dict.fromkeys(METHODS, keep))
    assert main(["fits", "lenet", "--budget", "1MiB", "--optimizer", "sgd", "--link", "pcie4"]) == 1
    assert capsys.readouterr().out.startswith("no: every way is proven impossible at this batch\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "made from one thing"),
        ("nothing", "nothing"),
        ("lenet --reserve 12GiB", "leaves nothing of 12.00 GiB"),
        ("lenet --reserve some", "'some' is not a size"),
        ("lenet --budget 1GiB --reserve 1GiB", "settles --reserve"),
        ("lenet --sub-batch 2", "settles --sub-batch"),
        ("mine.json", "mine.json is a file, and the question asks for other batches"),
        ("mine.onnx", "give it as --onnx mine.onnx"),
        ("mine.pth", "as --torch MODULE:FUNCTION"),
        ("lenet --optimizer lion", "invalid choice: 'lion'"),
        ("lenet --link isdn", "'isdn' is not a link"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fits", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert words in line
    assert not Path("pebbler-out").exists()


def test_host_memory_that_ends_is_part_of_the_question(capsys: pytest.CaptureFixture[str]) -> None:
    """Without any, copies are no way to fit, which is proven."""
    asked = ["fits", "vgg16", "--batch", "40", "--device", "k40", "--budget", "3.3GiB", "--optimizer", "none"]
    limits = ["--time-limit", "1s", "--json"]
    assert main([*asked, "--host-memory", "0", *limits]) in (0, 1)
    none = json.loads(capsys.readouterr().out)
    assert main([*asked, "--host-memory", "64GiB", *limits]) == 0
    plenty = json.loads(capsys.readouterr().out)
    assert (none["host_bytes"], plenty["host_bytes"]) == (0, 64 * 2**30)
    ways = [{row["way"]: row for row in found["rows"]} for found in (none, plenty)]
    assert [found["copies"]["answer"] for found in ways] == ["no", "yes"]
    assert "more than device and host memory have together" in ways[0]["copies"]["why"]
    excluded = [found["copies"]["batches"]["excluded_from"] for found in ways]
    assert excluded[0] == ways[0]["in memory"]["batches"]["excluded_from"] < excluded[1]
