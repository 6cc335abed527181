"""Versions of blocks in FLOW on some checkpoints: when they can be out, and where they may be absent.

A version begins with a write or an update of its block, or with the program. Its gaps are the stays between
two uses that have an instant inside. Without whole evictions, versions that are the same to the checkpoints
are merged into one.

A carried block ends where it begins. Its stay before the first use has the start as an instant, -1: what is
absent then is absent at the end of its last stay as well.

Where tasks run again, versions are not merged, but equal parts of a tensor are one block (`joined`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace
from numpy.typing import NDArray

from ...heuristics.gaps import Gap
from ...instances.instance import Block, Instance
from ...validate.bounds.machine import LinkTimes, fair_shares

_FASTEST = -40
"""Lowest pace that is distinguished: bytes that take a fortieth of the time or less."""


@dataclass(frozen=True, slots=True)
class VersionColumns:
    """Columns of a version of a block by instant or interval; outside their range there are none.

    Attributes
    ----------
    first
        The first instant after the version is written.
    present, valid
        By instant, from `first` on: the share that uses memory, and the share that can be read.
    out
        By interval: the share that is on the host when the interval ends.
    """

    first: int
    present: tuple[int, ...]
    valid: tuple[int, ...]
    out: dict[int, int]


class Stay(NamedTuple):
    """A stay between clusters of uses, by the instants (first to last) at which its block may be absent.

    `must_load` says that the block starts on the host only. `is_last` says that it is the last stay of a
    carried block, in which what is absent at the end need not come back. The first stay of such a block has
    -1, the start, as its first instant.
    """

    first: int
    last: int
    must_load: bool
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a block, or of several blocks that are the same to the checkpoints.

    `ready` is the first instant at which bytes of it can be out; None if the host holds it from the start. It
    is -1, the start, if the host may or may not hold it then. `must_leave` says that the host must end with
    it. A copy time of None means that it is never copied in that direction. `names` has, for each gap, the
    gaps of blocks that it stands for. `carried` is the carried block of which this is the first or the last
    version; `is_saved` says that the host ends with as much of it as it had of the first version at the
    start. `out_link` and `back_link` are the times of its copies on a link that both directions share.
    """

    bytes: int
    offload_ns: Fraction | None
    prefetch_ns: Fraction | None
    ready: int | None
    gaps: tuple[Stay, ...]
    must_leave: bool
    names: tuple[tuple[Gap, ...], ...]
    carried: int | None = None
    is_saved: bool = False
    out_link: LinkTimes | None = None
    back_link: LinkTimes | None = None

    @property
    def stays_once(self) -> bool:
        """Whether it is offloaded and prefetched around at most one gap."""
        copied = self.ready is not None and self.offload_ns is not None and self.prefetch_ns is not None
        is_kept = self.must_leave or self.carried is not None
        return copied and not is_kept and len(self.gaps) == 1 and not self.gaps[0].must_load


def fixed_blocks(instance: Instance) -> set[int]:
    """Return the blocks that cannot both leave the device and come back."""
    return {
        d for d, block in enumerate(instance.blocks) if block.offload_ns is None or block.prefetch_ns is None
    }


def can_be_away(instance: Instance, d: int) -> bool:
    """Return whether a carried block can be absent at both ends of a round, and so at any time.

    Else it is in memory throughout. It has to come back for its first use, and what a round has written has
    to go out.
    """
    block = instance.blocks[d]
    return block.prefetch_ns is not None and (block.offload_ns is not None or not instance.writers[d])


def versions_of(instance: Instance, positions: NDArray[np.int64], blocks: Sequence[int]) -> list[Version]:
    """Return the versions that can or must leave the device, with the gaps that have an instant inside."""
    versions = []
    shares = fair_shares(instance)
    for d in blocks:
        block, writers = instance.blocks[d], instance.writers[d]
        gaps: dict[int, list[Stay]] = defaultdict(list)
        names: dict[int, list[tuple[Gap, ...]]] = defaultdict(list)
        is_carried = block.initially == "carried"
        if is_carried and not can_be_away(instance, d):
            continue
        for after, until in stays(instance, d):
            first, last = instants_of(after, until, positions)
            if is_carried and after == -1:
                first = -1
            if first <= last:
                must_load = after == -1 and block.initially == "host"
                is_last = is_carried and until == len(instance.tasks)
                gaps[bisect_right(writers, after)].append(Stay(first, last, must_load, is_last))
                names[bisect_right(writers, after)].append(((d, after),))
        final = len(writers) if is_carried or block.finally_ == "host" else 0
        for written in sorted({*gaps, *([final] if final else [])}):
            at_an_end = is_carried and written in (0, len(writers))
            ready = ready_at(writers[written - 1], positions) if written else None
            if is_carried and not written and (writers or instance.has_host_budget):
                ready = -1
            versions.append(
                Version(
                    block.bytes,
                    None if block.offload_ns is None else Fraction(block.offload_ns),
                    None if block.prefetch_ns is None else Fraction(block.prefetch_ns),
                    ready,
                    tuple(gaps[written]),
                    must_leave=not is_carried and final > 0 and written == final,
                    names=tuple(names[written]),
                    carried=d if at_an_end else None,
                    is_saved=is_carried and final > 0 and written == final,
                    out_link=None if shares is None else shares.of_offload(block),
                    back_link=None if shares is None else shares.of_prefetch(block),
                )
            )
    return versions


