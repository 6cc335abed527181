"""Second runs in the bound by prices: the intervals of second runs, and the cheapest course of a version.

Intervals and instants are those of `arguments.Prices`. This module imports only the instance, and nothing
that solves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ...instances.instance import Block, Instance
from .machine import CopyCosts

RerunKey = tuple[int, int, int]
"""A task, the interval in which it runs again, and a block that it reads or writes."""


def rerun_intervals(instance: Instance, checkpoints: Sequence[int]) -> dict[int, range]:
    """Return, for each task that may run again, the intervals in which it may.

    It may run again while all of its inputs have the version that its first run read, and no output of it has
    been updated. Second runs come between checkpoints, which are first runs. After the last task, a second
    run is of use only if a block must end on the device. A block that must end on the host can be copied when
    it is first written, while everything else waits, which takes no longer.
    """
    total = len(instance.tasks)
    end = total if any(block.finally_ == "device" for block in instance.blocks) else total - 1
    intervals = {}
    for k, task in enumerate(instance.tasks):
        if task.recomputable and not task.updates:
            last = min([end, *(w for d in task.blocks for w in instance.writers[d] if w > k)])
            if last > k:
                intervals[k] = range(
                    2 * bisect_left(checkpoints, k + 1), 2 * bisect_left(checkpoints, last) + 1, 2
                )
    return intervals


_NOTHING: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Course:
    """A version of a block, and the intervals in which it can be copied, kept or made again.

    Attributes
    ----------
    block
        The block.
    first, last
        First and last interval of the course. The version is on the device in the first one unless
        `must_load`.
    on_host
        Whether the host has it from the start.
    must_load, must_leave
        Whether it starts on the host only; whether it must end on the host.
    wanted
        Intervals in which first runs, or the end, need it.
    touched
        Instants at which a checkpoint needs it, and counts its bytes.
    """

    block: Block
    first: int
    last: int
    on_host: bool
    must_load: bool
    must_leave: bool
    wanted: frozenset[int]
    touched: frozenset[int]


def course_of(
    instance: Instance,
    d: int,
    writer: int,
    checkpoints: Sequence[int],
    reads: Mapping[int, int],
    *,
    away: bool | None = None,
) -> Course:
    """Return the course of the version of block `d` that a task writes (-1: from the start).

    `reads` has the intervals in which second runs read it. `away` says whether a carried block is absent at
    both ends; then the host has it there. None: the block is not carried.
    """
    block, writers = instance.blocks[d], instance.writers[d]
    until = next((w for w in writers if w > writer), len(instance.tasks))
    is_last = until == len(instance.tasks)
    uses = [k for k in instance.uses[d] if writer < k <= until]
    at = [bisect_left(checkpoints, k) + bisect_right(checkpoints, k) for k in uses]
    end = 2 * len(checkpoints)
    stays = block.finally_ == "device" or away is False
    wanted = frozenset(at) | frozenset([end] if is_last and stays else [])
    must_leave = is_last and (block.finally_ == "host" or away is True) and writer >= 0
    return Course(
        block,
        first=2 * bisect_right(checkpoints, writer),
        last=end if must_leave else max([*wanted, *reads], default=-1),
        on_host=writer < 0,
        must_load=writer < 0 and (block.initially == "host" or away is True),
        must_leave=must_leave,
        wanted=wanted,
        touched=frozenset(instant for j in at if j % 2 for instant in (j - 1, j)),
    )


def cheapest(
    course: Course,
    makes: Mapping[int, int],
    reads: Mapping[int, int],
    memory: Sequence[int],
    costs: CopyCosts,
    spared: Mapping[int, int] = _NOTHING,
    held: Mapping[int, int] = _NOTHING,
    begun: int | None = None,
) -> int:
    """Return the least that a version pays for memory, copies and second runs of its producer.

    The payments of the version's readers are subtracted, and so is what it is spared by surviving. The search
    goes step by step through the intervals. Its state is whether the version is on the device, and whether
    the host has it. In each interval, the version may arrive, by a prefetch or by a second run. If it is
    there, second runs that read it pay, and it may be offloaded. Then it is kept or released.

    Parameters
    ----------
    course
        The version.
    makes
        Payment of the version, per interval in which its producer may run again.
    reads
        Payment of the second runs that read it, per interval.
    memory
        Prices, as in `arguments.Prices`.
    costs
        What copies of the block cost by interval.
    spared
        What is subtracted if it is on the device or on the host, per instant of the course.
    held
        What is subtracted if it is on the device, per instant of the course.
    begun
        What it pays to be there at first, of a version that need not be made; None: it is as the course says.
    """
    block = course.block
    states = {(not course.must_load, course.on_host): 0}
    if begun is not None:
        states = {(True, False): begun, (False, False): 0}
    for j in range(course.first, course.last + 1):
        following: dict[tuple[bool, bool], int] = {}
        rent = 0 if j in course.touched or j == course.last else block.bytes * memory[j] - held.get(j, 0)
        for (there, hosted), paid in states.items():
            arrivals = [0] if there else []
            if not there and hosted and costs.back_ns is not None:
                arrivals.append(costs.back_ns * costs.back[j])
            if not there and j in makes:
                arrivals.append(makes[j])
            ways = []
            if arrivals:
                here = paid + min(arrivals) - reads.get(j, 0)
                ways += [(True, hosted, here + rent), (False, hosted, here)]
                if not hosted and costs.out_ns is not None:
                    gone = here + costs.out_ns * costs.out[j]
                    ways += [(True, True, gone + rent), (False, True, gone)]
            if not there and j not in course.wanted:
                ways.append((False, hosted, paid))
            for stays, copied, cost in ways:
                if stays or copied:
                    cost -= spared.get(j, 0)
                if stays or j not in course.touched:
                    following[stays, copied] = min(cost, following.get((stays, copied), cost))
        states = following
    return min((paid for (_, hosted), paid in states.items() if hosted or not course.must_leave), default=0)


def cheapest_optional(
    block: Block,
    writer: int,
    checkpoints: Sequence[int],
    makes: Mapping[int, int],
    held: Mapping[int, int],
    begun: int,
    memory: Sequence[int],
    costs: CopyCosts,
) -> int:
    """Return the least that the version of a block pays that `writer` may leave out, as `cheapest` does.

    Nothing needs it, but for checkpoints that read it with some of their algorithms, which pay it (`held`).
    It pays `begun` to be made by the first run of its writer.
    """
    course = Course(
        block,
        first=2 * bisect_right(checkpoints, writer),
        last=max(held, default=-1) + 1,
        on_host=False,
        must_load=False,
        must_leave=False,
        wanted=frozenset(),
        touched=frozenset(),
    )
    return cheapest(course, makes, {}, memory, costs, held=held, begun=begun)


def cheapest_again(
    instance: Instance,
    d: int,
    checkpoints: Sequence[int],
    reads: Mapping[int, Mapping[int, int]],
    memory: Sequence[int],
    costs: CopyCosts,
    ends: Sequence[int],
    held: Mapping[int, Mapping[int, int]],
) -> int:
    """Return the least that a carried block pays in a round whose runs pay it for reads, as `cheapest` does.

    Its places at both ends are the same. They are one choice, on the device or on the host alone, for which
    it pays what `ends` asks of a byte. Its versions are independent of each other then. What the host has
    beside the device at the start may go out for nothing.

    Parameters
    ----------
    reads
        What second runs pay per interval, by the writer of the version that they read (-1: the start).
    ends
        What a byte pays at both ends together: on the device, and on the host.
    held
        What is subtracted if it is on the device, per instant, by the writer of the version.
    """
    block, writers = instance.blocks[d], instance.writers[d]

    def paid(away: bool) -> int:
        total = block.bytes * ends[away]
        for writer in (-1, *writers):
            read, own = reads.get(writer, {}), held.get(writer, {})
            until = {t + 1: 0 for t in own} | {**read}
            course = course_of(instance, d, writer, checkpoints, until, away=away)
            total += cheapest(course, {}, read, memory, costs, held=own)
        return total

    can_be_away = costs.back_ns is not None and (costs.out_ns is not None or not writers)
    return min(paid(False), paid(True)) if can_be_away else paid(False)
