"""The core grid: the papers' networks on two devices under tight budgets, measured against targets.

``python -m pebbler.benchmark.core_grid`` makes the runs that the data file lacks; ``--write FILE`` puts its
tables into the page. It can be stopped at any time, and goes on where it was.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median

from ..instances.memory import least_budget, parse_budget
from ..instances.units import format_size, format_time
from ..instances.workload import Workload
from ..validate.schedule import MemoryModel
from .page import markdown, publish
from .runs import Cell, Job, Run, make_runs, origins, read_runs

NETWORKS = (
    ("vgg16", 256),
    ("vgg16", 64),
    ("resnet34", 256),
    ("vgg:groups=12-12-24-25-25", 128),
    ("vgg:groups=2-24-64-4-4", 128),
    ("resnet152", 256),
    ("vgg416", 32),
    ("resnet1517", 32),
)
"""Networks and batches."""

DEVICES = ("K40", "V100")
PERCENTAGES = ("75%", "50%", "30%", "20%")
"""Budgets, of the peak without a limit; those under the least budget are left out."""

LEAST = "1.05xMmin"
MODELS: tuple[MemoryModel, ...] = ("contiguous", "paged", "divisible")
DATA = Path("docs/data/core-grid.json")
BEGIN, END = "<!-- begin core-grid -->\n", "<!-- end core-grid -->\n"

_HARDEST = 8
_LONG = 600
"""Seconds that the hardest cells get."""

_MOST_BYTES = 4e9


@dataclass(frozen=True, slots=True)
class Target:
    """What the gaps of a memory model should be.

    Attributes
    ----------
    median, most, worst
        Of all cells, of 90 % of them, and of each; None: no target.
    long
        Of each of the hardest cells when they get ten minutes.
    """

    median: float | None
    most: float
    worst: float
    long: float


TARGETS: dict[MemoryModel, Target] = {
    "contiguous": Target(None, 0.02, 0.05, 0.02),
    "paged": Target(0.001, 0.01, 0.03, 0.01),
}


def cells() -> Iterator[Cell]:
    """Yield the cells of the grid, the small networks first."""
    for network, batch in NETWORKS:
        for device in DEVICES:
            instance = Workload(network, batch, device).instance(0, check_budget=False)
            least = least_budget(instance)
            for budget in (*PERCENTAGES, LEAST):
                if parse_budget(budget, instance) >= least:
                    yield Cell(network, batch, device, budget)


def blame(run: Run, runs: Sequence[Run]) -> str:
    """Say what keeps a run from its target, by the best bound and schedules that any run found.

    Returns
    -------
    str
        Nothing where the run meets its target; ``bound``, ``schedule``, or both with ``or`` between them,
        where the best bound of the cell alone closes the gap, or the best schedule in the same memory model;
        ``bound and schedule`` where only both do; ``addresses`` where a schedule in another memory model and
        the best bound do; else ``open``.
    """
    limit = TARGETS[run.memory].most
    if run.found is None or run.found.makespan_ns is None:
        return "no schedule"
    if _within(run.found.makespan_ns, run.found.lower_bound_ns, limit):
        return ""
    peers = [
        (other.memory, other.found)
        for other in (run, *runs)
        if other.found is not None
        and other.cell == run.cell
        and other.found.instance_sha256 == run.found.instance_sha256
    ]
    bound = max(found.lower_bound_ns for _, found in peers)
    made = [(memory, found.makespan_ns) for memory, found in peers if found.makespan_ns is not None]
    best = min(makespan for memory, makespan in made if memory == run.memory)
    alone = [
        what
        for what, makespan, proven in (
            ("bound", run.found.makespan_ns, bound),
            ("schedule", best, run.found.lower_bound_ns),
        )
        if _within(makespan, proven, limit)
    ]
    if alone:
        return " or ".join(alone)
    if _within(best, bound, limit):
        return "bound and schedule"
    return "addresses" if _within(min(makespan for _, makespan in made), bound, limit) else "open"


def _within(makespan: int, bound: int, limit: float) -> bool:
    return makespan - bound <= limit * bound


def hardest(runs: Sequence[Run]) -> list[str]:
    """Return the cells whose gaps are the greatest multiples of their targets, the worst first."""
    excess: dict[str, float] = {}
    for run in runs:
        if run.memory in TARGETS:
            times = _gap(run) / TARGETS[run.memory].most
            excess[run.cell] = max(times, excess.get(run.cell, 0.0))
    return sorted(excess, key=lambda cell: -excess[cell])[:_HARDEST]


def report(runs: Sequence[Run]) -> str:
    """Return the tables as Markdown: for each time limit a summary and the cells."""
    text = origins(runs)
    for seconds in sorted({run.seconds for run in runs}):
        some = [run for run in runs if run.seconds == seconds]
        text += f"\n## {seconds:g} s a cell\n\n{_summary(some, long=seconds >= _LONG)}\n"
        peak = max((run.found.peak_rss_bytes for run in some if run.found is not None), default=0)
        text += f"Memory: at most {format_size(peak)}, target {_verdict(peak, _MOST_BYTES, '4 GB')}.\n\n"
        if seconds < _LONG:
            names = hardest(some)
            text += f"The {len(names)} hardest cells, the worst first: {', '.join(names)}.\n\n"
        text += _cells_table(some, runs)
    return text


def _summary(runs: Sequence[Run], *, long: bool) -> str:
    rows = []
    for memory, target in TARGETS.items():
        gaps = sorted(_gap(run) for run in runs if run.memory == memory)
        if not gaps:
            continue
        most = target.long if long else target.most
        ranks: tuple[tuple[float, float | None], ...] = (
            (median(gaps), None if long else target.median),
            (_rank(gaps, 0.9), most),
            (gaps[-1], target.long if long else target.worst),
        )
        rows.append(
            (
                memory,
                str(len(gaps)),
                str(sum(gap <= most for gap in gaps)),
                *(
                    _percent(gap) if limit is None else f"{_percent(gap)}, {_verdict(gap, limit)}"
                    for gap, limit in ranks
                ),
            )
        )
    return markdown(("memory", "cells", "within target", "median", "90 % of the cells", "worst"), rows)


def _cells_table(some: Sequence[Run], runs: Sequence[Run]) -> str:
    rows = []
    for cell in dict.fromkeys(run.cell for run in some):
        found = {run.memory: run for run in some if run.cell == cell}
        made = [run.found for run in found.values() if run.found is not None]
        best = max(made, key=lambda one: one.lower_bound_ns, default=None)
        least = min((one.makespan_ns for one in made if one.makespan_ns is not None), default=None)
        failures = {f"{memory}: {run.failure}" for memory, run in found.items() if run.failure is not None}
        misses = [
            f"{memory}: {why}"
            for memory in TARGETS
            if memory in found and (why := blame(found[memory], runs)) not in ("", "no schedule")
        ]
        relaxed = ""
        if best is not None and least is not None:
            relaxed = _percent((least - best.lower_bound_ns) / best.lower_bound_ns)
        rows.append(
            (
                cell,
                "" if best is None else str(best.tasks),
                "" if best is None else f"{format_time(best.lower_bound_ns)} ({best.bound_by})",
                *(_percent(_gap(found[m])) if m in found else "" for m in TARGETS),
                relaxed,
                "; ".join([*misses, *sorted(failures)]),
            )
        )
    header = ("cell", "tasks", "best bound", *TARGETS, "divisible", "misses its target")
    return markdown(header, rows)


def _gap(run: Run) -> float:
    """Gap of a run; infinite without a schedule."""
    return math.inf if run.gap is None else run.gap


def _rank(ordered: Sequence[float], share: float) -> float:
    """Return the least value that so large a share of the values does not exceed."""
    return ordered[math.ceil(share * len(ordered)) - 1]


def _verdict(value: float, limit: float, told: str | None = None) -> str:
    return f"{'met' if value <= limit else 'missed'}: {told or _percent(limit)}"


def _percent(gap: float) -> str:
    return "no schedule" if math.isinf(gap) else f"{gap:.2%}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, and put the tables into a page or print them."""
    parser = argparse.ArgumentParser(prog="python -m pebbler.benchmark.core_grid", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="time limit; default: 60")
    parser.add_argument(
        "--memory", default="paged,contiguous", metavar="A,B,...", help="default: paged,contiguous"
    )
    parser.add_argument(
        "--cells",
        default="*",
        metavar="PATTERN,...",
        help="names NETWORK/BATCH/DEVICE/BUDGET, with * and ?; none: only the tables; default: all",
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--again", action="store_true", help="make the runs that the file has, too")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    options = parser.parse_args(arguments)
    models = [model for model in MODELS if model in options.memory.split(",")]
    if len(models) != len(set(options.memory.split(","))):
        parser.error(f"--memory is not some of {', '.join(MODELS)}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    patterns = options.cells.split(",")
    chosen = [cell for cell in cells() if any(fnmatchcase(cell.name, pattern) for pattern in patterns)]
    if not chosen and options.cells != "none":
        parser.error(f"no cell matches '{options.cells}'")
    jobs = [Job(cell, model, options.seconds) for cell in chosen for model in models]
    make_runs(jobs, options.data, again=options.again)
    publish(report(read_runs(options.data)), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
