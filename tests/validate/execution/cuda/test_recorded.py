"""Every task's CUDA code, on the fake driver, against the CPU's kernels, which share nothing with it."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from pebbler.instances.errors import PebblerError
from pebbler.instances.networks.builder import NetworkBuilder
from pebbler.instances.networks.network import Network, Shape
from pebbler.instances.networks.taskgraph import task_graph
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.cuda.backend import CudaBackend
from pebbler.validate.execution.cuda.calls import ALGORITHMS, Own, calls_of, formats
from pebbler.validate.execution.device import Backend
from pebbler.validate.execution.kernel import Kernel, kernels_of, resident

from ....fakecuda.fixtures import FakeCuda, _loaded_fake_cuda, fake_cuda  # noqa: F401

BATCH, IMAGES, FIRST = 5, 3, 2


def everything() -> Network:
    """Two branches and every kind of layer there are kernels for, with odd sizes."""
    net = NetworkBuilder("everything")
    x = net.conv("strided", net.input(3, 17, 15), 8, 3, stride=2, pad=2, relu=True)
    x = net.lrn("lrn", x)
    left = net.conv("grouped", x, 6, 3, pad=1, groups=2, bias=False)
    left = net.bn("norm", left, relu=True)
    right = net.conv("pointwise", x, 4, 1)
    right = net.dropout("drop", right)
    x = net.concat("both", left, right)
    x = net.maxpool("max", x, 3, stride=2, pad=1, ceil=True, relu=True)
    means = net.fc("means", net.conv("wide", x, 10, 5, pad=2), 10)
    x = net.add("sum", x, net.avgpool("same", x, 3, pad=1), means, relu=True)
    x = net.resample("crop", x, Shape(10, 4, 4))
    x = net.resample("thin", x, Shape(12, 2, 2))
    x = net.resample("again", x, Shape(12, 6, 6))
    x = net.avgpool("mean", x, 4, stride=2, ceil=True)
    x = net.fc("hidden", x, 9, relu=True)
    net.softmax("loss", net.fc("scores", net.dropout("drop2", x), 7))
    left = net.deconv("up", net.input(3, 5, 4, name="other"), 4, 3, stride=2, pad=1)
    left = net.deconv("even", left, 5, 4, stride=1, pad=0, bias=False)
    right = net.layer("gate", "sigmoid", net.gelu("bent", left))
    right = net.scale("scaled", net.layer_norm("positions", right))
    right = net.linear("mixed", right, left, outputs=6)
    net.loss("pairs", net.fc("one", right, 6), net.fc("two", net.scale("first", "other"), 6))
    return net.finish(batch=BATCH, source="tests")


def kernels() -> list[Kernel]:
    found = kernels_of(task_graph(everything(), IMAGES), BATCH)
    signs = kernels_of(task_graph(everything(), IMAGES), BATCH, frozenset({"strided", "hidden"}))
    return [*found, *(kernel for kernel in signs if "signs" in kernel.operands), *updates()]


def updates() -> list[Kernel]:
    """Return the update of the weights of one layer by each optimizer."""
    found = []
    for optimizer in ("sgd", "momentum", "adam"):
        steady = kernels_of(task_graph(everything(), IMAGES, optimizer=optimizer), BATCH)  # type: ignore[arg-type]
        found.append(next(kernel for kernel in steady if kernel.task == "OPT(hidden)"))
    return [*found, replace(found[-1], decay=100.0)]  # so much that it cannot be missed


def draw(kernel: Kernel, seed: int) -> dict[str, NDArray[np.uint8]]:
    """Operands of a task by name, as bytes; what is written is filled with NaN unless it is added to."""
    graph = task_graph(everything(), IMAGES, optimizer="adam")
    sizes = {block.name: block.bytes for block in graph.blocks} | dict(resident(everything(), BATCH))
    rng = np.random.default_rng(seed)
    found = {}
    for word, name in kernel.operands.items():
        size = sizes.get(name, IMAGES * kernel.layer.shape.elements)
        if word == "labels":
            classes = max(kernel.layer.shape.channels, 2)
            found[name] = rng.integers(classes, size=size // 4, dtype=np.int32).view(np.uint8)
        elif word in ("mask", "signs"):
            found[name] = rng.integers(2, size=size, dtype=np.uint8)
        else:
            spread = np.float32(0.2 if kernel.layer.kind.name == "loss" else 1)  # pairs that are near enough
            found[name] = (spread * rng.standard_normal(size // 4, dtype=np.float32)).view(np.uint8)
    if "v" in kernel.operands:  # means of squares
        squares = found[kernel.operands["v"]].view(np.float32)
        np.abs(squares, out=squares)
    if kernel.role == "BP1" and kernel.layer.kind.name == "maxpool":  # dy goes where y is one of x
        x = found[kernel.operands["x0"]].view(np.float32).reshape(IMAGES, *kernel.sources[0])
        found[kernel.operands["y"]] = pooled(x, kernel).view(np.uint8).reshape(-1)
    if kernel.role == "BP1" and kernel.layer.kind.name == "bn":  # statistics as FP saves them
        x = found[kernel.operands["x0"]].view(np.float32).reshape(IMAGES, kernel.sources[0].channels, -1)
        saved = [x.mean((0, 2)), 1 / np.sqrt(x.var((0, 2)) + 1e-5)]
        found[kernel.operands["saved"]] = np.concatenate(saved).astype(np.float32).view(np.uint8)
    return found


def pooled(x: NDArray[np.float32], kernel: Kernel) -> NDArray[np.float32]:
    layer = kernel.layer
    _, rows, columns = layer.shape
    y = np.empty((*x.shape[:2], rows, columns), dtype=np.float32)
    for h in range(rows):
        for v in range(columns):
            top, left = h * layer.stride - layer.pad, v * layer.stride - layer.pad
            window = x[:, :, max(top, 0) : top + layer.kernel, max(left, 0) : left + layer.kernel]
            y[:, :, h, v] = window.max((2, 3))
    return y


def compute(
    backend: Backend, kernel: Kernel, values: dict[str, NDArray[np.uint8]]
) -> dict[str, NDArray[np.uint8]]:
    """Run a task and return all its operands."""
    try:
        stream = backend.stream("compute")
        places = {name: backend.allocate(array.size) for name, array in values.items()}
        for name, array in values.items():
            backend.write(places[name], array)
        addresses = {word: places[name] for word, name in kernel.operands.items()}
        if kernel.workspace_bytes:
            addresses["workspace"] = backend.allocate(kernel.workspace_bytes)
        stream.launch(backend.prepare(kernel), addresses, FIRST)
        stream.record().synchronize()
        return {name: backend.read(places[name], array.size) for name, array in values.items()}
    finally:
        backend.close()


def usable_algorithms(kernel: Kernel) -> list[Kernel]:
    """The task with each algorithm that is not refused."""
    backend = CudaBackend()
    found = []
    try:
        for name, size in backend.algorithms(kernel):
            chosen = replace(kernel, algorithm=name, workspace_bytes=size)
            with contextlib.suppress(PebblerError):
                backend.prepare(chosen)
                found.append(chosen)
    finally:
        backend.close()
    return found


def variants() -> list[tuple[Kernel, int]]:
    return [(kernel, i) for i, kernel in enumerate(kernels())]


@pytest.mark.parametrize(("kernel", "seed"), variants(), ids=lambda value: getattr(value, "task", ""))
def test_every_task_computes_what_the_cpu_computes(
    fake_cuda: FakeCuda,  # noqa: F811
    kernel: Kernel,
    seed: int,
) -> None:
    values = draw(kernel, seed)
    cpu = CpuBackend()
    (name, size), *_ = cpu.algorithms(kernel)
    expected = compute(cpu, replace(kernel, algorithm=name, workspace_bytes=size), values)
    usable = usable_algorithms(kernel)
    assert len(usable) >= 1
    for chosen in usable:
        found = compute(CudaBackend(), chosen, values)
        for name, array in expected.items():
            if name.startswith("M("):
                np.testing.assert_array_equal(found[name], array)
            else:
                result, reference = (values.view(np.float32) for values in (found[name], array))
                np.testing.assert_allclose(result, reference, rtol=2e-4, atol=2e-5, equal_nan=True)
    changed = [name for name in expected if not np.array_equal(expected[name], values[name])]
    assert changed, "a task that changes nothing tests nothing"
    del fake_cuda


def test_the_network_of_this_test_uses_every_kernel(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    used = {
        call.name
        for kernel in kernels()
        for call in calls_of(usable_algorithms(kernel)[0])
        if isinstance(call, Own)
    }
    assert used | {"im2col", "col2im", "sum_parts"} == set(formats()), "these three: test_layer_streams"


def test_types_of_the_arguments_come_from_the_source() -> None:
    assert formats()["softmax_backward"] == "PPPifiil"
    assert formats()["dropout_forward"] == "PPPlIl"


def test_every_pass_tries_several_algorithms(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    for kernel in kernels():
        if kernel.layer.name == "wide" and kernel.role in ("FP", "BP1", "BP2"):
            found = {chosen.algorithm for chosen in usable_algorithms(kernel)}
            assert len(found) >= 4
            assert found < set(sum(ALGORITHMS.values(), ()))


def test_atomic_additions_are_told(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    backend = CudaBackend()
    kernel = next(k for k in kernels() if k.task == "BP2(wide)")
    try:
        assert backend.is_deterministic(replace(kernel, algorithm="algo-1"))
        assert not backend.is_deterministic(replace(kernel, algorithm="algo-0"))
    finally:
        backend.close()


@pytest.mark.parametrize(
    ("algorithm", "workspace", "said"),
    [
        ("implicit-precomp-gemm", 4, "needs .* bytes of workspace, and the schedule plans 4"),
        ("winograd", 0, "cannot compute it"),
        ("magic", 0, "has no algorithm 'magic'"),
    ],
)
def test_an_algorithm_that_will_not_do_is_refused(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    algorithm: str,
    workspace: int,
    said: str,
) -> None:
    kernel = next(k for k in kernels() if k.task == "FP(wide)")
    backend = CudaBackend()
    try:
        with pytest.raises(PebblerError, match=rf"'FP\(wide\)'.*{said}"):
            backend.prepare(replace(kernel, algorithm=algorithm, workspace_bytes=workspace))
    finally:
        backend.close()
