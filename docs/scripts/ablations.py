"""What each rule of the method ``flow`` buys: the method with all of them, and without each.

``python docs/scripts/ablations.py`` makes the runs that the data file lacks; ``--write FILE`` puts
its tables into the page. It can be stopped at any time, and goes on where it was.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import core_grid
from core_grid import METHOD, by_seconds, failure
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.report.exhibits import percent
from pebbler.benchmark.sweeps.jobs import Job
from pebbler.benchmark.sweeps.problems import WorkloadProblem
from pebbler.benchmark.sweeps.results import Run, origins, read_latest
from pebbler.benchmark.sweeps.runner import make_in_turn
from pebbler.heuristics.methods import find_method
from pebbler.instances.units import format_time
from pebbler.instances.workload import Workload

CELLS = (
    WorkloadProblem(Workload("vgg16", 256, "V100"), "1.05xMmin"),
    WorkloadProblem(Workload("vgg16", 64, "K40"), "1.05xMmin"),
    WorkloadProblem(Workload("resnet34", 256, "K40"), "50%"),
    WorkloadProblem(Workload("resnet34", 256, "V100"), "1.05xMmin"),
    WorkloadProblem(Workload("vgg:groups=2-24-64-4-4", 128, "V100"), "30%"),
    WorkloadProblem(Workload("resnet152", 256, "V100"), "50%"),
)
"""Small to middle-sized ones of the core grid, where schedules or bounds are not easy."""

DATA = Path("docs/data/ablations.sqlite")
BEGIN, END = "<!-- begin ablations -->\n", "<!-- end ablations -->\n"


def jobs(cells: Sequence[WorkloadProblem], seconds: float) -> Iterator[Job]:
    """Yield the runs of some cells in contiguous memory: with every rule, then without each."""
    left_out = ((), *((rule,) for rule in find_method(METHOD).rules))
    return core_grid.jobs(cells, [core_grid.setting("contiguous", seconds, without) for without in left_out])


def report(runs: Sequence[Run]) -> str:
    """Return the tables as Markdown: for each time limit the rules, and the runs of each cell."""
    text = "".join(f"- {origin}.\n" for origin in origins(runs))
    for seconds, some in by_seconds(runs).items():
        text += f"\n## {seconds:g} s a run\n\n{_summary(some)}\n{_table(some)}"
    return text


def _summary(runs: Sequence[Run]) -> str:
    rows = []
    for without in dict.fromkeys(run.setting.without for run in runs):
        gaps = [run.found.gap for run in runs if run.setting.without == without]
        rows.append((_left_out(without), str(len(gaps)), percent(median(gaps)), percent(max(gaps))))
    return markdown(("without", "cells", "median gap", "worst gap"), rows)


def _table(runs: Sequence[Run]) -> str:
    whole = {run.about.problem: run.found for run in runs if not run.setting.without}
    rows = []
    for run in sorted(runs, key=lambda run: run.about.problem):
        found, cell, left_out = run.found, run.about.problem, _left_out(run.setting.without)
        if found.lower_bound_ns is None:
            rows.append((cell, left_out, failure(run) or "", "", ""))
            continue
        reference = whole.get(cell)
        rows.append(
            (
                cell,
                left_out,
                "no schedule"
                if found.iteration_ns is None
                else _beside(found.iteration_ns, None if reference is None else reference.iteration_ns),
                _beside(found.lower_bound_ns, None if reference is None else reference.lower_bound_ns)
                + f" {found.bound_by}",
                percent(found.gap),
            )
        )
    return markdown(("cell", "without", "makespan", "bound", "gap"), rows)


def _beside(time_ns: int, reference_ns: int | None) -> str:
    """Tell a time, and how far it is from that with every rule."""
    told = format_time(time_ns)
    if reference_ns is None:
        return told
    return f"{told} ({(time_ns - reference_ns) / reference_ns:+.2%})"


def _left_out(without: Sequence[str]) -> str:
    return ", ".join(without) or "nothing"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, and put the tables into a page or print them."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/ablations.py", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="time limit; default: 20")
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--again", action="store_true", help="make the runs that the file has, too")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    make_in_turn(list(jobs(CELLS, options.seconds)), options.data, again=options.again)
    publish(report(read_latest(options.data)), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
