"""The sweep of docs/bench.md: its configuration and its table.

``pebbler bench docs/bench.toml -o docs/data/bench.sqlite`` makes the runs; ``python -m
bench --write docs/bench.md`` puts configuration and gaps into the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.report.exhibits import gap_table
from pebbler.benchmark.sweeps.evaluation import evaluate
from pebbler.benchmark.sweeps.results import Results, origins

DATA = Path("docs/data/bench.sqlite")
CONFIG = Path("docs/bench.toml")
BEGIN, END = "<!-- begin bench -->\n", "<!-- end bench -->\n"
BEGIN_CONFIG, END_CONFIG = "<!-- begin config -->\n", "<!-- end config -->\n"


def report(results: Results) -> str:
    """Return the table as Markdown, and where its runs were made."""
    evaluation = evaluate(results.runs())
    table = gap_table(evaluation).table
    rows = [[str(cell) for cell in row] for row in table.rows]
    return f"{markdown(table.header, rows)}\n{'; '.join(origins(evaluation.runs))}.\n"


def shown(config: Path) -> str:
    """Return a configuration as a block of Markdown."""
    return f"```toml\n{config.read_text('utf-8')}```\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Put the table into a page, or print it."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/bench.py", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--config", type=Path, default=CONFIG, metavar="FILE", help=f"default: {CONFIG}")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    options = parser.parse_args(arguments)
    publish(shown(options.config), options.write, BEGIN_CONFIG, END_CONFIG)
    with Results(options.data) as results:
        publish(report(results), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
