from __future__ import annotations

import math
from pathlib import Path

import pytest

import checkpointing
from checkpointing import BEGIN, END, chain_optimum, main, random_chain, training_chain
from pebbler.instances.memory import least_budget, unlimited_peak, with_budget
from pebbler.solver.exhaustive.brute_force import brute_force


def test_the_programme_against_exhaustive_search() -> None:
    """Chains of two and three layers, with activations and gradients of several sizes."""
    finite = 0
    for count, activation, gradient in ((2, 1, 1), (2, 2, 1), (3, 1, 1), (3, 1, 2)):
        forward, backward = random_chain(count, seed=count)
        chain = training_chain(forward, backward, activation, gradient)
        for budget in range(least_budget(chain), unlimited_peak(chain) + 1):
            found = brute_force(with_budget(chain, budget), "divisible")
            optimum = chain_optimum(forward, backward, activation, gradient, budget)
            assert optimum == (math.inf if found is None else found.makespan_ns)
            finite += found is not None
    assert finite >= 7


def test_with_the_least_memory_everything_is_made_from_the_start() -> None:
    """The sweep forward, after which one activation is there, and then n - 2, n - 3, ... steps anew."""
    for count in (2, 3, 5, 8):
        optimum = chain_optimum([1] * count, [0] * count, 1, 1, 4)
        assert optimum == count + 1 + sum(range(count - 1))
        assert chain_optimum([1] * count, [0] * count, 1, 1, 3) == math.inf


def test_the_table_goes_into_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "LENGTHS", (3,))
    monkeypatch.setattr(checkpointing, "TINY", 6)
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}", encoding="utf-8")
    main(["--write", str(page)])
    (row,) = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| 7 ")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2] == cells[4]
    (row,) = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| 6 ")]
    budgets, feasible, again, equal, met = (int(cell) for cell in row.strip("|").split("|")[1:])
    assert 0 < again < feasible <= budgets
    assert max(equal, met) <= feasible
