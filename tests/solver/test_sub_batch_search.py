"""The best sub-batch of a method against trying all of them, and the bound over all."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from pebbler.benchmark.comparison.compare import compare_auto
from pebbler.benchmark.comparison.plan import auto_budget, instances_of
from pebbler.heuristics.methods import Answer, Limits, Method, Refusal, find_method
from pebbler.instances.errors import BudgetError, PebblerError
from pebbler.instances.instance import Instance
from pebbler.instances.memory import least_budget
from pebbler.instances.networks.zoo import list_networks
from pebbler.instances.workload import Workload
from pebbler.solver import sub_batch_search
from pebbler.solver.bounds import Bound, best_bound
from pebbler.solver.solve import solve
from pebbler.solver.sub_batch_search import Iterations, iteration_bound, search_sub_batch

from ..samples import EVERY_KIND, crossed, mostly_slow

Toys = Callable[..., None]
LENET = Workload("lenet", 10, "K40")
FLAT = Workload("vgg16", 12, "K40")
"""Its time per image depends little on the sub-batch, so that bounds exclude little."""
QUICK = Workload("cifar10_quick", 12, "K40")
BOTH = pytest.mark.parametrize("workload", [LENET, QUICK], ids=lambda one: one.network)
LARGE = {"lstm_rnn", *(f"resnet{depth}" for depth in (302, 695, 1001, 1172, 1304, 1517))}
BUDGETS = ("1xMmin", "1.05xMmin", "1.3xMmin", "60%", "100%")


@cache
def at(workload: Workload, budget: int, b: int) -> list[Instance]:
    sizes = workload.rounds(b)
    return [workload.instance(budget, size, rounds=n, check_budget=False) for size, n in sizes]


@cache
def bound_at(workload: Workload, budget: int, b: int) -> int | None:
    """Bound of an iteration at one sub-batch; None where it has no schedule."""
    instances = at(workload, budget, b)
    if any(least_budget(one) > budget for one in instances):
        return None
    return sum(one.rounds * best_bound(one).lower_bound_ns for one in instances)


def time_at(workload: Workload, budget: int, b: int, method: str) -> int | None:
    """Time of an iteration by a method at one sub-batch; None where it has no schedule."""
    if bound_at(workload, budget, b) is None:
        return None
    instances = at(workload, budget, b)
    times = [solve(one, method).makespan_ns for one in instances]
    if None in times:
        return None
    return sum(one.rounds * (time or 0) for one, time in zip(instances, times, strict=True))


# --- bounds -----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("budget", BUDGETS)
def test_the_least_bound_is_the_least_of_the_bounds_at_all_sub_batches(
    workload: Workload, budget: str
) -> None:
    size = auto_budget(workload, budget)
    bounds = [bound_at(workload, size, b) for b in range(1, workload.batch + 1)]
    iterations = Iterations(workload, size)
    assert [bound is not None for bound in bounds] == [
        iterations.fits(b) for b in range(1, workload.batch + 1)
    ]
    assert iterations.least_bound().lower_bound_ns == min(bound for bound in bounds if bound is not None)


def test_a_sub_batch_that_computes_longer_may_have_the_least_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole batch computes fastest; let its best bound be ten times that."""
    budget = auto_budget(LENET, "100%")
    before = Iterations(LENET, budget).least_bound()

    def slower(instance: Instance) -> Bound:
        bound = best_bound(instance)
        factor = 10 if instance.made_from.sub_batch == LENET.batch else 1
        return replace(bound, lower_bound_ns=factor * bound.lower_bound_ns)

    monkeypatch.setattr(sub_batch_search, "best_bound", slower)
    after = Iterations(LENET, budget).least_bound()
    others = [bound_at(LENET, budget, b) or 0 for b in range(1, LENET.batch)]
    assert before.lower_bound_ns < after.lower_bound_ns == min(others) < 10 * before.lower_bound_ns


def test_the_bound_of_an_iteration_counts_every_round() -> None:
    instances = instances_of(LENET, "100%", 4)
    bounds = [best_bound(one) for one in instances]
    total = iteration_bound([2, 1], bounds)
    assert total.lower_bound_ns == 2 * bounds[0].lower_bound_ns + bounds[1].lower_bound_ns
    assert total.certified
    assert not iteration_bound([2, 1], [bounds[0], replace(bounds[1], certified=False)]).certified