def merged(versions: list[Version]) -> list[Version]:
    """Merge versions that are the same to the checkpoints, at the fastest rates among them.

    Versions whose bytes take far less or more time than those of others are not merged with them. The first
    versions of two carried blocks are merged only together with the last ones.
    """
    groups: dict[Hashable, list[Version]] = defaultdict(list)
    largest = max(versions, key=lambda v: v.bytes, default=None)
    keys: list[Hashable] = []
    ends: dict[int | None, list[Hashable]] = defaultdict(list)
    for v in versions:
        assert largest is not None
        out = _pace(v.offload_ns, v.bytes, largest.offload_ns, largest.bytes)
        back = _pace(v.prefetch_ns, v.bytes, largest.prefetch_ns, largest.bytes)
        keys.append((v.ready, v.gaps, v.must_leave, v.is_saved, out, back))
        if v.carried is not None:
            ends[v.carried].append(keys[-1])
    for v, key in zip(versions, keys, strict=True):
        groups[key, tuple(ends.get(v.carried, ()))].append(v)
    return [
        Version(
            total,
            _least_time([(v.offload_ns, v.bytes) for v in group], total),
            _least_time([(v.prefetch_ns, v.bytes) for v in group], total),
            group[0].ready,
            group[0].gaps,
            group[0].must_leave,
            tuple(tuple(chain.from_iterable(same)) for same in zip(*(v.names for v in group), strict=True)),
            group[0].carried,
            group[0].is_saved,
            least_link([v.out_link for v in group], [v.bytes for v in group]),
            least_link([v.back_link for v in group], [v.bytes for v in group]),
        )
        for group in groups.values()
        for total in [sum(v.bytes for v in group)]
    ]


def _pace(time: Fraction | None, size: int, other_time: Fraction | None, other: int) -> int | None:
    """Return by how many steps of a tenth bytes take longer than in another copy; None without copies."""
    if time is None:
        return None
    if not time or not other_time:
        return _FASTEST
    return max(round(math.log(time * other / (other_time * size)) / math.log(1.1)), _FASTEST)


def _least_time(copies: list[tuple[Fraction | None, int]], total: int) -> Fraction | None:
    """Return the time of `total` bytes at the fastest rate of some copies; None if there are none."""
    rates = [time / size for time, size in copies if time is not None]
    return min(rates) * total if rates else None


def least_link(copies: Sequence[LinkTimes | None], sizes: Sequence[int]) -> LinkTimes | None:
    """Return the times of copies on a link as one, each at the least time of a byte among them."""
    known = [times for times in copies if times is not None]
    if not known:
        return None
    rates = (
        min(time / size for time, size in zip(times, sizes, strict=True))
        for times in zip(*known, strict=True)
    )
    return LinkTimes(*(rate * sum(sizes) for rate in rates))


def ready_at(writer: int, positions: NDArray[np.int64]) -> int:
    """Return the first instant by which bytes that a task writes can have been copied."""
    i = int(np.searchsorted(positions, writer, "left"))
    return 2 * i + 2 if i < len(positions) and positions[i] == writer else 2 * i


def stays(instance: Instance, d: int) -> Iterator[tuple[int, int]]:
    """Yield the stays of a block between uses: the task before and the task after.

    The start is -1, and the end is the number of tasks. A carried block has both, if anything uses it.
    """
    block, uses = instance.blocks[d], instance.uses[d]
    is_carried = block.initially == "carried"
    if is_carried and not uses:
        return
    marks = [*([-1] if block.initially != "absent" else []), *uses]
    marks += [len(instance.tasks)] if is_carried or block.finally_ == "device" else []
    yield from pairwise(marks)


def instants_of(after: int, until: int, positions: NDArray[np.int64]) -> tuple[int, int]:
    """Return the first and the last instant of a stay between two tasks; if there is none, it ends before."""
    first = int(np.searchsorted(positions, after, "right"))
    return 2 * first, 2 * int(np.searchsorted(positions, until, "left")) - 1


Parts = tuple[tuple[int, ...], ...]
"""Per block of a model, the blocks of the instance for which it stands."""


