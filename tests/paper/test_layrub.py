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


def test_the_resident_model_is_fitted_to_deep_networks_and_misses_the_shallow_one() -> None:
    over = {name: layrub_resident(find_network(name)) / MIB / row[1] for name, row in TABLE_6.items()}
    assert over.pop("resnet34") > 1.3
    assert all(ratio == pytest.approx(1, rel=2e-3) for ratio in over.values())


def test_the_library_is_the_one_that_the_paper_states() -> None:
    origin = papers_layrub._workload("lenet", 64, "executable").origin
    assert origin is not None
    assert (origin.device, origin.cudnn) == ("K40", "4")


def test_a_table_with_the_smallest_network_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers_layrub, "TABLE_6", {"resnet50": TABLE_6["resnet50"]})
    (row,) = depth_table().splitlines()[2:]
    assert row.split("|")[1:4] == [" resnet50 ", " 1802 ", " 1805 "]


def test_the_page_has_a_place_for_every_table(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "papers-layrub.md").read_text(encoding="utf-8")
    for name in TABLES:
        assert page.count(f"<!-- begin {name} -->\n") == page.count(f"<!-- end {name} -->\n") == 1
