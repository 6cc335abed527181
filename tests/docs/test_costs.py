"""The page of the cost model: its tables are those of the script, on the published timings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from statistics import fmean

import pytest
from matplotlib.image import imread

import costs
import fit_costs
import timings
from pebbler.instances.devices import roofline
from pebbler.instances.devices.device import Precision, find_device
from pebbler.instances.devices.roofline import Convolution, convolution_algorithms
from pebbler.instances.workload import Workload

ROOT = Path(__file__).parents[2]
DATA = ROOT / timings.DATA


def test_the_page_has_what_the_script_writes() -> None:
    text = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
    written = text.split(costs.BEGIN)[1].split(costs.END)[0]
    singles, halves = timings.layers(DATA), timings.layers(DATA, "fp16")
    assert written == costs.report(singles, halves, timings.networks(DATA))
    written = text.split(costs.BEGIN_PAPERS)[1].split(costs.END_PAPERS)[0]
    assert written == costs.papers()


def test_shares_by_hand() -> None:
    share = costs.Share((1.0, 2.0, 0.5, 1.25, 0.8))
    assert share.cells(0.3) == ["5", "1.00", "0.80 to 1.25", "60 %"]
    assert costs.Share((2.0,)).cells(0.3) == ["1", "2.00", "2.00 to 2.00", "0 %"]


def test_a_layer_has_the_time_of_its_fastest_algorithm() -> None:
    conv = Convolution(8, 64, 64, 54, 54, 54, 54, 3, 3, 1, 1)
    timing = timings.LayerTiming("TitanX", "5.1", conv, "BP2", 0.559)
    algorithms = convolution_algorithms(find_device("TitanX", "5.1"), conv, "BP2")
    assert costs.layer_ms(timing) == min(item.duration_ns for item in algorithms) / 1e6


def test_a_network_has_no_loss_and_the_gradient_of_the_image_where_it_was_measured() -> None:
    plain = timings.NetworkTiming("K40", "5.0", "cnn-benchmarks", "vgg16", 16, False, 1.0, 1.0)
    instance = Workload("vgg16", 16, "K40", cudnn="5.0").round(16, 1)
    ideal = {task.name: min(item.duration_ns for item in task.algorithms) / 1e6 for task in instance.tasks}
    forward, backward = costs.network_ms(plain)
    loss = ideal["FP(loss)"] + ideal["BP1(loss)"]
    assert forward + backward == pytest.approx(sum(ideal.values()) - loss)
    image = Convolution(16, 3, 64, 224, 224, 224, 224, 3, 3, 1, 1)
    k40 = find_device("K40", "5.0")
    more = costs.network_ms(dataclasses.replace(plain, image_gradient=True))
    fastest = min(item.duration_ns for item in convolution_algorithms(k40, image, "BP1"))
    assert more == (forward, pytest.approx(backward + fastest / 1e6))


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    some = [t for t in timings.layers(DATA) if t.device in ("TitanX", "V100")]
    some += timings.layers(DATA, "fp16")
    file = tmp_path / "costs.png"
    file.write_bytes(costs.picture(some, timings.networks(DATA)))
    height, width, _ = imread(file).shape
    assert width > 2 * height > 0


def test_fitted_and_held_against_are_different_layers() -> None:
    every = timings.layers(DATA)
    fitted = [t for t in every if timings.is_fitted(t)]
    assert 0.4 < len(fitted) / len(every) < 0.6
    layers: dict[bool, set[Convolution | timings.Product]] = {True: set(), False: set()}
    for timing in every:
        shape = timing.shape
        if isinstance(shape, Convolution):
            shape = dataclasses.replace(shape, batch=1)
        layers[timings.is_fitted(timing)].add(shape)
    assert not layers[True] & layers[False]
    whole = timings.networks(DATA)
    assert {t.device for t in whole if timings.is_fitted(t)} == {"K40"}
    assert sum(map(timings.is_fitted, whole)) == 4


@pytest.mark.parametrize("device", ["TitanX", "V100"])
def test_efficiencies_of_the_packaged_devices_are_those_that_fit(device: str) -> None:
    packaged = find_device(device)
    mine = [t for t in timings.layers(DATA) if t.device == device and timings.is_fitted(t)]
    products = [t for t in mine if not isinstance(t.shape, Convolution)]
    convolutions = [t for t in mine if isinstance(t.shape, Convolution)]
    assert fit_costs.fit_layers(products, "gemm_efficiency", {}) == packaged.gemm_efficiency
    beside = {"gemm_efficiency": packaged.gemm_efficiency}
    found = fit_costs.fit_layers(convolutions, "convolution_efficiency", beside)
    assert found == packaged.convolution_efficiency


def test_the_k40_is_fitted_to_four_networks() -> None:
    k40 = find_device("K40")
    mine = [t for t in timings.networks(DATA) if t.device == "K40" and timings.is_fitted(t)]
    assert fit_costs.fit_networks(mine) == {
        "convolution_efficiency": k40.convolution_efficiency,
        "gemm_efficiency": k40.gemm_efficiency,
    }


def test_constants_are_those_that_fit() -> None:
    """The committed constants are no worse than neighbours, on the devices that they were fitted on."""
    mine = {
        device: [
            t
            for t in timings.layers(DATA)
            if t.device == device and timings.is_fitted(t) and isinstance(t.shape, Convolution)
        ]
        for device in fit_costs.FOUND
    }

    def loss(values: dict[str, float]) -> float:
        with fit_costs.constants(values):
            return fmean(fit_costs.distance(t.ms / costs.layer_ms(t) for t in some) for some in mine.values())

    committed = {name: getattr(roofline, name) for name in fit_costs.START}
    least = loss(committed)
    for name, value in committed.items():
        for factor in (0.9, 1.1):
            assert loss({**committed, name: min(value * factor, 1.0)}) > least


def test_constants_of_tensor_cores_are_those_that_fit() -> None:
    mine = [t for t in timings.layers(DATA, "fp16") if t.device == "V100" and timings.is_fitted(t)]
    assert fit_costs.fit_tensor_cores(mine) == {
        "TENSOR_SPEED": roofline.TENSOR_SPEED,
        "TENSOR_CONVOLUTION_SPEED": roofline.TENSOR_CONVOLUTION_SPEED,
    }


def test_half_precision_is_split_as_single_precision_is() -> None:
    fitted = {t.shape for t in timings.layers(DATA) if timings.is_fitted(t)}
    for timing in timings.layers(DATA, "fp16"):
        shape = timing.shape
        if isinstance(shape, Convolution):
            shape = dataclasses.replace(shape, value_bytes=4)
        assert timings.is_fitted(timing) == (shape in fitted)


# --- the aims, as far as they are reached -------------------------------------------------------------


def shares(*, passes: tuple[str, ...], precision: Precision = "fp32") -> dict[str, costs.Share]:
    found: dict[str, list[float]] = {}
    for timing in timings.layers(DATA, precision):
        if isinstance(timing.shape, Convolution) and timing.which in passes and not timings.is_fitted(timing):
            found.setdefault(timing.device, []).append(timing.ms / costs.layer_ms(timing))
    return {device: costs.Share(tuple(ratios)) for device, ratios in found.items()}


def test_single_layers_are_near_in_the_middle() -> None:
    for passes in (("FP",), ("BP1", "BP2")):
        for share in shares(passes=passes).values():
            assert 0.9 <= round(share.median, 2) <= 1.1


def test_half_precision_on_tensor_cores_is_near() -> None:
    forward = shares(passes=("FP",), precision="fp16")["V100"]
    backward = shares(passes=("BP1", "BP2"), precision="fp16")["V100"]
    assert 0.9 <= round(forward.median, 2) <= 1.1
    assert round(backward.median, 2) <= 1.15
    assert min(forward.near(costs.NEAR), backward.near(costs.NEAR)) > 0.6


def test_most_forward_passes_and_more_than_half_of_the_backward_ones_are_within_30_percent() -> None:
    assert all(share.near(costs.NEAR) > 0.75 for share in shares(passes=("FP",)).values())
    assert all(share.near(costs.NEAR) > 0.5 for share in shares(passes=("BP1", "BP2")).values())


def test_whole_networks_to_which_nothing_is_fitted_are_near() -> None:
    near = {"K40": 1.0, "TitanX": 0.85, "TitanXPascal": 0.85}
    for device, least in near.items():
        ratios = [
            costs.network_ratios(t)[2]
            for t in timings.networks(DATA)
            if t.device == device and not timings.is_fitted(t)
        ]
        assert costs.Share(tuple(ratios)).near(costs.NEAR_NETWORK) >= least
