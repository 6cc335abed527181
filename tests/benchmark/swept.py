"""What tests of sweeps share: a small configuration, its runs, and what two sweeps must have in common."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from pebbler.benchmark.output.machine import origin
from pebbler.benchmark.sweeps.config import jobs, read_config
from pebbler.benchmark.sweeps.jobs import Job, measure
from pebbler.benchmark.sweeps.problems import About
from pebbler.benchmark.sweeps.results import Results, Run
from pebbler.benchmark.sweeps.runner import Made, make

SMALL = """
title = "twelve runs of tiny instances"

[[sweep]]
suites = ["tiny"]
select = ["chain2-s?"]
methods = ["modnn", "vdnn-all-m", "vdnn-all-p", "brute-force"]
"""
"""Twelve runs; on each instance, some methods have a schedule and some have none."""

FEWER = SMALL.replace("twelve", "four").replace("s?", "s[01]").replace(', "vdnn-all-p", "brute-force"', "")
"""Four of them, for tests in which each run has a process of its own."""

ABOUT = About(
    problem="net/1/K40/50%",
    problem_sha256="0" * 64,
    family_sha256="f" * 64,
    network="net",
    batch=1,
    device="K40",
    graph="executable",
    rounds_of="1",
    engines="duplex",
    tasks=10,
    budget_bytes=100,
)
"""A problem that nobody solves, for runs that were never made."""

COSTS = ("solve_seconds", "wall_seconds", "peak_rss_bytes")

PLACES = ("date", "machine", "revision")


def write_config(folder: Path, text: str = SMALL) -> Path:
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    return path


def jobs_of(path: Path) -> list[Job]:
    return list(jobs(read_config(path), path.parent))


def command(config: Path, *options: str) -> list[str]:
    results = config.with_suffix(".sqlite")
    return [sys.executable, "-m", "pebbler", "bench", str(config), "-o", str(results), "-v", *options]


def finish(config: Path, *options: str) -> str:
    done = subprocess.run(
        command(config, *options), cwd=config.parent, capture_output=True, text=True, check=True
    )
    return done.stdout


def stopped(config: Path, runs: int, how: signal.Signals) -> tuple[int, list[int]]:
    """Start a sweep, stop it after so many more runs; its exit status, and the processes that it had."""
    with subprocess.Popen(command(config), cwd=config.parent, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = iter(process.stderr)
        assert any(" runs are made already" in line for line in told)
        for _ in range(runs):
            next(told)
        children = children_of(process.pid)
        process.send_signal(how)
        process.communicate()
    return process.returncode, children


def children_of(pid: int) -> list[int]:
    return [
        int(child)
        for file in Path(f"/proc/{pid}/task").glob("*/children")
        for child in file.read_text().split()
    ]


def outcome(run: Run) -> dict[str, Any]:
    """All that a run says but for times and memory, and the day and place where it was made."""
    said = {name: value for name, value in run.flat().items() if name not in COSTS + PLACES}
    return said | {"trace": [point[1:] for point in run.found.trace]}


def outcomes(path: Path) -> dict[str, dict[str, Any]]:
    """What the runs of a results file say, by their fingerprints."""
    with Results(path) as results:
        runs = results.runs()
    found = {run.fingerprint: outcome(run) for run in runs}
    assert len(found) == len(runs)
    return found


def files(path: Path) -> dict[str, bytes]:
    """Instances and schedules beside a results file."""
    folder = path.with_suffix(".files")
    return {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()
    }


def made_here(job: Job, *_: object) -> Made:
    """Make a run in this process, as `perform` does in another."""
    return Made(measure(job), 0.25, origin())


class Here(Executor):
    """Makes runs in this process, at once."""

    def submit(self, _: object, /, *arguments: Any, **__: object) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        future.set_result(made_here(*arguments))
        return future


def swept(folder: Path, text: str = SMALL) -> Path:
    """The results of a configuration, made in this process."""
    path = folder / "swept.sqlite"
    with Results(path, write=True) as results:
        make(jobs_of(write_config(folder, text)), results, Here())
    return path
