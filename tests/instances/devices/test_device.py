import re
from importlib import resources

import pytest

from pebbler.instances.devices.device import HOST_BANDWIDTH, Device, find_device, list_devices, read_device
from pebbler.instances.errors import PebblerError

FIGURES = {
    "year",
    "multiprocessors",
    "peak_flops",
    "convolution_efficiency",
    "gemm_efficiency",
    "bandwidth",
    "bandwidth_efficiency",
    "memory_bytes",
    "offload_bandwidth",
    "prefetch_bandwidth",
    "launch_ns",
}

TENSOR_PEAKS = {"tf32_flops", "fp16_flops", "bf16_flops"}
HOSTS = {"both_bandwidth": None, "host_bandwidth": HOST_BANDWIDTH}
"""Figures that are known of few devices, and what stands for them."""


@pytest.fixture
def k40_file(tmp_path):
    """The packaged text of the K40, in a file of its own, and a function that rewrites it."""
    text = resources.files("pebbler.instances.devices").joinpath("devices.toml").read_text(encoding="utf-8")
    text = text[: text.index("[TitanX]")]
    path = tmp_path / "mine.toml"

    def write(old="", new=""):
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        return path

    return write


def test_packaged_devices_are_those_of_the_papers_and_newer_ones():
    assert [(device.name, device.year, round(device.memory_bytes / 2**30)) for device in list_devices()] == [
        ("K40", 2013, 12),
        ("TitanX", 2015, 12),
        ("TitanZ", 2014, 6),
        ("M40", 2015, 12),
        ("P100", 2016, 12),
        ("TitanXPascal", 2016, 12),
        ("GTX1080", 2016, 8),
        ("TitanXp", 2017, 12),
        ("GTX1080Ti", 2017, 11),
        ("V100", 2017, 16),
        ("A100", 2020, 40),
        ("A100-80GB", 2020, 80),
        ("RTX3090", 2020, 24),
        ("A10", 2021, 24),
        ("RTX4090", 2022, 24),
        ("L4", 2023, 24),
        ("L40S", 2023, 48),
        ("H100", 2022, 80),
        ("GH200", 2023, 96),
        ("H200", 2024, 131),
        ("B200", 2024, 180),
        ("RTX5090", 2025, 32),
        ("MI300X", 2023, 192),
    ]


def test_peaks_are_cores_times_two_times_a_clock():
    """Cores of a multiprocessor and a clock in MHz, from the product pages."""
    cores = {
        "K40": (192, 745),
        "TitanX": (128, 1075),
        "TitanZ": (192, 705),
        "TitanXPascal": (128, 1531),
        "M40": (128, 1114),
        "GTX1080": (128, 1733),
        "TitanXp": (128, 1582),
        "GTX1080Ti": (128, 1582),
        "A100": (64, 1410),
        "A100-80GB": (64, 1410),
        "RTX3090": (128, 1695),
        "A10": (128, 1695),
        "RTX4090": (128, 2520),
        "L4": (128, 2040),
        "L40S": (128, 2520),
        "H100": (128, 1980),
        "GH200": (128, 1980),
        "RTX5090": (128, 2407),
    }
    for name, (width, clock) in cores.items():
        device = find_device(name)
        assert device.peak_flops == pytest.approx(device.multiprocessors * width * 2e6 * clock, rel=2e-3)


def test_tensor_cores_do_a_whole_number_of_operations_a_lane():
    """Per single-precision operation of the whitepapers: TF32, and half precision added up in single."""
    lanes = {"RTX3090": (1, 2), "RTX4090": (1, 2), "RTX5090": (1, 2), "MI300X": (4, 8)}
    lanes |= {"A10": (2, 4), "L4": (2, 4), "L40S": (2, 4), "A100": (8, 16), "A100-80GB": (8, 16)}
    for name, (tf32, half) in lanes.items():
        device = find_device(name)
        assert device.tf32_flops == pytest.approx(tf32 * device.peak_flops, rel=0.015)
        assert device.fp16_flops == device.bf16_flops == pytest.approx(half * device.peak_flops, rel=0.015)


@pytest.mark.parametrize("device", list_devices(), ids=lambda device: device.name)
def test_every_figure_has_a_source(device):
    given = {key for key in TENSOR_PEAKS if getattr(device, key) is not None}
    given |= {key for key, value in HOSTS.items() if getattr(device, key) != value}
    assert {key for key, _ in device.sources} == FIGURES | given
    assert all(len(source) > 10 for _, source in device.sources)


