# mypy: disable-error-code="no-any-return"
"""The compiled part of the search over plans (`plans`): it judges and changes them.

It is long because Numba would not notice a change of another file: all is in this one, also the random
numbers, which are made as in local search. Importing this module imports Numba. The compiled code is cached
beside this file until the file changes. It allocates nothing: what it works in is `State`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..search.columns import INPUT, OUTPUT, Integers

HOT, COLD = 0.5, 0.0025
"""Temperatures at which a cycle begins and ends, in mean durations of tasks that may run again."""

WEIGHTS = 0.1, 10_000.0
"""Least and greatest weight of as many bytes as the pool has, in mean durations of tasks."""

_PERIOD = 1000
"""Number of plans after which the weight of bytes without room changes."""

_REREAD = 15
"""Of a hundred changes, how many let tasks run in other ways, where they have several."""

_FLIPS = 40
"""Of a hundred changes, how many let a block leave or stay, where it may."""

_PARTS = 4
"""A change of a part goes on to the next one of its tensor with all but one of so many draws."""

_TRIES = 20
"""Number of draws for a run where memory is short, and for a stay over it."""

_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled(function: _F) -> _F:
    """Compile a function without Numba's runtime, to run beside Python's threads."""
    private = function.__name__.startswith("_")
    options: Any = {"_nrt": False, "no_cpython_wrapper": private, "no_cfunc_wrapper": True}
    options |= {"cache": True, "nogil": True}
    return cast(_F, njit(**options)(function))


class Graph(NamedTuple):
    """An instance; sizes are rounded up to the unit of the memory model.

    Attributes
    ----------
    pool, length
        Bytes of the pool; number of tasks.
    size, at_start, at_end, maker
        Per block: its bytes, whether it is there at first, whether it must be there at the end, and the task
        that may make it again, or -1.
    last
        Per task, the last stage in which it may run again.
    begin, block, kind, over
        Per way, where its touches begin; per touch, the block, what is done with it, and whether an output
        takes over its place if nothing needs it behind the run.
    first, time, scratch
        Per way, where its algorithms begin; per algorithm, duration and workspace.
    choosing, ways, fuller
        The tasks with several ways to run; per task, where its ways begin; per way, the one that comes in its
        place where something reads what it leaves out, or the way itself.
    leave, back, on_host
        Per block: nanoseconds of its copies out and in, -1 where there are none; whether the host has it at
        first.
    movable, tensor
        The blocks that may leave and come back; per block, the tensor of which it is a part, or -1.
    """

    pool: int
    length: int
    size: Integers
    at_start: NDArray[np.bool_]
    at_end: NDArray[np.bool_]
    maker: Integers
    last: Integers
    begin: Integers
    block: Integers
    kind: Integers
    over: NDArray[np.bool_]
    first: Integers
    time: Integers
    scratch: Integers
    choosing: Integers
    ways: Integers
    fuller: Integers
    leave: Integers
    back: Integers
    on_host: NDArray[np.bool_]
    movable: Integers
    tensor: Integers


class Program(NamedTuple):
    """The runs of a plan in order.

    Attributes
    ----------
    task, stage, live
        Per run: its task, its stage, and the bytes of blocks while it runs.
    useful
        Per run, whether something reads what it makes, or it is a first run.
    """

    task: Integers
    stage: Integers
    live: Integers
    useful: NDArray[np.bool_]


class Copies(NamedTuple):
    """What the transfers of a program are simulated in.

    Attributes
    ----------
    gaps
        Per gap, as `BLOCK` to `NEXT_LAST` say.
    ahead, on_host
        Per block: the next run that touches it, and whether the host has its bytes.
    at_use, at_last
        Per run, the first gap that ends with it, and the first in which it is the last without the block.
    queue, wait
        Gaps whose copies are to come; per run, how long compute waits behind it for what comes back.
    """

    gaps: Integers
    ahead: Integers
    on_host: NDArray[np.bool_]
    at_use: Integers
    at_last: Integers
    queue: Integers
    wait: Integers


BLOCK, AFTER, UNTIL, LAST, ENTER, GONE, NEXT_USE, NEXT_LAST = range(8)
"""Columns of a gap: its block; the runs that use it before and after; the last run without it, or -1; since
when it may be copied; whether it leaves; the next gaps with the same `UNTIL` and with the same `LAST`."""


class State(NamedTuple):
    """What the search works in.

    Attributes
    ----------
    plan, trial, best
        Second runs in order, each as its stage times the number of tasks plus its task: of the current plan,
        of the one to judge, and of the best one.
    chosen, tried, kept
        Per task, its way with each of these, where nothing reads what is left out.
    current, judged
        Programs of the first two plans.
    way
        Per task, its way in the program that is judged.
    read
        Per block, whether some task reads it.
    until
        Per block, the last run that needs the copy that is looked at; or the last run that touched it.
    stays
        Per stay that a second run can replace: its task and stage, and the runs before and after the stay.
    stack
        Tasks whose producers are still to be looked at.
    counts
        As the numbers `PLAN` to `AT` say.
    costs
        Cost of the current plan, and the weight of a byte without room.
    random
        State of the random numbers.
    away, sent, gone
        Per block, whether it is away in gaps, with the current plan, the one to judge, and the best one.
    copies
        What transfers are judged in.
    """

    plan: Integers
    trial: Integers
    best: Integers
    chosen: Integers
    tried: Integers
    kept: Integers
    way: Integers
    read: NDArray[np.bool_]
    current: Program
    judged: Program
    until: Integers
    stays: Integers
    stack: Integers
    counts: Integers
    costs: NDArray[np.float64]
    random: NDArray[np.uint64]
    away: NDArray[np.bool_]
    sent: NDArray[np.bool_]
    gone: NDArray[np.bool_]
    copies: Copies


PLAN, BEST, RUNS, STAYS, TIME, LACKING, BALANCE, AT, GAPS = range(9)
"""Numbers of second runs in the current and in the best plan, of runs and stays of the current program; time
of the best plan, -1 while there is none; bytes that the current program lacks; how many more of the last
plans lacked bytes than not; plans of this cycle so far; gaps of the program that was judged last."""

COST, WEIGHT = range(2)
"""Indices of the costs."""


@_compiled
def _draw(random: NDArray[np.uint64], below: int) -> int:
    """Return a random integer that is at least 0 and below a limit (splitmix64)."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    drawn: Any = np.int64((z >> np.uint64(1)) % np.uint64(below))
    return drawn


