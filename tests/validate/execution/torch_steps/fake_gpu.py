"""A stand-in for a GPU: `Gpu` with the processor's memory, and threads as its streams.

It is as strict as CUDA where that is easy: memory of the "GPU" is NaN when it is allocated, a stream does its
work in order some time after it was given, nothing waits for it but who asks, and times between events that
were not reached are refused.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch

from pebbler.instances.importers.torch_cuda import Gpu, Place
from pebbler.instances.importers.torch_step.devices import Processor
from pebbler.instances.importers.torch_step.memory import Allocations
from pebbler.validate.execution.cpu.memory import Memory
from pebbler.validate.execution.cpu.threads import CpuEvent, CpuStream
from pebbler.validate.execution.device import DeviceError

SEGMENT = 4096
"""Bytes that the allocator takes at once."""


class FakeCudaError(RuntimeError):
    """What CUDA's allocator raises."""


class FakeEvent:
    """An event of CUDA: where it was recorded last."""

    def __init__(self) -> None:
        self.point: CpuEvent | None = None


class FakePlace(Place):
    """Leaves NaN in the place, as an operator could; what the stand-in itself gives out comes from there."""

    def __init__(self, gpu: FakeGpu, address: int, size: int) -> None:
        self.segments, self._pool = [], None
        self._gpu, self._address, self._size = gpu, address, size
        self._users: list[weakref.ref[Any]] = []

    def __enter__(self) -> None:
        ctypes.memset(self._address, 0xFF, self._size)
        self._gpu.places.append((self._address, self._size))
        self._gpu.place = self

    def __exit__(self, *raised: object) -> None:
        self._gpu.place = None
        ctypes.memset(self._address, 0xFF, self._size)

    def give(self, size: int) -> Any:
        """Return memory: a segment that is free, or a new one."""
        free = [k for k, user in enumerate(self._users) if user() is None and size <= self.segments[k]]
        k = free[0] if free else len(self.segments)
        begin = sum(self.segments[:k])
        if not free:
            if begin + size > self._size:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes")
            self.segments.append(size)
            self._users.append(weakref.ref(self))
        given = torch.frombuffer(
            (ctypes.c_char * size).from_address(self._address + begin), dtype=torch.uint8
        )
        self._users[k] = weakref.ref(given)
        return given


