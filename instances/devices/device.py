"""Devices: what the cost model knows of a GPU, read from ``devices.toml`` with a source for every figure."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from ..arguments import require_kind
from ..errors import PebblerError
from ..files import read_toml
from ..units import LARGEST
from .library import Architecture, Library, library_of_year, read_library

DEVICE_OF_TODAY = "RTX4090"
"""What a torch or ONNX model is scheduled for where no device is named; ``docs/importers.md`` says why."""

HOST_BANDWIDTH = 100e9
"""Bytes a second that a step of an optimizer on the host reads and writes where nothing else is known.

An assumption: half of what eight channels of DDR4-3200 pass. DeepSpeed's Adam for processors takes 8.2 s for
11.6 billion parameters (github.com/microsoft/DeepSpeed, pull request 735), which is 40 GB/s.
"""

Direction = Literal["offload", "prefetch"]
Precision = Literal["fp32", "tf32", "fp16", "bf16"]
"""Of a matrix product: the numbers that it multiplies; it adds them up in single precision."""

_TENSOR_PEAKS = ("tf32_flops", "fp16_flops", "bf16_flops")
_WHOLE = ("year", "multiprocessors", "memory_bytes", "launch_ns")
_ASKED_FOR = ("both_bandwidth", "host_bandwidth")
_RATES = (
    "peak_flops",
    *_TENSOR_PEAKS,
    "bandwidth",
    "offload_bandwidth",
    "prefetch_bandwidth",
    *_ASKED_FOR,
)
_SHARES = ("convolution_efficiency", "gemm_efficiency", "bandwidth_efficiency")
_FIGURES = (*_WHOLE, *_RATES, *_SHARES)
_OPTIONAL = {"architecture", *_TENSOR_PEAKS, *_ASKED_FOR}

_RANGES = {_WHOLE: (1, LARGEST), _RATES: (1, 1e21), _SHARES: (1e-6, 1)}
"""Least and greatest values; the greatest rate is a thousand times that of the largest machines of today."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, its link to the host, and the library that computes convolutions and products on it.

    Attributes
    ----------
    name, title, aliases
        How it is asked for, its full name, other names that find it.
    architecture
        Of the GPU; None: unknown, as in files of one's own that leave it out.
    year
        Of its introduction.
    cudnn
        Version of cuDNN; by default the newest of that year.
    multiprocessors
        Number of streaming multiprocessors.
    peak_flops
        Single-precision operations a second, a multiply-add counted as two.
    tf32_flops, fp16_flops, bf16_flops
        The same on tensor cores, of dense products of TF32, half precision and bfloat16 that are added up
        in single precision; None: the hardware has none.
    convolution_efficiency, gemm_efficiency
        Share of the peak that a forward convolution by implicit GEMM, its indices not computed before, and
        a matrix product reach where they are so large that nothing else counts.
    bandwidth, bandwidth_efficiency
        Bytes a second of the device memory, and the share that kernels reach.
    memory_bytes
        Size of the device memory.
    offload_bandwidth, prefetch_bandwidth
        Bytes a second that copies to the host and to the device reach.
    both_bandwidth
        Bytes a second that copies in both directions at once reach together; None: not known.
    host_bandwidth
        Bytes a second that a step of an optimizer on the host beside it reads and writes.
    launch_ns
        Fixed time of a kernel.
    sources
        Pairs of a figure's name and where it comes from.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    architecture: Architecture | None = None
    year: int
    cudnn: Library
    multiprocessors: int
    peak_flops: float
    tf32_flops: float | None = None
    fp16_flops: float | None = None
    bf16_flops: float | None = None
    convolution_efficiency: float
    gemm_efficiency: float
    bandwidth: float
    bandwidth_efficiency: float
    memory_bytes: int
    offload_bandwidth: float
    prefetch_bandwidth: float
    both_bandwidth: float | None = None
    host_bandwidth: float = HOST_BANDWIDTH
    launch_ns: int
    sources: tuple[tuple[str, str], ...] = field(compare=False, repr=False)

    def tensor_peak(self, precision: Precision) -> float | None:
        """Operations a second of tensor cores in a precision; None: there are none."""
        return {"tf32": self.tf32_flops, "fp16": self.fp16_flops, "bf16": self.bf16_flops}.get(precision)

    def peak(self, precision: Precision) -> float:
        """Operations a second of products in a precision: of single precision without tensor cores."""
        return self.tensor_peak(precision) or self.peak_flops

    def copy_ns(self, bytes: int, direction: Direction) -> int:  # noqa: A002
        """Time of a copy between device and host: bytes over the link's bandwidth, to the nearest ns."""
        rate = self.offload_bandwidth if direction == "offload" else self.prefetch_bandwidth
        return whole_ns(bytes / rate)

    def move_ns(self, bytes: int) -> int:  # noqa: A002
        """Time of a copy inside the device, which reads and writes every byte, to the nearest ns."""
        return whole_ns(self.memory_seconds(2 * bytes))

    def memory_seconds(self, bytes: float) -> float:  # noqa: A002
        """Time in seconds to read or write a number of bytes of device memory."""
        return bytes / (self.bandwidth * self.bandwidth_efficiency)


def whole_ns(seconds: float) -> int:
    """Round seconds to the nearest nanosecond, and up to 1."""
    return max(1, round(seconds * 1e9))


