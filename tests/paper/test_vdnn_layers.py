"""vDNN layer by layer: shares that add up, the printed orders of magnitude, the committed tables."""

from __future__ import annotations

import pytest

from pebbler.heuristics.papers.layers import layer_steps
from vdnn import baseline_bytes
from vdnn_layers import (
    TABLES,
    breakdown,
    feature_extraction_share,
    instance_of,
    reuse_distance_ns,
    unit_bytes,
    unused_share,
)

VGG = ("vgg16", 256)


def test_the_breakdown_is_of_the_whole() -> None:
    parts = breakdown(*VGG)
    assert sum(parts.values()) == baseline_bytes(instance_of(*VGG))
    assert min(parts.values()) > 0
    assert parts["gradient maps"] == 2 * max(block.bytes for block in instance_of(*VGG).blocks)


def test_shares_are_near_the_printed_ones() -> None:
    assert unused_share(*VGG) == pytest.approx(0.53, abs=0.07)
    assert feature_extraction_share(*VGG) == pytest.approx(0.96, abs=0.02)
    assert feature_extraction_share("googlenet", 128) > 0.99


def test_a_layer_needs_its_blocks_and_its_workspace_once() -> None:
    instance = instance_of(*VGG)
    unit = next(u for u in layer_steps(instance) if u.layer == "conv1_2" and u.direction == "backward")
    assert len(unit.tasks) == 2
    each = [unit_bytes(instance, type(unit)(unit.layer, unit.kind, unit.direction, (k,))) for k in unit.tasks]
    assert max(each) <= unit_bytes(instance, unit) < sum(each)


def test_the_reuse_distance_is_almost_the_iteration() -> None:
    instance = instance_of("vgg16", 64)
    total = sum(min(a.duration_ns for a in task.algorithms) for task in instance.tasks)
    assert 0.9 * total < reuse_distance_ns("vgg16", 64) < total


@pytest.mark.parametrize("name", TABLES)
def test_committed_tables_are_of_today(name: str, pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "papers-vdnn.md").read_text("utf-8")
    assert page.split(f"<!-- begin {name} -->\n")[1].split(f"<!-- end {name} -->")[0] == TABLES[name]()
