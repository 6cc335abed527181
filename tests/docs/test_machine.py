"""Real sizes on a whole machine: what cells ask for, runs that survive interruptions, and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import machine
from machine import CELLS, CELLS_OF_PAGE, SLOWDOWN, Cell, Data, Solved, read, run, table
from pebbler.instances.instance import Instance
from pebbler.instances.memory import least_budget
from pebbler.solver.result import Result
from pebbler.solver.solve import solve

SMALL = Cell("lenet", 8, "bf16", "96MiB", "1GiB")


def cell(makespan: int | None, bound: int = 1000, certified: int = 900) -> Solved:
    """A cell that nobody solved."""
    return Solved(
        cell=SMALL,
        seconds=5.0,
        ideal_ns=800,
        makespan_ns=makespan,
        lower_bound_ns=bound,
        certified_lower_bound_ns=certified,
        bound_by="flow",
        stopped_by="time limit",
        carried_bytes=2**30,
        on_host=3,
        updates=4,
        device_ns=2000,
        host_ns=None,
        made="2026-01-02: a machine",
    )


def by_a_rule(instance: Instance, _: str, **options: Any) -> Result:
    """What takes a second by FLOW, at once."""
    return solve(instance, "modnn", **options)


@pytest.fixture(scope="module", params=[by_a_rule, pytest.param(solve, marks=pytest.mark.slow)])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a small cell."""
    path = tmp_path_factory.mktemp("machine") / "machine.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "CELLS", (SMALL,))
        patch.setattr(machine, "solve", request.param)
        run((SMALL,), 0.5, path)
    return path


@pytest.mark.parametrize("one", CELLS, ids=lambda one: one.name)
def test_every_cell_is_possible_and_has_all_keys(one: Cell) -> None:
    instance = one.instance()
    assert instance.budget_bytes >= least_budget(instance)
    assert isinstance(instance.host_budget_bytes, int)
    assert instance.link is not msgspec.UNSET
    carried = {instance.blocks[d].name[0] for d in instance.carried}
    assert carried == ({*"Wmvp"} if one.precision == "bf16" else {*"Wmv"})
    steps = [task for task in instance.tasks if task.may_run_on_host]
    assert steps
    assert all(task.device_algorithms for task in steps)
    assert all(task.slowdown_ppm == SLOWDOWN for task in instance.tasks)


def test_there_are_twelve_cells() -> None:
    assert len(set(CELLS)) == 12


def test_a_cell_is_solved_with_the_optimizer_on_one_side_too(file: Path) -> None:
    (one,) = read(file).cells
    assert one.makespan_ns is not None
    assert one.makespan_ns >= one.lower_bound_ns >= one.certified_lower_bound_ns > 0
    assert one.lower_bound_ns >= one.ideal_ns
    for other in (one.device_ns, one.host_ns):
        assert other is not None
        assert other >= one.lower_bound_ns  # each is a schedule of the instance, too
    assert one.updates == 4


def test_what_the_file_has_is_not_solved_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()
    monkeypatch.setattr(machine, "solved", lambda *_: pytest.fail("it was repeated"))
    assert run((SMALL,), 0.5, file) == read(file)
    assert file.read_bytes() == before


def test_another_time_limit_is_another_run(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.json"
    copy.write_bytes(file.read_bytes())
    asked: list[float] = []

    def solved(one: Cell, seconds: float) -> Solved:
        asked.append(seconds)
        return replace(cell(1010), cell=one, seconds=seconds)

    monkeypatch.setattr(machine, "solved", solved)
    monkeypatch.setattr(machine, "CELLS", (SMALL,))
    for _ in range(2):
        run((SMALL,), 3.0, copy)
    assert asked == [3.0]


def test_targets_are_met_or_missed() -> None:
    met = table(Data(cells=(cell(1000), cell(1020), cell(1050))))
    assert "3 of 12 cells: median 2.00%, met: 2.00%; worst 5.00%, met: 5.00%." in met
    assert "| 5.00% | 16.67% |" in met
    assert "| 3 of 4 | 1.00 GiB |" in met
    missed = table(Data(cells=(cell(1030), cell(None))))
    assert "worst no schedule, missed" in missed


def test_the_page_gets_the_table(file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{''.join(CELLS_OF_PAGE)}after\n", encoding="utf-8")
    machine.main(["--cells", "none", "--data", str(file), "--write", str(page)])
    assert page.read_text("utf-8").count(f"| {SMALL.name} |") == 1


def test_the_committed_page_is_of_the_committed_cells(pytestconfig: pytest.Config) -> None:
    folder = pytestconfig.rootpath / "docs"
    data, page = read(folder / "data" / "machine.json"), (folder / "machine.md").read_text("utf-8")
    begin, end = CELLS_OF_PAGE
    assert page.split(begin)[1].split(end)[0] == table(data)
    assert [one.cell for one in data.cells] == [
        cell for cell in CELLS if cell in {one.cell for one in data.cells}
    ]


def test_cells_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        machine.main(["--cells", "nonesuch*", "--data", str(tmp_path / "data.json")])
    assert not (tmp_path / "data.json").exists()
