"""Decisions of local search from a guide or a schedule; everything that these leave open is filled in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...instances.instance import Instance
from ...validate.schedule import Schedule
from ..gaps import Gap, Guide
from .kernel import (
    AFTER,
    BLOCK,
    EARLY_HIGH,
    FIRST_PART,
    FORCED,
    LEAVES_FIRST,
    LEAVES_NEXT,
    LOW,
    NEVER,
    NEXT_PART,
    UNTIL,
    VERSION,
    WRITER,
    Decisions,
    Problem,
    arrange,
)

Integers = NDArray[np.int64]
"""Array of int64."""


def decisions_of(problem: Problem, guide: Guide) -> Decisions:
    """Return complete decisions: copies in the order of a guide, the others in that of writers and uses.

    In contiguous memory, blocks that leave and workspaces have high places, other blocks low ones.
    """
    keys = gap_keys(problem)
    index = {gap: g for g, gap in enumerate(keys)}
    back = [index[gap] for gap in guide.returning if gap in index]
    out = [v for gap in guide.leaving if gap in index and (v := int(problem.gaps[index[gap], VERSION])) >= 0]
    evicted, hold = np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=np.int64)
    evicted[back] = 1
    for gap, task in zip(guide.returning, guide.holds, strict=False):
        if gap in index:
            hold[index[gap]] = task
    _evict_suffixes(problem, evicted)
    decisions = Decisions(
        evicted=evicted,
        offloads=_ordered(problem.versions[:, WRITER], problem.versions[:, BLOCK], out),
        prefetches=_ordered(problem.gaps[:, UNTIL], problem.gaps[:, BLOCK], back),
        hold=hold,
        algorithm=np.array(guide.algorithms, dtype=np.int64),
        side=np.zeros(len(problem.blocks) + len(keys) + problem.length, dtype=np.int64),
    )
    _arrange(problem, decisions)
    choose_sides(problem, decisions)
    return decisions


def _evict_suffixes(problem: Problem, evicted: Integers) -> None:
    """Replace the evicted parts of each tensor in each gap by as many of its last parts."""
    following, first = problem.gaps[:, NEXT_PART], problem.gaps[:, FIRST_PART]
    count = np.bincount(first, evicted, minlength=len(evicted)).astype(np.int64)
    length = np.bincount(first, minlength=len(evicted))
    for g in np.unique(first[length[first] > 1]):
        stays = int(length[g] - count[g])
        while g >= 0:
            evicted[g] = stays <= 0
            stays, g = stays - 1, following[g]


def _arrange(problem: Problem, decisions: Decisions) -> None:
    """Order the parts of a tensor: the last part leaves first, and the parts come back in their order."""
    for order, first, following in (
        (decisions.offloads, problem.versions[:, LEAVES_FIRST], problem.versions[:, LEAVES_NEXT]),
        (decisions.prefetches, problem.gaps[:, FIRST_PART], problem.gaps[:, NEXT_PART]),
    ):
        arrange(order, first, following, np.empty_like(order))


def _ordered(rank: Integers, block: Integers, first: Sequence[int]) -> Integers:
    """Order copies by rank and block, and keep a given order of some of them.

    None of these stands behind a copy of greater rank.
    """
    rank, turn = rank.copy(), np.full(len(rank), len(rank))
    least = NEVER
    for position, i in reversed(list(enumerate(dict.fromkeys(first)))):
        least = min(least, int(rank[i]))
        rank[i], turn[i] = least, position
    return np.lexsort((block, turn, rank))


def gap_keys(problem: Problem) -> list[Gap]:
    """Return, for every gap of the arrays, its block and the task before it."""
    return list(zip(problem.gaps[:, BLOCK].tolist(), problem.gaps[:, AFTER].tolist(), strict=True))


def choose_sides(problem: Problem, decisions: Decisions) -> None:
    """Give blocks that are kept between uses low places, and all others high ones."""
    blocks, gaps = len(problem.blocks), len(problem.gaps)
    assert len(decisions.side) == blocks + gaps + problem.length
    order = np.lexsort((problem.gaps[:, AFTER], problem.gaps[:, BLOCK]))
    block = problem.gaps[order, BLOCK]
    comes = (decisions.evicted[order] != 0) | (problem.gaps[order, FORCED] != 0)
    # where a block is placed last before each gap: by a gap of its own, or at first
    latest = np.maximum.accumulate(np.where(comes, np.arange(gaps), -1))
    own = latest >= 0
    own[own] = block[latest[own]] == block[own]
    place = np.where(own, blocks + order[latest], block)
    decisions.side[:] = EARLY_HIGH
    decisions.side[place[~comes]] = LOW


def decisions_from(instance: Instance, problem: Problem, schedule: Schedule) -> Decisions:
    """Return the decisions of a schedule: its evictions, its algorithms and the order of its copies.

    Its addresses and its recomputations are not used.
    """
    keys = set(gap_keys(problem))
    uses = instance.uses
    algorithms = [0] * len(instance.tasks)
    ran = -1
    evicted: dict[Gap, None] = {}
    offloads: dict[int, None] = {}
    versions = {
        (int(d), int(w)): v
        for v, (d, w) in enumerate(zip(problem.versions[:, BLOCK], problem.versions[:, WRITER], strict=True))
    }
    for operation in schedule.operations:
        if operation.kind == "run" and operation.task is not None and operation.algorithm is not None:
            algorithms[operation.task] = operation.algorithm
            ran = max(ran, operation.task)
        elif operation.kind == "offload" and operation.block is not None:
            d = operation.block
            written = bisect_right(instance.writers[d], ran)
            version = versions.get((d, instance.writers[d][written - 1] if written else -1))
            if version is not None:
                offloads[version] = None
        elif operation.kind == "prefetch" and operation.block is not None:
            d = operation.block
            used = bisect_right(uses[d], ran)
            after = uses[d][used - 1] if used else -1
            if (d, after) in keys:
                evicted[d, after] = None
    decisions = decisions_of(problem, Guide(list(evicted), [], algorithms))
    decisions.offloads[:] = _ordered(problem.versions[:, WRITER], problem.versions[:, BLOCK], list(offloads))
    _arrange(problem, decisions)
    return decisions
