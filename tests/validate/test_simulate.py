"""Times of programs, worked out by hand."""

from __future__ import annotations

from random import Random

import pytest

from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.validate.schedule import Kind, Operation, Schedule, Stream
from pebbler.validate.simulate import nominal_ns, simulate


@pytest.fixture
def instance() -> Instance:
    """Two tasks of 10 or 4 ns; a block that goes out in 7, comes in in 5, moves in 2; one that cannot."""
    algorithms = (
        Algorithm(name="slow", duration_ns=10, workspace_bytes=0),
        Algorithm(name="fast", duration_ns=4, workspace_bytes=8),
    )
    return Instance(
        name="hand",
        engines="duplex",
        budget_bytes=0,
        resident_bytes=0,
        blocks=(
            Block(name="x", bytes=8, offload_ns=7, prefetch_ns=5, move_ns=2),
            Block(name="fixed", bytes=8, offload_ns=None, prefetch_ns=None),
        ),
        tasks=tuple(Task(name=name, inputs=(), outputs=(), algorithms=algorithms) for name in "st"),
    )


def run(i: int, task: int, algorithm: int = 0, after: tuple[int, ...] = ()) -> Operation:
    return Operation(
        id=i, stream="compute", kind="run", task=task, algorithm=algorithm, after=after, start_ns=99, end_ns=0
    )


def copy(i: int, stream: Stream, kind: Kind, after: tuple[int, ...] = (), block: int = 0) -> Operation:
    return Operation(id=i, stream=stream, kind=kind, block=block, after=after, start_ns=99, end_ns=0)


def program(*operations: Operation) -> Schedule:
    return Schedule(
        format="pebbler/schedule/1",
        instance="hand",
        method="hand",
        memory_model="contiguous",
        operations=operations,
        residences=(),
        makespan_ns=0,
        peak_bytes=0,
    )


def test_nominal_durations(instance: Instance) -> None:
    operations = (
        run(0, 0),
        run(1, 0, 1),
        copy(2, "d2h", "offload"),
        copy(3, "h2d", "prefetch"),
        copy(4, "compute", "move"),
        copy(5, "d2h", "offload", block=1),
    )
    assert [nominal_ns(instance, operation) for operation in operations] == [10, 4, 7, 5, 2, 0]


def test_nothing_takes_no_time(instance: Instance) -> None:
    assert simulate(instance, program()) == ([], [])


def test_streams_run_side_by_side_in_list_order(instance: Instance) -> None:
    schedule = program(
        run(0, 0), copy(1, "d2h", "offload"), copy(2, "h2d", "prefetch"), copy(3, "d2h", "offload"), run(4, 1)
    )
    assert simulate(instance, schedule) == ([0, 0, 0, 7, 10], [10, 7, 5, 14, 20])


def test_one_copy_stream_runs_one_copy_after_the_other(instance: Instance) -> None:
    schedule = program(copy(0, "copy", "offload"), copy(1, "copy", "prefetch"), run(2, 0))
    assert simulate(instance, schedule) == ([0, 7, 0], [7, 12, 10])


def test_an_operation_waits_for_the_latest_of_its_waits(instance: Instance) -> None:
    schedule = program(
        copy(5, "d2h", "offload"),
        copy(9, "h2d", "prefetch"),
        run(2, 0, after=(5, 9)),
        copy(0, "h2d", "prefetch", after=(5,)),
        copy(7, "compute", "move", after=(0,)),
    )
    assert simulate(instance, schedule) == ([0, 0, 7, 7, 17], [7, 5, 17, 12, 19])


def test_other_durations_and_the_reported_times_have_no_part(instance: Instance) -> None:
    schedule = program(run(0, 0), copy(1, "d2h", "offload", after=(0,)), run(2, 1))
    assert simulate(instance, schedule, [0, 3, 0]) == ([0, 0, 0], [0, 3, 0])
    assert simulate(instance, schedule, [2**60, 1, 1]) == (
        [0, 2**60, 2**60],
        [2**60, 2**60 + 1, 2**60 + 1],
    )


@pytest.mark.parametrize("count", [0, 2, 4])
def test_as_many_durations_as_operations(count: int, instance: Instance) -> None:
    with pytest.raises(ValueError, match="zip"):
        simulate(instance, program(run(0, 0), run(1, 1), run(2, 0)), [1] * count)


def test_longer_durations_never_end_anything_earlier(instance: Instance) -> None:
    rng = Random(7)
    streams: tuple[tuple[Stream, Kind], ...] = (("d2h", "offload"), ("h2d", "prefetch"), ("compute", "move"))
    for _ in range(50):
        operations = []
        for i in range(8):
            after = tuple(j for j in range(i) if rng.random() < 0.3)
            operations.append(copy(i, *rng.choice(streams), after))
        schedule = program(*operations)
        durations = [rng.randint(0, 9) for _ in operations]
        longer = [duration + rng.randint(0, 3) for duration in durations]
        before, after_ = simulate(instance, schedule, durations)[1], simulate(instance, schedule, longer)[1]
        assert all(a <= b for a, b in zip(before, after_, strict=True))
