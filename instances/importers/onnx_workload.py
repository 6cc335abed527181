"""The workload of an ONNX model: a file, a batch and a device."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..devices.device import DEVICE_OF_TODAY
from ..networks.builder import Network
from ..workload import Workload
from .extras import require_extra


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkWorkload(Workload):
    """One training iteration of a network of one's own with a batch on a device.

    Attributes
    ----------
    device
        By default one of today.
    own
        The network; `network` is what it is called.
    """

    device: str = field(default=DEVICE_OF_TODAY, kw_only=False)
    own: Network

    def described(self) -> Network:
        """Return the network."""
        return self.own


def read_model(path: str) -> Network:
    """Return the network that an ONNX file describes.

    Raises
    ------
    PebblerError
        When onnx is missing, the file cannot be read or a node has no place in a network.
    """
    require_extra("onnx")
    from .onnx_graph import read_network

    return read_network(path)
