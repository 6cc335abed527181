"""Standard output and standard error that are closed, full or left by their reader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pebbler.cli.main import main
from pebbler.instances.files import write_instance
from pebbler.instances.workload import Workload

PEBBLER = f'"{sys.executable}" -m pebbler'


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line of the shell, with buffers of its own as at a terminal."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=settings, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "arguments",
    [
        "devices",
        "--help",
        *(pytest.param(a, marks=pytest.mark.slow) for a in ("networks lenet --json", "methods --json")),
    ],
)
def test_a_full_output_is_a_sentence(arguments: str, tmp_path: Path) -> None:
    done = shell(f"{PEBBLER} {arguments} >/dev/full", tmp_path)
    assert done.returncode == 2
    assert done.stderr == "pebbler: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    "arguments", ["--help", "networks no-such", pytest.param("networks lenet", marks=pytest.mark.slow)]
)
def test_a_closed_output_is_a_sentence(arguments: str, tmp_path: Path) -> None:
    done = shell(f"{PEBBLER} {arguments} >&-", tmp_path)
    assert done.returncode == 2
    assert done.stderr == "pebbler: standard output is closed; send it to a file or to /dev/null\n"


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_a_standard_error_that_takes_nothing_changes_no_answer(where: str, tmp_path: Path) -> None:
    done = shell(f"{PEBBLER} devices {where}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "K40" in done.stdout
    assert shell(f"{PEBBLER} no-such {where}", tmp_path).returncode == 2
    done = shell(f"{PEBBLER} generate tiny -v -o tiny {where}", tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "tiny" / "manifest.json").exists()


def test_nothing_gets_the_numbers_of_closed_streams(tmp_path: Path) -> None:
    done = shell(f"{PEBBLER} generate tiny -o tiny <&- >&- 2>&-", tmp_path)
    assert done.returncode == 2
    done = shell(f"{PEBBLER} instance lenet -o a.json -v <&- 2>&-", tmp_path)
    assert done.returncode == 0
    assert main(["instance", "lenet", "-o", str(tmp_path / "b.json")]) == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_reader_that_leaves_early(tmp_path: Path) -> None:
    done = shell(f"{PEBBLER} methods --json | head -1; echo ${{PIPESTATUS[0]}}", tmp_path)
    assert done.stdout in ("{\n141\n", "{\n0\n")
    assert done.stderr == ""


def test_messages_are_lines_that_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = shell(f"{PEBBLER} networks $'\\x1b[31m\\xff\\n'", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("pebbler: there is no network '\\x1b[31m\\udcff\\n'; ")
    for arguments in (f"networks {'x' * 9000}", f"check {'x' * 9000} y", f"{'x' * 9000}"):
        assert main(arguments.split()) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert len(line) < 500
        assert "…" in line


def test_an_output_that_lacks_characters(tmp_path: Path) -> None:
    name = "h\u00f6he.json"
    assert shell(f"{PEBBLER} instance lenet -o '{name}'", tmp_path).stdout.startswith(name)
    done = shell(f"PYTHONIOENCODING=ascii {PEBBLER} instance lenet -o '{name}'", tmp_path)
    assert (done.returncode, done.stdout[:12]) == (0, "h\\xf6he.json")


def test_an_instance_from_a_pipe(tmp_path: Path) -> None:
    write_instance(Workload("lenet", 2, "K40").instance("100%"), tmp_path / "i.json")
    done = shell(f"{PEBBLER} solve <(cat i.json) --method network-wide -o s.json", tmp_path)
    assert done.returncode == 0, done.stderr
    done = shell(f"{PEBBLER} check <(cat i.json) <(cat s.json)", tmp_path)
    assert (done.returncode, done.stdout) == (0, "valid\n")
    done = shell(f"{PEBBLER} check <(sed 's/lenet/lenot/' i.json) s.json", tmp_path)
    assert (done.returncode, "sha256" in done.stdout or "checksum" in done.stdout) == (1, True)
