from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest

from pebbler.heuristics.methods import Refusal
from pebbler.heuristics.program.builder import ProgramBuilder
from pebbler.heuristics.program.regions import (
    Colouring,
    Piece,
    alone,
    build_in_regions,
    in_order,
    largest_first,
)
from pebbler.instances.instance import Instance
from pebbler.instances.memory import with_budget
from pebbler.instances.workload import Workload
from pebbler.validate.check import check


def drawn(rng: Random) -> list[Piece]:
    begins = [rng.randrange(50) for _ in range(rng.randrange(1, 30))]
    return [Piece(rng.randint(1, 100), begin, begin + rng.randint(1, 20)) for begin in begins]


@pytest.mark.parametrize("colour", [largest_first, in_order])
def test_pieces_of_a_region_are_never_together(colour: Colouring) -> None:
    rng = Random(1)
    for _ in range(200):
        pieces = drawn(rng)
        regions = defaultdict(list)
        for piece, region in zip(pieces, colour(pieces), strict=True):
            regions[region].append(piece)
        assert sorted(regions) == list(range(len(regions)))
        for members in regions.values():
            members.sort(key=lambda piece: piece.begin)
            assert all(a.end <= b.begin for a, b in pairwise(members))


def test_the_largest_open_regions_and_smaller_ones_reuse_them() -> None:
    pieces = [Piece(2, 0, 4), Piece(9, 4, 8), Piece(5, 2, 6), Piece(1, 8, 9)]
    assert largest_first(pieces) == [0, 0, 1, 0]


def test_in_order_takes_the_free_region_nearest_in_size() -> None:
    opened = [Piece(10, 0, 2), Piece(40, 0, 2), Piece(200, 0, 2)]
    assert in_order([*opened, Piece(30, 2, 3)])[3] == 1
    assert in_order([*opened, Piece(45, 2, 3)])[3] == 1  # the region grows
    assert in_order([*opened, Piece(15, 2, 3)])[3] == 0


def test_in_order_leaves_regions_alone_that_are_far_too_large_or_small() -> None:
    assert in_order([Piece(1000, 0, 1), Piece(62, 1, 2)]) == [0, 1]
    assert in_order([Piece(1000, 0, 1), Piece(63, 1, 2)]) == [0, 0]
    assert in_order([Piece(10, 0, 1), Piece(161, 1, 2)]) == [0, 1]


@pytest.fixture(scope="module")
def lenet() -> Instance:
    return Workload("lenet", 64, "K40").instance("1GiB")


def plain(builder: ProgramBuilder) -> None:
    for k in range(len(builder.instance.tasks)):
        builder.run(k, algorithm=0)
        builder.release_dead(k)


def test_memory_is_the_sum_of_the_regions(lenet: Instance) -> None:
    schedule = build_in_regions(lenet, "contiguous", plain, alone, largest_first).finish("plain")
    assert check(lenet, schedule).reasons == ()
    stays: dict[int, int] = {}
    for r in schedule.residences:
        assert r.offset is not None
        stays[r.offset] = max(stays.get(r.offset, 0), -(-r.bytes // 512) * 512)
    ends = 0
    for offset, size in sorted(stays.items()):
        assert offset == ends  # side by side, with no space between them
        ends += size
    assert schedule.peak_bytes <= lenet.resident_bytes + ends


def test_regions_larger_than_the_pool_are_refused(lenet: Instance) -> None:
    def one_each(pieces: Sequence[Piece]) -> list[int]:
        return list(range(len(pieces)))

    tight = with_budget(lenet, lenet.resident_bytes + 9 * 2**20)
    assert build_in_regions(tight, "contiguous", plain, alone, largest_first).makespan_ns > 0
    with pytest.raises(Refusal, match=r"the \d+ regions take .* of a pool of 9.00 MiB"):
        build_in_regions(tight, "contiguous", plain, alone, one_each)
