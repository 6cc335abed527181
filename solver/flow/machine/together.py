"""Tasks that may run on the host, and the blocks that just one of them touches, those alike together.

Without whole evictions, blocks of one task that are the same to the checkpoints become one, and so do tasks
whose blocks are, in equal proportions. Their times are those at the fastest rates among them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....heuristics.gaps import Gap
from ....instances.instance import Instance
from ....validate.bounds.arguments import fitting
from ....validate.bounds.host_work import alone_with_host
from ....validate.bounds.machine import FairShares, LinkTimes, fair_shares
from ..versions import instants_of, least_link, ready_at, stays

_FEW = 1000
"""Part of the pool below which blocks are alike whatever their pace."""

_NO_MATTER = 10**6
"""A pace that no copy and no task has."""


class SharedBlocks(NamedTuple):
    """Blocks that are one to the model: the first of them, each with its task, their bytes and copies.

    A time of None is a copy that is impossible; `out_link` and `back_link` are those on a shared link.
    """

    block: int
    members: tuple[tuple[int, int], ...]
    bytes: int
    offload_ns: Fraction | None
    prefetch_ns: Fraction | None
    out_link: LinkTimes | None
    back_link: LinkTimes | None

    def gaps_at(self, instance: Instance, number: int) -> tuple[Gap, ...]:
        """Return the gap of that number of each block."""
        return tuple((d, list(stays(instance, d))[number][0]) for d, _ in self.members)


class HostTask(NamedTuple):
    """Tasks that are one to the model: the first of them, their times on both sides, and their blocks.

    `soonest` is the first interval in which the host can run them. A time on the device of None says that
    they run on the host alone.
    """

    task: int
    tasks: tuple[int, ...]
    soonest: int
    device_ns: Fraction | None
    host_ns: Fraction
    blocks: tuple[SharedBlocks, ...]


def _soonest(instance: Instance, positions: NDArray[np.int64], k: int) -> int:
    """Return the first interval in which what a task reads can be on the host."""
    found = [0]
    for d in (*instance.tasks[k].inputs, *instance.tasks[k].updates):
        before = [writer for writer in instance.writers[d] if writer < k]
        if before and not instance.tasks[before[-1]].may_run_on_host:
            found.append(ready_at(before[-1], positions))
    return max(found)


def host_tasks(instance: Instance, positions: NDArray[np.int64], *, merges: bool) -> list[HostTask]:
    """Return the tasks that may run on the host, those alike as one if they may be merged."""
    alone = alone_with_host(instance)
    groups: dict[Hashable, list[tuple[int, list[list[int]]]]] = defaultdict(list)
    for k, blocks in alone.items():
        kinds: dict[Hashable, list[int]] = defaultdict(list)
        for d in blocks:
            kinds[(_kind(instance, positions, d, k), *(() if merges else (d,)))].append(d)
        ordered = sorted(kinds.items(), key=lambda item: str(item[0]))
        together = [members for _, members in ordered]
        sizes = [sum(instance.blocks[d].bytes for d in members) for members in together]
        device, host = _times(instance, k)
        weight = sizes[0] if sizes else 1
        alike: Hashable = (
            2 * int(np.searchsorted(positions, k)),
            _soonest(instance, positions, k),
            tuple(kind for kind, _ in ordered),
            tuple(Fraction(size, weight) for size in sizes),
            _pace(instance, device, weight),
            _pace(instance, host, weight),
        )
        groups[alike if merges and sizes else k].append((k, together))
    shares = fair_shares(instance)
    return [_merged(instance, positions, group, shares) for group in groups.values()]


def _times(instance: Instance, k: int) -> tuple[int | None, int]:
    """Return the least time of a task on the device, if it may run there, and on the host."""
    here = [algorithm.duration_ns for algorithm in fitting(instance, k)]
    there = [a.duration_ns for a in instance.tasks[k].algorithms if a.on == "host"]
    return min(here, default=None), min(there)


def _merged(
    instance: Instance,
    positions: NDArray[np.int64],
    group: list[tuple[int, list[list[int]]]],
    shares: FairShares | None,
) -> HostTask:
    """Return tasks as one; each has as many kinds of blocks as the others, in the same order."""
    first, kinds = group[0]
    weights = [_bytes(instance, together[0]) if together else 1 for _, together in group]
    times = [_times(instance, k) for k, _ in group]
    device = [time for time, _ in times if time is not None]
    blocks = tuple(
        _one(instance, [(d, k) for k, together in group for d in together[kind]], shares)
        for kind in range(len(kinds))
    )
    return HostTask(
        first,
        tuple(k for k, _ in group),
        _soonest(instance, positions, first),
        _at_least(device, weights) if device else None,
        _at_least([time for _, time in times], weights),
        blocks,
    )


def _one(instance: Instance, members: list[tuple[int, int]], shares: FairShares | None) -> SharedBlocks:
    """Return blocks as one."""
    blocks = [instance.blocks[d] for d, _ in members]
    sizes = [block.bytes for block in blocks]
    out = [block.offload_ns for block in blocks if block.offload_ns is not None]
    back = [block.prefetch_ns for block in blocks if block.prefetch_ns is not None]
    return SharedBlocks(
        members[0][0],
        tuple(members),
        sum(sizes),
        _at_least(out, sizes) if out else None,
        _at_least(back, sizes) if back else None,
        None if shares is None else least_link([shares.of_offload(block) for block in blocks], sizes),
        None if shares is None else least_link([shares.of_prefetch(block) for block in blocks], sizes),
    )


def _at_least(times: Sequence[int | Fraction], weights: Sequence[int]) -> Fraction:
    """Return the time of all at the fastest rate among them."""
    rates = [Fraction(time) / weight for time, weight in zip(times, weights, strict=True)]
    return min(rates) * sum(weights)


def _bytes(instance: Instance, blocks: Iterable[int]) -> int:
    return sum(instance.blocks[d].bytes for d in blocks)


def _kind(instance: Instance, positions: NDArray[np.int64], d: int, k: int) -> Hashable:
    """Return all that the model sees of a block and the task that may run on the host, but its size."""
    block, task, writers = instance.blocks[d], instance.tasks[k], instance.writers[d]
    total = len(instance.tasks)
    marks = tuple(
        (
            instants_of(after, until, positions),
            bisect_right(writers, after),
            after == -1,
            after == k,
            until == k,
            until == total,
            2 * int(np.searchsorted(positions, until)),
        )
        for after, until in stays(instance, d)
    )
    ready = tuple(-1 if writer == k else ready_at(writer, positions) for writer in writers)
    return (
        d in task.outputs,
        d in task.updates,
        block.initially,
        block.finally_,
        marks,
        ready,
        bisect_right(writers, k),
        _pace(instance, block.offload_ns, block.bytes),
        _pace(instance, block.prefetch_ns, block.bytes),
    )


def _pace(instance: Instance, time: int | None, size: int) -> int | None:
    """Return the time of a byte in steps of a tenth.

    Bytes without time are a kind of their own, and so are so few that their time hardly matters.
    """
    if time is None:
        return None
    if size * _FEW < instance.pool_bytes:
        return _NO_MATTER
    return round(math.log(time / size) / math.log(1.1)) if time else -_NO_MATTER
