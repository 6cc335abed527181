"""Sweeps: whatever ends them, they go on where they were; whatever a run does, it is a row."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from pebbler.benchmark.output.machine import package_versions
from pebbler.benchmark.sweeps import runner
from pebbler.benchmark.sweeps.jobs import Job
from pebbler.benchmark.sweeps.results import Results, Run
from pebbler.benchmark.sweeps.runner import Tally, make, perform, warn_of_crowding
from pebbler.cli.main import main
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import read_instance, sha256_of
from pebbler.validate.check import check
from pebbler.validate.schedule import read_schedule

from ...solver.processes import alive, eventually
from ..swept import (
    FEWER,
    SMALL,
    Here,
    files,
    jobs_of,
    made_here,
    outcomes,
    stopped,
    swept,
    write_config,
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a sweep of two runs."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    config = write_config(folder, FEWER.replace("four", "two").replace("s[01]", "s0"))
    assert main(["bench", str(config), "-o", str(folder / "small.sqlite")]) == 0
    return folder / "small.sqlite"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a sweep of twelve runs, made in this process."""
    return swept(tmp_path_factory.mktemp("whole"))


def made(job: Job, tmp_path: Path) -> Run:
    with Results(tmp_path / "one.sqlite", write=True) as results:
        make([job], results, ThreadPoolExecutor(1), retry=True)
        return results.runs()[-1]


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sweep_that_was_killed_equals_one_that_was_not(kills: int, whole: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    path = config.with_suffix(".sqlite")
    entered = 0
    for _ in range(kills):
        status, children = stopped(config, 1, signal.SIGKILL)
        assert status == -signal.SIGKILL
        assert eventually(lambda children=children: not any(map(alive, children)))
        before, entered = entered, len(outcomes(path))
        assert before < entered < 12
    with Results(path, write=True) as results:
        assert make(jobs_of(config), results, Here()) == Tally(kept=entered, made=12 - entered, failed=0)
    assert outcomes(path) == outcomes(whole)
    assert files(path) == files(whole)


def test_ctrl_c_keeps_what_is_made_and_leaves_no_process(whole: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    status, children = stopped(config, 1, signal.SIGINT)
    assert status == 130
    assert not any(map(alive, children))
    found = outcomes(config.with_suffix(".sqlite"))
    assert 1 <= len(found) < 12
    assert found.items() <= outcomes(whole).items()


def test_finished_sweep_has_nothing_to_do(uninterrupted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = uninterrupted.read_bytes()
    assert main(["bench", str(uninterrupted.with_suffix(".toml")), "-o", str(uninterrupted)]) == 0
    assert "0 runs made, 0 of them failed; 2 were there" in capsys.readouterr().out
    assert uninterrupted.read_bytes() == before


def test_rows_say_what_the_files_beside_them_say(uninterrupted: Path) -> None:
    with Results(uninterrupted) as results:
        runs = results.runs()
        kinds = {run.found.status for run in runs}
        assert kinds == {"optimal", "unknown"}
        for run in runs:
            assert run.about.problem_sha256 == run.found.instances[0]
            assert (run.found.iteration_ns is None) == (not run.found.schedules)
            for of, by in zip(run.found.instances, run.found.schedules, strict=False):
                place = results.instance_file(of)
                instance = read_instance(place)
                assert sha256_of(place) == of
                schedule = read_schedule(results.schedule_file(by), instance)
                assert sha256_of(results.schedule_file(by)) == by
                assert check(instance, schedule, instance_sha256=of).valid
                assert schedule.makespan_ns * instance.rounds == run.found.iteration_ns
                assert schedule.method == run.setting.method


def test_what_it_costs_is_measured(uninterrupted: Path) -> None:
    with Results(uninterrupted) as results:
        for run in results.runs():
            assert run.found.solve_seconds is not None
            assert run.wall_seconds is not None
            assert 0 < run.found.solve_seconds < run.wall_seconds
            assert run.found.peak_rss_bytes is not None
            assert 20e6 < run.found.peak_rss_bytes < 4e9
            assert run.found.trace[-1][1:] == (run.found.iteration_ns, run.found.lower_bound_ns)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return jobs_of(write_config(tmp_path))[0]


@pytest.fixture
def measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module, which the processes of runs can import, with functions to put in the place of `measure`."""
    (tmp_path / "otherwise.py").write_text(
        "import os, time\n"
        "def crash(job): os.abort()\n"
        "def hang(job): time.sleep(60)\n"
        "def fill(job): raise MemoryError\n"
        "def fail(job): raise RuntimeError('no way')\n"
        "def load(job): time.sleep(0.2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("otherwise")


@pytest.mark.usefixtures("measuring")
@pytest.mark.parametrize(
    ("function", "status", "why"),
    [
        ("crash", "error", "the process failed: it ended with signal 6"),
        ("hang", "unknown", "it was killed after 0 s: its wall limit"),
        pytest.param(
            *("fill", "unknown", "the process ran out of memory, under a memory limit of 4.00 GiB"),
            marks=pytest.mark.slow,
        ),
        ("fail", "error", "RuntimeError: no way, under a memory limit of 4.00 GiB"),
    ],
)
def test_run_that_fails_is_a_row(
    function: str, status: str, why: str, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "measure", getattr(importlib.import_module("otherwise"), function))
    setting = job.setting
    job = replace_setting(job, wall_limit=0.4 if function == "hang" else 60.0, memory_limit_bytes=4 * 2**30)
    assert setting != job.setting
    run = made(job, tmp_path)
    assert run.found.status == status
    assert run.found.stopped_by.startswith(why)
    assert run.found.iteration_ns is None
    assert run.found.lower_bound_ns is None


@pytest.mark.usefixtures("measuring")
def test_loading_is_over_when_the_clock_of_a_run_starts(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    otherwise = importlib.import_module("otherwise")
    monkeypatch.setattr(runner, "load", otherwise.load)
    monkeypatch.setattr(runner, "measure", otherwise.hang)
    began = time.monotonic()
    run = made(replace_setting(job, wall_limit=0.1), tmp_path)
    assert run.found.stopped_by.startswith("it was killed after 0 s: its wall limit")
    assert run.wall_seconds is not None
    assert time.monotonic() - began - run.wall_seconds >= 0.2


def replace_setting(job: Job, **changes: object) -> Job:
    return dataclasses.replace(job, setting=dataclasses.replace(job.setting, **changes))  # type: ignore[arg-type]


def test_memory_limit_holds_in_the_runs_process(job: Job, tmp_path: Path) -> None:
    run = made(replace_setting(job, memory_limit_bytes=2**20), tmp_path)
    assert run.found.status in ("error", "unknown")
    assert "under a memory limit of 1.00 MiB" in run.found.stopped_by
    assert made(replace_setting(job, memory_limit_bytes=4 * 2**30), tmp_path).found.status == "optimal"


def test_failed_runs_are_made_again_when_asked_for(uninterrupted: Path, tmp_path: Path) -> None:
    path = tmp_path / "again.sqlite"
    jobs = jobs_of(write_config(tmp_path))[:2]
    with Results(uninterrupted) as results:
        runs = {run.fingerprint: run for run in results.runs()}
    old = [runs[job.fingerprint] for job in jobs]
    with Results(path, write=True) as results:
        results.add(replace(old[0], found=replace(old[0].found, status="error")))
        results.add(old[1])
        assert make(jobs, results, ThreadPoolExecutor(1)) == Tally(kept=2, made=0, failed=0)
        assert make(jobs, results, ThreadPoolExecutor(1), retry=True) == Tally(kept=1, made=1, failed=0)
    assert outcomes(path) == {job.fingerprint: outcomes(uninterrupted)[job.fingerprint] for job in jobs}


class Losing(Executor):
    """An executor whose workers are all lost."""

    def submit(self, *_: object, **__: object) -> Future[object]:  # type: ignore[override]
        future: Future[object] = Future()
        future.set_exception(LookupError("five workers died"))
        return future


def test_run_that_no_worker_survives_is_a_row(job: Job, tmp_path: Path) -> None:
    with Results(tmp_path / "lost.sqlite", write=True) as results:
        assert make([job], results, Losing(), lost=(LookupError,)) == Tally(kept=0, made=1, failed=1)
        (run,) = results.runs()
    assert run.found.stopped_by == "no worker survived it: five workers died"
    assert run.wall_seconds is None


def test_worker_with_other_packages_is_refused(job: Job) -> None:
    with pytest.raises(PebblerError, match="install the same everywhere"):
        perform(job, package_versions() | {"numpy": "1.0"})


def test_worker_with_another_instance_is_refused(job: Job, tmp_path: Path) -> None:
    other = dataclasses.replace(job, about=dataclasses.replace(job.about, problem_sha256="0" * 64))
    with pytest.raises(PebblerError, match="another instance here"):
        made(other, tmp_path)


def test_crowding_is_warned_of(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    cores = os.cpu_count() or 1
    with caplog.at_level(logging.WARNING, "pebbler"):
        warn_of_crowding([job], 1)
        assert not caplog.records
        warn_of_crowding([job, replace_setting(job, workers=cores)], 2)
    assert f"2 runs at once have up to {2 * cores} threads" in caplog.text


def test_progress_tells_the_time_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "perform", made_here)
    jobs = jobs_of(write_config(tmp_path, SMALL.replace("s?", "s1")))[:2]
    with caplog.at_level(logging.INFO, "pebbler"), Results(tmp_path / "r.sqlite", write=True) as results:
        make(jobs, results, ThreadPoolExecutor(1))
    assert "0 of 2 runs are made already" in caplog.text
    assert "1 of 2, " in caplog.text
    assert "2 of 2, 0 s left: tiny/chain2-s1, vdnn-all-m: unknown: no place" in caplog.text
