"""The replay where runs are on the host: what they read and write there, and the rules for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.instances.instance import Algorithm, Instance
from pebbler.validate.schedule import HostResidence, Operation, Residence, Schedule

from .test_replay import block, faults, figure, operation, residence, task, without_residence

W, G, S = range(3)
MAKE, OUT, STEP, IN, READ, LAST = range(6)
SIZE = 512

Change = Callable[[Schedule], Schedule]


def _on_host(workspace: int = 0) -> tuple[Algorithm, ...]:
    return (Algorithm(name="host", duration_ns=7, workspace_bytes=workspace, on="host"),)


@pytest.fixture(params=[False, True], ids=["endless", "budget"])
def instance(request: pytest.FixtureRequest) -> Instance:
    """W gives its gradient G, with which the host updates W and writes S; the device reads W, the host S."""
    sizes = {"bytes": SIZE}
    return Instance(
        name="step",
        engines="duplex",
        budget_bytes=2 * SIZE,
        resident_bytes=0,
        blocks=(block("w", initially="device", **sizes), block("g", **sizes), block("s", **sizes)),
        tasks=(
            task("gradient", inputs=(W,), outputs=(G,)),
            replace(task("step", inputs=(G,), outputs=(S,), updates=(W,)), algorithms=_on_host(SIZE)),
            task("read", inputs=(W,)),
            replace(task("look", inputs=(S,)), algorithms=_on_host()),
        ),
        host_budget_bytes=4 * SIZE if request.param else UNSET,
    )


@pytest.fixture
def schedule(instance: Instance) -> Schedule:
    def op(i: int, stream: str, kind: str, start: int, end: int, **keys: object) -> Operation:
        return Operation(
            **{"id": i, "stream": stream, "kind": kind, "start_ns": start, "end_ns": end, **keys}
        )

    def copy(at: int, acquired_by: int | None, *released_after: int, **what: int) -> HostResidence:
        return HostResidence(
            offset=at * SIZE, bytes=SIZE, acquired_by=acquired_by, released_after=released_after, **what
        )

    copies = (
        copy(0, None, IN, block=W),
        copy(1, OUT, STEP, block=G),
        copy(2, STEP, LAST, block=S),
        copy(3, STEP, STEP, workspace_of=STEP),
    )
    return Schedule(
        format="pebbler/schedule/1",
        instance="step",
        method="hand",
        memory_model="contiguous",
        operations=(
            op(MAKE, "compute", "run", 0, 5, task=0, algorithm=0),
            op(OUT, "d2h", "offload", 5, 8, block=G, after=(MAKE,)),
            op(STEP, "host", "run", 8, 15, task=1, algorithm=0, after=(OUT,)),
            op(IN, "h2d", "prefetch", 15, 18, block=W, after=(STEP, OUT)),
            op(READ, "compute", "run", 18, 23, task=2, algorithm=0, after=(IN,)),
            op(LAST, "host", "run", 15, 22, task=3, algorithm=0),
        ),
        residences=(
            Residence(block=W, offset=0, bytes=SIZE, released_after=(MAKE,)),
            Residence(block=G, offset=SIZE, bytes=SIZE, acquired_by=MAKE, released_after=(OUT,)),
            Residence(block=W, offset=SIZE, bytes=SIZE, acquired_by=IN, released_after=(READ,)),
        ),
        makespan_ns=23,
        peak_bytes=2 * SIZE,
        host_residences=copies if instance.has_host_budget else UNSET,
        host_peak_bytes=4 * SIZE if instance.has_host_budget else UNSET,
    )


def copy_of(r: int, **changes: object) -> Change:
    def change(schedule: Schedule) -> Schedule:
        copies = list(schedule.host_copies)
        if not copies:
            return schedule
        copies[r] = replace(copies[r], **changes)
        return replace(schedule, host_residences=tuple(copies))

    return change


def without_copy(r: int) -> Change:
    return lambda schedule: replace(
        schedule, host_residences=schedule.host_copies[:r] + schedule.host_copies[r + 1 :]
    )


def swapped(i: int) -> Change:
    def change(schedule: Schedule) -> Schedule:
        before, here, there, *after = (
            schedule.operations[:i],
            schedule.operations[i],
            schedule.operations[i + 1],
            *schedule.operations[i + 2 :],
        )
        return replace(schedule, operations=(*before, there, here, *after))

    return change


def test_a_valid_program_survives(instance: Instance, schedule: Schedule) -> None:
    assert faults(instance, schedule) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (operation(STEP, after=()), "data: run of 'step' (id 2) does not find 'g' on the host"),
        (operation(IN, after=(OUT,)), "data: prefetch of 'w' (id 3): 'w' on the host is overwritten"),
        (operation(IN, after=(OUT,)), "rule: prefetch of 'w' (id 3) copies an outdated 'w'"),
        (operation(IN, after=(OUT,)), "rule: run of 'step' (id 2) writes a block during a copy of it"),
        (operation(STEP, stream="compute"), "rule: run of 'step' (id 2) is on stream compute"),
        (operation(READ, stream="host"), "rule: run of 'read' (id 4) is on stream host"),
        (operation(READ, after=()), "data: run of 'read' (id 4) "),
        (operation(LAST, task=1), "data: task 'look' never runs"),
        (operation(LAST, task=1), "rule: run of 'step' (id 5) runs again"),
        (operation(STEP, task=3), "rule: run of 'look' (id 2) is out of order"),
        (residence(0, released_after=()), "rule: 'w' has two residences at a time"),
        (
            residence(1, acquired_by=STEP),
            "rule: residences[1] is acquired by run of 'step' (id 2), which does",
        ),
        (figure(makespan_ns=22), "figure: the makespan was 23"),
    ],
)
def test_damage_is_found(instance: Instance, schedule: Schedule, change: Change, fault: str) -> None:
    found = faults(instance, change(schedule))
    assert any(one.startswith(fault) for one in found), found


@pytest.mark.parametrize("instance", [True], indirect=True)
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (without_copy(2), "data: run of 'step' (id 2) has no place for 's' on the host"),
        (without_copy(3), "data: run of 'step' (id 2) has no place for workspace on the host"),
        (copy_of(0, released_after=(OUT,)), "data: run of 'step' (id 2)"),
        (copy_of(0, released_after=(STEP,)), "data: prefetch of 'w' (id 3)"),
        (
            copy_of(1, released_after=(OUT,)),
            "data: run of 'step' (id 2) uses 'g' on the host outside its stay",
        ),
        (copy_of(2, released_after=(IN,)), "data: run of 'look' (id 5)"),
        (copy_of(2, acquired_by=OUT), "rule: host_residences[2] is acquired by offload of 'g' (id 1), which"),
        (copy_of(3, offset=SIZE), "data: host_residences[3] is acquired over host_residences[1]"),
        (copy_of(3, offset=2 * SIZE), "data: run of 'step' (id 2): "),
        (copy_of(3, released_after=()), "rule: host_residences[3] is not held for its run and no longer"),
        (copy_of(3, acquired_by=OUT), "rule: host_residences[3] is not held for its run and no longer"),
        (copy_of(3, workspace_of=READ), "rule: host_residences[3] is a workspace of nothing that needs one"),
        (copy_of(3, bytes=SIZE - 1), "rule: host_residences[3] has 511 bytes for 512"),
        (copy_of(3, offset=4 * SIZE), "data: host_residences[3] lies outside host memory"),
        (figure(host_peak_bytes=SIZE), "figure: the peak on the host was 2048"),
    ],
)
def test_damage_in_host_memory_is_found(
    instance: Instance, schedule: Schedule, change: Change, fault: str
) -> None:
    found = faults(instance, change(schedule))
    assert any(one.startswith(fault) for one in found), found


def test_the_device_may_read_the_version_that_its_task_finds_while_the_host_writes_the_next(
    instance: Instance, schedule: Schedule
) -> None:
    """Between the streams nothing but data orders runs, and the two sides have bytes of their own."""
    early = replace(
        instance,
        tasks=(
            instance.tasks[0],
            replace(instance.tasks[1], inputs=()),
            *instance.tasks[2:],
        ),
    )
    change = operation(STEP, after=(), start_ns=0, end_ns=7)
    found = faults(early, change(copy_of(1, released_after=(OUT,))(schedule)))
    assert not [fault for fault in found if not fault.startswith("figure")], found


def test_what_the_host_has_made_stale_on_the_device_is_not_copied(
    instance: Instance, schedule: Schedule
) -> None:
    def change(schedule: Schedule) -> Schedule:
        late = Operation(id=9, stream="d2h", kind="offload", block=W, after=(STEP,), start_ns=15, end_ns=18)
        return replace(schedule, operations=(*schedule.operations[:IN], late, *schedule.operations[IN:]))

    kept = residence(0, released_after=(MAKE, 9))(change(schedule))
    assert "rule: offload of 'w' (id 9) copies an outdated 'w'" in faults(instance, kept)


def test_a_workspace_on_the_device_is_of_a_run_on_the_device(instance: Instance, schedule: Schedule) -> None:
    scratch = Residence(workspace_of=STEP, offset=0, bytes=SIZE, acquired_by=STEP, released_after=(STEP,))
    found = faults(instance, replace(schedule, residences=(*schedule.residences, scratch)))
    assert "rule: residences[3] is a workspace of nothing that needs one" in found


def test_what_is_no_damage_is_no_fault(instance: Instance, schedule: Schedule) -> None:
    """A residence more than needed on the device is no use, and a listed order of streams is free."""
    assert faults(instance, swapped(READ)(schedule)) == []
    assert faults(instance, without_residence(0)(schedule)) != []
