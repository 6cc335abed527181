"""The compiled time of programs on several GPUs that take turns on their bus.

What operations of a program wait for is read from the steps that the kernel of local search has logged, with
addresses. Operations of a stream follow each other. So three numbers say for what an operation waits: how
many of compute, of the stream out and of the stream back have to end before it. The simulation is that of
`pebbler.heuristics.turns`, which makes schedules. Only the time comes out here, some hundred times as fast.

Importing this module imports Numba. Numba looks at changes of this file only. So the compiled code has no
functions and no constants of other modules; what they define comes as arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Integers = NDArray[Any]
"""Array of int64; to Numba, one element is a plain integer."""

_F = TypeVar("_F", bound=Callable[..., Any])
"""Type of a function that is compiled."""


def _compiled(function: _F) -> _F:
    """Compile a function as the kernel of local search does it: without counts of references."""
    private = function.__name__.startswith("_")
    options: Any = {"_nrt": False, "no_cpython_wrapper": private, "no_cfunc_wrapper": True}
    return cast(_F, njit(cache=True, nogil=True, **options)(function))


def _step(function: _F) -> _F:
    """Make a function part of each that calls it, as a call would pass on every array."""
    return cast(_F, njit(inline="always")(function))


NEVER = 1 << 62
"""Time that is later than any event, and the time of a program whose operations wait in a circle."""

_COMPUTE, _OUT, _BACK = range(3)
"""Streams. With one copy engine, the stream out has all copies."""

_LATER = -1
"""Instead of a time: a gradient is not there yet."""

_FIRST, _SIZE, _USERS = range(3)
"""Columns of the ranges that have been released: address, bytes, and from here on what used them last."""


class Figures(NamedTuple):
    """What operations take, and what tasks touch.

    Attributes
    ----------
    kinds
        The numbers of the logged steps: run, offload, prefetch, move, place, release.
    single
        Whether there is only one copy engine.
    bytes, offload_ns, prefetch_ns, move_ns
        Per block: its bytes in the pool, and its times, in nanoseconds, of copies whose turn it is, and of a
        move.
    durations, workspaces
        Per task and algorithm.
    algorithms, inputs, updates, outputs
        Per task, and once more at the end: where its algorithms begin, and where in `lists` the blocks do
        that it reads or updates, that it updates, and that it writes first.
    lists
        The blocks of tasks.
    """

    kinds: Integers
    single: bool
    bytes: Integers
    offload_ns: Integers
    prefetch_ns: Integers
    move_ns: Integers
    durations: Integers
    workspaces: Integers
    algorithms: Integers
    inputs: Integers
    updates: Integers
    outputs: Integers
    lists: Integers


class Programs(NamedTuple):
    """The operations of some programs of one GPU, and working memory.

    Attributes
    ----------
    lines, counts
        Per program and stream: its operations in order, and their number.
    back, ns, needs
        Per operation, of equally many of each program: whether it copies back to the device; its time in
        nanoseconds; how many operations of each stream have to end before it.
    runs
        Per program and task, the number of operations of compute that have ended when it has.
    users, before, arrival, written, copied, address
        Per block: the last operations of each stream that use it; those that used it before it left; the copy
        back, the operation of compute that wrote it, and the copy out; its address.
    stale
        Released ranges.
    """

    lines: Integers
    counts: Integers
    back: Integers
    ns: Integers
    needs: Integers
    runs: Integers
    users: Integers
    before: Integers
    arrival: Integers
    written: Integers
    copied: Integers
    address: Integers
    stale: Integers


class Node(NamedTuple):
    """The GPUs of a node, and gradients in the order in which they pass if they wait.

    Attributes
    ----------
    gpus, abreast
        Number of GPUs; number of copies that fill the bus in a direction.
    on_host
        Whether gradients are added up on the host, and not over NVLink.
    ranks
        Per gradient: a rank, the least of which is next whatever GPU it is on.
    made_by, last_use
        Per gradient: the task that completes it, and the last task before its weights can return.
    by_made, by_use
        The gradients in the order of these tasks.
    send_ns, add_ns, exchange_ns, return_ns
        Per gradient, times in nanoseconds; over NVLink, the exchange is the ring of all GPUs.
    """

    gpus: int
    abreast: int
    on_host: bool
    ranks: Integers
    made_by: Integers
    last_use: Integers
    by_made: Integers
    by_use: Integers
    send_ns: Integers
    add_ns: Integers
    exchange_ns: Integers
    return_ns: Integers


class Fleet(NamedTuple):
    """What GPUs do, and working memory of a simulation.

    Attributes
    ----------
    plays
        Per GPU, its program.
    ended, begun, until, flying, since
        Per GPU and stream: how many operations have ended, and have begun; when what is under way ends; which
        operation it is, or less than 0 for a gradient; since when the next operation waits for the bus only.
    sends, returns
        Per GPU and gradient: since when it waits to be sent, or its weights to return; `NEVER` if they have.
    ready
        Per GPU: how many gradients wait to be sent, how many weights to return; how many gradients are
        complete, and for how many the last use has ended.
    arrived, added, passed
        Per gradient: how many GPUs have sent it; how many of these are added; whether weights can return.
    """

    plays: Integers
    ended: Integers
    begun: Integers
    until: Integers
    flying: Integers
    since: Integers
    sends: Integers
    returns: Integers
    ready: Integers
    arrived: Integers
    added: Integers
    passed: Integers


_SENDS, _RETURNS, _MADE, _USED = range(4)
"""Columns of `Fleet.ready`."""


def _room(*shape: int) -> Integers:
    return np.zeros(shape, np.int64)


def programs_for(count: int, tasks: int, blocks: int, steps: int) -> Programs:
    """Return room for so many programs of at most so many logged steps."""
    return Programs(
        lines=_room(3 * count, steps),
        counts=_room(3 * count),
        back=_room(count * steps),
        ns=_room(count * steps),
        needs=_room(count * steps, 3),
        runs=_room(count, tasks),
        users=_room(blocks, 3),
        before=_room(blocks, 3),
        arrival=_room(blocks),
        written=_room(blocks),
        copied=_room(blocks),
        address=_room(blocks),
        stale=_room(2 * steps, 5),
    )


def fleet_for(gpus: int, gradients: int) -> Fleet:
    """Return room for simulations of so many GPUs and gradients."""
    return Fleet(
        plays=_room(gpus),
        ended=_room(gpus, 3),
        begun=_room(gpus, 3),
        until=_room(gpus, 3),
        flying=_room(gpus, 3),
        since=_room(gpus, 3),
        sends=_room(gpus, gradients),
        returns=_room(gpus, gradients),
        ready=_room(gpus, 4),
        arrived=_room(gradients),
        added=_room(gradients),
        passed=_room(gradients),
    )


@_compiled
def _fill(array: Integers, value: int) -> None:
    for i in range(len(array)):
        array[i] = value


@_compiled
def _set(table: Integers, row: int, value: int) -> None:
    for i in range(table.shape[1]):
        table[row, i] = value


@_compiled
def _copy(table: Integers, row: int, source: Integers, other: int) -> None:
    for i in range(table.shape[1]):
        table[row, i] = source[other, i]


@_step
def _issue(programs: Programs, line: int, back: int, ns: int, n: int) -> int:
    """Append operation `n` to a program's stream; return its number there, counted from one."""
    programs.back[n], programs.ns[n] = back, ns
    _set(programs.needs, n, 0)
    programs.lines[line, programs.counts[line]] = n
    programs.counts[line] += 1
    number: int = programs.counts[line]
    return number


