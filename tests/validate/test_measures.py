"""Figures of one schedule, worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.units import PAGE_BYTES
from pebbler.validate.check import check
from pebbler.validate.measures import (
    average_bytes,
    highest_byte,
    lifetime_ns,
    memory_curve,
    moved_bytes,
    operation_times,
    pinned_bytes,
    stalls_ns,
)
from pebbler.validate.schedule import Operation, Residence, Schedule

X, A, B, H = range(4)
FIRST, OUT, SECOND, BACK, MOVE, THIRD = range(6)


@pytest.fixture
def instance() -> Instance:
    def block(name: str, size: int, **keys: object) -> Block:
        return Block(
            **{"name": name, "bytes": size, "offload_ns": 30, "prefetch_ns": 20, "move_ns": 5, **keys}
        )

    def task(name: str, workspace: int, **keys: object) -> Task:
        algorithm = Algorithm(name="a", duration_ns=10, workspace_bytes=workspace)
        return Task(**{"name": name, "inputs": (), "outputs": (), "algorithms": (algorithm,), **keys})

    return Instance(
        name="hand",
        engines="duplex",
        budget_bytes=1100,
        resident_bytes=1000,
        alignment_bytes=1,
        blocks=(
            block("x", 10, initially="device"),
            block("a", 20),
            block("b", 5),
            block("h", 7, initially="host"),
        ),
        tasks=(
            task("first", 4, inputs=(X,), outputs=(A,)),
            task("second", 0, outputs=(B,)),
            task("third", 0, inputs=(A, B)),
        ),
    )


@pytest.fixture
def schedule(instance: Instance) -> Schedule:
    """Run, offload a, run, prefetch a, move b, run: 0-10, 10-40, 10-20, 40-60, 20-25, 60-70."""

    def operation(i: int, stream: str, kind: str, start: int, end: int, **keys: object) -> Operation:
        return Operation(
            **{"id": i, "stream": stream, "kind": kind, "start_ns": start, "end_ns": end, **keys}
        )

    made = Schedule(
        format="pebbler/schedule/1",
        instance="hand",
        method="hand",
        memory_model="contiguous",
        operations=(
            operation(FIRST, "compute", "run", 0, 10, task=0, algorithm=0),
            operation(OUT, "d2h", "offload", 10, 40, block=A, after=(FIRST,)),
            operation(SECOND, "compute", "run", 10, 20, task=1, algorithm=0),
            operation(BACK, "h2d", "prefetch", 40, 60, block=A, after=(OUT,)),
            operation(MOVE, "compute", "move", 20, 25, block=B),
            operation(THIRD, "compute", "run", 60, 70, task=2, algorithm=0, after=(BACK,)),
        ),
        residences=(
            Residence(block=X, offset=0, bytes=10, released_after=(FIRST,)),
            Residence(block=A, offset=10, bytes=20, acquired_by=FIRST, released_after=(FIRST, OUT)),
            Residence(workspace_of=FIRST, offset=80, bytes=4, acquired_by=FIRST, released_after=(FIRST,)),
            Residence(block=B, offset=50, bytes=5, acquired_by=SECOND, released_after=(MOVE,)),
            Residence(block=A, offset=10, bytes=20, acquired_by=BACK),
            Residence(block=B, offset=0, bytes=5, acquired_by=MOVE, released_after=(THIRD,)),
        ),
        makespan_ns=70,
        peak_bytes=1084,
    )
    assert check(instance, made).reasons == ()
    return made


def test_lifetimes_run_from_acquisition_to_the_latest_release(schedule: Schedule) -> None:
    times = operation_times(schedule)
    assert [lifetime_ns(schedule, residence, times) for residence in schedule.residences] == [
        (0, 10),
        (0, 40),
        (0, 10),
        (10, 25),
        (40, 70),
        (20, 70),
    ]


def test_memory_over_time(instance: Instance, schedule: Schedule) -> None:
    assert memory_curve(instance, schedule) == (
        [0, 10, 20, 25, 40, 70],
        [1034, 1025, 1030, 1025, 1025, 1000],
    )


def test_time_average_is_rounded_down(instance: Instance, schedule: Schedule) -> None:
    area = 10 * 10 + 40 * 20 + 10 * 4 + 15 * 5 + 30 * 20 + 50 * 5
    assert area == 1865
    assert average_bytes(instance, schedule) == 1000 + 1865 // 70 == 1026


def test_average_and_curve_agree(instance: Instance, schedule: Schedule) -> None:
    instants, levels = memory_curve(instance, schedule)
    area = sum(
        (end - start) * level for start, end, level in zip(instants, instants[1:], levels, strict=False)
    )
    assert area // schedule.makespan_ns == average_bytes(instance, schedule)


def test_highest_byte(schedule: Schedule) -> None:
    assert highest_byte(schedule) == 84
    assert highest_byte(msgspec.structs.replace(schedule, residences=())) == 0


def test_highest_byte_of_pages(schedule: Schedule) -> None:
    residence = Residence(
        block=A, extents=((5 * PAGE_BYTES, PAGE_BYTES), (0, PAGE_BYTES)), bytes=20, acquired_by=FIRST
    )
    paged = msgspec.structs.replace(
        schedule, memory_model="paged", page_bytes=PAGE_BYTES, residences=(residence,)
    )
    assert highest_byte(paged) == 6 * PAGE_BYTES


def test_moved_bytes_by_kind(instance: Instance, schedule: Schedule) -> None:
    kinds = ("offload", "prefetch", "move", "run")
    assert [moved_bytes(instance, schedule, kind) for kind in kinds] == [20, 20, 5, 0]


def test_a_block_that_is_copied_twice_counts_twice_and_is_pinned_once(
    instance: Instance, schedule: Schedule
) -> None:
    again = msgspec.structs.replace(schedule.operations[OUT], id=17)
    more = msgspec.structs.replace(schedule, operations=(*schedule.operations, again))
    assert moved_bytes(instance, more, "offload") == 40
    assert pinned_bytes(instance, more) == 20


def test_pinned_bytes_count_what_only_comes_from_the_host(instance: Instance, schedule: Schedule) -> None:
    fetch = Operation(id=17, stream="h2d", kind="prefetch", block=H, start_ns=60, end_ns=80)
    more = msgspec.structs.replace(schedule, operations=(*schedule.operations, fetch))
    assert pinned_bytes(instance, more) == 27


def test_stalls_do_not_count_the_time_of_moves(instance: Instance, schedule: Schedule) -> None:
    assert stalls_ns(instance, schedule) == [0, 0, 35]


def test_a_run_again_has_no_stall_of_its_own_and_the_first_run_counts(
    instance: Instance, schedule: Schedule
) -> None:
    again = Operation(id=17, stream="compute", kind="run", task=1, algorithm=0, start_ns=90, end_ns=100)
    last = Operation(id=18, stream="compute", kind="run", task=2, algorithm=0, start_ns=103, end_ns=113)
    first_two = (schedule.operations[FIRST], schedule.operations[SECOND])
    more = msgspec.structs.replace(schedule, operations=(*first_two, again, last), residences=())
    assert stalls_ns(instance, more) == [0, 0, 3]


def test_a_schedule_of_no_length(instance: Instance) -> None:
    empty = Schedule(
        format="pebbler/schedule/1",
        instance="hand",
        method="hand",
        memory_model="contiguous",
        operations=(),
        residences=(Residence(block=X, offset=0, bytes=10),),
        makespan_ns=0,
        peak_bytes=1010,
    )
    assert average_bytes(instance, empty) == 1000
    assert memory_curve(instance, empty) == ([0], [1000])
    assert stalls_ns(instance, empty) == [0, 0, 0]
