"""The builder: its waits are enough and none too many, and what fails changes nothing."""

from __future__ import annotations

import msgspec
import pytest

from pebbler.heuristics.methods import Refusal
from pebbler.heuristics.program.builder import OutOfMemoryError, ProgramBuilder
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.units import PAGE_BYTES
from pebbler.validate.check import check
from pebbler.validate.measures import highest_byte, memory_curve
from pebbler.validate.schedule import MemoryModel, Operation, Schedule
from pebbler.validate.simulate import simulate


def block(name: str, size: int = 8, **keys: object) -> Block:
    return Block(**{"name": name, "bytes": size, "offload_ns": 3, "prefetch_ns": 4, "move_ns": 1, **keys})


def task(name: str, *, workspace: int = 0, **keys: object) -> Task:
    algorithm = Algorithm(name="a", duration_ns=5, workspace_bytes=workspace)
    return Task(**{"name": name, "inputs": (), "outputs": (), "algorithms": (algorithm,), **keys})


def problem(blocks: list[Block], tasks: list[Task], pool: int, **keys: object) -> Instance:
    return Instance(
        **{
            "name": "hand",
            "engines": "duplex",
            "budget_bytes": 100 + pool,
            "resident_bytes": 100,
            "alignment_bytes": 4,
            "blocks": tuple(blocks),
            "tasks": tuple(tasks),
            **keys,
        }
    )


def waits(schedule: Schedule) -> list[tuple[int, ...]]:
    return [operation.after for operation in schedule.operations]


def retimed(instance: Instance, schedule: Schedule, operations: tuple[Operation, ...]) -> Schedule:
    bare = msgspec.structs.replace(schedule, operations=operations)
    starts, ends = simulate(instance, bare)
    timed = tuple(
        msgspec.structs.replace(o, start_ns=start, end_ns=end)
        for o, start, end in zip(operations, starts, ends, strict=True)
    )
    return msgspec.structs.replace(bare, operations=timed, makespan_ns=max(ends))


def require_exact_waits(instance: Instance, schedule: Schedule) -> None:
    """The schedule is valid, and not without any one of its waits."""
    assert check(instance, schedule).reasons == ()
    for i, operation in enumerate(schedule.operations):
        for wait in operation.after:
            fewer = tuple(other for other in operation.after if other != wait)
            operations = list(schedule.operations)
            operations[i] = msgspec.structs.replace(operation, after=fewer)
            without = retimed(instance, schedule, tuple(operations))
            assert not check(instance, without).valid, f"operation {i} need not wait for {wait}"


# --- waits ----------------------------------------------------------------------------------------------


@pytest.fixture
def chain() -> Instance:
    """X gives A, A gives B, both give C; X, A, B are 8 and C is 4; the pool holds 20."""
    return problem(
        [block("x", initially="device"), block("a"), block("b"), block("c", 4)],
        [
            task("first", inputs=(0,), outputs=(1,)),
            task("second", inputs=(1,), outputs=(2,), workspace=4),
            task("third", inputs=(1, 2), outputs=(3,)),
        ],
        20,
    )


def test_offload_release_prefetch(chain: Instance) -> None:
    builder = ProgramBuilder(chain)
    assert builder.run(0, 0) == 0
    builder.release(0)
    assert builder.offload(1) == 1
    assert builder.run(1, 0) == 2
    builder.release(1)
    assert not builder.is_resident(1)
    assert builder.on_host(1)
    assert builder.prefetch(1) == 3
    assert builder.run(2, 0) == 4
    schedule = builder.finish("hand", {"note": 1})
    require_exact_waits(chain, schedule)
    assert waits(schedule) == [(), (0,), (), (1, 2), (3,)]
    assert builder.starts == [0, 5, 5, 10, 14]
    assert builder.ends == [5, 8, 10, 14, 19]
    assert (schedule.makespan_ns, schedule.method, schedule.meta) == (19, "hand", {"note": 1})


def test_a_run_waits_for_what_held_its_outputs_place(chain: Instance) -> None:
    builder = ProgramBuilder(chain)
    builder.run(0, 0)
    out = builder.offload(1)
    builder.offload(0)
    builder.release(0)
    builder.release(1)
    builder.prefetch(1, after=[out])
    builder.run(1, 0)
    schedule = builder.finish("hand")
    assert not check(chain, schedule).valid  # the third task has not run: the rest is as it should be
    assert check(chain, schedule).reasons == ("task 'third' never runs",)


