"""Rounds in a steady state: where carried blocks are at both ends, chosen before a method plans the round.

A carried block is on the device at both ends, or on the host. A few choices are tried: the blocks that are
used first stay on the device, as many as have room there, or fewer; the others live on the host. What lives
on the host begins and ends there, as blocks of ordinary instances do. What is on the device at both ends may
leave it during the round if the method reads carried blocks, in contiguous memory if it brings them back to
their places; else it never moves. So a method plans on an instance that it knows, and its schedule is
completed with the states.

A rule plans for every choice, and its shortest schedule is taken. Other methods take longer. They plan for
the choice that looks best to a rule or, where they read carried blocks, to a little search. That also changes
the choices, block by block. Where they read carried blocks, a rule plans for its own choices before, and its
schedule is the answer where theirs is longer.

The little search knows no addresses. So in contiguous memory, the few choices that look best are tried with
addresses, all for a while, then the better half of them, until one is left. The method goes on from there.
If what is on the device may leave it, a choice may look better than its schedules with addresses are. So
those choices come first of which it stays. Others are tried only if they look clearly better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from ..heuristics.carried import rooted, states_of, unmoved
from ..heuristics.clock import LEAST, OutOfTime, left, look, until
from ..heuristics.methods import Answer, Carries, Limits, Method, MethodInfo, Refusal
from ..heuristics.papers.modnn import modnn
from ..heuristics.parts import tensors_of
from ..heuristics.program.placement import Piece
from ..instances.instance import Block, Instance
from ..instances.units import ceil_to
from ..validate.bounds.arguments import least_times
from ..validate.check import check
from ..validate.host_memory import ALIGNMENT_BYTES
from ..validate.measures import with_host
from ..validate.schedule import MemoryModel, Residence, Schedule, unit_bytes
from .bounds import why_impossible
from .choosing import Choice, Choosing
from .packing.pack import places
from .trying import Tried, halved

if TYPE_CHECKING:
    from ..heuristics.search.search import LocalSearch

Hosted = Choice
"""The carried blocks that live on the host; the others are on the device at both ends."""

_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Shares of the carried bytes that have room on the device which choices keep there."""

_LITTLE = 200_000
"""Greatest number of tasks that a search simulates to say how a choice looks."""

_TRIED = 3
"""Greatest number of choices that are tried with addresses."""

_TRYING = 0.2
"""Share of the time left in which choices are tried with addresses."""

_HOMING = 0.1
"""Share of the time left in which choices are looked at of which what is on the device may leave."""

_FEW = 4
"""Number of choices that are among these, if they look best of those of which it stays."""

_BETTER = 0.99
"""How much shorter such a choice has to look."""

_LEAST_TRY = 0.1
"""Least number of seconds for a choice that is tried with addresses."""


def settle(
    instance: Instance,
    info: MethodInfo,
    solve: Method,
    limits: Limits,
    offered: Sequence[Hosted] = (),
    *,
    bounded: bool = False,
) -> Answer:
    """Choose where carried blocks are at both ends, plan with a method, and return its best schedule.

    The bounds of the method are left out if they hold for one choice only. After the time limit, and after
    Ctrl-C, no further choice is tried.

    Parameters
    ----------
    instance
        An instance with carried blocks.
    info, solve
        The method, and the function that calls it.
    limits
        The limits of all calls together. A warm start names the first choice.
    offered
        Choices that come before those of the rule.
    bounded
        Whether the method bounds the original, whatever the choice.

    Raises
    ------
    Refusal
        When the method refuses every choice: the reason that it gives for the first one.
    """
    return _Settling(instance, info, solve, limits, offered, bounded=bounded).answer()