@_compiled
def _laid_out(graph: Graph, plan: Integers, count: int, program: Program) -> int:
    """Put the runs of a plan in order; return their number."""
    runs = 0
    j = 0
    for t in range(graph.length + 1):
        while j < count and plan[j] // graph.length == t:
            program.task[runs] = plan[j] % graph.length
            program.stage[runs] = t
            runs += 1
            j += 1
        if t < graph.length:
            program.task[runs] = t
            program.stage[runs] = t
            runs += 1
    return runs


@_compiled
def _makes(graph: Graph, way: int, block: int) -> bool:
    for e in range(graph.begin[way], graph.begin[way + 1]):
        if graph.block[e] == block and graph.kind[e] == OUTPUT:
            return True
    return False


@_compiled
def _settle(graph: Graph, state: State, chosen: Integers) -> None:
    """Give each task its way: what some task reads is made."""
    read, way = state.read, state.way
    for d in range(len(read)):
        read[d] = False
    for k in range(graph.length - 1, -1, -1):
        w = chosen[k]
        fuller = graph.fuller[w]
        if fuller != w:
            for e in range(graph.begin[fuller], graph.begin[fuller + 1]):
                d = graph.block[e]
                if graph.kind[e] == OUTPUT and read[d] and not _makes(graph, w, d):
                    w = fuller
                    break
        way[k] = w
        for e in range(graph.begin[w], graph.begin[w + 1]):
            if graph.kind[e] != OUTPUT:
                read[graph.block[e]] = True