def test_a_write_to_a_place_waits_for_the_copy_that_still_reads_it() -> None:
    instance = problem(
        [block("p", initially="device"), block("q")],
        [task("read", inputs=(0,)), task("write", outputs=(1,))],
        8,
    )
    builder = ProgramBuilder(instance)
    out = builder.offload(0)
    builder.run(0, 0)
    builder.release(0)
    builder.run(1, 0)
    schedule = builder.finish("hand")
    require_exact_waits(instance, schedule)
    assert waits(schedule) == [(), (), (out,)]


def test_half_a_place_waits_for_its_own_last_holder_only() -> None:
    """P was offloaded, Q only read; R comes to where Q was and need not wait for the copy of P."""
    instance = problem(
        [block("p", 4, initially="device"), block("q", 8, initially="device"), block("r", 8), block("s", 4)],
        [task("read", inputs=(0, 1)), task("r", outputs=(2,)), task("s", outputs=(3,))],
        12,
    )
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    out = builder.offload(0)
    builder.release(0)
    builder.release(1)
    builder.run(1, 0, at={2: 4})
    builder.run(2, 0, at={3: 0})
    schedule = builder.finish("hand")
    require_exact_waits(instance, schedule)
    assert waits(schedule) == [(), (), (), (out,)]


def test_a_place_that_two_blocks_held_waits_for_both() -> None:
    instance = problem(
        [block("p", initially="device"), block("q", initially="device"), block("r", 16, initially="host")],
        [task("read p", inputs=(0,)), task("read q", inputs=(1,)), task("read r", inputs=(2,))],
        16,
    )
    builder = ProgramBuilder(instance)
    out = builder.offload(0)
    builder.run(0, 0)
    builder.run(1, 0)
    builder.release(0)
    builder.release(1)
    builder.prefetch(2)
    builder.run(2, 0)
    schedule = builder.finish("hand")
    require_exact_waits(instance, schedule)
    assert waits(schedule)[3] == (out, 2)


def test_waits_that_follow_from_others_are_left_out() -> None:
    """The prefetch waits for the run that waited for the offload."""
    instance = problem(
        [block("a"), block("pad", initially="host")],
        [task("make", outputs=(0,)), task("update", updates=(0,)), task("read", inputs=(0, 1))],
        16,
    )
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    out = builder.offload(0)
    update = builder.run(1, 0)
    builder.release(0)
    with pytest.raises(PebblerError, match="'a' cannot be prefetched: it has no valid copy on the host"):
        builder.prefetch(0)
    assert builder.finish("hand").operations[update].after == (out,)
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    builder.run(1, 0)
    out = builder.offload(0)
    pad = builder.prefetch(1, after=[out])
    builder.release(0, after=[pad])
    back = builder.prefetch(0)
    builder.run(2, 0)
    schedule = builder.finish("hand")
    assert check(instance, schedule).reasons == ()
    assert schedule.operations[pad].after == (out,)
    assert schedule.operations[back].after == ()
    assert schedule.residences[0].released_after == (pad,)


def test_an_update_waits_for_copies_of_its_block_and_makes_them_stale() -> None:
    instance = problem(
        [block("w", initially="device", finally_="host")],
        [task("read", inputs=(0,)), task("update", updates=(0,))],
        8,
    )
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    assert builder.on_host(0)
    builder.offload(0)
    builder.run(1, 0)
    assert not builder.on_host(0)
    schedule = builder.finish("hand")
    require_exact_waits(instance, schedule)
    assert waits(schedule) == [(), (), (1,), (2,)]
    assert [o.kind for o in schedule.operations] == ["run", "offload", "run", "offload"]


def test_waits_on_request_are_kept(chain: Instance) -> None:
    builder = ProgramBuilder(chain)
    first = builder.run(0, 0)
    out = builder.offload(0, after=[first])
    builder.release(0)
    builder.run(1, 0, after=[out])
    builder.run(2, 0)
    schedule = builder.finish("hand")
    assert check(chain, schedule).reasons == ()
    assert waits(schedule)[1:3] == [(first,), (out,)]


