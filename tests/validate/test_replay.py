from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.units import PAGE_BYTES
from pebbler.validate.replay.durations import draw_durations, own_durations
from pebbler.validate.replay.machine import Machine, replay
from pebbler.validate.schedule import MemoryModel, Operation, Residence, Schedule


def block(name: str, **changes: object) -> Block:
    return Block(**{"name": name, "bytes": 8, "offload_ns": 3, "prefetch_ns": 3, "move_ns": 1, **changes})


def task(name: str, *, workspace: int = 0, **sets: object) -> Task:
    algorithm = Algorithm(name="a", duration_ns=5, workspace_bytes=workspace)
    return Task(**{"name": name, "inputs": (), "outputs": (), "algorithms": (algorithm,), **sets})


X, A, B = 0, 1, 2


@pytest.fixture
def instance() -> Instance:
    """X gives A, A gives B; A goes to the host and comes back, where B updates it."""
    return Instance(
        name="chain",
        engines="duplex",
        budget_bytes=128,
        resident_bytes=100,
        alignment_bytes=4,
        blocks=(block("x", initially="device"), block("a"), block("b")),
        tasks=(
            task("first", inputs=(X,), outputs=(A,), recomputable=True),
            task("second", inputs=(A,), outputs=(B,), workspace=4),
            task("third", inputs=(B,), updates=(A,)),
        ),
    )


FIRST, OFFLOAD, SECOND, PREFETCH, THIRD = range(5)


@pytest.fixture
def schedule() -> Schedule:
    """A comes back to the place where X was."""

    def operation(i: int, stream: str, kind: str, start: int, end: int, **keys: object) -> Operation:
        return Operation(
            **{"id": i, "stream": stream, "kind": kind, "start_ns": start, "end_ns": end, **keys}
        )

    return Schedule(
        format="pebbler/schedule/1",
        instance="chain",
        method="hand",
        memory_model="contiguous",
        operations=(
            operation(FIRST, "compute", "run", 0, 5, task=0, algorithm=0),
            operation(OFFLOAD, "d2h", "offload", 5, 8, block=A, after=(FIRST,)),
            operation(SECOND, "compute", "run", 5, 10, task=1, algorithm=0),
            operation(PREFETCH, "h2d", "prefetch", 10, 13, block=A, after=(OFFLOAD, SECOND)),
            operation(THIRD, "compute", "run", 13, 18, task=2, algorithm=0, after=(PREFETCH,)),
        ),
        residences=(
            Residence(block=X, offset=0, bytes=8, released_after=(FIRST,)),
            Residence(block=A, offset=8, bytes=8, acquired_by=FIRST, released_after=(OFFLOAD, SECOND)),
            Residence(block=B, offset=16, bytes=8, acquired_by=SECOND, released_after=(THIRD,)),
            Residence(workspace_of=SECOND, offset=24, bytes=4, acquired_by=SECOND, released_after=(SECOND,)),
            Residence(block=A, offset=0, bytes=8, acquired_by=PREFETCH),
        ),
        makespan_ns=18,
        peak_bytes=128,
    )


def faults(instance: Instance, schedule: Schedule, draws: int = 60) -> list[str]:
    """All faults in the nominal replay and in some draws, each once."""
    rng = Random(1)
    machine = Machine(instance, schedule)
    found = machine.replay(None, rng)
    for _ in range(draws):
        found += machine.replay(draw_durations(instance, schedule, rng), rng)
    return list(dict.fromkeys(map(str, found)))


def operation(i: int, **changes: object) -> Callable[[Schedule], Schedule]:
    def change(schedule: Schedule) -> Schedule:
        operations = list(schedule.operations)
        operations[i] = msgspec.structs.replace(operations[i], **changes)
        return msgspec.structs.replace(schedule, operations=tuple(operations))

    return change


def residence(r: int, **changes: object) -> Callable[[Schedule], Schedule]:
    def change(schedule: Schedule) -> Schedule:
        residences = list(schedule.residences)
        residences[r] = msgspec.structs.replace(residences[r], **changes)
        return msgspec.structs.replace(schedule, residences=tuple(residences))

    return change


def without_residence(r: int) -> Callable[[Schedule], Schedule]:
    return lambda schedule: msgspec.structs.replace(
        schedule, residences=schedule.residences[:r] + schedule.residences[r + 1 :]
    )


def figure(**changes: object) -> Callable[[Schedule], Schedule]:
    return lambda schedule: msgspec.structs.replace(schedule, **changes)


