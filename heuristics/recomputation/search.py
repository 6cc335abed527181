"""Local search with recomputation: over plans of what runs again, each searched for its transfers.

Between two uses, a block is kept, copied to the host and back, or computed again by its producer. The first
two are decisions of `LocalSearch` on the instance that a plan unrolls to; the third is a change of the plan.
Plans change by late acceptance. A change adds a second run for a stay (with runs of the producers of its
inputs, back to a random depth), leaves out a second run, or moves it before another first run. A plan is
judged by a short search that starts from the evictions of the plan before it. The search of the best plan is
continued. A descent that has found nothing better for long gives way to another one.

Where memory has no addresses, another search (`plans`) finds plans hundreds of times as quickly, together
with the blocks that are away. If nothing can be copied, no others are tried.

Importing this module imports Numba.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...instances.instance import Instance
from ...validate.schedule import MemoryModel, Schedule
from ..gaps import Guide, require_copies
from ..methods import Refusal
from ..parts import require_parts_alike
from ..search.columns import Integers, columns_of
from ..search.descents import Descents
from ..search.kernel import Problem
from ..search.problem import arranged
from ..search.program import program_of
from .plans import PlanSearch, is_alone
from .reruns import Plan, Run, last_stages, plan_of, rolled_up, unrolled, useful
from .takeovers import without_takeovers
from .unrolling import Unrolling, excess, overwrites_of, unrolling

_HISTORY = 20
"""Number of earlier costs that late acceptance compares a plan with."""

_EFFORT = 5
"""Number of programs that are simulated to judge a plan."""

_ROUND = 2_500_000
"""Number of tasks that are simulated in a round."""

_POLISH = 20
"""Length of one continuation of the best plan's search, in plans that could be judged instead."""

_PATIENCE = 20
"""Number of plans without a better program, per task that may run again, after which the search is done."""

_DRAWS = 12
"""Number of plans to choose from where the pool is too small for the current plan."""

_CALM = 60
"""Number of plans without a better one after which a descent returns to its best plan."""

_STALE = 2000
"""Number of plans without a better one after which another descent begins."""

_STRENGTHS = 4
"""Number of strengths of the changes before a descent from the best plan: one change, two, four, ..."""


class Share(NamedTuple):
    """The share of the time for plans alone, and how many runs are judged then in the time of one."""

    part: float
    quicker: int


ALONE, WITH_COPIES = Share(0.8, 12), Share(0.8, 4)
"""Where plans say all, and where blocks are copied."""

_LONG_TURN = 1_000_000
"""Number of runs from which on a turn of plans alone does not end within a first cycle."""

NARROWER, WIDER, LEAST = 0.01, 0.004, 0.5
"""How much of the pool less, or more, plans alone have next; the least part that they have."""


@dataclass(frozen=True, slots=True)
class Makers:
    """Per block, the task that may make it again, or -1; per task, the last stage in which it may."""

    of: Integers
    last: Integers


def makers_of(instance: Instance) -> Makers:
    """Return what may be made again, and until when."""
    of = np.full(len(instance.blocks), -1, dtype=np.int64)
    for k, task in enumerate(instance.tasks):
        if task.recomputable:
            of[[*task.outputs]] = k
    return Makers(of, np.array(last_stages(instance), dtype=np.int64))


@dataclass(frozen=True)
class Point:
    """A plan and the search for its transfers; `excess` counts the bytes without room whatever is evicted.

    What changes of a plan ask for is computed once: most changes are of the same plan.
    """

    plan: Plan
    again: Unrolling
    search: Descents
    excess: int
    makers: Makers

    @property
    def cost(self) -> tuple[int, int]:
        """Excess, then the cost of the search: the less, the better."""
        return self.excess, self.search.cost

    @cached_property
    def guide(self) -> Guide:
        """The evictions of the search's first programs."""
        return self.search.guide()

    @cached_property
    def late(self) -> list[int]:
        """The tasks before which compute waits in them, the longest wait first."""
        return self.search.stalls()

    @cached_property
    def bridges(self) -> tuple[Integers, Integers, Integers, Integers]:
        """Stays that a second run can replace: its task and stage, and the runs before and after the stay."""
        block, after, until = self.again.stays()
        stage = np.array([*(t for _, t in self.again.runs), len(self.makers.last)])[until]
        maker = self.makers.of[block]
        chosen = (until > after + 1) & (maker >= 0) & (maker < stage) & (stage <= self.makers.last[maker])
        return maker[chosen], stage[chosen], after[chosen], until[chosen]


