"""Recomputation together with transfers: proofs on tiny instances, and what it buys on two networks.

``pebbler bench docs/recomputation.toml -o docs/data/recomputation.sqlite`` makes the runs of the study;
``python -m pebbler.benchmark.recomputation --write docs/recomputation.md`` puts both tables into the page.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from ..heuristics.reruns import plan_of
from ..instances.instance import Instance
from ..solver.brute_force import brute_force
from ..solver.flow import Integrality
from ..solver.flow_recompute import recompute_bound
from ..solver.solve import solve
from .page import markdown, publish
from .results import Results, Run, origins
from .tiny import recomputing

DATA = Path("docs/data/recomputation.sqlite")
BEGIN, END = "<!-- begin study -->\n", "<!-- end study -->\n"
BEGIN_TINY, END_TINY = "<!-- begin tiny -->\n", "<!-- end tiny -->\n"

TINY = 400
"""Tiny instances."""

_STATES = 20_000
"""States after which exhaustive search gives up on an instance."""

_COLUMNS = (("flow", ()), ("flow-recompute", ("transfers",)), ("flow-recompute", ()))
"""Methods of the study, and the rules that they leave out."""


def tiny_table(count: int) -> str:
    """Bounds, exhaustive search in divisible memory and schedules, on tiny instances with copies and all.

    Raises
    ------
    AssertionError
        When they are not in this order, or there is a schedule where exhaustive search has none.
    """
    searched = again = 0
    found: dict[str, list[float]] = {"LP": [], "MILP": [], "schedule": []}
    for instance in map(recomputing, range(count)):
        try:
            optimum = brute_force(instance, "divisible", most_states=_STATES)
        except TimeoutError:
            continue
        searched += 1
        result = solve(instance, "flow-recompute")
        if optimum is None:
            assert result.schedule is None, instance.name
            continue
        again += bool(plan_of(optimum))
        best = optimum.makespan_ns
        made = math.inf if result.makespan_ns is None else result.makespan_ns
        for what, value in (("LP", _bound(instance, "none")), ("MILP", _bound(instance, "all"))):
            assert value <= best <= made, f"{instance.name}: {what} {value}, search {best}, schedule {made}"
            found[what].append(_ratio(value, best))
        found["schedule"].append(_ratio(made, best))
    told = f"{count} instances, {searched} of them searched to the end; {len(found['LP'])} have a schedule, "
    told += f"in {again} of which the optimum runs a task again.\n\n"
    rows = [
        (
            what,
            str(sum(ratio == 1 for ratio in ratios)),
            str(sum(ratio != 1 for ratio in ratios)),
            f"{math.fsum(finite) / len(finite):.4f}",
            f"{max(finite, key=lambda ratio: abs(ratio - 1)):.4f}",
            str(len(ratios) - len(finite)),
        )
        for what, ratios in found.items()
        for finite in [[ratio for ratio in ratios if ratio < math.inf]]
    ]
    return told + markdown(("", "equal", "strict", "mean ratio", "farthest", "none found"), rows)


def _ratio(value: float, best: int) -> float:
    return 1.0 if value == best else value / max(best, 1)


def _bound(instance: Instance, integrality: Integrality) -> int:
    bound = recompute_bound(instance, range(len(instance.tasks)), integrality=integrality)
    assert bound is not None, f"{instance.name}: there is a schedule, and the solver says that there is none"
    return bound.lower_bound_ns


def study_table(runs: Sequence[Run]) -> str:
    """Overheads over the ideal of transfers alone, of recomputation alone, and of both, by problem."""
    rows = []
    for problem in dict.fromkeys(run.about.problem for run in runs):
        cells = [problem]
        made = {
            (run.setting.method, run.setting.without): run for run in runs if run.about.problem == problem
        }
        for key in _COLUMNS:
            cells.append(_overhead(made[key]) if key in made else "")
        both = made.get(_COLUMNS[-1])
        cells += ["", ""] if both is None else [_least(both), f"{both.found.gap:.2%}"]
        rows.append(cells)
    header = ("problem", "transfers", "recomputation", "both", "both, at least", "gap of both")
    return f"{markdown(header, rows)}\n{'; '.join(origins(runs))}.\n"


def _overhead(run: Run) -> str:
    return "no schedule" if run.found.iteration_ns is None else _over(run, run.found.iteration_ns)


def _least(run: Run) -> str:
    return "" if run.found.lower_bound_ns is None else _over(run, run.found.lower_bound_ns)


def _over(run: Run, ns: int) -> str:
    ideal = run.found.ideal_ns or 1
    return f"{(ns - ideal) / ideal:.1%}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or put them into a page."""
    parser = argparse.ArgumentParser(prog="python -m pebbler.benchmark.recomputation", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--count", type=int, default=TINY, metavar="N", help="tiny instances; 0: not again")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    options = parser.parse_args(arguments)
    if options.count:
        publish(tiny_table(options.count), options.write, BEGIN_TINY, END_TINY)
    with Results(options.data) as results:
        publish(study_table(results.runs()), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