def test_the_page_on_costs_lists_every_device_under_its_architecture(pytestconfig):
    page = (pytestconfig.rootpath / "docs" / "costs.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]*) \| (`.*)", page, re.MULTILINE))
    for device in list_devices():
        (row,) = [row for name, row in rows.items() if name.lower().replace(" ", "") == device.architecture]
        assert f"`{device.name}`" in row


def test_tensor_cores_came_with_volta_and_tf32_and_bfloat16_with_ampere():
    for device in list_devices():
        given = {key for key in TENSOR_PEAKS if getattr(device, key) is not None}
        expected = {"kepler": set(), "maxwell": set(), "pascal": set(), "volta": {"fp16_flops"}}
        assert given == expected.get(device.architecture, TENSOR_PEAKS), device.name


def test_the_peak_of_a_precision_is_that_of_single_precision_where_nothing_is_faster():
    k40, v100, a100 = map(find_device, ("K40", "V100", "A100"))
    assert [k40.peak(precision) for precision in ("fp32", "tf32", "fp16", "bf16")] == 4 * [4.29e12]
    assert [v100.peak(precision) for precision in ("fp32", "fp16", "bf16")] == [15.7e12, 125e12, 15.7e12]
    assert [a100.peak(precision) for precision in ("fp32", "tf32", "bf16")] == [19.5e12, 156e12, 312e12]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("K40", "K40"),
        ("k40m", "K40"),
        ("K40c", "K40"),
        ("titan x", "TitanX"),
        ("Titan X (Maxwell)", "TitanX"),
        ("v100", "V100"),
        ("titan-z", "TitanZ"),
        ("Titan Xp", "TitanXp"),
        ("h200", "H200"),
        ("rtx4090", "RTX4090"),
        ("RTX 4090", "RTX4090"),
        ("4090", "RTX4090"),
        ("GeForce RTX 3090", "RTX3090"),
        ("rtx-5090", "RTX5090"),
        ("a100", "A100"),
        ("a100-40", "A100"),
        ("A100 40GB", "A100"),
        ("a100-80", "A100-80GB"),
        ("A100 80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("h100", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("gh200", "GH200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("mi300x", "MI300X"),
        ("AMD Instinct MI300X", "MI300X"),
        ("1080ti", "GTX1080Ti"),
        ("GTX 1080 Ti", "GTX1080Ti"),
        ("GTX 1080", "GTX1080"),
        ("NVIDIA L4", "L4"),
        ("l40s", "L40S"),
        ("a10", "A10"),
        ("m40", "M40"),
        ("b200", "B200"),
    ],
)
def test_find_by_name_and_alias(name, found):
    assert find_device(name).name == found


def test_no_name_is_that_of_two_devices():
    names = [name for device in list_devices() for name in {device.name, device.title, *device.aliases}]
    assert [find_device(name).name for name in names] == [
        device.name for device in list_devices() for _ in {device.name, device.title, *device.aliases}
    ]


def test_unknown_device_names_the_close_ones():
    with pytest.raises(PebblerError, match=r"'K44' is not a known device; try K40"):
        find_device("K44")
    with pytest.raises(PebblerError, match="'RTX 4080' is not a known device; try RTX4090"):
        find_device("RTX 4080")
    with pytest.raises(PebblerError, match="try K40, TitanX, TitanZ"):
        find_device("?")


def test_copies_take_bytes_over_bandwidth_to_the_nearest_nanosecond():
    k40 = find_device("K40")
    assert k40.copy_ns(12_000_000_000, "offload") == 1_000_000_000
    assert k40.copy_ns(100, "prefetch") == 8
    assert k40.copy_ns(1, "offload") == 1
    # Both a read and a write: 2 x 1.08e9 bytes at 288e9 x 0.75 bytes a second.
    assert k40.move_ns(1_080_000_000) == 10_000_000


def test_links_of_today_in_both_directions():
    """Measured: GH200 over NVLink-C2C, 4090 and 5090 over PCIe 4.0 and 5.0."""
    links = {"GH200": (170e9, 416e9), "RTX4090": (26.8e9, 25.6e9), "RTX5090": (57.3e9, 56.4e9)}
    for name, rates in links.items():
        device = find_device(name)
        assert (device.offload_bandwidth, device.prefetch_bandwidth) == rates
        assert all("measured" in source for key, source in device.sources if key in ("offload_bandwidth",))


def test_directions_have_their_own_bandwidth(k40_file):
    device = read_device(
        k40_file("[K40.prefetch_bandwidth]\nvalue = 12_", "[K40.prefetch_bandwidth]\nvalue = 6_")
    )
    assert device.copy_ns(6_000_000, "offload") == 500_000
    assert device.copy_ns(6_000_000, "prefetch") == 1_000_000


