"""The page of the cost model: its tables are those of the script, on the published timings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from matplotlib.image import imread

import costs
import timings
from pebbler.instances.devices.device import find_device
from pebbler.instances.devices.roofline import Convolution, convolution_algorithms
from pebbler.instances.workload import Workload

ROOT = Path(__file__).parents[2]
DATA = ROOT / timings.DATA


def test_the_page_has_what_the_script_writes() -> None:
    text = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
    written = text.split(costs.BEGIN)[1].split(costs.END)[0]
    assert written == costs.report(timings.layers(DATA), timings.networks(DATA))


def test_shares_by_hand() -> None:
    share = costs.Share((1.0, 2.0, 0.5, 1.25, 0.8))
    assert share.cells() == ["5", "1.00", "0.80 to 1.25", "60 %"]
    assert costs.Share((2.0,)).cells() == ["1", "2.00", "2.00 to 2.00", "0 %"]


def test_a_layer_has_the_time_of_its_fastest_algorithm() -> None:
    conv = Convolution(8, 64, 64, 54, 54, 54, 54, 3, 3, 1, 1)
    timing = timings.LayerTiming("TitanX", "5.1", conv, "BP2", 0.559)
    algorithms = convolution_algorithms(find_device("TitanX"), conv, "BP2")
    assert costs.layer_ms(timing) == min(item.duration_ns for item in algorithms) / 1e6


def test_a_network_has_no_loss_and_the_gradient_of_the_image_where_it_was_measured() -> None:
    plain = timings.NetworkTiming("K40", "5.0", "cnn-benchmarks", "vgg16", 16, False, 1.0, 1.0)
    instance = Workload("vgg16", 16, "K40").round(16, 1)
    ideal = {task.name: min(item.duration_ns for item in task.algorithms) / 1e6 for task in instance.tasks}
    forward, backward = costs.network_ms(plain)
    loss = ideal["FP(loss)"] + ideal["BP1(loss)"]
    assert forward + backward == pytest.approx(sum(ideal.values()) - loss)
    image = Convolution(16, 3, 64, 224, 224, 224, 224, 3, 3, 1, 1)
    more = costs.network_ms(dataclasses.replace(plain, image_gradient=True))
    fastest = min(item.duration_ns for item in convolution_algorithms(find_device("K40"), image, "BP1"))
    assert more == (forward, pytest.approx(backward + fastest / 1e6))


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    some = [t for t in timings.layers(DATA) if t.device in ("TitanX", "V100")]
    file = tmp_path / "costs.png"
    file.write_bytes(costs.picture(some, timings.networks(DATA)))
    height, width, _ = imread(file).shape
    assert width > 2 * height > 0
