"""The CPU as a device: threads as streams, anonymous memory as device memory, NumPy as kernels.

It runs schedules on any machine, with real waits and real overlap, but says nothing about a GPU's times. Each
stream is one thread: matrix products do not spread to other cores, where copies run.
"""

from __future__ import annotations

import platform

import numpy as np
from threadpoolctl import threadpool_limits

from ..kernel import Kernel
from .kernels import algorithms, kinds, prepare
from .scratch import Scratch
from .threads import CpuKernel, ThreadedDevice


class CpuBackend(ThreadedDevice):
    """The CPU as a backend.

    Parameters
    ----------
    delays
        Longest pause in seconds before copies and launches, and the seed that draws the pauses and the
        streams with pauses. So operations that the program does not order happen in many orders.
    """

    def __init__(self, delays: tuple[float, int] | None = None) -> None:
        super().__init__(delays)
        self._scratch = {"device": Scratch(), "host": Scratch()}
        self._one_thread = threadpool_limits(1)

    @property
    def name(self) -> str:
        """See `Backend`."""
        return "cpu"

    @property
    def kinds(self) -> frozenset[str]:
        """See `Backend`."""
        return kinds()

    def algorithms(self, kernel: Kernel) -> list[tuple[str, int]]:
        """See `Backend`."""
        return algorithms(kernel)

    def prepare(self, kernel: Kernel) -> CpuKernel:
        """See `Backend`."""
        return prepare(kernel, self._scratch[kernel.on])

    def is_deterministic(self, kernel: Kernel) -> bool:  # noqa: ARG002
        """Return True: every kernel takes its sums in one order."""
        return True

    def versions(self) -> dict[str, str]:
        """See `Backend`."""
        return {"driver": platform.release(), "Python": platform.python_version(), "NumPy": np.__version__}

    def close(self) -> None:
        """See `Backend`."""
        super().close()
        self._one_thread.restore_original_limits()
