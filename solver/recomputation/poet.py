"""The method ``poet``: recomputation and paging as one integer program, after POET (Patil et al., ICML 2022).

The program over stages of `stage_model`, with pages: before a stage begins, blocks are copied to the host,
let go, and copied back, and nothing runs beside copies. So their times add up, and a whole variable for each
stage, block and direction says what is copied. POET minimises energy under a deadline; here it is time.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...heuristics.clock import until
from ...heuristics.gaps import require_copies
from ...heuristics.loading import loads
from ...heuristics.methods import Answer, Limits, Refusal, register
from ...heuristics.recomputation.rules import planned
from ...instances.instance import Instance
from ..linear.model import takes_whole_columns
from ..linear.worker import LinearWorker, load_solver
from ..packing.pack import load_packing
from ..scaling import copies_ns
from .stage_model import Action, StageModel, Stages, chosen_in, placed, require_stages, with_releases


@register(
    "poet",
    "recomputation and copies, as an integer program in which no copy runs beside compute",
    "Patil et al., ICML 2022",
    shown="named",
    transform=planned,
)
@loads(load_solver, load_packing)
def poet(instance: Instance, limits: Limits) -> Answer:
    """Solve the integer program, and issue what it decides: copies then run beside compute where they can.

    It proves nothing of the instance, whose schedules need not keep to stages.

    Raises
    ------
    Refusal
        For a solver without whole variables, an instance that is too large or asks for a copy that it makes
        impossible, or a program that finds no addresses.
    """
    require_copies(instance)
    if not takes_whole_columns(limits.solver):
        raise Refusal(f"poet: solver '{limits.solver}' takes no whole variables")
    stages = require_stages("poet", instance)
    deadline = math.inf if limits.time_limit is None else time.monotonic() + limits.time_limit
    paged = PagedStages(instance, stages, limits.memory)
    schedule = None
    try:
        with until(deadline):
            model = paged.build()
        with LinearWorker(limits.solver) as worker:
            left = None if math.isinf(deadline) else max(deadline - time.monotonic(), 0.0)
            worker.start(
                model.linear, time_limit=left, workers=limits.workers, seed=limits.seed, log=limits.log
            )
            result = worker.result()
        stopped_by = {
            "optimal": "done",
            "infeasible": "no program of stages fits",
            "error": result.detail,
        }.get(result.status, "time limit")
        if result.values is not None:
            actions = with_releases(instance, paged.actions(model, result.values))
            schedule = placed(instance, actions, limits, deadline).finish("poet")
    except KeyboardInterrupt:
        stopped_by = "interrupted"
    return Answer(schedule, stopped_by)


@dataclass(slots=True)
class PagedStages(Stages):
    """Builds the program with pages.

    Attributes
    ----------
    offloads, prefetches
        Per stage and block, the column that says whether it is copied before the stage begins.
    host
        Per block, the column of what the host has of it, as far as stages have been built.
    """

    offloads: dict[tuple[int, int], int] = field(default_factory=dict, init=False)
    prefetches: dict[tuple[int, int], int] = field(default_factory=dict, init=False)
    host: dict[int, int] = field(default_factory=dict, init=False)

    def actions(self, model: StageModel, values: NDArray[np.float64]) -> list[Action]:
        """Read a solution: before each stage the copies out, then those back; then its runs."""
        chosen = chosen_in(model, values)
        out, back = self.offloads.items(), self.prefetches.items()
        found = [(t, Action("offload", d)) for (t, d), copy in out if values[copy] > 0.5]
        found += [(t, Action("prefetch", d)) for (t, d), copy in back if values[copy] > 0.5]
        found += [(t, Action("run", k, algorithm)) for (t, k), algorithm in chosen.items()]
        return [action for _, action in sorted(found, key=lambda one: one[0])]

    def _at_start(self, d: int, t: int, left: int | None) -> int | None:
        """What the stage before has left, and what comes back from the host."""
        block = self.instance.blocks[d]
        if t == 0 and block.initially != "absent":
            self.host[d] = self._column(1.0, 1.0)
        self._save(d, t, left)
        if d not in self.host or block.prefetch_ns is None:
            return left
        copy, start = self._copy(block.prefetch_ns), self._column(1.0)
        self.prefetches[t, d] = copy
        self._at_most(copy, [self.host[d]])
        self._at_most(start, [copy] if left is None else [copy, left])
        return start

    def _copies_ns(self) -> int:
        return copies_ns(self.instance.blocks)

    def _add_block(self, d: int, size: float, rows: dict[tuple[int, int], int]) -> int | None:
        """As without pages; what must end on the host is copied at last, if it has not been."""
        left = Stages._add_block(self, d, size, rows)
        if self.instance.blocks[d].finally_ == "host" and self.instance.writers[d]:
            self._save(d, len(self.stages), left)
            self.builder.entries(self.builder.rows(1, lower=1.0), self.host[d], 1.0)
        return left

    def _save(self, d: int, t: int, left: int | None) -> None:
        """Let the host have, before a stage, what it had if that is valid, or what is copied."""
        block, writers = self.instance.blocks[d], self.instance.writers[d]
        written = bisect_left(writers, t)
        if written and writers[written - 1] == t - 1:
            self.host.pop(d, None)
        if left is None or block.offload_ns is None or not written:
            return
        copy, held = self._copy(block.offload_ns), self._column(1.0)
        self.offloads[t, d] = copy
        self._at_most(copy, [left])
        self._at_most(held, [copy, self.host[d]] if d in self.host else [copy])
        self.host[d] = held

    def _copy(self, ns: int) -> int:
        """A column that says whether a block is copied, at the price of its time."""
        return int(self.builder.columns(1, upper=1.0, cost=ns / self.ns, integer=True)[0])