@_compiled
def _gap(copies: Copies, known: int, block: int, after: int) -> int:
    """Note a gap between two uses of a block that may leave."""
    gap = copies.gaps[known]
    gap[BLOCK], gap[AFTER], gap[UNTIL], gap[LAST], gap[GONE] = block, after, copies.ahead[block], -1, 0
    return known + 1


@_compiled
def _fitting(graph: Graph, way: int, room: int) -> tuple[int, int]:
    """Return the quickest algorithm that has room, or -1; and the one with the least workspace."""
    quickest = leanest = -1
    for a in range(graph.first[way], graph.first[way + 1]):
        if graph.scratch[a] <= room and (quickest < 0 or graph.time[a] < graph.time[quickest]):
            quickest = a
        if leanest < 0 or graph.scratch[a] < graph.scratch[leanest]:
            leanest = a
    return quickest, leanest


@_compiled
def _return(graph: Graph, state: State, program: Program, runs: int, known: int) -> None:
    """Go back in time: when what is away comes back, at the latest, and how long compute waits for it.

    What leaves does so at once here.
    """
    gaps, _, _, at_use, at_last, queue, wait = state.copies
    for i in range(runs + 1):
        at_use[i] = at_last[i] = -1
        wait[i] = 0
    for g in range(known):
        j = gaps[g, UNTIL]
        gaps[g, NEXT_USE] = at_use[j]
        at_use[j] = g
    now = engine = freed = head = tail = at = 0
    for i in range(runs, -1, -1):
        while at < known and gaps[at, AFTER] >= i:
            if gaps[at, LAST] >= 0:
                freed -= graph.size[gaps[at, BLOCK]]
            at += 1
        if i < runs and program.useful[i]:
            w = state.way[program.task[i]]
            quickest, leanest = _fitting(graph, w, graph.pool - program.live[i] + freed)
            while head < tail:
                g = queue[head]
                d = gaps[g, BLOCK]
                if gaps[g, AFTER] >= i:
                    head += 1
                    continue
                end = max(engine, gaps[g, ENTER]) + graph.back[d]
                if end > now:
                    if quickest >= 0:
                        break
                    wait[i] += end - now
                    now = end
                engine = end
                freed += graph.size[d]
                gaps[g, LAST] = i
                gaps[g, NEXT_LAST] = at_last[i]
                at_last[i] = g
                head += 1
                quickest, leanest = _fitting(graph, w, graph.pool - program.live[i] + freed)
            now += graph.time[quickest if quickest >= 0 else leanest]
        g = at_use[i]
        while g >= 0:
            gaps[g, ENTER] = now
            queue[tail] = g
            tail += 1
            g = gaps[g, NEXT_USE]


