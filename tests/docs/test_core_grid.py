"""The core grid: its cells, runs that survive interruptions, who is to blame, and the tables."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

import core_grid
from core_grid import BEGIN, END, MODELS, blame, cells, hardest, jobs, report, setting
from pebbler.benchmark.output.machine import Origin
from pebbler.benchmark.sweeps import runner
from pebbler.benchmark.sweeps.jobs import Found, Job
from pebbler.benchmark.sweeps.problems import WorkloadProblem
from pebbler.benchmark.sweeps.results import Run, read_latest
from pebbler.benchmark.sweeps.runner import Tally, make_in_turn
from pebbler.instances.errors import PebblerError
from pebbler.instances.memory import ideal_ns
from pebbler.instances.workload import Workload
from pebbler.validate.schedule import MemoryModel

from ..benchmark.swept import ABOUT, made_here

SMALL = WorkloadProblem(Workload("alexnet", 64, "K40"), "1.25xMmin")


def run(
    makespan: int | None,
    bound: int,
    memory: MemoryModel = "paged",
    seconds: float = 60.0,
    cell: str = ABOUT.problem,
    instance: str = ABOUT.problem_sha256,
) -> Run:
    found = Found(
        status="unknown" if makespan is None else "feasible",
        stopped_by="time limit",
        iteration_ns=makespan,
        lower_bound_ns=bound,
        bound_by="compute",
        certified=True,
        peak_rss_bytes=300_000_000,
    )
    return Run(
        fingerprint=f"{cell} {memory} {seconds}",
        about=dataclasses.replace(ABOUT, problem=cell, problem_sha256=instance),
        seed=0,
        setting=setting(memory, seconds),
        found=found,
        wall_seconds=None,
        date="2026-01-02",
        origin=Origin("a machine", "3.11.7", {"pebbler": "0.1.0"}, None),
    )


def short(*memories: MemoryModel) -> list[Job]:
    return list(jobs([SMALL], [setting(memory, 0.5) for memory in memories]))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a short run of a small cell in each memory model."""
    path = tmp_path_factory.mktemp("grid") / "new" / "runs.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "perform", made_here)
        make_in_turn(short(*core_grid.MODELS), path)
    return path


@pytest.mark.parametrize(
    "networks",
    [("vgg16", "resnet1517"), pytest.param(tuple(dict(core_grid.NETWORKS)), marks=pytest.mark.slow)],
    ids=len,
)
def test_cells_are_all_that_can_be_solved(networks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    some = tuple((network, batch) for network, batch in core_grid.NETWORKS if network in networks)
    monkeypatch.setattr(core_grid, "NETWORKS", some)
    names = [cell.name for cell in cells()]
    assert len(set(names)) == len(names)
    for network, batch in core_grid.NETWORKS:
        for device in core_grid.DEVICES:
            assert f"{network}/{batch}/{device}/75%" in names
            assert f"{network}/{batch}/{device}/1.05xMmin" in names
    assert "vgg16/256/K40/50%" not in names
    assert "resnet1517/32/V100/20%" in names


def test_runs_are_what_the_methods_find(file: Path) -> None:
    found = {one.setting.memory_model: one for one in read_latest(file)}
    (instance,) = SMALL.instances()
    assert list(found) == list(core_grid.MODELS)
    for memory, one in found.items():
        assert one.found.iteration_ns is not None
        assert one.found.lower_bound_ns is not None
        assert ideal_ns(instance) == one.found.ideal_ns
        assert ideal_ns(instance) <= one.found.lower_bound_ns <= one.found.iteration_ns
        assert one.about.tasks == len(instance.tasks)
        assert 20e6 < (one.found.peak_rss_bytes or 0) < 4e9
        assert bool(one.found.schedules) == (memory != "divisible")


def test_runs_that_the_file_has_are_not_repeated(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()
    monkeypatch.setattr(runner, "perform", lambda *_: pytest.fail("it was repeated"))
    assert make_in_turn(short("paged"), file) == Tally(kept=1, made=0, failed=0)
    assert file.read_bytes() == before


@pytest.mark.slow
def test_a_run_that_is_repeated_takes_the_old_ones_place(file: Path) -> None:
    old = {one.setting.memory_model: one for one in read_latest(file)}
    make_in_turn(short("paged"), file, again=True)
    new = {one.setting.memory_model: one for one in read_latest(file)}
    assert len(read_latest(file)) == len(new) == len(old)
    assert new["contiguous"] == old["contiguous"]
    assert new["paged"] != old["paged"]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    path.write_text('{"format": "pebbler/runs/1"}')
    with pytest.raises(PebblerError, match="cannot be used as a results file"):
        read_latest(path)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], "open"),
        ([run(1200, 1190, seconds=600.0)], "bound"),
        ([run(1200, 1100, seconds=600.0), run(1005, 1000, seconds=600.0)], "schedule"),
        ([run(1200, 1195), run(1005, 900)], "bound or schedule"),
        ([run(1200, 1095), run(1100, 900)], "bound and schedule"),
        ([run(1005, 1000, "divisible")], "addresses"),
        ([run(1200, 1100, "divisible")], "open"),
    ],
)
def test_blame_is_by_the_best_that_is_known(others: list[Run], expected: str) -> None:
    assert blame(run(1200, 1000), others) == expected