def find_device(name: str, cudnn: str | None = None) -> Device:
    """Return the packaged device of a name or an alias, or the one of a file whose name ends in ``.toml``.

    Case, spaces, punctuation and the vendor's ``NVIDIA`` do not matter, and the full name finds it, too.

    Parameters
    ----------
    name
        Of the device, or of a file.
    cudnn
        Version of cuDNN, one of `LIBRARIES`; None: the newest of the device's first year.

    Raises
    ------
    PebblerError
        When there is none, with the close names, when the file is wrong, or when there is no such cuDNN or it
        is older than the device.
    """
    require_kind("a device", name, str, "give its name, such as 'k40', or a file of your own (.toml)")
    device = _find(name)
    return device if cudnn is None else replace(device, cudnn=read_library(cudnn, device.architecture))


def _find(name: str) -> Device:
    if name.endswith(".toml"):
        return read_device(name)
    known = _known()
    device = known.get(_plain(name))
    if device is None:
        close = difflib.get_close_matches(_plain(name), known, n=3)
        names = dict.fromkeys(known[match].name for match in close) or [item.name for item in list_devices()]
        raise PebblerError(
            f"'{name}' is not a known device; try {', '.join(names)}, or give a file of your own (.toml)"
        )
    return device


@cache
def _known() -> dict[str, Device]:
    """The packaged devices by each of their names."""
    return {
        _plain(known_as): device
        for device in list_devices()
        for known_as in (device.name, device.title, *device.aliases)
    }


@cache
def list_devices() -> tuple[Device, ...]:
    """Return the packaged devices, in the order of ``devices.toml``."""
    text = resources.files(__package__).joinpath("devices.toml").read_text(encoding="utf-8")
    return _devices(tomllib.loads(text), "devices.toml")


def read_device(path: str | Path) -> Device:
    """Read a file of one's own with a single device, written as in the packaged ``devices.toml``.

    Raises
    ------
    PebblerError
        When it cannot be read, holds no or several devices, or a key is unknown, missing or out of range.
    """
    devices = _devices(read_toml(path), str(path))
    if len(devices) != 1:
        raise PebblerError(f"{path}: it has {len(devices)} devices; give one table with one device")
    return devices[0]


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum()).removeprefix("nvidia")


def _devices(tables: dict[str, Any], where: str) -> tuple[Device, ...]:
    return tuple(_device(name, table, f"{where}: [{name}]") for name, table in tables.items())


def _device(name: str, table: Any, where: str) -> Device:
    _require_keys(table, {"title", "aliases", "architecture", *_FIGURES}, where, _OPTIONAL)
    title, aliases, architecture = table["title"], table["aliases"], table.get("architecture")
    if not (name and name.isprintable()):
        raise PebblerError(f"{where}: the name is empty or has characters that do not print; give another")
    if not isinstance(title, str):
        raise PebblerError(f"{where}: 'title' is {title!r}; write a string")
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise PebblerError(f"{where}: 'aliases' is {aliases!r}; write a list of strings")
    if architecture is not None and architecture not in get_args(Architecture):
        known = ", ".join(get_args(Architecture))
        raise PebblerError(f"{where}: 'architecture' is {architecture!r}; write one of {known}")
    figures: dict[str, Any] = {}
    sources = []
    for key in (key for key in _FIGURES if key in table):
        entry = table[key]
        _require_keys(entry, {"value", "source"}, f"{where[:-1]}.{key}]")
        _require_value(key, entry["value"], where)
        if not isinstance(entry["source"], str):
            raise PebblerError(f"{where}: the source of '{key}' is {entry['source']!r}; write a string")
        figures[key] = entry["value"]
        sources.append((key, entry["source"]))
    return Device(
        name=name,
        title=title,
        aliases=tuple(aliases),
        architecture=architecture,
        cudnn=library_of_year(figures["year"]),
        **figures,
        sources=tuple(sources),
    )


def _require_keys(table: Any, wanted: set[str], where: str, optional: AbstractSet[str] = frozenset()) -> None:
    if not isinstance(table, dict):
        raise PebblerError(f"{where}: it is {table!r}; write a table with {', '.join(sorted(wanted))}")
    if unknown := sorted(set(table) - wanted):
        raise PebblerError(f"{where}: unknown key '{unknown[0]}'; it takes {', '.join(sorted(wanted))}")
    if missing := sorted(wanted - optional - set(table)):
        raise PebblerError(f"{where}: key '{missing[0]}' is missing; add it")


def _require_value(key: str, value: Any, where: str) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if key in _WHOLE and not (whole and value > 0):
        raise PebblerError(f"{where}: '{key}' is {value!r}; write a whole number above 0")
    if key not in _WHOLE and not ((whole or isinstance(value, float)) and 0 < value < float("inf")):
        raise PebblerError(f"{where}: '{key}' is {value!r}; write a number above 0")
    if key in _SHARES and value > 1:
        raise PebblerError(f"{where}: '{key}' is {value!r}; a share of the peak is at most 1")
    least, most = _RANGES[_SHARES if key in _SHARES else _RATES if key in _RATES else _WHOLE]
    if not least <= value <= most:
        raise PebblerError(f"{where}: '{key}' is {value!r}; write a number from {least:g} to {most:g}")
