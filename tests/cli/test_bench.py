"""The commands ``bench`` and ``report``: what they print, and bad usage of them."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
from itertools import islice
from pathlib import Path

import pytest

from pebbler.benchmark.output.machine import origin
from pebbler.benchmark.sweeps import runner
from pebbler.benchmark.sweeps.jobs import Found, Job, Measured
from pebbler.benchmark.sweeps.results import Results
from pebbler.benchmark.sweeps.runner import Made
from pebbler.cli.main import main
from pebbler.instances.errors import PebblerError
from pebbler.instances.suites.suite import find_suite, members

from ..benchmark.swept import SMALL, made_here, outcomes, swept, write_config

TWO = SMALL.replace("s?", "s1").replace('"modnn", "vdnn-all-m", "vdnn-all-p", ', '"modnn", ')


pytestmark = pytest.mark.usefixtures("elsewhere", "unrendered")


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


def test_report_checks_first(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = swept(elsewhere, TWO)
    assert main(["report", str(path), "-o", "r", "--check"]) == 0
    told = "schedules of 2 runs checked, 2 of 2 bounds proven"
    assert capsys.readouterr().out == f"r: 2 runs, 5 exhibits; {told}; open index.html\n"
    assert main(["report", str(path), "-o", "r", "--check", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["checked"] == {"schedules": 2, "proven": 2, "unproven": 0}
    with sqlite3.connect(path) as database:
        database.execute("UPDATE runs SET iteration_ns = iteration_ns - 1 WHERE method = 'modnn'")
    assert main(["report", str(path), "-o", "new", "--check"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("pebbler: tiny/chain2-s1, modnn, seed 0: its row has iteration_ns ")
    assert error.count("\n") == 1
    assert not (elsewhere / "new").exists()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are made in this process."""
    monkeypatch.setattr(runner, "perform", made_here)


@pytest.mark.usefixtures("at_once")
def test_results_go_where_they_are_asked_for(config: Path, elsewhere: Path) -> None:
    assert main(["bench", str(config), "-o", "elsewhere.sqlite"]) == 0
    assert not (elsewhere / "small.sqlite").exists()
    assert (elsewhere / "elsewhere.files" / "schedules").is_dir()


@pytest.mark.usefixtures("at_once")
def test_a_name_that_does_not_print_is_shown_as_its_codes(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(config), "-o", "\x1b[31m\udcff.sqlite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"] == r"\x1b[31m\udcff.sqlite"


PROTOCOL = ["bench", "--protocol", "2026", "--suite", "tiny", "--methods"]


