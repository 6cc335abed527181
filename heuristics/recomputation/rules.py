"""Systems that compute data again, each as a documented rule: they differ only in the data that they drop.

As in `comparators`, a rule is what the sources say of the policy in two sentences. In comparisons, the rules
work on an instance whose forward tasks may run again (`planned`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import gcd, isqrt

import numpy as np

from ...instances.instance import Instance
from ...instances.memory import with_budget
from ...instances.networks.kinds import described_kind
from ...instances.transforms import with_recomputation
from ...instances.units import LARGEST, format_size
from ..clock import OutOfTime, limited, look
from ..methods import Answer, Limits, Refusal, register
from ..papers.layers import layer_steps
from ..program.placement import Issue
from ..program.sketch import Sketch
from .plan import (
    NOTHING_AGAIN,
    Policy,
    Recomputation,
    recomputed,
    restorable,
    turn,
    used_later,
)

_OFFLOADED = ("convolution", "join")
"""Groups of kinds of layers that SuperNeurons offloads.

To compute the output of a join again would need the outputs of all layers before it.
"""

_STEPS = 10_000
"""Greatest number of steps into which the knapsack divides its capacity, as in PyTorch."""


def planned(instance: Instance) -> Instance:
    """Return the instance that these rules schedule in a comparison: its forward tasks may run again."""
    again = any(task.recomputable for task in instance.tasks)
    return instance if again else with_recomputation(instance)


@register(
    "memonger-rule",
    "forward pass in sqrt(n) segments: keep what crosses their ends, compute the rest again",
    "Chen et al., arXiv 1604.06174, section 4",
    shown="named",
    transform=planned,
)
@limited
def memonger(instance: Instance, limits: Limits) -> Answer:
    """Cut the forward pass into segments of nearly equal bytes, where few bytes cross, and keep what crosses.

    Raises
    ------
    Refusal
        When no block can be computed again, or there is no room.
    """
    found = _restorable(instance)
    return Answer(recomputed(instance, limits, Policy(found - _crossing(instance)), "memonger-rule"))


@register(
    "superneurons-rule",
    "what the budget asks for: nothing, else offload convolutions, else compute cheap layers again as well",
    "SuperNeurons (PPoPP 2018), abstract; Layrub (TACO 2018), section 7",
    shown="named",
    transform=planned,
)
@limited
def superneurons(instance: Instance, limits: Limits) -> Answer:
    """Release dead blocks, offload outputs of convolutions and joins, and compute cheap layers again.

    Cheap layers are, for example, pooling and norms. Workspaces use the room that each task has. Offloaded
    data is prefetched up to the next convolution, where there is room.

    Raises
    ------
    Refusal
        When even all three techniques leave too little room.
    """
    kind = {k: described_kind(unit.kind) for unit in layer_steps(instance) for k in unit.tasks}
    hosted, cheap = set(), set()
    for d in used_later(instance, range(len(instance.blocks))):
        block, writers = instance.blocks[d], instance.writers[d]
        offloads = bool(writers) and kind[writers[0]].group in _OFFLOADED
        if offloads and None not in (block.offload_ns, block.prefetch_ns):
            hosted.add(d)
    for d in used_later(instance, restorable(instance)):
        if not kind[instance.writers[d][0]].expensive:
            cheap.add(d)
    ahead = _ahead(instance, hosted)
    reason = ""
    for policy in (Policy(), Policy(hosted=hosted, ahead=ahead), Policy(cheap - hosted, hosted, ahead=ahead)):
        try:
            return Answer(recomputed(instance, limits, policy, "superneurons-rule"))
        except OutOfTime:
            raise
        except Refusal as refusal:
            reason = str(refusal)
    raise Refusal(reason)


@register(
    "knapsack-rule",
    "segments as memonger-rule; inside them a knapsack chooses what is kept as well",
    "selective activation checkpointing under a memory budget, as in PyTorch",
    shown="named",
    transform=planned,
)
@limited
def knapsack(instance: Instance, limits: Limits) -> Answer:
    """Choose what to keep inside segments by a knapsack: values are times to compute again, weights bytes.

    The capacity is the memory that is free at the peak of the program that keeps only what crosses the
    segments' ends.

    Raises
    ------
    Refusal
        When no block can be computed again, or the program does not fit.
    """
    found = sorted(_restorable(instance) - _crossing(instance))
    times = [min(a.duration_ns for a in instance.tasks[instance.writers[d][0]].algorithms) for d in found]
    sizes = [instance.blocks[d].bytes for d in found]
    least = Policy(frozenset(found))
    room = instance.pool_bytes - _peak(instance, least)
    if room < 0:
        raise Refusal(f"keeping only what crosses the ends of segments takes {format_size(-room)} too much")
    kept = fill(times, sizes, room)
    chosen = Policy({d for d, keeps in zip(found, kept, strict=True) if not keeps})
    try:
        return Answer(recomputed(instance, limits, chosen, "knapsack-rule"))
    except OutOfTime:
        raise
    except Refusal:
        return Answer(recomputed(instance, limits, least, "knapsack-rule"))


def _issue(policy: Policy, most: int) -> Issue:
    """Return the function that issues the program with workspaces of at most so many bytes."""
    return lambda builder: Recomputation(builder, policy, most).all()


def _restorable(instance: Instance) -> set[int]:
    """Return the blocks that the backward pass needs and that can be computed again.

    Raises
    ------
    Refusal
        When there is no such block.
    """
    found = used_later(instance, restorable(instance))
    if not found:
        raise Refusal(NOTHING_AGAIN)
    return found


def _crossing(instance: Instance) -> set[int]:
    """Return the blocks that cross the ends of sqrt(n) segments of the forward pass with n layers.

    A segment ends where the fewest bytes cross, at most half a segment away from an equal share of bytes.
    """
    end = turn(instance)
    made, crossing = [0] * end, [0] * (end + 1)
    spans: dict[int, tuple[int, int]] = {}
    for d, uses in enumerate(instance.uses):
        forward = [k for k in uses if k < end]
        if not forward or not instance.writers[d]:
            continue
        spans[d] = forward[0], forward[-1]
        made[forward[0]] += instance.blocks[d].bytes
        crossing[forward[0]] += instance.blocks[d].bytes
        crossing[forward[-1]] -= instance.blocks[d].bytes
    across = np.cumsum(crossing[: end - 1], dtype=np.int64)
    so_far = np.cumsum(made, dtype=np.int64)
    count = max(isqrt(sum(unit.tasks[0] < end for unit in layer_steps(instance))), 1)
    share = int(so_far[-1]) / count
    cuts = []
    for i in range(1, count):
        away = np.abs(so_far[: end - 1] - i * share)
        near = np.flatnonzero(away <= share / 2)
        if len(near):
            cuts.append(int(near[np.lexsort((away[near], across[near]))[0]]))
    cuts.sort()
    return {
        d
        for d, (first, last) in spans.items()
        if (i := bisect_left(cuts, first)) < len(cuts) and cuts[i] < last
    }


def _ahead(instance: Instance, hosted: set[int]) -> dict[int, tuple[int, ...]]:
    """Return, per first task of a backward layer, hosted blocks of the layers up to the next convolution."""
    end, all_units = turn(instance), layer_steps(instance)
    ahead: dict[int, tuple[int, ...]] = {}
    wanted: tuple[int, ...] = ()
    for unit in reversed(all_units):
        if unit.tasks[0] < end:
            break
        ahead[unit.tasks[0]] = wanted
        needs = tuple(dict.fromkeys(d for k in unit.tasks for d in instance.tasks[k].inputs if d in hosted))
        wanted = needs if unit.group == "convolution" else (*needs, *wanted)
    return ahead


def fill(values: Sequence[int], sizes: Sequence[int], capacity: int) -> list[bool]:
    """Solve a 0-1 knapsack by dynamic programming on the capacity.

    It is exact where few multiples of what divides all sizes fit; else, sizes are rounded up to larger steps.
    """
    if capacity >= sum(sizes):
        return [True] * len(sizes)
    unit = gcd(*sizes)
    step = unit * (-(-capacity // (unit * _STEPS)) or 1)
    room = capacity // step
    best = np.zeros(room + 1, dtype=np.int64)
    taken = np.zeros((len(sizes), room + 1), dtype=bool)
    weights = [-(-size // step) for size in sizes]
    for i, (value, weight) in enumerate(zip(values, weights, strict=True)):
        look()
        if weight <= room:
            with_it = best[: len(best) - weight] + value  # also where it is nothing
            taken[i, weight:] = with_it > best[weight:]
            best[weight:] = np.maximum(best[weight:], with_it)
    kept = [False] * len(sizes)
    for i in reversed(range(len(sizes))):
        if taken[i, room]:
            kept[i] = True
            room -= weights[i]
    return kept


def _peak(instance: Instance, policy: Policy) -> int:
    """Return the greatest number of bytes that a policy uses of the pool, with the smallest workspaces."""
    sketch = Sketch(with_budget(instance, LARGEST))
    _issue(policy, 0)(sketch)
    return sketch.peak_bytes
