"""Sides of tasks and places of carried blocks, chosen together.

`sides` chooses what runs on the host while places follow a rule, and `steady` chooses places for given sides.
But each depends on the other: a step of an optimizer on the host frees the device of its states, so that
others have room there, and a state that lives on the host may as well be updated there. So what both have
found is changed once more: the side of a task, or the place of a block, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from ..heuristics.clock import OutOfTime, left, look
from ..heuristics.host_work import HostWork, of_both_sides, of_one_side, on_sides
from ..heuristics.methods import Answer, Limits, Method, MethodInfo, Refusal
from ..instances.instance import Instance
from ..validate.check import check
from ..validate.schedule import Schedule
from .choosing import Choice, Choosing
from .steady import Hosted, completed, has_room, movable, settled

_LITTLE = 100_000
"""Greatest number of tasks that a search simulates to say how a choice looks."""


def choose_jointly(
    instance: Instance,
    info: MethodInfo,
    solve: Method,
    limits: Limits,
    sides: Choice,
    places: Sequence[Hosted],
    *,
    bounded: bool,
) -> Answer:
    """Change sides and places, plan with a method for what looks best, and return its schedule.

    Parameters
    ----------
    instance
        An instance with carried blocks in which a task has an algorithm on the host.
    info, solve
        The method, which reads carried blocks and knows of work on the host, and the function that calls it.
    limits
        The limits of all calls together. A warm start names the first choice.
    sides
        The tasks that run on the host at first.
    places
        Blocks that live on the host at first: several choices.
    bounded
        Whether the method bounds the original, whatever the choice.

    Raises
    ------
    Refusal
        When the method refuses every choice: the reason that it gives for the first one.
    """
    first = len(instance.tasks)
    starts = [sides | {first + d for d in hosted} for hosted in places]
    return _Joint(instance, info, solve, limits, starts, bounded=bounded).answer()


class _Joint(Choosing):
    """Sides and places for one call of a method.

    A choice has the numbers of tasks that run on the host, and those of blocks that live there, counted on
    from the number of tasks.
    """

    probing = 0.5
    widest = 16  # it begins with what is good

    def choice_of(self, start: Schedule) -> Choice:
        """Return what runs on the host in a schedule, and what lives there."""
        runs = {o.task for o in start.operations if o.stream == "host" and o.task is not None}
        return self._joined(frozenset(runs), frozenset(s.block for s in start.states if not s.device))

    def ladder(self) -> Iterator[Choice]:
        """Yield nothing: all choices are offered."""
        return iter(())

    def looks(self, choice: Choice) -> float:
        """Return about how long the schedule of a choice is, by a little search."""
        from ..heuristics.search.search import LocalSearch  # with it comes Numba

        try:
            instance = self._settled(choice)
            search = LocalSearch(instance, self.limits.memory, self.limits.seed, addresses=False)
            search.run(left(), min(search.round // 4, _LITTLE))
            self.keep(search.cost, lambda: self._whole(choice, search.schedule(self.info.name)))
            look()
        except OutOfTime:
            raise
        except Refusal:
            return math.inf
        return search.cost

    def groups(self) -> list[list[int]]:
        """Return tasks that may run on either side, then blocks, the parts of a tensor together."""
        tasks = enumerate(self.instance.tasks)
        either = [[k] for k, task in tasks if task.may_run_on_host and task.device_algorithms]
        first = len(self.instance.tasks)
        return [*either, *([first + d for d in group] for group in movable(self.instance))]

    def admits(self, choice: Choice) -> bool:
        """Return whether the tasks can run on the host, and there is room for what is there at both ends."""
        sides, hosted = self._parted(choice)
        sided = on_sides(self.instance, sides, self.limits.memory)
        try:
            HostWork(sided)
        except Refusal:
            return False
        return has_room(sided, hosted.intersection(sided.carried), self.limits.memory)

    def planned(self, choice: Choice, limits: Limits) -> Answer:
        """Call the method for a choice, and complete its schedule."""
        instance = self._settled(choice)
        answer = self.solve(instance, replace(limits, warm_start=self._start(instance, choice)))
        return replace(answer, schedule=self._whole(choice, answer.schedule))

    def _parted(self, choice: Choice) -> tuple[Choice, Hosted]:
        """Return the tasks, and the blocks."""
        first = len(self.instance.tasks)
        return frozenset(k for k in choice if k < first), frozenset(k - first for k in choice if k >= first)

    def _joined(self, sides: Choice, hosted: Hosted) -> Choice:
        """Return a choice, without blocks whose place follows from the sides."""
        first, sided = len(self.instance.tasks), on_sides(self.instance, sides, self.limits.memory)
        return sides | {first + d for d in hosted.intersection(sided.carried)}

    def _settled(self, choice: Choice) -> Instance:
        """Return the instance of a choice."""
        sides, hosted = self._parted(choice)
        sided = on_sides(self.instance, sides, self.limits.memory)
        return settled(sided, hosted, self.limits.memory, self.info.carries)

    def _whole(self, choice: Choice, schedule: Schedule | None) -> Schedule | None:
        """Return a schedule for a choice as one of the original."""
        if schedule is None:
            return None
        sides, _ = self._parted(choice)
        schedule = completed(on_sides(self.instance, sides, self.limits.memory), schedule)
        return completed(self.instance, of_both_sides(self.instance, sides, schedule))

    def _start(self, instance: Instance, choice: Choice) -> Schedule | None:
        """Return the warm start as a schedule of the instance of its choice, if it is one."""
        start = self.limits.warm_start
        if start is None or choice != self.first:
            return None
        start = of_one_side(self.instance, self._parted(choice)[0], start)
        if start is None:
            return None
        states = tuple(state for state in start.states if state.block in instance.carried)
        start = msgspec.structs.replace(start, carried=states if instance.carried else msgspec.UNSET)
        return None if check(instance, start).reasons else start
