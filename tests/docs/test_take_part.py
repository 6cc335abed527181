"""The checkers of the documentation, which do without pebbler, say what pebbler's checker says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from pebbler.instances.errors import FormatError
from pebbler.instances.files import encode
from pebbler.instances.instance import Instance
from pebbler.instances.suites.suite import find_suite, members
from pebbler.solver.solve import solve
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule

from ..samples import counts
from ..validate.mutation_study import ORDINARY
from ..validate.random_programs import random_case

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
BEYOND = ["the files use what this checker does not know"]

Check = Callable[[Any, Any], list[str]]


@pytest.fixture(scope="module")
def short() -> Check:
    """The checker in Python."""
    spec = util.spec_from_file_location("short_checker", EXAMPLES / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Check = module.check
    return found


def cases(seed: int, count: int) -> Iterator[tuple[Instance, Schedule, bool]]:
    """Contiguous schedules, random and damaged ones, and whether they are valid."""
    rng = Random(seed)
    for n in range(count):
        instance, schedule = random_case(rng, own_inputs=n % 3 == 0, own_outputs=n % 3 == 1)
        if schedule.memory_model != "contiguous":
            continue
        yield instance, schedule, True
        for damage in ORDINARY:
            try:
                damaged = damage(instance, schedule, rng)
                if damaged is None:
                    continue
                one = damaged if isinstance(damaged, tuple) else (instance, damaged)
                yield *one, check(*one).valid
            except FormatError:  # no file holds it
                continue


@pytest.mark.parametrize("count", counts(12, 600))
def test_the_short_checker_accepts_what_pebbler_accepts_and_nothing_else(count: int, short: Check) -> None:
    tally: Counter[bool] = Counter()
    for instance, schedule, valid in cases(3, count):
        reasons = short(json.loads(encode(instance)), json.loads(encode(schedule)))
        if reasons != BEYOND:
            assert (not reasons) == valid, reasons
            tally[valid] += 1
    assert tally[True] > count
    assert tally[False] > 5 * count


def test_the_short_checker_says_what_is_beyond_it(tight: Instance, short: Check) -> None:
    schedule = solve(tight, "modnn").schedule
    assert schedule is not None
    ended = json.loads(encode(schedule))
    assert short(json.loads(encode(tight)), ended) == []
    assert short(json.loads(encode(tight)), {**ended, "memory_model": "paged"}) == BEYOND
    for change in ({"host_budget_bytes": 1}, {"link": {"both_bytes_per_second": 1}}):
        assert short({**json.loads(encode(tight)), **change}, ended) == BEYOND


def files(folder: Path, instance: Instance, schedule: Schedule) -> list[str]:
    (folder / "i.json").write_bytes(encode(instance))
    (folder / "s.json").write_bytes(encode(schedule))
    return [str(folder / "i.json"), str(folder / "s.json")]


def test_the_page_of_the_frozen_suite_says_for_how_many_instances_the_checkers_are(short: Check) -> None:
    nothing = {"instance": "", "operations": [], "residences": [], "makespan_ns": 0, "peak_bytes": 0}
    known = [
        short(
            json.loads(member.frozen.content(member.name)), {**nothing, "memory_model": member.frozen.memory}
        )
        != BEYOND
        for member in members(find_suite("pebbler-2026"))
        if member.frozen is not None
    ]
    page = (EXAMPLES.parent / "suite-2026.md").read_text("utf-8")
    assert f"of {sum(known)} of the {len(known)} instances" in page


def test_the_short_checker_is_a_program(tight: Instance, tmp_path: Path) -> None:
    schedule = solve(tight, "modnn").schedule
    assert schedule is not None
    wrong = replace(schedule, makespan_ns=1, instance_sha256="0" * 64)
    for one, status, told in (
        (schedule, 0, "valid\n"),
        (wrong, 1, "makespan_ns is wrong\ninstance_sha256 is not the checksum of the instance's file\n"),
    ):
        command = [sys.executable, "-I", "-S", str(EXAMPLES / "check.py"), *files(tmp_path, tight, one)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (status, told, "")


def test_the_short_checker_says_what_are_no_two_files_of_its_formats(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    broken, other = tmp_path / "broken.json", tmp_path / "list.json"
    for files_given, told in (
        ((), "usage: "),
        ((broken,), "usage: "),
        ((broken, broken), "the files break a rule of their formats"),
        ((other, other), "the files break a rule of their formats"),
        ((broken, tmp_path / "absent.json"), "No such file or directory"),
    ):
        command = [sys.executable, "-I", "-S", str(EXAMPLES / "check.py"), *map(str, files_given)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert told in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_checker_in_cpp_says_the_same(tight: Instance, tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    program = tmp_path / "check"
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(program)]
    subprocess.run([*command, str(EXAMPLES / "check.cpp")], check=True)
    tally: Counter[bool] = Counter()
    for instance, schedule, valid in cases(8, 40):
        done = subprocess.run([program, *files(tmp_path, instance, schedule)], capture_output=True, text=True)
        if done.stdout.splitlines() != BEYOND:
            assert (done.returncode == 0) == valid, done.stdout
            assert done.returncode in (0, 1), done.stderr
            assert (done.stdout == "valid\n") == valid
            tally[valid] += 1
    assert tally[True] > 40
    assert tally[False] > 200
    schedule_file = files(tmp_path, tight, schedule)[1]
    for broken in ("", "{", '{"format": 1}', "x"):
        (tmp_path / "i.json").write_text(broken)
        done = subprocess.run(
            [program, str(tmp_path / "i.json"), schedule_file], capture_output=True, text=True
        )
        assert done.returncode == 2
        assert "the files break a rule of their formats" in done.stderr
