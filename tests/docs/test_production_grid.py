"""The grid of rules: its cells, what tables say of runs, and runs that are made and found again."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

import production_grid
from pebbler.benchmark.output.machine import Origin
from pebbler.benchmark.sweeps.jobs import Found
from pebbler.benchmark.sweeps.problems import WorkloadProblem
from pebbler.benchmark.sweeps.results import Run, read_latest
from pebbler.benchmark.sweeps.runner import Tally, make_in_turn
from pebbler.instances.workload import Workload
from production_grid import BEGIN, COPIES, END, NO_COPIES, OURS, OURS_COPIES, RULES, cells, decision

from ..benchmark.swept import ABOUT

CELL = next(cell for cell in cells() if cell.name == "gpt2/16/A100/63%/bf16")


def run(
    method: str,
    makespan: int | None,
    bound: int = 100,
    *,
    stall: int = 0,
    copied: int = 0,
    name: str = CELL.name,
) -> Run:
    found = Found(
        status="unknown" if makespan is None else "feasible",
        stopped_by="done",
        iteration_ns=makespan,
        stall_ns=stall,
        offloaded_bytes=copied,
        ideal_ns=100,
        lower_bound_ns=bound,
    )
    setting = next(production_grid.rule_jobs([SMALL], 1.0)).setting
    return Run(
        fingerprint=f"{name} {method}",
        about=dataclasses.replace(ABOUT, problem=name),
        seed=0,
        setting=dataclasses.replace(setting, method=method),
        found=found,
        wall_seconds=None,
        date="2026-11-26",
        origin=Origin("a machine", "3.11.7", {"pebbler": "0.1.0"}, None),
    )


SMALL = WorkloadProblem(Workload("lenet", 4, "K40"), "1.5xMmin")


def test_there_are_35_graphs_under_four_budgets_on_four_devices() -> None:
    names = [cell.name for cell in cells()]
    assert len(set(names)) == len(names) == 140
    assert len({name.rpartition("/")[0].rpartition("/")[0] for name in names}) == 35
    assert {cell.workload.device for cell in cells()} == {"RTX4090", "A100", "H100", "GH200"}
    assert set(Counter(name.rpartition("/")[0].rpartition("/")[0] for name in names).values()) == {4}


def test_tables_say_how_far_from_which_bound() -> None:
    """Copies alone are bound by 200; of everything, 110 are proven."""
    runs = [
        run("trl-offload", 220),
        run("checkpoint-layers", 132),
        run("torchtitan-budget", 122),
        run("megatron-offload", None),
        run(OURS, 110, 110),
        run(OURS_COPIES, 200, 200),
        run(OURS, 120, 120, name=f"{CELL.name}{NO_COPIES}"),
    ]
    (cell,) = production_grid.read_cells(runs)
    assert cell.over("trl-offload") == pytest.approx(1.0)
    assert cell.over_own("trl-offload") == pytest.approx(0.1)
    assert cell.over_own("checkpoint-layers") == pytest.approx(0.1)
    assert cell.over("megatron-offload") is cell.over("torch-compile") is None
    assert cell.best() == "torchtitan-budget"
    told = production_grid.report(runs)
    assert "1 of 140 cells have runs of rules, and 1 of them ours." in told
    assert "| gpt2 x 16, A100 |  | 63%: `torchtitan-budget`, 10.91% |  |  |" in told
    assert "| `megatron-offload` | 0 of 1 |" in told
    assert "| gpt2/16/A100/63%/bf16 | `torchtitan-budget` | 10.91% | 110 ns |" in told


def test_of_several_passes_the_highest_bound_and_the_shortest_schedule_count() -> None:
    runs = [run("trl-offload", 220), run(OURS, 130, 104), run(OURS, 120, 110), run(OURS, None, 108)]
    (cell,) = production_grid.read_cells(runs)
    assert cell.bound == 110
    assert cell.gap == pytest.approx(1 / 11)
    assert "Ours is within 2 % of its bound in 0 of 1 cells; the median is 9.09%." in production_grid.report(
        runs
    )


def test_a_pass_leaves_out_what_is_close_to_its_bound() -> None:
    again = f"{SMALL.name}{NO_COPIES}"
    known = [
        run(OURS, 130, 100, name=SMALL.name),
        run(OURS, 101, 100, name=SMALL.name),
        run(OURS_COPIES, 105, 100, name=SMALL.name),
        run(OURS, None, 100, name=again),
    ]
    assert production_grid.our_job(SMALL, "all", 5.0, known) is None
    assert production_grid.our_job(SMALL, "all", 5.0, [known[0], *known[2:]]) is not None
    for kind in ("copies", "again"):  # of which the bound alone counts
        assert production_grid.our_job(SMALL, kind, 5.0, known) is None
    for kind, name, method in (
        ("all", SMALL.name, OURS),
        ("copies", SMALL.name, OURS_COPIES),
        ("again", again, OURS),
    ):
        job = production_grid.our_job(SMALL, kind, 5.0, [])
        assert job is not None
        assert (job.problem.name, job.setting.method) == (name, method)


def test_without_ours_a_rule_is_at_most_so_far_from_what_is_possible() -> None:
    told = production_grid.report([run("torchtitan-budget", 105)])
    assert "63%: `torchtitan-budget`, 5.00% at most" in told
    assert "0 of them ours" in told


@pytest.mark.parametrize(
    ("stall", "copied", "told"),
    [(30, 9, "75.00% of it are waits; it copies more"), (10, 0, "75.00% of it are second runs")],
)
def test_what_a_rule_does_otherwise_is_waits_or_second_runs(stall: int, copied: int, told: str) -> None:
    rule, ours = run("trl-offload", 140, stall=stall, copied=copied), run(OURS, 100, copied=5)
    assert decision(rule, ours).startswith(told)


def test_budgets_under_which_more_memory_takes_longer_are_counted() -> None:
    tight, loose = "gpt2/16/A100/52%/bf16", "gpt2/16/A100/63%/bf16"
    runs = [run("trl-offload", 100, name=tight), run("trl-offload", 120, name=loose)]
    runs += [run("torch-compile", 120, name=tight), run("torch-compile", 100, name=loose)]
    found = production_grid.read_cells(runs)
    assert production_grid.violations(found, "trl-offload") == (1, 1)
    assert production_grid.violations(found, "torch-compile") == (0, 1)
    assert production_grid.violations(found, "torch-memory-budget") == (0, 0)


def test_runs_are_made_once_and_no_block_is_copied_where_none_may_be(tmp_path: Path) -> None:
    jobs = [job for job in production_grid.rule_jobs([SMALL], 5.0) if job.setting.method in COPIES[:2]]
    data = tmp_path / "grid.sqlite"
    assert make_in_turn(jobs, data, here=True) == Tally(0, 2, 0)
    assert make_in_turn(jobs, data, here=True) == Tally(2, 0, 0)
    assert [run.setting.method for run in read_latest(data)] == list(COPIES[:2])
    (instance,) = production_grid.without_copies(SMALL).instances()
    assert {block.offload_ns for block in instance.blocks} == {None}


def test_the_page_shows_the_runs_that_are_committed() -> None:
    page = Path("docs/production.md").read_text("utf-8")
    told = page[page.index(BEGIN) + len(BEGIN) : page.index(END)]
    runs = read_latest(production_grid.DATA)
    assert told == production_grid.report(runs)
    assert {run.setting.method for run in runs} <= {*RULES, OURS, OURS_COPIES}


def test_a_picture_shows_what_there_is() -> None:
    runs = [replace(run("trl-offload", 220)), run("megatron-offload", None)]
    assert production_grid.picture(runs).startswith(b"\x89PNG")
