"""GLP4NN's models: the worked example, every layer of Table 5 by three ways, and where they break down."""

from __future__ import annotations

import signal
from itertools import product
from typing import Any

import numpy as np
import pytest

from glp4nn_cases import WORKED_EXAMPLE
from pebbler.instances.devices.caffe import TABLE_5, ConvLayer, caffe_kernels, find_layer
from pebbler.instances.devices.device import find_device
from pebbler.instances.devices.kernels import Kernel, LayerKernels
from pebbler.instances.devices.occupancy import ExecutionLimits, execution_limits
from pebbler.instances.errors import PebblerError
from pebbler.solver.linear.model import LinearResult
from pebbler.solver.streams.count import (
    CP_SAT,
    all_optima,
    best_by_cp_sat,
    best_by_linear,
    count_streams,
    default_solver,
)
from pebbler.solver.streams.glp4nn import MODELS, ModelName, StreamModel, stream_model

DEVICES = ("K40", "P100", "TitanXp", "A100", "H200")
K40 = find_device("K40")


def kernel(name: str, blocks: int, threads: int, shared: int, registers: int, us: int) -> Kernel:
    return Kernel(
        name=name,
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        shared_bytes=shared,
        registers=registers,
        duration_ns=1000 * us,
    )


@pytest.fixture
def conv1() -> LayerKernels:
    return WORKED_EXAMPLE


def solutions(model: StreamModel) -> tuple[np.ndarray, np.ndarray]:
    """All solutions of a model and their gains, by going through the whole box."""
    grid = np.stack(np.meshgrid(*(np.arange(most + 1) for most in model.most), indexing="ij"), -1)
    points = grid.reshape(-1, len(model.most))
    points = points[(points.sum(1) >= 1) & (points.sum(1) <= model.concurrency)]
    counted = points // model.step
    for resource, uses in model.use.items():
        kept = counted @ np.array(uses) <= model.capacity[resource]
        points, counted = points[kept], counted[kept]
    return points, counted @ np.array(model.gain)


def test_as_implemented_wants_the_three_streams_of_figure_6(conv1: LayerKernels) -> None:
    model = stream_model("as-implemented", conv1, execution_limits(K40))
    assert (model.most, model.gain, model.concurrency) == ((4, 2, 2), (614, 819, 1228), 8)
    count = count_streams(conv1, K40, "as-implemented")
    assert (count.streams, count.per_kernel) == (3, {"im2col": 2, "sgemm": 1, "gemmk1": 0})
    assert (count.optima, count.streams_range, all_optima(model).objective) == (2, (2, 3), 2047)


def test_corrected_wants_two_streams(conv1: LayerKernels) -> None:
    count = count_streams(conv1, K40, "corrected")
    assert (count.streams, count.per_kernel) == (2, {"im2col": 1, "sgemm": 0, "gemmk1": 1})


def test_as_printed_leaves_the_number_open(conv1: LayerKernels) -> None:
    count = count_streams(conv1, K40, "as-printed")
    assert (count.optima, count.streams_range) == (224, (15, 31))
    assert count.streams is None
    assert count.per_kernel is None


def test_with_the_blocks_of_table_2_the_optimum_is_the_three_of_figure_6(conv1: LayerKernels) -> None:
    """Eq. 7: 15 x 2048 threads hold im2col's 18 x 512 three times, and 15 x 48 KiB sgemm's 48 blocks once."""
    model = stream_model("as-printed-repaired", conv1, execution_limits(K40))
    assert (model.most, model.gain) == ((3, 1, 1), (512, 3 * 256, 4 * 256))
    points, gains = solutions(model)
    assert points[gains == gains.max()].tolist() == [[2, 0, 1]]
    count = count_streams(conv1, K40, "as-printed-repaired")
    assert (count.optima, count.streams_range, count.streams) == (1, (3, 3), 3)