@_compiled
def _execute(graph: Graph, state: State, program: Program, runs: int, known: int) -> tuple[int, int]:
    """Execute a program whose blocks come back as late as they may; return time, and the bytes that lack.

    What is live at a run is noted as it is before the run waits for room.
    """
    gaps, _, on_host, _, at_last, queue, wait = state.copies
    now = engine = freed = head = tail = lacking = 0
    at = known - 1
    for d in range(len(on_host)):
        on_host[d] = graph.on_host[d]
    for i in range(-1, runs):
        if i > 0:
            g = at_last[i - 1]
            while g >= 0:
                if gaps[g, GONE]:
                    freed -= graph.size[gaps[g, BLOCK]]
                g = gaps[g, NEXT_LAST]
        if i >= 0 and program.useful[i]:
            w = state.way[program.task[i]]
            present = program.live[i]
            quickest, leanest = _fitting(graph, w, graph.pool - present + freed)
            first = True
            while head < tail:
                g = queue[head]
                d = gaps[g, BLOCK]
                if gaps[g, LAST] < i:
                    head += 1
                    continue
                end = max(engine, gaps[g, ENTER]) + graph.leave[d]
                if end > now:
                    if first:
                        program.live[i] = present - freed
                        first = False
                    if quickest >= 0:
                        break
                    now = end
                engine = end
                freed += graph.size[d]
                gaps[g, GONE] = 1
                on_host[d] = True
                head += 1
                quickest, leanest = _fitting(graph, w, graph.pool - present + freed)
            if first:
                program.live[i] = present - freed
            if quickest < 0:
                quickest = leanest
                lacking += present - freed + graph.scratch[leanest] - graph.pool
            now += graph.time[quickest]
            for e in range(graph.begin[w], graph.begin[w + 1]):
                if graph.kind[e] != INPUT:
                    on_host[graph.block[e]] = False
        while at >= 0 and gaps[at, AFTER] == i:
            d = gaps[at, BLOCK]
            if gaps[at, LAST] > i:
                if on_host[d]:
                    freed += graph.size[d]
                    gaps[at, GONE] = 1
                elif graph.leave[d] >= 0:
                    gaps[at, ENTER] = now
                    queue[tail] = at
                    tail += 1
            at -= 1
        if i >= 0:
            now += wait[i]
    return now, lacking


@_compiled
def _judge(graph: Graph, state: State, program: Program, runs: int) -> tuple[int, int]:
    """Fill in what is live at each run, and which runs are of use; return time, and the bytes that lack."""
    live, until, way, ahead = program.live, state.until, state.way, state.copies.ahead
    copying = len(graph.movable) > 0
    known = 0
    for i in range(runs):
        live[i] = 0
    for d in range(len(graph.size)):
        until[d] = ahead[d] = runs if graph.at_end[d] else -1
    for i in range(runs - 1, -1, -1):
        k = program.task[i]
        w = way[k]
        useful = program.stage[i] == k
        for e in range(graph.begin[w], graph.begin[w + 1]):
            if graph.kind[e] == OUTPUT and until[graph.block[e]] > i:
                useful = True
        program.useful[i] = useful
        if not useful:
            continue
        for e in range(graph.begin[w], graph.begin[w + 1]):
            d = graph.block[e]
            if copying:
                if ahead[d] > i + 1 and state.sent[d]:
                    known = _gap(state.copies, known, d, i)
                ahead[d] = -1 if graph.kind[e] == OUTPUT else i
            if graph.kind[e] == OUTPUT:
                live[i] += graph.size[d]
                end = max(until[d], i)
                if end + 1 < runs:
                    live[end + 1] -= graph.size[d]
                until[d] = -1
            elif until[d] < i:
                until[d] = i
                if graph.over[e]:  # the output has its place: its bytes count once while this runs
                    live[i] -= graph.size[d]
                    if i + 1 < runs:
                        live[i + 1] += graph.size[d]
    present = 0
    for d in range(len(graph.size)):
        if graph.at_start[d] and until[d] >= 0:
            present += graph.size[d]
            if until[d] + 1 < runs:
                live[until[d] + 1] -= graph.size[d]
            if copying and ahead[d] > 0 and (graph.on_host[d] or state.sent[d]):
                known = _gap(state.copies, known, d, -1)
    for i in range(runs):
        present += live[i]
        live[i] = present
    if copying:
        state.counts[GAPS] = known
        _return(graph, state, program, runs, known)
        return _execute(graph, state, program, runs, known)
    time = lacking = 0
    for i in range(runs):
        if not program.useful[i]:
            continue  # what is there then is there at the run before it as well
        quickest, leanest = _fitting(graph, way[program.task[i]], graph.pool - live[i])
        if quickest < 0:
            lacking += live[i] + graph.scratch[leanest] - graph.pool
            quickest = leanest
        time += graph.time[quickest]
    return time, lacking


