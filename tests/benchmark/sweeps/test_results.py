"""The results file: what goes in comes out, nothing is there twice, and other files are refused."""

from __future__ import annotations

import dataclasses
import sqlite3
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from pebbler.benchmark.sweeps.results import COLUMNS, Results, Run, origins, read_latest
from pebbler.heuristics.programs import program_sha256
from pebbler.instances.errors import PebblerError

from ..swept import swept


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("results"))


@pytest.fixture
def runs(path: Path) -> list[Run]:
    with Results(path) as results:
        return results.runs()


def test_runs_come_out_as_they_went_in(runs: list[Run], tmp_path: Path) -> None:
    with Results(tmp_path / "copy.sqlite", write=True) as results:
        for run in runs:
            results.add(run)
        assert results.runs() == runs
    with Results(tmp_path / "copy.sqlite") as results:
        assert results.runs() == runs
        assert results.fingerprints() == {run.fingerprint for run in runs}


COMMITTED = [
    place
    for folder in ("docs", "paper")
    for place in sorted((Path(__file__).parents[3] / folder / "data").glob("*.sqlite"))
]


@pytest.mark.parametrize("committed", COMMITTED, ids=lambda place: f"{place.parts[-3]}-{place.stem}")
def test_committed_runs_have_the_fingerprints_of_their_problems(
    committed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of programs have the fingerprints of the committed programs."""
    monkeypatch.chdir(committed.parents[2])
    with Results(committed) as results:
        for run in results.runs():
            versions = sorted(run.origin.packages.items())
            if (program := program_sha256(run.setting.method)) is not None:
                versions.append((run.setting.method, program))
            parts = (run.about.problem_sha256, run.setting, run.seed, versions)
            assert run.fingerprint == sha256(msgspec.json.encode(parts)).hexdigest()


def test_run_takes_the_place_of_one_like_it(runs: list[Run], tmp_path: Path) -> None:
    failed = replace(runs[0], found=replace(runs[0].found, status="error"))
    with Results(tmp_path / "twice.sqlite", write=True) as results:
        results.add(failed)
        results.add(runs[1])
        assert results.fingerprints(failed=False) == {runs[1].fingerprint}
        results.add(runs[0])
        assert sorted(run.fingerprint for run in results.runs()) == sorted(
            run.fingerprint for run in runs[:2]
        )
        assert failed not in results.runs()


def test_anybody_can_read_the_table(path: Path, runs: list[Run]) -> None:
    database = sqlite3.connect(path)
    rows = database.execute(
        "SELECT problem, method, iteration_ns FROM runs WHERE method = 'modnn'"
    ).fetchall()
    database.close()
    assert rows == [
        (run.about.problem, "modnn", run.found.iteration_ns) for run in runs if run.setting.method == "modnn"
    ]
    assert len(set(COLUMNS)) == len(COLUMNS)


def test_files_are_written_once(path: Path) -> None:
    with Results(path, write=True) as results:
        run = results.runs()[0]
        place = results.instance_file(run.found.instances[0])
        before = place.stat()
        results.add(run, [place.read_bytes()], [b"another"])
        assert (before.st_ino, before.st_mtime_ns) == (place.stat().st_ino, place.stat().st_mtime_ns)
        assert results.schedule_file(sha256(b"another").hexdigest()).read_bytes() == b"another"


def test_results_that_are_not_there_are_not_made_by_reading(tmp_path: Path) -> None:
    with pytest.raises(PebblerError, match="no such file"):
        Results(tmp_path / "none.sqlite")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("content", ["not a database " * 100, "foreign", "newer"])
def test_other_files_are_refused(content: str, write: bool, tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    if content == "foreign":
        database = sqlite3.connect(path)
        database.execute("CREATE TABLE runs (a)")
        database.close()
    elif content == "newer":
        Results(path, write=True).__exit__(None, None, None)
        database = sqlite3.connect(path)
        database.execute("PRAGMA user_version = 99")
        database.close()
    else:
        path.write_text(content)
    before = path.read_bytes()
    why = {"newer": "format 99", "foreign": "is not a results file"}.get(content, "not a database")
    with pytest.raises(PebblerError, match=why):
        Results(path, write=write)
    assert path.read_bytes() == before


def test_truncated_file_is_told(path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(path.read_bytes()[:5000])
    with (
        pytest.raises(PebblerError, match=r"cut\.sqlite cannot be used as a results file: .*malformed"),
        Results(cut) as results,
    ):
        results.runs()


def test_a_file_whose_names_are_no_text_is_told(path: Path, tmp_path: Path) -> None:
    """SQLite's message has the bytes as they are, and Python cannot read them."""
    whole, damaged = path.read_bytes(), tmp_path / "damaged.sqlite"
    assert whole.count(b"CREATE TABLE runs") == 1
    damaged.write_bytes(whole.replace(b"CREATE TABLE runs", b"CREATE T\xffBLE runs"))
    with pytest.raises(PebblerError, match=r"damaged\.sqlite is damaged: it has names that are no text"):
        Results(damaged)


def test_empty_file_becomes_one_of_results_only_when_written(tmp_path: Path) -> None:
    path = tmp_path / "empty.sqlite"
    path.touch()
    with pytest.raises(PebblerError, match="is not a results file"):
        Results(path)
    with Results(path, write=True) as results:
        assert results.runs() == []


def test_origins_tell_machines_and_dates_apart(runs: list[Run]) -> None:
    other = replace(runs[1], date="2031-02-03", origin=dataclasses.replace(runs[1].origin, revision="abc"))
    first, second = origins([runs[0], other, replace(other, date="2031-02-01")])
    assert first.startswith(f"1 runs, {runs[0].date}: {runs[0].origin.machine}; Python ")
    assert second.startswith("2 runs, 2031-02-01 to 2031-02-03: ")
    assert second.endswith(", revision abc")
    (brief,) = origins([runs[0], replace(other, date="2031-02-03")], most=1)
    assert brief == f"2 runs, {runs[0].date} to 2031-02-03: 2 machines, versions or revisions"


def test_last_run_of_a_measurement_counts_whatever_code_made_it(runs: list[Run], tmp_path: Path) -> None:
    path = tmp_path / "twice.sqlite"
    again = replace(runs[0], fingerprint="of newer packages", date="2031-02-03")
    with Results(path, write=True) as results:
        for run in (*runs, again):
            results.add(run)
    latest = read_latest(path)
    assert len(latest) == len(runs)
    assert again in latest
    assert runs[0] not in latest
