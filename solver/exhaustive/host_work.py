"""Exhaustive search where tasks may run on the host, so that a block's versions on both sides differ.

It is the search of `brute_force` once more, for a machine whose streams of runs do not follow one another: a
run on the device may write a version before the host has read the one before, and the other way round. So the
state says which version of each block is where. In divisible and in paged memory only the sum of sizes
counts; host memory has a budget in divisible memory only.

What would be lost, and is needed, is neither evicted nor dropped. Without a link or slowed runs, copies that
nobody needs are left out: what starts when they end starts as well without them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import UNSET

from ...heuristics.methods import Refusal
from ...instances.instance import Instance
from ...instances.units import ceil_to
from ...validate.schedule import MemoryModel, Schedule, unit_bytes
from .carried import Home, with_states
from .emission import Emission
from .host_memory import ABSENT
from .pace import Busy, Pace
from .search import Path, shortest_path

_DEVICE, _HOST = 0, 1


def host_work(
    instance: Instance, memory: MemoryModel, *, deadline: float, most_states: float
) -> Schedule | None:
    """Return a shortest schedule of an instance with work on the host; None where there is none.

    Raises
    ------
    Refusal
        When places would have to be searched.
    TimeoutError
        When the deadline has passed, or the search needs more states.
    """
    if memory == "contiguous":
        raise Refusal("brute force: no search for places where tasks may run on the host; take paged memory")
    if memory == "paged" and instance.has_host_budget:
        raise Refusal(
            "brute force: no search for places in host memory where tasks may run there; leave out its budget"
        )
    machine = HostWork(instance, memory)
    path = shortest_path(machine, deadline=deadline, most_states=most_states)
    return None if path is None else machine.program(path)


class _State(NamedTuple):
    """The machine at one instant.

    Attributes
    ----------
    begun
        The tasks whose first run has begun, as a set of bits.
    fronts
        The latest of them on the device, and on the host.
    streams
        What each does: computing, the copy streams, the host.
    device, host
        Per block, its version on that side, or `ABSENT`; a version that is being written there counts.
    homes
        Where each carried block must end.
    turn
        The next stream to decide on at this instant; first come evictions.
    owing, host_owing
        Whether something was evicted, or dropped on the host, and nothing has been placed there since.
    is_fresh
        Whether nothing has ended yet. What is there is then not evicted: it need not be there.
    """

    begun: int
    fronts: tuple[int, int]
    streams: tuple[Busy | None, ...]
    device: tuple[int, ...]
    host: tuple[int, ...]
    homes: tuple[Home, ...] = ()
    turn: int = 0
    owing: bool = False
    host_owing: bool = False
    is_fresh: bool = True


class _Step(NamedTuple):
    """A decision: start work on a stream, evict a block, drop a copy, or let time pass."""

    kind: str
    item: int
    algorithm: int = 0


_Steps = Iterator[tuple[_Step, _State, int]]


class HostWork:
    """The machine, which gives all steps that are possible at an instant."""

    def __init__(self, instance: Instance, memory: MemoryModel) -> None:
        self.instance, self.memory = instance, memory
        unit = unit_bytes(instance, memory)
        self.pool = instance.pool_bytes // unit * unit if memory == "paged" else instance.pool_bytes
        self.sizes = [ceil_to(block.bytes, unit) for block in instance.blocks]
        self.scratch = [
            [ceil_to(a.workspace_bytes, unit) for a in task.algorithms] for task in instance.tasks
        ]
        self.host_budget = math.inf if instance.host_budget_bytes is UNSET else instance.host_budget_bytes
        self.pace = Pace(instance)
        self.single = instance.engines == "single"
        self.sides = [{a.on for a in task.algorithms} for task in instance.tasks]
        self.least = [min(a.duration_ns for a in task.algorithms) for task in instance.tasks]
        ours = [
            time if sides == {"device"} else 0 for time, sides in zip(self.least, self.sides, strict=True)
        ]
        self.tail = [sum(ours[k:]) for k in range(len(ours))]
        self.rerun = {d for task in instance.tasks if task.recomputable for d in task.blocks}
        self.remade = {d for task in instance.tasks if task.recomputable for d in task.outputs}

    # --- states -----------------------------------------------------------------------------------

    def initial_states(self) -> Iterator[_State]:
        """Yield every choice of what is on the device and on the host from time 0."""
        blocks, carried = self.instance.blocks, self.instance.carried
        endless = not self.instance.has_host_budget
        options: list[list[tuple[int, int]]] = []
        for d, block in enumerate(blocks):
            if block.initially == "absent":
                options.append([(ABSENT, ABSENT)])
            elif d in carried:
                options.append([(0, ABSENT), (ABSENT, 0), (0, 0)])
            else:
                on_device = (ABSENT, 0) if block.initially == "device" else (ABSENT,)
                on_host = (0,) if endless else (ABSENT, 0)
                options.append([*itertools.product(on_device, on_host)])
        streams = (None,) * (3 if self.single else 4)
        for chosen in itertools.product(*options):
            device, host = tuple(one for one, _ in chosen), tuple(other for _, other in chosen)
            homes = tuple(Home(*chosen[d]) for d in carried)
            state = _State(0, (-1, -1), streams, device, host, homes)
            if self._fits(state):
                yield state

    def is_done(self, state: _State) -> bool:
        """Return whether every task has run, every stream is idle and every block is where it must end."""
        if any(state.streams) or state.begun + 1 < 1 << len(self.instance.tasks):
            return False
        return all(
            (not self._ends_on(state, d, _DEVICE) or state.device[d] == self._latest(state, d))
            and (not self._ends_on(state, d, _HOST) or state.host[d] == self._latest(state, d))
            for d in range(len(state.device))
        )

    def time_left(self, state: _State) -> int:
        """Return a lower bound on the time until the state is done.

        A stream of runs has the tasks of its side left, and both together have all. What has to be on the
        device and is not is fetched before the task that needs it, and after all that is needed earlier.
        """
        left = [math.ceil(busy.left) if busy else 0 for busy in state.streams]
        either = 0
        for k, sides in enumerate(self.sides):
            if state.begun >> k & 1:
                continue
            if len(sides) == 1:
                left[0 if "device" in sides else -1] += self.least[k]
            else:
                either += self.least[k]
        fetched = left[-2]
        for k, d in self._to_be_fetched(state):
            fetched += self.instance.blocks[d].prefetch_ns or 0
            left[-2] = max(left[-2], fetched + self.tail[k])
        return max(*left, -(-(left[0] + left[-1] + either) // 2))

    def _to_be_fetched(self, state: _State) -> list[tuple[int, int]]:
        """Return what is on the host only and needed on the device, with the first task that needs it."""
        found = []
        for d, version in enumerate(state.device):
            if version != ABSENT or state.host[d] == ABSENT or d in self.remade:
                continue
            for k in self.instance.uses[d]:
                if not state.begun >> k & 1 and self.sides[k] == {"device"}:
                    found.append((k, d))
                    break
        return sorted(found)

    # --- decisions --------------------------------------------------------------------------------

    def steps(self, state: _State) -> _Steps:
        """Yield the decisions at a state, with the states they lead to and the time that passes."""
        if state.turn == 0 and not state.is_fresh:
            yield from self._evictions(state)
            if self.instance.has_host_budget:
                yield from self._drops(state)
        last = len(state.streams) - 1
        for s in range(state.turn, last + 1):
            if state.streams[s] is not None:
                continue
            if s == 0:
                yield from self._runs(state)
                yield from self._moves(state)
            elif s == last:
                yield from self._host_runs(state)
            else:
                yield from self._offloads(state) if s == 1 else ()
                yield from self._prefetches(state) if s == last - 1 else ()
        if any(state.streams) and not state.owing and not state.host_owing:
            yield self._passing(state)

    def _evictions(self, state: _State) -> _Steps:
        for d, version in enumerate(state.device):
            if version == ABSENT or self._is_in_use(state, d, _DEVICE) or self._is_lost(state, d, _DEVICE):
                continue
            yield _Step("evict", d), state._replace(device=_put(state.device, d, ABSENT), owing=True), 0

    def _drops(self, state: _State) -> _Steps:
        for d, version in enumerate(state.host):
            if version == ABSENT or self._is_in_use(state, d, _HOST) or self._is_lost(state, d, _HOST):
                continue
            yield _Step("drop", d), state._replace(host=_put(state.host, d, ABSENT), host_owing=True), 0

    def _runs(self, state: _State) -> _Steps:
        """Start a task on the device, for the first time or again."""
        again = [
            k for k, task in enumerate(self.instance.tasks) if task.recomputable and state.begun >> k & 1
        ]
        for k in [*self._next_tasks(state, _DEVICE), *again]:
            task = self.instance.tasks[k]
            if any(state.device[d] != self._before(d, k) for d in (*task.inputs, *task.updates)):
                continue
            if any(self._latest(state, d) > 1 for d in task.outputs):
                continue
            if any(self._is_written(state, d, _DEVICE) for d in task.blocks):
                continue
            if any(self._is_in_use(state, d, _DEVICE) for d in (*task.updates, *task.outputs)):
                continue
            device, is_first = state.device, not state.begun >> k & 1
            for d in (*task.updates, *task.outputs):
                device = _put(device, d, self._before(d, k) + 1)
            is_placing = any(state.device[d] == ABSENT for d in task.outputs)
            if not (is_first or is_placing or self.instance.is_coupled):
                continue
            for a, algorithm in enumerate(task.algorithms):
                if algorithm.on == "host":
                    continue
                started = self._started(state, 0, "run", k, a, algorithm.duration_ns)._replace(
                    begun=state.begun | 1 << k,
                    fronts=(k, state.fronts[1]) if is_first else state.fronts,
                    device=device,
                    owing=state.owing and not is_placing and not algorithm.workspace_bytes,
                )
                if self._fits(started):
                    yield _Step("run", k, a), started, 0

    def _host_runs(self, state: _State) -> _Steps:
        for k in self._next_tasks(state, _HOST):
            task = self.instance.tasks[k]
            if any(state.host[d] != self._before(d, k) for d in (*task.inputs, *task.updates)):
                continue
            if any(self._is_written(state, d, _HOST) for d in task.blocks):
                continue
            if any(self._is_in_use(state, d, _HOST) for d in (*task.updates, *task.outputs)):
                continue
            host = state.host
            for d in (*task.updates, *task.outputs):
                host = _put(host, d, self._before(d, k) + 1)
            for a, algorithm in enumerate(task.algorithms):
                if algorithm.on == "device":
                    continue
                last = len(state.streams) - 1
                started = self._started(state, last, "host", k, a, algorithm.duration_ns)._replace(
                    begun=state.begun | 1 << k,
                    fronts=(state.fronts[0], k),
                    host=host,
                    host_owing=state.host_owing and not task.outputs and not algorithm.workspace_bytes,
                )
                if self._fits(started):
                    yield _Step("host", k, a), started, 0

    def _moves(self, state: _State) -> _Steps:
        """Start a move, which only takes time: it is of use where its end is the best start of a copy."""
        for d, block in enumerate(self.instance.blocks):
            if block.move_ns is None or state.device[d] == ABSENT or not self.instance.is_coupled:
                continue
            if state.device[d] != self._latest(state, d) or self._is_in_use(state, d, _DEVICE):
                continue
            started = self._started(state, 0, "move", d, 0, block.move_ns)._replace(owing=False)
            if self._fits(started):
                yield _Step("move", d), started, 0

    def _offloads(self, state: _State) -> _Steps:
        for d, block in enumerate(self.instance.blocks):
            latest = self._latest(state, d)
            if block.offload_ns is None or state.device[d] == ABSENT or state.device[d] != latest:
                continue
            if self._is_written(state, d, _DEVICE) or self._is_in_use(state, d, _HOST):
                continue
            if self.instance.has_host_budget and state.host[d] != ABSENT:
                continue
            if not self._is_of_use(state, d) or (state.host[d] == latest and not self.instance.is_coupled):
                continue
            started = self._started(state, 1, "offload", d, 0, block.offload_ns)._replace(
                host=_put(state.host, d, latest), host_owing=False
            )
            if self._fits(started):
                yield _Step("offload", d), started, 0

    def _prefetches(self, state: _State) -> _Steps:
        for d, block in enumerate(self.instance.blocks):
            latest = self._latest(state, d)
            if block.prefetch_ns is None or state.host[d] == ABSENT or state.host[d] != latest:
                continue
            if (
                state.device[d] != ABSENT
                or self._is_written(state, d, _HOST)
                or not self._is_of_use(state, d)
            ):
                continue
            s = len(state.streams) - 2
            started = self._started(state, s, "prefetch", d, 0, block.prefetch_ns)._replace(
                device=_put(state.device, d, latest), owing=False
            )
            if self._fits(started):
                yield _Step("prefetch", d), started, 0

    def _started(self, state: _State, s: int, kind: str, item: int, algorithm: int, duration: int) -> _State:
        busy = Busy(kind, item, algorithm, duration, ABSENT, ABSENT)
        return state._replace(streams=(*state.streams[:s], busy, *state.streams[s + 1 :]), turn=s + 1)

    def _passing(self, state: _State) -> tuple[_Step, _State, int]:
        """Let time pass until the next operation ends; one that ends at the same time ends as well."""
        elapsed, left = self.pace.until_next_end(state.streams)
        streams = tuple(
            busy._replace(left=then) if busy and then else None
            for busy, then in zip(state.streams, left, strict=True)
        )
        later = state._replace(streams=streams, turn=0, is_fresh=False)
        return _Step("wait", elapsed), self._without_dead(later), elapsed

    def _without_dead(self, state: _State) -> _State:
        """Release what nobody will read, but where the time that a copy of it takes may be of use."""
        if self.instance.is_coupled:
            return state
        device, host = (
            tuple(
                ABSENT if version != ABSENT and self._is_dead(state, d, side) else version
                for d, version in enumerate(there)
            )
            for side, there in ((_DEVICE, state.device), (_HOST, state.host))
        )
        return state._replace(device=device, host=host if self.instance.has_host_budget else state.host)

    def _is_dead(self, state: _State, d: int, side: int) -> bool:
        """Return whether nothing uses what is on a side, and nobody will read that version."""
        here, there = (state.device, state.host) if side == _DEVICE else (state.host, state.device)
        if d in self.rerun or self._is_in_use(state, d, side):
            return False
        if any(not state.begun >> k & 1 and self._before(d, k) == here[d] for k in self.instance.uses[d]):
            return False
        if here[d] < self._latest(state, d):
            return True
        # a copy on the other side lasts where nothing is dropped: in host memory that does not end
        lasts = side == _DEVICE and not self.instance.has_host_budget
        is_copied = lasts and there[d] == here[d] and not self._is_written(state, d, 1 - side)
        return not self._ends_on(state, d, side) and (is_copied or not self._ends_on(state, d, 1 - side))

    # --- conditions -------------------------------------------------------------------------------

    def _next_tasks(self, state: _State, side: int) -> Iterator[int]:
        """Yield the tasks that may be the next on a side; those that it skips are left to the other."""
        name, other = ("device", "host") if side == _DEVICE else ("host", "device")
        for k in range(len(self.sides)):
            if state.begun >> k & 1:
                continue
            if name in self.sides[k] and k > state.fronts[side]:
                yield k
            if other not in self.sides[k] or k < state.fronts[1 - side]:
                return

    def _before(self, d: int, k: int) -> int:
        """Return the version of a block that a task finds."""
        return sum(writer < k for writer in self.instance.writers[d])

    def _latest(self, state: _State, d: int) -> int:
        """Return the newest version of a block that has been begun."""
        return sum(state.begun >> writer & 1 for writer in self.instance.writers[d])

    def _is_written(self, state: _State, d: int, side: int) -> bool:
        """Return whether something is writing a block on a side."""
        kinds = ("run", "prefetch", "move") if side == _DEVICE else ("host", "offload")
        for busy in state.streams:
            if busy is None or busy.kind not in kinds:
                continue
            if busy.kind in ("run", "host"):
                task = self.instance.tasks[busy.item]
                if d in task.outputs or d in task.updates:
                    return True
            elif busy.item == d:
                return True
        return False

    def _is_in_use(self, state: _State, d: int, side: int) -> bool:
        """Return whether something is reading or writing a block on a side."""
        run, copies = (
            ("run", ("offload", "prefetch", "move")) if side == _DEVICE else ("host", ("offload", "prefetch"))
        )
        return any(
            (busy.kind == run and d in self.instance.tasks[busy.item].blocks)
            or (busy.kind in copies and busy.item == d)
            for busy in state.streams
            if busy is not None
        )

    def _is_lost(self, state: _State, d: int, side: int) -> bool:
        """Return whether the newest version would be lost with what is on a side, and is needed."""
        here, there = (state.device, state.host) if side == _DEVICE else (state.host, state.device)
        latest = self._latest(state, d)
        if here[d] < latest or there[d] == latest or (latest <= 1 and d in self.remade):
            return False
        return self._is_needed(state, d)

    def _is_needed(self, state: _State, d: int) -> bool:
        """Return whether the newest version of a block will be read, or must be there at the end."""
        latest = self._latest(state, d)
        return (
            self._ends_on(state, d, _DEVICE)
            or self._ends_on(state, d, _HOST)
            or any(not state.begun >> k & 1 and self._before(d, k) == latest for k in self.instance.uses[d])
        )

    def _is_of_use(self, state: _State, d: int) -> bool:
        """Return whether a copy of the newest version is worth a try."""
        return self.instance.is_coupled or d in self.rerun or self._is_needed(state, d)

    def _ends_on(self, state: _State, d: int, side: int) -> bool:
        if d in self.instance.carried:
            return state.homes[self.instance.carried.index(d)][side] != ABSENT
        return self.instance.blocks[d].finally_ == ("device" if side == _DEVICE else "host")

    def _fits(self, state: _State) -> bool:
        """Return whether what is on each side has room there."""
        device = sum(
            size for size, version in zip(self.sizes, state.device, strict=True) if version != ABSENT
        )
        blocks = self.instance.blocks
        host = sum(
            block.bytes for block, version in zip(blocks, state.host, strict=True) if version != ABSENT
        )
        compute, *_, work = state.streams
        if compute is not None:
            is_run = compute.kind == "run"
            device += self.scratch[compute.item][compute.algorithm] if is_run else self.sizes[compute.item]
        if work is not None:
            host += self.instance.tasks[work.item].algorithms[work.algorithm].workspace_bytes
        return device <= self.pool and host <= self.host_budget

    # --- the program ------------------------------------------------------------------------------

    def program(self, path: Path[_State, _Step]) -> Schedule:
        """Return the program of a path's decisions, in order."""
        first = path[0][0]
        emission = Emission(self.instance, self.memory, first.device, first.host)
        for (before, _), (after, step) in itertools.pairwise(path):
            assert step is not None
            self._emit(emission, before, step, after)
        for d, home in zip(self.instance.carried, first.homes, strict=True):
            emission.leave(d, device=home.device != ABSENT, host=home.host != ABSENT)
        schedule = emission.finish()
        return with_states(self.instance, schedule, first.homes) if first.homes else schedule

    def _emit(self, emission: Emission, before: _State, step: _Step, after: _State) -> None:
        if step.kind == "wait":
            emission.wait(step.item, [s for s, busy in enumerate(after.streams) if busy is None])
            for d, (old, new) in enumerate(zip(before.device, after.device, strict=True)):
                if old != new:
                    emission.evict(d)
            for d, (old, new) in enumerate(zip(before.host, after.host, strict=True)):
                if old != new:
                    emission.drop(d)
        elif step.kind == "evict":
            emission.evict(step.item)
        elif step.kind == "drop":
            emission.drop(step.item)
        elif step.kind in ("run", "host"):
            task = self.instance.tasks[step.item]
            there = before.device if step.kind == "run" else before.host
            placed = [d for d in task.outputs if there[d] == ABSENT]
            emission.run(step.item, step.algorithm, placed)
        else:
            emission.copy(step.kind, step.item)


def _put(versions: tuple[int, ...], d: int, version: int) -> tuple[int, ...]:
    return (*versions[:d], version, *versions[d + 1 :])
