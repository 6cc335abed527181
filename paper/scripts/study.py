"""The study: its sweeps, and what the text and docs/study.md take from them and from the papers' pages.

``python paper/scripts/study.py`` makes the runs that paper/data lacks, and writes paper/generated and
docs/study.md. It can be stopped at any time, and goes on where it was. ``latexmk -pdf -cd -outdir=build
paper/pebbler.tex`` makes the PDF.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs" / "scripts"))

import core_grid
import glp4nn as papers_glp4nn
import layrub as papers_layrub
import modnn as papers_modnn
import parts as parts_page
import recomputation
import vdnn as papers_vdnn
import vdnn_layers as papers_vdnn_layers
from findings import (
    PLANNERS,
    WIDTH,
    Finding,
    decisions,
    gaps_by_budget,
    links,
    parts,
    together,
    with_bounds,
)
from inventory import rows, tally
from page_facts import read_facts
from pages import Pages
from pebbler.benchmark.report.exhibits import performance_profile
from pebbler.benchmark.sweeps.config import Config, Grid, Sweep, jobs, read_config
from pebbler.benchmark.sweeps.results import Results, Run, read_latest
from pebbler.benchmark.sweeps.runner import make
from pebbler.instances.errors import PebblerError
from text import write_inventory, write_page, write_text
from variants import CASES, DECISIONS, LINK_CASES, LINKED, Case, write_instances

PARTS = "parts"
SWEEPS = ("gaps", DECISIONS, LINKED, PARTS)
"""Configurations, and the results files in ``data`` beside them."""

PAPERS: dict[str, Callable[[Sequence[str]], None]] = {
    "papers-vdnn": papers_vdnn.main,
    "papers-modnn": papers_modnn.main,
    "papers-layrub": papers_layrub.main,
    "papers-glp4nn": papers_glp4nn.main,
}
"""Pages on the papers, and what computes their tables anew."""

PROFILED = (
    "Share of the problems that all methods ran on (n={}) on which an iteration is at most so many times as "
    "long as the shortest of all."
)
"""Caption of the performance profile, with the number of problems left open."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a study runs, and where it lies.

    Attributes
    ----------
    folder
        Of the configurations, of their instances and data, and of what the text takes.
    configs
        By name.
    cases, link_cases
        Whose instances are written for the sweeps.
    """

    folder: Path
    configs: dict[str, Config]
    cases: tuple[Case, ...]
    link_cases: tuple[Case, ...]

    def data(self, name: str) -> Path:
        """Where the results of a configuration lie."""
        return self.folder / "data" / f"{name}.sqlite"


def plan(folder: Path) -> Plan:
    """Return the study of a folder's configurations."""
    return Plan(folder, {name: read_config(folder / f"{name}.toml") for name in SWEEPS}, CASES, LINK_CASES)


_QUICK = ("vdnn-dyn", "modnn", "flow", "flow-parts", "memonger-rule")
"""Methods of a quick study."""


def quick_plan(folder: Path, out: Path) -> Plan:
    """Return the same study on networks so small that it takes a minute, in another folder."""
    case = Case("lenet", 2, "V100", "1.2xMmin")
    budgets = ("Mmin+100%", "Mmin+2%")
    lenet = Grid(network="lenet", batch=8, device="V100", budgets=budgets)
    step = msgspec.structs.replace(lenet, steady=True, optimizer="adam")
    paged = Grid(network="alexnet", batch=128, device="V100", budgets=("100%", "1.05xMmin"))

    def small(sweep: Sweep) -> Sweep:
        methods = tuple(m for m in sweep.methods if m in _QUICK)
        limits = ("0.2s",) if sweep.time_limits else ()
        grids = [paged] if "paged" in sweep.memory else [lenet, step]  # with tensors smaller than pages
        workloads = tuple(grids) if sweep.workloads else ()
        return msgspec.structs.replace(sweep, methods=methods, time_limits=limits, workloads=workloads)

    configs = {
        name: msgspec.structs.replace(config, sweep=tuple(map(small, config.sweep)))
        for name, config in plan(folder).configs.items()
    }
    return Plan(out, configs, (case,), (case,))