@pytest.mark.parametrize(
    "network", mostly_slow((name for name in list_networks() if name not in LARGE), EVERY_KIND)
)
def test_the_least_budget_rises_with_the_sub_batch(network: str) -> None:
    """What the search of the largest sub-batch that fits rests on."""
    workload = Workload(network, 64, "K40")
    least = [workload.minimum_budget(b) for b in (1, 2, 7, 32, 33)]
    assert least == sorted(least)
    assert all(
        min(a.workspace_bytes for a in task.algorithms) == 0
        for task in workload.instance(0, 3, check_budget=False).tasks
    )


def test_a_budget_under_the_floor_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"lenet-b1: a budget of .* is under the minimum"):
        Iterations(LENET, LENET.floor() - 1)


# --- the search -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "budget", "method"),
    crossed((LENET, QUICK), BUDGETS, ("modnn", "vdnn-all-m", "network-wide"), of=3),
    ids=lambda one: getattr(one, "network", one),
)
def test_the_best_of_a_search_is_the_best_of_all(workload: Workload, budget: str, method: str) -> None:
    size = auto_budget(workload, budget)
    times = {b: time_at(workload, size, b, method) for b in range(1, workload.batch + 1)}
    solved = [time for time in times.values() if time is not None]
    choice = search_sub_batch(Iterations(workload, size), method)
    assert choice.iteration_ns == min(solved, default=None)
    assert choice.stopped_by == "done"
    assert choice.evaluated + sum(choice.pruned.values()) == workload.batch
    assert choice.pruned.get("budget", 0) == sum(bound_at(workload, size, b) is None for b in times)
    if choice.sub_batch is None:
        assert choice.refusal
    else:
        assert times[choice.sub_batch] == choice.iteration_ns
        assert [(i.made_from.sub_batch, i.rounds) for i in choice.instances] == workload.rounds(
            choice.sub_batch
        )
        assert choice.bound.lower_bound_ns <= choice.iteration_ns


def test_what_bounds_exclude_is_not_tried(toys: Toys) -> None:
    """A method that meets the bound at once is asked for the rounds of one sub-batch."""
    asked: list[str] = []
    modnn = find_method("modnn").call

    def counting(instance: Instance, limits: Limits) -> Answer:
        asked.append(instance.name)
        return modnn(instance, limits)

    toys(counting=counting)
    budget = auto_budget(LENET, "200%")
    choice = search_sub_batch(Iterations(LENET, budget), "counting")
    assert choice.iteration_ns == choice.bound.lower_bound_ns
    assert choice.evaluated == 1
    assert choice.pruned == {"compute": LENET.batch - 1}
    assert asked == [f"lenet-b{size}" for size, _ in LENET.rounds(choice.sub_batch or 0)]
    asked.clear()
    search_sub_batch(Iterations(LENET, budget), "counting", candidates=[4, 3, 4])
    assert len(set(asked)) == len(asked) <= 4
    assert set(asked) <= {"lenet-b4", "lenet-b3", "lenet-b2", "lenet-b1"}


def test_what_a_method_proves_of_a_round_counts_for_all_that_have_it(toys: Toys, keep: Method) -> None:
    def proving(instance: Instance, limits: Limits) -> Answer:
        schedule = keep(instance, limits).schedule
        assert schedule is not None
        return Answer(schedule, lower_bound_ns=schedule.makespan_ns, bound_by="toy proof")

    toys(proving=proving)
    iterations = Iterations(LENET, 4 * auto_budget(LENET, "100%"))
    before = iterations.least_bound()
    choice = search_sub_batch(iterations, "proving")
    assert choice.iteration_ns == choice.bound.lower_bound_ns > before.lower_bound_ns
    assert choice.bound == iterations.least_bound()
    assert not choice.bound.certified
    assert "toy proof" in choice.bound.bound_by


