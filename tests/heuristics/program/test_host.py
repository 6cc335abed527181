"""The builder where host memory has a budget: copies have places there, wait, and go when room is wanted."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.heuristics.methods import Refusal
from pebbler.heuristics.program.builder import ProgramBuilder
from pebbler.instances.instance import Instance
from pebbler.instances.memory import least_host_bytes, why_infeasible
from pebbler.validate.check import check
from pebbler.validate.measures import host_curve
from pebbler.validate.schedule import HostResidence, MemoryModel, Schedule

from .test_builder import block, problem, require_exact_waits, task

SIZE = 512
"""Bytes of each block, so that places on the host are multiples of it."""


def in_turn(host: int, **keys: object) -> Instance:
    """Two blocks are written, and read in the same order; the pool has room for one at a time."""
    return problem(
        [block("a", SIZE, **keys), block("b", SIZE, **keys), block("c", SIZE)],
        [
            task("make a", outputs=(0,)),
            task("make b", outputs=(1,)),
            task("read a", inputs=(0,)),
            task("read b", inputs=(1,)),
            task("read a again", inputs=(0,)),
        ],
        SIZE,
        host_budget_bytes=host,
    )


def swap(builder: ProgramBuilder) -> None:
    """Let each block leave for the other one."""
    builder.run(0, 0)
    builder.offload(0)
    builder.release(0)
    builder.run(1, 0)
    builder.offload(1)
    builder.release(1)
    builder.prefetch(0)
    builder.run(2, 0)


def copies(schedule: Schedule) -> list[HostResidence]:
    assert schedule.host_residences is not UNSET
    return list(schedule.host_residences)


@pytest.mark.parametrize("memory", ["contiguous", "divisible"])
def test_copies_lie_beside_each_other(memory: MemoryModel) -> None:
    instance = in_turn(2 * SIZE)
    builder = ProgramBuilder(instance, memory=memory)
    swap(builder)
    builder.release(0)
    builder.fetch([1])
    builder.run(3, 0)
    builder.release_dead(3)
    builder.fetch([0])
    builder.run(4, 0)
    schedule = builder.finish("by hand")
    assert check(instance, schedule).reasons == ()
    assert schedule.host_peak_bytes == 2 * SIZE == max(host_curve(schedule)[1])
    assert [copy.block for copy in copies(schedule)] == [0, 1]
    if memory == "contiguous":
        require_exact_waits(instance, schedule)


def test_parts_that_are_aligned_more_finely_than_host_memory_have_copies_there() -> None:
    parts = [block("a", 4, tensor="t", begin=0), block("b", 4, tensor="t", begin=4)]
    tasks = [task("make", outputs=(0, 1)), task("other", outputs=(2,)), task("read", inputs=(0, 1))]
    instance = problem([*parts, block("c", 8)], tasks, 8, alignment_bytes=4, host_budget_bytes=516)
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    for d in (0, 1):
        builder.offload(d)
        builder.release(d)
    builder.run(1, 0)
    builder.release(2)
    builder.fetch([0, 1])
    builder.run(2, 0)
    schedule = builder.finish("by hand")
    assert check(instance, schedule).reasons == ()
    assert [copy.offset for copy in copies(schedule)] == [0, 512]


def test_without_room_there_is_a_refusal_that_names_the_block() -> None:
    builder = ProgramBuilder(in_turn(SIZE))
    with pytest.raises(Refusal, match="host memory has no place for a copy of block 'b'"):
        swap(builder)


def test_a_copy_that_was_read_gives_way_and_is_made_again() -> None:
    """While a is on the device, its copy is not needed: b takes its place, and a is copied again later."""
    instance = problem(
        [block("a", SIZE), block("b", SIZE)],
        [
            task("make a", outputs=(0,)),
            task("nothing"),
            task("read a", inputs=(0,)),
            task("make b", outputs=(1,)),
            task("nothing more"),
            task("read b", inputs=(1,)),
            task("read a again", inputs=(0,)),
        ],
        2 * SIZE,
        host_budget_bytes=SIZE,
    )
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    builder.offload(0)
    builder.release(0)
    builder.run(1, 0)
    builder.prefetch(0)
    builder.run(2, 0)
    builder.run(3, 0)
    assert builder.on_host(0)
    builder.offload(1)
    assert not builder.on_host(0)
    builder.release(1)
    builder.run(4, 0)
    builder.prefetch(1)
    builder.run(5, 0)
    builder.run(6, 0)
    schedule = builder.finish("by hand")
    require_exact_waits(instance, schedule)
    first, second = copies(schedule)
    assert (first.block, second.block, first.offset, second.offset) == (0, 1, 0, 0)
    read = next(operation.id for operation in schedule.operations if operation.kind == "prefetch")
    assert first.released_after == (read,)


def test_a_copy_that_is_kept_for_later_does_not_give_way() -> None:
    instance = replace(in_turn(SIZE), budget_bytes=100 + 2 * SIZE)
    builder = ProgramBuilder(instance, copies={})
    builder.run(0, 0)
    builder.offload(0)
    builder.run(1, 0)
    with pytest.raises(Refusal, match="no place for a copy of block 'b'"):
        builder.offload(1)
    builder.drop_copy(0)
    builder.offload(1)


def test_a_stale_copy_gives_way() -> None:
    instance = problem(
        [block("a", SIZE)],
        [
            task("make", outputs=(0,)),
            task("update", updates=(0,)),
            task("read", inputs=(0,)),
        ],
        SIZE,
        host_budget_bytes=SIZE,
    )
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    builder.offload(0)
    builder.run(1, 0)
    builder.offload(0)
    builder.release(0)
    builder.prefetch(0)
    builder.run(2, 0)
    schedule = builder.finish("by hand")
    require_exact_waits(instance, schedule)
    assert [copy.offset for copy in copies(schedule)] == [0, 0]


def test_what_is_on_the_host_alone_has_a_copy_from_the_start() -> None:
    blocks = [block("a", SIZE, initially="host"), block("b", SIZE, initially="device")]
    tasks = [task("read a", inputs=(0,)), task("read b", inputs=(1,))]
    both = problem(blocks, tasks, 2 * SIZE, host_budget_bytes=2 * SIZE)
    builder = ProgramBuilder(both)
    assert builder.on_host(0)
    assert builder.on_host(1)
    builder.fetch([0, 1])
    for k in range(2):
        builder.run(k, 0)
    schedule = builder.finish("by hand")
    require_exact_waits(both, schedule)
    assert [(copy.block, copy.acquired_by) for copy in copies(schedule)] == [(0, None)]  # nobody read b's
    one = ProgramBuilder(replace(both, host_budget_bytes=SIZE))
    assert one.on_host(0)
    assert not one.on_host(1)
    with pytest.raises(Refusal, match="no place for a copy of block 'a'"):
        ProgramBuilder(replace(both, host_budget_bytes=SIZE - 1))


def test_what_must_end_on_the_host_is_kept_there() -> None:
    instance = in_turn(2 * SIZE, finally_="host")
    builder = ProgramBuilder(instance)
    swap(builder)
    builder.release(0)
    builder.fetch([1])
    builder.run(3, 0)
    builder.retire(1)
    builder.fetch([0])
    builder.run(4, 0)
    schedule = builder.finish("by hand")
    require_exact_waits(instance, schedule)
    assert all(copy.released_after == () for copy in copies(schedule))


def test_too_little_memory_in_all_is_told_before_any_method_runs() -> None:
    instance = in_turn(SIZE)
    assert least_host_bytes(instance) == SIZE
    assert why_infeasible(instance) is None
    reason = why_infeasible(replace(instance, host_budget_bytes=SIZE - 1))
    assert reason is not None
    assert "more than device and host memory have together" in reason
    again = replace(
        instance, tasks=tuple(replace(one, recomputable=bool(one.outputs)) for one in instance.tasks)
    )
    assert least_host_bytes(again) == 0


def test_copies_of_parts_that_begin_anywhere_on_the_device_are_aligned_on_the_host() -> None:
    """The second part begins at byte 4, and its copy at a multiple of 512 bytes."""
    parts = [block(f"t[{i}]", 4, tensor="t", begin=4 * i) for i in range(2)]
    tasks = [task("make", outputs=(0, 1)), task("nothing"), task("read", inputs=(0, 1))]
    instance = problem(parts, tasks, 8, host_budget_bytes=2 * SIZE)
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    for d in range(2):
        builder.offload(d)
        builder.release(d)
    builder.run(1, 0)
    builder.fetch([0, 1])
    builder.run(2, 0)
    schedule = builder.finish("by hand")
    require_exact_waits(instance, schedule)
    assert [copy.offset for copy in copies(schedule)] == [0, SIZE]
