"""A kind of layers that is registered: both backends execute it; its gradients are differences of losses."""

from __future__ import annotations

import numpy as np
import pytest

from pebbler import check, solve
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.instances.networks import kinds, zoo
from pebbler.instances.networks.builder import NetworkBuilder
from pebbler.instances.networks.entry import Entry
from pebbler.instances.networks.kinds import LayerKind, find_kind, register_kind
from pebbler.instances.networks.zoo import find_network, register_network
from pebbler.instances.workload import Workload
from pebbler.validate.execution.cpu import kernels as cpu
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.cpu.operands import Operands
from pebbler.validate.execution.cuda import calls as cuda
from pebbler.validate.execution.cuda.backend import CudaBackend
from pebbler.validate.execution.data import initial
from pebbler.validate.execution.emit import emit
from pebbler.validate.execution.kernel import Kernel
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.execution.trial import attempt
from pebbler.validate.schedule import Schedule

from ....fakecuda.fixtures import FakeCuda, _loaded_fake_cuda, fake_cuda, repeatable  # noqa: F401

SOURCE = """
KERNEL(bend_forward, const float *x, const float *w, float *y, int positions, int channels, long n) {
  EACH(i, n) y[i] = w[i / positions % channels] * x[i] * x[i];
}

KERNEL(bend_backward, const float *dy, const float *x, const float *w, float *dx, int positions, int channels,
       int adds, long n) {
  EACH(i, n) {
    float value = 2 * w[i / positions % channels] * x[i] * dy[i];
    dx[i] = adds ? dx[i] + value : value;
  }
}

KERNEL(bend_weights, const float *dy, const float *x, float *dw, int positions, int images, int adds,
       long n) {
  EACH(c, n) {
    float sum = 0;
    for (int k = 0; k < images; ++k)
      for (int p = 0; p < positions; ++p) {
        long i = (k * n + c) * positions + p;
        sum += dy[i] * x[i] * x[i];
      }
    dw[c] = adds ? dw[c] + sum : sum;
  }
}
"""


def forward(at: Operands) -> None:
    at.target("y")[...] = at.weights("w")[:, None, None] * at.source("x", 0) ** 2


def backward(at: Operands) -> None:
    x, dy = at.source("x", 0), at.target("dy")
    at.gradient(0)[...] += 2 * at.weights("w")[:, None, None] * x * dy
    at.weights("dw")[...] += (dy * x**2).sum(axis=(0, 2, 3))


def calls(kernel: Kernel) -> list[cuda.Call]:
    shape, images = kernel.layer.shape, kernel.images
    values, sizes = images * shape.elements, (shape.positions, shape.channels)
    x, w, dy, dw = (cuda.Operand(word) for word in ("x0", "w", "dy", "dw"))
    if kernel.role == "FP":
        return [cuda.each("bend_forward", values, x, w, cuda.Operand("y"), *sizes)]
    adds = int("dx0" in kernel.adds)
    return [
        cuda.each("bend_backward", values, dy, x, w, cuda.Operand("dx0"), *sizes, adds),
        cuda.each(
            "bend_weights", shape.channels, dy, x, dw, shape.positions, images, int("dw" in kernel.adds)
        ),
    ]


def define(net: NetworkBuilder) -> None:
    """The kind twice: the first of two readers of a convolution adds to a gradient, and one has a ReLU."""
    x = net.conv("conv", net.input(3, 6, 6), 4, 3, pad=1)
    a = net.layer("bend1", "bend", x, parameters=4, relu=True)
    b = net.layer("bend2", "bend", x, parameters=4)
    net.softmax("loss", net.fc("fc", net.concat("both", a, b), 5))


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> LayerKind:
    """Register the kind with kernels and a network, until the test is over."""
    for module, table in (
        (kinds, "KINDS"),
        (zoo, "ENTRIES"),
        (cpu, "KERNELS"),
        (cuda, "REGISTERED"),
        (cuda, "SOURCES"),
    ):
        monkeypatch.setattr(module, table, dict(getattr(module, table)))
    kind = register_kind(LayerKind(name="bend", summary="w x^2", reads_inputs=True, scales=True))
    cpu.register_kernels(kind, {"FP": forward, "BP1": backward})
    cuda.register_calls(kind, calls, SOURCE)
    register_network("bent", Entry(define, 4, "test"))
    return kind


