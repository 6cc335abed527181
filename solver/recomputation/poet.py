"""The method ``poet``: recomputation and paging as one integer program, after POET (Patil et al., ICML 2022).

This is the integer program over stages of `stage_model`, with paging: before a stage begins, blocks are
copied to the host, released, and copied back, and no task runs beside copies. So the times of copies add up.
A whole variable for each stage, block and direction says whether the block is copied. POET minimises energy
under a deadline; here, time is minimised.
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
    """Solve the integer program, and build the schedule of its decisions, where copies may overlap compute.

    The program proves nothing about the instance, because other schedules need not have stages.

    Raises
    ------
    Refusal
        When the solver has no whole variables, the instance is too large or requires a copy that it makes
        impossible, or no addresses are found.
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
    """A builder of the integer program with paging.

    Attributes
    ----------
    offloads, prefetches
        Per stage and block, the column that says whether the block is copied before the stage begins.
    host
        Per block, the column of the share that the host has, for the stages built so far.
    """

    offloads: dict[tuple[int, int], int] = field(default_factory=dict, init=False)
    prefetches: dict[tuple[int, int], int] = field(default_factory=dict, init=False)
    host: dict[int, int] = field(default_factory=dict, init=False)

    def actions(self, model: StageModel, values: NDArray[np.float64]) -> list[Action]:
        """Return a solution's actions: before each stage, copies out, then copies back; then its runs."""
        chosen = chosen_in(model, values)
        out, back = self.offloads.items(), self.prefetches.items()
        found = [(t, Action("offload", d)) for (t, d), copy in out if values[copy] > 0.5]
        found += [(t, Action("prefetch", d)) for (t, d), copy in back if values[copy] > 0.5]
        found += [(t, Action("run", k, algorithm)) for (t, k), algorithm in chosen.items()]
        return [action for _, action in sorted(found, key=lambda one: one[0])]

    def _at_start(self, d: int, t: int, left: int | None) -> int | None:
        """Return the column of a block at a stage's start: the share that was left or that comes back."""
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
        """Add a block as without paging; if it must end on the host, it is copied at the end if need be."""
        left = Stages._add_block(self, d, size, rows)
        if self.instance.blocks[d].finally_ == "host" and self.instance.writers[d]:
            self._save(d, len(self.stages), left)
            self.builder.entries(self.builder.rows(1, lower=1.0), self.host[d], 1.0)
        return left

    def _save(self, d: int, t: int, left: int | None) -> None:
        """Add what the host has before a stage: a copy that it had and that is valid, or one that is made."""
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
        """Return a column that says whether a block is copied, with its time as the cost."""
        return int(self.builder.columns(1, upper=1.0, cost=ns / self.ns, integer=True)[0])
