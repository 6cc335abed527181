"""Layers on several streams, on the fake driver: the same bits, the values of the definition, waits."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from pebbler.instances.devices.caffe import Direction, caffe_kernels, find_layer
from pebbler.instances.devices.device import find_device
from pebbler.instances.devices.roofline import Convolution
from pebbler.instances.errors import PebblerError
from pebbler.validate.execution.cuda.backend import CudaBackend
from pebbler.validate.execution.cuda.calls import Own, scratch_bytes
from pebbler.validate.execution.cuda.layer_streams import (
    Arrays,
    StreamedLayer,
    Wait,
    draw,
    measure,
    sample_calls,
)
from pebbler.validate.execution.device import DeviceError

from ....fakecuda.fixtures import FakeCuda, _loaded_fake_cuda, fake_cuda  # noqa: F401

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
SUMS = 4
"""Partial sums: 1 and 2 streams divide them, 3 and 5 do not."""

PADDED = Convolution(11, 3, 4, 9, 7, 5, 4, 3, 3, 2, 1)
GROUPED = Convolution(9, 4, 6, 6, 6, 4, 4, 3, 3, 1, 0, groups=2)
WIDE_WINDOW = Convolution(6, 2, 3, 5, 8, 3, 4, 3, 5, 1, 0)
POINTWISE = Convolution(7, 5, 3, 4, 6, 4, 6, 1, 1, 1, 0)
LAYERS = {"padded": PADDED, "grouped": GROUPED, "window of two sizes": WIDE_WINDOW, "pointwise": POINTWISE}


def run(
    conv: Convolution,
    direction: Direction,
    counts: tuple[int, ...],
    omit: tuple[Wait, ...] = (),
    sums: int = SUMS,
) -> list[Arrays]:
    """Results of a pass on each number of streams, in memory that is NaN before."""
    backend = CudaBackend()
    try:
        layer = StreamedLayer(backend, conv, direction, max(counts), sums=sums)
        layer.load(draw(conv, direction))
        found = []
        for streams in counts:
            layer.poison()
            layer.run(streams, omit=omit)
            found.append(layer.results())
        return found
    finally:
        backend.close()


def same(a: Arrays, b: Arrays) -> bool:
    return all(a[word].tobytes() == b[word].tobytes() for word in a)


def by_definition(conv: Convolution, direction: Direction) -> dict[str, NDArray[np.float64]]:
    """The pass in double precision, tap by tap over the whole batch."""
    drawn = {word: values.astype(np.float64) for word, values in draw(conv, direction).items()}
    groups, taps = conv.groups, (conv.kernel_h, conv.kernel_w)
    rows, depth = conv.out_channels // groups, conv.in_channels // groups
    count = conv.filter_bytes // 4
    w = drawn["w"][:count].reshape(groups, rows, depth, *taps)
    x = drawn["x0"].reshape(conv.batch, groups, depth, conv.in_height, conv.in_width)
    x = np.pad(x, [(0, 0)] * 3 + [(conv.pad, conv.pad)] * 2)
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    shape = (conv.batch, groups, rows, conv.out_height, conv.out_width)
    y = np.zeros(shape) + drawn["w"][count:].reshape(groups, rows, 1, 1)
    dy = drawn["dy"].reshape(shape) if direction == "backward" else y
    for i, j in np.ndindex(*taps):
        reached = (
            ...,
            slice(i, i + conv.stride * conv.out_height, conv.stride),
            slice(j, j + conv.stride * conv.out_width, conv.stride),
        )
        if direction == "forward":
            y += np.einsum("gmc,ngchv->ngmhv", w[..., i, j], x[reached])
        else:
            dw[..., i, j] = np.einsum("ngmhv,ngchv->gmc", dy, x[reached])
            dx[reached] += np.einsum("gmc,ngmhv->ngchv", w[..., i, j], dy)
    if direction == "forward":
        return {"y": y.reshape(-1)}
    inside = dx[..., conv.pad : conv.pad + conv.in_height, conv.pad : conv.pad + conv.in_width]
    biases = dy.sum(axis=(0, 3, 4)).reshape(-1)
    return {"dw": np.concatenate([dw.reshape(-1), biases]), "dx0": inside.reshape(-1)}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("conv", LAYERS.values(), ids=LAYERS)
def test_every_number_of_streams_gives_the_same_bits_and_the_definitions_values(
    fake_cuda: FakeCuda,  # noqa: F811
    conv: Convolution,
    direction: Direction,
) -> None:
    fake_cuda.configure(delay_us=300, seed=1)
    one, *others = run(conv, direction, (1, 2, 3, 5))
    assert all(same(one, other) for other in others)
    expected = by_definition(conv, direction)
    assert one.keys() == expected.keys()
    for word, values in expected.items():
        np.testing.assert_allclose(one[word], values, rtol=1e-4, atol=1e-5)
    assert fake_cuda.unpinned_copies() == 0
    assert fake_cuda.bytes_in_use() == 0


@pytest.mark.parametrize(
    ("direction", "wait"),
    [
        ("forward", "fork"),
        ("forward", "join"),
        ("backward", "fork"),
        ("backward", "order"),
        ("backward", "join"),
    ],
)
def test_a_missing_wait_does_damage(
    fake_cuda: FakeCuda,  # noqa: F811
    direction: Direction,
    wait: Wait,
) -> None:
    """With one partial sum, every sample waits for the one before it."""
    (expected,) = run(PADDED, direction, (1,), sums=1)
    damaged = 0
    for seed in range(5):
        fake_cuda.configure(delay_us=2000, seed=seed)
        (found,) = run(PADDED, direction, (3,), omit=(wait,), sums=1)
        damaged += not same(found, expected)
    assert damaged >= 1


def test_samples_run_on_as_many_streams_as_asked_for(fake_cuda: FakeCuda) -> None:  # noqa: F811
    backend = CudaBackend()
    before = fake_cuda.streams()
    layer = StreamedLayer(backend, POINTWISE, "forward", 5)
    assert fake_cuda.streams() == before + 5
    del layer
    backend.close()


@pytest.mark.parametrize("name", ["caffenet/conv1", "googlenet/conv_1", "googlenet/conv_2"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_launches_are_those_that_the_prediction_derives(name: str, direction: Direction) -> None:
    conv = find_layer(name).conv
    derived = caffe_kernels(find_device("k40"), conv, direction).kernels
    calls = sample_calls(conv, direction, adds=True)
    assert len(calls) == sum(kernel.invocations for kernel in derived)
    for kernel, call in zip(derived, calls, strict=True):
        if isinstance(call, Own) and call.name in ("im2col", "col2im"):
            assert (call.name, call.blocks, call.threads) == (kernel.name, kernel.blocks, kernel.threads)
        else:
            assert kernel.name == "gemv" if isinstance(call, Own) else "gemm" in kernel.name


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_samples_leave_nothing_in_memory_that_streams_share(direction: Direction) -> None:
    large = Convolution(2, 3, 64, 224, 224, 224, 224, 3, 3, 1, 1)
    assert scratch_bytes(sample_calls(large, direction, adds=False)) == 0


def test_a_measurement_has_one_stream_as_its_reference(fake_cuda: FakeCuda) -> None:  # noqa: F811
    found = measure(CudaBackend, PADDED, "backward", [3, 2, 3], repeat=2)
    assert list(found.times_ns) == [1, 3, 2]
    assert all(elapsed > 0 for elapsed in found.times_ns.values())
    assert found.launch_ns > 0
    assert found.identical
    assert found.is_stand_in
    assert fake_cuda.bytes_in_use() == 0


def test_other_bits_are_told(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    fake_cuda.configure(delay_us=2000, seed=2)
    whole = StreamedLayer.run
    monkeypatch.setattr(StreamedLayer, "run", lambda self, streams: whole(self, streams, omit=("join",)))
    assert not measure(CudaBackend, PADDED, "backward", [4], repeat=1).identical


def test_an_interrupt_gives_everything_back(fake_cuda: FakeCuda) -> None:  # noqa: F811
    fake_cuda.configure(delay_us=20_000, seed=1)
    stopper = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    stopper.start()
    with pytest.raises(KeyboardInterrupt):
        measure(CudaBackend, PADDED, "backward", [2], repeat=1000)
    assert fake_cuda.bytes_in_use() == 0


@pytest.mark.parametrize("streams", [0, 33])
def test_a_number_of_streams_that_no_queue_has_is_refused(streams: int) -> None:
    with pytest.raises(PebblerError, match=f"{streams} streams cannot be measured; give 1 to 32"):
        measure(CudaBackend, PADDED, "forward", [streams])


def test_too_little_memory_is_one_sentence_and_leaves_nothing(fake_cuda: FakeCuda) -> None:  # noqa: F811
    fake_cuda.configure(capacity=2**20)
    with pytest.raises(DeviceError, match="has not enough memory for"):
        measure(CudaBackend, replace(PADDED, batch=2000), "backward", [2])
    assert fake_cuda.bytes_in_use() == 0


def test_a_failing_launch_is_named_and_leaves_nothing(fake_cuda: FakeCuda) -> None:  # noqa: F811
    fake_cuda.fail(launch=20)
    # whichever is told first: the launch, or what cuBLAS is asked for after it
    told = r"the GPU has failed, .*launch failure|cublasSgemm_v2 failed: execution failed"
    with pytest.raises(DeviceError, match=told):
        measure(CudaBackend, PADDED, "forward", [2])
    assert fake_cuda.bytes_in_use() == 0
