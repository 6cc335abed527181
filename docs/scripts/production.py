"""Rules of frameworks beside what is proven to be possible.

``pebbler bench docs/production.toml -o docs/data/production.sqlite`` makes the runs; ``python
docs/scripts/production.py --write docs/production.md`` puts the table into the page.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Sequence
from pathlib import Path

from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.report.exhibits import percent
from pebbler.benchmark.sweeps.results import Results, Run, origins
from pebbler.instances.units import format_time

CONFIG, DATA = Path("docs/production.toml"), Path("docs/data/production.sqlite")
BEGIN, END = "<!-- begin rules -->\n", "<!-- end rules -->\n"

COPIES, BOTH = "flow", "flow-recompute"
"""Methods whose bounds are those of copies alone, and of copies and second runs together."""


def table(runs: Sequence[Run]) -> str:
    """Return a line for each problem: how much longer than its bound the schedule of each method takes.

    Methods are in the order of the configuration, in which this project's come last.
    """
    ran = {run.setting.method for run in runs}
    (sweep,) = tomllib.loads(CONFIG.read_text("utf-8"))["sweep"]
    methods = [method for method in sweep["methods"] if method in ran]
    problems = dict.fromkeys(run.about.problem for run in runs)
    rows = []
    for problem in problems:
        own = {run.setting.method: run for run in runs if run.about.problem == problem}
        bound = proven(own, BOTH)
        rows.append(
            (
                problem,
                format_time(bound),
                "" if COPIES not in own else percent(proven(own, COPIES) / bound - 1),
                *(_above(own.get(method), bound) for method in methods),
            )
        )
    header = ("problem", "bound", "bound of copies alone", *(f"`{method}`" for method in methods))
    return f"{markdown(header, rows)}\n{'; '.join(origins(runs))}.\n"


def proven(runs: dict[str, Run], method: str) -> int:
    """Return the bound in nanoseconds that a method has proven; at least 1."""
    return max(runs[method].found.lower_bound_ns or 0, 1) if method in runs else 1


def _above(run: Run | None, bound: int) -> str:
    """Return how much longer than a bound a run's schedule takes; nothing where there was no run."""
    if run is None:
        return ""
    reached = run.found.iteration_ns
    return "none" if reached is None else percent(reached / bound - 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Put the table into a page, or print it."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/production.py", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    options = parser.parse_args(arguments)
    with Results(options.data) as results:
        publish(table(results.runs()), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
