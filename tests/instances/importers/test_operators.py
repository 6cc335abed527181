from __future__ import annotations

from itertools import product

import pytest

from pebbler.instances.devices.device import Device, find_device
from pebbler.instances.devices.roofline import (
    Convolution,
    convolution_algorithms,
    memory_bound_algorithms,
    product_algorithms,
)
from pebbler.instances.importers.operators import (
    Operator,
    OperatorGraph,
    Storage,
    operator_algorithms,
    operator_instance,
)
from pebbler.instances.origin import LayerTasks, Origin

CONVOLUTION = Convolution(
    batch=64,
    in_channels=128,
    out_channels=128,
    in_height=56,
    in_width=56,
    out_height=56,
    out_width=56,
    kernel_h=3,
    kernel_w=3,
    stride=1,
    pad=1,
)


@pytest.fixture
def device() -> Device:
    return find_device("k40")


def operator(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], **fields: object) -> Operator:
    given = {
        "module": "layer",
        "module_kind": "Linear",
        "direction": "forward",
        "updates": (),
        "flops": 0,
        "elements": 1000,
        "moved_bytes": 12_000,
        **fields,
    }
    return Operator(name=name, inputs=inputs, outputs=outputs, **given)  # type: ignore[arg-type]


@pytest.fixture
def graph() -> OperatorGraph:
    """A layer with weights, forward and backward, and the update of a running mean."""
    storages = (
        Storage("W", 400, "parameter"),
        Storage("X", 1000, "input"),
        Storage("mean", 40, "buffer"),
        Storage("Y", 2000, "data"),
        Storage("dW", 400, "gradient"),
        Storage("two", 8, "constant"),
    )
    operators = (
        operator("FP(layer mm)", (0, 1), (3,)),
        operator("FP(norm add_)", (5,), (), updates=(2,), module="norm", module_kind="BatchNorm2d"),
        operator("BP(layer mm)", (1,), (4,), updates=(3,), direction="backward"),
    )
    return OperatorGraph(storages, operators)


def test_parameters_gradients_buffers_and_constants_are_resident(
    graph: OperatorGraph, device: Device
) -> None:
    instance = operator_instance(
        graph, device, name="it", engines="single", rounds=3, origin=Origin(batch=7), meta={"mine": 1}
    )
    assert instance.resident_bytes == 400 + 40 + 400 + 8
    assert [(block.name, block.bytes, block.initially) for block in instance.blocks] == [
        ("X", 1000, "device"),
        ("Y", 2000, "absent"),
    ]
    assert [(task.inputs, task.outputs, task.updates) for task in instance.tasks] == [
        ((0,), (1,), ()),
        ((), (), ()),
        ((0,), (), (1,)),
    ]
    assert (instance.name, instance.engines, instance.rounds) == ("it", "single", 3)
    assert (instance.origin, instance.meta) == (Origin(batch=7), {"mine": 1})
    assert instance.layers == (
        LayerTasks(name="layer", kind="Linear", forward=(0,), backward=(2,)),
        LayerTasks(name="norm", kind="BatchNorm2d", forward=(1,), backward=()),
    )


def test_a_module_that_computes_a_convolution_is_of_kind_conv(graph: OperatorGraph, device: Device) -> None:
    convolving = operator("FP(c)", (1,), (3,), convolution=CONVOLUTION, passes=("FP",))
    padded = operator("FP(pad)", (1,), ())
    made = OperatorGraph(graph.storages, (padded, convolving))
    layers = operator_instance(
        made, device, name="it", engines="duplex", rounds=1, origin=Origin(), meta={}
    ).layers
    assert layers == (LayerTasks(name="layer", kind="conv", forward=(0, 1), backward=()),)


def test_work_that_only_moves_data_takes_its_bytes_and_a_product_its_operations(device: Device) -> None:
    moving = operator("FP(add)", (1,), (3,), moved_bytes=10**9)
    assert operator_algorithms(device, moving) == memory_bound_algorithms(device, 10**9)
    multiplying = operator("FP(mm)", (1,), (3,), flops=2 * 10**12, elements=10**6, moved_bytes=10**9)
    assert operator_algorithms(device, multiplying) == product_algorithms(device, 10**12, 10**6, 10**9)


def test_products_take_the_peak_of_their_precision_where_the_device_has_it(device: Device) -> None:
    a100, v100 = find_device("a100"), find_device("v100")
    half, single = (
        operator("FP(mm)", (1,), (3,), flops=2 * 10**12, elements=10**6, precision=precision)
        for precision in ("bf16", "fp32")
    )
    fast, slow = operator_algorithms(a100, half)[0], operator_algorithms(a100, single)[0]
    assert (slow.duration_ns - a100.launch_ns) / (fast.duration_ns - a100.launch_ns) == pytest.approx(
        16 * 0.96
    )
    for other in (device, v100):
        assert operator_algorithms(other, half) == operator_algorithms(other, single)


def test_tf32_is_used_in_convolutions_but_not_on_a_gpu_of_amd() -> None:
    rough, exact = (
        operator("c", (1,), (3,), convolution=CONVOLUTION, passes=("BP2", "BP1"), precision=precision)
        for precision in ("tf32", "fp32")
    )
    h100, mi300x = find_device("h100"), find_device("mi300x")
    assert operator_algorithms(h100, rough)[-1].duration_ns < operator_algorithms(h100, exact)[-1].duration_ns
    assert operator_algorithms(mi300x, rough) == operator_algorithms(mi300x, exact)


def test_a_convolution_in_one_pass_has_the_algorithms_of_the_cost_model(device: Device) -> None:
    for which in ("FP", "BP1", "BP2"):
        single = operator("conv", (1,), (3,), convolution=CONVOLUTION, passes=(which,))
        assert operator_algorithms(device, single) == convolution_algorithms(device, CONVOLUTION, which)


def test_both_gradients_in_one_operator_share_the_workspace(device: Device) -> None:
    both = operator("conv", (1,), (3,), convolution=CONVOLUTION, passes=("BP2", "BP1"))
    found = operator_algorithms(device, both)
    pairs = list(product(*(convolution_algorithms(device, CONVOLUTION, which) for which in ("BP2", "BP1"))))
    for algorithm in found:
        assert algorithm.duration_ns == min(
            a.duration_ns + b.duration_ns
            for a, b in pairs
            if max(a.workspace_bytes, b.workspace_bytes) <= algorithm.workspace_bytes
        )
    assert len(found) > 2
    assert found[0].workspace_bytes == 0
    assert found[-1].duration_ns == min(a.duration_ns + b.duration_ns for a, b in pairs)
    workspaces = [algorithm.workspace_bytes for algorithm in found]
    assert workspaces == sorted(set(workspaces))
