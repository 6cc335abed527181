"""The workload of an ONNX model: a file, a batch and a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .devices import find_device
from .imported import ImportedWorkload, require_extra
from .instance import Instance, Task
from .network import Network
from .taskgraph import task_graph
from .workload import _algorithms, _block, _meta


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkWorkload(ImportedWorkload):
    """One training iteration of a network of one's own with a batch on a device.

    Attributes
    ----------
    described
        The network; `network` is what it is called.
    """

    described: Network

    def round(self, sub_batch: int, rounds: int) -> Instance:
        """Return the instance of one round."""
        costs = find_device(self.device) if self.profile is None else self.profile
        graph = task_graph(self.described, sub_batch, self.graph, self.weights_as_blocks)
        return Instance(
            name=f"{Path(self.network).stem}-b{sub_batch}",
            engines=self.engines,
            budget_bytes=0,
            resident_bytes=graph.resident_bytes,
            rounds=rounds,
            blocks=tuple(_block(block, costs) for block in graph.blocks),
            tasks=tuple(
                Task(
                    name=task.name,
                    inputs=task.inputs,
                    outputs=task.outputs,
                    updates=task.updates,
                    algorithms=_algorithms(graph, task, costs),
                )
                for task in graph.tasks
            ),
            meta=_meta(self, self.described, graph, costs),
        )


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