@_compiled
def _has(plan: Integers, count: int, run: int) -> bool:
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if plan[middle] < run:
            low = middle + 1
        else:
            high = middle
    return low < count and plan[low] == run


@_compiled
def _added(plan: Integers, count: int, run: int) -> int:
    """Add a second run to a plan; return the number that it has then, which is the same if it has it."""
    if count == len(plan) or _has(plan, count, run):
        return count
    i = count
    while i > 0 and plan[i - 1] > run:
        plan[i] = plan[i - 1]
        i -= 1
    plan[i] = run
    return count + 1


@_compiled
def _without(plan: Integers, count: int, index: int) -> int:
    for i in range(index, count - 1):
        plan[i] = plan[i + 1]
    return count - 1


@_compiled
def _left_out(graph: Graph, state: State, count: int) -> int:
    """Leave out a second run, or all second runs of its stage."""
    plan = state.trial
    index = _draw(state.random, count)
    if _draw(state.random, 4):
        return _without(plan, count, index)
    stage = plan[index] // graph.length
    kept = 0
    for i in range(count):
        if plan[i] // graph.length != stage:
            plan[kept] = plan[i]
            kept += 1
    return kept


@_compiled
def _shifted(graph: Graph, state: State, count: int) -> int:
    """Move a second run to a stage near its own."""
    plan = state.trial
    index = _draw(state.random, count)
    k, stage = plan[index] % graph.length, plan[index] // graph.length
    step = 1 + _draw(state.random, 8)
    other = stage + step if _draw(state.random, 2) else stage - step
    other = min(max(other, k + 1), graph.last[k])
    run = other * graph.length + k
    if other <= k or _has(plan, count, run):
        return count
    return _added(plan, _without(plan, count, index), run)


@_compiled
def _stays(graph: Graph, program: Program, runs: int, block: int, at: int, way: Integers) -> bool:
    """Return whether a block that a run may need is there in any case, for a run behind it."""
    for i in range(at, runs):
        w = way[program.task[i]]
        for e in range(graph.begin[w], graph.begin[w + 1]):
            if graph.block[e] == block:
                return graph.kind[e] != OUTPUT
    return graph.at_end[block]


@_compiled
def _bridged(graph: Graph, state: State, count: int) -> int:
    """Replace a stay by a second run, with the producers of its inputs to a random depth.

    More often than not, it is a stay over a run for which memory is short.
    """
    random, program, stays = state.random, state.current, state.stays
    runs, known = state.counts[RUNS], state.counts[STAYS]
    if not known:
        return count
    over = _draw(random, runs)
    if state.counts[LACKING] and _draw(random, 8):
        for _ in range(_TRIES):
            if program.live[over] > graph.pool:
                break
            over = _draw(random, runs)
    for _ in range(_TRIES):
        s = _draw(random, known)
        if stays[s, 2] < over < stays[s, 3]:
            break
    else:
        return count
    deep = _draw(random, 3)
    stage = stays[s, 1]
    state.stack[0] = stays[s, 0]
    top = 1
    while top:
        top -= 1
        k = state.stack[top]
        grown = _added(state.trial, count, stage * graph.length + k)
        if grown == count:
            continue
        count = grown
        w = state.way[k]
        for e in range(graph.begin[w], graph.begin[w + 1]):
            maker = graph.maker[graph.block[e]] if graph.kind[e] == INPUT else -1
            if not (deep and 0 <= maker < stage <= graph.last[maker] and top < len(state.stack)):
                continue
            if _draw(random, 100) >= (50 if deep == 1 else 90):
                continue
            if not _stays(graph, program, runs, graph.block[e], stays[s, 3], state.way):
                state.stack[top] = maker
                top += 1
    return count


