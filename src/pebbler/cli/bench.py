"""The commands ``bench`` and ``report``: a sweep that can be taken up again, and what it found."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from ..instances.errors import PebblerError, escaped
from .options import Parser, add_command, add_output, positive, print_json, require_folder, require_place


def add_bench(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``bench``."""
    command = add_command(
        commands,
        "bench",
        _bench,
        "make the runs of a configuration that its results file lacks",
        "pebbler bench study.toml --jobs 2 -o study.sqlite",
    )
    command.add_argument("config", type=Path, metavar="CONFIG.toml", help="what to run")
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="RESULTS",
        help="the results file; default: CONFIG.sqlite in this folder",
    )
    where = command.add_mutually_exclusive_group()
    where.add_argument("--jobs", type=positive, default=1, metavar="N", help="runs at once; default: 1")
    where.add_argument("--cluster", metavar="ADDRESS", help="a Dask scheduler instead: tcp://HOST:PORT")
    command.add_argument("--retry", action="store_true", help="make the runs that failed again")


def add_report(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``report``."""
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


def _bench(arguments: argparse.Namespace) -> int:
    from concurrent.futures import ThreadPoolExecutor
    from dataclasses import asdict

    from ..benchmark.sweeps.config import jobs, read_config
    from ..benchmark.sweeps.results import Results
    from ..benchmark.sweeps.runner import make, warn_of_crowding

    config = read_config(arguments.config)
    path = arguments.output or Path(arguments.config.stem + ".sqlite")
    require_place(path)
    logging.getLogger(__name__).info("%s", config.title)
    wanted = list(jobs(config, arguments.config.parent))
    if not wanted:
        raise PebblerError(f"{arguments.config} asks for no runs: no budget is enough; give larger ones")
    with Results(path, write=True) as results:
        if arguments.cluster is None:
            warn_of_crowding(wanted, arguments.jobs)
            tally = make(wanted, results, ThreadPoolExecutor(arguments.jobs), retry=arguments.retry)
        else:
            from ..benchmark.sweeps.dask import cluster

            with cluster(arguments.cluster) as (executor, lost):
                tally = make(wanted, results, executor, lost=lost, retry=arguments.retry)
        results.add_title(config.title)
    shown = escaped(str(path))
    if arguments.json:
        print_json({"results": shown, **asdict(tally)})
    else:
        print(f"{shown}: {tally.made} runs made, {tally.failed} of them failed; {tally.kept} were there")
    return 3 if tally.made and tally.failed == tally.made else 0


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
        told = f"{written.runs} runs, {len(written.exhibits)} exhibits"
        print(f"{escaped(str(arguments.output))}: {told}; open index.html")
    return 0