def test_own_file_equals_the_packaged_device(k40_file):
    device = read_device(k40_file())
    assert find_device(str(k40_file())) == device
    assert isinstance(device, Device)
    assert device == find_device("K40")
    assert hash(device) == hash(find_device("K40"))


def test_architecture_and_tensor_peaks_may_be_left_out_or_given(k40_file):
    without = read_device(k40_file('architecture = "kepler"\n', ""))
    assert without.architecture is None
    assert without.bf16_flops is None
    mine = "[K40.bf16_flops]\nvalue = 9e12\nsource = 'mine'\n\n[K40.bandwidth]"
    given = read_device(k40_file("[K40.bandwidth]", mine))
    assert (given.architecture, given.peak("bf16"), given.peak("fp16")) == ("kepler", 9e12, 4.29e12)
    assert ("bf16_flops", "mine") in given.sources


def test_devices_are_frozen():
    with pytest.raises(AttributeError):
        find_device("K40").memory_bytes = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[K40.year]", "[K40.birth]", r"\[K40\]: unknown key 'birth'"),
        ('source = "NVIDIA Tesla K40 GPU Active', '#"', r"\[K40.year\]: key 'source' is missing"),
        ("value = 2013", "value = 2013\nunit = 1", r"\[K40.year\]: unknown key 'unit'"),
        ("value = 2013", "value = 2013.5", r"'year' is 2013.5; write a whole number above 0"),
        ("value = 2013", "value = true", r"'year' is True; write a whole number above 0"),
        ("value = 0.23", "value = 1.5", r"'convolution_efficiency' is 1.5; a share of the peak is at most 1"),
        ("value = 288_000_000_000", "value = 0", r"'bandwidth' is 0; write a number above 0"),
        ("value = 288_000_000_000", "value = inf", r"'bandwidth' is inf; write a number above 0"),
        ("value = 288_000_000_000", "value = nan", r"'bandwidth' is nan; write a number above 0"),
        ('aliases = ["K40c", "K40m", "Tesla K40"]', "", r"key 'aliases' is missing"),
        ('aliases = ["K40c", "K40m", "Tesla K40"]', "aliases = [1]", r"'aliases' is \[1\]; write a list"),
        (
            'architecture = "kepler"',
            'architecture = "tesla"',
            r"\[K40\]: 'architecture' is 'tesla'; write one of kepler, maxwell",
        ),
        ('architecture = "kepler"', "architecture = [1]", r"'architecture' is \[1\]; write one of"),
        (
            "[K40.bandwidth]",
            "[K40.tf32_flops]\nvalue = -1\nsource = ''\n\n[K40.bandwidth]",
            r"'tf32_flops' is -1; write a number above 0",
        ),
        (
            "[K40.bandwidth]",
            "[K40.fp16_flops]\nvalue = 1e12\n\n[K40.bandwidth]",
            r"\[K40.fp16_flops\]: key 'source' is missing",
        ),
        ('title = "NVIDIA Tesla K40"', "title = 1", r"'title' is 1; write a string"),
        ("value = 2013", "value = ", r"mine.toml is not TOML"),
    ],
)
def test_bad_files_are_refused_by_key(k40_file, old, new, message):
    with pytest.raises(PebblerError, match=message):
        read_device(k40_file(old, new))


def test_a_file_has_one_device(tmp_path):
    path = tmp_path / "none.toml"
    path.write_text("", encoding="utf-8")
    with pytest.raises(PebblerError, match="it has 0 devices"):
        read_device(path)
    path.write_text("K40 = 3", encoding="utf-8")
    with pytest.raises(PebblerError, match=r"\[K40\]: it is 3; write a table"):
        read_device(path)
    with pytest.raises(PebblerError, match="cannot be read"):
        read_device(tmp_path / "missing.toml")


def test_few_links_and_hosts_are_known():
    """Both directions together get more than one alone, and less than the two."""
    both = {device.name: device for device in list_devices() if device.both_bandwidth is not None}
    assert set(both) == {"A100", "A100-80GB", "H100"}
    for device in both.values():
        alone = (device.offload_bandwidth, device.prefetch_bandwidth)
        assert max(alone) < device.both_bandwidth < sum(alone)
    assert find_device("k40").host_bandwidth == HOST_BANDWIDTH
    assert find_device("gh200").host_bandwidth > HOST_BANDWIDTH