def test_blame_falls_on_nothing_where_the_target_is_met() -> None:
    assert blame(run(1010, 1000), []) == ""
    assert blame(run(1011, 1000), []) == "open"
    assert blame(run(1020, 1000, "contiguous"), []) == ""
    assert blame(run(None, 1000), []) == "no schedule"


def test_runs_of_another_instance_say_nothing() -> None:
    assert blame(run(1200, 1000), [run(1001, 1000, instance="1" * 64)]) == "open"


def test_a_bound_for_whole_pages_counts_for_paged_schedules_only() -> None:
    paged = run(1200, 1100)
    paged = replace(paged, found=replace(paged.found, bound_by="flow-lp-highs+pages"))
    other = run(1105, 1000, "contiguous")
    assert blame(paged, [other]) == "open"  # not addresses: the other schedule has no pages
    assert blame(paged, [run(1105, 1000)]) == "schedule"
    assert blame(other, [paged]) == "open"
    table = report([paged, other])
    assert "1.000 us" in table
    assert "; 1.100 us (flow-lp-highs+pages)" in table


def test_hardest_are_the_greatest_multiples_of_targets() -> None:
    gaps: list[tuple[str, MemoryModel, int | None]] = [
        ("a", "paged", 1012),
        ("a", "contiguous", 1012),
        ("b", "contiguous", 1030),
        ("c", "paged", None),
        ("d", "divisible", 1900),
    ]
    found = [run(makespan, 1000, memory, cell=name) for name, memory, makespan in gaps]
    assert hardest(found) == ["c", "b", "a"]


def test_long_runs_say_which_of_the_hardest_cells_they_lack() -> None:
    brief = [run(1010 + i, 1000, memory, cell=name) for i, name in enumerate("ab") for memory in MODELS[:2]]
    long = [run(1010, 1000, "paged", 600.0, cell="b"), run(1010, 1000, "paged", 600.0, cell="other")]
    text = report(brief + long)
    assert "Hardest cells without a run yet, contiguous: b, a.\n" in text
    assert "Hardest cells without a run yet, paged: a.\n" in text
    assert "without a run yet" not in report(brief)


def test_summary_says_what_is_met() -> None:
    gaps = [0] * 8 + [1] * 10 + [30, 31]
    some = [run(1000 + gap, 1000, cell=f"net/{i}/K40/50%") for i, gap in enumerate(gaps)]
    text = report(some)
    assert "| paged | 20 | 18 | 0.10%, met: 0.10% | 0.10%, met: 1.00% | 3.10%, missed: 3.00% |" in text
    assert "target met: 4 GB" in text
    long = report([replace(one, setting=setting("paged", 600.0)) for one in some])
    assert "| paged | 20 | 18 | 0.10% | 0.10%, met: 1.00% | 3.10%, missed: 1.00% |" in long


def test_table_has_the_memory_models_side_by_side() -> None:
    some = [run(1100, 1000, "contiguous"), run(1020, 1000), run(1015, 990, "divisible")]
    assert "| 10.00% | 2.00% | 1.50% | contiguous: addresses; paged: open |" in report(some)


def test_page_gets_the_tables(file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    core_grid.main(["--cells", "none", "--data", str(file), "--write", str(page)])
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}- 3 runs, ")
    assert "## 0.5 s a cell" in text
    assert text.endswith(f"{END}after\n")


def test_committed_page_is_of_the_committed_runs(pytestconfig: pytest.Config) -> None:
    folder = pytestconfig.rootpath / "docs"
    tables = (folder / "core-grid.md").read_text("utf-8").split(BEGIN)[1].split(END)[0]
    assert tables == report(read_latest(folder / "data" / "core-grid.sqlite"))


@pytest.mark.parametrize("arguments", [["--cells", "nonesuch*"], ["--memory", "paged,other"]])
def test_unknown_names_are_refused(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        core_grid.main([*arguments, "--data", str(tmp_path / "runs.sqlite")])
    assert not (tmp_path / "runs.sqlite").exists()


def test_runs_that_failed_say_why() -> None:
    failed = run(None, 1000)
    failed = replace(failed, found=Found(status="error", stopped_by="the process failed"))
    text = report([failed, run(1010, 1000, "contiguous")])
    assert "| 10 | 1.000 us (compute) | 1.00% | no schedule | 1.00% | paged: the process failed |" in text