def case() -> tuple[Instance, Schedule]:
    """Two rounds, under the least budget."""
    instance = Workload("bent", 4, "K40").instance("1.0xMmin", 2, rounds=2)
    schedule = solve(instance, "modnn").schedule
    assert schedule is not None
    assert check(instance, schedule).valid
    return instance, schedule


def test_both_backends_execute_it(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    instance, schedule = case()
    on_cpu = attempt(instance, schedule, CpuBackend, repeat=1)
    on_cuda = attempt(repeatable(instance), schedule, CudaBackend, repeat=1)
    assert on_cpu.identical
    assert on_cuda.identical
    assert on_cuda.loss == pytest.approx(on_cpu.loss, rel=1e-5)
    gradients = on_cpu.median.gradients
    assert {"bend1", "bend2", "conv", "fc"} <= {name.removeprefix("dW(").rstrip(")") for name in gradients}
    for name, values in gradients.items():
        assert np.abs(values).max() > 0, name
        np.testing.assert_allclose(
            on_cuda.median.gradients[name], values, rtol=0, atol=1e-4 * np.abs(values).max()
        )


def test_its_gradients_are_the_differences_of_losses() -> None:
    instance, schedule = case()
    data = initial(find_network("bent"), 4)
    assert data["W(bend1)"].tolist() == [1, 1, 1, 1]
    gradients = attempt(instance, schedule, CpuBackend, repeat=1, data=data).median.gradients
    for layer in ("bend1", "bend2", "conv"):
        (slope,) = (values for name, values in gradients.items() if layer in name)
        step = 0.01 * slope / np.linalg.norm(slope)
        losses = []
        for sign in (-1, 1):
            moved = data | {f"W({layer})": (data[f"W({layer})"].reshape(-1) + sign * step).astype(np.float32)}
            losses.append(attempt(instance, schedule, CpuBackend, repeat=1, data=moved).loss)
        assert losses[1] - losses[0] == pytest.approx(0.02 * np.linalg.norm(slope), rel=0.02), layer


def test_scripts_have_its_kernels() -> None:
    instance, schedule = case()
    text = emit(instance, schedule, rebuild(instance))
    assert all(f"KERNEL({name}," in text for name in ("bend_forward", "bend_backward", "bend_weights"))


def test_a_kind_without_kernels_is_refused_and_its_schedules_are_not(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    register_kind(LayerKind(name="mute", summary="test"))

    def mute(net: NetworkBuilder) -> None:
        x = net.layer("mute", "mute", net.conv("conv", net.input(3, 6, 6), 4, 3))
        net.softmax("loss", net.fc("fc", x, 5))

    register_network("muted", Entry(mute, 4, "test"))
    instance = Workload("muted", 4, "K40").instance("1.0xMmin")
    schedule = solve(instance, "modnn").schedule
    assert schedule is not None
    for backend in (CpuBackend, CudaBackend):
        with pytest.raises(
            PebblerError, match=r"task 'FP\(mute\)': the backend .* has no kernels for .*'mute'"
        ):
            attempt(instance, schedule, backend)


def test_what_is_ours_is_not_replaced(own: LayerKind) -> None:
    for name in ("conv", "maxpool"):
        with pytest.raises(PebblerError, match=f"the CPU has kernels for '{name}' already"):
            cpu.register_kernels(find_kind(name), {"FP": forward, "BP1": backward})
        with pytest.raises(PebblerError, match=f"CUDA has kernels for '{name}' already"):
            cuda.register_calls(find_kind(name), calls)
    with pytest.raises(PebblerError, match="the CPU's kernels for 'bend' have no BP1; give one"):
        cpu.register_kernels(own, {"FP": forward})
    with pytest.raises(PebblerError, match="network 'vgg16' is there already; choose another name"):
        register_network("vgg16", Entry(define, 4, "test"))
    with pytest.raises(PebblerError, match="network 'a:b': write its name with letters"):
        register_network("a:b", Entry(define, 4, "test"))


def test_registering_again_replaces() -> None:
    before = find_network("bent")
    register_network("bent", Entry(lambda net: define(net), 9, "again"))
    assert (before.batch, find_network("bent").batch) == (4, 9)
    kind = register_kind(LayerKind(name="bend", summary="again", reads_inputs=True))
    assert find_kind("bend") is kind
    cpu.register_kernels(kind, {"FP": backward, "BP1": forward})
    cuda.register_calls(kind, calls, SOURCE.replace("const float *w, float *y", "float *w, float *y"))
    assert cuda.source().count("KERNEL(bend_forward,") == 1
