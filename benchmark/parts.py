"""Tensors in parts on the core grid: schedules, bounds, and what they gain over whole tensors.

``python -m pebbler.benchmark.parts`` makes the runs that the data file lacks; ``--write FILE`` puts its table
into the page. It can be stopped at any time, and goes on where it was. Runs with whole tensors are those of
the core grid's file.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median

from ..instances.units import format_time
from . import core_grid
from .core_grid import TARGETS, cells
from .page import markdown, publish
from .runs import Found, Job, Run, make_runs, origins, read_runs

METHOD = "flow-parts"
DATA = Path("docs/data/parts.json")
BEGIN, END = "<!-- begin parts -->\n", "<!-- end parts -->\n"

WORST = 0.03
"""Target of the paged gaps to the bound of parts."""


def report(runs: Sequence[Run], whole: Sequence[Run]) -> str:
    """Return the tables as Markdown: for each time limit a sentence and the cells.

    Parameters
    ----------
    runs
        With tensors in parts.
    whole
        With whole tensors, where there are some.
    """
    text = origins(runs)
    for seconds in sorted({run.seconds for run in runs}):
        some = [run for run in runs if run.seconds == seconds]
        beside = [run for run in whole if run.seconds == seconds]
        text += f"\n## {seconds:g} s a cell\n\n{_summary(some)}\n{_table(some, beside)}"
    return text


def _summary(runs: Sequence[Run]) -> str:
    gaps = [run.gap for run in runs if run.memory == "paged" and run.gap is not None]
    if not gaps:
        return ""
    verdict = "met" if max(gaps) <= WORST else "missed"
    return (
        f"Paged memory, {len(gaps)} cells: gaps of {median(gaps):.2%} in the median and {max(gaps):.2%} at "
        f"worst ({verdict}: {WORST:.0%}).\n"
    )


def _table(runs: Sequence[Run], whole: Sequence[Run]) -> str:
    rows = []
    for cell in dict.fromkeys(run.cell for run in runs):
        parts, other = _found(runs, cell), _found(whole, cell)
        best = max(parts.values(), key=lambda found: found.lower_bound_ns)
        bound = max((found.lower_bound_ns for found in other.values()), default=None)
        rows.append(
            (
                cell,
                f"{format_time(best.lower_bound_ns)} ({best.bound_by})",
                *(_time_and_gap(parts.get(memory)) for memory in TARGETS),
                "" if bound is None else format_time(bound),
                *(_time_and_gap(other.get(memory)) for memory in TARGETS),
                *(_beside(parts.get(memory), bound) for memory in TARGETS),
            )
        )
    header = (
        *("cell", "bound of parts", *TARGETS),
        *("bound of whole tensors", *(f"whole, {memory}" for memory in TARGETS)),
        *(f"parts, {memory}, against the bound of whole tensors" for memory in TARGETS),
    )
    return markdown(header, rows)


def _found(runs: Sequence[Run], cell: str) -> Mapping[str, Found]:
    """What runs of a cell have found, by memory model."""
    return {run.memory: run.found for run in runs if run.cell == cell and run.found is not None}


def _time_and_gap(found: Found | None) -> str:
    if found is None:
        return ""
    if found.makespan_ns is None or found.gap is None:
        return "no schedule"
    return f"{format_time(found.makespan_ns)} ({found.gap:.2%})"


def _beside(found: Found | None, bound: int | None) -> str:
    """How far a schedule in parts is from the bound of whole tensors; below it where negative."""
    if found is None or found.makespan_ns is None or bound is None:
        return ""
    return f"{(found.makespan_ns - bound) / bound:+.1%}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, and put the tables into a page or print them."""
    parser = argparse.ArgumentParser(prog="python -m pebbler.benchmark.parts", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="time limit; default: 60")
    parser.add_argument(
        "--memory", default="paged,contiguous", metavar="A,B", help="default: paged,contiguous"
    )
    parser.add_argument(
        "--cells",
        default="*",
        metavar="PATTERN,...",
        help="names NETWORK/BATCH/DEVICE/BUDGET, with * and ?; none: only the tables; default: all",
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument(
        "--whole", type=Path, default=core_grid.DATA, metavar="FILE", help=f"default: {core_grid.DATA}"
    )
    parser.add_argument("--again", action="store_true", help="make the runs that the file has, too")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    options = parser.parse_args(arguments)
    models = [model for model in TARGETS if model in options.memory.split(",")]
    if len(models) != len(set(options.memory.split(","))):
        parser.error(f"--memory is not some of {', '.join(TARGETS)}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    patterns = options.cells.split(",")
    chosen = [cell for cell in cells() if any(fnmatchcase(cell.name, pattern) for pattern in patterns)]
    if not chosen and options.cells != "none":
        parser.error(f"no cell matches '{options.cells}'")
    jobs = [Job(cell, model, options.seconds, method=METHOD) for cell in chosen for model in models]
    make_runs(jobs, options.data, again=options.again)
    publish(report(read_runs(options.data), read_runs(options.whole)), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
