"""Standard output and standard error, which may be closed, full or of an encoding that lacks a character."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from typing import TextIO

from .instances.errors import PebblerError, printable


def prepare() -> None:
    """Make the standard streams safe to write to.

    The null device takes the place of closed ones, so that no file gets their numbers. A character that the
    encoding lacks is written as its code.

    Raises
    ------
    PebblerError
        When standard output is closed: what a command is asked for would be lost.
    """
    closed = sys.stdout is None
    if closed or sys.stdin is None or sys.stderr is None:
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(number, True)
        os.close(number)
        sys.stdin = sys.stdin or os.fdopen(0)
        sys.stdout = sys.stdout or os.fdopen(1, "w")
        sys.stderr = sys.stderr or os.fdopen(2, "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if closed:
        raise PebblerError("standard output is closed; send it to a file or to /dev/null")


def complain(text: str) -> None:
    """Write a sentence to standard error, in one line; what cannot be written there is lost."""
    try:
        print(f"pebbler: {printable(text)}", file=sys.stderr, flush=True)
    except OSError:
        give_up(sys.stderr)


def is_of_output(error: OSError) -> bool:
    """Whether a failure is that of a write to standard output; those to files name the file."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def give_up(stream: TextIO) -> None:
    """Drop what a stream still holds, which must not be written when the interpreter ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes each message to standard error in one line; what cannot be written there is lost."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def format(self, record: logging.LogRecord) -> str:
        """Return the message as one line."""
        return printable(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Let a message go that standard error does not take; every other failure is a defect."""
        if isinstance(sys.exc_info()[1], OSError):
            give_up(self.stream)
        else:
            super().handleError(record)
