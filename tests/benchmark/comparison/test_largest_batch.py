from __future__ import annotations

from collections.abc import Callable

import pytest

from pebbler.benchmark.comparison import largest_batch as module
from pebbler.benchmark.comparison.largest_batch import largest_batch
from pebbler.benchmark.pictures.sizing import batch_picture
from pebbler.heuristics.methods import Answer, Limits, Method, Refusal
from pebbler.heuristics.program.builder import ProgramBuilder
from pebbler.instances.errors import BudgetError
from pebbler.instances.instance import Instance
from pebbler.instances.workload import Workload
from pebbler.validate.schedule import Schedule

Toys = Callable[..., None]
LENET = Workload("lenet", 1, "k40")
ROOM_FOR = 100
ROOM = Workload("lenet", ROOM_FOR, "k40").minimum_budget()


def test_any_overhead_reaches_what_the_budget_allows(toys: Toys, swap: Method) -> None:
    toys(swap=swap)
    kept: list[tuple[Instance, Schedule]] = []
    found = largest_batch(LENET, ROOM, "swap", on_trained=lambda *both: kept.append(both))
    assert found.largest_batch == max(instance.made_from.batch for instance, _ in kept)
    assert found.excluded_from == 101
    assert found.stopped_by == "done"
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
    assert found.stopped_by == "interrupted"
    assert found.largest_batch == calls[1]


def test_methods_are_tried_in_turn_until_one_is_within(toys: Toys, keep: Method, swap: Method) -> None:
    toys(keep=keep, swap=swap)
    both = largest_batch(LENET, ROOM, "keep,swap")
    kept = largest_batch(LENET, ROOM, "keep")
    assert both.largest_batch == largest_batch(LENET, ROOM, "swap").largest_batch
    assert (kept.largest_batch or 0) < (both.largest_batch or 0)
    assert both.method == "keep,swap"
    for point in both.points:
        assert (point.method is None) == (point.makespan_ns is None)
        if kept.largest_batch is not None and point.method == "swap":
            assert point.batch > kept.largest_batch or point.overhead == 0.0


def test_a_rule_that_jumps_is_bettered_by_the_last_method(toys: Toys, swap: Method) -> None:
    """Half of the largest batch must not cost more than the largest itself."""

    def jumps(instance: Instance, limits: Limits) -> Answer:
        if (instance.made_from.batch or 0) > ROOM_FOR // 2:
            return Answer(None, "too large for the rule")
        builder = ProgramBuilder(instance, memory=limits.memory)
        for k in range(len(instance.tasks)):  # whatever is loaded goes out at once
            for d in (*instance.tasks[k].inputs, *instance.tasks[k].updates):
                if not builder.is_resident(d):
                    builder.prefetch(d)
            builder.run(k, 0)
            builder.release_dead(k)
            for d in builder.resident_blocks():
                if not builder.on_host(d):
                    builder.offload(d)
                builder.release(d)
        return Answer(builder.finish("jumps"))

    toys(jumps=jumps, swap=swap)
    found = largest_batch(LENET, ROOM, "jumps,swap")
    overheads = [point.overhead for point in found.points if point.overhead is not None]
    assert overheads == sorted(overheads)
    assert {point.method for point in found.points if point.within} == {"swap"}


def test_what_limits_the_batch_is_said_and_drawn(toys: Toys, swap: Method) -> None:
    toys(swap=swap)
    found = largest_batch(LENET, ROOM, "swap")
    assert found.limited_by is not None
    assert found.limited_by.startswith("at a batch of 101, task '")
    assert "limited by: at a batch of 101" in str(found)
    assert batch_picture({"swap": found}, asked=7).startswith(b"\x89PNG")


def test_a_time_limit_is_of_the_whole_search(toys: Toys, swap: Method) -> None:
    limits: list[float | None] = []

    def noted(instance: Instance, given: Limits) -> Answer:
        limits.append(given.time_limit)
        return swap(instance, given)

    toys(noted=noted)
    assert largest_batch(LENET, ROOM, "noted", time_limit=80.0).stopped_by == "done"
    assert {limit for limit in limits if limit is None or limit > 10.0} == set()
    found = largest_batch(LENET, ROOM, "noted", time_limit=0.0)
    assert (found.stopped_by, found.largest_batch) == ("time limit", None)
    assert "stopped by: time limit" in " ".join(str(found).split())


def test_where_no_batch_is_too_large_the_answer_says_what_was_not_tried(
    toys: Toys, swap: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys(swap=swap)
    assert "are not tried" not in str(largest_batch(LENET, ROOM, "swap"))
    monkeypatch.setattr(module, "LARGEST", 64)
    found = largest_batch(LENET, ROOM, "swap")
    assert (found.largest_batch, found.excluded_from) == (63, None)
    assert "batches from 64 on are not tried" in " ".join(str(found).split())


def test_where_every_method_refuses_the_reason_is_said(toys: Toys) -> None:
    def refuses(*_: object) -> Answer:
        raise Refusal("not today")

    toys(refuses=refuses)
    found = largest_batch(LENET, ROOM, "refuses")
    assert found.largest_batch is None
    assert "no schedule: at a batch of 1, not today" in " ".join(str(found).split())
