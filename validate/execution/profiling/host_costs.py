"""Costs of the host: of a launch, of mapping pages, and of a step of an optimizer on the processor."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from ....instances.errors import PebblerError
from ....instances.gpus.cluster import SECOND
from ....instances.networks.builder import NetworkBuilder
from ....instances.networks.taskgraph import task_graph
from ....instances.origin import LaunchTimes, MappingTimes
from ....instances.units import PAGE_BYTES
from ....instances.workload import update_bytes
from ..cpu.backend import CpuBackend
from ..device import Backend, DeviceError, Stream
from ..kernel import kernels_of
from ..streams import HELD, hold
from .beside import Work, alone_ns

_COUNTS = (HELD // 2, HELD)
"""Numbers of launches of a shorter and of a longer queue."""

_MAPPED = 16
"""Pages of the larger of the two mappings that are measured."""

_WIDTH = 2048
"""Inputs and outputs of the layer whose weights are updated on the processor: with all of Adam, 64 MiB."""

_log = logging.getLogger(__name__)


def launch_times(device: Backend, repeat: int) -> LaunchTimes:
    """Measure launches that do next to nothing: on a stream and, on a device with graphs, also in a graph."""
    stream = device.stream("compute")
    launch = device.nothing()
    hosts: list[int] = []

    def queue(count: int) -> None:
        for _ in range(count):
            stream.launch(launch, {}, 0)

    def queue_timed(count: int) -> None:
        begin = time.perf_counter_ns()
        queue(count)
        hosts.append((time.perf_counter_ns() - begin) // count)

    gap_ns = _gap_ns(stream, queue_timed, repeat)
    host_ns = statistics.median_low(hosts[len(_COUNTS) :])
    try:
        graphs = {
            count: device.capture([stream], [("a chain of kernels", partial(queue, count))])
            for count in _COUNTS
        }
    except PebblerError as error:
        _log.info("the gap between kernels in a graph stays unknown: %s", error)
        return LaunchTimes(host_ns=host_ns, gap_ns=gap_ns)
    graph_gap_ns = _gap_ns(stream, lambda count: graphs[count].launch(), repeat)
    return LaunchTimes(host_ns=host_ns, gap_ns=gap_ns, graph_gap_ns=graph_gap_ns)


def _gap_ns(stream: Stream, ask: Callable[[int], None], repeat: int) -> int:
    """Return the device's time from one launch to the next, when all are queued before the first begins.

    It is the time of a longer queue less that of a shorter one, divided by the difference in launches. So
    costs that occur once, such as the launch of a graph, are not counted. Nor is the first time, because of
    loading.
    """
    spans: dict[int, list[int]] = {count: [] for count in _COUNTS}
    for number in range(repeat + 1):
        for count, found in spans.items():
            start = hold([stream], count)
            ask(count)
            end = stream.record()
            end.synchronize()
            if number:
                found.append(end.since_ns(start))
    short, long = (statistics.median_low(found) for found in spans.values())
    return max(0, long - short) // (_COUNTS[1] - _COUNTS[0])


def mapping_times(device: Backend, repeat: int) -> MappingTimes | None:
    """Measure the host's time to map one page and many, each time other pages than before."""
    try:
        device.allocate_pages(2 * _MAPPED, PAGE_BYTES)
        address = device.reserve(_MAPPED * PAGE_BYTES)
    except DeviceError as error:
        _log.warning("the cost of mapping pages stays unknown: %s", error)
        return None
    middle = {}
    for count in (1, _MAPPED):
        times = []
        for index in range(2 * (repeat + _MAPPED)):  # the first two use the pages for the first time
            begin = time.perf_counter_ns()
            device.map(address, range(index % 2 * _MAPPED, index % 2 * _MAPPED + count))
            times.append(time.perf_counter_ns() - begin)
        middle[count] = statistics.median_low(times[2:])
    page_ns = max(0, middle[_MAPPED] - middle[1]) // (_MAPPED - 1)
    return MappingTimes(call_ns=max(0, middle[1] - page_ns), page_ns=page_ns)


def host_bandwidth(repeat: int) -> int:
    """Measure a step of Adam on this processor; return the bytes that it reads and writes in a second."""
    net = NetworkBuilder("step")
    net.softmax("loss", net.fc("fc", net.input(_WIDTH, 1, 1), _WIDTH))
    graph = task_graph(net.finish(batch=1, source="a layer"), 1, optimizer="adam")
    (k,) = (k for k, task in enumerate(graph.tasks) if task.role == "OPT")
    kernel = replace(kernels_of(graph, 1)[k], algorithm="kernel")
    device = CpuBackend()
    try:
        stream = device.stream("host")
        numbers = np.random.default_rng(0).standard_normal(kernel.parameters, dtype=np.float32)
        addresses = {word: device.allocate(numbers.nbytes) for word in kernel.operands}
        for address in addresses.values():
            device.write(address, np.abs(numbers).view(np.uint8))
        launch = device.prepare(kernel)
        step = Work("a step of Adam", stream, partial(stream.launch, launch, addresses, 0))
        return update_bytes(graph, graph.tasks[k]) * SECOND // alone_ns(step, repeat)
    finally:
        device.close()
