"""Windows: the least times of stretches of tasks, each found separately, as rows for FLOW on all tasks.

With many tasks, checkpoints are few, and between them FLOW sees neither memory nor evictions. But in a deep
network, delays are local: a layer waits for room, and the next one waits for the same reason. FLOW with every
task of a stretch as a checkpoint, and with all copies before and after it free, bounds the time of the
stretch in every schedule. Stretches of repeated layers have the same model, which is solved once.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from itertools import accumulate

from msgspec import UNSET

from ...instances.instance import Instance
from ...instances.memory import fastest, live_ranges
from ...validate.bounds.arguments import least_times
from ..linear.model import LinearModel, LinearResult
from ..scaling import proven_ns
from .families import Window
from .model import Integrality, window_model
from .versions import fixed_blocks

_SHARE, _SHARE_OF_ENDS = 0.25, 0.5
"""Largest share of a tiling's time that one window may use, so that a hard window leaves time to the others.

The second share is for a tiling of two windows, at the ends.
"""


class Windows:
    """The stretches of an instance with their proven least times.

    Parameters
    ----------
    instance
        An instance without recomputable tasks.
    integrality
        The variables that are whole in the models.

    Attributes
    ----------
    known
        Stretches that are proven to take longer than the least times of their tasks.
    """

    def __init__(self, instance: Instance, integrality: Integrality) -> None:
        self.known: list[Window] = []
        self._instance, self._integrality = instance, integrality
        self._before = [0, *accumulate(least_times(instance))]
        self._bounds: dict[bytes, float] = {}  # in the units of each model
        self._live = live_ranges(instance)
        self._scratch = [algorithm.workspace_bytes for algorithm in fastest(instance)]
        self._fixed = fixed_blocks(instance)

    def prove(
        self,
        length: int,
        seconds: float,
        solve: Callable[[LinearModel, float], LinearResult | None],
        *,
        ends: bool = False,
    ) -> None:
        """Cut the tasks into stretches, and bound the time of each whose data does not fit.

        The last tasks are a stretch, too. For it, the idle time of the engine of prefetches is also bounded:
        the data of the last tasks has to come back, and no other data is left to come.

        Parameters
        ----------
        length
            Number of tasks of a stretch.
        seconds
            Time in seconds for all stretches. Stretches that are not bounded by then remain unknown.
        solve
            Function that solves a model within some seconds, and returns None to end early.
        ends
            Whether only the last and the first tasks are stretches, and only their time is bounded.
        """
        if self._instance.has_host_work:
            return  # a window would have to say which runs on the host fall into it
        deadline = time.monotonic() + seconds
        share = _SHARE_OF_ENDS if ends else _SHARE

        def least(first: int, until: int, *, idle: bool) -> int | None:
            """Least time of a stretch, 0 while nothing is known of it; None to end early."""
            model = window_model(self._instance, first, until, self._integrality, self._before, idle=idle)
            key = _digest(model.linear)
            left = deadline - time.monotonic()
            if key not in self._bounds and left > 0:
                result = solve(model.linear, min(left, share * seconds))
                if result is None:
                    return None
                self._bounds[key] = result.bound
            bound = self._bounds.get(key, -math.inf)
            if not math.isfinite(bound):
                return 0
            proven = proven_ns(bound, len(model.linear.cost), model.nanoseconds)
            # where a link stretches a copy, the window may begin at any part of a nanosecond of it
            return max(proven - 1, 0) if idle and self._instance.link is not UNSET else proven

        total = len(self._instance.tasks)
        last = max(total - length, 0)
        tail = (last, total, False)
        if ends:
            stretches = [tail, (0, min(length, total), False)]
        else:
            firsts = range(0, total, length)
            cut = [(first, min(first + length, total), False) for first in firsts]
            stretches = [(last, total, True), tail, *cut]
        for first, until, idle in stretches:
            if self._fits(max(first - 1, 0), until):
                continue
            least_ns = least(first, until, idle=idle)
            if least_ns is None:
                return
            plain = 0 if idle else self._before[until] - self._before[first]
            window = Window(first, until, least_ns, idle)
            if least_ns > plain and window not in self.known:
                self.known.append(window)

    def _fits(self, first: int, until: int) -> bool:
        """Return whether the fastest algorithms fit beside a stretch's data and the blocks that cannot leave.

        All other blocks leave before the stretch and come back after it, at no cost to it.
        """
        instance = self._instance
        kept = self._fixed.union(*(instance.tasks[k].blocks for k in range(first, until)))
        change = [0] * (until - first + 1)
        for d in kept:
            live = self._live[d]
            if live.start < until and live.stop > first:
                change[max(live.start, first) - first] += instance.blocks[d].bytes
                change[min(live.stop, until) - first] -= instance.blocks[d].bytes
        scratch = self._scratch[first:until]
        return all(
            live + size <= instance.pool_bytes
            for live, size in zip(accumulate(change[:-1]), scratch, strict=True)
        )


def _digest(model: LinearModel) -> bytes:
    """Return a digest of all that a solver is given: models with the same digest have the same bound.

    The bound is in the models' own units.
    """
    arrays = (
        model.cost, model.lower, model.upper, model.integer, model.rows, model.columns, model.values,
        model.row_lower, model.row_upper,
    )  # fmt: skip
    seen = hashlib.sha256()
    for array in arrays:
        seen.update(len(array).to_bytes(8) + array.tobytes())
    return seen.digest()
