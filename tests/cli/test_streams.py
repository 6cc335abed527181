"""``pebbler streams`` and ``pebbler instance --streams``: what they print, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from glp4nn_cases import WORKED_EXAMPLE
from pebbler.cli.main import main
from pebbler.instances.files import read_instance

EXAMPLE: dict[str, Any] = msgspec.to_builtins(WORKED_EXAMPLE)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def file(elsewhere: Path) -> str:
    (elsewhere / "conv1.json").write_text(json.dumps(EXAMPLE), encoding="utf-8")
    return "conv1.json"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["streams", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("model", "streams", "optima", "span"),
    [
        ("as-implemented", 3, 2, [2, 3]),
        ("corrected", 2, 1, [2, 2]),
        ("as-printed", None, 224, [15, 31]),
        ("as-printed-repaired", 3, 1, [3, 3]),
    ],
)
def test_the_worked_example(
    file: str,
    capsys: pytest.CaptureFixture[str],
    model: str,
    streams: int | None,
    optima: int,
    span: list[int],
) -> None:
    found = answer(capsys, file, "--device", "k40", "--model", model)
    assert (found["layer"], found["device"], found["model"]) == (file, "K40", model)
    assert (found["streams"], found["optima"], found["streams_range"]) == (streams, optima, span)
    assert (found["per_kernel"] is None) == (streams is None)
    assert list(found["predicted_speedup"]) == [str(count) for count in range(1, 33)]
    assert found["predicted_speedup"]["1"] == 1.0
    assert found["buffer_bytes"] is None


def test_a_layer_by_name_and_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "caffenet/conv5", "--device", "p100", "--batch", "16", "--solver", "cp-sat")
    assert found["solver"] == "cp-sat"
    assert found["buffer_bytes"] == 4 * 384 * 9 * 13 * 13
    assert found["predicted_speedup"][str(found["best_streams"])] == max(found["predicted_speedup"].values())
    assert (
        main(["streams", "caffenet/conv5", "--batch", "16", "--pass", "backward", "--solver", "highs"]) == 0
    )
    text = capsys.readouterr().out
    assert text.startswith("caffenet/conv5 on K40, 16 samples, T_launch 3.000 us\n")
    assert "col2im" in text
    assert "not measured" in text


def test_a_picture_is_drawn(file: str) -> None:
    assert main(["streams", file, "--picture", "times.png"]) == 0
    assert Path("times.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: LAYER|FILE"),
        (["conv1"], "write network/layer"),
        (["caffenet/conv9"], "no convolution 'conv9'"),
        (["caffenet/conv1", "--device", "k41"], "'k41' is not a known device"),
        (["caffenet/conv1", "--model", "printed"], "invalid choice: 'printed'"),
        (["caffenet/conv1", "--batch", "0"], "'0' is not a whole number from 1 on"),
        (["caffenet/conv1", "--solver", "magic"], "linear solver 'magic' is not available here"),
        (["caffenet/conv1", "--solver", "glop"], "glop"),
        (["caffenet/conv1", "--picture", "none/times.png"], "cannot be written"),
        (["none.json"], "none.json cannot be read"),
        (["conv1.json", "--pass", "forward"], "settles --pass"),
        (["conv1.json", "--measure", "1,2"], "conv1.json has kernels but no shapes to run"),
        (["cifar10/conv1", "--measure", ","], "it names no number of streams"),
        (["cifar10/conv1", "--measure", "1,two"], "'two' is not a whole number from 1 on"),
        (["cifar10/conv1", "--measure", "1,64"], "64 streams cannot be measured; give 1 to 32"),
        (["cifar10/conv1", "--repeat", "3"], "give numbers of streams as --measure, too"),
        (["empty.json"], "empty.json is not a file of kernels"),
        (["half.json"], "half.json is not a file of kernels"),
    ],
)
def test_wrong_usage_is_one_sentence(
    file: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    Path("empty.json").touch()
    Path("half.json").write_text(Path(file).read_text(encoding="utf-8")[:200], encoding="utf-8")
    assert main(["streams", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_the_authors_failure_case_is_told(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = [{**EXAMPLE["kernels"][2], "grid": [240, 1, 1]}]
    (elsewhere / "waves.json").write_text(
        json.dumps({"t_launch_ns": 5, "kernels": kernels}), encoding="utf-8"
    )
    assert main(["streams", "waves.json", "--model", "as-implemented"]) == 2
    assert "'gemmk1': its 240 blocks are whole waves of 120" in capsys.readouterr().err


def test_an_instance_with_streams(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["instance", "cifar10_quick", "--batch", "8", "--streams", "only", "-o", "c.instance.json"]
    assert main([*command, "--budget", "1.2xMmin"]) == 0
    instance = read_instance("c.instance.json")
    assert [transform.word for transform in instance.applied] == ["streams=only"]
    assert main(["solve", "c.instance.json", "--method", "vdnn-dyn", "-o", "c.schedule.json"]) == 0
    assert main(["check", "c.instance.json", "c.schedule.json"]) == 0
    capsys.readouterr()
