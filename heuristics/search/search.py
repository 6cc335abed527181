"""Local search on one instance: late acceptance over evictions, orders of copies, algorithms and places.

Importing this module imports Numba.
"""

from __future__ import annotations

from collections.abc import Collection

from ...instances.instance import Instance
from ...validate.schedule import MemoryModel, Schedule
from ..gaps import Guide, require_copies
from ..host_work import HostWork
from ..methods import Refusal
from .decisions import decisions_from
from .descents import Descents
from .kernel import Decisions, repair
from .problem import problem_of
from .program import Lifetime, lifetimes_of, program_of


class LocalSearch(Descents):
    """A local search for schedules of one instance; it can be stopped and continued.

    Parameters
    ----------
    instance, memory
        The instance to schedule, and the memory model. Each task runs on the device or on the host, not on
        either.
    seed
        Seed of the random decisions.
    without
        Rules to leave out: ``moves``, ``places``, ``costs``.
    addresses
        Whether addresses count in contiguous memory. If not, blocks need only free bytes.

    Attributes
    ----------
    instance
        The instance of the device's tasks, for which decisions and guides are.

    Raises
    ------
    Refusal
        When tasks are recomputable; when parts in contiguous memory are treated differently by tasks or
        copies; as `HostWork`; when the time limit passes before the search is set up.
    """

    def __init__(
        self,
        instance: Instance,
        memory: MemoryModel,
        seed: int = 0,
        without: Collection[str] = (),
        *,
        addresses: bool = True,
    ) -> None:
        if any(task.recomputable for task in instance.tasks):
            raise Refusal("local search: recomputation is not modelled yet")
        self._work = HostWork(instance, returns=memory == "paged") if instance.has_host_work else None
        if self._work is not None:
            instance = self._work.device
        require_copies(instance)
        self.instance = instance
        problem = problem_of(
            instance,
            memory,
            moves="moves" not in without,
            sides="places" not in without,
            addresses=addresses,
            runs_on_host=() if self._work is None else self._work.runs(),
        )
        super().__init__(problem, memory, seed, without)

    def offer(self, start: Schedule | Guide) -> None:
        """Start from the decisions of a schedule, or from a guide, which need not fit the pool.

        Parameters
        ----------
        start
            A schedule of the instance in any memory model, or a guide.
        """
        if not isinstance(start, Schedule):
            super().offer(start)
            return
        if self._work is not None:
            start = self._work.projected(start)
        decisions = decisions_from(self.instance, self._problem, start)
        repair(self._problem, decisions, self._room, self._splitmix, -1, 0)
        self._set_off(decisions, 0)

    def schedule(self, method: str) -> Schedule | None:
        """Return the best program as a schedule; None while there is none.

        Parameters
        ----------
        method
            Name of the method, for the schedule.

        Returns
        -------
        Schedule or None
            The schedule in the search's memory model.
        """
        if self.makespan_ns is None:
            return None
        found = program_of(self.instance, self._problem, self.memory, self.log()).finish(method)
        return found if self._work is None else self._work.completed(found)

    def lifetimes(self, decisions: Decisions) -> list[Lifetime]:
        """Return the data that given decisions put into the pool, with its times, but without addresses."""
        return lifetimes_of(self.instance, self._problem, self._steps(decisions))