def test_protocol_then_report(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(_: Job, __: object, ___: object, timed: bool) -> Made:
        found = Found(status="feasible", stopped_by="done", iteration_ns=10**6, solve_seconds=2.0)
        return Made(Measured(found), 0.25, origin(), 0.5 if timed else None)

    few = list(islice(members(find_suite("tiny")), 3))
    monkeypatch.setattr("pebbler.benchmark.sweeps.config.members", lambda _: few)
    monkeypatch.setattr(runner, "perform", made)
    assert main([*PROTOCOL, "modnn,exec:./mine"]) == 2
    assert "there is no program ./mine that may be executed" in capsys.readouterr().err
    assert not (elsewhere / "protocol-2026.sqlite").exists()
    (elsewhere / "mine").touch(0o755)
    assert main([*PROTOCOL, "modnn,exec:./mine"]) == 0
    assert capsys.readouterr().out == ("protocol-2026.sqlite: 6 runs made, 0 of them failed; 0 were there\n")
    assert main(["report", "protocol-2026.sqlite", "-o", "report", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exhibits"][0] == "standing"
    with (elsewhere / "report" / "standing.csv").open() as file:
        modnn, mine = csv.DictReader(file)
    assert (modnn["setting"], mine["setting"]) == ("modnn", "exec:./mine")
    assert (modnn["instances"], modnn["not run"], modnn["solved"]) == ("3", "0", "0")
    assert float(modnn["mean time (s)"]) == pytest.approx(60.0)
    assert float(modnn["mean time (kernels)"]) == pytest.approx(120.0)
    assert main(["bench", str(write_config(elsewhere, TWO)), "-o", "protocol-2026.sqlite"]) == 2
    assert "has runs by Protocol 2026, on suite tiny; give another file" in capsys.readouterr().err


@pytest.mark.slow
def test_protocol_times_the_machine(elsewhere: Path) -> None:
    assert main([*PROTOCOL, "modnn", "--jobs", "2"]) == 0
    with Results(elsewhere / "protocol-2026.sqlite") as results:
        runs = results.runs()
    (kernel,) = {run.kernel_seconds for run in runs}
    assert kernel is not None
    assert 0.01 < kernel < 60


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
        (["bench"], "give CONFIG.toml or --protocol NAME"),
        (["bench", "small.toml", "--protocol", "2026"], "bench runs one thing"),
        (["bench", "small.toml", "--suite", "tiny"], "a configuration settles --suite"),
        (["bench", "small.toml", "--methods", "modnn"], "a configuration settles --methods"),
        (["bench", "--protocol", "1999"], "there is no protocol '1999'; there are 2026"),
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


# --- what cannot be read or written --------------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence with which a command is refused."""
    assert main([*arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_a_name_that_is_none_is_no_results_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is no results file" in told(capsys, "report", "", "-o", "r")
    assert "is no file" in told(capsys, "report", "/dev/null", "-o", "r")


def test_results_do_not_go_to_a_pipe(
    config: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo("pipe")
    assert "is no file" in told(capsys, "bench", str(config), "-o", "pipe")
    assert {path.name for path in elsewhere.iterdir()} == {"pipe", config.name}


def test_a_failed_bench_leaves_no_empty_results(
    config: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PebblerError("the workers were lost")

    monkeypatch.setattr("pebbler.benchmark.sweeps.runner.make", fail)
    (elsewhere / "link.sqlite").symlink_to("far.sqlite")
    for name in ("near.sqlite", "link.sqlite"):
        assert "were lost" in told(capsys, "bench", str(config), "-o", name)
    assert {path.name for path in elsewhere.iterdir()} == {config.name, "link.sqlite"}


def test_a_failed_bench_keeps_results_that_were_there(
    config: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = swept(elsewhere, TWO)
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise PebblerError("the workers were lost")

    monkeypatch.setattr("pebbler.benchmark.sweeps.runner.make", fail)
    told(capsys, "bench", str(config), "-o", str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("column", ["trace", "problem", "status", "seed", "instances", "packages", "tasks"])
def test_nulls_in_results_are_a_sentence(
    column: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = swept(elsewhere, TWO)
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE runs SET {column} = NULL")
    assert "is damaged" in told(capsys, "report", str(path), "-o", "r")
    assert not (elsewhere / "r").exists()


@pytest.mark.parametrize("column", ["solve_seconds", "kernel_seconds"])
def test_times_before_they_began_are_a_sentence(
    column: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = swept(elsewhere, TWO)
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE runs SET {column} = -1")
    assert "is damaged" in told(capsys, "report", str(path), "-o", "r")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("suites", '[""]', "suite"),
        ("methods", '[""]', "there is no method ''"),
        ("files", '[""]', "is no pattern of files"),
        ("files", '["a\\u0000b"]', "matches"),
        ("select", '[""]', "matches"),
        ("time_limits", '[""]', "is not a time"),
        ("time_limits", '["1e308"]', "is not a time"),
        ("time_limits", f'["{"9" * 400}s"]', "is not a time"),
        ("memory_limit", f'"{"9" * 400}"', "is not a size"),
        ("seeds", "[1e308]", "int"),
        ("seeds", f"[{'9' * 400}]", "int"),
        ("seeds", f"[{'9' * 5000}]", "4300"),
        ("seeds", f"[{2**31}]", "2147483647"),
        ("workers", "100000", "1024"),
        ("workers", "[" * 5000, "nested too deeply"),
    ],
)
def test_a_sweep_of_odd_values_is_a_sentence(
    key: str, value: str, said: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = {"suites": '["tiny"]', "methods": '["modnn"]', "select": '["chain2-s1"]'} | {key: value}
    text = 'title = ""\n[[sweep]]\n' + "".join(f"{name} = {entry}\n" for name, entry in entries.items())
    path = write_config(elsewhere, text)
    message = told(capsys, "bench", str(path))
    assert said in message
    assert len(message) < 500
    assert {one.name for one in elsewhere.iterdir()} == {path.name}


def test_names_cannot_break_the_page(elsewhere: Path) -> None:
    evil = "</script><script>alert(1)</script><!--<script>$\\frac{ $"
    path = swept(elsewhere, TWO)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE runs SET problem = ?, stopped_by = ?, machine = ?", (evil, evil, evil))
    assert main(["report", str(path), "-o", "r"]) == 0
    page = (elsewhere / "r" / "index.html").read_text("utf-8")
    assert page.count("<script") == page.count("</script") == 2
    assert "<!--" not in page
    data = page.split('id="data">')[1].split("</script>")[0]
    assert "<" not in data
    assert {run["problem"] for run in json.loads(data)["runs"]} == {evil}
