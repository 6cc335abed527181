"""Work on the host: on which side tasks run that have algorithms on both, chosen before a method plans.

A few choices are tried: the first of these tasks run on the host, as many as take some share of the time of
all, and the others on the device. What is done first on the host has the rest of the round for it, beside the
device. Methods that know of work on the host plan for the choice that looks best to a little search, which
also changes the choices: how many of the first tasks run there, and then task by task. Where blocks are
carried, it looks at a choice with as many of them on the device as have room there, and with a little fewer;
then, if there is time, sides and places are changed together (`jointly`).

Other methods plan the device's tasks alone. The runs on the host are then added to their programs
(`heuristics.host_work`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from ..heuristics.clock import OutOfTime, left, look
from ..heuristics.host_work import HostWork, of_both_sides, of_one_side, on_sides
from ..heuristics.methods import Answer, Limits, Method, MethodInfo, Refusal
from ..heuristics.papers.modnn import modnn
from ..instances.instance import Instance
from ..validate.check import check
from ..validate.schedule import Schedule
from .bounds import why_impossible
from .choosing import Choice, Choosing
from .jointly import choose_jointly
from .steady import Hosted, completed, has_room, ladder, settle, settled, thinned

if TYPE_CHECKING:
    from ..heuristics.search.search import LocalSearch

Placed = Callable[[Instance, Limits], Sequence[Hosted]]
"""Offers choices of carried blocks that live on the host, where every task has its side."""

_SHARES = (1.0, 0.0, 0.5, 0.25, 0.75)
"""Shares of the host's time for tasks that may run on either side which choices let run there.

