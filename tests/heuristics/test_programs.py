"""Programs as methods: what one writes counts if it holds; whatever else it does is a row of one sentence."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import pebbler
from pebbler.benchmark.sweeps.config import jobs, read_config
from pebbler.benchmark.sweeps.results import Results
from pebbler.cli.main import main
from pebbler.heuristics import programs
from pebbler.heuristics.methods import MethodError, find_method, list_methods
from pebbler.heuristics.programs import program_sha256, require_program
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode, sha256_of
from pebbler.instances.instance import Instance
from pebbler.solver.answers import Answers
from pebbler.solver.result import Result
from pebbler.solver.solve import attempt, solve

from ..solver.processes import alive, eventually

Write = Callable[[str, str], Path]

COPY = 'cp good.json "$2"\n'
HANG = "sleep 600 & echo $! > child; echo $$ > pid; wait\n"


@pytest.fixture
def write(elsewhere: Path) -> Write:
    """A function that writes a program in the shell's language."""

    def written(name: str, lines: str) -> Path:
        path = elsewhere / name
        path.write_text(f"#!/bin/sh\n{lines}", encoding="utf-8")
        path.chmod(0o755)
        return path

    return written


@pytest.fixture
def good(tight: Instance, elsewhere: Path) -> int:
    """A schedule of the tight chain in ``good.json``; its makespan."""
    schedule = solve(tight, "modnn").schedule
    assert schedule is not None
    (elsewhere / "good.json").write_bytes(encode(schedule))
    return schedule.makespan_ns


def attempted(instance: Instance, method: str, time_limit: float | None = None) -> Result:
    return attempt(Answers(instance, "contiguous"), method, time_limit=time_limit, seed=7)


def is_gone(file: str) -> bool:
    return eventually(lambda: not alive(int(Path(file).read_text())))


def test_the_schedule_of_a_program_counts_and_what_it_leaves_behind_is_killed(
    tight: Instance, good: int, write: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    told = (
        'echo "$@"; echo "$PEBBLER_SEED $PEBBLER_MEMORY"; cp "$1" given.json; sleep 600 & echo $! > child\n'
    )
    write("mine", told + COPY)
    result = attempted(tight, "exec:./mine", 60)
    assert (result.makespan_ns, result.stopped_by, result.method) == (good, "done", "exec:./mine")
    assert Path("given.json").read_bytes() == encode(tight)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0].endswith("/schedule.json --time-limit 60")
    assert said.err.splitlines()[1] == "7 contiguous"
    assert is_gone("child")


def test_a_program_is_found_by_its_name_and_is_in_no_list(write: Write) -> None:
    path = write("mine", COPY)
    info = find_method("exec:./mine")
    assert (info.name, info.shown, info.guest) == ("exec:./mine", "named", False)
    assert "exec:./mine" not in {info.name for info in list_methods()}
    assert find_method("exec:./missing").name == "exec:./missing"
    assert program_sha256("exec:./mine") == sha256_of(path)
    assert program_sha256("exec:sh") is not None
    assert program_sha256("exec:./missing") is None
    assert program_sha256("modnn") is None
    with pytest.raises(PebblerError, match="'exec:' names no program; give one, such as exec:"):
        find_method("exec:")
    with pytest.raises(PebblerError, match="give one line of text"):
        find_method("exec:a\nb")
    with pytest.raises(PebblerError, match="there is no method 'exe:mine'"):
        find_method("exe:mine")


def test_a_run_of_a_sweep_is_another_one_when_its_program_changes(file: Path, write: Write) -> None:
    Path("c.toml").write_text(
        'title = "t"\n[[sweep]]\nfiles = ["*.json"]\nmethods = ["exec:./mine", "modnn"]\n'
    )

    def fingerprints() -> list[str]:
        return [job.fingerprint for job in jobs(read_config(Path("c.toml")), file.parent)]

    write("mine", COPY)
    mine, modnn = fingerprints()
    assert fingerprints() == [mine, modnn]
    write("mine", COPY + "\n")
    changed, same = fingerprints()
    assert (changed != mine, same) == (True, modnn)


