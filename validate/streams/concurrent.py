# mypy: disable-error-code="no-any-return"
"""Simulator of kernels that run side by side: the samples of a layer on several streams of one device.

One host thread launches the kernels sample by sample, one every launch time of the device; sample n goes to
stream n modulo the number of streams (GLP4NN, ICPP 2018, section 3.1). A kernel can start when it has been
launched and T_launch after its predecessor on its stream has ended: T_launch is the idle time that the
authors' implementation measures between the kernels of one stream. The device takes kernels in the order in
which they can start. It begins with a kernel's blocks when all blocks of the kernel before have a place (the
"leftover" policy: Pai et al., ASPLOS 2013). A block goes to the multiprocessor with the fewest threads among
those that have room for it: threads, blocks, registers and shared memory.

Blocks on one multiprocessor share its throughput. A block alone can use a share of it. If the shares add up
to more than one, all blocks are slowed down by the same factor. So a kernel alone takes exactly its
``duration_ns``, and kernels together take no less than their work. The simulation leaves out caches and
bandwidth that multiprocessors compete for, and any cost of a stream itself.

Importing this module imports Numba.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...instances.compiling import telling_of_compiling
from ...instances.devices.device import Device
from ...instances.devices.kernels import Kernel, LayerKernels, resident_blocks, waves
from ...instances.devices.occupancy import MOST_STREAMS, ExecutionLimits, execution_limits
from ...instances.errors import PebblerError
from ...instances.units import format_time

_log = logging.getLogger(__name__)

MOST_BLOCKS = 20_000_000
"""Greatest number of blocks that is simulated."""

_TOGETHER = 1e-3
"""Nanoseconds within which events count as simultaneous."""


def block_times(kernel: Kernel, limits: ExecutionLimits) -> tuple[float, float]:
    """Return a block's nanoseconds at a multiprocessor's full throughput, and alone on a multiprocessor.

    One of the two is known; the other is such that the kernel alone takes its duration. If the work of a
    kernel is not known, a block's share is its number of warps divided by the number that hides the latency
    of arithmetic.
    """
    resident = resident_blocks(kernel, limits)
    full, rest = waves(kernel.blocks, resident, limits.multiprocessors)
    if kernel.work_ns is None:
        slowdown = max(1.0, limits.hiding_warps / kernel.warps)
        units = full * max(resident, slowdown) + (max(rest, slowdown) if rest else 0.0)
        work = kernel.duration_ns / units
        return work, work * slowdown
    work = min(float(kernel.work_ns), kernel.duration_ns / (full * resident + rest))
    count = full + (rest > 0)
    alone = kernel.duration_ns / count
    if full and rest and alone < resident * work:
        alone = kernel.duration_ns - full * resident * work
    return work, max(work, alone)


def streams_ns(
    layer: LayerKernels, device: Device, samples: int, streams: int, launch_ns: int | None = None
) -> int:
    """Return the time of a layer's samples on so many streams in nanoseconds.

    Parameters
    ----------
    layer
        The layer's kernels for one sample.
    device
        A packaged device.
    samples
        Number of samples of the batch.
    streams
        Number of streams, from 1 to `MOST_STREAMS`.
    launch_ns
        Time of the host between two launches in nanoseconds; by default the device's.

    Raises
    ------
    PebblerError
        For a device that is not known, a kernel that does not fit, a wrong number of streams or samples, or
        more than `MOST_BLOCKS`.
    """
    if not 1 <= streams <= MOST_STREAMS or samples < 1:
        raise PebblerError(f"{samples} samples on {streams} streams: give 1 or more on 1 to {MOST_STREAMS}")
    blocks = samples * sum(kernel.blocks * kernel.invocations for kernel in layer.kernels)
    if blocks > MOST_BLOCKS:
        raise PebblerError(
            f"{samples} samples have {blocks} blocks, too many to simulate; give fewer samples"
        )
    limits = execution_limits(device)
    load_simulation()
    times = [block_times(kernel, limits) for kernel in layer.kernels]
    needs = [(kernel.threads, 1, kernel.block_registers, kernel.shared_bytes) for kernel in layer.kernels]
    return round(
        _run(
            np.array(layer.launches, np.int64),
            np.array([kernel.blocks for kernel in layer.kernels], np.int64),
            np.array(times, np.float64),
            np.array(needs, np.int64),
            np.array([limits.threads, limits.blocks, limits.registers, limits.shared_bytes], np.int64),
            limits.multiprocessors,
            samples,
            streams,
            float(device.launch_ns if launch_ns is None else launch_ns),
            float(layer.t_launch_ns),
        )
    )


def speedups(
    layer: LayerKernels, device: Device, samples: int, counts: Collection[int] | None = None
) -> dict[int, float]:
    """Return, per number of streams, the time on one stream divided by the time on so many.

    Parameters
    ----------
    layer, device, samples
        As for `streams_ns`.
    counts
        Numbers of streams; by default all from 1 to the kernels that the device executes at a time.
    """
    if counts is None:
        counts = range(1, min(MOST_STREAMS, execution_limits(device).concurrent_kernels) + 1)
    times = {}
    for count in dict.fromkeys((1, *counts)):
        times[count] = streams_ns(layer, device, samples, count)
        _log.info("%d streams: %s", count, format_time(times[count]))
    return {count: times[1] / times[count] for count in counts}


@cache
def load_simulation() -> None:
    """Compile the simulation, or load it from the cache."""
    one = np.ones(1, np.int64)
    with telling_of_compiling():
        _run(
            np.zeros(1, np.int64),
            one,
            np.ones((1, 2)),
            np.ones((1, 4), np.int64),
            np.ones(4, np.int64),
            1,
            1,
            1,
            1.0,
            1.0,
        )


class _Multiprocessors(NamedTuple):
    """The state of every multiprocessor.

    Attributes
    ----------
    taken, asked
        Threads, blocks, registers and bytes in use; the sum of its blocks' shares.
    clock, since
        A clock that runs at the rate 1 / `asked` if `asked` is more than one, else at the rate 1; and the
        time when it was set.
    entries, stream, number, end
        Number of entries, and per entry blocks of one kernel that came together: their stream, their number,
        and the clock at their end.
    following
        Time at which the next block ends, if no other block comes.
    """

    taken: NDArray[Any]
    asked: NDArray[Any]
    clock: NDArray[Any]
    since: NDArray[Any]
    entries: NDArray[Any]
    stream: NDArray[Any]
    number: NDArray[Any]
    end: NDArray[Any]
    following: NDArray[Any]


class _Streams(NamedTuple):
    """The state of every stream.

    Attributes
    ----------
    position
        Number of launches on the stream before the present one.
    ready
        Time at which its next kernel can start; infinite while a kernel runs, and at the end.
    unplaced, unfinished
        Blocks of the present kernel that have no place yet, and that have not ended.
    """

    position: NDArray[Any]
    ready: NDArray[Any]
    unplaced: NDArray[Any]
    unfinished: NDArray[Any]


@njit(cache=True)
def _run(
    launches: NDArray[Any],
    blocks: NDArray[Any],
    times: NDArray[Any],
    needs: NDArray[Any],
    room: NDArray[Any],
    multiprocessors: int,
    samples: int,
    streams: int,
    launch_ns: float,
    gap_ns: float,
) -> float:
    """Simulate from event to event: ends of blocks, and kernels that can start; return the end's time."""
    length, most = len(launches), room[1]
    device = _Multiprocessors(
        np.zeros((multiprocessors, 4), np.int64),
        np.zeros(multiprocessors),
        np.zeros(multiprocessors),
        np.zeros(multiprocessors),
        np.zeros(multiprocessors, np.int64),
        np.zeros((multiprocessors, most), np.int64),
        np.zeros((multiprocessors, most), np.int64),
        np.zeros((multiprocessors, most)),
        np.full(multiprocessors, np.inf),
    )
    host = _Streams(
        np.zeros(streams, np.int64),
        np.full(streams, np.inf),
        np.zeros(streams, np.int64),
        np.zeros(streams, np.int64),
    )
    for s in range(min(streams, samples)):
        host.ready[s] = s * length * launch_ns
    waiting = np.zeros(streams, np.int64)
    waiters = 0
    now = 0.0
    while True:
        event = min(device.following.min(), host.ready.min())
        if event == np.inf:
            return now
        now = event
        for m in range(multiprocessors):
            if device.following[m] <= now + _TOGETHER:
                _end(m, now, launches, times, needs, device, host)
        for s in range(min(streams, samples)):
            if host.ready[s] == np.inf and host.unfinished[s] == 0 and host.position[s] >= 0:
                host.position[s] += 1
                sample = s + host.position[s] // length * streams
                if sample >= samples:
                    host.position[s] = -1
                else:
                    launched = (sample * length + host.position[s] % length) * launch_ns
                    host.ready[s] = max(launched, now + gap_ns)
        while True:
            s = _first(now, length, host)
            if s < 0:
                break
            host.ready[s] = np.inf
            host.unplaced[s] = host.unfinished[s] = blocks[launches[host.position[s] % length]]
            waiting[waiters] = s
            waiters += 1
        while waiters:
            s = waiting[0]
            _place(s, launches[host.position[s] % length], now, times, needs, room, device, host)
            if host.unplaced[s]:
                break
            waiters -= 1
            waiting[:waiters] = waiting[1 : waiters + 1].copy()


