"""Recomputation alone, on the graphs that MOCCASIN's authors publish, beside their program and Checkmate's.

``python docs/scripts/against_moccasin.py FOLDER`` reads a copy of their repository moccasin (Bartan et al.,
ICML 2023), and makes the runs that the data file lacks, one after the other, a minute each: pebbler's, their
own program, and Checkmate's on HiGHS and on CP-SAT. ``--write FILE`` puts the table into the page. It can be
stopped at any time, and goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import networkx as nx
from msgspec.structs import replace

from against_monet import when_reached
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.sweeps.jobs import GRACE, Job, Setting
from pebbler.benchmark.sweeps.problems import FileProblem, about
from pebbler.benchmark.sweeps.results import Results, Run, origins, read_latest
from pebbler.benchmark.sweeps.runner import make
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode
from pebbler.instances.foreign.recomputation import instance_of_data
from pebbler.instances.instance import Instance
from pebbler.instances.memory import least_budget, unlimited_peak
from pebbler.instances.suites.tiny import scaled
from pebbler.instances.units import PAGE_BYTES
from pebbler.validate.schedule import MemoryModel

METHOD = "flow-recompute"
PEERS = {
    "MOCCASIN": "exec:docs/scripts/peer_moccasin.py",
    "Checkmate's program on HiGHS": "exec:docs/scripts/peer_highs.py",
    "on CP-SAT": "exec:docs/scripts/peer_cp_sat.py",
}
"""The others, with the programs that run them."""
SHARES = (90, 80)
"""Budgets in percent of the peak without a limit, as in the paper."""
SECONDS = 60.0
DATA = Path("docs/data/against-moccasin.sqlite")
BEGIN, END = "<!-- begin moccasin -->\n", "<!-- end moccasin -->\n"


# --- their graphs ---------------------------------------------------------------------------------------


def read_folder(folder: Path) -> dict[str, Instance]:
    """Return the problems of a copy of moccasin, by name: the graphs of training steps, and the random ones.

    Those are left out under whose budget a single task does not fit. Sizes are in units of their greatest
    common divisor.

    Raises
    ------
    PebblerError
        When the folder has none, or one cannot be read.
    """
    problems = {}
    for file in sorted((folder / "data").glob("*.json")):
        if "_test_" in file.name:  # inference alone
            continue
        graph = instance_of_data(_ordered(file), file)
        unit = math.gcd(*(block.bytes for block in graph.blocks)) or 1
        blocks = tuple(replace(block, bytes=block.bytes // unit) for block in graph.blocks)
        network = file.name.partition(" ")[0].partition("_w0")[0]
        for share in SHARES:
            name = f"{network}, {share} %"
            budget = -(-unlimited_peak(graph) * share // 100) // unit
            problem = replace(graph, name=name, blocks=blocks, budget_bytes=budget)
            if budget >= least_budget(problem):
                problems[name] = problem
    if not problems:
        raise PebblerError(f"{folder} has no graphs of training steps in data; copy moccasin anew")
    return dict(sorted(problems.items(), key=lambda found: len(found[1].tasks)))


def _ordered(file: Path) -> bytes:
    """Return a graph with the order in which their program runs it."""
    try:
        document: dict[str, Any] = json.loads(file.read_bytes())
        if "order" not in document["graph"]:
            graph: nx.DiGraph[Any] = nx.DiGraph()
            graph.add_nodes_from(node["id"] for node in document["nodes"])
            graph.add_edges_from((link["source"], link["target"]) for link in document["links"])
            document["graph"]["order"] = list(nx.topological_sort(graph))
    except (OSError, ValueError, TypeError, KeyError, nx.NetworkXUnfeasible) as error:
        raise PebblerError(f"{file} cannot be read: {error}; copy moccasin anew") from None
    return json.dumps(document).encode()


# --- runs -----------------------------------------------------------------------------------------------


def jobs(problems: Mapping[str, Instance], seconds: float) -> list[Job]:
    """Return the runs of all problems, those of one problem after each other.

    All programs count bytes, wherever they are. So does paged memory with pages as large as a unit. Pebbler
    runs in contiguous memory as well.
    """
    found = []
    for name, instance in problems.items():
        paged = scaled(instance, size=PAGE_BYTES)
        asked: list[tuple[str, MemoryModel, Instance]] = [
            *((method, "paged", paged) for method in (METHOD, *PEERS.values())),
            (METHOD, "contiguous", instance),
        ]
        for method, memory, given in asked:
            problem = FileProblem(name, encode(given))
            found.append(
                Job(
                    problem,
                    about(problem, problem.instances()),
                    Setting(method, memory, seconds, seconds + GRACE),
                )
            )
    return found


# --- the page -------------------------------------------------------------------------------------------


def report(runs: Sequence[Run]) -> str:
    """Return the table as Markdown, and what it adds up to."""
    own: dict[str, dict[tuple[str, str], Run]] = {}
    for run in runs:
        own.setdefault(run.about.problem, {})[run.setting.method, run.setting.memory_model] = run
    rows, shorter, equal, last, proven = [], 0, 0, 0, 0
    for name in sorted(
        own, key=lambda name: (own[name][METHOD, "paged"].about.tasks, name[:-5], -_share(name))
    ):
        mine, others = own[name][METHOD, "paged"], [own[name].get((peer, "paged")) for peer in PEERS.values()]
        value, least = mine.found.iteration_ns, _least(others)
        assert value is not None
        shorter += least is None or value < least
        equal += value == least
        last += least is not None and value > least
        proven += mine.found.gap <= 1e-4
        places = own[name].get((METHOD, "contiguous"))
        rows.append(
            (
                name,
                str(mine.about.tasks),
                _more(value, mine),
                _more(mine.found.lower_bound_ns, mine),
                _ended(mine),
                when_reached([mine], least),
                _more(places.found.iteration_ns, places) if places is not None else "",
                *(cell for run in others for cell in _cells(run)),
            )
        )
    header = ("problem", "tasks", "pebbler", "its bound", "ended", "the others' best after", "in one piece")
    titles = [cell for peer in PEERS for cell in (peer, "ended")]
    text = (
        f"Of {len(rows)} problems, pebbler's schedule is shorter than all others' in {shorter}, as long as "
        f"the best of them in {equal}, and longer in {last}. It is proven to 0.01 % in {proven}.\n\n"
    )
    return text + markdown((*header, *titles), rows) + "".join(f"- {origin}.\n" for origin in origins(runs))


def _share(name: str) -> int:
    return int(name.split()[-2])


def _least(runs: Iterable[Run | None]) -> int | None:
    values = (run.found.iteration_ns for run in runs if run is not None)
    return min((value for value in values if value is not None), default=None)


def _more(value: int | None, run: Run) -> str:
    """Return by how much a time is longer than without a limit of memory."""
    ideal = run.found.ideal_ns
    return "none" if value is None or ideal is None else f"{value / ideal - 1:+.3%}"


def _ended(run: Run) -> str:
    """Return after how many seconds a method ended by itself, or that it was at its limit."""
    seconds, limit = run.found.solve_seconds, run.setting.time_limit
    if seconds is None or limit is None or run.found.stopped_by == "time limit" or seconds > limit - 3.0:
        return "limit"
    return f"{seconds:.1f} s"


def _cells(run: Run | None) -> tuple[str, str]:
    return ("", "") if run is None else (_more(run.found.iteration_ns, run), _ended(run))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, or put the table into a page."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/against_moccasin.py", description=__doc__)
    parser.add_argument(
        "folder", type=Path, nargs="?", metavar="FOLDER", help="a copy of moccasin; makes runs"
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    options = parser.parse_args(arguments)
    if options.folder is not None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
        try:
            problems = read_folder(options.folder)
        except PebblerError as error:
            parser.error(str(error))
        os.environ["MOCCASIN"] = str(options.folder.absolute())
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        with Results(options.data, write=True) as results:
            make(jobs(problems, SECONDS), results, ThreadPoolExecutor(1))
    publish(report(read_latest(options.data)), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
