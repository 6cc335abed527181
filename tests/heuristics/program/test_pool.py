from __future__ import annotations

from random import Random

import pytest

from pebbler.heuristics.program.pool import Fit, Pool, Range


def with_holes(fit: Fit) -> Pool:
    """Holes of 16 at 0, 8 at 24 and 12 at 40; the rest of the 64 bytes is taken."""
    pool = Pool(64, 4, fit)
    for offset, size in ((16, 8), (32, 8), (52, 12)):
        assert pool.allocate_at(offset, size)
    assert pool.holes() == ((0, 16), (24, 8), (40, 12))
    return pool


def test_a_fresh_pool_is_one_hole() -> None:
    pool = Pool(64, 4)
    assert (pool.holes(), pool.free_bytes, pool.largest_hole) == (((0, 64),), 64, 64)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_pool_of_nothing(capacity: int) -> None:
    pool = Pool(capacity, 4)
    assert (pool.holes(), pool.free_bytes, pool.largest_hole) == ((), 0, 0)
    assert pool.allocate(1) is None
    assert not pool.allocate_at(0, 1)


@pytest.mark.parametrize(
    ("fit", "size", "offset"),
    [
        ("best", 8, 24),
        ("best", 9, 40),
        ("best", 12, 40),
        ("best", 13, 0),
        ("first", 8, 0),
        ("first", 1, 0),
        ("exact-first", 8, 24),
        ("exact-first", 7, 24),
        ("exact-first", 12, 40),
        ("exact-first", 9, 40),
        ("exact-first", 3, 0),
        ("exact-first", 16, 0),
    ],
)
def test_which_hole_is_taken(fit: Fit, size: int, offset: int) -> None:
    taken = with_holes(fit).allocate(size)
    assert taken is not None
    assert taken[0] == offset
    assert taken[1] == -(-size // 4) * 4


@pytest.mark.parametrize("fit", ["best", "first", "exact-first"])
def test_the_lowest_of_equal_holes(fit: Fit) -> None:
    pool = Pool(40, 4, fit)
    for offset in (8, 24):
        pool.allocate_at(offset, 8)
    assert pool.holes() == ((0, 8), (16, 8), (32, 8))
    assert pool.allocate(8) == (0, 8)
    assert pool.allocate(8) == (16, 8)


@pytest.mark.parametrize("fit", ["best", "first", "exact-first"])
def test_a_refusal_takes_nothing(fit: Fit) -> None:
    pool = with_holes(fit)
    assert pool.free_bytes >= 17
    assert pool.allocate(17) is None
    assert pool.holes() == ((0, 16), (24, 8), (40, 12))


def test_the_end_of_the_pool_need_not_be_aligned() -> None:
    pool = Pool(10, 4)
    assert pool.allocate(5) == (0, 8)
    assert pool.allocate(3) is None
    assert pool.allocate(2) == (8, 2)
    assert pool.free_bytes == 0


def test_the_last_bytes_count_though_rounding_goes_beyond_them() -> None:
    pool = Pool(11, 4)
    assert pool.allocate(11) == (0, 11)
    pool.release(((0, 11),))
    assert pool.holes() == ((0, 11),)


@pytest.mark.parametrize(("offset", "size"), [(12, 5), (0, 17), (16, 1), (20, 4), (60, 8), (64, 1), (24, 16)])
def test_a_range_that_is_not_free_is_not_taken(offset: int, size: int) -> None:
    pool = with_holes("best")
    assert not pool.allocate_at(offset, size)
    assert pool.holes() == ((0, 16), (24, 8), (40, 12))


@pytest.mark.parametrize(
    ("offset", "size", "holes"),
    [
        (0, 16, ((24, 8), (40, 12))),
        (0, 4, ((4, 12), (24, 8), (40, 12))),
        (12, 4, ((0, 12), (24, 8), (40, 12))),
        (4, 4, ((0, 4), (8, 8), (24, 8), (40, 12))),
        (48, 4, ((0, 16), (24, 8), (40, 8))),
    ],
)
def test_a_range_is_cut_out_of_its_hole(offset: int, size: int, holes: tuple[Range, ...]) -> None:
    pool = with_holes("best")
    assert pool.allocate_at(offset, size)
    assert pool.holes() == holes


@pytest.mark.parametrize(
    ("ranges", "holes"),
    [
        (((16, 8),), ((0, 32), (40, 12))),
        (((32, 8),), ((0, 16), (24, 28))),
        (((52, 12),), ((0, 16), (24, 8), (40, 24))),
        (((52, 12), (16, 8), (32, 8)), ((0, 64),)),
        (((56, 4),), ((0, 16), (24, 8), (40, 12), (56, 4))),
        ((), ((0, 16), (24, 8), (40, 12))),
    ],
)
def test_neighbours_coalesce(ranges: tuple[Range, ...], holes: tuple[Range, ...]) -> None:
    pool = with_holes("best")
    pool.release(ranges)
    assert pool.holes() == holes


@pytest.mark.parametrize("fit", ["best", "first", "exact-first"])
def test_against_a_map_of_bytes(fit: Fit) -> None:
    """Random requests: what is given was free and lies apart; refused only where no hole is large enough."""
    rng = Random(3)
    pool, free, taken = Pool(203, 4, fit), [True] * 203, []

    def holes() -> tuple[Range, ...]:
        found = []
        start = 0
        for i, is_free in enumerate([*free, False]):
            if not is_free:
                if i > start:
                    found.append((start, i - start))
                start = i + 1
        return tuple(found)

    for _ in range(600):
        if taken and rng.random() < 0.45:
            start, size = taken.pop(rng.randrange(len(taken)))
            free[start : start + size] = [True] * size
            pool.release(((start, size),))
        else:
            size = rng.randint(1, 40)
            before = holes()
            given = pool.allocate(size)
            if given is None:
                assert all(hole < size for _, hole in before)
                continue
            start, got = given
            assert start % 4 == 0
            assert size <= got < size + 4
            assert all(free[start : start + got])
            free[start : start + got] = [False] * got
            taken.append(given)
        assert pool.holes() == holes()
        assert pool.free_bytes == sum(free)