All and nothing come first, in case that time is short.
"""

_THINNED = 0.1
"""Share of the carried bytes that could be on the device at both ends which other places have on the host."""

_FAR = 1.005
"""Length of what looks best, as a multiple, from which on other places are not looked at for a choice."""

_LITTLE = 100_000
"""Greatest number of tasks that a search simulates to say how a choice looks."""


def take_sides(
    instance: Instance,
    info: MethodInfo,
    solve: Method,
    limits: Limits,
    offered: Sequence[Choice] = (),
    *,
    bounded: bool = False,
    placed: Placed | None = None,
) -> Answer:
    """Choose the tasks that run on the host, plan with a method, and return its best schedule.

    The bounds of the method are left out if they hold for one choice only. After the time limit, and after
    Ctrl-C, no further choice is tried.

    Parameters
    ----------
    instance
        An instance in which a task has an algorithm on the host.
    info, solve
        The method, and the function that calls it.
    limits
        The limits of all calls together. A warm start names the first choice.
    offered
        Choices that come before those of the rule.
    bounded
        Whether the method bounds the original, whatever the choice.
    placed
        Offers carried blocks that may live on the host, when every task has its side.

    Raises
    ------
    Refusal
        When the method refuses every choice: the reason that it gives for the first one.
    """
    siding = _Siding(instance, info, solve, limits, offered, bounded=bounded)
    siding.placed = placed
    return siding.answer()


class _Siding(Choosing):
    """The sides of tasks for one call of a method: a choice has those that run on the host."""

    probing = 0.6  # of a large step of an optimizer, each look takes a second
    placed: Placed | None = None
    _shortest = math.inf
    _better = 0  # the places with which the choice that looks best does so

    def choice_of(self, start: Schedule) -> Choice:
        """Return the tasks that run on the host in a schedule."""
        return frozenset(o.task for o in start.operations if o.stream == "host" and o.task is not None)

    def ladder(self) -> Iterator[Choice]:
        """Yield choices in which some first tasks run on the host."""
        tasks = self.instance.tasks
        must = {k for k, task in enumerate(tasks) if not task.device_algorithms}
        either = self._either()
        times = [min(a.duration_ns for a in tasks[k].algorithms if a.on == "host") for k in either]
        for share in _SHARES:
            count = sum(total <= share * sum(times) for total in accumulate(times))
            yield frozenset(must.union(either[:count]))

    def looks(self, choice: Choice) -> float:
        """Return about how long the schedule of a choice is, by a little search or by a rule."""
        sided = on_sides(self.instance, choice, self.limits.memory)
        if self.info.sides == "settled":
            return self._ruled(sided)
        for proves in (False, True):  # where there is no program, too much may be on the device
            try:
                least, kind, fits = self._look(choice, sided, self._places(sided, proves=proves))
            except OutOfTime:
                raise
            except Refusal:
                continue
            if fits or proves:
                if least < self._shortest:
                    self._shortest, self._better = least, kind
                return least
        return math.inf

    def _ruled(self, sided: Instance) -> float:
        """Return how long the schedule of a rule is."""
        memory = self.limits.memory
        try:
            work = HostWork(sided)
            device = work.device
            if device.carried:
                device = settled(device, next(ladder(device, memory, "settled")), memory, "settled")
            schedule = modnn(device, Limits(memory=memory)).schedule
            return math.inf if schedule is None else work.completed(schedule).makespan_ns
        except OutOfTime:
            raise
        except Refusal:
            return math.inf

    def _look(self, choice: Choice, sided: Instance, places: Sequence[Hosted]) -> tuple[int, int, bool]:
        """Return about how long a choice's schedule is, with which of some places, and whether there is one.

        Those come first that were best for the choice that looks best. If the others are needed, the choice
        is not far from that.
        """
        from ..heuristics.search.search import LocalSearch  # with it comes Numba

        looks = []
        for kind in sorted(range(len(places)), key=lambda kind: kind != self._better):
            instance = settled(sided, places[kind], self.limits.memory, self.info.carries)
            search = LocalSearch(instance, self.limits.memory, self.limits.seed, addresses=False)
            search.run(left(), min(search.round // 4, _LITTLE))
            self.keep(search.cost, partial(self._sketched, choice, search))
            look()
            looks.append((search.cost, kind, search.makespan_ns is not None))
            if search.cost > _FAR * self._shortest:
                break
        return min(looks)

    def groups(self) -> list[list[int]]:
        """Return the tasks that may run on either side, where a search says how a choice looks."""
        return [] if self.info.sides == "settled" else [[k] for k in self._either()]

    def improve(self, found: dict[Choice, float]) -> None:
        """Change how many first tasks run on the host, by many at once, then by fewer; then other changes."""
        if self.info.sides != "settled":
            either = self._either()
            must = frozenset(k for k, task in enumerate(self.instance.tasks) if not task.device_algorithms)
            first = {must.union(either[:count]): count for count in range(len(either) + 1)}
            best = min((choice for choice in first if choice in found), key=lambda choice: found[choice])
            size = len(either) // 4
            while size:
                before = best
                counts = (first[before] - size, first[before] + size)
                tried = dict.fromkeys(must.union(either[: max(count, 0)]) for count in counts)
                self.look_at_new(tried, found)
                best = min((best, *(one for one in tried if one in found)), key=lambda one: found[one])
                size = size // 2 if best == before else size
        super().improve(found)

    def admits(self, choice: Choice) -> bool:
        """Return whether the tasks of a choice can run on the host."""
        try:
            HostWork(on_sides(self.instance, choice, self.limits.memory))
        except Refusal:
            return False
        return True

    def planned(self, choice: Choice, limits: Limits) -> Answer:
        """Call the method for a choice, and complete its schedule."""
        sided = on_sides(self.instance, choice, self.limits.memory)
        if self.info.sides == "settled":
            work = HostWork(sided)
            if (reason := why_impossible(work.device, limits.memory)) is not None:
                raise Refusal(reason)
            answer = self._settled(work.device, replace(limits, warm_start=None))
            if answer.schedule is not None:
                answer = replace(answer, schedule=work.completed(answer.schedule))
        elif sided.carried and self.info.carries != "settled" and not self.hurried:
            if choice != self.first:
                limits = replace(limits, warm_start=None)
            places = [*self._offered(sided, limits), *self._places(sided)]
            return choose_jointly(
                self.instance, self.info, self.solve, limits, choice, places, bounded=self.bounded
            )
        else:
            answer = self._settled(sided, replace(limits, warm_start=self._start(sided, choice)))
        return replace(answer, schedule=self._whole(choice, answer.schedule))

    def _sketched(self, choice: Choice, search: LocalSearch) -> Schedule | None:
        """Return the schedule that a little search has for a choice."""
        return self._whole(choice, search.schedule(self.info.name))

    def _whole(self, choice: Choice, schedule: Schedule | None) -> Schedule | None:
        """Return a schedule for a choice as one of the original."""
        if schedule is None:
            return None
        schedule = of_both_sides(self.instance, choice, schedule)
        return completed(self.instance, schedule) if self.instance.carried else schedule

    def _settled(self, instance: Instance, limits: Limits) -> Answer:
        """Call the method for an instance in which every task has its side."""
        if instance.carried and self.info.carries != "chosen":
            places = self._offered(instance, limits)
            if self.info.carries != "settled":
                places = [*places, *self._places(instance)[1:]]
            return settle(instance, self.info, self.solve, limits, places, bounded=self.bounded)
        return self.solve(instance, limits)

    def _offered(self, sided: Instance, limits: Limits) -> Sequence[Hosted]:
        """Return the places of carried blocks that the caller offers."""
        return [] if self.placed is None else self.placed(sided, limits)

    def _places(self, sided: Instance, *, proves: bool = True) -> list[Hosted]:
        """Return places of carried blocks: most on the device, and, if there is room, a little less of it."""
        if not sided.carried:
            return [frozenset()]
        most = next(ladder(sided, self.limits.memory, "homing", proves=proves))
        less = thinned(sided, most, _THINNED)
        return [most, less] if less != most and has_room(sided, less, self.limits.memory) else [most]

    def _either(self) -> list[int]:
        """Return the tasks that may run on either side."""
        tasks = enumerate(self.instance.tasks)
        return [k for k, task in tasks if task.may_run_on_host and task.device_algorithms]

    def _start(self, sided: Instance, choice: Choice) -> Schedule | None:
        """Return the warm start as a schedule of the instance in which every task has its side, if it is."""
        start = self.limits.warm_start
        if start is None or choice != self.first:
            return None
        start = of_one_side(self.instance, choice, start)
        if start is None:
            return None
        states = tuple(state for state in start.states if state.block in sided.carried)
        start = msgspec.structs.replace(start, carried=states if sided.carried else msgspec.UNSET)
        return None if check(sided, start).reasons else start
