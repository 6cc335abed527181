"""Recomputation together with transfers: proofs on tiny instances, and what it buys on two networks.

``pebbler bench docs/recomputation.toml -o docs/data/recomputation.sqlite`` makes the runs of the study;
``python docs/scripts/recomputation.py --write docs/recomputation.md`` puts both tables into the page.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from chain import page_sized
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.sweeps.results import Results, Run, origins
from pebbler.heuristics.recomputation.reruns import plan_of
from pebbler.instances.instance import Instance
from pebbler.instances.suites.tiny import recomputing
from pebbler.instances.transforms import in_parts
from pebbler.solver.bounds import Bound
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.model import Integrality
from pebbler.solver.flow.recompute import recompute_bound
from pebbler.solver.solve import solve

DATA = Path("docs/data/recomputation.sqlite")
BEGIN, END = "<!-- begin study -->\n", "<!-- end study -->\n"
BEGIN_TINY, END_TINY = "<!-- begin tiny -->\n", "<!-- end tiny -->\n"

TINY, TINY_IN_PARTS = 400, 450
"""Tiny instances without parts, and with."""

_STATES = 20_000
"""States after which exhaustive search gives up on an instance."""

_COLUMNS = (("flow", ()), ("flow-recompute", ("transfers",)), ("flow-recompute", ()))
"""Methods of the study, and the rules that they leave out."""


def in_parts_too(count: int) -> Iterator[Instance]:
    """Return the first tiny instances that have both tensors in parts and tasks that may run again."""
    drawn = (recomputing(seed, parts=True) for seed in itertools.count())
    found = (
        instance
        for instance in drawn
        if in_parts(instance) and any(task.recomputable for task in instance.tasks)
    )
    return itertools.islice(found, count)


def tiny_table(instances: Iterable[Instance], what: str) -> str:
    """Bounds, exhaustive search in divisible memory and schedules, on tiny instances with copies and all.

    Raises
    ------
    AssertionError
        When they are not in this order, or there is a schedule where exhaustive search has none.
    """
    count = searched = again = 0
    found: dict[str, list[float]] = {
        kind: [] for kind in ("LP", "certified", "MILP", "contiguous schedule", "paged schedule")
    }
    for instance in instances:
        count += 1
        try:
            optimum = brute_force(instance, "divisible", most_states=_STATES)
        except TimeoutError:
            continue
        searched += 1
        made = _made(instance)
        if optimum is None:
            assert set(made.values()) == {math.inf}, f"{instance.name}: a schedule of what has none"
            continue
        again += bool(plan_of(optimum))
        best = optimum.makespan_ns
        proven = _proven(instance)
        for name, value in proven.items():
            assert value <= best, f"{instance.name}: {name} {value} is above the search's {best}"
        for name, value in made.items():
            assert value >= best, f"{instance.name}: a {name} of {value} is under the search's {best}"
        for name, value in (proven | made).items():
            found[name].append(_ratio(value, best))
    told = f"{count} {what}, {searched} of them searched to the end; {len(found['LP'])} have a schedule, "
    told += f"in {again} of which the optimum runs a task again.\n\n"
    rows = [
        (
            name,
            str(sum(ratio == 1 for ratio in ratios)),
            str(sum(ratio != 1 for ratio in ratios)),
            f"{math.fsum(finite) / len(finite):.4f}",
            f"{max(finite, key=lambda ratio: abs(ratio - 1)):.4f}",
            str(len(ratios) - len(finite)),
        )
        for name, ratios in found.items()
        for finite in [[ratio for ratio in ratios if ratio < math.inf]]
    ]
    return told + markdown(("", "equal", "strict", "mean ratio", "farthest", "none found"), rows)


def _made(instance: Instance) -> dict[str, float]:
    """Makespans of the method in two memory models, pages in units of pages; infinite where it finds none."""
    contiguous = solve(instance, "flow-recompute")
    paged = solve(page_sized(instance), "flow-recompute", memory="paged")
    return {
        f"{result.memory_model} schedule": math.inf if result.makespan_ns is None else result.makespan_ns
        for result in (contiguous, paged)
    }


def _proven(instance: Instance) -> dict[str, float]:
    """Bounds without whole variables and with, every task a checkpoint; what is certified of the first."""
    linear, whole = _bound(instance, "none"), _bound(instance, "all")
    return {"LP": linear.lower_bound_ns, "certified": linear.certified_ns, "MILP": whole.lower_bound_ns}


def _ratio(value: float, best: int) -> float:
    return 1.0 if value == best else value / max(best, 1)


def _bound(instance: Instance, integrality: Integrality) -> Bound:
    bound = recompute_bound(instance, range(len(instance.tasks)), integrality=integrality)
    assert bound is not None, f"{instance.name}: there is a schedule, and the solver says that there is none"
    return bound


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
    parser = argparse.ArgumentParser(prog="python docs/scripts/recomputation.py", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument(
        "--no-tiny", action="store_true", help="leave the tables of tiny instances as they are"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    options = parser.parse_args(arguments)
    if not options.no_tiny:
        whole = tiny_table(map(recomputing, range(TINY)), "instances")
        parts = tiny_table(in_parts_too(TINY_IN_PARTS), "instances with tensors in parts")
        publish(f"{whole}\n{parts}", options.write, BEGIN_TINY, END_TINY)
    with Results(options.data) as results:
        publish(study_table(results.runs()), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
