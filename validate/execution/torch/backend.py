"""The torch backend: torch's operators on the processor, in memory that the executor gives addresses in."""

from __future__ import annotations

import platform

import torch

from ..cpu.threads import ThreadedDevice
from .kernels import KIND, OperatorKernel, OperatorLaunch


class TorchBackend(ThreadedDevice):
    """Torch on the processor as a backend.

    One stream computes, with as many threads as eager torch has; copies run on threads of their own.

    Parameters
    ----------
    delays
        As of `ThreadedDevice`.
    """

    @property
    def name(self) -> str:
        """See `Backend`."""
        return "torch"

    @property
    def kinds(self) -> frozenset[str]:
        """See `Backend`."""
        return frozenset((KIND,))

    def algorithms(self, kernel: OperatorKernel) -> list[tuple[str, int]]:
        """See `Backend`."""
        return [("operator", kernel.operator.scratch_bytes)]

    def prepare(self, kernel: OperatorKernel) -> OperatorLaunch:
        """See `Backend`."""
        return OperatorLaunch(kernel)

    def is_deterministic(self, kernel: OperatorKernel) -> bool:  # noqa: ARG002
        """Return True: on the processor, operators give the same bits with the same number of threads."""
        return True

    def versions(self) -> dict[str, str]:
        """See `Backend`."""
        return {
            "driver": platform.release(),
            "Python": platform.python_version(),
            "torch": str(torch.__version__),
        }
