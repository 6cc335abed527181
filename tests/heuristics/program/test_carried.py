"""The builder with blocks that rounds carry: on the device at both ends, and perhaps away in between."""

from __future__ import annotations

import pytest

from pebbler.heuristics.methods import Refusal
from pebbler.heuristics.program.builder import OutOfMemoryError, ProgramBuilder
from pebbler.heuristics.program.placement import build_program
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.instances.units import PAGE_BYTES
from pebbler.validate.check import check
from pebbler.validate.schedule import Carried, MemoryModel

from .test_builder import block, problem, require_exact_waits, task

W, V, X = 0, 1, 2
"""What the last task updates, what is read alone, and what lies between."""


def in_turn(pages: int = 2, **keys: object) -> Instance:
    """`W` and `V` are read, `X` is made, `V` is read again and `W` is updated; each takes a page."""
    return problem(
        [
            block("W", PAGE_BYTES, initially="carried"),
            block("V", PAGE_BYTES, initially="carried"),
            block("X", PAGE_BYTES),
        ],
        [
            task("read", inputs=(W, V)),
            task("make", outputs=(X,)),
            task("read again", inputs=(V, X)),
            task("update", updates=(W,)),
        ],
        pages * PAGE_BYTES,
        **keys,
    )


def paged(instance: Instance) -> ProgramBuilder:
    return ProgramBuilder(instance, memory="paged")


def test_they_are_there_at_time_0_and_a_valid_copy_is_on_the_host_of_what_no_task_writes() -> None:
    builder = paged(in_turn())
    assert builder.resident_blocks() == (W, V)
    assert [builder.on_host(d) for d in (W, V, X)] == [False, True, False]


@pytest.mark.parametrize("memory", ["contiguous", "paged", "divisible"])
def test_a_program_that_keeps_them_ends_as_it_begins(memory: MemoryModel) -> None:
    instance = in_turn(pages=3)

    def issue(builder: ProgramBuilder) -> None:
        for k in range(4):
            builder.run(k, 0)
            builder.release_dead(k)

    schedule = build_program(instance, memory, issue).finish("test")
    assert check(instance, schedule).reasons == ()
    assert schedule.carried == (
        Carried(block=W, device=True, host=False),
        Carried(block=V, device=True, host=True),
    )
    assert {r.block for r in schedule.residences if not r.released_after} == {W, V}


def test_what_is_updated_later_is_offloaded_to_leave_and_what_is_read_alone_leaves_for_nothing() -> None:
    instance = in_turn()
    builder = paged(instance)
    builder.run(0, 0)
    builder.offload(W)
    builder.release(W)
    builder.run(1, 0)
    builder.run(2, 0)
    builder.release(X)
    builder.release(V)
    builder.prefetch(W)
    builder.run(3, 0)
    schedule = builder.finish("test")
    require_exact_waits(instance, schedule)
    copies = [(o.kind, o.block) for o in schedule.operations if o.kind != "run"]
    assert copies == [("offload", W), ("prefetch", W), ("prefetch", V)]  # the last for the end


def test_in_contiguous_memory_they_come_back_to_where_they_were() -> None:
    """What lies there meanwhile has to be gone."""
    instance = in_turn()
    builder = ProgramBuilder(instance, homing=True)
    (home,) = builder.ranges_of(W)
    builder.run(0, 0)
    builder.offload(W)
    builder.release(W)
    builder.run(1, 0)
    assert builder.ranges_of(X) == (home,)
    with pytest.raises(OutOfMemoryError, match="block 'W'"):
        builder.prefetch(W)
    builder.run(2, 0)
    builder.release(X)
    builder.release(V)
    builder.prefetch(W, at=home[0] + PAGE_BYTES)  # there is room, too, and it is not its home
    assert builder.ranges_of(W) == (home,)
    builder.run(3, 0)
    schedule = builder.finish("test")
    require_exact_waits(instance, schedule)
    assert check(instance, schedule).reasons == ()
    assert all(state.device for state in schedule.states)
    with pytest.raises(PebblerError, match="'W' cannot be moved"):
        builder.move(W, at=0)


