"""The walks themselves run in ``.ci/run``; here: none is forgotten, and the solver of a page is right."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest

import pebbler
from pebbler.instances.files import write_instance
from pebbler.instances.suites.tiny import plain, twisted
from pebbler.validate.schedule import read_schedule

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOLVER = HERE / "page_solver.py"


def test_every_walk_is_run_and_on_the_page() -> None:
    walks = {file.stem for file in HERE.glob("*.sh")} - {"told"}
    assert len(walks) == 5
    commands = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "walks.md").read_text(encoding="utf-8")
    run = set(re.findall(r"^ *walk \w+ (\w+)(?: &)?$", commands, re.MULTILINE))
    assert walks == run
    assert {name for name in walks if f"tests/walks/{name}.sh" not in page} == set()


def test_the_solver_of_a_page_knows_the_files_alone() -> None:
    tree = ast.parse(SOLVER.read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"json", "pathlib", "sys"}


def test_the_checker_accepts_whatever_the_solver_of_a_page_solves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On instances with places at the start and the end, updates, parts, null times and single engines."""
    instance_file, schedule_file = tmp_path / "i.instance.json", tmp_path / "s.schedule.json"
    monkeypatch.setattr(sys, "argv", [str(SOLVER), str(instance_file), str(schedule_file)])
    solved = 0
    for instance in [make(seed) for make in (plain, twisted) for seed in range(40)]:
        write_instance(instance, instance_file)
        refused = ""
        try:
            runpy.run_path(str(SOLVER))
        except SystemExit as stop:
            refused = str(stop)
        if refused:
            assert refused.endswith("would have to be copied and cannot be")
            continue
        schedule = read_schedule(schedule_file, instance)
        assert pebbler.check(instance, schedule).valid, instance.name
        solved += 1
    assert solved > 30
