"""Exhaustive search over all schedules of a tiny instance, with which every other method is compared.

States of the machine are searched in the order of time, with the remaining compute time as the bound.
A left-shifted program starts each operation at time 0 or when another one ends, so it is enough to decide
at those instants. Contiguous places are multiples of the greatest common divisor of all sizes: moving every
residence to the lowest address that is free for it leads to such places, and changes no time.

Where copies share a link, or slow runs down, less may take longer: a copy that nobody needs ends at an
instant at which another one starts best. So copies, moves and second runs of any use or none are tried there.

Where host memory has a budget, a copy there is dropped at the instant at which an offload starts that needs
its room, for earlier is of no use. A copy that nothing will read, or that an update makes stale, is dropped
at once, which is free: what has read it has ended by then.

Where tasks may run on the host, `host_work` has a machine of its own.

Blocks that a round carries begin in each choice of places, and must end there; see `carried`.

It is long because the machine's state and all decisions that are possible in it belong to one class.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from ...heuristics.methods import Answer, Limits, Refusal, register
from ...heuristics.program.builder import ProgramBuilder
from ...instances.instance import Instance
from ...instances.units import ceil_to
from ...validate.schedule import MemoryModel, Schedule, unit_bytes
from .carried import Home, choices, settled, with_states
from .host_memory import ABSENT as _ABSENT
from .host_memory import MOST_PLACES, HostPool
from .host_work import host_work
from .pace import Busy, Pace
from .search import Path, shortest_path

_MOST_TASKS = 200
"""Greatest number of tasks for which the search is tried."""


@register(
    "brute-force",
    "exhaustive search, for tiny instances",
    "this project",
    shown="named",
    carries="chosen",
    sides="chosen",
    reads="chosen",
)
def _method(instance: Instance, limits: Limits) -> Answer:
    deadline = math.inf if limits.time_limit is None else time.monotonic() + limits.time_limit
    try:
        schedule = brute_force(instance, limits.memory, deadline=deadline)
    except TimeoutError:
        return Answer(None, stopped_by="time limit")
    if schedule is None:
        return Answer(None, stopped_by="every program was tried", infeasible=True)
    return Answer(schedule, lower_bound_ns=schedule.makespan_ns, bound_by="brute-force")


def brute_force(
    instance: Instance,
    memory: MemoryModel = "contiguous",
    *,
    deadline: float = math.inf,
    most_states: float = math.inf,
) -> Schedule | None:
    """Return a shortest schedule in a memory model, or None when there is no schedule.

    Parameters
    ----------
    instance
        A tiny instance: up to about six tasks and eight blocks.
    memory
        Contiguous, paged or divisible (a relaxation: never a solution).
    deadline
        Value of `time.monotonic` at which to give up.
    most_states
        Number of states after which to give up, which does not depend on the computer's speed.

    Raises
    ------
    Refusal
        When the pool has too many possible places for an exhaustive search, or there are too many tasks.
    TimeoutError
        When the deadline has passed, or the search needs more states.
    """
    if len(instance.tasks) > _MOST_TASKS:
        raise Refusal(f"brute force: {len(instance.tasks)} tasks are too many for an exhaustive search")
    if instance.has_host_work:
        return host_work(instance, memory, deadline=deadline, most_states=most_states)
    machine = _Machine(instance, memory)
    path = shortest_path(machine, deadline=deadline, most_states=most_states)
    return None if path is None else machine.program(path)


class _State(NamedTuple):
    """The machine at one instant.

    `places` holds each block's offset or -1; `host` the blocks with a valid host copy; `turn` the next
    decision of this instant (evictions, then compute, then the copy streams); `owing` that a block was
    evicted at this instant and nothing has been placed since. An eviction is useful only at the time of the
    placement that needs it.

    Where host memory has a budget, `copies` holds the offset of each block's copy there or -1, copies that an
    offload is writing included; `host_owing` is as `owing`, of copies and offloads.

    Where blocks are carried, `homes` says where each of them must end. `unused` are those that are carried in
    both places and that nothing has used on the device, `unread` those whose copy nothing has read.
    """

    following: int
    streams: tuple[Busy | None, ...]
    places: tuple[int, ...]
    host: int
    turn: int
    owing: bool = False
    copies: tuple[int, ...] = ()
    host_owing: bool = False
    homes: tuple[Home, ...] = ()
    unused: int = 0
    unread: int = 0


class _Step(NamedTuple):
    """A decision: start an operation on a stream, evict a block, drop a copy, or let time pass.

    `over` are the outputs of a run that take over the place of an input, each with that.
    """

    kind: str
    item: int = 0
    algorithm: int = 0
    places: tuple[tuple[int, int], ...] = ()
    workspace: int = _ABSENT
    over: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Needs:
    """What the machine looks up often: aligned sizes, versions, blocks of runs, and the last uses of blocks.

    `blocks` holds those that each task touches with each of its algorithms, `last` the last task that may use
    each block or -1, `sure` the last that uses it whatever its algorithm. `prefetches` has, for each number
    of tasks that have begun, the next such uses of blocks that are not made in between, in order, each with
    the block and the time of its prefetch.
    """

    sizes: tuple[int, ...]
    workspaces: tuple[tuple[int, ...], ...]
    versions: tuple[tuple[int, ...], ...]
    blocks: tuple[tuple[tuple[int, ...], ...], ...]
    last: tuple[int, ...]
    sure: tuple[int, ...]
    prefetches: tuple[tuple[tuple[int, int, int], ...], ...]


class _Machine:
    """The machine, which gives all steps that are possible at an instant."""

    def __init__(self, instance: Instance, memory: MemoryModel) -> None:
        self.instance = instance
        self.memory: MemoryModel = memory
        unit = unit_bytes(instance, memory)
        self.pool = instance.pool_bytes // unit * unit if memory == "paged" else instance.pool_bytes
        made = {d: k for k, task in enumerate(instance.tasks) for d in task.outputs}
        sure: list[list[int]] = [[] for _ in instance.blocks]
        for k, task in enumerate(instance.tasks):
            for d in (*task.must_read, *task.must_make, *task.updates):
                sure[d].append(k)
        self.remade = {d for d, k in made.items() if instance.tasks[k].recomputable}
        self.needs = _Needs(
            tuple(ceil_to(block.bytes, unit) for block in instance.blocks),
            tuple(
                tuple(ceil_to(a.workspace_bytes, unit) for a in task.algorithms) for task in instance.tasks
            ),
            tuple(
                tuple(sum(w < k for w in writers) for writers in instance.writers)
                for k in range(len(instance.tasks) + 1)
            ),
            tuple(tuple(task.touches(a) for a in range(len(task.algorithms))) for task in instance.tasks),
            tuple(uses[-1] if uses else -1 for uses in instance.uses),
            tuple(uses[-1] if uses else -1 for uses in sure),
            tuple(
                tuple(
                    sorted(
                        (next(use for use in uses if use >= k), d, instance.blocks[d].prefetch_ns or 0)
                        for d, uses in enumerate(sure)
                        if uses and uses[-1] >= k and made.get(d, -1) < k and d not in self.remade
                    )
                )
                for k in range(len(instance.tasks) + 1)
            ),
        )
        self.exact = tuple(block.bytes for block in instance.blocks)
        self.single = instance.engines == "single"
        self.recomputes = any(task.recomputable for task in instance.tasks)
        self.step = self._step_of_places()
        self.host = HostPool(instance, memory) if instance.has_host_budget else None
        self.pace = Pace(instance) if instance.is_coupled else None
        self.carried = {d: i for i, d in enumerate(instance.carried)}
        least = [min((a.duration_ns for a in task.algorithms), default=0) for task in instance.tasks]
        self.tail = [sum(least[k:]) for k in range(len(least) + 1)]

    def _step_of_places(self) -> int:
        """Return the distance of possible places in contiguous memory."""
        if self.memory != "contiguous":
            return 1
        begins = [block.begin for block in self.instance.blocks if block.begin]
        scratch = [size for sizes in self.needs.workspaces for size in sizes if size]
        step = math.gcd(*self.needs.sizes, *begins, *scratch)
        if not step:  # nothing takes a place
            return 1
        if self.pool // step > MOST_PLACES:
            raise Refusal(
                f"brute force: {self.pool // step} possible places; at most {MOST_PLACES} are tried"
            )
        return step

    # --- states -----------------------------------------------------------------------------------

    def initial_states(self) -> Iterator[_State]:
        """Yield every choice of the initial blocks on the device, and of the places of carried ones."""
        blocks = self.instance.blocks
        host = sum(1 << d for d, block in enumerate(blocks) if block.initially != "absent")
        empty = _State(0, (None,) * (2 if self.single else 3), (_ABSENT,) * len(blocks), host, 0)
        starts = [empty]
        for d, block in enumerate(blocks):
            if block.initially == "device":
                starts += [
                    state._replace(places=_put(state.places, d, place))
                    for state in starts
                    for place in self._rooms(state, state.places, self.needs.sizes[d], self.exact[d])
                ]
        begun = iter(starts)
        for d in self.carried:
            begun = self._with_home(begun, d)
        yield from begun if self.host is None else self._with_copies(begun, self.host)

    def _with_home(self, starts: Iterator[_State], d: int) -> Iterator[_State]:
        """Yield the initial states with every choice of the places of a carried block."""
        for start in starts:
            for on_device, on_host in choices(self.instance, d):
                rooms = self._rooms(start, start.places, self.needs.sizes[d], self.exact[d])
                for place in rooms if on_device else (_ABSENT,):
                    yield start._replace(
                        places=_put(start.places, d, place),
                        host=start.host & ~(1 << d) | on_host << d,
                        homes=(*start.homes, Home(place, 0 if on_host else _ABSENT)),
                        unused=start.unused | (on_device and on_host) << d,
                        unread=start.unread | (on_device and on_host and self.host is not None) << d,
                    )

    def _with_copies(self, starts: Iterator[_State], host: HostPool) -> Iterator[_State]:
        """Yield the initial states with every choice of the copies that are on the host from time 0."""
        starts = (start._replace(copies=(_ABSENT,) * len(start.places), host=0) for start in starts)
        for d, block in enumerate(self.instance.blocks):
            if d in self.carried:
                starts = self._with_carried_copy(starts, host, d)
            elif block.initially != "absent":
                starts = self._with_copy(list(starts), host, d)
        return starts

    def _with_copy(self, starts: list[_State], host: HostPool, d: int) -> Iterator[_State]:
        """Yield the initial states with and without a block's copy at every place, as far as it may be."""
        wanted = bool(starts) and self._is_wanted_on_host(starts[0], d)
        may = wanted or (bool(starts) and self.pace is not None)
        alone = self.instance.blocks[d].initially == "host" and wanted
        must = may and (host.is_ample or (alone and not self._is_spare(starts[0], d)))
        if not must:
            yield from starts
        if may:
            for start in starts:
                for place in host.rooms(start.copies, d):
                    yield start._replace(copies=_put(start.copies, d, place), host=start.host | 1 << d)

    def _with_carried_copy(self, starts: Iterator[_State], host: HostPool, d: int) -> Iterator[_State]:
        """Yield the initial states with every place of a carried block's copy, if its home has one."""
        i = self.carried[d]
        for start in starts:
            if start.homes[i].host == _ABSENT:
                yield start
                continue
            for place in host.rooms(start.copies, d):
                homes = (*start.homes[:i], start.homes[i]._replace(host=place), *start.homes[i + 1 :])
                copies = _put(start.copies, d, place)
                yield start._replace(copies=copies, host=start.host | 1 << d, homes=homes)

    def is_done(self, state: _State) -> bool:
        """Return whether every task has run, every stream is idle and every block is where it must end."""
        if state.following < len(self.instance.tasks) or any(state.streams):
            return False
        for d, block in enumerate(self.instance.blocks):
            if block.finally_ == "host" and not state.host >> d & 1:
                return False
            if block.finally_ == "device" and state.places[d] == _ABSENT:
                return False
        return all(self._is_at_home(state, d) for d in self.carried)

    def _is_at_home(self, state: _State, d: int) -> bool:
        """Return whether a carried block is where it must end; anything beyond that can be released."""
        home = state.homes[self.carried[d]]
        if home.device not in (_ABSENT, state.places[d]):
            return False
        return home.host == _ABSENT or self._is_saved(state, d)

    def time_left(self, state: _State) -> int:
        """Return a lower bound on the time until the state is done.

        The remaining tasks follow the one that runs. An absent block that is needed is prefetched before the
        task that needs it, and after all blocks that are needed earlier.
        """
        compute, *copies = [math.ceil(busy.left) if busy else 0 for busy in state.streams]
        left, engine = max(compute + self.tail[state.following], *copies), copies[-1]
        for use, d, takes in self.needs.prefetches[state.following]:
            if state.places[d] == _ABSENT:
                engine += takes
                left = max(left, engine + self.tail[use])
        if not self.carried:
            return left
        for d in self.carried:
            if (
                state.places[d] == _ABSENT
                and self.needs.last[d] < state.following
                and self._ends_on_device(state, d)
            ):
                engine += self.instance.blocks[d].prefetch_ns or 0
        return max(left, engine, self._time_to_save(state, compute, copies[0]))

    def _time_to_save(self, state: _State, compute: int, engine: int) -> int:
        """Return a lower bound on the time until the host has all carried blocks that must end there.

        Each is offloaded after its last update; one after the other, in the order in which these may end.
        """
        offloads = []
        for d in self.carried:
            if not self._ends_on_host(state, d) or self._offloading(state, d):
                continue
            last = self.instance.writers[d][-1:]
            if last and last[0] >= state.following:
                ready = compute + self.tail[state.following] - self.tail[last[0] + 1]
            elif state.host >> d & 1:
                continue
            else:
                ready = compute if self._written(state, d) else 0
            offloads.append((ready, self.instance.blocks[d].offload_ns or 0))
        for ready, duration in sorted(offloads):
            engine = max(engine, ready) + duration
        return engine

    # --- decisions --------------------------------------------------------------------------------

    def steps(self, state: _State) -> Iterator[tuple[_Step, _State, int]]:
        """Yield the decisions at a state, with the states they lead to and the time that passes."""
        if state.turn == 0:
            yield from self._evictions(state)
            if self.host is not None and self._may_drop(self.host) and state.streams[1] is None:
                yield from self._drops(state)
        if state.turn <= 1 and state.streams[0] is None:
            yield from self._runs(state)
            if self.memory == "contiguous" or self.pace is not None:
                yield from self._moves(state)
        for stream in range(1, len(state.streams)):
            if state.turn <= stream + 1 and state.streams[stream] is None:
                if self.single or stream == 1:
                    yield from self._offloads(state, stream)
                if self.single or stream == 2:
                    yield from self._prefetches(state, stream)
        if any(state.streams) and not state.owing and not state.host_owing:
            yield self._passing(state)

    def _evictions(self, state: _State) -> Iterator[tuple[_Step, _State, int]]:
        in_use = self._in_use(state)
        for d, place in enumerate(state.places):
            if state.unused >> d & 1:
                continue
            if place != _ABSENT and d not in in_use and self._may_go(state, d):
                places = _put(state.places, d, _ABSENT)
                yield _Step("evict", d), state._replace(places=places, owing=True), 0

    def _drops(self, state: _State) -> Iterator[tuple[_Step, _State, int]]:
        """Drop a copy that nothing reads or writes, of a block that is not lost by that."""
        for d, place in enumerate(state.copies):
            if place == _ABSENT or not state.host >> d & 1 or self._arriving(state, d):
                continue
            if state.unread >> d & 1:
                continue
            is_lost = state.places[d] == _ABSENT and not self._is_remade(state, d)
            if is_lost and self._is_wanted_on_host(state, d) and not self._is_spare(state, d):
                continue
            copies = _put(state.copies, d, _ABSENT)
            yield (
                _Step("drop", d),
                state._replace(copies=copies, host=state.host & ~(1 << d), host_owing=True),
                0,
            )

    def _runs(self, state: _State) -> Iterator[tuple[_Step, _State, int]]:
        again = [k for k in range(state.following) if self.instance.tasks[k].recomputable]
        for k in [*([state.following] if state.following < len(self.instance.tasks) else []), *again]:
            task = self.instance.tasks[k]
            ways = [a for a in range(len(task.algorithms)) if self._can_run(state, k, a)]
            if not ways:
                continue
            if any(state.unread >> d & 1 for d in task.updates):
                continue
            host = state.host
            for d in (*task.updates, *(task.outputs if k == state.following else ())):
                host &= ~(1 << d)
            for a, over in [(way, over) for way in ways for over in self._takeovers(state, k, way)]:
                absent = [d for d in task.makes(a) if state.places[d] == _ABSENT]
                if k < state.following and not absent and self.pace is None:
                    continue  # it makes nothing that is not there
                algorithm, touched = task.algorithms[a], self.needs.blocks[k][a]
                unused = state.unused & ~sum(1 << d for d in touched)
                places = state.places
                for d, x in over:
                    places = _put(_put(places, d, places[x]), x, _ABSENT)
                new = [d for d in absent if places[d] == _ABSENT]
                for placed, scratch in self._placements(
                    state, places, new, self.needs.workspaces[k][a], algorithm.workspace_bytes
                ):
                    if not self._one_base(touched, placed):
                        continue
                    busy = Busy("run", k, a, algorithm.duration_ns, scratch, _ABSENT)
                    where = tuple([(d, placed[d]) for d in new])
                    later = _State(
                        following=max(state.following, k + 1),
                        streams=(busy, *state.streams[1:]),
                        places=placed,
                        host=host,
                        turn=2,
                        owing=state.owing and not new and scratch == _ABSENT,
                        copies=state.copies,
                        host_owing=state.host_owing,
                        homes=state.homes,
                        unused=unused,
                        unread=state.unread,
                    )
                    yield _Step("run", k, a, where, scratch, over), self._without_useless(later), 0

    def _takeovers(self, state: _State, k: int, a: int) -> Iterator[tuple[tuple[int, int], ...]]:
        """Yield the choices of outputs that take over places of inputs, which can come back or are spare."""
        after = state._replace(following=max(state.following, k + 1))
        pairs = [
            (d, x)
            for d, x in self.instance.tasks[k].algorithms[a].takes_over
            if state.places[d] == _ABSENT and self._may_go(after, x) and not self._offloading(state, x)
        ]
        for count in range(len(pairs) + 1):
            yield from itertools.combinations(pairs, count)

    def _moves(self, state: _State) -> Iterator[tuple[_Step, _State, int]]:
        in_use = self._in_use(state)
        for d, block in enumerate(self.instance.blocks):
            if block.move_ns is None or state.places[d] == _ABSENT or d in in_use:
                continue
            for place in self._rooms(state, state.places, self.needs.sizes[d], self.exact[d]):
                busy = Busy("move", d, 0, block.move_ns, _ABSENT, state.places[d])
                places = _put(state.places, d, place)
                yield (
                    _Step("move", d, 0, ((d, place),)),
                    state._replace(
                        streams=(busy, *state.streams[1:]),
                        places=places,
                        turn=2,
                        owing=False,
                        unused=state.unused & ~(1 << d),
                    ),
                    0,
                )

    def _offloads(self, state: _State, stream: int) -> Iterator[tuple[_Step, _State, int]]:
        for d, block in enumerate(self.instance.blocks):
            if block.offload_ns is None or state.places[d] == _ABSENT:
                continue
            if self._arriving(state, d) or self._written(state, d):
                continue
            if state.host >> d & 1 and (self.pace is None or self.host is not None):
                continue
            if self.pace is None and not self._is_wanted_on_host(state, d):
                continue
            busy = Busy("offload", d, 0, block.offload_ns, _ABSENT, _ABSENT)
            streams = (*state.streams[:stream], busy, *state.streams[stream + 1 :])
            started = state._replace(
                streams=streams, turn=stream + 2, host_owing=False, unused=state.unused & ~(1 << d)
            )
            if self.host is None:
                yield _Step("offload", d), started, 0
                continue
            for place in self.host.rooms(state.copies, d):
                yield _Step("offload", d), started._replace(copies=_put(state.copies, d, place)), 0

    def _prefetches(self, state: _State, stream: int) -> Iterator[tuple[_Step, _State, int]]:
        for d, block in enumerate(self.instance.blocks):
            if block.prefetch_ns is None or not state.host >> d & 1 or state.places[d] != _ABSENT:
                continue
            if self.pace is None and not (self._is_wanted(state, d) or self._may_make_room(state, d)):
                continue
            if d in self._in_use(state):  # its place was taken over by the run that reads it
                continue
            for place in self._rooms(state, state.places, self.needs.sizes[d], self.exact[d]):
                busy = Busy("prefetch", d, 0, block.prefetch_ns, _ABSENT, _ABSENT)
                streams = (*state.streams[:stream], busy, *state.streams[stream + 1 :])
                places = _put(state.places, d, place)
                yield (
                    _Step("prefetch", d, 0, ((d, place),)),
                    state._replace(
                        streams=streams,
                        places=places,
                        turn=stream + 2,
                        owing=False,
                        unread=state.unread & ~(1 << d),
                    ),
                    0,
                )

    def _passing(self, state: _State) -> tuple[_Step, _State, int]:
        """Let time pass until the next operation ends; one that ends at the same time ends as well."""
        elapsed, left = self._until_next_end(state)
        streams: list[Busy | None] = []
        host = state.host
        for busy, then in zip(state.streams, left, strict=True):
            if busy is not None and not then:
                if busy.kind == "offload":
                    host |= 1 << busy.item
                streams.append(None)
            else:
                streams.append(busy and busy._replace(left=then))
        later = state._replace(streams=tuple(streams), host=host, turn=0)
        return _Step("wait"), self._without_useless(self._without_dead(later)), elapsed

    def _until_next_end(self, state: _State) -> tuple[int, Sequence[int | Fraction]]:
        """Return the time until an operation ends, and what is left then of each stream's."""
        if self.pace is not None:
            return self.pace.until_next_end(state.streams)
        left = [busy.left if busy else 0 for busy in state.streams]
        elapsed = min(some for busy, some in zip(state.streams, left, strict=True) if busy)
        return int(elapsed), [some - elapsed for some in left]

    def _without_dead(self, state: _State) -> _State:
        """Release blocks that are not needed any more, but where that is a decision."""
        if self.recomputes or self.pace is not None:
            return state
        in_use = self._in_use(state)
        places = tuple(
            _ABSENT
            if place != _ABSENT
            and self._is_dead(state, d)
            and d not in in_use
            and not self._may_make_room(state, d)
            else place
            for d, place in enumerate(state.places)
        )
        return state._replace(places=places)

    def _without_useless(self, state: _State) -> _State:
        """Drop copies on the host that are stale, or that nothing will read and that need not stay."""
        if self.host is None:
            return state
        copies, host = list(state.copies), state.host
        for d, place in enumerate(copies):
            if place == _ABSENT or self._offloading(state, d):
                continue
            wanted = self.pace is not None or self._is_wanted_on_host(state, d)
            if not host >> d & 1 or not wanted:
                copies[d], host = _ABSENT, host & ~(1 << d)
        return state._replace(copies=tuple(copies), host=host)

    # --- conditions -------------------------------------------------------------------------------

    def _in_use(self, state: _State) -> set[int]:
        """Return the blocks that a stream works on."""
        in_use: set[int] = set()
        for busy in state.streams:
            if busy is not None:
                is_run = busy.kind == "run"
                in_use.update(self.needs.blocks[busy.item][busy.algorithm] if is_run else (busy.item,))
        return in_use

    def _arriving(self, state: _State, d: int) -> bool:
        """Return whether a copy is bringing the block at this instant."""
        return any(busy and busy.kind in ("prefetch", "move") and busy.item == d for busy in state.streams)

    def _offloading(self, state: _State, d: int) -> bool:
        return any(busy and busy.kind == "offload" and busy.item == d for busy in state.streams)

    def _written(self, state: _State, d: int) -> bool:
        busy = state.streams[0]
        if busy is None or busy.kind != "run":
            return False
        task = self.instance.tasks[busy.item]
        return d in task.makes(busy.algorithm) or d in task.updates

    def _may_go(self, state: _State, d: int) -> bool:
        """Return whether a block may be evicted: it can come back, or it is not needed any more."""
        if state.host >> d & 1:
            return True
        return self._is_remade(state, d) or self._is_dead(state, d) or self._is_spare(state, d)

    def _is_remade(self, state: _State, d: int) -> bool:
        """Return whether a block can be computed again in its latest version."""
        return self.needs.versions[state.following][d] <= 1 and d in self.remade

    def _may_drop(self, host: HostPool) -> bool:
        """Return whether copies are dropped for others: for want of room, or to make one anew."""
        return not host.is_ample or self.pace is not None

    def _is_spare(self, state: _State, d: int) -> bool:
        """Return whether all tasks to come can do without a block, if they run the right algorithms."""
        if self.needs.sure[d] >= state.following or self._ends_on_device(state, d):
            return False
        return not self._ends_on_host(state, d) or self._is_saved(state, d)

    def _is_dead(self, state: _State, d: int) -> bool:
        if self.needs.last[d] >= state.following or self._ends_on_device(state, d):
            return False
        return not self._ends_on_host(state, d) or self._is_saved(state, d)

    def _is_wanted(self, state: _State, d: int) -> bool:
        """Return whether a block will be used: by a task, perhaps one that runs again, or at the end."""
        if self.needs.last[d] >= state.following or self._ends_on_device(state, d):
            return True
        if d in self.carried and self._ends_on_host(state, d) and not self._is_saved(state, d):
            return True  # its copy lies elsewhere than at first
        return self.recomputes and any(self.instance.tasks[k].recomputable for k in self.instance.uses[d])

    def _is_wanted_on_host(self, state: _State, d: int) -> bool:
        """Return whether a block's copy may be read, or must stay there at the end."""
        return self._ends_on_host(state, d) or self._is_wanted(state, d)

    def _may_make_room(self, state: _State, d: int) -> bool:
        """Return whether a block that must end on a host without much room may wait on the device."""
        return self.host is not None and not self.host.is_ample and self._ends_on_host(state, d)

    def _ends_on_device(self, state: _State, d: int) -> bool:
        if d in self.carried:
            return state.homes[self.carried[d]].device != _ABSENT
        return self.instance.blocks[d].finally_ == "device"

    def _ends_on_host(self, state: _State, d: int) -> bool:
        if d in self.carried:
            return state.homes[self.carried[d]].host != _ABSENT
        return self.instance.blocks[d].finally_ == "host"

    def _is_saved(self, state: _State, d: int) -> bool:
        """Return whether the copy of a block that must end on the host is there, if carried in its place."""
        if not state.host >> d & 1:
            return False
        return self.host is None or d not in self.carried or self._is_copy_at_home(state, d)

    def _is_copy_at_home(self, state: _State, d: int) -> bool:
        return state.copies[d] == state.homes[self.carried[d]].host

    def _can_run(self, state: _State, k: int, algorithm: int) -> bool:
        task = self.instance.tasks[k]
        now, then = self.needs.versions[state.following], self.needs.versions[k]
        for d in (*task.reads(algorithm), *task.updates):
            if state.places[d] == _ABSENT or self._arriving(state, d) or now[d] != then[d]:
                return False
        if any(now[d] > 1 for d in task.outputs):
            return False
        rewritten = [*task.updates, *(d for d in task.makes(algorithm) if state.places[d] != _ABSENT)]
        return not any(self._offloading(state, d) or self._arriving(state, d) for d in rewritten)

    def _one_base(self, blocks: tuple[int, ...], places: tuple[int, ...]) -> bool:
        if self.memory != "contiguous":
            return True
        bases: dict[str, int] = {}
        for d in blocks:
            block = self.instance.blocks[d]
            if block.tensor is not None and block.begin is not None:
                base = places[d] - block.begin
                if bases.setdefault(block.tensor, base) != base:
                    return False
        return True

    # --- places -----------------------------------------------------------------------------------

    def _taken(self, state: _State, places: tuple[int, ...]) -> list[tuple[int, int]]:
        taken = [(place, self.needs.sizes[d]) for d, place in enumerate(places) if place != _ABSENT]
        busy = state.streams[0]
        if busy is not None and busy.workspace != _ABSENT:
            taken.append((busy.workspace, self.needs.workspaces[busy.item][busy.algorithm]))
        if busy is not None and busy.kind == "move":
            taken.append((busy.source, self.needs.sizes[busy.item]))
        return taken

    def _rooms(self, state: _State, places: tuple[int, ...], size: int, exact: int) -> list[int]:
        """Return places for a size beside blocks at theirs: offsets, or just 0 if only capacity counts.

        All that takes a place begins at a multiple of the step, and takes a multiple of it.
        """
        taken = self._taken(state, places)
        if self.memory != "contiguous":
            return [0] if sum(amount for _, amount in taken) + size <= self.pool else []
        rooms, end = list[int](), 0  # the end of what is taken so far
        for start, amount in sorted(taken):
            rooms += range(end, start - size + 1, self.step)
            end = max(end, start + amount)
        return [*rooms, *range(end, self.pool - exact + 1, self.step)]

    def _placements(
        self, state: _State, places: tuple[int, ...], blocks: list[int], scratch: int, exact: int
    ) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield every way to place a run's outputs and its workspace: all places, and the workspace's."""
        if blocks:
            for place in self._rooms(state, places, self.needs.sizes[blocks[0]], self.exact[blocks[0]]):
                placed = _put(places, blocks[0], place)
                yield from self._placements(state, placed, blocks[1:], scratch, exact)
        elif scratch:
            for place in self._rooms(state, places, scratch, exact):
                yield places, place
        else:
            yield places, _ABSENT

    # --- the program ------------------------------------------------------------------------------

    def program(self, path: Path[_State, _Step]) -> Schedule:
        """Return the program of a path's decisions, in order."""
        explicit, host_explicit = self.memory == "contiguous", self.memory != "divisible"
        first, last = path[0][0], path[-1][0]
        start = {d: at if explicit else None for d, at in enumerate(first.places) if at != _ABSENT}
        copies = {d: at if host_explicit else None for d, at in enumerate(first.copies) if at != _ABSENT}
        instance = settled(self.instance, first.homes)
        builder = ProgramBuilder(instance, memory=self.memory, start=start, copies=copies)
        # per stream, the operation that it does, and the one that it has done, where a start at the right
        # instant needs it
        begun: dict[int, int] = {}
        ended: dict[int, int] = {}
        for (before, _), (after, step) in itertools.pairwise(path):
            for d, (old, new) in enumerate(zip(before.copies, after.copies, strict=True)):
                if old != _ABSENT and new == _ABSENT:
                    builder.drop_copy(d)
            if step is None or step.kind == "wait":
                if self.pace is not None:
                    ended |= {s: i for s, i in begun.items() if after.streams[s] is None}
                for d, (old, new) in enumerate(zip(before.places, after.places, strict=True)):
                    if old != _ABSENT and new == _ABSENT:
                        builder.release(d)
                continue
            at = dict(step.places) if explicit else {}
            if step.kind == "run":
                scratch = step.workspace if explicit and step.workspace != _ABSENT else None
                begun[0] = builder.run(
                    *(step.item, step.algorithm, ended.values()),
                    at=at,
                    workspace_at=scratch,
                    over=dict(step.over),
                )
            elif step.kind == "evict":
                builder.release(step.item)
            elif step.kind == "offload":
                host_at = after.copies[step.item] if self.host is not None and host_explicit else None
                begun[1] = builder.offload(step.item, ended.values(), host_at=host_at)
            elif step.kind == "prefetch":
                stream = len(after.streams) - 1
                begun[stream] = builder.prefetch(step.item, ended.values(), at=at.get(step.item))
            elif step.kind == "move":
                begun[0] = builder.move(step.item, ended.values(), at=at.get(step.item))
        for d, home in zip(self.carried, first.homes, strict=True):
            if home.device == _ABSENT and last.places[d] != _ABSENT:
                builder.release(d)
        schedule = builder.finish("brute-force")
        return with_states(self.instance, schedule, first.homes) if self.carried else schedule


def _put(places: tuple[int, ...], d: int, place: int) -> tuple[int, ...]:
    return (*places[:d], place, *places[d + 1 :])
