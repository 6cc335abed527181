"""A schedule as a timeline for Perfetto and Chrome's tracing page."""

from __future__ import annotations

from typing import Any

from ...instances.arguments import require_instance
from ...instances.instance import Instance
from ...validate.gpus.program import gradient_of, part_of
from ...validate.measures import carried_bytes
from ...validate.schedule import Operation, Schedule, require_schedule
from ..output.usage import memory_use

_STREAMS = {
    "compute": "compute",
    "d2h": "copies to the host",
    "h2d": "copies to the device",
    "copy": "copies",
    "cpu": "the host's cores",
    "network": "network",
    "nvlink": "NVLink",
    "host": "on the host",
}
"""Title of each stream."""


def trace(instance: Instance, schedule: Schedule, *others: tuple[str, Schedule]) -> dict[str, Any]:
    """Return a schedule in the Trace Event Format: streams as threads, bytes in use as a counter.

    Times are in microseconds, as the format requires. Carried blocks are counted apart from others. Each of
    several GPUs is a process in the trace. Other schedules of the instance, each with a word for it, follow
    as further processes.

    Raises
    ------
    PebblerError
        If this is no instance or no schedule.
    """
    require_instance(instance)
    require_schedule(schedule)
    title = f"{instance.name} by {schedule.method}"
    processes = [(title, schedule), *((f"{title}, {word}", other) for word, other in others)]
    if instance.gpus > 1:
        gpus = range(instance.gpus)
        processes = [(f"{name}, GPU {gpu}", part_of(one, gpu)) for name, one in processes for gpu in gpus]
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "instance": schedule.instance,
            "method": schedule.method,
            "memory_model": schedule.memory_model,
            "budget_bytes": instance.budget_bytes,
            "peak_bytes": schedule.peak_bytes,
            "makespan_ns": schedule.makespan_ns,
            **({"carried_bytes": carried_bytes(schedule)} if schedule.states else {}),
        },
        "traceEvents": [
            event
            for process, (name, one) in enumerate(processes, start=1)
            for event in _process(instance, one, process, name)
        ],
    }


def _process(instance: Instance, schedule: Schedule, process: int, title: str) -> list[dict[str, Any]]:
    threads = {stream: i for i, stream in enumerate(_STREAMS, start=1)}
    used = {operation.stream for operation in schedule.operations}
    names = [_metadata("process_name", process, 0, title)]
    names += [
        _metadata("thread_name", process, threads[s], name) for s, name in _STREAMS.items() if s in used
    ]
    operations = (
        _event(instance, operation, process, threads[operation.stream]) for operation in schedule.operations
    )
    return [*names, *operations, *_counters(instance, schedule, process)]


def _metadata(name: str, process: int, thread: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": {"name": value}}


def _event(instance: Instance, operation: Operation, process: int, thread: int) -> dict[str, Any]:
    details: dict[str, Any] = {"id": operation.id, "after": operation.after}
    if operation.gradient is not None:
        gradient = gradient_of(instance, operation)
        name = f"{operation.kind} {gradient.name}"
        details["bytes"] = gradient.bytes
    elif operation.task is not None and operation.algorithm is not None:
        task = instance.tasks[operation.task]
        name = task.name
        details["algorithm"] = task.algorithms[operation.algorithm].name
        details["workspace_bytes"] = task.algorithms[operation.algorithm].workspace_bytes
        if task.algorithms[operation.algorithm].on == "host":
            details["on"] = "host"
    else:
        assert operation.block is not None
        block = instance.blocks[operation.block]
        name = f"{operation.kind} {block.name}"
        details["bytes"] = block.bytes
    return {
        "ph": "X",
        "name": name,
        "cat": operation.kind,
        "pid": process,
        "tid": thread,
        "ts": operation.start_ns / 1000,
        "dur": (operation.end_ns - operation.start_ns) / 1000,
        "args": details,
    }


def _counters(instance: Instance, schedule: Schedule, process: int) -> list[dict[str, Any]]:
    use = memory_use(schedule)

    def levels(i: int) -> dict[str, int]:
        if not schedule.states:
            return {"blocks": use.blocks[i], "workspaces": use.workspaces[i]}
        others = use.blocks[i] - use.carried[i]
        return {"carried": use.carried[i], "blocks": others, "workspaces": use.workspaces[i]}

    return [
        {
            "ph": "C",
            "name": "memory (bytes)",
            "pid": process,
            "ts": instant / 1000,
            "args": {"resident": instance.resident_bytes, **levels(i)},
        }
        for i, instant in enumerate(use.instants)
    ]
