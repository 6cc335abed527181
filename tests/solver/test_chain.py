"""Bounds, exhaustive searches and every method on instances that the page's table has not seen; the table."""

from __future__ import annotations

import math

import pytest

import chain
from chain import (
    BEGIN,
    END,
    LINKS,
    broken,
    chain_instance,
    evaluate,
    links_of,
    measure,
    page_sized,
)
from pebbler.heuristics.methods import list_methods
from pebbler.instances.units import PAGE_BYTES

from ..samples import sampled


@pytest.mark.parametrize("seeds", sampled(range(1204, 1206), range(1200, 1320, 20)))
def test_bounds_then_exhaustive_search_then_every_method(seeds: range) -> None:
    links = {(link.below, link.above): link for link in measure(map(chain_instance, seeds))}
    optimum = links["cp-sat", "divisible"]
    assert optimum.both == optimum.equal >= 0.7 * len(seeds)
    assert links["divisible", "paged"].both == len(seeds)
    assert links["divisible", "contiguous"].both >= len(seeds) // 4
    assert links["compute", "flow-lp"].strict >= 1
    assert sum(link.both for (below, _), link in links.items() if below == "contiguous") >= 2 * len(seeds)
    assert sum(link.both for (below, _), link in links.items() if below == "paged") >= 2 * len(seeds)


def test_a_broken_link_is_told() -> None:
    values = {"flow-milp": 5, "cp-sat": 6, "divisible": 6, "contiguous": 7, "m in contiguous": 8}
    assert list(broken(values)) == []
    for name, wrong in {"flow-milp": 7, "cp-sat": 5.5, "divisible": 8, "m in contiguous": 6}.items():
        assert any(name in reason for reason in broken({**values, "flow-milp": 1, name: wrong})), name
    proof = {"contiguous": 7, "proven by m in contiguous": 7}
    assert list(broken(proof)) == []
    assert list(broken({**proof, "contiguous": 6})) == [
        "proven by m in contiguous (7) is above contiguous (6)"
    ]


def test_where_the_search_gave_up_a_method_is_compared_with_the_relaxation() -> None:
    assert links_of(["divisible", "m in contiguous"]) == [("divisible", "m in contiguous")]
    assert list(broken({"divisible": math.inf, "m in contiguous": 9}))


def test_a_wrong_bound_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = chain_instance(1)
    values = evaluate(instance)
    monkeypatch.setattr(chain, "evaluate", lambda _: {**values, "flow-milp": values["divisible"] + 1})
    with pytest.raises(AssertionError, match=f"{instance.name}: flow-milp .* is above cp-sat"):
        measure([instance])


def test_counts_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = iter(
        [
            {"compute": 4, "flow-lp": 4},
            {"compute": 4, "flow-lp": 6},
            {"compute": 0, "flow-lp": 3},
            {"compute": 5, "flow-lp": math.inf},
            {"compute": 5},
        ]
    )
    monkeypatch.setattr(chain, "evaluate", lambda _: next(rows))
    link = next(one for one in measure([chain_instance(0)] * 5) if one.above == "flow-lp")
    assert link == ("compute", "flow-lp", 4, 1, 3, 1, 1.25, 1.5)


def test_in_units_of_pages_every_size_in_the_units_of_alignment_is_pages() -> None:
    instance = chain_instance(4)
    pages = page_sized(instance)
    assert pages.alignment_bytes == PAGE_BYTES
    assert pages.pool_bytes % PAGE_BYTES == 0
    assert pages.pool_bytes // PAGE_BYTES == instance.pool_bytes // instance.alignment_bytes
    assert [a.duration_ns for t in pages.tasks for a in t.algorithms] == [
        a.duration_ns for t in instance.tasks for a in t.algorithms
    ]


def test_the_page_has_every_link_on_five_hundred_instances_and_more(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "chain.md").read_text(encoding="utf-8")
    text = page.split(BEGIN)[1].split(END)[0]
    assert int(text.split()[0]) >= 500
    assert not any(f" {few} with " in text for few in range(20))
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if " <= " in line}
    for below, above in LINKS:
        assert f"{below} <= {above}" in rows
    for method in list_methods():
        if method.name != "brute-force" and method.shown != "named":
            assert f"contiguous <= {method.name} in contiguous" in rows


@pytest.mark.slow
def test_the_command_writes_the_same_table_into_a_page(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "chain_instance", lambda seed: chain_instance(6 * seed + 1))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    chain.main(["--count", "2", "--write", str(page)])
    assert page.read_text() == f"before\n{BEGIN}{chain.table(2)}{END}after\n"
    assert "2 instances" in page.read_text()
