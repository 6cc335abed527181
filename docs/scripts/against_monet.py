"""Recomputation alone, against the schedules and logs of Gurobi that MONeT's authors publish.

``python docs/scripts/against_monet.py FOLDER`` reads a copy of their repository monet-schedules, and makes
the runs that the data file lacks: a minute for each problem, then ten minutes where that leaves too wide a
gap. ``--write FILE`` puts the table into the page. It can be stopped at any time, and goes on where it was.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import msgspec

from monet_files import Published, read_folder
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.report.exhibits import percent
from pebbler.benchmark.sweeps.jobs import GRACE, Job, Setting
from pebbler.benchmark.sweeps.problems import FileProblem, about
from pebbler.benchmark.sweeps.results import Results, Run, origins, read_latest
from pebbler.benchmark.sweeps.runner import make
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode, write_atomically
from pebbler.instances.instance import Instance
from pebbler.instances.suites.tiny import scaled
from pebbler.instances.units import PAGE_BYTES
from pebbler.validate.schedule import MemoryModel

METHOD = "flow-recompute"
SHORT, LONG = 60.0, 600.0
"""Seconds that each problem gets, and those with a gap beyond `CLOSE`."""
CLOSE = 0.01
DATA = Path("docs/data/against-monet.sqlite")
PUBLISHED = DATA.with_suffix(".json")
BEGIN, END = "<!-- begin monet -->\n", "<!-- end monet -->\n"


# --- runs -----------------------------------------------------------------------------------------------


def jobs(problems: Mapping[str, Instance], seconds: float) -> list[Job]:
    """Return the runs of some problems: in memory as their program has it, and in one piece for each tensor.

    Their program counts bytes, wherever they are. So does paged memory with pages as large as its unit.
    """
    found = []
    for name, instance in problems.items():
        asked: tuple[tuple[MemoryModel, Instance], ...] = (
            ("paged", scaled(instance, size=PAGE_BYTES)),
            ("contiguous", instance),
        )
        for memory, given in asked:
            problem = FileProblem(name, encode(given))
            setting = Setting(METHOD, memory, seconds, seconds + GRACE)
            found.append(Job(problem, about(problem, problem.instances()), setting))
    return found


def wide(problems: Mapping[str, Instance], runs: Iterable[Run]) -> dict[str, Instance]:
    """Return the problems whose short runs leave a gap beyond `CLOSE` where bytes are counted."""
    far = {run.about.problem for run in runs if run.setting.memory_model == "paged" and run.found.gap > CLOSE}
    return {name: instance for name, instance in problems.items() if name in far}


# --- the page -------------------------------------------------------------------------------------------


def report(runs: Sequence[Run], published: Mapping[str, Published]) -> str:
    """Return a table for each of the two programs as Markdown, and what it adds up to."""
    own: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        own.setdefault(run.about.problem, {}).setdefault(run.setting.memory_model, []).append(run)
    monet = {name: found for name, found in own.items() if " " in name.partition(", ")[0]}
    checkmate = {name: found for name, found in own.items() if name not in monet}
    named = (("Checkmate's program", checkmate), ("MONeT's own program", monet))
    tables = (f"**{title}.** {_table(found, published)}\n" for title, found in named if found)
    return "".join(tables) + "".join(f"- {origin}.\n" for origin in origins(runs))


def _table(own: Mapping[str, Mapping[str, list[Run]]], published: Mapping[str, Published]) -> str:
    """Return the table of some problems, by name and memory model, behind what it adds up to."""
    rows, gaps = [], []
    met = tighter = shown = 0
    for name in sorted(own, key=_rank):
        told, mine = published[name], own[name].get("paged", [])
        if not mine:
            continue
        last = max(mine, key=lambda run: run.setting.time_limit or 0)
        value = min((run.found.iteration_ns for run in mine if run.found.iteration_ns), default=None)
        bound = max(run.found.lower_bound_ns or 0 for run in mine)
        shown += 1
        met += told.value is None or (value is not None and value <= told.value)
        tighter += told.bound is None or bound >= told.bound
        if value is not None:
            gaps.append(value / bound - 1)
        places = [run.found.iteration_ns for run in own[name].get("contiguous", []) if run.found.iteration_ns]
        rows.append(
            (
                name,
                _figure(told.value),
                _figure(told.bound),
                f"{told.seconds:,.0f} s, {told.threads} threads",
                _figure(value),
                _figure(bound),
                "" if value is None else percent(value / bound - 1),
                f"{last.setting.time_limit:g} s",
                when_reached(mine, told.value),
                _over(min(places, default=None), value),
            )
        )
    header = (
        *("problem", "Gurobi: value", "its bound", "after"),
        *("pebbler: value", "its bound", "gap", "limit", "Gurobi's value after", "in one piece"),
    )
    text = (
        f"Gurobi's value is met or beaten in {met} of {shown} problems, and its bound in {tighter}. "
        f"The gap is {percent(median(gaps))} in the median and {percent(max(gaps))} at worst.\n\n"
        if gaps
        else ""
    )
    return text + markdown(header, rows)


def _rank(name: str) -> tuple[str, float]:
    network, _, budget = name.partition(", ")
    return network, -float(budget.split()[0])


def _figure(figure: int | None) -> str:
    return "none" if figure is None else f"{figure:,}"


def when_reached(runs: Iterable[Run], value: int | None) -> str:
    """Return after how many seconds of the method a run had such a schedule, the first of those that did."""
    if value is None:
        return ""
    for run in sorted(runs, key=lambda run: run.setting.time_limit or 0):
        for seconds, reached, _ in run.found.trace or ():
            if reached is not None and reached <= value:
                return f"{seconds:.1f} s"
    return "not met"


def _over(value: int | None, least: int | None) -> str:
    if value is None or least is None:
        return "none"
    return f"{value / least - 1:+.2%}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, or put the table into a page."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/against_monet.py", description=__doc__)
    parser.add_argument(
        "folder", type=Path, nargs="?", metavar="FOLDER", help="a copy of monet-schedules; makes runs"
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="runs at once; default: 1")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    options = parser.parse_args(arguments)
    told = options.data.with_suffix(".json")
    if options.folder is not None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
        try:
            problems, published = read_folder(options.folder)
        except PebblerError as error:
            parser.error(str(error))
        write_atomically(told, msgspec.json.format(msgspec.json.encode(published), indent=1) + b"\n")
        with Results(options.data, write=True) as results:
            make(jobs(problems, SHORT), results, ThreadPoolExecutor(options.at_once))
            far = wide(problems, read_latest(options.data))
            make(jobs(far, LONG), results, ThreadPoolExecutor(options.at_once))
    published = msgspec.json.decode(told.read_bytes(), type=dict[str, Published])
    publish(report(read_latest(options.data), published), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
