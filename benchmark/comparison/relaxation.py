"""Search in divisible memory: what it finds is valid at the simulated times only, and never a solution."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass

from ...heuristics.methods import Limits, find_method
from ...instances.instance import Instance
from ...validate.check import check

_START = "modnn"
"""Whose schedule the search starts from, as it is in the method ``local-search``."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """What a search has found.

    Attributes
    ----------
    makespan_ns
        None where it has found nothing.
    stopped_by, seconds
        Why it ended, and its wall time.
    """

    makespan_ns: int | None
    stopped_by: str
    seconds: float


def search_relaxed(
    instance: Instance, seconds: float | None, *, seed: int = 0, without: Collection[str] = ()
) -> Relaxed:
    """Search as ``local-search`` does, with bytes that need no addresses.

    Raises
    ------
    AssertionError
        When the checker refuses what it found: a defect of the search.
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
