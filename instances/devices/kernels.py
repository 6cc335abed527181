"""Kernels of a layer as a profiler sees them: configurations, durations, and files that hold them.

Two documents are read: the kernels of one sample, and records of CUPTI that are turned into them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from ..errors import FormatError, PebblerError
from ..files import read_json
from ..instance import Natural, Positive
from .device import Device, whole_ns
from .occupancy import WARP, ExecutionLimits, execution_limits

LATENCY_CYCLES = 400
"""Clock cycles of a load from device memory: 200 to 400 (CUDA C Programming Guide, on 3.x)."""
REGISTER_UNIT = 256
"""Registers are given to a warp in units of so many (CUDA occupancy calculator, from 3.x on)."""

Extent = tuple[Positive, Positive, Positive]
Registers = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Launches = Annotated[int, msgspec.Meta(ge=1, le=10_000)]

_MOST_THREADS = 1024
_MOST_BLOCKS = 10_000_000
_MOST_KERNELS = 1000


class Kernel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A kernel that every sample launches.

    Attributes
    ----------
    name
        Unique within its layer.
    grid, block
        Extents: blocks, and threads of a block.
    shared_bytes, registers
        Shared memory of a block, static and dynamic; registers of a thread.
    duration_ns
        Time of the kernel alone on the device.
    invocations
        Launches a sample.
    work_ns
        Time of one block at a multiprocessor's full throughput; None: unknown, as in what profilers say.
    """

    name: str
    grid: Extent
    block: Extent
    shared_bytes: Natural
    registers: Registers
    duration_ns: Positive
    invocations: Launches = 1
    work_ns: Positive | None = None

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            raise FormatError(f"kernel '{self.name}': its name has characters that do not print")
        for what, number, most in (
            ("a block has {} threads", self.threads, _MOST_THREADS),
            ("its grid has {} blocks", self.blocks, _MOST_BLOCKS),
        ):
            if number > most:
                raise FormatError(f"kernel '{self.name}': {what.format(number)}, and {most} is the most")

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return math.prod(self.block)

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.threads // WARP)

    @property
    def block_registers(self) -> int:
        """Registers that a block takes."""
        return self.warps * -(-self.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT


class LayerKernels(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of one sample in a layer, in the order of their launches.

    Attributes
    ----------
    t_launch_ns
        T_launch, as the authors' program measures it: mean idle time between the kernels of a sample.
    kernels
        At least one, at most a thousand; their names differ.

    Raises
    ------
    FormatError
        When there is none or two have one name.
    """

    t_launch_ns: Positive
    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        if not self.kernels:
            raise FormatError("kernels: there is none; give the kernels of one sample")
        if len(self.kernels) > _MOST_KERNELS:
            raise FormatError(f"kernels: there are {len(self.kernels)}, and {_MOST_KERNELS} are the most")
        names = set()
        for kernel in self.kernels:
            if kernel.name in names:
                raise FormatError(
                    f"kernels: '{kernel.name}' is there twice; give every kernel a name of its own"
                )
            names.add(kernel.name)

    @property
    def launches(self) -> tuple[int, ...]:
        """The kernels' indices in the order in which one sample launches them."""
        return tuple(i for i, kernel in enumerate(self.kernels) for _ in range(kernel.invocations))


class _Record(msgspec.Struct, rename="camel"):
    """A kernel in the words of CUPTI's ``CUpti_ActivityKernel``; other keys are passed over."""

    name: str
    grid_x: Positive
    grid_y: Positive
    grid_z: Positive
    block_x: Positive
    block_y: Positive
    block_z: Positive
    static_shared_memory: Natural
    dynamic_shared_memory: Natural
    registers_per_thread: Registers
    start: Natural
    end: Natural


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """Either the kernels of a sample with T_launch, or CUPTI's records of one sample."""

    t_launch_ns: Positive | None = None
    kernels: tuple[Kernel, ...] | None = None
    records: tuple[_Record, ...] | None = None

    def layer(self) -> LayerKernels:
        """Return what either of them says."""
        if (self.kernels is None) == (self.records is None):
            raise FormatError("it has to have either 'kernels' or 'records'")
        if self.records is not None:
            return _profiled(self.records, self.t_launch_ns)
        if self.kernels is None or self.t_launch_ns is None:
            raise FormatError("key 't_launch_ns' is missing; give the time between two launches")
        return LayerKernels(t_launch_ns=self.t_launch_ns, kernels=self.kernels)


def read_kernels(path: str | Path) -> LayerKernels:
    """Read the kernels of one sample of a layer.

    The file is JSON: ``{"t_launch_ns": ..., "kernels": [...]}``, or ``{"records": [...]}`` with the records
    that CUPTI gives of one sample's kernels on one stream.

    Raises
    ------
    PebblerError
        When it cannot be read or is neither; the sentence names the place.
    """
    document = read_json(path, _Document, "a file of kernels")
    try:
        return document.layer()
    except FormatError as error:
        raise FormatError(f"{path} is not a file of kernels: {error}") from None


def _profiled(records: Sequence[_Record], t_launch_ns: int | None) -> LayerKernels:
    """Merge records of one configuration: mean duration, number of launches, mean idle time between them."""
    if not records:
        raise FormatError("records: there is none; give those of one sample")
    ordered = sorted(records, key=lambda record: record.start)
    groups: dict[tuple[object, ...], list[_Record]] = {}
    for record in ordered:
        if record.end <= record.start:
            raise FormatError(f"records: '{record.name}' ends at {record.end}, not after its start")
        key = tuple(
            getattr(record, field) for field in record.__struct_fields__ if field not in ("start", "end")
        )
        groups.setdefault(key, []).append(record)
    kernels: list[Kernel] = []
    for group in groups.values():
        first = group[0]
        same = sum(kernel.name.split("#")[0] == first.name for kernel in kernels)
        kernels.append(
            Kernel(
                name=f"{first.name}#{same + 1}" if same else first.name,
                grid=(first.grid_x, first.grid_y, first.grid_z),
                block=(first.block_x, first.block_y, first.block_z),
                shared_bytes=first.static_shared_memory + first.dynamic_shared_memory,
                registers=first.registers_per_thread,
                duration_ns=max(1, round(sum(record.end - record.start for record in group) / len(group))),
                invocations=len(group),
            )
        )
    if t_launch_ns is None:
        if len(ordered) < 2:
            raise FormatError("records: one has no idle time after it; give 't_launch_ns' too")
        idle = [max(0, after.start - before.end) for before, after in pairwise(ordered)]
        t_launch_ns = max(1, round(sum(idle) / len(idle)))
    return LayerKernels(t_launch_ns=t_launch_ns, kernels=tuple(kernels))


# --- one kernel alone ---------------------------------------------------------------------------------


def resident_blocks(kernel: Kernel, limits: ExecutionLimits) -> int:
    """How many blocks of a kernel one multiprocessor holds.

    Raises
    ------
    PebblerError
        When it does not hold one.
    """
    needs = {
        "threads": (kernel.threads, limits.threads),
        "registers": (kernel.block_registers, limits.registers),
        "bytes of shared memory": (kernel.shared_bytes, limits.shared_bytes),
    }
    for what, (needed, there) in needs.items():
        if needed > there:
            raise PebblerError(
                f"kernel '{kernel.name}': a block needs {needed} {what}, but a multiprocessor has {there}"
            )
    return min(limits.blocks, *(there // needed for needed, there in needs.values() if needed))


def waves(blocks: int, resident: int, multiprocessors: int) -> tuple[int, int]:
    """Full waves of a kernel alone, and blocks of its last wave, where a multiprocessor has most."""
    return divmod(-(-blocks // multiprocessors), resident)


def alone_ns(work: float, alone: float, blocks: int, resident: int, multiprocessors: int) -> float:
    """Time of a kernel alone, whose blocks are spread evenly.

    Parameters
    ----------
    work
        Time of one block at a multiprocessor's full throughput; r blocks together take r times that.
    alone
        Time that one block takes at least, alone on a multiprocessor; no less than `work`.
    blocks, resident, multiprocessors
        Of the grid, that one multiprocessor holds, and of the device.
    """
    full, rest = waves(blocks, resident, multiprocessors)
    return full * max(resident * work, alone) + (max(rest * work, alone) if rest else 0.0)


def derived_kernel(
    device: Device,
    name: str,
    *,
    blocks: int,
    threads: int,
    shared_bytes: int = 0,
    registers: int,
    flops: float = 0.0,
    traffic: int,
    loads: int,
    invocations: int = 1,
) -> Kernel:
    """Return a kernel whose time comes from the roofline of its blocks, and from a latency of each.

    Parameters
    ----------
    device
        A packaged device.
    name, blocks, threads, shared_bytes, registers, invocations
        As in `Kernel`.
    flops, traffic
        Operations of all blocks, at the device's speed of matrix products, and bytes that they move.
    loads
        Loads of a block one after another; it takes no less than their latencies.

    Raises
    ------
    PebblerError
        For a device whose multiprocessors are not known.
    """
    limits = execution_limits(device)
    share = limits.multiprocessors / blocks
    compute = flops / (device.peak_flops * device.gemm_efficiency)
    work = whole_ns(share * max(compute, device.memory_seconds(traffic)))
    alone = max(work, whole_ns(loads * LATENCY_CYCLES / limits.clock_hz))
    kernel = Kernel(
        name=name,
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        shared_bytes=shared_bytes,
        registers=registers,
        duration_ns=1,
        invocations=invocations,
        work_ns=work,
    )
    duration = alone_ns(work, alone, blocks, resident_blocks(kernel, limits), limits.multiprocessors)
    return msgspec.structs.replace(kernel, duration_ns=round(duration))
