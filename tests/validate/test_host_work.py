"""Work on the host: what the checker asks of runs that use host copies, on programs made by hand."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.instances.instance import Algorithm, Block, Instance, Slowdown, Task
from pebbler.validate.check import check
from pebbler.validate.measures import highest_byte, pinned_bytes, stalls_ns, with_host
from pebbler.validate.schedule import Carried, HostResidence, Operation, Residence, Schedule
from pebbler.validate.simulate import simulate

KIB = 1024
W, GRADIENT, STATE = range(3)
BACK, OUT, STEP, HOME, USE = range(5)
"""Ids of the operations: the step of the optimizer runs on the host."""

DEVICE = Algorithm(name="kernel", duration_ns=5, workspace_bytes=0)
HOST = Algorithm(name="cpu", duration_ns=50, workspace_bytes=512, on="host")


def instance(*, host: int | None = None, carried: bool = False) -> Instance:
    """The gradient of W is made on the device; a step updates W and a state; W is used again."""
    begins = {"initially": "carried"} if carried else {"initially": "device"}
    return Instance(
        name="step",
        engines="duplex",
        budget_bytes=2 * KIB,
        resident_bytes=0,
        blocks=(
            Block(name="W", bytes=KIB, offload_ns=10, prefetch_ns=10, **begins),  # type: ignore[arg-type]
            Block(name="dW", bytes=KIB, offload_ns=10, prefetch_ns=10),
            Block(
                name="state",
                bytes=KIB,
                offload_ns=10,
                prefetch_ns=10,
                initially="carried" if carried else "host",
            ),
        ),
        tasks=(
            Task(name="back", inputs=(W,), outputs=(GRADIENT,), algorithms=(DEVICE,)),
            Task(name="step", inputs=(GRADIENT,), outputs=(), updates=(W, STATE), algorithms=(DEVICE, HOST)),
            Task(name="use", inputs=(W,), outputs=(), algorithms=(DEVICE,)),
        ),
        host_budget_bytes=UNSET if host is None else host,
    )


def run(i: int, k: int, *after: int) -> Operation:
    return Operation(
        id=i, stream="compute", kind="run", task=k, algorithm=0, after=after, start_ns=0, end_ns=0
    )


def host_run(i: int, k: int, *after: int, algorithm: int = 1) -> Operation:
    return Operation(
        id=i, stream="host", kind="run", task=k, algorithm=algorithm, after=after, start_ns=0, end_ns=0
    )


def offload(i: int, d: int, *after: int) -> Operation:
    return Operation(id=i, stream="d2h", kind="offload", block=d, after=after, start_ns=0, end_ns=0)


def prefetch(i: int, d: int, *after: int) -> Operation:
    return Operation(id=i, stream="h2d", kind="prefetch", block=d, after=after, start_ns=0, end_ns=0)


def stay(d: int, offset: int, by: int | None, *released: int) -> Residence:
    return Residence(block=d, offset=offset, bytes=KIB, acquired_by=by, released_after=released)


def copy(d: int, offset: int, by: int | None, *released: int) -> HostResidence:
    return HostResidence(block=d, offset=offset, bytes=KIB, acquired_by=by, released_after=released)


OPERATIONS = (
    run(BACK, 0),
    offload(OUT, GRADIENT, BACK),
    host_run(STEP, 1, OUT),
    prefetch(HOME, W, STEP),
    run(USE, 2, HOME),
)
STAYS = (stay(W, 0, None, BACK), stay(GRADIENT, KIB, BACK, OUT), stay(W, 0, HOME))
SCRATCH = HostResidence(
    workspace_of=STEP, offset=3 * KIB, bytes=512, acquired_by=STEP, released_after=(STEP,)
)
COPIES = (copy(W, 0, None), copy(STATE, KIB, None), copy(GRADIENT, 2 * KIB, OUT, STEP), SCRATCH)


def timed(given: Instance, made: Schedule) -> Schedule:
    """The schedule with the figures of its simulation."""
    starts, ends = simulate(given, made)
    made = replace(
        made,
        operations=tuple(
            replace(operation, start_ns=start, end_ns=end)
            for operation, start, end in zip(made.operations, starts, ends, strict=True)
        ),
        makespan_ns=max(ends),
        peak_bytes=highest_byte(made),
    )
    return with_host(made, made.host_copies) if given.has_host_budget else made


def program(
    operations: tuple[Operation, ...] = OPERATIONS,
    stays: tuple[Residence, ...] = STAYS,
    copies: tuple[HostResidence, ...] | None = None,
    **keys: object,
) -> Schedule:
    return Schedule(
        **{
            "format": "pebbler/schedule/1",
            "instance": "step",
            "method": "hand",
            "memory_model": "contiguous",
            "operations": operations,
            "residences": stays,
            "makespan_ns": 0,
            "peak_bytes": 0,
            "host_residences": UNSET if copies is None else copies,
            "host_peak_bytes": UNSET if copies is None else 0,
            **keys,
        }
    )


def reasons(given: Instance, made: Schedule) -> tuple[str, ...]:
    return check(given, timed(given, made)).reasons


def with_operation(operation: Operation) -> tuple[Operation, ...]:
    return tuple(operation if operation.id == old.id else old for old in OPERATIONS)


def test_a_step_of_an_optimizer_runs_on_the_host() -> None:
    made = timed(instance(), program())
    assert check(instance(), made).reasons == ()
    assert [(operation.start_ns, operation.end_ns) for operation in made.operations] == [
        (0, 5),
        (5, 15),
        (15, 65),
        (65, 75),
        (75, 80),
    ]
    assert stalls_ns(instance(), made) == [0, 0, 70]
    assert pinned_bytes(instance(), made) == 3 * KIB + 512


def test_the_same_step_runs_on_the_device() -> None:
    operations = (run(BACK, 0), prefetch(HOME, STATE), run(STEP, 1, HOME), run(USE, 2))
    stays = (stay(W, 0, None), stay(GRADIENT, KIB, BACK, STEP), stay(STATE, 2 * KIB, HOME, STEP))
    larger = replace(instance(), budget_bytes=3 * KIB)
    assert reasons(larger, program(operations, stays)) == ()


@pytest.mark.parametrize(
    ("operations", "stays", "words"),
    [
        (with_operation(host_run(STEP, 1)), STAYS, "reads the host copy of 'dW' while an offload may be"),
        (with_operation(prefetch(HOME, W, BACK)), STAYS, "reads the host copy of 'W' while a run may be"),
        (
            with_operation(replace(host_run(STEP, 1, OUT), stream="compute")),
            STAYS,
            "(run step) is on stream compute, not on host",
        ),
        (
            with_operation(replace(run(STEP, 1, OUT), stream="host")),
            STAYS,
            "(run step) is on stream host, not on compute",
        ),
        (
            (*OPERATIONS[:3], run(USE, 2, STEP)),
            (stay(W, 0, None), STAYS[1]),
            "(run use) needs version 1 of 'W', and version 0 is there",
        ),
        (
            (run(BACK, 0), host_run(STEP, 1, BACK), *OPERATIONS[3:]),
            (STAYS[0], stay(GRADIENT, KIB, BACK), STAYS[2]),
            "(run step) needs version 1 of 'dW' on the host, and version None is there",
        ),
        (
            (*OPERATIONS[:3], offload(9, W, STEP), *OPERATIONS[3:]),
            (stay(W, 0, None, 9), STAYS[1], stay(W, KIB, HOME)),
            "(offload W) copies version 0 of 'W', not 1",
        ),
        (
            OPERATIONS,
            (*STAYS, stay(STATE, KIB, STEP)),
            "'state' is acquired by operation 2 (run step), which does not bring it there",
        ),
        (
            OPERATIONS,
            (
                *STAYS,
                Residence(workspace_of=STEP, offset=KIB, bytes=512, acquired_by=STEP, released_after=(STEP,)),
            ),
            "(run step) has 1 workspaces, not 0",
        ),
    ],
)
def test_what_a_run_on_the_host_breaks_is_named(
    operations: tuple[Operation, ...], stays: tuple[Residence, ...], words: str
) -> None:
    found = reasons(instance(), program(operations, stays))
    assert any(words in reason for reason in found), found


def small(*tasks: tuple[str, str], begins: str = "device", finally_: str = "anywhere") -> Instance:
    """One block that these tasks use: each `reads`, `updates` or `makes` it, with the algorithm of a side."""
    sets = {"reads": "inputs", "updates": "updates", "makes": "outputs"}
    sides = {"host": replace(HOST, workspace_bytes=0), "device": DEVICE}
    return Instance(
        name="step",
        engines="duplex",
        budget_bytes=2 * KIB,
        resident_bytes=0,
        blocks=(
            Block(name="x", bytes=KIB, offload_ns=10, prefetch_ns=10, initially=begins, finally_=finally_),  # type: ignore[arg-type]
            Block(name="y", bytes=KIB, offload_ns=10, prefetch_ns=10, initially="host"),
        ),
        tasks=tuple(
            Task(
                name=f"{side}{k}",
                algorithms=(sides[side],),
                **{"inputs": (), "outputs": (), sets[what]: (0,)},  # type: ignore[arg-type]
            )
            for k, (side, what) in enumerate(tasks)
        ),
    )


def host(i: int, k: int, *after: int) -> Operation:
    return host_run(i, k, *after, algorithm=0)


@pytest.mark.parametrize("waits", [True, False])
def test_an_offload_waits_for_what_reads_the_copy_that_it_writes_over(waits: bool) -> None:
    given = small(("host", "reads"), ("device", "updates"))
    operations = (host(0, 0), run(1, 1), offload(2, 0, *((0, 1) if waits else (1,))))
    found = reasons(given, program(operations, (stay(0, 0, None),)))
    assert found == () if waits else "writes the host copy of 'x', which may still be in use" in found[0]


@pytest.mark.parametrize("waits", [True, False])
def test_a_run_on_the_host_waits_for_what_reads_the_copy_that_it_writes_over(waits: bool) -> None:
    given = small(("device", "reads"), ("host", "updates"))
    operations = (prefetch(0, 0), run(1, 0, 0), host(2, 1, *((0,) if waits else ())))
    found = reasons(given, program(operations, (stay(0, 0, 0),)))
    assert found == () if waits else "writes the host copy of 'x', which may still be in use" in found[0]


@pytest.mark.parametrize("waits", [True, False])
def test_a_run_on_the_host_waits_for_the_offload_of_what_it_updates(waits: bool) -> None:
    given = small(("device", "makes"), ("host", "updates"), begins="absent")
    operations = (run(0, 0), offload(1, 0, 0), host(2, 1, *((1,) if waits else (0,))))
    found = reasons(given, program(operations, (stay(0, 0, 0),)))
    assert found == () if waits else "while an offload may be writing it" in found[0]


def test_what_the_host_makes_is_on_the_device_once_it_is_prefetched() -> None:
    given = small(("host", "makes"), ("device", "reads"), begins="absent", finally_="host")
    operations = (host(0, 0), prefetch(1, 0, 0), run(2, 1, 1))
    assert reasons(given, program(operations, (stay(0, 0, 1),))) == ()
    early = reasons(given, program((host(0, 0), run(2, 1, 0)), ()))
    assert any("needs 'x', which is not on the device" in reason for reason in early)
    ends_there = replace(given, blocks=(replace(given.blocks[0], finally_="device"), given.blocks[1]))
    assert reasons(ends_there, program(operations, (stay(0, 0, 1),))) == ()
    found = reasons(ends_there, program(operations, (stay(0, 0, 1, 2),)))
    assert "'x' must end on the device, where it is not kept" in found[0]


def test_what_the_host_updates_ends_on_the_host_and_not_on_the_device() -> None:
    given = small(("host", "updates"), finally_="host")
    assert reasons(given, program((host(0, 0),), (stay(0, 0, None),))) == ()
    ends_there = replace(given, blocks=(replace(given.blocks[0], finally_="device"), given.blocks[1]))
    found = reasons(ends_there, program((host(0, 0),), (stay(0, 0, None),)))
    assert "'x' must end on the device, where it is not kept" in found[0]


def test_the_device_may_still_read_what_the_host_has_updated_meanwhile() -> None:
    given = small(("device", "reads"), ("host", "updates"))
    assert reasons(given, program((host(1, 1), run(0, 0)), (stay(0, 0, None),))) == ()


def test_streams_have_their_own_order() -> None:
    given = small(("device", "reads"), ("host", "reads"), ("device", "reads"), ("host", "reads"))
    across = (run(0, 0), run(2, 2), host(1, 1), host(3, 3))
    assert reasons(given, program(across, (stay(0, 0, None),))) == ()
    for wrong, words in (
        ((run(2, 2), run(0, 0), host(1, 1), host(3, 3)), "(run device2) runs before 'device0' has run"),
        ((run(0, 0), run(2, 2), host(3, 3), host(1, 1)), "(run host3) runs before 'host1' has run"),
    ):
        (found,) = reasons(given, program(wrong, (stay(0, 0, None),)))
        assert words in found


def test_a_task_runs_on_one_side_only() -> None:
    given = instance()
    both = (*OPERATIONS, host_run(9, 1, USE))
    found = reasons(given, program(both))
    assert any("(run step) runs again, but its task is not recomputable" in reason for reason in found)


def test_copies_do_not_slow_the_host_down() -> None:
    given = instance()
    tasks = tuple(replace(task, slowdown_ppm=Slowdown(offload=500_000)) for task in given.tasks)
    slowed = replace(given, tasks=tasks)
    operations = (*OPERATIONS[:2], host_run(STEP, 1, OUT), offload(9, GRADIENT, OUT), run(USE, 2))
    starts, ends = simulate(slowed, program(operations, STAYS[:2]))
    assert (starts[2], ends[2]) == (15, 65)
    assert (starts[4], ends[4]) == (5, 15)


# --- host memory that ends ------------------------------------------------------------------------------


def test_a_run_on_the_host_has_its_room_there() -> None:
    given = instance(host=4 * KIB)
    made = timed(given, program(copies=COPIES))
    assert check(given, made).reasons == ()
    assert made.host_peak_bytes == 3 * KIB + 512
    assert pinned_bytes(given, made) == 3 * KIB + 512


@pytest.mark.parametrize(
    ("copies", "words"),
    [
        (COPIES[:3], "(run step) has 0 workspaces on the host, not 1"),
        ((*COPIES, replace(SCRATCH, offset=0)), "(run step) has 2 workspaces on the host, not 1"),
        ((*COPIES[:3], replace(SCRATCH, bytes=511)), "has 511 bytes, the algorithm needs 512"),
        ((*COPIES[:3], replace(SCRATCH, released_after=())), "not acquired and released by that run alone"),
        ((*COPIES[:3], replace(SCRATCH, acquired_by=OUT)), "not acquired and released by that run alone"),
        (
            (
                *COPIES,
                HostResidence(workspace_of=USE, offset=0, bytes=1, acquired_by=USE, released_after=(USE,)),
            ),
            "only a run on the host has a workspace there",
        ),
        ((*COPIES[:3], replace(SCRATCH, offset=2 * KIB)), "need not have been released by then"),
        ((*COPIES[:3], replace(SCRATCH, offset=4 * KIB)), "ends at byte 4608 of 4096 bytes of host memory"),
        (
            (*COPIES[:2], copy(GRADIENT, 2 * KIB, OUT, OUT), SCRATCH),
            "(run step) uses the host copy of 'dW', which may have been released by then",
        ),
        (
            (copy(W, 0, None, OUT), *COPIES[1:]),
            "(run step) uses the host copy of 'W', which may have been released by then",
        ),
        (
            (copy(W, 0, None, STEP), *COPIES[1:]),
            "(prefetch W) uses the host copy of 'W', which may have been released by then",
        ),
        (COPIES[1:], "(run step) needs version 0 of 'W' on the host, and version None is there"),
        (
            (*COPIES, copy(W, 0, STEP)),
            "the host copy of 'W' is acquired by operation 2 (run step), which does not write it",
        ),
    ],
)
def test_what_is_wrong_in_host_memory_is_named(copies: tuple[HostResidence, ...], words: str) -> None:
    found = reasons(instance(host=4 * KIB), program(copies=copies))
    assert any(words in reason for reason in found), found


def test_what_the_host_makes_has_a_copy_of_its_own() -> None:
    given = replace(
        small(("host", "makes"), ("device", "reads"), begins="absent", finally_="host"), host_budget_bytes=KIB
    )
    operations = (host(0, 0), prefetch(1, 0, 0), run(2, 1, 1))
    stays = (stay(0, 0, 1),)
    assert reasons(given, program(operations, stays, (copy(0, 0, 0),))) == ()
    for copies, words in (
        ((), "must acquire exactly one host residence of 'x'"),
        ((copy(0, 0, 0, 1),), "must be there at the end, and is released"),
        ((copy(0, 0, 1),), "acquired by operation 1 (prefetch x), which does not write it"),
    ):
        found = reasons(given, program(operations, stays, copies))
        assert any(words in reason for reason in found), found


# --- carried blocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [None, 4 * KIB])
def test_weights_that_the_host_updates_are_carried_there(budget: int | None) -> None:
    given = instance(host=budget, carried=True)
    at_first = prefetch(9, W)
    operations = (at_first, run(BACK, 0, 9), *OPERATIONS[1:])
    stays = (stay(W, 0, 9, BACK), STAYS[1], stay(W, 0, HOME, USE))
    copies = None if budget is None else COPIES
    host_only = tuple(Carried(block=d, device=False, host=True) for d in (W, STATE))
    assert reasons(given, program(operations, stays, copies, carried=host_only)) == ()
    on_both = (Carried(block=W, device=True, host=True), host_only[1])
    stays = (stay(W, 0, None, BACK), STAYS[1], stay(W, 0, HOME))
    assert reasons(given, program(OPERATIONS, stays, copies, carried=on_both)) == ()
    stale = reasons(
        given, program((*OPERATIONS[:3], run(USE, 2)), (stay(W, 0, None), STAYS[1]), copies, carried=on_both)
    )
    assert any("is not kept in its latest version" in reason for reason in stale)
