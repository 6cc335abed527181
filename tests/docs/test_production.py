"""The table of frameworks' rules: what the committed runs say, over the bound of the whole problem."""

from __future__ import annotations

from pathlib import Path

import production
from pebbler.benchmark.sweeps.results import Results, Run


def made() -> tuple[Run, ...]:
    with Results(production.DATA) as results:
        return tuple(results.runs())


def test_the_page_shows_the_runs_that_are_committed() -> None:
    assert production.table(made()) in Path("docs/production.md").read_text("utf-8")


def test_no_schedule_is_under_the_bound_of_the_whole_problem() -> None:
    runs = made()
    for problem in {run.about.problem for run in runs}:
        own = {run.setting.method: run for run in runs if run.about.problem == problem}
        bound = production.proven(own, production.BOTH)
        assert 1 < bound <= production.proven(own, production.COPIES)
        times = [run.found.iteration_ns for run in own.values() if run.found.iteration_ns is not None]
        assert times
        assert min(times) >= bound


def test_a_method_without_a_run_and_one_without_a_schedule_are_told_apart() -> None:
    runs = made()
    some = [run for run in runs if run.setting.method in ("flow-recompute", "torch-compile")]
    lines = production.table(some).splitlines()
    assert len(lines[0].split("|")) == len(lines[2].split("|")) == 7
    refused = [run for run in some if run.found.iteration_ns is None]
    assert sum(line.count("none") for line in lines) == len(refused)
