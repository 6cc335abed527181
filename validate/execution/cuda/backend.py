"""The CUDA backend: PyCUDA for memory, streams and events; cuDNN, cuBLAS and own kernels for the work.

Convolutions come from one of two providers (`providers`); the name of a task's algorithm says from which.

The backend runs in the device's primary context, which the process keeps. Memory that the libraries and the
context allocate is outside the budget. So is the scratch memory of pebbler's own kernels; all tasks share it,
because they run on one stream.
"""

from __future__ import annotations

import contextlib
import logging
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....instances.errors import PebblerError
from ....instances.units import format_size
from ..cpu.kernels import prepare
from ..cpu.scratch import Scratch as HostScratch
from ..device import DeviceError, Event, Stream
from ..kernel import Kernel
from .calls import (
    First,
    Own,
    Product,
    Scratch,
    calls_of,
    convolution_of,
    formats,
    kinds,
    scratch_bytes,
    source,
)
from .cublas import Cublas
from .driver import load_driver, primary_context, start
from .graph import Capturer, CudaGraph
from .pauses import Pauses
from .providers import PROVIDERS, Convolution, Operand, Provider, provider_of
from .virtual_memory import VirtualMemory

_TITLES = {"cudnn": "cuDNN", "cudnn-frontend": "cudnn-frontend"}
"""Name of each provider for people."""

_log = logging.getLogger(__name__)

CudaLaunch = list[Callable[[Mapping[str, int], int], None]]
"""The calls that compute a task; each takes the addresses and the round's first image."""


class CudaEvent:
    """A point in the work of a stream: a CUDA event."""

    __slots__ = ("_driver", "raw")

    def __init__(self, driver: Any, raw: Any) -> None:
        self._driver = driver
        self.raw = raw

    def synchronize(self) -> None:
        """Wait until the stream has reached this point."""
        with _failing(self._driver):
            self.raw.synchronize()

    def since_ns(self, earlier: Event) -> int:
        """Return the time from another event to this one; CUDA gives it in single-precision milliseconds."""
        assert isinstance(earlier, CudaEvent)
        with _failing(self._driver):
            elapsed_ms: float = earlier.raw.time_till(self.raw)
        return round(elapsed_ms * 1e6)


class _PinnedMemory:
    """Buffers in pinned memory of the host, found by address."""

    def __init__(self) -> None:
        self._buffers: list[tuple[int, NDArray[np.uint8]]] = []

    def add(self, buffer: NDArray[np.uint8]) -> int:
        """Keep a buffer; return its address."""
        address = int(buffer.ctypes.data)
        self._buffers.append((address, buffer))
        self._buffers.sort(key=lambda item: item[0])
        return address

    def view(self, address: int, size: int) -> NDArray[np.uint8] | None:
        """Return the data at an address; None for an address of the device."""
        index = bisect_right(self._buffers, address, key=lambda item: item[0]) - 1
        if index < 0:
            return None
        begin, buffer = self._buffers[index]
        return buffer[address - begin : address - begin + size] if address - begin < buffer.size else None

    def clear(self) -> None:
        """Release the buffers."""
        self._buffers.clear()


