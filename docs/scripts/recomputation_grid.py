"""Recomputation together with copies: a grid of networks under four budgets, measured against targets.

Each cell has its tensors in parts, and whole ones.

``python docs/scripts/recomputation_grid.py`` makes the runs that the data file lacks: a minute for each cell,
then ten minutes where that leaves too wide a gap. ``--write FILE`` puts the tables into the page. It can be
stopped at any time, and goes on where it was.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from statistics import median

from core_grid import by_seconds, verdict
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.report.exhibits import percent
from pebbler.benchmark.sweeps.jobs import GRACE, Job, Setting
from pebbler.benchmark.sweeps.problems import FileProblem, Problem, WorkloadProblem, about
from pebbler.benchmark.sweeps.results import Results, Run, origins, read_latest
from pebbler.benchmark.sweeps.runner import make
from pebbler.heuristics.parts import with_parts
from pebbler.instances.files import encode
from pebbler.instances.memory import least_budget, parse_budget
from pebbler.instances.units import format_time
from pebbler.instances.workload import Workload

NETWORKS = (
    ("resnet50", 64),
    ("densenet121", 256),
    ("googlenet", 256),
    ("gpt2", 8),
    ("vit_b16", 128),
    ("resnet152", 32),
    ("vgg416", 32),
    ("llama32_1b", 2),
)
"""Networks and batches."""

DEVICE = "V100"
BUDGETS = ("75%", "50%", "35%", "25%")
"""Budgets, of the peak without a limit; those under the least budget are left out."""

METHOD = "flow-recompute"
SHORT, LONG = 60.0, 600.0
"""Seconds that each cell gets, and those with a gap beyond `MEDIAN`."""

WORST, MEDIAN = 0.03, 0.01
"""Targets of the gaps."""

PARTS = "parts"
"""Last word of a cell's name whose tensors are in parts."""

DATA = Path("docs/data/recomputation-grid.sqlite")
BEGIN, END = "<!-- begin recomputation-grid -->\n", "<!-- end recomputation-grid -->\n"


@cache
def cells() -> tuple[WorkloadProblem, ...]:
    """Return the cells of the grid, network by network."""
    found = []
    for network, batch in NETWORKS:
        workload = Workload(network, batch, DEVICE)
        instance = workload.instance(0, check_budget=False)
        least = least_budget(instance)
        found += [
            WorkloadProblem(workload, budget) for budget in BUDGETS if parse_budget(budget, instance) >= least
        ]
    return tuple(found)


def in_parts(cell: WorkloadProblem) -> FileProblem:
    """Return a cell whose tensors are in parts."""
    (instance,) = cell.instances()
    return FileProblem(f"{cell.name}/{PARTS}", encode(with_parts(instance)))


def setting(seconds: float) -> Setting:
    """Return what a cell is solved with."""
    return Setting(METHOD, "paged", seconds, seconds + GRACE)


def jobs(cells: Iterable[Problem], seconds: float) -> list[Job]:
    """Return the runs of some cells."""
    return [Job(cell, about(cell, cell.instances()), setting(seconds)) for cell in cells]


def wide(cells: Iterable[Problem], runs: Iterable[Run]) -> list[Problem]:
    """Return the cells whose short runs leave a gap beyond `MEDIAN`, the widest first."""
    gaps = {run.about.problem: run.found.gap for run in runs if run.setting.time_limit == SHORT}
    found = [cell for cell in cells if gaps.get(cell.name, 0.0) > MEDIAN]
    return sorted(found, key=lambda cell: -gaps[cell.name])


def report(runs: Sequence[Run]) -> str:
    """Return the tables as Markdown: for tensors in parts and whole ones, a summary, and the cells."""
    texts = [
        f"### {title}\n\n{_tables(own)}"
        for title, are_parts in (("Tensors in parts", True), ("Whole tensors", False))
        if (own := [run for run in runs if run.about.problem.endswith(f"/{PARTS}") == are_parts])
    ]
    return "\n".join(texts) + "\n" + "".join(f"- {origin}.\n" for origin in origins(runs))


def _tables(runs: Sequence[Run]) -> str:
    limits = {
        seconds: {run.about.problem.removesuffix(f"/{PARTS}"): run for run in some}
        for seconds, some in by_seconds(runs).items()
    }
    short, long = limits.get(SHORT, {}), limits.get(LONG, {})
    best = {
        cell: min((run, long.get(cell, run)), key=lambda run: run.found.gap) for cell, run in short.items()
    }
    rows = [_summary(f"{SHORT:g} s", short)]
    if long:
        rows.append(
            _summary(f"{LONG:g} s where that leaves more than {percent(MEDIAN)} and there is a run", best)
        )
    text = markdown(("time", "cells", "median gap", "worst gap"), rows) + "\n"
    lacking = [cell for cell, run in short.items() if run.found.gap > MEDIAN and cell not in long]
    lacking.sort(key=_rank)
    if lacking:
        text += f"Without a run of {LONG:g} s yet: {', '.join(lacking)}.\n\n"
    return text + _cells_table(short, long)


def _summary(what: str, runs: Mapping[str, Run]) -> tuple[str, ...]:
    gaps = [run.found.gap for run in runs.values()]
    ranks = ((median(gaps), MEDIAN), (max(gaps), WORST))
    return what, str(len(gaps)), *(f"{percent(gap)}, {verdict(gap, limit)}" for gap, limit in ranks)


def _cells_table(short: dict[str, Run], long: dict[str, Run]) -> str:
    rows = []
    for cell, run in sorted(short.items(), key=lambda one: _rank(one[0])):
        both = [one.found for one in (run, long.get(cell)) if one is not None]
        ideal = run.found.ideal_ns or 1
        bound, bound_by = max((one.lower_bound_ns or 0, one.bound_by or "") for one in both)
        rows.append(
            (
                cell,
                str(run.about.tasks),
                format_time(ideal),
                f"+{percent((bound - ideal) / ideal)} ({bound_by})",
                *(_told(one, ideal) for one in (run, long.get(cell))),
            )
        )
    header = ("cell", "tasks", "ideal", "at least", f"{SHORT:g} s: over the ideal, gap", f"{LONG:g} s")
    return markdown(header, rows)


def _rank(cell: str) -> tuple[int, str, int]:
    """Where a cell stands in the table: by network, the largest budget first."""
    network, *_, budget = cell.split("/")
    names = list(dict(NETWORKS))
    return names.index(network) if network in names else len(names), network, -int(budget.rstrip("%"))


def _told(run: Run | None, ideal: int) -> str:
    if run is None:
        return ""
    if run.found.iteration_ns is None:
        return "no schedule"
    return f"+{percent((run.found.iteration_ns - ideal) / ideal)}, {percent(run.found.gap)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, or put the tables into a page."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/recomputation_grid.py", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="runs at once; default: 1")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page; without it, runs are made")
    options = parser.parse_args(arguments)
    if options.write is None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
        parts = tuple(map(in_parts, cells()))
        with Results(options.data, write=True) as results:
            make(jobs((*parts, *cells()), SHORT), results, ThreadPoolExecutor(options.at_once))
            for kind in (parts, cells()):
                chosen = wide(kind, read_latest(options.data))
                make(jobs(chosen, LONG), results, ThreadPoolExecutor(options.at_once))
        return
    publish(report(read_latest(options.data)), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
