"""What a command says of its progress on standard error: on a terminal, in one line that renews itself."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, RLock, Thread
from typing import Any, TextIO, cast

from .console import LogHandler, give_up

_EVERY = 0.25
"""Seconds between renewals."""

_PATIENCE = 0.5
"""Seconds before the line is shown: what ends sooner says nothing."""

_ERASE = "\r\x1b[K"
_WIDTH = 80


@contextmanager
def progress(command: str, *, verbose: bool, renewed: bool = True) -> Iterator[None]:
    """Let the library's messages reach standard error while a command works.

    On a terminal the last one is shown with the seconds so far, in a line that is gone when the command
    prints its results. Warnings, and what has the attribute `stays`, keep a line each. A terminal that erases
    nothing gets a line a message. Elsewhere there are warnings alone.

    Parameters
    ----------
    command
        What is shown before there is a message.
    verbose
        Whether messages keep a line each, wherever they go.
    renewed
        Whether there may be a line that renews itself.
    """
    log = logging.getLogger("pebbler")
    streams = sys.stdout, sys.stderr
    terminal = sys.stderr.isatty()
    erases = renewed and (os.environ.get("TERM") or "dumb") != "dumb"
    line = Line(sys.stderr, command) if terminal and erases else None
    verbose = verbose or (terminal and line is None)
    handler = None
    try:
        if line is not None:
            sys.stdout = cast(TextIO, _Stream(sys.stdout, line, last=True))
            sys.stderr = cast(TextIO, _Stream(sys.stderr, line, last=False))
            line.start()
        handler = _Handler(line, verbose=verbose)
        log.addHandler(handler)
        least = logging.INFO if verbose else logging.WARNING
        log.setLevel(least if line is None else logging.DEBUG)
        yield
    finally:
        if line is not None:
            line.end()
        sys.stdout, sys.stderr = streams
        if handler is not None:
            log.removeHandler(handler)


class Line:
    """The last line of a terminal: what is being done, and for how many seconds."""

    def __init__(self, terminal: TextIO, text: str) -> None:
        self._terminal, self._text = terminal, text
        self._began = time.monotonic()
        self._shown = self._taken = False
        self._ended = Event()
        self._lock = RLock()

    def start(self) -> None:
        """Show it from a moment on, until the end."""
        Thread(target=self._renew, daemon=True).start()

    def tell(self, text: str) -> None:
        """Say something else from now on."""
        self._text = text

    def pass_on(self, stream: TextIO, text: str) -> int:
        """Let a text be written in its place; there is room for the line again where that ends one."""
        with self._lock:
            self._erase()
            self._taken = not text.endswith("\n") if text else self._taken
            return stream.write(text)

    def end(self) -> None:
        """Erase it for good."""
        self._ended.set()
        with self._lock:
            self._erase()

    def _renew(self) -> None:
        wait = _PATIENCE
        while not self._ended.wait(wait):
            wait = _EVERY
            with self._lock:
                if not (self._ended.is_set() or self._taken):
                    self._draw()

    def _draw(self) -> None:
        try:
            room = os.get_terminal_size(self._terminal.fileno()).columns or _WIDTH
        except OSError:
            room = _WIDTH
        text = f"[{time.monotonic() - self._began:.0f} s] {self._text}"
        self._shown = True
        self._write(_ERASE + (text if len(text) < room else text[: max(room - 4, 0)] + "..."))

    def _erase(self) -> None:
        if self._shown:
            self._shown = False
            self._write(_ERASE)

    def _write(self, text: str) -> None:
        try:
            self._terminal.write(text)
            self._terminal.flush()
        except OSError:  # what cannot be written there is lost
            self._ended.set()
            give_up(self._terminal)


class _Stream:
    """A stream whose writes pass the line by; the line ends before the `last` ones, those of results."""

    def __init__(self, stream: TextIO, line: Line, *, last: bool) -> None:
        self._stream, self._line, self._last = stream, line, last

    def write(self, text: str) -> int:
        """Write a text."""
        if self._last:
            self._line.end()
        return self._line.pass_on(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Handler(LogHandler):
    """Writes messages to standard error, or has them told in the line."""

    def __init__(self, line: Line | None, *, verbose: bool) -> None:
        super().__init__()
        self._line, self._verbose = line, verbose

    def emit(self, record: logging.LogRecord) -> None:
        """Give a message its place."""
        stays = record.levelno >= logging.WARNING or getattr(record, "stays", False)
        if self._line is not None:
            self._line.tell(self.format(record))
        if stays or (self._verbose and record.levelno >= logging.INFO):
            super().emit(record)
