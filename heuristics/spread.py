"""Schedules of any method for several GPUs: each GPU runs the schedule on its portion of the batch.

Transfers of gradients are inserted. In moDNN (TPDS 2019, section 6.2), a gradient is sent to the host once it
is there, the host's cores add it to the weights, and these return after their last use, all of it between the
copies of the schedule itself. The paper puts every transfer into the copy stream at once, where it may delay
the copies behind it.

Here that is one of several ways. A transfer may also wait for a gap between copies in which it delays no
other copy, or for the end. GPUs may send a gradient one after the other, so that the host adds up the first
while the second is on its way. The way that is fastest in simulation is taken.

GPUs of one kind with the same program run in step. So the schedule is planned for one of them, with copies as
slow as the bus makes them when all GPUs copy at once, and again with copies that fewer others slow down, for
GPUs that take turns on the bus (`turns`). Nothing else relies on this: the simulation and the
checker look at every GPU. From these plans, methods that search go on with the time of all GPUs
as the cost, and with programs of their own for some GPUs (`search.cluster`).
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from ..instances.gpus.cluster import Cluster
from ..instances.instance import Instance
from ..validate.gpus.program import cluster_of, one_gpu
from ..validate.gpus.simulate import simulate_cluster
from ..validate.schedule import COLLECTIVE_KINDS, Kind, Operation, Residence, Schedule, Stream
from .clock import LEAST, left, until
from .methods import Answer, Limits, Method, Refusal
from .turns import Rule, take_turns, turn, turns

if TYPE_CHECKING:
    from .search.cluster import ClusterSearch

_How = Literal["at once", "in gaps", "last"]
"""Position of transfers among the copies of a stream; ``at once`` is the paper's way."""

_PLANS_SHARE = 2 / 3
"""Share of the time limit for the plans of a method that searches; the rest is for the search on all GPUs."""

_Lines = dict[Stream, list[int]]
"""The steps of each stream, in order."""

_Span = tuple[int, int]
"""Start and end in nanoseconds."""


def in_step(instance: Instance) -> Instance:
    """Return the instance of one GPU, with copies as slow as when all GPUs of its node copy at once."""
    gpus = cluster_of(instance).node_gpus
    return _beside(instance, gpus, gpus)


def _beside(instance: Instance, out: Fraction | int, back: Fraction | int) -> Instance:
    """Return the instance of one GPU, with copies as slow as so many of its node at once in a direction."""
    cluster = cluster_of(instance)
    blocks = tuple(
        replace(
            block,
            offload_ns=_shared_ns(cluster, block.bytes, block.offload_ns, out),
            prefetch_ns=_shared_ns(cluster, block.bytes, block.prefetch_ns, back),
        )
        for block in instance.blocks
    )
    return replace(one_gpu(instance), blocks=blocks)


def _shared_ns(cluster: Cluster, size: int, alone: int | None, copies: Fraction | int) -> int | None:
    """Return the time of a copy that shares the bus; None and 0 are returned unchanged."""
    if not alone:
        return alone
    return max(alone, cluster.passing_ns(size, alone, copies))


def spread(instance: Instance, method: Method, limits: Limits, *, searches: bool = False) -> Answer:
    """Plan with a method for one GPU, and extend its schedules to all GPUs; return the shortest.

    The method plans for GPUs in step, and, where the bus slows copies down, for GPUs that are less in each
    other's way, too; each of the plans has its share of the time. The bound of the method is left out, as it
    holds for one GPU only. Errors are those of the method in step. `Limits.on_better` is not called, because
    better schedules are of one GPU.

    Parameters
    ----------
    instance, method, limits
        What to plan, and how.
    searches
        Whether a local search on all GPUs follows, where these take turns in contiguous memory. It begins
        with the best plan, and has a third of the time limit.
    """
    began = time.monotonic()
    deadline = math.inf if limits.time_limit is None else began + limits.time_limit
    searches = searches and limits.memory == "contiguous" and take_turns(instance)
    ends = began + _PLANS_SHARE * (deadline - began) if searches else deadline
    plans = list(_plans(instance))
    best, planned = _extended(instance, plans[0], method, limits, ends, share=1.0 / len(plans))
    starts, begin = [planned], plans[0]
    for i, plan in enumerate(plans[1:], 1):
        if best.schedule is None or best.stopped_by == "interrupted" or time.monotonic() >= ends:
            break
        try:
            share = 1.0 / (len(plans) - i)
            other, planned = _extended(instance, plan, method, limits, ends, share=share)
        except Refusal:
            continue
        except KeyboardInterrupt:
            return dataclasses.replace(best, stopped_by="interrupted")
        starts.append(planned)
        if other.schedule is not None and other.schedule.makespan_ns < best.schedule.makespan_ns:
            best, begin = dataclasses.replace(best, schedule=other.schedule), plan
        if other.stopped_by == "interrupted":
            best = dataclasses.replace(best, stopped_by="interrupted")
    planned_ones = [one for one in starts if one is not None]
    if searches and best.stopped_by != "interrupted" and planned_ones:
        return _searched(instance, begin, planned_ones, best, limits, deadline)
    return best