def clock(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """A clock that is a step later whenever somebody looks."""
    ticks = itertools.count()
    monkeypatch.setattr(sub_batch_search.time, "monotonic", lambda: next(ticks) * step)


def test_the_time_limit_ends_the_search_with_the_best(
    toys: Toys, swap: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []

    def patient(instance: Instance, given: Limits) -> Answer:
        limits.append(given.time_limit)
        return swap(instance, given)

    toys(patient=patient)
    iterations = Iterations(FLAT, 12 * 2**30)
    everything = search_sub_batch(iterations, "patient")
    assert set(limits) == {None}
    limits.clear()
    clock(monkeypatch, 3.0)
    choice = search_sub_batch(iterations, "patient", time_limit=4)
    assert choice.stopped_by == "time limit"
    assert choice.evaluated == 1 < everything.evaluated
    assert choice.pruned["time limit"] >= 1
    assert choice.evaluated + sum(choice.pruned.values()) == FLAT.batch
    assert choice.iteration_ns is not None
    assert choice.bound.lower_bound_ns <= (everything.iteration_ns or 0)
    assert all(limit is not None and 0.2 <= limit <= 4 / 3 for limit in limits)


@pytest.mark.parametrize("catches", [True, False])
def test_ctrl_c_keeps_the_best(toys: Toys, swap: Method, catches: bool) -> None:
    calls = []

    def interrupted(instance: Instance, limits: Limits) -> Answer:
        calls.append(instance.name)
        if len(calls) == 3 and not catches:
            raise KeyboardInterrupt
        answer = swap(instance, limits)
        return replace(answer, stopped_by="interrupted") if len(calls) == 3 else answer

    toys(interrupted=interrupted, never=swap)
    workload, budget = FLAT, 12 * 2**30
    choice = search_sub_batch(Iterations(workload, budget), "interrupted")
    assert choice.stopped_by == "interrupted"
    assert choice.iteration_ns is not None
    assert choice.pruned["interrupted"] >= 1
    assert len(calls) <= 4
    calls.clear()
    comparison = compare_auto(workload, budget)
    assert comparison.interrupted
    assert [row.method for row in comparison.rows] == ["interrupted"]
    assert comparison.rows[0].figures is not None


def test_wrong_questions_are_refused() -> None:
    iterations = Iterations(LENET, LENET.floor())
    with pytest.raises(PebblerError, match="there is no method 'mod'"):
        search_sub_batch(iterations, "mod")
    with pytest.raises(PebblerError, match="a sub-batch of 11 is not within 1 and the batch of 10"):
        search_sub_batch(iterations, "modnn", candidates=[11])
    with pytest.raises(PebblerError, match="no candidate within the largest sub-batch that fits"):
        search_sub_batch(iterations, "modnn", candidates=[10])


# --- in a comparison --------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("budget", ["1xMmin", "1.3xMmin", "60%", "100%"])
def test_no_method_is_faster_than_the_least_bound_at_any_sub_batch(workload: Workload, budget: str) -> None:
    comparison = compare_auto(workload, budget, ["modnn", "modnn-date", "vdnn-all-m", "network-wide"])
    rows = [row for row in comparison.rows if row.figures is not None]
    assert {"modnn", "modnn-date"} <= {row.method for row in rows}
    for row in rows:
        assert row.figures is not None
        assert row.figures.iteration_ns >= comparison.bound.lower_bound_ns


def test_a_method_without_a_rule_gets_its_best_sub_batch(toys: Toys) -> None:
    """It fits in full only at small sub-batches, where the whole batch would leave it without a schedule."""
    wide = find_method("network-wide").call

    def refusing(_: Instance, __: Limits) -> Answer:
        raise Refusal("never")

    def crash(_: Instance, __: Limits) -> Answer:
        raise RuntimeError("out of ideas")

    toys(wide=wide, refusing=refusing, crash=crash)
    budget = auto_budget(LENET, "1.3xMmin")
    assert time_at(LENET, budget, LENET.batch, "wide") is None
    choice = search_sub_batch(Iterations(LENET, budget), "wide")
    found, refused, failed = compare_auto(LENET, budget).rows
    assert found.figures is not None
    assert (found.sub_batch, found.figures.iteration_ns) == (choice.sub_batch, choice.iteration_ns)
    assert found.stopped_by == "done"
    assert (refused.status, refused.stopped_by.split(": ")[1], refused.sub_batch) == ("unknown", "never", 10)
    assert (failed.status, failed.stopped_by) == ("error", "RuntimeError: out of ideas")
