"""Streams that do nothing for a while, by the driver's host functions, which PyCUDA does not wrap.

The function is the C library's own `usleep`: the driver's thread sleeps, takes no lock of Python's, and waits
for nothing that the host still has to do. So a pause ends by itself, whatever becomes of the host: neither an
exception, nor a full queue, nor a kernel that is loaded at its first launch can make it a deadlock.
"""

from __future__ import annotations

import ctypes as c

from .libraries import load_cuda


class Pauses:
    """Asks the driver for pauses, in the context that is current."""

    def __init__(self) -> None:
        self._library = load_cuda()
        self._library.declare(cuLaunchHostFunc=[c.c_void_p] * 3)
        self._sleep = c.cast(c.CDLL(None).usleep, c.c_void_p)

    def ask(self, stream: int, duration_ns: int) -> None:
        """Let a stream do nothing for so long, to the next microsecond, and less than a second.

        Raises
        ------
        DeviceError
            When the driver refuses.
        """
        self._library.call("cuLaunchHostFunc", stream, self._sleep, -(-duration_ns // 1000))
