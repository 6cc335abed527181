"""Survival in the bound by prices: what is nowhere is made again, of what survives or is made again, too.

A version *survives* an instant if each of its bytes is valid on the device then, or is on the host. If it
does not, and something needs it later, its producer runs again after the instant. That run reads its inputs:
each of them survives the instant, or is made again after it as well. Versions here are those that are written
first of each block. This module imports only the instance, and nothing that solves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ...instances.instance import Instance
from .reruns import course_of

Reads = Sequence[Sequence[int]]
"""Per task, the blocks that all of its runs read, with whichever algorithm."""

SurvivalKey = tuple[int, int, int]
"""An instant, a block, and the block itself or an input of its producer.

The price of the block itself is paid by a version that is needed after the instant and does not survive it.
With an input, a version that is made again pays the price to the input, which pays it unless it survives.
"""


def rewards(instance: Instance, survival: Mapping[SurvivalKey, int]) -> dict[int, dict[int, int]]:
    """Return what the first version of each block is spared by surviving, per instant."""
    spared: dict[int, dict[int, int]] = defaultdict(dict)
    for (t, d, x), price in survival.items():
        spared[x][t] = spared[x].get(t, 0) + price * instance.blocks[d].bytes
    return spared


def needs(instance: Instance, survival: Mapping[SurvivalKey, int]) -> int:
    """Return what all versions pay that are needed, as if none survived."""
    return sum(price * instance.blocks[d].bytes for (_, d, x), price in survival.items() if d == x)


def wages(instance: Instance, survival: Mapping[SurvivalKey, int]) -> dict[int, dict[int, int]]:
    """Return, per task and instant, what its second runs after the instant are paid for what they make.

    It is what a lost version pays, less what it passes to the inputs of its producer, or nothing if that is
    more.
    """
    left: dict[tuple[int, int], int] = defaultdict(int)
    for (t, d, x), price in survival.items():
        amount = price * instance.blocks[d].bytes
        left[t, x] += amount
        if d != x:
            left[t, d] -= amount
    paid: dict[int, dict[int, int]] = defaultdict(dict)
    for (t, d), amount in left.items():
        if amount > 0:
            k = instance.writers[d][0]
            paid[k][t] = paid[k].get(t, 0) + amount
    return paid


def last_needs(
    read: Reads, instance: Instance, checkpoints: Sequence[int], tasks: Iterable[int]
) -> dict[int, int]:
    """Return, per task that may run again, the last interval in which something can need what it makes.

    First runs and the end need it, and other second runs, as long as something needs what these make.
    """
    last: dict[int, int] = {}
    for k in sorted(tasks, reverse=True):
        ends = [-1]
        for d in instance.tasks[k].outputs:
            course = course_of(instance, d, k, checkpoints, {})
            ends += [*course.wanted, *([course.last] if course.must_leave else [])]
            ends += [end for other, end in last.items() if d in read[other]]
        last[k] = max(ends)
    return last


def require_survival(
    read: Reads, instance: Instance, checkpoints: Sequence[int], survival: Mapping[SurvivalKey, int]
) -> None:
    """Require prices for what must survive, or be made again.

    Raises
    ------
    ValueError
        When a price is negative, or is for anything else.
    """
    if survival and instance.has_host_work:
        raise ValueError("prices of survival are not for instances with work on the host")
    for (t, d, x), price in survival.items():
        where = f"instant {t}, blocks {d} and {x}"
        if not 0 <= t < 2 * len(checkpoints) or price < 0:
            raise ValueError(f"{where}: there is no such instant, or the price of survival is negative")
        for block in (d, x):
            known = 0 <= block < len(instance.blocks) and instance.writers[block]
            if not known or instance.blocks[block].initially == "carried":
                raise ValueError(f"{where}: only what a task writes, and is not carried, has to survive")
            if 2 * bisect_right(checkpoints, instance.writers[block][0]) > t and block == x:
                raise ValueError(f"{where}: it is written later")
        k = instance.writers[d][0]
        if d == x:
            course = course_of(instance, d, k, checkpoints, {})
            if not course.must_leave and max(course.wanted, default=-1) <= t:
                raise ValueError(f"{where}: it is not needed later")
        elif x not in read[k] or bisect_left(instance.writers[x], k) != 1:
            raise ValueError(f"{where}: the one is not made of the other as it is written first")
