"""Dynamic vDNN (Rhu et al., MICRO 2016, section III-C): transfer policy and algorithms, found in passes.

In the paper, a pass is a profiled iteration on the machine. Here it is a simulated iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ...instances.instance import Instance, Task
from ...validate.schedule import MemoryModel, Schedule
from ..choices import by_speed, leanest
from ..clock import OutOfTime, limited
from ..methods import Answer, Limits, Refusal, register
from ..program.builder import ProgramBuilder
from ..program.placement import build_again, build_program
from ..program.pool import Range
from . import modnn_sub_batch as sub_batch
from .layers import layer_steps
from .network_wide import network_wide
from .vdnn import convolution, inputs_of, managed, program, vdnn_all_p, vdnn_conv_p


@register(
    "vdnn-dyn",
    "no offload, else convolutions' inputs, else every layer's; the fastest algorithms that have room",
    "vDNN (MICRO 2016), section III-C",
    carries="read",
)
@limited
def vdnn_dyn(instance: Instance, limits: Limits) -> Answer:
    """Take the first configuration that fits, in the order of the paper's profiling passes.

    Pass 2, with the fastest algorithms: network-wide allocation without offload, vDNN_conv, vDNN_all. Pass 3:
    vDNN_conv, then vDNN_all, with every layer that overflows downgraded to the fastest algorithms that have
    room. Pass 1, vDNN_all with memory-optimal algorithms, asks whether the network can be trained at all. Any
    other pass that succeeds answers this question as well, so pass 1 is simulated last, and only if it is
    needed. It is then the start of pass 3 under vDNN_all, which equals pass 1 where no faster algorithm has
    room.

    `stopped_by` says which pass was adopted.

    Raises
    ------
    Refusal
        When pass 1 fails, with its reason.
    """
    at_full_speed = (
        (network_wide, "no offload"),
        (vdnn_conv_p, "vdnn-conv (p)"),
        (vdnn_all_p, "vdnn-all (p)"),
    )
    for method, what in at_full_speed:
        try:
            schedule = method(instance, limits).schedule
        except OutOfTime:
            raise
        except Refusal:
            continue
        if schedule is not None and not _downgraded(instance, schedule):
            return _adopt(schedule, f"pass 2, {what}")
    try:
        schedule, what = greedy(instance, limits.memory, inputs_of(instance, convolution)), "vdnn-conv"
    except OutOfTime:
        raise
    except Refusal:
        schedule, what = greedy(instance, limits.memory, inputs_of(instance, managed)), "vdnn-all"
        if all(a == leanest(instance.tasks[k]) for k, a in _algorithms(schedule).items()):
            return _adopt(schedule, "pass 1, vdnn-all (m)")
    count = len(_downgraded(instance, schedule))
    return _adopt(schedule, f"pass 3, {what} with {count} downgraded layer{'s' * (count != 1)}")


@register(
    "vdnn-plus",
    "vdnn-dyn at the sub-batch that moDNN chooses",
    "moDNN (TPDS 2019), section 7.2",
    shown="auto",
    sub_batch=sub_batch.tpds,
    carries="read",
)
@limited
def vdnn_plus(instance: Instance, limits: Limits) -> Answer:
    """Run vDNN+: dynamic vDNN with moDNN's sub-batch, which the planner chooses.

    Raises
    ------
    Refusal
        As `vdnn_dyn`.
    """
    answer = vdnn_dyn(instance, limits)
    assert answer.schedule is not None
    return Answer(msgspec.structs.replace(answer.schedule, method="vdnn-plus"), answer.stopped_by)


def _adopt(schedule: Schedule, what: str) -> Answer:
    return Answer(msgspec.structs.replace(schedule, method="vdnn-dyn"), f"done: {what}")


def _algorithms(schedule: Schedule) -> dict[int, int]:
    """Return which algorithm each task runs."""
    return {
        o.task: o.algorithm for o in schedule.operations if o.task is not None and o.algorithm is not None
    }


def _downgraded(instance: Instance, schedule: Schedule) -> set[str]:
    """Return the names of the layers of which some task does not run its fastest algorithm."""
    chosen = _algorithms(schedule)
    slower = {k for k, a in chosen.items() if a != by_speed(instance.tasks[k])[0]}
    steps = layer_steps(instance) if slower else ()
    return {unit.layer for unit in steps if slower.intersection(unit.tasks)}


def greedy(instance: Instance, memory: MemoryModel, leaves_at: Mapping[int, Sequence[int]]) -> Schedule:
    """Simulate pass 3 under one transfer policy.

    A workspace is there only while its task runs, so the choice of algorithms changes neither where the
    blocks lie nor what is free beside them. One simulation with memory-optimal algorithms finds the room of
    each task. A second one, with every block at the same place, uses this room. So a downgrade does not make
    an earlier decision void.

    Parameters
    ----------
    instance, memory
        What to schedule, and the memory model.
    leaves_at
        Per unit, the blocks that leave the device with it.

    Returns
    -------
    Schedule
        Every task with the fastest algorithm that has room.

    Raises
    ------
    Refusal
        When the policy does not fit with memory-optimal algorithms.
    """
    rooms: dict[int, tuple[Range, ...]] = {}
    smallest = [leanest(task) for task in instance.tasks]
    lean = build_program(
        instance, memory, program(instance, leaves_at, smallest, rooms=rooms), one_copy_queue=True
    ).finish("vdnn-dyn")
    algorithms = [_fastest_within(task, rooms[k], memory) for k, task in enumerate(instance.tasks)]
    if memory == "paged" or any(block.tensor is not None for block in instance.blocks):
        builder = ProgramBuilder(instance, memory=memory, one_copy_queue=True)
        program(instance, leaves_at, algorithms)(builder)
        return builder.finish("vdnn-dyn")
    workspace_at = {
        k: min((size, offset) for offset, size in rooms[k] if size >= needed)[1]
        for k, a in enumerate(algorithms)
        if (needed := instance.tasks[k].algorithms[a].workspace_bytes)
    }
    again = program(instance, leaves_at, algorithms, workspace_at=workspace_at)
    return build_again(instance, lean, again, one_copy_queue=True).finish("vdnn-dyn")


def _fastest_within(task: Task, room: tuple[Range, ...], memory: MemoryModel) -> int:
    """Return the index of the fastest algorithm whose workspace has room, in one range or in pages."""
    sizes = [size for _, size in room]
    free = sum(sizes) if memory == "paged" else max(sizes, default=0)
    return next(a for a in by_speed(task) if task.algorithms[a].workspace_bytes <= free)
