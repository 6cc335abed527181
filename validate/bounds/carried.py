"""Carried blocks in the bound by prices: the cheapest course through a round that ends where it begins.

Intervals and instants are those of `arguments.Prices`. This module imports nothing that solves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from ...instances.instance import Instance
from .machine import CopyCosts

NEVER = 1 << 400
"""A price above all that figures of files can make: the course is not possible."""


class _Paid(NamedTuple):
    """The least paid so far to be on the device alone, on the device and the host, or on the host alone."""

    device: int
    both: int
    host: int


def cheapest_round(
    instance: Instance,
    d: int,
    checkpoints: Sequence[int],
    memory: Sequence[int],
    away: Sequence[int],
    costs: CopyCosts,
    ends: Sequence[int],
) -> int:
    """Return the least that a carried block pays in a round for memory and copies, at the given prices.

    At the end, the block is on the device if it was there at the start, and the host has its latest version
    if it had a valid copy at the start. The search goes step by step through the intervals, once for each
    choice of the places at both ends. In each interval, the block may arrive by a prefetch. If tasks of the
    interval touch it, it has to be there; if one writes it, the host's copy is stale. Then it may be
    offloaded, but not in the interval of the checkpoint that writes it. What the host has may leave.

    Parameters
    ----------
    instance, d, checkpoints
        The block `d` is carried.
    memory, away
        Per instant, what a byte pays on the device, and at least pays while it is absent.
    costs
        What copies of the block cost by interval.
    ends
        What a byte pays at both ends together: on the device, and on the host.
    """
    if not instance.uses[d]:
        return 0
    on_device, on_host = (instance.blocks[d].bytes * price for price in ends)
    both = _Paid(NEVER, on_device + on_host, NEVER)
    host = _Paid(NEVER, NEVER, on_host)
    device = _Paid(on_device, NEVER, NEVER)

    def course(start: _Paid) -> _Paid:
        return _course(instance, d, checkpoints, memory, away, costs, start)

    paid = [course(both).both, min(course(host)[1:])]
    if instance.writers[d] or instance.has_host_budget:
        paid.append(min(course(device)[:2]))
    return min(paid)


def _course(
    instance: Instance,
    d: int,
    checkpoints: Sequence[int],
    memory: Sequence[int],
    away: Sequence[int],
    costs: CopyCosts,
    paid: _Paid,
) -> _Paid:
    """Return the least that is paid by the end of the round, from what is paid at the start."""
    block = instance.blocks[d]
    used = {_interval(k, checkpoints) for k in instance.uses[d]}
    written = {_interval(k, checkpoints) for k in instance.writers[d]}
    device, both, host = paid
    last = 2 * len(checkpoints)
    for j in range(last + 1):
        out = NEVER if costs.out_ns is None else costs.out_ns * costs.out[j]
        if costs.back_ns is not None:
            both = min(both, host + costs.back_ns * costs.back[j])
        if j in written:
            device, both, host = min(device, both), NEVER, NEVER
        elif j in used:
            host = NEVER
        if j not in written or j % 2 == 0:
            both = min(both, device + out)
        touched = (j in used) if j % 2 else (j + 1 in used)  # by the checkpoint of the instant
        if touched:
            host = NEVER
        else:
            host = min(host, both)
            if j < last:
                rent = block.bytes * memory[j]
                device, both, host = device + rent, both + rent, host + block.bytes * away[j]
    return _Paid(device, both, host)


def _interval(k: int, checkpoints: Sequence[int]) -> int:
    """Return the interval in which a task runs first."""
    return bisect_left(checkpoints, k) + bisect_right(checkpoints, k)
