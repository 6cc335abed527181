"""The tables of docs/papers-modnn.md are what their script computes, and mean what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

import modnn as papers_modnn
from modnn import marks, memory, own, whole, workload
from pebbler.heuristics.methods import find_method
from pebbler.instances.memory import ideal_ns
from pebbler.instances.workload import Workload

ALEXNET = Workload("alexnet", 128, "K40")
MIB = 2**20


def test_the_page_has_what_the_script_prints(pytestconfig: pytest.Config) -> None:
    """Every table is there; the one that takes no schedules is computed again."""
    page = (pytestconfig.rootpath / "docs" / "papers-modnn.md").read_text(encoding="utf-8")
    found = {}
    for name in papers_modnn.TABLES:
        begin, end = marks(name)
        found[name] = page.split(begin)[1].split(end)[0]
        assert found[name].startswith("| ")
    assert found["memory"] == papers_modnn.memory_table()


def test_the_script_puts_tables_between_their_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(papers_modnn, "TABLES", {"b": lambda: "| new b |\n", "a": lambda: "| new a |\n"})
    page = tmp_path / "page.md"
    page.write_text("1\n<!-- begin a -->\nold\n<!-- end a -->\n2\n<!-- begin b -->\n<!-- end b -->\n3\n")
    papers_modnn.main(["--write", str(page)])
    expected = (
        "1\n<!-- begin a -->\n| new a |\n<!-- end a -->\n2\n<!-- begin b -->\n| new b |\n<!-- end b -->\n3\n"
    )
    assert page.read_text() == expected
    assert capsys.readouterr().out == ""
    papers_modnn.main([])
    out = capsys.readouterr().out
    assert out.index("| new b |") < out.index("<!-- end b -->") < out.index("| new a |")


def test_time_is_that_of_all_rounds_over_the_ideal_of_the_whole_batch() -> None:
    tight, budget = own("modnn", ALEXNET, 700 * MIB), ALEXNET.instance(0, check_budget=False)
    assert tight is not None
    assert tight.sub_batch < 128
    rounds = [
        (one := ALEXNET.instance(700 * MIB, size, rounds=count), count)
        for size, count in ALEXNET.rounds(tight.sub_batch)
    ]
    schedules = [(papers_modnn.solve(instance, "modnn"), count) for instance, count in rounds]
    assert tight.time * ideal_ns(budget) == pytest.approx(sum((r.makespan_ns or 0) * n for r, n in schedules))
    runs = [
        (sum(o.end_ns - o.start_ns for o in r.schedule.operations if o.kind == "run"), n)
        for r, n in schedules
        if r.schedule is not None
    ]
    assert tight.tasks * ideal_ns(budget) == pytest.approx(sum(time * n for time, n in runs))
    assert tight.tasks <= tight.time
    assert tight.moved == sum(
        ((r.offloaded_bytes or 0) + (r.prefetched_bytes or 0)) * n for r, n in schedules
    )
    assert one.rounds == rounds[-1][1]


def test_another_method_at_the_sub_batch_of_a_planner() -> None:
    planned = own("vdnn-all-p", ALEXNET, 700 * MIB, planner="modnn")
    ours = own("modnn", ALEXNET, 700 * MIB)
    assert planned is not None
    assert ours is not None
    assert planned.sub_batch == ours.sub_batch < 128
    assert find_method("vdnn-all-p").sub_batch is None
    assert planned.moved > 0


def test_vdnn_as_described_is_at_the_whole_batch_unless_another_plans() -> None:
    described, planned = (own("vdnn-all-tpds", ALEXNET, 800 * MIB, planner=name) for name in (None, "modnn"))
    assert described is not None
    assert planned is not None
    assert described == whole("vdnn-all-tpds", ALEXNET, 800 * MIB)
    assert described.sub_batch == 128 > planned.sub_batch
    assert described.moved > 0


def test_ideal_has_all_data_and_the_largest_workspace() -> None:
    """ResNet-34's is more than 12 GB and less than 12 GiB: DATE and TPDS say different things of it."""
    vgg = memory("vgg16", 256)
    instance = workload("vgg16", 256, "paper").instance(0, check_budget=False)
    quickest = [min(task.algorithms, key=lambda a: a.duration_ns) for task in instance.tasks]
    assert vgg.ideal - vgg.data == max(algorithm.workspace_bytes for algorithm in quickest)
    assert 12 * 10**9 < memory("resnet34", 256).ideal < 12 * 2**30


@pytest.mark.slow
def test_ratios_are_made_of_the_other_tables() -> None:
    """By hand: eq. 7 of VGG-16, and bytes at 12 GB where moDNN copies nothing but loads the input."""
    rows = [line.strip("| ").split(" | ") for line in papers_modnn.ratios_table().splitlines()]
    names = rows[0]
    table = {(row[0], row[1]): dict(zip(names, row, strict=True)) for row in rows[2:]}
    vgg = memory("vgg16", 256)
    (saving,) = (table[key] for key in table if key == ("59 x, TPDS", "ideal over lower bound"))
    assert saving["vgg16 (256)"] == f"{vgg.ideal / vgg.lower:.0f} x"
    (bytes_row,) = (table[key] for key in table if key[0] == "378 x, TPDS")
    described = whole("vdnn-all-tpds", workload("vgg16", 256, "paper"), 12 * 2**30)
    assert described is not None
    ours = own("modnn", workload("vgg16", 256, "paper"), 12 * 2**30)
    assert ours is not None
    assert ours.moved == 0
    load = 256 * 3 * 224 * 224 * 4
    assert bytes_row["vgg16 (256)"] == f"{(described.moved + load) / load:.0f} x"
    assert table["5 x, DATE", "bytes of `vdnn-all-tpds` over `modnn-date`, the same"]["resnet152 (256)"] == ""


def test_what_has_no_schedule_is_none() -> None:
    assert own("vdnn-dyn", ALEXNET, ALEXNET.minimum_budget() - 1) is None
    assert whole("network-wide", ALEXNET, ALEXNET.minimum_budget()) is None
