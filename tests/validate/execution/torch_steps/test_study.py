"""The study of training steps, on a small network."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import pytest

from ....extras import needs_torch

needs_torch()

from . import study  # noqa: E402
from .models import noisy  # noqa: E402
from .networks import NETWORKS  # noqa: E402


@pytest.fixture(scope="module")
def runs() -> list[study.Run]:
    """Two steps of a network, in a precision, with a rule."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(NETWORKS, "noisy", noisy)
        patch.setattr(study, "METHODS", {"copies": ("modnn",), "parts": ("modnn-parts",)})
        patch.setattr(study, "SIZES", (4, 3))
        patch.setattr(study, "EPOCH", 2)
        chosen = argparse.Namespace(
            networks=["noisy"], precisions=["fp32"], memories=study.MEMORIES, ways=["copies", "parts"]
        )
        chosen.steps, chosen.seconds = 2, 5.0
        return list(study.study(chosen))


def test_cases_have_eagers_bits_or_are_impossible(runs: list[study.Run]) -> None:
    assert [(run.memory, run.budget, run.way) for run in runs] == [
        (memory, budget, "copies") for memory in study.MEMORIES for budget in study.BUDGETS
    ], "no tensor is large enough for parts"
    assert [run.ended for run in runs] == ["equal", "equal", study.IMPOSSIBLE, "equal"]
    for run in runs:
        assert run.kept
        assert run.peak_bytes is None or run.peak_bytes <= run.budget_bytes
    assert runs[0].budget_bytes == runs[0].eager_bytes // 2


@pytest.fixture
def network() -> study.Network:
    """Two steps of a network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(NETWORKS, "noisy", noisy)
        return study.Network("noisy", "fp32", 2, (4, 3))


def test_other_bits_show(network: study.Network) -> None:
    assert network.eager_bytes == network.plans[0].record.eager_peak_bytes
    plan = network.plan(network.instances(1 << 30, "copies"), "contiguous", ["network-wide"], 5.0)
    assert not isinstance(plan, str)
    assert network.compare(plan) == "equal"
    network.wanted[-2] = network.wanted[-2] + 1
    assert network.compare(plan) == "differs after the last step"
    network.wanted[1] = network.wanted[1] + 1
    assert network.compare(plan) == "differs in step 1"


def test_runs_take_the_place_of_those_of_their_case(runs: list[study.Run], tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    earlier = dataclasses.replace(runs[0], ended="differs in step 1", date="2000-01-01")
    older = dataclasses.replace(runs[0], torch="2.9.0", ended="no schedule: time limit")
    path.write_text("".join(json.dumps(dataclasses.asdict(run)) + "\n" for run in (earlier, older)))
    found = study.merged(path, runs)
    assert found == [runs[0], older, *runs[1:]]
    told = study.table(found)
    assert "2000-01-01" not in told
    header, _, first, *_ = told.splitlines()
    assert header.index("torch 2.9.0") < header.index(f"torch {runs[0].torch}")
    assert "**copies: no schedule: time limit** | copies |" in first
