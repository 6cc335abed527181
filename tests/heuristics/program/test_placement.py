from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from pebbler.heuristics.methods import Refusal
from pebbler.heuristics.program.builder import OutOfMemoryError, ProgramBuilder
from pebbler.heuristics.program.placement import Piece, build_program, pack
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.validate.check import check

# --- packing --------------------------------------------------------------------------------------------


def packed(pieces: Sequence[tuple[int, int, int]], capacity: int, alignment: int) -> list[int] | None:
    return pack([Piece(*one) for one in pieces], capacity, alignment)


def test_what_is_in_use_in_the_gaps_of_another_piece_may_lie_there() -> None:
    weights = Piece(8, 0, 9, ((2, 4), (6, 8)))
    assert pack([weights, Piece(8, 2, 4), Piece(4, 6, 8)], 8, 4) == [0, 0, 0]
    assert pack([weights, Piece(8, 2, 5)], 15, 4) is None
    assert pack([weights, Piece(8, 0, 8, ((1, 7),))], 15, 4) is None  # both are at 0 and at 7


def test_nothing_needs_no_place() -> None:
    assert packed([], 0, 4) == []


def test_what_does_not_live_together_shares_a_place() -> None:
    assert packed([(8, 0, 2), (8, 2, 4), (4, 4, 5)], 8, 4) == [0, 0, 0]


def test_what_lives_together_lies_apart() -> None:
    offsets = packed([(8, 0, 3), (8, 2, 4)], 16, 4)
    assert offsets is not None
    assert sorted(offsets) == [0, 8]
    assert packed([(8, 0, 3), (8, 2, 4)], 15, 4) is None


def test_the_last_byte_of_the_pool_is_used() -> None:
    offsets = packed([(5, 0, 2), (5, 0, 2)], 13, 4)
    assert offsets is not None
    assert sorted(offsets) == [0, 8]
    assert packed([(5, 0, 2), (5, 0, 2)], 12, 4) is None


def test_a_small_piece_goes_between_large_ones() -> None:
    """First fit in the order of time would leave two holes of 8; the large ones first leave one place."""
    offsets = packed([(4, 0, 9), (8, 0, 2), (12, 3, 9)], 16, 4)
    assert offsets == [12, 0, 0]


def test_huge_sizes_do_not_overflow() -> None:
    assert packed([(2**52, 0, 2), (2**52, 0, 2)], 2**53, 512) in ([0, 2**52], [2**52, 0])


