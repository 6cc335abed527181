"""Streams as threads, and device memory as anonymous memory: what every backend on the processor has.

Kernels are callables of the operands' addresses and of the index of the first image; streams run them.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....instances.errors import PebblerError
from ..device import DeviceError, Event, Graph, Stream
from .memory import Memory, array_at, available_bytes

CpuKernel = Callable[[Mapping[str, int], int], None]
"""A function of the operands' addresses and of the index of the first image."""

_SWITCH_SECONDS = 1e-5
"""Seconds for which one thread may hold the interpreter while another waits, so that streams start soon."""

_JOIN_SECONDS = 10.0
"""Seconds to wait for a kernel when the backend is closed; the memory of a longer kernel is not released."""


class CpuEvent:
    """An event of the CPU backend.

    Each wait is on a lock of its own, which a signal may interrupt anywhere. An event of `threading` would
    take a common lock again after its wait, and an interrupt there releases what another thread holds.
    """

    def __init__(self) -> None:
        self.failure: DeviceError | None = None
        self._waiting: list[threading.Lock] | None = []  # None when it is reached
        self._time_ns = 0

    def reset(self) -> None:
        """Let the event be one that is not reached, when it is recorded again.

        Who was released before may run on meanwhile, as it has a list of its own.
        """
        self._waiting = []

    def reach(self, failure: DeviceError | None) -> None:
        """Note the time, and the failure of the stream so far."""
        self._time_ns = time.perf_counter_ns()
        self.failure = failure
        waiting, self._waiting = self._waiting, None
        for turn in waiting or ():
            turn.release()

    def synchronize(self) -> None:
        """See `Event`."""
        waiting = self._waiting
        if waiting is not None:
            turn = threading.Lock()
            turn.acquire()
            waiting.append(turn)
            if self._waiting is waiting:  # else nobody may be there any more to release it
                turn.acquire()
        if self.failure is not None:
            raise self.failure

    def since_ns(self, earlier: Event) -> int:
        """See `Event`."""
        assert isinstance(earlier, CpuEvent)
        return self._time_ns - earlier._time_ns


Item = Callable[[], object] | CpuEvent
"""What a stream does: a piece of work, or to reach an event."""


class CpuStream:
    """A thread that executes the work in a queue.

    Parameters
    ----------
    name
        Name of the thread.
    aborted
        Event that is set when no more work shall be done.
    delays
        Function that draws a pause in seconds before each copy and launch.
    """

    def __init__(self, name: str, aborted: threading.Event, delays: Callable[[], float] | None) -> None:
        self._queue: queue.SimpleQueue[Item | list[Item] | None] = queue.SimpleQueue()
        self._give: Callable[[Item], object] = self._queue.put
        self._failure: DeviceError | None = None
        self._aborted = aborted
        self._delays = delays
        self.thread = threading.Thread(target=self._work, name=f"pebbler {name}", daemon=True)
        self.thread.start()

    def wait(self, event: Event) -> None:
        """See `Stream`."""
        self._give(event.synchronize)

    def record(self) -> CpuEvent:
        """See `Stream`."""
        event = CpuEvent()
        self._give(event)
        return event

    def pause(self, duration_ns: int) -> None:
        """See `Stream`."""
        self._give(lambda: time.sleep(duration_ns / 1e9))

    def copy(self, target: int, source: int, bytes: int) -> None:  # noqa: A002
        """See `Stream`."""
        self.put(lambda: ctypes.memmove(target, source, bytes))

    def fill(self, target: int, bytes: int) -> None:  # noqa: A002
        """See `Stream`."""
        self._give(lambda: ctypes.memset(target, 0xFF, bytes))

    def launch(self, launch: CpuKernel, addresses: Mapping[str, int], first: int) -> None:
        """See `Stream`."""
        self.put(partial(launch, addresses, first))

    def finish(self) -> None:
        """Let the thread end when its queue is empty."""
        self._queue.put(None)

    def put(self, work: Callable[[], object]) -> None:
        """Let the thread do some work, late if there are delays."""
        delays = self._delays
        if delays is None:
            self._give(work)
            return

        def delayed() -> None:
            time.sleep(delays())
            work()

        self._give(delayed)

    def keep(self, items: list[Item] | None) -> None:
        """Put what comes into a list, in place of doing it; None: do it again."""
        self._give = self._queue.put if items is None else items.append

    def do(self, items: list[Item]) -> None:
        """Let the thread do what `keep` has put into a list."""
        self._queue.put(items)

    def _work(self) -> None:
        with np.errstate(all="ignore"):  # NaN and infinity are results like any other
            while (found := self._queue.get()) is not None:
                for item in found if isinstance(found, list) else (found,):
                    if isinstance(item, CpuEvent):
                        item.reach(self._failure)
                    elif self._failure is None:
                        self._failure = _attempt(item, self._aborted)


