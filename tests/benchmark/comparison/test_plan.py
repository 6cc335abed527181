"""Which instances an iteration consists of, and the budget for any sub-batch."""

from __future__ import annotations

import pytest

from pebbler.benchmark.comparison.plan import auto_budget, instances_of, own_instances
from pebbler.instances.errors import BudgetError
from pebbler.instances.memory import least_budget, unlimited_peak
from pebbler.instances.workload import Workload

LENET = Workload("lenet", 10, "K40")
QUICK = Workload("cifar10_quick", 12, "K40")
BOTH = pytest.mark.parametrize("workload", [LENET, QUICK], ids=lambda one: one.network)


# --- instances of an iteration ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sub_batch", "rounds"), [(10, [(10, 1)]), (5, [(5, 2)]), (4, [(4, 2), (2, 1)]), (1, [(1, 10)])]
)
def test_own_instances_are_those_of_the_methods_sub_batch(
    sub_batch: int, rounds: list[tuple[int, int]]
) -> None:
    instances = own_instances(lambda _workload, _budget: sub_batch, LENET, 123)
    assert [(one.made_from.sub_batch, one.rounds) for one in instances] == rounds
    assert {one.budget_bytes for one in instances} == {123}


def test_a_rule_sees_the_workload_and_the_budget() -> None:
    seen = []
    own_instances(lambda *given: seen.append(given) or 10, LENET, 123)
    assert seen == [(LENET, 123)]


def test_a_smaller_last_round_has_the_budget_of_the_others() -> None:
    """Relative to the peak of four images, not of two."""
    first, last = instances_of(LENET, "100%", 4)
    assert (first.made_from.sub_batch, last.made_from.sub_batch) == (4, 2)
    assert first.budget_bytes == last.budget_bytes == unlimited_peak(first) > unlimited_peak(last)


# --- budgets ----------------------------------------------------------------------------------------------


@BOTH
def test_a_budget_is_a_share_of_the_peak_of_the_whole_batch_or_a_multiple_of_the_floor(
    workload: Workload,
) -> None:
    whole = workload.instance(0, check_budget=False)
    assert auto_budget(workload, "100%") == unlimited_peak(whole)
    assert auto_budget(workload, "1xMmin") == workload.floor()
    assert auto_budget(workload, "3xMmin") == 3 * workload.floor() < 3 * least_budget(whole)
    assert auto_budget(workload, workload.floor()) == workload.floor()
    assert auto_budget(workload, "8MiB") == 8 * 2**20


@pytest.mark.parametrize("budget", ["0.9xMmin", "1%", 5, "5B"])
def test_a_budget_under_the_floor_is_refused(budget: int | str) -> None:
    with pytest.raises(
        BudgetError, match=f"lenet: a budget .* minimum of {LENET.floor()} bytes .* one image"
    ):
        auto_budget(LENET, budget)
