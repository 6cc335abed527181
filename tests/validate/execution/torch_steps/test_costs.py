"""What the costs of planned training steps are measured by, on a small network."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ....extras import needs_torch

needs_torch()

from . import costs  # noqa: E402
from .models import noisy  # noqa: E402


@pytest.fixture(scope="module")
def cost() -> costs.Cost:
    """Of two steps of a network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(costs.CASES, "noisy", (noisy, 4))
        return costs.measure("noisy", 2, 0.5, "here")


def test_every_time_is_measured(cost: costs.Cost) -> None:
    times = [getattr(cost, field.name) for field in dataclasses.fields(cost) if field.name.endswith("_ns")]
    assert len(times) == 7
    assert min(times) > 0
    assert cost.measured_ns < cost.step_ns, "with what is beside the streams"
    assert cost.gap is not None
    assert cost.gap >= 0


def test_costs_take_the_place_of_earlier_ones_of_their_network(cost: costs.Cost, tmp_path: Path) -> None:
    path = tmp_path / "costs.jsonl"
    earlier = dataclasses.replace(cost, date="2000-01-01")
    other = dataclasses.replace(cost, network="other", eager_ns=1_000_000, roomy_ns=3_000_000, operators=100)
    path.write_text("".join(json.dumps(dataclasses.asdict(one)) + "\n" for one in (earlier, other)))
    found = costs.merged(path, [cost])
    assert found == [cost, other]
    told = costs.table(found)
    assert "2000-01-01" not in told
    assert "| `other` | 100 | 1.000 ms | 3.000 ms | +20 us |" in told
