"""Published timings: which rows are matched, and with what."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from pathlib import Path

import pytest

import timings
from pebbler.instances.devices.roofline import Convolution
from pebbler.instances.networks.zoo import find_network

ROOT = Path(__file__).parents[2]
DATA = ROOT / timings.DATA


def test_a_row_of_deepbench_is_three_passes_of_a_convolution() -> None:
    # TitanX,5,fp32,341,79,32,4,32,10,5,0,0,2,2,0.735,3.092,0.759,IMPLICIT_PRECOMP_GEMM
    conv = Convolution(4, 32, 32, 79, 341, 38, 166, 5, 10, 2, 0)
    found = [t for t in timings.layers(DATA) if t.shape == conv and t.device == "TitanX"]
    assert [(t.which, t.ms, t.cudnn) for t in found] == [
        ("FP", 0.735, "5.1"),
        ("BP1", 3.092, "5.1"),
        ("BP2", 0.759, "5.1"),
    ]
    assert {t.algorithm for t in found} == {"IMPLICIT_PRECOMP_GEMM", ""}


def test_half_precision_is_read_apart_with_numbers_of_two_bytes() -> None:
    # V100,7.6.2.24,"FP16 ip, Mixed math",341,79,32,4,32,10,5,0,0,2,2,0.102,0.097,0.169,IMPLICIT_PRECOMP_GEMM
    conv = Convolution(4, 32, 32, 79, 341, 38, 166, 5, 10, 2, 0, value_bytes=2)
    found = timings.layers(DATA, "fp16")
    row = [t for t in found if t.shape == conv and t.device == "V100"]
    assert [(t.which, t.ms, t.series) for t in row] == [
        ("FP", 0.102, "V100 fp16"),
        ("BP1", 0.097, "V100 fp16"),
        ("BP2", 0.169, "V100 fp16"),
    ]
    assert {t.device for t in found} == {"P100", "V100"}
    assert {t.precision for t in timings.layers(DATA)} == {"fp32"}
    assert len([t for t in found if isinstance(t.shape, timings.Product)]) == 2 * 160


def test_passes_that_were_not_measured_are_left_out_and_cut_words_mended() -> None:
    found = timings.layers(DATA)
    first = [t for t in found if isinstance(t.shape, Convolution) and t.shape.in_channels == 1]
    assert "BP1" not in {t.which for t in first if t.device == "TitanX"}
    assert "LICIT_PRECOMP_GEMM" not in {t.algorithm for t in found}


def test_networks_end_in_shapes_as_they_were_measured() -> None:
    late = find_network(timings.NETWORKS["resnet-50"])
    assert [late[f"res3_1_conv{index}"].stride for index in (1, 2, 3)] == [1, 2, 1]
    assert find_network(timings.NETWORKS["resnet-34"])["res3_1_conv1"].stride == 2
    assert find_network(timings.NETWORKS["alexnet"])["conv2"].groups == 2
    googlenet = find_network(timings.NETWORKS["googlenet-v1"])
    kinds = Counter(layer.kind.name for layer in googlenet.layers)
    assert (kinds["lrn"], kinds["softmax"]) == (2, 1)


def test_torchs_own_kernels_and_unknown_gpus_are_not_used(tmp_path: Path) -> None:
    shutil.copytree(DATA, tmp_path / "data")
    (tmp_path / "data" / "cnn_benchmarks.csv").write_text(
        "gpu,cudnn,network,batch,forward_ms,backward_ms,source\n"
        "Tesla K40c,5005,ResNet-18,16,1,10,a\n"
        "Tesla K40c,5005,ResNet-18,16,3,20,b\n"
        "Tesla K40c,5005,ResNet-18,16,2,60,c\n"
        "Tesla K40c,nn,ResNet-18,16,1,1,d\n"
        "Abacus,5005,ResNet-18,16,1,1,e\n"
        "Tesla K40c,5005,ResNet-9,16,1,1,f\n",
        encoding="utf-8",
    )
    found = [t for t in timings.networks(tmp_path / "data") if t.source == "cnn-benchmarks"]
    assert [dataclasses.astuple(t) for t in found] == [
        ("K40", "5.0", "cnn-benchmarks", "resnet18", 16, True, 2, 20)
    ]


def test_nine_networks_of_the_k40() -> None:
    k40 = {t.network: t for t in timings.networks(DATA) if t.device == "K40"}
    assert len(k40) == 9
    assert k40["vgg16"].forward_ms + k40["vgg16"].backward_ms == pytest.approx(920.21)


def test_convnet_benchmarks_has_no_gradient_of_the_image() -> None:
    (alexnet,) = (t for t in timings.networks(DATA) if t.network == "alexnet")
    assert (alexnet.cudnn, alexnet.batch, alexnet.image_gradient) == ("4", 128, False)
    assert (alexnet.forward_ms, alexnet.backward_ms) == (27.65, pytest.approx(53.31))


def test_licences_are_there() -> None:
    words = {
        "DeepBench": "Apache License",
        "cnn-benchmarks": "Copyright (c) 2016 Justin Johnson",
        "convnet-benchmarks": "Copyright (c) 2016 Soumith Chintala",
    }
    for name, word in words.items():
        assert word in (ROOT / "LICENSES" / f"{name}.txt").read_text(encoding="utf-8")
