"""The committed page has the shipped protocol and the committed results."""

from __future__ import annotations

from pathlib import Path

import pytest

import protocol as protocol_page
from pebbler.benchmark.sweeps.results import Results
from pebbler.instances.errors import PebblerError


@pytest.fixture
def docs(pytestconfig: pytest.Config) -> Path:
    return pytestconfig.rootpath / "docs"


def test_committed_page_is_of_the_shipped_protocol_and_the_committed_results(
    docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "contest.md"
    page.write_bytes((docs / "contest.md").read_bytes())
    monkeypatch.chdir(docs.parent)
    protocol_page.main(["--write", str(page)])
    assert page.read_bytes() == (docs / "contest.md").read_bytes()
    assert 'title = "Protocol 2026"' in page.read_text("utf-8")


def test_every_run_has_timed_the_kernel(docs: Path) -> None:
    with Results(docs / "data" / "protocol-2026.sqlite") as results:
        runs = results.runs()
    assert runs
    assert all(run.kernel_seconds is not None for run in runs)


def test_results_without_a_protocol_have_no_standing(docs: Path) -> None:
    with (
        Results(docs / "data" / "bench.sqlite") as results,
        pytest.raises(PebblerError, match=r"bench\.sqlite is by no protocol"),
    ):
        protocol_page.report(results)
