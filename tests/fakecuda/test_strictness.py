"""The fake driver refuses what a real one refuses, and what the documentation leaves open."""

from __future__ import annotations

import contextlib
import ctypes as c
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from pebbler.validate.execution.cuda.backend import CudaBackend, CudaStream
from pebbler.validate.execution.cuda.calls import Own, algorithm_number
from pebbler.validate.execution.cuda.cudnn import Cudnn
from pebbler.validate.execution.cuda.libraries import Library
from pebbler.validate.execution.cuda.providers import Convolution, Operand, Pass
from pebbler.validate.execution.device import DeviceError

from .fixtures import FakeCuda, _loaded_fake_cuda, fake_cuda  # noqa: F401

PAGE = 2 * 2**20
INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, DESTROYED = 1, 201, 400, 709
SHAPES: dict[Pass, int] = {"forward": 2, "backward_data": 0, "backward_filter": 1}
"""Which of x, w and y a pass writes."""
CONVOLUTION = Convolution(
    "forward", "", (3, 5, 9, 9), (8, 5, 3, 3), (3, 8, 9, 9), 1, 1, 1, (Operand("x"),) * 3, False
)


@pytest.fixture
def backend(fake_cuda: FakeCuda) -> Iterator[CudaBackend]:  # noqa: ARG001, F811
    opened = CudaBackend()
    yield opened
    opened.close()


def compute_stream(backend: CudaBackend) -> CudaStream:
    return backend.stream("compute")


# --- contexts -----------------------------------------------------------------------------------------

CONTEXTS = """
import ctypes as c, json
driver = c.CDLL("libcuda.so.1")
said, context, again, place = {}, c.c_void_p(), c.c_void_p(), c.c_uint64()
stream, event = c.c_void_p(), c.c_void_p()
def say(word, status): said[word] = int(status)
driver.cuInit(0)
say("release too often", driver.cuDevicePrimaryCtxRelease_v2(0))
driver.cuDevicePrimaryCtxRetain(c.byref(context), 0)
driver.cuDevicePrimaryCtxRetain(c.byref(again), 0)
say("one context", context.value != again.value)
say("nothing is current", driver.cuMemAlloc_v2(c.byref(place), c.c_size_t(100)))
say("no context", driver.cuCtxPushCurrent_v2(c.byref(place)))
say("push", driver.cuCtxPushCurrent_v2(context))
say("allocate", driver.cuMemAlloc_v2(c.byref(place), c.c_size_t(100)))
driver.cuStreamCreate(c.byref(stream), 0)
driver.cuEventCreate(c.byref(event), 0)
graph, launched = c.c_void_p(), c.c_void_p()
driver.cuStreamBeginCapture_v2(stream, 1)
driver.cuStreamEndCapture(stream, c.byref(graph))
say("a graph", driver.cuGraphInstantiateWithFlags(c.byref(launched), graph, c.c_ulonglong(0)))
say("detach", driver.cuCtxDetach(context))
driver.cuDevicePrimaryCtxRelease_v2(0)
say("one user is left", driver.cuMemsetD8_v2(place, 1, c.c_size_t(100)))
driver.cuDevicePrimaryCtxRelease_v2(0)
say("bytes", driver.fakecuda_bytes_in_use())
say("streams", driver.fakecuda_streams())
say("graphs", driver.fakecuda_graphs())
say("use", driver.cuMemsetD8_v2(place, 1, c.c_size_t(100)))
say("pop", driver.cuCtxPopCurrent_v2(c.byref(again)))
say("push what is gone", driver.cuCtxPushCurrent_v2(context))
driver.cuDevicePrimaryCtxRetain(c.byref(again), 0)
say("another", context.value == again.value)
say("push the other", driver.cuCtxPushCurrent_v2(again))
say("stream", driver.cuStreamSynchronize(stream))
say("event", driver.cuEventSynchronize(event))
say("record", driver.cuEventRecord(event, None))
say("launch", driver.cuGraphLaunch(launched, None))
say("memory", driver.cuMemFree_v2(place))
print(json.dumps(said))
"""