def test_a_valid_program_survives(instance: Instance, schedule: Schedule) -> None:
    assert faults(instance, schedule, draws=300) == []


def test_replay_runs_one_draw(instance: Instance, schedule: Schedule) -> None:
    assert replay(instance, schedule, None, Random(0)) == []
    assert replay(instance, schedule, [0, 1000, 0, 7, 0], Random(0)) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (operation(OFFLOAD, after=()), "data: offload of 'a' (id 1) does not find 'a'"),
        (operation(PREFETCH, after=(SECOND,)), "data: prefetch of 'a' (id 3) does not find 'a' on the host"),
        (operation(PREFETCH, after=(OFFLOAD,)), "rule: 'a' has two residences at a time"),
        (operation(THIRD, after=()), "data: run of 'third' (id 4) does not find 'a'"),
        (operation(PREFETCH, stream="d2h"), "rule: prefetch of 'a' (id 3) is on stream d2h"),
        (operation(THIRD, task=1), "data: task 'third' never runs"),
        (operation(THIRD, task=1), "rule: run of 'second' (id 4) runs again, and is not recomputable"),
        (operation(THIRD, task=1), "data: run of 'second' (id 4) has no place for workspace"),
        (operation(FIRST, task=1), "rule: run of 'second' (id 0) is out of order"),
        (operation(FIRST, task=1), "data: run of 'second' (id 0) does not find 'a'"),
        (residence(0, offset=4), "data: residences[1] is acquired over residences[0], which is still held"),
        (residence(0, offset=4), "data: run of 'first' (id 0): 'x' is overwritten while in use"),
        (
            residence(0, released_after=()),
            "data: residences[4] is acquired over residences[0], which is still held",
        ),
        (residence(1, released_after=(SECOND,)), "data: offload of 'a' (id 1): 'a' is released while in use"),
        (residence(1, released_after=(FIRST,)), "data: run of 'second' (id 2) uses 'a' outside its stay"),
        (residence(2, acquired_by=THIRD), "data: run of 'second' (id 2) has no place for 'b'"),
        (
            residence(2, acquired_by=OFFLOAD),
            "rule: residences[2] is acquired by offload of 'a' (id 1), which does not write it",
        ),
        (
            residence(2, released_after=(FIRST,)),
            "rule: run of 'first' (id 0) releases residences[2], which is not there yet",
        ),
        (
            residence(3, bytes=3),
            "data: run of 'second' (id 2) overruns residences[3], too small for workspace",
        ),
        (residence(3, bytes=5), "rule: residences[3] has 5 bytes for 4"),
        (residence(3, offset=25), "rule: residences[3] is not aligned"),
        (residence(3, offset=28), "data: residences[3] lies outside the pool"),
        (residence(3, offset=20), "data: run of 'second' (id 2): 'b' is overwritten while in use"),
        (residence(3, released_after=(THIRD,)), "rule: residences[3] is not held for its run and no longer"),
        (residence(4, acquired_by=None), "rule: residences[4] is there from the start, and its block is not"),
        (residence(4, block=B), "data: prefetch of 'a' (id 3) has no place for 'a'"),
        (without_residence(3), "data: run of 'second' (id 2) has no place for workspace"),
        (without_residence(4), "data: run of 'third' (id 4) uses 'a' outside its stay"),
        (operation(SECOND, start_ns=6), "figure: run of 'second' (id 2) ran from 5 to 10"),
        (figure(makespan_ns=19), "figure: the makespan was 18"),
        (figure(peak_bytes=127), "figure: the peak was 128"),
        (figure(instance="other"), "rule: the schedule is for 'other'"),
    ],
)
def test_damage_is_found(
    instance: Instance, schedule: Schedule, change: Callable[[Schedule], Schedule], fault: str
) -> None:
    assert fault in faults(instance, change(schedule))


@pytest.mark.parametrize(
    ("index", "changes", "fault"),
    [
        (A, {"finally_": "host"}, "data: 'a' is not on the host at the end"),
        (B, {"finally_": "device"}, "data: 'b' is not on the device at the end"),
        (A, {"offload_ns": None}, "rule: offload of 'a' (id 1): the block never moves that way"),
        (X, {"initially": "host"}, "data: run of 'first' (id 0) does not find 'x'"),
        (B, {"bytes": 12}, "data: run of 'second' (id 2) overruns residences[2], too small for 'b'"),
    ],
)
def test_the_instance_decides(
    instance: Instance, schedule: Schedule, index: int, changes: dict[str, object], fault: str
) -> None:
    blocks = list(instance.blocks)
    blocks[index] = msgspec.structs.replace(blocks[index], **changes)
    assert fault in faults(msgspec.structs.replace(instance, blocks=tuple(blocks)), schedule)