def _searched(
    instance: Instance,
    plan: Instance,
    planned: Sequence[Schedule],
    best: Answer,
    limits: Limits,
    deadline: float,
) -> Answer:
    """Go on from the plans with the time of all GPUs as the cost; return the better answer."""
    from .search.cluster import ClusterSearch  # with it comes Numba
    from .search.method import RULES

    assert best.schedule is not None
    stopped_by = best.stopped_by
    try:
        with until(deadline, LEAST):
            search = ClusterSearch(instance, plan, limits.seed, limits.without & set(RULES))
            search.start(planned, deadline)
        began = time.monotonic()
        schedules = [best.schedule, *_in_turn(instance, search, best.schedule.method)]
        takes = time.monotonic() - began  # and so do those of the programs found
    except Refusal:
        return best  # the search does not model it, or has no time
    except KeyboardInterrupt:
        return dataclasses.replace(best, stopped_by="interrupted")
    try:
        search.descend(deadline - takes)
    except KeyboardInterrupt:
        stopped_by = "interrupted"
    schedules += _in_turn(instance, search, best.schedule.method)
    shortest = min(schedules, key=lambda one: one.makespan_ns)
    return dataclasses.replace(best, schedule=shortest, stopped_by=stopped_by)


def _in_turn(instance: Instance, search: ClusterSearch, method: str) -> Iterator[Schedule]:
    """Yield the schedule of the best programs of a search, if it has any."""
    if (found := search.found(method)) is not None:
        rule, largest_first = search.rule
        yield weave_in_turn(instance, found, rule, largest_first=largest_first)


def _plans(instance: Instance) -> Iterator[Instance]:
    """Yield instances of one GPU: in step, and those with copies that fewer others slow down.

    GPUs that take turns are seldom all in each other's way, but bytes still count, as the bus is for all. By
    the time that data comes back, GPUs are out of step, and more of them may copy; so what comes back may
    also be slower than what leaves.
    """
    gpus = cluster_of(instance).node_gpus
    some, few = (Fraction(gpus ** (1.0 / root)).limit_denominator(8) for root in (2, 4))
    seen: list[Instance] = []
    for out, back in ((gpus, gpus), (some, some), (few, few), (few, some), (some, gpus)):
        plan = _beside(instance, out, back)
        if plan not in seen:
            seen.append(plan)
            yield plan


def _extended(
    instance: Instance, plan: Instance, method: Method, limits: Limits, deadline: float, *, share: float
) -> tuple[Answer, Schedule | None]:
    """Return a method's answer on one GPU in a share of the time left, extended to all GPUs, and as it is."""
    seconds = None if limits.time_limit is None else max(share * (deadline - time.monotonic()), 0.0)
    answer = method(plan, dataclasses.replace(limits, on_better=None, time_limit=seconds))
    stopped_by, best = answer.stopped_by, None
    if answer.schedule is not None:
        with until(deadline, LEAST):
            began = time.monotonic()
            ways = _Loom(instance, answer.schedule).ways()
            best = first = next(ways)
            takes = time.monotonic() - began  # and so do the others, at least
            try:
                for others in (turns(instance, first), ways):
                    while left() > takes and (other := next(others, None)) is not None:
                        best = min(best, other, key=lambda one: one.makespan_ns)
            except KeyboardInterrupt:
                stopped_by = "interrupted"
    return Answer(best, stopped_by, infeasible=answer.infeasible), answer.schedule


