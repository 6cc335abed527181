"""Searches for several choices, of which the better half goes on until one is left: successive halving."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from .choosing import Choice

if TYPE_CHECKING:
    from ..heuristics.search.search import LocalSearch


class Tried(NamedTuple):
    """A choice, whether what is carried on the device stays there, and a search for it."""

    choice: Choice
    stays: bool
    search: LocalSearch


def halved(tries: Sequence[Tried], seconds: float, workers: int, enough_ns: int = 0) -> Iterator[Tried]:
    """Continue searches in turns, each with the better half of those before, and yield the best of each turn.

    Each turn takes as long as the others. There is none for a single search.

    Parameters
    ----------
    tries
        Choices with their searches, which differ.
    seconds
        Time of all turns together; if infinite, each search goes on for a round in each turn.
    workers
        Number of searches that go on at once.
    enough_ns
        The makespan at which a search ends: none is shorter.
    """
    turns, tries = math.ceil(math.log2(max(len(tries), 1))), list(tries)
    for _ in range(turns):
        _go_on([tried.search for tried in tries], seconds / turns, workers, enough_ns)
        tries.sort(key=lambda tried: tried.search.cost)
        tries = tries[: (len(tries) + 1) // 2]
        yield tries[0]


def _go_on(searches: Sequence[LocalSearch], seconds: float, workers: int, enough_ns: int) -> None:
    """Continue searches for some seconds in all, or for a round each."""
    at_once, stopped = min(workers, len(searches)), Event()
    each = seconds * at_once / len(searches)
    if at_once == 1:
        for search in searches:
            _go_on_alone(search, each, enough_ns, stopped)
        return
    with ThreadPoolExecutor(at_once) as pool:
        going = [
            pool.submit(copy_context().run, _go_on_alone, search, each, enough_ns, stopped)
            for search in searches
        ]
        try:
            wait(going)
        finally:
            stopped.set()  # after Ctrl-C, nobody waits for them
    for one in going:
        one.result()


def _go_on_alone(search: LocalSearch, seconds: float, enough_ns: int, stopped: Event) -> None:
    """Continue a search for some seconds, or for a round, if it is not stopped."""
    from ..heuristics.search.descents import CHUNK  # with it comes Numba

    until = time.monotonic() + seconds
    work = search.round if math.isinf(seconds) else sys.maxsize
    while work > 0 and search.cost > enough_ns and not stopped.is_set():
        if (left := until - time.monotonic()) <= 0:
            break
        search.run(left, CHUNK)
        work -= CHUNK
