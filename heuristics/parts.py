"""Tensors in parts: which blocks belong together, and in which order they are evicted and prefetched.

Equal parts of a tensor that are used alike are interchangeable. So only suffixes need to be evicted: the last
part is offloaded first and prefetched last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

from ..instances.instance import Instance
from ..instances.memory import footprint, live_bytes, needs
from ..instances.transforms import in_parts, split_parts
from ..instances.units import PAGE_BYTES, ceil_to
from .clock import look
from .gaps import Gap, gaps_of
from .methods import Refusal

_MOST = 96
"""Number of parts that a search can handle; twice the number of tensors where that is more.

With 256 parts, VGG-16 (batch of 256) on a V100 at 1.05 M_min takes as long in paged memory, and longer in
contiguous memory.
"""

_WASTE = Fraction(2, 100)
"""Largest share of the room left by other tasks that a tensor's parts may leave empty."""


def with_parts(instance: Instance, whole: Collection[int] = ()) -> Instance:
    """Return the instance with its tensors cut into parts, if cutting them is of use.

    Only tensors that can be evicted are cut. All parts have about the same size, the least with which there
    are not too many, so that the largest tensors have the most parts. Where memory is short, the parts of a
    tensor come and go in the room that other tasks leave. If a number of parts fills this room badly, a
    tensor gets up to twice as many. An instance that is in parts already is returned unchanged.

    Parameters
    ----------
    instance
        An instance.
    whole
        Blocks that are not cut.

    Raises
    ------
    PebblerError
        As `split_parts`.
    """
    if in_parts(instance):
        return instance
    gaps = {(d, after): until for (d, after), until in gaps_of(instance).items() if d not in whole}
    away = {d for d, _ in gaps}
    size = _even_size([instance.blocks[d].bytes for d in away])
    room = _room(instance, gaps)
    return split_parts(instance, {d: _fitting(instance.blocks[d].bytes, size, room[d]) for d in sorted(away)})


def _even_size(sizes: Sequence[int]) -> int:
    """Return the least size of parts with which there are not too many."""
    most = max(_MOST, 2 * len(sizes))
    size = PAGE_BYTES
    while sum(-(-total // size) for total in sizes) > most:
        size += max(size // 8 // PAGE_BYTES, 1) * PAGE_BYTES
    return size


def _room(instance: Instance, gaps: Mapping[Gap, int]) -> dict[int, list[int]]:
    """Return, per block that can leave, the bytes left by tasks beside its gaps, where more could lie."""
    left = [instance.budget_bytes - need for need in needs(instance)]
    between = [live - footprint(instance, k) for k, live in enumerate(live_bytes(instance))]
    room: dict[int, list[int]] = {d: [] for d, _ in gaps}
    for (d, after), until in gaps.items():
        room[d] += [left[k] for k in (after + 1, until - 1) if between[k] > left[k] > 0]
    return room


def _fitting(total: int, size: int, room: Sequence[int]) -> int:
    """Return the size of a tensor's parts with which whole numbers of them fill the room best."""
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
    """Return, for every tensor that is in parts, its blocks in the order of their offsets in the tensor."""
    tensors: dict[str, list[int]] = defaultdict(list)
    for d, block in enumerate(instance.blocks):
        if block.tensor is not None:
            tensors[block.tensor].append(d)
    return [sorted(parts, key=lambda d: instance.blocks[d].begin or 0) for parts in tensors.values()]


def require_parts_alike(instance: Instance) -> None:
    """Refuse parts of a tensor that have bytes between them, or that tasks or copies treat differently.

    Raises
    ------
    Refusal
        Names the first such tensor.
    """
    for parts in tensors_of(instance):
        look()
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
            begin + ceil_to(b.bytes, instance.alignment_bytes)
            for begin, b in zip(begins, blocks, strict=True)
        ]
        if len(kinds) > 1 or begins != [0, *ends[:-1]]:
            raise Refusal(
                f"local search: the parts of '{blocks[0].tensor}' differ in their uses or copies, or do not "
                "follow each other; such parts are placed in paged memory only"
            )
