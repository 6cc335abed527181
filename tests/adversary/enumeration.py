"""Plain enumeration of everything that one GPU can do in divisible memory: slow, and meant to be obvious.

It shares nothing with `solver/exhaustive/brute_force.py`: no estimate of what is left, no rule that says what
is worth doing, no order of decisions. At any instant, any idle stream may start anything that is allowed, and
any block that nothing uses may be dropped, even if that loses it. Where host memory has a budget, so may any
copy there, from the first instant on; what is not dropped takes its bytes, stale or not. Only states that
have been met at no more cost are not looked at twice.

A block that a round carries begins on the device, on the host or on both, and ends where it began.

Tasks may run on the host, where they read and write copies. Copies may share a link, and slow runs down. Then
blocks may also be moved inside the device: it has no use, but it takes time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from msgspec import UNSET

from pebbler.instances.instance import Instance

Cost = int | Fraction
"""Nanoseconds; parts of one where a link passes a part of a copy."""

BEING_WRITTEN = -1
"""Version of a copy on the host, where that has a budget, until the offload that writes it has ended."""


class Work(NamedTuple):
    """What a stream does, and the nanoseconds until it has, if nothing holds it up."""

    kind: str
    item: int
    algorithm: int
    left: int | Fraction


class Home(NamedTuple):
    """Where a carried block is at both ends, and the offset of its copy on the host, where offsets count."""

    block: int
    device: bool
    host: bool
    spot: int | None


class Moment(NamedTuple):
    """All that matters at an instant.

    `device` has for each block the version that is (or will be, when what writes it has ended) on the device,
    `host` the version there; None where there is none. `spots` are the offsets of copies, where they count.
    `ran` is the side on which each task has been started for the first time, if it has. `noted` is what was
    copied, and from which use on a block was absent, where that matters. `homes` are where carried blocks
    must end.
    """

    ran: tuple[str | None, ...]
    device: tuple[int | None, ...]
    host: tuple[int | None, ...]
    streams: tuple[Work | None, ...]
    noted: frozenset[tuple[str, int, int]] = frozenset()
    spots: tuple[int | None, ...] = ()
    homes: tuple[Home, ...] = ()


class TooManyError(Exception):
    """There are more states than may be looked at."""


class Enumeration:
    """All that can happen to an instance.

    Parameters
    ----------
    instance
        A tiny one.
    most
        States after which to give up.
    host_step
        Where host memory has a budget: copies there lie at multiples of so many bytes. By default, only the
        sum of their bytes counts.
    copies
        The bytes of each block's copy, where they are not those of the block.
    """

    def __init__(
        self, instance: Instance, most: int, *, host_step: int = 0, copies: Sequence[int] = ()
    ) -> None:
        self.instance, self.most, self.host_step = instance, most, host_step
        self.host = 0 if instance.host_budget_bytes is UNSET else instance.host_budget_bytes
        self.copies = copies or [block.bytes for block in instance.blocks]
        self.single = instance.engines == "single"
        self.works_on_host = any(a.on == "host" for task in instance.tasks for a in task.algorithms)
        self.writes: list[list[int]] = []  # per block, the tasks that write or update it
        for d in range(len(instance.blocks)):
            self.writes.append(
                [k for k, task in enumerate(instance.tasks) if d in task.outputs or d in task.updates]
            )
        self.stays: list[list[tuple[int, int]]] = []  # per block, from a use to the next
        for d, block in enumerate(instance.blocks):
            marks = [-1] if block.initially != "absent" else []  # if carried, as if on the device
            marks += [k for k, task in enumerate(instance.tasks) if d in task.blocks]
            marks += [len(instance.tasks)] if block.finally_ == "device" else []
            self.stays.append([*itertools.pairwise(marks)])

    def shortest(self) -> int | None:
        """Least time in which everything can be done; None where it cannot be done at all."""
        return self._least(lambda _, elapsed: elapsed)

    def window(self, first: int, until: int) -> Cost | None:
        """Least time between the end of task `first - 1` and that of task `until - 1`, over all schedules.

        It begins with the program where there is no task before, and ends with it where there is none after:
        with the copies that come behind the last task. What comes before and after is for nothing.
        """

        def counts(now: Moment, elapsed: int) -> int:
            done = self._done(now)
            return elapsed if first <= done and (done < until or until == len(self.instance.tasks)) else 0

        return self._least(counts)

    def idle(self, first: int) -> Cost | None:
        """Least time, from the end of task `first - 1` on, for which no known copy is on the last engine.

        Known are one prefetch in each stay of a block between uses in which it was absent when a task from
        `first - 1` on began or ended, and the first offload of a version that has such a stay, or must end on
        the host. Schedules that copy any of these twice are left out, except where host memory has a budget:
        there they may have to. What is copied again is not known. A known copy that a link stretches counts
        for as long as it takes alone: for the rest of its time, nothing known is on the engine.
        """

        def counts(now: Moment, elapsed: int) -> Cost:
            work = now.streams[-1]
            if self._done(now) < first:
                return 0
            if work is None or work.algorithm == 0:
                return elapsed
            return elapsed - min(work.left, elapsed * self._speed(now, work))

        return self._least(counts, known_from=max(first - 1, 0))

    # --- the search ---------------------------------------------------------------------------------

    def _least(self, counts: Callable[[Moment, int], Cost], *, known_from: int | None = None) -> Cost | None:
        """Least time, of that which counts, until everything is done: Dijkstra's search."""
        order = itertools.count()
        best: dict[Moment, Cost] = {}
        queue: list[tuple[Cost, int, Moment]] = []
        streams: tuple[Work | None, ...] = (None,) * (2 if self.single else 3)
        if self.works_on_host:  # then this is the last one
            assert known_from is None
            streams = (*streams, None)
        for start in self._starts(streams):
            best[start] = 0
            heapq.heappush(queue, (0, next(order), start))
        seen = 0
        while queue:
            cost, _, now = heapq.heappop(queue)
            if cost > best[now]:
                continue
            if self._is_over(now) and self._keeps_word(now):
                return cost
            seen += 1
            if seen > self.most:
                raise TooManyError
            for later, elapsed in self._next(now, known_from):
                total = cost + counts(now, elapsed)
                if total < best.get(later, total + 1):
                    best[later] = total
                    heapq.heappush(queue, (total, next(order), later))
        return None

    def _starts(self, streams: tuple[Work | None, ...]) -> Iterator[Moment]:
        """Everything that can be so at time 0."""
        blocks = self.instance.blocks
        nowhere: tuple[int | None, ...] = (None,) * len(blocks)
        ran = (None,) * len(self.instance.tasks)
        bare = Moment(ran, nowhere, nowhere, streams, spots=nowhere if self.host_step else ())
        there = [d for d, b in enumerate(blocks) if b.initially == "device"]
        copied = [d for d, b in enumerate(blocks) if b.initially in ("device", "host")]
        carried = [d for d, b in enumerate(blocks) if b.initially == "carried"]
        places = ((True, False), (False, True), (True, True))
        for kept in _subsets(there):
            for copies in _subsets(copied) if self.instance.has_host_budget else [tuple(copied)]:
                for chosen in itertools.product(places, repeat=len(carried)):
                    states = dict(zip(carried, chosen, strict=True))
                    on_device = [*kept, *(d for d in carried if states[d][0])]
                    on_host = [*copies, *(d for d in carried if states[d][1])]
                    device = tuple(0 if d in on_device else None for d in range(len(blocks)))
                    starts = [bare._replace(device=device)]
                    for d in on_host:
                        starts = [later for start in starts for later in self._with_copy(start, d, 0)]
                    for start in filter(self._fits, starts):
                        spots = start.spots or nowhere
                        yield start._replace(homes=tuple(Home(d, *states[d], spots[d]) for d in carried))

    def _is_over(self, now: Moment) -> bool:
        if None in now.ran or any(now.streams):
            return False
        for d, block in enumerate(self.instance.blocks):
            latest = len(self.writes[d])
            if block.finally_ == "host" and now.host[d] != latest:
                return False
            if block.finally_ == "device" and now.device[d] != latest:
                return False
        for home in now.homes:
            latest = len(self.writes[home.block])
            if home.device and now.device[home.block] != latest:
                return False
            if home.host and now.host[home.block] != latest:
                return False
            if home.host and now.spots and now.spots[home.block] != home.spot:
                return False
        return True

    # --- what can happen ----------------------------------------------------------------------------

    def _next(self, now: Moment, known_from: int | None) -> Iterator[tuple[Moment, int]]:
        for d, version in enumerate(now.device):
            if version is not None and not self._used(now, d):
                yield now._replace(device=_with(now.device, d, None)), 0
        for d, version in enumerate(now.host):
            if self._is_in_copy(now, d) or self._is_used_on_host(now, d):
                continue
            if self.instance.has_host_budget and version is not None:
                spots = _with(now.spots, d, None) if now.spots else ()
                yield now._replace(host=_with(now.host, d, None), spots=spots), 0
        if now.streams[0] is None:
            for k in range(len(self.instance.tasks)):
                if self._is_next(now, k, "device") or (now.ran[k] and self.instance.tasks[k].recomputable):
                    yield from self._run(now, k, known_from)
            if self.instance.is_coupled:
                for d in range(len(self.instance.blocks)):
                    yield from self._move(now, d)
        if self.works_on_host and now.streams[-1] is None:
            for k in range(len(self.instance.tasks)):
                if self._is_next(now, k, "host"):
                    yield from self._run_on_host(now, k)
        for d in range(len(self.instance.blocks)):
            yield from self._copy(now, d, "offload", 1, known_from)
            yield from self._copy(now, d, "prefetch", 1 if self.single else 2, known_from)
        if any(now.streams):
            yield self._pass(now, known_from)

    def _run(self, now: Moment, k: int, known_from: int | None) -> Iterator[tuple[Moment, int]]:
        """Start a task: what it reads is there in the version of its turn, and nothing copies what it
        writes. What it reads, and does not rewrite, and what it makes, may depend on the algorithm."""
        task = self.instance.tasks[k]

        def is_there(d: int) -> bool:
            return now.device[d] == self._before(d, k) and not self._is_copied(now, d, "prefetch")

        if not all(map(is_there, task.updates)):
            return
        if any(self._before(d, k) + 1 < self._latest(now, d) for d in (*task.outputs, *task.updates)):
            return  # a later update has made this version old
        ran = now.ran if now.ran[k] else (*now.ran[:k], "device", *now.ran[k + 1 :])
        for a, algorithm in enumerate(task.algorithms):
            read = task.inputs if algorithm.inputs is UNSET else algorithm.inputs
            if algorithm.on == "host" or not all(map(is_there, read)):
                continue
            written = (*(task.outputs if algorithm.outputs is UNSET else algorithm.outputs), *task.updates)
            if any(self._is_copied(now, d, way) for d in written for way in ("prefetch", "offload")):
                continue
            device = [self._before(d, k) + 1 if d in written else has for d, has in enumerate(now.device)]
            work = Work("run", k, a, algorithm.duration_ns)
            pairs = [
                (d, x)
                for d, x in algorithm.takes_over
                if now.device[d] is None and not self._is_copied(now, x, "offload")
            ]
            for taken in _subsets([x for _, x in pairs]):  # they are gone, and their place is an output's
                left = tuple(None if d in taken else version for d, version in enumerate(device))
                later = now._replace(ran=ran, device=left, streams=(work, *now.streams[1:]))
                if self._fits(later):
                    yield self._noted(later, k, known_from), 0

    def _is_next(self, now: Moment, k: int, side: str) -> bool:
        """Whether a task has not been started, and no later one has on this side."""
        if now.ran[k] is not None or side in now.ran[k:]:
            return False
        return self.works_on_host or None not in now.ran[:k]

    def _run_on_host(self, now: Moment, k: int) -> Iterator[tuple[Moment, int]]:
        """Start a task on the host: copies that it reads are whole, and nothing uses those that it writes."""
        task = self.instance.tasks[k]
        host = list(now.host)
        for d in (*task.inputs, *task.updates):
            if host[d] != self._before(d, k) or self._is_copied(now, d, "offload"):
                return
        for d in (*task.outputs, *task.updates):
            if self._is_copied(now, d, "offload") or self._is_copied(now, d, "prefetch"):
                return
            host[d] = self._before(d, k) + 1
        for a, algorithm in enumerate(task.algorithms):
            if algorithm.on == "device":
                continue
            work = Work("run on host", k, a, algorithm.duration_ns)
            later = now._replace(
                ran=(*now.ran[:k], "host", *now.ran[k + 1 :]),
                host=tuple(host),
                streams=(*now.streams[:-1], work),
            )
            if self._fits(later):
                yield later, 0

    def _copy(
        self, now: Moment, d: int, kind: str, stream: int, known_from: int | None
    ) -> Iterator[tuple[Moment, int]]:
        """Start a copy of the latest version: from the device, where it lies still, or back to it."""
        block = self.instance.blocks[d]
        time = block.offload_ns if kind == "offload" else block.prefetch_ns
        if time is None or now.streams[stream] is not None:
            return
        latest = self._latest(now, d)
        if kind == "offload":
            if now.device[d] != latest or self._is_copied(now, d, "prefetch") or self._is_written(now, d):
                return
            if self._is_used_on_host(now, d):
                return
            begun = [now]
            if self.instance.has_host_budget:
                if now.host[d] is not None:  # the older copy, stale or not, goes first
                    return
                begun = [*self._with_copy(now, d, BEING_WRITTEN)]
        else:
            if now.device[d] is not None or now.host[d] != latest or self._is_copied(now, d, "offload"):
                return
            if self._used(now, d):  # an output has its place, and it is still read
                return
            if self._is_used_on_host(now, d, writes=True):
                return
            begun = [now._replace(device=_with(now.device, d, latest))]
        for mark, noted in [(0, now.noted)] if known_from is None else self._ways(now, d, kind):
            work = Work(kind, d, mark, time)
            streams = (*now.streams[:stream], work, *now.streams[stream + 1 :])
            for later in begun:
                moment = later._replace(streams=streams, noted=noted)
                if self._fits(moment):
                    yield moment, 0

    def _move(self, now: Moment, d: int) -> Iterator[tuple[Moment, int]]:
        """Start a copy to another place on the device."""
        time = self.instance.blocks[d].move_ns
        if time is None or now.device[d] != self._latest(now, d) or self._used(now, d):
            return
        later = now._replace(streams=(Work("move", d, 0, time), *now.streams[1:]))
        if self._fits(later):
            yield later, 0

    def _with_copy(self, now: Moment, d: int, version: int) -> Iterator[Moment]:
        """The host gets a copy of a block, at every offset at which nothing is, where offsets count."""
        later = now._replace(host=_with(now.host, d, version))
        if not self.host_step:
            yield later
            return
        for offset in range(0, self.host, self.host_step):
            end = offset + self.copies[d]
            if end <= self.host and all(
                spot is None or end <= spot or spot + size <= offset
                for spot, size in zip(now.spots, self.copies, strict=True)
            ):
                yield later._replace(spots=_with(now.spots, d, offset))

    def _ways(self, now: Moment, d: int, kind: str) -> Iterator[tuple[int, frozenset[tuple[str, int, int]]]]:
        """Whether a copy is known, and what is noted then; nothing where it is made again."""
        if kind == "prefetch":
            after = max((stay[0] for stay in self.stays[d] if stay[0] < self._started(now)), default=-1)
            if ("prefetch", d, after) not in now.noted:
                known = ("absent", d, after) in now.noted
                yield int(known), now.noted | ({("prefetch", d, after)} if known else set())
            elif self.instance.has_host_budget:
                yield 0, now.noted
            return
        version = self._latest(now, d)
        if ("offload", d, version) in now.noted:
            if self.instance.has_host_budget:  # a copy that was dropped may have to be made again
                yield 0, now.noted
            return
        yield 0, now.noted | {("offload", d, version)}
        if version:
            yield 1, now.noted | {("offload", d, version), ("known", d, version)}

    def _keeps_word(self, now: Moment) -> bool:
        """Whether each offload that was to be known is: its version was absent, or must end on the host."""
        for what, d, version in now.noted:
            if what != "known":
                continue
            leaves = self.instance.blocks[d].finally_ == "host" and version == len(self.writes[d])
            stays = [after for after, _ in self.stays[d] if self._before(d, after + 1) == version]
            if not leaves and not any(("absent", d, after) in now.noted for after in stays):
                return False
        return True

    def _noted(self, now: Moment, k: int, known_from: int | None) -> Moment:
        """Note where blocks are absent when a task begins or ends."""
        if known_from is None or k < known_from:
            return now
        absent = {
            ("absent", d, after)
            for d, version in enumerate(now.device)
            if version is None
            for after, until in self.stays[d]
            if after < k < until
        }
        return now._replace(noted=now.noted | absent)

    def _pass(self, now: Moment, known_from: int | None) -> tuple[Moment, int]:
        """Let the next thing end, and with it what ends at the same time."""
        speeds = [work and self._speed(now, work) for work in now.streams]
        elapsed = min(
            math.ceil(work.left / speed) if speed else 0
            for work, speed in zip(now.streams, speeds, strict=True)
            if work and (speed or not work.left)
        )
        host, streams = list(now.host), []
        for work, speed in zip(now.streams, speeds, strict=True):
            if work is not None and work.left <= elapsed * (speed or 0):
                if work.kind == "offload":
                    host[work.item] = now.device[work.item]
                work = None
            streams.append(work and work._replace(left=work.left - elapsed * (speed or 0)))
        later = now._replace(host=tuple(host), streams=tuple(streams))
        run = now.streams[0]
        if run is not None and run.kind == "run" and streams[0] is None:
            later = self._noted(later, run.item, known_from)
        return later, elapsed

    def _speed(self, now: Moment, work: Work) -> int | Fraction:
        """How fast something proceeds, of its speed alone, until the next thing ends."""
        link, known = self.instance.link, ("offload", "prefetch")
        copies = [other for other in now.streams if other and other.kind in known]
        if work.kind == "run":
            slowdown = self.instance.tasks[work.item].slowdown_ppm
            if slowdown is UNSET:
                return 1
            lost = sum(slowdown.offload if copy.kind == "offload" else slowdown.prefetch for copy in copies)
            return 1 - Fraction(lost, 10**6)
        if work.kind not in ("offload", "prefetch") or link is UNSET or not self._rate(work):
            return 1
        most, rate = Fraction(link.both_bytes_per_second, 10**9), self._rate(work)
        for copy in copies:
            if copy.kind != work.kind:  # this leaves what it cannot use, and at least a half
                most = max(most / 2, most - self._rate(copy))
        return min(rate, most) / rate

    def _rate(self, work: Work) -> Fraction:
        """Bytes a nanosecond that a copy gets where nothing is beside it, and the link is fast enough."""
        block, link = self.instance.blocks[work.item], self.instance.link
        alone = block.offload_ns if work.kind == "offload" else block.prefetch_ns
        if not alone or link is UNSET:
            return Fraction(0)
        second = Fraction(link.both_bytes_per_second, 10**9)
        size = Fraction(block.loaded_bytes)
        return (second * alone if second * alone < size <= second * (alone + 1) else size) / alone

    # --- what is so ---------------------------------------------------------------------------------

    def _done(self, now: Moment) -> int:
        """Tasks whose first run has ended; for instances whose tasks run once."""
        running = now.streams[0]
        return self._started(now) if running is None else running.item

    def _started(self, now: Moment) -> int:
        """Tasks that have been started for the first time."""
        return len(now.ran) - now.ran.count(None)

    def _before(self, d: int, k: int) -> int:
        """Version of a block that task k finds."""
        return sum(w < k for w in self.writes[d])

    def _latest(self, now: Moment, d: int) -> int:
        """Version of a block that has been begun last."""
        return sum(now.ran[w] is not None for w in self.writes[d])

    def _is_written(self, now: Moment, d: int) -> bool:
        work = now.streams[0]
        if work is None or work.kind != "run" or work.item not in self.writes[d]:
            return False
        own = self.instance.tasks[work.item].algorithms[work.algorithm].outputs
        return own is UNSET or d in own or d in self.instance.tasks[work.item].updates

    def _is_used_on_host(self, now: Moment, d: int, *, writes: bool = False) -> bool:
        """Whether a run on the host uses the copy of a block, or writes it."""
        work = now.streams[-1]
        if work is None or work.kind != "run on host":
            return False
        return work.item in self.writes[d] if writes else d in self.instance.tasks[work.item].blocks

    def _is_copied(self, now: Moment, d: int, kind: str) -> bool:
        return any(work is not None and (work.kind, work.item) == (kind, d) for work in now.streams)

    def _is_in_copy(self, now: Moment, d: int) -> bool:
        return self._is_copied(now, d, "offload") or self._is_copied(now, d, "prefetch")

    def _used(self, now: Moment, d: int) -> bool:
        work = now.streams[0]
        if work is not None and work.kind != "run" and work.item == d:
            return True
        if work is not None and work.kind == "run":
            task = self.instance.tasks[work.item]
            own = task.algorithms[work.algorithm]
            made = task.outputs if own.outputs is UNSET else own.outputs
            if d in (task.inputs if own.inputs is UNSET else own.inputs) or d in made or d in task.updates:
                return True
        return self._is_in_copy(now, d)

    def _fits(self, now: Moment) -> bool:
        taken = sum(
            block.bytes
            for block, version in zip(self.instance.blocks, now.device, strict=True)
            if version is not None
        )
        work = now.streams[0]
        if work is not None and work.kind == "move":
            taken += self.instance.blocks[work.item].bytes
        elif work is not None:
            taken += self.instance.tasks[work.item].algorithms[work.algorithm].workspace_bytes
        copies = [size for size, version in zip(self.copies, now.host, strict=True) if version is not None]
        work = now.streams[-1]
        if work is not None and work.kind == "run on host":
            copies.append(self.instance.tasks[work.item].algorithms[work.algorithm].workspace_bytes)
        if self.instance.has_host_budget and sum(copies) > self.host:
            return False
        return taken <= self.instance.budget_bytes - self.instance.resident_bytes


def _subsets(blocks: list[int]) -> Iterator[tuple[int, ...]]:
    return (some for count in range(len(blocks) + 1) for some in itertools.combinations(blocks, count))


def _with(row: tuple[int | None, ...], d: int, version: int | None) -> tuple[int | None, ...]:
    return (*row[:d], version, *row[d + 1 :])
