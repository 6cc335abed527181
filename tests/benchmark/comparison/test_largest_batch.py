from __future__ import annotations

from collections.abc import Callable

import pytest

from pebbler.benchmark.comparison.largest_batch import largest_batch
from pebbler.heuristics.methods import Answer, Limits, Method
from pebbler.instances.errors import BudgetError
from pebbler.instances.instance import Instance
from pebbler.instances.workload import Workload
from pebbler.validate.schedule import Schedule

Toys = Callable[..., None]
LENET = Workload("lenet", 1, "k40")
ROOM = Workload("lenet", 100, "k40").minimum_budget()


def test_any_overhead_reaches_what_the_budget_allows(toys: Toys, swap: Method) -> None:
    toys(swap=swap)
    kept: list[tuple[Instance, Schedule]] = []
    found = largest_batch(LENET, ROOM, "swap", on_trained=lambda *both: kept.append(both))
    assert found.largest_batch == max(instance.made_from.batch for instance, _ in kept)
    assert found.excluded_from == 101
    assert not found.interrupted
    assert {p.excluded_by for p in found.points if p.batch > 100} == {"budget"}


def test_an_overhead_is_kept_and_what_a_bound_excludes_is_not_tried(toys: Toys, swap: Method) -> None:
    toys(swap=swap)
    wide = largest_batch(LENET, ROOM, "swap")
    strict = largest_batch(LENET, ROOM, "swap", overhead=0.05)
    assert wide.largest_batch is not None
    assert strict.largest_batch is None or strict.largest_batch < wide.largest_batch
    for point in strict.points:
        assert point.excluded_by is None or point.makespan_ns is None or not point.within
        if point.within:
            assert point.makespan_ns is not None
            assert point.makespan_ns <= 1.05 * point.ideal_ns
        if point.excluded_by not in (None, "budget"):
            assert point.lower_bound_ns > 1.05 * point.ideal_ns
            assert point.certified
    assert "proven impossible" in str(strict)


def test_a_budget_that_no_image_fits_is_refused(toys: Toys, swap: Method) -> None:
    toys(swap=swap)
    with pytest.raises(BudgetError, match="lenet-b1: a budget of 1 bytes"):
        largest_batch(LENET, 1, "swap")


def test_ctrl_c_keeps_the_best(toys: Toys, swap: Method) -> None:
    calls: list[int] = []

    def cut(instance: Instance, limits: Limits) -> Answer:
        calls.append(instance.made_from.batch)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return Answer(None) if len(calls) == 1 else swap(instance, limits)

    toys(cut=cut)
    found = largest_batch(LENET, ROOM, "cut")
    assert found.interrupted
    assert found.largest_batch == calls[1]
