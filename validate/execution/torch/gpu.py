"""Torch on a GPU as a backend: streams and events of CUDA, a piece of its memory, pinned memory of the host.

All calls come from one thread, which is ahead of the GPU. An operator of torch is launched with its stream as
the current one, so that its scratch comes from torch's allocator for that stream; large scratch it has to
take from the place in the pool that the plan has for it. What is launched in every
step is prepared once (`KeptLaunches`): events, and tensors that are copied. Random states are those of
the GPU's generator, which the host has: they follow in the order in which operators are issued.

Everything here goes through `Gpu`, which alone calls ``torch.cuda``.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import perf_counter_ns
from typing import Any
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray

from ....instances.errors import PebblerError
from ....instances.importers.torch_cuda import Gpu
from ....instances.importers.torch_step.memory import bytes_of
from ..cuda.virtual_memory import VirtualMemory
from ..device import DeviceError, Event, Graph, Stream
from .kernels import OperatorKernels

Call = Callable[[], object]
"""What the host does once everything that it needs is there."""

GpuLaunch = Callable[[Mapping[str, int], int], None]
"""A function of the operands' addresses and of the index of the first image, which launches kernels."""


class GpuEvent:
    """A point in the work of a stream: an event of CUDA, or that the stream had failed before it."""

    __slots__ = ("_gpu", "failure", "raw")

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.raw = gpu.event()
        self.failure: DeviceError | None = None

    def synchronize(self) -> None:
        """See `Event`."""
        if self.failure is not None:
            raise self.failure
        try:
            self._gpu.reach(self.raw)
        except RuntimeError as error:
            raise DeviceError(_first_line(error)) from None

    def since_ns(self, earlier: Event) -> int:
        """See `Event`; CUDA gives it in single-precision milliseconds."""
        assert isinstance(earlier, GpuEvent)
        if self.failure is not None or earlier.failure is not None:
            return 0
        try:
            return self._gpu.elapsed_ns(earlier.raw, self.raw)
        except RuntimeError as error:
            raise DeviceError(_first_line(error)) from None


