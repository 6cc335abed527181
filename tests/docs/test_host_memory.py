"""Host memory: what is enough, gaps where it is short, runs that survive interruptions, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import host_memory
from host_memory import ENOUGH, GAPS, Case, Data, Solved, ask, enough_table, gaps_table, read
from pebbler.instances.memory import least_budget, least_host_bytes, with_budget
from pebbler.instances.units import PAGE_BYTES

SMALL = Case("vgg16", 32, "k40", "1.05xMmin")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a small question and a small cell."""
    path = tmp_path_factory.mktemp("host") / "host-memory.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_memory, "QUESTIONS", (SMALL,))
        patch.setattr(host_memory, "CELLS", (SMALL,))
        ask((SMALL,), (SMALL,), 0.5, path)
    return path


def cell(makespan: int | None, bound: int = 1000, certified: int = 900) -> Solved:
    """A cell that nobody solved."""
    side = host_memory.Side(
        makespan_ns=makespan,
        lower_bound_ns=bound,
        certified_lower_bound_ns=certified,
        bound_by="flow",
        pinned_bytes=2**30,
        stopped_by="time limit",
    )
    return Solved(
        case=SMALL,
        seconds=5.0,
        least_bytes=2**29,
        given_bytes=3 * 2**28,
        unlimited=side,
        limited=side,
        made="2026-01-02: a machine",
    )


def test_every_cell_can_be_solved_and_needs_copies() -> None:
    assert len(host_memory.CELLS) == 12
    whole = {}
    for case in (*host_memory.CELLS, *host_memory.QUESTIONS):
        if case.workload not in whole:
            whole[case.workload] = case.workload.instance(0, check_budget=False)
        instance = with_budget(whole[case.workload], case.budget)
        assert instance.budget_bytes >= least_budget(instance)
        assert least_host_bytes(instance) > 0


def test_little_host_memory_is_half_way_from_nothing_works_to_all_that_is_copied(file: Path) -> None:
    (one,) = read(file).cells
    instance = SMALL.workload.instance(SMALL.budget)
    assert one.least_bytes == least_host_bytes(instance, PAGE_BYTES)
    assert one.unlimited.pinned_bytes is not None
    assert one.given_bytes == (one.least_bytes + one.unlimited.pinned_bytes) // 2
    assert one.limited is not None
    assert one.limited.makespan_ns is not None
    assert one.limited.pinned_bytes is not None
    assert one.limited.pinned_bytes <= one.given_bytes
    assert one.limited.lower_bound_ns >= one.unlimited.lower_bound_ns
    assert one.limited.makespan_ns >= one.limited.lower_bound_ns
    (answer,) = read(file).answers
    assert answer.found.least is not None
    assert answer.found.least >= one.least_bytes


def test_what_the_file_has_is_not_asked_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()
    for name in ("solved", "answered"):
        monkeypatch.setattr(host_memory, name, lambda *_: pytest.fail("it was repeated"))
    assert ask((SMALL,), (SMALL,), 0.5, file) == read(file)
    assert file.read_bytes() == before


def test_another_time_limit_is_another_question(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.json"
    copy.write_bytes(file.read_bytes())
    asked: list[float] = []

    def solved(case: Case, seconds: float) -> Solved:
        asked.append(seconds)
        return replace(cell(1010), case=case, seconds=seconds)

    monkeypatch.setattr(host_memory, "solved", solved)
    monkeypatch.setattr(host_memory, "CELLS", (SMALL,))
    ask((), (SMALL,), 2.0, copy)
    ask((), (SMALL,), 2.0, copy)
    assert asked == [2.0]
    assert [one.seconds for one in read(copy).cells] == [2.0]


def test_targets_are_met_or_missed() -> None:
    met = gaps_table(Data(cells=(cell(1000), cell(1010), cell(1050))))
    assert "3 cells: median 1.00%, met: 1.00%; worst 5.00%, met: 5.00%." in met
    missed = gaps_table(Data(cells=(cell(1020), cell(1030), cell(1060))))
    assert "median 3.00%, missed: 1.00%; worst 6.00%, missed: 5.00%." in missed
    assert "| 6.00% | 17.78% |" in missed
    assert "worst no schedule, missed" in gaps_table(Data(cells=(cell(1000), cell(None))))


def test_the_page_gets_both_tables_and_a_picture(file: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    page = tmp_path / "page.md"
    page.write_text(f"before\n{''.join(ENOUGH)}between\n{''.join(GAPS)}after\n", encoding="utf-8")
    host_memory.main(["--cells", "none", "--data", str(file), "--write", str(page)])
    text = page.read_text("utf-8")
    assert text.count("| vgg16/32/k40/1.05xMmin |") == 2
    assert (tmp_path / host_memory.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_the_committed_page_is_of_the_committed_answers(pytestconfig: pytest.Config) -> None:
    folder = pytestconfig.rootpath / "docs"
    data, page = read(folder / "data" / "host-memory.json"), (folder / "host-memory.md").read_text("utf-8")
    for (begin, end), table in ((ENOUGH, enough_table(data)), (GAPS, gaps_table(data))):
        assert page.split(begin)[1].split(end)[0] == table
    assert [one.case for one in data.cells] == list(host_memory.CELLS)
    assert [one.case for one in data.answers] == list(host_memory.QUESTIONS)


def test_cells_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        host_memory.main(["--cells", "nonesuch*", "--data", str(tmp_path / "data.json")])
    assert not (tmp_path / "data.json").exists()
