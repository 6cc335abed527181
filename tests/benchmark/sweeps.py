"""What tests of sweeps share: a small configuration, its runs, and what two sweeps must have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pebbler.benchmark.jobs import Job
from pebbler.benchmark.results import Results, Run
from pebbler.benchmark.sweep import Config, jobs, read_config

SMALL = """
title = "twelve runs of tiny instances"

[[sweep]]
suites = ["tiny"]
select = ["chain2-s?"]
methods = ["modnn", "vdnn-all-m", "vdnn-all-p", "brute-force"]
"""
"""Twelve runs; on each instance, some methods have a schedule and some have none."""

COSTS = ("solve_seconds", "wall_seconds", "peak_rss_bytes", "date", "machine")


def write_config(folder: Path, text: str = SMALL) -> Path:
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    return path


def jobs_of(path: Path) -> list[Job]:
    return [job for job, _ in jobs(read_config(path), path.parent)]


def config_jobs(config: Config, folder: Path) -> list[Job]:
    return [job for job, _ in jobs(config, folder)]


def outcome(run: Run) -> dict[str, Any]:
    """All that a run says but for times and memory."""
    said = {name: value for name, value in run.flat().items() if name not in COSTS}
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
