"""Signals that end the program, where they need care: while processes start and end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

_ENDING = (signal.SIGTERM, signal.SIGALRM, signal.SIGINT)
"""What may end the program; the alarm is that of a signal that waits."""


@contextmanager
def held() -> Iterator[None]:
    """Let signals that end the program wait for the end of this block: what it begins, it completes.

    Only the main thread gets signals; in others this does nothing.
    """
    if current_thread() is not main_thread():
        yield
        return
    came: list[int] = []
    found = {number: signal.getsignal(number) for number in _ENDING}
    handlers = {number: handler for number, handler in found.items() if handler is not None}  # not Python's
    try:
        for number in handlers:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for waiting in came:
            signal.raise_signal(waiting)
