"""Other solvers, and rules, beside the methods of this project: seconds to a given gap on the same instances.

``pebbler bench docs/baselines.toml -o docs/data/baselines.sqlite`` makes the runs; ``python -m
baselines --write docs/baselines.md`` puts the table into the page.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.sweeps.results import Results, Run, origins
from pebbler.instances.units import format_time

DATA = Path("docs/data/baselines.sqlite")
BEGIN, END = "<!-- begin baselines -->\n", "<!-- end baselines -->\n"

GAPS = (0.2, 0.05, 0.01)
"""Gaps to be reached."""


def table(runs: Sequence[Run]) -> str:
    """Return a line for each run: its schedule, its gap, and when it had come within each of `GAPS`.

    A gap is from the best bound that any run has proven for the same instance.
    """
    bounds: dict[tuple[str, ...], int] = {}
    for run in runs:
        proven = run.found.lower_bound_ns or 0
        bounds[run.found.instances] = max(proven, bounds.get(run.found.instances, 0))
    rows = []
    for run in sorted(runs, key=lambda run: (run.about.problem, len(run.setting.without))):
        bound, reached = bounds[run.found.instances], run.found.iteration_ns
        without = f" without {', '.join(run.setting.without)}" if run.setting.without else ""
        rows.append(
            (
                run.about.problem,
                run.setting.method + without,
                "none" if reached is None else format_time(reached),
                "" if reached is None else f"{(reached - bound) / max(bound, 1):.2%}",
                *(_told(seconds_to(run, bound, gap)) for gap in GAPS),
            )
        )
    header = ("problem", "method", "schedule", "gap", *(f"to {gap:.0%}" for gap in GAPS))
    return f"{markdown(header, rows)}\n{'; '.join(origins(runs))}.\n"


def seconds_to(run: Run, bound_ns: int, gap: float) -> float:
    """Seconds after which a run had a schedule within a gap of a bound; infinite where it never had."""
    within = (
        seconds
        for seconds, reached, _ in run.found.trace
        if reached is not None and reached - bound_ns <= gap * bound_ns
    )
    return min(within, default=math.inf)


def _told(seconds: float) -> str:
    return "never" if math.isinf(seconds) else f"{seconds:.1f} s"


def main(arguments: Sequence[str] | None = None) -> None:
    """Put the table into a page, or print it."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/baselines.py", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    options = parser.parse_args(arguments)
    with Results(options.data) as results:
        publish(table(results.runs()), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
