"""What streams do in the exhaustive search, and how fast, where copies share a link or slow runs down.

Work that is left is counted in nanoseconds of its time alone. So whatever needs no more than that time alone
of a stream remains a bound on the time until the stream is idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import msgspec

from ...instances.figures import MILLION
from ...instances.instance import Instance
from ...validate.gpus.bus import fair_shares


class Busy(NamedTuple):
    """The current work of a stream: task or block, algorithm, time left, and the workspace's place."""

    kind: str
    item: int
    algorithm: int
    left: int | Fraction
    workspace: int
    source: int


_Works = tuple[tuple[str, int] | None, ...]
"""Per stream, the kind of its work, and the task or block; None: it is idle."""


class Pace:
    """How fast streams work beside each other.

    Parameters
    ----------
    instance
        An instance whose copies share a link or slow runs down.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._known: dict[_Works, tuple[int | Fraction, ...]] = {}

    def until_next_end(self, streams: Sequence[Busy | None]) -> tuple[int, list[int | Fraction]]:
        """Return the time until something ends, and what is left of each stream's work then; 0 if idle."""
        works = tuple(busy and (busy.kind, busy.item) for busy in streams)
        if works not in self._known:
            self._known[works] = self._speeds(works)
        speeds = self._known[works]
        elapsed = min(
            -(-busy.left // speed) if busy.left else 0
            for busy, speed in zip(streams, speeds, strict=True)
            if busy and (speed or not busy.left)
        )
        return elapsed, [
            max(busy.left - speed * elapsed, 0) if busy else 0
            for busy, speed in zip(streams, speeds, strict=True)
        ]

    def _speeds(self, works: _Works) -> tuple[int | Fraction, ...]:
        """Return how fast each stream works, in nanoseconds of its time alone.

        The full speed is a whole number, with which Python counts much faster than with a fraction.
        """
        speeds: list[int | Fraction] = [1] * len(works)
        copies = [
            s for s, work in enumerate(works) if work is not None and work[0] in ("offload", "prefetch")
        ]
        kinds, link = set[str](), self._instance.link
        rates = []
        for s in copies:
            kind, d = works[s] or ("", 0)
            kinds.add(kind)
            block = self._instance.blocks[d]
            alone = (block.offload_ns if kind == "offload" else block.prefetch_ns) or 1
            if link is not msgspec.UNSET:
                rates.append(link.load(block.loaded_bytes, alone) / alone)
        if link is not msgspec.UNSET:
            for s, rate, share in zip(copies, rates, fair_shares(link.rate, rates), strict=True):
                speeds[s] = 1 if share == rate else share / rate
        if works[0] is not None and works[0][0] == "run":
            slowdown = self._instance.tasks[works[0][1]].slowdown_ppm
            if slowdown is not msgspec.UNSET:
                lost = slowdown.offload * ("offload" in kinds) + slowdown.prefetch * ("prefetch" in kinds)
                speeds[0] = Fraction(MILLION - lost, MILLION)
        return tuple(speeds)
