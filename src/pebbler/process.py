"""What the program does with its process: signals end it in order, and standard output is for results alone.

Nothing slow is imported here, so that signals are in order as early as can be.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from .statuses import INTERRUPTED

_ENDING = (signal.SIGTERM, signal.SIGINT)

SELDOM = 10_000
"""New objects after which garbage is looked for. What a command makes lives for nearly as long as it does;
Python's 700 cost a tenth of a second on the modules that are loaded alone."""

_AGAIN = 0.02
"""Seconds until a signal is tried again that came where an exception would be lost."""


def program(command: Callable[[], int] | None = None) -> NoReturn:
    """Run a command as this process, and end it with the command's exit status.

    Ctrl-C and SIGTERM end the command, which keeps the best that it has; a second one ends that, too. Clean
    up goes on whatever comes. What native code writes to standard output goes to standard error.

    Parameters
    ----------
    command
        What to run; by default the command line.
    """
    if sys.platform == "win32":
        sys.exit("pebbler: Pebbler runs on Linux and macOS; on Windows, use the Windows Subsystem for Linux")
    gc.set_threshold(SELDOM)
    signals = _Signals()
    status = None
    try:
        try:
            signals.handle()
            _keep_output()
            if command is None:
                from .cli.main import main

                command = main
            status = command()
        finally:
            signals.ignore()
    except KeyboardInterrupt:
        signals.ignore()
    if signals.first is None:
        assert status is not None, "nothing but a signal interrupts"
        _end(status)
    if status != INTERRUPTED:
        print("pebbler: interrupted", file=sys.stderr)
    _end(128 + signals.first)


def _end(status: int) -> NoReturn:
    """End at once, after what is registered for the end: taking all modules apart takes half a second."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(status)


class _Signals:
    """Makes Ctrl-C and SIGTERM a `KeyboardInterrupt`, twice at most; what this process ignores, it ignores.

    Attributes
    ----------
    first
        Number of the first signal; None while there was none.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self._raised = 0

    def handle(self) -> None:
        """Handle them from here on."""
        signal.signal(signal.SIGALRM, self._raise)
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._came)

    def ignore(self) -> None:
        """Let nothing interrupt from here on."""
        for number in (*_ENDING, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self.first is None:
            self.first = number
        self._raise(number, frame)

    def _raise(self, _: int, frame: FrameType | None) -> None:
        if _loses_exceptions(frame):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
            return
        self._raised += 1
        if self._raised == 2:
            self.ignore()
        raise KeyboardInterrupt


def _loses_exceptions(frame: FrameType | None) -> bool:
    """Whether an exception would be lost or turned into another one.

    That is so in imports and finalizers, and in llvmlite: LLVM calls it back, and finalizers of its objects
    fail where these are half made.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or code.co_filename.startswith("<frozen importlib"):
            return True
        if "/llvmlite/" in code.co_filename:
            return True
        frame = frame.f_back
    return False


def _keep_output() -> None:
    """Keep standard output for what Python prints; all else that is written there gets standard error."""
    if sys.stdout is None:
        return
    ours = os.dup(1)
    other = 2 if sys.stderr is not None else os.open(os.devnull, os.O_WRONLY)
    os.dup2(other, 1)
    terminal = os.isatty(ours)
    sys.stdout = os.fdopen(
        ours, "w", buffering=1 if terminal else -1, encoding=sys.stdout.encoding, errors=sys.stdout.errors
    )
