"""Ctrl-C beside native solvers: OR-Tools replaces the handler of interrupts and does not put it back."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def handler_kept() -> Iterator[bool]:
    """Put the handler of interrupts back when a native solver has ended.

    Without this, the next Ctrl-C would end the program at once, with all that it has found. Yields whether
    this is the main thread, the only one in which handlers can be set.
    """
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    try:
        yield in_main
    finally:
        if in_main and before is not None:
            signal.signal(signal.SIGINT, before)
