"""Carried blocks in the exhaustive search: the choices of their places at both ends of the round.

A round ends where it begins, so each choice is a search of its own, with an end test that asks for the same
places. All these searches share a queue. Offsets at multiples of the greatest common divisor of all sizes are
enough here, too: what moves down are the first and the last residence of a carried block together.

What is carried in both places does not leave the device before something has used it there, and its copy is
not dropped before something has read it. The rest of the program is the same, and no longer, where the block
is only on the host at both ends, or only on the device. (A residence ends when some operations have ended, so
what is there from time 0 and is released has to name one.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ...instances.instance import Block, Instance
from ...validate.schedule import Carried, Schedule
from .host_memory import ABSENT


class Home(NamedTuple):
    """Where a carried block is at both ends of a round.

    Attributes
    ----------
    device, host
        Its offset on the device and that of its copy on the host, or `ABSENT`; 0 where offsets do not count.
    """

    device: int
    host: int


def choices(instance: Instance, block: int) -> list[tuple[bool, bool]]:
    """Return the choices for a carried block: whether it is on the device, and whether on the host.

    Choices with a copy that is impossible are left out. Without a budget of host memory, a copy of what no
    task writes costs nothing: it is there in any case.
    """
    info, is_written = instance.blocks[block], bool(instance.writers[block])
    if is_written and info.offload_ns is None:
        return [(True, False)]
    is_free = not is_written and not instance.has_host_budget
    found = [] if is_free else [(True, False)]
    tasks = [instance.tasks[k] for k in instance.uses[block]]
    if info.prefetch_ns is not None or all(
        block in task.may_read and block not in task.must_read for task in tasks
    ):  # else it has to be on the device, whatever algorithms run
        found.append((False, True))
    return [*found, (True, True)]


def settled(instance: Instance, homes: Iterable[Home]) -> Instance:
    """Return the instance whose blocks begin and end in these homes, as the program builder reads it.

    What is in both places ends on the host: the builder releases nothing by itself.
    """
    if not instance.carried:
        return instance
    blocks = list(instance.blocks)
    for d, home in zip(instance.carried, homes, strict=True):
        blocks[d] = _settled(blocks[d], home)
    return msgspec.structs.replace(instance, blocks=tuple(blocks))


def with_states(instance: Instance, schedule: Schedule, homes: Iterable[Home]) -> Schedule:
    """Return the schedule with the list that says where carried blocks are at both ends."""
    carried = tuple(
        Carried(block=d, device=home.device != ABSENT, host=home.host != ABSENT)
        for d, home in zip(instance.carried, homes, strict=True)
    )
    return msgspec.structs.replace(schedule, carried=carried)


def _settled(block: Block, home: Home) -> Block:
    return msgspec.structs.replace(
        block,
        initially="host" if home.device == ABSENT else "device",
        finally_="device" if home.host == ABSENT else "host",
    )
