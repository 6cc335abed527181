"""What CUPTI tells of the kernels of each task: the input of models of streams (GLP4NN, ICPP 2018)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...instances.taskgraph import TaskGraph
from .cuda_calls import Own
from .device import Backend, Launch
from .kernel import kernels_of, resident

if TYPE_CHECKING:
    from .cuda import CudaBackend

_LAUNCHES = 1000
_CHAINS = (32, 256)
"""Kernels of a shorter and of a longer chain in a graph."""
_EXECUTIONS = 10
"""Of each chain."""


def kernels_of_tasks(
    backend: Backend, graph: TaskGraph, algorithms: Mapping[str, Sequence[tuple[str, int]]]
) -> Iterator[dict[str, Any]]:
    """Run every task of a graph alone; give ``name``, ``algorithm``, and the ``kernels`` that ran.

    Nothing is given where the device cannot tell.

    Parameters
    ----------
    backend, graph
        On what, and of what.
    algorithms
        Names and workspaces that each task is run with, by its name.

    Raises
    ------
    DeviceError
        When the device has not the memory for a task, or fails.
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
            if found is None:
                return
            yield {"name": kernel.task, "algorithm": name, "kernels": found}


def _small_kernel(backend: CudaBackend) -> Launch:
    """A kernel of one thread that has something to do, bound to the compute stream."""
    address = backend.allocate(4)
    return [backend.bind(Own("relu_backward", 1, (address, address, 1)))]


def launch_ns(backend: CudaBackend) -> int:
    """Time that the host takes to launch a small kernel, on average."""
    stream = backend.stream("compute")
    launch = _small_kernel(backend)
    stream.launch(launch, {}, 0)
    stream.record().synchronize()
    begin = time.perf_counter_ns()
    for _ in range(_LAUNCHES):
        stream.launch(launch, {}, 0)
    taken = time.perf_counter_ns() - begin
    stream.record().synchronize()
    return taken // _LAUNCHES


def graph_gap_ns(backend: CudaBackend) -> int:
    """Time of the device from a small kernel to the next in a graph, where each comes after the one before.

    The kernel's own time is in it. What a launch of the graph costs is not: of two chains of different
    lengths only the difference counts, each with the least of several times.

    Raises
    ------
    PebblerError
        When the driver has no graphs.
    """
    stream = backend.stream("compute")
    launch = _small_kernel(backend)
    stream.launch(launch, {}, 0)
    stream.record().synchronize()
    least = []
    for count in _CHAINS:
        graph = backend.capture(
            [stream], [("a chain of kernels", partial(stream.launch, launch * count, {}, 0))]
        )
        times = []
        for _ in range(_EXECUTIONS):
            start = stream.record()
            graph.launch()
            end = stream.record()
            end.synchronize()
            times.append(end.since_ns(start))
        least.append(min(times))
    return max(0, least[1] - least[0]) // (_CHAINS[1] - _CHAINS[0])
