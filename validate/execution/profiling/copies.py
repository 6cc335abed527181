"""Times of copies: alone, in both directions at once, and beside a kernel, whose time is measured as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from ....instances.errors import PebblerError
from ....instances.figures import MILLION
from ....instances.instance import Instance, Slowdown
from ....instances.profile import CopyTimes
from ..device import Backend, DeviceError, Stream
from ..kernel import Kernel, resident
from ..rebuild import Rebuilt
from ..streams import works
from .beside import Work, alone_ns, beside_ns

SMALLEST_COPY = 4096
"""Bytes of the smallest copy that is measured; sizes rise by a factor of 4 up to the largest block."""

_DRAWN = 4 * 2**20
"""Bytes of random numbers, which are repeated in operands."""


class Copies:
    """Copies of up to so many bytes in each direction, each with its own buffers and its own stream.

    Raises
    ------
    DeviceError
        When the device has too little memory.
    """

    def __init__(self, device: Backend, largest: int) -> None:
        self._sizes = [SMALLEST_COPY]
        while self._sizes[-1] < largest:
            self._sizes.append(min(4 * self._sizes[-1], largest))
        self.largest = self._sizes[-1]
        place, other = device.allocate(self.largest), device.allocate(self.largest)
        home, source = device.allocate_host(self.largest), device.allocate_host(self.largest)
        self.compute = device.stream("compute")
        self._ways: dict[str, tuple[Stream, int, int]] = {
            "offload": (device.stream("d2h"), home, place),
            "prefetch": (device.stream("h2d"), other, source),
            "move": (self.compute, other, place),
        }

    def work(self, way: str, size: int) -> Work:
        """Return the work of a copy: ``offload``, ``prefetch`` or ``move``."""
        stream, target, source = self._ways[way]
        return Work(way, stream, partial(stream.copy, target, source, size))

    def times(self, repeat: int) -> Iterator[CopyTimes]:
        """Measure copies of every size, alone and in both directions at once.

        All sizes are measured twice, and the smaller medians count: something else on the machine may disturb
        one size for as long as it is measured.
        """
        first, second = ([self._times(size, repeat) for size in self._sizes] for _ in range(2))
        yield from map(_smaller, first, second)

    def _times(self, size: int, repeat: int) -> CopyTimes:
        offload, prefetch, move = (self.work(way, size) for way in self._ways)
        return CopyTimes(
            bytes=size,
            offload_ns=alone_ns(offload, repeat),
            prefetch_ns=alone_ns(prefetch, repeat),
            move_ns=alone_ns(move, repeat),
            offload_beside_prefetch_ns=beside_ns(offload, [prefetch], repeat),
            prefetch_beside_offload_ns=beside_ns(prefetch, [offload], repeat),
        )

    def beside(self, kernel: Work, repeat: int) -> dict[str, Any]:
        """Measure the largest copies and a kernel beside each other; None for times without a result."""
        offload, prefetch = (self.work(way, self.largest) for way in ("offload", "prefetch"))
        return {
            "bytes": self.largest,
            "kernel": kernel.name,
            "offload_ns": {
                "alone": alone_ns(offload, repeat),
                "beside_kernel": beside_ns(offload, [kernel], repeat),
                "beside_kernel_and_prefetch": beside_ns(offload, [kernel, prefetch], repeat),
            },
            "prefetch_ns": {
                "alone": alone_ns(prefetch, repeat),
                "beside_kernel": beside_ns(prefetch, [kernel], repeat),
                "beside_kernel_and_offload": beside_ns(prefetch, [kernel, offload], repeat),
            },
            "kernel_ns": {
                "alone": alone_ns(kernel, repeat),
                "beside_offload": beside_ns(kernel, [offload], repeat),
                "beside_prefetch": beside_ns(kernel, [prefetch], repeat),
                "beside_offload_and_prefetch": beside_ns(kernel, [offload, prefetch], repeat),
            },
        }


def _smaller(first: CopyTimes, second: CopyTimes) -> CopyTimes:
    """Return the smaller one of each time; a time that one of both lacks is the other's."""
    one, other = map(msgspec.structs.asdict, (first, second))
    pairs = {name: [time for time in (one[name], other[name]) if time is not None] for name in one}
    least: dict[str, Any] = {name: min(times, default=None) for name, times in pairs.items()}
    return CopyTimes(**least)


def slowdown_of(times: Mapping[str, int | None]) -> Slowdown | None:
    """Return what copies take of a kernel's speed, by its times alone and beside each direction.

    If both together would take more than all of it, each takes less, in proportion. None: a time is unknown.
    """
    alone, taken = times["alone"], []
    for way in ("offload", "prefetch"):
        beside = times[f"beside_{way}"]
        if alone is None or beside is None:
            return None
        taken.append(max(0, MILLION - MILLION * alone // beside))
    together = max(sum(taken), MILLION)
    return Slowdown(offload=taken[0] * MILLION // together, prefetch=taken[1] * MILLION // together)


def longest_kernel(device: Backend, stream: Stream, instance: Instance, rebuilt: Rebuilt) -> Work | None:
    """Return the convolution or product with the longest duration in the instance, as work on random numbers.

    It runs the first of its algorithms, by rising workspace, that the device launches. Returns None if the
    device launches none.

    Raises
    ------
    DeviceError
        When the device has too little memory, or does no further work after a launch that failed.
    """
    pairs = zip(instance.tasks, rebuilt.kernels, strict=True)
    _, kernel = max(
        ((task.algorithms[0].duration_ns, kernel) for task, kernel in pairs if kernel.multiplies),
        key=lambda pair: pair[0],
    )
    sizes = {block.name: block.bytes for block in rebuilt.graph.blocks}
    sizes |= dict(resident(rebuilt.graph.network, rebuilt.batch))
    addresses = {word: _drawn(device, sizes[name]) for word, name in kernel.operands.items()}
    for name, size in sorted(device.algorithms(kernel), key=lambda one: one[1]):
        ask = _launched(device, stream, replace(kernel, algorithm=name, workspace_bytes=size), addresses)
        if ask is not None:
            return Work(f"{kernel.task} with {name}", stream, ask)
    return None


def _drawn(device: Backend, size: int) -> int:
    """Allocate memory filled with normally distributed numbers, which repeat."""
    place = device.allocate(size)
    drawn = np.random.default_rng(0).standard_normal(_DRAWN // 4, dtype=np.float32).view(np.uint8)
    for begin in range(0, size, _DRAWN):
        device.write(place + begin, drawn[: size - begin])
    return place


def _launched(
    device: Backend, stream: Stream, kernel: Kernel, addresses: Mapping[str, int]
) -> Callable[[], None] | None:
    """Launch a kernel for the first time; return a function that launches it again, or None if refused."""
    try:
        launch = device.prepare(kernel)
    except PebblerError:
        return None
    if kernel.workspace_bytes:
        addresses = {**addresses, "workspace": device.allocate(kernel.workspace_bytes)}
    ask = partial(stream.launch, launch, addresses, 0)
    try:
        ask()
        stream.record().synchronize()
    except DeviceError:
        if works(stream):
            return None
        raise
    return ask