def test_a_program_that_is_not_there_is_a_row(tight: Instance) -> None:
    result = attempted(tight, "exec:./missing")
    assert result.status == "error"
    assert result.stopped_by == "method exec:./missing: there is no program ./missing that may be executed"


def test_a_file_that_may_not_be_executed_is_told_from_none(tight: Instance, write: Write) -> None:
    write("mine", COPY).chmod(0o644)
    told = "method exec:./mine: there is no program ./mine that may be executed: it is a file, but without "
    assert attempted(tight, "exec:./mine").stopped_by == f"{told}permission; give it by chmod +x"
    assert attempted(tight, "exec:mine").stopped_by == (
        "method exec:mine: there is no program mine that may be executed in PATH; the file in this folder is "
        "exec:./mine"
    )
    with pytest.raises(PebblerError, match="without permission; give it by chmod"):
        require_program("exec:./mine")
    write("mine", COPY)
    require_program("exec:./mine")
    require_program("modnn")


def test_a_script_without_an_interpreter_is_told_what_it_begins_with(
    tight: Instance, elsewhere: Path
) -> None:
    path = elsewhere / "mine"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    told = attempted(tight, "exec:./mine").stopped_by
    assert "cannot be started: No such file or directory; a script begins with a line such as" in told


@pytest.mark.usefixtures("good")
def test_a_program_that_fails_is_a_row(tight: Instance, write: Write) -> None:
    write("fails", COPY + "exit 3\n")
    failed = attempted(tight, "exec:./fails")
    assert failed.status == "error"
    assert (
        failed.stopped_by == "method exec:./fails ended with exit status 3, so what it wrote does not count"
    )


