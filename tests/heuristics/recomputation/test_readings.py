"""What runs read: readings, their instances, and the search over them."""

from __future__ import annotations

import msgspec
import pytest

from pebbler.heuristics.gaps import Guide
from pebbler.heuristics.methods import Refusal
from pebbler.heuristics.recomputation.readings import Readings, ReadingSearch
from pebbler.heuristics.recomputation.search import RerunSearch
from pebbler.instances.instance import Instance
from pebbler.solver.solve import solve
from pebbler.validate.check import check

from ...reading import algorithm, either, with_last


def made(instance: Instance) -> RerunSearch:
    return RerunSearch(instance, "contiguous")


@pytest.fixture
def several() -> Instance:
    """The last task reads y, fast or slowly, or x, or x and y, or nothing."""
    return with_last(
        either(),
        algorithm("xy", 1, inputs=(0, 1)),
        algorithm("y", 4),
        algorithm("x", 2, inputs=(0,)),
        algorithm("fast y", 3, workspace_bytes=1),
        algorithm("nothing", 30, inputs=()),
    )


def test_a_reading_is_an_instance_with_the_algorithms_that_read_so(several: Instance) -> None:
    readings = Readings(several)
    assert (readings.tasks, readings.counts) == ((3,), (4,))
    names = {}
    for s in range(4):
        one = readings.instance((s,))
        assert not one.reads_vary
        assert one.tasks[:3] == several.tasks[:3]
        names[one.tasks[3].inputs] = [a.name for a in one.tasks[3].algorithms]
    assert names == {(1,): ["y", "fast y"], (0, 1): ["xy"], (0,): ["x"], (): ["nothing"]}


def test_the_first_readings_are_of_inputs_of_few_bytes_and_of_fast_algorithms(several: Instance) -> None:
    readings = Readings(several)
    inputs = [readings.instance(one).tasks[3].inputs for one in readings.starts()]
    assert inputs == [(1,), (), (0, 1)]
    assert Readings(either()).starts() == [(0,)]


def test_schedules_are_told_by_the_numbers_of_the_instance(several: Instance) -> None:
    readings = Readings(several)
    reading = readings.of(lambda _: 3)
    assert reading == (0,)
    assert list(readings.numbers(reading, 3)) == [1, 3]
    assert list(readings.numbers(reading, 0)) == [0]
    found = solve(readings.instance(reading), "brute-force").schedule
    assert found is not None
    schedule = readings.restored(reading, found)
    assert check(several, schedule).reasons == ()
    assert several.tasks[3].algorithms[schedule.operations[-1].algorithm or 0].name in ("y", "fast y")


def test_the_search_finds_the_best_reading(several: Instance) -> None:
    """To read nothing takes 3 + 30 ns; to read x takes 22 + 2 ns."""
    search = ReadingSearch(several, made)
    search.run(work=50_000)
    assert search.makespan_ns == 24
    assert search.done
    schedule = search.schedule("search")
    assert schedule is not None
    assert check(several, schedule).reasons == ()


def test_it_starts_from_what_a_schedule_reads(several: Instance) -> None:
    best = solve(several, "brute-force").schedule
    assert best is not None
    search = ReadingSearch(several, made)
    search.offer(best)
    assert search.makespan_ns == 24
    plain = ReadingSearch(either(), made)
    plain.offer(Guide([], [], [0, 0, 0, 0]))
    assert plain.makespan_ns == 24  # y is read, until another reading is tried


def test_it_starts_from_a_reading_with_a_guide(several: Instance) -> None:
    search = ReadingSearch(several, made)
    search.offer_plan((2,), frozenset(), Guide([(0, 1)], [(0, 1)], [0, 0, 0, 0]))
    assert search.makespan_ns == 24


def test_a_plan_keeps_the_second_runs_that_another_reading_needs() -> None:
    tasks = tuple(msgspec.structs.replace(task, recomputable=k < 2) for k, task in enumerate(either().tasks))
    again = either(tasks=tasks)
    search = ReadingSearch(again, made)
    search.offer_plan((0,), frozenset({(0, 3), (1, 3)}), Guide([], [], [0] * 6))
    assert search.makespan_ns == 6
    search.run(work=50_000)
    assert search.makespan_ns == 5  # x is made again, and y is not


def test_a_reading_that_is_refused_is_left_out() -> None:
    """What begins on the host and cannot come back can only stay unread."""
    stuck = msgspec.structs.replace(either().blocks[0], name="s", initially="host", prefetch_ns=None)
    blocks = (*either().blocks, stuck)
    with_s = either(blocks=blocks)
    reads_it = with_last(with_s, algorithm("s", 1), algorithm("x", 5, inputs=(0,)), inputs=(3,))
    search = ReadingSearch(reads_it, made)
    assert search.makespan_ns == 27
    never = with_last(with_s, algorithm(), algorithm("sx", inputs=(0, 3)), inputs=(3,))
    with pytest.raises(Refusal):
        ReadingSearch(never, made)
