"""The tables of docs/papers-glp4nn.md are what their script computes, but for the times that it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

import glp4nn as papers_glp4nn
from glp4nn import (
    BEGIN,
    END,
    NEWER_DEVICES,
    PAPER_DEVICES,
    PICTURE,
    WHOLE,
    beside_table,
    case,
    lenet_table,
    memory_table,
    speed_table,
    streams_table,
)
from pebbler.benchmark.pictures.streams import Panel, draw_times
from pebbler.instances.devices.caffe import TABLE_5


@pytest.fixture(scope="module")
def page(pytestconfig: pytest.Config) -> str:
    text = (pytestconfig.rootpath / "docs" / "papers-glp4nn.md").read_text(encoding="utf-8")
    return text.split(BEGIN)[1].split(END)[0]


def test_the_page_has_the_streams_of_every_layer_device_and_model(page: str) -> None:
    assert streams_table(PAPER_DEVICES) in page
    assert streams_table(NEWER_DEVICES) in page
    assert memory_table() in page


def test_the_page_has_the_speeds_that_are_simulated(page: str) -> None:
    """The columns of the K40, and what was measured by others."""
    ours = speed_table(("K40",)).splitlines()[2:]
    shown = page.split("the GPUs of Table 3**\n\n")[1].splitlines()[2:20]
    for row, cells in zip(ours, shown, strict=True):
        assert cells.split(" | ")[:4] == row.removesuffix(" |").split(" | ")
    assert lenet_table() in page


def test_the_page_has_what_streams_are_worth_beside_other_algorithms(page: str) -> None:
    """The two small networks; streams are never worth it there, but often in GoogLeNet."""
    assert beside_table(WHOLE[:2]) in page
    assert "| googlenet_bvlc (32) | 176 | 111 | 74 |" in page


def test_the_page_shows_every_solve_within_its_time(page: str) -> None:
    """One solve in under 100 ms, all optima in under 5 s: figures of the committed run."""
    rows = page.split("**Time of solving, every layer x device x model, least of three runs**\n\n")[
        1
    ].splitlines()[2:5]
    greatest = [float(row.split(" | ")[-1].removesuffix(" ms |")) for row in rows]
    assert all("| 360 |" in row for row in rows)
    assert greatest[0] < 100
    assert greatest[1] < 100
    assert greatest[2] < 5000


def test_the_script_puts_tables_and_picture_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(papers_glp4nn, "tables", lambda: "new\n")
    monkeypatch.setattr(papers_glp4nn, "picture", lambda: b"png")
    page, picture = tmp_path / "page.md", tmp_path / PICTURE
    picture.parent.mkdir()
    page.write_text(f"before\n{BEGIN}old\n{END}after\n", encoding="utf-8")
    papers_glp4nn.main(["--write", str(page)])
    assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}new\n{END}after\n"
    assert picture.read_bytes() == b"png"
    papers_glp4nn.main([])
    assert capsys.readouterr().out == "new\n"


def test_a_picture_is_the_same_every_time() -> None:
    one = case(TABLE_5[7], "K40")
    panel = Panel("conv1", {"conv1": {1: 1.0, 2: 1.5, 4: 1.4}}, {"conv1": one.chosen("corrected")})
    assert draw_times([[panel]], "corrected", "today") == draw_times([[panel]], "corrected", "today")
    assert draw_times([[panel, panel], [panel, panel]], "corrected", "today").startswith(b"\x89PNG")
