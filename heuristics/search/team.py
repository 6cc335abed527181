"""Local searches of one instance in threads: each goes its own way, and all learn of the best program.

The compiled part of a search leaves Python to other threads, so that searches really run at once. A program
that is the best of all becomes the first search's at once. The others start from it when their descent ends,
so that they do not all look at the same place.

Importing this module imports Numba.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from threading import Event

from ..methods import Refusal
from .descents import CHUNK
from .search import LocalSearch

APART = 1_000_000
"""Number of tasks that each search simulates before they tell each other of the best program."""


class Team:
    """A search and others beside it.

    Parameters
    ----------
    first
        The search of the caller, who may offer programs to it between two calls of `run`.
    make
        Makes a search of the same instance from a number, which it adds to the seed.
    others
        Number of searches beside the first. Each is made when it first runs.
    """

    def __init__(self, first: LocalSearch, make: Callable[[int], LocalSearch], others: int) -> None:
        self.first = first
        self._make = make
        self._others: list[LocalSearch | None] = [None] * others
        self._ended = Event()

    def run(self, seconds: float = math.inf, work: int = CHUNK, idle: int = 0) -> None:
        """Continue all searches, as `LocalSearch.run` does, until the first one returns.

        Parameters
        ----------
        seconds, work
            As for `LocalSearch.run`.
        idle
            Number of searches that do not go on, for their threads have other work.
        """
        until = time.monotonic() + seconds
        while work > 0 and time.monotonic() < until:
            active = max(len(self._others) - idle, 0)
            some = min(work, APART) if active else work
            self._run_some(until, some, active)
            work -= some

    def _run_some(self, until: float, work: int, active: int) -> None:
        """Continue the first search and some others for a while."""
        if not active:
            self.first.run(until - time.monotonic(), work)
            return
        self._ended.clear()
        with ThreadPoolExecutor(active) as pool:
            running = [pool.submit(copy_context().run, self._go, i, until, work) for i in range(active)]
            try:
                self.first.run(until - time.monotonic(), work)
            finally:
                self._ended.set()
                wait(running)
                self._meet(running)

    def _go(self, i: int, until: float, work: int) -> None:
        """Continue a search in its thread, until the first one has ended."""
        search = self._others[i]
        if search is None:
            search = self._others[i] = self._make(i + 1)
        while work > 0 and not self._ended.is_set() and (seconds := until - time.monotonic()) > 0:
            search.run(seconds, min(work, CHUNK))
            work -= CHUNK

    def _meet(self, running: Sequence[Future[None]]) -> None:
        """Tell all searches of the best program."""
        for future in running:
            try:
                future.result()
            except Refusal:
                self._others = []  # there is too little time to set a search up
        others = [search for search in self._others if search is not None]
        if others:
            best = min(others, key=lambda search: search.cost)
            self.first.follow(best, at_once=True)
            for search in others:
                search.follow(self.first, at_once=False)
