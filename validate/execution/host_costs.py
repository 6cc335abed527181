"""What the host costs a program: the time of a launch, and of mapping pages."""

from __future__ import annotations

import logging
import statistics
import time

from ...instances.origin import LaunchTimes, MappingTimes
from ...instances.units import PAGE_BYTES
from .device import Backend, DeviceError
from .streams import HELD, hold

_MAPPED = 16
"""Pages of the larger of the two mappings that are measured."""

_log = logging.getLogger(__name__)


def launch_times(device: Backend, repeat: int) -> LaunchTimes:
    """Measure launches that do next to nothing, queued before the device begins with the first.

    The device's time for one is that of a long queue less that of one half as long, by the launches between.
    """
    stream = device.stream("compute")
    launch = device.nothing()
    hosts: list[int] = []
    spans: dict[int, list[int]] = {HELD // 2: [], HELD: []}
    for number in range(repeat + 1):
        for count, found in spans.items():
            start = hold([stream], count)
            begin = time.perf_counter_ns()
            for _ in range(count):
                stream.launch(launch, {}, 0)
            host = (time.perf_counter_ns() - begin) // count
            end = stream.record()
            end.synchronize()
            if number:  # the first time is of what is loaded then
                hosts.append(host)
                found.append(end.since_ns(start))
    short, long = (statistics.median_low(found) for found in spans.values())
    return LaunchTimes(host_ns=statistics.median_low(hosts), gap_ns=max(0, long - short) // (HELD // 2))


def mapping_times(device: Backend, repeat: int) -> MappingTimes | None:
    """Measure the host's time to map one page and many, each time others than before."""
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