def weave(instance: Instance, schedule: Schedule) -> Schedule:
    """Return a valid schedule of one GPU on all GPUs, with gradients passed in the fastest way found.

    After the deadline, no further ways are tried.
    """
    ways = _Loom(instance, schedule).ways()
    best = next(ways)
    while left() and (woven := next(ways, None)) is not None:
        best = min(best, woven, key=lambda one: one.makespan_ns)
    return best


def weave_at_once(instance: Instance, schedule: Schedule) -> Schedule:
    """Return a valid schedule of one GPU on all, with every transfer issued at once, as the paper does."""
    loom = _Loom(instance, schedule)
    sent = loom.lined_up(loom.lines, loom.out, loom.sends, "at once")
    found = loom.simulated(loom.lined_up(sent, loom.back, loom.returns, "at once"))
    assert found is not None, "the order of issue is one in which nobody waits for what comes later"
    return found[0]


def weave_in_turn(
    instance: Instance, schedules: Sequence[Schedule], rule: Rule, *, largest_first: bool
) -> Schedule:
    """Return a valid schedule of all GPUs, which take turns as `turn` says.

    Parameters
    ----------
    instance
        The cluster's instance.
    schedules
        Schedules of one GPU, one for each GPU of a node; all nodes have the same.
    rule, largest_first
        As for `turn`.
    """
    draft = _Loom(instance, schedules[0]).draft()
    if any(one is not schedules[0] for one in schedules):
        draft = _apart(draft, [*schedules] * cluster_of(instance).nodes)
    return turn(instance, draft, rule, largest_first=largest_first)


def _apart(draft: Schedule, schedules: Sequence[Schedule]) -> Schedule:
    """Return a draft of all GPUs in which each does what its own schedule says, and passes on what it did."""
    fresh = itertools.count()
    runs: dict[tuple[int, int | None], int] = {}  # by GPU and task
    operations: list[Operation] = []
    residences: list[Residence] = []
    for gpu, schedule in enumerate(schedules):
        ids: dict[int, int] = {}
        for one in schedule.operations:
            ids[one.id] = new = next(fresh)
            if one.kind == "run":
                runs[gpu, one.task] = new
            operations.append(replace(one, id=new, gpu=gpu, after=tuple(ids[i] for i in one.after)))
        residences += (_renamed(stay, gpu, ids.__getitem__) for stay in schedule.residences)
    drafted = {one.id: one for one in draft.operations}
    passed: dict[int, int] = {}
    for one in draft.operations:
        if one.gradient is not None:
            passed[one.id] = new = next(fresh)
            after = (passed[i] if i in passed else runs[drafted[i].gpu, drafted[i].task] for i in one.after)
            operations.append(replace(one, id=new, after=tuple(sorted(after))))
    peak = max(schedule.peak_bytes for schedule in schedules)
    return replace(draft, operations=tuple(operations), residences=tuple(residences), peak_bytes=peak)


@dataclass(frozen=True, slots=True)
class _Step:
    """An operation that each GPU does, or that all of them do together, and the steps that it waits for.

    Id, GPU and times of the operation are set when it is copied for the GPUs.
    """

    operation: Operation
    after: tuple[int, ...]