class KeptWork:
    """Work of all streams of a device, made once and done any number of times.

    Parameters
    ----------
    streams
        The streams, whose work it gets until `end`.

    Attributes
    ----------
    hosts_ns
        Nanoseconds of the host for each operation: none.
    """

    def __init__(self, streams: Sequence[CpuStream]) -> None:
        self._items: dict[CpuStream, list[Item]] = {stream: [] for stream in streams}
        self._events: list[CpuEvent] = []
        self.hosts_ns: list[int] = []
        for stream, items in self._items.items():
            stream.keep(items)

    def end_operation(self) -> None:
        """Count an operation."""
        self.hosts_ns.append(0)

    def end(self) -> None:
        """Keep nothing more; streams do again what they are given."""
        for stream, items in self._items.items():
            stream.keep(None)
            self._events += [item for item in items if isinstance(item, CpuEvent)]

    def start(self) -> None:
        """Let the streams do the work, which they must not be doing yet; its events are recorded anew."""
        for event in self._events:
            event.reset()
        for stream, items in self._items.items():
            stream.do(items)


class ThreadedDevice:
    """The processor as a device: all of `Backend` but the kernels.

    Parameters
    ----------
    delays
        Longest pause in seconds before copies and launches, and the seed that draws the pauses and the
        streams with pauses. So operations that the program does not order happen in many orders.
    """

    def __init__(self, delays: tuple[float, int] | None = None) -> None:
        self._memory = Memory()
        self._streams: list[CpuStream] = []
        self._aborted = threading.Event()
        self._delays = delays
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)

    @property
    def device(self) -> str:
        """The processor's name, as the system reports it."""
        with contextlib.suppress(OSError):
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        return platform.processor() or platform.machine()

    def allocate(self, bytes: int) -> int:  # noqa: A002
        """See `Backend`."""
        return self._memory.allocate(bytes)

    def allocate_host(self, bytes: int) -> int:  # noqa: A002
        """See `Backend`."""
        return self._memory.allocate(bytes, shared=True)

    def allocate_pages(self, count: int, page_bytes: int) -> None:
        """See `Backend`."""
        self._memory.allocate_pages(count, page_bytes)

    def reserve(self, bytes: int) -> int:  # noqa: A002
        """See `Backend`."""
        return self._memory.reserve(bytes)

    def map(self, address: int, pages: Sequence[int]) -> None:
        """See `Backend`."""
        self._memory.map(address, pages)

    def buffer(self, address: int, bytes: int) -> ctypes.Array[ctypes.c_char]:  # noqa: A002
        """Return the bytes at an address, as a buffer that keeps their memory alive even after `close`."""
        return self._memory.buffer(address, bytes)

    def stream(self, name: str) -> CpuStream:
        """See `Backend`."""
        delays = None
        if self._delays is not None:
            longest, seed = self._delays
            rng = random.Random(f"{seed} {name}")
            pace = rng.choice((0.0, 1.0)) * longest

            def delays() -> float:
                return rng.random() * pace

        stream = CpuStream(name, self._aborted, delays)
        self._streams.append(stream)
        return stream

    @contextmanager
    def keeping(self) -> Iterator[KeptWork]:
        """Keep what all streams are given within, in place of doing it."""
        work = KeptWork(self._streams)
        try:
            yield work
        finally:
            work.end()

    def nothing(self) -> CpuKernel:
        """See `Backend`."""
        return lambda _addresses, _first: None

    def capture(
        self,
        streams: Sequence[Stream],  # noqa: ARG002
        work: Sequence[tuple[str, Callable[[], object]]],  # noqa: ARG002
    ) -> Graph:
        """Refuse, as the CPU has no graphs."""
        raise PebblerError("the CPU has no graphs; run it without --graph")

    def write(self, address: int, values: NDArray[Any]) -> None:
        """See `Backend`."""
        flat = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        array_at(address, flat.shape, np.uint8)[:] = flat

    def read(self, address: int, bytes: int) -> NDArray[np.uint8]:  # noqa: A002
        """See `Backend`."""
        return array_at(address, (bytes,), np.uint8).copy()

    def energy_j(self) -> float | None:
        """Return None, as energy is not counted."""
        return None

    def record_kernels(self, work: Callable[[], object]) -> list[dict[str, Any]] | None:  # noqa: ARG002
        """Return None, as tasks have no kernels with a launch configuration."""
        return None

    def memory_bytes(self) -> int:
        """See `Backend`."""
        return available_bytes()

    def close(self) -> None:
        """See `Backend`."""
        self._aborted.set()
        for stream in self._streams:
            stream.finish()
        for stream in self._streams:
            stream.thread.join(_JOIN_SECONDS)
        if not any(stream.thread.is_alive() for stream in self._streams):
            self._memory.close()
        for stream in self._streams:
            # Python calls a function when a thread object is deleted, and a Ctrl-C in that is lost. So it is
            # deleted here, where callers let Ctrl-C wait.
            del stream.thread
        self._streams.clear()
        sys.setswitchinterval(self._switch_interval)


def _attempt(work: Callable[[], object], aborted: threading.Event) -> DeviceError | None:
    """Do a piece of work; return its exception if it fails."""
    if aborted.is_set():
        return DeviceError("it was stopped")
    try:
        work()
    except DeviceError as error:
        return error
    except Exception as error:  # a kernel may fail in any way, and the host has to hear of it
        return DeviceError(f"{type(error).__name__}: {error}")
    return None
