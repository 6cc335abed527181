"""The torch backends: torch's operators as kernels, in memory that the executor gives addresses in.

On the processor, streams are threads. On a GPU, they are those of CUDA (`gpu`).
"""

from __future__ import annotations

import platform
from typing import Any

import torch

from ....instances.importers.torch_cuda import Gpu
from ....instances.importers.torch_step.devices import Device
from ..cpu.threads import ThreadedDevice
from .gpu import TorchGpuBackend
from .kernels import OperatorKernels


class TorchBackend(OperatorKernels, ThreadedDevice):
    """Torch on the processor as a backend.

    One stream computes, with as many threads as eager torch has; copies run on threads of their own.

    Parameters
    ----------
    delays
        As of `ThreadedDevice`.
    """

    def storage(self, address: int, size: int) -> Any:
        """Return the storage that is the memory at an address; it keeps that alive even after `close`."""
        return torch.frombuffer(self.buffer(address, size), dtype=torch.uint8).untyped_storage()

    def versions(self) -> dict[str, str]:
        """See `Backend`."""
        return {
            "driver": platform.release(),
            "Python": platform.python_version(),
            "torch": str(torch.__version__),
        }


def open_backend(device: Device, delays: tuple[float, int] | None = None) -> TorchBackend | TorchGpuBackend:
    """Return the backend of a device; delays are those of `ThreadedDevice`."""
    return TorchGpuBackend(device, delays) if isinstance(device, Gpu) else TorchBackend(delays)
