"""Readings where algorithms may leave out outputs: what is read is made, and what has no substitute."""

from __future__ import annotations

import pytest

from pebbler.heuristics.recomputation.readings import Reading, Readings, ReadingSearch
from pebbler.heuristics.recomputation.search import RerunSearch
from pebbler.instances.instance import Instance
from pebbler.solver.solve import solve
from pebbler.validate.check import check

from ...reading import algorithm, masked, with_last, with_relu


def relu_of(instance: Instance, reading: Reading) -> tuple[tuple[int, ...], list[str]]:
    """What the ReLU makes in the instance of a reading, and its algorithms."""
    readings = Readings(instance)
    task = readings.instance(reading).tasks[1]
    assert [instance.tasks[1].algorithms[a].name for a in readings.numbers(reading, 1)] == [
        a.name for a in task.algorithms
    ]
    return task.outputs, [a.name for a in task.algorithms]


def test_the_mask_is_made_where_it_is_read() -> None:
    readings = Readings(masked())
    assert (readings.tasks, readings.counts) == ((1, 3), (1, 2))
    assert relu_of(masked(), (0, 0)) == ((1,), ["without"])
    assert relu_of(masked(), (0, 1)) == ((1, 2), ["with mask"])
    assert not readings.instance((0, 0)).reads_vary
    assert readings.instance((0, 0)).uses[2] == ()


def test_the_first_readings_have_one_with_the_mask() -> None:
    assert Readings(masked()).starts() == [(0, 0), (0, 1)]


def test_another_way_is_taken_where_the_chosen_one_cannot_make_what_is_read() -> None:
    """The ReLU reads nothing with its third algorithm, which makes no mask."""
    several = with_relu(
        masked(), *masked().tasks[1].algorithms, algorithm("from nothing", 3, inputs=(), outputs=(1,))
    )
    assert Readings(several).counts == (2, 2)
    assert relu_of(several, (1, 0)) == ((1,), ["from nothing"])
    assert relu_of(several, (1, 1)) == ((1, 2), ["with mask"])


@pytest.mark.parametrize(
    ("with_mask", "without", "count"),
    [
        (algorithm("with mask", 2), algorithm("without", 1, outputs=(1,)), 1),
        (algorithm("with mask", 1), algorithm("without", 2, outputs=(1,)), 2),  # quicker
        (algorithm("with mask", 2), algorithm("without", 1, outputs=(1,), workspace_bytes=2), 2),  # leaner
        (algorithm("with mask", 2), algorithm("without", 1, outputs=(1,), workspace_bytes=1), 1),
    ],
)
def test_what_nothing_reads_is_made_only_where_that_may_be_better(with_mask, without, count: int) -> None:
    instance = with_relu(masked(), with_mask, without)
    assert Readings(instance).counts == (count, 2)
    if count == 2:
        assert relu_of(instance, (1, 0)) == ((1, 2), ["with mask"])


def test_schedules_are_told_by_the_numbers_of_the_instance() -> None:
    readings = Readings(masked(budget_bytes=12))
    for reading, chosen in (((0, 0), [0, 1, 0, 0]), ((0, 1), [0, 0, 0, 1])):
        found = solve(readings.instance(reading), "brute-force").schedule
        assert found is not None
        schedule = readings.restored(reading, found)
        assert check(masked(budget_bytes=12), schedule).reasons == ()
        assert [o.algorithm for o in schedule.operations] == chosen


def test_the_search_goes_on_where_nothing_is_to_be_chosen() -> None:
    """Nothing reads the mask, so that there is one reading."""
    fixed = with_last(masked(budget_bytes=12), algorithm())
    search = ReadingSearch(fixed, lambda instance: RerunSearch(instance, "contiguous"))
    search.run(work=100_000)
    assert search.makespan_ns == 4
    assert search.done
