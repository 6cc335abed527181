"""CUPTI's records of the kernels of each task: the input of models of streams (GLP4NN, ICPP 2018)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ....instances.networks.taskgraph import TaskGraph
from ..device import Backend, Launch
from ..kernel import kernels_of, resident
from ..profiling.host_costs import launch_times

_REPEAT = 5
"""Number of measurements of a launch."""


def kernels_of_tasks(
    backend: Backend, graph: TaskGraph, algorithms: Mapping[str, Sequence[tuple[str, int]]]
) -> Iterator[dict[str, Any]]:
    """Run every task of a graph alone; return ``name``, ``algorithm``, and the ``kernels`` that ran.

    Parameters
    ----------
    backend, graph
        The device, and the graph of tasks.
    algorithms
        Names and workspaces of each task's algorithms, by the task's name.

    Raises
    ------
    DeviceError
        When the device has too little memory for a task, or fails.
    PebblerError
        When the kernels cannot be recorded.
    """
    sizes = {block.name: block.bytes for block in graph.blocks} | dict(resident(graph.network, graph.batch))
    stream = backend.stream("compute")
    places = {}
    for name, size in sizes.items():
        places[name] = backend.allocate(size)
        backend.write(places[name], np.zeros(size, dtype=np.uint8))
    workspace = backend.allocate(max(size for chosen in algorithms.values() for _, size in chosen))

    def work(launch: Launch, addresses: dict[str, int]) -> None:
        stream.launch(launch, addresses, 0)
        stream.record().synchronize()

    for kernel in kernels_of(graph, graph.batch):
        addresses = {word: places[name] for word, name in kernel.operands.items()} | {"workspace": workspace}
        for name, size in algorithms[kernel.task]:
            launch = backend.prepare(replace(kernel, algorithm=name, workspace_bytes=size))
            work(launch, addresses)  # once for what is loaded and chosen at first
            found = backend.record_kernels(partial(work, launch, addresses))
            yield {"name": kernel.task, "algorithm": name, "kernels": found or []}


def launch_ns(backend: Backend) -> int:
    """Return the host's time to launch a small kernel in nanoseconds."""
    return launch_times(backend, _REPEAT).host_ns
