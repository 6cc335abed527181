from __future__ import annotations

import pytest

import layrub as papers_layrub
from layrub import (
    MIB,
    TABLE_6,
    TABLES,
    at_printed_speed,
    barrier_ns,
    caffe_ns,
    data_bytes,
    depth_table,
    result,
)
from pebbler.instances.networks.accounting import layrub_data_and_gradient, layrub_resident
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
    base = caffe_ns("alexnet", 128)
    added = (result("alexnet", 128, "layrub-hybrid").makespan_ns or 0) / base - 1
    assert 0 <= at_printed_speed("alexnet", 128) < added < 1
    assert 0 < barrier_ns("alexnet", 128) / base < 0.0305


def test_the_resident_model_predicts_the_deeper_networks() -> None:
    for network, (_, printed) in TABLE_6.items():
        assert layrub_resident(find_network(network)) / MIB == pytest.approx(printed, rel=2e-3)


def test_a_table_with_the_smallest_network_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers_layrub, "TABLE_6", {"resnet50": TABLE_6["resnet50"]})
    (row,) = depth_table().splitlines()[2:]
    assert row.split("|")[1:4] == [" resnet50 ", " 1802 ", " 1805 "]


def test_the_page_has_a_place_for_every_table(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "papers-layrub.md").read_text(encoding="utf-8")
    for name in TABLES:
        assert page.count(f"<!-- begin {name} -->\n") == page.count(f"<!-- end {name} -->\n") == 1
