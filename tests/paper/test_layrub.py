from __future__ import annotations

import pytest

import layrub as papers_layrub
from layrub import (
    MIB,
    TABLE_5,
    TABLE_7,
    TABLES,
    at_printed_speed,
    barrier_ns,
    caffe_ns,
    data_bytes,
    depth_table,
    geeps_bytes,
    result,
    seconds_table,
)
from layrub_caffe import FITTED, TABLE_6
from pebbler.instances.networks.accounting import layrub_data_and_gradient
from pebbler.instances.networks.zoo import find_network


def test_inter_layer_memory_is_constant_in_depth_and_half_of_what_is_printed() -> None:
    """Section 5.2.1: 759.5 MB from 50 layers on."""
    taken = [data_bytes(name, 32, "layrub-inter", "paper") for name in ("resnet50", "resnet152")]
    assert taken[0] / MIB == pytest.approx(759.5 / 2, abs=0.1)
    assert taken[1] == pytest.approx(taken[0], rel=1e-3)


def test_the_saving_on_a_deep_network() -> None:
    baseline = layrub_data_and_gradient(find_network("resnet152"), 32)
    saved = [1 - data_bytes("resnet152", 32, name) / baseline for name in papers_layrub.STRATEGIES]
    assert saved[0] < 0.5 < 0.96 < saved[1] <= saved[2]


def test_layrub_is_slower_than_caffe_and_less_so_where_computing_takes_longer() -> None:
    base = caffe_ns("alexnet_caffe", 128)
    added = (result("alexnet_caffe", 128, "layrub-hybrid").makespan_ns or 0) / base - 1
    assert 0 <= at_printed_speed("alexnet_caffe", 128) < added < 1
    assert 0 < barrier_ns("alexnet_caffe", 128) / base < 0.0305


def test_the_library_is_the_one_that_the_paper_states() -> None:
    origin = papers_layrub.instance_of("lenet", 64, "executable").origin
    assert origin is not None
    assert (origin.device, origin.cudnn) == ("K40", "4")


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("|")[1:-1]]


def test_table_6_has_every_printed_column_and_says_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ResNet-302 is one of the two rows to which the two constants are fitted."""
    monkeypatch.setattr(papers_layrub, "TABLE_6", {"resnet302": TABLE_6["resnet302"]})
    assert "resnet302" in FITTED
    (row,) = depth_table().splitlines()[2:]
    short = "out of memory"
    assert cells(row)[:6] == ["resnet302", short, "4873", "3444", short, "fits"]
    assert cells(row)[6:] == [short, "4911", "3448", short, "3448", "-0.00%"]


def test_table_5_has_a_cell_of_ours_beside_every_printed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers_layrub, "TABLE_5", {"lenet": TABLE_5["lenet"]})
    header, _, row = seconds_table().splitlines()
    assert [name.split(",")[0] for name in cells(header)[1::2]] == [
        "MXNet",
        "Memonger",
        "Caffe",
        "Layrub",
        "TensorFlow",
    ]
    assert cells(row)[1::2] == ["2.373", "2.783", "2.148", "2.342", "5.143"]
    assert all(float(cell) > 0 for cell in cells(row)[2::2])


def test_what_is_printed_of_tables_5_to_7_is_complete() -> None:
    assert (len(TABLE_5), len(TABLE_6), len(TABLE_7)) == (10, 8, 6)
    dashes = [sum(cell is None for cell in column) for column in zip(*TABLE_5.values(), strict=True)]
    assert dashes == [3, 2, 3, 2, 0, 2, 4]
    short = [sum(size is None for size in column) for column in zip(*TABLE_6.values(), strict=True)]
    assert short == [7, 5, 4, 6, 2, 0]


def test_geeps_by_its_pool_takes_more_than_by_its_highest_byte() -> None:
    assert geeps_bytes("resnet34", 32) > 1.3 * (result("resnet34", 32, "geeps-rule").peak_bytes or 0)


def test_every_exhibit_has_one_of_four_words_and_a_reason(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "papers-layrub.md").read_text(encoding="utf-8")
    table = page.split("| exhibit | printed | ours | word |\n")[1].split("\n\n")[0].splitlines()[1:]
    exhibits = " ".join(cells(row)[0] for row in table)
    for exhibit in (*(f"Fig. {n}" for n in (2, *range(8, 16))), *(f"Table {n}" for n in (1, 5, 6, 7, 8))):
        assert exhibit in exhibits
    for row in table:
        word = cells(row)[3]
        assert word.startswith(("reproduced", "calibrated: ", "differs", "left out: ")), row
        assert word.startswith("reproduced") or ": " in word, row


def test_the_page_has_a_place_for_every_table(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "papers-layrub.md").read_text(encoding="utf-8")
    for name in TABLES:
        assert page.count(f"<!-- begin {name} -->\n") == page.count(f"<!-- end {name} -->\n") == 1
