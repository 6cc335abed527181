"""All of torch's CUDA that pebbler uses: memory, streams, events, random states and settings of one GPU.

Nothing else here calls ``torch.cuda``, so that a stand-in for one class is one for a GPU. Its methods are
what `devices.Device` asks of a device that records and, from `stream` on, what a backend asks that executes.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import torch

from ..errors import PebblerError
from .torch_step.memory import Allocations

_DRIVER = Path("/proc/driver/nvidia/version")
"""Where Linux tells the version of NVIDIA's driver."""

_SEGMENT = 64 << 20
"""More bytes than torch's allocator adds to any request."""

_COPIED = 32 << 20
"""Bytes of the copies that tell how quick the link is."""

_GLOBAL = 1
"""CUDA's number for managed memory that every stream may use."""

_CALIBRATION = 10_000_000
"""Cycles for which the GPU is kept busy once, to find out how long one takes; some milliseconds."""


def count_gpus() -> int:
    """Return how many GPUs of CUDA torch finds."""
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


class _Piece:
    """Memory of a GPU as torch takes it over, by NumPy's protocol for arrays of CUDA."""

    def __init__(self, address: int, size: int, keeper: object) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
        self._keeper = keeper


_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)

_keep = _FREE(lambda *_: None)
"""Releases nothing: who has the memory of a place does."""


def _allocator(allocate: Any, free: Any) -> Any:
    """Return what `torch.cuda.memory.CUDAPluggableAllocator` has, of functions that are in no file."""
    calls = (ctypes.cast(call, ctypes.c_void_p).value for call in (allocate, free))
    return torch._C._cuda_customAllocator(*calls)


_ROUTED: set[Any] = set()
"""What torch's allocator gives out goes to these now. Until then, no pool may end: torch ends the process."""

_ENDED: list[Any] = []
"""Pools that end when nothing is routed any more."""

_CALLED: list[Any] = []
"""What pools call. It outlives them, as the traceback of an exception may keep what they have given out."""


class Place:
    """Memory at an address, from which torch's allocator takes all that it gives out within.

    It takes whole segments, one after the other, and keeps them for the next time: the same work then gets
    the same addresses. What does not fit is out of memory. Nothing of torch's allocator may begin at the same
    address, since it finds what it has given out by that.

    Parameters
    ----------
    index
        Of the GPU.
    address, size
        The memory.

    Attributes
    ----------
    segments
        Bytes of the segments so far.
    """

    def __init__(self, index: int, address: int, size: int) -> None:
        self.segments: list[int] = []
        self._index = index
        self._within: Any = None
        allocate = _ALLOCATE(_segments_from(address, size, self.segments))
        allocator = _allocator(allocate, _keep)
        _CALLED.extend((allocate, allocator))
        self._pool: Any = torch.cuda.MemPool(allocator)

    def __del__(self) -> None:
        """Release the pool as soon as torch allows it."""
        if _ROUTED:
            _ENDED.append(self._pool)

    def __enter__(self) -> None:
        """Begin."""
        _ROUTED.add(self._pool.id)
        self._within = torch.cuda.use_mem_pool(self._pool, self._index)
        self._within.__enter__()

    def __exit__(self, *raised: object) -> None:
        """End; what is still in use stays so."""
        self._within.__exit__(*raised)
        _no_more(self._pool)


def _no_more(pool: Any) -> None:
    """Nothing goes to a pool any more."""
    _ROUTED.discard(pool.id)
    if not _ROUTED:
        _ENDED.clear()


def _segments_from(address: int, size: int, taken: list[int]) -> Callable[[int, int, int], int | None]:
    """Return a function that gives out segments of memory one after the other, and notes their bytes."""

    def allocate(wanted: int, device: int, stream: int) -> int | None:  # noqa: ARG001
        begin = sum(taken)
        if begin + wanted > size:
            return None
        taken.append(wanted)
        return address + begin

    return allocate