class _Loom:
    """A schedule of one GPU as steps, followed by the steps of the gradients."""

    def __init__(self, instance: Instance, schedule: Schedule) -> None:
        self.instance = instance
        self.cluster = cluster_of(instance)
        self.schedule = schedule
        self.steps: list[_Step] = []
        self.lines: _Lines = defaultdict(list)
        self.sends: list[int] = []
        self.returns: list[int] = []
        self.issue: list[tuple[int, int]] = []  # per step, after which operation of the list it is issued
        single = instance.engines == "single"
        self.out: Stream = "copy" if single else "d2h"
        self.back: Stream = "copy" if single else "h2d"
        index = {operation.id: i for i, operation in enumerate(schedule.operations)}
        self.runs: dict[int, int] = {}  # the last step that runs each task
        for i, operation in enumerate(schedule.operations):
            self.steps.append(_Step(operation, tuple(index[other] for other in operation.after)))
            self.issue.append((i, 0))
            self.lines[operation.stream].append(i)
            if operation.task is not None:
                self.runs[operation.task] = i
        if self.cluster.gpus > 1:
            gradients = self.cluster.gradients
            for g in sorted(range(len(gradients)), key=lambda g: self.runs[gradients[g].produced_by]):
                self._pass_on(g)

    def _pass_on(self, g: int) -> None:
        """Add the steps of a gradient (moDNN, TPDS 2019, Fig. 8), or the single step of a ring instead."""
        gradient = self.cluster.gradients[g]
        complete = self.runs[gradient.produced_by]
        last_use = max((self.runs[k] for k in gradient.used_by), default=complete)

        def step(kind: Kind, stream: Stream, *after: int) -> int:
            operation = Operation(id=0, stream=stream, kind=kind, gradient=g, start_ns=0, end_ns=0)
            self.issue.append((max(self.issue[i][0] for i in after), len(self.steps)))
            self.steps.append(_Step(operation, after))
            return len(self.steps) - 1

        if not self.cluster.joins_on_host:
            self.lines["nvlink"].append(step("reduce", "nvlink", complete, last_use))
            return
        self.sends.append(step("send", self.out, complete))
        added = step("accumulate", "cpu", self.sends[-1])
        self.lines["cpu"].append(added)
        if self.cluster.nodes > 1:
            added = step("exchange", "network", added)
            self.lines["network"].append(added)
        self.returns.append(step("return", self.back, added, last_use))

    # --- ways -------------------------------------------------------------------------------------

    def ways(self) -> Iterator[Schedule]:
        """Yield schedules of all GPUs that differ in when gradients are sent and weights return."""
        backs: dict[_How, tuple[_How, ...]] = {
            "last": (),
            "at once": ("at once", "in gaps"),
            "in gaps": ("in gaps",),
        }
        tried: list[tuple[_Lines, bool]] = []
        spans: list[_Span] = []
        for how, in_turn in itertools.product(backs, (False, True)):
            sent = self.lined_up(self.lines, self.out, self.sends, how, spans)
            lines = self.lined_up(sent, self.back, self.returns, "last")
            if (lines, in_turn) in tried or (in_turn and not self.sends):
                continue
            tried.append((lines, in_turn))
            draft = self.simulated(lines, in_turn=in_turn)
            if draft is None:
                continue
            yield draft[0]
            spans = spans or draft[1]
            for how_back in backs[how]:
                lines = self.lined_up(sent, self.back, self.returns, how_back, draft[1])
                if (lines, in_turn) not in tried:
                    tried.append((lines, in_turn))
                    woven = self.simulated(lines, in_turn=in_turn)
                    if woven is not None:
                        yield woven[0]

    def draft(self) -> Schedule:
        """Return all GPUs' program without times, with gradients behind all other copies."""
        sent = self.lined_up(self.lines, self.out, self.sends, "last")
        order = self._order(self.lined_up(sent, self.back, self.returns, "last"))
        assert order is not None, "nobody waits for what comes last"
        program, _ = self._spread_out(order, in_turn=False)
        return program

    def lined_up(
        self,
        lines: _Lines,
        stream: Stream,
        transfers: Sequence[int],
        how: _How,
        spans: Sequence[_Span] = (),
    ) -> _Lines:
        """Return the lines with transfers among a stream's steps; `spans` are a draft's times, for gaps."""
        mixed = [*lines[stream], *transfers]
        if how == "at once":
            # where a host thread issues it that issues everything in the order of the list
            mixed.sort(key=lambda i: self.issue[i])
        elif how == "in gaps":
            mixed = self._in_gaps(lines[stream], transfers, spans)
        return defaultdict(list, {**lines, stream: mixed})

    def _in_gaps(self, line: Sequence[int], transfers: Sequence[int], spans: Sequence[_Span]) -> list[int]:
        """Put each transfer into the first gap of a line that is long enough for it."""
        waiting = sorted((max(spans[j][1] for j in self.steps[i].after), i) for i in transfers)
        mixed: list[int] = []
        free = 0
        for follower in [*line, None]:
            held = []
            for ready, i in waiting:
                end = max(free, ready) + spans[i][1] - spans[i][0]
                if follower is None or end <= spans[follower][0]:
                    mixed.append(i)
                    free = end
                else:
                    held.append((ready, i))
            waiting = held
            if follower is not None:
                mixed.append(follower)
                free = max(free, spans[follower][1])
        return mixed

    # --- programs ---------------------------------------------------------------------------------

    def simulated(self, lines: _Lines, *, in_turn: bool = False) -> tuple[Schedule, list[_Span]] | None:
        """Return the schedule of all GPUs, and the span of each step on the first node.

        A span begins with the step's first operation and ends with its last. The result is None if streams
        would wait for each other in a circle. With `in_turn`, GPUs of a node send a gradient one after the
        other.
        """
        order = self._order(lines)
        if order is None:
            return None
        program, places = self._spread_out(order, in_turn=in_turn)
        starts, ends = simulate_cluster(self.instance, program)
        operations = tuple(
            replace(operation, start_ns=start, end_ns=end)
            for operation, start, end in zip(program.operations, starts, ends, strict=True)
        )
        schedule = replace(program, operations=operations, makespan_ns=max(ends, default=0))
        return schedule, [(starts[first], ends[last]) for first, last in places]

    def _order(self, lines: _Lines) -> list[int] | None:
        """Return the steps, each after those that it waits for; None if they wait in a circle."""
        before = [set(step.after) for step in self.steps]
        for line in lines.values():
            for i, j in itertools.pairwise(line):
                before[j].add(i)
        followers: list[list[int]] = [[] for _ in self.steps]
        for j, others in enumerate(before):
            for i in others:
                followers[i].append(j)
        ready = [j for j, others in enumerate(before) if not others]
        order: list[int] = []
        while ready:
            i = heapq.heappop(ready)
            order.append(i)
            for j in followers[i]:
                before[j].discard(i)
                if not before[j]:
                    heapq.heappush(ready, j)
        return order if len(order) == len(self.steps) else None

    def _spread_out(self, order: Sequence[int], *, in_turn: bool) -> tuple[Schedule, list[tuple[int, int]]]:
        """Return all GPUs' program without times, and where the first node's operations of a step lie."""
        gpus = self.cluster.gpus
        stride = max((operation.id for operation in self.schedule.operations), default=-1) + 1
        fresh = itertools.count(stride * gpus)
        operations: list[Operation] = []
        ids: dict[int, list[int]] = {}  # of a step, one a GPU or a single one
        places = [(0, 0)] * len(self.steps)
        for i in order:
            operation = self.steps[i].operation
            count = 1 if operation.kind in COLLECTIVE_KINDS else gpus
            places[i] = len(operations), len(operations) + min(count, self.cluster.node_gpus) - 1
            ids[i] = []
            for gpu in range(count):
                if operation.gradient is None:
                    new, waits = operation.id + gpu * stride, [j + gpu * stride for j in operation.after]
                else:
                    new, waits = next(fresh), sorted(self._waits(self.steps[i], gpu, ids))
                    if in_turn and operation.kind == "send" and gpu % self.cluster.node_gpus:
                        waits.append(ids[i][-1])
                ids[i].append(new)
                operations.append(replace(operation, id=new, gpu=gpu, after=tuple(waits)))
        residences = tuple(
            _renamed(residence, gpu, (gpu * stride).__add__)
            for gpu in range(gpus)
            for residence in self.schedule.residences
        )
        return replace(self.schedule, operations=tuple(operations), residences=residences), places

    def _waits(self, step: _Step, gpu: int, ids: Mapping[int, Sequence[int]]) -> Iterator[int]:
        """Return what a gradient's operation waits for: its GPU's operations, and those of nodes."""
        for j in dict.fromkeys(step.after):
            if step.operation.kind in COLLECTIVE_KINDS or len(ids[j]) == 1:
                yield from ids[j]
            elif self.steps[j].operation.kind == "accumulate":
                first = gpu - gpu % self.cluster.node_gpus
                yield from ids[j][first : first + self.cluster.node_gpus]
            else:
                yield ids[j][gpu]


def _renamed(residence: Residence, gpu: int, new: Callable[[int], int]) -> Residence:
    """Return a residence of one GPU for another GPU, whose operations have other ids."""
    return replace(
        residence,
        gpu=gpu,
        workspace_of=None if residence.workspace_of is None else new(residence.workspace_of),
        acquired_by=None if residence.acquired_by is None else new(residence.acquired_by),
        released_after=tuple(map(new, residence.released_after)),
    )