@njit(cache=True)
def _first(now: float, length: int, host: _Streams) -> int:
    """Return the stream with a kernel that can start: the earliest, then the first launched."""
    first = -1
    for s in range(len(host.ready)):
        if host.ready[s] > now + _TOGETHER:
            continue
        sooner = first < 0 or host.ready[s] < host.ready[first]
        if first >= 0 and host.ready[s] == host.ready[first]:
            sooner = host.position[s] // length < host.position[first] // length
        if sooner:
            first = s
    return first


@njit(cache=True)
def _end(
    m: int,
    now: float,
    launches: NDArray[Any],
    times: NDArray[Any],
    needs: NDArray[Any],
    device: _Multiprocessors,
    host: _Streams,
) -> None:
    """End the blocks of a multiprocessor whose time has come."""
    _advance(m, now, device)
    due = device.clock[m] + _TOGETHER
    kept, asked = 0, 0.0
    for e in range(device.entries[m]):
        s, count = device.stream[m, e], device.number[m, e]
        kernel = launches[host.position[s] % len(launches)]
        if device.end[m, e] <= due:
            host.unfinished[s] -= count
            for r in range(needs.shape[1]):
                device.taken[m, r] -= count * needs[kernel, r]
        else:
            device.stream[m, kept], device.number[m, kept] = s, count
            device.end[m, kept] = device.end[m, e]
            kept += 1
            asked += count * times[kernel, 0] / times[kernel, 1]
    device.entries[m] = kept
    device.asked[m] = asked
    _look_ahead(m, now, device)


