"""The study: a quick one end to end; the committed one is of its data; the text finds its numbers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import study
import text
from inventory import inventory, rows, tally
from pages import Pages
from pebbler.benchmark.sweeps.config import jobs, read_config
from pebbler.benchmark.sweeps.results import read_latest
from pebbler.instances.devices.device import find_device
from study import SWEEPS, facts, findings, main, plan
from text import inventory_table, results, write_page

from ..benchmark.swept import Here


@pytest.fixture(scope="module")
def root(pytestconfig: pytest.Config) -> Path:
    return pytestconfig.rootpath


@pytest.fixture(scope="module")
def pages(root: Path) -> Pages:
    return Pages(root / "docs")


@pytest.fixture(scope="module")
def quick(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a quick study, whose runs are made in this process."""
    folder = tmp_path_factory.mktemp("study")
    places = ["--folder", str(root / "paper"), "--docs", str(root / "docs")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "ThreadPoolExecutor", lambda _: Here())
        main([*places, "--quick", str(folder), "--jobs", "2"])
    return folder


@pytest.mark.landing
def test_quick_study_makes_all_that_the_committed_one_has(quick: Path, root: Path) -> None:
    committed = {path.name for path in (root / "paper" / "generated").iterdir()}
    made = {path.name for path in (quick / "generated").iterdir()}
    assert committed == made
    for name in made:
        assert (quick / "generated" / name).stat().st_size > 100
    assert (quick / "generated" / "gaps.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.landing
def test_quick_study_solves_every_kind_of_problem(quick: Path) -> None:
    for name in SWEEPS:
        runs = read_latest(quick / "data" / f"{name}.sqlite")
        assert len(runs) > 3
        assert not [run for run in runs if run.found.status == "error"]
        assert any(run.found.iteration_ns is not None for run in runs)


@pytest.mark.parametrize(
    "drawn", [pytest.param(False, marks=pytest.mark.landing), pytest.param(True, marks=pytest.mark.slow)]
)
def test_quick_study_has_nothing_left_to_do(
    drawn: bool, quick: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file comes out as it was; pictures take half of the time."""
    before = {path: path.read_bytes() for path in quick.rglob("*") if path.is_file()}
    if not drawn:
        monkeypatch.setattr(text, "pdf", lambda _: b"")
    main(["--folder", str(root / "paper"), "--docs", str(root / "docs"), "--quick", str(quick)])
    for path in before if not drawn else ():
        if path.suffix == ".pdf":
            assert path.read_bytes() == b""
            path.write_bytes(before[path])
    assert {path: path.read_bytes() for path in quick.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--folder", "nowhere"], "gaps.toml cannot be read"),
        (["--jobs", "0"], "give 1 or more"),
        (["--no-runs", "--quick", "empty"], "gaps.sqlite cannot be read"),
        pytest.param(
            ["--no-runs", "--docs", "nowhere", "--quick", "QUICK"],
            "nowhere/data/recomputation.sqlite cannot be read",
            marks=pytest.mark.landing,
        ),
    ],
)
def test_wrong_use_is_told_in_a_sentence(
    arguments: list[str],
    message: str,
    request: pytest.FixtureRequest,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paper").symlink_to(root / "paper")
    with pytest.raises(SystemExit, match="2"):
        main([str(request.getfixturevalue("quick")) if word == "QUICK" else word for word in arguments])
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} <= {"paper"}


def test_committed_numbers_and_page_are_of_the_committed_data(
    root: Path, pages: Pages, tmp_path: Path
) -> None:
    found = findings(plan(root / "paper"), root / "docs")
    table = rows(pages)
    told = facts(pages, found, tally(table))
    generated = root / "paper" / "generated"
    assert (generated / "results.tex").read_text("utf-8") == results(told)
    assert (generated / "inventory.tex").read_text("utf-8") == inventory_table(table)
    page = tmp_path / "study.md"
    page.write_bytes((root / "docs" / "study.md").read_bytes())
    write_page(page, found, table)
    assert page.read_bytes() == (root / "docs" / "study.md").read_bytes()


def test_committed_runs_are_of_the_committed_gaps(root: Path) -> None:
    what = plan(root / "paper")
    made = {run.about.problem_sha256 for run in read_latest(what.data("gaps"))}
    wanted = set()
    for job in jobs(what.configs["gaps"], what.folder):
        assert job.about.problem_sha256 in made
        wanted.add(job.about.problem_sha256)
    assert made == wanted


def test_problems_are_of_three_kinds_on_devices_of_a_dozen_years(root: Path) -> None:
    """Every budget has all workloads, so that no two columns have different ones."""
    (sweep,) = read_config(root / "paper" / "gaps.toml").sweep
    grids = sweep.workloads
    assert sum(len(grid.budgets) for grid in grids) >= 100
    assert len({grid.budgets for grid in grids}) == 1
    assert all(re.fullmatch(r"Mmin\+\d+%", budget) for budget in grids[0].budgets)
    years = {find_device(grid.device).year for grid in grids}
    assert (min(years), max(years)) == (2013, 2025)
    steps = [grid for grid in grids if grid.steady]
    transformers = [grid for grid in grids if not grid.steady and re.match("gpt|vit|llama", grid.network)]
    assert min(len(steps), len(transformers), len(grids) - len(steps) - len(transformers)) >= 7


def test_the_inventory_and_the_numbers_of_pages_are_those_of_the_pages(root: Path, tmp_path: Path) -> None:
    """Written anew by ``study.py --inventory``, nothing changes; numbers of the sweeps stay."""
    for folder in ("docs", "paper/generated"):
        shutil.copytree(root / folder, tmp_path / folder)
    results = tmp_path / "paper" / "generated" / "results.tex"
    stale = re.sub(
        r"(result:(?:inventory/all|layrub/hybrid)\\endcsname)\{.*\}", r"\1{stale}", results.read_text("utf-8")
    )
    assert stale.count("{stale}") == 2
    gone = r"\expandafter\def\csname result:inventory/gone\endcsname{1}"
    results.write_text(f"{stale}{gone}\n", encoding="utf-8")
    main(["--folder", str(tmp_path / "paper"), "--docs", str(tmp_path / "docs"), "--inventory"])
    for name in ("docs/study.md", "paper/generated/results.tex", "paper/generated/inventory.tex"):
        assert (tmp_path / name).read_text("utf-8") == (root / name).read_text("utf-8")


# --- the inventory ----------------------------------------------------------------------------------------

DEMANDED = {
    "moDNN (TPDS)": [f"Fig. {n}" for n in range(9, 20)],
    "moDNN (DATE)": [f"Fig. {n}" for n in range(6, 10)],
    "vDNN": [f"Fig. {n}" for n in (1, 4, 5, 6, 11, 12, 13, 14, 15)],
    "Layrub": [*(f"Fig. {n}" for n in range(9, 16)), *(f"Table {n}" for n in (1, 5, 6, 7, 8))],
    "GLP4NN": [*(f"Fig. {n}" for n in (2, 3, 4, 7, 8, 9, 10, 11)), "Table 6"],
}


def test_inventory_has_every_exhibit_once(pages: Pages) -> None:
    table = rows(pages)
    assert sorted((paper, exhibit) for paper, exhibit, *_ in table) == sorted(
        (paper, exhibit) for paper, exhibits in DEMANDED.items() for exhibit in exhibits
    )


def test_what_is_not_reproduced_has_a_reason() -> None:
    for entry in inventory():
        if entry.verdict != "reproduced":
            assert entry.remark, entry.exhibit


@pytest.mark.parametrize("paper", ["vDNN", "moDNN (TPDS)", "moDNN (DATE)"])
def test_pages_have_the_word_of_every_exhibit(paper: str, root: Path) -> None:
    page = (root / "docs" / ("papers-vdnn.md" if paper == "vDNN" else "papers-modnn.md")).read_text("utf-8")
    before = "DATE, " if "DATE" in paper else ""
    for entry in inventory():
        if entry.paper == paper:
            assert page.count(f"**{before}{entry.exhibit}: {entry.verdict}.**") == 1, entry.exhibit