def offered(plans: PlanSearch, point: Point, guide: Guide | None) -> None:
    """Offer a plan to a search for plans alone; one with a guide is a model's, and is suggested."""
    if guide is None:
        plans.offer(point.plan, away=point.again.away(point.guide))
    else:
        plans.suggest(point.plan, away=point.again.away(guide))


class RerunSearch:
    """A local search over what runs again, and transfers, that can be stopped and continued.

    Parameters
    ----------
    instance, memory
        The instance to schedule, and the memory model. What tasks read does not depend on algorithms. Outputs
        that may take over the place of an input with each algorithm of a task do so where nothing needs the
        input behind the run.
    seed
        Seed of the random decisions.
    without
        Rules of `LocalSearch` to leave out.
    addresses
        Whether addresses count in contiguous memory. If not, blocks need only free bytes.

    Attributes
    ----------
    best
        The best plan so far, and the search for its transfers.
    says_all
        Whether a plan says all, as nothing can be copied.

    Raises
    ------
    Refusal
        Where tasks may run on the host; where a copy that is required is impossible; for parts in contiguous
        memory that tasks or copies treat differently.
    """

    def __init__(
        self,
        instance: Instance,
        memory: MemoryModel,
        seed: int = 0,
        without: Collection[str] = (),
        *,
        addresses: bool = True,
    ) -> None:
        if instance.has_host_work:
            raise Refusal("second runs are not modelled together with work on the host; take flow")
        self.instance, self.memory = instance, memory
        self.seed, self.without = seed, tuple(without)
        self._addresses = addresses
        self._random = np.random.default_rng(seed)
        require_copies(instance)
        if memory == "contiguous":
            require_parts_alike(instance)
        self._columns = columns_of(without_takeovers(instance), memory)
        self._overwrites = overwrites_of(instance, self._columns)
        self._makers = makers_of(instance)
        last = self._makers.last
        self._candidates = int(np.count_nonzero(last > np.arange(len(last))))
        self._polished = self._explored = self._best_at = 0
        self._offered: list[Point] = []
        self._waiting: list[Point] = []
        self._tried = self._lowest_at = 0
        self.says_all = is_alone(self._columns)
        self._planner = None if memory == "contiguous" else self.plans()
        self.best = self._current = self._lowest = self.point(frozenset(), None)
        self._set_off(self.best)

    def plans(self) -> PlanSearch | None:
        """Return a search for plans alone; None where nothing may run again."""
        if not self._candidates:
            return None
        return PlanSearch(self._columns, self._makers.of, self._makers.last, self.seed, self._overwrites)

    # --- what is known ----------------------------------------------------------------------------

    @property
    def makespan_ns(self) -> int | None:
        """Makespan of the best program so far; None while there is none."""
        return self.best.search.makespan_ns

    @property
    def done(self) -> bool:
        """Whether the search has gone on for long without a better program."""
        polished = self.best.excess > 0 or self.best.search.done
        planned = self._planner is None or self._planner.done
        if self._planner is not None and self.says_all:
            return polished and planned
        return polished and planned and self._tried - self._best_at >= _PATIENCE * self._candidates

    @property
    def round(self) -> int:
        """Number of tasks to simulate in one call of `run`."""
        return _ROUND if self._candidates else self.best.search.round

    def schedule(self, method: str) -> Schedule | None:
        """Return the best program as a schedule; None while there is none."""
        search = self.best.search
        if search.makespan_ns is None:
            return None
        again = unrolled(self.instance, self.best.plan)
        program = program_of(again.instance, search.problem, self.memory, search.log())
        return rolled_up(self.instance, again, program.finish(method), method)

    # --- what is tried ----------------------------------------------------------------------------

    def offer(self, start: Schedule | Guide) -> None:
        """Start from the second runs of a schedule, or from a guide to transfers without second runs."""
        if isinstance(start, Schedule):
            plan = useful(self.instance, plan_of(start))
            self.offer_plan(plan if all(self._may(k, t) for k, t in plan) else frozenset(), None)
        else:
            self.offer_plan(frozenset(), start)

    def offer_plan(self, plan: Plan, guide: Guide | None) -> Point:
        """Start from second runs, and from a guide to transfers for the instance in which they are tasks.

        The first plan with a guide begins a descent, and so does what is better than all plans of this
        descent. Others are tried for a moment, and those with a guide begin descents later. A plan with a
        guide is a suggestion to the search for plans alone. Return the plan after a short search.
        """
        point = self.point(plan, guide)
        if self._planner is not None:
            offered(self._planner, point, guide)
        first = guide is not None and not self._offered
        if guide is not None:
            self._offered.append(point)
        if first or point.cost < self._lowest.cost:
            self._set_off(point)
            return point
        self._current = point
        if guide is not None:
            self._waiting.append(point)
        return point

    def run(self, seconds: float = math.inf, work: int = 100_000) -> None:
        """Continue the search until so many tasks have been simulated, or some seconds have passed."""
        until = time.monotonic() + seconds
        if self._planner is not None:
            share = int(self.share.part * work)
            self._plan(self._planner, self.share.part * seconds, share)
            work -= share
        goal = self._polished + self._explored + work
        while self._polished + self._explored < goal and time.monotonic() < until:
            plans_say_all = self._planner is not None and self.says_all
            polishes = plans_say_all or self._polished <= self._explored or not self._candidates
            if self.best.excess:
                self._relieve()
            elif polishes and not self.best.search.done:
                self._polish(until - time.monotonic(), goal)
            elif not plans_say_all:
                self._step()
            else:
                break

    @property
    def share(self) -> Share:
        """What plans alone have of the time."""
        return ALONE if self.says_all else WITH_COPIES

    def _plan(self, plans: PlanSearch, seconds: float, work: int) -> None:
        """Look for a plan alone; take it if its program is the best."""
        known, work = plans.time_ns, self.share.quicker * work
        plans.run(seconds, work, cycle=work >= _LONG_TURN)
        if plans.time_ns != known:
            point = self.planned(plans)
            if point.cost < self.best.cost:
                self._set_off(point)

    def planned(self, plans: PlanSearch) -> Point:
        """Return the best plan of a search for plans alone, with its copies."""
        plan = plans.best()
        guide = None if self.says_all else self._unrolling(plan).guide(plans.absences())
        return self.point(plan, guide)

    def _polish(self, seconds: float, goal: int) -> None:
        search = self.best.search
        share = _POLISH * _EFFORT * len(self.best.again.runs)
        before, work = search.cost, min(share, goal - self._polished - self._explored)
        search.run(seconds, work)
        self._polished += work
        if search.cost < before:
            better = replace(self.best)  # whose guide and waits are others
            if self._current is self.best:
                self._current = better
            if self._lowest is self.best:
                self._lowest = better
            self.best, self._best_at = better, self._tried

    def _step(self) -> None:
        """Try another plan."""
        self._tried += 1
        calm = self._tried - self._lowest_at
        if calm > _STALE:
            self._next()
        elif calm > _CALM and not self._tried % _CALM:
            self._current = self._lowest
            self._history = [self._lowest.cost] * _HISTORY
        plan = self._changed(self._current)
        if plan == self._current.plan:
            self._explored += len(self._current.again.runs)
            return
        point = self.point(plan, self._current)
        turn = self._tried % _HISTORY
        if point.cost <= self._current.cost or point.cost <= self._history[turn]:
            self._take(point)
        self._history[turn] = min(self._history[turn], self._current.cost)

    def _next(self) -> None:
        """Start another descent: from an offered plan, again from one, or from the best plan, changed."""
        draw = self._draw(2 * len(self._offered) + 2)
        if self._waiting:
            self._set_off(self._waiting.pop())
        elif draw < len(self._offered):
            self._set_off(self._offered[draw])
        else:
            point = self.best
            for _ in range(1 << self._draw(_STRENGTHS)):
                point = self.point(self._changed(point), point)
            self._set_off(point)

    def _set_off(self, point: Point) -> None:
        """Start a descent from a point."""
        self._history = [point.cost] * _HISTORY
        self._lowest, self._lowest_at = point, self._tried
        self._take(point)

    def _take(self, point: Point) -> None:
        self._current = point
        if point.cost < self._lowest.cost:
            self._lowest, self._lowest_at = point, self._tried
        if point.cost < self.best.cost:
            self.best, self._best_at = point, self._tried

    def _relieve(self) -> None:
        """Add second runs where the pool is too small whatever is evicted: the best of a few draws."""
        draws = [self._changed(self.best) for _ in range(_DRAWS)]
        plan = min(draws, key=lambda plan: excess(self._unrolling(plan).columns))
        self._tried += _DRAWS
        self._explored += _DRAWS * len(self.best.again.runs)
        point = self.point(plan, None)
        if point.cost < self.best.cost:
            self._take(point)

    def point(self, plan: Plan, start: Point | Guide | None) -> Point:
        """Return a plan after a short search from another plan's transfers, from a guide, or from nothing."""
        again = self._unrolling(plan)
        problem = self.arranged(again, addresses=self._addresses)
        search = Descents(problem, self.memory, self.seed, self.without)
        if isinstance(start, Point):
            search.offer(start.again.translated(start.guide, again))
        elif start is not None:
            search.offer(start)
        work = _EFFORT * len(again.runs)
        search.run(work=work)
        self._explored += work
        return self._judged(plan, again, search)

    def _judged(self, plan: Plan, again: Unrolling, search: Descents) -> Point:
        lacking = 0 if search.makespan_ns is not None else excess(again.columns)
        return Point(plan, again, search, lacking, self._makers)

    def arranged(self, again: Unrolling, *, addresses: bool) -> Problem:
        """Return the problem of a plan as arrays, with or without addresses, in this search's memory."""
        moves, sides = "moves" not in self.without, "places" not in self.without
        return arranged(again.columns, moves=moves, sides=sides, addresses=addresses)

    def take(self, plan: Plan, again: Unrolling, search: Descents) -> bool:
        """Start from a plan that another search has found, if it is the best; return whether it is."""
        point = self._judged(plan, again, search)
        if point.cost >= self.best.cost:
            return False
        self._set_off(point)
        return True

    def _unrolling(self, plan: Plan) -> Unrolling:
        return unrolling(self.instance, self._columns, plan, self._overwrites)

    def _may(self, k: int, t: int) -> bool:
        """Whether a task may run again in a stage."""
        return bool(k < t <= self._makers.last[k])

    # --- changes of a plan ------------------------------------------------------------------------

    def _changed(self, point: Point) -> Plan:
        """Return another plan: some second runs are added, left out, or moved."""
        draw = self._random.random()
        plan = set(point.plan)
        if plan and (draw < 0.3 or draw > 0.9):
            self._leave_out(plan)
        if plan and 0.3 <= draw < 0.45:
            self._shift(plan)
        elif not plan or draw >= 0.45:
            self._bridge(plan, point)
            while self._draw(2):
                self._bridge(plan, point)
        return useful(self.instance, plan)

    def _leave_out(self, plan: set[Run]) -> None:
        """Leave out a second run, or all second runs of its stage."""
        run = sorted(plan)[self._draw(len(plan))]
        plan.remove(run)
        if self._random.random() < 0.4:
            plan.difference_update([other for other in plan if other[1] == run[1]])

    def _shift(self, plan: set[Run]) -> None:
        """Move a second run before another first run."""
        k, t = sorted(plan)[self._draw(len(plan))]
        near = [s for s in range(k + 1, self._makers.last[k] + 1) if s != t]
        if near:
            near.sort(key=lambda s: abs(s - t))
            plan.remove((k, t))
            plan.add((k, near[self._draw(min(len(near), 8))]))

    def _bridge(self, plan: set[Run], point: Point) -> None:
        """Add a second run that replaces a stay, with runs before it to a random depth.

        More often than not, the stay is over a task before which compute waits.
        """
        late = point.late
        maker, stage, after, until = point.bridges
        if late and self._draw(4):
            over = late[self._draw(len(late)) * self._draw(len(late)) // len(late)]
            chosen = (after < over) & (over <= until)
            maker, stage = maker[chosen], stage[chosen]
        pairs = zip(maker.tolist(), stage.tolist(), strict=True)
        found = [run for run in pairs if run not in plan]
        if found:
            self._add(plan, found[self._draw(len(found))], float(self._random.choice((0.0, 0.5, 0.9))))

    def _add(self, plan: set[Run], run: Run, deep: float) -> None:
        plan.add(run)
        k, t = run
        for d in self.instance.tasks[k].inputs:
            maker = int(self._makers.of[d])
            if maker >= 0 and self._may(maker, t) and (maker, t) not in plan and self._random.random() < deep:
                self._add(plan, (maker, t), deep)

    def _draw(self, below: int) -> int:
        return int(self._random.integers(below))