def test_one_engine_has_one_stream_and_needs_fewer_waits(chain: Instance) -> None:
    single = msgspec.structs.replace(chain, engines="single")
    builder = ProgramBuilder(single)
    builder.run(0, 0)
    builder.release(0)
    builder.offload(1)
    builder.run(1, 0)
    builder.release(1)
    builder.prefetch(1)
    builder.run(2, 0)
    schedule = builder.finish("hand")
    require_exact_waits(single, schedule)
    assert waits(schedule) == [(), (0,), (), (2,), (3,)]
    assert {o.stream for o in schedule.operations} == {"compute", "copy"}


def queue_of_copies(instance: Instance, **keys: bool) -> Schedule:
    builder = ProgramBuilder(instance, **keys)  # type: ignore[arg-type]
    builder.run(0, 0)
    builder.offload(0)
    builder.prefetch(1)
    builder.offload(0)
    builder.run(1, 0)
    return builder.finish("hand")


def test_one_copy_queue_takes_all_copies_in_the_order_of_issue() -> None:
    instance = problem(
        [block("p", initially="device"), block("q", initially="host")],
        [task("s", inputs=(0,)), task("t", inputs=(1,))],
        16,
    )
    queued = queue_of_copies(instance, one_copy_queue=True)
    assert check(instance, queued).reasons == ()
    assert [(o.start_ns, o.end_ns) for o in queued.operations] == [(0, 5), (0, 3), (3, 7), (7, 10), (7, 12)]
    assert waits(queued)[2:4] == [(1,), (2,)]
    assert {o.stream for o in queued.operations} == {"compute", "d2h", "h2d"}
    free = queue_of_copies(instance)
    assert [(o.start_ns, o.end_ns) for o in free.operations] == [(0, 5), (0, 3), (0, 4), (3, 6), (5, 10)]


def test_one_copy_queue_is_what_a_single_engine_does_anyway() -> None:
    instance = problem(
        [block("p", initially="device"), block("q", initially="host")],
        [task("s", inputs=(0,)), task("t", inputs=(1,))],
        16,
        engines="single",
    )
    assert queue_of_copies(instance, one_copy_queue=True) == queue_of_copies(instance)


# --- what fails -----------------------------------------------------------------------------------------


def state(builder: ProgramBuilder) -> object:
    """All that a method can see, and what the next placements depend on."""
    return (
        builder.pool.holes(),
        builder.resident_blocks(),
        [builder.on_host(d) for d in range(len(builder.instance.blocks))],
        builder.makespan_ns,
        list(builder.starts),
        builder.lifetimes(),
    )


@pytest.fixture(params=["contiguous", "divisible"])
def memory(request: pytest.FixtureRequest) -> MemoryModel:
    model: MemoryModel = request.param
    return model


def test_a_run_without_room_changes_nothing(memory: MemoryModel) -> None:
    """Two outputs fit, then the workspace does not."""
    lean = Algorithm(name="lean", duration_ns=9, workspace_bytes=4)
    fat = Algorithm(name="fat", duration_ns=2, workspace_bytes=8)
    instance = problem(
        [block("x", initially="device"), block("a"), block("b")],
        [task("t", inputs=(0,), outputs=(1, 2), algorithms=(fat, lean))],
        28,
    )
    builder = ProgramBuilder(instance, memory=memory)
    before = state(builder)
    with pytest.raises(
        OutOfMemoryError, match=r"no place for the workspace of task 't' \(8 B\): 4 B free"
    ) as e:
        builder.run(0, 0)
    assert (e.value.what, e.value.bytes) == ("the workspace of task 't'", 8)
    assert state(builder) == before
    builder.run(0, 1)
    schedule = builder.finish("hand")
    assert check(instance, schedule).reasons == ()
    assert schedule.peak_bytes == 128


def test_a_run_whose_second_output_has_no_room_changes_nothing(memory: MemoryModel) -> None:
    instance = problem([block("a", 8), block("b", 12)], [task("t", outputs=(0, 1))], 16)
    builder = ProgramBuilder(instance, memory=memory)
    before = state(builder)
    with pytest.raises(OutOfMemoryError, match=r"no place for block 'a' \(8 B\): 4 B free"):
        builder.run(0, 0)
    assert state(builder) == before


def test_a_run_whose_parts_have_no_room_changes_nothing() -> None:
    instance = problem(
        [block("p", tensor="t", begin=0), block("q", tensor="t", begin=8), block("z", 4)],
        [task("t", outputs=(0, 1, 2))],
        16,
    )
    builder = ProgramBuilder(instance)
    before = state(builder)
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match="no place for block 'z'"):
            builder.run(0, 0)
        assert state(builder) == before


