"""The committed page is of the committed configuration and results."""

from __future__ import annotations

from pathlib import Path

import pytest

import bench as bench_page
from pebbler.benchmark.sweeps.config import read_config
from pebbler.benchmark.sweeps.results import Results


@pytest.fixture
def docs(pytestconfig: pytest.Config) -> Path:
    return pytestconfig.rootpath / "docs"


def test_committed_page_is_of_the_committed_files(
    docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "bench.md"
    page.write_bytes((docs / "bench.md").read_bytes())
    monkeypatch.chdir(docs.parent)
    bench_page.main(["--write", str(page)])
    assert page.read_bytes() == (docs / "bench.md").read_bytes()
    assert (docs / "bench.toml").read_text("utf-8") in page.read_text("utf-8")


def test_committed_results_are_of_the_committed_configuration(docs: Path) -> None:
    with Results(docs / "data" / "bench.sqlite") as results:
        runs = results.runs()
    sweeps = read_config(docs / "bench.toml").sweep
    assert {run.setting.method for run in runs} == {name for sweep in sweeps for name in sweep.methods}
    networks = {grid.network for sweep in sweeps for grid in sweep.workloads}
    assert {run.about.network for run in runs} - {None} == networks
