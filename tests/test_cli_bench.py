"""The commands ``bench`` and ``report``: what they print, and bad usage of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pebbler.cli import main

from .benchmark.sweeps import SMALL, outcomes, swept, write_config

TWO = SMALL.replace("s?", "s1").replace('"modnn", "vdnn-all-m", "vdnn-all-p", ', '"modnn", ')


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run every command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def config(elsewhere: Path) -> Path:
    return write_config(elsewhere, TWO)


def test_bench_then_report(config: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(config), "--jobs", "2"]) == 0
    assert capsys.readouterr().out == "small.sqlite: 2 runs made, 0 of them failed; 0 were there\n"
    assert main(["bench", str(config), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"results": "small.sqlite", "kept": 2, "made": 0, "failed": 0}
    assert len(outcomes(elsewhere / "small.sqlite")) == 2
    assert main(["report", "small.sqlite", "-o", "report", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["runs"] == 2
    assert {path.name for path in Path("report").iterdir()} == set(said["files"])
    assert "gaps" in said["exhibits"]


def test_report_tells_where_to_look(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = swept(elsewhere, TWO)
    assert main(["report", str(path), "-o", "r"]) == 0
    assert capsys.readouterr().out == "r: 2 runs, 5 exhibits; open index.html\n"


def test_results_go_where_they_are_asked_for(config: Path, elsewhere: Path) -> None:
    assert main(["bench", str(config), "-o", "elsewhere.sqlite"]) == 0
    assert not (elsewhere / "small.sqlite").exists()
    assert (elsewhere / "elsewhere.files" / "schedules").is_dir()


def test_budget_of_a_byte_leaves_nothing_to_run(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = '[[sweep.workloads]]\nnetwork = "alexnet"\nbatch = 1\ndevice = "K40"\nbudgets = ["1"]\n'
    write_config(elsewhere, 'title = "t"\n[[sweep]]\nmethods = ["modnn"]\n' + workload)
    assert main(["bench", "small.toml"]) == 2
    left_out, error = capsys.readouterr().err.splitlines()
    assert "alexnet/1/K40/1 is left out: alexnet-b1: a budget of 1 bytes" in left_out
    assert error == "pebbler: small.toml asks for no runs: no budget is enough; give larger ones"


def test_budget_of_a_terabyte_is_like_no_limit(elsewhere: Path) -> None:
    workload = '[[sweep.workloads]]\nnetwork = "alexnet"\nbatch = 1\ndevice = "K40"\nbudgets = ["1TB"]\n'
    path = swept(elsewhere, 'title = "t"\n[[sweep]]\nmethods = ["modnn"]\n' + workload)
    (run,) = outcomes(path).values()
    assert (run["status"], run["iteration_ns"]) == ("optimal", run["ideal_ns"])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["bench"], "CONFIG.toml"),
        (["bench", "none.toml"], "none.toml cannot be read"),
        (["bench", "empty.toml"], "missing required field"),
        (["bench", "cut.toml"], "cut.toml is not TOML"),
        (["bench", "unknown.toml"], "no method 'mdnn'"),
        (["bench", "small.toml", "--jobs", "0"], "'0' is not a whole number from 1 on"),
        (["bench", "small.toml", "--jobs", "2", "--cluster", "tcp://127.0.0.1:9"], "not allowed with"),
        (["bench", "small.toml", "-o", "none/small.sqlite"], "none/small.sqlite cannot be written"),
        (["bench", "small.toml", "-o", "empty.toml/small.sqlite"], "cannot be written"),
        (
            ["bench", "small.toml", "-o", "small.toml"],
            "small.toml cannot be used as a results file",
        ),
        (["report", "none.sqlite", "-o", "r"], "none.sqlite cannot be read"),
        (
            ["report", "small.toml", "-o", "r"],
            "small.toml cannot be used as a results file",
        ),
        (["report", "empty.toml", "-o", "r"], "empty.toml is not a results file"),
        (["report", "small.sqlite"], "-o"),
        (["report", "small.sqlite", "-o", "small.toml"], "small.toml cannot be a folder"),
    ],
)
def test_bad_usage(
    arguments: list[str], why: str, config: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "empty.toml").touch()
    (elsewhere / "unknown.toml").write_text(TWO.replace("modnn", "mdnn"))
    (elsewhere / "cut.toml").write_text(TWO[: len(TWO) // 2])
    before = {path: path.read_bytes() for path in elsewhere.iterdir()}
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in elsewhere.iterdir()} == before
    assert config in before
