"""What each rule of the method ``flow`` buys: the method with all of them, and without each.

``python -m pebbler.benchmark.ablations`` makes the runs that the data file lacks; ``--write FILE`` puts
its tables into the page. It can be stopped at any time, and goes on where it was.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from ..heuristics.methods import find_method
from ..instances.units import format_time
from .page import markdown, publish
from .runs import METHOD, Cell, Job, Run, make_runs, origins, read_runs

CELLS = (
    Cell("vgg16", 256, "V100", "1.05xMmin"),
    Cell("vgg16", 64, "K40", "1.05xMmin"),
    Cell("resnet34", 256, "K40", "50%"),
    Cell("resnet34", 256, "V100", "1.05xMmin"),
    Cell("vgg:groups=2-24-64-4-4", 128, "V100", "30%"),
    Cell("resnet152", 256, "V100", "50%"),
)
"""Small to middle-sized ones of the core grid, where schedules or bounds are not easy."""

DATA = Path("docs/data/ablations.json")
BEGIN, END = "<!-- begin ablations -->\n", "<!-- end ablations -->\n"


def jobs(cells: Sequence[Cell], seconds: float) -> Iterator[Job]:
    """Yield the runs of some cells in contiguous memory: with every rule, then without each."""
    for cell in cells:
        for without in ((), *((rule,) for rule in find_method(METHOD).rules)):
            yield Job(cell, "contiguous", seconds, without=without)


def report(runs: Sequence[Run]) -> str:
    """Return the tables as Markdown: for each time limit the rules, and the runs of each cell."""
    text = origins(runs)
    for seconds in sorted({run.seconds for run in runs}):
        some = [run for run in runs if run.seconds == seconds]
        text += f"\n## {seconds:g} s a run\n\n{_summary(some)}\n{_table(some)}"
    return text


def _summary(runs: Sequence[Run]) -> str:
    rows = []
    for without in dict.fromkeys(run.without for run in runs):
        some = [run for run in runs if run.without == without]
        gaps = [math.inf if run.gap is None else run.gap for run in some]
        rows.append((_left_out(without), str(len(some)), _percent(median(gaps)), _percent(max(gaps))))
    return markdown(("without", "cells", "median gap", "worst gap"), rows)


def _table(runs: Sequence[Run]) -> str:
    whole = {run.cell: run.found for run in runs if not run.without}
    rows = []
    for run in sorted(runs, key=lambda run: run.cell):
        if run.found is None:
            rows.append((run.cell, _left_out(run.without), run.failure or "", "", ""))
            continue
        reference = whole.get(run.cell)
        makespan = run.found.makespan_ns
        rows.append(
            (
                run.cell,
                _left_out(run.without),
                "no schedule"
                if makespan is None
                else _beside(makespan, None if reference is None else reference.makespan_ns),
                _beside(run.found.lower_bound_ns, None if reference is None else reference.lower_bound_ns)
                + f" {run.found.bound_by}",
                "" if run.gap is None else _percent(run.gap),
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


def _percent(gap: float) -> str:
    return "no schedule" if math.isinf(gap) else f"{gap:.2%}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, and put the tables into a page or print them."""
    parser = argparse.ArgumentParser(prog="python -m pebbler.benchmark.ablations", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="time limit; default: 20")
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--again", action="store_true", help="make the runs that the file has, too")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    make_runs(jobs(CELLS, options.seconds), options.data, again=options.again)
    publish(report(read_runs(options.data)), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
