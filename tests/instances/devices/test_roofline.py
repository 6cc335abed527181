import dataclasses
from itertools import pairwise, product

import pytest

from pebbler.instances.devices.device import find_device, list_devices
from pebbler.instances.devices.roofline import (
    Convolution,
    convolution_algorithms,
    dense_algorithms,
    memory_bound_algorithms,
    product_algorithms,
)

PASSES = ("FP", "BP1", "BP2")
K40 = find_device("K40")
TITAN_X = find_device("Titan X")
NEWER = find_device("Titan X", "5.1")
V100 = find_device("V100")


def square(batch, channels, filters, size, kernel, stride=1, pad=0, groups=1):
    out = (size + 2 * pad - kernel) // stride + 1
    return Convolution(batch, channels, filters, size, size, out, out, kernel, kernel, stride, pad, groups)


def vgg(batch, groups=(2, 2, 3, 3, 3)):
    layers, channels, size = [], 3, 224
    for filters, count in zip((64, 128, 256, 512, 512), groups, strict=True):
        for _ in range(count):
            layers.append(square(batch, channels, filters, size, 3, pad=1))
            channels = filters
        size //= 2
    return layers


def alexnet(batch):
    return [
        square(batch, 3, 64, 224, 11, stride=4, pad=2),
        square(batch, 64, 192, 27, 5, pad=2),
        square(batch, 192, 384, 13, 3, pad=1),
        square(batch, 384, 256, 13, 3, pad=1),
        square(batch, 256, 256, 13, 3, pad=1),
    ]


SHAPES = {
    "vgg conv1_1": square(64, 3, 64, 224, 3, pad=1),
    "vgg conv1_2": square(64, 64, 64, 224, 3, pad=1),
    "vgg conv4_2": square(64, 512, 512, 28, 3, pad=1),
    "alexnet conv1": square(128, 3, 64, 224, 11, stride=4, pad=2),
    "alexnet conv2": square(128, 64, 192, 27, 5, pad=2),
    "grouped": square(128, 96, 256, 27, 5, pad=2, groups=2),
    "depthwise": square(32, 128, 128, 28, 3, pad=1, groups=128),
    "resnet stem": square(32, 3, 64, 224, 7, stride=2, pad=3),
    "1x1": square(32, 256, 64, 56, 1),
    "1x1 stride 2": square(32, 256, 512, 56, 1, stride=2),
    "3x3 stride 2": square(32, 128, 128, 56, 3, stride=2, pad=1),
    "fully convolutional fc6": square(32, 512, 4096, 7, 7),
    "inception 5x5": square(128, 16, 32, 28, 5, pad=2),
    "tall": Convolution(8, 16, 16, 40, 10, 40, 8, 1, 3, 1, 0),
}


def options(conv, which="FP", device=K40):
    return {item.name: item for item in convolution_algorithms(device, conv, which)}


def passes(layers):
    """Every convolution task of a network: the first layer has no gradient of its input."""
    for position, layer in enumerate(layers):
        for which in PASSES:
            if position or which != "BP1":
                yield layer, which


def duration(device, layers, pick):
    return sum(
        pick(convolution_algorithms(device, layer, which)).duration_ns for layer, which in passes(layers)
    )


def baseline(algorithms):
    return algorithms[0]


def fastest(algorithms):
    return algorithms[-1]


# --- rules that hold for every layer -----------------------------------------------------------------


@pytest.mark.parametrize("device", list_devices(), ids=lambda device: device.name)
def test_more_workspace_is_faster_and_the_first_needs_none(device):
    for conv, which in product(SHAPES.values(), PASSES):
        algorithms = convolution_algorithms(device, conv, which)
        assert algorithms[0].workspace_bytes == 0
        for less, more in pairwise(algorithms):
            assert less.workspace_bytes < more.workspace_bytes
            assert more.duration_ns < 0.999 * less.duration_ns
        assert all(isinstance(item.duration_ns, int) and item.duration_ns >= 1 for item in algorithms)
        assert all(isinstance(item.workspace_bytes, int) for item in algorithms)
        assert len({item.name for item in algorithms}) == len(algorithms)


LIBRARIES = [K40, NEWER, find_device("P100", "6"), V100, find_device("H100")]


