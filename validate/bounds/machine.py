"""What a shared link and slowed tasks add to the bounds: loads of copies, and slowdowns of intervals.

Both only make a schedule longer, so that every bound without them holds. This module imports only the
instance, and nothing that solves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import msgspec

from ...instances.instance import Block, Instance, Task


class Slowed(NamedTuple):
    """What copies of each direction take at least of the speed of some tasks, in millionths."""

    offload: int = 0
    prefetch: int = 0


class CopyCosts(NamedTuple):
    """What copies of a block cost: a copy out in interval j takes `out_ns` at a price of `out[j]`.

    A time of None is a copy that is impossible.
    """

    out_ns: int | None
    out: Sequence[int]
    back_ns: int | None
    back: Sequence[int]


def copy_costs(
    instance: Instance, block: Block, engines: Sequence[Sequence[int]], link: Sequence[int]
) -> CopyCosts:
    """Return the costs of a block's copies, by prices of the engines' time and of the link's.

    With a link, costs are rounded down to whole units of price, and are those of the whole copy.
    """
    if not any(link):
        return CopyCosts(block.offload_ns, engines[0], block.prefetch_ns, engines[-1])

    def whole(time: int | None, engine: Sequence[int]) -> Sequence[int]:
        passing = link_ns(instance, block.loaded_bytes, time)
        up, down = passing.numerator, passing.denominator
        return [(time or 0) * price + up * other // down for price, other in zip(engine, link, strict=True)]

    return CopyCosts(
        None if block.offload_ns is None else 1,
        whole(block.offload_ns, engines[0]),
        None if block.prefetch_ns is None else 1,
        whole(block.prefetch_ns, engines[-1]),
    )


def link_ns(instance: Instance, size: int, time: int | None) -> Fraction:
    """Return the time in nanoseconds in which the link that both directions share passes a copy's load.

    It is 0 for a copy that takes no time or is impossible, and where there is no such link. A load is the
    block's bytes, or what the link passes in the copy's own time if that is rounded down by less than one
    nanosecond: then the load takes the link just as long.
    """
    if instance.link is msgspec.UNSET or not time:
        return Fraction(0)
    exact = size / instance.link.rate
    return Fraction(time) if time < exact <= time + 1 else exact


def alone_ns(instance: Instance, size: int, time: int) -> int:
    """Return the least time of a whole copy: its own, or that in which the link passes its load."""
    return max(time, -int(-link_ns(instance, size, time) // 1))


def on_link_alone(instance: Instance) -> Instance:
    """Return the instance with copies that take as long as they do with a shared link to themselves."""
    if instance.link is msgspec.UNSET:
        return instance
    blocks = []
    for block in instance.blocks:
        out, back = (
            None if time is None else alone_ns(instance, block.loaded_bytes, time)
            for time in (block.offload_ns, block.prefetch_ns)
        )
        blocks.append(msgspec.structs.replace(block, offload_ns=out, prefetch_ns=back))
    return msgspec.structs.replace(instance, blocks=tuple(blocks))


def touched_on_host(instance: Instance) -> frozenset[int]:
    """Return the blocks that some task touches that may run on the host."""
    if not instance.has_host_work:
        return frozenset()
    return frozenset(d for task in instance.tasks if task.may_run_on_host for d in task.blocks)


def least_slowed(tasks: Iterable[Task]) -> Slowed:
    """Return what copies take at least of the speed of any of some tasks that take time; nothing of none.

    While nothing runs, a copy takes all of the time. The least of both directions together are never more
    than one with two engines, because those of no task are.
    """
    return (*least_slowed_of_first(tasks),)[-1]


def least_slowed_of_first(tasks: Iterable[Task]) -> Iterator[Slowed]:
    """Yield the same of the first 0, 1, 2, ... of some tasks."""
    least: Slowed | None = None
    yield Slowed()
    for task in tasks:
        if any(algorithm.duration_ns for algorithm in task.device_algorithms):
            own = task.slowdown_ppm
            mine = Slowed() if own is msgspec.UNSET else Slowed(own.offload, own.prefetch)
            least = mine if least is None else Slowed(*map(min, least, mine))
        yield least or Slowed()


def slowed_intervals(
    instance: Instance, checkpoints: Sequence[int], again: Mapping[int, range]
) -> list[Slowed]:
    """Return, for each interval, what copies take at least of the speed of the tasks that may run in it.

    `again` has the intervals in which tasks may run again.

    In an interval with copies out for O ns and copies in for P ns, of which these are the slowdowns s_o and
    s_p, tasks of W ns take the interval for W + s_o O + s_p P at least. While one of them runs, copies take
    that much of its speed or more. While none runs, time passes in full, and s_o + s_p is at most one.
    """
    edges = [-1, *checkpoints, len(instance.tasks)]
    second: dict[int, list[int]] = defaultdict(list)
    for k, intervals in again.items():
        for j in intervals:
            second[j].append(k)
    found = []
    for i, (after, until) in enumerate(pairwise(edges)):
        between = [*range(after + 1, until), *second[2 * i]]
        found.append(least_slowed(instance.tasks[k] for k in between))
        if until < len(instance.tasks):
            found.append(least_slowed([instance.tasks[until]]))
    return found
