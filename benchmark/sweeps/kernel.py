"""A fixed piece of work by which seconds of different machines are compared.

The work is never changed: its result is compared with a committed checksum whenever it is timed, and a test
has the checksum of its source. It needs integers only, so that the result is the same on every machine and
with every version of Python and NumPy. How long it takes depends on all three.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from statistics import median
from threading import Lock

import numpy as np

from ...instances.errors import DefectError

RESULT = "e3e7180281100c64da0917d67a9978d61e90699d7718004c354bab3e89167b0b"
"""SHA-256 of what the work gives."""

_TIMES = 5
"""How often the work is timed; the median counts."""

_EVENTS = 120_000
"""Number of events of the first part."""

_NUMBERS = 1_500_000
"""Number of integers of the second part."""


def work() -> str:
    """Do the work, and return the SHA-256 of its result.

    The first part is what a search by rules does in plain Python: events in a heap, and a table of what is
    there. The second part sorts and sums more integers than most caches hold, in NumPy.
    """
    state, clock, moved = 20_260_101, 0, 0
    events: list[tuple[int, int]] = [(i, i) for i in range(512)]
    table: dict[int, int] = {}
    for _ in range(_EVENTS):
        clock, key = heapq.heappop(events)
        state = (state * 1_103_515_245 + 12_345) % 2**31
        if key in table:
            moved = (moved + table.pop(key) * key) % 2**61
        else:
            table[key] = clock ^ state
        heapq.heappush(events, (clock + 1 + state % 977, state % 4_096))
    left = sorted(table.items())
    numbers = np.arange(_NUMBERS, dtype=np.uint64)
    numbers = numbers * np.uint64(6_364_136_223_846_793_005) + np.uint64(state)
    numbers ^= numbers >> np.uint64(29)
    numbers.sort()
    sums = np.cumsum(numbers ^ (numbers >> np.uint64(32)), dtype=np.uint64)
    picked = [int(one) for one in sums[:: _NUMBERS // 64]]
    return sha256(repr((clock, moved, left, picked)).encode()).hexdigest()


def kernel_seconds() -> float:
    """Return how long the work takes here in seconds, as it was measured when this process first asked."""
    with _timing:
        return _measured()


def measure_kernel(work: Callable[[], str] = work, clock: Callable[[], float] = time.perf_counter) -> float:
    """Do the work some times, and return the median time in seconds.

    Raises
    ------
    DefectError
        When the result is another one than on other machines.
    """
    seconds = []
    for _ in range(_TIMES):
        began = clock()
        result = work()
        seconds.append(clock() - began)
        if result != RESULT:
            raise DefectError(
                f"the kernel that times this machine gives {result[:12]} and not {RESULT[:12]}: "
                "its code was changed, or this machine computes wrongly"
            )
    return median(seconds)


_timing = Lock()
"""Lock that is held while the work is timed, so that no run of this process begins meanwhile."""


@cache
def _measured() -> float:
    return measure_kernel()
