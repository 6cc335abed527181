"""What G10's program writes of a training step, as an instance of the machine that it simulates.

``gpg`` is run with a config: lines of a key and a value, with the machine's figures and the folder of the
results. Into ``statistics/kernels.config`` of that folder it writes the kernels of the step in their order,
each with its cycles and with the tensors that it reads and writes.

G10: H. Zhang, Y. E. Zhou, Y. Xue, Y. Liu and J. Huang, "G10: Enabling An Efficient Unified GPU Memory and
Storage Architecture with Smart Tensor Migrations", MICRO 2023.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..devices.device import whole_ns
from ..errors import FormatError
from ..figures import distinct, shown, text_of
from ..files import read_bytes
from ..instance import Algorithm, Block, Instance, Task

PAGE_BYTES = 4096
"""A page of G10, of which tensors have a whole number."""

Weights = Literal["carried", "host", "allocated"]
"""Where a step finds its weights and leaves them; see `instance_of_config`."""

_PLACES: dict[Weights, dict[str, Any]] = {
    "carried": {"initially": "carried"},
    "host": {"initially": "host", "finally_": "host"},
}

_LISTED = "statistics/kernels.config"
_CONFIG = re.compile(rb"^[ \t]*(?:output_folder|GPU_memory_size_GB)[ \t]", re.MULTILINE)
_KERNEL = re.compile(
    r"Kernel ID: (\d{1,9}), Name: (\S+)\n"
    r"Parent [^\n]*\n"
    r"Execution Time: (\d{1,16})\n"
    r"(?:\([\d,]*\)\n)?"
    r"Input Tensors:\n((?:tensor[^\n]*\n)*)"
    r"Output Tensors:\n((?:tensor[^\n]*\n)*)"
    r"_+\n"
)
_TENSOR = re.compile(
    r"tensor(\d{1,9}) Is weight \(global\)\?: ([01]), Size in byte: (\d{1,16}), Range:\d+--\d+"
)


def is_config(data: bytes) -> bool:
    """Whether a file's bytes are those of a config of G10."""
    return _CONFIG.search(data) is not None


