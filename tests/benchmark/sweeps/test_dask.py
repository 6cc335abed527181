"""Sweeps on a Dask cluster: a scheduler and two workers on this machine, of which one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pebbler.cli.main import main

from ...solver.processes import alive, eventually
from ..swept import FEWER, files, finish, jobs_of, outcomes, stopped, swept, write_config

pytest.importorskip("distributed")


class Cluster:
    """A scheduler and two workers; they end with the ``with`` block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = ExitStack()

    def __enter__(self) -> Cluster:
        note = self.folder / "scheduler.json"
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(note)
        )
        assert eventually(lambda: note.exists() and note.read_text().endswith("}"), 30)
        self.address = json.loads(note.read_text())["address"]
        self.workers = [
            self._start("worker", self.address, "--nthreads", "1", "--no-nanny", "--name", name)
            for name in ("first", "second")
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def _start(self, what: str, *options: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{what}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "distributed.cli.dask_" + what, "--no-dashboard", *options],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, "DASK_TEMPORARY_DIRECTORY": str(self.folder)},
            )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        yield made


def started(config: Path, results: Path, cluster: Cluster) -> subprocess.Popen[str]:
    """A sweep on a cluster that has entered two runs."""
    command = [sys.executable, "-m", "pebbler", "bench", str(config), "-o", str(results)]
    process = subprocess.Popen(
        [*command, "-v", "--json", "--cluster", cluster.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert any(line.startswith("2 of ") for line in process.stderr)
    return process


@pytest.mark.slow
def test_sweep_outlives_a_worker_and_tells_of_a_lost_scheduler(cluster: Cluster, tmp_path: Path) -> None:
    """What is made after a worker was killed is as here; without a scheduler, what is made stays."""
    here, config, there = swept(tmp_path), write_config(tmp_path), tmp_path / "there.sqlite"
    with started(config, there, cluster) as process:
        os.kill(cluster.workers[0].pid, signal.SIGKILL)
        assert process.stderr is not None
        assert any(line.startswith("4 of ") for line in process.stderr)
        os.kill(cluster.scheduler.pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert errors.splitlines()[-1].startswith("pebbler: the workers were lost; what is entered stays")
    found = outcomes(there)
    assert 4 <= len(found) < 12
    assert found.items() <= outcomes(here).items()
    assert files(there).items() <= files(here).items()


@pytest.mark.slow
def test_sweep_with_a_killed_worker_equals_one_here(cluster: Cluster, tmp_path: Path) -> None:
    here, config = swept(tmp_path, FEWER), write_config(tmp_path, FEWER)
    there = tmp_path / "there.sqlite"
    with started(config, there, cluster) as process:
        lost = cluster.workers[0].pid
        os.kill(lost, signal.SIGKILL)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert json.loads(output) == {"results": str(there), "kept": 0, "made": 4, "failed": 0}
    assert eventually(lambda: not alive(lost))
    assert outcomes(there) == outcomes(here)
    assert files(there) == files(here)


LARGE = """
title = "two hundred runs"

[[sweep]]
suites = ["tiny"]
methods = ["modnn", "vdnn-dyn", "cp-sat", "brute-force"]
"""


@pytest.mark.slow
def test_two_hundred_runs_are_the_same_killed_or_on_two_workers(cluster: Cluster, tmp_path: Path) -> None:
    paths = []
    for name in ("whole", "killed", "workers"):
        (tmp_path / name).mkdir()
        paths.append(write_config(tmp_path / name, LARGE))
    whole, killed, workers = paths
    runs = len(jobs_of(whole))
    assert runs >= 200
    assert f"{runs} runs made" in finish(whole)
    for part in (40, 55, 35):
        status, _ = stopped(killed, part, signal.SIGKILL)
        assert status == -signal.SIGKILL
    assert f"{runs} runs made" not in finish(killed)
    assert f"{runs} runs made" in finish(workers, "--cluster", cluster.address)
    expected = outcomes(whole.with_suffix(".sqlite"))
    assert len(expected) == runs
    for other in (killed, workers):
        assert outcomes(other.with_suffix(".sqlite")) == expected
        assert files(other.with_suffix(".sqlite")) == files(whole.with_suffix(".sqlite"))


def test_no_scheduler_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pebbler.benchmark.sweeps.dask.PATIENCE_SECONDS", 0.2)
    config = write_config(tmp_path)
    assert main(["bench", str(config), "--cluster", "tcp://127.0.0.1:9"]) == 2
    assert "no Dask scheduler at tcp://127.0.0.1:9" in capsys.readouterr().err