@_compiled
def _run_otherwise(graph: Graph, state: State) -> None:
    """Let a task, or some neighbours of it, run in another way."""
    some = 1 + _draw(state.random, 2) * _draw(state.random, 3)
    begin = _draw(state.random, len(graph.choosing))
    for i in range(begin, min(begin + some, len(graph.choosing))):
        k = graph.choosing[i]
        state.tried[k] = graph.ways[k] + _draw(state.random, graph.ways[k + 1] - graph.ways[k])
    _settle(graph, state, state.tried)


@_compiled
def _send(graph: Graph, state: State) -> None:
    """Let a block be away or stay, and some of the parts beside it in its tensor as well."""
    movable, random = graph.movable, state.random
    at = _draw(random, len(movable))
    d = movable[at]
    away = not state.sent[d]
    state.sent[d] = away
    if graph.tensor[d] < 0:
        return
    for step in (-1, 1):
        other = at + step
        while 0 <= other < len(movable) and graph.tensor[movable[other]] == graph.tensor[d]:
            if not _draw(random, _PARTS):
                break
            state.sent[movable[other]] = away
            other += step


@_compiled
def _take(graph: Graph, state: State, runs: int) -> None:
    """Make the judged program the current one, without the runs that are of no use; note its stays."""
    judged, program, until = state.judged, state.current, state.until
    for k in graph.choosing:
        state.chosen[k] = state.tried[k]
    for d in graph.movable:
        state.away[d] = state.sent[d]
    for d in range(len(until)):
        until[d] = -1
    kept = second = known = 0
    for i in range(runs):
        if not judged.useful[i]:
            continue
        k, stage = judged.task[i], judged.stage[i]
        program.task[kept], program.stage[kept], program.live[kept] = k, stage, judged.live[i]
        if k != stage:
            state.plan[second] = stage * graph.length + k
            second += 1
        w = state.way[k]
        for e in range(graph.begin[w], graph.begin[w + 1]):
            d = graph.block[e]
            maker = graph.maker[d] if graph.kind[e] == INPUT else -1
            if 0 <= maker < stage <= graph.last[maker] and maker < k and until[d] + 1 < kept:
                state.stays[known, 0], state.stays[known, 1] = maker, stage
                state.stays[known, 2], state.stays[known, 3] = until[d], kept
                known += 1
            until[d] = kept
        kept += 1
    for d in range(len(until)):
        maker = graph.maker[d] if graph.at_end[d] else -1
        if 0 <= maker < graph.length <= graph.last[maker] and until[d] >= 0 and until[d] + 1 < kept:
            state.stays[known, 0], state.stays[known, 1] = maker, graph.length
            state.stays[known, 2], state.stays[known, 3] = until[d], kept
            known += 1
    state.counts[PLAN], state.counts[RUNS], state.counts[STAYS] = second, kept, known


@_compiled
def set_off(graph: Graph, state: State, count: int) -> None:
    """Make the plan that is in `trial` the current one, with the ways that are `tried`."""
    _settle(graph, state, state.tried)
    runs = _laid_out(graph, state.trial, count, state.judged)
    time, lacking = _judge(graph, state, state.judged, runs)
    _take(graph, state, runs)
    _note(graph, state, time, lacking)


@_compiled
def judge(graph: Graph, state: State, count: int) -> int:
    """Judge the plan that is in `trial`, without going on from it; return the number of its gaps."""
    _settle(graph, state, state.tried)
    runs = _laid_out(graph, state.trial, count, state.judged)
    _judge(graph, state, state.judged, runs)
    _settle(graph, state, state.chosen)
    return int(state.counts[GAPS])


