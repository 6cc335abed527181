"""Which instances an iteration consists of, the budget for any sub-batch, and the bound over all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pebbler.benchmark import plan
from pebbler.benchmark.compare import compare_auto
from pebbler.benchmark.plan import auto_budget, instances_of, iteration_bound, least_bound, own_instances
from pebbler.heuristics.methods import MethodInfo, find_method
from pebbler.instances.errors import BudgetError
from pebbler.instances.instance import Instance
from pebbler.instances.memory import least_budget, unlimited_peak
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import Bound, best_bound

LENET = Workload("lenet", 10, "K40")
QUICK = Workload("cifar10_quick", 12, "K40")
BOTH = pytest.mark.parametrize("workload", [LENET, QUICK], ids=lambda one: one.network)


def taking(sub_batch: int) -> MethodInfo:
    """A method with a rule that says always the same."""
    return replace(find_method("modnn"), sub_batch=lambda _workload, _budget: sub_batch)


# --- instances of an iteration ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sub_batch", "rounds"), [(10, [(10, 1)]), (5, [(5, 2)]), (4, [(4, 2), (2, 1)]), (1, [(1, 10)])]
)
def test_own_instances_are_those_of_the_methods_sub_batch(
    sub_batch: int, rounds: list[tuple[int, int]]
) -> None:
    instances = own_instances(taking(sub_batch), LENET, 123)
    assert [(one.meta["sub_batch"], one.rounds) for one in instances] == rounds
    assert {one.budget_bytes for one in instances} == {123}


def test_a_method_without_a_rule_takes_the_whole_batch() -> None:
    (instance,) = own_instances(find_method("vdnn-all-m"), LENET, 123)
    assert (instance.meta["sub_batch"], instance.rounds) == (10, 1)


def test_a_rule_sees_the_workload_and_the_budget() -> None:
    seen = []
    method = replace(find_method("modnn"), sub_batch=lambda *given: seen.append(given) or 10)
    own_instances(method, LENET, 123)
    assert seen == [(LENET, 123)]


def test_a_smaller_last_round_has_the_budget_of_the_others() -> None:
    """Relative to the peak of four images, not of two."""
    first, last = instances_of(LENET, "100%", 4)
    assert (first.meta["sub_batch"], last.meta["sub_batch"]) == (4, 2)
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


# --- bounds -----------------------------------------------------------------------------------------------


def bound_at(workload: Workload, budget: int, sub_batch: int) -> int | None:
    """Bound of an iteration at one sub-batch; None where it has no schedule."""
    instances = own_instances(taking(sub_batch), workload, budget)
    if any(least_budget(one) > budget for one in instances):
        return None
    return iteration_bound(instances, [best_bound(one) for one in instances]).lower_bound_ns


@BOTH
@pytest.mark.parametrize("budget", ["1xMmin", "1.05xMmin", "1.3xMmin", "60%", "100%"])
def test_the_least_bound_is_the_least_of_the_bounds_at_all_sub_batches(
    workload: Workload, budget: str
) -> None:
    size = auto_budget(workload, budget)
    bounds = [bound_at(workload, size, b) for b in range(1, workload.batch + 1)]
    feasible = [bound for bound in bounds if bound is not None]
    assert least_bound(workload, size).lower_bound_ns == min(feasible)
    assert len(feasible) < workload.batch or budget != "1xMmin"


def test_a_sub_batch_that_computes_longer_may_have_the_least_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole batch computes fastest; let its best bound be ten times that."""
    budget = auto_budget(LENET, "100%")
    before = least_bound(LENET, budget)

    def slower(instance: Instance) -> Bound:
        bound = best_bound(instance)
        factor = 10 if instance.meta["sub_batch"] == LENET.batch else 1
        return replace(bound, lower_bound_ns=factor * bound.lower_bound_ns)

    monkeypatch.setattr(plan, "best_bound", slower)
    after = least_bound(LENET, budget)
    others = [bound_at(LENET, budget, b) or 0 for b in range(1, LENET.batch)]
    assert before.lower_bound_ns < after.lower_bound_ns == min(others) < 10 * before.lower_bound_ns


@BOTH
@pytest.mark.parametrize("budget", ["1xMmin", "1.3xMmin", "60%", "100%"])
def test_no_method_is_faster_than_the_least_bound_at_any_sub_batch(workload: Workload, budget: str) -> None:
    comparison = compare_auto(workload, budget)
    rows = [row for row in comparison.rows if row.figures is not None]
    assert {"modnn", "modnn-date"} <= {row.method for row in rows}
    for row in rows:
        assert row.figures is not None
        assert row.figures.iteration_ns >= comparison.bound.lower_bound_ns


def test_the_bound_of_an_iteration_counts_every_round() -> None:
    instances = instances_of(LENET, "100%", 4)
    bounds = [best_bound(one) for one in instances]
    total = iteration_bound(instances, bounds)
    assert total.lower_bound_ns == 2 * bounds[0].lower_bound_ns + bounds[1].lower_bound_ns
    assert total.certified
    assert not iteration_bound(instances, [bounds[0], replace(bounds[1], certified=False)]).certified
