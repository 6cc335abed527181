"""Optimizers on the host, as DeepSpeed has them: ZeRO-Offload, and SuperOffload, which updates early.

Weights are on the device. What an optimizer keeps for them is on the host, where it updates: gradients go
out, and weights come back to where they were.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import accumulate

from msgspec.structs import replace

from ...instances.instance import Instance
from ...validate.schedule import Operation, Residence, Schedule, Stream
from ..carried import as_read, states_of
from ..choices import run_fastest
from ..clock import limited
from ..host_work import HostWork, of_both_sides, on_sides
from ..methods import Answer, Limits, Refusal, register
from ..program.builder import OutOfMemoryError, ProgramBuilder
from ..program.timeline import simulated

_ON_HOST = 0.9
"""Share of the parameters that SuperOffload updates on the host: ``ratio`` in DeepSpeed's examples."""


@register(
    "zero-offload",
    "gradients leave during the backward pass; then the host updates all weights, which come back",
    "DeepSpeed, ZeRO-Offload (Ren et al., ATC 2021, section 4.1)",
    shown="named",
    carries="chosen",
    sides="chosen",
)
@limited
def zero_offload(instance: Instance, limits: Limits) -> Answer:
    """Keep on the device all but what an optimizer keeps; update on the host when all gradients are there.

    Raises
    ------
    Refusal
        When no weights can be updated on the host, its memory ends, or there is no room on the device.
    """
    hosted = _updates(instance)
    return Answer(_updated(instance, limits, "zero-offload", hosted, early=False))


@register(
    "superoffload",
    "as zero-offload, but each update begins when its gradient is there, and the last ones are on the device",
    "DeepSpeed, SuperOffload (Lian et al., ASPLOS 2026); superoffload_stage3.py, without clipping",
    shown="named",
    carries="chosen",
    sides="chosen",
)
@limited
def superoffload(instance: Instance, limits: Limits) -> Answer:
    """Update on the host as gradients come, but for a tenth of the parameters, those that come last.

    Raises
    ------
    Refusal
        As `zero_offload`.
    """
    updates = _updates(instance)
    sizes = [sum(instance.blocks[d].bytes for d in instance.tasks[k].inputs) for k in updates]
    count = sum(total <= (1 - _ON_HOST) * sum(sizes) for total in accumulate(reversed(sizes)))
    kept = {k for k in updates[len(updates) - count :] if instance.tasks[k].device_algorithms}
    hosted = [k for k in updates if k not in kept]
    return Answer(_updated(instance, limits, "superoffload", hosted, early=True))


def _updates(instance: Instance) -> list[int]:
    """Return the updates that may run on the host, in the order of their gradients."""
    found = [k for k, task in enumerate(instance.tasks) if task.may_run_on_host]
    if not found or not instance.carried:
        raise Refusal(
            "no update of weights may run on the host; ask for a steady state with an optimizer there "
            "(--steady --optimizer adam --optimizer-on host, or choose)"
        )
    if instance.has_host_budget:
        raise Refusal("host memory ends, and this rule has no plan for it")
    return found


def _updated(
    instance: Instance, limits: Limits, name: str, hosted: Collection[int], *, early: bool
) -> Schedule:
    """Return the schedule with some updates on the host: each begins when its gradient is there.

    Unless they are `early`, all wait until the last gradient is there.
    """
    chosen = frozenset(hosted)
    sided = on_sides(instance, chosen, "paged")  # in which weights may be on the device at both ends
    work = HostWork(sided, returns=True)
    returning = {
        d: k
        for k in hosted
        for d in instance.tasks[k].updates
        if instance.blocks[d].initially == "carried" and work.device.blocks[d].initially == "device"
    }
    device = as_read(
        replace(
            work.device,
            blocks=tuple(
                replace(block, finally_="device") if d in returning else block
                for d, block in enumerate(work.device.blocks)
            ),
        ),
        limits.memory,
    )
    builder = ProgramBuilder(device, memory=limits.memory)
    try:
        for k, task in enumerate(device.tasks):
            builder.fetch((*task.inputs, *task.updates))
            run_fastest(builder, k)
            builder.release_dead(k)
        schedule = work.completed(builder.finish(name))
    except OutOfMemoryError as error:
        raise Refusal(f"{error} at task {task.name}") from None
    schedule = of_both_sides(instance, chosen, _returned(sided, schedule, returning, early=early))
    return replace(schedule, carried=states_of(instance, schedule))


def _returned(
    instance: Instance, schedule: Schedule, returning: Mapping[int, int], *, early: bool
) -> Schedule:
    """Let updates wait as the rule says, and copy weights back to where they were after theirs."""
    runs = {o.task: o.id for o in schedule.operations if o.stream == "host"}
    gradients = [o.id for o in schedule.operations if o.kind == "offload"]
    operations = [
        replace(o, after=tuple(sorted({*o.after, *gradients[-1:]})))
        if o.stream == "host" and not early
        else o
        for o in schedule.operations
    ]
    last = {
        d: o.id
        for o in schedule.operations
        if o.kind == "run" and o.stream != "host" and o.task is not None
        for d in instance.tasks[o.task].inputs
    }
    fresh = max(o.id for o in operations) + 1
    stream: Stream = "copy" if instance.engines == "single" else "h2d"
    residences = {r.block: r for r in schedule.residences if r.block in returning}
    stays: list[Residence] = [r for r in schedule.residences if r.block not in returning]
    for i, (d, k) in enumerate(returning.items(), start=fresh):
        waits = {runs[k], last[d]}
        operations.append(
            Operation(
                id=i,
                stream=stream,
                kind="prefetch",
                block=d,
                after=tuple(sorted(waits)),
                start_ns=0,
                end_ns=0,
            )
        )
        stays.append(replace(residences[d], released_after=(last[d],)))
        stays.append(replace(residences[d], acquired_by=i, released_after=()))
    return simulated(instance, replace(schedule, operations=tuple(operations), residences=tuple(stays)))
