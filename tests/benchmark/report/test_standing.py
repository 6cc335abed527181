"""The standing by a protocol: who has solved what, how soon, and in how many times the kernel."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from pebbler.benchmark.output.machine import origin
from pebbler.benchmark.report.standing import known_bounds, standing, without_run
from pebbler.benchmark.sweeps.best_known import best_known
from pebbler.benchmark.sweeps.evaluation import SweepContradictionError, evaluate
from pebbler.benchmark.sweeps.jobs import Found, Setting
from pebbler.benchmark.sweeps.problems import About
from pebbler.benchmark.sweeps.protocol import Protocol
from pebbler.benchmark.sweeps.results import Run
from pebbler.solver.bounds import Bound

RULES = Protocol(solved_gap=0.01, overtime="2s")


def made(
    problem: str,
    iteration: int | None,
    seconds: float,
    *,
    method: str = "a",
    seed: int = 0,
    bound: int = 100,
    status: str = "feasible",
    kernel: float | None = 0.5,
) -> Run:
    """A run with a limit of ten seconds on a problem that is its own checksum."""
    return Run(
        fingerprint=f"{problem} {method} {seed}",
        about=About(problem, problem, problem, None, None, None, None, None, "duplex", 5, 100),
        seed=seed,
        setting=Setting(method, time_limit=10.0),
        found=Found(
            status=status,
            stopped_by="done",
            iteration_ns=iteration,
            lower_bound_ns=bound,
            bound_by="compute",
            certified=True,
            solve_seconds=seconds,
        ),
        wall_seconds=seconds,
        date="2026-01-02",
        origin=origin(),
        kernel_seconds=kernel,
    )


def row(runs: list[Run], method: str = "a") -> dict[str, object]:
    table = standing(evaluate(runs, whole=True), RULES).data
    (found,) = [cells for cells in table.rows if cells[0] == method]
    return dict(zip(table.header, found, strict=True))


def test_what_is_near_the_bound_in_time_is_solved() -> None:
    runs = [
        made("p", 101, 3.0),
        made("q", 102, 3.0),
        made("r", 100, 13.0),
        made("s", None, 1.0),
        made("t", 100, 1.0, status="error"),
        made("u", 100, 0.0, method="b"),
    ]
    assert row(runs) == {
        "setting": "a",
        "instances": 6,
        "not run": 1,
        "with a schedule": 4,
        "solved": 1,
        "proven": 1,
        "late or failed": 2,
        "mean time (s)": pytest.approx((4.0 * 11.0**5) ** (1 / 6) - 1),
        "mean time (kernels)": pytest.approx((7.0 * 21.0**5) ** (1 / 6) - 1),
    }


def test_a_program_solves_by_the_bounds_of_others_but_proves_by_its_own() -> None:
    runs = [made("p", 150, 1.0, method="mine"), made("p", 150, 2.0, method="flow", bound=150)]
    assert (row(runs, "mine")["solved"], row(runs, "mine")["proven"]) == (1, 0)
    assert (row(runs, "flow")["solved"], row(runs, "flow")["proven"]) == (1, 1)


def test_of_several_seeds_the_median_counts() -> None:
    runs = [made("p", 200, 1.0), made("p", 100, 4.0, seed=1), made("p", 100, 2.0, seed=2)]
    assert row(runs)["solved"] == 1
    assert row(runs)["mean time (s)"] == pytest.approx(4.0)
    assert row([*runs[:2], made("p", 200, 1.0, seed=2)])["solved"] == 0


def test_without_the_time_of_the_kernel_there_is_no_mean_in_it() -> None:
    runs = [made("p", 100, 1.0), made("q", 100, 1.0, kernel=None)]
    assert row(runs)["mean time (kernels)"] is None
    assert "The kernel was not timed." in standing(evaluate(runs[1:], whole=True), RULES).caption
    assert "A kernel takes 0.500 s on" in standing(evaluate(runs, whole=True), RULES).caption


def test_the_caption_says_whose_word_a_bound_is() -> None:
    evaluation = evaluate([made("p", 100, 1.0)], whole=True)
    assert "the best bound that a run has or that is shipped" in standing(evaluation, RULES).caption
    caption = standing(evaluation, RULES, checked=True).caption
    assert "the best bound that the files of the runs prove or that is shipped" in caption
    assert "the run's own bound, too, as far as these files prove it." in caption


def test_what_no_setting_has_run_on_is_not_solved() -> None:
    runs = [made("tiny/chain2-s0", 100, 1.0), made("tiny/chain2-s1", 100, 1.0)]
    evaluation = evaluate(runs, whole=True)
    unrun = without_run(evaluation, "Protocol 2026, on suite tiny")
    assert unrun == 49
    assert without_run(evaluation, "Protocol 2026") == 127
    assert without_run(evaluation, "a configuration of mine") == 0
    found = standing(evaluation, RULES, unrun)
    (cells,) = found.data.rows
    assert cells[1:5] == (51, 49, 2, 2)
    assert cells[7] == pytest.approx((2.0**2 * 11.0**49) ** (1 / 51) - 1)
    assert "49 instances have no run at all" in found.caption


def test_settings_are_compared_on_all_problems_of_a_protocol() -> None:
    runs = [made("p", 100, 1.0), made("q", 100, 1.0), made("q", 100, 1.0, method="b")]
    assert evaluate(runs).common() == ["q"]
    whole = evaluate(runs, whole=True)
    assert whole.common() == ["p", "q"]
    assert whole.times(Setting("b", time_limit=10.0)) == {"p": math.inf, "q": 100}


def test_bounds_from_elsewhere_count_if_no_schedule_refutes_them(caplog: pytest.LogCaptureFixture) -> None:
    run = made("p", 150, 1.0)

    def gap(bound: int, certified: bool) -> float:
        return evaluate([run], {("p", "contiguous"): Bound(bound, "flow", certified)}).gap(run)

    assert (gap(90, True), gap(120, True), gap(150, False)) == (0.5, 0.25, 0.0)
    assert gap(160, False) == 0.5
    assert "p: 150 ns by a is under the known bound of 160 ns by flow, which is left out" in caplog.text
    with pytest.raises(SweepContradictionError, match="p: 150 ns by a is under the known bound of 160 ns"):
        gap(160, True)


def test_known_bounds_are_those_of_the_suites_of_the_runs() -> None:
    records = best_known("tiny").records
    mine, tiny = made("mine/other", 100, 1.0), made("tiny/chain2-s0", 100, 1.0)
    found = known_bounds([tiny, mine])
    assert found == {(one.instance_sha256, one.memory_model): one.bound for one in records}
    assert known_bounds([replace(mine, seed=1)]) == {}
