"""The command ``report``: what a sweep found, as tables, pictures and one page."""

from __future__ import annotations

import argparse
from pathlib import Path

from .options import Parser, add_command, add_output, print_json, require_folder


def add_report(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "report",
        _report,
        "tables, performance profiles, pictures and one HTML page of a sweep's results",
        "pebbler report study.sqlite -o report",
    )
    command.add_argument("results", type=Path, metavar="RESULTS", help="a results file of pebbler bench")
    add_output(command, "DIR")
    command.add_argument("--parquet", action="store_true", help="write all runs as Parquet, too")


def _report(arguments: argparse.Namespace) -> int:
    from ..benchmark.report.report import write_report
    from ..benchmark.sweeps.results import Results

    require_folder(arguments.output)
    with Results(arguments.results) as results:
        written = write_report(results, arguments.output, parquet=arguments.parquet)
    if arguments.json:
        names = [path.name for path in written.files]
        print_json({"runs": written.runs, "exhibits": written.exhibits, "files": names})
    else:
        print(f"{arguments.output}: {written.runs} runs, {len(written.exhibits)} exhibits; open index.html")
    return 0
