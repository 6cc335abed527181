from __future__ import annotations

import re

import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.units import ceil_to, format_size, format_time, parse_rate, parse_size, parse_time


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("17", 17),
        ("17B", 17),
        ("12GiB", 12_884_901_888),
        ("12GB", 12_000_000_000),
        ("800MiB", 838_860_800),
        (" 1.5 KiB ", 1536),
        ("2kB", 2000),
        ("1TiB", 1_099_511_627_776),
        ("0.1GiB", 107_374_183),  # 107374182.4
        ("0.1GB", 100_000_000),  # a double would make it 100000000.00000001, and round up
        ("0.3KiB", 308),  # 307.2
        ("12G", 12_884_901_888),
        ("12g", 12_884_901_888),
        ("12 gib", 12_884_901_888),
        ("12GIB", 12_884_901_888),
        ("12gb", 12_000_000_000),
        ("800m", 838_860_800),
        ("9007199254740992", 9_007_199_254_740_992),  # the largest
    ],
)
def test_sizes_are_exact_and_round_up(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "12Gib", "12Gb", "12b", "12i", "12iB", "-1GiB", "1e9", "12,5GB", "12GiB 3", ".5GB", "5.GB"],
)
def test_a_bad_size_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(PebblerError, match="is not a size; write it as 12GiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60.0), ("5min", 300.0), ("5m", 300.0), ("250ms", 0.25), ("2h", 7200.0), ("1.5", 1.5)],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "5M", "5mi", "-5s", "5 GiB", "inf", "nan"])
def test_a_bad_time_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(PebblerError, match="is not a time; write it as 60s"):
        parse_time(text)


@pytest.mark.parametrize(
    ("value", "multiple", "rounded"),
    [(0, 512, 0), (1, 512, 512), (512, 512, 512), (513, 512, 1024), (7, 1, 7)],
)
def test_ceil_to(value: int, multiple: int, rounded: int) -> None:
    assert ceil_to(value, multiple) == rounded


def test_ceil_to_is_exact_beyond_doubles() -> None:
    assert ceil_to(2**60 + 1, 2) == 2**60 + 2


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (2**20, "1.00 MiB"), (12 * 2**30, "12.00 GiB")],
)
def test_format_size(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1000, "1.000 us"), (10**6, "1.000 ms"), (5_880_138_000, "5.880 s")],
)
def test_format_time(nanoseconds: int, text: str) -> None:
    assert format_time(nanoseconds) == text


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("12GB", 12 * 10**9),
        ("1Gbps", 125_000_000),
        ("2.5 Gbps", 312_500_000),
        ("100Mbps", 12_500_000),
        ("8", 8),
    ],
)
def test_rates(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["fast", "0GB", "0Gbps", "1gbps", "-1GB", "9000000Tbps", "1Gbps/s"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(PebblerError, match=re.escape(text)):
        parse_rate(text)
