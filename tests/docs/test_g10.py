"""Steps of G10: published figures, points bounded and solved, runs that survive interruptions, the page."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

import g10
from g10 import STEPS, Data, Published, Solved, config_of, published, read, run, solved, table

POINT = Published("BERT", 128, {"g10": 2000, "deepum": 3000, "flashneuron": None, "lru": 9000, "ideal": 1000})


@pytest.fixture(autouse=True)
def figures(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published figures, wherever the tests run."""
    monkeypatch.setattr(g10, "PUBLISHED", pytestconfig.rootpath / g10.PUBLISHED)


@pytest.fixture
def copy(pytestconfig: pytest.Config, tmp_path: Path) -> Path:
    """A copy of G10 in which a small step goes by the name of a published point."""
    small = pytestconfig.rootpath / "tests" / "data" / "g10"
    config = config_of(tmp_path, POINT)
    config.parent.mkdir(parents=True)
    shutil.copyfile(small / "small.config", config)
    shutil.copytree(small / "statistics", config.parent / "statistics")
    return tmp_path


def step(makespan: int | None = 1500, why_not: str | None = None) -> Solved:
    """A point that nobody solved."""
    return Solved(
        name=POINT.name,
        seconds=1.0,
        ideal_ns=1000,
        peak_bytes=2**30,
        any_ns=1250,
        why_not=why_not,
        weights=None if makespan is None else "host",
        makespan_ns=makespan,
        bound_ns=None if makespan is None else 1200,
        host_peak_bytes=None if makespan is None else 2**20,
        made="2026-01-02: a machine",
    )


def test_published_figures_are_in_nanoseconds() -> None:
    points = {point.name: point.times for point in published()}
    assert len(points) == 25
    assert points["BERT/512"] == {
        "g10": 14672648479,
        "deepum": 15817269008,
        "flashneuron": 44079699999,
        "lru": 80876317419,
        "ideal": 9832830523,
    }
    assert points["BERT/768"]["flashneuron"] is None
    assert all(times["ideal"] <= times["g10"] <= times["lru"] for times in points.values())


def test_a_point_is_bounded_and_solved(copy: Path) -> None:
    """What is copied back unchanged need not be copied out again: so 20 us are less than G10's bound."""
    one = solved(config_of(copy, POINT), POINT.name, 0.2)
    assert (one.ideal_ns, one.any_ns, one.why_not) == (18000, 21000, None)
    assert (one.weights, one.makespan_ns) == ("carried", 20000)
    assert one.bound_ns is not None
    assert 18000 <= one.bound_ns <= 20000


def test_a_point_that_host_memory_has_no_room_for_is_only_bounded(copy: Path) -> None:
    config = config_of(copy, POINT)
    config.write_text(config.read_text().replace("line_GB      2", "line_GB      0"))
    one = solved(config, POINT.name, 1.0)
    assert one.why_not is not None
    assert "more than device and host memory have together" in one.why_not
    assert one.any_ns == 21000
    assert one.makespan_ns is None


def test_a_run_solves_what_the_file_lacks(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []

    def answer(config: Path, name: str, seconds: float) -> Solved:
        assert config == config_of(copy, POINT)
        asked.append((name, seconds))
        return replace(step(), seconds=seconds)

    monkeypatch.setattr(g10, "ProcessPoolExecutor", lambda **_: ThreadPoolExecutor(1))
    monkeypatch.setattr(g10, "solved", answer)
    path = tmp_path / "g10.json"
    assert run(copy, [POINT], 1.0, path) == run(copy, [POINT], 1.0, path) == read(path)
    assert asked == [("BERT/128", 1.0)]
    run(copy, [POINT], 2.0, path)
    assert [one.seconds for one in read(path).points] == [2.0]


def test_the_table_says_who_is_how_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(g10, "published", lambda: (POINT,))
    summary, _, _, _, line, *_ = table(Data(points=(step(),))).splitlines()
    assert "1 steps, 1 of them with a schedule: G10 over its bound median +60.00%" in summary
    assert "(+60.00%)" in line
    assert "(+140%)" in line
    assert "| fails |" in line
    assert "| +33.33% | host |" in line
    assert "| +25.00% |" in line
    assert "the SSD is needed" in table(Data(points=(step(None, "no room"),)))
    assert "none found" in table(Data(points=(step(None),)))


def test_the_page_gets_the_table_and_a_picture(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    page, data = tmp_path / "page.md", tmp_path / "g10.json"
    g10.write_document(Data(points=(step(),)), data)
    page.write_text(f"before\n{''.join(STEPS)}after\n", encoding="utf-8")
    g10.main(["--data", str(data), "--write", str(page)])
    assert page.read_text("utf-8").count("| BERT/128 |") == 1
    assert (tmp_path / g10.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_the_committed_page_is_of_the_committed_steps(pytestconfig: pytest.Config) -> None:
    folder = pytestconfig.rootpath / "docs"
    data, page = read(folder / "data" / "g10.json"), (folder / "g10.md").read_text("utf-8")
    assert page.split(STEPS[0])[1].split(STEPS[1])[0] == table(data)
    assert [one.name for one in data.points] == [point.name for point in published()]


def test_points_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        g10.main(["--points", "nonesuch*", "--data", str(tmp_path / "data.json")])
