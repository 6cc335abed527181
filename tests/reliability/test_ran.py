"""What is written down of long studies, and of the suite itself."""

from __future__ import annotations

import json
from pathlib import Path

from .ran import note
from .suite import slowest

DURATIONS = """
============================= slowest 4 durations ==============================
9.10s call     tests/cli/test_cuda.py::test_run_on_cuda
8.00s setup    tests/cli/test_cuda.py::test_run_on_cuda
0.52s call     tests/solver/test_chain.py::test_chain[seeds0]
1 passed in 17.62s
"""


def test_the_last_run_of_a_study_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    page = tmp_path / "reliability.md"
    page.write_text("before\n<!-- begin long -->\nnothing\n<!-- end long -->\nafter\n", encoding="utf-8")
    (tmp_path / "data").mkdir()
    for study, seconds in (("inputs", 60), ("checker", 600), ("inputs", 7200)):
        note(study, seconds, tmp_path)
    before, _, _, _, first, second, _, after = page.read_text(encoding="utf-8").splitlines()
    assert (before, after) == ("before", "after")
    assert first.startswith("| `inputs` | 20")
    assert "| 120 |" in first
    assert second.startswith("| `checker` | 20")
    assert "| 10 |" in second
    found = json.loads((tmp_path / "data" / "reliability-long.json").read_text(encoding="utf-8"))
    assert {study: row["seconds"] for study, row in found.items()} == {"inputs": 7200, "checker": 600}


def test_the_slowest_tests_are_read_from_what_pytest_prints() -> None:
    assert slowest(DURATIONS) == [
        ("tests/cli/test_cuda.py::test_run_on_cuda", 9.1),
        ("tests/solver/test_chain.py::test_chain[seeds0]", 0.52),
    ]
