"""The command ``check-trace``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pebbler.cli.main import main

from .refusals import refusal

pytestmark = pytest.mark.usefixtures("elsewhere")

TRACES = Path(__file__).parents[2] / "docs" / "data" / "traces"


def test_a_race_is_printed_and_a_trace_without_one_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-trace", str(TRACES / "velox-17163.trace.json")]) == 1
    (told,) = capsys.readouterr().out.splitlines()
    assert told.endswith("let the host wait for operation 1 first")
    assert main(["check-trace", str(TRACES / "velox-17163.trace.json"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"valid": False, "reasons": [told]}
    assert main(["check-trace", str(TRACES / "velox-17163.fixed.trace.json")]) == 0
    assert capsys.readouterr().out == "no timing corrupts data\n"
    assert main(["check-trace", str(TRACES / "velox-17163.fixed.trace.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"valid": True, "reasons": []}


def test_a_trace_that_breaks_the_format_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (TRACES / "velox-17163.trace.json").read_text()
    broken = tmp_path / "broken.json"
    broken.write_text(whole[: len(whole) // 2])
    assert "broken.json is not a trace: input data was truncated" in refusal(
        capsys, "check-trace", str(broken)
    )
    broken.write_text(whole.replace('"reads":["arrow"]', '"reads":["arow"]'))
    assert "there is no buffer 'arow'" in refusal(capsys, "check-trace", str(broken))
    assert "cannot be read" in refusal(capsys, "check-trace", str(tmp_path / "missing.json"))