def test_a_run_without_its_input_changes_nothing(chain: Instance) -> None:
    builder = ProgramBuilder(chain)
    before = state(builder)
    with pytest.raises(PebblerError, match="block 'a' is not on the device where second needs it"):
        builder.run(1, 0)
    assert state(builder) == before


def test_a_prefetch_or_move_without_room_changes_nothing() -> None:
    instance = problem(
        [block("p", initially="device"), block("h", initially="host")], [task("t", inputs=(0,))], 12
    )
    builder = ProgramBuilder(instance)
    before = state(builder)
    with pytest.raises(OutOfMemoryError, match=r"no place for block 'h' \(8 B\): 4 B free, largest hole 4 B"):
        builder.prefetch(1)
    with pytest.raises(OutOfMemoryError, match="no place for a move of block 'p'"):
        builder.move(0)
    with pytest.raises(OutOfMemoryError):
        builder.prefetch(1, at=4)
    assert state(builder) == before


def test_what_is_not_allowed_is_refused() -> None:
    fixed = {"offload_ns": None, "prefetch_ns": None, "move_ns": None}
    instance = problem(
        [block("x", initially="device", **fixed), block("y", initially="host"), block("z")],
        [task("t", inputs=(0, 1), outputs=(2,))],
        64,
    )
    builder = ProgramBuilder(instance)
    before = state(builder)
    for call, words in (
        (lambda: builder.offload(0), "'x' cannot be offloaded: its offload_ns is null"),
        (lambda: builder.prefetch(0), "'x' cannot be prefetched: its prefetch_ns is null"),
        (lambda: builder.move(0), "'x' cannot be moved: its move_ns is null"),
        (lambda: builder.offload(1), "'y' is not on the device where an offload needs it"),
        (lambda: builder.move(1), "'y' is not on the device where a move needs it"),
        (lambda: builder.prefetch(2), "'z' cannot be prefetched: it has no valid copy on the host"),
    ):
        with pytest.raises((PebblerError, Refusal), match=words):
            call()
    assert state(builder) == before
    builder.prefetch(1)
    with pytest.raises(PebblerError, match="'y' cannot be prefetched: it is on the device already"):
        builder.prefetch(1)


# --- places ---------------------------------------------------------------------------------------------


def test_given_places_are_taken(chain: Instance) -> None:
    wide = msgspec.structs.replace(chain, budget_bytes=164)
    builder = ProgramBuilder(wide, start={0: 40})
    builder.run(0, 0, at={1: 16})
    builder.run(1, 0, at={2: 0}, workspace_at=60)
    builder.release(1)
    builder.move(2, at=52)
    assert builder.ranges_of(2) == ((52, 8),)
    schedule = builder.finish("hand")
    assert [r.offset for r in schedule.residences] == [40, 16, 0, 60, 52]
    assert schedule.peak_bytes == 164
    assert check(wide, schedule).reasons == ("task 'third' never runs",)


@pytest.mark.parametrize("at", [4, 40, 60, 64, 1000])
def test_a_given_place_that_is_taken_or_outside_is_refused(chain: Instance, at: int) -> None:
    wide = msgspec.structs.replace(chain, budget_bytes=164)
    builder = ProgramBuilder(wide, start={0: 40})
    builder.run(0, 0, at={1: 8})
    before = state(builder)
    with pytest.raises(OutOfMemoryError):
        builder.run(1, 0, at={2: at})
    assert state(builder) == before


def test_the_last_bytes_of_a_pool_that_is_not_aligned() -> None:
    instance = problem([block("p", 5), block("q", 6)], [task("t", outputs=(0, 1))], 14)
    for keys in ({}, {"at": {0: 0, 1: 8}}):
        builder = ProgramBuilder(instance)
        builder.run(0, 0, **keys)  # type: ignore[arg-type]
        schedule = builder.finish("hand")
        assert check(instance, schedule).reasons == ()
    assert schedule.peak_bytes == 114


def test_a_plan_is_followed_in_the_order_of_placements(chain: Instance) -> None:
    wide = msgspec.structs.replace(chain, budget_bytes=164)
    builder = ProgramBuilder(wide, plan=[56, 24, 0, 32])
    builder.run(0, 0)
    builder.run(1, 0)
    builder.run(2, 0)
    schedule = builder.finish("hand")
    assert check(wide, schedule).reasons == ()
    assert [r.offset for r in schedule.residences] == [56, 24, 0, 32, 8]  # the last one has no plan