class CudaStream:
    """A stream of the backend.

    It does not refer to the backend: streams and events must be destroyed by the thread that made them, so
    they must go with their last reference, not when some other thread collects cycles.
    """

    def __init__(self, driver: Any, raw: Any, host: _PinnedMemory, pauses: Pauses) -> None:
        self._driver = driver
        self._host = host
        self._pauses = pauses
        self.raw = raw

    def wait(self, event: Event) -> None:
        """Make later work wait for an event."""
        assert isinstance(event, CudaEvent)
        with _failing(self._driver):
            self.raw.wait_for_event(event.raw)

    def record(self) -> CudaEvent:
        """Return an event at this point."""
        with _failing(self._driver):
            event = self._driver.Event()
            event.record(self.raw)
        return CudaEvent(self._driver, event)

    def pause(self, duration_ns: int) -> None:
        """Make the stream idle for some time."""
        self._pauses.ask(self.raw.handle, duration_ns)

    def copy(self, target: int, source: int, bytes: int) -> None:  # noqa: A002
        """Copy in any direction."""
        to_host, from_host = (self._host.view(address, bytes) for address in (target, source))
        with _failing(self._driver):
            if to_host is not None:
                self._driver.memcpy_dtoh_async(to_host, source, self.raw)
            elif from_host is not None:
                self._driver.memcpy_htod_async(target, from_host, self.raw)
            else:
                self._driver.memcpy_dtod_async(target, source, bytes, self.raw)

    def fill(self, target: int, bytes: int) -> None:  # noqa: A002
        """Write bytes of 0xFF."""
        with _failing(self._driver):
            self._driver.memset_d8_async(target, 0xFF, bytes, self.raw)

    def launch(self, launch: CudaLaunch, addresses: Mapping[str, int], first: int) -> None:
        """Make the calls of a task, which have been bound to this stream."""
        with _failing(self._driver):
            for call in launch:
                call(addresses, first)


class HostStream(CudaStream):
    """The stream of what the host computes itself, when it is issued.

    The host then waits for what the work waits for, and issues nothing else meanwhile, so that only what it
    has issued before overlaps the work. The events are those of a stream of the GPU that does nothing else.
    """

    def __init__(self, driver: Any, raw: Any, host: _PinnedMemory, pauses: Pauses) -> None:
        super().__init__(driver, raw, host, pauses)
        self._before: list[Event] = []

    def wait(self, event: Event) -> None:
        """Make later work wait for an event."""
        super().wait(event)
        self._before.append(event)

    def launch(self, launch: CudaLaunch, addresses: Mapping[str, int], first: int) -> None:
        """Compute a task now, when all is done that it waits for."""
        for event in self._before:
            event.synchronize()
        self._before.clear()
        for call in launch:
            call(addresses, first)