def test_an_updated_block_ends_on_the_device(instance: Instance, schedule: Schedule) -> None:
    blocks = (*instance.blocks[:A], block("a", finally_="device"), *instance.blocks[B:])
    assert faults(msgspec.structs.replace(instance, blocks=blocks), schedule) == []


def test_an_update_makes_the_copy_on_the_host_stale(instance: Instance, schedule: Schedule) -> None:
    tasks = (
        *instance.tasks[:1],
        task("second", inputs=(), updates=(A,), outputs=(B,), workspace=4),
        instance.tasks[2],
    )
    found = faults(msgspec.structs.replace(instance, tasks=tasks), schedule)
    assert "rule: prefetch of 'a' (id 3) copies an outdated 'a' on the host" in found
    assert "data: run of 'third' (id 4) finds version 1 of 'a', not 2" in found
    assert "rule: run of 'second' (id 2) writes a block during a copy of it" in found


def test_a_rerun_rewrites_in_place_and_not_after_an_update(instance: Instance, schedule: Schedule) -> None:
    again = Operation(id=9, stream="compute", kind="run", task=0, algorithm=0, start_ns=0, end_ns=0)
    x_kept = residence(0, released_after=(FIRST, 9))
    early = msgspec.structs.replace(
        schedule, operations=(schedule.operations[0], again, *schedule.operations[1:])
    )
    early = residence(4, offset=0)(x_kept(early))
    early = operation(2, after=(9,))(early)
    assert not [fault for fault in faults(instance, early) if not fault.startswith("figure")]
    late = msgspec.structs.replace(schedule, operations=(*schedule.operations, again))
    assert "rule: run of 'first' (id 9) runs again after an update of what it wrote" in faults(instance, late)


@pytest.fixture
def moving(schedule: Schedule) -> Schedule:
    """A is moved to where X was, instead of going by the host."""
    move = Operation(id=7, stream="compute", kind="move", block=A, start_ns=5, end_ns=6)
    first, _, second, _, third = schedule.operations
    x, a, b, scratch, a_again = schedule.residences
    replace = msgspec.structs.replace
    return replace(
        schedule,
        operations=(
            first,
            move,
            replace(second, start_ns=6, end_ns=11),
            replace(third, start_ns=11, end_ns=16, after=()),
        ),
        residences=(x, replace(a, released_after=(7,)), b, scratch, replace(a_again, acquired_by=7)),
        makespan_ns=16,
    )


def test_a_move_holds_two_places_while_it_runs(instance: Instance, moving: Schedule) -> None:
    assert faults(instance, moving) == []
    longer = residence(1, released_after=(7, SECOND))(moving)
    assert faults(instance, longer) == ["rule: move of 'a' (id 7) has ended and its source is still held"]
    over_itself = residence(4, offset=4)(moving)
    assert "data: move of 'a' (id 7): 'a' is overwritten while in use" in faults(instance, over_itself)


def test_parts_of_a_tensor_lie_together(instance: Instance, moving: Schedule) -> None:
    blocks = (instance.blocks[X], block("a", tensor="t", begin=0), block("b", tensor="t", begin=8))
    parts = msgspec.structs.replace(instance, blocks=blocks)
    assert "data: run of 'third' (id 4) finds the parts of 't' apart" in faults(parts, moving)
    together = residence(1, offset=8)(moving)
    stay = msgspec.structs.replace(
        together,
        operations=tuple(op for op in together.operations if op.kind != "move"),
        residences=(
            together.residences[0],
            residence(1, released_after=())(together).residences[1],
            *together.residences[2:4],
        ),
    )
    assert not [fault for fault in faults(parts, stay) if not fault.startswith("figure")]


