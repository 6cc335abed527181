"""Blocks that a round carries, as methods read them, and the states that a schedule gives them.

A carried block is on the device at both ends. If no task writes it, the host has a valid copy at both ends,
too, so that it may leave for nothing. In contiguous memory it must end at the offset where it began, its
home. There, rules let it stay, and searches may let it leave and come back to its home. Blocks that live on
the host are made ordinary ones before a method sees them (`solver.steady`).
"""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from ..instances.instance import Block, Instance
from ..validate.schedule import Carried, MemoryModel, Schedule


def begins_on_device(block: Block) -> bool:
    """Return whether a block is on the device at time 0, as far as the instance says."""
    return block.initially in ("device", "carried")


def ends_on_device(block: Block) -> bool:
    """Return whether a block must be on the device at the end."""
    return block.finally_ == "device" or block.initially == "carried"


def begins_on_host(instance: Instance, block: int) -> bool:
    """Return whether the host has a valid copy of a block at time 0, where its memory has no budget."""
    initially = instance.blocks[block].initially
    return initially in ("device", "host") or (initially == "carried" and not instance.writers[block])


def as_read(instance: Instance, memory: MemoryModel, *, homing: bool = False) -> Instance:
    """Return the instance in which carried blocks have a home, if the memory is contiguous.

    Parameters
    ----------
    instance, memory
        The instance, and the memory model of its schedules.
    homing
        Whether such blocks may leave the device and come back to their home. If not, they never move.
    """
    if memory != "contiguous" or not instance.carried:
        return instance
    kept = rooted if homing else unmoved
    blocks = tuple(kept(block) if block.initially == "carried" else block for block in instance.blocks)
    return replace(instance, blocks=blocks)


def unmoved(block: Block) -> Block:
    """Return a block that can neither leave the device nor move inside it."""
    return replace(block, offload_ns=None, prefetch_ns=None, move_ns=None)


def rooted(block: Block) -> Block:
    """Return a block that cannot move inside the device."""
    return replace(block, move_ns=None)


def states_of(instance: Instance, schedule: Schedule) -> tuple[Carried, ...]:
    """Return where a schedule finds the blocks that an instance carries, which is where it should leave them.

    Without a budget for host memory, the host has a valid copy of a block that no run on the device writes,
    and of one that is not on the device.
    """
    there = {residence.block for residence in schedule.residences if residence.acquired_by is None}
    copies = {copy.block for copy in schedule.host_copies if copy.acquired_by is None}
    if schedule.host_residences is UNSET:
        on_host = {operation.task for operation in schedule.operations if operation.stream == "host"}
        copies = {d for d in instance.carried if d not in there or on_host.issuperset(instance.writers[d])}
    return tuple(Carried(block=d, device=d in there, host=d in copies) for d in instance.carried)