def test_a_primary_context_goes_with_its_last_user_and_takes_all_along(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    # In a process of its own: this one keeps its context.
    done = subprocess.run([sys.executable, "-c", CONTEXTS], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {
        "release too often": INVALID_CONTEXT,
        "one context": 0,
        "nothing is current": INVALID_CONTEXT,
        "no context": INVALID_CONTEXT,
        "push": 0,
        "allocate": 0,
        "a graph": 0,
        "detach": INVALID_CONTEXT,
        "one user is left": 0,
        "bytes": 0,
        "streams": 0,
        "graphs": 0,
        "use": DESTROYED,
        "pop": 0,
        "push what is gone": DESTROYED,
        "another": 0,
        "push the other": 0,
        "stream": INVALID_HANDLE,
        "event": INVALID_HANDLE,
        "record": INVALID_HANDLE,
        "launch": INVALID_HANDLE,
        "memory": INVALID_VALUE,
    }


# --- memory -------------------------------------------------------------------------------------------


def relu(backend: CudaBackend, address: int, n: int) -> None:
    """Launch a kernel that reads and writes n values."""
    launch = [backend.bind(Own("relu_backward", 1, (address, address, n)))]
    compute_stream(backend).launch(launch, {}, 0)


@pytest.mark.parametrize("work", ["fill", "kernel", "copy"])
def test_unmapping_what_is_in_use_fails_the_context(
    fake_cuda: FakeCuda,  # noqa: F811
    backend: CudaBackend,
    work: str,
) -> None:
    backend.allocate_pages(2, PAGE)
    address = backend.reserve(2 * PAGE)
    backend.map(address, [0, 1])
    stream = compute_stream(backend)
    fake_cuda.configure(delay_us=200_000)
    for waits in (True, False):
        if work == "fill":
            stream.fill(address, PAGE)
        elif work == "kernel":
            relu(backend, address, PAGE // 4)
        else:
            stream.copy(backend.allocate(PAGE), address, PAGE)
        end = stream.record()
        if waits:
            end.synchronize()
            backend.map(address + PAGE, [0])  # the other page is in nobody's use
            backend.map(address + PAGE, [1])
            continue
        backend.map(address + PAGE, [0])
        with pytest.raises(DeviceError, match="illegal memory access"):
            backend.map(address, [1])


@pytest.mark.parametrize("reads", [True, False])
def test_touching_what_is_not_mapped_fails_the_context(backend: CudaBackend, reads: bool) -> None:
    backend.allocate_pages(1, PAGE)
    address = backend.reserve(2 * PAGE)
    backend.map(address, [0])
    whole = backend.allocate(2 * PAGE)
    relu(backend, address, PAGE // 4)
    compute_stream(backend).record().synchronize()
    x, y = (address, whole) if reads else (whole, address)
    launch = [backend.bind(Own("copy", 1, (x, y, 0, 2 * PAGE // 4)))]
    compute_stream(backend).launch(launch, {}, 0)
    with pytest.raises(DeviceError, match="illegal memory access"):
        compute_stream(backend).record().synchronize()


def test_an_address_of_no_device_fails_the_context(backend: CudaBackend) -> None:
    values = np.ones(4, dtype=np.float32)
    relu(backend, int(values.ctypes.data), 4)
    with pytest.raises(DeviceError, match="illegal memory access"):
        compute_stream(backend).record().synchronize()
    assert values.tolist() == [1, 1, 1, 1]


def test_after_a_failure_there_is_a_fresh_start(fake_cuda: FakeCuda, backend: CudaBackend) -> None:  # noqa: F811
    address = backend.allocate(16)
    relu(backend, address, PAGE)
    with pytest.raises(DeviceError, match="illegal memory access"):
        compute_stream(backend).record().synchronize()
    with pytest.raises(DeviceError, match="illegal memory access"):
        backend.allocate(16)
    fake_cuda.recover()
    backend.write(address, np.full(4, 2, dtype=np.float32))
    assert backend.read(address, 16).view(np.float32).tolist() == [2] * 4


def test_memory_that_was_never_written_is_not_a_number(backend: CudaBackend) -> None:
    assert np.isnan(backend.read(backend.allocate(16), 16).view(np.float32)).all()


def test_pages_are_mapped_in_whole_and_accessible_only_when_that_is_asked_for(
    fake_cuda: FakeCuda,  # noqa: F811
    backend: CudaBackend,
) -> None:
    driver, address, page = fake_cuda.driver, c.c_uint64(), c.c_uint64()
    size, u64 = c.c_size_t, c.c_uint64
    where = (c.c_int * 8)(1, 0, 1, 0)
    elsewhere = (c.c_int * 8)(1, 0, 1, 7)
    access = (c.c_int * 3)(1, 0, 3)
    assert driver.cuMemCreate(c.byref(page), size(PAGE + 4096), where, u64(0)) == INVALID_VALUE
    assert driver.cuMemCreate(c.byref(page), size(PAGE), elsewhere, u64(0)) == INVALID_VALUE
    assert driver.cuMemCreate(c.byref(page), size(PAGE), where, u64(0)) == 0
    reserve = driver.cuMemAddressReserve
    assert reserve(c.byref(address), size(PAGE + 4096), size(0), u64(0), u64(0)) == INVALID_VALUE
    assert reserve(c.byref(address), size(2 * PAGE), size(3000), u64(0), u64(0)) == INVALID_VALUE
    assert reserve(c.byref(address), size(2 * PAGE), size(0), u64(0), u64(0)) == 0
    at = address.value
    for begin, n, offset in ((at + 4096, PAGE, 0), (at, 4096, 0), (at, PAGE, 4096), (at + 2 * PAGE, PAGE, 0)):
        assert driver.cuMemMap(u64(begin), size(n), size(offset), page, u64(0)) == INVALID_VALUE
    assert driver.cuMemMap(u64(at), size(PAGE), size(0), page, u64(0)) == 0
    assert driver.cuMemMap(u64(at), size(PAGE), size(0), page, u64(0)) == INVALID_VALUE
    assert driver.cuMemsetD8_v2(u64(at), 0, size(16)) == INVALID_VALUE
    assert driver.cuMemSetAccess(u64(at), size(4096), access, size(1)) == INVALID_VALUE
    assert driver.cuMemSetAccess(u64(at), size(2 * PAGE), access, size(1)) == INVALID_VALUE
    assert driver.cuMemSetAccess(u64(at), size(PAGE), access, size(1)) == 0
    assert driver.cuMemsetD8_v2(u64(at), 0, size(16)) == 0
    assert driver.cuMemsetD32_v2(u64(at + 2), 0, size(4)) == INVALID_VALUE
    assert driver.cuMemAddressFree(u64(at), size(2 * PAGE)) == INVALID_VALUE
    assert driver.cuCtxSynchronize() == 0
    assert driver.cuMemUnmap(u64(at), size(4096)) == INVALID_VALUE
    assert driver.cuMemUnmap(u64(at), size(PAGE)) == 0
    assert driver.cuMemUnmap(u64(at), size(PAGE)) == INVALID_VALUE
    assert driver.cuMemMap(u64(at), size(PAGE), size(0), page, u64(0)) == 0
    relu(backend, at, 4)  # a new mapping has to be made accessible anew
    with pytest.raises(DeviceError, match="illegal memory access"):
        compute_stream(backend).record().synchronize()
    assert driver.cuMemUnmap(u64(at), size(PAGE)) == 0
    assert driver.cuMemAddressFree(u64(at), size(PAGE)) == INVALID_VALUE
    assert driver.cuMemAddressFree(u64(at), size(2 * PAGE)) == 0
    assert driver.cuMemRelease(page) == 0
    assert fake_cuda.bytes_in_use() == 0


def test_a_kernel_needs_aligned_addresses(backend: CudaBackend) -> None:
    relu(backend, backend.allocate(64) + 2, 4)
    with pytest.raises(DeviceError, match="misaligned address"):
        compute_stream(backend).record().synchronize()


# --- cuDNN and cuBLAS ---------------------------------------------------------------------------------


def convolve(
    backend: CudaBackend, which: Pass, algorithm: str, *, shift: int = 0, workspace_shift: int = 0
) -> NDArray[np.float32]:
    """Compute a convolution of random numbers; its x, and its workspace, that many bytes off."""
    cudnn = Cudnn(compute_stream(backend).raw.handle)
    described = cudnn.describe(replace(CONVOLUTION, which=which))
    size = described.workspace_bytes(algorithm)
    assert size is not None
    rng = np.random.default_rng(1)
    places = []
    for shape in (CONVOLUTION.x, CONVOLUTION.w, CONVOLUTION.y):
        places.append(backend.allocate(4 * int(np.prod(shape)) + 64))
        backend.write(places[-1], rng.standard_normal(int(np.prod(shape)), dtype=np.float32))
    workspace = backend.allocate(size + 512) + workspace_shift
    described.compute(algorithm, places[0] + shift, places[1], places[2], workspace, size)
    compute_stream(backend).record().synchronize()
    cudnn.close()
    result = SHAPES[which]
    shape = (CONVOLUTION.x, CONVOLUTION.w, CONVOLUTION.y)[result]
    return backend.read(places[result], 4 * int(np.prod(shape))).view(np.float32)


def test_an_algorithm_can_be_refused_at_launch(fake_cuda: FakeCuda, backend: CudaBackend) -> None:  # noqa: F811
    fake_cuda.refuse("backward_data", algorithm_number("backward_data", "fft"))
    with pytest.raises(DeviceError, match="cudnnConvolutionBackwardData failed: CUDNN_STATUS_NOT_SUPPORTED"):
        convolve(backend, "backward_data", "fft")
    convolve(backend, "backward_data", "algo-1")
    fake_cuda.recover()
    convolve(backend, "backward_data", "fft")


def test_the_environment_can_have_algorithms_refused(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKECUDA_REFUSE", "forward:2,backward_filter:5")
    code = (
        "import ctypes; driver = ctypes.CDLL('libcuda.so.1'); driver.cuInit(0); "
        "print([(p, a) for p in range(3) for a in range(8) if driver.fakecuda_refuses(p, a) & 1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[(0, 2), (2, 5)]\n"


@contextlib.contextmanager
def math_type(math: int) -> Iterator[None]:
    """Let our code ask for another type of math."""
    call = Library.call

    def other(library: Library, name: str, *arguments: object) -> None:
        if name == "cudnnSetConvolutionMathType":
            arguments = (arguments[0], math)
        call(library, name, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Library, "call", other)
        yield


@pytest.mark.parametrize("which", SHAPES)
def test_only_one_type_of_math_is_single_precision(backend: CudaBackend, which: Pass) -> None:
    algorithm = "implicit-gemm" if which == "forward" else "algo-1"
    exact = convolve(backend, which, algorithm)
    with math_type(0):
        rounded = convolve(backend, which, algorithm)
    error = float(np.abs(rounded - exact).max() / np.abs(exact).max())
    assert 1e-5 < error < 2**-9
    with math_type(4), pytest.raises(DeviceError, match="CUDNN_STATUS_BAD_PARAM"):
        convolve(backend, which, algorithm)


@pytest.mark.parametrize(
    ("which", "algorithm", "same"),
    [
        ("backward_data", "algo-0", False),
        ("backward_data", "algo-1", True),
        ("backward_filter", "algo-0", False),
        ("backward_filter", "algo-1", True),
        ("backward_filter", "algo-3", False),
        ("backward_filter", "fft-tiling", True),
    ],
)
def test_bits_vary_where_cudnn_says_so(backend: CudaBackend, which: Pass, algorithm: str, same: bool) -> None:
    found = [convolve(backend, which, algorithm) for _ in range(4)]
    assert all(one.tobytes() == found[0].tobytes() for one in found) is same
    for one in found:
        np.testing.assert_allclose(one, found[0], rtol=1e-3, atol=1e-4)
    described = Cudnn(compute_stream(backend).raw.handle).describe(replace(CONVOLUTION, which=which))
    assert described.is_deterministic(algorithm) is same


def test_cudnn_needs_aligned_addresses(backend: CudaBackend) -> None:
    for shifts in ({"shift": 4}, {"workspace_shift": 16}):
        with pytest.raises(DeviceError, match="MISALIGNED_POINTER"):
            convolve(backend, "forward", "fft", **shifts)
    convolve(backend, "forward", "fft", shift=16, workspace_shift=256)
