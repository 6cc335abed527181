"""A planned training step of one size, and where its data is when it begins and ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from ....instances.errors import PebblerError
from ....instances.importers.torch_step.devices import Device, Processor, device_of
from ....instances.importers.torch_step.memory import aligned
from ....instances.importers.torch_step.record import StepRecord
from ....instances.instance import Instance
from ...schedule import Schedule
from ..device import DeviceError
from ..plan import Load, Place, plan
from .kernels import OperatorLaunch, RecordedStep


@dataclass(frozen=True, slots=True, eq=False)
class PlannedStep:
    """A recorded step, the instance that was made of it, and a valid schedule."""

    record: StepRecord
    instance: Instance
    schedule: Schedule


def host_memory(sizes: Mapping[int, int], device: Device) -> dict[int, Any]:
    """Return tensors of bytes in memory of the host: in one piece, as the host's copies of blocks.

    Parameters
    ----------
    sizes
        Bytes of each, by a key.
    device
        That copies to and from there.

    Raises
    ------
    DeviceError
        When there is too little memory.
    """
    begins, total = accumulate(map(aligned, sizes.values()), initial=0), sum(map(aligned, sizes.values()))
    try:
        arena = device.host_buffer(max(total, 1))
    except (OSError, OverflowError, RuntimeError):
        raise _too_much(total) from None
    return {
        key: torch.frombuffer(arena, dtype=torch.uint8, count=size, offset=begin)
        if size
        else Processor().empty(0)
        for (key, size), begin in zip(sizes.items(), begins, strict=False)
    }


class SettledStep:
    """A planned step, every address of which is fixed.

    Parameters
    ----------
    planned
        The step.
    lasting
        Memory on the host for what outlives a step, by storage: as many bytes as that has.
    on_host
        Storages that are the host's, by index.

    Attributes
    ----------
    record, recorded, plan
        The step, what its tasks and blocks stand for, and its addresses.
    inputs
        The inputs, in order.
    host
        Operators that the host runs before the first task, with the addresses of what they read.
    loads
        Where a step expects data when it begins, by storage.
    homes
        Where it leaves data, by storage.
    values
        What a step finds, as bytes on the host by storage: constants, inputs, and what outlives it.

    Raises
    ------
    PebblerError
        When something that outlives a step is in parts.
    """

    def __init__(self, planned: PlannedStep, lasting: Mapping[int, Any], on_host: Mapping[int, Any]) -> None:
        self.record = planned.record
        self.inputs = planned.record.inputs
        device = device_of(planned.record.device)
        numbers = {
            s: Processor().empty(storage.bytes) if storage.values is None else storage.values
            for s, storage in enumerate(planned.record.storages)
            if storage.on_host and s not in on_host
        }
        there = {s: tensor.untyped_storage() for s, tensor in numbers.items()}
        self.recorded = RecordedStep(planned.record, planned.instance, {**there, **on_host})
        self.plan = plan(planned.instance, planned.schedule, self.recorded)
        of = self.recorded.storage
        lasts = {at.storage for at in planned.record.lasting.values()}
        for name, begin in self.recorded.parts:
            if begin and of(name) in lasts:
                raise PebblerError(
                    f"{planned.instance.name}: '{name}' is in parts, and is one tensor of the module or the "
                    "optimizer between steps; cut only what does not outlive a step"
                )
        self.loads: dict[int, list[Load]] = defaultdict(list)
        self.homes: dict[int, Place] = {}
        for name, (place, size) in self.plan.outside.items():
            self.loads[of(name)].append(Load(place, name, 0, size))
            self.homes[of(name)] = place
        for load in self.plan.loads:
            self.loads[of(load.tensor)].append(load)
        for load in (*self.plan.left, *self.plan.ends):
            if load.begin == 0:
                self.homes[of(load.tensor)] = load.place
        self.values = {
            s: storage.values for s, storage in enumerate(self.record.storages) if storage.values is not None
        }
        inputs = {at.storage: self.record.storages[at.storage].bytes for at in self.inputs}
        self.values |= host_memory(inputs, device)
        self.values |= lasting
        self.host = [
            (OperatorLaunch(kernel), {name: self.values[of(name)].data_ptr() for name in kernel.operands})
            for kernel in self.recorded.host
        ]


def own_memory(size: int, device: Device) -> Any:
    """Return that many bytes of a device, for a tensor that outlives the step.

    Raises
    ------
    DeviceError
        When there is too little memory.
    """
    try:
        return device.empty(size)
    except RuntimeError:
        raise _too_much(size, "the host" if device.name == "cpu" else device.name) from None


def _too_much(size: int, where: str = "the host") -> DeviceError:
    return DeviceError(f"{size} bytes of memory on {where} cannot be had; free some, and bind again")