def test_figure_6_comes_out_of_derived_kernels_too() -> None:
    """Only im2col fits the device, three times, whatever tiles the products have."""
    kernels = caffe_kernels(K40, find_layer("caffenet/conv1").conv, "forward")
    count = count_streams(kernels, K40, "as-printed-repaired")
    assert (count.streams, count.per_kernel) == (3, {"im2col": 3, "sgemm": 0, "gemmk1": 0})


def test_a_layer_whose_kernels_all_exceed_the_device_has_no_repaired_solution() -> None:
    """Eq. 7 lets no kernel run even once."""
    one = LayerKernels(t_launch_ns=5000, kernels=(kernel("k", 121, 256, 0, 32, 50),))
    with pytest.raises(PebblerError, match="no kernel of the layer fits the limits of the model even once"):
        count_streams(one, K40, "as-printed-repaired")


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(layer, id=layer.name, marks=[pytest.mark.slow] if i % 9 else [])
        for i, layer in enumerate(TABLE_5)
    ],
)
def test_every_way_to_solve_a_model_agrees_on_every_layer_and_device(layer: ConvLayer) -> None:
    solver = default_solver()
    for device, name in product(map(find_device, DEVICES), MODELS):
        kernels = caffe_kernels(device, layer.conv, "forward")
        model = stream_model(name, kernels, execution_limits(device))
        points, gains = solutions(model)
        optima = points[gains == gains.max()]
        streams = [model.streams(int(total)) for total in optima.sum(1)]
        found = all_optima(model)
        assert found.objective == gains.max() == best_by_linear(model, solver) == best_by_cp_sat(model)
        assert (found.count, found.least, found.greatest) == (len(optima), min(streams), max(streams))
        if name == "corrected":
            assert found.chosen == min(map(tuple, optima.tolist()), key=lambda n: (sum(n), n))
        if name == "as-implemented":
            assert found.chosen == max(map(tuple, optima.tolist()), key=lambda n: (sum(n), n))


@pytest.mark.parametrize("name", MODELS)
def test_backward_passes_are_solved_too(name: ModelName) -> None:
    """Five kernels; CP-SAT on its own, and the count."""
    device = find_device("TitanXp")
    kernels = caffe_kernels(device, TABLE_5[1].conv, "backward")
    assert len(kernels.kernels) == 5
    assert count_streams(kernels, device, name, solver=CP_SAT).solver == CP_SAT