def run(what: Plan, at_once: int) -> None:
    """Make the runs that the results files lack."""
    write_instances(what.folder, what.cases, what.link_cases)
    for name, config in what.configs.items():
        _log.info("%s: %s", name, config.title)
        wanted = list(jobs(config, what.folder))
        what.data(name).parent.mkdir(parents=True, exist_ok=True)
        with Results(what.data(name), write=True) as results:
            make(wanted, results, ThreadPoolExecutor(at_once))


def findings(what: Plan, docs: Path) -> list[Finding]:
    """Return what the sweeps say, and what the page on recomputation has runs of.

    The results files of the core grid, of whole tensors and of parts, add the bounds that they have proven.
    """
    made = {name: read_latest(what.data(name)) for name in SWEEPS}
    grid: list[Run] = []
    for data in (core_grid.DATA, parts_page.DATA):
        if (place := docs / "data" / data.name).exists():
            grid += read_latest(place)
    gaps = with_bounds(made["gaps"], grid)
    profile = performance_profile(gaps)
    profile = replace(
        profile,
        size=(WIDTH, 4.2),
        caption=f"{profile.caption} Layrub's methods and those that compute again: {PLANNERS}",
    )
    return [
        gaps_by_budget(gaps),
        Finding(profile, gaps.runs, PROFILED.format(len(gaps.common())), {}),
        decisions(made[DECISIONS], what.cases),
        links(made[LINKED], what.link_cases),
        together(read_latest(docs / "data" / recomputation.DATA.name)),
        parts(with_bounds(made[PARTS], grid)),
    ]


def facts(pages: Pages, found: Sequence[Finding], verdicts: dict[str, int]) -> dict[str, str]:
    """Return every number and every sentence that the text takes, by name."""
    return {
        **{f"{one.exhibit.name}/{name}": value for one in found for name, value in one.facts.items()},
        **read_facts(pages),
        **{f"inventory/{verdict}": str(count) for verdict, count in verdicts.items()},
        "inventory/all": str(sum(verdicts.values())),
    }


def write(what: Plan, pages: Pages, page: Path | None) -> tuple[Path, ...]:
    """Write what the text takes, and put the tables into a page unless it is None."""
    found = findings(what, pages.folder)
    table = rows(pages)
    if page is not None:
        write_page(page, found, table)
    return write_text(what.folder / "generated", found, facts(pages, found, tally(table)), table)


def write_from_pages(folder: Path, pages: Pages) -> tuple[Path, ...]:
    """Write the inventory and the numbers that pages give; what the sweeps say stays as it is."""
    table = rows(pages)
    told = facts(pages, [], tally(table))
    return write_inventory(folder / "generated", pages.folder / "study.md", told, table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, and write what the text takes."""
    parser = argparse.ArgumentParser(prog="python paper/scripts/study.py", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("paper"), help="of the configurations; default: paper"
    )
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of the pages; default: docs")
    parser.add_argument(
        "--quick", type=Path, metavar="FOLDER", help="a small study, all of it in another folder"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at once; default: 1")
    parser.add_argument("--no-runs", action="store_true", help="only write what there are runs for")
    parser.add_argument(
        "--inventory", action="store_true", help="only write the inventory and the numbers that pages give"
    )
    parser.add_argument("--papers", action="store_true", help="compute the pages on the papers anew, first")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; give 1 or more")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        _study(options)
    except PebblerError as error:
        parser.error(str(error))


def _study(options: argparse.Namespace) -> None:
    pages = Pages(options.docs)
    if options.papers:
        for name, computed in PAPERS.items():
            computed(["--write", str(options.docs / f"{name}.md")])
        papers_vdnn_layers.main(["--write", str(options.docs / "papers-vdnn.md")])
    if options.inventory:
        for path in write_from_pages(options.folder, pages):
            print(path)
        return
    what = plan(options.folder) if options.quick is None else quick_plan(options.folder, options.quick)
    if not options.no_runs:
        run(what, options.jobs)
    page = options.docs / "study.md" if options.quick is None else None
    for path in write(what, pages, page):
        print(path)


if __name__ == "__main__":
    main()