@_step
def _need(programs: Programs, n: int, stream: int, number: int) -> None:
    programs.needs[n, stream] = max(programs.needs[n, stream], number)


@_step
def _occupy(programs: Programs, n: int, at: int, size: int, left: int) -> int:
    """Let an operation wait for what used a range last; return how many released ranges are left."""
    stale, i = programs.stale, 0
    while i < left and size:
        first, end = stale[i, _FIRST], stale[i, _FIRST] + stale[i, _SIZE]
        if first < at + size and at < end:
            for stream in range(3):
                _need(programs, n, stream, stale[i, _USERS + stream])
            if at <= first and end <= at + size:  # what comes here next waits for this operation
                left -= 1
                _copy(stale, i, stale, left)
                continue
        i += 1
    return left


@_step
def _leave(programs: Programs, at: int, size: int, compute: int, out: int, back: int, left: int) -> int:
    """Release a range that operations were the last to use; return how many released ranges there are."""
    stale = programs.stale
    stale[left, _FIRST], stale[left, _SIZE] = at, size
    stale[left, _USERS], stale[left, _USERS + 1], stale[left, _USERS + 2] = compute, out, back
    return left + (1 if size else 0)


@_compiled
def replay(log: Integers, steps: int, figures: Figures, programs: Programs, which: int) -> None:
    """Read a program from logged steps.

    Parameters
    ----------
    log, steps
        The steps as the kernel logs them: kind, task or block, algorithm, address; and their number.
    figures
        What operations take and touch.
    programs, which
        Receives the program, as which of them.
    """
    kinds, lists, sizes = figures.kinds, figures.lists, figures.bytes
    users, before, arrival, written = programs.users, programs.before, programs.arrival, programs.written
    copied, address = programs.copied, programs.address
    into = _OUT if figures.single else _BACK
    first = 3 * which
    for stream in range(3):
        programs.counts[first + stream] = 0
    for array in (arrival, written, copied):
        _fill(array, 0)
    for d in range(len(arrival)):
        _set(users, d, 0)
        _set(before, d, 0)
    n, run, left = which * (len(programs.ns) // len(programs.runs)), -1, 0
    for step in range(steps):
        kind, what, how, at = log[step, 0], log[step, 1], log[step, 2], log[step, 3]
        if kind == kinds[0]:
            row = figures.algorithms[what] + how
            number = _issue(programs, first + _COMPUTE, 0, figures.durations[row], n)
            programs.runs[which, what] = number
            for i in range(figures.inputs[what], figures.inputs[what + 1]):
                _need(programs, n, into, arrival[lists[i]])
                users[lists[i], _COMPUTE] = number
            for i in range(figures.updates[what], figures.updates[what + 1]):
                _need(programs, n, _OUT, users[lists[i], _OUT])
                written[lists[i]] = number
            for i in range(figures.outputs[what], figures.outputs[what + 1]):
                _set(users, lists[i], 0)
                arrival[lists[i]] = 0
                users[lists[i], _COMPUTE] = written[lists[i]] = number
            if at >= 0:
                left = _occupy(programs, n, at, figures.workspaces[row], left)
                left = _leave(programs, at, figures.workspaces[row], number, 0, 0, left)
            run = n
            n += 1
        elif kind == kinds[1]:
            number = _issue(programs, first + _OUT, 0, figures.offload_ns[what], n)
            _need(programs, n, _COMPUTE, written[what])
            _need(programs, n, into, arrival[what])
            users[what, _OUT] = copied[what] = number
            n += 1
        elif kind == kinds[2]:
            number = _issue(programs, first + into, 1, figures.prefetch_ns[what], n)
            left = _occupy(programs, n, at, sizes[what], left)
            for stream in range(3):
                _need(programs, n, stream, before[what, stream])
            _need(programs, n, _OUT, copied[what])
            _set(users, what, 0)
            users[what, into] = arrival[what] = number
            address[what] = at
            n += 1
        elif kind == kinds[3]:
            number = _issue(programs, first + _COMPUTE, 0, figures.move_ns[what], n)
            _need(programs, n, into, arrival[what])
            _need(programs, n, _OUT, users[what, _OUT])
            left = _occupy(programs, n, at, sizes[what], left)
            left = _leave(programs, address[what], sizes[what], number, 0, 0, left)
            users[what, _COMPUTE] = written[what] = number
            address[what] = at
            n += 1
        elif kind == kinds[4]:
            address[what] = at
            if run >= 0:  # else it is there from the start
                left = _occupy(programs, run, at, sizes[what], left)
        elif kind == kinds[5]:
            _copy(before, what, users, what)
            compute, out, back = users[what, 0], users[what, 1], users[what, 2]
            left = _leave(programs, address[what], sizes[what], compute, out, back, left)


@_step
def _begin(programs: Programs, fleet: Fleet, gpu: int, streams: int, now: int) -> None:
    """Start what a GPU can start; a copy waits for the bus from now on."""
    ended, begun, since = fleet.ended, fleet.begun, fleet.since
    again = True
    while again:
        again = False
        for stream in range(streams):
            turn, line = begun[gpu, stream], 3 * fleet.plays[gpu] + stream
            if turn == programs.counts[line] or turn > ended[gpu, stream] or since[gpu, stream] >= 0:
                continue
            n = programs.lines[line, turn]
            waits = False
            for other in range(3):
                waits = waits or programs.needs[n, other] > ended[gpu, other]
            if waits:
                continue
            if programs.ns[n] == 0:
                begun[gpu, stream] += 1
                ended[gpu, stream] += 1
                again = True
            elif stream == _COMPUTE:
                begun[gpu, stream] += 1
                fleet.until[gpu, stream], fleet.flying[gpu, stream] = now + programs.ns[n], n
            else:
                since[gpu, stream] = now


@_step
def _complete(programs: Programs, node: Node, fleet: Fleet, gpu: int, now: int) -> None:
    """Let the gradients wait that a GPU has completed, and the weights whose last use has ended."""
    gradients, ready, ended = len(node.send_ns), fleet.ready, fleet.ended[gpu, _COMPUTE]
    runs, plays = programs.runs, fleet.plays[gpu]
    while ready[gpu, _USED] < gradients:
        i = node.by_use[ready[gpu, _USED]]
        if runs[plays, node.last_use[i]] > ended:
            break
        ready[gpu, _USED] += 1
        if not node.on_host:
            fleet.arrived[i] += 1
        elif fleet.passed[i]:
            fleet.returns[gpu, i] = now
            ready[gpu, _RETURNS] += 1
    while ready[gpu, _MADE] < gradients:
        i = node.by_made[ready[gpu, _MADE]]
        if runs[plays, node.made_by[i]] > ended:
            break
        ready[gpu, _MADE] += 1
        if node.on_host:
            fleet.sends[gpu, i] = now
            ready[gpu, _SENDS] += 1


@_step
def _pass(programs: Programs, node: Node, fleet: Fleet, i: int, now: int) -> None:
    """Let the weights of a gradient return that is added up."""
    fleet.passed[i] = 1
    for gpu in range(node.gpus if node.on_host else 0):
        if programs.runs[fleet.plays[gpu], node.last_use[i]] <= fleet.ended[gpu, _COMPUTE]:
            fleet.returns[gpu, i] = now
            fleet.ready[gpu, _RETURNS] += 1


@_step
def _board(
    programs: Programs, node: Node, fleet: Fleet, stream: int, single: bool, leads: tuple[int, int], now: int
) -> bool:
    """Let the next copy, or else the next gradient, onto the bus; return whether there was one."""
    chosen, least = -1, NEVER
    for gpu in range(node.gpus):
        if fleet.since[gpu, stream] >= 0 and fleet.until[gpu, stream] == NEVER:
            n = programs.lines[3 * fleet.plays[gpu] + stream, fleet.begun[gpu, stream]]
            turn = fleet.since[gpu, stream] + gpu * leads[programs.back[n]]
            if turn < least:
                chosen, least = gpu, turn
    if chosen >= 0:
        n = programs.lines[3 * fleet.plays[chosen] + stream, fleet.begun[chosen, stream]]
        fleet.begun[chosen, stream] += 1
        fleet.since[chosen, stream] = -1
        fleet.until[chosen, stream], fleet.flying[chosen, stream] = now + programs.ns[n], n
        return True
    which, rank, returns = -1, NEVER, False
    for way in range(2):
        if not single and way != stream - 1:
            continue
        for gpu in range(node.gpus):
            if fleet.ready[gpu, way] == 0 or fleet.until[gpu, stream] != NEVER:
                continue
            waiting = fleet.returns if way else fleet.sends
            i = 0
            while waiting[gpu, i] == _LATER or waiting[gpu, i] == NEVER:
                i += 1
            turn = waiting[gpu, i] + gpu * leads[way]
            if which < 0 or node.ranks[i] < rank or (node.ranks[i] == rank and turn < least):
                which, rank, chosen, least, returns = i, node.ranks[i], gpu, turn, way == 1
    if which < 0:
        return False
    if returns:
        fleet.returns[chosen, which] = NEVER
        fleet.ready[chosen, _RETURNS] -= 1
        fleet.until[chosen, stream] = now + node.return_ns[which]
        fleet.flying[chosen, stream] = -1 - which - len(node.send_ns)
    else:
        fleet.sends[chosen, which] = NEVER
        fleet.ready[chosen, _SENDS] -= 1
        fleet.until[chosen, stream] = now + node.send_ns[which]
        fleet.flying[chosen, stream] = -1 - which
    return True


@_step
def _first(arrived: Integers, added: Integers) -> int:
    """Return the first gradient that has arrived from more GPUs than those of which it is added."""
    i = 0
    while arrived[i] == added[i]:
        i += 1
    return i


@_step
def _whole(joined: Integers, gpus: int, passed: Integers) -> int:
    """Return the first gradient of all GPUs whose weights cannot return yet, or -1."""
    for i in range(len(joined)):
        if joined[i] == gpus and not passed[i]:
            return i
    return -1


@_compiled
def time_in_turn(
    programs: Programs, node: Node, fleet: Fleet, leads: tuple[int, int], single: bool, allowed: int
) -> int:
    """Return when all GPUs of a node are done with their programs, in nanoseconds.

    All nodes do the same at the same time. What takes longer than `allowed` is given up; the time that is
    returned is then greater than this, and no greater than the true one. It is `NEVER` if operations wait in
    a circle.

    Parameters
    ----------
    programs, node
        The programs, and the GPUs.
    fleet
        Which of them each GPU has, and working memory.
    leads
        Which copy is next: a `pebbler.heuristics.turns.Rule`, as a plain tuple.
    single
        Whether GPUs have one copy engine.
    allowed
        Greatest time of use, in nanoseconds.
    """
    gpus, streams = node.gpus, 2 if single else 3
    for gpu in range(gpus):
        for zero in (fleet.ended, fleet.begun, fleet.ready):
            _set(zero, gpu, 0)
        for later in (fleet.since, fleet.sends, fleet.returns):
            _set(later, gpu, _LATER)
        _set(fleet.until, gpu, NEVER)
    for array in (fleet.arrived, fleet.added, fleet.passed):
        _fill(array, 0)
    busy_out = busy_back = to_add = to_exchange = now = last = 0
    adding = exchanging = -1
    added_at = exchanged_at = NEVER
    for gpu in range(gpus):
        _begin(programs, fleet, gpu, streams, now)
        _complete(programs, node, fleet, gpu, now)
    while True:
        if adding < 0 and to_add:
            adding, to_add = _first(fleet.arrived, fleet.added), to_add - 1
            added_at = now + node.add_ns[adding]
        if exchanging < 0 and (to_exchange or not node.on_host):
            exchanging = _whole(fleet.added if node.on_host else fleet.arrived, gpus, fleet.passed)
            exchanged_at = NEVER if exchanging < 0 else now + node.exchange_ns[exchanging]
            to_exchange -= 1
        while busy_out < node.abreast and _board(programs, node, fleet, _OUT, single, leads, now):
            busy_out += 1
        while (
            not single
            and busy_back < node.abreast
            and _board(programs, node, fleet, _BACK, single, leads, now)
        ):
            busy_back += 1
        now = min(added_at, exchanged_at)
        for gpu in range(gpus):
            for stream in range(streams):
                now = min(now, fleet.until[gpu, stream])
        if now == NEVER or now > allowed:
            break
        last = now
        if added_at == now:
            fleet.added[adding] += 1
            if fleet.added[adding] == gpus:
                if node.exchange_ns[adding]:
                    to_exchange += 1
                else:
                    _pass(programs, node, fleet, adding, now)
            adding, added_at = -1, NEVER
        if exchanged_at == now:
            _pass(programs, node, fleet, exchanging, now)
            exchanging, exchanged_at = -1, NEVER
        for gpu in range(gpus):
            ends = False
            for stream in range(streams):
                if fleet.until[gpu, stream] != now:
                    continue
                fleet.until[gpu, stream], ends, what = NEVER, True, fleet.flying[gpu, stream]
                busy_out -= stream == _OUT
                busy_back -= stream == _BACK
                if what >= 0:
                    fleet.ended[gpu, stream] += 1
                elif what >= -len(node.send_ns):
                    fleet.arrived[-1 - what] += 1
                    to_add += 1
            if ends:
                _begin(programs, fleet, gpu, streams, now)
                _complete(programs, node, fleet, gpu, now)
    if now != NEVER:
        return now
    for gpu in range(gpus):
        for stream in range(streams):
            if fleet.ended[gpu, stream] < programs.counts[3 * fleet.plays[gpu] + stream]:
                return NEVER
    return last