def test_start_chooses_what_is_there_at_time_0(chain: Instance) -> None:
    builder = ProgramBuilder(chain, start={})
    assert builder.resident_blocks() == ()
    builder.prefetch(0)
    builder.run(0, 0)
    assert builder.finish("hand").residences[0].acquired_by == 0


def test_by_default_what_fits_is_there_at_time_0_the_first_used_first() -> None:
    instance = problem(
        [
            block("late", 12, initially="device"),
            block("soon", 12, initially="device"),
            block("h", initially="host"),
        ],
        [task("s", inputs=(1,)), task("t", inputs=(0,))],
        16,
    )
    builder = ProgramBuilder(instance)
    assert builder.resident_blocks() == (1,)
    assert [builder.on_host(d) for d in range(3)] == [True, True, True]
    builder.run(0, 0)
    builder.release_dead(0)
    builder.prefetch(0)
    builder.run(1, 0)
    require_exact_waits(instance, builder.finish("hand"))


def test_an_initial_block_that_goes_unused_has_not_been_there() -> None:
    instance = problem([block("p", initially="device"), block("q")], [task("t", outputs=(1,))], 8)
    builder = ProgramBuilder(instance)
    builder.release(0)
    builder.run(0, 0)
    schedule = builder.finish("hand")
    assert check(instance, schedule).reasons == ()
    assert [r.block for r in schedule.residences] == [1]


def test_parts_keep_one_base_while_any_of_them_stays() -> None:
    instance = problem(
        [
            block("x", initially="device"),
            block("p", tensor="t", begin=0),
            block("q", 6, tensor="t", begin=12),
            block("z", initially="host"),
        ],
        [
            task("make p", inputs=(0,), outputs=(1,)),
            task("make q", outputs=(2,)),
            task("read", inputs=(1, 2, 3)),
        ],
        36,
    )
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    builder.release(0)
    builder.run(1, 0)
    base = builder.ranges_of(1)[0][0]
    assert builder.ranges_of(2) == ((base + 12, 6),)
    builder.offload(1)
    builder.release(1)
    builder.prefetch(3)
    builder.prefetch(1)
    assert builder.ranges_of(1) == ((base, 8),)
    builder.run(2, 0)
    schedule = builder.finish("hand")
    require_exact_waits(instance, schedule)


def test_the_room_of_a_tensor_comes_back_when_all_its_parts_are_gone() -> None:
    instance = problem(
        [block("p", tensor="t", begin=0), block("q", tensor="t", begin=8), block("w", 16)],
        [task("make", outputs=(0, 1)), task("next", outputs=(2,))],
        16,
    )
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    builder.release(0)
    with pytest.raises(OutOfMemoryError):
        builder.run(1, 0)
    builder.release(1)
    builder.run(1, 0)
    assert check(instance, builder.finish("hand")).reasons == ()


def test_a_part_moves_only_to_a_given_place() -> None:
    instance = problem([block("p", tensor="t", begin=0)], [task("make", outputs=(0,))], 64)
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    with pytest.raises(PebblerError, match="or it is a part"):
        builder.move(0)
    builder.move(0, at=32)
    assert check(instance, builder.finish("hand")).reasons == ()


# --- moves and re-runs ----------------------------------------------------------------------------------


def test_a_move_waits_for_copies_and_copies_wait_for_it() -> None:
    instance = problem([block("a")], [task("make", outputs=(0,)), task("read", inputs=(0,))], 16)
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    builder.offload(0)
    builder.move(0)
    builder.offload(0)
    builder.run(1, 0)
    schedule = builder.finish("hand")
    require_exact_waits(instance, schedule)
    assert waits(schedule) == [(), (0,), (1,), (2,), ()]
    assert schedule.residences[0].released_after == (2,)


def test_a_block_moves_out_of_the_way() -> None:
    instance = problem(
        [block("a", 4, initially="device"), block("b", 4), block("c", 12)],
        [task("b", inputs=(0,), outputs=(1,)), task("c", inputs=(1,), outputs=(2,))],
        16,
    )
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    builder.release(0)
    with pytest.raises(OutOfMemoryError):
        builder.run(1, 0)
    builder.move(1, at=0)
    builder.run(1, 0)
    require_exact_waits(instance, builder.finish("hand"))


