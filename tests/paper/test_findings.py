"""What the study makes of runs: gaps by budget, the worth of each decision, copying or computing again."""

from __future__ import annotations

import math

import pytest
from matplotlib.figure import Figure
from msgspec.structs import replace

from findings import KINDS, Finding, decisions, gaps_by_budget, links, parts, together, with_bounds
from pebbler.benchmark.output.machine import Origin
from pebbler.benchmark.sweeps.jobs import Found, Setting
from pebbler.benchmark.sweeps.problems import About
from pebbler.benchmark.sweeps.results import Run
from pebbler.instances.errors import PebblerError
from pebbler.instances.memory import ideal_ns, least_budget
from pebbler.instances.transforms import LINKS
from variants import (
    DECISIONS,
    LINKED,
    REWORKED,
    Case,
    freedoms,
    limited,
    linked,
    problem,
)

CASE = Case("lenet", 8, "V100", "1.2xMmin")
IDEAL = ideal_ns(CASE.workload.instance(0, check_budget=False))


def made(
    name: str,
    method: str,
    iteration: int | None,
    bound: int,
    status: str = "feasible",
    ideal: int | None = None,
) -> Run:
    """A run on a problem that is its own checksum."""
    return Run(
        fingerprint=f"{name} {method}",
        about=About(name, name, "family", "net", 8, "K40", "executable", "8", "duplex", 5, 100),
        seed=0,
        setting=Setting(method),
        found=Found(
            status=status, stopped_by="done", iteration_ns=iteration, lower_bound_ns=bound, ideal_ns=ideal
        ),
        wall_seconds=1.0,
        date="2026-01-02",
        origin=Origin("a machine", "3.11.7", {"pebbler": "0.1.0"}, None),
    )


def test_gaps_are_by_budget_and_from_the_best_bound_of_any_file() -> None:
    budgets = {"1.05xMmin": 300, "100%": 110, "50%": 150}
    runs = [made(f"net/8/K40/{budget}", "rule", time, 100) for budget, time in budgets.items()]
    for i, took in enumerate((0.5, 0.02, 0.01)):
        runs[i] = replace(runs[i], found=replace(runs[i].found, solve_seconds=took))
    others = [made("net/8/K40/1.05xMmin", "flow", 220, 200)]
    finding = gaps_by_budget(with_bounds(runs, others))
    assert finding.exhibit.table.header == (
        "method",
        "100%",
        "50%",
        "1.05xMmin",
        "all",
        "worst",
        "with a schedule",
        "time",
    )
    ((name, *gaps, solved, time),) = finding.exhibit.table.rows
    assert (name, gaps, solved) == ("rule", ["10.00%", "50.00%", "50.00%", "50.00%", "50.00%"], "3 of 3")
    assert time == finding.facts["rule/seconds"] == "0.02 s"
    assert finding.facts["rule/tightest"] == "50.00%"
    told = {word: finding.facts[word] for word in ("problems", "networks", "budgets", "least-n", "best")}
    assert told == {"problems": "3", "networks": "1", "budgets": "3", "least-n": "1", "best": "rule"}


def test_columns_with_other_problems_are_not_joined() -> None:
    names = ("net/8/K40/Mmin+50%", "net/8/K40/Mmin+2%", "net/8/K40/Mmin+50%/steady, adamw")
    runs = [made(name, method, 120, 100) for name in names for method in ("vdnn-dyn", "modnn")]
    finding = gaps_by_budget(with_bounds(runs, []))
    assert finding.exhibit.table.header[1:3] == ("Mmin+50% (n=2)", "Mmin+2% (n=1)")
    assert [finding.facts[f"{kind}/problems"] for kind in KINDS] == ["1", "0", "2"]
    assert finding.facts["modnn/step"] == "20.00%"
    assert _lines(finding) == {"None"}
    assert "no line joins them" in finding.exhibit.caption
    assert "(n for each budget)" in finding.short
    alike = gaps_by_budget(with_bounds(runs[:4], []))
    assert _lines(alike) == {"-"}
    assert alike.exhibit.table.header[1:3] == ("Mmin+50%", "Mmin+2%")
    assert "(n=1 for each budget)" in alike.exhibit.caption
    assert "(n=1 for each budget)" in alike.short
    assert "no line joins them" not in alike.exhibit.caption


def _lines(finding: Finding) -> set[str]:
    """How the methods' lines look in a picture."""
    figure = Figure()
    finding.exhibit.draw(figure)
    lines = figure.axes[0].get_lines()
    return {str(line.get_linestyle()) for line in lines if not str(line.get_label()).startswith("_")}