class _Pieces:
    """Memory of the GPU and of the host, found by address."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._begins: list[int] = []
        self._found: list[tuple[Any, bool]] = []
        self.pages: _Pages | None = None

    def add(self, address: int, piece: Any, *, on_host: bool = False) -> int:
        """Keep a piece: a tensor of bytes, or None for addresses of pages."""
        at = bisect_right(self._begins, address)
        self._begins.insert(at, address)
        self._found.insert(at, (piece, on_host))
        return address

    def bytes(self, address: int, size: int) -> Any:
        """Return the bytes at an address as a tensor."""
        piece, _ = self._at(address)
        if piece is None:
            return bytes_of(self._gpu.storage_at(address, size))
        begin = address - piece.data_ptr()
        return piece[begin : begin + size]

    def storage(self, address: int, size: int) -> Any:
        """Return the storage that is the memory at an address; it keeps that alive."""
        piece, on_host = self._at(address)
        if on_host:
            return torch.from_numpy(self.bytes(address, size).numpy()).untyped_storage()
        return self._gpu.storage_at(address, size, self.pages if piece is None else piece)

    def _at(self, address: int) -> tuple[Any, bool]:
        return self._found[bisect_right(self._begins, address) - 1]

    def clear(self) -> None:
        """Release everything that nobody else keeps."""
        self._begins, self._found, self.pages = [], [], None


class _Pages:
    """Pages of the GPU, which are released when nothing keeps this object any more."""

    def __init__(self, memory: VirtualMemory) -> None:
        self.memory = memory
        finalize(self, memory.close)


class GpuStream:
    """A stream of the backend. After a failure it does nothing more, and its events tell of the failure."""

    def __init__(self, gpu: Gpu, raw: Any, pieces: _Pieces, delays: Callable[[], int] | None) -> None:
        self.raw = raw
        self.kept: KeptLaunches | None = None
        self._gpu = gpu
        self._pieces = pieces
        self._delays = delays
        self._failure: DeviceError | None = None

    def wait(self, event: Event) -> None:
        """See `Stream`."""
        assert isinstance(event, GpuEvent)
        self._failure = self._failure or event.failure
        self._do(partial(self._gpu.wait, self.raw, event.raw))

    def record(self) -> GpuEvent:
        """See `Stream`."""
        event = GpuEvent(self._gpu)
        self._do(partial(self._gpu.record, event.raw, self.raw))
        event.failure = self._failure
        if self.kept is not None:
            self.kept.events.append(event)
        return event

    def pause(self, duration_ns: int) -> None:
        """See `Stream`."""
        self._do(partial(self._gpu.sleep, self.raw, duration_ns))

    def copy(self, target: int, source: int, bytes: int) -> None:  # noqa: A002
        """See `Stream`."""

        def copy() -> Call:
            to, given = self._pieces.bytes(target, bytes), self._pieces.bytes(source, bytes)
            return partial(to.copy_, given, non_blocking=True)

        self._late()
        self._run(_Prepared(copy))

    def fill(self, target: int, bytes: int) -> None:  # noqa: A002
        """See `Stream`."""
        self._run(_Prepared(lambda: partial(self._pieces.bytes(target, bytes).fill_, 0xFF)))

    def launch(self, launch: GpuLaunch, addresses: Mapping[str, int], first: int) -> None:
        """See `Stream`."""
        self._late()
        self._run(partial(launch, addresses, first))

    def _late(self) -> None:
        delays = self._delays
        if delays is not None:
            self._do(lambda: self._gpu.sleep(self.raw, delays()))

    def _run(self, work: Call) -> None:
        """Do something whose operators go to the stream."""
        self._do(partial(self._gpu.run, self.raw, work))

    def _do(self, call: Call) -> None:
        """Do something, or keep it; keep its failure, and do nothing after one."""
        if self.kept is not None:
            self.kept.calls.append(call)
        elif self._failure is None:
            try:
                call()
            except Exception as error:  # an operator may fail in any way, and the host has to hear of it
                self._failure = _failure_of(error)


class _Prepared:
    """Work on tensors that are made when it is done first: where memory is mapped, it is so by then."""

    __slots__ = ("_call", "_prepare")

    def __init__(self, prepare: Callable[[], Call]) -> None:
        self._prepare = prepare
        self._call: Call | None = None

    def __call__(self) -> None:
        """Do it."""
        if self._call is None:
            self._call = self._prepare()
        self._call()


class KeptLaunches:
    """Work of all streams of a GPU, prepared once and launched any number of times, in one order.

    Parameters
    ----------
    gpu
        The GPU.
    streams
        The streams, whose work it gets until `end`.

    Attributes
    ----------
    calls, events
        What the host does for the next operation, and the events that it records, so far.
    hosts_ns
        Nanoseconds of the host in the last launch, for each operation.
    """

    def __init__(self, gpu: Gpu, streams: Iterable[GpuStream]) -> None:
        self.calls: list[Call] = []
        self.events: list[GpuEvent] = []
        self.hosts_ns: list[int] = []
        self._operations: list[tuple[list[Call], list[GpuEvent]]] = []
        self._gpu = gpu
        self._streams = list(streams)
        for stream in self._streams:
            stream.kept = self

    def end_operation(self) -> None:
        """Let what belongs to no operation so far be one."""
        self._operations.append((self.calls, self.events))
        self.calls, self.events = [], []

    def end(self) -> None:
        """Keep nothing more; streams do again what they are given."""
        for stream in self._streams:
            stream.kept = None

    def start(self) -> None:
        """Launch the work; events of what cannot be launched, and of all behind that, tell of the failure."""
        self.hosts_ns = []
        failure: DeviceError | None = None
        with self._gpu.launching(self._streams[0].raw):
            for calls, events in self._operations:
                begin = perf_counter_ns()
                try:
                    for call in calls if failure is None else ():
                        call()
                except Exception as error:  # as above
                    failure = _failure_of(error)
                if failure is not None:
                    for event in events:
                        event.failure = failure
                self.hosts_ns.append(perf_counter_ns() - begin)


class TorchGpuBackend(OperatorKernels):
    """Torch on a GPU as a backend.

    Operators run on one stream, copies on others. The pool is one piece of memory of torch's allocator.
    Outside it is what torch's allocator gives operators while they run, and what CUDA and its libraries take.

    Parameters
    ----------
    gpu
        The GPU.
    delays
        Longest pause in seconds before copies and launches, and the seed that draws the pauses and the
        streams with pauses.
    """

    def __init__(self, gpu: Gpu, delays: tuple[float, int] | None = None) -> None:
        self._gpu = gpu
        self._pieces = _Pieces(gpu)
        self._streams: dict[str, GpuStream] = {}
        self._delays = delays

    @property
    def device(self) -> str:
        """See `Backend`."""
        return self._gpu.title

    # --- memory ---------------------------------------------------------------------------------------

    def allocate(self, bytes: int) -> int:  # noqa: A002
        """See `Backend`; no place of scratch may begin where a piece of torch's allocator does (`Place`)."""
        unit = self._gpu.alignment
        return self._allocated(lambda size: self._gpu.empty(unit + size)[unit:], bytes)

    def allocate_host(self, bytes: int) -> int:  # noqa: A002
        """See `Backend`."""

        def allocate(size: int) -> Any:
            return torch.from_numpy(np.asarray(self._gpu.host_buffer(size)))

        return self._allocated(allocate, bytes, on_host=True)

    def allocate_pages(self, count: int, page_bytes: int) -> None:
        """See `Backend`."""
        self._gpu.synchronize()  # so that its context is there
        with self._gpu.current():
            self._pieces.pages = _Pages(VirtualMemory(self._gpu.index))
            self._pieces.pages.memory.create(count, page_bytes)

    def reserve(self, bytes: int) -> int:  # noqa: A002
        """See `Backend`."""
        assert self._pieces.pages is not None
        with self._gpu.current():
            return self._pieces.add(self._pieces.pages.memory.reserve(bytes), None)

    def map(self, address: int, pages: Sequence[int]) -> None:
        """See `Backend`."""
        assert self._pieces.pages is not None
        with self._gpu.current():
            self._pieces.pages.memory.map(address, pages)

    def storage(self, address: int, size: int) -> Any:
        """Return the storage that is the memory at an address; it keeps that alive even after `close`."""
        return self._pieces.storage(address, size)

    def write(self, address: int, values: NDArray[Any]) -> None:
        """See `Backend`."""
        flat = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        with _failing():
            self._pieces.bytes(address, flat.size).copy_(torch.from_numpy(flat))

    def read(self, address: int, bytes: int) -> NDArray[np.uint8]:  # noqa: A002
        """See `Backend`."""
        with _failing():
            found: NDArray[np.uint8] = self._pieces.bytes(address, bytes).to("cpu", copy=True).numpy()
            return found

    def memory_bytes(self) -> int:
        """See `Backend`."""
        return self._gpu.memory_bytes

    # --- work -----------------------------------------------------------------------------------------

    def stream(self, name: str) -> GpuStream:
        """See `Backend`."""
        if name == "host":
            raise PebblerError(
                "the schedule has operators on the host, and a step that was recorded on a GPU computes "
                "there; plan it without them"
            )
        delays = None
        if self._delays is not None:
            longest, seed = self._delays
            rng = random.Random(f"{seed} {name}")
            pace_ns = rng.choice((0.0, 1.0)) * longest * 1e9

            def delays() -> int:
                return round(rng.random() * pace_ns)

        if name not in self._streams:
            with _failing():
                self._streams[name] = GpuStream(self._gpu, self._gpu.stream(name), self._pieces, delays)
        return self._streams[name]

    @contextmanager
    def keeping(self) -> Iterator[KeptLaunches]:
        """Keep what all streams are given within, in place of doing it."""
        work = KeptLaunches(self._gpu, self._streams.values())
        try:
            yield work
        finally:
            work.end()

    def nothing(self) -> GpuLaunch:
        """See `Backend`."""
        tensor = self._gpu.empty(4)

        def launch(addresses: Mapping[str, int], first: int) -> None:  # noqa: ARG001
            tensor.fill_(0)

        return launch

    def capture(
        self,
        streams: Sequence[Stream],  # noqa: ARG002
        work: Sequence[tuple[str, Callable[[], object]]],  # noqa: ARG002
    ) -> Graph:
        """Refuse: steps of torch are not captured."""
        raise PebblerError("steps of torch are not captured as graphs; run it without --graph")

    def energy_j(self) -> float | None:
        """Return None, as energy is not counted."""
        return None

    def record_kernels(self, work: Callable[[], object]) -> list[dict[str, Any]] | None:  # noqa: ARG002
        """Return None, as an operator's kernels are torch's."""
        return None

    def versions(self) -> dict[str, str]:
        """See `Backend`."""
        return {**self._gpu.versions(), "torch": str(torch.__version__)}

    def close(self) -> None:
        """See `Backend`; work that streams have been given ends first."""
        with suppress(RuntimeError):  # where it had failed, who waited for it has heard so
            self._gpu.synchronize()
        self._streams.clear()
        self._pieces.clear()

    def _allocated(self, allocate: Callable[[int], Any], size: int, *, on_host: bool = False) -> int:
        """Allocate a piece, and return where it begins."""
        try:
            piece = allocate(max(size, 1))
        except RuntimeError as error:
            where = "the host" if on_host else self._gpu.name
            raise DeviceError(
                f"{size} bytes of memory on {where} cannot be had: {_first_line(error)}"
            ) from None
        return self._pieces.add(piece.data_ptr(), piece, on_host=on_host)


@contextmanager
def _failing() -> Iterator[None]:
    """Turn what torch raises of a device into one sentence."""
    try:
        yield
    except RuntimeError as error:
        raise DeviceError(_first_line(error)) from None


def _failure_of(error: Exception) -> DeviceError:
    """Return what is told of an exception."""
    return (
        error
        if isinstance(error, DeviceError)
        else DeviceError(f"{type(error).__name__}: {_first_line(error)}")
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
