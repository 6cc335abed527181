"""A schedule with a run on the host, for pictures and traces."""

from __future__ import annotations

import pytest

from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.validate.schedule import Operation, Schedule


@pytest.fixture
def on_host() -> tuple[Instance, Schedule]:
    """A task on the device beside an update on the host, which takes half as long."""
    times = {"device": 2_000_000, "host": 1_000_000}
    compute, host = (
        (Algorithm(name="only", duration_ns=duration, workspace_bytes=0, on=side),)  # type: ignore[arg-type]
        for side, duration in times.items()
    )
    instance = Instance(
        name="on-host",
        engines="duplex",
        budget_bytes=2**20,
        resident_bytes=2**19,
        blocks=(Block(name="W(a)", bytes=2**20, offload_ns=5, prefetch_ns=5, initially="host"),),
        tasks=(
            Task(name="FP(a)", inputs=(), outputs=(), algorithms=compute),
            Task(name="OPT(a)", inputs=(), outputs=(), updates=(0,), algorithms=host),
        ),
    )
    operations = (
        Operation(id=0, stream="compute", kind="run", task=0, algorithm=0, start_ns=0, end_ns=2_000_000),
        Operation(id=1, stream="host", kind="run", task=1, algorithm=0, start_ns=0, end_ns=1_000_000),
    )
    schedule = Schedule(
        format="pebbler/schedule/1",
        instance="on-host",
        method="hand",
        memory_model="contiguous",
        operations=operations,
        residences=(),
        makespan_ns=2_000_000,
        peak_bytes=2**19,
    )
    return instance, schedule
