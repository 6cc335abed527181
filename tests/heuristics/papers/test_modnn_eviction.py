"""Offloading schemes: moDNN's Fig. 6 with sizes of our own, and what an exhaustive search finds."""

from __future__ import annotations

from itertools import combinations
from random import Random

import numpy as np
import pytest

from pebbler.heuristics.papers.modnn_eviction import Scheme, evict_blocks, find_eviction
from pebbler.heuristics.program.builder import ProgramBuilder
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.units import PAGE_BYTES, ceil_to
from pebbler.validate.schedule import MemoryModel


def filled(
    sizes: list[int],
    offloads: list[int],
    *,
    pool: int | None = None,
    memory: MemoryModel = "contiguous",
    alignment: int = 1,
) -> ProgramBuilder:
    """Blocks one beside the other, each made by a task of 1 ns; all have an offload time."""
    instance = Instance(
        name="filled",
        engines="duplex",
        budget_bytes=sum(ceil_to(size, alignment) for size in sizes) if pool is None else pool,
        resident_bytes=0,
        alignment_bytes=alignment,
        blocks=tuple(
            Block(name=f"{d + 1}", bytes=size, offload_ns=time, prefetch_ns=time)
            for d, (size, time) in enumerate(zip(sizes, offloads, strict=True))
        ),
        tasks=tuple(
            Task(
                name=f"{d}",
                inputs=(),
                outputs=(d,),
                algorithms=(Algorithm(name="a", duration_ns=1, workspace_bytes=0),),
            )
            for d in range(len(sizes))
        ),
    )
    builder = ProgramBuilder(instance, memory=memory, fit="first", one_copy_queue=True)
    for d in range(len(sizes)):
        builder.run(d, 0)
    return builder


def search(
    builder: ProgramBuilder, size: int, stays: tuple[int, ...] = (), needed: list[int] | None = None
) -> tuple[int, Scheme] | None:
    """Find a scheme; blocks in `stays` may not leave."""
    count = len(builder.instance.blocks)
    movable = np.ones(count, dtype=bool)
    movable[list(stays)] = False
    needed_at = np.array(needed or range(count), dtype=np.int64)
    return find_eviction(builder, size, movable, needed_at, builder.makespan_ns)


# --- Fig. 6 -----------------------------------------------------------------------------------------------

FIGURE_6 = [2, 2, 1, 1, 2, 2]
"""(4), of index 3, may not leave; for 4 bytes there are (1)(2) and (5)(6)."""


@pytest.mark.parametrize(
    ("offloads", "scheme", "delay"),
    [([9, 9, 1, 1, 5, 5], (4, 5), 9), ([5, 4, 1, 1, 9, 9], (0, 1), 4), ([9, 9, 0, 0, 9, 1], (4, 5), 9)],
)
def test_figure_6_the_valid_scheme_with_the_least_delay(
    offloads: list[int], scheme: Scheme, delay: int
) -> None:
    """Offloads one after the other, from each block's writer on; 6 ns have passed."""
    assert search(filled(FIGURE_6, offloads), 4, stays=(3,)) == (delay, scheme)


def test_figure_6_a_block_that_may_not_leave_splits_the_list() -> None:
    builder = filled(FIGURE_6, [1] * 6)
    assert search(builder, 5, stays=(3,)) == (0, (0, 1, 2))
    assert search(builder, 6, stays=(3,)) is None
    assert search(builder, 6) is not None


def test_a_hole_counts_as_what_has_left() -> None:
    """(2) has gone: (1) and its hole make 4 bytes."""
    builder = filled(FIGURE_6, [9] * 6)
    builder.release(1)
    assert search(builder, 4, stays=(3,)) == (4, (0,))


def test_what_the_host_has_costs_nothing() -> None:
    builder = filled([2, 2, 2], [9, 50, 9])
    builder.offload(1)
    assert search(builder, 2) == (max(builder.ends[-1] - builder.makespan_ns, 0), (1,))


# --- ties -------------------------------------------------------------------------------------------------


def test_of_schemes_without_delay_the_one_that_copies_least_wins() -> None:
    assert search(filled([3, 1, 1, 4], [0] * 4), 3) == (0, (0,))
    assert search(filled([4, 1, 2, 4], [0] * 4), 3) == (0, (1, 2))


def test_of_equals_the_one_that_is_needed_again_the_latest_wins() -> None:
    assert search(filled([2, 2, 2], [0] * 3), 2, needed=[5, 9, 7]) == (0, (1,))


@pytest.mark.parametrize("alignment", [1, 4])
def test_no_scheme_has_less_delay(alignment: int) -> None:
    """Against every run of neighbours, on random memory."""
    found = 0
    for seed in range(200):
        rng = Random(seed)
        count = rng.randint(3, 8)
        builder = filled(
            [rng.randint(1, 9) for _ in range(count)],
            [rng.randint(0, 12) for _ in range(count)],
            alignment=alignment,
        )
        for d in rng.sample(range(count), rng.randint(0, count // 2)):
            if rng.random() < 0.5:
                builder.release(d)
            else:
                builder.offload(d)
        stays = tuple(rng.sample(range(count), rng.randint(0, 2)))
        size = rng.randint(1, 15)
        starts, sizes, blocks = (array.tolist() for array in builder.segments())
        delays = []
        for first, last in combinations(range(len(starts) + 1), 2):
            run = [d for d in blocks[first:last] if d >= 0]
            if sum(sizes[first:last]) >= size and not set(run) & set(stays):
                delays.append(max(builder.leaves_at(run) - builder.makespan_ns, 0))
        result = search(builder, size, stays)
        assert (None if result is None else result[0]) == min(delays, default=None)
        if result is not None:
            found += bool(result[1])
            evict_blocks(builder, result[1])
            assert builder.has_room(size)
    assert found > 100


# --- eviction and pages -----------------------------------------------------------------------------------


def test_eviction_offloads_only_what_the_host_lacks() -> None:
    builder = filled([2, 2], [1, 1])
    builder.offload(0)
    issued = len(builder.ends)
    evict_blocks(builder, (0, 1))
    assert len(builder.ends) == issued + 1
    assert builder.resident_blocks() == ()


def test_pages_come_from_wherever_they_are() -> None:
    """Contiguously there is no run of two; as pages, what delays least goes, then what is needed last."""
    sizes, offloads = [PAGE_BYTES] * 5, [9, 0, 0, 9, 0]
    builder = filled(sizes, offloads, memory="paged", alignment=512)
    assert search(builder, 2 * PAGE_BYTES, stays=(2,), needed=[9, 1, 9, 9, 2]) == (0, (4, 1))
    assert search(builder, 2 * PAGE_BYTES - 1, stays=(1, 3), needed=[9, 1, 5, 9, 2]) == (0, (2, 4))
    assert search(builder, 4 * PAGE_BYTES, stays=(1, 3)) is None
    assert search(filled(sizes, offloads, alignment=512), 2 * PAGE_BYTES, stays=(1, 3)) is None
