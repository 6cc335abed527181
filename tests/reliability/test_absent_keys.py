"""The comparison of two revisions sees what differs, and its table is on the page."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from pebbler.benchmark.output.markdown import markdown
from pebbler.instances.instance import Instance
from pebbler.instances.transforms import with_shared_link

from . import absent_keys
from .absent_keys import FIGURES, Case, Digests, compared, digests, figures, kinds

HEADER = ("instances", "number", *FIGURES)


@pytest.mark.parametrize(
    "names",
    [("tiny, both", "several GPUs"), pytest.param(None, marks=pytest.mark.slow)],
    ids=["two kinds", "every kind"],
)
def test_digests_are_the_same_twice_and_no_instance_has_the_keys(
    names: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(seeds: int) -> dict[str, Iterable[Case]]:
        return {name: cases for name, cases in kinds(seeds).items() if names is None or name in names}

    monkeypatch.setattr(absent_keys, "kinds", some)
    assert digests(1) == digests(1)
    for cases in kinds(2).values():
        for case in cases:
            assert not case.instance.is_coupled
            assert not case.instance.has_host_work


def test_what_differs_is_seen(tight: Instance) -> None:
    """A link is in the file; one that is too slow is in schedules, a budget in bounds as well."""
    before = figures(Case(tight, "contiguous", ("modnn",)), searched=True)
    slow = with_shared_link(tight, "1GB/s")
    after = figures(Case(slow, "contiguous", ("modnn",)), searched=True)
    assert {name for name in FIGURES if before[name] != after[name]} >= {"file", "optimum", "schedules"}
    roomy = replace(tight, budget_bytes=2 * tight.budget_bytes)
    loose = figures(Case(roomy, "contiguous", ("modnn",)), searched=True)
    assert {name for name in FIGURES if before[name] != loose[name]} >= {"file", "bounds", "FLOW"}


def test_rows_count_what_differs_and_what_is_missing() -> None:
    now: Digests = {"tiny": {"0": {"file": "a", "bounds": "b"}, "1": {"file": "c"}}}
    before: Digests = {"tiny": {"0": {"file": "a", "bounds": "x"}, "2": {"file": "c"}}}
    rows, differing = compared(now, before)
    assert rows == [("tiny", "3", "3, 2 differ", "1, 1 differ", "0", "0", "0", "0")]
    assert differing == ["tiny: 0: bounds", "tiny: 1: file", "tiny: 2: file"]
    assert compared(now, now)[1] == []


def test_the_committed_page_is_of_the_committed_comparison(pytestconfig: pytest.Config) -> None:
    docs = pytestconfig.rootpath / "docs"
    data = json.loads((docs / "data" / "reliability-absent.json").read_text("utf-8"))
    (run,) = data["runs"]
    assert run["differing"] == []
    assert f"{markdown(HEADER, run['rows'])}\n{data['date']}" in (docs / "reliability.md").read_text("utf-8")
