"""What a shared link costs: cases that are solved both ways, what follows from them, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest

import shared_link
from pebbler.instances.memory import least_budget, with_budget
from shared_link import (
    CASES,
    METHOD_TABLE,
    PROOF_TABLE,
    Case,
    Data,
    Figures,
    Proof,
    Solved,
    ask,
    method_table,
    proof,
    proof_table,
    read,
)

SMALL = Case("vgg16", 32, "k40", "1.05xMmin", "3GB/s")


def figures(makespan: int | None, bound: int, certified: int) -> Figures:
    return Figures(
        makespan_ns=makespan,
        lower_bound_ns=bound,
        certified_lower_bound_ns=certified,
        bound_by="flow",
        stopped_by="done",
    )


def case(apart: dict[str, Figures], shared: dict[str, Figures]) -> Solved:
    return Solved(case=SMALL, seconds=1.0, apart=apart, shared=shared, made="2026-01-02: a machine")


def test_what_is_proven() -> None:
    """The best bound with the link is 1100, over 1000; the best schedule 1200, over a bound of 900."""
    one = case(
        {"rule": figures(1050, 0, 0), "flow": figures(1000, 900, 850)},
        {"rule": figures(1300, 0, 0), "flow": figures(1200, 1100, 1010)},
    )
    assert proof(one) == Proof(1000, 1200, 900, 1100)
    found, exact = proof(one), proof(one, certified=True)
    assert found is not None
    assert exact is not None
    assert (found.at_least, found.at_most) == (pytest.approx(0.1), pytest.approx(1 / 3))
    assert exact.at_least == pytest.approx(0.01)


def test_bounds_and_schedules_serve_the_other_kind_of_link() -> None:
    """What takes 950 with the link takes no longer without; what is at least 900 without is so with it."""
    found = proof(case({"flow": figures(1000, 900, 900)}, {"flow": figures(950, 800, 800)}))
    assert found == Proof(950, 950, 900, 900)
    assert found.at_least == 0


def test_without_a_schedule_nothing_is_told() -> None:
    one = case({"flow": figures(None, 900, 900)}, {"flow": figures(None, 900, 900)})
    assert proof(one) is None
    assert proof_table(Data(cases=(one,))).count("no schedule") == 6


def test_cases_differ_in_their_link_alone() -> None:
    assert len(set(CASES)) == len(CASES)
    for one in (CASES[0], CASES[-1]):
        shared, apart = one.instance(shared=True), one.instance(shared=False)
        assert shared.tasks == apart.tasks
        assert shared.is_coupled
        assert not apart.is_coupled
        assert with_budget(apart, 0) != with_budget(shared, 0)
        assert apart.budget_bytes == shared.budget_bytes >= least_budget(shared)


def test_a_case_is_solved_once_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_link, "CASES", (SMALL,))
    monkeypatch.setattr(shared_link, "METHODS", ("vdnn-all-m", "modnn"))
    path, page = tmp_path / "data.json", tmp_path / "page.md"
    data = ask((SMALL,), 1.0, path)
    (one,) = data.cases
    found = proof(one)
    assert found is not None
    assert found.apart_bound_ns <= found.apart_ns
    assert found.apart_bound_ns <= found.shared_bound_ns <= found.shared_ns
    assert one.shared["modnn"].makespan_ns != one.apart["modnn"].makespan_ns
    page.write_text(f"{''.join(METHOD_TABLE)}{''.join(PROOF_TABLE)}", encoding="utf-8")
    monkeypatch.setattr(shared_link, "solved", lambda *_: pytest.fail("it was repeated"))
    shared_link.main(["--seconds", "1", "--data", str(path), "--write", str(page)])
    assert page.read_text("utf-8").count("| vgg16/32/k40/1.05xMmin |") == 2
    assert read(path) == data


def test_cells_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        shared_link.main(["--cells", "nonesuch*", "--data", str(tmp_path / "data.json")])


def test_the_committed_page_is_of_the_committed_cases(pytestconfig: pytest.Config) -> None:
    folder = pytestconfig.rootpath / "docs"
    data = read(folder / "data" / "shared-link.json")
    page = (folder / "link-and-optimizer.md").read_text("utf-8")
    for (begin, end), table in ((METHOD_TABLE, method_table(data)), (PROOF_TABLE, proof_table(data))):
        assert page.split(begin)[1].split(end)[0] == table
    kept = {one.case for one in data.cases}
    assert kept
    assert [one.case for one in data.cases] == [case for case in CASES if case in kept]
