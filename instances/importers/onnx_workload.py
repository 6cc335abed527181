"""The network of an ONNX file, for a workload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..networks.network import Network
from .extras import require_extra


def read_model(path: str | Path) -> Network:
    """Return the network that an ONNX file describes, which is called like the file without its ending.

    Raises
    ------
    PebblerError
        When onnx is missing, the file cannot be read or a node has no place in a network.
    """
    require_extra("onnx")
    from .onnx_graph import read_network

    return replace(read_network(path), name=Path(path).stem)
