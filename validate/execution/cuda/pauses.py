"""Pauses of streams, by the driver's host functions, which PyCUDA does not wrap.

The function is the C library's `usleep`. The driver's thread sleeps, takes no lock of Python's, and does not
wait for the host. So a pause ends in any case: neither an exception, nor a full queue, nor a kernel that is
loaded at its first launch can make it a deadlock.
"""

from __future__ import annotations

import ctypes as c

from .libraries import load_cuda


class Pauses:
    """Issues pauses in the current context."""

    def __init__(self) -> None:
        self._library = load_cuda()
        self._library.declare(cuLaunchHostFunc=[c.c_void_p] * 3)
        self._sleep = c.cast(c.CDLL(None).usleep, c.c_void_p)

    def ask(self, stream: int, duration_ns: int) -> None:
        """Make a stream idle for some time below a second, to the next microsecond.

        Raises
        ------
        DeviceError
            When the driver refuses.
        """
        self._library.call("cuLaunchHostFunc", stream, self._sleep, -(-duration_ns // 1000))