@pytest.mark.parametrize("seed", range(30))
def test_places_are_aligned_apart_and_inside(seed: int) -> None:
    rng = Random(seed)
    lifetimes = []
    for _ in range(25):
        begin = rng.randint(0, 30)
        lifetimes.append((rng.randint(1, 50), begin, begin + rng.randint(1, 12)))
    load = max(
        sum(-(-size // 4) * 4 for size, begin, end in lifetimes if begin <= t < end) for t in range(45)
    )
    assert packed(lifetimes, max(size for size, _, _ in lifetimes) - 1, 4) is None
    capacity = 2 * load
    offsets = packed(lifetimes, capacity, 4)
    assert offsets is not None
    placed = list(zip(lifetimes, offsets, strict=True))
    for i, ((size, begin, end), offset) in enumerate(placed):
        assert offset % 4 == 0
        assert 0 <= offset <= capacity - size
        for (other_size, other_begin, other_end), other in placed[:i]:
            together = begin < other_end and other_begin < end
            assert not together or offset + size <= other or other + other_size <= offset


# --- building -------------------------------------------------------------------------------------------


def block(name: str, size: int, **keys: object) -> Block:
    return Block(**{"name": name, "bytes": size, "offload_ns": 3, "prefetch_ns": 4, **keys})


def task(name: str, **keys: object) -> Task:
    algorithm = Algorithm(name="a", duration_ns=5, workspace_bytes=0)
    return Task(**{"name": name, "inputs": (), "outputs": (), "algorithms": (algorithm,), **keys})


def problem(blocks: list[Block], tasks: list[Task], pool: int) -> Instance:
    return Instance(
        name="hand",
        engines="duplex",
        budget_bytes=pool,
        resident_bytes=0,
        alignment_bytes=4,
        blocks=tuple(blocks),
        tasks=tuple(tasks),
    )


@pytest.fixture
def scattered() -> Instance:
    """A of 4 outlives B of 8; best fit puts them side by side, and then C of 12 finds holes of 8 and 4."""
    return problem(
        [block("a", 4), block("b", 8), block("c", 12)],
        [task("b", outputs=(1,)), task("a", inputs=(1,), outputs=(0,)), task("c", inputs=(0,), outputs=(2,))],
        16,
    )


def keep_all(builder: ProgramBuilder) -> None:
    for k in range(len(builder.instance.tasks)):
        builder.run(k, 0)
        builder.release_dead(k)


def test_a_program_is_placed_as_a_whole_where_piece_by_piece_fails(scattered: Instance) -> None:
    with pytest.raises(
        OutOfMemoryError, match=r"no place for block 'c' \(12 B\): 12 B free, largest hole 8 B"
    ):
        keep_all(ProgramBuilder(scattered))
    schedule = build_program(scattered, "contiguous", keep_all).finish("keep-all")
    assert check(scattered, schedule).reasons == ()
    assert schedule.makespan_ns == 15


def test_pages_need_no_second_try(scattered: Instance) -> None:
    pages = problem(
        [block("a", 2**21), block("b", 2**22), block("c", 3 * 2**21)], list(scattered.tasks), 4 * 2**21
    )
    schedule = build_program(pages, "paged", keep_all).finish("keep-all")
    assert check(pages, schedule).reasons == ()


def test_too_many_bytes_are_refused_with_the_block_that_has_no_place(scattered: Instance) -> None:
    tight = problem(list(scattered.blocks), list(scattered.tasks), 15)
    with pytest.raises(Refusal, match=r"no place for block 'c' \(12 B\): 11 B free"):
        build_program(tight, "contiguous", keep_all)
    with pytest.raises(Refusal, match="no place for block"):
        build_program(problem(list(scattered.blocks), list(scattered.tasks), 2**20), "paged", keep_all)


def test_a_program_with_parts_is_refused_at_once() -> None:
    parts = problem(
        [block("a", 4), block("b", 8), block("c", 12, tensor="t", begin=0)],
        [task("b", outputs=(1,)), task("a", inputs=(1,), outputs=(0,)), task("c", inputs=(0,), outputs=(2,))],
        16,
    )
    with pytest.raises(Refusal, match="no place for block 'c'"):
        build_program(parts, "contiguous", keep_all)


def test_the_queue_of_copies_is_kept_when_placing_again(scattered: Instance) -> None:
    blocks = [*scattered.blocks, block("h", 4, initially="host")]
    last = task("c", inputs=(0, 3), outputs=(2,))
    instance = problem(blocks, [*scattered.tasks[:2], last], 20)

    def issue(builder: ProgramBuilder) -> None:
        builder.run(0, 0)
        builder.run(1, 0)
        builder.offload(1)
        builder.prefetch(3)
        builder.release(1)
        builder.run(2, 0)

    queued = build_program(instance, "contiguous", issue, one_copy_queue=True).finish("q")
    assert check(instance, queued).reasons == ()
    offload, prefetch = (o for o in queued.operations if o.kind in ("offload", "prefetch"))
    assert prefetch.start_ns >= offload.end_ns


def test_an_initial_block_without_a_place_takes_none_of_the_plan() -> None:
    """P and Q start on the device and only P fits; Q comes back into what A, B and C have cut up."""
    instance = problem(
        [
            block("p", 16, initially="device"),
            block("q", 16, initially="device"),
            block("a", 4),
            block("b", 8),
            block("c", 4),
        ],
        [
            task("t0", inputs=(0,)),
            task("t1", outputs=(2,)),
            task("t2", outputs=(3,)),
            task("t3", outputs=(4,)),
            task("t4", inputs=(1, 2, 4)),
        ],
        24,
    )

    def issue(builder: ProgramBuilder) -> None:
        builder.run(0, 0)
        builder.release(0)
        for k in (1, 2, 3):
            builder.run(k, 0)
        builder.release(3)
        builder.prefetch(1)
        builder.run(4, 0)

    assert check(instance, build_program(instance, "contiguous", issue).finish("hand")).reasons == ()