def settled(instance: Instance, hosted: Hosted, memory: MemoryModel, carries: Carries) -> Instance:
    """Return the instance that a method plans on when some carried blocks live on the host.

    Parameters
    ----------
    instance, hosted, memory
        The original, the blocks that live on the host, and the memory model of the schedule.
    carries
        How the method takes carried blocks. If it does not read them, those on the device become ordinary.
    """

    def changed(d: int, block: Block) -> Block:
        if block.initially != "carried":
            return block
        if d in hosted:
            return msgspec.structs.replace(block, initially="host", finally_="host")
        if carries == "settled":
            return msgspec.structs.replace(unmoved(block), initially="device", finally_="device")
        if memory != "contiguous":
            return block
        return rooted(block) if carries == "homing" else unmoved(block)

    blocks = tuple(changed(d, block) for d, block in enumerate(instance.blocks))
    return msgspec.structs.replace(instance, blocks=blocks)


def completed(instance: Instance, schedule: Schedule) -> Schedule:
    """Return a schedule of a settled instance as one of the original, with the states of its carried blocks.

    What lives on the host leaves the device after its last use.

    Raises
    ------
    Refusal
        When host memory has a budget, and the last copy of what lives there lies elsewhere than the first.
    """
    there = {residence.block for residence in schedule.residences if residence.acquired_by is None}
    hosted = frozenset(instance.carried) - there
    schedule = msgspec.structs.replace(schedule, residences=_let_go(instance, schedule, hosted))
    if schedule.host_residences is not msgspec.UNSET:
        read = {operation.block for operation in schedule.operations if operation.kind == "prefetch"}
        unread = set(instance.carried) - hosted - read
        copies = [
            copy for copy in schedule.host_copies if copy.acquired_by is not None or copy.block not in unread
        ]
        homes = {copy.block: copy.offset for copy in copies if copy.acquired_by is None}
        last = {copy.block: copy.offset for copy in copies}
        for d in sorted(hosted):
            if homes.get(d) != last.get(d):
                name = instance.blocks[d].name
                raise Refusal(f"the last copy of '{name}' on the host does not lie where the first one does")
        schedule = with_host(schedule, tuple(copies))
    return msgspec.structs.replace(schedule, carried=states_of(instance, schedule))


