"""The programs of the documentation that make schedules: what they write is valid, or they write nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from msgspec.structs import replace

from pebbler.instances.files import decode, write_instance
from pebbler.instances.instance import Instance
from pebbler.instances.suites.suite import find_suite, members
from pebbler.solver.solve import solve
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule

from ..samples import counts
from ..validate.random_programs import random_case

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="module")
def baseline() -> ModuleType:
    spec = util.spec_from_file_location("baseline", EXAMPLES / "baseline.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def planned(baseline: ModuleType, instance: Instance, folder: Path) -> Schedule | None:
    """What the program makes of an instance; None where it says that there is nothing."""
    write_instance(instance, folder / "i.json")
    try:
        read = baseline.read(folder / "i.json")
        text = baseline.schedule(read, *baseline.plan(read), "baseline")
    except MemoryError:
        return None
    return decode(text.encode(), Schedule, "a schedule", "the text")


@pytest.mark.parametrize(
    ("suite", "solved", "unsolved"),
    [
        ("tiny", 50, "layered-recompute"),
        pytest.param("random", 70, "moccasin", marks=pytest.mark.slow),
        pytest.param("tight", 68, "", marks=pytest.mark.slow),
        pytest.param("transformers", 23, "", marks=pytest.mark.slow),
    ],
)
def test_the_rule_solves_what_the_page_says(
    suite: str, solved: int, unsolved: str, baseline: ModuleType, tmp_path: Path
) -> None:
    """In the others, nothing may leave, and tasks would have to run again."""
    count = 0
    for member in members(find_suite(suite)):
        instance = member.build()
        schedule = planned(baseline, instance, tmp_path)
        if schedule is None:
            assert unsolved
            assert instance.name.startswith(unsolved)
            assert any(task.recomputable for task in instance.tasks)
        else:
            assert check(instance, schedule).reasons == ()
            count += 1
    assert count == solved


@pytest.mark.parametrize("count", counts(60, 4000))
def test_the_rule_is_right_on_random_instances(count: int, baseline: ModuleType, tmp_path: Path) -> None:
    rng = Random(5)
    solved = 0
    for _ in range(count):
        drawn, _ = random_case(rng)
        blocks = tuple(replace(block, tensor=None, begin=None) for block in drawn.blocks)
        instance = replace(drawn, blocks=blocks, budget_bytes=rng.choice((1, 2)) * drawn.budget_bytes)
        schedule = planned(baseline, instance, tmp_path)
        if schedule is not None:
            assert check(instance, schedule).reasons == ()
            solved += 1
    assert solved > count // 4


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with both programs, which are called from there."""
    for name in ("baseline.py", "restarts.py"):
        shutil.copy(EXAMPLES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_both_are_programs_as_methods(elsewhere: Path, tight: Instance) -> None:
    """Restarts at least find what the rule finds, as the first one is without noise."""
    spans = []
    for name in ("baseline", "restarts"):
        assert (EXAMPLES / f"{name}.py").stat().st_mode & 0o100
        result = solve(tight, f"exec:{elsewhere}/{name}.py", time_limit=0.2)
        assert result.schedule is not None, result
        spans.append(result.schedule.makespan_ns)
    assert spans[1] <= spans[0]


@pytest.mark.parametrize("name", ["baseline.py", "restarts.py"])
def test_what_they_do_not_know_is_no_schedule(name: str, elsewhere: Path, tight: Instance) -> None:
    bounded = replace(tight, host_budget_bytes=1 << 40)
    write_instance(bounded, elsewhere / "i.json")
    command = [sys.executable, name, "i.json", "s.json", "--time-limit", "0.2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "the instance has what this program does not know\n"
    assert not (elsewhere / "s.json").exists()
