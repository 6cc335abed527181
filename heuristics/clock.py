"""The time limit of methods by rule: they have no schedule before they end, and so give up when it passes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps

from ..instances.instance import Instance
from .methods import Answer, Limits, Method, Refusal

LEAST = 1.0
"""Seconds that a rule, what sets up a search, and first fit get under any limit: nearly always they end."""

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)
"""Of what is at work, as `time.monotonic` tells it."""


def limited(rule: Method) -> Method:
    """Let a rule give up at its time limit, wherever it looks at the clock (a decorator)."""

    @wraps(rule)
    def call(instance: Instance, limits: Limits) -> Answer:
        seconds = math.inf if limits.time_limit is None else max(limits.time_limit, LEAST)
        with until(time.monotonic() + seconds):
            look()  # the time of what calls the rule may be over
            return rule(instance, limits)

    return call


class OutOfTime(Refusal):
    """The time limit has passed."""


@contextmanager
def until(deadline: float, least: float = 0.0) -> Iterator[None]:
    """Have what looks at the clock in this block end at a deadline, as `time.monotonic` tells it.

    It has at least so many seconds from now.
    """
    ends = max(deadline, time.monotonic() + least)
    known = _deadline.set(min(ends, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(known)


def left() -> float:
    """Seconds until the deadline; infinite without one."""
    return max(_deadline.get() - time.monotonic(), 0.0)


def look() -> None:
    """Look at the clock.

    Raises
    ------
    OutOfTime
        When the deadline has passed.
    """
    if time.monotonic() > _deadline.get():
        raise OutOfTime("time limit")
