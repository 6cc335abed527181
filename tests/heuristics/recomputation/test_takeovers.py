"""One block in the place of an input and of the output that takes over its place, and back."""

from __future__ import annotations

import msgspec
import pytest

from pebbler.heuristics.gaps import Guide
from pebbler.heuristics.recomputation.readings import Readings
from pebbler.heuristics.recomputation.reruns import rolled_up, unrolled
from pebbler.heuristics.recomputation.takeovers import merged, pairs_of, split, without_takeovers
from pebbler.instances.instance import Instance, Task
from pebbler.instances.suites.tiny import scaled
from pebbler.instances.units import PAGE_BYTES
from pebbler.solver.solve import solve
from pebbler.validate.check import check

from ...reading import algorithm, block, in_place, in_place_again


def chain(count: int, **last: object) -> Instance:
    """Tasks each of which may overwrite what the one before has made, and one that reads the last block."""
    tasks = [Task(name="t0", inputs=(), outputs=(0,), algorithms=(algorithm(),))]
    for d in range(1, count):
        over = algorithm("in place", takes_over=((d, d - 1),))
        tasks.append(
            Task(name=f"t{d}", inputs=(d - 1,), outputs=(d,), algorithms=(algorithm("beside"), over))
        )
    tasks.append(Task(name="end", inputs=(count - 1,), outputs=(), algorithms=(algorithm(),)))
    blocks = tuple(block(f"b{d}", 2) for d in range(count))
    return in_place(blocks=blocks, tasks=tuple(tasks), **last)


def test_a_merged_block_is_updated_in_the_place_of_both() -> None:
    instance, merges = merged(without_takeovers(chain(3)), {1: ((1, 0),), 2: ((2, 1),)})
    assert merges == {0: [(1, 1), (2, 2)]}
    assert [(task.inputs, task.outputs, task.updates) for task in instance.tasks] == [
        ((), (0,), ()),
        ((), (), (0,)),
        ((), (), (0,)),
        ((0,), (), ()),
    ]


@pytest.mark.parametrize("change", ["used later", "wanted at the end"])
def test_what_is_needed_later_is_not_merged(change: str) -> None:
    made = without_takeovers(chain(2))
    blocks, tasks = list(made.blocks), list(made.tasks)
    if change == "used later":
        tasks[2] = msgspec.structs.replace(tasks[2], inputs=(1, 0))
    else:
        blocks[0] = msgspec.structs.replace(blocks[0], finally_="host")
    made = msgspec.structs.replace(made, blocks=tuple(blocks), tasks=tuple(tasks))
    assert merged(made, {1: ((1, 0),)}) == (made, {})


def only_in_place(**keys: object) -> Instance:
    """The middle task has no algorithm that lets both blocks lie beside each other."""
    made = in_place()
    first, second, last = made.tasks
    over = msgspec.structs.replace(second, algorithms=second.algorithms[1:])
    return msgspec.structs.replace(made, tasks=(first, over, last), **keys)


def test_outputs_take_over_places_where_all_algorithms_let_them() -> None:
    assert pairs_of(in_place()) == {}
    assert pairs_of(only_in_place()) == {1: ((1, 0),)}
    assert pairs_of(without_takeovers(only_in_place())) == {}


def test_what_is_copied_otherwise_or_may_have_no_place_on_the_host_is_not_merged() -> None:
    x, y = in_place().blocks
    for change in ({"prefetch_ns": 11}, {"move_ns": 1}, {"load_bytes": 1}):
        assert pairs_of(only_in_place(blocks=(msgspec.structs.replace(x, **change), y))) == {}
    assert pairs_of(only_in_place(host_budget_bytes=100)) == {}
    stay = tuple(msgspec.structs.replace(one, offload_ns=None, prefetch_ns=None) for one in (x, y))
    assert pairs_of(only_in_place(host_budget_bytes=100, blocks=stay)) == {1: ((1, 0),)}


def test_a_guide_names_what_stands_for_an_output() -> None:
    """y goes out behind the run that overwrites x with it; with both beside each other, it is y itself."""
    instance = only_in_place()
    over, beside = unrolled(instance, frozenset()), unrolled(without_takeovers(instance), frozenset())
    assert (over.standing(0, 0), over.standing(0, 1), beside.standing(0, 1)) == (0, 1, 0)
    guide = Guide([(1, 1)], [(1, 1)], [0, 0, 0])
    together = beside.translated(guide, over)
    assert together.returning == together.leaving == [(0, 1)]
    assert over.translated(together, beside) == guide


def test_a_place_at_the_end_is_that_of_the_last_block() -> None:
    made = without_takeovers(chain(2))
    ends = tuple(msgspec.structs.replace(b, finally_="host") if b.name == "b1" else b for b in made.blocks)
    instance, _ = merged(msgspec.structs.replace(made, blocks=ends), {1: ((1, 0),)})
    assert [one.finally_ for one in instance.blocks] == ["host", "anywhere"]


def test_a_schedule_is_split_where_the_run_is() -> None:
    """Blocks go out and come back before and behind the run that overwrites the one with the other."""
    made = chain(3, budget_bytes=4)
    fill = Task(name="fill", inputs=(), outputs=(3,), algorithms=(algorithm(),))
    tasks = (*made.tasks[:2], fill, *made.tasks[2:])
    made = msgspec.structs.replace(made, blocks=(*made.blocks, block("f", 4)), tasks=tasks)
    readings = Readings(made)
    reading = readings.starts()[-1]
    again = unrolled(readings.instance(reading), frozenset())
    assert again.instance.tasks[1].updates == (0,)
    found = solve(again.instance, "brute-force").schedule
    assert found is not None
    together = rolled_up(readings.instance(reading), again, found, "brute-force")
    schedule = readings.restored(reading, together)
    assert check(made, schedule).reasons == ()
    assert schedule.makespan_ns == found.makespan_ns == 25
    assert [o.block for o in schedule.operations if o.kind != "run"] == [1, 1]
    assert [r.block for r in schedule.residences if r.takes_over] == [1, 2]
    assert split(found, {}) is found


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_the_method_takes_over_places_where_there_is_no_other_way(memory) -> None:
    large = chain(4)
    blocks = tuple(msgspec.structs.replace(one, bytes=2**21) for one in large.blocks)
    large = msgspec.structs.replace(large, blocks=blocks, budget_bytes=2**21)
    result = solve(large, "flow-recompute", time_limit=2.0, memory=memory)
    assert (result.makespan_ns, result.lower_bound_ns) == (5, 5)
    assert result.schedule is not None
    assert check(large, result.schedule).valid
    assert solve(large, "flow", time_limit=1.0).makespan_ns is None


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_a_second_run_takes_over_a_place(memory) -> None:
    instance = scaled(in_place_again(), size=PAGE_BYTES // 2)
    result = solve(instance, "flow-recompute", time_limit=2.0, memory=memory)
    assert (result.makespan_ns, result.lower_bound_ns) == (24, 24)
    assert result.schedule is not None
    assert check(instance, result.schedule).valid
    assert [residence.takes_over for residence in result.schedule.residences].count(True) == 2
