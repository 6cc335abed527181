"""What is asked of every refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from pebbler.cli.main import main


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must be refused with status 2, one sentence, and no file left behind."""
    capsys.readouterr()
    before = sorted(Path.cwd().rglob("*"))
    assert main(arguments) == 2
    assert sorted(Path.cwd().rglob("*")) == before
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("pebbler: ")
    return line