def test_the_bound_as_printed_is_the_greatest_that_equation_7_allows() -> None:
    """#K_i tau_i beta_i <= tau_max #SM and the same of shared memory, with beta_i = #K_i div #SM."""
    rng = np.random.default_rng(7)
    limits = execution_limits(K40)
    bounds = set()
    for _ in range(200):
        threads, shared, us = (int(rng.integers(*span)) for span in ((32, 1025), (0, 40_000), (1, 400)))
        one = LayerKernels(t_launch_ns=5000, kernels=(kernel("k", 5, threads, shared, 16, us),))
        (most,) = stream_model("as-printed", one, limits).most
        fitting = [
            n
            for n in range(min(-(-us // 5), 32) + 1)
            if n * threads * (n // 15) <= 2048 * 15 and n * shared * (n // 15) <= 49_152 * 15
        ]
        assert most == fitting[-1] == len(fitting) - 1
        bounds.add((most, -(-us // 5)))
    assert any(most < min(launched, 32) for most, launched in bounds)


def test_grids_of_whole_waves_break_the_authors_arithmetic() -> None:
    """8 blocks of 256 threads on each of 15 multiprocessors: 120 a wave."""
    one = LayerKernels(t_launch_ns=5000, kernels=(kernel("sgemm", 240, 256, 0, 32, 50),))
    with pytest.raises(PebblerError, match="'sgemm': its 240 blocks are whole waves of 120"):
        count_streams(one, K40, "as-implemented")
    assert count_streams(one, K40, "corrected").streams == 1
    single = LayerKernels(t_launch_ns=5000, kernels=(kernel("sgemm", 120, 256, 0, 32, 50),))
    assert count_streams(single, K40, "as-implemented").streams == 1


def test_a_single_kernel_as_implemented_falls_back_to_the_greatest_bound() -> None:
    """The program sets C_out to the greatest bound where the sum is one: 100 blocks fit 120 once."""
    kernels = (kernel("a", 100, 256, 0, 32, 50), kernel("b", 2, 1024, 0, 32, 50))
    model = stream_model(
        "as-implemented", LayerKernels(t_launch_ns=5000, kernels=kernels), execution_limits(K40)
    )
    assert model.most == (2, 10)
    assert model.streams(1) == 10
    assert model.streams(2) == 2


def test_as_implemented_shortens_kernels_of_several_waves_of_shared_memory() -> None:
    """q = 11 blocks a multiprocessor of m = 5: the last wave has 1, so a time of 1/11 of 110 us counts."""
    one = LayerKernels(t_launch_ns=5000, kernels=(kernel("sgemm", 163, 64, 8448, 32, 110),))
    limits = execution_limits(K40)
    assert stream_model("as-implemented", one, limits).most == (2,)  # ceil(10 / 5), not 22; ceil(75 / 13) = 6


def test_a_choice_is_only_made_where_there_is_a_rule_or_no_choice(conv1: LayerKernels) -> None:
    limits = execution_limits(K40)
    assert all_optima(stream_model("as-printed", conv1, limits)).chosen is None
    short = LayerKernels(t_launch_ns=5000, kernels=(kernel("k", 30, 256, 0, 32, 4),))
    assert count_streams(short, K40, "as-printed").streams == 1


def test_a_model_without_solution_says_so() -> None:
    model = StreamModel(("k",), (3,), (5,), {"threads": (9,)}, {"threads": 8}, 4)
    for way in (all_optima, best_by_cp_sat, lambda m: best_by_linear(m, "highs")):
        with pytest.raises(
            PebblerError, match=r"fits the limits of the model|no optimum of the stream model"
        ):
            way(model)


def test_solver_and_count_must_agree(conv1: LayerKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pebbler.solver.streams.count.best_by_linear", lambda *_: 1)
    with pytest.raises(AssertionError, match="says 1, the count of all solutions 27648"):
        count_streams(conv1, K40, "corrected")


def test_a_point_within_tolerances_only_is_no_optimum(
    conv1: LayerKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stream_model("corrected", conv1, execution_limits(K40))
    assert model.admits((1, 0, 1))
    assert not model.admits((0, 1, 1))  # registers
    assert not model.admits((7, 0, 0))
    assert not model.admits((0, 0, 0))
    wrong = LinearResult("optimal", -30720.0, np.array([0.0, 1.0, 1.0]), -30720.0, "")
    monkeypatch.setattr("pebbler.solver.streams.count.solve_linear", lambda *_, **__: wrong)
    with pytest.raises(PebblerError, match="within its tolerances only; take --solver cp-sat"):
        best_by_linear(model, "highs")


def test_a_block_that_does_not_fit_is_refused_by_every_model() -> None:
    limits: ExecutionLimits = execution_limits(K40)
    large: dict[str, Any] = {"t_launch_ns": 5, "kernels": (kernel("k", 1, 32, 60_000, 16, 9),)}
    for name in MODELS:
        with pytest.raises(PebblerError, match="needs 60000 bytes of shared memory"):
            stream_model(name, LayerKernels(**large), limits)


def test_ctrl_c_works_after_cp_sat_has_searched(conv1: LayerKernels) -> None:
    best_by_cp_sat(stream_model("corrected", conv1, execution_limits(find_device("K40"))))
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_more_ways_than_can_be_counted_are_refused() -> None:
    kernels = tuple(
        Kernel(
            name=str(i),
            grid=(1 + i % 7, 1 + i % 3, 1),
            block=(32 * (1 + i % 32), 1, 1),
            shared_bytes=64 * i,
            registers=16 + i % 48,
            duration_ns=1000 + 370 * i,
        )
        for i in range(100)
    )
    layer = LayerKernels(t_launch_ns=100, kernels=kernels)
    with pytest.raises(PebblerError, match="too many ways to count"):
        count_streams(layer, find_device("k40"), "corrected")