def placed(schedule: Schedule, model: MemoryModel) -> Schedule:
    """The same program in another memory model, a page for every aligned eight bytes."""
    residences = tuple(
        msgspec.structs.replace(
            r,
            offset=None,
            extents=(((r.offset or 0) // 8 * PAGE_BYTES, PAGE_BYTES),) if model == "paged" else None,
        )
        for r in schedule.residences
    )
    return msgspec.structs.replace(
        schedule,
        memory_model=model,
        page_bytes=PAGE_BYTES if model == "paged" else None,
        residences=residences,
        peak_bytes=100 + 4 * PAGE_BYTES if model == "paged" else 120,
    )


def test_paged_memory(instance: Instance, schedule: Schedule) -> None:
    roomy = msgspec.structs.replace(instance, budget_bytes=100 + 4 * PAGE_BYTES)
    paged = placed(schedule, "paged")
    assert faults(roomy, paged) == []
    for extents, fault in [
        (((0, PAGE_BYTES),), "data: residences[1] is acquired over residences[0], which is still held"),
        (((1, PAGE_BYTES),), "rule: residences[1] is not of whole pages"),
        (((4 * PAGE_BYTES, PAGE_BYTES),), "data: residences[1] lies outside the pool"),
        ((), "data: run of 'first' (id 0) overruns residences[1], too small for 'a'"),
        (((PAGE_BYTES, PAGE_BYTES),) * 2, "rule: residences[1] has a page twice"),
    ]:
        assert fault in faults(roomy, residence(1, extents=extents)(paged))


def test_divisible_memory_has_a_capacity_at_nominal_times(instance: Instance, schedule: Schedule) -> None:
    divisible = placed(schedule, "divisible")
    assert faults(msgspec.structs.replace(instance, budget_bytes=120), divisible) == []
    tight = msgspec.structs.replace(instance, budget_bytes=119)
    assert faults(tight, divisible) == ["data: the live sum reached 20, the pool is 19"]


def test_divisible_memory_holds_what_runs_without_time_need() -> None:
    at_once = Algorithm(name="a", duration_ns=0, workspace_bytes=4)
    tasks = (task("write", outputs=(0,)), Task(name="at once", inputs=(), outputs=(), algorithms=(at_once,)))
    instance = Instance(
        name="moment",
        engines="duplex",
        budget_bytes=12,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=(block("a"),),
        tasks=(*tasks, task("read", inputs=(0,))),
    )
    times = ((0, 5), (5, 5), (5, 10))
    schedule = Schedule(
        format="pebbler/schedule/1",
        instance="moment",
        method="hand",
        memory_model="divisible",
        operations=tuple(
            Operation(id=k, stream="compute", kind="run", task=k, algorithm=0, start_ns=start, end_ns=end)
            for k, (start, end) in enumerate(times)
        ),
        residences=(
            Residence(block=0, bytes=8, acquired_by=0, released_after=(2,)),
            Residence(workspace_of=1, bytes=4, acquired_by=1, released_after=(1,)),
        ),
        makespan_ns=10,
        peak_bytes=8,
    )
    assert faults(instance, schedule, draws=0) == []
    tight = msgspec.structs.replace(instance, budget_bytes=11)
    assert faults(tight, schedule, draws=0) == ["data: the live sum reached 12, the pool is 11"]


def test_durations_are_drawn_in_many_ways(instance: Instance, schedule: Schedule) -> None:
    nominal = own_durations(instance, schedule)
    assert nominal == [5, 3, 5, 3, 5]
    rng = Random(0)
    draws = [draw_durations(instance, schedule, rng) for _ in range(200)]
    assert all(len(draw) == 5 and min(draw) >= 0 for draw in draws)
    assert [0] * 5 in draws
    assert nominal in draws
    assert any(max(draw) >= 1000 for draw in draws)


def test_the_same_seed_gives_the_same_faults(instance: Instance, schedule: Schedule) -> None:
    racy = operation(PREFETCH, after=(OFFLOAD,))(schedule)
    assert faults(instance, racy) == faults(instance, racy)


def test_resident_bytes_above_the_budget_are_a_fault_even_where_nothing_else_is_in_memory() -> None:
    instance = Instance(
        name="full",
        engines="duplex",
        budget_bytes=99,
        resident_bytes=100,
        alignment_bytes=4,
        blocks=(),
        tasks=(task("t"),),
    )
    run = Operation(id=0, stream="compute", kind="run", task=0, algorithm=0, start_ns=0, end_ns=5)
    alone = Schedule(
        format="pebbler/schedule/1",
        instance="full",
        method="hand",
        memory_model="contiguous",
        operations=(run,),
        residences=(),
        makespan_ns=5,
        peak_bytes=100,
    )
    assert [fault.kind for fault in replay(instance, alone, None, Random(0))] == ["data"]
    assert not replay(msgspec.structs.replace(instance, budget_bytes=100), alone, None, Random(0))