class _Settling(Choosing):
    """The places of carried blocks for one call of a method: a choice has those that live on the host."""

    _started: Schedule | None = None
    """What a search has found while choices were compared: the method starts from there."""

    _stays = False
    """Whether what is on the device at both ends stays there, although it need not."""

    def choice_of(self, start: Schedule) -> Hosted:
        """Return the blocks that live on the host in a schedule."""
        return frozenset(state.block for state in start.states if not state.device)

    def ladder(self) -> Iterator[Hosted]:
        """Yield choices from most on the device to least."""
        return ladder(self.instance, self.limits.memory, self.info.carries)

    def ranked(self) -> list[Hosted]:
        """Return choices by how they look; a method that reads carried blocks first has a schedule by rule.

        How a choice looks to its little search says nothing of addresses, nor of what the method finds in the
        time that it has.
        """
        if self.info.carries != "settled":
            with until(self.began + self.probing * (self.deadline - self.began), LEAST), suppress(OutOfTime):
                for choice in self.ladder():
                    self._offer_rule(choice)
        self._stays = self.limits.memory == "contiguous" and self.info.carries != "settled"
        ranked = super().ranked()
        if self.info.carries == "settled" or "local-search" in self.limits.without:
            return ranked
        if self._stays:
            return self._tried(ranked, self._homing(ranked) if self.info.carries == "homing" else [])
        with suppress(Refusal):  # what lives on the host may have moved there
            self._start_from(self._sketch())
        return ranked

    def _homing(self, staying: Sequence[Hosted]) -> list[Hosted]:
        """Return choices by how they look if what is on the device at both ends may leave it in between.

        There are none if they look hardly better than the best one of which it stays.
        """
        found: dict[Hosted, float] = {}
        began, enough = time.monotonic(), 0.0
        share = _HOMING * (self.deadline - began)
        try:
            with until(began + share / 2), suppress(OutOfTime):
                enough = _BETTER * self.looks(staying[0])
                self._stays = False
                self.look_at(list(dict.fromkeys([*staying[:_FEW], *self.offered])), found)
            if self.first is not None and self.limits.warm_start is not None:
                found[self.first] = min(found.get(self.first, math.inf), self.limits.warm_start.makespan_ns)
            if min(found.values(), default=math.inf) >= enough:
                return []
            with until(began + share), suppress(OutOfTime):
                self.improve(found)
        finally:
            self._stays = True
        return sorted(found, key=lambda choice: found[choice])

    def _tried(self, staying: Sequence[Hosted], homing: Sequence[Hosted]) -> list[Hosted]:
        """Return choices, the one first whose schedule is shortest after a little search with addresses.

        The better half of some choices goes on until one is left.

        Parameters
        ----------
        staying, homing
            Choices by how they look if what is on the device at both ends stays there, and if it need not.
        """
        limited = self.limits.time_limit is not None
        seconds = _TRYING * max(self.deadline - time.monotonic(), 0.0)
        most = min(int(seconds / _LEAST_TRY), _TRIED) if limited else _TRIED
        places = [
            *((choice, False) for choice in homing[: _TRIED - 1]),
            *((choice, True) for choice in staying),
        ]
        tries: list[Tried] = []
        for choice, self._stays in places[:most]:
            with until(self.deadline, LEAST), suppress(Refusal):
                tries.append(Tried(choice, self._stays, self._search(choice)))
        best: list[Hosted] = []
        self._stays = True
        try:
            for tried in halved(tries, seconds, self.limits.workers, sum(least_times(self.instance))):
                self._start_from(self._found_by(tried))
                best.insert(0, tried.choice)
                self._stays = tried.stays
        except KeyboardInterrupt:
            for tried in tries:
                self._start_from(self._found_by(tried))
            raise
        return list(dict.fromkeys([*best, *(staying if self._stays else homing)]))

    def _found_by(self, tried: Tried) -> Schedule | None:
        """Return the schedule that a search with addresses has found."""
        try:
            return self._completed(tried.search.schedule(self.info.name))
        except Refusal:  # what lives on the host may have moved there
            return None

    def _search(self, choice: Hosted) -> LocalSearch:
        """Return a search with addresses for a choice, which starts from a rule's or the warm start."""
        from ..heuristics.search.contiguous import new_search  # with it comes Numba

        def place(pieces: Sequence[Piece], capacity: int, alignment: int) -> Sequence[int] | None:
            with until(self.deadline, LEAST):
                return places(pieces, capacity, alignment, "least")

        instance, limits = self.settled(choice), self.limits
        search = new_search(instance, limits.memory, limits.seed, limits.without, place)
        for start in (self._ruled(choice), self.start(instance, choice)):
            if start is not None:
                search.offer(start)
        return search

    def _start_from(self, found: Schedule | None) -> None:
        """Let the method start from a schedule, and keep it if it is the best."""
        if found is not None:
            self._started = found
            self._keep_best(found)

    def _offer_rule(self, choice: Hosted) -> None:
        """Keep the rule's schedule of a choice if it is the best one."""
        if (found := self._ruled(choice)) is not None:
            with suppress(Refusal):  # what lives on the host may have moved there
                found = completed(self.instance, found)
                self._keep_best(msgspec.structs.replace(found, method=self.info.name))

    def _ruled(self, choice: Hosted) -> Schedule | None:
        """Return a rule's schedule for a choice."""
        memory = self.limits.memory
        try:
            return modnn(settled(self.instance, choice, memory, "read"), Limits(memory=memory)).schedule
        except Refusal:
            return None

    def _keep_best(self, found: Schedule) -> None:
        if self.best is None or found.makespan_ns < self.best.makespan_ns:
            self.best = found

    def looks(self, choice: Hosted) -> float:
        """Return about how long the schedule of a choice is, by a little search or by a rule.

        The search is without addresses. It reads carried blocks, and so stands for methods that do.
        """
        instance, memory = self.settled(choice), self.limits.memory
        try:
            if self.info.carries != "settled":
                from ..heuristics.search.search import LocalSearch  # with it comes Numba

                search = LocalSearch(instance, memory, self.limits.seed, addresses=False)
                search.run(left(), min(search.round // 4, _LITTLE))
                self.keep(search.cost, lambda: self._completed(search.schedule(self.info.name)))
                look()
                return search.cost
            schedule = modnn(instance, Limits(memory=memory)).schedule
        except OutOfTime:
            raise
        except Refusal:
            return math.inf
        return math.inf if schedule is None else schedule.makespan_ns

    def groups(self) -> list[list[int]]:
        """Return the blocks that can live on the host, the parts of a tensor together."""
        return [] if self.info.carries == "settled" else movable(self.instance)

    def admits(self, choice: Hosted) -> bool:
        """Return whether device and host have room for what is there at both ends."""
        return has_room(self.instance, choice, self.limits.memory)

    def planned(self, choice: Hosted, limits: Limits) -> Answer:
        """Call the method for a choice, and complete its schedule."""
        instance = self.settled(choice)
        answer = self.solve(instance, replace(limits, warm_start=self.start(instance, choice)))
        return replace(answer, schedule=self._completed(answer.schedule))

    def settled(self, hosted: Hosted) -> Instance:
        """Return the instance of a choice."""
        carries = "read" if self._stays else self.info.carries
        return settled(self.instance, hosted, self.limits.memory, carries)

    def _completed(self, schedule: Schedule | None) -> Schedule | None:
        return None if schedule is None else completed(self.instance, schedule)

    def start(self, instance: Instance, hosted: Hosted) -> Schedule | None:
        """Return what the method starts from: the warm start, or what a search has found for the choice."""
        given = [] if self._started is None else [self._started]
        if self.limits.warm_start is not None:
            given.append(self.limits.warm_start)
        found = [self._as_settled(instance, one) for one in given if self.choice_of(one) == hosted]
        found = [one for one in found if not check(instance, one).reasons]
        return min(found, key=lambda one: one.makespan_ns, default=None)

    @staticmethod
    def _as_settled(instance: Instance, start: Schedule) -> Schedule:
        """Return a schedule of the original as one of an instance in which less is carried."""
        states = tuple(state for state in start.states if state.block in instance.carried)
        return msgspec.structs.replace(start, carried=states if instance.carried else msgspec.UNSET)


def ladder(
    instance: Instance, memory: MemoryModel, carries: Carries, *, proves: bool = True
) -> Iterator[Hosted]:
    """Yield choices that may have room, from most on the device to least; at least one.

    Parameters
    ----------
    instance, memory, carries
        As for `settled`.
    proves
        Whether to leave out choices of which a task proves that they have no schedule, which takes a while.
    """
    groups = _groups(instance)
    carried = {d for group in groups for d in group}

    def left(count: int) -> Hosted:
        return frozenset(carried.difference(*groups[:count]))

    def fits(count: int) -> bool:
        return _device_has_room(instance, left(count), memory) and not (
            proves and why_impossible(settled(instance, left(count), memory, carries), memory)
        )

    forced = sum(not _can_live_on_host(instance, group) for group in groups)
    least, most = forced, len(groups)
    if fits(most):
        least = most
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    sizes = [sum(instance.blocks[d].bytes for d in group) for group in groups[:most]]
    for share in _SHARES:
        kept = max(_within(sizes, share * sum(sizes)), forced)
        if share == 1 or _host_has_room(instance, left(kept)):
            yield left(kept)


def thinned(instance: Instance, hosted: Hosted, share: float) -> Hosted:
    """Return a choice in which more lives on the host: some blocks that only one task uses, evenly spread.

    Such are the states of an optimizer. The room that they leave on the device is for what tasks make.

    Parameters
    ----------
    instance, hosted
        The instance and the choice.
    share
        The share of the bytes on the device at both ends that moves to the host.
    """
    kept = [d for d in instance.carried if d not in hosted]
    groups = [
        group
        for group in _groups(instance)
        if all(d not in hosted and len(instance.uses[d]) == 1 for d in group)
        and _can_live_on_host(instance, group)
    ]
    sizes = [sum(instance.blocks[d].bytes for d in group) for group in groups]
    rate = share * sum(instance.blocks[d].bytes for d in kept) / max(sum(sizes), 1)
    moved: set[int] = set()
    owed = 0.0
    for group, size in zip(groups, sizes, strict=True):
        owed += rate * size
        if owed >= size / 2:
            moved.update(group)
            owed -= size
    return hosted | moved


def movable(instance: Instance) -> list[list[int]]:
    """Return the carried blocks that can live on the host, the parts of a tensor together, by first use."""
    return [group for group in _groups(instance) if _can_live_on_host(instance, group)]


def _within(sizes: Sequence[int], most: float) -> int:
    """Return how many of some sizes, from the first on, have a sum that is not above a number."""
    total = count = 0
    for size in sizes:
        total += size
        if total > most:
            break
        count += 1
    return count


def _groups(instance: Instance) -> list[list[int]]:
    """Return the carried blocks, the parts of a tensor together: what cannot live on the host, then by use.

    Blocks that no task uses come last.
    """
    carried = set(instance.carried)
    tensors = [parts for parts in tensors_of(instance) if carried.issuperset(parts)]
    together = {d for parts in tensors for d in parts}
    groups = [*tensors, *([d] for d in instance.carried if d not in together)]
    never = (len(instance.tasks),)

    def turn(group: Sequence[int]) -> tuple[bool, int, int]:
        first = min((instance.uses[d] or never)[0] for d in group)
        return _can_live_on_host(instance, group), first, min(group)

    return sorted(groups, key=turn)


def _can_live_on_host(instance: Instance, group: Sequence[int]) -> bool:
    """Return whether blocks can come from the host if they are used, and go back if they are written."""
    return all(
        (instance.blocks[d].prefetch_ns is not None or not instance.uses[d])
        and (instance.blocks[d].offload_ns is not None or not instance.writers[d])
        for d in group
    )


def has_room(instance: Instance, hosted: Hosted, memory: MemoryModel) -> bool:
    """Return whether device and host have room for what is there at both ends."""
    return _device_has_room(instance, hosted, memory) and _host_has_room(instance, hosted)


def _device_has_room(instance: Instance, hosted: Hosted, memory: MemoryModel) -> bool:
    unit = unit_bytes(instance, memory)
    kept = (instance.blocks[d].bytes for d in instance.carried if d not in hosted)
    return sum(ceil_to(size, unit) for size in kept) < instance.pool_bytes + unit


def _host_has_room(instance: Instance, hosted: Hosted) -> bool:
    if instance.host_budget_bytes is msgspec.UNSET:
        return True
    needed = sum(ceil_to(instance.blocks[d].bytes, ALIGNMENT_BYTES) for d in hosted)
    return needed < instance.host_budget_bytes + ALIGNMENT_BYTES


def _let_go(instance: Instance, schedule: Schedule, hosted: Hosted) -> tuple[Residence, ...]:
    """Return the residences, those of blocks that live on the host released after their last use."""
    position = {operation.id: p for p, operation in enumerate(schedule.operations)}
    users: dict[int, list[int]] = {d: [] for d in hosted}
    for operation in schedule.operations:
        touched: tuple[int | None, ...] = (operation.block,)
        if operation.task is not None and operation.algorithm is not None:
            touched = instance.tasks[operation.task].touches(operation.algorithm)
        for d in hosted.intersection(touched):
            users[d].append(operation.id)

    def released(residence: Residence) -> Residence:
        d, acquired_by = residence.block, residence.acquired_by
        if d not in users or acquired_by is None or residence.released_after:
            return residence
        after = tuple(i for i in users[d] if position[i] >= position[acquired_by])
        return msgspec.structs.replace(residence, released_after=after)

    return tuple(released(residence) for residence in schedule.residences)