@_compiled
def keep(graph: Graph, state: State, count: int) -> bool:
    """Make the plan that is in `trial` the best one if it is, without going on from it; return whether."""
    _settle(graph, state, state.tried)
    runs = _laid_out(graph, state.trial, count, state.judged)
    time, lacking = _judge(graph, state, state.judged, runs)
    _settle(graph, state, state.chosen)
    if lacking or 0 <= state.counts[TIME] <= time:
        return False
    second = 0
    for i in range(runs):
        k, stage = state.judged.task[i], state.judged.stage[i]
        if state.judged.useful[i] and k != stage:
            state.best[second] = stage * graph.length + k
            second += 1
    state.counts[TIME], state.counts[BEST] = time, second
    for k in graph.choosing:
        state.kept[k] = state.tried[k]
    for d in graph.movable:
        state.gone[d] = state.sent[d]
    return True


@_compiled
def _note(graph: Graph, state: State, time: int, lacking: int) -> None:
    """Note the cost of the current plan, and whether it is the best one."""
    state.counts[LACKING] = lacking
    state.costs[COST] = time + state.costs[WEIGHT] * lacking
    if lacking == 0 and (state.counts[TIME] < 0 or time < state.counts[TIME]):
        state.counts[TIME] = time
        state.counts[BEST] = state.counts[PLAN]
        for i in range(state.counts[PLAN]):
            state.best[i] = state.plan[i]
        for k in graph.choosing:
            state.kept[k] = state.chosen[k]
        for d in graph.movable:
            state.gone[d] = state.away[d]


@_compiled
def anneal(graph: Graph, state: State, plans: int, length: int, mean: float) -> int:
    """Go on with a cycle of some length for so many plans; return the number of runs that were judged.

    Parameters
    ----------
    graph, state
        The instance, and the search.
    plans, length
        Number of plans to judge, and that of the whole cycle.
    mean
        Mean duration of tasks that may run again.
    """
    counts, costs, random = state.counts, state.costs, state.random
    judged_runs = 0
    least, most = WEIGHTS[0] * mean / max(graph.pool, 1), WEIGHTS[1] * mean / max(graph.pool, 1)
    for _ in range(plans):
        counts[AT] += 1
        heat = mean * HOT * (COLD / HOT) ** (counts[AT] / length)
        count = counts[PLAN]
        for i in range(count):
            state.trial[i] = state.plan[i]
        changed = len(graph.choosing) > 0 and _draw(random, 100) < _REREAD
        if changed:
            _run_otherwise(graph, state)
        draw = _draw(random, 100)
        changes = 0 if changed and draw < 50 else 1 + (draw < 11) + (draw < 3)
        for _ in range(changes):
            if len(graph.movable) and _draw(random, 100) < _FLIPS:
                _send(graph, state)
                continue
            draw = _draw(random, 100)
            if count and draw < 30:
                count = _left_out(graph, state, count)
            elif count and draw < 50:
                count = _shifted(graph, state, count)
            else:
                count = _bridged(graph, state, count)
        runs = _laid_out(graph, state.trial, count, state.judged)
        judged_runs += runs
        time, lacking = _judge(graph, state, state.judged, runs)
        more = time + costs[WEIGHT] * lacking - costs[COST]
        if more <= 0 or _draw(random, 1 << 53) < math.exp(-more / heat) * (1 << 53):
            _take(graph, state, runs)
            _note(graph, state, time, lacking)
        else:
            for d in graph.movable:
                state.sent[d] = state.away[d]
            if changed:
                for k in graph.choosing:
                    state.tried[k] = state.chosen[k]
                _settle(graph, state, state.chosen)
        counts[BALANCE] += 1 if counts[LACKING] else -1
        if counts[AT] % _PERIOD == 0:
            factor = 1.0
            if counts[BALANCE] > _PERIOD // 2:
                factor = min(1.1, most / costs[WEIGHT])
            elif counts[BALANCE] < -_PERIOD // 2:
                factor = max(1 / 1.1, least / costs[WEIGHT])
            costs[COST] += (factor - 1) * costs[WEIGHT] * counts[LACKING]
            costs[WEIGHT] *= factor
            counts[BALANCE] = 0
    return judged_runs