def test_parts_come_back_to_where_they_were() -> None:
    """One whose tensor is still there in part, and both of a tensor that has left."""
    instance = problem(
        [
            block("p", tensor="t", begin=0, initially="carried"),
            block("q", tensor="t", begin=8, initially="carried"),
            block("x", 12),
        ],
        [task("read", inputs=(0, 1)), task("update", updates=(0, 1)), task("make", outputs=(2,))],
        28,
    )
    builder = ProgramBuilder(instance, homing=True)
    homes = [builder.ranges_of(d) for d in (0, 1)]
    builder.run(0, 0)
    for leaving in ((1,), (1, 0)):
        for d in leaving:
            builder.offload(d)
            builder.release(d)
        for d in sorted(leaving):
            builder.prefetch(d)
        assert [builder.ranges_of(d) for d in (0, 1)] == homes
    builder.run(1, 0)
    builder.run(2, 0)
    schedule = builder.finish("test")
    assert check(instance, schedule).reasons == ()


def test_in_contiguous_memory_they_stay() -> None:
    builder = ProgramBuilder(in_turn(pages=3))
    builder.run(0, 0)
    assert not builder.evictable()[[W, V]].any()
    with pytest.raises(Refusal, match="'W' cannot be offloaded"):
        builder.offload(W)


def test_without_room_for_all_at_time_0_there_is_no_program() -> None:
    with pytest.raises(Refusal, match="no place for block 'V', which is carried"):
        paged(in_turn(pages=1))


def test_nothing_leaves_before_the_first_operation() -> None:
    """A residence from time 0 ends after some operation; without one, the block would not begin there."""
    instance = in_turn(pages=3)
    builder = paged(instance)
    with pytest.raises(Refusal, match="'V' is carried, and cannot leave before the first operation"):
        builder.release(V)
    builder.offload(W)
    builder.release(V)
    builder.prefetch(V)
    for k in range(4):
        builder.run(k, 0)
        builder.release_dead(k)
    assert check(instance, builder.finish("test")).reasons == ()


def test_where_host_memory_has_a_budget_a_copy_that_was_read_stays_where_it_was() -> None:
    instance = in_turn(host_budget_bytes=2 * PAGE_BYTES)
    builder = paged(instance)
    builder.run(0, 0)
    builder.release(V)
    builder.run(1, 0)
    builder.offload(W)
    builder.release(W)
    builder.prefetch(V)
    builder.run(2, 0)
    builder.release(X)
    builder.prefetch(W)
    builder.run(3, 0)
    schedule = builder.finish("test")
    assert check(instance, schedule).reasons == ()
    assert [state.host for state in schedule.states] == [False, True]
    kept = [copy.block for copy in schedule.host_copies if not copy.released_after]
    assert kept == [V]


def test_a_copy_that_nothing_has_read_makes_room_and_was_never_there() -> None:
    """The host has room for one copy: that of `V` is worth nothing while `V` stays."""
    instance = in_turn(host_budget_bytes=PAGE_BYTES)
    builder = paged(instance)
    builder.run(0, 0)
    builder.offload(W)
    builder.release(W)
    builder.run(1, 0)
    builder.run(2, 0)
    builder.release(X)
    builder.prefetch(W)
    builder.run(3, 0)
    schedule = builder.finish("test")
    assert check(instance, schedule).reasons == ()
    assert [state.host for state in schedule.states] == [False, False]


def test_a_copy_that_was_read_makes_no_room() -> None:
    builder = paged(in_turn(host_budget_bytes=PAGE_BYTES))
    builder.run(0, 0)
    builder.release(V)
    builder.prefetch(V)
    with pytest.raises(Refusal, match="host memory has no place for a copy of block 'W'"):
        builder.offload(W)