class CudaBackend:
    """A GPU as a backend; the executor closes it.

    Parameters
    ----------
    number
        Number of the GPU in CUDA's order.
    providers
        Providers whose algorithms of convolutions `algorithms` lists; `prepare` accepts those of all
        providers.

    Raises
    ------
    PebblerError
        When PyCUDA, the driver or a GPU is missing.
    """

    name = "cuda"

    def __init__(self, number: int = 0, providers: Sequence[str] = PROVIDERS[:1]) -> None:
        self.driver = load_driver()
        self._listed = tuple(providers)
        self._closing = contextlib.ExitStack()
        self._host = _PinnedMemory()
        self._providers: dict[str, Provider] = {}
        self._cublas: dict[CudaStream, Cublas] = {}
        self._scratch = self._scratch_bytes = 0
        self._functions: dict[str, Any] = {}
        self._module: Any = None
        start(self.driver)
        with _failing(self.driver):
            if number >= self.driver.Device.count():
                raise PebblerError(f"there is no GPU {number}; CUDA counts {self.driver.Device.count()}")
            self._gpu = self.driver.Device(number)
            self.device: str = self._gpu.name()
            context = primary_context(self.driver, number)
            context.push()
        self._closing.callback(context.pop)
        try:
            self._memory = VirtualMemory(number)
            self._closing.callback(self._memory.close)
            with _failing(self.driver):
                compute = self.driver.Stream()
            self._pauses = Pauses()
            self._compute = CudaStream(self.driver, compute, self._host, self._pauses)
        except BaseException:
            self.close()
            raise

    @property
    def kinds(self) -> frozenset[str]:
        """Names of the kinds of layers that can be run."""
        return kinds()

    # --- memory -----------------------------------------------------------------------------------

    def allocate(self, bytes: int) -> int:  # noqa: A002
        """Allocate device memory in one piece."""
        with _failing(self.driver, bytes):
            allocation = self.driver.mem_alloc(max(bytes, 1))
        self._closing.callback(allocation.free)
        return int(allocation)

    def allocate_host(self, bytes: int) -> int:  # noqa: A002
        """Allocate pinned host memory."""
        with _failing(self.driver, bytes, "pinned host memory"):
            return self._host.add(self.driver.pagelocked_empty(max(bytes, 1), np.uint8))

    def allocate_pages(self, count: int, page_bytes: int) -> None:
        """Allocate device memory as pages."""
        self._memory.create(count, page_bytes)

    def reserve(self, bytes: int) -> int:  # noqa: A002
        """Reserve addresses without memory."""
        return self._memory.reserve(bytes)

    def map(self, address: int, pages: Sequence[int]) -> None:
        """Map these pages at addresses."""
        self._memory.map(address, pages)

    def write(self, address: int, values: NDArray[Any]) -> None:
        """Copy an array to an address."""
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        if (view := self._host.view(address, data.size)) is not None:
            view[:] = data
        elif data.size:
            with _failing(self.driver):
                self.driver.memcpy_htod(address, data)

    def read(self, address: int, bytes: int) -> NDArray[np.uint8]:  # noqa: A002
        """Return a copy of the data at an address."""
        if (view := self._host.view(address, bytes)) is not None:
            return view.copy()
        data = np.empty(bytes, dtype=np.uint8)
        if bytes:
            with _failing(self.driver):
                self.driver.memcpy_dtoh(data, address)
        return data

    # --- work -------------------------------------------------------------------------------------

    def stream(self, name: str) -> CudaStream:
        """Create a stream; there is one compute stream, on which the libraries work."""
        if name == "compute":
            return self._compute
        with _failing(self.driver):
            kind = HostStream if name == "host" else CudaStream
            return kind(self.driver, self.driver.Stream(), self._host, self._pauses)

    def algorithms(self, kernel: Kernel) -> list[tuple[str, int]]:
        """Return all algorithms of the providers for a convolution, also those that `prepare` refuses."""
        if convolution_of(kernel) is None:
            return [("gemm" if kernel.multiplies else "kernel", 0)]
        found = []
        for provider in self._listed:
            convolution = convolution_of(kernel, provider)
            assert convolution is not None
            described = self._provider(provider).describe(convolution)
            found += [(name, convolution.scratch + size) for name, size in described.algorithms()]
        return found

    def prepare(self, kernel: Kernel) -> CudaLaunch:
        """Bind the calls of a task; a convolution's workspace must be large enough for its algorithm."""
        if kernel.on == "host":
            return [prepare(kernel, self._host_scratch)]
        calls = calls_of(kernel)
        self._reserve_scratch(scratch_bytes(calls))
        with _failing(self.driver):
            return [
                self._bind_convolution(kernel, call) if isinstance(call, Convolution) else self.bind(call)
                for call in calls
            ]

    @cached_property
    def _host_scratch(self) -> HostScratch:
        return HostScratch()

    def nothing(self) -> CudaLaunch:
        """Bind a kernel of one block that touches one value."""
        address = self.allocate(4)
        return [self.bind(Own("relu_backward", 1, (address, address, 1)))]

    def is_deterministic(self, kernel: Kernel) -> bool:
        """Return cuDNN's answer for a convolution; all other kernels are deterministic."""
        convolution = convolution_of(kernel)
        if convolution is None:
            return True
        described = self._provider(provider_of(kernel.algorithm)).describe(convolution)
        return described.is_deterministic(kernel.algorithm)

    def capture(
        self, streams: Sequence[Stream], work: Sequence[tuple[str, Callable[[], object]]]
    ) -> CudaGraph:
        """Capture work as a CUDA graph."""
        first = streams[0]
        assert isinstance(first, CudaStream)
        graph = self._capturer.capture(streams, first.raw.handle, work)
        self._closing.callback(graph.close)
        return graph

    @cached_property
    def _capturer(self) -> Capturer:
        return Capturer()

    def versions(self) -> dict[str, str]:
        """Return the versions of the driver, PyCUDA, cuDNN, its frontend if it is used, and cuBLAS."""
        number = self.driver.get_driver_version()
        return {
            "driver": f"{number // 1000}.{number % 1000 // 10}",
            "PyCUDA": ".".join(map(str, _pycuda_version())),
            **{_TITLES[name]: self._provider(name).version for name in ("cudnn", *self._listed)},
            "cuBLAS": self._get_cublas(self._compute).version,
        }

    def energy_j(self) -> float | None:
        """Return the energy by NVML; None without nvidia-ml-py, or on a GPU that does not count it."""
        if find_spec("pynvml") is None:
            unmeasured(
                "energy", "nvidia-ml-py is not installed; install it with pip install 'pebbler[profiler]'"
            )
            return None
        import pynvml

        try:
            pynvml.nvmlInit()
            gpu = pynvml.nvmlDeviceGetHandleByPciBusId(self._gpu.pci_bus_id())
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)) / 1000
        except pynvml.NVMLError as error:
            unmeasured("energy", f"NVML does not count it ({error})")
            return None

    def record_kernels(self, work: Callable[[], object]) -> list[dict[str, Any]] | None:
        """Return the kernels that CUPTI records."""
        from .cupti import record_kernels

        return record_kernels(work)

    def memory_bytes(self) -> int:
        """Return the memory of the GPU in bytes."""
        return int(self._gpu.total_memory())

    def close(self) -> None:
        """Wait for the work of the streams, and release everything."""
        self._functions.clear()
        try:
            self.driver.Context.synchronize()
            self._host.clear()
            self._closing.close()
        except (self.driver.Error, DeviceError):
            # A context that has failed refuses this, too; the failure has been reported where it showed.
            with contextlib.suppress(self.driver.Error, DeviceError):
                self._closing.close()
        self._host.clear()

    def _provider(self, name: str) -> Provider:
        """Return a provider of convolutions, loaded at first use."""
        if name not in self._providers:
            self._providers[name] = _open_provider(name, self._compute.raw.handle)
            self._closing.callback(self._providers[name].close)
        return self._providers[name]

    def _get_cublas(self, stream: CudaStream) -> Cublas:
        """Return the handle of a stream; with one each, no stream changes the bits of another.

        That is cuBLAS's promise (cuBLAS Library, "Results Reproducibility").
        """
        if stream not in self._cublas:
            self._cublas[stream] = Cublas(stream.raw.handle)
            self._closing.callback(self._cublas[stream].close)
        return self._cublas[stream]

    def _function(self, name: str) -> Any:
        """Return an own kernel, which is compiled at its first use."""
        if self._module is None:
            self._module = _compile(self.driver)
        if name not in self._functions:
            function = self._module.get_function(name)
            function.prepare(formats()[name])
            self._functions[name] = function
        return self._functions[name]

    def _reserve_scratch(self, size: int) -> None:
        """Grow the scratch memory if need be; calls bound or captured before keep the smaller memory."""
        if size > self._scratch_bytes:
            self._scratch, self._scratch_bytes = self.allocate(size), size

    def bind(
        self, call: Own | Product, stream: CudaStream | None = None
    ) -> Callable[[Mapping[str, int], int], None]:
        """Bind a call to a stream, by default the one for compute; calls on others use no scratch."""
        stream = self._compute if stream is None else stream
        assert stream is self._compute or not scratch_bytes([call])
        return self._bind_own(call, stream) if isinstance(call, Own) else self._bind_product(call, stream)

    def _bind_own(self, call: Own, stream: CudaStream) -> Callable[[Mapping[str, int], int], None]:
        function, raw = self._function(call.name), stream.raw
        grid, block = (call.blocks, call.rows), (call.threads, 1, 1)
        arguments = [
            self._scratch + one.offset if isinstance(one, Scratch) else one for one in call.arguments
        ]

        def launch(addresses: Mapping[str, int], first: int) -> None:
            values = [_value(argument, addresses, first) for argument in arguments]
            function.prepared_async_call(grid, block, raw, *values)

        return launch

    def _bind_convolution(
        self, kernel: Kernel, call: Convolution
    ) -> Callable[[Mapping[str, int], int], None]:
        described = self._provider(provider_of(call.algorithm)).describe(call)
        size = described.workspace_bytes(call.algorithm)
        where = f"task '{kernel.task}', algorithm '{kernel.algorithm}'"
        if size is None:
            raise PebblerError(f"{where}: cuDNN cannot compute it; measure a profile and solve again")
        if call.scratch + size > kernel.workspace_bytes:
            raise PebblerError(
                f"{where}: cuDNN needs {call.scratch + size} bytes of workspace, and the schedule plans "
                f"{kernel.workspace_bytes}; measure a profile and solve again"
            )
        rest = kernel.workspace_bytes - call.scratch

        def launch(addresses: Mapping[str, int], first: int) -> None:
            x, w, y = (_value(operand, addresses, first) for operand in call.operands)
            workspace = addresses.get("workspace", 0) + call.scratch
            described.compute(call.algorithm, x, w, y, workspace, rest)

        return launch

    def _bind_product(self, call: Product, stream: CudaStream) -> Callable[[Mapping[str, int], int], None]:
        cublas = self._get_cublas(stream)

        def launch(addresses: Mapping[str, int], first: int) -> None:
            a, b, result = (_value(operand, addresses, first) for operand in call.operands)
            cublas.multiply(call, a, b, result)

        return launch