def test_lifetimes_of_a_move_overlap() -> None:
    """Both places are held while the block moves, so a plan must keep them apart."""
    instance = problem([block("a")], [task("make", outputs=(0,))], 16)
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    builder.move(0)
    (_, old_begin, old_end), (_, new_begin, new_end) = builder.lifetimes()
    assert old_begin < new_end
    assert new_begin < old_end


def test_lifetimes_are_those_of_what_lives_together(chain: Instance) -> None:
    builder = ProgramBuilder(chain)
    builder.run(0, 0)
    builder.release(0)
    builder.run(1, 0)
    x, a, b, scratch = builder.lifetimes()
    assert [size for size, _, _ in (x, a, b, scratch)] == [8, 8, 8, 4]

    def together(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
        return one[1] < other[2] and other[1] < one[2]

    assert together(x, a)
    assert together(a, b)
    assert together(b, scratch)
    assert together(a, scratch)
    assert not together(x, b)
    assert not together(x, scratch)


@pytest.fixture
def again() -> Instance:
    return problem(
        [block("x", initially="device"), block("a"), block("c")],
        [
            task("make", inputs=(0,), outputs=(1, 2), recomputable=True),
            task("read a", inputs=(1,)),
            task("read c", inputs=(2,)),
        ],
        28,
    )


def test_a_re_run_places_what_is_gone(again: Instance) -> None:
    builder = ProgramBuilder(again)
    builder.run(0, 0)
    builder.release(2)
    builder.run(1, 0)
    builder.run(0, 0)
    builder.run(2, 0)
    schedule = builder.finish("hand")
    assert check(again, schedule).reasons == ()
    assert [r.block for r in schedule.residences] == [0, 1, 2, 2]


def test_a_re_run_waits_for_copies_of_what_it_rewrites_and_keeps_them_valid(again: Instance) -> None:
    builder = ProgramBuilder(again)
    builder.run(0, 0)
    out = builder.offload(1)
    again_ = builder.run(0, 0)
    assert builder.on_host(1)
    late = builder.offload(1)
    builder.release(1)
    builder.prefetch(1)
    builder.run(1, 0)
    builder.run(2, 0)
    schedule = builder.finish("hand")
    require_exact_waits(again, schedule)
    assert schedule.operations[again_].after == (out,)
    assert schedule.operations[late].after == (again_,)


def test_a_re_run_waits_for_the_offload_of_the_stay_before(again: Instance) -> None:
    builder = ProgramBuilder(msgspec.structs.replace(again, budget_bytes=164))
    builder.run(0, 0)
    out = builder.offload(1)
    builder.release(1)
    rerun = builder.run(0, 0, at={1: 48})
    builder.run(1, 0)
    builder.run(2, 0)
    schedule = builder.finish("hand")
    require_exact_waits(builder.instance, schedule)
    assert schedule.operations[rerun].after == (out,)


# --- the end --------------------------------------------------------------------------------------------


def test_finish_copies_what_must_end_elsewhere() -> None:
    instance = problem(
        [
            block("w", initially="device", finally_="device"),
            block("g", finally_="host"),
            block("h", initially="host", finally_="device"),
            block("kept", initially="host", finally_="host"),
        ],
        [task("s", inputs=(0,), outputs=(1,)), task("t", inputs=(1,))],
        24,
    )
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    builder.release(0)
    builder.run(1, 0)
    schedule = builder.finish("hand")
    require_exact_waits(instance, schedule)
    copies = [(o.kind, o.block) for o in schedule.operations if o.kind != "run"]
    assert copies == [("prefetch", 0), ("offload", 1), ("prefetch", 2)]


def test_finish_needs_room_for_what_must_end_on_the_device() -> None:
    instance = problem(
        [block("x"), block("h", initially="host", finally_="device")], [task("t", outputs=(0,))], 12
    )
    builder = ProgramBuilder(instance)
    builder.run(0, 0)
    with pytest.raises(OutOfMemoryError, match="no place for block 'h'"):
        builder.finish("hand")


def test_release_dead_offloads_first_what_must_end_on_the_host() -> None:
    instance = problem(
        [
            block("x", initially="device"),
            block("g", finally_="host"),
            block("y"),
            block("w", finally_="device"),
        ],
        [
            task("s", inputs=(0,), outputs=(1, 2, 3)),
            task("t", inputs=(2,), updates=(1,)),
            task("u", inputs=(3,)),
        ],
        64,
    )
    builder = ProgramBuilder(instance)
    resident = []
    for k in range(3):
        builder.run(k, 0)
        builder.release_dead(k, keep=(2,))
        resident.append(builder.resident_blocks())
    assert resident == [(1, 2, 3), (2, 3), (2, 3)]
    schedule = builder.finish("hand")
    require_exact_waits(instance, schedule)
    assert [(o.kind, o.block) for o in schedule.operations if o.kind != "run"] == [("offload", 1)]


# --- paged and divisible --------------------------------------------------------------------------------


def test_pages_come_from_anywhere_and_are_whole() -> None:
    instance = problem(
        [
            block("a", PAGE_BYTES),
            block("b", PAGE_BYTES + 1),
            block("c", 5),
            block("d", 2 * PAGE_BYTES),
        ],
        [task("abc", outputs=(0, 1, 2)), task("d", inputs=(1,), outputs=(3,), workspace=1)],
        5 * PAGE_BYTES + 17,
        alignment_bytes=512,
    )
    builder = ProgramBuilder(instance, memory="paged")
    assert builder.pool.free_bytes == 5 * PAGE_BYTES
    builder.run(0, 0)
    builder.release(0)
    builder.release(2)
    builder.run(1, 0)
    schedule = builder.finish("hand")
    assert check(instance, schedule).reasons == ()
    assert schedule.page_bytes == PAGE_BYTES
    for residence in schedule.residences:
        assert residence.extents is not None
        assert residence.offset is None
        assert all(start % PAGE_BYTES == size % PAGE_BYTES == 0 for start, size in residence.extents)
    assert len(schedule.residences[3].extents or ()) == 2
    assert schedule.peak_bytes == 100 + highest_byte(schedule) == 100 + 5 * PAGE_BYTES


def test_pages_that_are_free_earliest_are_taken_first() -> None:
    """Two pages are held by an offload, two by a run only: the prefetch need not wait for the offload."""
    instance = problem(
        [
            block("slow", 2 * PAGE_BYTES, initially="device", offload_ns=1000),
            block("quick", 2 * PAGE_BYTES, initially="device"),
            block("h", 2 * PAGE_BYTES, initially="host"),
        ],
        [task("read", inputs=(0, 1)), task("next", inputs=(2,))],
        4 * PAGE_BYTES,
    )
    builder = ProgramBuilder(instance, memory="paged")
    builder.run(0, 0)
    builder.offload(0)
    builder.release(0)
    builder.release(1)
    builder.prefetch(2)
    builder.run(1, 0)
    schedule = builder.finish("hand")
    assert check(instance, schedule).reasons == ()
    assert schedule.operations[2].after == (0,)
    assert schedule.operations[2].start_ns == 5


def test_paged_parts_begin_at_pages() -> None:
    parts = problem(
        [block("p", tensor="t", begin=512)], [task("t", outputs=(0,))], 2**22, alignment_bytes=512
    )
    with pytest.raises(PebblerError, match="part 'p' begins at byte 512, inside a page"):
        ProgramBuilder(parts, memory="paged")


def test_divisible_memory_fills_to_the_byte_and_waits_for_room() -> None:
    instance = problem(
        [block("p", 5, initially="device"), block("q", 6)],
        [task("read", inputs=(0,)), task("write", outputs=(1,))],
        7,
    )
    builder = ProgramBuilder(instance, memory="divisible")
    out = builder.offload(0)
    builder.run(0, 0)
    builder.release(0, after=[out])
    builder.run(1, 0)
    schedule = builder.finish("hand")
    assert check(instance, schedule).reasons == ()
    assert schedule.peak_bytes == 106 == max(memory_curve(instance, schedule)[1])
    assert all(r.offset is None and r.extents is None for r in schedule.residences)


# --- what the builder does not promise ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ([0, 1, 0], "writes 'a' again after a later update of it"),
        ([0, 1, 1], "needs version 1 of 'a', and version 2 is there"),
    ],
)
def test_the_checker_finds_re_runs_that_make_no_sense(tasks: list[int], words: str) -> None:
    instance = problem(
        [block("a")],
        [task("make", outputs=(0,), recomputable=True), task("add", updates=(0,), recomputable=True)],
        8,
    )
    builder = ProgramBuilder(instance)
    for k in tasks:
        builder.run(k, 0)
    found = check(instance, builder.finish("hand")).reasons
    assert len(found) == 1
    assert words in found[0]
