"""The core grid: the papers' networks on two devices under tight budgets, measured against targets.

``python docs/scripts/core_grid.py`` makes the runs that the data file lacks; ``--write FILE`` puts its
tables into the page. It can be stopped at any time, and goes on where it was.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from statistics import median

from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.report.exhibits import percent
from pebbler.benchmark.sweeps.jobs import GRACE, Job, Setting
from pebbler.benchmark.sweeps.problems import WorkloadProblem, about
from pebbler.benchmark.sweeps.results import Run, origins, read_latest
from pebbler.benchmark.sweeps.runner import make_in_turn
from pebbler.instances.memory import least_budget, parse_budget
from pebbler.instances.units import format_size, format_time
from pebbler.instances.workload import Workload
from pebbler.validate.schedule import MemoryModel

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

METHOD = "flow"
LEAST = "1.05xMmin"
MODELS: tuple[MemoryModel, ...] = ("contiguous", "paged", "divisible")
DATA = Path("docs/data/core-grid.sqlite")
BEGIN, END = "<!-- begin core-grid -->\n", "<!-- end core-grid -->\n"

_HARDEST = 8
LONG = 600
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


@cache
def cells() -> tuple[WorkloadProblem, ...]:
    """Return the cells of the grid, the small networks first."""
    found = []
    for network, batch in NETWORKS:
        for device in DEVICES:
            workload = Workload(network, batch, device)
            instance = workload.instance(0, check_budget=False)
            least = least_budget(instance)
            for budget in (*PERCENTAGES, LEAST):
                if parse_budget(budget, instance) >= least:
                    found.append(WorkloadProblem(workload, budget))
    return tuple(found)


def setting(
    memory: MemoryModel, seconds: float, without: tuple[str, ...] = (), method: str = METHOD
) -> Setting:
    """Return what a cell is solved with; in divisible memory, a relaxation, it is searched only."""
    return Setting(
        method="local-search" if memory == "divisible" else method,
        memory_model=memory,
        time_limit=seconds,
        wall_limit=seconds + GRACE,
        workers=2,
        without=without,
    )


def jobs(cells: Iterable[WorkloadProblem], settings: Sequence[Setting]) -> Iterator[Job]:
    """Yield the runs of some cells, cell by cell."""
    for cell in cells:
        told = about(cell, cell.instances())
        yield from (Job(cell, told, one) for one in settings)


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
    memory = run.setting.memory_model
    limit = TARGETS[memory].most
    makespan, proven = run.found.iteration_ns, run.found.lower_bound_ns
    if makespan is None or proven is None:
        return "no schedule"
    if _within(makespan, proven, limit):
        return ""
    peers = [
        (other.setting.memory_model, other.found)
        for other in (run, *runs)
        if other.about.problem_sha256 == run.about.problem_sha256
    ]
    bound, paged_only = max(
        (found.lower_bound_ns, found.bounds_paged_only)
        for _, found in peers
        if found.lower_bound_ns is not None and (memory == "paged" or not found.bounds_paged_only)
    )
    made = [(model, found.iteration_ns) for model, found in peers if found.iteration_ns is not None]
    best = min(reached for model, reached in made if model == memory)
    alone = [
        what
        for what, makespan, proven in (("bound", makespan, bound), ("schedule", best, proven))
        if _within(makespan, proven, limit)
    ]
    if alone:
        return " or ".join(alone)
    if _within(best, bound, limit):
        return "bound and schedule"
    if paged_only:  # a schedule in another memory model says nothing beside it
        return "open"
    return "addresses" if _within(min(reached for _, reached in made), bound, limit) else "open"


def _within(makespan: int, bound: int, limit: float) -> bool:
    return makespan - bound <= limit * bound


def hardest(runs: Sequence[Run]) -> list[str]:
    """Return the cells whose gaps are the greatest multiples of their targets, the worst first."""
    excess: dict[str, float] = {}
    for run in runs:
        cell, memory = run.about.problem, run.setting.memory_model
        if memory in TARGETS:
            excess[cell] = max(run.found.gap / TARGETS[memory].most, excess.get(cell, 0.0))
    return sorted(excess, key=lambda cell: -excess[cell])[:_HARDEST]


def report(runs: Sequence[Run]) -> str:
    """Return the tables as Markdown: for each time limit a summary and the cells."""
    text = "".join(f"- {origin}.\n" for origin in origins(runs))
    names: list[str] = []
    for seconds, some in by_seconds(runs).items():
        text += f"\n## {seconds:g} s a cell\n\n{_summary(some, long=seconds >= LONG)}\n"
        peak = max(run.found.peak_rss_bytes or 0 for run in some)
        text += f"Memory: at most {format_size(peak)}, target {verdict(peak, _MOST_BYTES, '4 GB')}.\n\n"
        if seconds < LONG:
            names = hardest(some)
            text += f"The {len(names)} hardest cells, the worst first: {', '.join(names)}.\n\n"
        else:
            text += "".join(
                f"Hardest cells without a run yet, {memory}: {', '.join(which)}.\n\n"
                for memory, which in _lacking(names, some)
            )
        text += _cells_table(some, runs)
    return text


def _lacking(names: Sequence[str], runs: Sequence[Run]) -> Iterator[tuple[MemoryModel, list[str]]]:
    """Yield the memory models in which cells have no run, with these."""
    for memory in TARGETS:
        made = {run.about.problem for run in runs if run.setting.memory_model == memory}
        if lacking := [name for name in names if name not in made]:
            yield memory, lacking


def by_seconds(runs: Iterable[Run]) -> dict[float, list[Run]]:
    """Return runs by their time limits, the shortest first."""
    found: dict[float, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.setting.time_limit or 0.0):
        found.setdefault(run.setting.time_limit or 0.0, []).append(run)
    return found


def _summary(runs: Sequence[Run], *, long: bool) -> str:
    rows = []
    for memory, target in TARGETS.items():
        gaps = sorted(run.found.gap for run in runs if run.setting.memory_model == memory)
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
                    percent(gap) if limit is None else f"{percent(gap)}, {verdict(gap, limit)}"
                    for gap, limit in ranks
                ),
            )
        )
    return markdown(("memory", "cells", "within target", "median", "90 % of the cells", "worst"), rows)


def _cells_table(some: Sequence[Run], runs: Sequence[Run]) -> str:
    rows = []
    for cell in dict.fromkeys(run.about.problem for run in some):
        found = {run.setting.memory_model: run for run in some if run.about.problem == cell}
        told = next(iter(found.values())).about
        bounds = {
            paged: max(
                (
                    (run.found.lower_bound_ns, run.found.bound_by)
                    for run in found.values()
                    if run.found.lower_bound_ns is not None and run.found.bounds_paged_only == paged
                ),
                key=lambda one: one[0],
                default=(None, None),
            )
            for paged in (False, True)
        }
        bound = bounds[False][0]
        times = [run.found.iteration_ns for run in found.values() if run.found.iteration_ns is not None]
        failures = {f"{memory}: {why}" for memory, run in found.items() if (why := failure(run)) is not None}
        misses = [
            f"{memory}: {why}"
            for memory in TARGETS
            if memory in found and (why := blame(found[memory], runs)) not in ("", "no schedule")
        ]
        rows.append(
            (
                cell,
                str(told.tasks),
                "; ".join(f"{format_time(ns)} ({name})" for ns, name in bounds.values() if ns is not None),
                *(percent(found[m].found.gap) if m in found else "" for m in TARGETS),
                "" if bound is None or not times else percent((min(times) - bound) / bound),
                "; ".join([*misses, *sorted(failures)]),
            )
        )
    header = ("cell", "tasks", "best bound", *TARGETS, "divisible", "misses its target")
    return markdown(header, rows)


def failure(run: Run) -> str | None:
    """Return what ended a run before it could tell anything, if something did."""
    return run.found.stopped_by if run.found.lower_bound_ns is None or run.found.status == "error" else None


def _rank(ordered: Sequence[float], share: float) -> float:
    """Return the least value that so large a share of the values does not exceed."""
    return ordered[math.ceil(share * len(ordered)) - 1]


def verdict(value: float, limit: float, told: str | None = None) -> str:
    """Say whether a value meets its target, and the target."""
    return f"{'met' if value <= limit else 'missed'}: {told or percent(limit)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, and put the tables into a page or print them."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/core_grid.py", description=__doc__)
    options = make_chosen(parser, MODELS, METHOD, DATA, arguments)
    publish(report(read_latest(options.data)), options.write, BEGIN, END)


def make_chosen(
    parser: argparse.ArgumentParser,
    models: Sequence[MemoryModel],
    method: str,
    data: Path,
    arguments: Sequence[str] | None,
) -> argparse.Namespace:
    """Add the options that choose cells and how they are solved, and make the runs that are missing.

    Parameters
    ----------
    parser
        Its other options are left alone.
    models
        The memory models that can be asked for.
    method, data
        What solves the cells, and the default of the results file.
    arguments
        Of the command line.

    Returns
    -------
    argparse.Namespace
        All options, `data` and `write` among them.
    """
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
    parser.add_argument("--data", type=Path, default=data, metavar="FILE", help=f"default: {data}")
    parser.add_argument("--again", action="store_true", help="make the runs that the file has, too")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    options = parser.parse_args(arguments)
    asked = [model for model in models if model in options.memory.split(",")]
    if len(asked) != len(set(options.memory.split(","))):
        parser.error(f"--memory is not some of {', '.join(models)}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    patterns = options.cells.split(",")
    chosen = [cell for cell in cells() if any(fnmatchcase(cell.name, pattern) for pattern in patterns)]
    if not chosen and options.cells != "none":
        parser.error(f"no cell matches '{options.cells}'")
    if chosen:
        settings = [setting(model, options.seconds, method=method) for model in asked]
        make_in_turn(list(jobs(chosen, settings)), options.data, again=options.again)
    return options


if __name__ == "__main__":
    main()
