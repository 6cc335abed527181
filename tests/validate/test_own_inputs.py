"""The checker and the replay where a run's algorithm says what it reads."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from pebbler.heuristics.program.builder import ProgramBuilder
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.validate.check import check
from pebbler.validate.measures import pinned_bytes
from pebbler.validate.schedule import Schedule
from pebbler.validate.traces.programs import trace_of

from ..reading import either
from .mutation_study import survive


def program(instance: Instance, kept: int) -> Schedule:
    """The program that copies block `kept` out and back, and whose last run reads it alone."""
    builder = ProgramBuilder(instance, memory="contiguous")
    builder.run(0, 0)
    if kept == 0:
        builder.offload(0)
    builder.run(1, 0)
    if kept == 1:
        builder.offload(1)
    for d in (0, 1):
        builder.release(d)
    builder.run(2, 0)
    builder.release(2)
    builder.prefetch(kept)
    builder.run(3, 1 - kept)
    return builder.finish("by hand")


@pytest.mark.parametrize(("kept", "makespan"), [(0, 23), (1, 24)])
def test_a_run_needs_what_its_algorithm_reads_and_nothing_else(kept: int, makespan: int) -> None:
    schedule = program(either(), kept)
    assert schedule.makespan_ns == makespan
    assert check(either(), schedule).reasons == ()
    assert survive(either(), schedule, Random(1)) == []
    assert pinned_bytes(either(), schedule) == 1


@pytest.mark.parametrize("kept", [0, 1])
def test_a_run_with_the_other_algorithm_finds_nothing_to_read(kept: int) -> None:
    schedule, name = program(either(), kept), "yx"[kept]
    *others, last = schedule.operations
    wrong = replace(schedule, operations=(*others, replace(last, algorithm=kept)))
    reasons = check(either(), wrong).reasons
    assert any(f"'{name}', which may have been released by then" in reason for reason in reasons), reasons
    assert survive(either(), wrong, Random(1)) != []


def test_the_builder_refuses_a_run_whose_reads_are_not_there() -> None:
    builder = ProgramBuilder(either(), memory="contiguous")
    builder.run(0, 0)
    builder.run(1, 0)
    builder.release(0)
    with pytest.raises(PebblerError, match="block 'x' is not on the device where either needs it"):
        builder.run(3, 1)


def test_a_trace_says_what_each_run_reads() -> None:
    trace = trace_of(either(), program(either(), 0))
    last = next(operation for operation in trace.operations if operation.name == "either")
    names = {buffer.name: buffer for buffer in trace.buffers}
    assert len(last.reads) == 1
    assert set(last.reads) <= set(names)