def joined(instance: Instance) -> tuple[Instance, Parts]:
    """Return the instance with equal parts of a tensor as one block, and what each block stands for.

    Equal parts have the same size, their copies take the same time, and tasks and both ends of the iteration
    treat them alike. Exchanged with each other, they give the same instance. So the mean over all exchanges
    of a solution of a linear model is a solution in which they have the same shares, and these are all that
    the model of the joined instance knows. Times that differ by rounding count as the least, which is less.
    On a link that both directions share, parts stay apart: the load of each copy is rounded, and the sum of
    loads is less than that of one copy of all.
    """
    alike: dict[Hashable, list[int]] = defaultdict(list)
    kinds = _kinds_of_parts(instance)
    for d in range(len(instance.blocks)):
        alike[kinds.get(d, d)].append(d)
    groups = (
        [tuple(own)] if _take_one_time(instance, own) else [(d,) for d in own] for own in alike.values()
    )
    parts = tuple(sorted(chain.from_iterable(groups)))
    if len(parts) == len(instance.blocks):
        return instance, parts
    place = {group[0]: i for i, group in enumerate(parts)}

    def kept(blocks: Sequence[int]) -> tuple[int, ...]:
        return tuple(place[d] for d in blocks if d in place)

    tasks = tuple(
        replace(
            task,
            inputs=kept(task.inputs),
            outputs=kept(task.outputs),
            updates=kept(task.updates),
            algorithms=tuple(
                one if one.inputs is UNSET else replace(one, inputs=kept(one.inputs))
                for one in task.algorithms
            ),
        )
        for task in instance.tasks
    )
    blocks = tuple(_joint([instance.blocks[d] for d in group]) for group in parts)
    return replace(instance, blocks=blocks, tasks=tasks), parts


def _kinds_of_parts(instance: Instance) -> dict[int, Hashable]:
    """Return what equal parts of tensors have in common, by block.

    There is nothing where what is made varies, and on a link that both directions share.
    """
    kinds: dict[int, list[Hashable]] = {}
    if instance.link is not UNSET:
        return {}
    for d, block in enumerate(instance.blocks):
        if block.tensor is not None:
            sizes, ends = (block.bytes, block.loaded_bytes), (block.initially, block.finally_)
            kinds[d] = [block.tensor, sizes, ends, block.offload_ns is None, block.prefetch_ns is None]
    for k, task in enumerate(instance.tasks if kinds else ()):
        if any(one.takes_over or one.outputs is not UNSET for one in task.algorithms):
            return {}
        own = [one.inputs for one in task.algorithms if one.inputs is not UNSET]
        for role, touched in enumerate((task.inputs, task.outputs, task.updates, *own)):
            for d in touched:
                if d in kinds:
                    kinds[d].append((k, role))
    return {d: tuple(kind) for d, kind in kinds.items()}


def _take_one_time(instance: Instance, blocks: Sequence[int]) -> bool:
    """Return whether copies of some blocks take the same time, but for rounding."""
    copies = [(instance.blocks[d].offload_ns or 0, instance.blocks[d].prefetch_ns or 0) for d in blocks]
    return all(max(times) - min(times) <= 1 for times in zip(*copies, strict=True))


def _joint(blocks: Sequence[Block]) -> Block:
    """Return equal parts as one block."""
    if len(blocks) == 1:
        return blocks[0]

    def together(times: Sequence[int | None]) -> int | None:
        known = [time for time in times if time is not None]
        return min(known) * len(blocks) if known else None

    return replace(
        blocks[0],
        bytes=blocks[0].bytes * len(blocks),
        load_bytes=None if blocks[0].load_bytes is None else blocks[0].load_bytes * len(blocks),
        offload_ns=together([block.offload_ns for block in blocks]),
        prefetch_ns=together([block.prefetch_ns for block in blocks]),
        tensor=None,
        begin=None,
    )


def first_loads_ns(
    instance: Instance, positions: NDArray[np.int64], blocks: Sequence[int]
) -> tuple[int, LinkTimes | None]:
    """Return the time of the prefetches that must come before the first checkpoint, and those of the link.

    They are of those of some blocks that start on the host only, and are used before the first checkpoint or
    by it. Without checkpoints, the one interval has all of them.
    """
    until = positions[0] if len(positions) else len(instance.tasks)
    first = []
    for d in blocks:
        block, uses = instance.blocks[d], instance.uses[d]
        if block.initially == "host" and uses and uses[0] <= until:
            first.append(block)
    shares = fair_shares(instance)
    link = None
    if shares is not None and first:
        columns = zip(*map(shares.of_prefetch, first), strict=True)
        link = LinkTimes(*(sum(times, Fraction(0)) for times in columns))
    return sum(block.prefetch_ns or 0 for block in first), link


def staying_bytes(
    instance: Instance, positions: NDArray[np.int64], blocks: Sequence[int]
) -> NDArray[np.float64]:
    """Return, per instant, the bytes of the blocks between uses, which use memory unless they are absent."""
    bytes_at = np.zeros(2 * len(positions))
    for d in blocks:
        for stay in stays(instance, d):
            first, last = instants_of(*stay, positions)
            bytes_at[first : max(last + 1, first)] += instance.blocks[d].bytes
    return bytes_at
