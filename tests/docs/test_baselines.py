"""Tables of runs: seconds to a gap, and overheads of copies and recomputation."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest

import baselines
import recomputation
from pebbler.benchmark.sweeps.jobs import measure
from pebbler.benchmark.sweeps.results import Results, Run
from pebbler.instances.suites.tiny import recomputing
from pebbler.solver.bounds import best_bound, compute_bound
from pebbler.solver.solve import solve

from ..benchmark.swept import jobs_of, write_config


def runs_of(path: Path) -> tuple[Run, ...]:
    with Results(path) as results:
        return tuple(results.runs())


@pytest.fixture
def made() -> tuple[Run, ...]:
    return runs_of(baselines.DATA)


def test_a_gap_is_reached_when_a_schedule_first_is_within_it(made: tuple[Run, ...]) -> None:
    run = next(run for run in made if run.found.iteration_ns is not None)
    reached = run.found.iteration_ns
    assert reached is not None
    last = run.found.trace[-1][0]
    assert baselines.seconds_to(run, reached, 0.0) <= last
    assert baselines.seconds_to(run, reached // 2, 0.1) == math.inf
    assert baselines.seconds_to(run, reached // 2, 2.0) <= baselines.seconds_to(run, reached, 0.0)


def test_the_pages_show_the_runs_that_are_committed(made: tuple[Run, ...]) -> None:
    page = Path("docs/baselines.md").read_text("utf-8")
    assert baselines.table(made) in page
    study = Path("docs/recomputation.md").read_text("utf-8")
    assert recomputation.study_table(runs_of(recomputation.DATA)) in study


def test_no_run_is_under_a_bound_of_its_own_instance(made: tuple[Run, ...]) -> None:
    for runs in (made, runs_of(recomputation.DATA)):
        bounds: dict[tuple[str, ...], int] = {}
        for run in runs:
            known = bounds.get(run.found.instances, 0)
            bounds[run.found.instances] = max(known, run.found.lower_bound_ns or 0)
        for run in runs:
            if run.found.iteration_ns is not None:
                assert run.found.iteration_ns >= bounds[run.found.instances]


def test_the_bound_of_a_run_is_of_what_it_solved(tmp_path: Path) -> None:
    """A planner's instance may have shorter schedules than the one that it was made from."""
    text = """
title = "one rule that plans"

[[sweep]]
methods = ["memonger-rule"]

[[sweep.workloads]]
network = "vgg16"
batch = 64
device = "V100"
budgets = ["80%"]
"""
    (job,) = jobs_of(write_config(tmp_path, text))
    (whole,) = job.problem.instances()
    found = measure(job).found
    assert found.lower_bound_ns == compute_bound(whole).lower_bound_ns < best_bound(whole).lower_bound_ns


@pytest.mark.parametrize("limit", [0.2, pytest.param(None, marks=pytest.mark.slow)])
def test_tiny_instances_are_in_order(limit: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputation, "solve", partial(solve, time_limit=limit))
    whole = recomputation.tiny_table(map(recomputing, range(1)), "instances")
    assert whole.startswith("1 instances, ")
    assert "| MILP |" in whole
    parts = recomputation.tiny_table(recomputation.in_parts_too(1), "instances with tensors in parts")
    assert parts.startswith("1 instances with tensors in parts, ")
    assert "| certified |" in parts
