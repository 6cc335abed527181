"""The papers' figures on several GPUs: what the page shows is what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpus as papers_gpus
from gpus import GIB, TABLES, bound_ns, main, modnn_ns, naive_ns, one_ideal_ns


@pytest.fixture(scope="module")
def page(pytestconfig: pytest.Config) -> str:
    return (pytestconfig.rootpath / "docs" / "several-gpus.md").read_text(encoding="utf-8")


def test_the_page_has_a_place_for_every_table(page: str) -> None:
    for name in TABLES:
        assert page.count(f"<!-- begin {name} -->\n") == page.count(f"<!-- end {name} -->\n") == 1


def test_two_gpus_of_the_page(page: str) -> None:
    assert f"<!-- begin date -->\n{TABLES['date']()}<!-- end date -->\n" in page


def test_vgg16_on_four_gpus_is_as_the_page_says(page: str) -> None:
    (row,) = [line for line in page.splitlines() if line.startswith("| vgg16 (256) | 553 MB ")]
    ideal = one_ideal_ns("vgg16", 256)
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[4] == f"{ideal / naive_ns('vgg16', 256, 4):.2f} x"
    assert cells[5] == f"{ideal / modnn_ns('vgg16', 256, 4, 12 * GIB, way='at once'):.2f} x"
    assert cells[6] == f"{ideal / modnn_ns('vgg16', 256, 4, 12 * GIB):.2f} x"
    assert cells[10] == f"{ideal / modnn_ns('vgg16', 256, 4, 3 * GIB, cores=20):.2f} x"


@pytest.mark.parametrize("gpus", [1, 2, 5])
def test_no_schedule_is_faster_than_the_bound_beside_it(gpus: int) -> None:
    assert bound_ns("vgg16", 256, gpus) <= modnn_ns("vgg16", 256, gpus, 12 * GIB)


def test_a_layer_of_alexnet_takes_longer_over_the_network_than_an_iteration(page: str) -> None:
    (row,) = [line for line in page.splitlines() if line.startswith("| alexnet (256) | 1.28 s ")]
    iteration = round(107 * 60e9 * 256 / papers_gpus.IMAGES)
    slow = papers_gpus.layrub_ns("alexnet", 256, iteration, 10**9 // 8)
    assert f"| 1.98 x | {2 * iteration / slow:.2f} x |" in row
    assert slow > 244_403_360 * 8


def test_tables_are_put_into_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(papers_gpus, "TABLES", {"date": lambda: "new\n"})
    copy = tmp_path / "page.md"
    copy.write_text("a\n<!-- begin date -->\nold\n<!-- end date -->\nb\n")
    main(["--write", str(copy)])
    assert copy.read_text() == "a\n<!-- begin date -->\nnew\n<!-- end date -->\nb\n"
    main([])
    assert capsys.readouterr().out == "new\n"
