"""The tables of docs/papers-glp4nn.md are what their script computes, but for what depends on the clock."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import glp4nn as papers_glp4nn
from glp4nn import (
    BEGIN,
    CLOCK_BEGIN,
    CLOCK_END,
    END,
    PICTURE,
    WHOLE,
    beside_table,
    hardware_table,
    iteration_table,
    lenet_table,
    memory_table,
    product_table,
    profile_table,
    speed_table,
    streams_table,
)
from glp4nn_cases import NEWER_DEVICES, PAPER_DEVICES, case
from glp4nn_exhibits import PRINTED_TABLE_6
from pebbler.benchmark.pictures.streams import Panel, draw_times
from pebbler.instances.devices.caffe import TABLE_5

from ..samples import counts

SMALL = [layer for layer in TABLE_5 if layer.name.startswith("cifar10")]


@pytest.fixture(scope="module")
def page(pytestconfig: pytest.Config) -> str:
    text = (pytestconfig.rootpath / "docs" / "papers-glp4nn.md").read_text(encoding="utf-8")
    return text.split(BEGIN)[1].split(END)[0]


@pytest.fixture(scope="module")
def clocked(pytestconfig: pytest.Config) -> str:
    text = (pytestconfig.rootpath / "docs" / "papers-glp4nn.md").read_text(encoding="utf-8")
    return text.split(CLOCK_BEGIN)[1].split(CLOCK_END)[0]


def table(text: str, title: str) -> list[list[str]]:
    """Rows of the table below a title, without its header."""
    lines = text.split(f"**{title}**\n\n")[1].split("\n\n")[0].splitlines()[2:]
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]


def test_the_page_has_the_streams_of_some_layers(page: str) -> None:
    for line in streams_table(PAPER_DEVICES, TABLE_5[3::12]).splitlines():
        assert line in page


@pytest.mark.slow
@pytest.mark.parametrize("devices", [PAPER_DEVICES, NEWER_DEVICES])
def test_the_page_has_the_streams_of_every_layer_device_and_model(
    devices: tuple[str, ...], page: str
) -> None:
    assert streams_table(devices) in page


def test_the_page_has_the_memory_of_streams(page: str) -> None:
    assert memory_table() in page


@pytest.mark.parametrize("count", counts(1, len(SMALL)))
def test_the_page_has_the_speeds_that_are_simulated(count: int, page: str) -> None:
    """Rows of a small network; the others take minutes."""
    for made in (
        speed_table(PAPER_DEVICES, SMALL[:count]),
        speed_table(NEWER_DEVICES, SMALL[:count]),
        iteration_table(SMALL[:count]),
    ):
        for row in made.splitlines()[2:]:
            assert row in page


def test_the_page_has_what_kernels_are_held_against(
    page: str, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pytestconfig.rootpath)
    for made in (hardware_table(), lenet_table(), profile_table(), product_table()):
        assert made in page


def test_every_figure_and_table_of_the_paper_has_one_of_four_words(page: str) -> None:
    rows = table(page, "Every figure and table of the paper")
    named = " ".join(row[0] for row in rows).replace("Figs. 7 and 9", "Fig. 7")
    for kind, count in (("Fig.", 11), ("Table", 6)):
        assert {int(n) for n in re.findall(rf"{kind} (\d+)", named)} == set(range(1, count + 1))
    for *_, word in rows:
        found, _, reason = word.partition(": ")
        assert found in ("reproduced", "calibrated", "differs", "left out")
        assert (not reason) == (found == "reproduced")


def test_table_6_is_there_as_printed(page: str) -> None:
    rows = {row[0]: row[1:4] for row in table(page, "Table 6: overhead, printed, and when it is under 0.1 %")}
    assert rows == {
        f"{network}, {device}": [f"{ms:.3f}" for ms in printed]
        for network, some in PRINTED_TABLE_6.items()
        for device, printed in zip(PAPER_DEVICES, some, strict=True)
    }


def test_the_page_has_what_streams_are_worth_beside_other_algorithms(page: str) -> None:
    assert beside_table(WHOLE[:2]) in page


def test_the_page_shows_every_solve_within_its_time(clocked: str) -> None:
    """One solve in under 100 ms, all optima in under 5 s: figures of the committed run."""
    rows = table(clocked, "Time of solving, every layer x device x model, least of three runs")
    greatest = [float(row[-1].removesuffix(" ms")) for row in rows]
    assert [row[1] for row in rows] == ["360"] * 3
    assert greatest[0] < 100
    assert greatest[1] < 100
    assert greatest[2] < 5000


def test_the_script_puts_tables_and_picture_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables that depend on the clock only when they are asked for."""
    monkeypatch.setattr(papers_glp4nn, "tables", lambda: "new\n")
    monkeypatch.setattr(papers_glp4nn, "clocked_tables", lambda: "quick\n")
    monkeypatch.setattr(papers_glp4nn, "picture", lambda: b"png")
    page, picture = tmp_path / "page.md", tmp_path / PICTURE
    picture.parent.mkdir()
    text = f"before\n{BEGIN}{{}}\n{END}between\n{CLOCK_BEGIN}{{}}\n{CLOCK_END}after\n"
    page.write_text(text.format("old", "slow"), encoding="utf-8")
    papers_glp4nn.main(["--write", str(page)])
    assert page.read_text(encoding="utf-8") == text.format("new", "slow")
    papers_glp4nn.main(["--write", str(page), "--clock"])
    assert page.read_text(encoding="utf-8") == text.format("new", "quick")
    assert picture.read_bytes() == b"png"
    papers_glp4nn.main([])
    assert capsys.readouterr().out == "new\n"


def test_a_picture_is_the_same_every_time() -> None:
    one = case(TABLE_5[7], "K40")
    panel = Panel("conv1", {"conv1": {1: 1.0, 2: 1.5, 4: 1.4}}, {"conv1": one.chosen("corrected")})
    assert draw_times([[panel]], "corrected", "today") == draw_times([[panel]], "corrected", "today")
    assert draw_times([[panel, panel], [panel, panel]], "corrected", "today").startswith(b"\x89PNG")
