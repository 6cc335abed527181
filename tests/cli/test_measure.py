"""The command measure: what it refuses, and what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pebbler.benchmark.gpu import measure
from pebbler.benchmark.gpu.study import ON_THE_GPU, SMOKE, STAGES
from pebbler.cli.main import main
from pebbler.instances.errors import PebblerError
from pebbler.validate.execution.cuda.providers import PROVIDERS


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "there is nothing to do; give --stages, --smoke or --archive, such as pebbler measure"),
        (["--stages", "magic"], "there is no stage 'magic'; there are profile, kernels, "),
        (["--stages", "profile,all"], "there is no stage 'all'"),
        (["--stages", "run", "--networks", "no-such/4"], "there is no network 'no-such'"),
        (["--stages", "run", "--networks", "lenet/0"], "'0' is not a whole number from 1 on"),
        (["--stages", "run", "--networks", "lenet"], "'lenet' is no list of NAME/BATCH"),
        (["--stages", "run", "--budgets", "much"], "'much' is not a budget"),
        (["--stages", "solve", "--methods", "magic"], "there is no method 'magic'"),
        (["--stages", "streams", "--layers", "caffenet/conv9"], "has no convolution 'conv9'"),
        (["--stages", "streams", "--device", "abacus"], "abacus"),
        (["--stages", "profile", "--provider", "abacus"], f"there are {', '.join(PROVIDERS)}"),
        (["--stages", "run", "--time-limit", "soon"], "'soon' is not a time"),
        (["--stages", "page", "--page", "no-such.md"], "no-such.md cannot be read"),
        (["--stages", "page", "--page", "bare.md"], "bare.md has no place for the tables"),
        (["--stages", "page", "--page", "odd.md"], "odd.md is no text in UTF-8"),
        (["--stages", "solve", "--out", "file"], "file cannot be a folder"),
        (["--stages", "solve", "--archive", "no/such/place.tar.gz"], "cannot be written"),
        (["--archive", "place.tar.gz"], "is not there, so there is nothing to pack"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(
    options: list[str], said: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "file").touch()
    (elsewhere / "bare.md").write_text("<!-- end of gpu -->\n<!-- begin gpu -->\n")
    (elsewhere / "odd.md").write_bytes(b"<!-- begin gpu -->\n\xff<!-- end of gpu -->\n")
    assert main(["measure", *options]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in elsewhere.iterdir()) == ["bare.md", "file", "odd.md"]


@pytest.mark.parametrize("stage", sorted(ON_THE_GPU))
def test_without_a_gpu_the_stages_that_need_it_are_refused(
    stage: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise PebblerError("there is no GPU")

    monkeypatch.setattr(measure, "require_machine", refuse)
    assert main(["measure", "--smoke"] if stage == SMOKE else ["measure", "--stages", f"solve,{stage}"]) == 2
    assert capsys.readouterr().err == "pebbler: there is no GPU\n"
    assert list(elsewhere.iterdir()) == []


def test_without_a_driver_it_says_what_to_install(elsewhere: Path) -> None:
    hidden = elsewhere / "hidden"
    (hidden / "pycuda").mkdir(parents=True)
    (hidden / "pycuda" / "__init__.py").touch()
    (hidden / "pycuda" / "driver.py").write_text("raise ImportError('libcuda.so.1: cannot open it')\n")
    path = os.pathsep.join(filter(None, (str(hidden), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "pebbler", "measure", "--smoke", "--json"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("(libcuda.so.1: cannot open it); install NVIDIA's driver\n")
    assert done.stderr.count("\n") == 1
    assert [place.name for place in elsewhere.iterdir()] == ["hidden"]


def test_help_explains_the_stages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["measure", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name, what in STAGES.items():
        assert f"{name}: {what}" in text


def test_stages_without_anything_to_measure_say_so(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--networks", "resnet:blocks=1-1-1-1,basic=1/2,lenet/3", "--methods", "modnn"]
    assert main(["measure", "--stages", "solve", "--out", "gpu", *options, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["skipped"]["solve lenet/3 1.05xMmin modnn"].startswith("the stage profile has left nothing")
    assert len(told["skipped"]) == 8
    assert told["archive"] is None
    assert list((elsewhere / "gpu").iterdir()) == []


def test_an_archive_alone_packs_the_folder(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "gpu").mkdir()
    (elsewhere / "gpu" / "x.json").write_text("{}")
    assert main(["measure", "--archive", "all.tar.gz", "--out", "gpu"]) == 0
    assert "all.tar.gz: " in capsys.readouterr().out
    subprocess.run(["tar", "xzf", "all.tar.gz", "-C", str(elsewhere / "gpu")], check=True)
    assert (elsewhere / "gpu" / "gpu" / "x.json").read_text() == "{}"


def test_every_stage_is_known_below() -> None:
    assert {*measure.STAGES, "page"} == {SMOKE, *STAGES}
    assert measure.STAGES.keys() >= ON_THE_GPU