def instance_of_config(data: bytes, path: str | Path, weights: Weights = "carried") -> Instance:
    """Make an instance of what ``gpg`` has written with a config, and of the machine of the config.

    Both directions copy at once, each at the bandwidth of host memory; the SSD is left out. A tensor that one
    kernel alone touches is workspace. As in G10, one that a kernel touches first is allocated there and not
    copied, even if it is read. Allocations, faults and latencies take no time.

    Parameters
    ----------
    data, path
        The config, and where it lies. Its folder of results may be relative to any folder above it.
    weights
        Where a step finds its weights and leaves them: ``carried``, where the step before has left them, as
        the schedule says; ``host``, on the host at both ends; ``allocated``, nowhere, and the first kernel
        that touches them has them for nothing, as it has other tensors.

    Raises
    ------
    PebblerError
        When the config or the list of kernels is malformed or absent; the sentence names the place.
    """
    try:
        config = _Config.of(data)
    except (FormatError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is no config of G10: {error}") from None
    listed = _listed(config.folder, path)
    try:
        kernels = tuple(_kernels(read_bytes(listed).decode()))
        return _instance(config, kernels, _tensors(kernels), weights)
    except (FormatError, UnicodeDecodeError) as error:
        raise FormatError(f"{listed} is no list of kernels that gpg has written: {error}") from None


@dataclass(frozen=True, slots=True)
class _Config:
    """What is read of a config: its folder of results, a name, and the machine in bytes and seconds."""

    folder: str
    name: str
    hertz: float
    memory: int
    host_memory: int
    bandwidth: float

    @classmethod
    def of(cls, data: bytes) -> _Config:
        """Read the lines of a config; as in G10, the last one with a key counts."""
        words = (line.split() for line in data.decode().splitlines())
        values = {pair[0]: pair[1] for pair in words if len(pair) > 1}
        for key in ("output_folder", "nn_model_input_file", "batch_size"):
            if key not in values:
                raise FormatError(f"it has no line '{key}'")
        bandwidths = [_figure(values, f"{side}_PCIe_bandwidth_GBps") for side in ("GPU", "CPU")]
        return cls(
            folder=values["output_folder"],
            name=text_of(f"{Path(values['nn_model_input_file']).stem}-{values['batch_size']}"),
            hertz=_figure(values, "GPU_frequency_GHz") * 1e9,
            memory=int(_figure(values, "GPU_memory_size_GB") * 2**30),
            host_memory=int(_figure(values, "CPU_memory_line_GB", least=0.0) * 2**30),
            bandwidth=min(bandwidths) * 1e9,
        )


def _figure(values: dict[str, str], key: str, least: float = 1e-6) -> float:
    """Return the number of a line; the least is above nothing where nothing can be divided by."""
    if key not in values:
        raise FormatError(f"it has no line '{key}'")
    try:
        value = float(values[key])
    except ValueError:
        value = math.nan
    if not least <= value <= 1e6:
        raise FormatError(f"{key} is {shown(values[key])}, which is no number from {least:g} to 1e+06")
    return value


def _listed(folder: str, path: str | Path) -> Path:
    """Return the list of kernels in a folder of results, relative to the nearest folder above the config."""
    for above in Path(path).absolute().parents:
        if (listed := above / folder / _LISTED).is_file():
            return listed.resolve()
    raise FormatError(
        f"{path} names the folder {shown(folder)}, in which there is no {_LISTED}; run gpg with this config "
        "first"
    )


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor where a kernel touches it."""

    number: int
    weight: bool
    bytes: int


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel: its cycles, and what it reads and writes."""

    name: str
    cycles: int
    reads: tuple[_Tensor, ...]
    writes: tuple[_Tensor, ...]

    @property
    def touched(self) -> tuple[_Tensor, ...]:
        """Each tensor once."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))


def _kernels(text: str) -> Iterator[_Kernel]:
    """Read kernels one after the other to the end of the text."""
    position, count = 0, 0
    while position < len(text):
        match = _KERNEL.match(text, position)
        if match is None:
            raise FormatError(f"what begins at line {_line(text, position)} is no whole kernel")
        if int(match[1]) != count:
            raise FormatError(f"line {_line(text, position)} has kernel {match[1]} in place of {count}")
        reads, writes = (tuple(_tensor(line) for line in match[group].splitlines()) for group in (4, 5))
        yield _Kernel(f"{match[1]} {match[2]}", int(match[3]), reads, writes)
        position, count = match.end(), count + 1
    if not count:
        raise FormatError("it is empty")


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _tensor(line: str) -> _Tensor:
    match = _TENSOR.fullmatch(line)
    if match is None:
        raise FormatError(f"{shown(line)} is no line of a tensor")
    return _Tensor(int(match[1]), match[2] == "1", int(match[3]))


def _tensors(kernels: Sequence[_Kernel]) -> dict[_Tensor, int]:
    """Return in how many kernels each tensor is touched, in the order of their first kernels."""
    count = Counter(tensor for kernel in kernels for tensor in kernel.touched)
    known: dict[int, _Tensor] = {}
    for tensor in count:
        if known.setdefault(tensor.number, tensor) != tensor:
            raise FormatError(f"tensor{tensor.number} is not of one size, or not always a weight")
    return count


def _instance(
    config: _Config, kernels: Sequence[_Kernel], tensors: dict[_Tensor, int], weights: Weights
) -> Instance:
    """Make the instance: blocks are tensors of several kernels, and weights that are there before."""
    blocks: dict[_Tensor, Block] = {}
    for tensor, count in tensors.items():
        places = _PLACES.get(weights, {}) if tensor.weight else {}
        if tensor.bytes and (places or count > 1):
            time = whole_ns(tensor.bytes / config.bandwidth)
            blocks[tensor] = Block(
                name=f"tensor{tensor.number}",
                bytes=tensor.bytes,
                offload_ns=time,
                prefetch_ns=time,
                **places,
            )
    index = {tensor: b for b, tensor in enumerate(blocks)}
    present = {tensor for tensor, block in blocks.items() if block.initially != "absent"}
    tasks = []
    for name, kernel in zip(distinct(kernel.name for kernel in kernels), kernels, strict=True):
        touched = kernel.touched
        held = [tensor for tensor in touched if tensor in blocks]
        found = [tensor for tensor in held if tensor in present]
        tasks.append(
            Task(
                name=name,
                inputs=tuple(index[tensor] for tensor in found if tensor not in kernel.writes),
                outputs=tuple(index[tensor] for tensor in held if tensor not in present),
                updates=tuple(index[tensor] for tensor in found if tensor in kernel.writes),
                algorithms=(
                    Algorithm(
                        name="only",
                        duration_ns=round(kernel.cycles / config.hertz * 1e9),
                        workspace_bytes=sum(tensor.bytes for tensor in touched if tensor not in blocks),
                    ),
                ),
            )
        )
        present.update(held)
    return Instance(
        name=config.name,
        engines="duplex",
        budget_bytes=config.memory,
        resident_bytes=0,
        alignment_bytes=PAGE_BYTES,
        host_budget_bytes=config.host_memory,
        blocks=tuple(blocks.values()),
        tasks=tuple(tasks),
        meta={"source": "G10"},
    )
