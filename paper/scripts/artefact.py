"""A sample of the study's main table, made anew in ten minutes, and held against the committed runs.

``python paper/scripts/artefact.py`` runs all methods of the study on a dozen of its problems, has every
schedule checked, and writes the table and the picture. It can be stopped at any time and goes on where it
was. ``paper/artefact.md`` says what to look at.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from findings import SEARCHES, gaps_by_budget, with_bounds
from pebbler.benchmark.output.markdown import markdown
from pebbler.benchmark.sweeps.config import Config, Grid, Sweep, jobs, read_config
from pebbler.benchmark.sweeps.results import Results, Run, read_latest
from pebbler.benchmark.sweeps.runner import make
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import write_atomically
from text import conditions, picture

WORKLOADS = (
    ("vgg16", "TitanX", False),
    ("resnet50", "P100", False),
    ("vit_b16", "A100", False),
    ("gpt2", "RTX4090", False),
    ("alexnet", "K40", True),
    ("vit_b16", "RTX5090", True),
)
"""Network, device, and whether it is a whole step: two of each kind."""

BUDGETS = ("Mmin+25%", "Mmin+2%")
"""Of each workload."""


def sample(config: Config) -> Config:
    """Return the study with a few of its workloads and budgets.

    Raises
    ------
    PebblerError
        When the study has none of them.
    """

    def fewer(sweep: Sweep) -> Sweep:
        chosen = [
            msgspec.structs.replace(grid, budgets=budgets)
            for grid in sweep.workloads
            if _name(grid) in WORKLOADS
            and (budgets := tuple(budget for budget in grid.budgets if budget in BUDGETS))
        ]
        return msgspec.structs.replace(sweep, workloads=tuple(chosen))

    sweeps = tuple(sweep for sweep in map(fewer, config.sweep) if sweep.workloads)
    if not sweeps:
        raise PebblerError("the study has no workload of the sample; give the folder of gaps.toml")
    return msgspec.structs.replace(config, sweep=sweeps)


def _name(grid: Grid) -> tuple[str, str, bool]:
    return grid.network, grid.device, grid.steady


def compared(made: Iterable[Run], committed: Iterable[Run]) -> str:
    """Say how runs differ from the committed ones of the same problems, methods and limits.

    What rules find does not depend on the machine, so that it is the same to the nanosecond. Searches end by
    the clock.
    """
    before = {(run.about.problem_sha256, run.setting, run.seed): run for run in committed}
    same = other = 0
    ratios: list[float] = []
    for run in made:
        old = before.get((run.about.problem_sha256, run.setting, run.seed))
        if old is None:
            continue
        now, then = run.found.iteration_ns, old.found.iteration_ns
        by_clock = "time limit" in (run.found.stopped_by, old.found.stopped_by)
        if run.setting.method not in SEARCHES and not by_clock:
            same, other = same + (now == then), other + (now != then)
        elif now is not None and then is not None:
            ratios.append(now / then)
    if not same + other + len(ratios):
        return "The committed runs have none of these problems."
    words = f"Rules: {same} of {same + other} runs are those that are committed, to the nanosecond."
    if ratios:
        words += f" Searches: {min(ratios):.4f} to {max(ratios):.4f} times what is committed."
    return words


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs of the sample that are missing, and write its table and picture."""
    parser = argparse.ArgumentParser(prog="python paper/scripts/artefact.py", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("paper"), help="of gaps.toml and the data; default: paper"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("paper", "build", "artefact"), help="default: paper/build/artefact"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at once; default: 1")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; give 1 or more")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        print(_make(options.folder, options.out, options.jobs))
    except PebblerError as error:
        parser.error(str(error))


def _make(folder: Path, out: Path, at_once: int) -> str:
    config = sample(read_config(folder / "gaps.toml"))
    out.mkdir(parents=True, exist_ok=True)
    place = out / "gaps.sqlite"
    with Results(place, write=True) as results:
        make(list(jobs(config, folder)), results, ThreadPoolExecutor(at_once))
    runs = read_latest(place)
    finding = gaps_by_budget(with_bounds(runs, []))
    table = finding.exhibit.table
    told = markdown(table.header, [[str(cell) for cell in row] for row in table.rows])
    differences = compared(runs, read_latest(folder / "data" / "gaps.sqlite"))
    text = f"{finding.exhibit.caption}\n\n{told}\n{differences}\n\n{conditions(finding)}\n"
    write_atomically(out / "gaps.md", text.encode())
    write_atomically(out / "gaps.pdf", picture(finding))
    return f"{told}\n{differences}\n{out / 'gaps.md'}"


if __name__ == "__main__":
    main()