@cache
def _managed() -> tuple[Any, ...]:
    """Return an allocator of managed memory, which CUDA moves between GPU and host, and what it calls."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise PebblerError(
            f"the GPU has too little memory for a step of eager torch, and none that CUDA manages: {error}"
        ) from None

    def allocate(wanted: int, device: int, stream: int) -> int | None:  # noqa: ARG001
        address = ctypes.c_uint64()
        status = driver.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(wanted), _GLOBAL)
        return None if status else address.value

    def free(address: int, size: int, device: int, stream: int) -> None:  # noqa: ARG001
        driver.cuMemFree_v2(ctypes.c_uint64(address))

    calls = _ALLOCATE(allocate), _FREE(free)
    return _allocator(*calls), *calls


class Gpu:
    """A GPU.

    Parameters
    ----------
    name
        As torch names it: ``cuda:0``.

    Attributes
    ----------
    key
        Of torch's dispatcher.
    alignment
        Bytes that torch's allocator on a GPU aligns to, and accounts for.
    scratch_in_pool
        False: that allocator gives out what operators take on the way.
    large_bytes
        Scratch of more than this has a place in the pool all the same, from which the allocator takes it.
    is_oversubscribed
        Whether memory is managed now (`oversubscribed`).

    Raises
    ------
    PebblerError
        When torch finds no such GPU.
    """

    key = "CUDA"
    alignment = 512
    scratch_in_pool = False
    large_bytes = 32 << 20

    def __init__(self, name: str) -> None:
        self.name = name
        self.device = torch.device(name)
        self.index = self.device.index or 0
        self.is_oversubscribed = False
        self._current: Any = None
        self._pool: Any = None
        if self.index >= count_gpus():
            raise PebblerError(f"the step is one of {name}, and torch finds {count_gpus()} GPUs of CUDA here")
        torch.cuda.init()  # else there are no statistics yet

    # --- what is recorded -----------------------------------------------------------------------------

    def require_ready(self) -> None:
        """Refuse settings with which a step may have other bits each time, whatever its operators are.

        Raises
        ------
        PebblerError
            When cuDNN chooses algorithms by their times.
        """
        if torch.backends.cudnn.benchmark:
            raise PebblerError(
                "torch.backends.cudnn.benchmark chooses algorithms by time, which gives other bits and other "
                "scratch from time to time; set it to False"
            )

    def environment(self) -> dict[str, Any]:
        """Return what bits depend on beside a record, as it is now."""
        cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
        return {
            "torch": str(torch.__version__),
            "gpu": self.title,
            "cuda": str(torch.version.cuda),
            "cudnn": cudnn.version() or 0,
            "cudnn_enabled": cudnn.enabled,
            "cudnn_deterministic": cudnn.deterministic,
            "products": cuda.matmul.fp32_precision,
            "convolutions": cudnn.conv.fp32_precision,
            "flash_attention": cuda.flash_sdp_enabled(),
            "efficient_attention": cuda.mem_efficient_sdp_enabled(),
            "cudnn_attention": cuda.cudnn_sdp_enabled(),
            "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
            "deterministic": self.deterministic,
        }

    @property
    def deterministic(self) -> bool:
        """Whether torch refuses operators that may give other bits each time."""
        warned = torch.is_deterministic_algorithms_warn_only_enabled()
        return bool(torch.are_deterministic_algorithms_enabled()) and not warned

    def rng_state(self) -> Any:
        """Return the state of the GPU's generator: a seed and an offset, which the host has."""
        return torch.cuda.get_rng_state(self.device)

    def set_rng_state(self, state: Any) -> None:
        """Set the state of the GPU's generator."""
        torch.cuda.set_rng_state(state, self.device)

    def synchronize(self) -> None:
        """Wait for all work on the GPU."""
        torch.cuda.synchronize(self.device)

    @contextmanager
    def allocations(self) -> Iterator[Allocations]:
        """Measure what is allocated within by torch's allocator; what libraries allocate is not seen."""
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        found = Allocations()
        yield found
        found.peak_bytes = torch.cuda.max_memory_allocated(self.device) - before
        found.kept_bytes = max(0, torch.cuda.memory_allocated(self.device) - before)

    def segments_of(self, work: Callable[[], object], peak_bytes: int) -> int:
        """Return the bytes that torch's allocator needs for some work in memory of its own; 0: unknown.

        Parameters
        ----------
        work
            Does it; it is called once.
        peak_bytes
            Most that it has in use at once.
        """
        unit, size = self.alignment, 2 * peak_bytes + _SEGMENT
        try:
            room = self.empty(unit + size)
            with self._in_own_memory():  # where its pool ends, too
                place = self.scratch_at(room.data_ptr() + unit, size)
                segments = place.segments
                try:
                    with place:
                        work()
                finally:
                    del place
        except torch.OutOfMemoryError:
            return 0
        self.synchronize()
        return sum(segments)

    @contextmanager
    def oversubscribed(self) -> Iterator[None]:
        """Within, torch's allocator gives out managed memory, which may be more than the GPU has.

        CUDA moves pages of it to the host and back where they are needed, which takes long. What nothing uses
        any more goes first.

        Raises
        ------
        PebblerError
            When the driver's library cannot be loaded.
        """
        allocator, *_ = _managed()
        gc.collect()
        self.let_go()
        self._pool = torch.cuda.MemPool(allocator)
        self._route()
        try:
            yield
        finally:
            try:
                self.synchronize()
            finally:
                self._unroute()
                torch._C._cuda_clearCublasWorkspaces()  # else they stay there
                self._pool = None

    @contextmanager
    def _in_own_memory(self) -> Iterator[None]:
        """Within, a place comes before managed memory."""
        if not self.is_oversubscribed:
            yield
            return
        self._unroute()
        try:
            yield
        finally:
            self._route()

    def _route(self) -> None:
        """Let all threads allocate in the pool of managed memory; autograd has one of its own."""
        _ROUTED.add(self._pool.id)
        torch._C._cuda_beginAllocateToPool(self.index, self._pool.id)
        self.is_oversubscribed = True

    def _unroute(self) -> None:
        torch._C._cuda_endAllocateToPool(self.index, self._pool.id)
        torch._C._cuda_releasePool(self.index, self._pool.id)
        _no_more(self._pool)
        self.is_oversubscribed = False

    def timed(self, work: Callable[[], Any]) -> tuple[Any, int]:
        """Do some work on the current stream; return its result, and its time on an idle GPU."""
        stream = torch.cuda.current_stream(self.device)
        self.synchronize()
        begin, end = self.event(), self.event()
        self.record(begin, stream)
        returned = work()
        self.record(end, stream)
        self.reach(end)
        return returned, self.elapsed_ns(begin, end)

    def link(self) -> str:
        """Measure copies to the host and back: the best of a few of `_COPIED` bytes, in each direction."""
        here, there = self.empty(_COPIED), torch.from_numpy(self.host_buffer(_COPIED))
        rates = []
        for target, source in ((there, here), (here, there)):
            times = [self.timed(partial(target.copy_, source, non_blocking=True))[1] for _ in range(4)]
            rates.append(_COPIED / max(1, min(times)) * 1e9)
        return ",".join(f"{rate:.0f}/s" for rate in rates)

    def peak_of(self, step: Callable[[], object], present_bytes: int) -> int | None:
        """Take a step, and return the peak of torch's allocator, with what of the step's was there before."""
        self.synchronize()
        with self.allocations() as found:
            step()
            self.synchronize()
        return found.peak_bytes + present_bytes

    # --- memory ---------------------------------------------------------------------------------------

    def empty(self, size: int) -> Any:
        """Return that many bytes of the GPU."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def host_buffer(self, size: int) -> Any:
        """Return that many bytes of the host, pinned, as a buffer."""
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True).numpy()

    def storage_at(self, address: int, size: int, keeper: object = None) -> Any:
        """Return the storage that is the memory at an address; it keeps `keeper` alive.

        Every tensor of the record gets a storage of its own there, and is no view of one large one: operators
        see the offsets and sizes of storages that they were recorded with.
        """
        if not size:
            return self.empty(0).untyped_storage()
        return torch.as_tensor(_Piece(address, size, keeper), device=self.device).untyped_storage()

    def scratch_at(self, address: int, size: int) -> Place:
        """Return the place from which torch's allocator takes what it gives out within, as a context."""
        return Place(self.index, address, size)

    def let_go(self) -> None:
        """Let torch's allocator give back to the GPU what nothing uses, and what cuBLAS has for streams."""
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()

    def held_bytes(self) -> int:
        """Return the bytes that torch's allocator has taken from the GPU, without those of places."""
        segments = torch.cuda.memory_snapshot()
        return sum(one["total_size"] for one in segments if tuple(one["segment_pool_id"]) == (0, 0))

    def copy_all(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        """Copy tensors of bytes, on whatever side they are, and wait for that."""
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking=True)
        self.synchronize()

    # --- streams --------------------------------------------------------------------------------------

    def stream(self, name: str) -> Any:
        """Return a stream; operators run on the one for ``compute``.

        What cuBLAS takes for a stream is there then, and comes from no place.
        """
        stream = torch.cuda.Stream(self.device)
        if name == "compute":
            with torch.cuda.stream(stream):
                matrix = torch.ones((1, 1), device=self.device)
                torch.mm(matrix, matrix)
        return stream

    @contextmanager
    def launching(self, stream: Any) -> Iterator[None]:
        """Within, `run` leaves its stream the current one, which takes torch a while to set; it begins so."""
        with torch.cuda.stream(stream):
            self._current = stream
            try:
                yield
            finally:
                self._current = None

    def run(self, stream: Any, work: Callable[[], object]) -> None:
        """Call a function whose operators go to a stream."""
        if self._current is None:
            with torch.cuda.stream(stream):
                work()
            return
        if self._current is not stream:
            torch.cuda.set_stream(stream)
            self._current = stream
        work()

    def event(self) -> Any:
        """Return an event, which can be recorded any number of times."""
        return torch.cuda.Event(enable_timing=True)

    def record(self, event: Any, stream: Any) -> None:
        """Let an event be at the point after all work that a stream has been given."""
        event.record(stream)

    def wait(self, stream: Any, event: Any) -> None:
        """Make later work of a stream wait for an event."""
        stream.wait_event(event)

    def reach(self, event: Any) -> None:
        """Wait until an event is reached."""
        event.synchronize()

    def elapsed_ns(self, earlier: Any, later: Any) -> int:
        """Return the time between two events that are reached."""
        return round(float(earlier.elapsed_time(later)) * 1e6)

    def sleep(self, stream: Any, duration_ns: int) -> None:
        """Keep a stream busy with nothing."""
        cycles = round(duration_ns * self._cycles_per_ns)
        self.run(stream, lambda: torch.cuda._sleep(cycles))

    @cached_property
    def _cycles_per_ns(self) -> float:
        """How many cycles the GPU counts in a nanosecond, as it turns out."""
        torch.cuda._sleep(1)  # which loads it
        _, took_ns = self.timed(lambda: torch.cuda._sleep(_CALIBRATION))
        return _CALIBRATION / max(1, took_ns)

    # --- the machine ----------------------------------------------------------------------------------

    def current(self) -> Any:
        """Make this GPU's context the current one."""
        return torch.cuda.device(self.device)

    @property
    def title(self) -> str:
        """The GPU's name."""
        return str(torch.cuda.get_device_name(self.device))

    @property
    def memory_bytes(self) -> int:
        """Bytes of the GPU's memory that are free, or torch's already."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(free + torch.cuda.memory_reserved(self.device))

    def versions(self) -> dict[str, str]:
        """Return the versions of what computes; the driver's as the system tells it."""
        told = _DRIVER.read_text(encoding="ascii", errors="replace") if _DRIVER.exists() else ""
        driver = re.search(r"\d+\.[.\d]+", told)
        return {
            "driver": "unknown" if driver is None else driver[0],
            "CUDA": str(torch.version.cuda),
            "cuDNN": str(torch.backends.cudnn.version()),
        }