@pytest.mark.parametrize("device", LIBRARIES, ids=lambda device: f"{device.name} with {device.cudnn}")
@pytest.mark.parametrize("which", PASSES)
def test_a_bigger_batch_is_not_faster(which, device):
    batches = [1, 2, 3, 5, 8, 13, 31, 32, 33, 64, 127, 128, 256]
    for conv in SHAPES.values():
        layers = [dataclasses.replace(conv, batch=batch) for batch in batches]
        found = [convolution_algorithms(device, layer, which) for layer in layers]
        for pick in (baseline, fastest):
            durations = [pick(algorithms).duration_ns for algorithms in found]
            assert durations == sorted(durations)


@pytest.mark.parametrize("device", LIBRARIES, ids=lambda device: f"{device.name} with {device.cudnn}")
@pytest.mark.parametrize("which", PASSES)
def test_splitting_a_batch_does_not_save_time(which, device):
    for conv in SHAPES.values():
        whole = fastest(convolution_algorithms(device, conv, which)).duration_ns
        half = dataclasses.replace(conv, batch=conv.batch // 2)
        assert 2 * fastest(convolution_algorithms(device, half, which)).duration_ns >= whole


@pytest.mark.parametrize("device", LIBRARIES, ids=lambda device: f"{device.name} with {device.cudnn}")
@pytest.mark.parametrize("which", PASSES)
def test_a_bigger_batch_of_a_dense_layer_is_not_faster_and_splitting_it_saves_nothing(which, device):
    for inputs, outputs in ((25088, 4096), (4096, 1000), (64, 10)):
        found = [
            dense_algorithms(device, batch, inputs, outputs, which)[0].duration_ns for batch in range(1, 257)
        ]
        assert found == sorted(found)
        assert all(2 * found[half - 1] >= found[2 * half - 1] for half in range(1, 129))


def test_small_problems_use_the_device_less():
    whole, single = (duration(K40, vgg(batch), fastest) for batch in (256, 1))
    assert 1.2 < single / (whole / 256) < 3


def test_equal_layers_cost_one_evaluation():
    conv = square(7, 48, 80, 19, 3, pad=1)
    first = convolution_algorithms(K40, conv, "FP", 16)
    assert convolution_algorithms(K40, square(7, 48, 80, 19, 3, pad=1), "FP", 16) is first


# --- one kernel, by hand ------------------------------------------------------------------------------


def test_implicit_gemm_by_hand():
    # 2 x 256 images x 64 x 64 channels x 9 taps x 224 x 224 positions = 947.0 GFLOP.
    flops = 2 * 256 * 64 * 64 * 9 * 224 * 224
    tiles = 256 * 224 * 224 * 64 / 64**2
    utilisation = tiles / (tiles + 15 * 4 / 2)
    # An inner dimension of 64 x 9 counts 32 more.
    seconds = flops * (576 + 32) / 576 / (4.29e12 * 0.23 * utilisation) + 10e-6
    found = options(square(256, 64, 64, 224, 3, pad=1))["implicit-gemm"]
    assert found.duration_ns == pytest.approx(seconds * 1e9, abs=1)
    assert found.duration_ns == pytest.approx(1013.3e6, rel=1e-3)


def test_gradients_of_filters_and_of_strided_inputs_are_slower_than_forward():
    forward, data, filters = (
        options(square(32, 128, 128, 56, 3, stride=2, pad=1), which)[name].duration_ns
        for which, name in (("FP", "implicit-gemm"), ("BP1", "algo-0"), ("BP2", "algo-0"))
    )
    assert data == pytest.approx(forward / 0.27, rel=0.05)
    assert filters == pytest.approx(forward / 0.59, rel=0.15)
    plain = options(square(32, 128, 128, 56, 3, pad=1), "BP1")["algo-0"].duration_ns
    assert plain == pytest.approx(options(square(32, 128, 128, 56, 3, pad=1))["implicit-gemm"].duration_ns)


def test_groups_are_launched_one_by_one_before_cudnn_7():
    conv = square(1, 96, 256, 13, 5, pad=2, groups=2)
    older, newer = (
        options(conv, device=find_device("P100", cudnn))["implicit-gemm"].duration_ns for cudnn in ("6", "7")
    )
    one = dataclasses.replace(conv, in_channels=48, out_channels=128, groups=1)
    alone = options(one, device=find_device("P100", "6"))["implicit-gemm"].duration_ns
    assert older == pytest.approx(2 * alone, rel=0.01)
    assert newer < 0.8 * older


def test_depthwise_convolutions_are_a_kernel_of_their_own():
    # 2 x 32 images x 128 channels x 9 taps x 28 x 28 positions at 10 % of the peak, not as a product of
    # one column.
    (only,) = convolution_algorithms(V100, SHAPES["depthwise"], "FP")
    assert only.workspace_bytes == 0
    seconds = 2 * 32 * 128 * 9 * 28 * 28 / (15.7e12 * 0.1)
    assert only.duration_ns == pytest.approx(seconds * 1e9 + 6_000, abs=1)


def test_memory_bound_kernels():
    (only,) = memory_bound_algorithms(K40, 216_000_000)
    assert (only.duration_ns, only.workspace_bytes) == (1_000_000 + 10_000, 0)
    assert memory_bound_algorithms(K40, 0)[0].duration_ns == 10_000


def test_dense_layers_by_hand():
    # The gradient of VGG-16's fc6 with one image writes the weights: 25088 x 4096 x 4 bytes at 216 GB/s.
    (only,) = dense_algorithms(K40, 1, 25088, 4096, "BP2")
    moved = 4 * (25088 * 4096 + 25088 + 4096)
    assert only.workspace_bytes == 0
    assert only.duration_ns == pytest.approx(moved / 216e9 * 1e9 + 10_000, abs=1)
    # With 256 images it computes: 2 x 256 x 25088 x 4096 operations at 40 % of 4.29 TFLOPS.
    for which in PASSES:
        (only,) = dense_algorithms(K40, 256, 25088, 4096, which)
        compute = 2 * 256 * 25088 * 4096 / (4.29e12 * 0.40) * 1e9
        assert compute < only.duration_ns < 1.2 * compute


def test_products_of_two_layers_by_hand():
    # 96 heads of 1024 x 1024 scores from 64 values each: 12.9 GFLOP at 40 % of 4.29 TFLOPS, 24576 tiles.
    scores = 96 * 1024 * 1024
    (only,) = product_algorithms(K40, scores * 64, scores, 10)
    utilisation = 24576 / (24576 + 15 * 4 / 2)
    assert only.workspace_bytes == 0
    assert only.duration_ns == pytest.approx(
        2 * scores * 64 / (4.29e12 * 0.40 * utilisation) * 1e9 + 1e4, abs=1
    )
    (moved,) = product_algorithms(K40, 1, 64 * 64, 216_000_000)
    assert moved.duration_ns == 1_000_000 + 10_000


# --- precisions ---------------------------------------------------------------------------------------


def test_products_in_half_precision_by_hand():
    # 96 heads of 1024 x 1024 scores from 64 values each, on tensor cores: 0.96 x 85 % of the A100's 312
    # TFLOPS.
    a100 = find_device("A100")
    scores = 96 * 1024 * 1024
    utilisation = 24576 / (24576 + 108 * 4 / 2)
    for precision in ("fp16", "bf16"):
        (only,) = product_algorithms(a100, scores * 64, scores, 10, precision)
        seconds = 2 * scores * 64 / (312e12 * 0.85 * 0.96 * utilisation) + 5e-6
        assert only.duration_ns == pytest.approx(seconds * 1e9, abs=1)
    (moved,) = product_algorithms(a100, 1, 64 * 64, 1_244_000_000, "bf16")
    assert moved.duration_ns == 1_000_000 + 5_000


def test_tensor_cores_serve_the_convolution_with_precomputed_indices():
    a100 = find_device("A100")
    conv = SHAPES["3x3 stride 2"]
    plain, faster = (
        {item.name: item for item in convolution_algorithms(a100, conv, "FP", precision=precision)}
        for precision in ("fp32", "tf32")
    )
    assert faster["implicit-gemm"] == plain["implicit-gemm"]
    flops = 2 * 32 * 128 * 128 * 9 * 28 * 28
    tiles = 32 * 28 * 28 * 128 / 64**2
    flops *= (128 * 9 + 32) / (128 * 9)
    efficiency = a100.gemm_efficiency * 0.79
    seconds = flops / (156e12 * efficiency * tiles / (tiles + 108 * 4 / 2)) + 5e-6
    assert faster["implicit-precomp-gemm"].duration_ns == pytest.approx(seconds * 1e9, abs=1)
    assert seconds * 1e9 < 0.3 * plain["implicit-precomp-gemm"].duration_ns


def test_gradients_of_filters_in_half_precision_by_hand():
    # 32 rows (output channels), which count as 64, and 32 x 5 x 10 columns; the 16 x 38 x 166 positions that
    # are added up are cut into slices of 1024.
    conv = Convolution(16, 32, 32, 79, 341, 38, 166, 5, 10, 2, 0, value_bytes=2)
    positions = 16 * 38 * 166
    flops = 2 * 64 * 1600 * (positions + 32)
    tiles = 1600 / 64 * (positions + 32) / 1024
    rate = 125e12 * V100.gemm_efficiency * 0.79
    found = convolution_algorithms(V100, conv, "BP2", precision="fp16")[-1]
    assert found.name == "algo-3"
    assert found.duration_ns == pytest.approx(flops / (rate * tiles / (tiles + 160)) * 1e9 + 6000, abs=1)


def test_half_precision_moves_half_the_bytes():
    # 1 x 1 from 64 to 256 channels is bound by memory, which reaches 80 % of 900 GB/s.
    conv = dataclasses.replace(square(16, 64, 256, 56, 1), value_bytes=2)
    found = convolution_algorithms(V100, conv, "FP", precision="fp16")[-1]
    moved = 2 * (16 * (64 + 256) * 56 * 56 + 64 * 256)
    assert found.duration_ns == pytest.approx(moved / 720e9 * 1e9 + 6000, abs=1)


@pytest.mark.parametrize(
    ("channels", "precision", "served"),
    [(4, "fp16", False), (8, "fp16", True), (12, "bf16", False), (3, "tf32", False), (4, "tf32", True)],
)
def test_tensor_cores_take_channels_by_fours_or_eights(channels, precision, served):
    a100 = find_device("A100")
    conv = square(64, channels, 64, 56, 3, pad=1)
    found, single = (
        {item.name: item for item in convolution_algorithms(a100, conv, "FP", precision=kind)}
        for kind in (precision, "fp32")
    )
    assert (found["implicit-precomp-gemm"] != single["implicit-precomp-gemm"]) == served


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("conv", SHAPES.values(), ids=SHAPES.keys())
def test_tensor_cores_are_never_slower_than_single_precision(which, conv):
    for device in list_devices():
        for precision in ("tf32", "fp16"):
            found, single = (
                fastest(convolution_algorithms(device, conv, which, precision=kind))
                for kind in (precision, "fp32")
            )
            assert found.duration_ns <= single.duration_ns
    for precision in ("tf32", "fp16", "bf16"):
        product = product_algorithms(V100, 10**9, 10**6, 10, precision)[0]
        assert product.duration_ns <= product_algorithms(V100, 10**9, 10**6, 10)[0].duration_ns


@pytest.mark.parametrize("which", PASSES)
def test_bfloat16_has_products_only(which):
    conv = SHAPES["vgg conv4_2"]
    single, brain = (
        {item.name for item in convolution_algorithms(V100, conv, which, precision=kind)}
        for kind in ("fp32", "bf16")
    )
    transformed = {name for name in single if name.startswith(("fft", "winograd"))}
    assert transformed
    assert not brain & transformed


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_without_tensor_cores_every_precision_is_single(precision):
    for which in PASSES:
        for conv in SHAPES.values():
            assert convolution_algorithms(K40, conv, which, precision=precision) == convolution_algorithms(
                K40, conv, which
            )
    assert product_algorithms(K40, 10**9, 10**6, 10, precision) == product_algorithms(K40, 10**9, 10**6, 10)


@pytest.mark.parametrize("which", PASSES)
def test_extra_traffic_is_a_kernel_of_its_own(which):
    conv = SHAPES["vgg conv1_2"]
    plain, extra = (convolution_algorithms(K40, conv, which, size) for size in (0, 216_000))
    for before, after in zip(plain, extra, strict=True):
        assert after.duration_ns - before.duration_ns == pytest.approx(1_000 + 10_000, abs=1)
        assert after.workspace_bytes == before.workspace_bytes
    before, after = (dense_algorithms(K40, 8, 32, 32, which, size)[0].duration_ns for size in (0, 216_000))
    assert after - before == pytest.approx(1_000 + 10_000, abs=1)


# --- workspaces, by hand ------------------------------------------------------------------------------


def test_index_tables():
    # One 4-byte offset per output position (27 x 27) and per filter tap (64 x 5 x 5).
    assert options(SHAPES["alexnet conv2"])["implicit-precomp-gemm"].workspace_bytes == 4 * (729 + 1600)
    assert options(SHAPES["grouped"])["implicit-precomp-gemm"].workspace_bytes == 4 * (729 + 48 * 25)


def test_explicit_gemm_stores_the_lowered_matrix():
    # fc6 of the fully convolutional VGG: 512 channels x 7 x 7 taps x 1 position, 4 bytes, 32 images.
    assert options(SHAPES["fully convolutional fc6"], device=TITAN_X)["gemm"].workspace_bytes == (
        4 * 512 * 49 * 32
    )


def test_fft_stores_half_spectra_of_power_of_two_planes():
    # 27 + 2 x 2 = 31, padded to 32: 32 x 17 complex values of 8 bytes a plane;
    # 48 x 128 filter planes, and 48 + 128 planes an image.
    plane = 32 * 17 * 8
    for batch in (32, 256):
        conv = square(batch, 48, 128, 27, 5, pad=2)
        for which in PASSES:
            fft = options(conv, which)["fft"]
            assert fft.workspace_bytes == plane * (48 * 128 + batch * (48 + 128))


def test_winograd_stores_six_by_six_tiles():
    # 28 x 28 outputs in tiles of 4 x 4: 49 tiles a channel, 36 values of 4 bytes each.
    conv = square(8, 64, 64, 28, 3, pad=1)
    found = options(conv, "BP2", NEWER)["winograd-nonfused"]
    assert found.workspace_bytes == 4 * 36 * (64 * 64 + 8 * 49 * 128)


def test_fused_winograd_stores_filters_and_the_tiles_of_one_image():
    # 28 x 28 outputs in tiles of 2 x 2: 196 tiles a channel, 16 values of 4 bytes each.
    conv = square(8, 64, 64, 28, 3, pad=1)
    assert options(conv, "FP", NEWER)["winograd"].workspace_bytes == 4 * 16 * (64 * 64 + 196 * 128)


def test_large_workspaces_are_chunked():
    # conv1_2 of VGG-16 with 256 images: a spectrum takes 256 x 129 x 8 bytes, a plane 224 x 224 x 4: the
    # spectra of the batch take 1.32 times the maps, so it goes in two halves; 64 x 64 filters stay whole.
    plane = 256 * 129 * 8
    fft = options(square(256, 64, 64, 224, 3, pad=1), device=K40)["fft"]
    assert fft.workspace_bytes == plane * (64 * 64 + 128 * (64 + 64))
    # Tiles of Winograd take 2.25 times the maps: three chunks of 22 images at most.
    conv = square(64, 128, 128, 112, 3, pad=1)
    winograd = options(conv, "BP2", NEWER)["winograd-nonfused"]
    assert winograd.workspace_bytes == 4 * 36 * (128 * 128 + 22 * 28 * 28 * 256)


# --- which algorithms apply ---------------------------------------------------------------------------


def test_names_are_those_of_cudnn():
    conv = SHAPES["alexnet conv2"]
    assert list(options(conv, "FP"))[:2] == ["implicit-gemm", "implicit-precomp-gemm"]
    assert list(options(conv, "BP1"))[:2] == ["algo-0", "algo-1"]
    assert list(options(conv, "BP2"))[:2] == ["algo-0", "algo-3"]


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("shape", ["alexnet conv1", "resnet stem", "1x1", "1x1 stride 2", "3x3 stride 2"])
def test_no_transform_for_strides_nor_where_it_does_not_pay(which, shape):
    assert not {"fft", "fft-tiling", "winograd-nonfused"} & set(options(SHAPES[shape], which))


@pytest.mark.parametrize("which", PASSES)
def test_winograd_is_for_square_filters_of_three_and_five(which):
    h100 = find_device("H100")
    assert "winograd-nonfused" in options(square(64, 128, 128, 28, 3, pad=1), which, h100)
    assert "winograd-nonfused" in options(square(16, 512, 128, 7, 5, pad=2), which, h100)
    assert "winograd-nonfused" not in options(square(64, 128, 128, 14, 7, pad=3), which, h100)
    assert "winograd-nonfused" not in options(SHAPES["tall"], which, h100)


def test_algorithms_are_those_of_the_library_and_the_architecture():
    conv = square(16, 128, 128, 28, 3, pad=1)

    def winograds(device, which="FP"):
        return sorted(name for name in options(conv, which, device) if name.startswith("winograd"))

    assert winograds(find_device("Titan X", "4")) == []
    assert winograds(find_device("Titan X", "5.0")) == ["winograd"]
    assert winograds(find_device("Titan X", "5.0"), "BP2") == []
    assert winograds(find_device("Titan X", "5.1")) == ["winograd", "winograd-nonfused"]
    assert winograds(find_device("Titan X", "5.1"), "BP2") == ["winograd-nonfused"]
    assert "winograd" not in winograds(find_device("H100"))
    assert winograds(find_device("H100")) == ["winograd-nonfused"]


@pytest.mark.parametrize("which", PASSES)
def test_fft_needs_a_padded_plane_of_at_most_256(which):
    assert "fft" in options(square(256, 64, 64, 250, 7, pad=3), which)
    large = options(square(256, 64, 64, 251, 7, pad=3), which)
    assert "fft" not in large
    assert "fft-tiling" in large


def test_explicit_gemm_is_forward_only_and_lowers_something():
    fc6 = SHAPES["fully convolutional fc6"]
    assert "gemm" in options(fc6, "FP", TITAN_X)
    assert "gemm" not in options(fc6, "BP1", TITAN_X)
    assert "gemm" not in options(fc6, "BP2", TITAN_X)
    assert "gemm" not in options(SHAPES["1x1"], "FP", TITAN_X)


@pytest.mark.parametrize("which", PASSES)
def test_there_is_a_choice_to_make(which):
    for layer in vgg(256)[1:]:
        assert len(options(layer, which)) >= 3
    assert len(options(SHAPES["alexnet conv2"], which)) >= 3


# --- anchors: printed figures that calibrated the model (docs/costs.md) -------------------------------


@pytest.mark.parametrize(
    ("layers", "without_gib", "printed_gb", "tolerance"),
    [
        (vgg(256), 21.69, 28.0, 0.05),
        (vgg(128), 11.36, 15.0, 0.05),
        (vgg(32), 3.61, 4.9, 0.15),
        (alexnet(128), 0.99, 1.1, 0.08),
    ],
    ids=["VGG-16 (256)", "VGG-16 (128)", "VGG-16 (32)", "AlexNet (128)"],
)
def test_largest_workspace_is_near_what_vdnn_prints(layers, without_gib, printed_gb, tolerance):
    largest = max(
        fastest(convolution_algorithms(TITAN_X, layer, which)).workspace_bytes
        for layer, which in passes(layers)
    )
    assert without_gib + largest / 2**30 == pytest.approx(printed_gb, rel=tolerance)


def test_the_fastest_algorithms_are_about_twice_as_fast_as_implicit_gemm():
    # vDNN: 55-58 % of the performance is lost on average, 65 % at most, that is 2.2-2.4 and 2.9 times.
    for layers in (vgg(256), vgg(128), vgg(64), alexnet(128)):
        assert 1.9 < duration(TITAN_X, layers, baseline) / duration(TITAN_X, layers, fastest) < 2.9


def test_no_convolution_is_faster_than_the_peak_allows():
    """The K40 computes VGG-16 at under three quarters of its peak, counted as direct convolution."""
    direct = sum(
        2 * conv.batch * conv.pairs * 9 * conv.out_height * conv.out_width for conv, _ in passes(vgg(256))
    )
    for cudnn in ("4", "5.0"):
        seconds = duration(find_device("K40", cudnn), vgg(256), fastest) / 1e9
        assert 0.3 < direct / seconds / K40.peak_flops < 0.75
