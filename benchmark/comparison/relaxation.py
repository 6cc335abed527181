"""Search in divisible memory; its result is valid at the simulated times only, and never a solution."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass

from ...heuristics.methods import Limits, find_method
from ...instances.instance import Instance
from ...validate.check import check

_START = "modnn"
"""Method whose schedule the search starts from, as in the method ``local-search``."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The result of a search.

    Attributes
    ----------
    makespan_ns
        Makespan in nanoseconds; None if the search has found nothing.
    stopped_by, seconds
        Why it ended, and its wall time in seconds.
    """

    makespan_ns: int | None
    stopped_by: str
    seconds: float


def search_relaxed(
    instance: Instance, seconds: float | None, *, seed: int = 0, without: Collection[str] = ()
) -> Relaxed:
    """Search as ``local-search`` does, counting bytes without addresses.

    Raises
    ------
    AssertionError
        When the checker rejects the result, which is a defect of the search.
    """
    from ...heuristics.search.search import LocalSearch  # with it comes Numba

    began = time.perf_counter()
    search = LocalSearch(instance, "divisible", seed, without)
    start = find_method(_START).call(instance, Limits()).schedule
    if start is not None:
        search.offer(start)
    limit = math.inf if seconds is None else seconds
    while not search.done and (left := limit - (time.perf_counter() - began)) > 0:
        search.run(left)
    taken = time.perf_counter() - began
    schedule = search.schedule("local-search")
    if schedule is not None and (reasons := check(instance, schedule).reasons):
        raise AssertionError(f"local search in divisible memory on {instance.name}: {reasons[0]}")
    return Relaxed(
        None if schedule is None else schedule.makespan_ns, "done" if search.done else "time limit", taken
    )