@njit(cache=True)
def _place(
    s: int,
    kernel: int,
    now: float,
    times: NDArray[Any],
    needs: NDArray[Any],
    room: NDArray[Any],
    device: _Multiprocessors,
    host: _Streams,
) -> None:
    """Place blocks of a kernel one by one, as long as a multiprocessor has room."""
    while host.unplaced[s]:
        m = -1
        for other in range(len(device.asked)):
            if m >= 0 and device.taken[other, 0] >= device.taken[m, 0]:
                continue
            for r in range(len(room)):
                if device.taken[other, r] + needs[kernel, r] > room[r]:
                    break
            else:
                m = other
        if m < 0:
            return
        _advance(m, now, device)
        end = device.clock[m] + times[kernel, 1]
        last = device.entries[m] - 1
        if last >= 0 and device.stream[m, last] == s and device.end[m, last] == end:
            device.number[m, last] += 1
        else:
            device.stream[m, last + 1], device.number[m, last + 1] = s, 1
            device.end[m, last + 1] = end
            device.entries[m] += 1
        for r in range(len(room)):
            device.taken[m, r] += needs[kernel, r]
        device.asked[m] += times[kernel, 0] / times[kernel, 1]
        _look_ahead(m, now, device)
        host.unplaced[s] -= 1


@njit(cache=True)
def _advance(m: int, now: float, device: _Multiprocessors) -> None:
    """Set the clock of a multiprocessor."""
    device.clock[m] += (now - device.since[m]) / max(1.0, device.asked[m])
    device.since[m] = now


@njit(cache=True)
def _look_ahead(m: int, now: float, device: _Multiprocessors) -> None:
    """Note when the next block of a multiprocessor ends."""
    count = device.entries[m]
    device.following[m] = np.inf
    if count:
        first = device.end[m, 0]
        for e in range(1, count):
            first = min(first, device.end[m, e])
        left = first - device.clock[m]
        device.following[m] = now + max(0.0, left) * max(1.0, device.asked[m])
