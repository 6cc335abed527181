"""The least that tasks read and make: what a bound may count on where that depends on their algorithms.

This module imports only the instance, and nothing that solves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from ...instances.instance import Algorithm, Instance


def with_least_reads(instance: Instance) -> Instance:
    """Return the instance in which each task reads, with any algorithm, only what all its algorithms hold.

    An algorithm holds what it reads, but for blocks whose places an output may take over: to have them just
    before the run is enough for that, and they need no place beside the output.

    Of such tasks, it has the algorithms that fit beside all that they touch, or all if none does. A schedule
    of the instance is one of this, too: a run needs no more there than it finds here, and times, sizes and
    places are the same. So a bound on this instance is one on the given instance. Where what tasks read does
    not depend on algorithms, this is the given instance itself.

    A block that some algorithms of its task leave out is touched by no task of this instance. While a run
    reads or makes it, its bytes count as workspace of that run. Else it takes no memory, and has no copies.
    """
    if not instance.reads_vary:
        return instance
    tasks = tuple(
        msgspec.structs.replace(
            task,
            inputs=task.must_hold,
            outputs=task.must_make,
            algorithms=tuple(
                msgspec.structs.replace(
                    a,
                    workspace_bytes=a.workspace_bytes
                    + sum(instance.blocks[d].bytes for d in (*alone, *made) if d in instance.optional),
                    inputs=msgspec.UNSET,
                    outputs=msgspec.UNSET,
                    takes_over=(),
                )
                for a, alone, made in choices_of(instance, k)
            ),
        )
        if task.reads_vary
        else task
        for k, task in enumerate(instance.tasks)
    )
    return msgspec.structs.replace(instance, tasks=tasks)


class Choice(NamedTuple):
    """An algorithm of a task, and what it has in memory that other algorithms of the task need not have.

    Attributes
    ----------
    algorithm
        The algorithm as it is given.
    alone
        Blocks that it holds and some other algorithm does not.
    made
        Outputs that it makes and some other algorithm leaves out.
    """

    algorithm: Algorithm
    alone: tuple[int, ...] = ()
    made: tuple[int, ...] = ()


def choices_of(instance: Instance, k: int) -> list[Choice]:
    """Return the algorithms of task k that fit, or all if none does, each with what it alone has in memory.

    An algorithm fits beside all blocks that it holds or writes.
    """
    task, blocks = instance.tasks[k], instance.blocks
    every = [
        Choice(
            one,
            tuple(d for d in task.holds(a) if d not in task.must_hold),
            tuple(d for d in task.makes(a) if d not in task.must_make),
        )
        for a, one in enumerate(task.algorithms)
    ]
    must = (*task.must_hold, *task.must_make, *task.updates)
    room = instance.pool_bytes - sum(blocks[d].bytes for d in must)
    fits = [
        one
        for one in every
        if one.algorithm.workspace_bytes + sum(blocks[d].bytes for d in (*one.alone, *one.made)) <= room
    ]
    return fits or every


@dataclass(frozen=True, slots=True)
class Readings:
    """Payments for what checkpoints read or make with some algorithms only, times the denominator.

    At both instants of such a checkpoint, the run pays for a block that it reads so, and the version that it
    reads is paid if it is on the device then. For a block that it makes so, the run is paid, and the version
    pays if it is there at once, and not made by a second run, or never.

    Attributes
    ----------
    paid
        What a run pays at both instants together, by task and block.
    held
        What a version is paid by instant, by block and writer of the version (-1: from the start).
    made
        What a version pays to be made by the checkpoint, by block.
    """

    made: Mapping[int, int]
    paid: Mapping[tuple[int, int], int]
    held: Mapping[tuple[int, int], Mapping[int, int]]


def readings_of(
    instance: Instance, checkpoints: Sequence[int], prices: Mapping[tuple[int, int, int], int]
) -> tuple[Readings, dict[tuple[int, int, int], int]]:
    """Return the payments for choices among prices by task, instant or interval, and block; and the others.

    Second runs of a checkpoint come in intervals after its instants, so that no price has two meanings.

    Raises
    ------
    ValueError
        When such a price is negative, or is for a block that the task always reads or makes, or never.
    """
    made: dict[int, int] = defaultdict(int)
    paid: dict[tuple[int, int], int] = defaultdict(int)
    held: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    others = {}
    place = {k: i for i, k in enumerate(checkpoints)}
    for (k, t, d), price in prices.items():
        if k not in place or t // 2 != place[k] or not instance.tasks[k].reads_vary:
            others[k, t, d] = price
            continue
        task = instance.tasks[k]
        is_made = d in task.outputs and d not in task.must_make
        if not is_made and (d not in task.may_read or d in task.must_hold):
            raise ValueError(f"task {k} neither reads nor makes block {d} with some of its algorithms only")
        if price < 0:
            raise ValueError(f"task {k}, instant {t}: a price of block {d} is negative")
        amount, writers = price * instance.blocks[d].bytes, instance.writers[d]
        if is_made:
            made[d] += amount
            continue
        before = bisect_left(writers, k)
        paid[k, d] += amount
        own = held[d, writers[before - 1] if before else -1]
        own[t] = own.get(t, 0) + amount
    return Readings(made, paid, held), others
