"""Second runs in the bound by prices: where tasks may run again, and the cheapest course of a version.

Intervals and instants are those of `exact_bounds.Prices`. This module imports the instance and nothing that
solves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...instances.instance import Block, Instance

RerunKey = tuple[int, int, int]
"""A task, the interval in which it runs again, and a block that it reads or writes."""


def rerun_intervals(instance: Instance, checkpoints: Sequence[int]) -> dict[int, range]:
    """Per task that may run again, the intervals in which it may.

    It may while all that it reads is in the version that it read, and no output of it has been updated. That
    is between checkpoints, which are first runs. After the last task it is of use only where a block must end
    on the device: what must end on the host can be copied when it is first written, while all else waits,
    and that takes no longer.
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


@dataclass(frozen=True, slots=True)
class Course:
    """A version of a block, and what becomes of it from interval to interval.

    Attributes
    ----------
    block
        The block.
    first, last
        The intervals in which something can become of it. It is there in the first one unless `must_load`.
    on_host
        Whether the host has it from the start.
    must_load, must_leave
        Whether it is on the host only at first; whether the host must have it at last.
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
    instance: Instance, d: int, writer: int, checkpoints: Sequence[int], reads: Mapping[int, int]
) -> Course:
    """Return the course of the version of block `d` that a task writes (-1: from the start).

    `reads` has the intervals in which second runs read it.
    """
    block, writers = instance.blocks[d], instance.writers[d]
    until = next((w for w in writers if w > writer), len(instance.tasks))
    is_last = until == len(instance.tasks)
    uses = [k for k in instance.uses[d] if writer < k <= until]
    at = [bisect_left(checkpoints, k) + bisect_right(checkpoints, k) for k in uses]
    end = 2 * len(checkpoints)
    wanted = frozenset(at) | frozenset([end] if is_last and block.finally_ == "device" else [])
    must_leave = is_last and block.finally_ == "host" and writer >= 0
    return Course(
        block,
        first=2 * bisect_right(checkpoints, writer),
        last=end if must_leave else max([*wanted, *reads], default=-1),
        on_host=writer < 0,
        must_load=writer < 0 and block.initially == "host",
        must_leave=must_leave,
        wanted=wanted,
        touched=frozenset(instant for j in at if j % 2 for instant in (j - 1, j)),
    )


def cheapest(
    course: Course,
    makes: Mapping[int, int],
    reads: Mapping[int, int],
    memory: Sequence[int],
    engines: Sequence[Sequence[int]],
) -> int:
    """Least that a version pays for memory, copies and second runs of its producer, less what readers pay it.

    Step by step through its intervals: whether it is on the device, and whether the host has it. In each it
    may arrive, by a prefetch or by a second run; second runs that read it pay if it is there; it may be
    offloaded if it is there; and it stays or goes.

    Parameters
    ----------
    course
        The version.
    makes
        Per interval in which its producer may run again, what the version pays for that.
    reads
        Per interval, what second runs pay that read it.
    memory, engines
        Prices, as `exact_bounds.Prices` has them.
    """
    block, out, back = course.block, engines[0], engines[-1]
    states = {(not course.must_load, course.on_host): 0}
    for j in range(course.first, course.last + 1):
        following: dict[tuple[bool, bool], int] = {}
        rent = 0 if j in course.touched or j == course.last else block.bytes * memory[j]
        for (there, hosted), paid in states.items():
            arrivals = [0] if there else []
            if not there and hosted and block.prefetch_ns is not None:
                arrivals.append(block.prefetch_ns * back[j])
            if not there and j in makes:
                arrivals.append(makes[j])
            ways = []
            if arrivals:
                here = paid + min(arrivals) - reads.get(j, 0)
                ways += [(True, hosted, here + rent), (False, hosted, here)]
                if not hosted and block.offload_ns is not None:
                    gone = here + block.offload_ns * out[j]
                    ways += [(True, True, gone + rent), (False, True, gone)]
            if not there and j not in course.wanted:
                ways.append((False, hosted, paid))
            for stays, copied, cost in ways:
                if stays or j not in course.touched:
                    following[stays, copied] = min(cost, following.get((stays, copied), cost))
        states = following
    return min((paid for (_, hosted), paid in states.items() if hosted or not course.must_leave), default=0)