class FakeGpu(Gpu):
    """A GPU that is the processor.

    Attributes
    ----------
    memory_bytes
        What can be allocated at once.
    calls
        Names of the methods that were called.
    launches
        How many are left until one fails; None: as many as anybody likes.
    places
        Addresses and sizes of the places in which operators ran with large scratch.
    place
        The one in which an operator runs now.
    """

    key = "CPU"
    memory_bytes = 1 << 30
    title = "a stand-in for a GPU"
    deterministic = True
    launches: int | None = None

    def __init__(self, name: str = "cpu") -> None:
        self.name, self.index, self.device = name, 0, torch.device("cpu")
        self._processor = Processor()
        self._streams: list[CpuStream] = []
        self._aborted = threading.Event()
        self.is_oversubscribed = False
        self.calls: set[str] = set()
        self.places: list[tuple[int, int]] = []
        self.place: FakePlace | None = None

    def __getattribute__(self, name: str) -> Any:
        if callable(getattr(Gpu, name, None)) and not name.startswith("_"):
            self.calls.add(name)
        return super().__getattribute__(name)

    # --- what is recorded -----------------------------------------------------------------------------

    def require_ready(self) -> None:
        """Nothing can be set."""

    def environment(self) -> dict[str, Any]:
        return {**self._processor.environment(), "gpu": self.title}

    def rng_state(self) -> Any:
        return torch.get_rng_state()

    def set_rng_state(self, state: Any) -> None:
        torch.set_rng_state(state)

    def synchronize(self) -> None:
        for event in [stream.record() for stream in self._streams]:
            with suppress(DeviceError):
                event.synchronize()

    @contextmanager
    def allocations(self) -> Iterator[Allocations]:
        """Round what the allocator gave out, as CUDA's does."""
        with self._processor.allocations() as found:
            yield found
        found.peak_bytes = -(-found.peak_bytes // self.alignment) * self.alignment

    def segments_of(self, work: Callable[[], object], peak_bytes: int) -> int:
        """Each request is a segment, and the allocator has none that is smaller than `SEGMENT`."""
        with self._processor.allocations() as found:
            work()
        assert found.peak_bytes <= peak_bytes
        return -(-found.peak_bytes // SEGMENT) * SEGMENT

    def timed(self, work: Callable[[], Any]) -> tuple[Any, int]:
        return self._processor.timed(work)

    # --- memory ---------------------------------------------------------------------------------------

    def empty(self, size: int) -> Any:
        if size > self.memory_bytes:
            raise FakeCudaError(f"CUDA out of memory. Tried to allocate {size} bytes")
        if self.place is not None:
            return self.place.give(size)
        whole = torch.full((size + self.alignment,), 0xFF, dtype=torch.uint8)
        begin = -whole.data_ptr() % self.alignment
        return torch.from_numpy(whole.numpy()[begin : begin + size])

    def host_buffer(self, size: int) -> Any:
        return np.full(size, 0xFF, dtype=np.uint8)

    def storage_at(self, address: int, size: int, keeper: object = None) -> Any:
        if not size:
            return torch.empty(0, dtype=torch.uint8).untyped_storage()
        found = (ctypes.c_char * size).from_address(address)
        found.keeper = keeper  # type: ignore[attr-defined]
        return torch.frombuffer(found, dtype=torch.uint8).untyped_storage()

    def scratch_at(self, address: int, size: int) -> Place:
        return FakePlace(self, address, size)

    @contextmanager
    def oversubscribed(self) -> Iterator[None]:
        self.is_oversubscribed = True
        yield
        self.is_oversubscribed = False

    def let_go(self) -> None:
        """Nothing is kept."""

    def held_bytes(self) -> int:
        return 0

    def copy_all(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)

    # --- streams --------------------------------------------------------------------------------------

    def stream(self, name: str) -> Any:
        self._streams.append(CpuStream(name, self._aborted, None))
        return self._streams[-1]

    @contextmanager
    def launching(self, stream: Any) -> Iterator[None]:
        assert stream in self._streams
        yield

    def run(self, stream: Any, work: Callable[[], object]) -> None:
        if self.launches == 0:
            raise IndexError("no such thing\nand more")
        self.launches = None if self.launches is None else self.launches - 1
        stream.put(work)

    def event(self) -> Any:
        return FakeEvent()

    def record(self, event: Any, stream: Any) -> None:
        event.point = stream.record()

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait(event.point)

    def reach(self, event: Any) -> None:
        try:
            event.point.synchronize()
        except Exception as error:  # CUDA raises nothing but this
            raise FakeCudaError(str(error)) from None

    def elapsed_ns(self, earlier: Any, later: Any) -> int:
        return int(later.point.since_ns(earlier.point))

    def sleep(self, stream: Any, duration_ns: int) -> None:
        stream.pause(duration_ns)

    def link(self) -> str:
        return "20GB/s,25GB/s"

    def peak_of(self, step: Callable[[], object], present_bytes: int) -> int | None:
        with self.allocations() as found:
            step()
        return found.peak_bytes + present_bytes

    def close(self) -> None:
        """Let the threads of all streams end."""
        for stream in self._streams:
            stream.finish()
        self._streams.clear()  # nothing waits for them any more

    # --- the machine ----------------------------------------------------------------------------------

    def current(self) -> Any:
        return nullcontext()

    def versions(self) -> dict[str, str]:
        return {"driver": "none", "CUDA": "none", "cuDNN": "none"}


class FakeVirtualMemory:
    """Pages as the CPU's backend has them, in the place of CUDA's."""

    def __init__(self, device: int) -> None:
        assert device == 0
        self._memory = Memory()
        self.create, self.reserve = self._memory.allocate_pages, self._memory.reserve
        self.map, self.close = self._memory.map, self._memory.close
