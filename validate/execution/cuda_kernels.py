"""What CUPTI tells of the kernels of each task: the input of models of streams (GLP4NN, ICPP 2018)."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...instances.taskgraph import TaskGraph
from .cuda import CudaBackend, CudaLaunch
from .cuda_calls import Own
from .cupti import record_kernels
from .kernel import kernels_of, resident

_LAUNCHES = 1000


def kernels_of_tasks(backend: CudaBackend, graph: TaskGraph) -> dict[str, list[dict[str, Any]]]:
    """Return the kernels of every task of a graph, by its name.

    Each task is run with its first algorithm, which takes no workspace.

    Raises
    ------
    PebblerError
        When CUPTI cannot be used, or the GPU has not the memory for a task.
    """
    sizes = {block.name: block.bytes for block in graph.blocks} | dict(resident(graph.network, graph.batch))
    stream = backend.stream("compute")
    places = {}
    for name, size in sizes.items():
        places[name] = backend.allocate(size)
        backend.write(places[name], np.zeros(size, dtype=np.uint8))

    def work(launch: CudaLaunch, addresses: dict[str, int]) -> None:
        stream.launch(launch, addresses, 0)
        stream.record().synchronize()

    found = {}
    for kernel in kernels_of(graph, graph.batch):
        (name, size), *_ = backend.algorithms(kernel)
        launch = backend.prepare(replace(kernel, algorithm=name, workspace_bytes=size))
        addresses = {word: places[name] for word, name in kernel.operands.items()}
        work(launch, addresses)  # once for what is loaded and chosen at first
        found[kernel.task] = record_kernels(partial(work, launch, addresses))
    return found


def launch_ns(backend: CudaBackend) -> int:
    """Time that the host takes to launch a small kernel, on average."""
    stream = backend.stream("compute")
    address = backend.allocate(4)
    launch = [backend.bind(Own("relu_backward", 1, (address, address, 1)))]
    stream.launch(launch, {}, 0)
    stream.record().synchronize()
    begin = time.perf_counter_ns()
    for _ in range(_LAUNCHES):
        stream.launch(launch, {}, 0)
    taken = time.perf_counter_ns() - begin
    stream.record().synchronize()
    return taken // _LAUNCHES