BAD = {
    "broken": (
        "echo { > $2\n",
        "error",
        "the file that it wrote is not a schedule: input data was truncated",
    ),
    "wrong": ('sed "s/.makespan_ns.: */&1/" good.json > $2\n', "error", "makespan_ns is 1"),
    "other": ('echo "{\\"format\\": \\"pebbler/instance/1\\"}" > $2\n', "error", "is not a schedule"),
    "pipe": ("mkfifo $2\n", "unknown", "it wrote no schedule"),
    "none": ("exit 0\n", "unknown", "it wrote no schedule"),
    "dies": ("kill -9 $$\n", "error", "ended with signal 9"),
    "kills": ("kill -9 0\n", "error", "ended the process group that it ran in: it ended with signal 9"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("good", "unrendered")
def test_whatever_a_program_does_is_a_row_and_never_a_traceback(
    file: Path, write: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, (lines, _, _) in BAD.items():
        write(name, lines)
    (file.parent / "format").write_text("of no kind")
    (file.parent / "format").chmod(0o755)
    names = [f"exec:./{name}" for name in (*BAD, "format")]
    assert main(["compare", str(file), "--methods", ",".join(["modnn", *names]), "--json"]) == 0
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    rows = {row["method"]: row for row in json.loads(said.out)["results"]}
    assert "cannot be started: Exec format error; a script begins" in rows["exec:./format"]["stopped_by"]
    for name, (_, status, told) in BAD.items():
        row = rows[f"exec:./{name}"]
        assert row["status"] == status
        assert told in row["stopped_by"]
        assert "\n" not in row["stopped_by"]


@pytest.mark.slow
@pytest.mark.parametrize("writes", [True, False])
def test_a_program_over_its_time_limit_is_killed_with_its_children(
    tight: Instance, good: int, write: Write, writes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "GRACE", 0.5)
    write("hangs", (COPY if writes else "") + HANG)
    result = attempted(tight, "exec:./hangs", 1.5)
    if writes:
        assert (result.makespan_ns, result.stopped_by) == (good, "time limit")
    else:
        assert (result.status, result.stopped_by) == ("unknown", "it wrote no schedule within its time limit")
    assert is_gone("pid")
    assert is_gone("child")


@pytest.mark.slow
@pytest.mark.usefixtures("good", "unrendered")
def test_ctrl_c_ends_a_program_and_files_have_plain_names(file: Path, write: Write) -> None:
    write("mine", COPY)
    write("hangs", HANG)
    command = [sys.executable, "-m", "pebbler", "compare", str(file), "--methods", "exec:./mine,exec:./hangs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert eventually(lambda: Path("pid").exists() and Path("pid").read_text() != "", 60)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert is_gone("pid")
    assert is_gone("child")
    assert (file.parent / "pebbler-out" / "chain-b4.exec-.-mine.schedule.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("lines", "kept"), [(COPY, True), ("echo { > $2\n", False), ("mkfifo $2\n", False)])
def test_ctrl_c_keeps_the_valid_schedule_that_a_program_has_written(
    file: Path, good: int, write: Write, lines: str, kept: bool
) -> None:
    write("hangs", lines + HANG)
    command = [
        sys.executable,
        "-m",
        "pebbler",
        "solve",
        str(file),
        "--method",
        "exec:./hangs",
        "-o",
        "s.json",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert eventually(lambda: Path("pid").exists() and Path("pid").read_text() != "", 60)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert is_gone("child")
    assert Path("s.json").exists() == kept
    if kept:
        assert json.loads(Path("s.json").read_text())["makespan_ns"] == good


@pytest.mark.slow
@pytest.mark.usefixtures("file")
def test_a_sweep_runs_programs_and_kills_them_with_its_process(write: Write) -> None:
    write("hangs", HANG)
    Path("c.toml").write_text(
        'title = "t"\n[[sweep]]\nfiles = ["*.instance.json"]\nmethods = ["exec:./hangs"]\n'
        'time_limits = ["60s"]\nwall_limit = "6s"\nmemory_limit = "8GB"\n'
    )
    began = time.monotonic()
    assert main(["bench", "c.toml", "-o", "c.sqlite"]) == 0
    assert time.monotonic() - began < 50
    assert is_gone("pid")
    assert is_gone("child")
    with Results(Path("c.sqlite")) as results:
        (run,) = results.runs()
    assert (run.setting.method, run.found.status) == ("exec:./hangs", "unknown")
    assert "killed after 6 s" in run.found.stopped_by


@pytest.mark.slow
@pytest.mark.usefixtures("file")
def test_the_memory_limit_of_a_sweep_holds_for_programs(elsewhere: Path) -> None:
    path = elsewhere / "eats"
    path.write_text(f"#!{sys.executable}\nbytearray(5 * 2**30)\n", encoding="utf-8")
    path.chmod(0o755)
    Path("c.toml").write_text(
        'title = "t"\n[[sweep]]\nfiles = ["*.instance.json"]\nmethods = ["exec:./eats"]\n'
        'memory_limit = "4GiB"\n'
    )
    assert main(["bench", "c.toml", "-o", "c.sqlite"]) == 3
    with Results(Path("c.sqlite")) as results:
        (run,) = results.runs()
    assert "exec:./eats ended with exit status 1" in run.found.stopped_by
    assert run.found.stopped_by.endswith("under a memory limit of 4.00 GiB")


@pytest.mark.slow
def test_the_answer_of_a_program_is_solved_for_and_written(file: Path, good: int, write: Write) -> None:
    write("mine", COPY)
    assert main(["solve", str(file), "--method", "exec:./mine", "-o", "s.json"]) == 0
    written = pebbler.read_schedule("s.json", pebbler.read_instance(file))
    assert (written.method, written.makespan_ns) == ("exec:./mine", good)
    write("mine", "exit 1\n")
    Path("s.json").unlink()
    assert main(["solve", str(file), "--method", "exec:./mine", "-o", "s.json"]) == 3
    assert not Path("s.json").exists()
    with pytest.raises(MethodError, match="ended with exit status 1"):
        solve(replace(pebbler.read_instance(file), name="again"), "exec:./mine")
