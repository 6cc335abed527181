"""Exhaustive search over the joint schedules of several GPUs, for tiny instances, to judge other methods.

Every GPU may start something at every instant at which an operation ends, and each of them may wait. Memory
is divisible, which is a relaxation: the optimum is no longer than any schedule, and no shorter than any
bound. With one GPU, the optimum is that of `brute_force` in divisible memory.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from ...instances.errors import PebblerError
from ...instances.gpus.cluster import SECOND
from ...instances.instance import Instance
from ...validate.gpus.bus import fair_shares
from ...validate.gpus.program import cluster_of
from ...validate.schedule import Kind, Operation, Stream


@dataclass(frozen=True, slots=True)
class Optimum:
    """The shortest time in nanoseconds, and its program: operations without places, for simulation."""

    makespan_ns: int
    operations: tuple[Operation, ...]


class _Busy(NamedTuple):
    """The current work of a stream: task, block or gradient, algorithm, and nanoseconds or bytes left."""

    kind: Kind
    item: int
    algorithm: int
    left: int | Fraction


class _Gpu(NamedTuple):
    """One GPU at an instant; sets are bit masks.

    `streams` are compute, the copy engines, and the host's cores, which add one of its gradients; `added` are
    its gradients that the host's cores have added on the host.
    """

    following: int
    streams: tuple[_Busy | None, ...]
    resident: int
    host: int
    sent: int
    added: int
    returned: int


class _State(NamedTuple):
    """All GPUs at an instant, and the next decision: GPU and stream in turn, then time passes."""

    gpus: tuple[_Gpu, ...]
    turn: int


_Step = tuple[int, int, _Busy]
"""GPU, stream, and the work that starts there."""


def cluster_brute_force(instance: Instance, *, most_states: float = math.inf) -> Optimum | None:
    """Return the shortest joint schedule of all GPUs in divisible memory, or None if there is none.

    Parameters
    ----------
    instance
        An instance of a few tasks and blocks, on very few GPUs of one node, with gradients added up on the
        host.
    most_states
        Number of states after which to give up.

    Raises
    ------
    PebblerError
        For several nodes, NVLink, or tasks that may run again.
    TimeoutError
        When the search needs more states.
    """
    machine = _Machine(instance)
    order = itertools.count()
    queue: list[tuple[int, int, int, _State]] = []
    parents: dict[_State, tuple[_State, _Step | None, int]] = {}
    reached: dict[_State, int] = {}
    for state in machine.initial_states():
        reached[state] = 0
        heapq.heappush(queue, (machine.time_left(state), 0, next(order), state))
    seen = 0
    while queue:
        _, negative, _, state = heapq.heappop(queue)
        now = -negative
        if now > reached[state]:
            continue
        if machine.is_done(state):
            return Optimum(now, machine.operations(_path(parents, state)))
        seen += 1
        if seen > most_states:
            raise TimeoutError(f"brute force: {most_states} states are not enough")
        for step, following, elapsed in machine.steps(state):
            if now + elapsed < reached.get(following, math.inf):
                reached[following] = now + elapsed
                parents[following] = state, step, elapsed
                estimate = now + elapsed + machine.time_left(following)
                heapq.heappush(queue, (estimate, -now - elapsed, next(order), following))
    return None


def _path(
    parents: dict[_State, tuple[_State, _Step | None, int]], state: _State
) -> list[tuple[_Step | None, int, _State]]:
    """Return the steps to a state, each with the time that passes and the state after it."""
    path = []
    while state in parents:
        before, step, elapsed = parents[state]
        path.append((step, elapsed, state))
        state = before
    return path[::-1]


class _Machine:
    """The GPUs and their bus, which give all steps that are possible."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.cluster = cluster_of(instance)
        if self.cluster.nodes > 1 or not self.cluster.joins_on_host:
            raise PebblerError("brute force is for GPUs of one node that add up gradients on the host")
        if any(task.recomputable for task in instance.tasks):
            raise PebblerError("brute force on several GPUs does not compute anything again")
        self.gradients = self.cluster.gradients if self.cluster.gpus > 1 else ()
        self.single = instance.engines == "single"
        self.out, self.back = (1, 1) if self.single else (1, 2)
        self.cpu = self.back + 1
        self.rate = Fraction(self.cluster.bus_bytes_per_second, SECOND)
        least = [min(a.duration_ns for a in task.algorithms) for task in instance.tasks]
        self.tails = [sum(least[k:]) for k in range(len(least) + 1)]
        self.ways = [g.offload_ns + self.cluster.accumulate_ns(g) + g.prefetch_ns for g in self.gradients]

    # --- states -----------------------------------------------------------------------------------

    def initial_states(self) -> Iterator[_State]:
        """Yield every choice of the initial blocks on the devices; of symmetric choices, only one."""
        blocks = self.instance.blocks
        host = sum(1 << d for d, block in enumerate(blocks) if block.initially != "absent")
        there = [d for d, block in enumerate(blocks) if block.initially == "device"]
        starts = [
            _Gpu(0, (None,) * (self.cpu + 1), _bits(kept), host, 0, 0, 0) for kept in self._largest(there)
        ]
        for gpus in itertools.combinations_with_replacement(starts, self.cluster.gpus):
            yield _State(gpus, 0)

    def _largest(self, blocks: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the maximal sets of blocks that fit the pool: evicting blocks later costs nothing."""
        found: list[tuple[int, ...]] = []
        for count in range(len(blocks), -1, -1):
            for kept in itertools.combinations(blocks, count):
                inside = any(set(kept) <= set(more) for more in found)
                if not inside and self._bytes(_bits(kept)) <= self.instance.pool_bytes:
                    found.append(kept)
        return found

    def is_done(self, state: _State) -> bool:
        """Return whether every GPU has run all tasks, and all data is where it must be."""
        return all(
            gpu.following == len(self.instance.tasks)
            and not any(gpu.streams)
            and gpu.returned == (1 << len(self.gradients)) - 1
            and all(
                (block.finally_ != "host" or gpu.host >> d & 1)
                and (block.finally_ != "device" or gpu.resident >> d & 1)
                for d, block in enumerate(self.instance.blocks)
            )
            for gpu in state.gpus
        )

    def time_left(self, state: _State) -> int:
        """Return a lower bound on the remaining time, from tasks, prefetches, gradients and host cores."""
        left = adding = 0
        for gpu in state.gpus:
            compute, adds = gpu.streams[0], gpu.streams[self.cpu]
            now = 0 if compute is None else int(compute.left)
            left = max(left, now + self.tails[gpu.following], self._copying(gpu, self.back))
            copied = 0
            for use, time in sorted(self._missing(gpu)):
                copied += time
                left = max(left, copied + self.tails[use])
            for g, gradient in enumerate(self.gradients):
                add = 0
                if not gpu.added >> g & 1:
                    is_added = adds is not None and adds.item == g
                    add = (
                        int(adds.left)
                        if adds is not None and is_added
                        else self.cluster.accumulate_ns(gradient)
                    )
                adding += add
                way = add + (0 if gpu.returned >> g & 1 else gradient.prefetch_ns)
                if not gpu.sent >> g & 1:
                    way += gradient.offload_ns
                elif self._copies(gpu.streams[self.out], "send", g):
                    way += self._copying(gpu, self.out)
                if gradient.produced_by >= gpu.following:
                    way += now + self.tails[gpu.following] - self.tails[gradient.produced_by + 1]
                left = max(left, way)
        if adding:
            left = max(left, adding + min(g.prefetch_ns for g in self.gradients))
        return left

    def _copying(self, gpu: _Gpu, stream: int) -> int:
        """Return the least time for which a stream is busy with its copy."""
        busy = gpu.streams[stream]
        link = None if busy is None else self._link(busy)
        return 0 if busy is None or link is None else math.ceil(busy.left / link)

    @staticmethod
    def _copies(busy: _Busy | None, kind: Kind, item: int) -> bool:
        return busy is not None and busy.kind == kind and busy.item == item

    def _missing(self, gpu: _Gpu) -> Iterator[tuple[int, int]]:
        """Return the blocks to prefetch: the task before which each is needed, and its least time."""
        for d, block in enumerate(self.instance.blocks):
            if gpu.host >> d & 1 and not gpu.resident >> d & 1 and block.prefetch_ns:
                use = next((k for k in self.instance.uses[d] if k >= gpu.following), None)
                if use is not None:
                    yield use, block.prefetch_ns

    # --- decisions --------------------------------------------------------------------------------

    def steps(self, state: _State) -> Iterator[tuple[_Step | None, _State, int]]:
        """Yield the next decisions, with the states they lead to and the time that passes."""
        per_gpu = self.cpu
        if state.turn == per_gpu * len(state.gpus):
            yield from self._adds(state)
            if any(any(gpu.streams) for gpu in state.gpus):
                yield self._passing(state)
            return
        i, stream = divmod(state.turn, per_gpu)
        gpu = state.gpus[i]
        yield None, state._replace(turn=state.turn + 1), 0
        if gpu.streams[stream] is not None:
            return
        choices: list[Iterator[tuple[_Busy, _Gpu]]] = [self._runs(gpu)] if stream == 0 else []
        if stream == self.out:
            choices.append(self._sends(gpu))
        if stream == self.back:
            choices.append(self._fetches(gpu, state))
        for busy, later in itertools.chain.from_iterable(choices):
            streams = (*later.streams[:stream], busy, *later.streams[stream + 1 :])
            gpus = (*state.gpus[:i], later._replace(streams=streams), *state.gpus[i + 1 :])
            yield (i, stream, busy), _State(gpus, state.turn + 1), 0

    def _runs(self, gpu: _Gpu) -> Iterator[tuple[_Busy, _Gpu]]:
        if gpu.following == len(self.instance.tasks):
            return
        task = self.instance.tasks[gpu.following]
        arriving, leaving = self._arriving(gpu), self._leaving(gpu)
        if any(not (gpu.resident & ~arriving) >> d & 1 for d in (*task.inputs, *task.updates)):
            return
        if leaving & _bits(task.updates):
            return
        kept = _bits(task.blocks)
        for a, algorithm in enumerate(task.algorithms):
            busy = _Busy("run", gpu.following, a, algorithm.duration_ns)
            taken = gpu.resident | _bits(task.outputs)
            for resident in self._rooms(gpu, taken, kept, algorithm.workspace_bytes):
                host = gpu.host & ~_bits(task.updates)
                yield busy, gpu._replace(following=gpu.following + 1, resident=resident, host=host)

    def _sends(self, gpu: _Gpu) -> Iterator[tuple[_Busy, _Gpu]]:
        run = gpu.streams[0]
        task = None if run is None else self.instance.tasks[run.item]
        written = 0 if task is None else _bits((*task.outputs, *task.updates))
        for d, block in enumerate(self.instance.blocks):
            there = (gpu.resident & ~self._arriving(gpu) & ~written & ~gpu.host) >> d & 1
            wanted = block.finally_ == "host" or self._is_wanted(gpu, d)
            if there and wanted and block.offload_ns is not None:
                yield self._copy("offload", d), gpu
        for g, gradient in enumerate(self.gradients):
            done = gpu.following - (run is not None)
            if gradient.produced_by < done and not gpu.sent >> g & 1:
                yield self._copy("send", g), gpu._replace(sent=gpu.sent | 1 << g)

    def _fetches(self, gpu: _Gpu, state: _State) -> Iterator[tuple[_Busy, _Gpu]]:
        for d, block in enumerate(self.instance.blocks):
            away = gpu.host >> d & 1 and not gpu.resident >> d & 1
            if block.prefetch_ns is not None and away and self._is_wanted(gpu, d):
                for resident in self._rooms(gpu, gpu.resident | 1 << d, 1 << d, 0):
                    yield self._copy("prefetch", d), gpu._replace(resident=resident)
        done = gpu.following - (gpu.streams[0] is not None)
        for g, gradient in enumerate(self.gradients):
            ready = max((gradient.produced_by, *gradient.used_by)) < done
            if ready and not gpu.returned >> g & 1 and all(other.added >> g & 1 for other in state.gpus):
                yield self._copy("return", g), gpu._replace(returned=gpu.returned | 1 << g)

    def _adds(self, state: _State) -> Iterator[tuple[_Step, _State, int]]:
        """Yield the states in which idle host cores start to add a gradient that has arrived."""
        if any(gpu.streams[self.cpu] for gpu in state.gpus):
            return
        for i, gpu in enumerate(state.gpus):
            for g, gradient in enumerate(self.gradients):
                on_way = self._copies(gpu.streams[self.out], "send", g)
                if gpu.sent >> g & 1 and not on_way and not gpu.added >> g & 1:
                    busy = _Busy("accumulate", g, 0, self.cluster.accumulate_ns(gradient))
                    later = gpu._replace(streams=(*gpu.streams[: self.cpu], busy))
                    gpus = (*state.gpus[:i], later, *state.gpus[i + 1 :])
                    yield (i, self.cpu, busy), state._replace(gpus=gpus), 0

    def _is_wanted(self, gpu: _Gpu, d: int) -> bool:
        """Return whether a block will be used."""
        is_used = any(k >= gpu.following for k in self.instance.uses[d])
        return is_used or self.instance.blocks[d].finally_ == "device"

    # --- memory -----------------------------------------------------------------------------------

    def _rooms(self, gpu: _Gpu, taken: int, kept: int, scratch: int) -> Iterator[int]:
        """Yield ways to make room for new data and a workspace by evicting as few blocks as needed."""
        run = gpu.streams[0]
        if run is not None:
            kept |= _bits(self.instance.tasks[run.item].blocks)
            scratch += self.instance.tasks[run.item].algorithms[run.algorithm].workspace_bytes
        kept |= self._arriving(gpu) | self._leaving(gpu)
        free = [d for d in range(len(self.instance.blocks)) if (taken & gpu.host & ~kept) >> d & 1]
        room = self.instance.pool_bytes - scratch
        enough: list[int] = []
        for count in range(len(free) + 1):
            for given_up in itertools.combinations(free, count):
                bits = _bits(given_up)
                if all(less & ~bits for less in enough) and self._bytes(taken & ~bits) <= room:
                    enough.append(bits)
                    yield taken & ~bits

    def _bytes(self, blocks: int) -> int:
        return sum(block.bytes for d, block in enumerate(self.instance.blocks) if blocks >> d & 1)

    def _arriving(self, gpu: _Gpu) -> int:
        busy = gpu.streams[self.back]
        return 1 << busy.item if busy is not None and busy.kind == "prefetch" else 0

    def _leaving(self, gpu: _Gpu) -> int:
        busy = gpu.streams[self.out]
        return 1 << busy.item if busy is not None and busy.kind == "offload" else 0

    def _without_dead(self, gpu: _Gpu) -> _Gpu:
        """Release blocks that are not needed any more."""
        run = gpu.streams[0]
        done = gpu.following - (run is not None)
        resident = gpu.resident
        for d, block in enumerate(self.instance.blocks):
            is_used = any(k >= done for k in self.instance.uses[d]) or block.finally_ == "device"
            is_owed = block.finally_ == "host" and not gpu.host >> d & 1
            moves = (self._arriving(gpu) | self._leaving(gpu)) >> d & 1
            if not (is_used or is_owed or moves):
                resident &= ~(1 << d)
        return gpu._replace(resident=resident)

    # --- time -------------------------------------------------------------------------------------

    def _alone(self, kind: Kind, item: int) -> tuple[int, int]:
        """Return the bytes of a copy, and its time with the bus to itself."""
        if kind in ("send", "return"):
            gradient = self.gradients[item]
            return gradient.bytes, gradient.offload_ns if kind == "send" else gradient.prefetch_ns
        block = self.instance.blocks[item]
        return block.bytes, (block.offload_ns if kind == "offload" else block.prefetch_ns) or 0

    def _copy(self, kind: Kind, item: int) -> _Busy:
        """Start a copy, with its load on the bus."""
        return _Busy(kind, item, 0, self.cluster.load(*self._alone(kind, item)))

    def _link(self, busy: _Busy) -> Fraction | None:
        """Return the bytes per nanosecond of a copy's link; None if the copy takes no time."""
        size, time = self._alone(busy.kind, busy.item)
        return self.cluster.load(size, time) / time if time else None

    def _passing(self, state: _State) -> tuple[None, _State, int]:
        """Let time pass until an operation ends."""
        speed: dict[tuple[int, int], Fraction | None] = {}
        for stream in {self.out, self.back}:
            copies = [(i, gpu.streams[stream]) for i, gpu in enumerate(state.gpus) if gpu.streams[stream]]
            links = {i: self._link(busy) for i, busy in copies if busy is not None}
            speed |= {(i, stream): None for i, link in links.items() if link is None}
            flying = [i for i, link in links.items() if link is not None]
            shares = fair_shares(self.rate, [link for link in links.values() if link is not None])
            speed |= {(i, stream): share for i, share in zip(flying, shares, strict=True)}

        def left(i: int, stream: int, busy: _Busy) -> int:
            if (i, stream) not in speed:
                return int(busy.left)
            share = speed[i, stream]
            return 0 if share is None else math.ceil(busy.left / share)

        busy_streams = [
            (i, stream, busy)
            for i, gpu in enumerate(state.gpus)
            for stream, busy in enumerate(gpu.streams)
            if busy is not None
        ]
        elapsed = min(left(*one) for one in busy_streams)
        gpus = [list(gpu.streams) for gpu in state.gpus]
        later = list(state.gpus)
        for i, stream, busy in busy_streams:
            if left(i, stream, busy) == elapsed:
                gpus[i][stream] = None
                if busy.kind == "offload":
                    later[i] = later[i]._replace(host=later[i].host | 1 << busy.item)
                if busy.kind == "accumulate":
                    later[i] = later[i]._replace(added=later[i].added | 1 << busy.item)
            else:
                gpus[i][stream] = busy._replace(left=busy.left - elapsed * (speed.get((i, stream)) or 1))
        done = [
            self._without_dead(gpu._replace(streams=tuple(streams)))
            for gpu, streams in zip(later, gpus, strict=True)
        ]
        return None, _State(tuple(done), 0), elapsed

    # --- the program ------------------------------------------------------------------------------

    def operations(self, path: Sequence[tuple[_Step | None, int, _State]]) -> tuple[Operation, ...]:
        """Return the decisions as operations that wait for all that had ended when they started."""
        made: list[Operation] = []
        running: dict[tuple[int, int], int] = {}
        ended: dict[tuple[int, int], int] = {}
        now = 0
        names: tuple[Stream, ...] = (
            ("compute", "copy", "cpu") if self.single else ("compute", "d2h", "h2d", "cpu")
        )
        for step, elapsed, after in path:
            now += elapsed
            if step is not None:
                i, stream, busy = step
                running[i, stream] = len(made)
                is_run, is_gradient = busy.kind == "run", busy.kind in ("send", "accumulate", "return")
                made.append(
                    Operation(
                        id=len(made),
                        stream=names[stream],
                        kind=busy.kind,
                        gpu=i,
                        task=busy.item if is_run else None,
                        algorithm=busy.algorithm if is_run else None,
                        block=None if is_run or is_gradient else busy.item,
                        gradient=busy.item if is_gradient else None,
                        after=tuple(sorted(set(ended.values()))),
                        start_ns=now,
                        end_ns=now,
                    )
                )
            for key, p in list(running.items()):
                if after.gpus[key[0]].streams[key[1]] is None:
                    ended[key] = p
                    del running[key]
        return tuple(made)


def _bits(items: Sequence[int]) -> int:
    return sum(1 << item for item in items)