def _open_provider(name: str, stream: int) -> Provider:
    if name == "cudnn":
        from .cudnn import Cudnn

        return Cudnn(stream)
    from .cudnn_frontend import CudnnFrontend

    return CudnnFrontend(stream)


@cache
def unmeasured(what: str, reason: str) -> None:
    """Log once why a quantity is not measured."""
    _log.warning("no %s: %s", what, reason)


def _pycuda_version() -> tuple[int, ...]:
    import pycuda

    return tuple(pycuda.VERSION)


def _compile(driver: Any) -> Any:
    from pycuda.compiler import SourceModule
    from pytools.prefork import ExecError

    try:
        return SourceModule(source(), no_extern_c=True)
    except ExecError as error:
        said = " ".join(str(error).split())
        raise PebblerError(f"nvcc cannot be run ({said}); install CUDA's compiler") from None
    except driver.CompileError as error:
        found = re.search(r".*(error|fatal).*", f"{error.stderr}\n{error.stdout}", re.IGNORECASE)
        said = found[0].strip() if found else error.msg
        raise PebblerError(
            f"nvcc cannot compile the kernels ({said}); install a compiler of CUDA that knows this GPU and "
            "takes this C++ compiler"
        ) from None


def _value(argument: Any, addresses: Mapping[str, int], first: int) -> Any:
    """Return the value that a call gets for an argument."""
    if isinstance(argument, Operand):
        return addresses[argument.word] + argument.offset + first * argument.per_image
    if isinstance(argument, First):
        return first * argument.per_image
    return 0 if argument is None else argument


@contextlib.contextmanager
def _failing(driver: Any, asked: int | None = None, what: str = "device memory") -> Iterator[None]:
    """Turn an error of CUDA into one sentence."""
    try:
        yield
    except driver.MemoryError:
        size = "" if asked is None else f" for {format_size(asked)} of {what}"
        raise DeviceError(f"the GPU has not enough memory{size}; give a smaller budget or batch") from None
    except driver.Error as error:
        said = " ".join(str(error).split())
        raise DeviceError(f"the GPU has failed, here or in other work under way: {said}") from None
