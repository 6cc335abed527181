"""Tensors in parts: which blocks belong together, and in which order they leave and come back.

Equal parts of a tensor that are used alike are interchangeable, so that only suffixes need to leave: the last
part first, which comes back last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction

from ..instances.instance import Instance
from ..instances.memory import footprint, live_bytes, needs
from ..instances.transforms import in_parts, split_parts
from ..instances.units import PAGE_BYTES, ceil_to
from .gaps import Gap, gaps_of
from .methods import Refusal

_MOST = 96
"""Parts that a search moves with ease; twice as many as there are tensors where that is more.

With 256, VGG-16 (256) on a V100 at 1.05 M_min takes as long in paged memory and longer in contiguous.
"""

_WASTE = Fraction(2, 100)
"""Share of what a task leaves of the pool that parts may leave empty."""


def with_parts(instance: Instance) -> Instance:
    """Return the instance with the tensors in parts that are worth it.

    These are the ones that can be away for a while. All parts are about the same size, the least with which
    there are not too many: so the largest tensors are cut into the most. But where memory is short, parts of
    a tensor come and go in what other tasks leave of the pool. If a number of parts fills that badly, up to
    twice as many are taken. An instance that is in parts already stays as it is.

    Raises
    ------
    PebblerError
        As `split_parts`.
    """
    if in_parts(instance):
        return instance
    gaps = gaps_of(instance)
    away = {d for d, _ in gaps}
    size = _even_size([instance.blocks[d].bytes for d in away])
    room = _room(instance, gaps)
    return split_parts(instance, {d: _fitting(instance.blocks[d].bytes, size, room[d]) for d in sorted(away)})


def _even_size(sizes: Sequence[int]) -> int:
    """The least size of parts with which there are not too many."""
    most = max(_MOST, 2 * len(sizes))
    size = PAGE_BYTES
    while sum(-(-total // size) for total in sizes) > most:
        size += max(size // 8 // PAGE_BYTES, 1) * PAGE_BYTES
    return size


def _room(instance: Instance, gaps: Mapping[Gap, int]) -> dict[int, list[int]]:
    """Per block that can leave, what tasks next to its gaps leave of the pool, where more could lie there."""
    left = [instance.budget_bytes - need for need in needs(instance)]
    between = [live - footprint(instance, k) for k, live in enumerate(live_bytes(instance))]
    room: dict[int, list[int]] = {d: [] for d, _ in gaps}
    for (d, after), until in gaps.items():
        room[d] += [left[k] for k in (after + 1, until - 1) if between[k] > left[k] > 0]
    return room


def _fitting(total: int, size: int, room: Sequence[int]) -> int:
    """Size of a tensor's parts, of which whole numbers fill the room."""
    least = -(-total // size)
    best, best_waste = size, Fraction(1)
    for count in range(least, 2 * least + 1):
        part = ceil_to(-(-total // count), PAGE_BYTES)
        waste = sum((Fraction(left % part, left) for left in room), Fraction()) / max(len(room), 1)
        if waste < best_waste:
            best, best_waste = part, waste
        if waste <= _WASTE:
            break
    return best


def tensors_of(instance: Instance) -> list[list[int]]:
    """Return the blocks of every tensor that is in parts, by where they begin in it."""
    tensors: dict[str, list[int]] = defaultdict(list)
    for d, block in enumerate(instance.blocks):
        if block.tensor is not None:
            tensors[block.tensor].append(d)
    return [sorted(parts, key=lambda d: instance.blocks[d].begin or 0) for parts in tensors.values()]


def require_alike(instance: Instance, parts: Sequence[int]) -> None:
    """Refuse parts of a tensor that leave bytes between them, or that tasks or copies tell apart.

    Raises
    ------
    Refusal
        With the tensor.
    """
    blocks = [instance.blocks[d] for d in parts]
    kinds = {
        (
            *(instance.uses[d], instance.writers[d], b.initially, b.finally_),
            *(b.offload_ns is None, b.prefetch_ns is None, b.move_ns is None),
        )
        for d, b in zip(parts, blocks, strict=True)
    }
    begins = [b.begin or 0 for b in blocks]
    ends = [
        begin + ceil_to(b.bytes, instance.alignment_bytes) for begin, b in zip(begins, blocks, strict=True)
    ]
    if len(kinds) > 1 or begins != [0, *ends[:-1]]:
        raise Refusal(
            f"local search: the parts of '{blocks[0].tensor}' differ in their uses or copies, or do not "
            "follow each other; such parts are placed in paged memory only"
        )


def chains(keys: Sequence[Hashable], rank: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Chain what has the same key, by rank; a key of None stands alone.

    Returns
    -------
    tuple of list of int
        Per element: the first of its chain, and what follows and what comes before it, or -1.
    """
    first, following, before = list(range(len(keys))), [-1] * len(keys), [-1] * len(keys)
    latest: dict[Hashable, int] = {}
    for i in sorted(range(len(keys)), key=lambda i: rank[i]):
        if keys[i] is None:
            continue
        if keys[i] in latest:
            before[i] = latest[keys[i]]
            following[before[i]] = i
            first[i] = first[before[i]]
        latest[keys[i]] = i
    return first, following, before
