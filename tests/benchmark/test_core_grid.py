"""The core grid: its cells, runs that survive interruptions, who is to blame, and the tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pebbler.benchmark import core_grid, runs
from pebbler.benchmark.core_grid import BEGIN, END, blame, cells, hardest, report
from pebbler.benchmark.runs import Cell, Found, Job, Run, Runs, make_runs, read_runs
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode, write_atomically
from pebbler.instances.memory import ideal_ns
from pebbler.validate.schedule import MemoryModel

SMALL = Cell("alexnet", 64, "K40", "1.25xMmin")


def run(makespan: int | None, bound: int, memory: MemoryModel = "paged", seconds: float = 60.0) -> Run:
    found = Found(
        instance_sha256="0" * 64,
        tasks=10,
        budget_bytes=100,
        ideal_ns=90,
        makespan_ns=makespan,
        lower_bound_ns=bound,
        bound_by="compute",
        certified=True,
        status="unknown" if makespan is None else "feasible",
        stopped_by="time limit",
        solve_seconds=seconds,
        peak_rss_bytes=300_000_000,
    )
    return Run(
        cell="net/1/K40/50%",
        memory=memory,
        seconds=seconds,
        seed=0,
        workers=2,
        found=found,
        date="2026-01-02",
        machine="a machine",
        python="3.11.7",
        packages={"pebbler": "0.1.0"},
        revision=None,
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a short run of a small cell in each memory model."""
    path = tmp_path_factory.mktemp("grid") / "new" / "runs.json"
    make_runs([Job(SMALL, memory, 0.5) for memory in core_grid.MODELS], path)
    return path


def test_cells_are_all_that_can_be_solved() -> None:
    names = [cell.name for cell in cells()]
    assert len(set(names)) == len(names)
    for network, batch in core_grid.NETWORKS:
        for device in core_grid.DEVICES:
            assert f"{network}/{batch}/{device}/75%" in names
            assert f"{network}/{batch}/{device}/1.05xMmin" in names
    assert "vgg16/256/K40/50%" not in names
    assert "resnet1517/32/V100/20%" in names


def test_runs_are_what_the_methods_find(file: Path) -> None:
    found = {one.memory: one.found for one in read_runs(file)}
    instance = SMALL.instance()
    assert list(found) == list(core_grid.MODELS)
    for one in found.values():
        assert one is not None
        assert one.makespan_ns is not None
        assert ideal_ns(instance) <= one.ideal_ns <= one.lower_bound_ns <= one.makespan_ns
        assert one.tasks == len(instance.tasks)
        assert 20e6 < one.peak_rss_bytes < 4e9


def test_runs_that_the_file_has_are_not_repeated(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()
    monkeypatch.setattr(runs, "_made", lambda *_: pytest.fail("it was repeated"))
    make_runs([Job(SMALL, "paged", 0.5)], file)
    assert file.read_bytes() == before


def test_a_run_that_is_repeated_takes_the_old_ones_place(file: Path) -> None:
    old = {one.memory: one for one in read_runs(file)}
    make_runs([Job(SMALL, "paged", 0.5)], file, again=True)
    new = {one.memory: one for one in read_runs(file)}
    assert len(read_runs(file)) == len(new) == len(old)
    assert new["contiguous"] == old["contiguous"]
    assert new["paged"] != old["paged"]


def test_a_run_that_is_killed_costs_itself_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.json"
    with monkeypatch.context() as patch:
        patch.setattr(runs, "_GRACE", -4.9)
        make_runs([Job(SMALL, "paged", 5.0)], path)
    make_runs([Job(SMALL, "paged", 5.0), Job(SMALL, "paged", 0.5)], path)
    killed, made = read_runs(path)
    assert killed.found is None
    assert killed.failure == "the run's process failed: it was killed after 0 s"
    assert killed.gap is None
    assert made.found is not None


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    make_runs([Job(SMALL, "paged", 0.5, without=("haste",)), Job(SMALL, "paged", 0.5)], tmp_path / "r.json")
    failed, made = read_runs(tmp_path / "r.json")
    assert failed.found is None
    assert "no rule 'haste'" in (failed.failure or "")
    assert made.found is not None
    assert made.failure is None


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text('{"format": "pebbler/instance/1"}')
    with pytest.raises(PebblerError, match="is not a file of runs"):
        read_runs(path)


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


def test_runs_of_another_instance_or_cell_say_nothing() -> None:
    better = run(1001, 1000)
    assert better.found is not None
    stale = replace(better, found=replace(better.found, instance_sha256="1" * 64))
    assert blame(run(1200, 1000), [stale, replace(better, cell="net/2/K40/50%")]) == "open"


def test_hardest_are_the_greatest_multiples_of_targets() -> None:
    gaps: list[tuple[str, MemoryModel, int | None]] = [
        ("a", "paged", 1012),
        ("a", "contiguous", 1012),
        ("b", "contiguous", 1030),
        ("c", "paged", None),
        ("d", "divisible", 1900),
    ]
    found = [replace(run(makespan, 1000, memory), cell=name) for name, memory, makespan in gaps]
    assert hardest(found) == ["c", "b", "a"]


def test_summary_says_what_is_met() -> None:
    gaps = [0] * 8 + [1] * 10 + [30, 31]
    some = [replace(run(1000 + gap, 1000), cell=f"net/{i}/K40/50%") for i, gap in enumerate(gaps)]
    text = report(some)
    assert "| paged | 20 | 18 | 0.10%, met: 0.10% | 0.10%, met: 1.00% | 3.10%, missed: 3.00% |" in text
    assert "target met: 4 GB" in text
    long = report([replace(one, seconds=600.0) for one in some])
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
    assert tables == report(read_runs(folder / "data" / "core-grid.json"))


@pytest.mark.parametrize("arguments", [["--cells", "nonesuch*"], ["--memory", "paged,other"]])
def test_unknown_names_are_refused(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        core_grid.main([*arguments, "--data", str(tmp_path / "runs.json")])
    assert not (tmp_path / "runs.json").exists()


def test_last_run_of_a_measurement_counts(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    write_atomically(path, encode(Runs(runs=(run(1200, 1000), run(1300, 1000)))))
    assert [one.found and one.found.makespan_ns for one in read_runs(path)] == [1300]
