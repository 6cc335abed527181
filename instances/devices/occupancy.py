"""What a multiprocessor holds: limits on kernels that run side by side, from ``occupancy.toml``."""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec

from ..errors import PebblerError
from ..instance import Positive
from .device import Device

WARP = 32
"""Threads of a warp."""
MOST_STREAMS = 32
"""Hyper-Q's queues from the host, from Kepler on: more streams share them (NVIDIA GK110 whitepaper)."""


class Sourced(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure and where it comes from."""

    value: Positive
    source: str


class _Capability(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file: figures that devices of one compute capability share."""

    devices: tuple[str, ...]
    threads: Sourced
    blocks: Sourced
    registers: Sourced
    shared_bytes: Sourced
    lanes: Sourced
    hiding_warps: Sourced
    concurrent_kernels: Sourced
    work_queues: Sourced


class ExecutionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What kernels share on a device.

    Attributes
    ----------
    multiprocessors
        Of the device.
    threads, blocks, registers, shared_bytes
        That one multiprocessor holds at a time.
    lanes
        Single-precision operations that one multiprocessor issues a cycle.
    hiding_warps
        Warps with which one multiprocessor hides the latency of arithmetic.
    concurrent_kernels
        GLP4NN's C: kernels that the device executes at a time.
    work_queues
        Queues from the host that programs get by default.
    clock_hz
        Clock rate at which the lanes give the device's peak.
    """

    multiprocessors: int
    threads: int
    blocks: int
    registers: int
    shared_bytes: int
    lanes: int
    hiding_warps: int
    concurrent_kernels: int
    work_queues: int
    clock_hz: float


def execution_limits(device: Device) -> ExecutionLimits:
    """Return the limits of a device.

    Raises
    ------
    PebblerError
        For a device that is not packaged.
    """
    table = _tables()
    if device.name not in table:
        raise PebblerError(
            f"what a multiprocessor of device '{device.name}' holds is not known; take {', '.join(table)}"
        )
    figures = {
        name: figure.value
        for name, figure in msgspec.structs.asdict(table[device.name]).items()
        if isinstance(figure, Sourced)
    }
    return ExecutionLimits(
        multiprocessors=device.multiprocessors,
        clock_hz=device.peak_flops / (2 * device.multiprocessors * figures["lanes"]),
        **figures,
    )


@cache
def _tables() -> dict[str, _Capability]:
    """Per device, the figures of its compute capability."""
    text = resources.files(__package__).joinpath("occupancy.toml").read_bytes()
    tables = msgspec.toml.decode(text, type=dict[str, _Capability])
    return {device: table for table in tables.values() for device in table.devices}
