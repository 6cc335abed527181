"""Choices that are made before a method plans: a few are tried, and the best schedule is taken.

A rule plans for every choice. Other methods take longer. They plan for the choice that looks best to a rule
or, where a search looks at choices as well, to that; it also changes them.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from threading import Lock

from ..heuristics.clock import LEAST, OutOfTime, is_rule, until
from ..heuristics.methods import Answer, Limits, Method, MethodInfo, OnBetter, Refusal
from ..instances.instance import Instance
from ..validate.schedule import Schedule

Choice = frozenset[int]
"""The blocks, or tasks, for which one of two things is chosen."""

_TRIES = 64
"""Number of changes of the choice that looks best where there is no time limit.

The last round may make a few more.
"""


class Choosing(ABC):
    """The choices for one call of a method, and the best of its answers so far.

    Parameters
    ----------
    instance
        The original.
    info, solve
        The method, and the function that calls it.
    limits
        The limits of all calls together.
    offered
        Choices that come before those of the rule.
    bounded
        Whether the method bounds the original, whatever the choice.

    Attributes
    ----------
    first
        The choice of the warm start, if there is one.
    probing
        Share of the time limit in which is chosen for methods that take longer.
    widest
        Greatest number of groups that are changed at once; None: all.
    hurried
        Whether choosing took all of its time, so that more of it might find something better.
    """

    probing = 0.2
    widest: int | None = None

    def __init__(
        self,
        instance: Instance,
        info: MethodInfo,
        solve: Method,
        limits: Limits,
        offered: Sequence[Choice],
        *,
        bounded: bool,
    ) -> None:
        self.offered, self.bounded, self.bound = offered, bounded, Answer(None)
        self.instance, self.info, self.solve, self.limits = instance, info, solve, limits
        seconds = math.inf if limits.time_limit is None else limits.time_limit
        self.began, self.deadline = time.monotonic(), time.monotonic() + seconds
        self.best: Schedule | None = None
        self.ended: list[str] = []
        self.hurried = False
        self.first = None if limits.warm_start is None else self.choice_of(limits.warm_start)
        self._lock, self._least = Lock(), math.inf
        self._sketch: Callable[[], Schedule | None] = _no_schedule

    @abstractmethod
    def choice_of(self, start: Schedule) -> Choice:
        """Return the choice that a schedule has made."""

    @abstractmethod
    def ladder(self) -> Iterable[Choice]:
        """Return the choices that are tried in any case."""

    @abstractmethod
    def looks(self, choice: Choice) -> float:
        """Return about how long the schedule of a choice is.

        Raises
        ------
        OutOfTime
            When the deadline has passed.
        """

    @abstractmethod
    def groups(self) -> Sequence[Sequence[int]]:
        """Return what is chosen for together, neighbours being alike; nothing where no search looks."""

    @abstractmethod
    def admits(self, choice: Choice) -> bool:
        """Return whether a choice may have a schedule."""

    @abstractmethod
    def planned(self, choice: Choice, limits: Limits) -> Answer:
        """Call the method for a choice; return its answer with a schedule of the original.

        Raises
        ------
        Refusal
            When the choice has no schedule.
        """

    def answer(self) -> Answer:
        """Try choices in turn: a rule all of them, another method until it has a schedule."""
        stopped_by = "done"
        by_rule = is_rule(self.info.call)
        try:
            for choice in self.choices() if by_rule else self.ranked():
                if self.ended and time.monotonic() >= self.deadline:
                    stopped_by = "time limit"
                    break
                stopped_by = self.plan(choice)
                if stopped_by == "interrupted" or (self.best is not None and not by_rule):
                    break
        except KeyboardInterrupt:
            if self.best is None:
                with suppress(Refusal):  # what lives on the host may have moved there
                    self.best = self._sketch()
            if self.best is None:
                raise
            stopped_by = "interrupted"
        if self.best is None and self.ended:
            raise Refusal(self.ended[0])
        return replace(self.bound, schedule=self.best, stopped_by=stopped_by, infeasible=False)

    def keep(self, look: float, sketch: Callable[[], Schedule | None]) -> None:
        """Keep what makes a schedule of the choice that looks best so far: Ctrl-C may come before a plan.

        In contiguous memory there is none, for looks know no addresses.
        """
        with self._lock:
            if look < self._least and self.limits.memory != "contiguous":
                self._least, self._sketch = look, sketch

    def choices(self) -> list[Choice]:
        """Return the choices, each once: that of the warm start, those offered, and the rule's."""
        given = [*([] if self.first is None else [self.first]), *self.offered]
        return list(dict.fromkeys([*given, *self.ladder()]))

    def ranked(self) -> list[Choice]:
        """Return choices, those first that look best; where a search looks at them, more are found."""
        choices = self.choices()
        found = dict.fromkeys(choices, math.inf)
        deadline = self.began + self.probing * (self.deadline - self.began)
        if len(choices) > 1 or self.groups():
            try:
                with until(deadline, LEAST):
                    self.look_at(choices, found)
                    self.improve(found)
            except OutOfTime:
                self.hurried = True
        start = self.limits.warm_start
        if start is not None and self.first is not None:
            found[self.first] = min(found[self.first], start.makespan_ns)
        return sorted(found, key=lambda choice: found[choice])

    def look_at(self, choices: Sequence[Choice], found: dict[Choice, float]) -> None:
        """Add how choices look to what was found, as many at once as there are workers.

        Raises
        ------
        OutOfTime
            When the deadline has passed; what was found in time is added.
        """
        if self.limits.workers == 1 or len(choices) <= 1:
            for choice in choices:
                found[choice] = self.looks(choice)
            return
        with ThreadPoolExecutor(self.limits.workers) as pool:
            looks = [pool.submit(copy_context().run, self.looks, choice) for choice in choices]
            try:
                wait(looks)
            finally:
                pool.shutdown(cancel_futures=True)
        late: OutOfTime | None = None
        for choice, seen in zip(choices, looks, strict=True):
            try:
                found[choice] = seen.result()
            except OutOfTime as error:
                late = error
        if late is not None:
            raise late

    def improve(self, found: dict[Choice, float]) -> None:
        """Change the choice that looks best, where that is better: many groups at once, then fewer.

        With a time limit, single groups are tried again as long as some change is better.
        """
        groups, limited = self.groups(), self.limits.time_limit is not None
        best, tries, size = min(found, key=lambda choice: found[choice]), 0, len(groups[: self.widest])
        gains = limited
        while (size > 1 or gains) and (limited or tries < _TRIES):
            size, before = max(-(-size // 2), 1), best
            begins = range(0, len(groups), size)
            for i in range(0, len(begins), self.limits.workers):
                changes = (groups[begin : begin + size] for begin in begins[i : i + self.limits.workers])
                choices = [best ^ frozenset().union(*change) for change in changes]
                tries += self.look_at_new(choices, found)
                better = [choice for choice in choices if found.get(choice, math.inf) < found[best]]
                if len(better) > 1:  # what is better alone is often better together
                    changed = frozenset().union(*(best ^ choice for choice in better))
                    tries += self.look_at_new([best ^ changed], found)
                    better.append(best ^ changed)
                best = min((best, *better), key=lambda choice: found.get(choice, math.inf))
            gains = limited and best != before

    def look_at_new(self, choices: Iterable[Choice], found: dict[Choice, float]) -> int:
        """Look at those of some choices that may be and were not looked at; return their number."""
        new = [choice for choice in choices if choice not in found and self.admits(choice)]
        self.look_at(new, found)
        return len(new)

    def plan(self, choice: Choice) -> str:
        """Call the method for a choice, keep its schedule if that is the best, and return why it ended."""
        limits = self.limits
        if limits.time_limit is not None:
            limits = replace(limits, time_limit=max(self.deadline - time.monotonic(), 0.0))
        try:
            answer = self.planned(choice, replace(limits, on_better=self.on_better()))
        except Refusal as refusal:
            self.ended.append(str(refusal))
            return str(refusal) if self.best is None else "done"
        self.ended.append(answer.stopped_by)
        if self.bounded and (answer.lower_bound_ns or 0) > (self.bound.lower_bound_ns or 0):
            self.bound = answer
        schedule = answer.schedule
        if schedule is not None and (self.best is None or schedule.makespan_ns < self.best.makespan_ns):
            self.best = schedule
        return answer.stopped_by

    def on_better(self) -> OnBetter | None:
        """Return the caller's function, called only with makespans that are better than those before."""
        tell, best = self.limits.on_better, self.best
        if tell is None:
            return None

        def told(makespan_ns: int | None, bound_ns: int | None) -> None:
            known_ns = bound_ns if self.bounded else None
            if makespan_ns is not None and (best is None or makespan_ns < best.makespan_ns):
                tell(makespan_ns, known_ns)
            elif known_ns is not None:
                tell(None if best is None else best.makespan_ns, known_ns)

        return told


def _no_schedule() -> None:
    """Return None: no choice has been looked at that has a schedule."""