def test_searches_are_compared_and_rules_have_a_best_of_their_own() -> None:
    times = {"local-search": (100, 110), "flow": (105, 108), "modnn": (130, 140)}
    runs = [
        made(f"net/8/K40/{budget}", method, time, 100)
        for method, some in times.items()
        for budget, time in zip(("50%", "30%"), some, strict=True)
    ]
    facts = gaps_by_budget(with_bounds(runs, [])).facts
    told = ("best", "best/median", "best-rule")
    assert [facts[word] for word in told] == ["local-search", "5.00%", "modnn"]
    versus = ("shorter", "longer", "equal", "saved")
    assert [facts[f"local-search/{word}"] for word in versus] == ["1", "1", "0", "1.46%"]
    assert "flow-recompute/shorter" not in facts
    assert facts["local-search/lost"] == "1.85%"
    assert (facts["local-search/behind-rules"], facts["modnn/loosest-worst"]) == ("0", "30.00%")


def test_what_proves_a_bound_is_counted_and_a_rule_may_be_ahead_of_a_search() -> None:
    runs = [
        made("net/8/K40/50%", "modnn", 100, 90),
        made("net/8/K40/50%", "flow", 105, 100),
        made("net/8/K40/50%", "flow-recompute", 120, 80),
    ]
    model = replace(runs[1].found, bound_by="flow-milp-highs", certified=False)
    runs[1] = replace(runs[1], found=model)
    facts = gaps_by_budget(with_bounds(runs, [])).facts
    told = ("by-flow", "by-flow/cnn", "by-flow/step", "by-single-peak", "by-word")
    assert [facts[f"flow/{word}"] for word in told] == ["1", "1", "0", "0", "1"]
    told = ("longer", "lost", "behind-rules", "behind-rules/most")
    assert [facts[f"flow-recompute/{word}"] for word in told] == ["1", "14.29%", "1", "20.00%"]


def test_planner_is_marked_and_has_its_own_bound() -> None:
    runs = [made("net/8/K40/50%", "rule", 120, 100), made("net/8/K40/50%", "planner", 90, 80)]
    runs[1] = replace(runs[1], found=replace(runs[1].found, instances=("another",)))
    finding = gaps_by_budget(with_bounds(runs, []))
    rows = {row[0]: row[1] for row in finding.exhibit.table.rows}
    assert rows == {"rule": "20.00%", "planner *": "12.50%"}
    assert finding.facts["planner/median"] == "12.50%"
    assert "an instance of its own" in finding.exhibit.caption


def test_method_without_schedules_has_no_gap() -> None:
    runs = [made("net/8/K40/50%", "rule", None, 100, "unknown"), made("net/8/K40/50%", "search", 100, 100)]
    finding = gaps_by_budget(with_bounds(runs, []))
    rows = {row[0]: row[1:] for row in finding.exhibit.table.rows}
    assert rows["rule"] == ("no schedule", "no schedule", "no schedule", "0 of 1", "")
    assert rows["search"] == ("0.00%", "0.00%", "0.00%", "1 of 1", "")


def test_each_set_of_decisions_has_the_best_of_its_sub_batches() -> None:
    times = {"b8-none": None, "b8-t": 4, "b8-a": None, "b8-ta": 3, "b4-a": 2, "b4-none": 5}
    runs = [
        made(
            problem(DECISIONS, CASE, word),
            "flow",
            None if time is None else time * IDEAL,
            IDEAL,
            "infeasible" if time is None else "feasible",
            IDEAL if word == "b8-ta" else 2 * IDEAL,
        )
        for word, time in times.items()
    ]
    finding = decisions(runs, [CASE])
    assert finding.exhibit.table.header == ("decisions", str(CASE))
    told = dict(finding.exhibit.table.rows)
    assert told["nothing"] == "no schedule"
    assert told["copies"] == "300.00% (300.00%)"
    assert told["algorithms + copies"] == "200.00% (200.00%)"
    assert told["sub-batch + algorithms"] == "100.00% (100.00%)"
    assert told["sub-batch + algorithms + copies"] == "200.00% (200.00%)"
    overheads = {word: value for _, word, value in finding.exhibit.data.rows}
    assert overheads["algorithms"] == math.inf
    assert overheads["sub-batch"] == pytest.approx(4.0)
    finding.exhibit.draw(Figure())
    with pytest.raises(PebblerError, match="no run has the ideal of the whole batch"):
        decisions(runs[:2], [CASE])


