"""What a shared link and slowed tasks add to the bounds: loads of copies, and slowdowns of intervals.

Both only make a schedule longer, so that every bound without them holds. This module imports only the
instance, and nothing that solves.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from operator import mul
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


class LinkTimes(NamedTuple):
    """What a copy takes in an interval of the link that both directions share.

    Attributes
    ----------
    shared
        The time in which the link passes its load.
    out, back
        The time that it takes of copies out, and of copies in, as `FairShares` has it.
    """

    shared: Fraction
    out: Fraction
    back: Fraction


class FairShares:
    """How much copies out and copies in keep each other from a link that is shared in the max-min fair way.

    The *pace* of a copy is the share of the link that it takes when it is alone. Beside a copy of the other
    direction, a copy gets half of the link, or what the other leaves, but no more than its pace. So one
    direction cannot have more than half of the link for long while the other has enough to copy.

    For each direction and any number from one half to one, its *lead*, this holds: in no interval do the
    times that copies of the direction take, and those that copies of the other take beside them, add up to
    more than the length of the interval (`LinkTimes`; docs/flow.md has the proof). With a lead of one half,
    these are the copies' own times, and nothing of the other direction. With a lead of one, they are the
    times in which the link passes the loads. The best lead is the pace of the copies.

    Parameters
    ----------
    instance
        An instance with a link. As lead, each direction has the pace that copies of half of its load have at
        most.

    Attributes
    ----------
    leads
        The leads of copies out, and of copies in.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        blocks = instance.blocks
        self.leads = (
            self._lead((block.loaded_bytes, block.offload_ns) for block in blocks),
            self._lead((block.loaded_bytes, block.prefetch_ns) for block in blocks),
        )

    def of_offload(self, block: Block) -> LinkTimes:
        """Return what copies of a block out take; nothing where there are none."""
        shared, time = self._times(block.loaded_bytes, block.offload_ns)
        out, back = self.leads
        return LinkTimes(shared, fair_time_of_leader(shared, time, out), fair_time_beside(shared, time, back))

    def of_prefetch(self, block: Block) -> LinkTimes:
        """Return what copies of a block in take; nothing where there are none."""
        shared, time = self._times(block.loaded_bytes, block.prefetch_ns)
        out, back = self.leads
        return LinkTimes(shared, fair_time_beside(shared, time, out), fair_time_of_leader(shared, time, back))

    def _times(self, size: int, time: int | None) -> tuple[Fraction, Fraction]:
        """Return the time in which the link passes a copy's load, and that of the copy alone."""
        shared = link_ns(self.instance, size, time)
        return shared, max(shared, Fraction(time or 0))

    def _lead(self, copies: Iterable[tuple[int, int | None]]) -> Fraction:
        """Return the median of the paces above one half, weighted with loads; one half if there is none."""
        times = [self._times(*copy) for copy in copies]
        paces = sorted((shared / time, shared) for shared, time in times if 2 * shared > time)
        left = sum(shared for _, shared in paces) / 2
        for pace, shared in paces:
            left -= shared
            if left <= 0:
                return pace
        return Fraction(1, 2)


def fair_shares(instance: Instance) -> FairShares | None:
    """Return what copies take of a link that both directions share; None where there is none."""
    return None if instance.link is msgspec.UNSET else FairShares(instance)


def fair_time_of_leader(shared: Fraction, time: Fraction, lead: Fraction) -> Fraction:
    """Return the time of a copy among those of the direction that leads."""
    if shared >= lead * time:
        return time
    if 2 * shared > time:
        return shared / lead
    return time - (2 - 1 / lead) * (time - shared)


def fair_time_beside(shared: Fraction, time: Fraction, lead: Fraction) -> Fraction:
    """Return the time that a copy takes from the direction that leads."""
    if 2 * shared > time:
        return (2 - 1 / lead) * shared
    return max(time - (time - shared) / lead, Fraction(0))


def copy_costs(
    block: Block,
    engines: Sequence[Sequence[int]],
    link: Sequence[Sequence[int]],
    shares: FairShares | None,
) -> CopyCosts:
    """Return the costs of a block's copies, by prices of the engines' time and of the link's.

    With prices of a link, one for each of `LinkTimes`, costs are rounded down to whole units of price, and
    are those of the whole copy.
    """
    if shares is None:
        return CopyCosts(block.offload_ns, engines[0], block.prefetch_ns, engines[-1])

    def whole(time: int | None, times: LinkTimes, engine: Sequence[int]) -> Sequence[int]:
        down = math.lcm(*(part.denominator for part in times))
        ups = [part.numerator * (down // part.denominator) for part in times]
        paid = (sum(map(mul, ups, prices)) for prices in zip(*link, strict=True))
        return [(time or 0) * price + more // down for price, more in zip(engine, paid, strict=True)]

    return CopyCosts(
        None if block.offload_ns is None else 1,
        whole(block.offload_ns, shares.of_offload(block), engines[0]),
        None if block.prefetch_ns is None else 1,
        whole(block.prefetch_ns, shares.of_prefetch(block), engines[-1]),
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
