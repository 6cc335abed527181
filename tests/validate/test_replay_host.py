"""The replay where host memory ends: what happens to copies there, and the rules for their places."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from pebbler.instances.instance import Block, Instance
from pebbler.validate.replay.machine import replay
from pebbler.validate.schedule import HostResidence, Operation, Residence, Schedule

from .test_replay import block, faults, figure, operation, task

X, A, B = 0, 1, 2
MAKE_A, OUT_A, MAKE_B, OUT_B, IN_A, READ_A, IN_B, READ_B = range(8)
SIZE = 512

Change = Callable[[Schedule], Schedule]


@pytest.fixture
def instance() -> Instance:
    """A and B are made, and go to the host, which has room for both; each comes back and is read."""
    sizes = {"bytes": SIZE}
    return Instance(
        name="two",
        engines="duplex",
        budget_bytes=3 * SIZE,
        resident_bytes=0,
        blocks=(block("x", initially="device", **sizes), block("a", **sizes), block("b", **sizes)),
        tasks=(
            task("make a", inputs=(X,), outputs=(A,)),
            task("make b", outputs=(B,)),
            task("read a", inputs=(A,)),
            task("read b", inputs=(B,)),
        ),
        host_budget_bytes=2 * SIZE,
    )


@pytest.fixture
def schedule() -> Schedule:
    """X has a copy from the start, which the copy of B replaces."""

    def op(i: int, stream: str, kind: str, start: int, end: int, **keys: object) -> Operation:
        return Operation(
            **{"id": i, "stream": stream, "kind": kind, "start_ns": start, "end_ns": end, **keys}
        )

    def place(block: int, at: int, acquired_by: int | None, *released_after: int) -> Residence:
        return Residence(
            block=block, offset=at * SIZE, bytes=SIZE, acquired_by=acquired_by, released_after=released_after
        )

    def copy(block: int, at: int, acquired_by: int | None, *released_after: int) -> HostResidence:
        return HostResidence(
            block=block, offset=at * SIZE, bytes=SIZE, acquired_by=acquired_by, released_after=released_after
        )

    return Schedule(
        format="pebbler/schedule/1",
        instance="two",
        method="hand",
        memory_model="contiguous",
        operations=(
            op(MAKE_A, "compute", "run", 0, 5, task=0, algorithm=0),
            op(OUT_A, "d2h", "offload", 5, 8, block=A, after=(MAKE_A,)),
            op(MAKE_B, "compute", "run", 5, 10, task=1, algorithm=0),
            op(OUT_B, "d2h", "offload", 10, 13, block=B, after=(MAKE_B,)),
            op(IN_A, "h2d", "prefetch", 8, 11, block=A, after=(OUT_A,)),
            op(READ_A, "compute", "run", 11, 16, task=2, algorithm=0, after=(IN_A,)),
            op(IN_B, "h2d", "prefetch", 13, 16, block=B, after=(OUT_B,)),
            op(READ_B, "compute", "run", 16, 21, task=3, algorithm=0, after=(IN_B,)),
        ),
        residences=(
            place(X, 0, None, MAKE_A),
            place(A, 1, MAKE_A, OUT_A),
            place(B, 2, MAKE_B, OUT_B),
            place(A, 1, IN_A, READ_A),
            place(B, 2, IN_B, READ_B),
        ),
        makespan_ns=21,
        peak_bytes=3 * SIZE,
        host_residences=(copy(X, 0, None, MAKE_B), copy(A, 1, OUT_A, IN_A), copy(B, 0, OUT_B)),
        host_peak_bytes=2 * SIZE,
    )


FIRST_COPY, COPY_OF_A, COPY_OF_B = range(3)


def copy(c: int, **changes: object) -> Change:
    def change(schedule: Schedule) -> Schedule:
        copies = list(schedule.host_copies)
        copies[c] = msgspec.structs.replace(copies[c], **changes)
        return msgspec.structs.replace(schedule, host_residences=tuple(copies))

    return change


def without_copy(c: int) -> Change:
    return lambda schedule: msgspec.structs.replace(
        schedule, host_residences=schedule.host_copies[:c] + schedule.host_copies[c + 1 :]
    )


def and_copy(d: int, at: int, acquired_by: int | None, *released_after: int) -> Change:
    new = HostResidence(
        block=d, offset=at * SIZE, bytes=SIZE, acquired_by=acquired_by, released_after=released_after
    )
    return lambda schedule: msgspec.structs.replace(schedule, host_residences=(*schedule.host_copies, new))


def with_block(instance: Instance, d: int, **changes: object) -> tuple[Block, ...]:
    blocks = list(instance.blocks)
    blocks[d] = msgspec.structs.replace(blocks[d], **changes)
    return tuple(blocks)


def to_the_host(instance: Instance, d: int) -> Instance:
    """The instance where a block must end on the host."""
    return msgspec.structs.replace(instance, blocks=with_block(instance, d, finally_="host"))


def test_a_valid_program_survives(instance: Instance, schedule: Schedule) -> None:
    assert faults(instance, schedule, draws=300) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (without_copy(COPY_OF_A), "data: offload of 'a' (id 1) has no place for 'a' on the host"),
        (without_copy(COPY_OF_A), "data: prefetch of 'a' (id 4) has no place for 'a' on the host"),
        (operation(IN_A, after=()), "data: prefetch of 'a' (id 4) uses 'a' on the host outside its stay"),
        (
            copy(COPY_OF_A, released_after=(OUT_B,)),
            "data: prefetch of 'a' (id 4): 'a' on the host is released",
        ),
        (
            copy(COPY_OF_A, released_after=(OUT_A,)),
            "data: prefetch of 'a' (id 4) uses 'a' on the host outside its stay",
        ),
        (
            copy(COPY_OF_A, released_after=(OUT_A,)),
            "data: prefetch of 'a' (id 4) does not find 'a' on the host",
        ),
        (
            copy(COPY_OF_A, released_after=(MAKE_A, IN_A)),
            "rule: run of 'make a' (id 0) releases host_residences[1], which is not there yet",
        ),
        (copy(COPY_OF_A, acquired_by=OUT_B), "data: offload of 'a' (id 1) has no place for 'a' on the host"),
        (
            copy(COPY_OF_A, acquired_by=MAKE_A),
            "rule: host_residences[1] is acquired by run of 'make a' (id 0), which does not write it",
        ),
        (
            copy(COPY_OF_A, acquired_by=None),
            "rule: host_residences[1] is there from the start, and its block is nowhere",
        ),
        (copy(COPY_OF_A, bytes=511), "rule: host_residences[1] has 511 bytes for 512"),
        (
            copy(COPY_OF_A, bytes=511),
            "data: offload of 'a' (id 1) overruns host_residences[1], too small for 'a' on the host",
        ),
        (copy(COPY_OF_A, offset=511), "rule: host_residences[1] is not aligned"),
        (copy(COPY_OF_A, offset=2 * SIZE), "data: host_residences[1] lies outside host memory"),
        (
            copy(COPY_OF_A, offset=0),
            "data: host_residences[1] is acquired over host_residences[0], which is still held",
        ),
        (
            copy(COPY_OF_A, offset=0),
            "data: prefetch of 'a' (id 4): 'a' on the host is overwritten while in use",
        ),
        (
            copy(FIRST_COPY, released_after=(READ_A,)),
            "data: host_residences[2] is acquired over host_residences[0], which is still held",
        ),
        (and_copy(A, 0, OUT_A, MAKE_B), "rule: offload of 'a' (id 1) acquires two residences of one thing"),
        (and_copy(X, 1, None, MAKE_A), "rule: 'x' on the host has two residences at a time"),
        (and_copy(A, 1, IN_A), "rule: host_residences[3] is acquired by prefetch of 'a' (id 4)"),
        (figure(host_peak_bytes=2 * SIZE - 1), "figure: the peak on the host was 1024"),
        (
            figure(host_residences=msgspec.UNSET, host_peak_bytes=msgspec.UNSET),
            "rule: the instance has host_budget_bytes, unlike the schedule's host_residences",
        ),
    ],
)
def test_damage_in_host_memory_is_found(
    instance: Instance, schedule: Schedule, change: Change, fault: str
) -> None:
    assert any(found.startswith(fault) for found in faults(instance, change(schedule)))


def test_a_copy_can_be_dropped_and_made_again(instance: Instance, schedule: Schedule) -> None:
    """A is copied out once more after it has come back, while its first copy is gone or still there."""
    again = Operation(id=9, stream="d2h", kind="offload", block=A, after=(IN_A,), start_ns=13, end_ns=16)
    twice = msgspec.structs.replace(
        schedule, operations=(*schedule.operations[:6], again, *schedule.operations[6:])
    )
    held = msgspec.structs.replace(twice.residences[3], released_after=(9, READ_A))
    twice = msgspec.structs.replace(twice, residences=(*twice.residences[:3], held, twice.residences[4]))
    twice = and_copy(A, 1, 9)(twice)
    assert faults(to_the_host(instance, A), twice) == []
    kept = copy(COPY_OF_A, released_after=(READ_A,))(copy(3, offset=2 * SIZE)(twice))
    roomy = msgspec.structs.replace(instance, host_budget_bytes=3 * SIZE)
    kept = msgspec.structs.replace(kept, host_peak_bytes=3 * SIZE)
    assert faults(roomy, kept) == ["rule: 'a' on the host has two residences at a time"]


def test_what_must_end_on_the_host_has_a_copy_that_lasts(instance: Instance, schedule: Schedule) -> None:
    assert faults(to_the_host(instance, B), schedule) == []
    a_to_the_host = to_the_host(instance, A)
    assert faults(a_to_the_host, schedule) == ["data: 'a' is not on the host at the end"]
    assert faults(a_to_the_host, copy(COPY_OF_A, released_after=())(schedule)) == []
    x_to_the_host = to_the_host(instance, X)
    assert faults(x_to_the_host, schedule) == ["data: 'x' is not on the host at the end"]
    apart = copy(FIRST_COPY, released_after=())(copy(COPY_OF_B, offset=2 * SIZE)(schedule))
    apart = msgspec.structs.replace(apart, host_peak_bytes=3 * SIZE)
    assert faults(msgspec.structs.replace(x_to_the_host, host_budget_bytes=3 * SIZE), apart) == []


def test_an_update_makes_a_copy_stale_that_still_takes_its_room(
    instance: Instance, schedule: Schedule
) -> None:
    """B is updated after it was copied out, or X after the start, where no copy of it is read."""
    make, *others = instance.tasks
    x_changes = msgspec.structs.replace(
        instance, tasks=(msgspec.structs.replace(make, inputs=(), updates=(X,)), *others)
    )
    assert faults(x_changes, schedule) == []
    over_stale = copy(COPY_OF_A, offset=0)(schedule)
    assert "data: host_residences[1] is acquired over host_residences[0], which is still held" in faults(
        x_changes, over_stale
    )
    a_changes = msgspec.structs.replace(
        instance, tasks=(make, task("make b", updates=(A,), outputs=(B,)), *instance.tasks[2:])
    )
    assert "rule: prefetch of 'a' (id 4) copies an outdated 'a' on the host" in faults(a_changes, schedule)


def test_what_begins_on_the_host_is_there_only_with_a_copy(instance: Instance, schedule: Schedule) -> None:
    read_only = msgspec.structs.replace(
        instance,
        tasks=(task("make a", inputs=(X,)), *instance.tasks[1:]),
        blocks=with_block(instance, A, initially="host"),
    )
    operations = [op for op in schedule.operations if op.id != OUT_A]
    operations = [
        msgspec.structs.replace(op, after=tuple(i for i in op.after if i != OUT_A)) for op in operations
    ]
    there = msgspec.structs.replace(
        schedule,
        operations=tuple(operations),
        residences=(schedule.residences[0], *schedule.residences[2:]),
        host_residences=tuple(
            msgspec.structs.replace(c, acquired_by=None) if c.block == A else c for c in schedule.host_copies
        ),
    )
    assert not [fault for fault in faults(read_only, there) if not fault.startswith("figure")]
    absent = without_copy(COPY_OF_A)(there)
    assert "data: prefetch of 'a' (id 4) has no place for 'a' on the host" in faults(read_only, absent)


def test_divisible_host_memory_has_a_capacity_at_nominal_times(
    instance: Instance, schedule: Schedule
) -> None:
    """X and A are together there until B takes the room of X at 10 ns."""
    divisible = msgspec.structs.replace(
        schedule,
        memory_model="divisible",
        residences=tuple(msgspec.structs.replace(r, offset=None) for r in schedule.residences),
        host_residences=tuple(msgspec.structs.replace(c, offset=None) for c in schedule.host_copies),
    )
    assert [fault for fault in faults(instance, divisible) if "host" in fault] == []
    tight = msgspec.structs.replace(instance, host_budget_bytes=2 * SIZE - 1)
    assert "data: the copies on the host reached 1024, its budget is 1023" in faults(tight, divisible)
    longer = copy(FIRST_COPY, released_after=(READ_A,))(divisible)
    assert "data: the copies on the host reached 1536, its budget is 1024" in faults(instance, longer)


def test_without_a_budget_a_schedule_has_no_places_on_the_host(
    instance: Instance, schedule: Schedule
) -> None:
    endless = msgspec.structs.replace(instance, host_budget_bytes=msgspec.UNSET)
    assert [str(fault) for fault in replay(endless, schedule, None, Random(0))] == [
        "rule: the instance has no host_budget_bytes, unlike the schedule's host_residences"
    ]
    bare = msgspec.structs.replace(schedule, host_residences=msgspec.UNSET, host_peak_bytes=msgspec.UNSET)
    assert faults(endless, bare) == []
