"""The blocks to evict for an allocation: moDNN's offloading scheme (TPDS 2019, section 5.2.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...instances.units import ceil_to
from ..program.builder import ProgramBuilder

_NEVER = np.iinfo(np.int64).max
"""A time later than any other."""

Scheme = tuple[int, ...]
"""Blocks to evict, in the order of their addresses."""


def find_eviction(
    builder: ProgramBuilder,
    size: int,
    movable: NDArray[np.bool_],
    needed_at: NDArray[np.int64],
    now: int,
) -> tuple[int, Scheme] | None:
    """Return the scheme that makes room for `size` bytes with the least delay, and this delay.

    Contiguous memory: every node of the list of segments is tried as the end of a run of neighbours that are
    free or may be evicted, and that is just large enough. The paper does not say which of several schemes
    with the same delay is taken. Here it is the one that copies the fewest bytes, then the one that is needed
    again the latest.

    Paged memory: blocks are taken one by one until enough pages are free. Those come first that alone would
    delay the task least, then those that are needed again the latest.

    Where host memory has a budget, only schemes that have room there count.

    Parameters
    ----------
    builder
        The program so far.
    size
        Bytes of the allocation.
    movable
        Per block, whether it may be evicted.
    needed_at
        Per block, the next task that uses it.
    now
        Time in nanoseconds at which the next task would start. Evictions that end earlier cause no delay.

    Returns
    -------
    tuple of int and Scheme, or None
        The delay in nanoseconds and the scheme; None when there is no such scheme, as memory is fragmented.
    """
    if builder.memory != "contiguous":
        return _pages(builder, size, movable, needed_at, now)
    starts, sizes, blocks = builder.segments()
    goes = np.append(movable, True)[blocks]  # what is appended is a hole's, which is block -1
    copied = ~np.append(builder.host_copies(), True)[blocks]
    times = np.append(builder.offload_ns, 0)[blocks] * copied
    amounts = np.append(builder.bytes, 0)[blocks] * copied

    new_run = np.ones(len(starts), dtype=bool)
    new_run[1:] = (starts[1:] != starts[:-1] + sizes[:-1]) | ~goes[1:] | ~goes[:-1]
    run_start = np.maximum.accumulate(np.where(new_run, np.arange(len(starts)), 0))
    wanted = np.full(len(starts), ceil_to(size, builder.instance.alignment_bytes))
    wanted[starts + sizes == builder.instance.pool_bytes] = size
    ends = np.concatenate(([0], np.cumsum(sizes)))
    first = np.searchsorted(ends, ends[1:] - wanted, side="right") - 1
    held = np.concatenate(([0], np.cumsum(np.append(builder.bytes, 0)[blocks])))
    room = held[1:] - held[np.maximum(first, 0)] <= builder.host_free_bytes()
    last = np.flatnonzero(goes & (first >= run_start) & room)
    first = first[last]

    def over(values: NDArray[np.int64]) -> NDArray[np.int64]:
        sums = np.concatenate(([0], np.cumsum(values)))
        return np.asarray(sums[last + 1] - sums[first])

    busy, bytes_out = over(times), over(amounts)
    least = np.where(busy > 0, np.maximum(builder.copy_queue_end() + busy - now, 0), 0)
    soonest = np.append(np.append(needed_at, _NEVER)[blocks], _NEVER)
    soonest = np.minimum.reduceat(soonest, np.stack((first, last + 1), axis=1).ravel())[::2]
    best: tuple[int, int, Scheme] | None = None
    for i in np.lexsort((-soonest, bytes_out, least)):
        if best is not None and (int(least[i]), int(bytes_out[i])) >= best[:2]:
            break
        chosen = blocks[first[i] : last[i] + 1]
        scheme = tuple(chosen[chosen >= 0].tolist())
        delay = max(builder.leaves_at(scheme) - now, 0)
        if best is None or (delay, int(bytes_out[i])) < best[:2]:
            best = delay, int(bytes_out[i]), scheme
    return None if best is None else (best[0], best[2])


def evict_blocks(builder: ProgramBuilder, scheme: Scheme) -> None:
    """Evict a scheme's blocks: offload those without a valid copy on the host, then release their memory.

    Parameters
    ----------
    builder
        The program so far, to which the offloads and releases are added.
    scheme
        Indices of resident blocks, as `find_eviction` returns them.

    Raises
    ------
    Refusal
        When the instance does not let one of the blocks be offloaded.
    """
    for d in scheme:
        if not builder.on_host(d):
            builder.offload(d)
        builder.release(d)


def _pages(
    builder: ProgramBuilder,
    size: int,
    movable: NDArray[np.bool_],
    needed_at: NDArray[np.int64],
    now: int,
) -> tuple[int, Scheme] | None:
    missing = builder.missing_bytes(size)
    blocks = np.array([d for d in builder.resident_blocks() if movable[d]], dtype=np.int64)
    busy = np.where(builder.host_copies()[blocks], 0, builder.offload_ns[blocks])
    late = np.where(busy > 0, np.maximum(builder.copy_queue_end() + busy - now, 0), 0)
    room = builder.host_free_bytes()
    chosen: list[int] = []
    for i in np.lexsort((-needed_at[blocks], late)):
        if missing <= 0:
            break
        if builder.bytes[blocks[i]] > room:
            continue
        room -= int(builder.bytes[blocks[i]])
        chosen.append(int(blocks[i]))
        missing -= sum(length for _, length in builder.ranges_of(chosen[-1]))
    return None if missing > 0 else (max(builder.leaves_at(chosen) - now, 0), tuple(chosen))
