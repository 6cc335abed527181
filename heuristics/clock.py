"""The time limit of methods by rule.

A rule has no schedule before it ends, so it gives up when its time limit passes.
"""

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
"""Seconds that a rule, the setup of a search, and first fit may take under any time limit.

Nearly all of them end within this time.
"""

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)
"""Deadline of the method that is running, on the clock of `time.monotonic`."""


_rules: set[Method] = set()
"""The rules that `limited` has made."""


def limited(rule: Method) -> Method:
    """Make a rule give up when its time limit passes (a decorator).

    The rule notices this wherever it calls `look`.
    """

    @wraps(rule)
    def call(instance: Instance, limits: Limits) -> Answer:
        seconds = math.inf if limits.time_limit is None else max(limits.time_limit, LEAST)
        with until(time.monotonic() + seconds):
            look()  # the time of what calls the rule may be over
            return rule(instance, limits)

    _rules.add(call)
    return call


def is_rule(method: Method) -> bool:
    """Return whether a method is a rule, which decides each thing once; others search, or solve models."""
    return method in _rules


class OutOfTime(Refusal):
    """Refusal of a method whose time limit has passed."""


@contextmanager
def until(deadline: float, least: float = 0.0) -> Iterator[None]:
    """Set a deadline for all calls of `look` and `left` inside this block (a context manager).

    An earlier deadline of an enclosing block stays in force.

    Parameters
    ----------
    deadline
        When the time is over, in seconds on the clock of `time.monotonic`.
    least
        Seconds from now that the block has in any case, if no enclosing block ends before.
    """
    ends = max(deadline, time.monotonic() + least)
    known = _deadline.set(min(ends, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(known)


def left() -> float:
    """Return the seconds until the deadline; infinity where there is no deadline."""
    return max(_deadline.get() - time.monotonic(), 0.0)


def look() -> None:
    """Check the clock, and give up if the deadline has passed.

    Raises
    ------
    OutOfTime
        When the deadline has passed.
    """
    if time.monotonic() > _deadline.get():
        raise OutOfTime("time limit")
