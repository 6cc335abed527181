"""The papers' rules for the sub-batch beside the best one, on VGG-16.

``python docs/scripts/sub_batches.py`` prints the table of docs/sub-batches.md; ``--write FILE`` puts it
into the page, and ``--seconds S`` sets the time limit of each search and each schedule.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pebbler.benchmark.comparison.plan import auto_budget
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.heuristics.papers.modnn_sub_batch import date, tpds
from pebbler.instances.units import format_size, format_time
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
from pebbler.solver.sub_batch_search import Choice, Iterations, search_sub_batch

WORKLOAD = Workload("vgg16", 256, "K40")
BUDGETS = ("12GiB", "6GiB", "3GiB", "1.5GiB", "1.05xMmin")
METHODS = ("modnn", "flow")
RULES = {"eq. 8 (TPDS)": tpds, "eq. 3 (DATE)": date}
BEGIN, END = "<!-- begin sub-batches -->\n", "<!-- end sub-batches -->\n"


def rows(workload: Workload, budget: str, seconds: float) -> list[tuple[str, ...]]:
    """Return the cells of the rows of a budget: for each method, each rule and the search."""
    size = auto_budget(workload, budget)
    iterations = Iterations(workload, size)
    choices = {method: search_sub_batch(iterations, method, time_limit=seconds) for method in METHODS}
    bound = iterations.least_bound()
    found: list[tuple[str, str, int | None, int | None, str]] = []
    for method, choice in choices.items():
        for rule, choose in RULES.items():
            b = choose(workload, size)
            found.append((method, rule, b, iteration_ns(iterations, method, b, seconds), ""))
        found.append((method, "search", choice.sub_batch, choice.iteration_ns, _told(choice)))
    return [
        (
            f"{budget} ({format_size(size)})",
            method,
            rule,
            " + ".join(f"{n} x {size}" for size, n in workload.rounds(b)) if b else "",
            "no schedule" if ns is None else format_time(ns),
            "" if ns is None else f"{bound.gap(ns):.2%}",
            words,
        )
        for method, rule, b, ns, words in found
    ]


def iteration_ns(iterations: Iterations, method: str, sub_batch: int, seconds: float) -> int | None:
    """Return the time of an iteration by a method at a sub-batch; None where it has no schedule."""
    if not iterations.fits(sub_batch):
        return None
    total = 0
    for instance in iterations.instances(sub_batch):
        makespan = solve(instance, method, time_limit=seconds).makespan_ns
        if makespan is None:
            return None
        total += instance.rounds * makespan
    return total


def _told(choice: Choice) -> str:
    """What the search did, in words."""
    pruned = ", ".join(f"{count} by {name}" for name, count in choice.pruned.items())
    return f"{choice.evaluated} tried; not tried: {pruned or 'none'}; {choice.stopped_by}"


def table(seconds: float) -> str:
    """Return all rows as Markdown."""
    header = ("budget", "method", "rule", "rounds", "iteration", "above the bound", "search")
    return markdown(header, [row for budget in BUDGETS for row in rows(WORKLOAD, budget, seconds)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or put it into a page."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/sub_batches.py", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    parser.add_argument("--seconds", type=float, metavar="S", default=10.0, help="time limit")
    options = parser.parse_args(arguments)
    publish(table(options.seconds), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
