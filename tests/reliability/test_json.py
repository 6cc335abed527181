"""Standard output is one JSON object: a small sample of the study in `json_runs`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .interrupts import prepare
from .json_runs import COMMANDS, fault_of, study

A_SOLVER_EACH = ("solve cp-sat", "bound")
ON_LENET = 253
"""A seed that draws LeNet for both, SCIP, and time limits of 0.3 s at most."""
FILES = ("lenet.instance.json", "vgg16.instance.json", "again.instance.json")


@pytest.mark.parametrize(
    ("commands", "seed", "files"),
    [
        pytest.param(A_SOLVER_EACH, ON_LENET, FILES[:1], marks=pytest.mark.landing),
        pytest.param(COMMANDS, 1, FILES, marks=pytest.mark.slow),
    ],
)
def test_outputs_of_commands_with_solvers_parse(
    commands: tuple[str, ...], seed: int, files: tuple[str, ...], tmp_path: Path
) -> None:
    prepare(tmp_path, files)
    found = [*study(tmp_path, len(commands), seed, commands)]
    assert [output.command for output in found] == [*commands]
    assert [output.fault for output in found] == [""] * len(commands)
    assert sum(output.status == 0 for output in found) >= len(commands) // 2


@pytest.mark.parametrize(
    ("status", "out", "errors", "told"),
    [
        (0, 'Running HiGHS\n{"a": 1}\n', "", "not JSON"),
        (0, "", "", "not JSON"),
        (1, "", "", "not a word"),
        (2, "{}", "pebbler: no\n", "status 2"),
        (2, "", "one\ntwo\n", "status 2"),
        (-11, "", "", "status -11"),
        (0, "{}", "Traceback (most recent call last)", "a traceback"),
    ],
)
def test_the_study_sees_what_is_wrong(status: int, out: str, errors: str, told: str) -> None:
    assert told in fault_of(subprocess.CompletedProcess([], status, out, errors))


def test_the_study_takes_answers_and_refusals() -> None:
    for status, out, errors in ((0, "{}", "log\n"), (1, "", "pebbler: none\n"), (2, "", "pebbler: no\n")):
        assert fault_of(subprocess.CompletedProcess([], status, out, errors)) == ""
