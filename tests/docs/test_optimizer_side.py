"""Where an optimizer belongs: points that are solved, what follows from them, the page and its picture."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import optimizer_side
from optimizer_side import (
    HOSTS,
    LINKS,
    MARKS,
    Cell,
    Data,
    Key,
    Solved,
    Times,
    ask,
    cells,
    instance,
    points,
    read,
    side_table,
)
from pebbler.solver.solve import solve


def solved(key: Key, makespan: int | None, bound: int) -> Solved:
    side, link, host = key
    return Solved(
        side=side,
        link=link,
        host=host,
        makespan_ns=makespan,
        bound_ns=bound,
        made="2026-01-02: a machine",
    )


@pytest.mark.parametrize(
    ("device", "host", "choose", "verdict", "gain"),
    [
        ((100, 90), (80, 70), (80, 10), "host", 1 - 80 / 90),
        ((60, 50), (90, 80), (60, 10), "device", 1 - 60 / 80),
        ((60, 50), (90, 80), (45, 10), "some", 1 - 45 / 50),
        ((100, 70), (80, 60), (75, 10), "open", 0.0),
        ((100, 80), (80, 60), (80, 10), "open", 0.0),
        ((float("inf"), 90), (80, 70), (80, 10), "host", 1 - 80 / 90),
    ],
)
def test_a_schedule_below_the_bound_of_the_other_side_is_a_proof(
    device: tuple[float, int], host: tuple[float, int], choose: tuple[float, int], verdict: str, gain: float
) -> None:
    cell = Cell(Times(*device), Times(*host), Times(*choose))
    assert (cell.verdict, cell.gain) == (verdict, pytest.approx(gain))


def test_either_side_may_be_chosen() -> None:
    """Schedules of a side are schedules of the choice, and bounds of the choice hold for each side."""
    link, host = LINKS[0], HOSTS[0]
    data = Data(
        solved=(
            solved(("device", link, None), 100, 50),
            solved(("host", link, host), None, 40),
            solved(("choose", link, host), 120, 60),
        )
    )
    assert cells(data)[link, host] == Cell(Times(100, 60), Times(float("inf"), 60), Times(100, 60))
    assert list(cells(data)) == [(link, host)]


def test_sides_are_those_of_the_instance() -> None:
    updates = {
        side: [task for task in instance(side, 25, host).tasks if task.may_run_on_host]
        for side, host in (("device", None), ("host", 100), ("choose", 100))
    }
    assert updates["device"] == []
    assert all(not task.device_algorithms for task in updates["host"])
    assert all(task.device_algorithms for task in updates["choose"])
    assert len(updates["host"]) == len(updates["choose"]) > 5
    budgets = {instance(side, 25, host).budget_bytes for side, host in (("device", None), ("host", 100))}
    assert len(budgets) == 1


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0.1, None])
def test_points_are_solved_once_and_shown(
    limit: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a tiny network, with the picture."""
    for name, value in {
        "NETWORK": "lenet",
        "BATCH": 4,
        "BUDGET": "128MiB",
        "LINKS": (10,),
        "HOSTS": (100,),
        "solve": partial(solve, time_limit=limit),
    }.items():
        monkeypatch.setattr(optimizer_side, name, value)
    path, page = tmp_path / "data.json", tmp_path / "page.md"
    data = ask(points(), path)
    (cell,) = cells(data).values()
    assert [one.key for one in data.solved] == points()
    for times in (cell.device, cell.host, cell.choose):
        assert 0 < times.bound <= times.shortest < float("inf")
    page.write_text("".join(MARKS), encoding="utf-8")
    (tmp_path / "images").mkdir()
    monkeypatch.setattr(optimizer_side, "solved", lambda *_: pytest.fail("it was repeated"))
    optimizer_side.main(["--data", str(path), "--write", str(page)])
    assert "| 10 GB/s |" in page.read_text("utf-8")
    assert (tmp_path / optimizer_side.PICTURE).read_bytes().startswith(b"\x89PNG")
    assert read(path) == data


def test_the_committed_page_is_of_the_committed_points(pytestconfig: pytest.Config) -> None:
    folder = pytestconfig.rootpath / "docs"
    data = read(folder / "data" / "optimizer-side.json")
    page = (folder / "link-and-optimizer.md").read_text("utf-8")
    begin, end = MARKS
    assert page.split(begin)[1].split(end)[0] == side_table(data)
    kept = {one.key for one in data.solved}
    assert cells(data)
    assert [one.key for one in data.solved] == [key for key in points() if key in kept]
