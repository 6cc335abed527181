"""The commands ``bench`` and ``report``: a sweep that can be taken up again, and what it found."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from ..instances.errors import PebblerError, escaped
from .options import (
    Parser,
    add_command,
    add_output,
    name_list,
    positive,
    print_json,
    refuse_options,
    require_folder,
    require_place,
)

_EXAMPLE = "pebbler bench study.toml --jobs 2 -o study.sqlite"


def add_bench(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``bench``."""
    command = add_command(
        commands,
        "bench",
        _bench,
        "make the runs of a configuration, or of a protocol, that its results file lacks",
        _EXAMPLE,
    )
    command.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="what to run")
    command.add_argument("--protocol", metavar="NAME", help="run this protocol instead: 2026")
    command.add_argument("--suite", metavar="SUITE", help="of a protocol: on another suite than its own")
    command.add_argument(
        "--methods",
        type=name_list,
        metavar="A,B,...",
        help="of a protocol: instead of its own; exec:PROGRAM is a program of yours",
    )
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="RESULTS",
        help="the results file; default: CONFIG.sqlite or protocol-NAME.sqlite in this folder",
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
    command.add_argument(
        "--check",
        action="store_true",
        help="first prove the schedules beside the results, and compare all rows with them",
    )


def _bench(arguments: argparse.Namespace) -> int:
    from concurrent.futures import ThreadPoolExecutor
    from dataclasses import asdict

    from ..benchmark.sweeps.config import jobs, read_config, read_protocol
    from ..benchmark.sweeps.results import Results
    from ..benchmark.sweeps.runner import make, warn_of_crowding
    from ..heuristics.programs import require_program

    name, suite, methods = arguments.protocol, arguments.suite, arguments.methods or ()
    if (name is None) == (arguments.config is None):
        raise PebblerError(f"bench runs one thing; give CONFIG.toml or --protocol NAME, such as {_EXAMPLE}")
    if name is None:
        refuse_options(arguments, "a configuration", ("suite", "methods"))
        config, folder = read_config(arguments.config), arguments.config.parent
    else:
        config, folder = read_protocol(name, suite=suite, methods=methods), Path()
    path = arguments.output or Path(f"protocol-{name}.sqlite" if name else f"{arguments.config.stem}.sqlite")
    require_place(path)
    if arguments.cluster is None:  # the machines of a cluster may have what this one lacks
        for method in dict.fromkeys(method for sweep in config.sweep for method in sweep.methods):
            require_program(method)
    logging.getLogger(__name__).info("%s", config.title)
    wanted = list(jobs(config, folder))
    if not wanted:
        why = "each method plans on other instances" if name else "no budget is enough; give larger ones"
        raise PebblerError(f"{config.title if name else arguments.config} asks for no runs: {why}")
    timed = config.protocol is not None
    with Results(path, write=True) as results:
        results.set_protocol(config.title, config.protocol)
        if arguments.cluster is None:
            warn_of_crowding(wanted, arguments.jobs)
            threads = ThreadPoolExecutor(arguments.jobs)
            tally = make(wanted, results, threads, retry=arguments.retry, timed=timed)
        else:
            from ..benchmark.sweeps.dask import cluster

            with cluster(arguments.cluster) as (executor, lost):
                tally = make(wanted, results, executor, lost=lost, retry=arguments.retry, timed=timed)
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
        written = write_report(results, arguments.output, parquet=arguments.parquet, check=arguments.check)
    checked = written.checked
    if arguments.json:
        said = {"runs": written.runs, "exhibits": written.exhibits}
        if checked is not None:
            counts = {name: getattr(checked, name) for name in ("schedules", "proven", "unproven")}
            said["checked"] = counts
        print_json({**said, "files": [path.name for path in written.files]})
    else:
        told = f"{written.runs} runs, {len(written.exhibits)} exhibits"
        told += "" if checked is None else f"; {checked}"
        print(f"{escaped(str(arguments.output))}: {told}; open index.html")
    return 0