@pytest.mark.parametrize(
    ("copies", "bound", "again", "shorter"),
    [
        (120, 110, 105, "recomputation (proven)"),
        (120, 100, 105, "recomputation"),
        (104, 100, 105, "copying"),
        (None, 100, None, "neither"),
    ],
)
def test_recomputation_is_proven_shorter_only_below_the_bound_of_copying(
    copies: int | None, bound: int, again: int | None, shorter: str
) -> None:
    runs = [made(problem(LINKED, CASE, link), "flow", copies, bound, ideal=100) for link in LINKS]
    runs += [made(problem(REWORKED, CASE, link), "memonger-rule", again, 50) for link in LINKS]
    finding = links(runs, [CASE])
    assert [row[-1] for row in finding.exhibit.table.rows] == [shorter] * len(LINKS)
    assert finding.facts[f"{CASE.name}/{next(iter(LINKS))}/overhead"] == (
        "no schedule" if copies is None else f"{copies - 100:.2f}%"
    )
    assert finding.facts["cells"] == str(len(LINKS))
    assert finding.facts["proven"] == str(len(LINKS) * (shorter == "recomputation (proven)"))


def test_other_kinds_of_schedules_stand_beside_the_first_setting() -> None:
    runs = [
        made("net/8/K40/50%", "flow", 150, 100),
        made("net/8/K40/50%", "flow-recompute", 120, 90),
        made("net/8/K40/30%", "flow", 200, 100),
        made("net/8/K40/30%", "flow-recompute", None, 90),
    ]
    runs = [replace(run, found=replace(run.found, ideal_ns=100)) for run in runs]
    finding = together(runs)
    assert finding.exhibit.table.rows == (
        ("net/8/K40/50%", "50.00%", "20.00%"),
        ("net/8/K40/30%", "100.00%", "no schedule"),
    )
    gains = {"gain": "20.00%", "most": "20.00%", "shorter": "1"}
    assert finding.facts == {
        "problems": "2",
        **{f"flow-recompute/{name}": told for name, told in gains.items()},
    }
    finding.exhibit.draw(Figure())


def test_parts_and_whole_tensors_are_each_held_against_bounds_of_their_kind() -> None:
    def run(budget: str, method: str, iteration: int | None, bound: int) -> Run:
        one = made(f"net/8/K40/{budget}", method, iteration, bound)
        return replace(
            one, found=replace(one.found, ideal_ns=100, instances=(f"{method} {one.about.problem}",))
        )

    runs = [run("50%", "flow", 150, 140), run("50%", "flow-parts", 120, 90)]
    runs += [run("30%", "flow", 200, 100), run("30%", "flow-parts", None, 90)]
    longer = run("50%", "flow-parts", 120, 96)
    finding = parts(with_bounds(runs, [replace(longer, fingerprint="of the grid", seed=1)]))
    assert finding.exhibit.table.rows == (
        ("net/8/K40/50%", "50.00% (7.14%)", "20.00% (25.00%)", "20.00%", "-14.29%"),
        ("net/8/K40/30%", "100.00% (100.00%)", "no schedule", "no schedule", "no schedule"),
    )
    with pytest.raises(PebblerError, match="no problem has runs of both flow and flow-parts"):
        parts(with_bounds(runs[::2], []))
    assert finding.facts["below"] == "1"
    assert finding.facts["net/8/K40/50pc/below"] == "14.29%"
    finding.exhibit.draw(Figure())


# --- instances --------------------------------------------------------------------------------------------


def test_freedoms_are_all_decisions_at_every_half() -> None:
    found = list(freedoms(8))
    assert {one.sub_batch for one in found} == {8, 4, 2, 1}
    assert len({one.word for one in found}) == len(found) == 16
    assert {one.sub_batch for one in freedoms(12)} == {12, 6, 3}


def test_what_may_not_be_decided_is_not_in_the_instance() -> None:
    for freedom in freedoms(CASE.batch):
        instance = limited(CASE, freedom)
        if instance is None:
            continue
        assert least_budget(instance) <= instance.budget_bytes
        assert instance.rounds * freedom.sub_batch == CASE.batch
        assert any(b.offload_ns is not None for b in instance.blocks) == freedom.transfers
        assert any(len(t.algorithms) > 1 for t in instance.tasks) == freedom.algorithms


def test_budget_that_is_too_small_has_no_instance() -> None:
    tight = Case("lenet", 8, "V100", "64KiB")
    assert all(limited(tight, freedom) is None for freedom in freedoms(8))


def test_links_change_copies_alone() -> None:
    slow, fast = linked(CASE, "pcie3"), linked(CASE, "nvlink")
    assert slow.tasks == fast.tasks
    assert slow.budget_bytes == fast.budget_bytes
    for one, other in zip(slow.blocks, fast.blocks, strict=True):
        assert (one.offload_ns or 0) > (other.offload_ns or 0)
    assert any(task.recomputable for task in linked(CASE, "pcie3", recompute=True).tasks)
