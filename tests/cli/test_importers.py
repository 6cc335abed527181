from __future__ import annotations

import json
from pathlib import Path

import pytest

from pebbler.cli.main import main
from pebbler.instances.files import read_instance
from pebbler.instances.importers import extras

from ..extras import needs_onnx, needs_torch

SMALL = """
import torch
from torch import nn


def make_step(batch):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3))
    return model, lambda images: model(images).square().mean(), (torch.zeros(batch, 3, 16, 16),)
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run every command in a folder with a small model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "small_model.py").write_text(SMALL)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--torch", "small_model:make_step"], "has no batch size of its own; give one as --batch N"),
        (["--onnx", "model.onnx"], "has no batch size of its own; give one as --batch N"),
        (["lenet", "--torch", "small_model:make_step"], "from one thing; give NETWORK"),
        (["--torch", "a:b", "--onnx", "model.onnx"], "from one thing; give NETWORK"),
    ],
)
@pytest.mark.parametrize("command", ["instance", "compare"])
def test_one_model_with_a_batch(
    command: str, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["-o", "it.json"] if command == "instance" else []
    assert main([command, *arguments, *output]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("package", ["torch", "onnx"])
def test_a_missing_package_is_asked_for(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    assert main(["instance", f"--{package}", "small_model:make_step", "--batch", "2", "-o", "it.json"]) == 2
    assert capsys.readouterr().err == (
        f"pebbler: {package} is not installed; install it with pip install 'pebbler[{package}]'\n"
    )


def test_a_torch_model_from_the_current_folder(capsys: pytest.CaptureFixture[str]) -> None:
    needs_torch()
    model = ["--torch", "small_model:make_step", "--batch", "10", "--sub-batch", "4", "--budget", "80%"]
    assert main(["instance", *model, "-o", "small.instance.json", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["rounds"] == 2
    assert "the last round has 2 images" in captured.err
    instance = read_instance("small.instance.json")
    assert (instance.made_from.network, instance.made_from.device) == ("small_model:make_step", "RTX4090")
    assert (
        main(["compare", "small.instance.json", "--methods", "network-wide,vdnn-all-p,modnn", "--json"]) == 0
    )
    rows = json.loads(capsys.readouterr().out)["results"]
    assert {row["status"] for row in rows} & {"feasible", "optimal"}
    assert main(["compare", *model, "--methods", "vdnn-all-m", "--out", "both"]) == 0
    assert "batch norm takes its statistics over the sub-batch" in capsys.readouterr().out


def test_an_onnx_model(capsys: pytest.CaptureFixture[str]) -> None:
    onnx = needs_onnx()
    value = onnx.helper.make_tensor_value_info
    weights = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[8, 3, 3, 3])
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="only")],
        "graph",
        [value("x", onnx.TensorProto.FLOAT, ["batch", 3, 16, 16])],
        [value("y", onnx.TensorProto.FLOAT, None)],
        [weights],
    )
    onnx.save(onnx.helper.make_model(graph), "only.onnx")
    assert main(["compare", "--onnx", "only.onnx", "--batch", "4", "--methods", "modnn", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)["instance"]
    assert (about["network"], about["device"]) == ("only", "RTX4090")
