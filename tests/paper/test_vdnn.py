"""The tables of docs/papers-vdnn.md are what their script computes, and mean what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

import vdnn as papers_vdnn
from pebbler.instances.instance import Instance
from pebbler.instances.memory import ideal_ns, with_budget
from pebbler.instances.workload import Workload
from vdnn import BEGIN, END, POLICIES, baseline_bytes, case, outcome

GIB = 2**30


@pytest.fixture(scope="module")
def page(pytestconfig: pytest.Config) -> str:
    text = (pytestconfig.rootpath / "docs" / "papers-vdnn.md").read_text(encoding="utf-8")
    return text.split(BEGIN)[1].split(END)[0]


@pytest.mark.slow
def test_the_page_has_what_the_script_prints(page: str) -> None:
    assert page == papers_vdnn.tables()


@pytest.mark.parametrize("network", ["alexnet", pytest.param("vgg16", marks=pytest.mark.slow)])
def test_the_page_has_the_speeds_and_the_memory_of_a_network(network: str, page: str) -> None:
    outcomes = case(network, 128).outcomes
    speeds, memory = (
        next(
            line for line in page.split(f"**{title}")[1].splitlines() if line.startswith(f"| {network} (128)")
        )
        for title in ("Speed of the feature extraction layers", "Memory in GiB")
    )
    for policy, speed in zip(POLICIES, speeds.split(" | ")[1:], strict=False):
        one = outcomes[policy]
        if one.fits:
            assert speed == f"{one.speed:.1%}".replace("%", " %")
        assert f" {one.maximum / GIB:.2f} / {one.average / GIB:.2f} " in memory


def test_the_script_puts_the_tables_into_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = "new\n"
    monkeypatch.setattr(papers_vdnn, "tables", lambda: tables)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n", encoding="utf-8")
    papers_vdnn.main(["--write", str(page)])
    assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}{tables}{END}after\n"
    papers_vdnn.main([])
    assert capsys.readouterr().out == tables


@pytest.fixture(scope="module")
def alexnet() -> Instance:
    return Workload("alexnet", 128, "titanx", graph="paper").instance("12GiB")


def test_baseline_is_the_sum_that_the_design_gives(alexnet: Instance) -> None:
    """0.99 GiB without workspace (docs/networks.md); the largest of the fastest is 0.19 (docs/costs.md)."""
    assert baseline_bytes(alexnet) / GIB == pytest.approx(0.99 + 0.19, abs=0.01)


def test_speed_leaves_the_classification_layers_out(alexnet: Instance) -> None:
    """In the whole iteration the same loss is a smaller share."""
    result = outcome(alexnet, "all-m")
    fully_connected = sum(
        task.algorithms[0].duration_ns for task in alexnet.tasks if "(fc" in task.name or "prob" in task.name
    )
    assert fully_connected > 0.1 * ideal_ns(alexnet)
    lost = (ideal_ns(alexnet) - fully_connected) * (1 / result.speed - 1)
    whole = papers_vdnn.solve(alexnet, "vdnn-all-m").makespan_ns
    assert whole == pytest.approx(ideal_ns(alexnet) + lost, rel=1e-3)


def test_a_policy_that_fails_is_marked_and_measured_with_memory_enough(alexnet: Instance) -> None:
    fits, fails = outcome(alexnet, "conv-p"), outcome(with_budget(alexnet, GIB * 7 // 10), "conv-p")
    assert fits.fits
    assert not fails.fits
    assert "no place for" in fails.stopped_by
    assert (fails.speed, fails.pinned, fails.maximum) == (fits.speed, fits.pinned, fits.maximum)


def test_the_library_is_the_one_that_the_paper_states() -> None:
    origin = case("alexnet", 128, policies=()).instance.origin
    assert origin is not None
    assert (origin.device, origin.cudnn) == ("TitanX", "4")
