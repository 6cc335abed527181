"""Sums that CUDA cuts into parts: statistics and gradients of a channel, losses of many positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MappingProxyType

import numpy as np
import pytest
from numpy.typing import NDArray

from pebbler.instances.networks.builder import NetworkBuilder
from pebbler.instances.networks.network import Network
from pebbler.instances.networks.taskgraph import task_graph
from pebbler.instances.networks.zoo import find_network
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.cuda.backend import CudaBackend
from pebbler.validate.execution.cuda.calls import Own, calls_of, cut, scratch_bytes
from pebbler.validate.execution.device import Backend
from pebbler.validate.execution.kernel import Kernel, kernels_of, resident

from ....fakecuda.fixtures import FakeCuda, _loaded_fake_cuda, fake_cuda  # noqa: F401

Arrays = dict[str, NDArray[np.uint8]]


@dataclass(frozen=True)
class Sizes:
    """Of a layer; `parts` is what a sum over a channel is cut into."""

    images: int
    channels: int
    height: int
    width: int
    parts: int


SIZES = {
    "uneven": Sizes(3, 5, 37, 41, 3),
    "small planes": Sizes(300, 3, 3, 5, 3),
    "planes of a block": Sizes(9, 7, 16, 16, 2),
    "no planes": Sizes(5000, 3, 1, 1, 3),
    "one channel": Sizes(2, 1, 70, 61, 5),
    "one image": Sizes(1, 2, 50, 101, 3),
    "a single value": Sizes(1, 4, 1, 1, 1),
    "a single value of one channel": Sizes(1, 1, 1, 1, 1),
    "more channels than parts": Sizes(3, 4100, 1, 3, 1),
}


def network(sizes: Sizes) -> Network:
    """One layer of each kind that sums over much."""
    net = NetworkBuilder("sums")
    x = net.conv("conv", net.input(1, sizes.height, sizes.width), sizes.channels, 1, groups=1)
    x = net.scale("scale", net.layer_norm("norm", net.bn("bn", x)))
    net.softmax("pixels", net.conv("classes", x, 3, 1))
    return net.finish(batch=sizes.images, source="tests")


@cache
def kernels(sizes: Sizes) -> Mapping[str, Kernel]:
    graph = task_graph(network(sizes), sizes.images)
    return MappingProxyType({kernel.task: kernel for kernel in kernels_of(graph, sizes.images)})


TASKS = ["FP(bn)", "BP1(bn)", "FP(norm)", "BP1(norm)", "BP1(scale)", "BP2(conv)", "FP(pixels)"]


def draw(sizes: Sizes, kernel: Kernel, *, whole: bool = False) -> Arrays:
    """Operands by name: normally distributed, with the statistics of x; or whole numbers, with easy ones."""
    graph = task_graph(network(sizes), sizes.images)
    bytes_of = {block.name: block.bytes for block in graph.blocks}
    bytes_of |= dict(resident(graph.network, sizes.images))
    rng = np.random.default_rng(7)
    found = {}
    for word, name in kernel.operands.items():
        count = bytes_of[name] // 4
        if word == "labels":
            found[name] = rng.integers(3, size=count, dtype=np.int32).view(np.uint8)
        elif whole:
            found[name] = rng.integers(-9, 10, size=count).astype(np.float32).view(np.uint8)
        else:
            found[name] = (rng.standard_normal(count, dtype=np.float32) + 2).view(np.uint8)
    if "saved" in kernel.operands and kernel.role != "FP":
        x = found[kernel.operands["x0"]].view(np.float32).reshape(sizes.images, sizes.channels, -1)
        axes = (0, 2) if kernel.layer.kind.name == "bn" else (1,)
        mean, inverse = x.mean(axes), 1 / np.sqrt(x.var(axes) + np.float32(1e-5))
        if whole:
            mean, inverse = np.full_like(mean, 2), np.ones_like(inverse)
        saved = np.stack([mean, inverse], axis=0 if kernel.layer.kind.name == "bn" else 1)
        found[kernel.operands["saved"]] = saved.astype(np.float32).reshape(-1).view(np.uint8)
    return found


def run_all(backend: Backend, runs: Sequence[tuple[Kernel, Arrays]]) -> list[Arrays]:
    """Prepare all tasks, run one after the other, and return the operands of each; the backend is closed.

    Each has the first of its algorithms that always gives the same bits.
    """
    try:
        stream = backend.stream("compute")
        prepared = []
        for kernel, values in runs:
            name, size = next(
                one
                for one in backend.algorithms(kernel)
                if backend.is_deterministic(replace(kernel, algorithm=one[0]))
            )
            places = {word: backend.allocate(array.size) for word, array in values.items()}
            for name_of, array in values.items():
                backend.write(places[name_of], array)
            addresses = {word: places[name_of] for word, name_of in kernel.operands.items()}
            addresses["workspace"] = backend.allocate(size)
            launch = backend.prepare(replace(kernel, algorithm=name, workspace_bytes=size))
            prepared.append((launch, addresses, places))
        for launch, addresses, _ in prepared:
            stream.launch(launch, addresses, 0)
        stream.record().synchronize()
        return [
            {name: backend.read(places[name], array.size) for name, array in values.items()}
            for (_, _, places), (_, values) in zip(prepared, runs, strict=True)
        ]
    finally:
        backend.close()


def run(backend: Backend, kernel: Kernel, values: Arrays) -> Arrays:
    return run_all(backend, [(kernel, values)])[0]


def adding(kernel: Kernel) -> Kernel:
    """The task that adds to all gradients."""
    words = (word for word in kernel.operands if word.startswith("dx") or word == "dw")
    return replace(kernel, adds=frozenset(words))


def without_inputs(kernel: Kernel) -> Kernel:
    """The task that gives the gradients of the weights alone."""
    operands = {word: name for word, name in kernel.operands.items() if word != "dx0"}
    return replace(kernel, operands=MappingProxyType(operands), adds=kernel.adds - {"dx0"})


CHANGES = {
    "writes": lambda kernel: replace(kernel, adds=frozenset()),
    "adds": adding,
    "weights alone": without_inputs,
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("task", TASKS)
def test_sums_of_parts_are_those_of_the_cpu(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    sizes: Sizes,
    task: str,
) -> None:
    for change in CHANGES.values():
        kernel = change(kernels(sizes)[task])
        values = draw(sizes, kernel)
        found, expected = (run(backend, kernel, values) for backend in (CudaBackend(), CpuBackend()))
        for name, array in expected.items():
            result, reference = (one.view(np.float32) for one in (found[name], array))
            scale = max(1.0, float(np.abs(reference).max())) if not name.startswith("labels") else 1.0
            np.testing.assert_allclose(result, reference, rtol=2e-4, atol=2e-5 * scale)
        assert any(not np.array_equal(expected[name], values[name]) for name in expected)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("task", ["BP1(bn)", "BP1(norm)", "BP1(scale)", "BP2(conv)"])
def test_every_value_counts_once(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    sizes: Sizes,
    task: str,
) -> None:
    """Sums of whole numbers are exact in any order."""
    for change in (adding, without_inputs):
        kernel = change(kernels(sizes)[task])
        values = draw(sizes, kernel, whole=True)
        x, dy = (
            values[kernel.operands[word]].view(np.float32).reshape(sizes.images, channels, -1)
            for word, channels in (("x0", kernel.sources[0].channels), ("dy", sizes.channels))
        )
        mean = 2 if "saved" in kernel.operands else 0
        of_factors, of_shifts = ((x - mean) * dy).sum((0, 2)), dy.sum((0, 2))
        expected = {"bn": [of_factors, of_shifts], "norm": [of_factors, of_shifts], "scale": [of_factors]}
        expected["conv"] = [of_factors, of_shifts]  # of one input channel and a window of 1 x 1
        before = values[kernel.operands["dw"]].view(np.float32) if "dw" in kernel.adds else 0
        found = run(CudaBackend(), kernel, values)[kernel.operands["dw"]].view(np.float32)
        np.testing.assert_array_equal(found, before + np.concatenate(expected[kernel.layer.kind.name]))


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_the_number_of_parts_follows_from_the_sizes(sizes: Sizes) -> None:
    count = sizes.images * sizes.height * sizes.width
    parts, size = cut(count, sizes.channels)
    assert parts == sizes.parts
    assert (parts - 1) * size < count <= parts * size


def test_bits_depend_on_no_delay_and_on_nothing_that_lies_about(fake_cuda: FakeCuda) -> None:  # noqa: F811
    sizes = SIZES["uneven"]
    runs = [(kernel, draw(sizes, kernel)) for task in TASKS for kernel in (adding(kernels(sizes)[task]),)]
    alone = [run(CudaBackend(), *one) for one in runs]
    for seed in (1, 2):
        fake_cuda.configure(delay_us=500, seed=seed)
        order = np.random.default_rng(seed).permutation(len(runs))
        found = run_all(CudaBackend(), [runs[i] for i in order])
        for i, one in zip(order, found, strict=True):
            assert all(np.array_equal(one[name], array) for name, array in alone[i].items())


def test_tasks_of_all_sizes_share_the_scratch_memory(fake_cuda: FakeCuda) -> None:  # noqa: F811
    small, large = SIZES["a single value"], Sizes(2, 40, 70, 61, 5)
    chosen = [(sizes, kernels(sizes)[task]) for task in TASKS[:2] for sizes in (small, large, small)]
    needed = [scratch_bytes(calls_of(kernel)) for _, kernel in chosen]
    assert 0 < needed[0] < needed[1]
    runs = [(kernel, draw(sizes, kernel)) for sizes, kernel in chosen]
    fake_cuda.configure(delay_us=300, seed=4)
    together = run_all(CudaBackend(), runs)
    for one, found in zip(runs, together, strict=True):
        alone = run(CudaBackend(), *one)
        assert all(np.array_equal(found[name], array) for name, array in alone.items())
    assert fake_cuda.bytes_in_use() == 0


def test_scratch_memory_is_taken_once(fake_cuda: FakeCuda) -> None:  # noqa: F811
    backend = CudaBackend()
    try:
        for sizes in SIZES.values():
            backend.prepare(kernels(sizes)["FP(bn)"])
        taken = fake_cuda.bytes_in_use()
        assert taken > 0
        for sizes in SIZES.values():
            backend.prepare(kernels(sizes)["FP(bn)"])
        assert fake_cuda.bytes_in_use() == taken
    finally:
        backend.close()


def test_a_graph_keeps_the_scratch_memory_that_it_was_captured_with(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
) -> None:
    sizes = SIZES["uneven"]
    kernel, larger = (kernels(one)["FP(bn)"] for one in (sizes, Sizes(2, 40, 70, 61, 5)))
    assert 0 < scratch_bytes(calls_of(kernel)) < scratch_bytes(calls_of(larger))
    values = draw(sizes, kernel)
    expected = run(CudaBackend(), kernel, values)
    backend = CudaBackend()
    try:
        stream = backend.stream("compute")
        places = {name: backend.allocate(array.size) for name, array in values.items()}
        launch = backend.prepare(kernel)
        addresses = {word: places[name] for word, name in kernel.operands.items()}
        asked = partial(stream.launch, launch, addresses, 0)
        asked()
        graph = backend.capture([stream], [("FP(bn)", asked)])
        backend.prepare(larger)
        for name, array in values.items():
            backend.write(places[name], array)
        graph.launch()
        stream.record().synchronize()
        found = {name: backend.read(places[name], array.size) for name, array in values.items()}
    finally:
        backend.close()
    assert all(np.array_equal(found[name], array) for name, array in expected.items())


def test_batch_norm_keeps_a_large_gpu_busy() -> None:
    graph = task_graph(find_network("resnet50"), 32)
    norms = [one for one in kernels_of(graph, 32) if one.layer.kind.name == "bn" and one.role != "relu"]
    assert norms[0].layer.shape == (64, 112, 112)
    for kernel in norms:
        calls = calls_of(kernel)
        blocks = [
            call.blocks * call.rows
            for call in calls
            if isinstance(call, Own) and call.name.startswith(("sum_channels", "bn_"))
        ]
        assert len(blocks) >= 2
        assert min(blocks) >= (4000 if kernel.layer.shape == (64, 112, 112) else 500)
        assert scratch_bytes(calls) <= 2**15
